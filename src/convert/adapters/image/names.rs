//! Names that the tensors of a LoRA have in files for image and video models: those of kohya's
//! scripts, of diffusers and of ComfyUI.
//!
//! kohya's names join the parts of a module by `_`
//! (`lora_unet_mid_block_attentions_0_proj_in.lora_down.weight`), those of others by dots, behind
//! the part of the pipeline (`transformer.x_embedder.lora_A.weight`).
//!
//! Source: diffusers 0.42.1 `loaders/lora_conversion_utils.py`.

use crate::convert::adapters::composed::ComposedRole;
use crate::model::Tensor;
use crate::remember::seam::wrong;
use crate::{AnamnesisError, Result};

/// What a tensor is to its module.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::convert::adapters) enum LoraRole {
    A,
    B,
    /// What is added to the bias before it is scaled.
    BiasOfB,
    /// What stands between both factors of a convolution.
    Core,
    /// A tensor of LoHa or LoKr.
    Composed(ComposedRole),
    /// What the product is multiplied by, and divided by its rank.
    Alpha,
    /// The lengths of rows or columns (DoRA).
    Lengths,
    /// What is added to the weight, and what is added to the bias.
    WeightSum,
    BiasSum,
}

/// What the name of a tensor says.
pub(in crate::convert::adapters) struct LoraName<'a> {
    /// The part of the pipeline that the module is in; empty if the name has none.
    pub component: &'a str,
    /// The module, joined as the name has it.
    pub module: String,
    pub role: LoraRole,
}

const ENDINGS: &[(&str, LoraRole)] = &[
    (".lora_down.weight", LoraRole::A),
    (".lora_up.weight", LoraRole::B),
    (".lora_A.weight", LoraRole::A),
    (".lora_B.weight", LoraRole::B),
    (".lora_A.default.weight", LoraRole::A),
    (".lora_B.default.weight", LoraRole::B),
    (".lora.down.weight", LoraRole::A),
    (".lora.up.weight", LoraRole::B),
    (".lora_linear_layer.down.weight", LoraRole::A),
    (".lora_linear_layer.up.weight", LoraRole::B),
    (OF_PROCESSOR_A, LoraRole::A),
    (OF_PROCESSOR_B, LoraRole::B),
    (".lora_B.bias", LoraRole::BiasOfB),
    (".lora_mid.weight", LoraRole::Core),
    (".alpha", LoraRole::Alpha),
    (".dora_scale", LoraRole::Lengths),
    (".diff", LoraRole::WeightSum),
    (".diff_b", LoraRole::BiasSum),
    (".w_norm", LoraRole::WeightSum),
    (".b_norm", LoraRole::BiasSum),
];

/// Endings behind the module's last part: `attn1.processor.to_q_lora.down.weight` is of
/// `attn1.to_q`.
const OF_PROCESSOR_A: &str = "_lora.down.weight";
const OF_PROCESSOR_B: &str = "_lora.up.weight";

/// Parts of a pipeline, as names with dots begin.
const COMPONENTS: &[&str] = &[
    "base_model.model",
    "diffusion_model",
    "prior",
    "text_encoder",
    "text_encoder_2",
    "text_encoder_3",
    "transformer",
    "transformer_2",
    "unet",
];

/// Parts of a pipeline, as the names of kohya's scripts and of LyCORIS begin.
const KOHYA_COMPONENTS: &[&str] = &[
    "lora_prior",
    "lora_te",
    "lora_te1",
    "lora_te2",
    "lora_te3",
    "lora_transformer",
    "lora_unet",
    "lycoris",
];

/// Kinds of adapters by parts of their names, which add no product of their own tensors.
const REFUSED: &[(&str, &str)] = &[
    (".oft_", "OFT"),
    (".on_input", "(IA)³ of LyCORIS"),
    (".reshape_weight", "a LoRA that enlarges its weight"),
];

impl<'a> LoraName<'a> {
    /// Whether `name` is that of a factor or of what is added to a weight, or of a kind of adapter
    /// that is refused by name.
    pub(in crate::convert::adapters) fn is_of_lora(name: &str) -> bool {
        let is_named = |role: &LoraRole| {
            !matches!(role, LoraRole::Alpha | LoraRole::BiasSum | LoraRole::BiasOfB)
        };
        let mut endings = ENDINGS.iter();
        let ending = endings.find(|(ending, _)| name.ends_with(ending));
        ending.is_some_and(|(_, role)| is_named(role))
            || ComposedRole::of(name).is_some()
            || REFUSED.iter().any(|(part, _)| name.contains(part))
    }

    /// # Errors
    /// `Unsupported` if the tensor `t` is of an adapter of another kind; `Parse` if its name is
    /// none of an adapter.
    pub(super) fn new(t: &Tensor<'a>) -> Result<Self> {
        let name = t.name();
        if let Some((_, kind)) = REFUSED.iter().find(|(part, _)| name.contains(part)) {
            let what = format!("it is of {kind}, and LoRA, LoHa and LoKr are merged");
            return Err(AnamnesisError::unsupported("an adapter", what).in_tensor(name));
        }
        let mut endings = ENDINGS.iter();
        let found =
            endings.find_map(|&(ending, role)| Some((name.strip_suffix(ending)?, ending, role)));
        let composed = || {
            let (path, role) = ComposedRole::of(name)?;
            Some((path, "", LoraRole::Composed(role)))
        };
        let found = found.or_else(composed);
        let Some((path, ending, role)) = found else {
            let what =
                "its name is none of a LoRA of kohya's scripts, LyCORIS, diffusers or ComfyUI";
            return Err(wrong(t, what));
        };
        let (component, module) = split(path);
        let module = match ending == OF_PROCESSOR_A || ending == OF_PROCESSOR_B {
            true => {
                let module = module.replace(".processor.", ".");
                match module.ends_with(".to_out") {
                    true => format!("{module}.0"),
                    false => module,
                }
            }
            false => module.to_owned(),
        };
        Ok(Self { component, module, role })
    }

    /// The part of the pipeline that the tensor `name` is of; empty if the name has none.
    #[cfg(feature = "models")]
    pub(super) fn component_of(name: &str) -> &str {
        split(name).0
    }
}

/// The part of the pipeline at the beginning of `path`, and the module.
fn split(path: &str) -> (&str, &str) {
    let with_dot = COMPONENTS.iter().map(|&component| (component, '.'));
    let with_line = KOHYA_COMPONENTS.iter().map(|&component| (component, '_'));
    for (component, joint) in with_dot.chain(with_line) {
        let rest = path.strip_prefix(component);
        if let Some(module) = rest.and_then(|rest| rest.strip_prefix(joint)) {
            return (&path[..component.len()], module);
        }
    }
    ("", path)
}

/// `module` with `_` in place of each dot, as kohya's scripts name modules.
pub(super) fn joined(module: &str) -> String {
    module.replace('.', "_")
}
