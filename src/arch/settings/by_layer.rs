//! Settings of Gemma 3n by layers: widths, layers that share keys, and layers that cut their
//! activations.

use serde_json::Value;

use super::array;
use crate::Result;
use crate::arch::fields::{Fields, wrong};
use crate::arch::table::{Kind, Setting};
use crate::containers::model::gguf::{GgufMetadataArray, GgufMetadataValue};

/// The part of activations that are cut.
const PART: f64 = 0.95;
/// How many standard deviations are below that part of a normal distribution.
const DEVIATIONS: f32 = 1.644_853_6;

/// By how many standard deviations each of `layers` layers cuts, of which the first do.
pub(super) fn cuts(first: usize, layers: usize) -> Vec<f32> {
    let cut = |layer| {
        if layer < first {
            DEVIATIONS
        } else {
            f32::NEG_INFINITY
        }
    };
    (0..layers).map(cut).collect()
}

/// The parts that each of `layers` layers cuts.
pub(super) fn pattern(first: usize, layers: usize) -> Value {
    let part = |layer| if layer < first { PART } else { 0.0 };
    (0..layers).map(part).collect()
}

/// Whether `stated` are these parts.
fn is_pattern(stated: &Value, first: usize, layers: usize) -> bool {
    let numbers = |value: &Value| -> Option<Vec<f64>> {
        value.as_array()?.iter().map(Value::as_f64).collect()
    };
    numbers(stated).is_some_and(|found| Some(found) == numbers(&pattern(first, layers)))
}

/// The value of `setting`, one of these, of a model of `layers` layers, whose architecture is
/// `gguf`.
pub(super) fn value(
    setting: &Setting,
    fields: &Fields,
    (gguf, layers): (&str, usize),
) -> Result<GgufMetadataValue> {
    let field = setting.fields[0];
    match setting.kind {
        Kind::LayersBehind(first) => {
            let stated = fields.need(setting.fields)?;
            if stated as usize + first as usize != layers {
                let what = format!(
                    "it is {stated} of {layers} layers, and {gguf} has {first} in front of them"
                );
                return Err(wrong(field, what));
            }
            Ok(GgufMetadataValue::U32(stated))
        }
        Kind::SparseLayers(first) => {
            let stated = fields.get(setting.fields);
            if stated.is_some_and(|(_, stated)| !is_pattern(stated, first, layers)) {
                let what =
                    format!("{gguf} cuts activations of the first {first} layers alone, to 0.95");
                return Err(wrong(field, what));
            }
            Ok(array(GgufMetadataArray::F32(cuts(first, layers))))
        }
        _ => {
            let inner = i32::try_from(fields.need(setting.fields)?);
            let inner = inner.map_err(|_| wrong(field, "it is too large"))?;
            Ok(array(GgufMetadataArray::I32(vec![inner; layers])))
        }
    }
}
