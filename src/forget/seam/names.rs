//! What names tell of tensors that are not quantized as a rule.

use super::Scope;

/// Embeddings of tokens, by the last part of the module's name.
const EMBEDDINGS: &[&str] = &[
    "embed_tokens",
    "tok_embeddings",
    "word_embeddings",
    "wte",
    "wpe",
    "embed",
    "embed_in",
    "shared",
    "token_embd",
];

/// Last layers, which make logits.
const HEADS: &[&str] = &[
    "lm_head",
    "embed_out",
    "output",
    "output_layer",
    "score",
    "classifier",
    "head",
];

/// Routers of experts.
const ROUTERS: &[&str] = &["gate", "router", "shared_expert_gate", "wg"];

/// Whatever has this in the last part of its module's name.
const SENSITIVE: &[(&str, &str)] = &[
    ("norm", "a norm"),
    ("ln_", "a norm"),
    ("embedding", "an embedding"),
    ("pos_embed", "an embedding"),
    ("patch_embed", "an embedding"),
    ("rotary", "an embedding"),
    ("relative_attention_bias", "an embedding"),
    ("conv", "a convolution"),
];

/// Layers of one parent that inference fuses into one.
const FUSED: &[&[&str]] = &[
    &["q_proj", "k_proj", "v_proj"],
    &["gate_proj", "up_proj"],
    // Of Mixtral's experts.
    &["w1", "w3"],
    // DeepSeek's latent attention.
    &["q_a_proj", "kv_a_proj_with_mqa"],
];

/// The parent of a weight that is fused with others, and which of its families it belongs to.
pub(crate) fn fused(name: &str) -> Option<(&str, usize)> {
    let (parent, last) = name.strip_suffix(".weight")?.rsplit_once('.')?;
    FUSED
        .iter()
        .position(|family| family.contains(&last))
        .map(|family| (parent, family))
}

/// Why a tensor of this name is not encoded as a rule.
pub(crate) fn objection(name: &str, scope: Scope) -> Option<String> {
    if scope == Scope::All {
        return None;
    }
    let module = name.strip_suffix(".weight");
    // Stacks of experts are parameters without a module of their own.
    let is_stack = module.is_none() && name.contains("experts.") && !name.ends_with("bias");
    if module.is_none() && !is_stack {
        return Some("no weight of a layer".to_owned());
    }
    let last = module
        .unwrap_or(name)
        .rsplit('.')
        .next()
        .unwrap_or_default();
    let has_layer = name.split('.').any(|part| part.parse::<u32>().is_ok());
    let what = match () {
        () if scope == Scope::Linear && EMBEDDINGS.contains(&last) => "an embedding",
        () if scope == Scope::Linear && HEADS.contains(&last) && !has_layer => "the last layer",
        () if ROUTERS.contains(&last) && has_layer => "a router of experts",
        () => SENSITIVE.iter().find(|(part, _)| last.contains(part))?.1,
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
        ] {
            assert!(objection(name, Scope::Linear).is_some(), "{name}");
        }
        for name in ["lm_head.weight", "model.embed_tokens.weight"] {
            assert_eq!(objection(name, Scope::LinearAndEmbeddings), None, "{name}");
        }
        assert_eq!(objection("model.norm.weight", Scope::All), None);
    }
}
