//! Vectors that GGUF alone has, whose values are all one number of the config.

use serde_json::{Map, Value};

use super::dims::Dims;
use super::fields::{Fields, float};
use super::mapping::refused;
use super::names::{Place, fill, find};
use super::source::computed;
use super::table::ModelClass;
use super::values::values_of;
use crate::Result;
use crate::model::gguf::GgufMetadataValue;
use crate::remember::{Group, ResolvedItem};

/// The vectors of all layers of a model of `class`.
///
/// # Errors
/// `Parse` that names the field which is no number.
pub(crate) fn to_gguf<'m>(
    class: &ModelClass,
    fields: &Fields,
    dims: &Dims,
) -> Result<Vec<Group<'m>>> {
    let mut made = Vec::new();
    for rule in class.traits.fills {
        let number = match rule.field {
            Some(field) => fields.number(&[field])?.unwrap_or(1.0),
            None => 1.0,
        };
        let len = dims.size(rule.len, None).unwrap_or(0);
        let vector = |layer| {
            let name = fill(rule.gguf, Place { layer: Some(layer), expert: None });
            computed((&name, vec![number as f32; len]))
        };
        made.extend((0..dims.layers).map(vector));
    }
    Ok(made)
}

/// Takes these vectors out of `items`, and sets the fields that they say.
///
/// # Errors
/// `Parse` if a value is another than the first, or than a class has; those of reading.
pub(crate) fn take(
    class: &ModelClass,
    items: &mut Vec<ResolvedItem<'_>>,
    config: &mut Map<String, Value>,
) -> Result<()> {
    let rule_of = |name: &str| {
        let mut rules = class.traits.fills.iter();
        rules.find(|rule| find(rule.gguf, name).is_some())
    };
    for item in items.iter() {
        let Some(rule) = rule_of(item.name()) else {
            continue;
        };
        let values = values_of(item)?;
        let first = values.first().copied().unwrap_or(1.0);
        let stated = rule.field.and_then(|field| config.get(field)?.as_f64());
        let expected = match rule.field {
            Some(_) => stated.map_or(first, |stated| stated as f32),
            None => 1.0,
        };
        if values.iter().any(|value| *value != expected) {
            let what =
                format!("not all its values are {expected}, which {} needs", class.classes[0]);
            return Err(refused(item.name(), what));
        }
        if let Some(field) = rule.field {
            config.insert(
                field.to_owned(),
                float(&GgufMetadataValue::F32(expected)).unwrap_or_default(),
            );
        }
    }
    items.retain(|item| rule_of(item.name()).is_none());
    Ok(())
}
