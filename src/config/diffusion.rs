//! Classes of diffusers.
//!
//! - [`DiffusionClass`]: shapes of linear layers of transformers without biases, as far as a class,
//!   its width and names tell.
//! - [`unquantized_modules`]: modules of which a class makes no quantized layers.
//!
//! Source: diffusers 0.42.1 `models/transformers/transformer_z_image.py`, `transformer_flux2.py`,
//! `transformer_hidream_image.py`, `transformer_lumina2.py`; `_keep_in_fp32_modules` of all classes
//! in `models`.

use serde_json::Value;

/// A class of diffusers.
#[derive(Debug, PartialEq)]
pub(super) struct DiffusionClass {
    name: &'static str,
    /// Keys of the config whose product is the width of the residual stream.
    width: &'static [&'static str],
    /// Ends of the names of layers with so many inputs.
    inputs: &'static [&'static str],
    /// Ends of the names of layers with so many outputs.
    outputs: &'static [&'static str],
}

/// Classes most of whose layers have no biases.
static CLASSES: [DiffusionClass; 4] = [
    DiffusionClass {
        name: "ZImageTransformer2DModel",
        width: &["dim"],
        inputs: &[
            "attention.to_q",
            "attention.to_k",
            "attention.to_v",
            "feed_forward.w1",
            "feed_forward.w3",
        ],
        outputs: &["attention.to_out.0", "feed_forward.w2"],
    },
    DiffusionClass {
        name: "Flux2Transformer2DModel",
        width: &["num_attention_heads", "attention_head_dim"],
        inputs: &[
            "attn.to_q",
            "attn.to_k",
            "attn.to_v",
            "attn.add_q_proj",
            "attn.add_k_proj",
            "attn.add_v_proj",
            "attn.to_qkv_mlp_proj",
            "ff.linear_in",
            "ff_context.linear_in",
            "double_stream_modulation_img.linear",
            "double_stream_modulation_txt.linear",
            "single_stream_modulation.linear",
            "norm_out.linear",
            "proj_out",
        ],
        outputs: &[
            "attn.to_out",
            "attn.to_out.0",
            "attn.to_add_out",
            "ff.linear_out",
            "ff_context.linear_out",
            "x_embedder",
            "context_embedder",
        ],
    },
    DiffusionClass {
        name: "HiDreamImageTransformer2DModel",
        width: &["num_attention_heads", "attention_head_dim"],
        inputs: &["w1", "w3"],
        outputs: &["w2"],
    },
    DiffusionClass {
        name: "Lumina2Transformer2DModel",
        width: &["hidden_size"],
        inputs: &[
            "attn.to_q",
            "attn.to_k",
            "attn.to_v",
            "feed_forward.linear_1",
            "feed_forward.linear_3",
        ],
        outputs: &["attn.to_out.0", "feed_forward.linear_2"],
    },
];

/// Modules with layers of which diffusers makes no quantized ones, by class: those that the class
/// keeps in F32 (`_keep_in_fp32_modules`, as far as they have linear layers), and modules that are
/// no linear layers by another name than usual.
static UNQUANTIZED: &[(&[&str], &[&str])] = &[
    (
        &[
            "AnyFlowTransformer3DModel",
            "AnyFlowFARTransformer3DModel",
            "ChronoEditTransformer3DModel",
            "Cosmos3OmniTransformer",
            "HeliosTransformer3DModel",
            "JoyImageEditTransformer3DModel",
            "JoyImageEditPlusTransformer3DModel",
            "SkyReelsV2Transformer3DModel",
            "WanTransformer3DModel",
            "WanVACETransformer3DModel",
        ],
        &["time_embedder"],
    ),
    // Linear layers of a class of its own.
    (&["WanAnimateTransformer3DModel"], &["time_embedder", "motion_network"]),
    (&["WanAnimate2Transformer3DModel"], &["time_embedding", "time_projection", "modulation"]),
    (
        &[
            "Kandinsky5Transformer3DModel",
            "Kandinsky6Transformer3DModel",
            "Kandinsky6SRTransformer3DModel",
        ],
        &["time_embeddings", "modulation", "visual_modulation", "text_modulation", "pooled_bias"],
    ),
    (
        &["MiniMaxH3Transformer3DModel"],
        &["proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out"],
    ),
    (
        &["AutoencoderKLMiniMaxH3Audio"],
        &["encoder", "decoder", "pre_block", "dec_in_proj", "mean_proj", "logs_proj"],
    ),
    (&["AutoencoderKLMiniMaxH3"], &["encoder"]),
    (&["RFD4ProteinaTransformer"], &["cond_factory"]),
    // A table of embeddings, and frequencies.
    (&["HunyuanDiT2DModel"], &["style_embedder"]),
    (&["ConsistencyDecoderVAE", "MiniMaxMusic3Transformer1DModel"], &["time_proj"]),
];

/// The modules of which the class that the config `root` names makes no quantized layers, as parts
/// of names.
pub(super) fn unquantized_modules(root: &Value) -> &'static [&'static str] {
    let name = root.get("_class_name").and_then(Value::as_str);
    let of_class = |(classes, _): &&(&[&str], _)| name.is_some_and(|name| classes.contains(&name));
    let found = UNQUANTIZED.iter().find(of_class);
    found.map_or(&[], |(_, modules)| modules)
}

impl DiffusionClass {
    /// The class that the config `root` names, and its width.
    pub(super) fn of(root: &Value) -> Option<(&'static Self, usize)> {
        let name = root.get("_class_name")?.as_str()?;
        let class = CLASSES.iter().find(|class| class.name == name)?;
        let size = |key: &&str| usize::try_from(root.get(*key)?.as_u64()?).ok();
        let width = class
            .width
            .iter()
            .try_fold(1usize, |width, key| width.checked_mul(size(key)?))?;
        (width > 0).then_some((class, width))
    }

    /// `[out_features, in_features]` of the layer at path `module` of a model of `width`.
    pub(super) fn layer(&self, module: &str, width: usize) -> [Option<usize>; 2] {
        let is_of = |ends: &[&str]| {
            let mut ends = ends.iter();
            ends.any(|end| {
                module
                    .strip_suffix(end)
                    .is_some_and(|path| path.is_empty() || path.ends_with('.'))
            })
        };
        [self.outputs, self.inputs].map(|ends| is_of(ends).then_some(width))
    }
}
