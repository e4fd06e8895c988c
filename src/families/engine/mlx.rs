//! Models as mlx-lm has them, by what the rows of classes say of it.

mod config;
mod from_mlx;
mod rope;
mod to_mlx;

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::table::mlx::{MlxClass, Prefix};
use super::table::{ModelClass, TensorRule};
use crate::families::class_of;
use crate::remember::ResolvedItem;

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

/// A class of models that mlx-lm has, as `config` names it.
struct NamedClass<'a> {
    /// The name of the class.
    name: &'a str,
    class: &'static ModelClass,
    mlx: &'static MlxClass,
    /// Whether the config of the language model is nested in another.
    is_nested: bool,
}

/// Whether mlx-lm, which calls what `rule` describes `name`, has a matrix for each expert of what
/// transformers has in one.
fn has_each_expert(name: &str, rule: &TensorRule) -> bool {
    name.contains("{e}") && !rule.hf.contains("{e}")
}

/// What names of most classes begin with.
const WITHIN: &str = "model.";

impl<'a> NamedClass<'a> {
    /// `None` if `config` names no class, or one that is not in the tables.
    fn new(config: &'a Value) -> Option<Self> {
        let name = config.pointer("/architectures/0")?.as_str()?;
        let class = class_of(name, config)?;
        let mlx = class.mlx?;
        let is_nested = config.get("text_config").is_some();
        (!is_nested || mlx.prefix != Prefix::None).then_some(Self { name, class, mlx, is_nested })
    }

    /// What all names begin with.
    fn prefix(&self) -> &'static str {
        match self.mlx.prefix {
            Prefix::Always(prefix) | Prefix::Within(prefix) => prefix,
            Prefix::IfNested(prefix) if self.is_nested || self.mlx.around.is_some() => prefix,
            _ => "",
        }
    }

    /// mlx-lm's name of what the class calls `name`, or what a name of the class begins with.
    fn with_prefix(&self, name: &str) -> String {
        let name = match self.mlx.prefix {
            Prefix::Within(_) => name.strip_prefix(WITHIN).unwrap_or(name),
            _ => name,
        };
        format!("{}{name}", self.prefix())
    }

    /// What the class calls mlx-lm's `name`, if that begins as it should.
    fn without_prefix<'n>(&self, name: &'n str) -> Option<Cow<'n, str>> {
        let rest = name.strip_prefix(self.prefix())?;
        Some(match self.mlx.prefix {
            Prefix::Within(_) => Cow::from(format!("{WITHIN}{rest}")),
            _ => Cow::from(rest),
        })
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
