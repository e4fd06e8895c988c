//! What a config says of one module: its own entry, if it has one, before what holds for all. The entry is the one under
//! its path, else the first whose pattern fits (gptqmodel `dynamic_get`, auto-round `get_layer_config`).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::skips::{self, compile};
use super::{ConfigPlace, QuantConfig, flag, pair};

/// What holds for one module.
pub(crate) struct Module<'c> {
    config: &'c QuantConfig,
    own: Option<(&'c Map<String, Value>, &'c str)>,
    /// Whether there are rules that are not understood, one of which might mean it.
    pub uncertain: bool,
    /// Whether the config says that it is not quantized.
    pub skipped: bool,
}

/// What rules say of a module; `None`: it is not quantized.
type ModuleEntry = Option<Arc<(Map<String, Value>, String)>>;

/// The rules of a config for single modules.
#[derive(Debug, Clone, Default)]
pub(super) struct ModuleRules {
    /// By a module's path.
    paths: HashMap<String, Vec<ModuleEntry>>,
    patterns: Vec<(regex_lite::Regex, ModuleEntry)>,
    /// For modules of a class, which no file names.
    class: Vec<ModuleEntry>,
    /// Whether some expression is of a dialect that is not understood.
    unread: bool,
}

enum ModuleMatcher {
    Path(String),
    Expression(regex_lite::Regex),
    Class,
}

/// Expressions that are looked at.
const MAX_PATTERNS: usize = 10_000;

/// Keys of a config that hold an object for each of some modules, by path.
const BY_PATH: &[&str] = &["quantized_layers"];

/// Codes are narrower than this; what has as many bits is not quantized.
const FLOAT_BITS: i64 = 16;

impl ModuleRules {
    pub(super) fn new(places: &[ConfigPlace]) -> Self {
        let mut all = Self::default();
        places.iter().for_each(|place| all.read(place));
        all
    }

    fn add(&mut self, place: &ConfigPlace, matcher: Option<ModuleMatcher>, value: &Value) {
        match value {
            Value::Object(map) => {
                self.enter(matcher, Some(Arc::new((map.clone(), place.name.clone()))))
            }
            Value::Bool(false) => self.enter(matcher, None),
            _ => {}
        }
    }

    fn enter(&mut self, matcher: Option<ModuleMatcher>, says: ModuleEntry) {
        match matcher {
            Some(ModuleMatcher::Path(path)) => self.paths.entry(path).or_default().push(says),
            Some(ModuleMatcher::Expression(_)) if self.patterns.len() >= MAX_PATTERNS => {
                self.unread = true
            }
            Some(ModuleMatcher::Expression(expression)) => self.patterns.push((expression, says)),
            Some(ModuleMatcher::Class) => self.class.push(says),
            None => self.unread = true,
        }
    }

    fn read(&mut self, place: &ConfigPlace) {
        for key in BY_PATH {
            let modules = place
                .get(key)
                .and_then(Value::as_object)
                .into_iter()
                .flatten();
            modules.for_each(|(path, value)| self.add(place, matcher(path), value));
        }
        for (name, value) in place.entries("extra_config") {
            let is_float = value
                .get("bits")
                .and_then(Value::as_i64)
                .is_some_and(|bits| bits >= FLOAT_BITS);
            let value = if is_float { &Value::Bool(false) } else { value };
            self.add(place, Some(ModuleMatcher::Path(name.to_owned())), value);
            // AutoRound takes what is no module's name for an expression, and searches it anywhere in the name.
            if name.contains(|c: char| r"*+?[](){}|^$\".contains(c)) {
                self.add(
                    place,
                    compile(name).ok().map(ModuleMatcher::Expression),
                    value,
                );
            }
        }
        for (pattern, value) in place.entries("dynamic") {
            match pattern.strip_prefix("-:") {
                Some(pattern) => self.add(place, expression(pattern), &Value::Bool(false)),
                None => self.add(
                    place,
                    expression(pattern.strip_prefix("+:").unwrap_or(pattern)),
                    value,
                ),
            }
        }
        // MLX has a module's path as a key of its own.
        let paths = place
            .values
            .iter()
            .filter(|(path, _)| path.contains('.') || is_top_module(path));
        paths.for_each(|(path, value)| {
            self.add(place, Some(ModuleMatcher::Path(path.clone())), value)
        });
        self.read_quark(place);
        for (_, group) in place
            .get("config_groups")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            self.read_group(place, group);
        }
    }

    /// A config group of compressed-tensors.
    fn read_group(&mut self, place: &ConfigPlace, group: &Value) {
        let Some(mut args) = group.get("weights").and_then(Value::as_object).cloned() else {
            return;
        };
        if let Some(format) = group.get("format") {
            args.insert("format".to_owned(), format.clone());
        }
        let says = Some(Arc::new((args, place.name.clone())));
        let targets = group
            .get("targets")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        for target in targets {
            let is_path =
                target.starts_with("re:") || target.contains('.') || is_top_module(target);
            self.enter(
                if is_path {
                    matcher(target)
                } else {
                    Some(ModuleMatcher::Class)
                },
                says.clone(),
            );
        }
    }

    /// Quark's config: what it says of weights, by path or pattern, by class, and of all.
    fn read_quark(&mut self, place: &ConfigPlace) {
        let export = place
            .get("export")
            .and_then(|export| export.get("pack_method"));
        let weight = |layer: &Value| {
            let mut args = match layer.get("weight")? {
                Value::Object(args) => args.clone(),
                Value::Null => return Some(Value::Bool(false)),
                // Levels of scales: a dtype that nothing decodes.
                levels => Map::from_iter([("dtype".to_owned(), Value::String(levels.to_string()))]),
            };
            args.extend(export.map(|method| ("pack_method".to_owned(), method.clone())));
            Some(Value::Object(args))
        };
        for (path, layer) in place
            .get("layer_quant_config")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            self.add(
                place,
                matcher(path),
                &weight(layer).unwrap_or_else(|| layer.clone()),
            );
        }
        if let Some(weight) = place.get("global_quant_config").and_then(weight) {
            self.add(place, Some(ModuleMatcher::Class), &weight);
        }
    }

    /// What is said of `module`: under its path, else by the first pattern that fits, else of its class.
    fn of(&self, module: &str) -> Option<&ModuleEntry> {
        let by_path = self.paths.get(module).and_then(|says| says.first());
        let by_pattern = || {
            self.patterns
                .iter()
                .find(|(e, _)| e.is_match(module))
                .map(|(_, says)| says)
        };
        by_path.or_else(by_pattern).or_else(|| self.class.first())
    }
}

fn expression(text: &str) -> Option<ModuleMatcher> {
    // Python's `re.match` anchors at the start only.
    compile(&format!("^(?:{text})"))
        .ok()
        .map(ModuleMatcher::Expression)
}

/// A path, `re:` and an expression, or a pattern with `*`.
fn matcher(text: &str) -> Option<ModuleMatcher> {
    match skips::expression(text) {
        Some(expression) => compile(&expression).ok().map(ModuleMatcher::Expression),
        None => Some(ModuleMatcher::Path(text.to_owned())),
    }
}

/// Modules without a dot in their path.
fn is_top_module(path: &str) -> bool {
    matches!(path, "lm_head" | "embed_tokens" | "model")
}

impl QuantConfig {
    /// What it says of `module`.
    pub(crate) fn at(&self, module: &str) -> Module<'_> {
        let rules = self.rules.get_or_init(|| ModuleRules::new(&self.places));
        let says = rules.of(module);
        let own = says
            .and_then(Option::as_ref)
            .map(|says| (&says.0, says.1.as_str()));
        let skipped = self.skips(module) || matches!(says, Some(None));
        Module {
            config: self,
            own,
            uncertain: rules.unread,
            skipped,
        }
    }
}

impl<'c> Module<'c> {
    fn first<T>(&self, keys: &[&str], f: impl Fn(&'c Value) -> Option<T>) -> Option<(T, &'c str)> {
        let own = self
            .own
            .and_then(|(map, place)| Some((keys.iter().find_map(|key| f(map.get(*key)?))?, place)));
        own.or_else(|| {
            self.config
                .first(|place| keys.iter().find_map(|key| f(place.get(key)?)))
        })
    }

    /// An integer under the first of `keys` that is there, with the place's name.
    pub(crate) fn int(&self, keys: &[&str]) -> Option<(i64, &'c str)> {
        self.first(keys, |value| {
            value
                .as_i64()
                .or_else(|| value.as_str()?.trim().parse().ok())
        })
    }

    /// A string under the first of `keys` that is there, with the place's name.
    pub(crate) fn text(&self, keys: &[&str]) -> Option<(&'c str, &'c str)> {
        self.first(keys, Value::as_str)
    }

    /// A boolean under `key`.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.first(&[key], flag).map(|(flag, _)| flag)
    }

    /// `[rows, columns]` of the blocks that share a scale.
    pub(crate) fn block(&self) -> Option<([usize; 2], &'c str)> {
        if self.skipped {
            return None;
        }
        self.first(&["weight_block_size", "block_structure"], pair)
    }
}

/// Endings of files that say of each module how quanto has quantized it.
const MODULE_MAP: &str = "_qmap.json";

/// Names of quanto's maps in `dir`, sorted.
pub(super) fn maps(dir: &Path) -> Vec<String> {
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.retain(|name| name.ends_with(MODULE_MAP));
    names.sort_unstable();
    names
}
