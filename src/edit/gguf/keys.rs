//! [`EditedKeys`]: the keys of a GGUF file, of which some are changed.

use super::super::{KeyChange, KeyValue, wrong_key};
use crate::model::gguf::{GgufMetadata, GgufMetadataValue, write_entry};
use crate::model::gguf_keys::TOKENS;
use crate::parse::gguf::{GgufEdit, ResolvedEdits, resolve_edits};
use crate::{AnamnesisError, Result};

/// Longest key that is read back, in bytes.
const LONGEST_KEY: usize = 65_535;

/// Keys of special tokens have a token's number; the text of the token says it, too.
const TOKEN_ID: (&str, &str) = ("tokenizer.ggml.", "_token_id");

/// The keys of a file in their order, as edits make them.
pub(super) struct EditedKeys<'a> {
    pub source: &'a GgufMetadata,
    entries: Vec<EditedKey>,
}

struct EditedKey {
    key: String,
    /// The key in the file; `None` if it is new.
    stored: Option<String>,
    /// Another value than the stored one.
    value: Option<GgufMetadataValue>,
}

impl<'a> EditedKeys<'a> {
    pub(super) fn new(source: &'a GgufMetadata) -> Self {
        let stored = |key: &str| EditedKey {
            key: key.to_owned(),
            stored: Some(key.to_owned()),
            value: None,
        };
        Self { source, entries: source.keys().map(stored).collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn position(&self, key: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.key == key)
    }

    /// The value of `key` with all edits so far.
    pub(super) fn get(&self, key: &str) -> Option<GgufMetadataValue> {
        self.value(self.entries.get(self.position(key)?)?)
    }

    fn value(&self, entry: &EditedKey) -> Option<GgufMetadataValue> {
        match &entry.value {
            Some(value) => Some(value.clone()),
            None => self.source.get(entry.stored.as_ref()?),
        }
    }

    /// All keys with their values, which are decoded one by one.
    #[cfg_attr(not(feature = "models"), allow(dead_code))]
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, GgufMetadataValue)> {
        self.entries
            .iter()
            .filter_map(|entry| Some((entry.key.as_str(), self.value(entry)?)))
    }

    /// # Errors
    /// `Usage` if the key is not there.
    pub(super) fn remove(&mut self, key: &str) -> Result<()> {
        let missing = || wrong_key(key, "it cannot be removed: there is no such key");
        let at = self.position(key).ok_or_else(missing)?;
        self.entries.remove(at);
        Ok(())
    }

    /// # Errors
    /// `Usage` if the key is not there, or another has its new name.
    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        require_key(to)?;
        if self.position(to).is_some() {
            return Err(wrong_key(
                from,
                format!("`{to}` is there already; --unset {to} removes it"),
            ));
        }
        let missing = || wrong_key(from, "it cannot be renamed: there is no such key");
        let at = self.position(from).ok_or_else(missing)?;
        to.clone_into(&mut self.entries[at].key);
        Ok(())
    }

    /// # Errors
    /// `Usage` if a value does not fit its key.
    pub(super) fn set(&mut self, edits: &[GgufEdit]) -> Result<()> {
        let edits = edits
            .iter()
            .map(|edit| self.with_token(edit))
            .collect::<Result<Vec<_>>>()?;
        let ResolvedEdits { set, removed } = resolve_edits(&edits, &|key| self.get(key))?;
        removed.iter().try_for_each(|key| self.remove(key))?;
        for (key, value) in set {
            require_key(&key)?;
            match self.position(&key) {
                None => self
                    .entries
                    .push(EditedKey { key, stored: None, value: Some(value) }),
                // A value that is there already keeps its bytes.
                Some(_) if self.get(&key).as_ref() == Some(&value) => {}
                Some(at) => self.entries[at].value = Some(value),
            }
        }
        Ok(())
    }

    /// `edit` with the number of a token in place of its text.
    fn with_token(&self, edit: &GgufEdit) -> Result<GgufEdit> {
        let is_id = edit.key().starts_with(TOKEN_ID.0) && edit.key().ends_with(TOKEN_ID.1);
        let text = edit
            .as_text()
            .filter(|text| is_id && text.parse::<i64>().is_err());
        let tokens = text.and_then(|_| self.get(TOKENS));
        let Some((text, tokens)) = text.zip(tokens) else {
            return Ok(edit.clone());
        };
        let tokens = tokens.as_array().and_then(|array| array.as_string_slice());
        let mut found = tokens.into_iter().flatten().enumerate();
        let mut found = found
            .by_ref()
            .filter(|(_, token)| *token == text)
            .map(|(id, _)| id);
        match (found.next(), found.next()) {
            (Some(id), None) => Ok(GgufEdit::text(edit.key(), id.to_string())),
            (Some(one), Some(other)) => {
                let what = format!("`{text}` is token {one} and token {other}; give the number");
                Err(wrong_key(edit.key(), what))
            }
            (None, _) => Err(wrong_key(edit.key(), format!("`{text}` is no token of the model"))),
        }
    }

    /// Appends all keys with their values to `out`, as the file stores them.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let encoding = self.source.encoding();
        for entry in &self.entries {
            match (&entry.value, &entry.stored) {
                (Some(value), _) => write_entry(&entry.key, value, encoding, out),
                (None, stored) => {
                    let stored = stored.as_ref().and_then(|key| self.source.stored(key));
                    let (kind, bytes) = stored.unwrap_or_default();
                    encoding.write_str(&entry.key, out);
                    encoding.write_type(kind, out);
                    out.extend_from_slice(bytes);
                }
            }
        }
    }

    /// What is another now, removed keys first.
    pub(super) fn changes(&self) -> Vec<KeyChange> {
        let kept: std::collections::HashSet<&str> = self
            .entries
            .iter()
            .filter_map(|entry| entry.stored.as_deref())
            .collect();
        let removed = self
            .source
            .keys()
            .filter(|key| !kept.contains(key))
            .map(|key| KeyChange {
                key: key.to_owned(),
                renamed_from: None,
                before: self.source.get(key).map(|value| shown(&value)),
                after: None,
            });
        let is_changed =
            |entry: &&EditedKey| entry.value.is_some() || entry.stored.as_ref() != Some(&entry.key);
        let changed = self.entries.iter().filter(is_changed).map(|entry| {
            let before = entry.stored.as_ref().and_then(|key| self.source.get(key));
            KeyChange {
                key: entry.key.clone(),
                renamed_from: entry.stored.clone().filter(|stored| *stored != entry.key),
                before: before.map(|value| shown(&value)),
                after: self.value(entry).map(|value| shown(&value)),
            }
        });
        removed.chain(changed).collect()
    }
}

/// # Errors
/// `Usage` if readers would not take `key`.
fn require_key(key: &str) -> Result<()> {
    match key.len() {
        1..=LONGEST_KEY => Ok(()),
        n => Err(AnamnesisError::usage(format!(
            "a metadata key of {n} bytes: 1 to {LONGEST_KEY} are written"
        ))),
    }
}

/// Name of a value's type, as the caller writes it.
fn type_of(value: &GgufMetadataValue) -> String {
    match value.as_array() {
        Some(array) => format!("[{}]", array.item_name()),
        None => value.type_name().to_owned(),
    }
}

fn shown(value: &GgufMetadataValue) -> KeyValue {
    KeyValue { kind: type_of(value), value: serde_json::to_value(value).unwrap_or_default() }
}
