//! Settings with a number or a flag for each layer: widths, heads and kinds of layers, layers that
//! share keys, and layers that cut their activations.

use serde_json::Value;

use super::array;
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::table::{Kind, Setting};
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};

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

/// The list that is the value of `setting`; `None` if the config does not say what each layer is.
pub(super) fn list(
    setting: &Setting,
    fields: &Fields,
    dims: &Dims,
) -> Result<Option<GgufMetadataValue>> {
    let too_large = || wrong(setting.fields[0], "it is missing or too large");
    let of_kind = |kind: &str, number: i32| {
        let layers = dims.layers_of(kind)?;
        let numbers = layers.map(|is_so| if is_so { number } else { 0 });
        Some(GgufMetadataArray::I32(numbers.collect()))
    };
    let list = match setting.kind {
        Kind::Layers(kind) => {
            let mut names = setting.fields.iter();
            let has_all = names.all(|field| fields.get(&[field]).is_some());
            let layers = dims.layers_of(kind).filter(|_| has_all);
            layers.map(|layers| GgufMetadataArray::Bool(layers.collect()))
        }
        Kind::InEachLayer(text) => {
            let expected = Value::from(vec![text; dims.layers]);
            let other = fields.get(setting.fields);
            if let Some((field, _)) = other.filter(|(_, list)| **list != expected) {
                return Err(wrong(field, format!("it is not `{text}` for each layer")));
            }
            Some(GgufMetadataArray::Bool(vec![true; dims.layers]))
        }
        Kind::InnerOf(kind) => {
            let inner = fields.count(setting.fields)?;
            let inner = inner.and_then(|n| i32::try_from(n).ok());
            of_kind(kind, inner.ok_or_else(too_large)?)
        }
        Kind::KvHeadsBut(_, other) => {
            let heads = i32::try_from(dims.kv_heads).unwrap_or(i32::MAX);
            of_kind(other, heads)
        }
        Kind::KvHeads => {
            let heads = |layer| i32::try_from(dims.kv_heads_of(Some(layer))).unwrap_or(i32::MAX);
            Some(GgufMetadataArray::I32((0..dims.layers).map(heads).collect()))
        }
        _ => {
            let width = |layer| i32::try_from(dims.inner_of(Some(layer))?).ok();
            let widths = (0..dims.layers).map(width).collect::<Option<_>>();
            Some(GgufMetadataArray::I32(widths.ok_or_else(too_large)?))
        }
    };
    Ok(list.map(array))
}

/// The value of `setting` of Gemma 3n, of a model of `layers` layers, whose architecture is `gguf`.
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
