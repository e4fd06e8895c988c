//! Bases of rope: those of kinds of layers, and those that versions of transformers take where a
//! config states none.

use serde_json::{Map, Value};

use super::{PARAMETERS, SCALING};
use crate::Result;
use crate::families::engine::fields::{FULL_ATTENTION, Fields};

/// Fields of the base in layers with a window.
const LOCAL_BASES: &[&str] = &[
    "local_rope_theta",
    "rope_local_theta",
    "rope_theta_local",
    "swa_rope_theta",
    "rope_local_base_freq",
];

/// What `rope_parameters` calls layers with a window.
pub(crate) const WINDOWED: &str = "sliding_attention";

/// Whether `rope_parameters` is stated by the kind of the layers; `None` if it says nothing but a
/// type.
pub(super) fn is_by_kind(fields: &Fields) -> Option<bool> {
    let (_, parameters) = fields.get(&[PARAMETERS])?;
    let parameters = parameters.as_object()?;
    let is_kind = |name: &String| name == FULL_ATTENTION || name == WINDOWED;
    let is_plain = |(name, value): (&String, &Value)| {
        value.is_null() || matches!(name.as_str(), "rope_type" | "type") && value == "default"
    };
    match parameters.keys().any(is_kind) {
        true => Some(true),
        false => (!parameters.iter().all(is_plain)).then_some(false),
    }
}

/// The base in layers with a window, of which `rope_parameters` says `local`.
pub(super) fn local_base(
    local: Option<&Map<String, Value>>,
    fields: &Fields,
) -> Result<Option<f64>> {
    let stated = match local {
        Some(local) => Fields(local.clone()).number(&["rope_theta"])?,
        None => None,
    };
    match stated {
        Some(base) => Ok(Some(base)),
        None => fields.number(LOCAL_BASES),
    }
}

/// Whether `rope_scaling` names its type as old configs do.
pub(super) fn has_old_type(fields: &Fields) -> bool {
    let scaling = fields.get(&[SCALING]).map(|(_, scaling)| scaling);
    let named = |name: &str| scaling.and_then(|scaling| scaling.get(name));
    named("rope_type").is_none() && named("type").is_some_and(|kind| kind != "default")
}
