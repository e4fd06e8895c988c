//! The arguments of `forget`, and of `convert` to a scheme, that say what types tensors of a GGUF
//! file get.

use super::values::{parse_bits, parse_ggml_type, parse_tensor_type};
use crate::{Dtype, Forget};

/// Heading of the options in `--help`.
const TYPES: &str = "Types in GGUF files";

#[derive(Debug, clap::Args)]
pub(in super::super) struct GgufTypeArgs {
    /// Type of tensors with names like this, e.g. "*.ffn_down.*=q6_k"; may be repeated, and the
    /// first that matches counts
    #[arg(long, value_name = "GLOB=TYPE", help_heading = TYPES, value_parser = parse_tensor_type)]
    pub tensor_type: Vec<(String, Dtype)>,
    /// Type of the token embeddings
    #[arg(long, value_name = "TYPE", help_heading = TYPES, value_parser = parse_ggml_type)]
    pub token_embedding_type: Option<Dtype>,
    /// Type of the output layer
    #[arg(long, value_name = "TYPE", help_heading = TYPES, value_parser = parse_ggml_type)]
    pub output_tensor_type: Option<Dtype>,
    /// Choose types of matrices so that all that is encoded has N bits a weight, and outputs lose
    /// least by --imatrix; SCHEME is the type of the rest
    #[arg(long, value_name = "N", help_heading = TYPES, value_parser = parse_bits)]
    pub bits: Option<f64>,
    /// Encode tensors of a GGUF file that are quantized already, which loses more than encoding the
    /// original model
    #[arg(long, help_heading = TYPES)]
    pub allow_requantize: bool,
}

impl GgufTypeArgs {
    /// Whether a type is given.
    pub(in super::super) fn name_types(&self) -> bool {
        let has_type = self.token_embedding_type.is_some() || self.output_tensor_type.is_some();
        has_type || !self.tensor_type.is_empty()
    }

    pub(in super::super) fn apply(&self, forget: &mut Forget) {
        forget.types.tensors.clone_from(&self.tensor_type);
        forget.types.token_embedding = self.token_embedding_type;
        forget.types.output = self.output_tensor_type;
        forget.types.bits = self.bits;
        forget.refuses_requantizing = !self.allow_requantize;
    }
}
