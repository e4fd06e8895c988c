//! The factors that a module of the output gets from those of modules of a LoRA.
//!
//! A module that has the rows of several gets their factors A below each other, and their factors B
//! along the diagonal, with zeros around them.

use std::ops::Range;

use super::base_names::{LoraNames, TargetRows};
use crate::error::InTensor;
use crate::families::{SourceTensor, computed};
use crate::remember::Group;
use crate::remember::layout::assembled::Change;
use crate::{AnamnesisError, Result, TargetDtype};

/// Rows of a product of factors `[rank, in…]` and `[out, rank…]`.
pub(super) struct ProductRows<'s, 'm> {
    pub a: &'s SourceTensor<'m>,
    pub b: &'s SourceTensor<'m>,
    /// What the product is multiplied by.
    pub scale: f64,
    /// The rows of the product, and the first of the module.
    pub from: Range<usize>,
    pub to: usize,
}

/// A module of the output.
pub(super) struct TargetModule<'s, 'm, 'b> {
    pub height: usize,
    pub kernel: Option<&'b [usize]>,
    pub parts: Vec<ProductRows<'s, 'm>>,
}

impl<'b> TargetModule<'_, '_, 'b> {
    pub(super) fn new(target: &TargetRows<'b>) -> Self {
        Self { height: target.height, kernel: target.kernel, parts: vec![] }
    }
}

/// Both factors of a module of the output.
pub(super) struct WrittenFactors<'m> {
    pub factors: Vec<Group<'m>>,
    pub rank: usize,
    /// What the product is multiplied by, which no factor has.
    pub scale: f64,
}

/// The factors of the module `name`, with names of `style`, in the type `to`; `None`: that in which
/// they are stored, or F32 if they are multiplied.
///
/// # Errors
/// `Unsupported` if factors cannot be joined.
pub(super) fn factors_of<'m>(
    name: &str,
    TargetModule { height, kernel, mut parts }: TargetModule<'_, 'm, '_>,
    (style, to): (LoraNames, Option<TargetDtype>),
) -> Result<WrittenFactors<'m>> {
    let names = match style {
        LoraNames::Kohya => ["lora_down", "lora_up"],
        LoraNames::Pipeline | LoraNames::Peft => ["lora_A", "lora_B"],
    };
    let names = names.map(|end| format!("{name}.{end}.weight"));
    parts.sort_by_key(|part| part.to);
    let scale = parts[0].scale;
    let is_own = match style {
        LoraNames::Pipeline => false,
        LoraNames::Kohya => true,
        LoraNames::Peft => scale > 0.0,
    };
    let mut scales = parts.iter().map(|part| part.scale.to_bits());
    let is_kept = is_own && scales.all(|of_part| of_part == scale.to_bits());
    let times = |part: &ProductRows<'_, '_>| match is_kept {
        true => [1.0, 1.0],
        false => split_scale(part.scale),
    };
    let (mut factors, rank) = match &*parts {
        [part] if part.from.len() == height => {
            let [of_a, of_b] = times(part);
            let [a, b] = names;
            let rank = part.a.shape[0];
            (
                vec![
                    made_of(part.a, (a, 0..rank), of_a, to),
                    made_of(part.b, (b, part.from.clone()), of_b, to),
                ],
                rank,
            )
        }
        _ => joined(names, height, &parts, to, times)?,
    };
    if let Some(kernel) = kernel {
        let ones = vec![1; kernel.len().saturating_sub(1)];
        let shapes = [[&[rank][..], kernel].concat(), [vec![height, rank], ones].concat()];
        for (factor, shape) in factors.iter_mut().zip(shapes) {
            // What is copied has the shape that is stored.
            factor.is_copied &= *factor.shape == *shape;
            factor.shape = shape.into();
        }
    }
    let scale = if is_kept { scale } else { 1.0 };
    Ok(WrittenFactors { factors, rank, scale })
}

/// The alpha of the module `name` of kohya's scripts.
pub(super) fn alpha_of<'m>(name: &str, (rank, scale): (usize, f64)) -> Group<'m> {
    let alpha = (scale * rank as f64) as f32;
    Group { shape: vec![].into(), ..computed((&format!("{name}.alpha"), vec![alpha])) }
}

/// Both factors of a module of several `parts`, and their rank.
fn joined<'m>(
    [name_a, name_b]: [String; 2],
    height: usize,
    parts: &[ProductRows<'_, 'm>],
    to: Option<TargetDtype>,
    times: impl Fn(&ProductRows<'_, 'm>) -> [f64; 2],
) -> Result<(Vec<Group<'m>>, usize)> {
    let mut end = 0;
    let (mut all_a, mut all_b) = (vec![], vec![]);
    // Where the factors of a product begin: modules may have rows of one product at several places.
    let mut begins: Vec<(&str, usize)> = vec![];
    let (mut rank, mut dtype) = (0, to);
    let cols = parts[0].a.shape[1..].iter().product();
    for part in parts {
        let (ProductRows { a, b, .. }, [of_a, of_b]) = (part, times(part));
        let own = a.shape[0];
        let what = if part.to < end {
            "another part of the adapter has its rows"
        } else if a.shape.len() != 2 || a.shape[1] != cols || own > cols {
            "it is joined with others in one matrix, which factors of more ranks than columns are not"
        } else {
            ""
        };
        if !what.is_empty() {
            let what = format!("{}: {what}", InTensor(&b.name));
            return Err(AnamnesisError::unsupported("a LoRA under other names", what));
        }
        end = part.to + part.from.len();
        let types =
            [stored(a, of_a), stored(b, of_b)].map(|stored| stored.unwrap_or(TargetDtype::F32));
        let widest = |dtype: Option<TargetDtype>, own| match dtype {
            Some(dtype) if dtype != own => Some(TargetDtype::F32),
            _ => Some(own),
        };
        if to.is_none() {
            dtype = types.into_iter().fold(dtype, widest);
        }
        let found = begins.iter().find(|(name, _)| *name == b.name);
        let begin = found.map_or(rank, |(_, begin)| *begin);
        if found.is_none() {
            begins.push((&b.name, rank));
            all_a.push((multiplied(a, of_a), 0..own, [rank, 0]));
            rank += own;
        }
        all_b.push((multiplied(b, of_b), part.from.clone(), [part.to, begin]));
    }
    let dtype = dtype.unwrap_or(TargetDtype::F32);
    let a = SourceTensor::in_blocks(all_a, (name_a, [rank, cols]), dtype);
    let b = SourceTensor::in_blocks(all_b, (name_b, [height, rank]), dtype);
    Ok((vec![a, b], rank))
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

/// The type in which a factor times a number is stored without loss; `None`: F32.
fn stored(factor: &SourceTensor<'_>, times: f64) -> Option<TargetDtype> {
    let is_exact = (times as f32).to_bits().trailing_zeros() >= 23;
    factor.stored.filter(|_| is_exact)
}

/// A whole factor times a number, in F32 unless that is 1.
fn multiplied<'m>(factor: &SourceTensor<'m>, times: f64) -> SourceTensor<'m> {
    match times == 1.0 {
        true => factor.clone(),
        false => factor.changed_rows(&factor.name, (0, factor.shape[0]), change(times)),
    }
}

fn change(times: f64) -> Change {
    match times == 1.0 {
        true => Change::None,
        false => Change::Times([times as f32, 1.0].map(f32::to_bits)),
    }
}

/// Rows of a factor, times a number: in F32 unless that is a power of two.
fn made_of<'m>(
    factor: &SourceTensor<'m>,
    (name, rows): (String, Range<usize>),
    times: f64,
    to: Option<TargetDtype>,
) -> Group<'m> {
    let mut shape = factor.shape.clone();
    let is_whole = rows.start == 0 && shape.first() == Some(&rows.end);
    let dtype = to.or(stored(factor, times)).unwrap_or(TargetDtype::F32);
    if is_whole && times == 1.0 {
        return factor.clone().renamed(name, dtype);
    }
    shape[0] = rows.len();
    let changed = factor.changed_rows(&name, (rows.start, rows.len()), change(times));
    changed.reshaped(name, shape, dtype)
}
