//! A LoRA for an image or video model under the names that a base has for its modules: as diffusers
//! writes it for a part of a pipeline, or as ComfyUI reads it for a file of the authors.
//!
//! Scales go into both factors as in diffusers 0.42.1 `loaders/lora_conversion_utils.py`
//! (`_convert_kohya_flux_lora_to_diffusers`), which reads no alpha for some models.

use std::collections::HashMap;
use std::path::Path;

use super::places::place;
use crate::config::Texts;
use crate::convert::adapters::Adapter;
use crate::convert::adapters::sorted::{LoraTensors, PlacedRows};
use crate::error::InTensor;
use crate::families::SourceTensor;
use crate::parse::parse_with_limits;
use crate::remember::layout::assembled::Change;
use crate::remember::{Group, ResolvedItem};
use crate::{AnamnesisError, ParsedModel, Result, TargetDtype};

/// What modules are called behind, where the authors' file has all parts of a pipeline.
const DIFFUSION_MODEL: &str = "model.diffusion_model.";

/// What modules of diffusers alone begin with.
const OF_DIFFUSERS: &[&str] =
    &["down_blocks.", "mid_block.", "up_blocks.", "single_transformer_blocks."];

/// The tensors `items` of the LoRA `model` as they are called for the model `base`, in the type `to`
/// or that in which they are stored, and notes.
///
/// # Errors
/// Those of [`place`]; `Unsupported` if the adapter adds more than products of two factors, or the
/// base has a module in one with others.
pub(in crate::convert) fn renamed<'m>(
    base: &Path,
    model: &'m ParsedModel,
    items: Vec<ResolvedItem<'m>>,
    to: Option<TargetDtype>,
) -> Result<(Vec<ResolvedItem<'m>>, Vec<String>)> {
    let Some(path) = model.path() else {
        return Err(AnamnesisError::usage("an adapter of a base is read from a file"));
    };
    let adapter = Adapter::open_with_limits(path, &model.limits)?;
    let base = parse_with_limits(base, &model.limits)?;
    let (resolution, _) = base.resolve().of_asked(|_| true)?;
    let of_base = resolution.items.iter();
    let of_base = of_base.map(|item| (item.name(), item.shape()));
    let heights: HashMap<&str, usize> = of_base
        .filter_map(|(name, shape)| Some((name, *shape.first()?)))
        .collect();
    let sorted = place(&adapter.files.tensors, &resolution.items)?;
    let names: Vec<&str> = model.tensors().map(|t| t.name()).collect();
    if let Some((_, &index)) = sorted.sums.iter().next() {
        return Err(refused(names[index]));
    }
    let sources = items.into_iter().map(SourceTensor::new);
    let sources: Vec<SourceTensor<'m>> = sources.collect::<Result<_>>()?;
    let by_name: HashMap<&str, usize> = sources
        .iter()
        .enumerate()
        .map(|(at, source)| (source.name.as_str(), at))
        .collect();
    let named = BaseNames::new(&base)?;
    let mut out = vec![];
    for (module, tensors) in &sorted.lora {
        let [a, b] = factors(tensors).map_err(|index| refused(names[index]))?;
        let [a, b] = [a, b].map(|index| by_name.get(names[index]).map(|&at| &sources[at]));
        let (Some(a), Some(b), Some(places)) = (a, b, sorted.placed.get(module)) else {
            continue;
        };
        let of_factors = split_scale(tensors.scale.unwrap_or(1.0));
        for place in places {
            let weight = format!("{}.weight", place.module);
            if heights.get(&*weight) != Some(&place.rows) {
                let what = format!(
                    "{}: BASE has it in one matrix with others, `{weight}`; give the part of a pipeline of diffusers as BASE",
                    InTensor(&b.name)
                );
                return Err(AnamnesisError::unsupported("a LoRA under other names", what));
            }
            let name = named.of(place)?;
            let all = (0, a.shape.first().copied().unwrap_or(0));
            let rows = (place.from, place.rows);
            let made = [(a, all, "lora_A"), (b, rows, "lora_B")];
            let made = made.into_iter().zip(of_factors);
            out.extend(made.map(|((factor, rows, end), times)| {
                ResolvedItem::from(made_of(
                    factor,
                    (format!("{name}.{end}.weight"), rows),
                    times,
                    to,
                ))
            }));
        }
    }
    Ok((out, sorted.notes))
}

/// Numbers of the factors A and B.
///
/// # Errors
/// The number of a tensor that is something else.
fn factors(tensors: &LoraTensors) -> std::result::Result<[usize; 2], usize> {
    let &LoraTensors { a, b, core, bias, lengths, composed, .. } = tensors;
    let others = composed.and_then(|composed| composed.all().next());
    match (a, b, core.or(bias).or(lengths).or(others)) {
        (Some(a), Some(b), None) => Ok([a, b]),
        (a, b, other) => Err(other.or(a).or(b).unwrap_or(0)),
    }
}

/// What A and B are multiplied by for a product times `scale`.
fn split_scale(scale: f64) -> [f64; 2] {
    let (mut of_a, mut of_b) = (scale, 1.0);
    while of_a > 0.0 && of_a * 2.0 < of_b {
        of_a *= 2.0;
        of_b /= 2.0;
    }
    [of_a, of_b]
}

/// Rows of a factor, times a number: in F32 unless that is a power of two.
fn made_of<'m>(
    factor: &SourceTensor<'m>,
    (name, (first, rows)): (String, (usize, usize)),
    times: f64,
    to: Option<TargetDtype>,
) -> Group<'m> {
    let mut shape = factor.shape.clone();
    let is_whole = first == 0 && shape.first() == Some(&rows);
    let is_exact = (times as f32).to_bits().trailing_zeros() >= 23;
    let stored = factor.stored.filter(|_| is_exact);
    let dtype = to.or(stored).unwrap_or(TargetDtype::F32);
    if is_whole && times == 1.0 {
        return factor.clone().renamed(name, dtype);
    }
    let change = match times == 1.0 {
        true => Change::None,
        false => Change::Times([times as f32, 1.0].map(f32::to_bits)),
    };
    shape[0] = rows;
    let changed = factor.changed_rows(&name, (first, rows), change);
    changed.reshaped(name, shape, dtype)
}

/// How the output calls modules of a base.
struct BaseNames {
    /// The part of a pipeline; `None`: a file of the authors.
    component: Option<&'static str>,
}

impl BaseNames {
    /// # Errors
    /// `Unsupported` if `config.json` beside `base` is that of a model which is no part of a
    /// pipeline that has LoRA.
    fn new(base: &ParsedModel) -> Result<Self> {
        let directory = base.model_directory();
        let config = directory.map(|at| Texts::new(&at, &base.limits).json("config.json"));
        let Some(config) = config.transpose()?.flatten() else {
            return Ok(Self { component: None });
        };
        let class = config
            .get("_class_name")
            .or_else(|| config["architectures"].get(0));
        let class = class.and_then(serde_json::Value::as_str).unwrap_or("");
        let parts =
            [("UNet", "unet"), ("Transformer", "transformer"), ("CLIPText", "text_encoder")];
        match parts.iter().find(|(part, _)| class.contains(part)) {
            Some(&(_, component)) => Ok(Self { component: Some(component) }),
            None => {
                let what = format!(
                    "BASE is a `{class}`, and no UNet, transformer or text encoder of diffusers"
                );
                Err(AnamnesisError::unsupported("a LoRA under other names", what))
            }
        }
    }

    /// The name of a module.
    fn of(&self, place: &PlacedRows) -> Result<String> {
        let module = &place.module;
        if let Some(component) = self.component {
            return Ok(format!("{component}.{module}"));
        }
        if OF_DIFFUSERS.iter().any(|part| module.starts_with(part)) {
            let what = format!(
                "BASE has the names of diffusers (`{module}`), and which part of a pipeline it is says the config.json that belongs beside it"
            );
            return Err(AnamnesisError::unsupported("a LoRA under other names", what));
        }
        let rest = module.strip_prefix(DIFFUSION_MODEL);
        let is_other = rest.is_none()
            && ["cond_stage_model.", "conditioner.", "text_encoders."]
                .iter()
                .any(|part| module.starts_with(part));
        match is_other {
            false => Ok(format!("diffusion_model.{}", rest.unwrap_or(module))),
            true => {
                let what = format!(
                    "`{module}` of BASE is no part of its diffusion model; give that part by itself as BASE"
                );
                Err(AnamnesisError::unsupported("a LoRA under other names", what))
            }
        }
    }
}

fn refused(name: &str) -> AnamnesisError {
    let what = format!(
        "{}: products of two factors are written under other names; amn merge puts the others into the model",
        InTensor(&name)
    );
    AnamnesisError::unsupported("a LoRA under other names", what)
}
