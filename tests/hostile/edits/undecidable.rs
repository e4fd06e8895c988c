//! Edits that nothing in a model can tell.

use super::Edit;
use super::tensors::{Change, Stored};

/// A kind of edit that leaves a model as valid as it was, with the reason.
struct Rule {
    reason: &'static str,
    applies: fn(&Edit) -> bool,
}

const RULES: &[Rule] = &[
    Rule {
        reason: "floats are as valid in another float type of their width",
        applies: |edit| {
            retyped(edit).is_some_and(|[old, new]| is_float(old) && is_float(new))
                && edit.role != "quantized"
        },
    },
    Rule {
        reason: "exponents are stored as U8 and as F8_E8M0, which differ in one of 256",
        applies: |edit| {
            retyped(edit).is_some_and(|types| types.iter().all(|t| ["U8", "F8_E8M0"].contains(t)))
        },
    },
    Rule {
        reason: "without a config, codes of a byte are as valid in another type of a byte",
        applies: |edit| {
            edit.role == "quantized" && edit.model.configs.is_empty() && retyped(edit).is_some()
        },
    },
    Rule {
        reason: "a scale for each index of the first dimensions fits every size of the others",
        applies: |edit| {
            new_shape(edit).is_some_and(|change| scales(change).all(|t| fits_leading(change, t)))
        },
    },
    Rule {
        reason: "the last block of a side may be short by any number of values",
        applies: |edit| {
            new_shape(edit).is_some_and(|change| scales(change).all(|t| fits_blocks(change, t)))
        },
    },
    Rule {
        reason: "without a config and another scale in the file, codes without a scale are a plain cast",
        applies: |edit| {
            let other_scales = edit
                .tensor
                .iter()
                .flat_map(|change| &change.others)
                .any(|(_, role)| role == "scale");
            edit.role == "scale" && edit.model.configs.is_empty() && !other_scales && is_gone(edit)
        },
    },
    Rule {
        reason: "a tensor without companions is what its header says, and where it is not, none is",
        applies: |edit| {
            let alone =
                |change: &Change| change.others.iter().all(|(_, role)| role == "passthrough");
            edit.role == "quantized" && edit.tensor.as_ref().is_some_and(alone)
        },
    },
    Rule {
        reason: "ModelOpt merges most factors of columns into the layer before, and no config says which",
        applies: |edit| edit.place.ends_with(".pre_quant_scale") && is_gone(edit),
    },
];

fn is_float(dtype: &str) -> bool {
    dtype.contains('F')
}

/// The types before and after, of an edit that changed a tensor's type alone.
fn retyped(edit: &Edit) -> Option<[&'static str; 2]> {
    let change = edit.tensor.as_ref().filter(|_| edit.kind == "dtype")?;
    Some([change.old.dtype, change.new.as_ref()?.dtype])
}

/// Whether a tensor is no longer under its name.
fn is_gone(edit: &Edit) -> bool {
    matches!(edit.kind, "dropped" | "unknown name")
}

/// The change of an edit that gave the codes of a weight another shape, where nothing but its scales tells the shape.
fn new_shape(edit: &Edit) -> Option<&Change> {
    let change = edit.tensor.as_ref()?;
    let same_dtype = change.new.as_ref()?.dtype == change.old.dtype;
    let is_described = change.others.iter().any(|(_, role)| {
        !matches!(
            role.as_str(),
            "scale" | "zero-point" | "passthrough" | "activation"
        )
    });
    (edit.role == "quantized" && same_dtype && !is_described && !edit.kind.contains("name"))
        .then_some(change)
}

/// The scales and zero points of a weight.
fn scales(change: &Change) -> impl Iterator<Item = &Stored> {
    let scales = change
        .others
        .iter()
        .filter(|(_, role)| matches!(role.as_str(), "scale" | "zero-point"));
    scales.map(|(t, _)| t)
}

/// Whether `scale` has one value for each index of some first dimensions, which the edit kept.
fn fits_leading(change: &Change, scale: &Stored) -> bool {
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

/// Whether blocks of some size cut both the old and the new shape into as many as `scale` has.
fn fits_blocks(change: &Change, scale: &Stored) -> bool {
    let Some(new) = &change.new else {
        return false;
    };
    let sides = change.old.shape.iter().zip(&new.shape).zip(&scale.shape);
    let fits = |((&old, &new), &count): ((&usize, &usize), &usize)| {
        old == new
            || (1..=256usize)
                .any(|block| old.div_ceil(block) == count && new.div_ceil(block) == count)
    };
    change.old.shape.len() == scale.shape.len()
        && new.shape.len() == scale.shape.len()
        && sides.into_iter().all(fits)
}

pub fn reason(edit: &Edit) -> Option<&'static str> {
    RULES
        .iter()
        .find(|rule| (rule.applies)(edit))
        .map(|rule| rule.reason)
}

pub fn reasons() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|rule| rule.reason)
}
