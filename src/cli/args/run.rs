//! The arguments of the commands that write a model.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::ReadArgs;
use super::values::{parse_layers, parse_part, parse_part_index, parse_rename, parse_size};
use crate::FloatCast;

/// Headings of the options in `--help`.
pub(super) const SELECTION: &str = "Which tensors";
pub(super) const OUTPUT: &str = "Output";
pub(super) const RUN: &str = "How it runs";

#[derive(Debug, clap::Args)]
pub(in super::super) struct RunArgs {
    #[command(flatten)]
    pub select: SelectArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Leave nothing of input and output in the system's cache (Linux)
    #[arg(long, help_heading = RUN)]
    pub uncached: bool,
    /// Say what would be done, and do nothing
    #[arg(long, help_heading = RUN)]
    pub dry_run: bool,
    /// Print JSON; see docs/json.md
    #[arg(long, help_heading = RUN)]
    pub json: bool,
    /// Go on with an unfinished directory
    #[arg(long, help_heading = RUN)]
    pub resume: bool,
    /// Make part I of N of a directory, I from 1 to N; any number of processes can make the others;
    /// --finish ends it
    #[arg(long, value_name = "I/N", help_heading = RUN, value_parser = parse_part)]
    pub part: Option<(usize, usize)>,
    /// As --part, with I from 0 to N-1, e.g. $SLURM_ARRAY_TASK_ID/4 of a job array 0-3
    #[arg(
        long,
        value_name = "I/N",
        help_heading = RUN,
        conflicts_with = "part",
        value_parser = parse_part_index
    )]
    pub part_index: Option<(usize, usize)>,
    #[command(flatten)]
    pub read: ReadArgs,
}

impl RunArgs {
    /// The part of a directory that is made, counted from 1, and the number of parts.
    pub(in super::super) fn part(&self) -> Option<(usize, usize)> {
        self.part.or(self.part_index)
    }
}

impl OutputArgs {
    /// Whether the SHA-256 of the output's files is wanted.
    pub(in super::super) fn hashes(&self) -> bool {
        self.sha256 || self.manifest.is_some()
    }
}

/// Which tensors of the input are written.
#[derive(Debug, clap::Args)]
pub(in super::super) struct SelectArgs {
    /// Only tensors with names like this, e.g. "*.layers.0.*" or "re:.*norm"; may be repeated.
    /// Others are not in the output, or with forget not encoded
    #[arg(long, value_name = "GLOB", help_heading = SELECTION)]
    pub include: Vec<String>,
    /// No tensors with names like this, likewise; may be repeated
    #[arg(long, value_name = "GLOB", help_heading = SELECTION)]
    pub exclude: Vec<String>,
    /// Leave out tensors with names like this, with their scales; may be repeated
    #[arg(long, value_name = "GLOB", help_heading = SELECTION)]
    pub drop: Vec<String>,
    /// Give tensors with names like OLD the name NEW, e.g. "model.*=$1" or
    /// "re:layers\\.(\\d+)=blk.$1"; may be repeated, and the first that matches counts
    #[arg(long, value_name = "OLD=NEW", help_heading = SELECTION, value_parser = parse_rename)]
    pub rename: Vec<(String, String)>,
    /// File of such names: a line OLD=NEW for each, or a JSON object
    #[arg(long, value_name = "FILE", help_heading = SELECTION)]
    pub rename_file: Option<PathBuf>,
    /// Leave out layers by their numbers, e.g. 20-27,30; the others are numbered anew, and so is what
    /// config.json or the metadata of GGUF says of them
    #[arg(long, value_name = "LAYERS", help_heading = SELECTION, value_delimiter = ',', value_parser = parse_layers)]
    pub prune_layers: Vec<RangeInclusive<usize>>,
    /// Leave out arrays that no tensor can hold (text, objects, …), and tensors that cannot be decoded
    #[arg(long, help_heading = SELECTION)]
    pub skip_unsupported: bool,
    /// Refuse a model of which something is taken for granted: integers that look like codes of a
    /// quantization that is not recognised, or weights that could be in another layout; by default
    /// a note says so
    #[arg(long, help_heading = SELECTION)]
    pub strict: bool,
}

/// Where the output goes, and what it is made of.
#[derive(Debug, clap::Args)]
pub(in super::super) struct OutputArgs {
    /// Output file or directory, or - for stdout; of several inputs, the directory of the outputs
    /// [default: beside the input, e.g. model-fp8.safetensors gives model-bf16.safetensors, and the
    /// directory NAME gives NAME-BF16]
    #[arg(id = "output", short, long, value_name = "OUT", help_heading = OUTPUT)]
    pub path: Option<PathBuf>,
    /// Replace an existing output
    #[arg(short, long, help_heading = OUTPUT)]
    pub force: bool,
    /// Print the SHA-256 of each output file, computed while it is written, as sha256sum does
    #[arg(long, help_heading = OUTPUT)]
    pub sha256: bool,
    /// Write the SHA-256 of each output file to a list for sha256sum -c and check --manifest
    #[arg(long, value_name = "SHA256SUMS", help_heading = OUTPUT)]
    pub manifest: Option<PathBuf>,
    /// Split the output into files of at most this size, e.g. 5GB, in powers of 1024 [default: as
    /// the input is]
    #[arg(long, value_name = "SIZE", help_heading = OUTPUT, value_parser = parse_size)]
    pub max_shard_size: Option<u64>,
    /// Write the tensors under the names that they have, and no model: no settings, no tokenizer
    #[arg(long, help_heading = OUTPUT)]
    pub tensors_only: bool,
    /// Write the image tower and the projector of a multimodal Hugging Face model, which llama.cpp
    /// loads beside its language model; with FILE, which is such a tower of the GGUF model, write the
    /// multimodal model to a directory
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        help_heading = OUTPUT,
        conflicts_with_all = ["tensors_only", "include", "exclude"]
    )]
    pub mmproj: Option<Option<PathBuf>>,
    /// GGUF metadata from a JSON object: values get the types of their keys, {"type": "u8", "value":
    /// 3} has its own, and null removes a key
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub gguf_metadata: Option<PathBuf>,
    /// One value of GGUF metadata, with the type of its key; KEY:TYPE=VALUE gives the type, and
    /// KEY=null removes the key; may be repeated
    #[arg(long, value_name = "KEY=VALUE", help_heading = OUTPUT)]
    pub gguf_kv: Vec<String>,
    /// llama.cpp's name of the pre-tokenizer, e.g. llama-bpe, for a GGUF file of a Hugging Face
    /// model [default: the one that fits]
    #[arg(long, value_name = "NAME", help_heading = OUTPUT)]
    pub tokenizer_pre: Option<String>,
}

/// What becomes of tensors that are not quantized.
#[derive(Debug, clap::Args)]
pub(in super::super) struct CastArgs {
    /// Convert tensors that are not quantized, too: F64, F32, F16 and BF16
    #[arg(long, help_heading = OUTPUT)]
    pub cast: bool,
    /// Make values beyond the range of the element type the largest finite value; without this they
    /// are an error
    #[arg(long, requires = "cast", help_heading = OUTPUT)]
    pub saturate: bool,
}

impl OutputArgs {
    /// Whether the output is the tower of a model.
    pub(in super::super) fn is_tower(&self) -> bool {
        self.mmproj == Some(None)
    }

    /// The file of the tower that is joined with the model.
    pub(in super::super) fn tower(&self) -> Option<&Path> {
        self.mmproj.as_ref()?.as_deref()
    }

    /// Whether the output goes to stdout.
    pub(in super::super) fn is_stdout(&self) -> bool {
        self.path.as_deref() == Some(Path::new("-"))
    }
}

impl CastArgs {
    pub(in super::super) fn cast(&self) -> FloatCast {
        match (self.cast, self.saturate) {
            (false, _) => FloatCast::Keep,
            (true, false) => FloatCast::Checked,
            (true, true) => FloatCast::Saturating,
        }
    }
}
