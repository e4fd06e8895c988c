//! Edits that nothing in a model can tell.

use std::path::Path;

use super::Edit;
use super::tensors::{Change, Stored};

/// A kind of edit that leaves a model as valid as it was, with the reason.
struct Rule {
    reason: &'static str,
    applies: fn(&Path, &Edit) -> bool,
}

const RULES: &[Rule] = &[
    Rule {
        reason: "a float type's bytes are as valid in another of its width",
        applies: |_, edit| {
            dtypes(edit).is_some_and(|[old, new]| {
                let is_wide = matches!(old, "F64" | "F32" | "F16" | "BF16");
                old.contains('F') && new.contains('F') && (is_wide || edit.role != "quantized")
            })
        },
    },
    Rule {
        reason: "eight-bit codes are as valid in another type where nothing names theirs",
        applies: |_, edit| {
            let is_eight_bit =
                |dtype: &str| dtype == "I8" || dtype.starts_with("F8_E") && dtype != "F8_E8M0";
            let both_floats = |[old, new]: [&str; 2]| old != "I8" && new != "I8";
            edit.role == "quantized"
                && dtypes(edit).is_some_and(|pair| {
                    pair.into_iter().all(is_eight_bit)
                        && if both_floats(pair) {
                            !is_said(edit, &["e4m3", "e5m2"])
                        } else {
                            !is_said(edit, &["quant", "format", "_type"])
                        }
                })
        },
    },
    Rule {
        reason: "one scale for the whole weight fits every shape",
        applies: |_, edit| is_new_shape(edit).is_some_and(|c| scales(c).all(|s| count(s) == 1)),
    },
    Rule {
        reason: "one scale a row fits rows of every length",
        applies: |_, edit| {
            is_new_shape(edit).is_some_and(|c| {
                let rows = |shape: &[usize]| shape.iter().rev().skip(1).product::<usize>();
                let new = c.new.as_ref().map(|new| rows(&new.shape));
                let is_of_rows = |s: &Stored| {
                    count(s) == 1 || Some(count(s)) == new || s.shape.get(1..) == Some(&[1])
                };
                new == Some(rows(&c.old.shape)) && scales(c).all(is_of_rows)
            })
        },
    },
    Rule {
        reason: "tiles of scales are padded, and fit every weight that takes as many",
        applies: |_, edit| {
            is_new_shape(edit)
                .is_some_and(|c| scales(c).all(|s| count(s) == 1 || count(s).is_multiple_of(512)))
        },
    },
    Rule {
        reason: "an axis of one moves no value, and nothing counts the axes",
        applies: |_, edit| {
            is_new_shape(edit).is_some()
                && matches!(edit.kind, "axis added" | "axes of one removed")
        },
    },
    Rule {
        reason: "nothing says how many blocks a row of an embedding has",
        applies: |_, edit| {
            let is_embedding =
                edit.place.contains(".embedding_") && edit.kind == "dimension changed";
            is_embedding
                && edit.tensor.as_ref().is_some_and(|c| {
                    let new = c.new.as_ref().map(|new| &new.shape);
                    new.is_some_and(|new| new.len() == 2 && new[0] == c.old.shape[0])
                })
        },
    },
    Rule {
        reason: "mlx-lm takes bits and groups of a layer that the config does not name from its width",
        applies: |_, edit| {
            let module = edit.place.rsplit_once('.').map_or("", |(module, _)| module);
            edit.kind == "dimension changed"
                && !is_said(edit, &[&format!("\"{module}\"")])
                && edit.tensor.as_ref().is_some_and(|c| {
                    let others = c.others.iter().map(|(t, _)| t);
                    let leading =
                        |s: &Stored| s.shape.iter().rev().skip(1).copied().collect::<Vec<_>>();
                    others
                        .chain([&c.old])
                        .any(|t| t.dtype == "U32" && t.name.ends_with(".weight"))
                        && c.new
                            .as_ref()
                            .is_some_and(|new| leading(new) == leading(&c.old))
                })
        },
    },
    Rule {
        reason: "without the key the default of the library holds",
        applies: |_, edit| edit.kind == "config removed" && edit.place.ends_with("/linear_class"),
    },
    Rule {
        reason: "a companion that a weight may lack, and that nothing else speaks of",
        applies: |_, edit| {
            let is_gone = matches!(edit.kind, "dropped" | "unknown name");
            is_gone && edit.place.ends_with(".global_scale") && !is_said(edit, &["global_scale"])
        },
    },
];

/// Old and new dtype of an edit that changed one.
fn dtypes(edit: &Edit) -> Option<[&'static str; 2]> {
    let change = edit.tensor.as_ref().filter(|_| edit.kind == "dtype")?;
    Some([change.old.dtype, change.new.as_ref()?.dtype])
}

/// Whether the quantization configs, the metadata or a description in a tensor have one of `words`.
fn is_said(edit: &Edit, words: &[&str]) -> bool {
    let configs = edit
        .model
        .configs
        .iter()
        .map(|(file, config)| format!("{file} {config}"));
    let metadata = edit.model.metadata.iter().map(|(_, text)| text.clone());
    let tensors = edit.model.tensors.iter().filter(|t| t.dtype == "U8");
    let described = tensors.map(|t| String::from_utf8_lossy(&t.bytes).into_owned());
    configs
        .chain(metadata)
        .chain(described)
        .any(|text| words.iter().any(|word| text.to_lowercase().contains(word)))
}

/// Companions that describe a weight without its shape.
const NO_SHAPE: &[&str] = &[".comfy_quant", ".weight_format"];

/// The change of an edit that gave the codes of a weight another shape, where nothing but its scales tells the shape.
fn is_new_shape(edit: &Edit) -> Option<&Change> {
    let change = edit.tensor.as_ref()?;
    let same_dtype = change.new.as_ref()?.dtype == change.old.dtype;
    let is_described = change.others.iter().any(|(t, role)| {
        !matches!(
            role.as_str(),
            "scale" | "zero-point" | "passthrough" | "activation"
        ) && !NO_SHAPE.iter().any(|end| t.name.ends_with(end))
    });
    (edit.role == "quantized" && same_dtype && !is_described && !edit.kind.contains("name"))
        .then_some(change)
}

/// The scales of a weight, and its zero points, which go with them.
fn scales(change: &Change) -> impl Iterator<Item = &Stored> {
    let of_groups = |role: &str| matches!(role, "scale" | "zero-point");
    let scales = change
        .others
        .iter()
        .filter(move |(_, role)| of_groups(role));
    scales.map(|(t, _)| t)
}

fn count(t: &Stored) -> usize {
    t.shape.iter().product()
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
