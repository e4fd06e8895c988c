//! Finds the modules of a base that a LoRA for an image or video model names.
//!
//! A file may have LoRA for several parts of a pipeline, and a base is one part, or a file that has
//! them all below prefixes. A part of the adapter belongs where every module of it is found below
//! one prefix with a shape that fits.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::modules::{SharedRows, other_names};
use super::names::{LoraName, LoraRole, joined};
use super::scales::Scales;
use crate::convert::adapters::composed::ComposedTensors;
use crate::convert::adapters::factors::FactorForm;
use crate::convert::adapters::peft_config::PeftConfig;
use crate::convert::adapters::product::ModuleProduct;
use crate::convert::adapters::sorted::{LoraTensors, PlacedRows, SortedTensors};
use crate::convert::adapters::tensor::AdapterTensor;
use crate::error::counted;
use crate::model::Tensor;
use crate::remember::ResolvedItem;
use crate::remember::seam::wrong;
use crate::{AnamnesisError, ParsedModel, Result};

/// Parts of a name at most that a base has in front of the modules of a part of a pipeline, such as
/// `conditioner.embedders.0.transformer`.
const MAX_PREFIX_PARTS: usize = 4;

/// What is wrong with an adapter of another model.
const NOT_IN_BASE: &str = "BASE has no module of this name, and none other of the adapter; BASE is the part of the pipeline that the adapter was trained for, or a file with all parts";

/// Numbers of the tensors of a module of the adapter, and its name as the file has it.
#[derive(Default)]
struct NamedModule {
    name: String,
    tensors: LoraTensors,
    alpha: Option<usize>,
    /// What is added to the weight and to the bias.
    weight_sum: Option<usize>,
    bias_sum: Option<usize>,
}

impl NamedModule {
    /// Sorts in tensor `index`. Returns whether its place was free.
    fn add(&mut self, role: LoraRole, index: usize) -> bool {
        let place = match role {
            LoraRole::A => &mut self.tensors.a,
            LoraRole::B => &mut self.tensors.b,
            LoraRole::Core => &mut self.tensors.core,
            LoraRole::BiasOfB => &mut self.tensors.bias,
            LoraRole::Lengths => &mut self.tensors.lengths,
            LoraRole::Alpha => &mut self.alpha,
            LoraRole::WeightSum => &mut self.weight_sum,
            LoraRole::BiasSum => &mut self.bias_sum,
            LoraRole::Composed(role) => {
                return ComposedTensors::add(&mut self.tensors.composed, role, index);
            }
        };
        place.replace(index).is_none()
    }

    /// All tensors.
    fn all(&self) -> impl Iterator<Item = usize> {
        let others = [self.alpha, self.weight_sum, self.bias_sum];
        self.tensors.all().chain(others.into_iter().flatten())
    }
}

/// Modules of a part of a pipeline, by their names with `_` for each dot.
type Component = BTreeMap<String, NamedModule>;

/// A module of the base, by its name there, and its rows that the adapter's module has.
#[derive(Clone, Copy)]
struct Place<'b> {
    module: &'b str,
    shape: &'b [usize],
    rows: SharedRows,
}

/// Modules of the base by the ends of their names, with `_` for each dot, and by what stands
/// before.
type Places<'b> = HashMap<String, BTreeMap<&'b str, Vec<Place<'b>>>>;

/// The tensors of the adapter `model` by the weights of `items` that they change. An adapter of PEFT
/// has `settings` beside it.
///
/// # Errors
/// `Unsupported` if it is an adapter of another kind; `Parse` if a name is none of LoRA, or the
/// base has some modules of a part of the adapter, but not all.
pub(in crate::convert::adapters) fn place(
    model: &Arc<ParsedModel>,
    items: &[ResolvedItem<'_>],
    settings: Option<&PeftConfig>,
) -> Result<SortedTensors> {
    let components = components(model)?;
    let places = places(items);
    let mut sorted = SortedTensors::default();
    let (mut left, mut placed) = (vec![], HashSet::new());
    for (name, component) in &components {
        match prefix(model, component, &places) {
            Ok(Some(prefix)) => {
                let mut keys = component.keys().map(|key| (key, prefix));
                if keys.any(|at| !placed.insert(at)) {
                    let what = format!(
                        "`{name}` and another part of the adapter have the same modules in BASE"
                    );
                    return Err(refused(model, component, what));
                }
                let scales = Scales::new(model, name, settings)?;
                let adder = Adder { model, component: name, prefix, places: &places, scales };
                adder.add(component, &mut sorted)?;
            }
            Ok(None) => left.push((name, component, None)),
            Err(error) => left.push((name, component, Some(error))),
        }
    }
    for (name, component, error) in left {
        // Two text encoders have modules of the same names: the base's is the one that fits.
        let placed: HashSet<&String> = placed.iter().map(|(key, _)| *key).collect();
        let is_other = component.keys().any(|key| placed.contains(key));
        match error {
            Some(error) if !is_other => return Err(error),
            _ if sorted.is_empty() => return Err(refused(model, component, NOT_IN_BASE)),
            _ => sorted.notes.push(format!(
                "{} of `{name}`, which BASE does not have, were left out: give that part of the pipeline as BASE, too",
                counted(component.len(), "module")
            )),
        }
    }
    Ok(sorted)
}

/// The modules of the adapter, by the part of the pipeline.
fn components(model: &ParsedModel) -> Result<BTreeMap<&str, Component>> {
    let mut components: BTreeMap<&str, Component> = BTreeMap::new();
    for (index, t) in model.tensors().enumerate() {
        let LoraName { component, module, role } = LoraName::new(&t)?;
        let modules = components.entry(component).or_default();
        let module = modules
            .entry(joined(&module))
            .or_insert_with(|| NamedModule { name: module, ..NamedModule::default() });
        if !module.add(role, index) {
            return Err(wrong(&t, "another tensor of the adapter has its place"));
        }
    }
    Ok(components)
}

/// The modules of the base that have weights.
fn places<'b>(items: &'b [ResolvedItem<'_>]) -> Places<'b> {
    let mut places = Places::new();
    for item in items {
        let Some(module) = item.name().strip_suffix(".weight") else {
            continue;
        };
        let dots = module.match_indices('.').map(|(at, _)| at + 1);
        for at in [0].into_iter().chain(dots).take(MAX_PREFIX_PARTS + 1) {
            let (prefix, name) = module.split_at(at);
            let own = (name.to_owned(), SharedRows::ALL);
            for (name, rows) in [own].into_iter().chain(other_names(prefix, name)) {
                let place = Place { module, shape: item.shape(), rows };
                let at = places.entry(joined(&name)).or_default().entry(prefix);
                at.or_default().push(place);
            }
        }
    }
    places
}

/// The only prefix below which the base has all modules of `component`, with shapes that fit;
/// `None` if the base has none of them.
///
/// # Errors
/// `Parse` if it has some of them, or has all below several prefixes; the error of a module that
/// does not fit.
fn prefix<'b>(
    model: &Arc<ParsedModel>,
    component: &Component,
    places: &Places<'b>,
) -> Result<Option<&'b str>> {
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    for key in component.keys() {
        for prefix in places.get(key).into_iter().flat_map(BTreeMap::keys) {
            *found.entry(prefix).or_default() += 1;
        }
    }
    let Some((&most, _)) = found.iter().max_by_key(|(_, n)| **n) else {
        return Ok(None);
    };
    let fits = |prefix: &str| {
        let mut modules = component.iter();
        modules.try_for_each(|(key, module)| {
            placed_rows(model, module, places_in(places, key, prefix)).map(drop)
        })
    };
    let all = found.iter().filter(|(_, n)| **n >= component.len());
    let fitting = all.map(|(prefix, _)| *prefix);
    let fitting: Vec<&str> = fitting.filter(|prefix| fits(prefix).is_ok()).collect();
    match *fitting {
        [prefix] => Ok(Some(prefix)),
        [] => fits(most).map(|()| None),
        [first, second, ..] => {
            let what = format!("BASE has its modules twice, below `{first}` and below `{second}`");
            Err(refused(model, component, what))
        }
    }
}

/// The places of the module `key` below `prefix`.
fn places_in<'p, 'b>(places: &'p Places<'b>, key: &str, prefix: &str) -> &'p [Place<'b>] {
    let places = places.get(key).and_then(|places| places.get(prefix));
    places.map_or(&[], Vec::as_slice)
}

/// Where the rows of the product of `module` belong, if it has factors.
///
/// # Errors
/// `Parse` that names a tensor: there is no place, there are several for a row, or a shape does not
/// fit.
fn placed_rows(
    model: &Arc<ParsedModel>,
    module: &NamedModule,
    places: &[Place<'_>],
) -> Result<Vec<PlacedRows>> {
    let first = module.all().min();
    let first = first.map(|index| AdapterTensor { model: model.clone(), index });
    let refused = |what: String| match &first {
        Some(first) => wrong(&first.get(), what),
        None => AnamnesisError::parse(what),
    };
    let name = &module.name;
    if places.is_empty() {
        let what = format!("BASE has no module `{name}`, and it has others of the adapter");
        return Err(refused(what));
    }
    if module.tensors.all().next().is_none() {
        return Ok(vec![]);
    }
    let product = ModuleProduct::new(model, &module.tensors)?;
    let rows = product.rows();
    let mut placed = vec![];
    for place in places {
        // The product must have all columns of the weight.
        let shape: Vec<usize> = [rows]
            .into_iter()
            .chain(place.shape.iter().skip(1).copied())
            .collect();
        let size = product.fit((place.module, &shape))?;
        let height = place.shape.first().copied().unwrap_or(0);
        let unit = |n: usize| n.checked_mul(size.cols).filter(|&n| n <= rows.max(height));
        let [to, from] = place.rows.first.map(unit);
        let count = place.rows.count.map_or(Some(usize::MAX), unit);
        let rest = |first: Option<usize>, of: usize| of.checked_sub(first?);
        let (to_rest, from_rest) = (rest(to, height), rest(from, rows));
        let fits = match place.rows.count {
            None => to_rest == from_rest,
            Some(_) => count <= to_rest && count <= from_rest,
        };
        match (from, to, count.min(from_rest)) {
            (Some(from), Some(to), Some(rows)) if fits => {
                placed.push(PlacedRows { module: place.module.to_owned(), from, to, rows });
            }
            _ => {
                let what = format!(
                    "it has {rows} rows, and `{}.weight` is {:?}",
                    place.module, place.shape
                );
                return Err(wrong(&product.tensor().get(), what));
            }
        }
    }
    placed.sort_by_key(|part| part.from);
    let end = placed
        .iter()
        .try_fold(0, |end, part| (part.from == end).then_some(end + part.rows));
    match end == Some(rows) {
        true => Ok(placed),
        false => {
            Err(refused(format!("BASE has several modules for `{name}`, or not all of its rows")))
        }
    }
}

/// Sorts in the modules of a part of the pipeline, which are below `prefix`.
struct Adder<'a> {
    model: &'a Arc<ParsedModel>,
    component: &'a str,
    prefix: &'a str,
    places: &'a Places<'a>,
    scales: Scales<'a>,
}

impl Adder<'_> {
    fn add(&self, component: &Component, sorted: &mut SortedTensors) -> Result<()> {
        component
            .iter()
            .try_for_each(|(key, module)| self.add_module(key, module, sorted))
    }

    fn add_module(
        &self,
        key: &str,
        module: &NamedModule,
        sorted: &mut SortedTensors,
    ) -> Result<()> {
        let places = places_in(self.places, key, self.prefix);
        let &NamedModule { tensors, alpha, weight_sum, bias_sum, .. } = module;
        let tensor = |index| Tensor { model: self.model, index };
        let vectors =
            [(weight_sum, Some("weight")), (bias_sum, Some("bias")), (tensors.bias, None)];
        for (index, added_to) in vectors {
            let Some(index) = index else {
                continue;
            };
            let [Place { module, rows: SharedRows::ALL, .. }] = places else {
                let what =
                    "the module's rows lie elsewhere in BASE, where nothing but products is added";
                return Err(wrong(&tensor(index), what));
            };
            if let Some(parameter) = added_to {
                sorted.sums.insert(format!("{module}.{parameter}"), index);
            }
        }
        if tensors.all().next().is_none() && alpha.is_none() {
            return Ok(());
        }
        let product = ModuleProduct::new(self.model, &tensors)?;
        let form = tensors.composed.map(|composed| composed.form);
        let rank = (product.rank(), form);
        let scale = self.scales.of(&module.name, rank, alpha.map(tensor))?;
        let (form, scale) = (Some(FactorForm::OutIn), Some(scale));
        let lora = LoraTensors { form, scale, ..tensors };
        let name = format!("{}.{}", self.component, module.name);
        sorted
            .placed
            .insert(name.clone(), placed_rows(self.model, module, places)?);
        sorted.lora.insert(name, lora);
        Ok(())
    }
}

/// The error `what` about the first tensor of `component`.
fn refused(model: &ParsedModel, component: &Component, what: impl Into<String>) -> AnamnesisError {
    let all = component.values().flat_map(NamedModule::all);
    match all.min() {
        Some(index) => wrong(&Tensor { model, index }, what.into()),
        None => AnamnesisError::parse(what.into()),
    }
}
