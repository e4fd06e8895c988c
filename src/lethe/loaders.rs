//! What programs make of encoded models, as far as it decides on tensors or is worth a note:
//! diffusers, ComfyUI and vLLM.

mod comfy_ui;

use std::collections::{BTreeMap, HashSet};

pub(super) use self::comfy_ui::ComfyUiModel;
use super::Method;
use super::decision::{Candidate, Decision};
use super::seam::names::of_one_scheme;
use crate::ParsedModel;
use crate::remember::image_models::ImageModel;

/// Values of `quant_method` of which programs for images have no loader.
const OF_LANGUAGE_MODELS: &[&str] =
    &["awq", "compressed-tensors", "fp8", "gptq", "modelopt", "mxfp4"];

/// What the user should know of programs that load what `method` writes, which is called `label`.
pub(super) fn notes(
    model: &ParsedModel,
    candidates: &[Candidate<'_>],
    decisions: &[Decision],
    method: &dyn Method,
    label: &str,
) -> Vec<String> {
    let config = method.config(&[]);
    let quant_method = config
        .as_ref()
        .and_then(|c| c.get("quant_method")?.as_str());
    if !quant_method.is_some_and(|name| OF_LANGUAGE_MODELS.contains(&name)) {
        return vec![];
    }
    let of_images = note_of_image_models(model, candidates, label);
    let of_fused = note_of_fused(candidates, decisions);
    of_images.into_iter().chain(of_fused).collect()
}

/// Layers that engines compute as one, of which some have another scheme or none: vLLM refuses them.
///
/// Source: vLLM `layers/quantization/utils/quant_utils.py` (`is_layer_skipped`).
fn note_of_fused(candidates: &[Candidate<'_>], decisions: &[Decision]) -> Option<String> {
    let mut families = BTreeMap::new();
    for (candidate, decision) in candidates.iter().zip(decisions) {
        let Some(family) = of_one_scheme(candidate.name) else {
            continue;
        };
        let label = match decision {
            Decision::Encode { label, .. } => Some(&**label),
            Decision::Keep(_) => None,
        };
        // By the scheme, no scheme first.
        let members: &mut BTreeMap<Option<&str>, &str> = families.entry(family).or_default();
        members.entry(label).or_insert(candidate.name);
    }
    let members = families.into_values().find(|members| members.len() > 1)?;
    let mut members = members.into_iter();
    let ((one, one_name), (other, other_name)) = (members.next()?, members.next()?);
    Some(match (one, other) {
        (Some(one), Some(other)) => format!(
            "`{one_name}` is encoded to {one}, but `{other_name}` to {other}: vLLM computes the two as one and loads them if they have one scheme"
        ),
        _ => format!(
            "`{one_name}` is not encoded, but `{other_name}` is: vLLM computes the two as one and loads them if both are or neither is"
        ),
    })
}

/// What the user of an image model should know whose programs do not load `label`. ComfyUI
/// multiplies the scales of FP8 only into layers with a `comfy_quant`.
///
/// Source: ComfyUI `comfy/ops.py` (`_load_quantized_module`); diffusers 0.42.1
/// `quantizers/auto.py`, where `modelopt` is another layout.
fn note_of_image_models(
    model: &ParsedModel,
    candidates: &[Candidate<'_>],
    label: &str,
) -> Option<String> {
    if model.config.is_of_diffusers() {
        return Some(format!(
            "diffusers does not load `{label}`; it loads `nf4`, `fp4` and `int8`, and one file of GGUF"
        ));
    }
    ImageModel::of(candidates.iter().map(|candidate| candidate.name))?;
    Some(format!(
        "ComfyUI does not load `{label}`, and takes codes in FP8 for weights without scales; it loads `fp8-comfy`, `comfy-nvfp4`, `comfy-mxfp8`, `comfy-int8-convrot`, `comfy-w4a4` and GGUF"
    ))
}

/// The reason why a tensor called `name` stays in a model of a class of diffusers.
pub(super) fn objection_of_diffusers(model: &ParsedModel, name: &str) -> Option<String> {
    let module = name.strip_suffix(".weight")?;
    let is_kept = model.config.keeps_unquantized(module);
    is_kept.then(|| "no quantized layer in its class of diffusers".to_owned())
}

/// Keeps the weights of layers that diffusers does not replace: those that end in the name of a
/// module at the top of the model that is not encoded. Its list of such modules has their full
/// names, but it compares them with the last part of every name, too.
///
/// Source: diffusers 0.42.1 `quantizers/bitsandbytes/utils.py` (`_replace_with_bnb_linear`).
pub(super) fn keep_namesakes(candidates: &[Candidate<'_>], decisions: &mut [Decision]) {
    let modules = candidates.iter().map(|candidate| {
        let module = candidate.name.strip_suffix(".weight")?;
        (candidate.weight.shape.len() == 2).then_some(module)
    });
    let modules: Vec<Option<&str>> = modules.collect();
    let kept = modules
        .iter()
        .zip(&*decisions)
        .filter_map(|(module, decision)| {
            let is_kept = matches!(decision, Decision::Keep(_));
            module.filter(|module| is_kept && !module.contains('.'))
        });
    let kept: HashSet<&str> = kept.collect();
    for (module, decision) in modules.iter().zip(decisions) {
        let last = module.and_then(|module| module.rsplit('.').next());
        if let (Decision::Encode { .. }, Some(last)) = (&*decision, last)
            && kept.contains(last)
        {
            let reason = format!("diffusers quantizes no layer called `{last}` if one is not");
            *decision = Decision::Keep(reason);
        }
    }
}
