//! The way of single tensors through a model: a safetensors file of one weight in memory, with the
//! names and the config that its scheme expects, decoded like any other. It knows every check of
//! the pipeline, and every error.

use serde_json::{Value, json};

use super::direct::{Bnb4Slices, PackedSlices};
use crate::compat::whole::{WholeTensor, to_bytes_with};
use crate::{Dtype, Result, TargetDtype, parse_bytes};

/// A stored tensor in memory: name, type, shape, bytes.
type StoredSlice<'a> = (&'a str, Dtype, &'a [usize], &'a [u8]);

/// Decodes a weight with its companions to BF16. `config` is the `quantization_config`;
/// `Value::Null` if the stored tensors alone tell the scheme.
fn decode(stored: &[StoredSlice<'_>], config: &Value) -> Result<Vec<u8>> {
    let tensors = stored
        .iter()
        .map(|&(name, dtype, shape, data)| WholeTensor { name, shape, dtype, data });
    let tensors: Vec<_> = tensors.collect();
    let model =
        parse_bytes(to_bytes_with(&tensors, (crate::config::IN_METADATA, &config.to_string()))?)?;
    let mut out = Vec::new();
    model.for_each_tensor(TargetDtype::BF16, |_, _, _, bytes| {
        out.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(out)
}

/// FP8 with a scale for each block of 128 rows and columns.
pub(super) fn fp8_blocks(
    weight: &[u8],
    scale: &[u8],
    rows: usize,
    cols: usize,
    scale_dtype: Dtype,
) -> Result<Vec<u8>> {
    let blocks = [rows.div_ceil(128), cols.div_ceil(128)];
    let weight = ("weight", Dtype::F8E4M3, &[rows, cols][..], weight);
    let config = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    decode(&[weight, ("weight_scale_inv", scale_dtype, &blocks, scale)], &config)
}

/// FP8 of one scale, by which the kernel's values are tested. A slice fits at any length, so that
/// nothing else comes here.
#[cfg(test)]
pub(super) fn fp8_tensor(weight: &[u8], scale: f32) -> Result<Vec<u8>> {
    let weight = ("weight", Dtype::F8E4M3, &[weight.len()][..], weight);
    let scale = scale.to_le_bytes();
    decode(&[weight, ("weight_scale", Dtype::F32, &[], &scale)], &Value::Null)
}

/// FP8 with a scale for each row.
pub(super) fn fp8_rows(
    weight: &[u8],
    scale: &[u8],
    rows: usize,
    cols: usize,
    scale_dtype: Dtype,
) -> Result<Vec<u8>> {
    let weight = ("weight", Dtype::F8E4M3, &[rows, cols][..], weight);
    decode(&[weight, ("weight_scale", scale_dtype, &[rows, 1], scale)], &Value::Null)
}

/// GPTQ of version 1, `[in, out]`.
pub(super) fn gptq(packed: PackedSlices<'_>, g_idx: Option<&[u8]>) -> Result<Vec<u8>> {
    let PackedSlices { inputs, outputs, group_size, bits, .. } = packed;
    let words = |n: usize| n.saturating_mul(bits).div_ceil(32);
    let groups = inputs / group_size;
    let codes = [words(inputs), outputs];
    let (scale_shape, zero_shape, index_shape) =
        ([groups, outputs], [groups, words(outputs)], [inputs]);
    let mut stored = vec![
        ("qweight", Dtype::I32, &codes[..], packed.codes),
        ("scales", packed.scale_dtype, &scale_shape, packed.scales),
        ("qzeros", Dtype::I32, &zero_shape, packed.zeros),
    ];
    stored.extend(g_idx.map(|index| ("g_idx", Dtype::I32, &index_shape[..], index)));
    let config = json!({
        "quant_method": "gptq", "bits": bits, "group_size": group_size, "checkpoint_format": "gptq", "sym": false,
    });
    decode(&stored, &config).map(|values| transposed(&values, outputs, inputs))
}

/// AWQ in its GEMM layout, `[in, out]`.
pub(super) fn awq(packed: PackedSlices<'_>) -> Result<Vec<u8>> {
    let PackedSlices { inputs, outputs, group_size, bits, .. } = packed;
    let words = outputs.saturating_mul(bits).div_ceil(32);
    let groups = inputs / group_size;
    let stored: [StoredSlice<'_>; 3] = [
        ("qweight", Dtype::I32, &[inputs, words], packed.codes),
        ("scales", packed.scale_dtype, &[groups, outputs], packed.scales),
        ("qzeros", Dtype::I32, &[groups, words], packed.zeros),
    ];
    let config = json!({
        "quant_method": "awq", "bits": bits, "group_size": group_size, "version": "gemm", "zero_point": true,
    });
    decode(&stored, &config).map(|values| transposed(&values, outputs, inputs))
}

/// The transpose of a BF16 matrix: models decode to `[out, in]`, these functions return `[in,
/// out]`.
fn transposed(values: &[u8], rows: usize, cols: usize) -> Vec<u8> {
    let values = values.as_chunks::<2>().0;
    let mut out = Vec::with_capacity(values.len() * 2);
    (0..cols).for_each(|c| (0..rows).for_each(|r| out.extend(values[r * cols + c])));
    out
}

/// bitsandbytes' codes of four bits.
pub(super) fn bnb4(slices: Bnb4Slices<'_>) -> Result<Vec<u8>> {
    let Bnb4Slices { codes, absmax, quant_map, nested, values, block } = slices;
    // The name of `quant_state` tells the codebook. Code 8 is a zero in FP4 and a positive level in
    // NF4.
    let is_fp4 = quant_map
        .get(32..36)
        .is_some_and(|ninth| ninth.as_chunks().0 == [0f32.to_le_bytes()]);
    let name = if is_fp4 {
        "weight.quant_state.bitsandbytes__fp4"
    } else {
        "weight.quant_state.bitsandbytes__nf4"
    };
    let mut state = json!({"blocksize": block, "shape": [values]});
    let scales = match nested {
        None => (Dtype::F32, [absmax.len() / 4]),
        Some(nested) => {
            state["nested_blocksize"] = nested.block.into();
            state["nested_offset"] = nested.offset.into();
            (Dtype::U8, [absmax.len()])
        }
    };
    let state = state.to_string();
    let (codes_shape, state_shape) = ([codes.len()], [state.len()]);
    let outer_shape = [nested.map_or(0, |nested| nested.absmax.len() / 4)];
    let mut stored: Vec<StoredSlice<'_>> = vec![
        ("weight", Dtype::U8, &codes_shape, codes),
        ("weight.absmax", scales.0, &scales.1, absmax),
        ("weight.quant_map", Dtype::F32, &[16], quant_map),
        (name, Dtype::U8, &state_shape, state.as_bytes()),
    ];
    if let Some(nested) = nested {
        let (outer, map) = ("weight.nested_absmax", "weight.nested_quant_map");
        stored.push((outer, Dtype::F32, &outer_shape, nested.absmax));
        stored.push((map, Dtype::F32, &[256], nested.quant_map));
    }
    decode(&stored, &Value::Null)
}

/// LLM.int8().
pub(super) fn bnb_int8(
    weight: &[u8],
    scb: &[u8],
    out_features: usize,
    in_features: usize,
) -> Result<Vec<u8>> {
    let weight = ("weight", Dtype::I8, &[out_features, in_features][..], weight);
    decode(&[weight, ("SCB", Dtype::F32, &[out_features], scb)], &Value::Null)
}
