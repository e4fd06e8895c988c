//! nunchaku's own models: which of their modules are quantized, and what a module computes besides
//! a linear layer.
//!
//! Source: nunchaku `models/transformers`, `models/unets/unet_sdxl.py`, `models/attention.py`,
//! `models/normalization.py`.

use serde_json::Value;

use crate::ParsedModel;
use crate::Result;
use crate::config::unique_json;
use crate::limits::FREE_JSON_BYTES;
use crate::model::Tensor;
use crate::remember::seam::refused;

/// Key of the metadata that names the class of a model.
pub(super) const CLASS: &str = "model_class";

/// What a quantized module is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModuleKind {
    Linear,
    /// A linear layer behind a GELU. With integer codes its kernel adds a constant to the input of
    /// the quantized part.
    AfterGelu,
    /// A linear layer whose outputs are so many vectors: shifts, scales and gates. nunchaku stores
    /// the first values of all vectors, then the second ones, …, and has 1 added to the biases of
    /// the scales.
    Modulation(usize),
}

use ModuleKind::{AfterGelu, Linear, Modulation};

/// Modules of a class, by the ends of their names.
type Modules = &'static [(&'static str, ModuleKind)];

/// Classes of nunchaku and of diffusers, and their modules. Sana is not here: rows of its
/// convolutions lie in another order, and sizes are padded.
const CLASSES: &[(&[&str], Modules)] = &[
    (
        &[
            "NunchakuFluxTransformer2dModel",
            "NunchakuFluxTransformer2DModelV2",
            "FluxTransformer2DModel",
        ],
        &[
            ("qkv_proj", Linear),
            ("qkv_proj_context", Linear),
            ("out_proj", Linear),
            ("out_proj_context", Linear),
            ("mlp_fc1", Linear),
            ("mlp_context_fc1", Linear),
            ("mlp_fc2", AfterGelu),
            ("mlp_context_fc2", AfterGelu),
            ("attn.to_qkv", Linear),
            ("attn.add_qkv_proj", Linear),
            ("attn.to_out", Linear),
            ("attn.to_out.0", Linear),
            ("attn.to_add_out", Linear),
            ("ff.net.0.proj", Linear),
            ("ff_context.net.0.proj", Linear),
            ("ff.net.2", AfterGelu),
            ("ff_context.net.2", AfterGelu),
            ("norm.linear", Modulation(3)),
            ("norm1.linear", Modulation(6)),
            ("norm1_context.linear", Modulation(6)),
        ],
    ),
    (
        &["NunchakuQwenImageTransformer2DModel", "QwenImageTransformer2DModel"],
        &[
            ("attn.to_qkv", Linear),
            ("attn.add_qkv_proj", Linear),
            ("attn.to_out.0", Linear),
            ("attn.to_add_out", Linear),
            ("img_mlp.net.0.proj", Linear),
            ("txt_mlp.net.0.proj", Linear),
            ("img_mlp.net.2", AfterGelu),
            ("txt_mlp.net.2", AfterGelu),
            ("img_mod.1", Modulation(6)),
            ("txt_mod.1", Modulation(6)),
        ],
    ),
    (
        &["NunchakuZImageTransformer2DModel", "ZImageTransformer2DModel"],
        &[
            ("attention.to_qkv", Linear),
            ("attention.to_out.0", Linear),
            ("feed_forward.net.0.proj", Linear),
            ("feed_forward.net.2", Linear),
        ],
    ),
    (
        &["NunchakuSDXLUNet2DConditionModel", "UNet2DConditionModel"],
        &[
            ("attn1.to_qkv", Linear),
            ("attn2.to_q", Linear),
            ("attn1.to_out.0", Linear),
            ("attn2.to_out.0", Linear),
            ("ff.net.0.proj", Linear),
            ("ff.net.2", Linear),
        ],
    ),
];

/// The class of a model, and its quantized modules if the class is known.
pub(super) struct NunchakuModel {
    class: Option<String>,
    modules: Option<Modules>,
}

impl NunchakuModel {
    /// The class that the file's metadata name: nunchaku's, or that of the config of diffusers.
    pub(super) fn of(model: &ParsedModel) -> Self {
        let stated = model.metadata.get(CLASS).cloned();
        let class = stated.or_else(|| {
            let text = model.metadata.get("config")?;
            let mut free = FREE_JSON_BYTES;
            let json = unique_json::parse_embedded(text.as_bytes(), &mut free).ok()?;
            json.get("_class_name")
                .and_then(Value::as_str)
                .map(str::to_owned)
        });
        let is_of = |names: &[&str]| class.as_deref().is_some_and(|class| names.contains(&class));
        let known = CLASSES.iter().find(|(names, _)| is_of(names));
        Self { modules: known.map(|&(_, modules)| modules), class }
    }

    /// The kind of the module with the codes `t`; `name` is the module's.
    ///
    /// # Errors
    /// The file does not say which class it is of, or the class or its module is not known. The
    /// same tensors mean something else in other classes, and nothing else tells.
    pub(super) fn kind(&self, t: &Tensor<'_>, name: &str) -> Result<ModuleKind> {
        let refusal = |what: String| Err(refused(t, super::FAMILY, what));
        let Some(class) = &self.class else {
            return refusal(format!(
                "the file's metadata have no `{CLASS}`, which tells what its modules compute"
            ));
        };
        let Some(modules) = self.modules else {
            return refusal(format!("the model's class is `{class}`, whose modules are not known"));
        };
        let ends = |end: &str| {
            name.strip_suffix(end)
                .is_some_and(|path| path.is_empty() || path.ends_with('.'))
        };
        match modules.iter().find(|(end, _)| ends(end)) {
            Some(&(_, kind)) => Ok(kind),
            None => refusal(format!("no quantized module of `{class}` is called so")),
        }
    }
}
