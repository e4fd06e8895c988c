//! Chat templates: in tokenizer_config.json, or in files of their own.

use serde_json::{Map, Value};

use super::keys::KeyList;
use crate::config::Texts;
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};
use crate::model::gguf_keys::CHAT_TEMPLATE;
use crate::{AnamnesisError, Result};

/// Directory of templates besides the main one.
const MORE: &str = "additional_chat_templates";

/// Most chat templates of a model. Each becomes a key.
const MAX_TEMPLATES: u64 = 256;

/// A model's chat templates by name; the main one is `default`.
#[derive(Debug, Default)]
pub(super) struct ChatTemplates(Vec<(String, String)>);

impl ChatTemplates {
    /// The templates of `config` (tokenizer_config.json) or else of `chat_template.jinja` with the
    /// directory `additional_chat_templates`, or of `chat_template.json`.
    ///
    /// # Errors
    /// `Parse` if a template is no text.
    pub(super) fn read(texts: &Texts, config: &Map<String, Value>) -> Result<Self> {
        match config.get("chat_template") {
            // The key counts even if its value is null.
            Some(value) => Self::of(value, "tokenizer_config.json"),
            None => Self::of_files(texts),
        }
    }

    fn of_files(texts: &Texts) -> Result<Self> {
        let Some(main) = texts.text("chat_template.jinja")? else {
            let json = texts.json("chat_template.json")?;
            let value = json.as_ref().and_then(|json| json.get("chat_template"));
            return value
                .map_or(Ok(Self::default()), |value| Self::of(value, "chat_template.json"));
        };
        let mut all = vec![("default".to_owned(), main)];
        for file in texts.list(MORE, ".jinja")? {
            if let Some(text) = texts.text(&format!("{MORE}/{file}"))? {
                all.push((file.trim_end_matches(".jinja").to_owned(), text));
            }
        }
        Ok(Self(all))
    }

    /// The templates of a value: a text, or a list of names with texts.
    fn of(value: &Value, file: &str) -> Result<Self> {
        let list = match value {
            Value::String(text) => return Ok(Self(vec![("default".to_owned(), text.clone())])),
            Value::Array(list) => list,
            _ => return Ok(Self::default()),
        };
        let what = format!("chat templates in {file}");
        crate::limits::cap("MAX_TEMPLATES", list.len() as u64, MAX_TEMPLATES, what)?;
        let mut all = Vec::with_capacity(list.len());
        for (i, entry) in list.iter().enumerate() {
            let name = entry
                .get("name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            match entry.get("template") {
                None | Some(Value::Null) => {}
                Some(Value::String(text)) => all.push((name.to_owned(), text.clone())),
                Some(_) => {
                    return Err(AnamnesisError::parse(format!(
                        "{file}: `chat_template[{i}].template` is no text"
                    )));
                }
            }
        }
        Ok(Self(all))
    }

    /// Sets `tokenizer.chat_template`, and a key for each template besides.
    pub(super) fn write(self, keys: &mut KeyList) {
        let (mut names, mut main): (Vec<String>, _) = (Vec::new(), None);
        for (name, text) in self.0 {
            // Characters of names as gguf-py's writer replaces them.
            let name: String = name
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
                .collect();
            if name == "default" {
                main = Some(text);
            } else if !name.is_empty() {
                let key = format!("tokenizer.chat_template.{name}");
                keys.set(key, GgufMetadataValue::String(text));
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        if !names.is_empty() {
            let names = GgufMetadataArray::String(names);
            let value = GgufMetadataValue::Array(Box::new(names));
            keys.set("tokenizer.chat_templates".to_owned(), value);
        }
        if let Some(text) = main {
            keys.set(CHAT_TEMPLATE.to_owned(), GgufMetadataValue::String(text));
        }
    }
}
