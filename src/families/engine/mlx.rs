//! What mlx-lm calls the tensors of a class of transformers, and what it encodes them as.
//!
//! Names are given for rules of the class's table, which names in GGUF tell apart. All other
//! tensors are called as transformers calls them.
//!
//! Source: `sanitize` and `quant_predicate` in `mlx_lm/models` of mlx-lm 0.32.2, a file for each
//! `model_type`.

mod classes;
mod config;
mod from_mlx;
mod names;
mod rope;
mod to_mlx;

use serde_json::{Map, Value};

use self::classes::MLX_CLASSES;
use super::dims::Dim;
use super::table::{Default, LostWindows, ModelClass, TensorRule, Transform, ValuePart};
use crate::families::class_of;
use crate::remember::{EncodedAs, ResolvedItem};

pub(crate) use self::from_mlx::from_mlx;
pub(crate) use self::to_mlx::{to_mlx, unknown_class};

/// A model whose tensors have the names of the other side.
pub(crate) struct MlxModel<'m> {
    pub items: Vec<ResolvedItem<'m>>,
    /// The config, if it is another than the input's.
    pub config: Option<Value>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// How mlx-lm has the models of a class.
struct MlxClass {
    /// `model_type` of the class.
    model_type: &'static str,
    /// Name in GGUF, where classes of one `model_type` have several.
    gguf: Option<&'static str>,
    /// `model_type` in MLX, where mlx-lm does not know that of the class.
    mlx_type: Option<&'static str>,
    /// Tensors with other names: of a rule the name in GGUF, and mlx-lm's; both without `.weight`
    /// unless the rule's is whole.
    ///
    /// A projection of which GGUF has the parts is taken apart only if they have names here.
    renamed: &'static [(&'static str, &'static str)],
    /// Parts of tensors that GGUF has whole, in place of the class's rule for the same tensor of
    /// transformers.
    parts: &'static [TensorRule],
    /// Matrices that mlx-lm quantizes otherwise than the model, by the rule's name in GGUF.
    modes: &'static [(&'static str, EncodedAs)],
    /// Whether experts that are MXFP4 stay so, whatever the model is quantized to.
    keeps_mxfp4: bool,
    /// Tensors that keep their type, whatever the config states, by the rule's name in GGUF.
    kept_types: &'static [&'static str],
    /// Whether norms have 1 added, as in GGUF.
    norms_plus_one: bool,
    /// What mlx-lm takes for granted of the class. A config that says something else is refused.
    implied: &'static [(&'static str, Default)],
    /// The activation, where mlx-lm's is another form of that of transformers.
    activation: Option<Activation>,
    /// Kinds of scaled rotary positions that mlx-lm computes.
    scalings: &'static [&'static str],
    /// Fields that say whether projections have biases.
    bias_fields: &'static [&'static str],
    /// Fields that mlx-lm needs, or takes for something else than transformers, where a config is
    /// silent: the output states them.
    stated_fields: &'static [&'static [&'static str]],
    /// Sizes that mlx-lm computes from others, each with what it has for them.
    equal_sizes: &'static [(Dim, Dim)],
    /// What mlx-lm goes by in place of `layer_types`: the field that says every how many layers one
    /// sees the whole text, and what the others are.
    counted_kind: Option<(&'static str, &'static str)>,
    /// Windows of attention of transformers that mlx-lm does not have.
    lost_windows: LostWindows,
    /// Whether mlx-lm has windows in layers that `layer_types` calls so, and transformers does not
    /// read that field.
    reads_kinds: bool,
    /// Whether mlx-lm looks for the number of tokens in the config around that of the language
    /// model.
    reads_outer_vocab: bool,
    /// Whether norms of latent vectors have `rms_norm_eps`, and those of transformers a constant.
    has_latent_eps: bool,
    rope: RopeFields,
    output: OutputLayer,
    prefix: Prefix,
}

/// An activation that mlx-lm computes in another form than transformers.
struct Activation {
    /// Field of its name.
    field: &'static str,
    /// Names of what mlx-lm computes.
    computed: &'static [&'static str],
    /// What models of the class have: nearly the same.
    usual: &'static str,
}

/// Where mlx-lm looks for the settings of rotary positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RopeFields {
    /// In fields of the config itself, as transformers 4 writes them.
    Flat,
    /// As [`Flat`](Self::Flat), and it cannot be without YaRN.
    FlatYarn,
    /// As [`Flat`](Self::Flat), with the kind of scaling in `type` alone.
    FlatTyped,
    /// In `rope_parameters` as well.
    Nested,
    /// In `rope_parameters` alone.
    NestedAlone,
}

/// What mlx-lm's names begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prefix {
    /// Nothing, and no config of the class nests that of a language model.
    None,
    /// This, if the config nests that of a language model.
    IfNested(&'static str),
    /// Always this.
    Always(&'static str),
}

/// What mlx-lm has of the layer behind the last norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputLayer {
    /// `tie_word_embeddings` says whether it is the embedding. If it is, a stored one is left out.
    AsConfigured,
    /// It is always the embedding.
    Tied,
    /// There always is one.
    Stored,
}

/// A class of models that mlx-lm has, as `config` names it.
struct NamedClass<'a> {
    /// The name of the class.
    name: &'a str,
    class: &'static ModelClass,
    mlx: &'static MlxClass,
    /// Whether the config of the language model is nested in another.
    is_nested: bool,
}

impl<'a> NamedClass<'a> {
    /// `None` if `config` names no class, or one that is not in the tables.
    fn new(config: &'a Value) -> Option<Self> {
        let name = config.pointer("/architectures/0")?.as_str()?;
        let class = class_of(name, config)?;
        let mut known = MLX_CLASSES.iter().flat_map(|classes| classes.iter());
        let is_class = |known: &&MlxClass| {
            known.model_type == class.model_type && known.gguf.is_none_or(|gguf| gguf == class.gguf)
        };
        let mlx = known.find(is_class)?;
        let is_nested = config.get("text_config").is_some();
        (!is_nested || mlx.prefix != Prefix::None).then_some(Self { name, class, mlx, is_nested })
    }

    /// What all names begin with.
    fn prefix(&self) -> &'static str {
        match self.mlx.prefix {
            Prefix::Always(prefix) => prefix,
            Prefix::IfNested(prefix) if self.is_nested => prefix,
            _ => "",
        }
    }

    /// mlx-lm's name of what `rule` describes, and what follows it; `None`: it is that of
    /// transformers.
    fn name_of(&self, rule: &TensorRule) -> Option<(&'static str, &'static str)> {
        let find = |gguf: &str| self.mlx.renamed.iter().find(|(name, _)| *name == gguf);
        if let Some((_, name)) = find(rule.gguf) {
            return Some((name, ""));
        }
        // A parameter of transformers that is a module of mlx-lm.
        let module = rule
            .gguf
            .strip_suffix(".weight")
            .filter(|_| rule.is_whole_name)?;
        find(module).map(|(_, name)| (*name, ".weight"))
    }

    /// The config of the language model in `config`.
    fn text<'c>(&self, config: &'c mut Value) -> Option<&'c mut Map<String, Value>> {
        match self.is_nested {
            true => config.get_mut("text_config")?.as_object_mut(),
            false => config.as_object_mut(),
        }
    }
}

/// Whether a tensor is a stack of filters, which mlx-lm has as `[n, k, 1]`.
fn is_filters(transform: Transform) -> bool {
    matches!(transform, Transform::Filters | Transform::ValueHeads(ValuePart::Filters))
}
