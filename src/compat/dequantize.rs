//! Decodes single tensors from slices to BF16, for callers who read containers themselves: part of the published
//! interface.
//!
//! Slices whose lengths fit go to the kernels as they are (`direct.rs`). All others are put into a safetensors model of
//! one weight in memory, with the names and the config that its scheme expects, and decoded like any model. So these
//! functions have the checks of the pipeline and no arithmetic of their own. Blocks of ggml have no companions and
//! always go to their decoder directly.

use serde_json::{Value, json};

use super::direct;
use super::whole::{WholeTensor, to_bytes_with};
use crate::{Dtype, Result, TargetDtype, parse_bytes};

/// A stored tensor in memory: name, type, shape, bytes.
type StoredSlice<'a> = (&'a str, Dtype, &'a [usize], &'a [u8]);

/// Decodes a weight with its companions to BF16 by way of a model. `config` is the `quantization_config`; `Value::Null` if
/// the stored tensors alone tell the scheme.
fn decode_model(stored: &[StoredSlice<'_>], config: &Value) -> Result<Vec<u8>> {
    let tensors = stored
        .iter()
        .map(|&(name, dtype, shape, data)| WholeTensor {
            name,
            shape,
            dtype,
            data,
        });
    let tensors: Vec<_> = tensors.collect();
    let model = parse_bytes(to_bytes_with(
        &tensors,
        (crate::config::IN_METADATA, &config.to_string()),
    )?)?;
    let mut out = Vec::new();
    model.for_each_tensor(TargetDtype::BF16, |_, _, _, bytes| {
        out.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(out)
}

/// Decodes FP8 (E4M3) with a scale for each block of 128 × 128 values: `weight` is `[rows, cols]`, `scale` row-major,
/// of type `scale_dtype`: F32, F16 or BF16.
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
    if let Some(values) = direct::fp8(weight, scale, [rows, cols], [128, 128], scale_dtype)? {
        return Ok(values);
    }
    let blocks = [rows.div_ceil(128), cols.div_ceil(128)];
    let weight = ("weight", Dtype::F8E4M3, &[rows, cols][..], weight);
    let config = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    decode_model(
        &[weight, ("weight_scale_inv", scale_dtype, &blocks, scale)],
        &config,
    )
}

/// Decodes FP8 (E4M3) with one scale.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// assert_eq!(anamnesis::dequantize_per_tensor_fp8_to_bf16(&[0x38], 2.0)?, [0x00, 0x40]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the memory for the output cannot be allocated.
pub fn dequantize_per_tensor_fp8_to_bf16(weight: &[u8], scale: f32) -> Result<Vec<u8>> {
    direct::fp8_per_tensor(weight, scale)
}

/// Decodes FP8 (E4M3) with a scale for each row: `weight` is `[rows, cols]`, `scale` F32, F16 or BF16.
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
    if let Some(values) = direct::fp8(weight, scale, [rows, cols], [1, cols.max(1)], scale_dtype)? {
        return Ok(values);
    }
    let weight = ("weight", Dtype::F8E4M3, &[rows, cols][..], weight);
    decode_model(
        &[weight, ("weight_scale", scale_dtype, &[rows, 1], scale)],
        &Value::Null,
    )
}

/// Decodes GPTQ of version 1, whose zero points are stored less one, to `[in_features, out_features]`. `qweight` and
/// `qzeros` are packed 32-bit words, `scales` has type `scale_dtype`, `g_idx` is I32: the group of each input.
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
#[cfg(feature = "gptq")]
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
    let groups = groups(in_features, group_size)?;
    let packed = direct::PackedSlices {
        codes: qweight,
        scales,
        zeros: qzeros,
        inputs: in_features,
        outputs: out_features,
        group_size,
        bits: bits.into(),
        scale_dtype,
    };
    if let Some(values) = direct::gptq(packed, g_idx)? {
        return Ok(values);
    }
    let words = |n: usize| n.saturating_mul(bits.into()).div_ceil(32);
    let codes = [words(in_features), out_features];
    let (scale_shape, zero_shape, index_shape) = (
        [groups, out_features],
        [groups, words(out_features)],
        [in_features],
    );
    let mut stored = vec![
        ("qweight", Dtype::I32, &codes[..], qweight),
        ("scales", scale_dtype, &scale_shape, scales),
        ("qzeros", Dtype::I32, &zero_shape, qzeros),
    ];
    stored.extend(g_idx.map(|index| ("g_idx", Dtype::I32, &index_shape[..], index)));
    let config = json!({
        "quant_method": "gptq", "bits": bits, "group_size": group_size, "checkpoint_format": "gptq", "sym": false,
    });
    decode_model(&stored, &config).map(|values| transposed(&values, out_features, in_features))
}

/// Decodes AWQ in its GEMM layout of four bits to `[in_features, out_features]`. `qweight` and `qzeros` are packed
/// 32-bit words, `scales` has type `scale_dtype`.
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
#[cfg(feature = "awq")]
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
    let groups = groups(in_features, group_size)?;
    let packed = direct::PackedSlices {
        codes: qweight,
        scales,
        zeros: qzeros,
        inputs: in_features,
        outputs: out_features,
        group_size,
        bits: bits.into(),
        scale_dtype,
    };
    if let Some(values) = direct::awq(packed)? {
        return Ok(values);
    }
    let words = out_features.saturating_mul(bits.into()).div_ceil(32);
    let stored: [StoredSlice<'_>; 3] = [
        ("qweight", Dtype::I32, &[in_features, words], qweight),
        ("scales", scale_dtype, &[groups, out_features], scales),
        ("qzeros", Dtype::I32, &[groups, words], qzeros),
    ];
    let config = json!({
        "quant_method": "awq", "bits": bits, "group_size": group_size, "version": "gemm", "zero_point": true,
    });
    decode_model(&stored, &config).map(|values| transposed(&values, out_features, in_features))
}

/// The number of groups of `size` inputs.
#[cfg(any(feature = "gptq", feature = "awq"))]
fn groups(inputs: usize, size: usize) -> Result<usize> {
    let fits = size > 0 && inputs.is_multiple_of(size);
    let what = || crate::AnamnesisError::parse(format!("{inputs} inputs in groups of {size}"));
    if fits { Ok(inputs / size) } else { Err(what()) }
}

/// The transpose of a BF16 matrix: models decode to `[out, in]`, these functions return `[in, out]`.
#[cfg(any(feature = "gptq", feature = "awq"))]
fn transposed(values: &[u8], rows: usize, cols: usize) -> Vec<u8> {
    let values = values.as_chunks::<2>().0;
    let mut out = Vec::with_capacity(values.len() * 2);
    (0..cols).for_each(|c| (0..rows).for_each(|r| out.extend(values[r * cols + c])));
    out
}

/// Decodes BitsAndBytes NF4 or FP4 with scales in F32: `weight` has two codes in a byte, `absmax` is F32, one for each
/// block, `quant_map` F32 `[16]`.
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
#[cfg(feature = "bnb")]
pub fn dequantize_bnb4_to_bf16(
    weight: &[u8],
    absmax: &[u8],
    quant_map: &[u8],
    total_elements: usize,
    block_size: usize,
) -> Result<Vec<u8>> {
    if let Some(values) = direct::bnb4(weight, absmax, quant_map, total_elements, block_size)? {
        return Ok(values);
    }
    // The name of `quant_state` tells the codebook. Code 8 is a zero in FP4 and a positive level in NF4.
    let is_fp4 = quant_map
        .get(32..36)
        .is_some_and(|ninth| ninth.as_chunks().0 == [0f32.to_le_bytes()]);
    let name = if is_fp4 {
        "weight.quant_state.bitsandbytes__fp4"
    } else {
        "weight.quant_state.bitsandbytes__nf4"
    };
    let state = json!({"blocksize": block_size, "shape": [total_elements]}).to_string();
    let stored: [StoredSlice<'_>; 4] = [
        ("weight", Dtype::U8, &[weight.len()], weight),
        ("weight.absmax", Dtype::F32, &[absmax.len() / 4], absmax),
        ("weight.quant_map", Dtype::F32, &[16], quant_map),
        (name, Dtype::U8, &[state.len()], state.as_bytes()),
    ];
    decode_model(&stored, &Value::Null)
}

/// Decodes BitsAndBytes INT8: `weight` is `[out_features, in_features]`, `scb` F32, one for each row.
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
#[cfg(feature = "bnb")]
pub fn dequantize_bnb_int8_to_bf16(
    weight: &[u8],
    scb: &[u8],
    out_features: usize,
    in_features: usize,
) -> Result<Vec<u8>> {
    if let Some(values) = direct::bnb_int8(weight, scb, [out_features, in_features])? {
        return Ok(values);
    }
    let weight = (
        "weight",
        Dtype::I8,
        &[out_features, in_features][..],
        weight,
    );
    decode_model(
        &[weight, ("SCB", Dtype::F32, &[out_features], scb)],
        &Value::Null,
    )
}

/// Decodes blocks of a ggml type.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let mut block = [1; 34]; // codes of one
/// block[..2].copy_from_slice(&[0x00, 0x40]); // and the scale 2, in F16
/// let bf16 = anamnesis::dequantize_gguf_to_bf16(&block, anamnesis::GgufType::Q8_0, 32)?;
/// assert_eq!(bf16, [0x00, 0x40].repeat(32));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Unsupported` if `dtype` is no block type that is decoded, `Parse` if the sizes do not fit.
#[cfg(feature = "gguf")]
pub fn dequantize_gguf_to_bf16(data: &[u8], dtype: Dtype, n_elements: usize) -> Result<Vec<u8>> {
    let (decoder, block) = ggml_decoder(data, dtype, n_elements)?;
    direct::ggml(data, block, decoder)
}

/// The decoder of `dtype`, and the values and bytes of a block.
///
/// # Errors
/// `Unsupported` if `dtype` is no block type that is decoded, `Parse` if `data` are not `n_elements` values.
#[cfg(feature = "gguf")]
fn ggml_decoder(
    data: &[u8],
    dtype: Dtype,
    n_elements: usize,
) -> Result<(crate::kernels::remember::ggml::GgmlDecoder, [usize; 2])> {
    let decoder = crate::kernels::remember::ggml::decoder(dtype);
    let (Some(decoder), Some(block_bytes)) = (decoder, dtype.type_size()) else {
        return Err(crate::AnamnesisError::unsupported(
            format!("GGUF {dtype}"),
            "it is no block type that is decoded",
        ));
    };
    if dtype.byte_len(&[n_elements]) != Some(data.len()) {
        let what = format!(
            "{} bytes are not {n_elements} values of {dtype}",
            data.len()
        );
        return Err(crate::AnamnesisError::parse(what));
    }
    Ok((decoder, [dtype.block_size(), block_bytes]))
}

/// Decodes blocks of a ggml type, and passes each block of BF16 values to `sink`. Needs memory for a few thousand
/// values only.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let mut sizes = Vec::new();
/// anamnesis::dequantize_gguf_blocks_to_bf16(&[0; 3 * 34], anamnesis::GgufType::Q8_0, 96, |block| {
///     sizes.push(block.len());
///     Ok(())
/// })?;
/// assert_eq!(sizes, [64; 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Unsupported` if `dtype` is no block type that is decoded, `Parse` if the sizes do not fit, and the errors of
/// `sink`.
#[cfg(feature = "gguf")]
pub fn dequantize_gguf_blocks_to_bf16<F: FnMut(&[u8]) -> Result<()>>(
    data: &[u8],
    dtype: Dtype,
    n_elements: usize,
    mut sink: F,
) -> Result<()> {
    /// Number of values that are decoded at once: a multiple of every block size.
    const VALUES: usize = 4096;
    let (decoder, [block, block_bytes]) = ggml_decoder(data, dtype, n_elements)?;
    let mut out = vec![half::bf16::ZERO; VALUES.min(n_elements)];
    for data in data.chunks(VALUES / block * block_bytes) {
        let out = &mut out[..data.len() / block_bytes * block];
        decoder(
            data,
            None,
            crate::simd::Level::default(),
            crate::element::Out::Bf16(out),
        );
        out.chunks_exact(block)
            .try_for_each(|values| sink(bytemuck::cast_slice(values)))?;
    }
    Ok(())
}
