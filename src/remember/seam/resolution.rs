//! What becomes of the stored tensors of a model: groups, plain tensors, dropped tensors, problems.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::model::Tensor;
#[cfg(feature = "lethe")]
use crate::remember::seam::EncodedAs;
use crate::remember::seam::assumptions::Assumption;
use crate::remember::seam::{Decode, Group, PlainFloats, QuantScheme, TensorRole};
use crate::{AnamnesisError, Result};

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

    /// The stored values, if the item is a tensor of plain floats.
    pub(crate) fn plain_floats(&self) -> Option<PlainFloats<'m>> {
        match self {
            Self::Plain(t) => PlainFloats::of(&t.stored),
            Self::Group(_) => None,
        }
    }

    /// The decoder of the item's values, of which `plain` are its [`plain_floats`](Self::plain_floats).
    pub(crate) fn decoder<'d>(
        &'d self,
        plain: Option<&'d PlainFloats<'m>>,
    ) -> Option<&'d dyn Decode> {
        match self {
            Self::Group(group) => Some(&*group.decoder),
            Self::Plain(_) => plain.map(|plain| plain as &dyn Decode),
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

impl<'m> Resolution<'m> {
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
