//! The table of classes that mlx-lm has.

mod dense;
mod experts;
mod mixed;

use super::{Activation, MlxClass, OutputLayer, Prefix, RopeFields};
use crate::families::engine::dims::Dim;
use crate::families::engine::table::{Default, LostWindows};
use crate::remember::EncodedAs;

/// All classes.
pub(super) const MLX_CLASSES: &[&[MlxClass]] = &[dense::CLASSES, experts::CLASSES, mixed::CLASSES];

const SILU: (&str, Default) = ("hidden_act", Default::Text("silu"));
const NO_BIAS: (&str, Default) = ("attention_bias", Default::Bool(false));
/// mlx-lm ignores scaling of rope, wherever the config says it.
pub(super) const NO_SCALING: (&str, Default) = ("rope_scaling", Default::Absent);

/// GELU by the error function, where models of the class have the approximation by tanh in the
/// field `field`.
const fn exact_gelu(field: &'static str) -> Option<Activation> {
    Some(Activation { field, computed: &["gelu"], usual: "gelu_pytorch_tanh" })
}

/// Heads have no size of their own.
const HEADS_FILL_HIDDEN: &[(Dim, Dim)] = &[(Dim::Queries, Dim::Hidden)];

const EIGHT_BITS: EncodedAs = EncodedAs::Integers { bits: 8, group: 64 };

/// Routers are more precise than the model.
const ROUTER_8_BITS: &[(&str, EncodedAs)] = &[("blk.{i}.ffn_gate_inp", EIGHT_BITS)];

/// Fields that mlx-lm needs, or has other defaults for, in nearly all classes.
const COMMON_FIELDS: &[&str] = &["rms_norm_eps", "rope_theta"];

/// Fields that mlx-lm needs of all classes of Granite.
const GRANITE_FIELDS: &[&str] = &[
    "rope_theta",
    "rms_norm_eps",
    "logits_scaling",
    "attention_multiplier",
    "embedding_multiplier",
    "residual_multiplier",
    "max_position_embeddings",
    "num_key_value_heads",
    "attention_bias",
];

/// What most classes are, without a name.
const BASE: MlxClass = MlxClass {
    model_type: "",
    gguf: None,
    mlx_type: None,
    renamed: &[],
    parts: &[],
    modes: &[],
    keeps_mxfp4: false,
    kept_types: &[],
    norms_plus_one: false,
    implied: &[SILU],
    activation: None,
    scalings: &["linear", "dynamic", "llama3", "yarn"],
    bias_fields: &[],
    stated_fields: &[],
    equal_sizes: &[],
    counted_kind: None,
    lost_windows: LostWindows::Nowhere,
    reads_kinds: false,
    has_latent_eps: false,
    reads_outer_vocab: false,
    rope: RopeFields::Flat,
    output: OutputLayer::AsConfigured,
    prefix: Prefix::None,
};

const LLAMA: MlxClass = MlxClass {
    model_type: "llama",
    bias_fields: &["attention_bias", "mlp_bias"],
    stated_fields: &[COMMON_FIELDS],
    ..BASE
};
