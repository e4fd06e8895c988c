//! Which tensors are not encoded by default, by their names, and which weights inference engines
//! fuse.
//!
//! Libraries decide by the class of a module (`nn.Linear`). A file has names only, which
//! [`module_names`](crate::remember::module_names) tells apart.

use super::Scope;
use crate::config::QuantConfig;
use crate::remember::module_names::{self, HEADS, ROUTERS, SENSITIVE};

/// Layers of one parent module that inference engines such as vLLM and TensorRT-LLM fuse into one
/// matrix.
const FUSED: &[&[&str]] = &[
    &["q_proj", "k_proj", "v_proj"],
    &["gate_proj", "up_proj"],
    // Experts of Mixtral: gate and up projection.
    &["w1", "w3"],
    // DeepSeek's latent attention.
    &["q_a_proj", "kv_a_proj_with_mqa"],
];

/// Parent module of a weight that is fused with others, and an index that is the same for all
/// weights of one fusion.
pub(crate) fn fused(name: &str) -> Option<(&str, usize)> {
    // Only weights are fused: a bias has no scale.
    let (parent, last) = name.strip_suffix(".weight")?.rsplit_once('.')?;
    FUSED
        .iter()
        .position(|family| family.contains(&last))
        .map(|family| (parent, family))
}

/// What weights have in common that inference engines compute as one, and so with one scheme: a parent
/// module and the index of [`fused`] ones, or none for all experts of a layer.
///
/// Source: vLLM `model_executor/layers/fused_moe`.
pub(crate) fn of_one_scheme(name: &str) -> Option<(&str, Option<usize>)> {
    match name.split_once(".experts.") {
        Some((layer, _)) => (!name.ends_with("bias")).then_some((layer, None)),
        None => fused(name).map(|(parent, family)| (parent, Some(family))),
    }
}

/// Whether a tensor of this name is the weight of the output layer.
pub(crate) fn is_head(name: &str) -> bool {
    let module = name.strip_suffix(".weight").unwrap_or_default();
    HEADS.contains(&last_part(module)) && !has_layer(name)
}

/// What classes of transformers call their output layer, by `model_type`; all others call it
/// `lm_head`.
const HEADS_OF: &[(&str, &str)] = &[("bert", "cls.predictions.decoder"), ("whisper", "proj_out")];

/// Ends of the modules whose weights classes of transformers keep in F32 (`_keep_in_fp32_modules`),
/// of T5 and its relatives and of DeepSeek 3.2. Its quantizers make no quantized modules of them.
const IN_F32: &[&str] = &["DenseReluDense.wo", "indexer.weights_proj"];

/// The module that is the output layer in transformers of a model with `config` and the tensors
/// `names`, if no tensor is called so. A head that has the matrix of the embedding is in no file,
/// and GPT-NeoX's is `embed_out` in files and in transformers 4.
pub(crate) fn unstored_head<'n>(
    config: &QuantConfig,
    mut names: impl Iterator<Item = &'n str> + Clone,
) -> Option<&'static str> {
    let of_class = HEADS_OF
        .iter()
        .find(|(name, _)| config.has_model_type(name));
    let head = match of_class {
        Some((_, head)) => head,
        // A head of several layers, the last of which is tied (RoBERTa).
        None if names.clone().any(|name| name == "lm_head.dense.weight") => "lm_head.decoder",
        None => "lm_head",
    };
    let is_so = |name: &str| {
        let module = name.strip_suffix(".weight");
        let is_of_class = module.is_some_and(|module| module.ends_with(head));
        is_of_class || is_head(name) && module != Some("embed_out")
    };
    (!names.any(is_so)).then_some(head)
}

/// Whether a module of this name is a table of embeddings.
pub(crate) fn is_embedding(module: &str) -> bool {
    module_names::is_embedding(last_part(module))
}

fn last_part(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or_default()
}

fn is_in_f32(module: Option<&str>) -> bool {
    module.is_some_and(|module| IN_F32.iter().any(|end| module.ends_with(end)))
}

/// Whether a part of the name is a number, which is the index of a layer.
fn has_layer(name: &str) -> bool {
    name.split('.').any(|part| part.parse::<u32>().is_ok())
}

/// The reason why a tensor of this name is not encoded by default.
pub(crate) fn objection(name: &str, scope: Scope) -> Option<String> {
    if scope == Scope::All {
        return None;
    }
    let module = name.strip_suffix(".weight");
    // A stack of experts is a parameter, not a module: its name does not end in `.weight`.
    let is_stack = module.is_none() && name.contains("experts.") && !name.ends_with("bias");
    if module.is_none() && !is_stack {
        return Some("no weight of a layer".to_owned());
    }
    let (last, has_layer) = (last_part(module.unwrap_or(name)), has_layer(name));
    let what = match () {
        () if scope == Scope::Linear && is_embedding(last) => "an embedding",
        () if scope == Scope::Linear && HEADS.contains(&last) && !has_layer => "the last layer",
        () if ROUTERS.contains(&last) && has_layer => "a router of experts",
        () if scope == Scope::Linear && is_in_f32(module) => "kept in F32 by its class",
        () => SENSITIVE.iter().find(|(part, ..)| last.contains(part))?.1,
    };
    Some(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_stays() {
        for name in [
            "model.layers.0.mlp.gate_proj.weight",
            "h.1.attn.c_attn.weight",
            "a.experts.3.w1.weight",
            "model.layers.0.self_attn.o_proj.weight",
            "encoder.layer.2.attention.output.dense.weight",
            "model.layers.3.mlp.experts.gate_up_proj",
            "transformer_blocks.0.attn.to_q.weight",
            "x_embedder.weight",
        ] {
            assert_eq!(objection(name, Scope::Linear), None, "{name}");
        }
        for name in [
            "lm_head.weight",
            "model.embed_tokens.weight",
            "model.norm.weight",
            "model.layers.0.mlp.gate.weight",
            "model.layers.0.self_attn.q_proj.bias",
            "model.layers.1.input_layernorm.weight",
            "transformer.wte.weight",
            "model.layers.0.block_sparse_moe.gate.weight",
            "model.layers.0.mlp.experts.gate_up_proj_bias",
            "backbone.layers.0.mixer.conv1d.weight",
            "bert.embeddings.position_embeddings.weight",
            "model.decoder.embed_positions.weight",
            "encoder.block.0.layer.1.DenseReluDense.wo.weight",
            "model.language_model.embed_tokens_per_layer.weight",
        ] {
            assert!(objection(name, Scope::Linear).is_some(), "{name}");
        }
        for name in ["lm_head.weight", "model.embed_tokens.weight", "embed_out.weight"] {
            assert_eq!(objection(name, Scope::LinearAndEmbeddings), None, "{name}");
        }
        assert_eq!(objection("model.norm.weight", Scope::All), None);
    }
}
