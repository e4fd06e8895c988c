//! The arguments of `forget`, and of `convert` to a scheme, that say what types single tensors get.

use std::path::{Path, PathBuf};

use super::values::{parse_bits, parse_ggml_type, parse_size, parse_tensor_type};
use crate::Dtype;

/// Heading of the options in `--help`.
const TYPES: &str = "Types of single tensors";

#[derive(Debug, clap::Args)]
pub(in super::super) struct TypeArgs {
    /// Type of tensors with names like this, e.g. "*.ffn_down.*=q6_k" in a GGUF file, or scheme,
    /// e.g. "*.down_proj.*=w8a16"; may be repeated, and the first that matches counts
    #[arg(long, value_name = "GLOB=TYPE", help_heading = TYPES, value_parser = parse_tensor_type)]
    pub tensor_type: Vec<(String, String)>,
    /// Type of the token embeddings of a GGUF file
    #[arg(long, value_name = "TYPE", help_heading = TYPES, value_parser = parse_ggml_type)]
    pub token_embedding_type: Option<Dtype>,
    /// Type of the output layer of a GGUF file
    #[arg(long, value_name = "TYPE", help_heading = TYPES, value_parser = parse_ggml_type)]
    pub output_tensor_type: Option<Dtype>,
    /// Choose types of matrices so that all that is encoded has N bits a weight, and outputs lose
    /// least, best by --imatrix; SCHEME is the type of the rest
    #[arg(long, value_name = "N", help_heading = TYPES, value_parser = parse_bits)]
    pub bits: Option<f64>,
    /// As --bits, so that all tensors take N bytes, e.g. 5GB
    #[arg(long, value_name = "N", help_heading = TYPES, value_parser = parse_size, conflicts_with = "bits")]
    pub size: Option<u64>,
    /// Save the types of all tensors that --bits or --size choose in this file, as lines NAME=TYPE;
    /// without them, take types from it
    #[arg(long, value_name = "FILE", help_heading = TYPES)]
    pub plan: Option<PathBuf>,
    /// Encode tensors of a GGUF file that are quantized already, which loses more than encoding the
    /// original model
    #[arg(long, help_heading = TYPES)]
    pub allow_requantize: bool,
}

impl TypeArgs {
    /// Whether types are given to kinds of tensors of a GGUF file.
    pub(in super::super) fn name_kinds(&self) -> bool {
        self.token_embedding_type.is_some() || self.output_tensor_type.is_some()
    }

    /// Whether tensors have types of their own.
    pub(in super::super) fn name_types(&self) -> bool {
        !self.tensor_type.is_empty() || self.plan.is_some()
    }

    /// Whether types are chosen for a size.
    pub(in super::super) fn has_budget(&self) -> bool {
        self.bits.is_some() || self.size.is_some()
    }

    /// The file that the types are read from.
    pub(in super::super) fn read_plan(&self) -> Option<&Path> {
        self.plan.as_deref().filter(|_| !self.has_budget())
    }

    /// The file that the types are saved in.
    pub(in super::super) fn saved_plan(&self) -> Option<&Path> {
        self.plan.as_deref().filter(|_| self.has_budget())
    }
}
