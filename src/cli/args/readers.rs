//! The arguments of the commands that read models and write none.

use std::path::PathBuf;

use super::run::{OUTPUT, RUN, SELECTION};
use super::values::{DTYPE, parse_tolerance};
use super::{FileArgs, INPUT, LimitArgs, MessageArgs, ReadArgs};
use crate::TargetDtype;

#[derive(Debug, clap::Args)]
pub(in super::super) struct ParseArgs {
    #[command(flatten)]
    pub input: FileArgs,
    /// Print JSON; see docs/json.md
    #[arg(long, help_heading = RUN)]
    pub json: bool,
    #[command(flatten)]
    pub messages: MessageArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
}

#[derive(Debug, clap::Args)]
pub(in super::super) struct LsArgs {
    #[command(flatten)]
    pub input: FileArgs,
    /// Only tensors with names like these, e.g. "*.layers.0.*" or "re:.*norm"
    #[arg(value_name = "GLOB")]
    pub patterns: Vec<String>,
    /// Only tensors with names like this, likewise; may be repeated
    #[arg(long, value_name = "GLOB", help_heading = SELECTION)]
    pub include: Vec<String>,
    /// No tensors with names like this, likewise; may be repeated
    #[arg(long, value_name = "GLOB", help_heading = SELECTION)]
    pub exclude: Vec<String>,
    /// Order of the list: largest first, by name or by dtype [default: the order of the data]
    #[arg(long, help_heading = OUTPUT, value_name = "KEY")]
    pub sort: Option<SortKey>,
    /// Group the tensors by the parts of their names, with totals
    #[arg(long, help_heading = OUTPUT)]
    pub tree: bool,
    /// Levels of the tree [default: all]
    #[arg(long, help_heading = OUTPUT, value_name = "N", requires = "tree", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,
    /// Show the metadata and config.json first
    #[arg(long, help_heading = OUTPUT)]
    pub meta: bool,
    /// Print JSON; see docs/json.md
    #[arg(long, conflicts_with = "tree", help_heading = RUN)]
    pub json: bool,
    #[command(flatten)]
    pub messages: MessageArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
}

#[derive(Debug, clap::Args)]
#[command(mut_arg("verbose", |verbose| verbose.help("Name every file and every global, safe ones too")))]
pub(in super::super) struct ScanArgs {
    /// Files, or directories with all that is below them
    #[arg(required = true, value_name = "FILE")]
    pub paths: Vec<PathBuf>,
    /// Print JSON; see docs/json.md
    #[arg(long, help_heading = RUN)]
    pub json: bool,
    /// Print SARIF, which code hosts show beside the files
    #[arg(long, conflicts_with = "json", help_heading = RUN)]
    pub sarif: bool,
    #[command(flatten)]
    pub messages: MessageArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
}

#[derive(Debug, clap::Args)]
pub(in super::super) struct ShowArgs {
    #[command(flatten)]
    pub input: FileArgs,
    /// Names or patterns, e.g. "*norm*"; a name may have a slice: "model.norm.weight[:8]" [default:
    /// all tensors]
    #[arg(value_name = "TENSOR")]
    pub tensors: Vec<String>,
    /// Values to show, e.g. "[0, :8]" [default: the first rows and columns]
    #[arg(long, help_heading = OUTPUT, value_name = "SLICE", allow_hyphen_values = true)]
    pub slice: Option<String>,
    /// Parts of the histogram; 0: no pictures
    #[arg(long, help_heading = OUTPUT, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(..=10_000))]
    pub bins: u32,
    /// Show tensors as they are stored, codes and scales too, instead of decoded
    #[arg(long, help_heading = OUTPUT)]
    pub stored: bool,
    /// Print CSV: all values of one tensor or of its slice, or the statistics of several
    #[arg(long, conflicts_with_all = ["json", "npy"], help_heading = OUTPUT)]
    pub csv: bool,
    /// Write the values of one tensor, or of its slice, to a NumPy file
    #[arg(long, value_name = "OUT", conflicts_with = "json", help_heading = OUTPUT)]
    pub npy: Option<PathBuf>,
    /// Print JSON; see docs/json.md
    #[arg(long, help_heading = RUN)]
    pub json: bool,
    /// Replace an existing output
    #[arg(short, long, help_heading = OUTPUT)]
    pub force: bool,
    #[command(flatten)]
    pub read: ReadArgs,
}

/// What `amn ls --sort` sorts by.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(in super::super) enum SortKey {
    Size,
    Name,
    Dtype,
}

#[derive(Debug, clap::Args)]
pub(in super::super) struct InspectArgs {
    /// Model files, directories of models, ORG/MODEL in the cache of Hugging Face, or
    /// ollama:MODEL[:TAG]; several make a table
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Take only what is below this key of a checkpoint, e.g. state_dict; names lose it
    #[arg(long, visible_alias = "prefix", value_name = "KEY", help_heading = INPUT)]
    pub root: Option<String>,
    /// List every global that a pickle names, allowed or not; nothing is executed
    #[arg(long, help_heading = OUTPUT)]
    pub globals: bool,
    /// Print JSON; see docs/json.md
    #[arg(long, help_heading = RUN)]
    pub json: bool,
    #[command(flatten)]
    pub messages: MessageArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
}

#[derive(Debug, clap::Args)]
pub(in super::super) struct DiffArgs {
    /// Model file, directory of a model, or ollama:MODEL[:TAG]
    pub a: PathBuf,
    /// Model to compare it with
    pub b: PathBuf,
    /// Compare the values of both with those of this model, e.g. the one that they are encodings of
    #[arg(long, value_name = "MODEL", conflicts_with = "html")]
    pub against: Option<PathBuf>,
    /// Largest absolute difference of values that count as equal
    #[arg(long, alias = "atol", value_name = "X", default_value = "0", value_parser = parse_tolerance)]
    pub tolerance: f64,
    /// Compare names, shapes and values only: dtypes, schemes, metadata and configs may differ
    #[arg(long)]
    pub values_only: bool,
    /// Element type that quantized values are decoded to before they are compared: bf16, f16 or f32
    #[arg(long, value_name = "DTYPE", default_value = "f32", value_parser = DTYPE, hide_possible_values = true)]
    pub to: TargetDtype,
    /// Only tensors with names like this, e.g. "*.layers.0.*" or "re:.*norm"; may be repeated
    #[arg(long, value_name = "GLOB", help_heading = SELECTION)]
    pub include: Vec<String>,
    /// No tensors with names like this, likewise; may be repeated
    #[arg(long, value_name = "GLOB", help_heading = SELECTION)]
    pub exclude: Vec<String>,
    /// Order of the tensors that differ: worst first, by name, or largest first [default: error; of
    /// JSON, the order of A]
    #[arg(long, help_heading = OUTPUT, value_name = "KEY")]
    pub sort: Option<DiffSortKey>,
    /// Print so many of the tensors that differ
    #[arg(long, help_heading = OUTPUT, value_name = "N", conflicts_with = "json")]
    pub top: Option<usize>,
    #[command(flatten)]
    pub page: PageArgs,
    /// Print JSON; see docs/json.md
    #[arg(long, help_heading = RUN)]
    pub json: bool,
    #[command(flatten)]
    pub read: ReadArgs,
}

/// What `amn diff --sort` sorts by.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(in super::super) enum DiffSortKey {
    Error,
    Name,
    Size,
}

#[derive(Debug, clap::Args)]
pub(in super::super) struct ReportArgs {
    /// Model file, directory of a model, ORG/MODEL in the cache of Hugging Face, or
    /// ollama:MODEL[:TAG]
    pub a: PathBuf,
    /// Model to compare it with: errors and values before and after
    pub b: Option<PathBuf>,
    /// Take only what is below this key of a checkpoint, e.g. state_dict; names lose it
    #[arg(long, visible_alias = "prefix", value_name = "KEY", help_heading = INPUT)]
    pub root: Option<String>,
    /// Only tensors with names like this, e.g. "*.layers.0.*" or "re:.*norm"; may be repeated
    #[arg(long, value_name = "GLOB", help_heading = SELECTION)]
    pub include: Vec<String>,
    /// No tensors with names like this, likewise; may be repeated
    #[arg(long, value_name = "GLOB", help_heading = SELECTION)]
    pub exclude: Vec<String>,
    /// The page, one HTML file; - for stdout
    #[arg(short, long, value_name = "OUT", default_value = "report.html", help_heading = OUTPUT)]
    pub output: PathBuf,
    /// Replace an existing output
    #[arg(short, long, help_heading = OUTPUT)]
    pub force: bool,
    /// Leave out how large the values are: of one model, only headers are read
    #[arg(long, help_heading = OUTPUT)]
    pub no_values: bool,
    /// Element type that quantized values are decoded to before they are compared: bf16, f16 or f32
    #[arg(long, value_name = "DTYPE", default_value = "f32", value_parser = DTYPE, hide_possible_values = true)]
    pub to: TargetDtype,
    #[command(flatten)]
    pub read: ReadArgs,
}

/// Where a command that prints also writes an HTML page.
#[derive(Debug, clap::Args)]
pub(in super::super) struct PageArgs {
    /// Write an HTML page, too, which needs no network
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub html: Option<PathBuf>,
    /// Replace an existing page
    #[arg(short, long, requires = "html", help_heading = OUTPUT)]
    pub force: bool,
}

#[derive(Debug, clap::Args)]
pub(in super::super) struct CheckArgs {
    /// Model files, directories of models, or ollama:MODEL[:TAG]
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<PathBuf>,
    /// Read every value: NaN, infinities, scales, codes that cannot be decoded; and compare files
    /// in the caches of Hugging Face and Ollama with the SHA-256 that they are named by
    #[arg(long)]
    pub data: bool,
    /// Compare files with their SHA-256 in this list, as sha256sum writes it
    #[arg(long, value_name = "SHA256SUMS")]
    pub manifest: Option<PathBuf>,
    /// Check every model in the directories and below
    #[arg(short, long)]
    pub recursive: bool,
    #[command(flatten)]
    pub page: PageArgs,
    /// Print JSON; see docs/json.md
    #[arg(long, help_heading = RUN)]
    pub json: bool,
    /// Print SARIF, which code hosts show beside the files
    #[arg(long, conflicts_with = "json", help_heading = RUN)]
    pub sarif: bool,
    #[command(flatten)]
    pub read: ReadArgs,
}
