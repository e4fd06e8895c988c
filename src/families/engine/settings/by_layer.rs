//! Settings with a number or a flag for each layer.

use crate::families::engine::dims::Dims;
use crate::families::engine::fields::array;
use crate::families::engine::table::{Model, Setting};
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};

/// Which layers are of `kind`; `None` if the config does not have all fields of `setting`, or does
/// not say what each layer is.
pub(super) fn layers_of_kind(
    setting: &Setting,
    model: &Model<'_>,
    kind: &str,
) -> Option<GgufMetadataValue> {
    let mut names = setting.fields.iter();
    let has_all = names.all(|field| model.fields.get(&[field]).is_some());
    let layers = model.dims.layers_of(kind).filter(|_| has_all)?;
    Some(array(GgufMetadataArray::Bool(layers.collect())))
}

/// `number` for each layer of `kind`, and 0 for the others.
pub(crate) fn numbers_of_kind(dims: &Dims, kind: &str, number: i32) -> Option<GgufMetadataValue> {
    let numbers = dims
        .layers_of(kind)?
        .map(|is_so| if is_so { number } else { 0 });
    Some(array(GgufMetadataArray::I32(numbers.collect())))
}
