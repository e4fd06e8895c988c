//! Layers that predict further tokens. They are behind the last layer in GGUF, and there in
//! transformers as well, or `mtp.*`.

use serde_json::{Map, Value};

use super::dims::layer_of;
use super::fields::{Fields, LAYERS, PREDICTION, wrong, wrong_key};
use super::names::{is_behind, of_language_model};
use super::request::ModelPart;
use super::table::{ModelClass, Prediction, PredictionNames};
use crate::error::counted;
use crate::model::gguf::GgufMetadata;
use crate::remember::ResolvedItem;
use crate::{AnamnesisError, Result};

impl PredictionNames {
    /// `name` as that of the layer behind `layers` others; `None`: it is none of these names.
    pub(crate) fn as_layer(&self, name: &str, layers: usize) -> Option<String> {
        let name = without_model(name);
        let mut names = self.names.iter();
        names.find_map(|(from, to)| {
            let rest = name.strip_prefix(from)?;
            Some(format!("{}{layers}.{to}{rest}", self.layers))
        })
    }

    /// The name in transformers of `name`, a tensor of the layer behind `layers` others; `None`: it
    /// is of another layer.
    pub(crate) fn of_transformers(&self, name: &str, layers: usize) -> Option<String> {
        let rest = name.strip_prefix(&format!("{}{layers}.", self.layers))?;
        let mut names = self.names.iter();
        names.find_map(|(from, to)| Some(format!("{from}{}", rest.strip_prefix(to)?)))
    }
}

/// `name` without the `model.` that some checkpoints have in front of `mtp.`.
fn without_model(name: &str) -> &str {
    let rest = name.strip_prefix("model.");
    rest.filter(|rest| is_apart(rest)).unwrap_or(name)
}

fn is_apart(name: &str) -> bool {
    name.starts_with("mtp.")
}

/// Whether the tensor `name` of transformers is of a layer that predicts further tokens, behind
/// `layers` others.
pub(crate) fn is_predicting(prediction: Prediction, name: &str, layers: usize) -> bool {
    let name = of_language_model(name);
    match prediction {
        Prediction::Unknown => false,
        Prediction::Kept | Prediction::KeptInGguf => is_behind(&name, layers),
        Prediction::Apart(_) => is_apart(without_model(&name)),
        Prediction::LeftOut => is_apart(&name) || is_behind(&name, layers),
    }
}

/// What a file of such layers alone has besides them. Tensors of rope are not of the model, but made.
///
/// Source: `filter_tensors` of llama.cpp's converter, with `mtp_only`.
const SHARED: &[&str] = &["token_embd.weight", "output_norm.weight", "output.weight"];

/// Whether a file of the layers behind `layers` others alone has the tensor `name` of GGUF.
pub(crate) fn is_kept_alone(name: &str, layers: usize) -> bool {
    match layer_of(name) {
        Some(layer) => layer >= layers as u64,
        None => SHARED.contains(&name) || name.starts_with("rope_"),
    }
}

/// Takes the layers that predict further tokens out of `items`, tensors of a model of the class
/// `name`, if `part` is a model without them. Returns a note of these tensors, if there are any.
///
/// # Errors
/// `Unsupported` if the class has no such layers in GGUF, or the model has none of which `part` is made.
pub(crate) fn select_part(
    (class, name): (&ModelClass, &str),
    fields: &Fields,
    items: &mut Vec<ResolvedItem<'_>>,
    part: ModelPart,
) -> Result<Option<String>> {
    let (layers, mut prediction) = (fields.need(LAYERS)? as usize, class.traits.prediction);
    if class
        .traits
        .left_out
        .iter()
        .any(|start| start.contains("mtp"))
    {
        prediction = Prediction::LeftOut;
    }
    let is_of_part = |item: &ResolvedItem<'_>| is_predicting(prediction, item.name(), layers);
    let refused =
        |option, what: &str| Err(AnamnesisError::unsupported(option, format!("`{name}`: {what}")));
    match (part, prediction) {
        (ModelPart::Whole | ModelPart::Vocabulary, _) => {}
        (ModelPart::Prediction, Prediction::Unknown) => {
            let what = "the class has no layers that predict further tokens; leave the option out";
            return refused("--mtp", what);
        }
        (ModelPart::WithoutPrediction, Prediction::Unknown) => {
            let what = "the class has no layers that predict further tokens; leave the option out";
            return refused("--no-mtp", what);
        }
        (ModelPart::Prediction, Prediction::LeftOut) => {
            let what = "layers of this class that predict further tokens are not written here; convert the model without them, which needs no option";
            return refused("--mtp", what);
        }
        (ModelPart::Prediction, _) if !items.iter().any(is_of_part) => {
            let what = "the model has no layer that predicts a further token; without the option it is written as it is";
            return refused("--mtp", what);
        }
        (ModelPart::Prediction, _) => {}
        (ModelPart::WithoutPrediction, Prediction::LeftOut) => {}
        (ModelPart::WithoutPrediction, _) => {
            let before = items.len();
            items.retain(|item| !is_of_part(item));
            let left_out = before - items.len();
            return Ok((left_out > 0).then(|| note(left_out)));
        }
    }
    Ok(None)
}

/// Sets the number of layers that predict further tokens to that of the model, if GGUF has them:
/// configs count layers, too, that transformers has not saved. Without any weights it is that of the
/// config.
///
/// # Errors
/// `Parse` if llama.cpp has no place for as many.
pub(crate) fn count_layers(
    fields: &mut Fields,
    class: &ModelClass,
    items: &[ResolvedItem<'_>],
) -> Result<()> {
    let (layers, prediction) = (fields.need(LAYERS)? as usize, class.traits.prediction);
    let has_them = match (items, prediction) {
        ([], Prediction::Apart(names)) => fields.count(&[names.count])?.is_some_and(|n| n > 0),
        ([], _) => true,
        _ => items
            .iter()
            .any(|item| is_predicting(prediction, item.name(), layers)),
    };
    match prediction {
        Prediction::Kept | Prediction::KeptInGguf if has_them => return Ok(()),
        Prediction::Apart(names) if has_them => {
            if let Some(count) = fields.count(&[names.count])?.filter(|n| *n > 1) {
                let what = format!("it is {count}, and llama.cpp's {} has one", class.gguf);
                return Err(wrong(names.count, what));
            }
            fields.0.insert(PREDICTION.to_owned(), 1.into());
        }
        _ => drop(fields.0.remove(PREDICTION)),
    }
    Ok(())
}

/// The number of layers in GGUF that predict further tokens, of classes that name them apart in
/// transformers.
///
/// # Errors
/// `Parse` if there are more than one.
pub(crate) fn apart(class: &ModelClass, metadata: &GgufMetadata) -> Result<usize> {
    let (Prediction::Apart(_), key) = (class.traits.prediction, key_of(class)) else {
        return Ok(0);
    };
    let count = metadata.get(&key).and_then(|value| value.as_unsigned());
    match count.unwrap_or(0) {
        count @ 0..=1 => Ok(count as usize),
        count => Err(wrong_key(&key, format_args!("{count} layers"))),
    }
}

/// Gives the number of layers that predict further tokens the name that the class has for it.
pub(crate) fn rename_count(config: &mut Map<String, Value>, prediction: Prediction) {
    if let Prediction::Apart(names) = prediction {
        let count = config.remove(PREDICTION);
        config.extend(count.map(|count| (names.count.to_owned(), count)));
    }
}

/// Takes the layers that predict further tokens out of `config` and `items`, of classes that leave
/// them out. Returns a note of the tensors, if there are any. Of other classes, forgets a number of
/// such layers that the file does not have.
///
/// # Errors
/// `Parse` that names the key, if there are as many as all layers.
pub(crate) fn leave_out(
    class: &ModelClass,
    metadata: &GgufMetadata,
    config: &mut Map<String, Value>,
    items: &mut Vec<ResolvedItem<'_>>,
) -> Result<Option<String>> {
    if class.traits.prediction != Prediction::LeftOut {
        let has_first = items.iter().any(|item| layer_of(item.name()) == Some(0));
        if !has_first && config.contains_key(PREDICTION) {
            let what = "the file has the layer that predicts a further token alone (`--mtp` of llama.cpp's converter), and no model";
            return Err(wrong_key(&key_of(class), what));
        }
        let layers = config.get(LAYERS[0]).and_then(Value::as_u64);
        let is_behind = |item: &ResolvedItem<'_>| {
            layer_of(item.name()).is_some_and(|layer| Some(layer) >= layers)
        };
        let behind = items.iter().filter(|item| is_behind(item)).count();
        let is_left_out = class.traits.prediction == Prediction::KeptInGguf;
        if behind == 0 || is_left_out {
            config.remove(PREDICTION);
        }
        if behind == 0 || !is_left_out {
            return Ok(None);
        }
        items.retain(|item| !is_behind(item));
        return Ok(Some(note(behind)));
    }
    let key = key_of(class);
    let count = metadata.get(&key).and_then(|value| value.as_unsigned());
    let all = config.get(LAYERS[0]).and_then(Value::as_u64);
    let (Some(count), Some(all)) = (count.filter(|n| *n > 0), all) else {
        return Ok(None);
    };
    let layers = all.checked_sub(count).filter(|&layers| layers > 0);
    let layers = layers.ok_or_else(|| wrong_key(&key, format_args!("there are {all} layers")))?;
    config.insert(LAYERS[0].to_owned(), layers.into());
    let before = items.len();
    items.retain(|item| {
        let layer = layer_of(item.name());
        layer.is_none_or(|layer| layer < layers || layer >= all)
    });
    let left_out = before - items.len();
    Ok((left_out > 0).then(|| note(left_out)))
}

/// The note that `count` tensors are left out.
fn note(count: usize) -> String {
    format!("{} left out, of layers that predict several tokens at once", counted(count, "tensor"))
}

fn key_of(class: &ModelClass) -> String {
    format!("{}.nextn_predict_layers", class.gguf)
}
