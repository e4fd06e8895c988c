//! Sorts the stored tensors of a model into groups, plain tensors and dropped tensors, and collects
//! the problems.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::config::QuantMethod;
use crate::model::Tensor;
#[cfg(feature = "lethe")]
use crate::remember::seam::EncodedAs;
use crate::remember::seam::assumptions::{self, Assumption};
use crate::remember::seam::config_check::{check_method, check_stated};
use crate::remember::seam::elsewhere::in_other_shard;
use crate::remember::seam::leftover::{CodesByKind, Leftovers};
use crate::remember::seam::shape_check::check_shape;
use crate::remember::seam::{
    Group, Index, QuantScheme, Registry, Scheme, TensorRole, last_part, refused, wrong,
};
use crate::{AnamnesisError, ParsedModel, Result};

/// A logical tensor of a model, which becomes a tensor of the output.
pub(crate) enum ResolvedItem<'m> {
    /// Quantized: decoded from several stored tensors.
    Group(Box<Group<'m>>),
    /// Not quantized: a stored tensor that can be copied.
    Plain(NamedTensor<'m>),
}

/// A stored tensor under the name that it has in the output.
#[derive(Clone)]
pub(crate) struct NamedTensor<'m> {
    pub stored: Tensor<'m>,
    /// `None`: the name that it is stored under.
    name: Option<Box<str>>,
}

impl<'m> NamedTensor<'m> {
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.stored.name())
    }

    /// The name, without a copy of it.
    pub(crate) fn into_name(self) -> Cow<'m, str> {
        match self.name {
            Some(name) => name.into_string().into(),
            None => self.stored.name().into(),
        }
    }
}

impl<'m> From<Tensor<'m>> for NamedTensor<'m> {
    fn from(stored: Tensor<'m>) -> Self {
        Self { stored, name: None }
    }
}

impl<'m> From<Group<'m>> for ResolvedItem<'m> {
    fn from(group: Group<'m>) -> Self {
        Self::Group(Box::new(group))
    }
}

impl<'m> ResolvedItem<'m> {
    /// Name in the output.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Group(group) => &group.name,
            Self::Plain(t) => t.name(),
        }
    }

    /// Gives the item, and its form as a module, another name in the output.
    pub(crate) fn rename(&mut self, name: String) {
        match self {
            Self::Group(group) => {
                if let Some(module) = &mut group.module {
                    // A parameter `experts.gate_up_proj` is the module's
                    // `experts.gate_up_proj.weight`.
                    let ending = module.name.strip_prefix(&*group.name).unwrap_or_default();
                    module.name = format!("{name}{ending}").into();
                }
                group.name = name.into();
            }
            Self::Plain(t) => t.name = Some(name.into()),
        }
    }

    /// Shape in the output.
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::Group(group) => &group.shape,
            Self::Plain(t) => t.stored.shape(),
        }
    }

    /// The group as a linear module lays it out (`[out, in]`), if the item is a parameter `[in,
    /// out]`.
    #[cfg(feature = "lethe")]
    pub(crate) fn module(&self) -> Option<&Group<'m>> {
        match self {
            Self::Group(group) => group.module.as_deref(),
            Self::Plain(_) => None,
        }
    }

    /// What the model's class says of encoding it.
    #[cfg(feature = "lethe")]
    pub(crate) fn encoded_as(&self) -> Option<EncodedAs> {
        match self {
            Self::Group(group) => group.encoded_as,
            Self::Plain(_) => None,
        }
    }

    /// Removes and returns the group as a linear module lays it out.
    #[cfg(feature = "lethe")]
    pub(crate) fn take_module(&mut self) -> Option<Group<'m>> {
        match self {
            Self::Group(group) => group.module.take().map(|module| *module),
            Self::Plain(_) => None,
        }
    }
}

/// A stored tensor that cannot become part of an output, and the reason.
pub(crate) struct Problem<'m> {
    pub tensor: Tensor<'m>,
    pub role: TensorRole,
    pub scheme: QuantScheme,
    pub error: AnamnesisError,
}

impl Problem<'_> {
    /// Whether the problem is that of the whole model. Its tensor is any one then.
    fn is_of_model(&self) -> bool {
        let scheme = self.scheme;
        self.role == TensorRole::Passthrough
            || matches!(scheme, QuantScheme::Other("unknown scheme" | "transformed weights"))
    }
}

/// All tensors of a model, sorted by their use.
#[derive(Default)]
pub(crate) struct Resolution<'m> {
    /// In the order of the source. A group has the position of its codes.
    pub items: Vec<ResolvedItem<'m>>,
    /// Activation scales and markers. No output has them; the report lists them.
    pub dropped: Vec<Tensor<'m>>,
    /// What is taken for granted.
    pub assumptions: Vec<Assumption<'m>>,
    /// Failed claims, then unclaimed tensors, then the config; each in the order of the source.
    pub problems: Vec<Problem<'m>>,
    /// Companions without a weight, which are no problems beside a failed claim: they probably belong
    /// to it. They are among `dropped`, too.
    pub suspects: Vec<Problem<'m>>,
}

/// What schemes have claimed.
struct Claims<'m> {
    /// The index of the weight that each stored tensor belongs to.
    owner: Vec<Option<u32>>,
    /// By the index of the codes. Boxed, as in items: a model may have hundreds of thousands of
    /// tensors, most of which are companions.
    groups: Vec<Option<Box<Group<'m>>>>,
    /// Whether names alone do not tell the library that has made the weights.
    has_common_names: bool,
}

impl<'m> Resolution<'m> {
    /// Offers every tensor of `model` to the schemes of `registry`, then sorts the tensors that no
    /// group took. Problems do not end the sorting, so that a listing can show all of them.
    pub(crate) fn new(model: &'m ParsedModel, registry: &Registry) -> Self {
        let schemes = registry.candidates(model);
        let all = Index::new(model, &schemes);
        let mut out = Self::default();
        let Claims { owner, mut groups, has_common_names } =
            out.claim_all(&all, &schemes, registry);
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

    /// Offers every tensor to `schemes`. All claims come before the first leftover is judged: a
    /// companion may precede its weight in the file.
    fn claim_all(
        &mut self,
        all: &Index<'m>,
        schemes: &[&'static dyn Scheme],
        registry: &Registry,
    ) -> Claims<'m> {
        let count = all.model.tensors.len();
        let mut claims =
            Claims { owner: vec![None; count], groups: Vec::new(), has_common_names: false };
        claims.groups.resize_with(count, || None);
        for t in all.model.tensors() {
            let problem =
                |scheme, error| Problem { tensor: t, role: TensorRole::Quantized, scheme, error };
            match claim(&t, all, schemes) {
                Ok(Some((scheme, group))) => {
                    // Two weights that both name a tensor as theirs cannot both be right, and
                    // nothing says which one is.
                    let mut whole = std::iter::once(&group).chain(group.others());
                    let checked = take_parts(&group, &mut claims.owner).and_then(|()| {
                        check_method(scheme, &group, all, registry)?;
                        whole.try_for_each(|group| {
                            check_stated(group, all)?;
                            check_shape(group, all)
                        })
                    });
                    if let Err(error) = checked {
                        self.problems.push(problem(group.scheme, error));
                    } else {
                        self.check_whole(&t, &group, all, registry);
                        if let Some(what) = scheme.assumption(&group, all) {
                            assumptions::add(&mut self.assumptions, what, t);
                        }
                        claims.has_common_names |= scheme.has_common_names(&group);
                        claims.groups[t.index] = Some(Box::new(group));
                    }
                }
                Ok(None) => {}
                Err((scheme, error)) => {
                    // A failed claim owns its codes, so that they do not turn up again as a plain
                    // tensor.
                    claims.owner[t.index] = Some(t.index as u32);
                    // What another shard has is a better reason than that it is missing.
                    let part = all
                        .elsewhere()
                        .ok()
                        .and_then(|elsewhere| elsewhere.part_of(t.name(), false, all, registry));
                    let error = part.map_or(error, |part| in_other_shard(&t, part));
                    self.problems.push(problem(scheme, error));
                }
            }
        }
        claims
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

    /// The groups among the items, in order.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group<'m>> {
        self.items.iter().filter_map(|item| match item {
            ResolvedItem::Group(group) => Some(&**group),
            ResolvedItem::Plain(_) => None,
        })
    }

    /// Leaves out the tensors that have a problem and for which `is_asked` does not ask by their
    /// stored names. Returns their names.
    ///
    /// # Errors
    /// The first problem of another tensor, or of the whole model.
    pub(crate) fn of_asked(
        mut self,
        is_asked: impl Fn(&str) -> bool,
    ) -> Result<(Self, Vec<String>)> {
        let mut left_out = Vec::new();
        // Without a failed claim that counts, companions of other weights are no part of one.
        for problem in self.problems.drain(..).chain(self.suspects.drain(..)) {
            if problem.is_of_model() || is_asked(problem.tensor.name()) {
                return Err(problem.error);
            }
            left_out.push(problem.tensor.name().to_owned());
        }
        if !left_out.is_empty() {
            let names: HashSet<&str> = left_out.iter().map(String::as_str).collect();
            self.dropped.retain(|t| !names.contains(t.name()));
        }
        Ok((self, left_out))
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

/// Offers `t` to `schemes` in their order, up to the first that claims or refuses it.
fn claim<'m>(t: &Tensor<'m>, all: &Index<'m>, schemes: &[&'static dyn Scheme]) -> Claimed<'m> {
    for &scheme in schemes {
        match scheme.claim(t, all) {
            Ok(None) => {}
            Ok(Some(group)) => return Ok(Some((scheme, group))),
            // A refusal ends the search: a scheme further down could take the tensor for something
            // else and decode it to garbage.
            Err(error) => return Err((scheme.kind(t, all), error)),
        }
    }
    Ok(None)
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
