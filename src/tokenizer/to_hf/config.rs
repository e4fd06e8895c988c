//! `tokenizer_config.json` and `chat_template.jinja`.

use serde_json::{Map, Value, json};

use super::keys::{GgufTokenizer, malformed};
use super::special::SpecialTokens;
use super::vocabulary::Vocabulary;
use crate::Result;
use crate::model::gguf_keys::CHAT_TEMPLATE;

const TEMPLATE_NAMES: &str = "tokenizer.chat_templates";

/// What `tokenizer_config.json` says of every tokenizer.
pub(super) fn basics(
    vocabulary: &Vocabulary,
    special: &SpecialTokens,
    context_length: Option<u64>,
) -> Map<String, Value> {
    let mut config = Map::new();
    let mut set = |key: &str, value: Value| config.insert(key.to_owned(), value);
    for (name, id) in special.named() {
        set(name, vocabulary.tokens[id as usize].clone().into());
    }
    set("add_bos_token", special.add_bos.into());
    set("add_eos_token", special.add_eos.into());
    // The class that takes `tokenizer.json` as it is. The classes of architectures put a
    // post-processor of their own in its place, in transformers 5 a normalizer and a pre-tokenizer
    // too.
    set("tokenizer_class", "PreTrainedTokenizerFast".into());
    if let Some(length) = context_length {
        set("model_max_length", length.into());
    }
    config
}

/// The files beside `tokenizer.json`, by name: `config` with the chat templates.
///
/// # Errors
/// `Parse` if a chat template is no string, or one that the file names is missing.
pub(super) fn files(
    mut config: Map<String, Value>,
    keys: GgufTokenizer<'_>,
) -> Result<Vec<(&'static str, String)>> {
    let mut set = |key: &str, value: Value| config.insert(key.to_owned(), value);
    let mut files = Vec::new();
    let main = keys.text(CHAT_TEMPLATE)?;
    let named = named_templates(keys)?;
    if named.is_empty() {
        if let Some(main) = main {
            set("chat_template", main.clone().into());
            files.push(("chat_template.jinja", main));
        }
    } else {
        // transformers ignores the list if there is `chat_template.jinja`, so several templates are
        // in the list alone.
        let main = main.map(|main| ("default".to_owned(), main));
        let all = main.into_iter().chain(named);
        let list = all.map(|(name, template)| json!({"name": name, "template": template}));
        set("chat_template", list.collect());
    }
    let mut text = format!("{:#}", Value::Object(config));
    text.push('\n');
    files.insert(0, ("tokenizer_config.json", text));
    Ok(files)
}

/// Chat templates for other uses than chat, with their names.
fn named_templates(keys: GgufTokenizer<'_>) -> Result<Vec<(String, String)>> {
    let names = keys.texts(TEMPLATE_NAMES)?.unwrap_or_default();
    let template = |name: String| {
        let key = format!("{CHAT_TEMPLATE}.{name}");
        match keys.text(&key)? {
            Some(template) => Ok((name, template)),
            None => Err(malformed(TEMPLATE_NAMES, format_args!("there is no `{key}`"))),
        }
    };
    names.into_iter().map(template).collect()
}
