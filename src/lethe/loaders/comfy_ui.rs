//! What ComfyUI loads quantized: which part of a checkpoint, and which layers of it its tools
//! encode. What is left here stays as it is unless the user asks for it by name.
//!
//! Source: [ComfyUI](https://github.com/Comfy-Org/ComfyUI/blob/033046cc4fac82d954c6daedccf1c8128433c4f1/comfy/sd.py)
//! (`load_state_dict_guess_config`, `load_text_encoder_state_dicts`), `comfy/model_detection.py`
//! (`unet_prefix_from_state_dict`).

use std::collections::HashSet;

use crate::lethe::decision::{Candidate, Decision};

/// Prefixes of the diffusion model in a file that has other models, too.
const DIFFUSION_MODEL: &[&str] = &["model.diffusion_model.", "net."];

/// Beginnings of the names of models of which ComfyUI makes no quantized layers: image and text
/// encoders of CLIP, and autoencoders beside other models.
const LOADED_PLAIN: &[&str] = &[
    "cond_stage_model.",
    "conditioner.",
    "first_stage_model.",
    "text_encoders.",
    "text_model.",
    "transformer.resblocks.",
    "vae.",
    "vision_model.",
    "visual.transformer.resblocks.",
];

/// Tensors that tell an autoencoder in a file of its own.
const OF_AUTOENCODER: &[&str] =
    &["decoder.conv_in.weight", "decoder.conv1.weight", "decoder.middle.0.residual.0.gamma"];

/// Parts of the names of adapters, whose values ComfyUI takes as they are stored.
const OF_ADAPTERS: &[&str] =
    &[".lora_up.", ".lora_down.", ".lora_A.", ".lora_B.", ".hada_", ".lokr_"];

/// Layers that ComfyUI's tools leave in the models of one kind.
struct KeptLayers {
    /// Names that tell the model: all are there.
    marks: &'static [&'static str],
    /// Beginnings of names below the model's prefix; after a dot, parts of names.
    kept: &'static [&'static str],
}

/// Source: [convert_to_quant](https://github.com/silveroxides/convert_to_quant/blob/ee83a4d90d18f52824c3b6b23e45bc7514fb027e/convert_to_quant/constants.py)
/// (`MODEL_FILTERS`), which the configs of
/// [comfy-quants](https://github.com/Comfy-Org/comfy-quants/tree/55f0a267f177d5536c5b5673ced2bd9ff9191bd0/configs)
/// follow.
static KEPT: &[KeptLayers] = &[
    // Flux, Flux.2, HunyuanVideo.
    KeptLayers {
        marks: &["img_in.weight", "txt_in.weight", "final_layer.linear.weight"],
        kept: &["img_in.", "txt_in.", "time_in.", "vector_in.", "guidance_in.", "final_layer."],
    },
    KeptLayers {
        marks: &["double_stream_modulation_img.lin.weight"],
        kept: &["double_stream_modulation", "single_stream_modulation"],
    },
    KeptLayers {
        marks: &["txt_in.individual_token_refiner.blocks.0.self_attn_qkv.weight"],
        kept: &[
            "txt_in.",
            "img_in.",
            "time_in.",
            "vector_in.",
            "guidance_in.",
            "vision_in.",
            "final_layer.",
        ],
    },
    // Chroma, and Chroma Radiance.
    KeptLayers {
        marks: &["distilled_guidance_layer.in_proj.weight"],
        kept: &[
            "distilled_guidance_layer.",
            "nerf_blocks.",
            "nerf_image_embedder.",
            "nerf_final_layer",
            "img_in_patch.",
        ],
    },
    KeptLayers {
        marks: &["transformer_blocks.0.img_mod.1.weight", "txt_norm.weight"],
        kept: &[
            "time_text_embed.",
            "img_in.",
            "txt_in.",
            "norm_out.",
            "proj_out.",
            "transformer_blocks.0.img_mod.1.",
        ],
    },
    KeptLayers {
        marks: &["head.modulation", "blocks.0.self_attn.norm_q.weight"],
        kept: &[
            "text_embedding.",
            "time_embedding.",
            "time_projection.",
            "head.",
            "img_emb.",
            "patch_embedding",
            "ref_conv.",
            "control_adapter.",
            "pose_patch_embedding.",
            "face_encoder.",
            "face_adapter.",
            "motion_encoder.",
            "audio_injector.",
            "casual_audio_encoder.",
            "cond_encoder.",
            "frame_packer.",
            "trainable_cond_mask.",
        ],
    },
    // Lumina 2, Z-Image.
    KeptLayers {
        marks: &["cap_embedder.1.weight", "context_refiner.0.attention.qkv.weight"],
        kept: &[
            "x_embedder.",
            "t_embedder.",
            "cap_embedder.",
            "clip_text_pooled_proj.",
            "time_text_embed.",
            "final_layer.",
            ".adaLN_modulation.",
        ],
    },
    // Cosmos Predict 2, and Anima, which has an adapter for its text encoder.
    KeptLayers {
        marks: &["x_embedder.proj.1.weight", "blocks.0.adaln_modulation_self_attn.1.weight"],
        kept: &["x_embedder.", "t_embedder.", "final_layer."],
    },
    KeptLayers {
        marks: &["llm_adapter.embed.weight"],
        kept: &["llm_adapter.", "blocks.0.", "blocks.1.adaln_modulation"],
    },
    // LTX-Video, and LTX-2 with its sound.
    KeptLayers {
        marks: &["patchify_proj.weight", "adaln_single.linear.weight"],
        kept: &["patchify_proj.", "proj_out.", "adaln_single.", "caption_projection."],
    },
    KeptLayers {
        marks: &["audio_patchify_proj.weight"],
        kept: &[
            "audio_patchify_proj.",
            "audio_proj_out.",
            "audio_adaln_single.",
            "audio_prompt_adaln_single.",
            "prompt_adaln_single.",
            "av_ca_",
            "audio_embeddings_connector.",
            "video_embeddings_connector.",
            "text_embedding_projection.",
            "transformer_blocks.0.",
            "transformer_blocks.1.",
            "transformer_blocks.46.",
            "transformer_blocks.47.",
            ".to_gate_logits.",
        ],
    },
    KeptLayers {
        marks: &["embed_image_indicator.weight", "llm_cond_proj.weight"],
        kept: &[
            "embed_image_indicator.",
            "t_embedding.",
            "llm_cond_proj.",
            "adaln_proj.",
            "final_layer.",
            "input_proj.",
        ],
    },
    // Stable Diffusion 3, and Flux and Stable Diffusion 3 by the names of diffusers.
    KeptLayers {
        marks: &["joint_blocks.0.x_block.attn.qkv.weight"],
        kept: &["x_embedder.", "t_embedder.", "y_embedder.", "context_embedder.", "final_layer."],
    },
    KeptLayers {
        marks: &["context_embedder.weight", "x_embedder.weight"],
        kept: &["x_embedder.", "context_embedder.", "time_text_embed.", "norm_out.", "proj_out."],
    },
    // UNets of Stable Diffusion.
    KeptLayers {
        marks: &["input_blocks.0.0.weight", "time_embed.0.weight"],
        kept: &["time_embed.", "label_emb.", "input_blocks.0.0.", "out."],
    },
];

/// Why a tensor of another part stays.
const PLAIN: &str = "a part that ComfyUI does not load quantized";

/// What ComfyUI loads quantized of a model.
pub(in crate::lethe) struct ComfyUiModel {
    /// Prefix of the diffusion model, if the file has other models, too.
    prefix: Option<&'static str>,
    is_autoencoder: bool,
    kept: Vec<&'static str>,
}

impl ComfyUiModel {
    /// The model that has tensors of these names.
    pub(in crate::lethe) fn of<'n>(names: impl Iterator<Item = &'n str> + Clone) -> Self {
        let has_prefix = |prefix: &&&str| names.clone().any(|name| name.starts_with(**prefix));
        let prefix = DIFFUSION_MODEL.iter().find(has_prefix).copied();
        let below = |name: &'n str| match prefix {
            Some(prefix) => name.strip_prefix(prefix),
            None => Some(name),
        };
        let names: HashSet<&str> = names.filter_map(below).collect();
        let rows = KEPT
            .iter()
            .filter(|row| row.marks.iter().all(|mark| names.contains(mark)));
        Self {
            prefix,
            is_autoencoder: prefix.is_none()
                && OF_AUTOENCODER.iter().any(|mark| names.contains(mark)),
            kept: rows.flat_map(|row| row.kept).copied().collect(),
        }
    }

    /// Why the tensor called `name` stays as it is.
    pub(in crate::lethe) fn objection(&self, name: &str) -> Option<&'static str> {
        if OF_ADAPTERS.iter().any(|part| name.contains(part)) {
            return Some("an adapter, which ComfyUI does not load quantized");
        }
        let below = match self.prefix {
            Some(prefix) => match name.strip_prefix(prefix) {
                Some(below) => below,
                None => return Some(PLAIN),
            },
            None if self.is_autoencoder => return Some(PLAIN),
            None if LOADED_PLAIN.iter().any(|part| name.starts_with(part)) => return Some(PLAIN),
            None => name,
        };
        let is_kept = |part: &&&str| match part.starts_with('.') {
            true => below.contains(**part),
            false => below.starts_with(**part),
        };
        self.kept
            .iter()
            .find(is_kept)
            .map(|_| "a layer that ComfyUI's tools leave")
    }

    /// A note if a part of the file stays as it is, which the user may have expected to become
    /// smaller.
    pub(in crate::lethe) fn note(
        &self,
        candidates: &[Candidate<'_>],
        decisions: &[Decision],
    ) -> Option<String> {
        let stays = |decision: &Decision| matches!(decision, Decision::Keep(why) if why == PLAIN);
        let mut kept = candidates
            .iter()
            .zip(decisions)
            .filter(|(_, decision)| stays(decision));
        let (first, _) = kept.next()?;
        let which = match kept.count() {
            0 => format!("`{}` stays as it is", first.name),
            1 => format!("`{}` and another weight stay as they are", first.name),
            n => format!("`{}` and {n} other weights stay as they are", first.name),
        };
        Some(format!(
            "{which}: ComfyUI takes codes in autoencoders and in text encoders of a checkpoint for weights; `--include` encodes them all the same"
        ))
    }
}
