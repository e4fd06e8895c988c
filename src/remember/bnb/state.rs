//! The JSON that describes a 4-bit weight of BitsAndBytes: its shape, its block sizes and its type.

use std::ops::Range;

use crate::Result;
use crate::config::unique_json;
use crate::limits::FREE_JSON_BYTES;
use crate::model::Tensor;
use crate::remember::seam::wrong;

/// Largest `quant_state` that is read. Real ones have some hundred bytes.
const MAX_QUANT_STATE_BYTES: u64 = 64 << 10;

/// Block sizes of weights and of their scales that bitsandbytes takes.
///
/// Source: bitsandbytes `_ops.py`, `dequantize_4bit` and `dequantize_blockwise`.
const BLOCK_SIZES: Range<usize> = 32..4097;

/// How names of states end that do not have the type.
const UNTYPED: &str = "_quant_state";

/// Contents of a `quant_state`. Keys besides these, which bitsandbytes writes or another tool has
/// added, say nothing that decoding needs.
#[derive(serde::Deserialize)]
pub(super) struct Bnb4State {
    /// 64 unless it is stated, as in `quantize_4bit`; the number of scales must confirm it.
    #[serde(rename = "blocksize", default = "usual_block")]
    pub block: usize,
    pub shape: Vec<usize>,
    pub quant_type: Option<String>,
    /// 256 unless it is stated, as in `quantize_4bit`. Without quantized scales it means nothing
    /// and may be 0.
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
pub(crate) fn is_block_size(n: usize) -> bool {
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
        // If the two differ, one of them is wrong. GPTQModel's names have no type.
        let fits = |kind: &str| match t.name().rsplit_once("__") {
            Some((_, named)) => kind == named,
            None => ["nf4", "fp4"].contains(&kind),
        };
        match &state.quant_type {
            Some(kind) if !fits(kind) => Err(wrong(t, format!("its quant_type is {kind}"))),
            None if t.name().ends_with(UNTYPED) => Err(wrong(t, "it has no quant_type")),
            _ => Ok(state),
        }
    }

    /// Whether the weight whose state is `t` has FP4, by its name or by the JSON.
    pub fn is_fp4(&self, t: &Tensor<'_>) -> bool {
        t.name().ends_with("__fp4")
            || t.name().ends_with(UNTYPED) && self.quant_type.as_deref() == Some("fp4")
    }

    /// A state for listings, when the header of the file is all that is at hand: a flat weight of
    /// `bytes` packed bytes.
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
