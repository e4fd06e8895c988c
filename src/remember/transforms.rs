//! `transform_config` of compressed-tensors: layers whose inputs and outputs are multiplied with
//! matrices. A decoded model has plain layers, so that its weights must compute the same without.
//!
//! | location | |
//! |---|---|
//! | `weight_input`, `weight_output` | were applied to the stored weights: nothing is left to do |
//! | `input` V | the layer computes `W (x V)`; the output has `W Vᵀ` |
//! | `output` U | the layer computes `(W x + b) U`; the output has `Uᵀ W` and `Uᵀ b` |
//! | `q_attn`, `k_cache` | the same orthogonal matrix on both sides of a product, in which they cancel |
//!
//! `inverse` has the transposed matrix, or the inverse one that is stored. Matrices of
//! `M.NAME_LOCATION.weight`, `[n, n]`, are shared: one of the modules has them, or each. Hadamard
//! matrices are divided by the root of n.
//!
//! Source: compressed-tensors `transform/factory`, `transform/utils/matrix.py`.

mod checks;
mod stored;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

pub(super) use self::checks::check_block;
use self::stored::StoredMatrices;
use crate::config::{
    TargetedBy, TransformConfig, TransformKind, TransformLocation, TransformScheme, TransformUse,
};
use crate::model::Tensor;
use crate::remember::layout::transformed::{BlockTransform, SharedMatrix, Transformed};
use crate::remember::seam::{
    Decode, Group, PlainFloats, Problem, QuantScheme, Resolution, ResolvedItem, TensorRole,
    refused, wrong,
};
use crate::{AnamnesisError, ParsedModel, Result, TargetDtype};

/// What errors are about.
const FEATURE: &str = "compressed-tensors with transform_config";

/// Locations that weights undo.
const SIDES: [TransformLocation; 2] = [TransformLocation::Input, TransformLocation::Output];

/// Makes of the items of `resolution` those of a model without transforms. What cannot be undone
/// becomes a problem.
pub(super) fn undo<'m>(model: &'m ParsedModel, resolution: &mut Resolution<'m>) {
    // An error names a tensor; a model without tensors has nothing to be wrong.
    let Some(tensor) = model.tensors().next() else {
        return;
    };
    let config = model.config.transforms();
    let checked = config.and_then(|config| config.check_online().map(|()| config));
    match checked {
        Ok(config) if !config.schemes.is_empty() => {
            OnlineTransforms::new(&config).undo(tensor, resolution);
        }
        Ok(_) => {}
        Err(what) => push_problem(resolution, tensor, refused(&tensor, FEATURE, what)),
    }
}

/// Adds a problem of weights that are multiplied with matrices.
pub(super) fn push_problem<'m>(
    resolution: &mut Resolution<'m>,
    tensor: Tensor<'m>,
    error: AnamnesisError,
) {
    resolution.problems.push(Problem {
        tensor,
        role: TensorRole::Quantized,
        scheme: QuantScheme::Other("transformed weights"),
        error,
    });
}

/// A use of the matrices of a scheme: the numbers of the scheme and of the use, both, and how a
/// module is meant.
type Found<'c> = ([usize; 2], &'c TransformScheme, &'c TransformUse, TargetedBy);

/// The transforms of inputs and outputs.
struct OnlineTransforms<'c, 'm> {
    config: &'c TransformConfig,
    /// By scheme.
    stored: Vec<StoredMatrices<'m>>,
    /// By scheme, size, and name of the stored tensor.
    matrices: HashMap<(usize, usize, &'m str), Arc<SharedMatrix<'m>>>,
    /// Modules that have a stored matrix.
    owners: HashSet<&'m str>,
    /// Outputs of modules that are multiplied.
    outputs: HashMap<String, BlockTransform<'m>>,
    /// Modules that uses have been found for, by the numbers of the scheme and of the use.
    used: HashMap<[usize; 2], HashSet<String>>,
}

/// What becomes of a weight: of its columns and rows.
pub(super) type Sides<'m> = [Option<BlockTransform<'m>>; 2];

impl<'c, 'm> OnlineTransforms<'c, 'm> {
    fn new(config: &'c TransformConfig) -> Self {
        let stored = config.schemes.iter().map(|_| StoredMatrices::default());
        Self {
            config,
            stored: stored.collect(),
            matrices: HashMap::new(),
            owners: HashSet::new(),
            outputs: HashMap::new(),
            used: HashMap::new(),
        }
    }

    fn undo(mut self, first: Tensor<'m>, resolution: &mut Resolution<'m>) {
        self.take_matrices(resolution);
        let mut failed = Vec::new();
        for kind in [Self::plan_weight, Self::plan_bias] {
            for item in &mut resolution.items {
                let tensor = stored_of(item);
                match kind(&mut self, item, &tensor) {
                    Ok(None) => {}
                    Ok(Some(sides)) => transform(item, tensor, sides),
                    Err(error) => failed.push((tensor, error)),
                }
            }
        }
        for (tensor, error) in failed {
            push_problem(resolution, tensor, error);
        }
        if let Err(error) = self.check_tied(resolution) {
            push_problem(resolution, first, error);
        }
        // A failed claim or plan may have been of the module that is missed.
        if let Some(what) = self.missed().filter(|_| resolution.problems.is_empty()) {
            push_problem(resolution, first, refused(&first, FEATURE, what));
        }
    }

    /// Takes the stored matrices out of the items. One that the config does not use is a problem:
    /// then the config is another model's.
    fn take_matrices(&mut self, resolution: &mut Resolution<'m>) {
        let mut unused = Vec::new();
        let dropped = &mut resolution.dropped;
        let (schemes, stored) = (&self.config.schemes, &mut self.stored);
        let owners = &mut self.owners;
        resolution.items.retain(|item| {
            let ResolvedItem::Plain(t) = item else {
                return true;
            };
            let t = t.stored;
            for (scheme, stored) in schemes.iter().zip(&mut *stored) {
                let Some((location, module)) = scheme.matrix_of(t.name()) else {
                    continue;
                };
                if !scheme.has_matrix(location, module) {
                    let location = location.name();
                    let what = format!("it is a matrix of `{location}`, where its module has none");
                    unused.push((t, wrong(&t, what)));
                }
                stored.insert((location, module), t);
                owners.insert(module);
                dropped.push(t);
                return false;
            }
            true
        });
        for (tensor, error) in unused {
            push_problem(resolution, tensor, error);
        }
    }

    /// The use that `module` has of a location.
    ///
    /// # Errors
    /// There are several, whose order libraries do not agree on, or an expression cannot be tried.
    fn find(
        &self,
        module: &str,
        location: TransformLocation,
        t: &Tensor<'m>,
    ) -> Result<Option<Found<'c>>> {
        let mut found = None;
        for (i, scheme) in self.config.schemes.iter().enumerate() {
            let uses = scheme.uses.iter().enumerate();
            for (n, u) in uses.filter(|(_, u)| u.location == location) {
                let by = u.targets(module);
                let Some(by) = by.map_err(|what| refused(t, FEATURE, what))? else {
                    continue;
                };
                if found.replace(([i, n], scheme, u, by)).is_some() {
                    let location = location.name();
                    let what = format!("it is transformed twice at the location `{location}`");
                    return Err(refused(t, FEATURE, what));
                }
            }
        }
        Ok(found)
    }

    /// What is to be done to a weight; `None`: nothing.
    fn plan_weight(
        &mut self,
        item: &ResolvedItem<'m>,
        t: &Tensor<'m>,
    ) -> Result<Option<Sides<'m>>> {
        let Some(module) = item.name().strip_suffix(".weight") else {
            return Ok(None);
        };
        let [input, output] = SIDES.map(|location| self.find(module, location, t));
        let (input, output) = (input?, output?);
        let found = || [input, output].into_iter().flatten();
        if found().next().is_none() {
            return Ok(None);
        }
        let is_by_class = found().all(|(.., by)| by == TargetedBy::Class);
        let (shape, aligned, is_plain) = match item {
            ResolvedItem::Group(group) if group.is_copied => {
                return Err(refused(t, FEATURE, "it is transformed, and copied as it is"));
            }
            ResolvedItem::Group(group) => {
                let grid = group.decoder.grid();
                (&*group.shape, [grid.row_align, grid.col_align], false)
            }
            ResolvedItem::Plain(_) => (t.shape(), [1, 1], true),
        };
        let &[rows, cols] = shape else {
            return match is_plain && is_by_class {
                true => Ok(None),
                false => Err(refused(t, FEATURE, "it is transformed, and is no matrix")),
            };
        };
        self.check_class(module, is_plain && is_by_class, t)?;
        if is_plain && PlainFloats::of(t).is_none() {
            let what = "it is transformed, and is not of floats";
            return Err(refused(t, FEATURE, what));
        }
        let columns = self.side(module, input, cols, t)?;
        let rows = self.side(module, output, rows, t)?;
        check_block([&rows, &columns], aligned, t)?;
        if let Some(rows) = &rows {
            self.outputs.insert(module.to_owned(), rows.clone());
        }
        Ok(Some([columns, rows]))
    }

    /// The transform of a side of `len` rows or columns.
    fn side(
        &mut self,
        module: &str,
        found: Option<Found<'c>>,
        len: usize,
        t: &Tensor<'m>,
    ) -> Result<Option<BlockTransform<'m>>> {
        let Some((numbers, of, u, _)) = found else {
            return Ok(None);
        };
        let size = of.block.unwrap_or(len);
        if size == 0 || !len.is_multiple_of(size) {
            let location = u.location.name();
            let what = format!("blocks of {size} of the location `{location}` do not divide {len}");
            return Err(wrong(t, what));
        }
        let used = self.used.entry(numbers).or_default();
        used.insert(module.to_owned());
        let matrix = self.matrix((numbers[0], of), u, (module, size), t)?;
        Ok(Some(BlockTransform {
            matrix,
            size,
            is_transposed: match of.kind {
                // The inverse matrix is what is stored.
                TransformKind::RandomMatrix => u.location == TransformLocation::Input,
                _ => (u.location == TransformLocation::Input) != u.is_inverse,
            },
            is_normalized: of.kind != TransformKind::RandomMatrix,
        }))
    }

    /// The matrix of `size` rows of a module.
    fn matrix(
        &mut self,
        (number, scheme): (usize, &TransformScheme),
        u: &TransformUse,
        (module, size): (&str, usize),
        t: &Tensor<'m>,
    ) -> Result<Arc<SharedMatrix<'m>>> {
        let found = self.stored[number].find(scheme, u, (module, size));
        let key = (number, size, found.map_or("", |found| found.name()));
        if let Some(matrix) = self.matrices.get(&key) {
            return Ok(matrix.clone());
        }
        let matrix = match found {
            Some(found) if found.shape() == [size, size] => SharedMatrix::stored(found, size)?,
            Some(found) => {
                let what = format!("it is not [{size}, {size}], as `{}` needs it", t.name());
                return Err(wrong(&found, what));
            }
            None if scheme.kind == TransformKind::Hadamard && size.is_power_of_two() => {
                SharedMatrix::Sylvester
            }
            None => {
                let (name, location) = (&scheme.name, u.location.name());
                let what = format!(
                    "its matrix of {size} rows is not in the file, or several are (`{name}_{location}.weight`)"
                );
                return Err(wrong(t, what));
            }
        };
        let matrix = Arc::new(matrix);
        self.matrices.insert(key, matrix.clone());
        Ok(matrix)
    }

    /// What is to be done to a bias of a module whose outputs are multiplied.
    fn plan_bias(&mut self, item: &ResolvedItem<'m>, t: &Tensor<'m>) -> Result<Option<Sides<'m>>> {
        let module = item.name().strip_suffix(".bias");
        let Some(outputs) = module.and_then(|module| self.outputs.get(module)) else {
            return Ok(None);
        };
        let is_vector = matches!(item, ResolvedItem::Plain(_)) && PlainFloats::of(t).is_some();
        if !is_vector || t.shape().len() != 1 || !t.elements().is_multiple_of(outputs.size) {
            let what =
                "it is the bias of a transformed layer, and no vector of floats of its length";
            return Err(refused(t, FEATURE, what));
        }
        Ok(Some([Some(outputs.clone()), None]))
    }
}

/// The stored tensor that an item is from.
pub(super) fn stored_of<'m>(item: &ResolvedItem<'m>) -> Tensor<'m> {
    match item {
        ResolvedItem::Group(group) => group.parts[0].1,
        ResolvedItem::Plain(t) => t.stored,
    }
}

/// Makes a group of the item whose values are transformed.
pub(super) fn transform<'m>(
    item: &mut ResolvedItem<'m>,
    t: Tensor<'m>,
    [columns, rows]: Sides<'m>,
) {
    change_decoder(item, t, |stored| Box::new(Transformed { stored, columns, rows }));
}

/// Makes a group of the item whose decoder is what `change` makes of its own.
pub(super) fn change_decoder<'m>(
    item: &mut ResolvedItem<'m>,
    t: Tensor<'m>,
    change: impl FnOnce(Box<dyn Decode + 'm>) -> Box<dyn Decode + 'm>,
) {
    let name = item.name().to_owned();
    let old = std::mem::replace(item, ResolvedItem::Plain(t.into()));
    let group = match old {
        ResolvedItem::Group(group) => Group { decoder: change(group.decoder), ..*group },
        ResolvedItem::Plain(_) => {
            let Some(floats) = PlainFloats::of(&t) else {
                return;
            };
            let parts = vec![(TensorRole::Passthrough, t)];
            let (shape, scheme) = (t.shape().to_vec(), QuantScheme::Unquantized);
            Group {
                keeps: TargetDtype::of(t.dtype()),
                ..Group::new(name, shape, scheme, parts, change(Box::new(floats)))
            }
        }
    };
    *item = group.into();
}
