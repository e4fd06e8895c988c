//! How ComfyUI's files describe their layers: in a tensor `X.comfy_quant` beside each, or in the file's metadata.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::config::unique_json;
use crate::containers::model::Tensor;
use crate::limits::FREE_JSON_BYTES;
use crate::scheme::seam::{Index, base_of, wrong};
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
            return described.then(|| Self {
                by_name: Some(HashMap::new()),
            });
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
    /// Whether its columns are rotated by a Hadamard matrix (`convrot`).
    pub is_rotated: bool,
    /// The `comfy_quant` that the description is from.
    pub marker: Option<Tensor<'m>>,
}

impl<'m> ComfyDescription<'m> {
    /// The description of weight `t`, if there is one. That of a tensor precedes that of the metadata.
    ///
    /// # Errors
    /// A description is there and is not understood. The dtype alone does not tell the format, so that a
    /// guess could be wrong.
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
                let (format, is_rotated) = (guess_format(t, all).to_owned(), false);
                return Ok(Some(Self {
                    format,
                    is_rotated,
                    marker: Some(marker),
                }));
            }
            let text = marker.part().read_small(MAX_JSON)?;
            let json = unique_json::parse_embedded(&text, &mut FREE_JSON_BYTES.clone())
                .map_err(|what| wrong(&marker, what))?;
            let found = Some(&json)
                .and_then(Value::as_object)
                .and_then(|json| Self::from_json(json, Some(marker)));
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
            .and_then(|json| Self::from_json(json, None));
        found
            .map(Some)
            .ok_or_else(|| wrong(t, format!("`{METADATA}` has no format for it")))
    }

    fn from_json(json: &Map<String, Value>, marker: Option<Tensor<'m>>) -> Option<Self> {
        // `convrot` may be a flag or an object with options. Everything but an explicit no counts
        // as a rotation.
        let is_rotated = json
            .get("convrot")
            .is_some_and(|v| !matches!(v, Value::Null | Value::Bool(false)));
        Some(Self {
            format: json.get("format")?.as_str()?.to_owned(),
            is_rotated,
            marker,
        })
    }
}

/// The probable format of `t` by its dtypes. Only for listings, when the header of the file is all that is at hand.
fn guess_format<'m>(t: &Tensor<'m>, all: &Index<'m>) -> &'static str {
    let exponents = all
        .at(t.name(), "_scale")
        .is_some_and(|scale| scale.dtype() == Dtype::F8E8M0);
    match t.dtype() {
        Dtype::F8E4M3 if exponents => "mxfp8",
        Dtype::F8E4M3 => "float8_e4m3fn",
        Dtype::F8E5M2 => "float8_e5m2",
        Dtype::U8 => "nvfp4",
        _ => "int8_tensorwise",
    }
}
