//! Classes of modules in torch, as far as names tell them.

/// Class of the modules that look up rows, in torch.
pub(super) const EMBEDDING: &str = "Embedding";

/// Class of the modules that multiply, in torch.
pub(super) const LINEAR: &str = "Linear";

/// Last components of the paths of embeddings, as transformers' models name them.
const EMBEDDINGS: &[&str] = &[
    "embed_tokens",
    "embed_tokens_per_layer",
    "embed_positions",
    "embeddings",
    "position_embedding",
    "position_embeddings",
    "tok_embeddings",
    "token_embedding",
    "token_type_embeddings",
    "word_embeddings",
    "wpe",
    "wte",
];

/// Whether `module` is called as embeddings are. Files do not tell classes.
pub(crate) fn is_embedding(module: &str) -> bool {
    EMBEDDINGS.contains(&module.rsplit('.').next().unwrap_or_default())
}
