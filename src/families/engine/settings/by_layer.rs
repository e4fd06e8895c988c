//! Settings with a number or a flag for each layer.

use super::array;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::Fields;
use crate::families::engine::table::{Kind, Setting};
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};

/// The list that is the value of `setting`; `None` if the config does not say what each layer is.
pub(super) fn list(setting: &Setting, fields: &Fields, dims: &Dims) -> Option<GgufMetadataValue> {
    match setting.kind {
        Kind::Layers(kind) => {
            let mut names = setting.fields.iter();
            let has_all = names.all(|field| fields.get(&[field]).is_some());
            let layers = dims.layers_of(kind).filter(|_| has_all)?;
            Some(array(GgufMetadataArray::Bool(layers.collect())))
        }
        Kind::KvHeadsBut(_, kind) => {
            let heads = i32::try_from(dims.kv_heads).unwrap_or(i32::MAX);
            numbers_of_kind(dims, kind, heads)
        }
        _ => None,
    }
}

/// `number` for each layer of `kind`, and 0 for the others.
pub(in crate::families) fn numbers_of_kind(
    dims: &Dims,
    kind: &str,
    number: i32,
) -> Option<GgufMetadataValue> {
    let numbers = dims
        .layers_of(kind)?
        .map(|is_so| if is_so { number } else { 0 });
    Some(array(GgufMetadataArray::I32(numbers.collect())))
}
