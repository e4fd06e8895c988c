//! What can be said on the command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::TargetDtype;

/// Parse any tensor format, recover any precision.
#[derive(Debug, Parser)]
#[command(name = "anamnesis", version, arg_required_else_help = true)]
pub(super) struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Check a model file and count its tensors by role
    Parse(FileArgs),
    /// Show a model's format and sizes, before and after recovery
    #[command(visible_alias = "info")]
    Inspect(FileArgs),
    /// Decode every quantized tensor and write a standard safetensors file
    #[command(visible_alias = "dequantize")]
    Remember(RememberArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct FileArgs {
    /// Model file
    pub file: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(super) struct RememberArgs {
    /// Model file
    pub file: PathBuf,
    /// Element type of recovered weights: bf16, f16 or f32
    #[arg(long, value_name = "DTYPE", default_value = "bf16", value_parser = parse_target)]
    pub to: TargetDtype,
    /// Output file [default: beside the input, e.g. model-fp8.safetensors gives model-bf16.safetensors]
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Worker threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// Replace an existing output
    #[arg(long)]
    pub force: bool,
}

fn parse_target(text: &str) -> Result<TargetDtype, String> {
    text.parse().map_err(|_| "supported target dtypes: bf16, f32, f16".to_owned())
}
