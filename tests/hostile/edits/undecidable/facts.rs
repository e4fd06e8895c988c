//! What the rules ask of an edit.

use super::super::Edit;
use super::super::tensors::{Change, Stored};

/// Whether the configs, the metadata or a description in a tensor have one of `words`.
pub(super) fn says(edit: &Edit, words: &[&str]) -> bool {
    let model = &edit.model;
    let configs = model
        .configs
        .iter()
        .map(|(file, config)| format!("{file} {config}"));
    let metadata = model.metadata.iter().map(|(_, text)| text.clone());
    let tensors = model.tensors.iter().filter(|t| t.name.ends_with("_quant"));
    let described = tensors.map(|t| String::from_utf8_lossy(&t.bytes).into_owned());
    let mut all = configs.chain(metadata).chain(described);
    all.any(|text| words.iter().any(|word| text.contains(word)))
}

/// Whether a config has an entry for the module of the tensor that was edited.
pub(super) fn is_named(edit: &Edit) -> bool {
    let module = edit.place.rsplit_once('.').map_or("", |(module, _)| module);
    says(edit, &[&format!("\"{module}\"")])
}

pub(super) fn is_wide(dtype: &str) -> bool {
    matches!(dtype, "F16" | "BF16" | "F32" | "F64")
}

/// The types before and after, of an edit that changed a tensor's type alone.
pub(super) fn retyped(edit: &Edit) -> Option<[&'static str; 2]> {
    let change = edit.tensor.as_ref().filter(|_| edit.kind == "dtype")?;
    Some([change.old.dtype, change.new.as_ref()?.dtype])
}

/// Whether a tensor is no longer under its name.
pub(super) fn is_gone(edit: &Edit) -> bool {
    matches!(edit.kind, "dropped" | "unknown name")
}

/// Descriptions that do not say the shape of their weight, and Marlin's scratch.
const SHAPELESS: &[&str] = &[".comfy_quant", ".weight_format", ".workspace"];

/// The change of an edit that gave the codes of a weight another shape, where nothing but its
/// scales tells the shape.
pub(super) fn new_shape(edit: &Edit) -> Option<&Change> {
    let change = edit.tensor.as_ref()?;
    let same_dtype = change.new.as_ref()?.dtype == change.old.dtype;
    let is_described = change.others.iter().any(|(t, role)| {
        let is_known =
            matches!(role.as_str(), "scale" | "zero-point" | "passthrough" | "activation");
        !is_known && !SHAPELESS.iter().any(|end| t.name.ends_with(end))
    });
    (edit.role == "quantized" && same_dtype && !is_described && !edit.kind.contains("name"))
        .then_some(change)
}

/// The scales of a weight. Zero points go with them.
pub(super) fn scales(change: &Change) -> impl Iterator<Item = &Stored> {
    let scales = change.others.iter().filter(|(_, role)| role == "scale");
    scales.map(|(t, _)| t)
}

/// Whether `scale` has one value for each index of some first dimensions, which the edit kept.
pub(super) fn fits_leading(change: &Change, scale: &Stored) -> bool {
    let Some(new) = &change.new else {
        return false;
    };
    let elements: usize = scale.shape.iter().product();
    let kept = change
        .old
        .shape
        .iter()
        .zip(&new.shape)
        .take_while(|(old, new)| old == new)
        .count();
    (0..=kept).any(|n| change.old.shape[..n].iter().product::<usize>() == elements)
}

/// Whether `scale` has one value for each column of each matrix, and the edit changed their rows
/// alone.
pub(super) fn fits_columns(change: &Change, scale: &Stored) -> bool {
    let Some((new, [.., old_rows, cols])) =
        change.new.as_ref().zip(Some(change.old.shape.as_slice()))
    else {
        return false;
    };
    let elements: usize = scale.shape.iter().product();
    let values: usize = change.old.shape.iter().product();
    let others_kept = new.shape.len() == change.old.shape.len()
        && new.shape.last() == Some(cols)
        && new
            .shape
            .iter()
            .zip(&change.old.shape)
            .filter(|(a, b)| a != b)
            .count()
            == 1;
    *old_rows > 0 && elements == values / old_rows && others_kept
}

/// Whether blocks of some size cut both the old and the new shape into as many as `scale` has.
pub(super) fn fits_blocks(change: &Change, scale: &Stored) -> bool {
    let Some(new) = &change.new else {
        return false;
    };
    // ModelOpt's scales of blocks kept the dimensions that were reduced: `[rows, 1, columns, 1]`.
    let counts: Vec<usize> = match scale.shape.as_slice() {
        &[rows, 1, cols, 1] => vec![rows, cols],
        shape => shape.to_vec(),
    };
    let sides = change.old.shape.iter().zip(&new.shape).zip(&counts);
    let fits = |((&old, &new), &count): ((&usize, &usize), &usize)| {
        old == new
            || (1..=256usize)
                .any(|block| old.div_ceil(block) == count && new.div_ceil(block) == count)
    };
    let rank = counts.len();
    change.old.shape.len() == rank && new.shape.len() == rank && sides.into_iter().all(fits)
}
