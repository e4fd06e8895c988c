//! Hunyuan's rope: an `alpha` raises the base, so that texts of 256 Ki tokens fit. GGUF has the
//! base that comes of it.
//!
//! Source: `HunYuanModel.set_gguf_parameters` in `conversion/hunyuan.py` of llama.cpp,
//! `HunYuanDenseV1RotaryEmbedding` of transformers.

use serde_json::{Map, Value, json};

use crate::Result;
use crate::families::engine::fields::{Fields, KeyValue, wrong};
use crate::families::engine::rope::SCALING;
use crate::model::gguf::GgufMetadataValue;

/// The base that is raised.
pub(crate) const BASE: f64 = 10_000.0;
/// Length of texts, whatever the config says.
const CONTEXT: u32 = 256 * 1024;
/// Lengths that configs state.
const STATED: [u32; 2] = [32 * 1024, CONTEXT];
/// Largest `alpha` that is looked for. Models have 50 and 1000.
const MOST: u32 = 1 << 16;

/// The base that `alpha` makes, for heads of `head` dimensions.
fn raised(alpha: f64, head: f64) -> f64 {
    BASE * alpha.powf(head / (head - 2.0))
}

/// The keys of a model with the scaling `scaling` and the base `base`.
///
/// # Errors
/// `Parse` if the config says what the converter does not expect.
pub(super) fn keys(
    architecture: &str,
    (scaling, base): (&Fields, Option<f64>),
    fields: &Fields,
) -> Result<Vec<KeyValue>> {
    let alpha = scaling.number(&["alpha"])?.filter(|alpha| *alpha > 0.0);
    let alpha = alpha.ok_or_else(|| wrong("alpha", "dynamic rope without it is not converted"))?;
    if base.is_some_and(|base| base != BASE) {
        return Err(wrong("rope_theta", format_args!("it is not {BASE}")));
    }
    let context = fields.need(&["max_position_embeddings"])?;
    if !STATED.contains(&context) {
        let what = format!("it is {context}, and dynamic rope has {STATED:?}");
        return Err(wrong("max_position_embeddings", what));
    }
    let head = fields.need(&["head_dim"])?;
    if head <= 2 {
        return Err(wrong("head_dim", "dynamic rope needs more"));
    }
    let base = raised(alpha, f64::from(head)) as f32;
    if !base.is_finite() {
        return Err(wrong("alpha", "the base is infinite"));
    }
    let key = |name: &str, value| (format!("{architecture}.{name}"), value);
    let context = || GgufMetadataValue::U32(CONTEXT);
    Ok(vec![
        key("rope.freq_base", GgufMetadataValue::F32(base)),
        key("rope.scaling.type", GgufMetadataValue::String("none".to_owned())),
        key("rope.scaling.factor", GgufMetadataValue::F32(1.0)),
        key("rope.scaling.original_context_length", context()),
        key("context_length", context()),
    ])
}

/// The scaling whose `alpha` makes the base `base`, of heads of `head` dimensions; `None` if there
/// is none.
pub(super) fn scaling_of(base: f64, head: usize) -> Option<Value> {
    let head = head as f64;
    let alpha = (base / BASE).powf((head - 2.0) / head).round();
    let is_known = alpha >= 1.0 && alpha <= f64::from(MOST);
    if !is_known || raised(alpha, head) as f32 != base as f32 {
        return None;
    }
    Some(json!({"type": "dynamic", "alpha": alpha, "factor": 1.0}))
}

/// Gives a config with such a scaling the base that is raised.
pub(crate) fn restore_base(config: &mut Map<String, Value>) {
    let is_alpha = config
        .get(SCALING)
        .is_some_and(|s| s.get("alpha").is_some());
    if is_alpha {
        config.insert("rope_theta".to_owned(), BASE.into());
    }
}

#[cfg(test)]
mod tests {
    use super::{raised, scaling_of};

    #[test]
    fn alphas_come_back() {
        for alpha in [1.0, 50.0, 1000.0] {
            for head in [8, 64, 128] {
                let base = f64::from(raised(alpha, head as f64) as f32);
                let found = scaling_of(base, head).unwrap();
                assert_eq!(found["alpha"].as_f64(), Some(alpha));
            }
        }
        // As the report on Hunyuan A13B has it.
        assert!((raised(1000.0, 128.0) - 11_158_839.925_1).abs() < 0.001);
        assert!(scaling_of(12_345.0, 128).is_none());
    }
}
