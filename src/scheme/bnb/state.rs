//! The JSON that describes a 4-bit weight of BitsAndBytes: its shape, its block sizes and its type.

use crate::Result;
use crate::containers::model::Tensor;
use crate::scheme::seam::wrong;

/// Largest `quant_state` that is read. Real ones have some hundred bytes.
const MAX_QUANT_STATE_BYTES: u64 = 64 << 10;

/// Contents of a `quant_state`.
#[derive(serde::Deserialize)]
pub(super) struct Bnb4State {
    #[serde(rename = "blocksize")]
    pub block: usize,
    pub shape: Vec<usize>,
    pub quant_type: Option<String>,
    pub nested_blocksize: Option<usize>,
    pub nested_offset: Option<f64>,
}

impl Bnb4State {
    pub fn read(t: &Tensor<'_>) -> Result<Self> {
        let json = t.part().read_small(MAX_QUANT_STATE_BYTES)?;
        let state: Self = serde_json::from_slice(&json).map_err(|e| wrong(t, e))?;
        // Blocks of an odd size would begin inside a byte; bitsandbytes has powers of two from 32 on.
        if state.block == 0 || state.block % 2 == 1 || state.nested_blocksize == Some(0) {
            return Err(wrong(t, format!("blocks of {} values", state.block)));
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
