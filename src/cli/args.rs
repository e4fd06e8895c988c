//! The arguments of the command line. Doc comments in this file are the texts of `--help`.

mod edit;
mod encode;
mod examples;
mod gguf_model;
pub(super) mod hints;
mod messages;
mod readers;
mod run;
pub(super) mod short_help;
mod values;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

pub(super) use self::edit::EditArgs;
pub(super) use self::encode::TypeArgs;
pub(super) use self::gguf_model::GgufModelArgs;
pub(super) use self::messages::{MessageArgs, ProgressMode, ReadArgs};
pub(super) use self::readers::{
    CheckArgs, DiffArgs, DiffSortKey, InspectArgs, LsArgs, ParseArgs, ReportArgs, ScanArgs,
    ShowArgs, SortKey,
};
pub(super) use self::run::{CastArgs, OutputArgs, RunArgs};
use self::run::{OUTPUT, RUN, SELECTION};
pub(super) use self::values::{ConvertTo, MergeTo};
use self::values::{
    DTYPE, MERGE_TARGET, SCHEME, TARGET, help_of_containers, parse_adapter, parse_global,
    parse_size,
};
use crate::{ForgetScheme, ParseLimits, TargetDtype};

/// Parse any tensor format, recover any precision.
#[derive(Debug, Parser)]
#[command(
    name = "anamnesis",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = examples::PROGRAM
)]
pub(super) struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Check a model file, count its tensors by role, and list them
    #[command(after_help = examples::PARSE)]
    Parse(ParseArgs),
    /// List a model's tensors with dtype, shape, parameters, size, scheme and file
    #[command(visible_alias = "list", after_help = examples::LS)]
    Ls(LsArgs),
    /// Show values, range and distribution of tensors, decoded from whatever they are stored in
    #[command(after_help = examples::SHOW)]
    Show(ShowArgs),
    /// Grade what files could do to somebody who opens them with Python: safe, suspicious or
    /// dangerous
    #[command(after_help = examples::SCAN)]
    Scan(ScanArgs),
    /// Show a model's format and sizes, before and after recovery
    #[command(visible_alias = "info", after_help = examples::INSPECT)]
    Inspect(InspectArgs),
    /// Decode every quantized tensor and write a standard safetensors file
    #[command(visible_alias = "dequantize", aliases = ["dequant", "decode"], after_help = examples::REMEMBER)]
    Remember(RememberArgs),
    /// Encode a model into another precision; what is quantized already is decoded on the way
    #[command(visible_alias = "quantize", aliases = ["quant", "encode"], after_help = examples::FORGET)]
    Forget(ForgetArgs),
    /// Write a model into another container; GGUF blocks go from GGUF to GGUF as they are
    #[command(after_help = examples::CONVERT)]
    Convert(ConvertArgs),
    /// Merge LoRA adapters of any program into a model of any precision
    #[command(after_help = examples::MERGE)]
    Merge(MergeArgs),
    /// Set, remove and rename metadata of GGUF and safetensors files, and fields of config.json
    #[command(after_help = examples::EDIT)]
    Edit(EditArgs),
    /// Compare two models, tensor by tensor and value by value; exit code 1 if they differ
    #[command(alias = "compare", after_help = examples::DIFF)]
    Diff(DiffArgs),
    /// Look for everything that can be wrong with models; exit code 1 if something is
    #[command(aliases = ["verify", "validate"], after_help = examples::CHECK)]
    Check(CheckArgs),
    /// Write an HTML page on a model, or on two: sizes, bits per value, errors, values, findings
    #[command(after_help = examples::REPORT)]
    Report(ReportArgs),
    /// Print a script that completes commands and options in a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Print a manual page, in roff
    #[command(after_help = examples::MAN)]
    Man(ManArgs),
}

/// What a command reads.
pub(super) struct CommandInput<'a> {
    /// The first model.
    pub path: &'a Path,
    /// Whether there is no other that an error may be about.
    pub is_only: bool,
    /// Whether the command prints JSON.
    pub json: bool,
}

impl Command {
    /// The models that the command reads; `None` if it reads none.
    pub(super) fn input(&self) -> Option<CommandInput<'_>> {
        let one = |json, file| (json, std::slice::from_ref(file));
        let (json, files) = match self {
            Self::Parse(args) => one(args.json, &args.input.file),
            Self::Ls(args) => one(args.json, &args.input.file),
            Self::Show(args) => one(args.json, &args.input.file),
            Self::Scan(args) => (args.json, args.paths.as_slice()),
            Self::Inspect(args) => (args.json, args.files.as_slice()),
            Self::Remember(args) => (args.run.json, args.input.files.as_slice()),
            Self::Forget(args) => (args.run.json, args.input.as_ref()?.files.as_slice()),
            Self::Convert(args) => (args.run.json, args.input.files.as_slice()),
            Self::Merge(args) => one(args.run.json, &args.base),
            Self::Edit(args) => one(args.json, &args.model),
            Self::Diff(args) => one(args.json, &args.a),
            Self::Check(args) => (args.json, args.models.as_slice()),
            Self::Report(args) => one(false, &args.a),
            Self::Completions(_) | Self::Man(_) => return None,
        };
        // These read several, whatever is given first, and their errors say which one is at fault.
        let names_its_own = matches!(
            self,
            Self::Scan(_) | Self::Merge(_) | Self::Diff(_) | Self::Check(_) | Self::Report(_)
        );
        Some(CommandInput {
            path: files.first()?,
            is_only: files.len() == 1 && !names_its_own,
            json,
        })
    }

    /// Takes all shards of a model for the model, if the output is one file.
    pub(super) fn join_shards(&mut self) {
        let (input, run) = match self {
            Self::Remember(args) => (&mut args.input, &mut args.run),
            Self::Convert(args) => (&mut args.input, &mut args.run),
            Self::Forget(ForgetArgs { input: Some(input), run, .. }) => (input, run),
            _ => return,
        };
        input.take_from_mmproj(run);
        if let Some(model) = hints::model_of(&input.files, run.output.path.as_deref()) {
            input.files = vec![model];
        }
    }

    /// How the command reads tensor data; `None` if it reads headers alone.
    pub(super) fn reading(&self) -> Option<&ReadArgs> {
        Some(match self {
            Self::Show(args) => &args.read,
            Self::Remember(args) => &args.run.read,
            Self::Forget(args) => &args.run.read,
            Self::Convert(args) => &args.run.read,
            Self::Merge(args) => &args.run.read,
            Self::Diff(args) => &args.read,
            Self::Check(args) => &args.read,
            Self::Report(args) => &args.read,
            _ => return None,
        })
    }

    /// How much the command says; `None` if it reads no model.
    pub(super) fn messages(&self) -> Option<&MessageArgs> {
        match self {
            Self::Parse(args) => Some(&args.messages),
            Self::Ls(args) => Some(&args.messages),
            Self::Scan(args) => Some(&args.messages),
            Self::Inspect(args) => Some(&args.messages),
            Self::Edit(args) => Some(&args.messages),
            _ => self.reading().map(|read| &read.messages),
        }
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// The shell that reads the script
    pub shell: clap_complete::Shell,
}

#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// Command that the page is about [default: the program]
    pub command: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct FileArgs {
    /// Model file, directory of a model, ORG/MODEL in the cache of Hugging Face, or
    /// ollama:MODEL[:TAG]
    pub file: PathBuf,
    /// Take only what is below this key of a checkpoint, e.g. state_dict; names lose it
    #[arg(long, visible_alias = "prefix", value_name = "KEY", help_heading = INPUT)]
    pub root: Option<String>,
}

/// The inputs of a command that writes an output for each.
#[derive(Debug, clap::Args)]
pub(super) struct InputsArgs {
    /// Model files, directories of models, ORG/MODEL in the cache of Hugging Face, or
    /// ollama:MODEL[:TAG]; with several, -o is a directory
    #[arg(value_name = "FILE", required_unless_present = "mmproj")]
    pub files: Vec<PathBuf>,
    /// Take only what is below this key of a checkpoint, e.g. state_dict; names lose it
    #[arg(long, visible_alias = "prefix", value_name = "KEY", help_heading = INPUT)]
    pub root: Option<String>,
}

impl InputsArgs {
    /// Takes what stands behind `--mmproj` for the input if there is no other: the option may have no
    /// value.
    pub(super) fn take_from_mmproj(&mut self, run: &mut RunArgs) {
        if self.files.is_empty()
            && let Some(file) = run.output.mmproj.as_mut().and_then(Option::take)
        {
            self.files.push(file);
        }
    }
}

/// Heading of what is encoded, and how, in `--help`.
const ENCODING: &str = "Encoding";

/// Heading of the options of the input in `--help`.
const INPUT: &str = "Input";

/// Bounds of [`ParseLimits`]; see `docs/safety.md`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct LimitArgs {
    /// Largest single allocation whose size a file declares [default: none]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = LIMITS)]
    pub max_single_alloc: Option<u64>,
    /// Memory of all allocations for the headers of a model, and for what is made from it in memory
    /// [default: none]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = LIMITS)]
    pub max_total_bytes: Option<u64>,
    /// Tensors, metadata keys and members of archives together [default: none]
    #[arg(long, value_name = "N", help_heading = LIMITS)]
    pub max_item_count: Option<u64>,
    /// How many times longer than stored a compressed member may be [default: none]
    #[arg(long, value_name = "N", help_heading = LIMITS)]
    pub max_decompression_ratio: Option<u64>,
    /// Let pickles name this global, e.g. argparse.Namespace; what its objects hold is not read;
    /// may be repeated
    #[arg(long, value_name = "MODULE.NAME", help_heading = LIMITS, value_parser = parse_global)]
    pub allow_opaque: Vec<String>,
    /// Length of all compressed members together that are more than 100 times longer than stored
    /// [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = LIMITS)]
    pub max_decompressed_bytes: Option<u64>,
}

/// Heading of the options of [`LimitArgs`] in `--help`.
const LIMITS: &str = "Limits of what a file may claim";

impl LimitArgs {
    pub(super) fn limits(&self) -> ParseLimits {
        type Setter = fn(ParseLimits, u64) -> ParseLimits;
        let set: [(Option<u64>, Setter); 5] = [
            (self.max_single_alloc, ParseLimits::with_max_single_alloc),
            (self.max_total_bytes, ParseLimits::with_max_total_bytes),
            (self.max_item_count, ParseLimits::with_max_item_count),
            (self.max_decompression_ratio, ParseLimits::with_max_decompression_ratio),
            (self.max_decompressed_bytes, ParseLimits::with_max_decompressed_bytes),
        ];
        let limits = set
            .into_iter()
            .filter_map(|(value, with)| Some((value?, with)))
            .fold(ParseLimits::default(), |limits, (value, with)| with(limits, value));
        let opaque = self.allow_opaque.iter();
        opaque.fold(limits, ParseLimits::with_opaque_global)
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct RememberArgs {
    #[command(flatten)]
    pub input: InputsArgs,
    /// Element type of recovered weights: bf16, f16 or f32
    #[arg(long, aliases = ["dtype", "type", "out-dtype", "outtype"], value_name = "DTYPE", default_value = "bf16", help_heading = OUTPUT, value_parser = DTYPE, hide_possible_values = true)]
    pub to: TargetDtype,
    /// Give the directory FILE its name, now that all its parts are made (see --part)
    #[arg(long, help_heading = RUN, conflicts_with_all = [
        "to", "cast", "part", "part_index", "resume", "output", "json", "include", "exclude", "skip_unsupported", "strict", "max_shard_size",
        "tensors_only", "mmproj", "tokenizer_pre", "dry_run", "root",
        "drop", "rename", "rename_file", "prune_layers", "gguf_metadata", "gguf_kv",
    ])]
    pub finish: bool,
    #[command(flatten)]
    pub cast: CastArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct ConvertArgs {
    #[command(flatten)]
    pub input: InputsArgs,
    #[arg(long, value_name = "FORMAT", help_heading = OUTPUT, value_parser = TARGET, hide_possible_values = true, help = help_of_containers())]
    pub to: Option<ConvertTo>,
    /// Element type of what is decoded: bf16, f16 or f32 [default: bf16]; decodes GGUF blocks for
    /// GGUF too
    #[arg(long, alias = "dtype", value_name = "DTYPE", help_heading = OUTPUT, value_parser = DTYPE, hide_possible_values = true)]
    pub out_dtype: Option<TargetDtype>,
    /// The model that FILE, an adapter, was trained for, which has a config.json: one of PEFT becomes
    /// one that llama.cpp loads beside the model, and the other way round; one of an image model gets
    /// other names in a file (-o NAME.safetensors), or is a directory of PEFT; or the target of FILE, a
    /// draft for speculative decoding, whose tokenizer it has
    #[arg(long, value_name = "BASE", help_heading = OUTPUT, conflicts_with_all = ["tensors_only", "include", "exclude", "mmproj"])]
    pub base: Option<PathBuf>,
    /// Give an adapter of an image or video model the names of kohya's scripts (lora_unet_…), which
    /// they have for BASE; without it those of diffusers or ComfyUI
    #[arg(long, help_heading = OUTPUT, requires = "base")]
    pub kohya_names: bool,
    /// Write settings and tokenizer of a model as a GGUF file without tensors; a directory may be
    /// without weights
    #[arg(long, help_heading = OUTPUT, conflicts_with_all = ["mtp", "no_mtp", "tensors_only", "mmproj", "root"])]
    pub vocab_only: bool,
    /// Write the layers that predict further tokens alone, with the embedding and the output: a draft
    /// that llama.cpp loads beside the model
    #[arg(long, help_heading = OUTPUT, conflicts_with_all = ["no_mtp", "tensors_only", "mmproj"])]
    pub mtp: bool,
    /// Encode matrices that are FP8 with scales to Q8_0, as llama.cpp's converter does, and no others
    #[arg(long, help_heading = OUTPUT, conflicts_with_all = ["vocab_only", "tensors_only", "mmproj"])]
    pub fp8_as_q8: bool,
    #[command(flatten)]
    pub model: GgufModelArgs,
    #[command(flatten)]
    pub cast: CastArgs,
    #[command(flatten)]
    pub types: TypeArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct MergeArgs {
    /// Model file, directory of a model, ORG/MODEL in the cache of Hugging Face, or
    /// ollama:MODEL[:TAG]
    pub base: PathBuf,
    /// Directories of PEFT or mlx-lm, or files of diffusers, kohya's scripts or llama.cpp;
    /// ADAPTER=WEIGHT multiplies what one adds
    #[arg(value_name = "ADAPTER", required = true, value_parser = parse_adapter)]
    pub adapters: Vec<(PathBuf, f64)>,
    /// Element type of what is quantized now: bf16, f16 or f32; or a container or a scheme, as for
    /// convert
    #[arg(long, value_name = "DTYPE", default_value = "bf16", help_heading = OUTPUT, value_parser = MERGE_TARGET, hide_possible_values = true)]
    pub to: MergeTo,
    #[command(flatten)]
    pub cast: CastArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct ForgetArgs {
    #[command(flatten)]
    pub input: Option<InputsArgs>,
    /// Scheme, e.g. nf4, fp8-block, int8, nvfp4, mxfp4, w4a16, mlx-4bit, gguf:q4_k_m; see --list
    #[arg(
        long,
        visible_alias = "scheme",
        value_name = "SCHEME",
        help_heading = ENCODING,
        value_parser = SCHEME, hide_possible_values = true,
        required_unless_present = "list"
    )]
    pub to: Option<ForgetScheme>,
    /// Name every scheme, and do nothing
    #[arg(long, exclusive = true, help_heading = ENCODING)]
    pub list: bool,
    /// Element type of values that are quantized now, and of those among them that are not encoded
    #[arg(long, value_name = "DTYPE", help_heading = ENCODING, value_parser = DTYPE, hide_possible_values = true)]
    pub out_dtype: Option<TargetDtype>,
    /// Encode the tensors that are quantized in this model of the same names
    #[arg(long, value_name = "MODEL", help_heading = SELECTION)]
    pub like: Option<PathBuf>,
    /// Search scales that lose least, rather than take the library's; best with --imatrix
    #[arg(long, help_heading = ENCODING)]
    pub search: bool,
    /// Importance matrix of llama.cpp's: GGUF, --search, --bits
    #[arg(long, value_name = "FILE", help_heading = ENCODING)]
    pub imatrix: Option<PathBuf>,
    /// Scales that FP8 activations are quantized with: JSON of numbers by module, or a model that has
    /// them
    #[arg(long, value_name = "FILE", help_heading = ENCODING)]
    pub activation_scales: Option<PathBuf>,
    /// Multiply columns whose inputs are large with what the norms before them are divided by, as AWQ
    /// does: the model computes what it did, and 4 bits or fewer lose less. Needs --imatrix
    #[arg(long, help_heading = ENCODING)]
    pub awq_scaling: bool,
    /// Values that share a scale, where a scheme leaves a choice: the group or the block [default:
    /// what is usual]
    #[arg(long, value_name = "N", help_heading = ENCODING, value_parser = clap::value_parser!(u32).range(1..))]
    pub group_size: Option<u32>,
    /// Whose scales MXFP4 and MXFP8 get: compressed-tensors, modelopt, floor, ceil, even, rceil or
    /// ggml
    #[arg(long, value_name = "RULE", help_heading = ENCODING)]
    pub scale_rule: Option<String>,
    /// Give all tensors of a GGUF file the same type
    #[arg(long, help_heading = ENCODING)]
    pub pure: bool,
    #[command(flatten)]
    pub model: GgufModelArgs,
    #[command(flatten)]
    pub types: TypeArgs,
    /// Write an HTML page on the error, too: by tensor, layer and class of modules; -f replaces one
    #[arg(long, value_name = "FILE", help_heading = OUTPUT, conflicts_with = "dry_run")]
    pub html: Option<PathBuf>,
    /// Print CSV: the error of every encoded tensor
    #[arg(long, conflicts_with_all = ["json", "dry_run", "sha256"], help_heading = RUN)]
    pub csv: bool,
    #[command(flatten)]
    pub run: RunArgs,
}
