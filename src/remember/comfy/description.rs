//! How ComfyUI's files describe their layers: in a tensor `X.comfy_quant` beside each, or in the
//! file's metadata.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::config::unique_json;
use crate::limits::FREE_JSON_BYTES;
use crate::model::Tensor;
use crate::remember::kernels::rotated::{LEAST_GROUP, MAX_GROUP, is_group};
use crate::remember::seam::{Index, base_of, wrong};
use crate::{Dtype, ParsedModel, Result};

/// Largest `comfy_quant` that is read, in bytes. Real ones have a few dozen bytes.
const MAX_JSON: u64 = 64 << 10;

/// Key of the metadata value that describes all layers.
pub(super) const METADATA: &str = "_quantization_metadata";

/// The descriptions of all layers in a file's metadata.
pub(super) struct ComfyLayers {
    /// By module name; `None`: the metadata value is not the expected JSON.
    by_name: Option<HashMap<String, Value>>,
}

impl ComfyLayers {
    /// `None` if the file has neither the metadata nor a `comfy_quant`.
    pub(super) fn of(model: &ParsedModel) -> Option<Self> {
        // Either sign tells that the file describes its layers. `find` asks for the tensor first.
        let Some(text) = model.metadata.get(METADATA) else {
            let described = model
                .tensors()
                .any(|t| base_of(t.name(), "comfy_quant").is_some());
            return described.then(|| Self { by_name: Some(HashMap::new()) });
        };
        let json = unique_json::parse_embedded(text.as_bytes(), &mut FREE_JSON_BYTES.clone()).ok();
        let layers = json.and_then(|mut json| match json.get_mut("layers")?.take() {
            Value::Object(layers) => Some(layers),
            _ => None,
        });
        Some(Self {
            // Metadata that is no such JSON makes every layer an error later: a layer without a
            // description would be taken for plain.
            by_name: layers.map(|layers| layers.into_iter().collect()),
        })
    }
}

/// The description of one weight.
pub(super) struct ComfyDescription<'m> {
    pub format: String,
    options: Map<String, Value>,
    /// The `comfy_quant` that the description is from.
    pub marker: Option<Tensor<'m>>,
}

/// Columns that are rotated together unless the description has another number, as in ComfyUI's
/// loader.
const ROTATION: usize = 256;

impl<'m> ComfyDescription<'m> {
    /// The description of weight `t`, if there is one. That of a tensor precedes that of the
    /// metadata.
    ///
    /// # Errors
    /// A description is there and is not understood. The dtype alone does not tell the format, so
    /// that a guess could be wrong.
    pub(super) fn find(
        t: &Tensor<'m>,
        layers: &ComfyLayers,
        all: &Index<'m>,
    ) -> Result<Option<Self>> {
        let Some(base) = base_of(t.name(), "weight") else {
            return Ok(None);
        };
        if let Some(marker) = all.at(base, "comfy_quant") {
            // The content decides about arithmetic, so a guess is allowed only where nothing can be
            // decoded anyway.
            // Only the header of the file is at hand, for a listing.
            if !marker.part().is_readable() {
                let mut options = Map::new();
                // Any number would do that divides the columns: nothing is decoded.
                options.insert("convrot_groupsize".to_owned(), LEAST_GROUP.into());
                if let Some(side) = side_of_squares(t, all) {
                    options.insert("group_size".to_owned(), side.into());
                }
                return Ok(Some(Self {
                    format: guess_format(t, all).to_owned(),
                    options,
                    marker: Some(marker),
                }));
            }
            let text = marker.part().read_small(MAX_JSON)?;
            let json = unique_json::parse_embedded(&text, &mut FREE_JSON_BYTES.clone())
                .map_err(|what| wrong(&marker, what))?;
            let found = Some(&json)
                .and_then(Value::as_object)
                .and_then(|json| Self::from_json(t, json, Some(marker)));
            let what = "it is to say in JSON which format its layer has, and does not";
            return found.map(Some).ok_or_else(|| wrong(&marker, what));
        }
        let Some(by_name) = &layers.by_name else {
            return Err(wrong(
                t,
                format!("`{METADATA}` of the file is not the JSON that it should be"),
            ));
        };
        let Some(layer) = by_name.get(base.trim_end_matches('.')) else {
            return Ok(None);
        };
        let found = layer
            .as_object()
            .and_then(|json| Self::from_json(t, json, None));
        found
            .map(Some)
            .ok_or_else(|| wrong(t, format!("`{METADATA}` has no format for it")))
    }

    fn from_json(
        t: &Tensor<'m>,
        json: &Map<String, Value>,
        marker: Option<Tensor<'m>>,
    ) -> Option<Self> {
        let format = match json.get("format") {
            Some(format) => format.as_str()?,
            // ComfyUI-INT8-Fast says no format, for it has but one.
            None if t.dtype() == Dtype::I8 && json.contains_key("convrot") => "int8_tensorwise",
            None => return None,
        };
        Some(Self { format: format.to_owned(), options: json.clone(), marker })
    }

    /// Option `key`. Some writers put options into an object `params`; ComfyUI looks there last.
    pub(super) fn option(&self, key: &str) -> Option<&Value> {
        let nested = || self.options.get("params")?.as_object()?.get(key);
        self.options.get(key).or_else(nested)
    }

    /// Option `key` as a number, or `default` if it is not there.
    ///
    /// # Errors
    /// It is no positive integer.
    pub(super) fn number(&self, t: &Tensor<'_>, key: &str, default: usize) -> Result<usize> {
        let Some(value) = self.option(key) else {
            return Ok(default);
        };
        let number = value.as_u64().and_then(|n| usize::try_from(n).ok());
        number.filter(|&n| n > 0).ok_or_else(|| {
            let what = format!("its description has `{key}` {value}, which is no positive integer");
            wrong(t, what)
        })
    }

    /// Whether option `key` is there and Python takes it for true. `convrot` may be a flag, a
    /// number or an object with options.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.option(key).is_some_and(is_true)
    }

    /// The shape of the weight `t` of `stored` rows and columns: a bank of experts may be stored as
    /// one matrix, in which case the description says how many there are (`num_experts`).
    ///
    /// # Errors
    /// The rows, or those of the bias, are not those of so many experts.
    pub(super) fn output_shape(
        &self,
        t: &Tensor<'_>,
        stored: &[usize],
        all: &Index<'_>,
    ) -> Result<Vec<usize>> {
        let &[rows, cols] = stored else {
            return Ok(stored.to_vec());
        };
        let has_experts = self.option("num_experts").is_some_and(|n| !n.is_null());
        let experts = match has_experts {
            true => self.number(t, "num_experts", 1)?,
            false => 1,
        };
        if !rows.is_multiple_of(experts) {
            let what = format!("its {rows} rows are not those of {experts} experts");
            return Err(wrong(t, what));
        }
        let height = rows / experts;
        let base = base_of(t.name(), "weight").unwrap_or_default();
        if let Some(bias) = all.at(base, "bias")
            && bias.shape().len() == 2
            && bias.shape() != [experts, height]
        {
            let what = format!(
                "its description tells of {experts} experts of {height} rows, and `{}` is {:?}",
                bias.name(),
                bias.shape()
            );
            return Err(wrong(t, what));
        }
        Ok(match has_experts {
            true => vec![experts, height, cols],
            false => stored.to_vec(),
        })
    }

    /// Columns that are rotated together, of a weight of `cols` columns whose format has a
    /// rotation.
    ///
    /// # Errors
    /// The description has no such number, or the columns are not whole groups of it.
    pub(super) fn rotation(&self, t: &Tensor<'_>, cols: usize) -> Result<usize> {
        let group = self.number(t, "convrot_groupsize", ROTATION)?;
        if !is_group(group) {
            let what = format!(
                "its columns are rotated in groups of {group}, which is no power of 4 from {LEAST_GROUP} to {MAX_GROUP}"
            );
            return Err(wrong(t, what));
        }
        if !cols.is_multiple_of(group) {
            let what = format!("its {cols} columns are not whole groups of {group} to rotate");
            return Err(wrong(t, what));
        }
        Ok(group)
    }
}

/// The probable format of `t` by its dtypes and its companions. Only for listings, when the header
/// of the file is all that is at hand.
fn guess_format<'m>(t: &Tensor<'m>, all: &Index<'m>) -> &'static str {
    let has = |end: &str| all.at(t.name(), end).is_some();
    let scale = all.at(t.name(), "_scale");
    let exponents = scale.is_some_and(|scale| scale.dtype() == Dtype::F8E8M0);
    let is_one_a_row = scale.is_some_and(|scale| scale.shape().len() == 1);
    let has_factors = || {
        let base = base_of(t.name(), "weight").unwrap_or_default();
        has("_proj_down") || all.at(base, "proj_down").is_some()
    };
    let has_squares = side_of_squares(t, all).is_some();
    match t.dtype() {
        Dtype::F8E4M3 if exponents => "mxfp8",
        Dtype::F8E4M3 if has_squares => "float8_e4m3fn_blockwise",
        Dtype::I8 if has_squares => "int8_blockwise",
        Dtype::F8E4M3 => "float8_e4m3fn",
        Dtype::F8E5M2 => "float8_e5m2",
        Dtype::U8 => "nvfp4",
        _ if has("_s_rel") => "asym_w4a8_int8",
        _ if has("_zeros") || has("_zero") => "awq_w4a16",
        _ if has_factors() => "svdquant_w4a4",
        // comfy-kitchen writes `[out, 1]` for INT8.
        _ if is_one_a_row => "convrot_w4a4",
        _ => "int8_tensorwise",
    }
}

/// Rows, and columns, that share a scale of `t` by the shapes, if there is one for each square of
/// several.
fn side_of_squares(t: &Tensor<'_>, all: &Index<'_>) -> Option<usize> {
    let scale = all.at(t.name(), "_scale")?;
    let (&[rows, cols], &[down, across]) = (t.shape(), scale.shape()) else {
        return None;
    };
    let side = rows.checked_div(down).filter(|&side| side > 1)?;
    (cols.checked_div(across) == Some(side)).then_some(side)
}

/// Whether Python's `bool` of `value` is true.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truth_is_that_of_python() {
        let is_true = |text| is_true(&serde_json::from_str(text).unwrap());
        for text in ["null", "false", "0", "0.0", "-0.0", r#""""#, "[]", "{}"] {
            assert!(!is_true(text), "{text}");
        }
        for text in ["true", "1", "-1", "0.5", r#""false""#, "[0]", r#"{"a":0}"#] {
            assert!(is_true(text), "{text}");
        }
    }
}
