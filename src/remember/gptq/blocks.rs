//! ggml's blocks in models of GPTQModel's method `gguf`: `X.qweight` U8 `[out, bytes of a row]`.
//! The config names the type, by `bits` and `format` (`q_0`, `q_k_m`, …). Rows are filled with
//! zeros up to whole blocks.
//!
//! Layout: gptqmodel `nn_modules/qlinear/gguf.py` (`_GGUF_TYPE_INFO`, `_pack_weight_tensor`),
//! `quantization/config.py` (`GGUFBits`).

use super::words::FORMAT;
use crate::Result;
use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::ggml_blocks::ggml_blocks;
use crate::remember::layout::first_columns::FirstColumns;
use crate::remember::layout::padding::unpadded;
use crate::remember::seam::{Decode, Group, Index, QuantScheme, TensorRole, refused, wrong};

/// A type of ggml's that GPTQModel packs.
struct BlockType {
    bits: i64,
    /// Whether it is one of the K-quants.
    is_k: bool,
    /// Its number in ggml.
    id: u32,
    values: usize,
    bytes: usize,
}

const fn block(bits: i64, is_k: bool, id: u32, [values, bytes]: [usize; 2]) -> BlockType {
    BlockType { bits, is_k, id, values, bytes }
}

const TYPES: &[BlockType] = &[
    block(1, false, 41, [128, 18]),
    block(2, false, 42, [64, 18]),
    block(4, false, 2, [32, 18]),
    block(8, false, 8, [32, 34]),
    block(4, true, 12, [256, 144]),
    block(5, true, 13, [256, 176]),
    block(6, true, 14, [256, 210]),
];

/// Claims the blocks `t` of the layer `base`. `None` unless the config says that these are blocks.
///
/// # Errors
/// `Unsupported` if the config names a type that GPTQModel does not pack, or ggml's types are left
/// out of this build. `Parse` if the shape is not that of whole blocks.
pub(super) fn claim<'m>(t: &Tensor<'m>, base: &str, all: &Index<'m>) -> Result<Option<Group<'m>>> {
    if all.config.quant_method() != Some(&QuantMethod::Gguf) {
        return Ok(None);
    }
    let path = base.trim_end_matches('.');
    let module = all.config.at(path);
    let (bits, format) = (module.int(&["bits"]), module.text(FORMAT));
    let (Some((bits, _)), Some((format, place))) = (bits, format) else {
        let what = "the config does not name ggml's type by `bits` and `format`";
        return Err(refused(t, "ggml's blocks of GPTQModel", what));
    };
    let is_k = format == "q_k" || format.starts_with("q_k_");
    let is_0 = format == "q_0" || format.starts_with("q_0_");
    let mut types = TYPES.iter().filter(|_| is_k || is_0);
    let Some(block) = types.find(|of| of.bits == bits && of.is_k == is_k) else {
        let what = format!("{place} says {bits} bits of the format `{format}`");
        return Err(refused(t, "ggml's blocks of GPTQModel", what));
    };
    let &[rows, bytes] = t.shape() else {
        return Err(wrong(t, "rows of blocks are [out, bytes]"));
    };
    let stored = bytes
        .is_multiple_of(block.bytes)
        .then(|| (bytes / block.bytes).checked_mul(block.values))
        .flatten();
    let Some(stored) = stored else {
        let what = format!(
            "the config says {bits} bits of the format `{format}`, whose blocks have {} bytes",
            block.bytes
        );
        return Err(wrong(t, what));
    };
    let (dtype, decoder) = ggml_blocks(t, block.id, &[rows, stored])?;
    let cols = unpadded(stored, all.config.layer_sizes(path)[1], block.values);
    let decoder: Box<dyn Decode> = match cols == stored {
        true => decoder,
        false => Box::new(FirstColumns { stored: decoder, cols }),
    };
    let parts = vec![(TensorRole::Quantized, *t)];
    let scheme = QuantScheme::Ggml { dtype };
    let name = format!("{base}weight");
    Ok(Some(Group::new(name, vec![rows, cols], scheme, parts, decoder)))
}
