//! Which tensors are encoded, and why the others are not.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Forget, Method, Scope, Weight};
use crate::convert::Selection;
use crate::scheme::Item;
use crate::{Dtype, ParsedModel, Result, TargetDtype};

/// A tensor that could be encoded.
pub(crate) struct Subject<'a> {
    pub weight: Weight<'a>,
    /// Type of its codes, or of itself if it is not quantized.
    pub stored: Dtype,
    /// Whether it is quantized.
    pub is_group: bool,
}

/// What becomes of a tensor.
pub(crate) enum Choice {
    Encode(Arc<dyn Method>),
    /// It stays as it is, for this reason.
    Keep(String),
}

/// Settles what becomes of each of a model's tensors.
pub(crate) fn choose(model: &ParsedModel, subjects: &[Subject<'_>], forget: &Forget) -> Result<Vec<Choice>> {
    let wanted = Selection::new(&forget.include, &forget.exclude)?;
    let like = forget.like.as_deref().map(names_of_quantized).transpose()?;
    let method = forget.scheme.method()?;
    let choice = |subject: &Subject<'_>| {
        let name = subject.weight.name;
        let objection = match &like {
            _ if !wanted.has(name) => Some("not among the tensors that were asked for".to_owned()),
            Some(like) if !like.contains(name) => {
                Some("not quantized in the model that this one is to be like".to_owned())
            }
            // Whoever names tensors wants them, whatever they are.
            _ if like.is_some() || !forget.include.is_empty() => None,
            _ => by_name(name, method.scope()),
        };
        match objection.or_else(|| by_type(subject)).or_else(|| method.objection(&subject.weight)) {
            Some(reason) => Choice::Keep(reason),
            None => Choice::Encode(method.clone()),
        }
    };
    let _ = model;
    Ok(subjects.iter().map(choice).collect())
}

/// Names of the tensors that are quantized in the model at `path`.
fn names_of_quantized(path: &std::path::Path) -> Result<HashSet<String>> {
    let model = crate::parse(path)?;
    let resolution = model.resolve();
    let quantized = |item: &Item<'_>| matches!(item, Item::Group(_)).then(|| item.name().to_owned());
    Ok(resolution.items.iter().filter_map(quantized).collect())
}

/// Why a tensor has no values that could be encoded.
fn by_type(subject: &Subject<'_>) -> Option<String> {
    let is_float = subject.is_group || TargetDtype::of(subject.stored).is_some();
    match subject.weight.shape.iter().product::<usize>() {
        0 => Some("it is empty".to_owned()),
        _ if !is_float => Some(format!("{} is not encoded", subject.stored)),
        _ => None,
    }
}

/// Parts of module names that are not quantized as a rule, and what they are.
const SENSITIVE: &[(&str, &str)] = &[
    ("norm", "a norm"),
    ("ln_", "a norm"),
    ("layernorm", "a norm"),
    ("router", "the router of experts"),
    ("shared_expert_gate", "the router of experts"),
    ("gate", "the router of experts"),
    ("conv", "a convolution"),
    ("conv1d", "a convolution"),
    ("patch_embed", "an embedding"),
    ("pos_embed", "an embedding"),
    ("position_embedding", "an embedding"),
    ("rotary_emb", "an embedding"),
    ("relative_attention_bias", "an embedding"),
];

/// Embeddings of tokens.
const EMBEDDINGS: &[&str] = &[
    "embed_tokens",
    "tok_embeddings",
    "word_embeddings",
    "wte",
    "wpe",
    "embedding",
    "embeddings",
    "embed",
    "embed_in",
    "shared",
    "token_embd",
];

/// Last layers, which make logits.
const HEADS: &[&str] = &["lm_head", "embed_out", "output", "output_layer", "score", "classifier"];

/// Why a tensor of this name is not encoded as a rule.
fn by_name(name: &str, scope: Scope) -> Option<String> {
    if scope == Scope::All {
        return None;
    }
    let module = name.strip_suffix(".weight");
    let last = module.unwrap_or(name).rsplit('.').next().unwrap_or_default();
    let is_stack = module.is_none() && name.contains("experts");
    if module.is_none() && !is_stack {
        return Some("no weight of a layer".to_owned());
    }
    if scope != Scope::LinearAndEmbeddings {
        if EMBEDDINGS.contains(&last) {
            return Some("an embedding".to_owned());
        }
        if HEADS.contains(&last) && module.is_some_and(|module| !module.contains("layers.")) {
            return Some("the last layer".to_owned());
        }
    }
    let known = SENSITIVE.iter().find(|(part, _)| last == *part || part.len() > 4 && last.contains(part));
    let is_norm = last.contains("norm").then_some("a norm");
    is_norm.or(known.map(|(_, what)| *what)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_stays() {
        let linear = |name| by_name(name, Scope::Linear);
        for name in [
            "model.layers.0.mlp.gate_proj.weight",
            "h.1.attn.c_attn.weight",
            "a.experts.3.w1.weight",
            "model.layers.0.self_attn.o_proj.weight",
            "model.layers.2.attn.output.weight",
            "model.layers.3.mlp.experts.gate_up_proj",
        ] {
            assert_eq!(linear(name), None, "{name}");
        }
        for name in [
            "lm_head.weight",
            "model.embed_tokens.weight",
            "model.norm.weight",
            "model.layers.0.mlp.gate.weight",
            "x.bias",
            "model.layers.1.input_layernorm.weight",
            "transformer.wte.weight",
            "model.layers.0.block_sparse_moe.gate.weight",
            "visual.patch_embed.proj.weight",
        ] {
            let kept = linear(name).is_some();
            assert!(kept || name.starts_with("visual"), "{name}");
        }
        assert_eq!(by_name("lm_head.weight", Scope::LinearAndEmbeddings), None);
    }
}
