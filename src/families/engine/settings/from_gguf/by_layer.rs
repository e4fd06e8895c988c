//! Keys that are lists, most of which have a value for each layer.

use serde_json::Value;

use super::{ConfigFields, FULL_ATTENTION};
use crate::Result;
use crate::families::engine::dims::LAYERS;
use crate::families::engine::fields::LAYER_KINDS;
use crate::families::engine::layer_sizes::{DOUBLE_WIDE, FULL_KV_HEADS, SHARED};
use crate::families::engine::rope::SECTIONS;
use crate::families::engine::settings::{by_layer, wrong_key};
use crate::families::engine::table::{Kind, Setting};
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};

impl ConfigFields {
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
                ("id2label", Value::Object(labels.collect()))
            }
            (Kind::Sections(_), GgufMetadataArray::I32(sections)) if sections.len() == 4 => {
                let count = if sections[3] == 0 { 3 } else { 4 };
                (SECTIONS, sections[..count].into())
            }
            (Kind::Layers(kind), GgufMetadataArray::Bool(layers)) => {
                let layers = self.last_left_out(layers).iter().copied();
                (LAYER_KINDS, kinds(layers, (kind, FULL_ATTENTION)))
            }
            (Kind::InEachLayer(text), GgufMetadataArray::Bool(layers)) => {
                self.require_fixed(key, layers.iter().all(|is_so| *is_so), &true)?;
                (field, vec![text; layers.len()].into())
            }
            (Kind::Inner, GgufMetadataArray::I32(widths)) => {
                (field, self.least_width(key, widths)?)
            }
            (Kind::InnerOfEach, GgufMetadataArray::I32(widths))
                if widths.windows(2).all(|pair| pair[0] == pair[1]) && !widths.is_empty() =>
            {
                (field, widths[0].into())
            }
            (Kind::SparseLayers(first), GgufMetadataArray::F32(found)) => {
                let layers = found.len();
                let is_same = *found == by_layer::cuts(first, layers);
                self.require_fixed(key, is_same, &"other layers that cut activations")?;
                (field, by_layer::pattern(first, layers))
            }
            (Kind::InnerOf(kind), GgufMetadataArray::I32(widths)) => {
                let inner = self.inner_of(key, (kind, self.last_left_out(widths)))?;
                (field, inner)
            }
            (Kind::KvHeads, GgufMetadataArray::I32(heads)) => (field, self.kv_heads(key, heads)?),
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
    pub(super) fn last_left_out<'a, T>(&self, layers: &'a [T]) -> &'a [T] {
        &layers[..layers.len().saturating_sub(self.prediction)]
    }

    /// The width of most feed-forward layers, if `widths` has twice as much for those that use keys
    /// of earlier layers.
    pub(super) fn least_width(&mut self, key: &str, widths: &[i32]) -> Result<Value> {
        let least = widths.iter().copied().min().unwrap_or(0);
        let number = |field: &str| self.fields.get(field).and_then(Value::as_u64).unwrap_or(0);
        let (layers, shared) = (number(LAYERS[0]), number(SHARED));
        let width = |layer: u64| match layer + shared >= layers {
            true => least.checked_mul(2),
            false => Some(least),
        };
        let is_so = widths.len() as u64 == layers
            && (0..)
                .zip(widths)
                .all(|(layer, found)| width(layer) == Some(*found));
        if !is_so {
            let what = "it is not one width, and twice as much in layers without keys";
            return Err(wrong_key(key, what));
        }
        self.set(DOUBLE_WIDE, true.into(), key)?;
        Ok(least.into())
    }

    /// The width of the feed-forward layers, of the `widths` of all layers. Layers that have one
    /// become of `kind`.
    pub(super) fn inner_of(&mut self, key: &str, (kind, widths): (&str, &[i32])) -> Result<Value> {
        let inner = widths.iter().copied().find(|n| *n != 0).unwrap_or(0);
        let kinds = self
            .fields
            .get_mut(LAYER_KINDS)
            .and_then(Value::as_array_mut);
        let kinds = kinds.filter(|kinds| kinds.len() == widths.len());
        let kinds = kinds.ok_or_else(|| wrong_key(key, "it has another number of layers"))?;
        for (found, width) in kinds.iter_mut().zip(widths) {
            match *width {
                0 => {}
                width if width == inner && *found != "attention" => *found = kind.into(),
                _ => {
                    return Err(wrong_key(key, "layers have several parts, or several widths"));
                }
            }
        }
        Ok(inner.into())
    }

    /// The heads of keys and values of layers with a window, of `heads`, the heads of each layer.
    pub(super) fn kv_heads(&mut self, key: &str, heads: &[i32]) -> Result<Value> {
        let kinds = self.fields.get(LAYER_KINDS).and_then(Value::as_array);
        let kinds = kinds.filter(|kinds| kinds.len() == heads.len());
        let kinds = kinds.ok_or_else(|| wrong_key(key, "it has another number of layers"))?;
        let mut found: [Option<i32>; 2] = [None; 2];
        for (kind, heads) in kinds.iter().zip(heads) {
            let of_kind = &mut found[usize::from(kind == FULL_ATTENTION)];
            if *of_kind.get_or_insert(*heads) != *heads {
                return Err(wrong_key(key, "layers of one kind have different numbers"));
            }
        }
        let [windowed, full] = found;
        let full = full.or(windowed).unwrap_or(0);
        self.set(FULL_KV_HEADS, full.into(), key)?;
        Ok(windowed.unwrap_or(full).into())
    }
}

/// The kinds of layers: `kind` where it is so, and `other` elsewhere.
pub(super) fn kinds(layers: impl Iterator<Item = bool>, (kind, other): (&str, &str)) -> Value {
    let name = |is_so| if is_so { kind } else { other };
    layers.map(name).collect()
}
