//! Sorts the stored tensors of a model into groups, plain tensors and dropped tensors, and collects
//! the problems.

use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::seam::assumptions;
use crate::remember::seam::config_check::{check_method, check_stated};
use crate::remember::seam::elsewhere::in_other_shard;
use crate::remember::seam::leftover::{CodesByKind, FailedStems, Leftovers};
use crate::remember::seam::resolution::{Problem, Resolution, ResolvedItem};
use crate::remember::seam::shape_check::check_shape;
use crate::remember::seam::{
    Candidate, Group, Index, QuantScheme, Registry, Scheme, TensorRole, last_part, refused, wrong,
};
use crate::sort::sort_by_key;
use crate::{AnamnesisError, ParsedModel, Result, TargetDtype};

/// What schemes have claimed.
struct Claims<'m> {
    /// The index of the weight that each stored tensor belongs to.
    owner: Vec<Option<u32>>,
    /// By the index of the codes. Boxed, as in items: a model may have hundreds of thousands of
    /// tensors, most of which are companions.
    groups: Vec<Option<Box<Group<'m>>>>,
    /// What the names of the parts of each weight begin with whose claim failed.
    failed: Vec<&'m str>,
    /// Whether names alone do not tell the library that has made the weights.
    has_common_names: bool,
}

impl Claims<'_> {
    /// Whether `t` may be codes by itself: no group has it, and it is neither of ordinary floats nor
    /// called like a companion.
    fn may_be_alone(&self, t: &Tensor<'_>, registry: &Registry) -> bool {
        self.owner[t.index].is_none()
            && TargetDtype::of(t.dtype()).is_none()
            && registry.companion(t.name()).is_none()
    }
}

impl<'m> Resolution<'m> {
    /// Offers every tensor of `model` to the schemes of `registry`, then sorts the tensors that no
    /// group took. Problems do not end the sorting, so that a listing can show all of them.
    pub(crate) fn new(model: &'m ParsedModel, registry: &Registry) -> Self {
        let candidates = registry.candidates(model);
        let all = Index::new(model, &candidates, registry);
        let mut out = Self::default();
        let (claims, failed) = out.claim_all(&all, &candidates, registry);
        let Claims { owner, mut groups, has_common_names, .. } = claims;
        // A failed claim leaves its companions without an owner. They would be reported as further
        // problems, which hide the first: after a failed claim, unclaimed companions are not
        // blamed.
        let blame = out.problems.is_empty();
        // A claim proves that the model is quantized, even if it failed. So activation scales are
        // dropped without a config as well.
        let is_quantized =
            all.config.is_quantized() || !blame || groups.iter().any(Option::is_some);
        let leftovers = Leftovers {
            all: &all,
            registry,
            container: registry.owner(model),
            is_quantized,
            blame,
            codes: codes_by_kind(groups.iter().flatten()),
            failed,
        };
        let count = groups.iter().zip(&owner);
        let count = count.filter(|(group, owner)| group.is_some() || owner.is_none());
        out.items.reserve_exact(count.count());
        // Once more in the order of the source, so that outputs have tensors in the order of the
        // input.
        for t in model.tensors() {
            if let Some(group) = groups[t.index].take() {
                match group.rest {
                    None => out.items.push(ResolvedItem::Group(group)),
                    Some(_) => {
                        let apart = group.taken_apart();
                        out.items.extend(apart.into_iter().map(ResolvedItem::from));
                    }
                }
            } else if owner[t.index].is_none() {
                leftovers.sort(t, &mut out);
            }
        }
        if leftovers.container.is_none() {
            assumptions::add_unknown(&mut out.assumptions, &out.items, registry);
        }
        // A GGUF or QNAT file says by itself how each tensor is stored, and a config beside it may
        // describe the original model.
        if leftovers.container.is_none() {
            out.check_config(&all, registry, has_common_names);
        }
        // Last: every question about names has been asked by now.
        if let (Err(error), Some(tensor)) = (all.config.check_matches(), all.model.tensors().next())
        {
            // First, for what it hides may be the reason of the others.
            out.problems.insert(
                0,
                Problem {
                    tensor,
                    role: TensorRole::Passthrough,
                    scheme: QuantScheme::Other("unknown scheme"),
                    error,
                },
            );
        }
        out
    }

    /// Offers every tensor to `candidates`: those that know their weights by companions first, and
    /// then those that have nothing to go by, of what is left. All claims come before the first
    /// leftover is judged: a companion may precede its weight in the file.
    fn claim_all(
        &mut self,
        all: &Index<'m>,
        candidates: &[&Candidate],
        registry: &Registry,
    ) -> (Claims<'m>, FailedStems<'m>) {
        let count = all.model.tensors.len();
        let mut claims = Claims {
            owner: vec![None; count],
            groups: Vec::new(),
            failed: Vec::new(),
            has_common_names: false,
        };
        claims.groups.resize_with(count, || None);
        let (last, first): (Vec<&Candidate>, Vec<&Candidate>) = candidates
            .iter()
            .partition(|candidate| candidate.scheme.is_asked_last());
        for t in all.model.tensors() {
            self.claim_one(&t, all, &first, registry, &mut claims);
        }
        let failed = FailedStems::new(std::mem::take(&mut claims.failed));
        for t in all.model.tensors() {
            if claims.may_be_alone(&t, registry) && !failed.has(&t) {
                self.claim_one(&t, all, &last, registry, &mut claims);
            }
        }
        sort_by_key(&mut self.problems, |problem| problem.tensor.index);
        (claims, failed)
    }

    /// Offers `t` to `candidates`, and enters the group or the problem.
    fn claim_one(
        &mut self,
        t: &Tensor<'m>,
        all: &Index<'m>,
        candidates: &[&Candidate],
        registry: &Registry,
        claims: &mut Claims<'m>,
    ) {
        let problem =
            |scheme, error| Problem { tensor: *t, role: TensorRole::Quantized, scheme, error };
        match claim(t, all, candidates) {
            Ok(Some((scheme, group))) => {
                // Two weights that both name a tensor as theirs cannot both be right, and nothing
                // says which one is.
                let mut whole = std::iter::once(&group).chain(group.others());
                let checked = take_parts(&group, &mut claims.owner).and_then(|()| {
                    if scheme.is_proved_by_file() {
                        return Ok(());
                    }
                    check_method(scheme, &group, all, registry)?;
                    whole.try_for_each(|group| {
                        check_stated(group, all, registry)?;
                        check_shape(group, all)
                    })
                });
                if let Err(error) = checked {
                    self.problems.push(problem(group.scheme, error));
                    return;
                }
                self.check_whole(t, &group, all, registry);
                if let Some(what) = scheme.assumption(&group, all) {
                    assumptions::add(&mut self.assumptions, what, *t);
                }
                claims.has_common_names |= scheme.has_common_names(&group);
                claims.groups[t.index] = Some(Box::new(group));
            }
            Ok(None) => {}
            Err((scheme, error)) => {
                // A failed claim owns its codes, so that they do not turn up again as a plain
                // tensor.
                claims.owner[t.index] = Some(t.index as u32);
                claims.failed.push(registry.stem(t.name()));
                // What another shard has is a better reason than that it is missing.
                let part = all
                    .elsewhere()
                    .ok()
                    .and_then(|elsewhere| elsewhere.part_of(t.name(), false, all, registry));
                let error = part.map_or(error, |part| in_other_shard(t, part));
                self.problems.push(problem(scheme, error));
            }
        }
    }

    /// Adds a problem if the index of the model has a companion of `group` in another shard. The
    /// weight would be decoded without it, and silently wrong.
    fn check_whole(
        &mut self,
        t: &Tensor<'m>,
        group: &Group<'m>,
        all: &Index<'m>,
        registry: &Registry,
    ) {
        let codes = group.parts[0].1;
        // Codes that are read as values lack whatever there is.
        let is_known = !matches!(group.scheme, QuantScheme::CastFp8 { .. });
        let elsewhere = all.elsewhere();
        let part = elsewhere.map(|found| found.part_of(codes.name(), is_known, all, registry));
        let error = match part {
            Ok(None) => return,
            Ok(Some(part)) => in_other_shard(t, part),
            Err(error) => error,
        };
        self.problems.push(Problem {
            tensor: *t,
            role: TensorRole::Quantized,
            scheme: group.scheme,
            error,
        });
    }

    /// Adds a problem if the config names a quantization method that no scheme knows: then tensors
    /// that look like plain weights may be codes. Groups outweigh the config, unless other
    /// libraries use the same names for different contents.
    fn check_config(&mut self, all: &Index<'m>, registry: &Registry, has_common_names: bool) {
        // A failed claim counts: its scheme recognised the tensor, and its message says more than
        // the config's method would.
        let is_claimed = !self.problems.is_empty() || self.groups().next().is_some();
        let is_unknown = |method: &QuantMethod| !registry.knows(method);
        let method = all
            .config
            .quant_method()
            .filter(|method| (!is_claimed || has_common_names) && is_unknown(method))
            .and_then(|_| all.config.method());
        // An error names a tensor; a model without tensors has nothing to be wrong.
        let (Some(scheme), Some(tensor)) = (method, all.model.tensors().next()) else {
            return;
        };
        let place = all
            .config
            .text(&["quant_method", "method"])
            .map_or("the config", |(_, place)| place);
        let what = format!(
            "{place} says that the model is quantized like this (quant_method), which is not decoded"
        );
        let error = refused(&tensor, &scheme, what);
        let scheme = QuantScheme::Other("unknown scheme");
        self.problems
            .push(Problem { tensor, role: TensorRole::Passthrough, scheme, error });
    }
}

/// For each type and last part of the names of the codes of `groups`, one of these codes.
fn codes_by_kind<'g, 'm: 'g>(groups: impl Iterator<Item = &'g Box<Group<'m>>>) -> CodesByKind<'m> {
    let codes = groups.map(|group| group.parts[0].1);
    let codes = codes.filter(|t| t.dtype().is_integer() || t.dtype().is_quantized());
    codes
        .map(|t| ((t.dtype(), last_part(t.name())), t))
        .collect()
}

/// A group with the scheme that claimed it, or the error of a claim with the scheme to show in
/// listings.
type Claimed<'m> =
    std::result::Result<Option<(&'static dyn Scheme, Group<'m>)>, (QuantScheme, AnamnesisError)>;

/// Offers `t` to `candidates`. A refusal counts as much as a claim: a scheme that is not over the one
/// that refuses could take the tensor for something else and decode it to garbage.
///
/// # Errors
/// The one scheme whose answer stands refuses `t`, or the answers of several stand.
fn claim<'m>(t: &Tensor<'m>, all: &Index<'m>, candidates: &[&Candidate]) -> Claimed<'m> {
    // The answers that stand so far. Whose answer would fall is not asked; being over is transitive,
    // so that the same answers are left in any order of the candidates.
    let mut standing: Vec<(&Candidate, Result<Group<'m>>)> = Vec::new();
    for &candidate in candidates {
        if standing.iter().any(|(other, _)| other.is_over(candidate)) {
            continue;
        }
        if let Some(answer) = candidate.scheme.claim(t, all).transpose() {
            standing.retain(|(other, _)| !candidate.is_over(other));
            standing.push((candidate, answer));
        }
    }
    if standing.len() > 1 {
        return Err(contested(t, all, &standing));
    }
    let Some((Candidate { scheme, .. }, answer)) = standing.pop() else {
        return Ok(None);
    };
    match answer {
        Ok(group) => Ok(Some((*scheme, group))),
        Err(error) => Err((scheme.kind(t, all), error)),
    }
}

/// The error of `t`, which several schemes recognise.
fn contested<'m>(
    t: &Tensor<'m>,
    all: &Index<'m>,
    standing: &[(&Candidate, Result<Group<'m>>)],
) -> (QuantScheme, AnamnesisError) {
    let mut schemes: Vec<&dyn Scheme> = standing.iter().map(|(c, _)| c.scheme).collect();
    sort_by_key(&mut schemes, |scheme| scheme.identity().name);
    let names: Vec<&str> = schemes
        .iter()
        .map(|scheme| scheme.identity().name)
        .collect();
    let what = format!(
        "it has the names and the types of {}, and nothing says which of them it is",
        names.join(" and of ")
    );
    (schemes[0].kind(t, all), wrong(t, what))
}

/// Notes the weight of `group` as the owner of all its parts.
///
/// # Errors
/// A part belongs to another weight already, so that one of the two claims is mistaken.
fn take_parts(group: &Group<'_>, owner: &mut [Option<u32>]) -> Result<()> {
    let weight = group.parts[0].1;
    for (_, part) in &group.parts {
        // A weight may list a tensor twice. Only another weight's claim is a conflict.
        let owner = &mut owner[part.index];
        if let Some(other) = owner.filter(|&other| other as usize != weight.index) {
            let other = &weight.model.tensors[other as usize].name;
            let what = format!("its `{}` belongs to `{other}` as well", part.name());
            return Err(wrong(&weight, what));
        }
        *owner = Some(weight.index as u32);
    }
    Ok(())
}
