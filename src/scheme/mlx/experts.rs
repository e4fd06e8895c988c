//! MLX's stacks of experts, which become single experts in the output.

use crate::Result;
use crate::containers::model::Tensor;
use crate::scheme::seam::{Index, refused};

/// Most experts of a stack. Models have some hundreds.
const MAX_EXPERTS: usize = 4096;

/// Names of the experts of the stack `t` in the Hugging Face layout; empty if `base` is no stack of experts.
///
/// # Errors
/// `Unsupported` for more than 4096 experts: each becomes a tensor, and a small file could otherwise fill any memory.
pub(super) fn expert_names(t: &Tensor<'_>, base: &str, shape: &[usize]) -> Result<Vec<String>> {
    let Some((parent, projection)) = base
        .split_once(".switch_mlp.")
        .filter(|_| shape.len() == 3 && !shape.contains(&0))
    else {
        return Ok(Vec::new());
    };
    if shape[0] > MAX_EXPERTS {
        let what = format!("a stack of {} experts, of at most {MAX_EXPERTS}", shape[0]);
        return Err(refused(t, "MLX", what));
    }
    let projection = projection.trim_end_matches('.');
    // Mixtral numbers its projections.
    let projection = match projection {
        "gate_proj" if parent.ends_with("block_sparse_moe") => "w1",
        "down_proj" if parent.ends_with("block_sparse_moe") => "w2",
        "up_proj" if parent.ends_with("block_sparse_moe") => "w3",
        other => other,
    };
    Ok((0..shape[0])
        .map(|e| format!("{parent}.experts.{e}.{projection}.weight"))
        .collect())
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
