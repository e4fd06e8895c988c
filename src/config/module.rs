//! What a config says of one module: its own entry, if it has one, before what holds for all. The entry is the one under
//! its path, else the first whose pattern fits (gptqmodel `dynamic_get`, auto-round `get_layer_config`).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::skips::{self, compile};
use super::{Place, QuantConfig, flag, pair};

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
type Says = Option<Arc<(Map<String, Value>, String)>>;

/// The rules of a config for single modules.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    /// By a module's path.
    paths: HashMap<String, Vec<Says>>,
    patterns: Vec<(regex_lite::Regex, Says)>,
    /// For modules of a class, which no file names.
    class: Vec<Says>,
    /// Whether some expression is of a dialect that is not understood.
    unread: bool,
}

enum Matcher {
    Path(String),
    Expression(regex_lite::Regex),
    Class,
}

/// Expressions that are looked at.
const MAX_PATTERNS: usize = 10_000;

/// How each producer writes rules for single modules. Of two rules that fit a module alike, the one that is read first
/// holds, so the order counts where a config has keys of several producers.
const DIALECTS: &[fn(&mut Rules, &Place)] = &[
    Rules::read_modelopt,
    Rules::read_auto_round,
    Rules::read_gptqmodel,
    Rules::read_mlx,
    Rules::read_quark,
    Rules::read_compressed_tensors,
];

/// Codes are narrower than this; what has as many bits is not quantized.
const FLOAT_BITS: i64 = 16;

impl Rules {
    pub(super) fn new(places: &[Place]) -> Self {
        let mut all = Self::default();
        for place in places {
            DIALECTS.iter().for_each(|read| read(&mut all, place));
        }
        all
    }

    fn add(&mut self, place: &Place, matcher: Option<Matcher>, value: &Value) {
        match value {
            Value::Object(map) => {
                self.enter(matcher, Some(Arc::new((map.clone(), place.name.clone()))))
            }
            Value::Bool(false) => self.enter(matcher, None),
            _ => {}
        }
    }

    fn enter(&mut self, matcher: Option<Matcher>, says: Says) {
        match matcher {
            Some(Matcher::Path(path)) => self.paths.entry(path).or_default().push(says),
            Some(Matcher::Expression(_)) if self.patterns.len() >= MAX_PATTERNS => {
                self.unread = true
            }
            Some(Matcher::Expression(expression)) => self.patterns.push((expression, says)),
            Some(Matcher::Class) => self.class.push(says),
            None => self.unread = true,
        }
    }

    /// ModelOpt: an object for each of some modules, by path or pattern.
    fn read_modelopt(&mut self, place: &Place) {
        for (path, value) in objects(place, "quantized_layers") {
            self.add(place, matcher(path), value);
        }
    }

    /// AutoRound: `extra_config`, by a module's name or an expression.
    fn read_auto_round(&mut self, place: &Place) {
        for (name, value) in place.entries("extra_config") {
            let is_float = value
                .get("bits")
                .and_then(Value::as_i64)
                .is_some_and(|bits| bits >= FLOAT_BITS);
            let value = if is_float { &Value::Bool(false) } else { value };
            self.add(place, Some(Matcher::Path(name.to_owned())), value);
            // AutoRound takes what is no module's name for an expression, and searches it anywhere in the name.
            if name.contains(|c: char| r"*+?[](){}|^$\".contains(c)) {
                self.add(place, compile(name).ok().map(Matcher::Expression), value);
            }
        }
    }

    /// GPTQModel: `dynamic`, by expressions; one after `-:` leaves its modules unquantized.
    fn read_gptqmodel(&mut self, place: &Place) {
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
    }

    /// MLX: a module's path is a key of the config.
    fn read_mlx(&mut self, place: &Place) {
        let paths = place
            .values
            .iter()
            .filter(|(path, _)| path.contains('.') || is_top_module(path));
        paths.for_each(|(path, value)| self.add(place, Some(Matcher::Path(path.clone())), value));
    }

    /// Quark: what the config says of weights, by path or pattern (`layer_quant_config`), and of all others
    /// (`global_quant_config`).
    fn read_quark(&mut self, place: &Place) {
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
        for (path, layer) in objects(place, "layer_quant_config") {
            let rule = weight(layer).unwrap_or_else(|| layer.clone());
            self.add(place, matcher(path), &rule);
        }
        if let Some(weight) = place.get("global_quant_config").and_then(weight) {
            self.add(place, Some(Matcher::Class), &weight);
        }
    }

    /// compressed-tensors: groups of modules (`config_groups`), each with its targets: paths, patterns and classes.
    fn read_compressed_tensors(&mut self, place: &Place) {
        for (_, group) in objects(place, "config_groups") {
            let Some(mut args) = group.get("weights").and_then(Value::as_object).cloned() else {
                continue;
            };
            if let Some(format) = group.get("format") {
                args.insert("format".to_owned(), format.clone());
            }
            let rule = Some(Arc::new((args, place.name.clone())));
            let targets = group.get("targets").and_then(Value::as_array);
            for target in targets.into_iter().flatten().filter_map(Value::as_str) {
                let is_path =
                    target.starts_with("re:") || target.contains('.') || is_top_module(target);
                let matcher = if is_path {
                    matcher(target)
                } else {
                    Some(Matcher::Class)
                };
                self.enter(matcher, rule.clone());
            }
        }
    }

    /// What is said of `module`: under its path, else by the first pattern that fits, else of its class.
    fn of(&self, module: &str) -> Option<&Says> {
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

/// The entries of the object under `key`, sorted by their keys.
fn objects<'p>(place: &'p Place, key: &str) -> impl Iterator<Item = (&'p String, &'p Value)> {
    let map = place.get(key).and_then(Value::as_object);
    map.into_iter().flatten()
}

fn expression(text: &str) -> Option<Matcher> {
    // Python's `re.match` anchors at the start only.
    compile(&format!("^(?:{text})"))
        .ok()
        .map(Matcher::Expression)
}

/// A path, `re:` and an expression, or a pattern with `*`.
fn matcher(text: &str) -> Option<Matcher> {
    match skips::expression(text) {
        Some(expression) => compile(&expression).ok().map(Matcher::Expression),
        None => Some(Matcher::Path(text.to_owned())),
    }
}

/// Modules without a dot in their path.
fn is_top_module(path: &str) -> bool {
    matches!(path, "lm_head" | "embed_tokens" | "model")
}

impl QuantConfig {
    /// What it says of `module`.
    pub(crate) fn at(&self, module: &str) -> Module<'_> {
        let rules = self.rules.get_or_init(|| Rules::new(&self.places));
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
