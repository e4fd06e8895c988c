//! Which tensors of a model are encoded, by which method, and why the others stay as they are.
//!
//! Three questions are asked of each tensor, in this order: does the user want it (`--include`,
//! `--exclude`, `--like`), is a tensor of its name encoded by default, and does its shape fit the
//! method.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::loaders;
use super::mlx::Mlx;
use super::seam::names;
use super::{Forget, ForgetScheme, Method, Scope, WeightInfo};
use crate::config::Selection;
use crate::lethe::kernels::mlx::MlxFloatMode;
use crate::model::gguf::GgufMetadataValue;
use crate::remember::{EncodedAs, ResolvedItem};
use crate::{AnamnesisError, Dtype, ParseLimits, ParsedModel, Result, TargetDtype};

/// A logical tensor of the model, which may be encoded.
pub(crate) struct Candidate<'a> {
    /// Name in the model, to which the user's patterns apply.
    pub name: &'a str,
    /// The tensor as an encoder takes it. Its name differs from `name` if a parameter is encoded as
    /// its module has it.
    pub weight: WeightInfo<'a>,
    /// Type of the stored codes, or of the values of a tensor that is not quantized.
    pub stored: Dtype,
    /// Whether the model stores it quantized, so that it is decoded first.
    pub is_quantized: bool,
    /// What the model's class says of it; `None`: its name decides.
    pub encoded_as: Option<EncodedAs>,
}

/// Whether a tensor is encoded.
pub(crate) enum Decision {
    /// It is encoded by `method`.
    Encode {
        method: Arc<dyn Method>,
        /// Name of the scheme or of the ggml type, for the report.
        label: String,
    },
    /// It stays as it is, for this reason.
    Keep(String),
}

/// The decisions for all tensors of a model.
pub(crate) struct Decisions {
    /// One decision for each candidate, in their order.
    pub all: Vec<Decision>,
    /// Remarks for the report.
    pub notes: Vec<String>,
    /// What the metadata of a GGUF file says of the encoding, beside its file type.
    pub gguf_keys: Vec<(String, GgufMetadataValue)>,
}

/// Decides for each of `candidates`, which are all tensors of `model`. Quantized values are decoded
/// to `to`.
///
/// # Errors
/// For patterns that do not compile, a model of `--like` or an importance matrix that cannot be
/// read, and for mixtures of GGUF that llama.cpp refuses, too.
pub(crate) fn decide(
    model: &ParsedModel,
    candidates: &[Candidate<'_>],
    forget: &Forget,
    to: TargetDtype,
) -> Result<Decisions> {
    let filter = TensorFilter::new(forget, &model.limits)?;
    forget.scheme.check_group_size()?;
    if !forget.types.is_empty() && forget.scheme.file_type().is_none() {
        let what = "--tensor-type: only tensors of a GGUF file have types of their own; use --to gguf:TYPE";
        return Err(AnamnesisError::usage(what));
    }
    let decisions = decide_by(&filter, model, candidates, forget, to);
    filter.selection.check()?;
    let mut decisions = decisions?;
    let stored = model.tensors().map(|t| t.name());
    let names = candidates.iter().map(|candidate| candidate.name);
    if !names.clone().any(|name| filter.selection.has(name)) && !candidates.is_empty() {
        return Err(filter.selection.has_none(names.chain(stored)));
    }
    let notes = filter.selection.notes(&names.chain(stored));
    decisions.notes.extend(notes);
    Ok(decisions)
}

/// Decides for each of `candidates` which of them `filter` lets through.
fn decide_by(
    filter: &TensorFilter,
    model: &ParsedModel,
    candidates: &[Candidate<'_>],
    forget: &Forget,
    to: TargetDtype,
) -> Result<Decisions> {
    match forget.scheme.method(to) {
        Some((method, scope)) => {
            let has_head = || candidates.iter().any(|c| names::is_head(c.weight.name));
            let scope = match scope {
                Scope::LinearAndUntiedEmbeddings if has_head() => Scope::LinearAndEmbeddings,
                Scope::LinearAndUntiedEmbeddings => Scope::Linear,
                scope => scope,
            };
            let label = forget.scheme.to_string();
            let of_comfy = forget.scheme.is_comfy().then(|| {
                loaders::ComfyUiModel::of(candidates.iter().map(|candidate| candidate.name))
            });
            let by_loader = |name: &str| match &of_comfy {
                Some(model) => model.objection(name).map(str::to_owned),
                None => loaders::objection_of_diffusers(model, name),
            };
            let by_default = |candidate: &Candidate<'_>, name: &str| match candidate.encoded_as {
                Some(EncodedAs::Nothing) => Some("no weight of a layer".to_owned()),
                Some(_) => None,
                None => names::objection(name, scope).or_else(|| match scope {
                    Scope::Linear => by_loader(name),
                    _ => None,
                }),
            };
            let decision = |candidate: &Candidate<'_>| match filter
                .objection(candidate, |name| by_default(candidate, name))
            {
                Some(reason) => Decision::Keep(reason),
                None => match encode_as_class(&method, &label, candidate) {
                    Decision::Keep(reason) => {
                        Decision::Keep(with_way_out(reason, &forget.scheme, candidate, to))
                    }
                    encode => encode,
                },
            };
            let mut all: Vec<Decision> = candidates.iter().map(decision).collect();
            if model.config.is_of_diffusers() && method.is_skipped_by_last_part() {
                loaders::keep_namesakes(candidates, &mut all);
            }
            let mut notes = loaders::notes(model, candidates, &all, &*method, &label);
            notes.extend(of_comfy.and_then(|model| model.note(candidates, &all)));
            Ok(Decisions { all, notes, gguf_keys: vec![] })
        }
        // A GGUF file type has no single method: each tensor gets a ggml type by its name and
        // layer.
        None => super::gguf::decide(model, candidates, forget, filter),
    }
}

/// Group sizes that may be chosen, the largest first.
const GROUP_SIZES: [usize; 6] = [512, 256, 128, 64, 32, 16];

/// `reason`, for which `scheme` does not take `candidate`, with the scheme or the group size that
/// takes it.
fn with_way_out(
    reason: String,
    scheme: &ForgetScheme,
    candidate: &Candidate<'_>,
    to: TargetDtype,
) -> String {
    let takes = |scheme: &ForgetScheme| {
        let method = scheme.method(to);
        method.is_some_and(|(method, _)| method.objection(&candidate.weight).is_none())
    };
    if candidate.weight.shape.contains(&0) {
        return reason;
    }
    let mut instead = scheme.instead().iter();
    let other = instead.find(|name| name.parse().is_ok_and(|scheme| takes(&scheme)));
    if let Some(name) = other {
        return format!("{reason} (--to {name} fits)");
    }
    let mut sizes = GROUP_SIZES.iter().filter(|_| scheme.has_group_sizes());
    match sizes.find(|&&size| takes(&scheme.clone().with_group_size(size))) {
        Some(size) => format!("{reason} (--group-size {size} fits)"),
        None => reason,
    }
}

/// Encodes `candidate` by `method`, unless its shape or name does not fit.
pub(crate) fn encode(method: &Arc<dyn Method>, label: &str, candidate: &Candidate<'_>) -> Decision {
    // Empty tensors have no largest magnitude and no block, and only containers without plain
    // tensors need them.
    let is_refused = candidate.weight.shape.contains(&0) && !method.takes_empty();
    let empty = is_refused.then(|| "it is empty".to_owned());
    match empty.or_else(|| method.objection(&candidate.weight)) {
        Some(reason) => Decision::Keep(reason),
        None => Decision::Encode { method: method.clone(), label: label.to_owned() },
    }
}

/// Encodes `candidate` by `method`, or as its class has it.
fn encode_as_class(method: &Arc<dyn Method>, label: &str, candidate: &Candidate<'_>) -> Decision {
    let (mode, label) = match candidate.encoded_as {
        Some(EncodedAs::Integers { bits, group }) => {
            // mlx-lm asks only of weights whose rows are groups of the model's size what their
            // class says.
            if let keep @ Decision::Keep(_) = encode(method, label, candidate) {
                return keep;
            }
            (Mlx::Affine { bits: bits.into(), group }, format!("mlx-{bits}bit"))
        }
        Some(EncodedAs::Mxfp4) => {
            let mode = Mlx::Floating(MlxFloatMode::Mxfp4);
            (mode, "mlx-mxfp4".to_owned())
        }
        _ => return encode(method, label, candidate),
    };
    let method: Arc<dyn Method> = Arc::new(mode);
    encode(&method, &label, candidate)
}

/// Whether `names` has the candidate, by its name in the model or by the name that it is encoded
/// under.
fn contains(names: &HashSet<String>, candidate: &Candidate<'_>) -> bool {
    names.contains(candidate.name) || names.contains(candidate.weight.name)
}

/// The user's choice of tensors: patterns of names (`--include`, `--exclude`) and a model to
/// imitate (`--like`).
pub(crate) struct TensorFilter {
    selection: Selection,
    /// Whether there is an `--include`. Without one, the selection has every name, which requests
    /// none of them.
    has_include_patterns: bool,
    /// Names of the tensors that are quantized in the model of `--like`.
    like: Option<HashSet<String>>,
}

impl TensorFilter {
    fn new(forget: &Forget, limits: &ParseLimits) -> Result<Self> {
        let selection = Selection::new(&forget.include, &forget.exclude)?;
        let like = forget.like.as_deref();
        let like = like.map(|path| quantized_names(path, limits)).transpose()?;
        Ok(Self { selection, has_include_patterns: !forget.include.is_empty(), like })
    }

    /// Whether the user asked for `candidate`, which overrides the defaults for its name.
    pub(crate) fn is_requested(&self, candidate: &Candidate<'_>) -> bool {
        let named = self.has_include_patterns && self.selection.has(candidate.name);
        named
            || self
                .like
                .as_ref()
                .is_some_and(|like| contains(like, candidate))
    }

    /// The reason not to encode `candidate`, if there is one. `by_default` gives the reason for a
    /// name that the user did not ask for.
    pub(crate) fn objection(
        &self,
        candidate: &Candidate<'_>,
        by_default: impl FnOnce(&str) -> Option<String>,
    ) -> Option<String> {
        // Of tensors that are not quantized only floats are rounded; integers are indices, masks or
        // counters.
        let is_float = candidate.is_quantized || TargetDtype::of(candidate.stored).is_some();
        match () {
            // The user's own choice comes first: an exclusion holds even for tensors that `--like`
            // names.
            () if !self.selection.has(candidate.name) => {
                Some("not among the tensors that were asked for".to_owned())
            }
            () if self
                .like
                .as_ref()
                .is_some_and(|like| !contains(like, candidate)) =>
            {
                Some("not quantized in the model that this one is to be like".to_owned())
            }
            // After the user's patterns: an integer tensor that matches one is not encoded all the
            // same.
            () if !is_float => Some(format!("{} is not encoded", candidate.stored)),
            () if self.is_requested(candidate) => None,
            () => by_default(candidate.weight.name),
        }
    }
}

/// Reads the names of the tensors that are quantized in the model at `path`, within the limits of
/// the model to encode.
fn quantized_names(path: &Path, limits: &ParseLimits) -> Result<HashSet<String>> {
    let model = crate::parse_with_limits(path, limits)?;
    let resolution = model.resolve();
    let quantized = |item: &ResolvedItem<'_>| {
        matches!(item, ResolvedItem::Group(_)).then(|| item.name().to_owned())
    };
    let names = resolution.items.iter().filter_map(quantized).collect();
    model.require_unchanged().map(|()| names)
}
