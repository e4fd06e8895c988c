//! Keys that are lists, most of which have a value for each layer.

use serde_json::Value;

use crate::Result;
use crate::config::object;
use crate::families::engine::fields::{FULL_ATTENTION, LAYER_KINDS};
use crate::families::engine::table::{ConfigFields, Kind, Setting};
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};

impl ConfigFields<'_> {
    /// The field and its value that a list says; `None` if `value` is no list as the kind of
    /// `setting` has it.
    pub(super) fn of_list(
        &mut self,
        setting: &Setting,
        key: &str,
        value: &GgufMetadataValue,
    ) -> Result<Option<(&'static str, Value)>> {
        let field = setting.fields.first().copied().unwrap_or_default();
        let Some(list) = value.as_array() else {
            return Ok(None);
        };
        Ok(Some(match (setting.kind, list) {
            (Kind::Labels(_), GgufMetadataArray::String(labels)) => {
                let labels = labels.iter().enumerate();
                let labels = labels.map(|(i, label)| (i.to_string(), label.as_str().into()));
                ("id2label", Value::Object(object(labels)))
            }
            (Kind::Layers(kind), GgufMetadataArray::Bool(layers)) => {
                let layers = self.last_left_out(layers).iter().copied();
                (LAYER_KINDS, kinds(layers, (kind, FULL_ATTENTION)))
            }
            (Kind::KvHeadsBut(kind, other), GgufMetadataArray::I32(heads)) => {
                let layers = self.last_left_out(heads).iter();
                let layers = kinds(layers.map(|n| *n == 0), (kind, other));
                self.set(LAYER_KINDS, layers, key)?;
                (field, heads.iter().copied().max().unwrap_or(0).into())
            }
            _ => return Ok(None),
        }))
    }

    /// `layers` without those behind the last one that predict further tokens.
    pub(crate) fn last_left_out<'a, T>(&self, layers: &'a [T]) -> &'a [T] {
        &layers[..layers.len().saturating_sub(self.prediction)]
    }
}

/// The kinds of layers: `kind` where it is so, and `other` elsewhere.
pub(super) fn kinds(layers: impl Iterator<Item = bool>, (kind, other): (&str, &str)) -> Value {
    let name = |is_so| if is_so { kind } else { other };
    layers.map(name).collect()
}
