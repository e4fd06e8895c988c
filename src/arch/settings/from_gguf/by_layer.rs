//! Keys that are lists with a value for each layer.

use serde_json::Value;

use super::{ConfigFields, FULL_ATTENTION};
use crate::Result;
use crate::arch::dims::LAYERS;
use crate::arch::fields::LAYER_KINDS;
use crate::arch::layer_sizes::{DOUBLE_WIDE, FULL_KV_HEADS, SHARED};
use crate::arch::settings::wrong_key;

impl ConfigFields {
    /// `layers` without those behind the last one that predict further tokens.
    pub(super) fn last_left_out<'a, T>(&self, layers: &'a [T]) -> &'a [T] {
        &layers[..layers.len().saturating_sub(self.prediction)]
    }

    /// The width of most feed-forward layers, if `widths` has twice as much for those that use keys of earlier layers.
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

    /// The width of the feed-forward layers, of the `widths` of all layers. Layers that have one become of `kind`.
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
                    return Err(wrong_key(
                        key,
                        "layers have several parts, or several widths",
                    ));
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
