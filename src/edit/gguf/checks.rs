//! What is refused of edits of a GGUF file, and what the user should know of others.

use super::super::{EditOptions, KeyChange, wrong_key};
use super::keys::EditedKeys;
use crate::model::gguf::DEFAULT_ALIGNMENT;
use crate::model::gguf_key_types::known_type;
use crate::model::gguf_keys::{ALIGNMENT, ARCHITECTURE, CHAT_TEMPLATE, TOKENS, is_split_key};
use crate::parse::gguf::header::GgufHeader;
use crate::{AnamnesisError, Result};

/// Checks the `changes` of `keys`, of a model in `parts` files, and returns notes on them.
///
/// # Errors
/// `Usage` if the file could not be read any more, or without `force` not be loaded.
pub(super) fn check(
    header: &GgufHeader,
    keys: &EditedKeys<'_>,
    changes: &[KeyChange],
    (options, parts): (&EditOptions, u64),
) -> Result<Vec<String>> {
    let names = || {
        let all = changes
            .iter()
            .flat_map(|c| [Some(&c.key), c.renamed_from.as_ref()]);
        all.flatten().map(String::as_str)
    };
    if let Some(key) = names().find(|key| is_split_key(key)) {
        let what = "it says which file of a model this is; `amn convert FILE -o OUT.gguf` makes one file of all, and --max-shard-size several";
        return Err(wrong_key(key, what));
    }
    if names().any(|key| key == ALIGNMENT) {
        require_alignment(header, keys)?;
    }
    if !options.force {
        require_token_ids(keys, changes)?;
        require_loading(header, keys, changes, parts)?;
    }
    let mut notes: Vec<String> = changes.iter().filter_map(note_on_type).collect();
    if options.chat_template.is_some() {
        let others = keys.source.keys().filter(|key| {
            key.strip_prefix(CHAT_TEMPLATE)
                .is_some_and(|rest| rest.starts_with('.'))
        });
        let others: Vec<String> = others.map(|key| format!("`{key}`")).collect();
        if !others.is_empty() {
            notes.push(format!("other templates stay: {}; --unset removes one", others.join(", ")));
        }
    }
    Ok(notes)
}

/// Checks that the tensors lie where readers look for them.
fn require_alignment(header: &GgufHeader, keys: &EditedKeys<'_>) -> Result<()> {
    let alignment = match keys.get(ALIGNMENT) {
        Some(value) => value.as_u32(),
        None => Some(DEFAULT_ALIGNMENT),
    };
    if alignment == Some(header.alignment) {
        return Ok(());
    }
    let what = format!(
        "the tensors lie at multiples of {}; `amn convert FILE --to gguf --gguf-kv {ALIGNMENT}=N -o OUT` moves them",
        header.alignment
    );
    Err(wrong_key(ALIGNMENT, what))
}

/// Checks that the numbers of special tokens are those of tokens.
fn require_token_ids(keys: &EditedKeys<'_>, changes: &[KeyChange]) -> Result<()> {
    let tokens = keys.get(TOKENS);
    let Some(count) = tokens
        .as_ref()
        .and_then(|tokens| tokens.as_array())
        .map(|t| t.len())
    else {
        return Ok(());
    };
    for change in changes
        .iter()
        .filter(|change| change.key.starts_with("tokenizer.ggml."))
    {
        let id = change.after.as_ref().and_then(|after| after.value.as_u64());
        // The number that stands for no token.
        let id = id.filter(|&id| change.key.ends_with("_token_id") && id != u64::from(u32::MAX));
        if let Some(id) = id.filter(|&id| id >= count as u64) {
            let what =
                format!("there is no token {id} among {count}; --force writes it all the same");
            return Err(wrong_key(&change.key, what));
        }
    }
    Ok(())
}

/// Checks that llama.cpp still loads the file, if it did before.
fn require_loading(
    header: &GgufHeader,
    keys: &EditedKeys<'_>,
    changes: &[KeyChange],
    parts: u64,
) -> Result<()> {
    if keys.source.get(ARCHITECTURE).is_some() && keys.get(ARCHITECTURE).is_none() {
        let what =
            "programs that run models load no file without it; --force removes it all the same";
        return Err(wrong_key(ARCHITECTURE, what));
    }
    // The other files have tensors, too.
    if parts > 1 || changes.is_empty() {
        return Ok(());
    }
    let Some(problem) = new_problem(header, keys) else {
        return Ok(());
    };
    let named: Vec<String> = changes
        .iter()
        .take(3)
        .map(|c| format!("`{}`", c.key))
        .collect();
    let what = format!(
        "metadata {}: llama.cpp would not load the file: {problem}; --force writes it all the same",
        named.join(", ")
    );
    Err(AnamnesisError::usage(what))
}

/// Why llama.cpp would not load the file with `keys`; `None` if it would, or does not before either.
#[cfg(feature = "models")]
fn new_problem(header: &GgufHeader, keys: &EditedKeys<'_>) -> Option<String> {
    use crate::families::{GraphProblem, is_whole_model, problems};

    let tensors = || {
        header
            .tensors
            .iter()
            .map(|t| (t.name.as_str(), t.shape.as_slice()))
    };
    let of = |value: Option<crate::GgufMetadataValue>| Some(value?.as_string()?.to_owned());
    let before = of(keys.source.get(ARCHITECTURE)).unwrap_or_default();
    let after = of(keys.get(ARCHITECTURE))?;
    if !is_whole_model(keys.source.iter(), tensors().map(|(name, _)| name)) {
        return None;
    }
    let found: Vec<GraphProblem> = problems(&after, keys.iter(), tensors());
    let first = found.first()?;
    let is_new = before != after || problems(&before, keys.source.iter(), tensors()).is_empty();
    is_new.then(|| first.to_string())
}

/// Always `None`: the tables of what llama.cpp loads come with the feature `models`.
#[cfg(not(feature = "models"))]
fn new_problem(_header: &GgufHeader, _keys: &EditedKeys<'_>) -> Option<String> {
    None
}

/// Checks a name of a pre-tokenizer.
///
/// # Errors
/// `Usage` if llama.cpp has no such name.
pub(super) fn require_pre_tokenizer(name: &str) -> Result<()> {
    #[cfg(feature = "models")]
    return crate::tokenizer::pre::require(name).map(drop);
    #[cfg(not(feature = "models"))]
    match name.is_empty() {
        true => Err(AnamnesisError::usage("--tokenizer-pre: the name is empty")),
        false => Ok(()),
    }
}

/// The note that a value has another type than before, or than llama.cpp reads.
fn note_on_type(change: &KeyChange) -> Option<String> {
    let (key, after) = (&change.key, change.after.as_ref()?);
    let item = after
        .kind
        .strip_prefix('[')
        .and_then(|kind| kind.strip_suffix(']'));
    if let Some(known) = known_type(key) {
        let (expected, is_known) = match item {
            Some(item) => (known.items, known.items == Some(item)),
            None => (known.scalar, known.scalar == Some(&*after.kind)),
        };
        let expected = expected
            .or(known.scalar)
            .or(known.items)
            .unwrap_or_default();
        if !is_known {
            return Some(format!(
                "llama.cpp reads `{key}` as {expected}, and it is {} now",
                after.kind
            ));
        }
    }
    let before = change
        .before
        .as_ref()
        .filter(|before| before.kind != after.kind)?;
    Some(format!("`{key}` was {} and is {} now", before.kind, after.kind))
}
