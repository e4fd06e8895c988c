//! A LoRA for an image or video model under the names that a base has for its modules: as diffusers
//! writes it for a part of a pipeline, as ComfyUI reads it for a file of the authors, as kohya's
//! scripts write it for either, or as PEFT does.
//!
//! Scales go into both factors as in diffusers 0.42.1 `loaders/lora_conversion_utils.py`
//! (`_convert_kohya_flux_lora_to_diffusers`), which reads no alpha for some models. kohya's scripts
//! have them in a tensor, and PEFT in `adapter_config.json`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::base_names::{BaseNames, LoraNames};
use super::joined::{ProductRows, TargetModule, WrittenFactors, alpha_of, factors_of};
use super::names::LoraName;
use super::places::place;
use crate::convert::adapters::sorted::LoraTensors;
use crate::convert::adapters::{Adapter, Settings};
use crate::error::InTensor;
use crate::families::{PEFT_PREFIX, PeftSettings, SourceTensor};
use crate::parse::parse_with_limits;
use crate::remember::ResolvedItem;
use crate::{AnamnesisError, ParsedModel, Result, TargetDtype};

/// A LoRA under other names.
pub(in crate::convert) struct RenamedLora<'m> {
    pub items: Vec<ResolvedItem<'m>>,
    /// Files beside it.
    pub files: Vec<(String, String)>,
    pub notes: Vec<String>,
}

/// The tensors `items` of the LoRA `model` as `style` calls them for the model `base`, in the type
/// `to` or that in which they are stored.
///
/// # Errors
/// Those of [`place`]; `Unsupported` if the adapter adds more than products of two factors.
pub(in crate::convert) fn renamed<'m>(
    (base, style): (&Path, LoraNames),
    model: &'m ParsedModel,
    items: Vec<ResolvedItem<'m>>,
    to: Option<TargetDtype>,
) -> Result<RenamedLora<'m>> {
    let Some(path) = model.path() else {
        return Err(AnamnesisError::usage("an adapter of a base is read from a file"));
    };
    let adapter = Adapter::open_with_limits(path, &model.limits)?;
    let settings = match &adapter.files.settings {
        Settings::Image => None,
        Settings::Peft(config) => Some(config),
        _ => {
            let what = "it is one of mlx-lm or llama.cpp, and those for image and video models get other names";
            return Err(AnamnesisError::unsupported("an adapter", what));
        }
    };
    let base = parse_with_limits(base, &model.limits)?;
    let (resolution, _) = base.resolve().of_asked(|_| true)?;
    let of_base = resolution.items.iter();
    let shapes = of_base.map(|item| (item.name(), item.shape())).collect();
    let named = BaseNames::new(&base, shapes, style)?;
    let sorted = place(&adapter.files.tensors, &resolution.items, settings)?;
    let names: Vec<&str> = model.tensors().map(|t| t.name()).collect();
    if let Some((_, &index)) = sorted.sums.iter().next() {
        return Err(refused(names[index]));
    }
    let mut pairs = vec![];
    for (module, tensors) in &sorted.lora {
        let factors = factors(tensors).map_err(|index| refused(names[index]))?;
        let places = sorted.placed.get(module).map_or(&[][..], Vec::as_slice);
        pairs.push((factors.map(|index| names[index]), tensors.scale.unwrap_or(1.0), places));
    }
    let mut items: HashMap<String, ResolvedItem<'m>> = items
        .into_iter()
        .map(|item| (item.name().to_owned(), item))
        .collect();
    let factors = pairs.iter().flat_map(|(factors, ..)| factors);
    let sources = factors.filter_map(|name| Some((*name, SourceTensor::new(items.remove(*name)?))));
    let sources: HashMap<&str, SourceTensor<'m>> = sources
        .map(|(name, source)| Ok((name, source?)))
        .collect::<Result<_>>()?;
    let mut modules: BTreeMap<String, TargetModule<'_, 'm, '_>> = BTreeMap::new();
    for ([a, b], scale, places) in pairs {
        let component = LoraName::component_of(b);
        let (Some(a), Some(b)) = (sources.get(a), sources.get(b)) else {
            continue;
        };
        for place in places {
            for target in named.targets(place, component)? {
                let from = target.from..target.from + target.rows;
                let rows = ProductRows { a, b, scale, from, to: target.to };
                let module = TargetModule::new(&target);
                let all = modules.entry(target.module).or_insert(module);
                all.parts.push(rows);
            }
        }
    }
    let (mut items, mut settings) = (vec![], PeftSettings::default());
    for (name, module) in modules {
        let made = factors_of(&name, module, (style, to))?;
        let WrittenFactors { factors, rank, scale } = made;
        items.extend(factors.into_iter().map(ResolvedItem::from));
        match style {
            LoraNames::Kohya => items.push(alpha_of(&name, (rank, scale)).into()),
            LoraNames::Pipeline => {}
            LoraNames::Peft => {
                let module = name.strip_prefix(PEFT_PREFIX).unwrap_or(&name).to_owned();
                settings.modules.insert(module, (rank, alpha(scale, rank)));
            }
        }
    }
    settings.excluded = named.also_found(&settings.modules);
    let files = match style {
        LoraNames::Peft => vec![settings.file()],
        LoraNames::Pipeline | LoraNames::Kohya => vec![],
    };
    Ok(RenamedLora { items, files, notes: sorted.notes })
}

/// The number that is `scale` when it is divided by `rank`: a short one, if there is one.
fn alpha(scale: f64, rank: usize) -> f64 {
    let (alpha, rank) = (scale * rank as f64, rank as f64);
    let short = f64::from(alpha as f32);
    match short / rank == scale {
        true => short,
        false => alpha,
    }
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

fn refused(name: &str) -> AnamnesisError {
    let what = format!(
        "{}: products of two factors are written under other names; amn merge puts the others into the model",
        InTensor(&name)
    );
    AnamnesisError::unsupported("a LoRA under other names", what)
}
