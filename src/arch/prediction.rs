//! Layers of GGUF files that predict further tokens, of classes that have no names for them: `mtp.*` in transformers.

use serde_json::{Map, Value};

use super::dims::LAYERS;
use super::fields::LAYER_KINDS;
use super::settings::wrong_key;
use super::table::{ModelClass, Prediction};
use crate::Result;
use crate::containers::model::gguf::GgufMetadata;
use crate::scheme::ResolvedItem;

/// Takes the layers that predict further tokens out of `config` and `items`, of classes that leave them out. Returns a note of the
/// tensors, if there are any.
///
/// # Errors
/// `Parse` that names the key, if there are as many as all layers.
pub(super) fn leave_out(
    class: &ModelClass,
    metadata: &GgufMetadata,
    config: &mut Map<String, Value>,
    items: &mut Vec<ResolvedItem<'_>>,
) -> Result<Option<String>> {
    let key = format!("{}.nextn_predict_layers", class.gguf);
    let count = metadata.get(&key).and_then(|value| value.as_unsigned());
    let count = count.filter(|&n| n > 0 && class.traits.prediction == Prediction::LeftOut);
    let all = config.get(LAYERS[0]).and_then(Value::as_u64);
    let (Some(count), Some(all)) = (count, all) else {
        return Ok(None);
    };
    let layers = all.checked_sub(count).filter(|&layers| layers > 0);
    let layers = layers.ok_or_else(|| wrong_key(&key, format_args!("there are {all} layers")))?;
    config.insert(LAYERS[0].to_owned(), layers.into());
    let kinds = config.get_mut(LAYER_KINDS).and_then(Value::as_array_mut);
    if let Some(kinds) = kinds.filter(|kinds| kinds.len() as u64 == all) {
        kinds.truncate(layers as usize);
    }
    let before = items.len();
    items.retain(|item| {
        let rest = item.name().strip_prefix("blk.");
        let layer = rest.and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
        layer.is_none_or(|layer| layer < layers || layer >= all)
    });
    let left_out = before - items.len();
    let note = || format!("{left_out} tensors left out that predict several tokens at once");
    Ok((left_out > 0).then(note))
}
