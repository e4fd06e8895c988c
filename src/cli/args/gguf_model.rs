//! The arguments of `forget` and `convert` that say how a whole GGUF model of a Hugging Face directory
//! is made.

use super::run::OUTPUT;
use crate::{ConvertOptions, ModelScope};

/// Which layers a GGUF model has, and which tensors become one.
#[derive(Debug, clap::Args)]
pub(in super::super) struct GgufModelArgs {
    /// Leave out the layers that predict further tokens; --mtp writes them to a file of their own
    #[arg(long, visible_alias = "no-nextn", help_heading = OUTPUT, conflicts_with_all = ["tensors_only", "mmproj"])]
    pub no_mtp: bool,
    /// Make one tensor of queries, keys and values of each layer, as llama.cpp's converter does
    #[arg(long, help_heading = OUTPUT, conflicts_with_all = ["tensors_only", "mmproj"])]
    pub fuse_qkv: bool,
    /// Make one tensor of gates and inner projections of each layer's experts, likewise
    #[arg(long, help_heading = OUTPUT, conflicts_with_all = ["tensors_only", "mmproj"])]
    pub fuse_gate_up_exps: bool,
}

impl GgufModelArgs {
    pub(in super::super) fn apply(&self, options: &mut ConvertOptions) {
        if self.no_mtp {
            options.scope = ModelScope::WithoutPrediction;
        }
        options.fuse_qkv = self.fuse_qkv;
        options.fuse_gate_up_exps = self.fuse_gate_up_exps;
    }
}
