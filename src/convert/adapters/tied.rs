//! Weights that the base's config ties: programs load one of them for both.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::change::WeightChange;
use super::heads::{is_embedding, is_head};
use super::sorted::SortedTensors;
use super::tensor::are_same;
use super::{Adapter, Base, tokens};
use crate::config::Texts;
use crate::error::InTensor;
use crate::model::Tensor;
use crate::remember::seam::wrong;
use crate::remember::{Decode, Group, ResolvedItem, have_same_values};
use crate::{AnamnesisError, Result};

/// Name of a model's config.
const CONFIG: &str = "config.json";

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

/// The embedding and the head of a base.
#[derive(Default)]
pub(super) struct TiedHead {
    /// Number of the embedding that is the head, too, which has no tensor of its own.
    pub embedding: Option<usize>,
    /// Whether the head gets a tensor of its own, which an adapter was trained with.
    pub is_untied: bool,
    /// Whether config.json ties two weights that are both stored, and differ.
    contradicts: bool,
    pub notes: Vec<String>,
}

impl TiedHead {
    /// Finds the head of `base` in `items`. One that is stored although the config ties it is
    /// removed if it is the embedding once more, and one is made if an adapter needs it: of each
    /// adapter, `adapters` has the tensors.
    ///
    /// # Errors
    /// `Unsupported` if an adapter has two tensors for one, or only one of several adapters needs a
    /// head of its own; the errors of reading.
    pub(super) fn new<'m>(
        base: &Base<'_>,
        items: &mut Vec<ResolvedItem<'m>>,
        adapters: &[(&Adapter, &SortedTensors)],
    ) -> Result<Self> {
        let find = |items: &[ResolvedItem<'_>], is_it: fn(&str) -> bool| -> Vec<usize> {
            let all = items.iter().enumerate();
            let found = all.filter(|(_, item)| is_it(item.name()));
            found.map(|(at, _)| at).collect()
        };
        let (embeddings, heads) = (find(items, is_embedding), find(items, is_head));
        let mut tied = Self::default();
        let &[embedding] = &*embeddings else {
            tied.contradicts = !(embeddings.is_empty() || heads.is_empty())
                && read_tie(base)? == Tie::Stated(true);
            return Ok(tied);
        };
        let tie = read_tie(base)?;
        match (&*heads, tie) {
            ([], Tie::Stated(true) | Tie::Default) => {}
            (&[head], Tie::Stated(true)) if have_same_values(&items[embedding], &items[head])? => {
                let removed = items.remove(head);
                tied.notes.push(format!(
                    "{} is `{}` once more, to which config.json ties it, and was left out",
                    InTensor(&removed.name()),
                    items[embedding - usize::from(head < embedding)].name()
                ));
            }
            // Where the config says nothing, programs load what is stored.
            _ => {
                tied.contradicts = !heads.is_empty() && tie == Tie::Stated(true);
                return Ok(tied);
            }
        }
        let (&[embedding], name) =
            (&*find(items, is_embedding), items[embedding].name().to_owned())
        else {
            return Ok(tied);
        };
        tied.embedding = Some(embedding);
        for &(adapter, sorted) in adapters {
            let own =
                own_head(adapter, sorted, &name).map_err(|e| e.about(adapter.path().display()))?;
            let Some(head) = own else {
                continue;
            };
            if adapters.len() > 1 {
                let what = format!(
                    "{}: one of them was trained with a head of its own (`{head}`), and the model's head is the embedding; merge it first",
                    InTensor(&name)
                );
                return Err(AnamnesisError::unsupported("several adapters", what));
            }
            add_head(items, embedding, head.to_owned())?;
            (tied.embedding, tied.is_untied) = (None, true);
            tied.notes.push(format!(
                "the head `{head}` is a tensor of its own, as the adapter was trained: config.json gets `tie_word_embeddings` false"
            ));
        }
        Ok(tied)
    }

    /// Checks the weights in `changes` that the config ties to others. Returns a note if the head
    /// changes with the embedding, as it does in PEFT, although it did not in training.
    ///
    /// # Errors
    /// `Unsupported`: both weights are stored, and only one may be loaded.
    pub(super) fn check(
        &self,
        items: &[ResolvedItem<'_>],
        changes: &BTreeMap<usize, WeightChange>,
    ) -> Result<Option<String>> {
        if self.contradicts {
            let mut changed = changes.keys().map(|&at| items[at].name());
            if let Some(name) = changed.find(|name| is_embedding(name) || is_head(name)) {
                let what = format!(
                    "{}: config.json ties it to another that the model has as well (`tie_word_embeddings`); leave one out first, with --drop of remember",
                    InTensor(&name)
                );
                return Err(AnamnesisError::unsupported("an adapter", what));
            }
        }
        let Some(at) = self.embedding else {
            return Ok(None);
        };
        let (Some(change), name) = (changes.get(&at), items[at].name()) else {
            return Ok(None);
        };
        let note = match change.products.len() {
            0 => return Ok(None),
            1 => {
                "which changes with it, as when PEFT merges; in training only one of the two had the LoRA"
            }
            _ => {
                "and several products are added to it, as when PEFT merges: the model computes otherwise than in training, where the embedding and the head had one each"
            }
        };
        Ok(Some(format!("{} is both the model's embedding and its head, {note}", InTensor(&name))))
    }
}

/// The name of the head that `adapter`, whose tensors are `sorted`, was trained with, and that is
/// no longer the embedding `embedding`; `None`: they are one.
///
/// # Errors
/// `Unsupported` if it replaces the embedding by a copy that was trained, and the head stayed as it
/// was; `Parse` if it has two different tensors for both, though they are one; the errors of
/// reading.
fn own_head<'a>(
    adapter: &Adapter,
    sorted: &'a SortedTensors,
    embedding: &str,
) -> Result<Option<&'a str>> {
    let Some(config) = adapter.peft() else {
        return Ok(None);
    };
    let mut heads = sorted.replacements.iter();
    let Some((head, &of_head)) = heads.find(|(name, _)| is_head(name)) else {
        let is_alone = sorted.replacements.contains_key(embedding)
            && config.is_copied(embedding)
            && !config.has_tied_head;
        if is_alone {
            let what = format!(
                "{}: the adapter replaces it (`modules_to_save`), and the model's head is the same tensor, which stayed as it was in training; store the head by itself first, as `lm_head.weight`, with `tie_word_embeddings` false in config.json",
                InTensor(&embedding)
            );
            return Err(AnamnesisError::unsupported("an adapter", what));
        }
        return Ok(None);
    };
    let is_apart = !config.has_tied_head && (config.is_copied(embedding) || config.is_copied(head));
    let tensor = |index| Tensor { model: &adapter.files.tensors, index };
    let Some(&of_embedding) = sorted.replacements.get(embedding) else {
        return Ok(is_apart.then_some(head));
    };
    let (of_embedding, of_head) = (tensor(of_embedding), tensor(of_head));
    if are_same(&of_embedding, &of_head)? {
        return Ok(None);
    }
    if is_apart {
        return Ok(Some(head));
    }
    let what = format!(
        "`{}` has other values, and the model's head is its embedding",
        of_embedding.name()
    );
    Err(wrong(&of_head, what))
}

/// Puts a copy of item `embedding` behind it, under the name `head`.
///
/// # Errors
/// `Unsupported` if its stored tensors hold more than the embedding.
fn add_head<'m>(items: &mut Vec<ResolvedItem<'m>>, embedding: usize, head: String) -> Result<()> {
    let (first, mut second) = match items.remove(embedding) {
        ResolvedItem::Plain(t) => (ResolvedItem::Plain(t.clone()), ResolvedItem::Plain(t)),
        ResolvedItem::Group(group) => {
            let (&[rows, cols], None, None) = (&*group.shape, &group.rest, &group.module) else {
                let what = format!(
                    "{}: the adapter was trained with a head of its own, and the embedding that is the head is stored with others; decode it first",
                    InTensor(&group.name)
                );
                return Err(AnamnesisError::unsupported("an adapter", what));
            };
            let decoder: Arc<dyn Decode + 'm> = Arc::from(group.decoder);
            let half = |decoder: &Arc<dyn Decode + 'm>| Group {
                name: group.name.clone(),
                shape: group.shape.clone(),
                scheme: group.scheme,
                parts: group.parts.clone(),
                rest: None,
                module: None,
                decoder: tokens::rows_of(decoder.clone(), [rows, cols]),
                keeps: group.keeps,
                is_copied: group.is_copied,
                is_merged: group.is_merged,
                is_rotated: group.is_rotated,
                encoded_as: group.encoded_as,
            };
            (half(&decoder).into(), half(&decoder).into())
        }
    };
    second.rename(head);
    items.splice(embedding..embedding, [first, second]);
    Ok(())
}

/// What the config of the output says, which a model in GGUF gets, or the one beside the model.
fn read_tie(base: &Base<'_>) -> Result<Tie> {
    if let Some(text) = base.made_config {
        let config = serde_json::from_str(text).ok();
        return Ok(config.as_ref().map_or(Tie::Unknown, tie_by_class));
    }
    let model = base.model;
    let Some(directory) = model.model_directory() else {
        return Ok(Tie::Unknown);
    };
    let config = Texts::following(&directory, &model.limits).json(CONFIG)?;
    Ok(config.as_ref().map_or(Tie::Unknown, tie_by_class))
}

/// What `config` says, or its class where it is silent.
fn tie_by_class(config: &Value) -> Tie {
    match tie_of(config) {
        #[cfg(feature = "models")]
        Tie::Default if crate::families::is_tied(config) => Tie::Stated(true),
        tie => tie,
    }
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
            (json!({"text_config": {"tie_word_embeddings": true}}), Tie::Stated(true)),
            (json!({"architectures": ["GemmaForCausalLM"]}), Tie::Default),
            (json!({"architectures": ["GPT2LMHeadModel"]}), Tie::Default),
            (json!({"architectures": ["BertModel"]}), Tie::Unknown),
            (json!({}), Tie::Unknown),
        ] {
            assert_eq!(tie_of(&config), expected, "{config}");
        }
    }
}
