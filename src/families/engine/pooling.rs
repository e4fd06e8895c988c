//! How the states of a text's tokens become one vector: what sentence-transformers has in a file
//! beside the model, and GGUF in a key.
//!
//! Source: `TextModel._try_set_pooling_type` in `conversion/base.py` of llama.cpp.

use serde_json::{Map, Value};

use super::fields::Fields;
use crate::config::Texts;
use crate::{AnamnesisError, Result};

/// Field of a config that has the number of GGUF. Only directories that were GGUF have it:
/// transformers knows no such field.
pub(crate) const POOLING: &str = "pooling_type";

/// The number in GGUF of a classifier whose scores llama.cpp turns into probabilities.
pub(crate) const RANK: u32 = 4;

/// The fields of sentence-transformers with the names that later versions have, and their numbers
/// in GGUF (`LLAMA_POOLING_TYPE_*`), in the order in which llama.cpp's converter looks for them.
const MODES: &[(&str, &str, u64)] = &[
    ("pooling_mode_mean_tokens", "mean", 1),
    ("pooling_mode_cls_token", "cls", 2),
    ("pooling_mode_lasttoken", "lasttoken", 3),
];

/// Sets the field of pooling to what the files of sentence-transformers say. They go before the
/// config. Returns what a user should know of modules that GGUF does not get.
///
/// # Errors
/// `Unsupported` if llama.cpp has no such pooling; `Parse` if a file is missing or malformed.
pub(crate) fn add_to(fields: &mut Fields, texts: &Texts) -> Result<Option<String>> {
    if fields.0.get(POOLING).is_some_and(|number| !number.is_u64()) {
        fields.0.remove(POOLING);
    }
    let modules = modules(texts)?;
    let note = lost_modules(&modules);
    let Some((_, path)) = modules.iter().find(|(kind, _)| kind == "Pooling") else {
        return Ok(note);
    };
    let file = format!("{path}/config.json");
    let Some(Value::Object(pooling)) = texts.json(file.trim_start_matches('/'))? else {
        let what = format!("modules.json: there is no `{file}`");
        return Err(AnamnesisError::parse(what));
    };
    let number = number_of(&pooling).ok_or_else(|| {
        let what = format!("{file}: llama.cpp has no such pooling; it has mean, cls, lasttoken");
        AnamnesisError::unsupported("a whole model", what)
    })?;
    fields.0.insert(POOLING.to_owned(), number.into());
    Ok(note)
}

/// The note of those of `modules`, kind and directory, that GGUF does not get.
fn lost_modules(modules: &[(String, String)]) -> Option<String> {
    let known = ["Transformer", "Pooling", "Normalize"];
    let lost: Vec<_> = modules
        .iter()
        .filter(|(kind, _)| !known.contains(&kind.as_str()))
        .map(|(kind, path)| format!("{path} ({kind})"))
        .collect();
    let what =
        "modules.json: sentence-transformers passes vectors through modules that are left out";
    (!lost.is_empty()).then(|| format!("{what}: {}", lost.join(", ")))
}

/// Kind and directory of each module of sentence-transformers, in their order; none without its
/// file.
fn modules(texts: &Texts) -> Result<Vec<(String, String)>> {
    let modules = texts.json("modules.json")?;
    let text = |module: &Value, field: &str| {
        let text = module.get(field).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let module = |module: &Value| {
        let class = text(module, "type");
        let kind = class.rsplit('.').next().unwrap_or_default();
        (kind.to_owned(), text(module, "path"))
    };
    let all = modules.as_ref().and_then(Value::as_array);
    Ok(all.into_iter().flatten().map(module).collect())
}

/// The number of a pooling; `None` if GGUF has none, or the file asks for several at once.
fn number_of(pooling: &Map<String, Value>) -> Option<u64> {
    let is_on = |field: &str| pooling.get(field).and_then(Value::as_bool) == Some(true);
    let modes = pooling
        .keys()
        .filter(|field| field.starts_with("pooling_mode_"));
    if modes.filter(|field| is_on(field)).count() > 1 {
        return None;
    }
    let name = pooling.get("pooling_mode").and_then(Value::as_str);
    let by_flag = MODES.iter().find(|(field, _, _)| is_on(field));
    let found = by_flag.or_else(|| MODES.iter().find(|(_, mode, _)| name == Some(mode)));
    found.map(|(_, _, number)| *number)
}

/// What a user should know of a directory whose config has the field.
pub(crate) fn note(config: &Map<String, Value>) -> Option<String> {
    let number = config.get(POOLING)?.as_u64()?;
    let mode = MODES.iter().find(|(_, _, n)| *n == number);
    let mode = mode.map_or("none that sentence-transformers has", |(_, mode, _)| mode);
    Some(format!(
        "pooling is {mode}: config.json has it as `{POOLING}`, and no file of sentence-transformers is written"
    ))
}
