//! Fields that are a list of the same number for each layer, as of Hunyuan with experts. GGUF has
//! the number.

use serde_json::{Map, Value};

use super::dims::LAYERS;
use super::fields::{Fields, wrong};
use super::table::ModelClass;
use crate::Result;

/// Sets fields that are such a list in models of `class` to the number.
///
/// # Errors
/// `Parse` that names a field whose numbers differ, or are not one for each layer.
pub(in crate::families) fn complete(fields: &mut Fields, class: &ModelClass) -> Result<()> {
    for &field in class.traits.listed_by_layer {
        let layers = fields.need(LAYERS)? as usize;
        let Some(Value::Array(numbers)) = fields.0.get(field) else {
            continue;
        };
        let is_same = numbers.len() == layers && numbers.windows(2).all(|pair| pair[0] == pair[1]);
        let number = numbers.first().filter(|_| is_same).cloned();
        let number = number.ok_or_else(|| {
            let what = format!("it is no list of {layers} equal numbers, one for each layer");
            wrong(field, what)
        })?;
        fields.0.insert(field.to_owned(), number);
    }
    Ok(())
}

/// Makes the numbers of a config of `class` lists of `layers` of them.
pub(in crate::families) fn restore(
    config: &mut Map<String, Value>,
    class: &ModelClass,
    layers: usize,
) {
    for field in class.traits.listed_by_layer {
        if let Some(number) = config.get_mut(*field) {
            *number = vec![number.take(); layers].into();
        }
    }
}
