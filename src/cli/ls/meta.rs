//! What a model says of itself besides its tensors: metadata of the container, and `config.json`.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::Value;

use super::super::printed::short_value;
use crate::error::printable;
use crate::hooks::config_json;
use crate::{GgufMetadata, ParsedModel, Result};

/// Metadata and config of a model.
#[derive(serde::Serialize)]
pub(super) struct ModelTexts<'m> {
    metadata: ShownMetadata<'m>,
    /// Content of `config.json` in the model's directory, with null for NaN and infinities.
    config: Option<Value>,
}

#[derive(serde::Serialize)]
#[serde(untagged)]
enum ShownMetadata<'m> {
    Texts(BTreeMap<&'m str, &'m str>),
    Gguf(&'m GgufMetadata),
}

impl<'m> ModelTexts<'m> {
    /// # Errors
    /// Those of reading `config.json`.
    pub(super) fn of(model: &'m ParsedModel) -> Result<Self> {
        let texts = model.metadata().iter();
        let metadata = match model.gguf() {
            Some(gguf) => ShownMetadata::Gguf(gguf.metadata()),
            None => ShownMetadata::Texts(texts.map(|(k, v)| (k.as_str(), v.as_str())).collect()),
        };
        Ok(Self { metadata, config: config_json(model)? })
    }

    /// Prints a line for each key, long values cut.
    pub(super) fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "Metadata:")?;
        let mut line = |key: &str, value: &Value| -> Result<()> {
            Ok(writeln!(out, "  {} = {}", printable(key), short_value(value))?)
        };
        match &self.metadata {
            ShownMetadata::Texts(texts) => texts
                .iter()
                .try_for_each(|(key, text)| line(key, &Value::from(*text)))?,
            // One value at a time: a vocabulary is large.
            ShownMetadata::Gguf(metadata) => metadata.iter().try_for_each(|(key, value)| {
                line(key, &serde_json::to_value(&value).unwrap_or_default())
            })?,
        }
        if let Some(config) = &self.config {
            writeln!(out, "config.json:")?;
            let text = format!("{config:#}");
            for line in text.lines() {
                writeln!(out, "  {}", printable(line))?;
            }
        }
        Ok(())
    }
}
