//! What is taken for granted of a model because nothing in it says otherwise. Every report says so,
//! and on request it is an error.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::AnamnesisError;
use crate::error::counted;
use crate::model::Tensor;
use crate::remember::seam::{Registry, Resolution, ResolvedItem, last_part};

/// One assumption, and the tensors that it is made of.
pub(crate) struct Assumption<'m> {
    pub what: &'static str,
    pub tensors: Vec<Tensor<'m>>,
}

impl fmt::Display for Assumption<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, counted(self.tensors.len(), "tensor"))?;
        let first = self.tensors.first();
        first.map_or(Ok(()), |t| write!(f, ", e.g. `{}`", t.name()))
    }
}

impl Assumption<'_> {
    /// The error of a run that takes nothing for granted.
    pub(crate) fn error(&self) -> Option<AnamnesisError> {
        let t = self.tensors.first()?;
        Some(super::wrong(t, format!("{}; without --strict this is a note", self.what)))
    }
}

/// Adds that `what` is assumed of `t`.
pub(super) fn add<'m>(all: &mut Vec<Assumption<'m>>, what: &'static str, t: Tensor<'m>) {
    // Few: there is one for a kind of weights.
    match all.iter_mut().find(|assumption| assumption.what == what) {
        Some(assumption) => assumption.tensors.push(t),
        None => all.push(Assumption { what, tensors: vec![t] }),
    }
}

/// What is said of codes that no scheme knows.
const UNKNOWN: &str = "integers look like codes of a quantization that is not recognised, by what lies beside them or by their names, and stay as they are stored";

/// Most tensors of one module that are compared with its codes.
const MAX_BESIDE: usize = 32;

/// Elements of the smallest matrix, and of the shortest list of bytes, that may be codes: tables of
/// constants are smaller.
const LEAST_ELEMENTS: usize = 16;

/// Words in the names of scales and zero points, whoever writes them.
const WORDS: &[&str] = &["scale", "absmax", "amax", "zero", "codebook"];

/// Ends of the names of other parameters of a module.
const OTHERS: &[&str] = &["bias", "biases", "_mean", "_var"];

/// Adds the integers among `items` that may be codes of an unknown scheme: they have the name of a
/// weight, or beside them lies what has a scale's name or shape.
pub(super) fn add_unknown<'m>(
    all: &mut Vec<Assumption<'m>>,
    items: &[ResolvedItem<'m>],
    registry: &Registry,
) {
    let plain = || {
        items.iter().filter_map(|item| match item {
            ResolvedItem::Plain(t) => Some(t.stored),
            ResolvedItem::Group(_) => None,
        })
    };
    // Most models have none, and many tensors.
    if !plain().any(|t| is_possible_codes(&t)) {
        return;
    }
    let mut beside: HashMap<&str, Vec<Tensor<'m>>> = HashMap::new();
    for t in plain().filter(is_possible_scale) {
        for module in modules_of_scale(&t) {
            let tensors = beside.entry(module).or_default();
            if tensors.len() < MAX_BESIDE {
                tensors.push(t);
            }
        }
    }
    for t in plain().filter(is_possible_codes) {
        let modules = [t.name(), module(t.name()), module(module(t.name()))];
        let mut near = modules.iter().filter_map(|module| beside.get(module));
        let is_weight = registry.is_weight(t.name()) || t.name().contains(".experts.");
        if is_matrix(&t) && is_weight || near.any(|all| all.iter().any(|c| is_scale(c, &t))) {
            add(all, UNKNOWN, t);
        }
    }
}

/// The name of the module that has the tensor `name`; empty at the root.
fn module(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(module, _)| module)
}

/// The modules whose codes `scale` may scale: its own, and the one around it if the scale is a
/// module that says so itself (`P.scales.data` beside `P.codes.data`).
fn modules_of_scale<'m>(scale: &Tensor<'m>) -> impl Iterator<Item = &'m str> + use<'m> {
    let own = module(scale.name());
    let around = has_word(last_part(own)).then(|| module(own));
    [Some(own), around.filter(|_| !own.is_empty())]
        .into_iter()
        .flatten()
}

fn has_word(part: &str) -> bool {
    WORDS.iter().any(|word| part.contains(word))
}

fn is_matrix(t: &Tensor<'_>) -> bool {
    t.shape().iter().filter(|&&n| n > 1).count() >= 2 && t.elements() >= LEAST_ELEMENTS
}

/// Whether `t` has the type and the size of codes. No library stores codes in 64 bits, and indices
/// that are no codes mostly have them.
fn is_possible_codes(t: &Tensor<'_>) -> bool {
    t.dtype().is_integer()
        && t.dtype().bits() <= 32
        && t.elements() >= LEAST_ELEMENTS
        && !has_word(last_part(t.name()))
}

fn is_possible_scale(t: &Tensor<'_>) -> bool {
    let last = last_part(t.name());
    let is_number = t.dtype().is_floating_point() || t.dtype().is_quantized() || has_word(last);
    is_number && t.elements() > 0 && !OTHERS.iter().any(|end| last.ends_with(end))
}

/// Whether `c` may be a scale of the codes `t`, by its name or by its shape.
fn is_scale(c: &Tensor<'_>, t: &Tensor<'_>) -> bool {
    // In a file of arrays without modules everything lies beside everything.
    let is_at_root = module(t.name()).is_empty();
    is_named_scale(c, t) || !is_at_root && c.elements() < t.elements() && has_shape_of_scale(c, t)
}

/// Whether `c` is called a scale of `t`, and is smaller.
fn is_named_scale(c: &Tensor<'_>, t: &Tensor<'_>) -> bool {
    if c.elements() >= t.elements() || c.name() == t.name() {
        return false;
    }
    let last = last_part(c.name());
    let is_word = has_word(last) || has_word(last_part(module(c.name())));
    let begins_alike = || {
        let stem = last_part(t.name());
        let stem = stem.split_once('_').map_or(stem, |(first, _)| first);
        last.starts_with(stem)
    };
    is_word && (!module(t.name()).is_empty() || begins_alike())
}

/// Whether each dimension of `c` is one of `t`'s, or divides it, in order, and one of several
/// values is the same.
fn has_shape_of_scale(c: &Tensor<'_>, t: &Tensor<'_>) -> bool {
    let mut dims = t.shape().iter();
    let mut has_same = false;
    let mut wide = c.shape().iter().filter(|&&n| n > 1);
    wide.all(|&n| {
        dims.by_ref().any(|&dim| {
            has_same |= dim == n;
            dim.is_multiple_of(n)
        })
    }) && has_same
}

impl Resolution<'_> {
    /// Keeps what is assumed of tensors that are parts of the items.
    pub(crate) fn keep_assumptions_of_items(&mut self) {
        if self.assumptions.is_empty() {
            return;
        }
        let index = |item: &ResolvedItem<'_>| match item {
            ResolvedItem::Group(group) => group.parts.first().map(|(_, t)| t.index),
            ResolvedItem::Plain(t) => Some(t.stored.index),
        };
        let kept: HashSet<usize> = self.items.iter().filter_map(index).collect();
        for assumption in &mut self.assumptions {
            assumption.tensors.retain(|t| kept.contains(&t.index));
        }
        self.assumptions
            .retain(|assumption| !assumption.tensors.is_empty());
    }
}
