//! What mlx-lm has of a class: names, what is encoded otherwise, and what it reads of the config.
//!
//! Names are given for rules of the class's table, which names in GGUF tell apart. All other
//! tensors are called as transformers calls them.
//!
//! Source: `sanitize` and `quant_predicate` in `mlx_lm/models` of mlx-lm 0.32.2, a file for each
//! `model_type`.

use super::{Default, Law, LostWindows, TensorRule};
use crate::families::engine::dims::{Dim, Need};
use crate::remember::EncodedAs;

/// How mlx-lm has the models of a class.
#[derive(Debug)]
pub(crate) struct MlxClass {
    /// `model_type` in MLX, where mlx-lm does not know that of the class.
    pub mlx_type: Option<&'static str>,
    /// Tensors with other names: of a rule the name in GGUF, and mlx-lm's; both without `.weight`
    /// unless the rule's is whole. With `{e}`, a matrix for each expert, where transformers has all in
    /// one.
    ///
    /// A projection of which GGUF has the parts is taken apart only if they have names here.
    pub renamed: &'static [(&'static str, &'static str)],
    /// Parts of tensors that GGUF has whole, in place of the class's rule for the same tensor of
    /// transformers.
    pub parts: &'static [TensorRule],
    /// Matrices that mlx-lm quantizes otherwise than the model, by the rule's name in GGUF.
    pub modes: &'static [(&'static str, EncodedAs)],
    /// A matrix that mlx-lm does not quantize where layers have it by this need: the rule's name in
    /// GGUF, which another rule has as well.
    pub unencoded: Option<(&'static str, Need)>,
    /// Whether experts that are MXFP4 stay so, whatever the model is quantized to.
    pub keeps_mxfp4: bool,
    /// Tensors that keep their type, whatever the config states, by the rule's name in GGUF.
    pub kept_types: &'static [&'static str],
    /// Whether norms have 1 added, as in GGUF.
    pub norms_plus_one: bool,
    /// Vectors that are matrices with a row for each head, by the rule's name in GGUF.
    pub head_rows: &'static [&'static str],
    /// Whether numbers of a layer have no dimensions.
    pub bare_numbers: bool,
    /// What mlx-lm takes for granted of the class. A config that says something else is refused.
    pub implied: &'static [(&'static str, Default)],
    /// Lists of layers in which mlx-lm takes all entries for alike.
    pub alike: &'static [&'static str],
    /// What mlx-lm computes otherwise than transformers: an error or a note.
    pub laws: &'static [Law],
    /// The activation, where mlx-lm's is another form of that of transformers.
    pub activation: Option<Activation>,
    /// Kinds of scaled rotary positions that mlx-lm computes.
    pub scalings: &'static [&'static str],
    /// Fields that say whether projections have biases.
    pub bias_fields: &'static [&'static str],
    /// Fields that mlx-lm needs, or takes for something else than transformers, where a config is
    /// silent: the output states them.
    pub stated_fields: &'static [&'static [&'static str]],
    /// Sizes that mlx-lm computes from others, each with what it has for them.
    pub equal_sizes: &'static [(Dim, Dim)],
    /// What mlx-lm goes by in place of `layer_types`: the field that says every how many layers one
    /// sees the whole text, and what the others are.
    pub counted_kind: Option<(&'static str, &'static str)>,
    /// Windows of attention of transformers that mlx-lm does not have.
    pub lost_windows: LostWindows,
    /// Whether mlx-lm has windows in layers that `layer_types` calls so, and transformers does not
    /// read that field.
    pub reads_kinds: bool,
    /// Whether mlx-lm looks for the number of tokens in the config around that of the language
    /// model.
    pub reads_outer_vocab: bool,
    /// Whether norms of latent vectors have `rms_norm_eps`, and those of transformers a constant.
    pub has_latent_eps: bool,
    /// Class and `model_type` of the config that mlx-lm needs around that of the language model.
    pub around: Option<(&'static str, &'static str)>,
    pub rope: RopeFields,
    pub output: OutputLayer,
    pub prefix: Prefix,
}

/// An activation that mlx-lm computes in another form than transformers.
#[derive(Debug)]
pub(crate) struct Activation {
    /// Field of its name.
    pub field: &'static str,
    /// Names of what mlx-lm computes.
    pub computed: &'static [&'static str],
    /// What models of the class have: nearly the same.
    pub usual: &'static str,
}

/// Where mlx-lm looks for the settings of rotary positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RopeFields {
    /// In fields of the config itself, as transformers 4 writes them.
    Flat,
    /// As [`Flat`](Self::Flat), and it cannot be without YaRN.
    FlatYarn,
    /// As [`Flat`](Self::Flat), with the kind of scaling in `type` alone.
    FlatTyped,
    /// In `rope_parameters` as well.
    Nested,
    /// As [`Nested`](Self::Nested), and it cannot be without those of each kind of layers.
    NestedByKind,
    /// In `rope_parameters` alone.
    NestedAlone,
}

/// What mlx-lm's names begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefix {
    /// Nothing, and no config of the class nests that of a language model.
    None,
    /// This, if the config nests that of a language model.
    IfNested(&'static str),
    /// Always this.
    Always(&'static str),
    /// This in place of `model.`; the config always nests that of a language model.
    Within(&'static str),
    /// Nothing, though the config may nest that of a language model.
    Nowhere,
}

/// What mlx-lm has of the layer behind the last norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputLayer {
    /// `tie_word_embeddings` says whether it is the embedding. If it is, a stored one is left out.
    AsConfigured,
    /// It is always the embedding.
    Tied,
    /// There always is one.
    Stored,
}

impl MlxClass {
    /// What most classes are.
    pub(crate) const PLAIN: Self = Self {
        mlx_type: None,
        renamed: &[],
        parts: &[],
        modes: &[],
        unencoded: None,
        keeps_mxfp4: false,
        kept_types: &[],
        norms_plus_one: false,
        head_rows: &[],
        bare_numbers: false,
        implied: &[SILU],
        alike: &[],
        laws: &[],
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
        around: None,
        rope: RopeFields::Flat,
        output: OutputLayer::AsConfigured,
        prefix: Prefix::None,
    };
}

/// What several classes have as Llama has it.
pub(crate) const LIKE_LLAMA: MlxClass = MlxClass {
    bias_fields: &["attention_bias", "mlp_bias"],
    stated_fields: &[COMMON_FIELDS],
    ..MlxClass::PLAIN
};

pub(crate) const SILU: (&str, Default) = ("hidden_act", Default::Text("silu"));
pub(crate) const NO_BIAS: (&str, Default) = ("attention_bias", Default::Bool(false));
/// mlx-lm ignores scaling of rope, wherever the config says it.
pub(crate) const NO_SCALING: (&str, Default) = ("rope_scaling", Default::Absent);

/// GELU by the error function, where models of the class have the approximation by tanh in the
/// field `field`.
pub(crate) const fn exact_gelu(field: &'static str) -> Option<Activation> {
    Some(Activation { field, computed: &["gelu"], usual: "gelu_pytorch_tanh" })
}

/// Heads have no size of their own.
pub(crate) const HEADS_FILL_HIDDEN: &[(Dim, Dim)] = &[(Dim::Queries, Dim::Hidden)];

pub(crate) const EIGHT_BITS: EncodedAs = EncodedAs::Integers { bits: 8, group: 64 };

/// Routers are more precise than the model.
pub(crate) const ROUTER_8_BITS: &[(&str, EncodedAs)] = &[("blk.{i}.ffn_gate_inp", EIGHT_BITS)];

/// Fields that mlx-lm needs, or has other defaults for, in nearly all classes.
pub(crate) const COMMON_FIELDS: &[&str] = &["rms_norm_eps", "rope_theta"];

/// Stacks of experts in place of single ones.
pub(crate) const STACKS: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate_exps", "model.layers.{i}.mlp.switch_mlp.gate_proj"),
    ("blk.{i}.ffn_up_exps", "model.layers.{i}.mlp.switch_mlp.up_proj"),
    ("blk.{i}.ffn_down_exps", "model.layers.{i}.mlp.switch_mlp.down_proj"),
];
