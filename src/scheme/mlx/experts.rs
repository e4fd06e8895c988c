//! MLX's stacks of experts, which become single experts in the output.

use crate::Result;
use crate::containers::model::Tensor;
use crate::scheme::seam::{Index, refused};

/// Names of the experts of the stack `base` in the Hugging Face layout; empty if `base` is no stack of experts.
pub(super) fn expert_names(base: &str, shape: &[usize]) -> Vec<String> {
    let Some((parent, projection)) = base
        .split_once(".switch_mlp.")
        .filter(|_| shape.len() == 3 && !shape.contains(&0))
    else {
        return Vec::new();
    };
    let projection = projection.trim_end_matches('.');
    // Mixtral numbers its projections.
    let projection = match projection {
        "gate_proj" if parent.ends_with("block_sparse_moe") => "w1",
        "down_proj" if parent.ends_with("block_sparse_moe") => "w2",
        "up_proj" if parent.ends_with("block_sparse_moe") => "w3",
        other => other,
    };
    (0..shape[0])
        .map(|e| format!("{parent}.experts.{e}.{projection}.weight"))
        .collect()
}

/// Refuses an unquantized stack of experts in a quantized model: the output would keep a name that only MLX knows.
pub(super) fn check_unquantized_stack(t: &Tensor<'_>, all: &Index<'_>) -> Result<()> {
    let stacked =
        t.name().contains(".switch_mlp.") && t.shape().len() == 3 && all.config.is_quantized();
    if stacked && t.dtype().is_floating_point() && t.name().ends_with(".weight") {
        return Err(refused(
            t,
            "MLX",
            "a stack of experts that is not quantized is not taken apart by this version",
        ));
    }
    Ok(())
}
