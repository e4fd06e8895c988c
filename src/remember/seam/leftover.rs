//! What becomes of tensors that no scheme claimed.

use std::collections::HashMap;

use crate::model::Tensor;
use crate::remember::seam::elsewhere::in_other_shard;
use crate::remember::seam::registry::{Registry, may_be_of_heads};
use crate::remember::seam::resolution::{Problem, Resolution, ResolvedItem};
use crate::remember::seam::{Index, QuantScheme, Scheme, TensorRole, last_part, module_of, wrong};
use crate::{AnamnesisError, Dtype};

/// Sorts the tensors of a model that no scheme claimed.
pub(super) struct Leftovers<'a, 'm> {
    pub all: &'a Index<'m>,
    pub registry: &'a Registry,
    /// The scheme of the model's container, if that settles the scheme.
    pub container: Option<&'static dyn Scheme>,
    /// Whether the config or some claim, be it a failed one, says that the model is quantized.
    pub is_quantized: bool,
    /// Whether a companion without its weight is a problem.
    pub blame: bool,
    pub codes: CodesByKind<'m>,
    pub failed: FailedStems<'m>,
}

/// For each type and last part of the names of codes that were claimed, one of these codes.
pub(super) type CodesByKind<'m> = HashMap<(Dtype, &'m str), Tensor<'m>>;

/// What the names of the parts of weights begin with whose claims failed: in order, none of which
/// begins with another.
pub(super) struct FailedStems<'m>(Vec<&'m str>);

impl<'m> FailedStems<'m> {
    pub(super) fn new(mut stems: Vec<&'m str>) -> Self {
        stems.sort_unstable();
        stems.dedup_by(|stem, before| stem.starts_with(*before));
        Self(stems)
    }

    /// Whether `t` lies beside such a weight, so that it may be a companion. If its name begins with
    /// one of the stems, it begins with the last of them that is not above it.
    pub(super) fn has(&self, t: &Tensor<'_>) -> bool {
        let above = self.0.partition_point(|stem| *stem <= t.name());
        above > 0 && t.name().starts_with(self.0[above - 1])
    }
}

impl<'m> Leftovers<'_, 'm> {
    /// Enters `t` in `out` as a plain tensor, as dropped, or as a problem.
    pub(super) fn sort(&self, t: Tensor<'m>, out: &mut Resolution<'m>) {
        // GGUF and QNAT state the type of each tensor. There a name like `.scale` says nothing, and
        // neither does a config.
        if let Some(container) = self.container {
            if container.is_activation(&t, self.all) {
                out.dropped.push(t);
            } else {
                out.items.push(ResolvedItem::Plain(t.into()));
            }
            return;
        }
        let config = self.all.config;
        // Models have scales of their attention heads, of the same names; those of a cache are one,
        // or configured.
        let is_cached = || {
            t.elements() <= 1 || config.has("kv_cache_scheme") || config.has("kv_cache_quant_algo")
        };
        let is_activation =
            self.registry.is_activation(t.name()) && (!may_be_of_heads(t.name()) || is_cached());
        // A model that is not quantized may have a parameter of an activation scale's name, and
        // keeps it. A marker such as `scaled_fp8` is no parameter in any model.
        if self.is_quantized && is_activation || self.registry.is_marker(t.name()) {
            out.dropped.push(t);
            return;
        }
        // Codes without a scheme are always a problem. Companions are one only if no claim failed:
        // otherwise they likely belong to the weight whose claim did.
        match self.check_plain(&t) {
            Ok(()) => out.items.push(ResolvedItem::Plain(t.into())),
            Err((role, error)) => {
                let problem = Problem { tensor: t, role, scheme: QuantScheme::Unquantized, error };
                if self.blame || role == TensorRole::Quantized {
                    out.problems.push(problem);
                } else {
                    // The companion of a weight that failed. A conversion ends with that failure,
                    // or leaves the weight out, too.
                    out.dropped.push(t);
                    out.suspects.push(problem);
                }
            }
        }
    }

    /// Checks that an unclaimed tensor can be a plain one.
    ///
    /// # Errors
    /// It is a scale or another companion without its weight, codes of a scheme in a quantized
    /// model, or has integers where the config says that weights are quantized. The error comes
    /// with the role that the tensor then has.
    fn check_plain(&self, t: &Tensor<'_>) -> std::result::Result<(), (TensorRole, AnamnesisError)> {
        let elsewhere = self.all.elsewhere();
        let elsewhere = elsewhere.map_err(|error| (TensorRole::Passthrough, error))?;
        let companion = self.registry.companion(t.name());
        let is_parameter = |_: &TensorRole| {
            let mut schemes = self.registry.schemes.iter();
            schemes.any(|scheme| scheme.is_parameter(t, self.all))
        };
        if let Some(role) = companion.filter(|role| !is_parameter(role)) {
            if let Some(weight) = elsewhere.weight_of(t.name()) {
                return Err((role, in_other_shard(t, weight)));
            }
            let what = "it belongs to a quantized weight, and none goes with it";
            return Err((role, wrong(t, what)));
        }
        // Nothing but scales has this type, and other scales of this name may be the model's own.
        if t.dtype() == Dtype::F8E8M0 && t.name().ends_with(".scale") {
            return Err((
                TensorRole::Scale,
                wrong(t, "it scales a quantized weight, and none goes with it"),
            ));
        }
        if t.dtype().is_quantized() && self.failed.has(t) {
            let what = "it lies beside a weight that cannot be decoded, and may belong to it";
            return Err((TensorRole::Scale, wrong(t, what)));
        }
        let is_value = !(t.dtype().is_integer() || t.dtype().is_quantized());
        // Floats may be a norm or a bias beside the weight, but for those that have its name.
        let is_part = !is_value || self.registry.stem(t.name()) != t.name();
        let part = || elsewhere.part_of(t.name(), is_value, self.all, self.registry);
        if let Some(part) = is_part.then(part).flatten() {
            return Err((TensorRole::Quantized, in_other_shard(t, part)));
        }
        if let Some(other) = self.codes.get(&(t.dtype(), last_part(t.name()))) {
            let what = format!(
                "it has the name and the type of codes such as `{}`, and the tensors that would say how are missing",
                other.name()
            );
            return Err((TensorRole::Quantized, wrong(t, what)));
        }
        let config = self.all.config;
        let is_codes = self.is_codes(t);
        let is_skipped = || config.at(module_of(t.name())).skipped;
        // A module that the config leaves alone has weights of floats. Numbers of blocks, which end
        // in `_blocks` too, are no matrix.
        let is_lost = self.is_quantized
            && is_codes
            && t.shape().len() >= 2
            && (self.registry.is_codes(t.name()) || t.dtype().is_integer() && is_skipped());
        if is_lost {
            let what = "it has the name and the type of a quantized weight's codes, and the tensors that would say how are missing";
            return Err((TensorRole::Quantized, wrong(t, what)));
        }
        let companion = self.registry.companion_if_quantized(t.name());
        if !(is_codes || companion.is_some()) || !config.is_quantized() || is_skipped() {
            return Ok(());
        }
        if let Some(role) = companion {
            let what = "the config says that the model is quantized, and no weight goes with it";
            Err((role, wrong(t, what)))
        } else {
            let method = config.method().unwrap_or_else(|| "quantized".to_owned());
            let what = format!(
                "the config says that it is quantized ({method}), and the tensors that would say how are missing"
            );
            Err((TensorRole::Quantized, wrong(t, what)))
        }
    }

    /// Whether `t` is called a weight and has the type of codes.
    fn is_codes(&self, t: &Tensor<'_>) -> bool {
        // Experts in one stacked parameter are often not called a weight: `experts.gate_up_proj`,
        // `experts.w1`.
        let is_expert = t.name().contains(".experts.") && t.shape().len() >= 2;
        if !(self.registry.is_weight(t.name()) || is_expert) {
            return false;
        }
        let mut schemes = self.registry.schemes.iter();
        // The dtype is asked first, for it settles most tensors without a look at the schemes.
        t.dtype().is_integer()
            || t.dtype().is_quantized()
            || schemes.any(|scheme| scheme.may_be_codes(t, self.all))
    }
}
