//! What a module is by its name. Libraries know its class (`nn.Embedding`). A file has names only,
//! so the names that modules have in Hugging Face's models, and in llama.cpp's, stand for their
//! classes.

/// Last parts of the names of token and position embeddings that are not called so.
const EMBEDDINGS: &[&str] = &["wte", "wpe", "shared", "token_embd"];

/// Whether a module whose name ends in the part `last` is a table of embeddings: of tokens,
/// positions, types, speakers. Layers that are called embedders are linear ones.
pub(crate) fn is_embedding(last: &str) -> bool {
    let is_called_so = last.contains("embed") && !last.contains("embedder");
    EMBEDDINGS.contains(&last) || is_called_so && last != "embed_out"
}

/// Last parts of the names of output layers, which compute logits. Small errors there change the
/// choice of tokens, so libraries leave them out; inside a layer (`layers.3.output`) the same words
/// name ordinary projections.
pub(crate) const HEADS: &[&str] =
    &["lm_head", "embed_out", "output", "output_layer", "score", "classifier", "head"];

/// Last parts of the names of routers, which choose the experts of a token. They count only inside
/// a numbered layer.
pub(crate) const ROUTERS: &[&str] = &["gate", "router", "shared_expert_gate", "wg"];

/// Parts of the last part of a module's name, each with what such a module is, and the word of
/// [`KINDS`] for several.
pub(crate) const SENSITIVE: &[(&str, &str, &str)] = &[
    ("norm", "a norm", "norms"),
    ("ln_", "a norm", "norms"),
    ("embedding", "an embedding", "embeddings"),
    ("pos_embed", "an embedding", "embeddings"),
    ("patch_embed", "an embedding", "embeddings"),
    ("rotary", "an embedding", "embeddings"),
    ("relative_attention_bias", "an embedding", "embeddings"),
    ("conv", "a convolution", "convolutions"),
];

/// The words of [`kind_of`], in the order of listings.
pub(crate) const KINDS: &[&str] =
    &["norms", "embeddings", "lm_head", "last layer", "routers", "convolutions", "biases"];

/// What the tensor called `name` is, as one of the words of [`KINDS`]; `None` if its name does not
/// tell.
pub(crate) fn kind_of(name: &str) -> Option<&'static str> {
    let (module, parameter) = name.rsplit_once('.')?;
    if !matches!(parameter, "weight" | "bias") {
        return None;
    }
    let last = module.rsplit('.').next()?;
    let has_layer = module.split('.').any(|part| part.parse::<u32>().is_ok());
    let is_head = HEADS.contains(&last) && !has_layer;
    let sensitive = SENSITIVE.iter().find(|(part, ..)| last.contains(part));
    match () {
        () if is_embedding(last) => Some("embeddings"),
        () if is_head && last == "lm_head" => Some("lm_head"),
        () if is_head => Some("last layer"),
        () if ROUTERS.contains(&last) && has_layer => Some("routers"),
        () => match sensitive {
            Some((.., kind)) => Some(kind),
            None => (parameter == "bias").then_some("biases"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_tensors_are() {
        for (name, kind) in [
            ("model.layers.0.input_layernorm.weight", Some("norms")),
            ("h.0.ln_1.bias", Some("norms")),
            ("model.embed_tokens.weight", Some("embeddings")),
            ("token_embd.weight", Some("embeddings")),
            ("lm_head.weight", Some("lm_head")),
            ("output.weight", Some("last layer")),
            ("model.layers.3.output.weight", None),
            ("model.layers.0.mlp.gate.weight", Some("routers")),
            ("model.layers.0.mixer.conv1d.weight", Some("convolutions")),
            ("model.layers.0.q_proj.bias", Some("biases")),
            ("model.layers.0.q_proj.weight", None),
            ("norm", None),
            ("W_enc", None),
        ] {
            assert_eq!(kind_of(name), kind, "{name}");
            assert!(kind.is_none_or(|kind| KINDS.contains(&kind)));
        }
    }
}
