//! mflux, MLX's models of images: files without a config, whose metadata say `quantization_level`, the bits of most weights.
//!
//! Groups are of 64, and in models of odd widths of 32. Single layers of a model of fewer bits have 8.
//!
//! Source: mflux `models/common/weights/saving/model_saver.py`, `loading/weight_applier.py`, `QwenWeightDefinition`.

use crate::config::{MFLUX_LEVEL, Module};

/// Bits of single layers.
const MORE_BITS: usize = 8;

/// Bits and group of a weight whose groups have `bits_per_group` bits; `None` if the metadata do not tell.
pub(super) fn size(module: &Module<'_>, bits_per_group: usize) -> Option<(usize, usize)> {
    let (level, _) = module.int(&[MFLUX_LEVEL])?;
    let level = usize::try_from(level).ok()?;
    let sizes = [(level, 64), (level, 32), (MORE_BITS, 64)];
    sizes
        .into_iter()
        .find(|&(bits, group)| bits.checked_mul(group) == Some(bits_per_group))
}
