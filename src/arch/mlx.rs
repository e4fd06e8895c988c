//! What mlx-lm calls the tensors of a class of transformers, and what it encodes them as.
//!
//! Names are given for rules of the class's table, which names in GGUF tell apart. All other tensors are called as transformers
//! calls them.
//!
//! Source: `sanitize` and `quant_predicate` in `mlx_lm/models` of mlx-lm 0.32.2, a file for each `model_type`.

mod classes;
mod from_mlx;
mod names;
mod to_mlx;

use self::classes::MLX_CLASSES;
use super::dims::Dim;
use super::families::CLASSES;
use super::table::{Default, ModelClass};
use crate::scheme::EncodedAs;

pub(crate) use self::from_mlx::from_mlx;
pub(crate) use self::to_mlx::{to_mlx, unknown_class};
use crate::scheme::ResolvedItem;

/// A model whose tensors have the names of the other side.
pub(crate) struct MlxModel<'m> {
    pub items: Vec<ResolvedItem<'m>>,
    /// The config, if it is another than the input's.
    pub config: Option<serde_json::Value>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// How mlx-lm has the models of a class.
struct MlxClass {
    /// `model_type` of the class.
    model_type: &'static str,
    /// Tensors with other names: of a rule the name in GGUF, and mlx-lm's; both without `.weight` unless the rule's is whole.
    renamed: &'static [(&'static str, &'static str)],
    /// Matrices that mlx-lm quantizes otherwise than the model, by the rule's name in GGUF.
    modes: &'static [(&'static str, EncodedAs)],
    /// Whether experts that are MXFP4 stay so, whatever the model is quantized to.
    keeps_mxfp4: bool,
    /// Tensors that keep their type, whatever the config states, by the rule's name in GGUF.
    kept_types: &'static [&'static str],
    /// What mlx-lm takes for granted of the class. A config that says something else is refused.
    implied: &'static [(&'static str, Default)],
    /// Fields that say whether projections have biases.
    bias_fields: &'static [&'static str],
    /// Fields that mlx-lm needs, or takes for something else than transformers, where a config is silent: the output states them.
    stated_fields: &'static [&'static str],
    /// Sizes that mlx-lm computes from others, each with what it has for them.
    equal_sizes: &'static [(Dim, Dim)],
    /// Whether mlx-lm goes by `sliding_window_pattern`, and not by `layer_types`.
    counts_windows: bool,
    output: OutputLayer,
    /// What names begin with if the config nests that of a language model; `None`: no config of the class does.
    nested_prefix: Option<&'static str>,
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
    fn new(config: &'a serde_json::Value) -> Option<Self> {
        let name = config.pointer("/architectures/0")?.as_str()?;
        let mut classes = CLASSES.iter();
        let class = classes.find(|class| class.classes.contains(&name))?;
        let mut known = MLX_CLASSES.iter();
        let mlx = known.find(|known| known.model_type == class.model_type)?;
        let is_nested = config.get("text_config").is_some();
        (!is_nested || mlx.nested_prefix.is_some()).then_some(Self {
            name,
            class,
            mlx,
            is_nested,
        })
    }

    /// What all names begin with.
    fn prefix(&self) -> &'static str {
        let nested = self.mlx.nested_prefix.filter(|_| self.is_nested);
        nested.unwrap_or_default()
    }
}
