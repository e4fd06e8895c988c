//! Parts of weights that lie in other shards. A shard that is parsed by itself has codes whose
//! scales may be elsewhere: without them the codes would be copied, or decoded to other values.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::config::QuantConfig;
use crate::model::{ParsedModel, Tensor};
use crate::parse::directory::numbering;
use crate::remember::seam::{Index, Registry, wrong};
use crate::{AnamnesisError, Result};

/// Most tensors of one module that are remembered. Weights have fewer parts than these; modules
/// that have more are lists of weights.
const MAX_OF_MODULE: usize = 64;

/// The tensors that an index lists and the file does not have, by module.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    of_module: BTreeMap<Box<str>, Vec<Box<str>>>,
    /// Whether the file is one of several shards by its name, and no index says what the others
    /// have.
    pub(crate) is_unlisted_shard: bool,
}

/// The module of a tensor called `name`; empty without one.
fn module(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(module, _)| module)
}

impl Elsewhere {
    /// What the indexes beside the file `model` list. Empty for a directory, all of whose shards
    /// are parsed: what is missing there does not exist.
    ///
    /// # Errors
    /// An index cannot be read.
    pub(super) fn new(model: &ParsedModel, config: &QuantConfig) -> Result<Self> {
        let mut out = Self::default();
        if model.directory.is_some() {
            return Ok(out);
        }
        let indexed = config.indexed()?;
        let file = model.path().and_then(|path| path.file_name()?.to_str());
        let count = file.and_then(numbering).map_or(1, |(_, _, count)| count);
        out.is_unlisted_shard = count > 1 && indexed.is_empty();
        for name in indexed {
            if model.tensor(name).is_none() {
                let parts = out.of_module.entry(module(name).into()).or_default();
                if parts.len() < MAX_OF_MODULE {
                    parts.push(name.as_str().into());
                }
            }
        }
        Ok(out)
    }

    /// Whether some tensor of another shard has a name that `fits`.
    pub(crate) fn any(&self, fits: impl Fn(&str) -> bool) -> bool {
        self.of_module.values().flatten().any(|name| fits(name))
    }

    /// The tensors of other shards that are directly in `module`.
    fn parts_of(&self, module: &str) -> impl Iterator<Item = &str> {
        self.of_module
            .get(module)
            .into_iter()
            .flatten()
            .map(|name| &**name)
    }

    /// A part of the weight whose codes are called `codes`. Parts are called like the codes, with
    /// another end, and lie in the same module or below it. If `is_known`, a scheme has found what
    /// the codes need, and a part counts only if it has the name of a companion: of this weight, or
    /// of all the shards of an embedding that lie below it.
    pub(crate) fn part_of(
        &self,
        codes: &str,
        is_known: bool,
        all: &Index<'_>,
        registry: &Registry,
    ) -> Option<&str> {
        if self.of_module.is_empty() {
            return None;
        }
        let stem = registry.stem(codes);
        let is_optional = |name: &str| registry.optional(codes).any(|other| other == name);
        let counts = |name: &&str| {
            let is_companion = registry.companion(name).is_some() || is_optional(name);
            let is_other = registry.is_activation(name) || name.ends_with(".bias");
            is_companion || !is_known && !is_other
        };
        let beside = self
            .parts_of(module(stem))
            .filter(|name| name.starts_with(stem));
        let below = self.below(stem).filter(|name| {
            // Another layer below this one has parts of its own.
            !is_known || name[stem.len()..].starts_with("weight")
        });
        beside
            .chain(below)
            .find(counts)
            .or_else(|| self.part_above(codes, all, registry))
    }

    /// The tensors of other shards in modules whose names begin with `stem`.
    fn below(&self, stem: &str) -> impl Iterator<Item = &str> {
        let from = (Bound::Included(stem), Bound::Unbounded);
        let modules = self.of_module.range::<str, _>(from).take(MAX_OF_MODULE);
        let modules = modules.take_while(move |(module, _)| module.starts_with(stem));
        modules.flat_map(|(_, names)| names).map(|name| &**name)
    }

    /// One scale for all shards of a weight, of which each is a module of its own.
    fn part_above(&self, codes: &str, all: &Index<'_>, registry: &Registry) -> Option<&str> {
        let whole = module(module(codes));
        let is_weight = |name: &str| name.ends_with(".weight");
        if all.at(whole, ".weight").is_some() || self.parts_of(whole).any(is_weight) {
            return None;
        }
        self.parts_of(whole).find(|name| {
            name[whole.len()..].starts_with(".weight_") && registry.companion(name).is_some()
        })
    }

    /// The weight, or another part of it, of the companion `name` that has none in this file.
    pub(crate) fn weight_of(&self, name: &str) -> Option<&str> {
        self.parts_of(module(name)).next()
    }
}

/// An error about `t`, whose `part` lies in another shard.
pub(crate) fn in_other_shard(t: &Tensor<'_>, part: &str) -> AnamnesisError {
    wrong(t, format!("the index has its `{part}` in another shard; give the directory instead"))
}
