//! Which tensors of a model are encoded, by which method, and why the others stay as they are.
//!
//! Three questions are asked of each tensor, in this order: does the user want it (`--include`,
//! `--exclude`, `--like`), is a tensor of its name encoded by default, and does its shape fit the
//! method.

use std::sync::Arc;

use super::activation_scales::ActivationScales;
use super::decision::{Candidate, Decision, Decisions, TensorFilter, encode};
use super::imatrix::Imatrix;
use super::importance::Importance;
use super::loaders;
use super::mixed::TensorSchemes;
use super::mlx::Mlx;
use super::seam::names;
use super::{Forget, ForgetScheme, Method, Scope};
use crate::lethe::kernels::mlx::MlxFloatMode;
use crate::remember::EncodedAs;
use crate::{AnamnesisError, ParseLimits, ParsedModel, Result, TargetDtype};

/// Fails if options of `forget` contradict each other.
///
/// # Errors
/// `Usage` that names the option.
pub(crate) fn check(forget: &Forget) -> Result<()> {
    forget.scheme.check_group_size()?;
    let is_gguf = forget.scheme.is_gguf();
    if !forget.types.is_empty() && !is_gguf {
        let what = "tensors of GGUF have types of ggml, and those of other models schemes";
        return Err(AnamnesisError::usage(what));
    }
    // Callers may set the field without `give`.
    for (_, other) in &forget.schemes {
        let beside = forget.scheme.beside(&other.to_string());
        beside.map_err(|e| e.about("--tensor-type"))?;
    }
    if forget.bits.is_some() && forget.size.is_some() {
        return Err(AnamnesisError::usage("--bits, --size: the two say the same; leave one out"));
    }
    if forget.imatrix.is_some() && !forget.search && !is_gguf && !forget.has_budget() {
        let what = "--imatrix: without a search of scales (--search) or a size (--bits) only GGUF types use an importance matrix";
        return Err(AnamnesisError::usage(what));
    }
    #[cfg(not(feature = "models"))]
    if forget.scales_inputs || forget.has_budget() {
        let what = "which norms layers read, and what outputs lose, is known with the feature `models`, which this build leaves out";
        return Err(AnamnesisError::unsupported("--awq-scaling, --bits, --size", what));
    }
    if forget.scales_inputs && forget.imatrix.is_none() {
        let what = "--awq-scaling: which inputs are large is in an importance matrix (--imatrix)";
        return Err(AnamnesisError::usage(what));
    }
    if forget.activation_scales.is_some() && !forget.scheme.has_activation_scales() {
        let what = format!(
            "--activation-scales: {} stores none; fp8, fp8-channel, fp8-tensor and fp8-comfy do",
            forget.scheme
        );
        return Err(AnamnesisError::usage(what));
    }
    if forget.search && !forget.scheme.has_search() {
        let what = format!("--search: {} has no search of scales", forget.scheme);
        return Err(AnamnesisError::usage(what));
    }
    Ok(())
}

/// Decides for each of `candidates`, which are all tensors of `model`. `imatrix` is the importance
/// matrix of `forget`. Quantized values are decoded to `to`.
///
/// # Errors
/// For patterns that do not compile, a model of `--like` that cannot be read, and for mixtures of
/// GGUF that llama.cpp refuses, too.
pub(crate) fn decide(
    model: &ParsedModel,
    candidates: &[Candidate<'_>],
    (forget, imatrix): (&Forget, Option<&Arc<Imatrix>>),
    to: TargetDtype,
) -> Result<Decisions> {
    let filter = TensorFilter::new(forget, &model.limits)?;
    let decisions = decide_by(&filter, model, candidates, (forget, imatrix), to);
    filter.selection.check()?;
    let mut decisions = decisions?;
    weigh(&mut decisions, candidates, (forget, imatrix))?;
    let stored = model.tensors().map(|t| t.name());
    let names = candidates.iter().map(|candidate| candidate.name);
    if !names.clone().any(|name| filter.selection.has(name)) && !candidates.is_empty() {
        return Err(filter.selection.has_none(names, stored));
    }
    let notes = filter.selection.notes(&names, &stored);
    decisions.notes.extend(notes);
    Ok(decisions)
}

/// Gives the tensors that are encoded their importance, and notes which a matrix says nothing of:
/// their scales stay as the library has them.
///
/// # Errors
/// `Unsupported` if no entry of the matrix fits, `Parse` if one has the wrong size.
fn weigh(
    decisions: &mut Decisions,
    candidates: &[Candidate<'_>],
    (forget, imatrix): (&Forget, Option<&Arc<Imatrix>>),
) -> Result<()> {
    if let (Some(imatrix), Some(path)) = (imatrix, &forget.imatrix) {
        let note = imatrix.note_of_fit(path, candidates, &decisions.all)?;
        decisions.notes.extend(note);
    }
    if !forget.weighs_search() {
        return Ok(());
    }
    for (candidate, decision) in candidates.iter().zip(&mut decisions.all) {
        if let Decision::Encode { importance, method, .. } = decision {
            *importance = Importance::of(&candidate.weight, &**method, imatrix)?;
        }
    }
    Ok(())
}

/// Decides for each of `candidates` which of them `filter` lets through.
fn decide_by(
    filter: &TensorFilter,
    model: &ParsedModel,
    candidates: &[Candidate<'_>],
    (forget, imatrix): (&Forget, Option<&Arc<Imatrix>>),
    to: TargetDtype,
) -> Result<Decisions> {
    match forget.scheme.method(to) {
        Some((method, scope)) => {
            let scales = activation_scales(forget, &model.limits)?;
            let named = |scheme: &ForgetScheme| {
                let (method, _) = scheme.method(to)?;
                Some((with_scales(method, scales.as_ref()), scheme.to_string()))
            };
            let schemes = TensorSchemes::new(forget, candidates, named)?;
            let method = with_scales(method, scales.as_ref());
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
                None => match schemes.of(candidate) {
                    Some((method, label)) => encode(method, label, candidate),
                    None => match encode_as_class(&method, &label, candidate) {
                        Decision::Keep(reason) => {
                            Decision::Keep(with_way_out(reason, &forget.scheme, candidate, to))
                        }
                        encode => encode,
                    },
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
        None => super::gguf::decide(model, candidates, (forget, imatrix), filter),
    }
}

/// The scales of activations that `forget` names.
///
/// # Errors
/// Those of [`ActivationScales::open`].
fn activation_scales(
    forget: &Forget,
    limits: &ParseLimits,
) -> Result<Option<Arc<ActivationScales>>> {
    let path = forget.activation_scales.as_ref();
    let scales = path.map(|path| ActivationScales::open(path, limits).map(Arc::new));
    scales.transpose()
}

/// `method` with scales of activations, if it has a place for them.
fn with_scales(method: Arc<dyn Method>, scales: Option<&Arc<ActivationScales>>) -> Arc<dyn Method> {
    let scaled = scales.and_then(|scales| method.with_activation_scales(scales));
    scaled.unwrap_or(method)
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

/// Encodes `candidate` by `method`, or as its class has it.
fn encode_as_class(method: &Arc<dyn Method>, label: &str, candidate: &Candidate<'_>) -> Decision {
    let encoded_as = match candidate.encoded_as {
        Some(EncodedAs::Bits(bits)) => Some(EncodedAs::Integers { bits, group: 64 }),
        other => other,
    };
    let (mode, label) = match encoded_as {
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
