//! Names of fields that several parts ask for, the usual one first.

/// Fields of the number of layers.
pub(crate) const LAYERS: &[&str] = &["num_hidden_layers", "n_layers", "n_layer", "num_layers"];

/// Fields of the length of a hidden state.
pub(crate) const HIDDEN: &[&str] = &["hidden_size", "n_embd", "n_embed", "dim", "d_model"];

/// Fields of the number of heads.
pub(crate) const HEADS: &[&str] = &["num_attention_heads", "n_head", "n_heads", "num_heads"];

/// Fields of the number of heads of keys and values.
pub(crate) const KV_HEADS: &[&str] = &["num_key_value_heads", "n_kv_heads", "num_kv_heads"];

/// Fields of the number of experts.
pub(crate) const EXPERTS: &[&str] = &[
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
    "moe_num_primary_experts",
];

/// Fields of the number of experts that a token gets.
pub(crate) const EXPERTS_USED: &[&str] = &[
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_k",
    "moe_topk",
    "moe_num_active_primary_experts",
];

/// Fields of the width of a feed-forward layer.
pub(crate) const INNER: &[&str] = &["intermediate_size", "n_inner", "hidden_dim", "d_ff"];

/// Field of the number of layers that predict further tokens.
pub(crate) const PREDICTION: &str = "num_nextn_predict_layers";

/// Fields of the longest text.
pub(crate) const CONTEXT: &[&str] = &[
    "max_position_embeddings",
    "n_ctx",
    "n_positions",
    "max_length",
    "max_sequence_length",
    "model_max_length",
];

/// Field of the names of classes.
pub(crate) const LABELS: &str = "id2label";

/// What `layer_types` calls a layer that sees the whole text.
pub(crate) const FULL_ATTENTION: &str = "full_attention";

/// Field of what each layer is, a letter each.
pub(crate) const LETTERS: &str = "hybrid_override_pattern";

/// Field of what each layer is.
pub(crate) const LAYER_KINDS: &str = "layer_types";
