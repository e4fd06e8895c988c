//! [`TransformConfig`]: what `transform_config` of compressed-tensors says of the matrices that
//! weights and activations are multiplied with.
//!
//! Source: compressed-tensors `transform/transform_config.py`, `transform_scheme.py`,
//! `transform_args.py`, `utils/match.py`.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::QuantConfig;
use super::module::is_embedding;
use super::pattern::Pattern;

/// Key of the config.
const KEY: &str = "transform_config";

/// Most schemes, targets and ignored names of a config. All are tried for each module; real configs
/// have some dozens.
const MAX_TARGETS: usize = 1000;

/// All transforms of a model.
#[derive(Debug, Clone, Default)]
pub(crate) struct TransformConfig {
    pub schemes: Vec<TransformScheme>,
}

/// Transforms with the same matrices.
#[derive(Debug, Clone)]
pub(crate) struct TransformScheme {
    pub name: String,
    pub kind: TransformKind,
    /// Whether rows and columns of the matrices are shuffled.
    pub is_randomized: bool,
    /// Rows and columns of the matrices, each of which multiplies one block; `None`: one matrix
    /// multiplies the whole dimension.
    pub block: Option<usize>,
    pub uses: Vec<TransformUse>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransformKind {
    /// Sylvester's Hadamard matrix.
    Hadamard,
    /// A stored matrix of 1 and -1.
    RandomHadamard,
    /// A stored matrix, and its inverse.
    RandomMatrix,
}

/// What is multiplied with a matrix, in the config's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum TransformLocation {
    Input,
    WeightInput,
    WeightOutput,
    Output,
    KCache,
    QAttn,
}

impl TransformLocation {
    const ALL: [Self; 6] = [
        Self::Input,
        Self::WeightInput,
        Self::WeightOutput,
        Self::Output,
        Self::KCache,
        Self::QAttn,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::WeightInput => "weight_input",
            Self::WeightOutput => "weight_output",
            Self::Output => "output",
            Self::KCache => "k_cache",
            Self::QAttn => "q_attn",
        }
    }

    /// Whether activations are multiplied, whenever the model runs. Weights were multiplied once,
    /// before they were stored.
    pub(crate) fn is_online(self) -> bool {
        !matches!(self, Self::WeightInput | Self::WeightOutput)
    }
}

/// One use of a scheme's matrices.
#[derive(Debug, Clone)]
pub(crate) struct TransformUse {
    pub location: TransformLocation,
    pub is_inverse: bool,
    targets: Vec<String>,
    ignored: Vec<String>,
    patterns: [Vec<ModuleTarget>; 2],
}

/// How a module is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetedBy {
    Name,
    /// By the class `Linear`, which files do not tell.
    Class,
}

/// A module, modules whose names match an expression, or those of a class.
#[derive(Debug, Clone)]
enum ModuleTarget {
    Name(String),
    Expression(Pattern),
}

impl TransformUse {
    /// Whether both are of the same modules and matrices.
    fn has_modules_of(&self, other: &Self) -> bool {
        let is_same = self.is_inverse == other.is_inverse;
        is_same && self.targets == other.targets && self.ignored == other.ignored
    }

    /// A target that is none of `modules`, or an ignored name, that may be a class other than
    /// `Linear`.
    pub(crate) fn unknown_target(&self, modules: &HashSet<String>) -> Option<&str> {
        let is_plain = |name: &&String| !name.starts_with("re:") && *name != "Linear";
        let mut targets = self.targets.iter().filter(is_plain);
        // Embeddings are never transformed here, and names of modules may be ignored in vain.
        let is_class = |name: &&String| {
            let is_upper = name.starts_with(|c: char| c.is_ascii_uppercase());
            is_upper && !name.contains('.') && *name != "Embedding"
        };
        let ignored = self.ignored.iter().filter(is_plain).find(is_class);
        let unknown = targets.find(|name| !modules.contains(*name)).or(ignored);
        unknown.map(String::as_str)
    }

    /// Whether `module` is multiplied.
    ///
    /// # Errors
    /// An expression cannot be tried.
    pub(crate) fn targets(&self, module: &str) -> Result<Option<TargetedBy>, String> {
        let [targets, ignored] = &self.patterns;
        match matches(targets, module)? {
            Some(by) if matches(ignored, module)?.is_none() => Ok(Some(by)),
            _ => Ok(None),
        }
    }
}

fn matches(targets: &[ModuleTarget], module: &str) -> Result<Option<TargetedBy>, String> {
    let mut by_class = None;
    for target in targets {
        match target {
            ModuleTarget::Name(name) if name == module => return Ok(Some(TargetedBy::Name)),
            ModuleTarget::Name(name) if name == "Linear" && !is_embedding(module) => {
                by_class = Some(TargetedBy::Class);
            }
            ModuleTarget::Expression(pattern) if pattern.first_match(module)?.is_some() => {
                return Ok(Some(TargetedBy::Name));
            }
            ModuleTarget::Name(_) | ModuleTarget::Expression(_) => {}
        }
    }
    Ok(by_class)
}

impl QuantConfig {
    /// The transforms of the model; none without a `transform_config`.
    ///
    /// # Errors
    /// The config has something else than compressed-tensors writes, which could change weights.
    pub(crate) fn transforms(&self) -> Result<TransformConfig, String> {
        if !self.has(KEY) {
            return Ok(TransformConfig::default());
        }
        let section = self.section(KEY);
        let read = || {
            let config = section.ok_or("it is no object")?;
            check_keys(config, &["config_groups"])?;
            let groups = config.get("config_groups").and_then(Value::as_object);
            let groups = groups.ok_or("it has no `config_groups`")?;
            let schemes = groups.iter().map(|(name, scheme)| {
                let read = scheme
                    .as_object()
                    .ok_or_else(|| "it is no object".to_owned());
                let scheme = read.and_then(|scheme| TransformScheme::read(name, scheme));
                scheme.map_err(|what| format!("`{name}`: {what}"))
            });
            let schemes: Vec<TransformScheme> = schemes.collect::<Result<_, String>>()?;
            let uses = schemes.iter().flat_map(|scheme| &scheme.uses);
            let targets: usize = uses.map(|u| u.targets.len() + u.ignored.len()).sum();
            match targets + schemes.len() <= MAX_TARGETS {
                true => Ok(TransformConfig { schemes }),
                false => Err(format!("it has more than {MAX_TARGETS} schemes and targets")),
            }
        };
        read().map_err(|what: String| format!("`{KEY}`: {what}"))
    }
}

impl TransformConfig {
    /// Checks that no matrix of activations is shuffled, and that those of attention cancel.
    ///
    /// # Errors
    /// A plain model with other weights cannot compute the same.
    pub(crate) fn check_online(&self) -> Result<(), String> {
        for scheme in &self.schemes {
            let online = scheme.uses.iter().filter(|u| u.location.is_online());
            for found in online {
                let (name, location) = (&scheme.name, found.location.name());
                if scheme.is_randomized {
                    return Err(format!(
                        "`{name}` shuffles its matrices (`randomize`), of the location `{location}`"
                    ));
                }
                if !scheme.is_undone(found) {
                    return Err(format!(
                        "`{name}` has the location `{location}`, which no weight can undo"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl TransformScheme {
    /// Whether weights can undo a use, or another use does: queries and keys are multiplied with
    /// each other, and the same orthogonal matrix of both cancels.
    fn is_undone(&self, found: &TransformUse) -> bool {
        let other = match found.location {
            TransformLocation::QAttn => TransformLocation::KCache,
            TransformLocation::KCache => TransformLocation::QAttn,
            _ => return true,
        };
        let mut uses = self.uses.iter();
        self.kind != TransformKind::RandomMatrix
            && uses.any(|u| u.location == other && u.has_modules_of(found))
    }

    /// The location and the module of the scheme's stored matrix that is called `name`.
    pub(crate) fn matrix_of<'n>(&self, name: &'n str) -> Option<(TransformLocation, &'n str)> {
        let path = name.strip_suffix(".weight")?;
        let online = TransformLocation::ALL.into_iter().filter(|l| l.is_online());
        online.into_iter().find_map(|location| {
            let path = path.strip_suffix(location.name())?.strip_suffix('_')?;
            let module = path.strip_suffix(self.name.as_str())?.strip_suffix('.')?;
            Some((location, module))
        })
    }

    /// Whether `module` has a matrix of the scheme at a location. Attention may be targeted by its
    /// class, which files do not tell.
    pub(crate) fn has_matrix(&self, location: TransformLocation, module: &str) -> bool {
        let is_side = matches!(location, TransformLocation::Input | TransformLocation::Output);
        let mut uses = self.uses.iter().filter(|u| u.location == location);
        // An expression that cannot be tried is an error of `targets`.
        uses.any(|u| !is_side || u.targets(module).map_or(true, |by| by.is_some()))
    }

    fn read(name: &str, scheme: &Map<String, Value>) -> Result<Self, String> {
        let known = ["type", "apply", "randomize", "requires_grad", "head_dim", "precision"];
        check_keys(scheme, &known)?;
        let kind = match scheme.get("type").and_then(Value::as_str) {
            Some("hadamard") => TransformKind::Hadamard,
            Some("random-hadamard") => TransformKind::RandomHadamard,
            Some("random-matrix") => TransformKind::RandomMatrix,
            Some(other) => return Err(format!("the type `{other}` is unknown")),
            None => return Err("it has no `type`".to_owned()),
        };
        let block = match scheme.get("head_dim") {
            None | Some(Value::Null) => None,
            Some(size) => {
                let size = size.as_u64().and_then(|n| usize::try_from(n).ok());
                Some(size.filter(|&n| n > 0).ok_or("`head_dim` is no size")?)
            }
        };
        let uses = match scheme.get("apply") {
            None => vec![],
            Some(Value::Array(uses)) => {
                let uses = uses.iter().map(TransformUse::read);
                uses.collect::<Result<_, _>>()?
            }
            Some(_) => return Err("`apply` is no list".to_owned()),
        };
        Ok(Self {
            name: name.to_owned(),
            kind,
            is_randomized: flag(scheme, "randomize")?,
            block,
            uses,
        })
    }
}

impl TransformUse {
    fn read(json: &Value) -> Result<Self, String> {
        let map = json.as_object().ok_or("an entry of `apply` is no object")?;
        check_keys(map, &["targets", "location", "inverse", "ignore"])?;
        let stated = map
            .get("location")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let mut all = TransformLocation::ALL.into_iter();
        let location = all.find(|location| location.name() == stated);
        let [targets, ignored] = ["targets", "ignore"].map(|key| texts(map, key));
        let (targets, ignored) = (targets?, ignored?);
        Ok(Self {
            location: location.ok_or_else(|| format!("the location `{stated}` is unknown"))?,
            is_inverse: flag(map, "inverse")?,
            patterns: [compiled(&targets)?, compiled(&ignored)?],
            targets,
            ignored,
        })
    }
}

fn compiled(texts: &[String]) -> Result<Vec<ModuleTarget>, String> {
    let target = |text: &String| match text.starts_with("re:") {
        true => Pattern::of_config(text).map(ModuleTarget::Expression),
        false => Ok(ModuleTarget::Name(text.clone())),
    };
    texts.iter().map(target).collect()
}

/// The texts of a list, or a single text.
fn texts(map: &Map<String, Value>, key: &str) -> Result<Vec<String>, String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let found = match map.get(key) {
        None => Some(vec![]),
        Some(Value::Array(all)) => all.iter().map(text).collect(),
        Some(value) => text(value).map(|text| vec![text]),
    };
    found.ok_or_else(|| format!("`{key}` is no list of names"))
}

fn flag(map: &Map<String, Value>, key: &str) -> Result<bool, String> {
    match map.get(key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(format!("`{key}` is no boolean")),
    }
}

fn check_keys(map: &Map<String, Value>, known: &[&str]) -> Result<(), String> {
    match map.keys().find(|key| !known.contains(&key.as_str())) {
        Some(unknown) => Err(format!("the key `{unknown}` is unknown")),
        None => Ok(()),
    }
}
