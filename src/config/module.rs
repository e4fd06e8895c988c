//! Config entries for single modules. A value for a module is that of its entry; if the entry lacks
//! it, that of the whole config. The entry is the one under the module's path, else the first whose
//! pattern matches (gptqmodel `dynamic_get`, auto-round `get_layer_config`).

mod classes;
mod dialects;

pub(crate) use self::classes::is_embedding;
use self::classes::{EMBEDDING, LINEAR};
pub(crate) use self::dialects::{FP8_SCALES, NVFP4, OF_FP8};

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::QuantConfig;
use super::pattern::{Pattern, PatternList};
use super::place::{ConfigPlace, flag, integer, pair};

/// The config of one module.
pub(crate) struct Module<'c> {
    config: &'c QuantConfig,
    /// The module's entry.
    entry: Option<&'c ModuleSettings>,
    /// Whether the config has entries whose patterns are not understood. One of them might match
    /// this module, so a contradiction between config and shapes is no error then.
    pub uncertain: bool,
    /// Whether the config says that the module is not quantized.
    pub skipped: bool,
}

/// The settings of a module in a config.
#[derive(Debug, PartialEq)]
struct ModuleSettings {
    /// Keys and values: texts, numbers, flags and short lists of them. A list rather than a map,
    /// which takes five times the memory, for a config can have an entry for each of a hundred
    /// thousand modules.
    values: Box<[(String, Value)]>,
    /// Name of the place that has them.
    place: Arc<str>,
    /// The settings of another entry for the same modules, one of which holds for each of them.
    other: Option<Arc<Self>>,
}

impl ModuleSettings {
    /// The settings `rule`, where `other` is for the same modules.
    fn with_other(rule: &Self, other: Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            values: rule.values.clone(),
            place: rule.place.clone(),
            other: Some(other),
        })
    }

    fn new(map: &Map<String, Value>, place: &ConfigPlace) -> Arc<Self> {
        let is_setting = |value: &Value| match value {
            Value::Array(items) => {
                items.len() <= 4 && !items.iter().any(|v| v.is_array() || v.is_object())
            }
            value => !value.is_object(),
        };
        let settings = map.iter().filter(|(_, value)| is_setting(value));
        Arc::new(Self {
            values: settings
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            place: place.name.as_str().into(),
            other: None,
        })
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.values
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, value)| value)
    }
}

/// The config entry of a module. `None`: the module is not quantized. Shared, because one entry can
/// have many targets, and most modules have equal entries.
type ModuleEntry = Option<Arc<ModuleSettings>>;

/// All entries of a config for single modules.
#[derive(Debug, Clone, Default)]
pub(super) struct ModuleRules {
    paths: HashMap<String, Vec<ModuleEntry>>,
    patterns: PatternList<ModuleEntry>,
    /// Entries for the modules of a class, such as `Linear`, or of every class (an empty name).
    classes: Vec<(String, ModuleEntry)>,
    /// The settings that were entered last, for the next ones to share.
    last: Option<Arc<ModuleSettings>>,
    /// Whether an expression of a dialect that is not understood was left out.
    has_unread: bool,
    /// Whether there is MLX's config, whose paths may lack the first module of a multimodal model
    /// (mlx-vlm `_quantization_path_aliases`).
    is_of_mlx: bool,
}

enum ModuleMatcher {
    Path(String),
    Expression(Pattern),
    Class(String),
}

/// How each producer writes rules for single modules. Of two rules that fit a module alike, the one
/// that is read first holds, so the order counts where a config has keys of several producers.
const DIALECTS: &[fn(&mut ModuleRules, &ConfigPlace)] = &[
    ModuleRules::read_modelopt,
    ModuleRules::read_auto_round,
    ModuleRules::read_gptqmodel,
    ModuleRules::read_mlx,
    ModuleRules::read_quark,
    ModuleRules::read_vptq,
    ModuleRules::read_compressed_tensors,
];

/// AutoRound lists modules that it leaves as floats with 16 bits; codes are always narrower.
const FLOAT_BITS: i64 = 16;

impl ModuleRules {
    pub(super) fn new(places: &[ConfigPlace]) -> Self {
        let mut all = Self::default();
        for place in places {
            DIALECTS.iter().for_each(|read| read(&mut all, place));
        }
        all
    }

    /// The matcher of an expression that is compiled by `compile`. `None` if it does not compile,
    /// or if there is no room for it.
    fn expression(
        &self,
        text: &str,
        compile: fn(&str) -> Result<Pattern, String>,
    ) -> Option<ModuleMatcher> {
        if self.patterns.is_full() {
            return None;
        }
        compile(text).ok().map(ModuleMatcher::Expression)
    }

    /// The matcher of `text`: a path, an expression after `re:`, or a pattern with `*`. `None` as
    /// for an [`expression`](Self::expression).
    fn matcher(&self, text: &str) -> Option<ModuleMatcher> {
        match Pattern::is_in_config(text) {
            true => self.expression(text, Pattern::of_config),
            false => Some(ModuleMatcher::Path(text.to_owned())),
        }
    }

    /// Adds an entry: an object, or `false` for a module that is not quantized. Other values are
    /// ignored.
    fn add(&mut self, place: &ConfigPlace, matcher: Option<ModuleMatcher>, value: &Value) {
        match value {
            // `true` says nothing that the whole config does not, and numbers or strings are
            // settings that lie under the same keys.
            Value::Object(map) => {
                let settings = ModuleSettings::new(map, place);
                let last = self.last.take().filter(|last| *last == settings);
                let settings = last.unwrap_or(settings);
                self.last = Some(settings.clone());
                self.enter(matcher, Some(settings));
            }
            Value::Bool(false) => self.enter(matcher, None),
            _ => {}
        }
    }

    fn enter(&mut self, matcher: Option<ModuleMatcher>, entry: ModuleEntry) {
        match matcher {
            Some(ModuleMatcher::Path(path)) => self.paths.entry(path).or_default().push(entry),
            // The rule is left out, and every module becomes uncertain: a contradiction with the
            // shapes may be due to this rule.
            Some(ModuleMatcher::Expression(expression)) => {
                self.has_unread |= !self.patterns.push(expression, entry);
            }
            Some(ModuleMatcher::Class(class)) => self.classes.push((class, entry)),
            None => self.has_unread = true,
        }
    }

    /// The entry of `module`: by its path, else by the first pattern that matches, else by class.
    fn of(&self, module: &str) -> Option<&ModuleEntry> {
        // A path is the most specific rule, whatever its place in the file. The expression that
        // AutoRound's path may also be is tried after it.
        let inner = module.strip_prefix("language_model.");
        let alias = inner.filter(|_| self.is_of_mlx);
        let by_path = self.paths.get(module);
        let by_path = by_path.or_else(|| self.paths.get(alias?));
        // An entry for all experts of a layer is under the path of what holds them (ModelOpt).
        let of_experts = || {
            let (layer, _) = module.rsplit_once(".experts.")?;
            self.paths.get(&module[..layer.len() + ".experts".len()])
        };
        let by_path = by_path.or_else(of_experts);
        let by_path = by_path.and_then(|entry| entry.first());
        let by_pattern = || self.patterns.find(module);
        by_path
            .or_else(by_pattern)
            .or_else(|| self.of_class(module))
    }

    /// The entry for the class of `module`. Files do not tell classes: an embedding is told by its
    /// name, and whatever else has a weight that is quantized is a linear layer, or of a class that
    /// only the model's code knows. If no entry is for the class, the first holds: codes have
    /// settings, and the shapes are checked against them.
    fn of_class(&self, module: &str) -> Option<&ModuleEntry> {
        let (class, other) = if is_embedding(module) {
            (EMBEDDING, LINEAR)
        } else {
            (LINEAR, EMBEDDING)
        };
        let mut others = self.classes.iter().filter(|(name, _)| name != other);
        let named = self.classes.iter().find(|(name, _)| name == class);
        let found = named.or_else(|| others.next());
        found
            .or_else(|| self.classes.first())
            .map(|(_, entry)| entry)
    }
}

/// The entries of the object under `key`, sorted by their keys.
fn objects<'p>(place: &'p ConfigPlace, key: &str) -> impl Iterator<Item = (&'p String, &'p Value)> {
    let map = place.get(key).and_then(Value::as_object);
    map.into_iter().flatten()
}

/// Whether `path` is a module's although it has no dot.
fn is_top_module(path: &str) -> bool {
    matches!(path, "lm_head" | "embed_tokens" | "model")
}

impl QuantConfig {
    /// Whether patterns of the config matched names as far as they had to.
    ///
    /// # Errors
    /// `LimitExceeded` if a match was given up: what the config says of modules is unknown then.
    pub(crate) fn check_matches(&self) -> crate::Result<()> {
        let rules = self.rules.get().map(|rules| rules.patterns.check());
        let skips = self.skipped.get().map(super::SkipLists::check);
        rules.into_iter().chain(skips).collect()
    }

    /// The config of the module at path `module`.
    pub(crate) fn at(&self, module: &str) -> Module<'_> {
        // At the first question: models without single rules never compile an expression.
        let rules = self.rules.get_or_init(|| ModuleRules::new(&self.places));
        let found = rules.of(module);
        let entry = found.and_then(Option::as_ref).map(|entry| &**entry);
        // An entry of `None` is a rule as well: it says that the module is not quantized.
        let skipped = self.skips(module) || matches!(found, Some(None));
        Module { config: self, entry, uncertain: rules.has_unread, skipped }
    }
}

impl<'c> Module<'c> {
    /// The module by each of the entries that claim it, in the order in which they count. Where
    /// several do, the tensors tell which one holds.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = Self> {
        let with = |entry| Self { entry, ..*self };
        let first = std::iter::once(self.entry);
        let others = std::iter::successors(self.entry, |entry| entry.other.as_deref()).skip(1);
        first.chain(others.map(Some)).map(with)
    }

    /// Whether the config has an entry for this module, rather than values for all.
    pub(crate) fn is_named(&self) -> bool {
        self.entry.is_some()
    }

    /// The value that `f` reads under the first of `keys`, with the name of its place: from the
    /// module's entry, else from the whole config.
    fn first<T>(&self, keys: &[&str], f: impl Fn(&'c Value) -> Option<T>) -> Option<(T, &'c str)> {
        // The keys are tried in the entry first, all of them, so that an alias in the entry
        // outranks the usual key of the whole config.
        let in_entry = self.entry.and_then(|entry| {
            let value = keys.iter().find_map(|key| f(entry.get(key)?))?;
            Some((value, &*entry.place))
        });
        in_entry.or_else(|| {
            self.config
                .first(|place| keys.iter().find_map(|key| f(place.get(key)?)))
        })
    }

    /// The integer under the first of `keys` that has one, with the name of its place.
    pub(crate) fn int(&self, keys: &[&str]) -> Option<(i64, &'c str)> {
        self.first(keys, integer)
    }

    /// The integer under `key` in the entry for this module alone.
    pub(crate) fn own_int(&self, key: &str) -> Option<i64> {
        integer(self.entry?.get(key)?)
    }

    /// The string under the first of `keys` that has one, with the name of its place.
    pub(crate) fn text(&self, keys: &[&str]) -> Option<(&'c str, &'c str)> {
        self.first(keys, Value::as_str)
    }

    /// The boolean under `key`.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.first(&[key], flag).map(|(flag, _)| flag)
    }

    /// The number under `key`.
    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        self.first(&[key], Value::as_f64).map(|(number, _)| number)
    }

    /// The two integers of the list under `key`, with the name of its place.
    pub(crate) fn two_ints(&self, key: &str) -> Option<([i64; 2], &'c str)> {
        self.first(&[key], |value| match value.as_array()?.as_slice() {
            [first, second] => Some([integer(first)?, integer(second)?]),
            _ => None,
        })
    }

    /// The place that says that groups are of columns in the order of their activations:
    /// compressed-tensors' `actorder` is `group`, its alias `dynamic`, or true
    /// (`ActivationOrdering`, `validate_actorder`).
    pub(crate) fn reorders_groups(&self) -> Option<&'c str> {
        let is_group = |value: &Value| match value {
            Value::Bool(flag) => Some(*flag),
            value => {
                let order = value.as_str()?.to_ascii_lowercase();
                Some(["group", "dynamic"].contains(&order.as_str()))
            }
        };
        let (is_group, place) = self.first(&["actorder"], is_group)?;
        is_group.then_some(place)
    }

    /// Whether the config has `key`, and null under it.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.first(&[key], |value| value.is_null().then_some(()))
            .is_some()
    }

    /// `[rows, columns]` of the blocks that share a scale, with the name of its place. `None` of a
    /// module that is not quantized.
    pub(crate) fn block(&self) -> Option<([usize; 2], &'c str)> {
        if self.skipped {
            return None;
        }
        // An entry of AutoRound that has groups has no blocks of the model's.
        let own = |key: &&str| self.entry?.get(key).and_then(pair);
        if self.own_int("group_size").is_some() && BLOCK_KEYS.iter().find_map(own).is_none() {
            return None;
        }
        self.first(BLOCK_KEYS, pair)
    }

    /// The side of the square blocks of ModelOpt's FP8 algorithms; `None` of one without blocks.
    /// 128, unless the module's entry has another `group_size` (vLLM
    /// `ModelOptMixedPrecisionConfig`).
    pub(crate) fn block_side(&self) -> Option<usize> {
        let (algorithm, _) = self.text(&["quant_algo"])?;
        let is_same = |name: &&&str| algorithm.eq_ignore_ascii_case(name);
        BLOCK_ALGORITHMS.iter().find(is_same)?;
        let side = self.own_int("group_size");
        let side = side.and_then(|n| usize::try_from(n).ok());
        Some(side.filter(|&n| n > 0).unwrap_or(BLOCK_SIDE))
    }
}

/// ModelOpt's algorithms for FP8 in square blocks. TensorRT-LLM has another name for it.
const BLOCK_ALGORITHMS: &[&str] = &["FP8_PB_WO", "FP8_PB_REAL", "FP8_BLOCK_SCALES"];

/// Keys of the size of blocks: of transformers, compressed-tensors, Quark, and of AutoRound, whose
/// `group_size` is a number where it has groups.
const BLOCK_KEYS: &[&str] = &["weight_block_size", "block_structure", "block_size", "group_size"];

/// Side of their blocks.
const BLOCK_SIDE: usize = 128;

/// Ending of the names of quanto's maps, which hold an entry for each module.
const QUANTO_MAP_SUFFIX: &str = "_qmap.json";

/// Names of quanto's maps in `dir`, sorted. A directory that cannot be listed has none.
pub(super) fn list_quanto_maps(dir: &Path) -> Vec<String> {
    list_ending(dir, QUANTO_MAP_SUFFIX)
}

/// Names in `dir` that end with `ending`, sorted. A directory that cannot be listed has none.
pub(super) fn list_ending(dir: &Path, ending: &str) -> Vec<String> {
    // A bare file name has an empty parent, which no system opens as a directory.
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.retain(|name| name.ends_with(ending));
    // `read_dir` has no order. The first map counts where two have an entry.
    names.sort_unstable();
    names
}
