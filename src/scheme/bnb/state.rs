//! The JSON that describes a 4-bit weight of BitsAndBytes: its shape, its block sizes and its type.

use std::ops::Range;

use crate::Result;
use crate::config::unique_json;
use crate::containers::model::Tensor;
use crate::limits::FREE_JSON_BYTES;
use crate::scheme::seam::wrong;

/// Largest `quant_state` that is read. Real ones have some hundred bytes.
const MAX_QUANT_STATE_BYTES: u64 = 64 << 10;

/// Block sizes of weights and of their scales that bitsandbytes takes.
///
/// Source: bitsandbytes `_ops.py`, `dequantize_4bit` and `dequantize_blockwise`.
const BLOCK_SIZES: Range<usize> = 32..4097;

/// Contents of a `quant_state`. Keys besides these, which bitsandbytes writes or another tool has added, say nothing that
/// decoding needs.
#[derive(serde::Deserialize)]
pub(super) struct Bnb4State {
    /// 64 unless it is stated, as in `quantize_4bit`; the number of scales must confirm it.
    #[serde(rename = "blocksize", default = "usual_block")]
    pub block: usize,
    pub shape: Vec<usize>,
    pub quant_type: Option<String>,
    /// 256 unless it is stated, as in `quantize_4bit`. Without quantized scales it means nothing and may be 0.
    #[serde(default = "usual_nested_block")]
    pub nested_blocksize: Option<usize>,
    pub nested_offset: Option<f64>,
}

fn usual_block() -> usize {
    64
}

fn usual_nested_block() -> Option<usize> {
    Some(256)
}

/// Whether bitsandbytes has blocks of `n` values.
pub(super) fn is_block_size(n: usize) -> bool {
    BLOCK_SIZES.contains(&n) && n.is_power_of_two()
}

impl Bnb4State {
    pub fn read(t: &Tensor<'_>) -> Result<Self> {
        let json = t.part().read_small(MAX_QUANT_STATE_BYTES)?;
        let json = unique_json::parse_embedded(&json, &mut FREE_JSON_BYTES.clone())
            .map_err(|e| wrong(t, e))?;
        let state: Self = serde_json::from_value(json).map_err(|e| wrong(t, e))?;
        if !is_block_size(state.block) {
            let what = format!(
                "blocks of {} values, where bitsandbytes has powers of two from 32 to 4096",
                state.block
            );
            return Err(wrong(t, what));
        }
        // bitsandbytes finds the JSON by the type in the name, and decodes by the type in the JSON.
        // If the two differ, one of them is wrong.
        if let Some(kind) = state
            .quant_type
            .as_ref()
            .filter(|kind| !t.name().ends_with(&format!("__{kind}")))
        {
            return Err(wrong(t, format!("its quant_type is {kind}")));
        }
        Ok(state)
    }

    /// A state for listings, when the header of the file is all that is at hand: a flat weight of `bytes` packed bytes.
    pub fn unread(bytes: usize) -> Self {
        Self {
            block: 64,
            shape: vec![bytes.saturating_mul(2)],
            quant_type: None,
            nested_blocksize: Some(256),
            nested_offset: Some(0.0),
        }
    }
}
