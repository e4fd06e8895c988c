//! Rotations that AutoRound, Quark and GPTQModel leave to the running model: weights were rotated
//! along their inputs before they were quantized, and the inputs are rotated when the model runs. A
//! decoded model has plain layers, so that its weights are rotated back: a layer that computes `W
//! (x R)` becomes `W Rᵀ`.
//!
//! | library | R of the layer `P` |
//! |---|---|
//! | Quark | `P.input_rotation`: I8 of 1 and -1, divided by the root of its size; or floats |
//! | AutoRound, SpinQuant | `P.spinquant_r1_matrix` or `r4`, as Quark's. `_type` 0 has none: Sylvester's of `_size` rows |
//! | AutoRound, `random_hadamard` | the transposed `P.hadamard_matrix`, floats; if one layer alone has it, that of all layers |
//! | AutoRound, `hadamard` | Sylvester's of `block_size` rows of `rotation_config` |
//! | GPTQModel from 7.3.4 on, `rotation` | Sylvester's of all inputs of `mlp.down_proj` |
//!
//! Each block of so many inputs as R has rows is rotated. Rotations that are fused into the layer
//! before, or that cancel between queries and keys, are left as they are.
//!
//! Source: quark 0.13 `torch/export/nn/modules/qparamslinear.py`, auto-round 0.16
//! `algorithms/transforms`, gptqmodel 7.7 `models/loader.py`.

mod config;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use self::config::{AppliedToAll, RotationSettings};
use super::transforms::{check_block, push_problem, stored_of, transform};
use crate::model::Tensor;
use crate::remember::layout::transformed::{BlockTransform, SharedMatrix};
use crate::remember::seam::{Resolution, ResolvedItem, refused, wrong};
use crate::{Dtype, ParsedModel, Result};

/// What errors are about.
const FEATURE: &str = "rotated inputs";

/// What is stored beside a rotated weight `P.weight`, by the last part of its name.
const STORED: [&str; 9] = [
    "input_rotation",
    "input_prescale",
    "hadamard_matrix",
    "spinquant_r1_type",
    "spinquant_r1_size",
    "spinquant_r1_matrix",
    "spinquant_r4_type",
    "spinquant_r4_size",
    "spinquant_r4_matrix",
];

/// The tensors of one module with the names of [`STORED`].
type StoredParts<'m> = [Option<Tensor<'m>>; STORED.len()];

/// Begins the last part of the name of a matrix that layers of a size share. Only Quark's code
/// tells which.
const OF_ALL: &str = "shared_input_rotation_";

/// Makes of the items of `resolution` those of a model without rotations. What cannot be undone
/// becomes a problem.
pub(super) fn undo<'m>(model: &'m ParsedModel, resolution: &mut Resolution<'m>) {
    // An error names a tensor; a model without tensors has nothing to be wrong.
    let Some(first) = model.tensors().next() else {
        return;
    };
    let settings = match RotationSettings::read(&model.config) {
        Ok(settings) => settings,
        Err(what) => return push_problem(resolution, first, refused(&first, FEATURE, what)),
    };
    let stored = take_stored(resolution);
    let of_all = only_matrix(&stored).map(|matrix| of_matrix(matrix, false));
    let of_all = match of_all.transpose() {
        Ok(of_all) => of_all,
        Err(error) => return push_problem(resolution, first, error),
    };
    let rotations = InputRotations { of_all, stored, settings };
    if rotations.stored.is_empty() && !rotations.settings.has_any() {
        return;
    }
    let transforms = model.config.transforms();
    if transforms.is_ok_and(|config| !config.schemes.is_empty()) {
        let what = "its config has a `transform_config` as well";
        return push_problem(resolution, first, refused(&first, FEATURE, what));
    }
    let (mut failed, mut count) = (Vec::new(), 0);
    for item in &mut resolution.items {
        let tensor = stored_of(item);
        match rotations.plan(item, &tensor) {
            Ok(None) => {}
            Ok(Some(columns)) => {
                count += 1;
                transform(item, tensor, [Some(columns), None]);
            }
            Err(error) => failed.push((tensor, error)),
        }
    }
    // A failed claim or plan may have been of the layer that is missed.
    let is_whole = failed.is_empty() && resolution.problems.is_empty();
    if is_whole && count == 0 && rotations.settings.needs_any {
        let what = "the config says that inputs are rotated, and no layer has a rotation";
        failed.push((first, refused(&first, FEATURE, what)));
    }
    for (tensor, error) in failed {
        push_problem(resolution, tensor, error);
    }
}

/// Takes what is stored of rotations out of the items, by module. Without a quantized weight beside
/// it, a tensor of such a name is an ordinary one.
fn take_stored<'m>(resolution: &mut Resolution<'m>) -> HashMap<&'m str, StoredParts<'m>> {
    let mut found: HashMap<&str, StoredParts<'m>> = HashMap::new();
    let mut shared = None;
    for item in &resolution.items {
        let ResolvedItem::Plain(t) = item else {
            continue;
        };
        let t = t.stored;
        let parts = t.name().rsplit_once('.');
        let part = parts.map_or(t.name(), |(_, part)| part);
        if part.starts_with(OF_ALL) {
            shared = Some(t);
        }
        let place = STORED.iter().position(|&name| name == part);
        if let Some(((module, _), i)) = parts.zip(place) {
            found.entry(module).or_default()[i] = Some(t);
        }
    }
    if let Some(t) = shared {
        let what = "which layers share it is not known";
        push_problem(resolution, t, refused(&t, FEATURE, what));
    }
    if found.is_empty() {
        return found;
    }
    let quantized: HashSet<String> = resolution
        .items
        .iter()
        .filter(|item| matches!(item, ResolvedItem::Group(_)))
        .filter_map(|item| Some(item.name().strip_suffix(".weight")?.to_owned()))
        .collect();
    found.retain(|module, _| quantized.contains(*module));
    let dropped = &mut resolution.dropped;
    resolution.items.retain(|item| {
        let ResolvedItem::Plain(t) = item else {
            return true;
        };
        let parts = t.stored.name().rsplit_once('.');
        let is_taken = parts
            .is_some_and(|(module, part)| STORED.contains(&part) && found.contains_key(module));
        if is_taken {
            dropped.push(t.stored);
        }
        !is_taken
    });
    found
}

/// The only `hadamard_matrix` of a model. AutoRound's layers have one tensor, which transformers
/// saves with the first of them.
fn only_matrix<'m>(stored: &HashMap<&str, StoredParts<'m>>) -> Option<Tensor<'m>> {
    let mut matrices = stored.values().filter_map(|&[_, _, matrix, ..]| matrix);
    matrices.next().filter(|_| matrices.next().is_none())
}

/// The rotations of a model.
struct InputRotations<'m> {
    /// Tensors of the names of [`STORED`], by module.
    stored: HashMap<&'m str, StoredParts<'m>>,
    /// That of the only `hadamard_matrix`.
    of_all: Option<BlockTransform<'m>>,
    settings: RotationSettings,
}

impl<'m> InputRotations<'m> {
    /// What the columns of a weight are to be multiplied with; `None`: nothing.
    fn plan(&self, item: &ResolvedItem<'m>, t: &Tensor<'m>) -> Result<Option<BlockTransform<'m>>> {
        let Some(module) = item.name().strip_suffix(".weight") else {
            // A stack of experts is a parameter of its own, of which the library knows no rotation.
            let is_quantized = matches!(item, ResolvedItem::Group(_));
            return match is_quantized && self.settings.is_applied_to_all() {
                true => Err(refused(t, FEATURE, "it is of no linear layer by its name")),
                false => Ok(None),
            };
        };
        let ResolvedItem::Group(group) = item else {
            return match self.settings.is_applied_to_plain(module) {
                true => Err(refused(t, FEATURE, "it is rotated, and not quantized")),
                false => Ok(None),
            };
        };
        let cols = group.shape.last().copied().unwrap_or(0);
        let Some(columns) = self.rotation(module, cols, t)? else {
            return Ok(None);
        };
        if group.is_copied || group.shape.len() != 2 {
            return Err(refused(t, FEATURE, "it is rotated, and is no matrix that is decoded"));
        }
        if columns.size == 0 || !cols.is_multiple_of(columns.size) {
            let what = format!("blocks of {} inputs do not divide {cols}", columns.size);
            return Err(wrong(t, what));
        }
        let grid = group.decoder.grid();
        let columns = Some(columns);
        check_block([&None, &columns], [grid.row_align, grid.col_align], t)?;
        Ok(columns)
    }

    /// The rotation of a layer of `cols` inputs.
    ///
    /// # Errors
    /// There are two, or it is not known.
    fn rotation(
        &self,
        module: &str,
        cols: usize,
        t: &Tensor<'m>,
    ) -> Result<Option<BlockTransform<'m>>> {
        let stored = self.stored.get(module).copied().unwrap_or_default();
        let [rotation, prescale, hadamard, spins @ ..] = stored;
        if prescale.is_some() {
            return Err(refused(t, FEATURE, "its inputs are also scaled (`input_prescale`)"));
        }
        let mut all = Vec::new();
        if let Some(matrix) = rotation {
            all.push(of_matrix(matrix, true)?);
        }
        if let Some(matrix) = hadamard {
            all.push(of_matrix(matrix, false)?);
        }
        for &spin in spins.as_chunks().0 {
            all.extend(spin_quant(spin, cols, t)?);
        }
        match self.settings.of_module(module, !all.is_empty()) {
            Ok(None) => {}
            Ok(Some(AppliedToAll::Stored)) => match &self.of_all {
                Some(rotation) => all.push(rotation.clone()),
                None => return Err(refused(t, FEATURE, "its `hadamard_matrix` is missing")),
            },
            Ok(Some(AppliedToAll::Block(size))) => all.push(sylvester(size, t)?),
            Ok(Some(AppliedToAll::Inputs)) => all.push(sylvester(cols, t)?),
            Err(what) => return Err(refused(t, FEATURE, what)),
        }
        if all.len() > 1 {
            return Err(refused(t, FEATURE, "its inputs are rotated twice"));
        }
        Ok(all.pop())
    }
}

/// The rotation by a stored matrix R, or by its transposed one.
fn of_matrix<'m>(matrix: Tensor<'m>, is_right: bool) -> Result<BlockTransform<'m>> {
    let size = match matrix.shape() {
        &[rows, cols] if rows == cols => rows,
        _ => return Err(wrong(&matrix, "a rotation is a square matrix")),
    };
    Ok(BlockTransform {
        matrix: Arc::new(SharedMatrix::stored(matrix, size)?),
        size,
        is_transposed: is_right,
        is_normalized: matrix.dtype() == Dtype::I8,
    })
}

/// The rotation by Sylvester's matrix.
fn sylvester<'m>(size: usize, t: &Tensor<'m>) -> Result<BlockTransform<'m>> {
    if !size.is_power_of_two() {
        let what =
            format!("its rotation of {size} rows is not in the file, and is not Sylvester's");
        return Err(refused(t, FEATURE, what));
    }
    Ok(BlockTransform {
        matrix: Arc::new(SharedMatrix::Sylvester),
        size,
        is_transposed: true,
        is_normalized: true,
    })
}

/// The rotation that AutoRound describes by `[type, size, matrix]`.
fn spin_quant<'m>(
    [kind, size, matrix]: [Option<Tensor<'m>>; 3],
    cols: usize,
    t: &Tensor<'m>,
) -> Result<Option<BlockTransform<'m>>> {
    if [kind, size, matrix].iter().all(Option::is_none) {
        return Ok(None);
    }
    let (Some(kind), Some(size)) = (kind, size) else {
        return Err(wrong(t, "the type or the size of its rotation is missing"));
    };
    let (kind, size) = (scalar(&kind)?, scalar(&size)?);
    let rotation = match matrix {
        Some(matrix) => of_matrix(matrix, true)?,
        // A header alone has no values.
        None if kind.unwrap_or(0) == 0 => sylvester(size.unwrap_or(cols), t)?,
        None => return Err(wrong(t, "the matrix of its rotation is missing")),
    };
    let is_stored = matrix.is_some();
    if size.is_some_and(|size| size != rotation.size) || kind.is_some_and(|n| is_stored != (n > 0))
    {
        return Err(wrong(t, "its rotation is not of the type or size that is stored"));
    }
    Ok(Some(rotation))
}

/// The number that a tensor of one integer holds; `None` if there is only a header.
fn scalar(t: &Tensor<'_>) -> Result<Option<usize>> {
    if t.dtype() != Dtype::I32 || t.elements() != 1 {
        return Err(wrong(t, "it is one I32"));
    }
    if !t.part().is_readable() {
        return Ok(None);
    }
    let mut bytes = [0; 4];
    t.part().read_at(0, &mut bytes)?;
    let number = usize::try_from(i32::from_le_bytes(bytes));
    number.map(Some).map_err(|_| wrong(t, "it is negative"))
}
