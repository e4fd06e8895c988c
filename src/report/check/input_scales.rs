//! Scales of activations that some layers of a kind have and others lack. Decoding does without
//! them, and programs that compute with quantized activations do not.

use std::collections::{HashMap, HashSet};

use super::{Finding, Severity};
use crate::model::Tensor;
use crate::remember::{QuantScheme, Resolution};
use crate::report::inspect::without_numbers;
use crate::sort::sort_by;
use crate::{ParsedModel, TensorRole};

/// A scale of activations by where it lies: the kind of its module, and the last part of its name.
type Kind<'m> = (String, &'m str);

/// What is known of scales of one kind.
#[derive(Default)]
struct Scales<'m> {
    /// Modules that have one.
    modules: HashSet<&'m str>,
    /// Schemes of weights in these modules.
    schemes: Vec<QuantScheme>,
    /// Modules of this kind that have none, with the scheme and the codes of a weight in them.
    lacking: Vec<(String, QuantScheme, Tensor<'m>)>,
}

/// Adds the modules without a scale of activations, of a kind whose other modules have one. Modules
/// are of one kind if their names differ in numbers alone. Weights of another scheme than those
/// beside a scale need none.
pub(super) fn check<'m>(
    model: &'m ParsedModel,
    resolution: &Resolution<'m>,
    findings: &mut Vec<Finding>,
) {
    let mut kinds: HashMap<Kind<'m>, Scales<'m>> = HashMap::new();
    let mut ends: HashMap<String, Vec<&'m str>> = HashMap::new();
    for t in model
        .tensors()
        .filter(|t| t.role() == TensorRole::Activation)
    {
        let Some((module, end)) = t.name().rsplit_once('.') else {
            continue;
        };
        let kind = without_numbers(module);
        let scales = kinds.entry((kind.clone(), end)).or_default();
        if scales.modules.is_empty() {
            ends.entry(kind).or_default().push(end);
        }
        scales.modules.insert(module);
    }
    if kinds.is_empty() {
        return;
    }
    for group in resolution.groups() {
        let (name, codes) = (&*group.name, group.parts[0].1);
        for (at, _) in name.match_indices('.') {
            let (module, kind) = (&name[..at], without_numbers(&name[..at]));
            for &end in ends.get(&kind).into_iter().flatten() {
                let Some(scales) = kinds.get_mut(&(kind.clone(), end)) else {
                    continue;
                };
                if !scales.modules.contains(module) {
                    let lacking = (module.to_owned(), group.scheme, codes);
                    scales.lacking.push(lacking);
                } else if !scales.schemes.contains(&group.scheme) {
                    scales.schemes.push(group.scheme);
                }
            }
        }
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    sort_by(&mut kinds, |(a, _), (b, _)| a.cmp(b));
    for ((_, end), mut scales) in kinds {
        scales.lacking.dedup_by(|a, b| a.0 == b.0);
        let Some(other) = scales.modules.iter().min() else {
            continue;
        };
        for (module, scheme, codes) in &scales.lacking {
            if scales.schemes.contains(scheme) {
                let what = format!(
                    "`{module}.{end}` is missing, and other layers have one, such as `{other}.{end}`"
                );
                findings.push(Finding::of_tensor(Severity::Warning, codes, what));
            }
        }
    }
}
