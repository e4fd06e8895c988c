//! Single values that are tensors in transformers and in the metadata of GGUF, those of layers as lists,
//! as the parameters of Apertus' activation function.

use super::fields::{KeyValue, wrong_key};
use super::mapping::Mapped;
use super::names::{Place, fill};
use super::source::{SourceTensor, computed};
use super::table::{ModelClass, TensorRule, Transform};
use super::values::decoded_values;
use crate::error::InTensor;
use crate::model::gguf::{GgufMetadata, GgufMetadataArray, GgufMetadataValue};
use crate::remember::ResolvedItem;
use crate::sort::sort_by_key;
use crate::{AnamnesisError, Result};

/// The key that the rule's tensors are, and its rule.
fn rules(class: &ModelClass) -> impl Iterator<Item = (&'static str, &'static TensorRule)> {
    let rules = class.tensors.iter().flat_map(|rules| rules.iter());
    rules.filter_map(|rule| match rule.transform {
        Transform::Key(key) => Some((key, rule)),
        _ => None,
    })
}

/// Whether the model has one such tensor, and not each layer.
fn is_single(rule: &TensorRule) -> bool {
    !rule.gguf.contains("{i}")
}

/// Takes the tensors that are lists of the metadata out of `tensors`, and returns the lists.
///
/// # Errors
/// `Parse` if a tensor is no single value that is stored as a float; those of reading.
pub(crate) fn take_keys(
    class: &ModelClass,
    tensors: &mut Vec<Mapped<'_>>,
) -> Result<Vec<KeyValue>> {
    let mut keys = Vec::new();
    for (key, rule) in rules(class) {
        let of_rule = |tensor: &mut Mapped<'_>| tensor.rule.gguf == rule.gguf;
        let mut found: Vec<_> = tensors.extract_if(.., of_rule).collect();
        sort_by_key(&mut found, |tensor| tensor.place);
        let values = found.iter().map(|tensor| {
            let source = &tensor.sources[0].1;
            match decoded_values(&*source.decoder)?.as_deref() {
                Some(&[value]) => Ok(value),
                _ => {
                    let what = format!("{}: it is no single value", InTensor(&source.name));
                    Err(AnamnesisError::parse(what))
                }
            }
        });
        let values: Vec<f32> = values.collect::<Result<_>>()?;
        let value = match values[..] {
            [value] if is_single(rule) => GgufMetadataValue::F32(value),
            _ => GgufMetadataValue::Array(Box::new(GgufMetadataArray::F32(values))),
        };
        keys.push((key.to_owned(), value));
    }
    Ok(keys)
}

/// The tensors that are lists of `metadata`, as if they were tensors of GGUF.
///
/// # Errors
/// `Parse` if a key is missing, or no list of numbers.
pub(crate) fn tensors_of_keys<'m>(
    class: &ModelClass,
    metadata: &GgufMetadata,
) -> Result<Vec<SourceTensor<'m>>> {
    let mut tensors = Vec::new();
    for (key, rule) in rules(class) {
        let value = metadata.get(key);
        if let Some(GgufMetadataValue::F32(value)) = value
            && is_single(rule)
        {
            let group = computed((rule.gguf, vec![value]));
            tensors.push(SourceTensor::new(ResolvedItem::from(group))?);
            continue;
        }
        let Some(GgufMetadataArray::F32(values)) =
            value.as_ref().and_then(|value| value.as_array())
        else {
            return Err(wrong_key(key, "it is no list of a number for each layer"));
        };
        for (layer, value) in values.iter().enumerate() {
            let place = Place { layer: Some(layer), expert: None };
            let group = computed((&fill(rule.gguf, place), vec![*value]));
            tensors.push(SourceTensor::new(ResolvedItem::from(group))?);
        }
    }
    Ok(tensors)
}
