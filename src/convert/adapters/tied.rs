//! Weights that the base's config ties: programs load one of them for both.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::merge::WeightChange;
use crate::config::Texts;
use crate::convert::whole::WholeModel;
use crate::{AnamnesisError, ParsedModel, Result};

/// Name of a model's config.
const CONFIG: &str = "config.json";

/// Ends of the names of embeddings that models tie to their head.
const EMBEDDINGS: &[&str] = &[
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "shared.weight",
    "backbone.embeddings.weight",
];

/// Ends of the names of heads.
const HEADS: &[&str] = &["lm_head.weight", "embed_out.weight"];

/// Ends of the names of classes that have a head. Their configs may leave out that it is tied.
const CLASSES_WITH_HEAD: &[&str] = &["ForCausalLM", "ForConditionalGeneration", "LMHeadModel"];

/// Settings of a model's text part, which may say by themselves whether its weights are tied.
const TEXT_CONFIGS: [&str; 3] = ["text_config", "llm_config", "language_config"];

/// What a config says of the embedding and the head.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Tie {
    Stated(bool),
    /// Nothing, for a class that has a head.
    Default,
    /// Nothing.
    Unknown,
}

/// Checks the weights in `changes` that the config of `model` ties to others. Returns a note if the
/// head changes with the embedding, as it does in PEFT.
///
/// # Errors
/// `Unsupported`: both weights are stored, and only one may be loaded; or the head is the
/// embedding, which an adapter replaces by a copy that was trained: the head stayed as it was.
pub(super) fn check(
    (model, whole): (&ParsedModel, Option<&WholeModel>),
    names: &HashMap<String, usize>,
    changes: &BTreeMap<usize, WeightChange>,
) -> Result<Option<String>> {
    let of = |endings: &[&str]| {
        let is_it = |name: &str| endings.iter().any(|ending| ends_with(name, ending));
        let mut found: Vec<_> = names.iter().filter(|(name, _)| is_it(name)).collect();
        found.sort_unstable();
        found
    };
    let (embeddings, heads) = (of(EMBEDDINGS), of(HEADS));
    let changed = |of: &[(&String, &usize)]| {
        let found = of
            .iter()
            .find_map(|(name, at)| Some(((*name).clone(), changes.get(*at)?)));
        found.map(|(name, change)| (name, change.is_copied))
    };
    let (embedding, head) = (changed(&embeddings), changed(&heads));
    let Some((name, is_copied)) = embedding.clone().or_else(|| head.clone()) else {
        return Ok(None);
    };
    let tie = read_tie(model, whole)?;
    if !heads.is_empty() {
        // Where the config says nothing, programs load what is stored.
        if tie == Tie::Stated(true) && !embeddings.is_empty() {
            let what = format!(
                "tensor `{name}`: config.json ties it to another that the model has as well (`tie_word_embeddings`); leave one out first, with --drop of remember"
            );
            return Err(AnamnesisError::unsupported("an adapter", what));
        }
        return Ok(None);
    }
    match tie {
        Tie::Stated(true) | Tie::Default if is_copied => {
            let what = format!(
                "tensor `{name}`: the adapter replaces it (`modules_to_save`), and the model's head is the same tensor, which stayed as it was in training; store the head by itself first, as `lm_head.weight`, with `tie_word_embeddings` false in config.json"
            );
            Err(AnamnesisError::unsupported("an adapter", what))
        }
        Tie::Stated(true) | Tie::Default => Ok(Some(format!(
            "tensor `{name}` is the model's head, too, which changes with it, as when PEFT merges; in training the head does not see a LoRA of the embedding"
        ))),
        Tie::Stated(false) | Tie::Unknown => Ok(None),
    }
}

/// Whether `name` is `ending`, or that below a module.
fn ends_with(name: &str, ending: &str) -> bool {
    let rest = name.strip_suffix(ending);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// What the config of the output says, which a model in GGUF gets, or the one beside `model`.
fn read_tie(model: &ParsedModel, whole: Option<&WholeModel>) -> Result<Tie> {
    let mut files = whole.into_iter().flat_map(WholeModel::files);
    if let Some((_, text)) = files.find(|(name, _)| name == CONFIG) {
        let config = serde_json::from_str(text).ok();
        return Ok(config.as_ref().map_or(Tie::Unknown, tie_of));
    }
    let Some(directory) = model.model_directory() else {
        return Ok(Tie::Unknown);
    };
    let config = Texts::new(&directory, &model.limits).json(CONFIG)?;
    Ok(config.as_ref().map_or(Tie::Unknown, tie_of))
}

fn tie_of(config: &Value) -> Tie {
    let nested = TEXT_CONFIGS.iter().filter_map(|key| config.get(key));
    let stated: Vec<bool> = std::iter::once(config)
        .chain(nested)
        .filter_map(|config| config.get("tie_word_embeddings")?.as_bool())
        .collect();
    if !stated.is_empty() {
        // Of a nested config and the one around it, transformers goes by one or the other, by its
        // version.
        return Tie::Stated(stated.contains(&true));
    }
    let classes = config.get("architectures").and_then(Value::as_array);
    let mut classes = classes.into_iter().flatten().filter_map(Value::as_str);
    let has_head = |class: &str| CLASSES_WITH_HEAD.iter().any(|end| class.ends_with(end));
    match classes.any(has_head) {
        true => Tie::Default,
        false => Tie::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_configs_say() {
        for (config, expected) in [
            (json!({"tie_word_embeddings": true}), Tie::Stated(true)),
            (
                json!({"tie_word_embeddings": false, "architectures": ["LlamaForCausalLM"]}),
                Tie::Stated(false),
            ),
            (
                json!({"text_config": {"tie_word_embeddings": true}}),
                Tie::Stated(true),
            ),
            (json!({"architectures": ["GemmaForCausalLM"]}), Tie::Default),
            (json!({"architectures": ["GPT2LMHeadModel"]}), Tie::Default),
            (json!({"architectures": ["BertModel"]}), Tie::Unknown),
            (json!({}), Tie::Unknown),
        ] {
            assert_eq!(tie_of(&config), expected, "{config}");
        }
    }
}
