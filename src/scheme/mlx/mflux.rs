//! mflux, MLX's models of images: files without a config, whose metadata say `quantization_level`, the bits of most weights.
//!
//! Groups are of 64, and in models of odd widths of 32. Single layers of a model of fewer bits have 8.
//!
//! Source: mflux `models/common/weights/saving/model_saver.py`, `loading/weight_applier.py`, `QwenWeightDefinition`.

use std::collections::HashMap;

/// Key of the metadata.
pub(super) const LEVEL: &str = "quantization_level";

/// Bits of single layers.
const MORE_BITS: usize = 8;

/// Bits and group of a weight whose groups have `bits_per_group` bits; `None` if the metadata do not tell.
pub(super) fn size(
    metadata: &HashMap<String, String>,
    bits_per_group: usize,
) -> Option<(usize, usize)> {
    let level = metadata.get(LEVEL)?.trim().parse().ok()?;
    let sizes = [(level, 64), (level, 32), (MORE_BITS, 64)];
    sizes
        .into_iter()
        .find(|&(bits, group): &(usize, usize)| bits.checked_mul(group) == Some(bits_per_group))
}
