//! Decodes single tensors from slices to BF16, for callers who read containers themselves: part of
//! the published interface.
//!
//! Slices whose lengths fit go to the kernels as they are (`direct`), without a model. All others
//! go through a model of one weight (`model`), whose checks say what is wrong, and which also
//! decodes layouts that are seldom asked for.

mod direct;
#[cfg(feature = "gguf")]
mod gguf;
mod model;
#[cfg(test)]
mod tests;

use self::direct::{Bnb4Slices, NestedAbsmax, PackedSlices};
#[cfg(feature = "gguf")]
pub use self::gguf::{dequantize_gguf_blocks_to_bf16, dequantize_gguf_to_bf16};
use crate::{Dtype, Result};

/// Decodes FP8 (E4M3) with a scale for each block of 128x128 values: `weight` is `[rows, cols]`,
/// `scale` row-major, of type `scale_dtype`: F32, F16 or BF16.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let one = 0x38; // in E4M3
/// let bf16 = anamnesis::dequantize_fp8_to_bf16(&[one; 6], &2f32.to_le_bytes(), 2, 3, anamnesis::Dtype::F32)?;
/// assert_eq!(bf16, [0x00, 0x40].repeat(6)); // 2
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` if the sizes do not fit.
pub fn dequantize_fp8_to_bf16(
    weight: &[u8],
    scale: &[u8],
    rows: usize,
    cols: usize,
    scale_dtype: Dtype,
) -> Result<Vec<u8>> {
    let blocks = [128, 128];
    match direct::fp8(weight, scale, [rows, cols], blocks, scale_dtype)? {
        Some(values) => Ok(values),
        None => model::fp8_blocks(weight, scale, rows, cols, scale_dtype),
    }
}

/// Decodes FP8 (E4M3) with one scale.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// assert_eq!(anamnesis::dequantize_per_tensor_fp8_to_bf16(&[0x38], 2.0)?, [0x00, 0x40]);
/// // From a model in memory or a mapped file, without a copy of the codes.
/// let model = anamnesis::parse_bytes(std::fs::read("tests/data/demo/model-fp8.safetensors")?)?;
/// if let Some(codes) = model.tensor("layers.0.attention.wq.weight") {
///     let bf16 = anamnesis::dequantize_per_tensor_fp8_to_bf16(&codes.bytes()?, 0.5)?;
///     assert_eq!(bf16.len(), 2 * codes.elements());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the memory for the output cannot be allocated.
pub fn dequantize_per_tensor_fp8_to_bf16(weight: &[u8], scale: f32) -> Result<Vec<u8>> {
    direct::fp8_per_tensor(weight, scale)
}

/// Decodes FP8 (E4M3) with a scale for each row: `weight` is `[rows, cols]`, `scale` F32, F16 or
/// BF16.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let scales = [2f32.to_le_bytes(), 4f32.to_le_bytes()].concat();
/// let bf16 = anamnesis::dequantize_per_channel_fp8_to_bf16(&[0x38; 2], &scales, 2, 1, anamnesis::Dtype::F32)?;
/// assert_eq!(bf16, [0x00, 0x40, 0x80, 0x40]); // 2 and 4
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` if the sizes do not fit.
pub fn dequantize_per_channel_fp8_to_bf16(
    weight: &[u8],
    scale: &[u8],
    rows: usize,
    cols: usize,
    scale_dtype: Dtype,
) -> Result<Vec<u8>> {
    let row = [1, cols.max(1)];
    match direct::fp8(weight, scale, [rows, cols], row, scale_dtype)? {
        Some(values) => Ok(values),
        None => model::fp8_rows(weight, scale, rows, cols, scale_dtype),
    }
}

/// Decodes GPTQ of version 1, whose zero points are stored less one, to `[in_features,
/// out_features]`. `qweight` and `qzeros` are packed 32-bit words, `scales` has type `scale_dtype`,
/// `g_idx` is I32: the group of each input.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// // Every code is 9 and every zero point 8, stored as 7.
/// let (codes, zeros, scales) = ([0x99; 4 * 8], [0x77; 4], [0x00, 0x3c].repeat(8));
/// let f16 = anamnesis::Dtype::F16;
/// let bf16 = anamnesis::dequantize_gptq_to_bf16(&codes, &scales, &zeros, None, 8, 8, 8, 4, f16)?;
/// assert_eq!(bf16, [0x80, 0x3f].repeat(64)); // 1
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` if the sizes do not fit, or if `g_idx` has a group that does not exist.
#[allow(clippy::too_many_arguments)] // it is what a layer has
pub fn dequantize_gptq_to_bf16(
    qweight: &[u8],
    scales: &[u8],
    qzeros: &[u8],
    g_idx: Option<&[u8]>,
    in_features: usize,
    out_features: usize,
    group_size: usize,
    bits: u8,
    scale_dtype: Dtype,
) -> Result<Vec<u8>> {
    check_groups(in_features, group_size)?;
    let packed = PackedSlices {
        codes: qweight,
        scales,
        zeros: qzeros,
        inputs: in_features,
        outputs: out_features,
        group_size,
        bits: bits.into(),
        scale_dtype,
    };
    match direct::gptq(packed, g_idx)? {
        Some(values) => Ok(values),
        None => model::gptq(packed, g_idx),
    }
}

/// Decodes AWQ in its GEMM layout of four bits to `[in_features, out_features]`. `qweight` and
/// `qzeros` are packed 32-bit words, `scales` has type `scale_dtype`.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let (codes, zeros, scales) = ([0x99; 4 * 8], [0x88; 4], [0x00, 0x3c].repeat(8));
/// let f16 = anamnesis::Dtype::F16;
/// let bf16 = anamnesis::dequantize_awq_to_bf16(&codes, &scales, &zeros, 8, 8, 8, 4, f16)?;
/// assert_eq!(bf16, [0x80, 0x3f].repeat(64)); // 1
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` if the sizes do not fit; an error for other widths than four bits.
#[allow(clippy::too_many_arguments)] // it is what a layer has
pub fn dequantize_awq_to_bf16(
    qweight: &[u8],
    scales: &[u8],
    qzeros: &[u8],
    in_features: usize,
    out_features: usize,
    group_size: usize,
    bits: u8,
    scale_dtype: Dtype,
) -> Result<Vec<u8>> {
    check_groups(in_features, group_size)?;
    let packed = PackedSlices {
        codes: qweight,
        scales,
        zeros: qzeros,
        inputs: in_features,
        outputs: out_features,
        group_size,
        bits: bits.into(),
        scale_dtype,
    };
    match direct::awq(packed)? {
        Some(values) => Ok(values),
        None => model::awq(packed),
    }
}

/// Checks that groups of `size` divide the inputs.
fn check_groups(inputs: usize, size: usize) -> Result<()> {
    if size > 0 && inputs.is_multiple_of(size) {
        return Ok(());
    }
    let what = format!("{inputs} inputs in groups of {size}");
    Err(crate::AnamnesisError::parse(what))
}

/// Decodes BitsAndBytes NF4 or FP4 with scales in F32: `weight` has two codes in a byte, `absmax`
/// is F32, one for each block, `quant_map` F32 `[16]`.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let map: Vec<u8> = (0..16).flat_map(|i| (i as f32 - 7.0).to_le_bytes()).collect();
/// let bf16 = anamnesis::dequantize_bnb4_to_bf16(&[0x89; 32], &2f32.to_le_bytes(), &map, 64, 64)?;
/// assert_eq!(bf16[..4], [0x00, 0x40, 0x80, 0x40]); // 2 and 4
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` if the sizes do not fit.
pub fn dequantize_bnb4_to_bf16(
    weight: &[u8],
    absmax: &[u8],
    quant_map: &[u8],
    total_elements: usize,
    block_size: usize,
) -> Result<Vec<u8>> {
    bnb4(Bnb4Slices {
        codes: weight,
        absmax,
        quant_map,
        nested: None,
        values: total_elements,
        block: block_size,
    })
}

/// Decodes BitsAndBytes NF4 or FP4 with double-quantized scales: as [`dequantize_bnb4_to_bf16`],
/// but `absmax` is U8, one for each block, with levels `nested_quant_map` (F32 `[256]`), scales
/// `nested_absmax` (F32, one for each `nested_block_size` of them), and an offset.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let floats = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
/// let map = floats(&std::array::from_fn::<f32, 16, _>(|i| i as f32 - 7.0));
/// let nested = floats(&std::array::from_fn::<f32, 256, _>(|i| i as f32 / 4.0));
/// let (codes, scales) = ([0x89; 32], floats(&[2.0])); // the scale is 6 / 4 * 2 - 1
/// let bf16 = anamnesis::dequantize_bnb4_double_quant_to_bf16(&codes, &[6], &map, &scales, &nested, -1.0, 64, 64, 256)?;
/// assert_eq!(bf16[..4], [0x00, 0x40, 0x80, 0x40]); // 2 and 4
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` if the sizes do not fit, or if the offset is not finite.
#[allow(clippy::too_many_arguments)] // each is a tensor or a number of the file
pub fn dequantize_bnb4_double_quant_to_bf16(
    weight: &[u8],
    absmax: &[u8],
    quant_map: &[u8],
    nested_absmax: &[u8],
    nested_quant_map: &[u8],
    nested_offset: f32,
    total_elements: usize,
    block_size: usize,
    nested_block_size: usize,
) -> Result<Vec<u8>> {
    let nested = NestedAbsmax {
        absmax: nested_absmax,
        quant_map: nested_quant_map,
        offset: nested_offset,
        block: nested_block_size,
    };
    bnb4(Bnb4Slices {
        codes: weight,
        absmax,
        quant_map,
        nested: Some(nested),
        values: total_elements,
        block: block_size,
    })
}

fn bnb4(slices: Bnb4Slices<'_>) -> Result<Vec<u8>> {
    match direct::bnb4(slices)? {
        Some(values) => Ok(values),
        None => model::bnb4(slices),
    }
}

/// Decodes BitsAndBytes INT8: `weight` is `[out_features, in_features]`, `scb` F32, one for each
/// row.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let bf16 = anamnesis::dequantize_bnb_int8_to_bf16(&[127, 0], &2f32.to_le_bytes(), 1, 2)?;
/// assert_eq!(bf16, [0x00, 0x40, 0x00, 0x00]); // 2 and 0
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` if the sizes do not fit.
pub fn dequantize_bnb_int8_to_bf16(
    weight: &[u8],
    scb: &[u8],
    out_features: usize,
    in_features: usize,
) -> Result<Vec<u8>> {
    match direct::bnb_int8(weight, scb, [out_features, in_features])? {
        Some(values) => Ok(values),
        None => model::bnb_int8(weight, scb, out_features, in_features),
    }
}
