//! Models that llm-compressor saves with `save_compressed=False`: weights in floats, with the
//! scales by which the model quantizes them each time that it runs. Whether they were rounded to
//! their codes before, no file tells.

use crate::Result;
use crate::model::Tensor;
use crate::remember::seam::{Index, module_of, refused};

/// Formats of models that were saved without compression. The first is a name of older versions.
const UNCOMPRESSED: [&str; 2] = ["fakequant", "dense"];

/// # Errors
/// `t` is a weight in floats with a scale: its model quantizes it each time that it runs.
pub(super) fn check_uncompressed(t: &Tensor<'_>, all: &Index<'_>) -> Result<()> {
    if !t.dtype().is_floating_point() || t.dtype().is_quantized() {
        return Ok(());
    }
    let of_scale = || {
        let scale = all
            .at(t.name(), "_scale")
            .filter(|_| t.name().ends_with("weight"))?;
        let format = all.config.at(module_of(t.name())).text(&["format"])?;
        UNCOMPRESSED.contains(&format.0).then_some((scale, format))
    };
    let Some((scale, (format, place))) = of_scale() else {
        return Ok(());
    };
    let what = format!(
        "{place} says `format: {format}`: the model quantizes it by `{}` when it runs; `save_pretrained(save_compressed=True)` stores its codes",
        scale.name()
    );
    Err(refused(t, "compressed-tensors without compression", what))
}
