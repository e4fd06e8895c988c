//! What a class takes for granted: the fields that a config leaves out, and those that other fields
//! say.

use serde_json::Value;

use super::{Fields, LAYER_KINDS, LETTERS, layer_kinds, wrong};
use crate::Result;
use crate::families::engine::dims::{LAYERS, check_layers};
use crate::families::engine::table::ModelClass;

impl Fields {
    /// Adds what `class` takes for granted.
    ///
    /// # Errors
    /// `Parse` if a field that others follow from has another type.
    pub(crate) fn complete(&mut self, class: &ModelClass) -> Result<()> {
        for (key, default) in class.defaults {
            self.0
                .entry((*key).to_owned())
                .or_insert_with(|| default.into());
        }
        if !class.traits.layer_letters.is_empty() {
            self.kinds_by_letter(class)?;
            self.count_kinds();
        }
        check_layers(self)?;
        if let Some(Value::Array(kinds)) = self.0.get_mut(LAYER_KINDS) {
            for kind in kinds {
                let meant = class
                    .traits
                    .kind_names
                    .iter()
                    .find(|(name, _)| kind == name);
                if let Some((_, meant)) = meant {
                    *kind = (*meant).into();
                }
            }
        }
        let has_kinds = self.0.contains_key(LAYER_KINDS);
        if let Some((kind, every)) = class.traits.layer_kinds.filter(|_| !has_kinds) {
            let every = self
                .count(&["full_attention_interval"])?
                .map_or(every, |n| n as usize);
            let kinds = layer_kinds(self.need(LAYERS)? as usize, kind, every);
            self.0.insert(LAYER_KINDS.to_owned(), kinds);
        }
        class
            .traits
            .completes
            .iter()
            .try_for_each(|complete| complete(self))
    }

    /// Sets `layer_types` to what `hybrid_override_pattern` or `layers_block_type` says.
    fn kinds_by_letter(&mut self, class: &ModelClass) -> Result<()> {
        let letters = class.traits.layer_letters;
        let Some(pattern) = self.0.get(LETTERS) else {
            let kinds = self.0.remove("layers_block_type");
            self.0
                .extend(kinds.map(|kinds| (LAYER_KINDS.to_owned(), kinds)));
            return Ok(());
        };
        let kind = |letter: char| letters.iter().find(|(_, known)| *known == letter);
        let text = pattern.as_str().unwrap_or_default().chars();
        let kinds: Option<Value> = text
            .map(|letter| Some(kind(letter)?.0))
            .collect::<Option<Vec<_>>>()
            .map(Value::from);
        let Some(kinds) = kinds else {
            let what = format!("{pattern} has layers that llama.cpp's {} has not", class.gguf);
            return Err(wrong(LETTERS, what));
        };
        self.0.insert(LAYER_KINDS.to_owned(), kinds);
        Ok(())
    }

    /// Sets the number of layers to that of their kinds if the config does not state it, as
    /// transformers 5 writes it.
    fn count_kinds(&mut self) {
        let kinds = self.0.get(LAYER_KINDS).and_then(Value::as_array);
        let Some(layers) = kinds.map(Vec::len) else {
            return;
        };
        if self.get(LAYERS).is_none() {
            self.0.insert(LAYERS[0].to_owned(), layers.into());
        }
    }
}
