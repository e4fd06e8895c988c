//! Embeddings and heads by their names.

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

/// Whether `name` is an embedding that models tie to their head.
pub(super) fn is_embedding(name: &str) -> bool {
    EMBEDDINGS.iter().any(|ending| ends_with(name, ending))
}

/// Whether `name` is the weight of a head.
pub(super) fn is_head(name: &str) -> bool {
    HEADS.iter().any(|ending| ends_with(name, ending))
}

/// Whether `name` is `ending`, or that below a module.
fn ends_with(name: &str, ending: &str) -> bool {
    let rest = name.strip_suffix(ending);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
