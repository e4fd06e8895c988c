//! Edits that nothing in a model can tell.

use std::path::Path;

use super::Edit;
use super::tensors::Change;

/// A kind of edit that leaves a model as valid as it was, with the reason.
struct Rule {
    reason: &'static str,
    applies: fn(&Path, &Edit) -> bool,
}

const RULES: &[Rule] = &[
    Rule {
        reason: "a float type's bytes are as valid in another of its width",
        applies: |_, edit| {
            let is_float = |dtype: &str| dtype.contains('F');
            let floats = |c: &Change| {
                is_float(c.old.dtype) && c.new.as_ref().is_some_and(|new| is_float(new.dtype))
            };
            edit.kind == "dtype"
                && edit.role != "quantized"
                && edit.tensor.as_ref().is_some_and(floats)
        },
    },
    Rule {
        reason: "one scale for the whole weight fits every shape",
        applies: |_, edit| is_new_shape(edit).is_some_and(|c| scales(c).all(|n| n == 1)),
    },
    Rule {
        reason: "one scale a row fits rows of every length",
        applies: |_, edit| {
            is_new_shape(edit).is_some_and(|c| {
                let rows = |shape: &[usize]| shape.iter().rev().skip(1).product::<usize>();
                let new = c.new.as_ref().map(|new| rows(&new.shape));
                new == Some(rows(&c.old.shape)) && scales(c).all(|n| n == 1 || Some(n) == new)
            })
        },
    },
];

/// The change of an edit that gave the codes of a weight another shape, where nothing but its scales tells the shape.
fn is_new_shape(edit: &Edit) -> Option<&Change> {
    let change = edit.tensor.as_ref()?;
    let same_dtype = change.new.as_ref()?.dtype == change.old.dtype;
    let is_described = change
        .others
        .iter()
        .any(|(_, role)| !matches!(role.as_str(), "scale" | "passthrough" | "activation"));
    (edit.role == "quantized" && same_dtype && !is_described && !edit.kind.contains("name"))
        .then_some(change)
}

/// The number of elements of each scale of a weight.
fn scales(change: &Change) -> impl Iterator<Item = usize> {
    let scales = change.others.iter().filter(|(_, role)| role == "scale");
    scales.map(|(t, _)| t.shape.iter().product())
}

pub fn reason(path: &Path, edit: &Edit) -> Option<&'static str> {
    RULES
        .iter()
        .find(|rule| (rule.applies)(path, edit))
        .map(|rule| rule.reason)
}

pub fn reasons() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|rule| rule.reason)
}
