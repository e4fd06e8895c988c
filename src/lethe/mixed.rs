//! Models whose tensors have several schemes: which may stand beside each other, which tensor has
//! which, and what the config says of them.
//!
//! - `recipe`: the widths of mlx-lm's recipes.

mod recipe;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use self::recipe::Recipe;
use super::decision::Candidate;
use super::scheme::Library;
use super::schemes::SCHEMES;
use super::{Forget, ForgetScheme, Method};
use crate::config::ByName;
use crate::remember::EncodedAs;
use crate::{AnamnesisError, Result};

/// Schemes of which those of matrices are chosen for a size. The first row that has the scheme of the
/// model counts.
#[cfg(feature = "models")]
const CHOICES: &[&[&str]] = &[
    &["mlx-2bit", "mlx-3bit", "mlx-4bit", "mlx-5bit", "mlx-6bit", "mlx-8bit"],
    &["mlx-nvfp4", "mlx-mxfp8"],
    &["mlx-mxfp4", "mlx-mxfp8"],
    &["w4a16", "w8a16"],
    &["w4a16-asym", "w8a16"],
    &["nvfp4-ct", "fp8-channel"],
    &["mxfp4", "mxfp8"],
    &["nvfp4", "mxfp8-modelopt"],
];

impl ForgetScheme {
    /// The scheme called `name`, with the parameters of this one, for tensors of a model of this one.
    ///
    /// # Errors
    /// `Unsupported` if none is called so, `Usage` if it is of another library.
    pub(super) fn beside(&self, name: &str) -> Result<Self> {
        let other: Self = name.parse()?;
        let library = self.library().filter(|_| !other.has_recipe());
        if library.is_some() && other.library() == library {
            return Ok(other.with_parameters_of(self));
        }
        let known = match self.library() {
            Some(library) => format!("of its library are {}", library.names()),
            None => "schemes of MLX, compressed-tensors and ModelOpt stand beside others of theirs"
                .to_owned(),
        };
        let what = format!("`{other}`: a model of {self} has no tensors of it; {known}");
        Err(AnamnesisError::usage(what))
    }
}

impl Library {
    /// Names of its schemes.
    fn names(self) -> String {
        let rows = SCHEMES.iter().filter(|row| row.library == Some(self));
        let rows = rows.filter(|row| row.recipe.is_none());
        rows.map(|row| row.name).collect::<Vec<_>>().join(", ")
    }

    /// `config`, which describes one scheme, with what is stored in another. `modules` are all that
    /// are encoded, with what the config of each alone would be.
    ///
    /// Source: mlx-lm 0.32.2 `utils.py` (`load_model`); compressed-tensors 0.20
    /// `config/base.py` (`CompressionFormat.mixed_precision`), `quantization/quant_config.py`;
    /// SGLang `layers/quantization/modelopt_quant.py` (`ModelOptMixedPrecisionConfig`).
    fn config(self, mut config: Value, modules: &[(&str, Value)], all: bool) -> Value {
        match self {
            Self::Mlx => {
                let own = entry_of_mlx(&config);
                let entries = modules.iter().filter(|(_, of)| all || *of != own);
                entries.for_each(|(module, of)| config[*module] = of.clone());
            }
            Self::CompressedTensors => {
                let mut groups: Vec<(Value, Vec<&str>)> = vec![];
                for (module, of) in modules {
                    let of = &of["config_groups"]["group_0"];
                    match groups.iter_mut().find(|(group, _)| group == of) {
                        Some((_, targets)) => targets.push(module),
                        None => groups.push((of.clone(), vec![module])),
                    }
                }
                let groups = groups
                    .into_iter()
                    .enumerate()
                    .map(|(i, (mut group, targets))| {
                        group["targets"] = json!(targets);
                        (format!("group_{i}"), group)
                    });
                config["config_groups"] = groups.collect::<Map<_, _>>().into();
                config["format"] = "mixed-precision".into();
            }
            Self::ModelOpt => {
                let entries = modules.iter().map(|(module, of)| {
                    let group = &of["config_groups"]["group_0"]["weights"]["group_size"];
                    let group = of.get("group_size").unwrap_or(group);
                    let entry = json!({"group_size": group, "quant_algo": of["quant_algo"]});
                    ((*module).to_owned(), entry)
                });
                config = json!({
                    "ignore": config["ignore"],
                    "producer": config["producer"],
                    "quant_algo": "MIXED_PRECISION",
                    "quant_method": "modelopt",
                    "quantized_layers": entries.collect::<Map<_, _>>(),
                });
            }
        }
        config
    }
}

/// What a module's entry would be that is stored as the model.
fn entry_of_mlx(config: &Value) -> Value {
    let keys = ["group_size", "bits", "mode"];
    let entries = keys.map(|key| (key.to_owned(), config[key].clone()));
    entries.into_iter().collect::<Map<_, _>>().into()
}

/// `config`, which describes `scheme` alone, with what `modules` have beside it: those that are encoded
/// and that no class says anything of, with their methods.
pub(crate) fn config_of_mixture(
    scheme: &ForgetScheme,
    config: Value,
    modules: &[(&str, &dyn Method)],
) -> Value {
    let Some(library) = scheme.library() else {
        return config;
    };
    let configs = modules
        .iter()
        .filter_map(|(module, method)| Some((*module, method.config(&[])?)));
    let configs: Vec<(&str, Value)> = configs.collect();
    let is_mixed = configs.windows(2).any(|pair| pair[0].1 != pair[1].1);
    match is_mixed || library == Library::Mlx {
        true => library.config(config, &configs, scheme.has_recipe()),
        false => config,
    }
}

/// A method, and its scheme's name for the report.
pub(super) type NamedMethod = (Arc<dyn Method>, String);

/// Which tensors have other schemes than that of the model.
pub(super) struct TensorSchemes {
    given: ByName<NamedMethod>,
    recipe: Option<Recipe>,
}

impl TensorSchemes {
    /// `named` makes what a scheme is encoded with.
    ///
    /// # Errors
    /// `Usage` if a pattern does not compile or matches nothing, `Unsupported` if a recipe does not know
    /// the model.
    pub(super) fn new(
        forget: &Forget,
        candidates: &[Candidate<'_>],
        named: impl Fn(&ForgetScheme) -> Option<NamedMethod>,
    ) -> Result<Self> {
        let given = forget.schemes.iter();
        let given = given.filter_map(|(pattern, scheme)| Some((pattern.clone(), named(scheme)?)));
        let given = ByName::new("--tensor-type", given)?;
        let names = candidates.iter().flat_map(|c| [c.name, c.weight.name]);
        given.require_matches(names.clone())?;
        let recipe = match forget.scheme.recipe() {
            None => None,
            Some(bits) => Some(Recipe::new(&forget.scheme, bits, names, &named)?),
        };
        Ok(Self { given, recipe })
    }

    /// That of a tensor, if it is not that of the model. What a class stores in a mode of its own has
    /// that, but a recipe stands for what classes of MLX say.
    pub(super) fn of(&self, candidate: &Candidate<'_>) -> Option<&NamedMethod> {
        match candidate.encoded_as {
            Some(EncodedAs::Mxfp4 | EncodedAs::Nothing) => return None,
            Some(EncodedAs::Integers { .. } | EncodedAs::Bits(_)) if self.recipe.is_none() => {
                return None;
            }
            _ => {}
        }
        let given = self.given.of([candidate.name, candidate.weight.name]);
        given.or_else(|| Some(self.recipe.as_ref()?.of(candidate.weight.base())))
    }
}

/// Names of the schemes that matrices of a model of `scheme` may get for a size.
///
/// # Errors
/// `Usage` if there is no choice.
#[cfg(feature = "models")]
pub(crate) fn choices(scheme: &ForgetScheme) -> Result<&'static [&'static str]> {
    let name = scheme.to_string();
    let row = CHOICES.iter().find(|row| row.contains(&&*name));
    row.copied().ok_or_else(|| {
        let mut schemes: Vec<&str> = CHOICES.concat();
        schemes.sort_unstable();
        schemes.dedup();
        AnamnesisError::usage(format!(
            "--bits, --size: {name} leaves no choice of schemes; GGUF types do, and {}",
            schemes.join(", ")
        ))
    })
}
