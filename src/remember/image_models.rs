//! Models of images and videos, as ComfyUI-GGUF tells them apart by the names of their tensors:
//! what it calls them in `general.architecture`, and which tensors stay in a quantized file.
//!
//! The names are those of the models' own checkpoints. Files with the names of diffusers are not
//! among them, except for UNets of Stable Diffusion: ComfyUI-GGUF loads no others.
//!
//! Source:
//! [ComfyUI-GGUF](https://github.com/city96/ComfyUI-GGUF/tree/795e45156ece99afbc3efef911e63fcb46e6a20d)
//! `tools/convert.py` (`arch_list`, `keys_hiprec`) and `tools/lcpp.patch`
//! (`llama_model_quantize_internal`).

use std::collections::HashSet;

/// A model of images or videos.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ImageModel {
    /// Value of `general.architecture`.
    pub architecture: &'static str,
    /// Names that tell the model: all of one list are there.
    marks: &'static [&'static [&'static str]],
    /// Parts of the names of tensors that are not quantized.
    kept: &'static [&'static str],
    /// Names of such tensors.
    kept_names: &'static [&'static str],
    /// Ends of the names of weights that are parameters of a module and no layers, so that programs
    /// decode none.
    parameters: &'static [&'static str],
}

/// Parts of the names of layers into and out of the blocks of Flux and HunyuanVideo.
const FLUX_ENDS: &[&str] =
    &["txt_in.", "img_in.", "time_in.", "vector_in.", "guidance_in.", "final_layer."];

const UNET_ENDS: &[&str] = &[
    "class_embedding.",
    "time_embedding.",
    "add_embedding.",
    "time_embed.",
    "label_emb.",
    "conv_in.",
    "conv_out.",
];

const UNET_NAMES: &[&str] = &["input_blocks.0.0.weight", "out.2.weight"];

/// In the order in which ComfyUI-GGUF tries them.
static MODELS: &[ImageModel] = &[
    ImageModel {
        architecture: "flux",
        marks: &[&["double_blocks.0.img_attn.proj.weight"]],
        kept: FLUX_ENDS,
        kept_names: &[],
        parameters: &[],
    },
    ImageModel {
        architecture: "sd3",
        marks: &[&["joint_blocks.0.x_block.attn.qkv.weight"]],
        kept: &[
            "final_layer.",
            "time_text_embed.",
            "context_embedder.",
            "t_embedder.",
            "y_embedder.",
            "x_embedder.",
        ],
        kept_names: &["proj_out.weight"],
        parameters: &[],
    },
    ImageModel {
        architecture: "aura",
        marks: &[&["double_layers.3.modX.1.weight"]],
        kept: &["t_embedder.", "init_x_linear."],
        kept_names: &["modF.1.weight", "cond_seq_linear.weight", "final_linear.weight"],
        parameters: &[],
    },
    ImageModel {
        architecture: "hidream",
        marks: &[&[
            "caption_projection.0.linear.weight",
            "double_stream_blocks.0.block.ff_i.shared_experts.w3.weight",
        ]],
        kept: &["p_embedder.", "t_embedder.", "x_embedder.", "final_layer.", "caption_projection."],
        kept_names: &[],
        parameters: &[".ff_i.gate.weight"],
    },
    ImageModel {
        architecture: "cosmos",
        marks: &[&["blocks.0.mlp.layer1.weight", "blocks.0.adaln_modulation_cross_attn.1.weight"]],
        kept: &[
            "p_embedder.",
            "t_embedder.",
            "t_embedding_norm.",
            "x_embedder.",
            "pos_embedder.",
            "final_layer.",
        ],
        kept_names: &[],
        parameters: &[],
    },
    ImageModel {
        architecture: "ltxv",
        marks: &[&[
            "adaln_single.emb.timestep_embedder.linear_2.weight",
            "transformer_blocks.27.scale_shift_table",
            "caption_projection.linear_2.weight",
        ]],
        kept: &["adaln_single.", "caption_projection.", "patchify_proj.", "proj_out."],
        kept_names: &[],
        parameters: &[],
    },
    ImageModel {
        architecture: "hyvid",
        marks: &[&[
            "double_blocks.0.img_attn_proj.weight",
            "txt_in.individual_token_refiner.blocks.1.self_attn_qkv.weight",
        ]],
        kept: FLUX_ENDS,
        kept_names: &[],
        parameters: &[],
    },
    ImageModel {
        architecture: "wan",
        marks: &[&[
            "blocks.0.self_attn.norm_q.weight",
            "text_embedding.2.weight",
            "head.modulation",
        ]],
        kept: &[
            "modulation.",
            "patch_embedding.",
            "text_embedding.",
            "time_projection.",
            "time_embedding.",
            "img_emb.",
            "head.",
        ],
        kept_names: &[],
        parameters: &[],
    },
    ImageModel {
        architecture: "sdxl",
        marks: &[
            &["down_blocks.0.downsamplers.0.conv.weight", "add_embedding.linear_1.weight"],
            &[
                "input_blocks.3.0.op.weight",
                "input_blocks.6.0.op.weight",
                "output_blocks.2.2.conv.weight",
                "output_blocks.5.2.conv.weight",
            ],
            &["label_emb.0.0.weight"],
        ],
        kept: UNET_ENDS,
        kept_names: UNET_NAMES,
        parameters: &[],
    },
    ImageModel {
        architecture: "sd1",
        marks: &[
            &["down_blocks.0.downsamplers.0.conv.weight"],
            &[
                "input_blocks.3.0.op.weight",
                "input_blocks.6.0.op.weight",
                "input_blocks.9.0.op.weight",
                "output_blocks.2.1.conv.weight",
                "output_blocks.5.2.conv.weight",
                "output_blocks.8.2.conv.weight",
            ],
        ],
        kept: UNET_ENDS,
        kept_names: UNET_NAMES,
        parameters: &[],
    },
    ImageModel {
        architecture: "lumina2",
        marks: &[&["cap_embedder.1.weight", "context_refiner.0.attention.qkv.weight"]],
        kept: &[
            "t_embedder.",
            "x_embedder.",
            "final_layer.",
            "cap_embedder.",
            "context_refiner.",
            "noise_refiner.",
        ],
        kept_names: &[],
        parameters: &[],
    },
];

/// What becomes of a weight of an [`ImageModel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageWeight {
    /// It is quantized.
    Quantized,
    /// It stays.
    Kept,
    /// It is stored in F32.
    Parameter,
}

impl ImageModel {
    /// The model that has tensors of these names. Checkpoints have the whole pipeline, with the
    /// model below a prefix.
    pub(crate) fn of<'n>(names: impl Iterator<Item = &'n str>) -> Option<&'static Self> {
        let names: HashSet<&str> = names.map(below_prefix).collect();
        let is_there =
            |marks: &&'static [&'static str]| marks.iter().all(|mark| names.contains(mark));
        MODELS
            .iter()
            .find(|model| model.marks.iter().any(&is_there))
    }

    /// What becomes of the weight called `name`, which has `rank` dimensions.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    pub(crate) fn weight(&self, name: &str, rank: usize) -> ImageWeight {
        let name = below_prefix(name);
        let is_kept = self.kept.iter().any(|part| name.contains(part));
        if self.parameters.iter().any(|end| name.ends_with(end)) {
            ImageWeight::Parameter
        } else if rank != 2 || is_kept || self.kept_names.contains(&name) {
            ImageWeight::Kept
        } else {
            ImageWeight::Quantized
        }
    }
}

fn below_prefix(name: &str) -> &str {
    name.strip_prefix("model.diffusion_model.").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_by_names_and_what_stays() {
        let names = ["double_blocks.0.img_attn.proj.weight", "img_in.weight"];
        let flux = ImageModel::of(names.into_iter()).unwrap();
        assert_eq!(flux.architecture, "flux");
        assert_eq!(flux.weight("img_in.weight", 2), ImageWeight::Kept);
        assert_eq!(flux.weight(names[0], 2), ImageWeight::Quantized);
        let below = names.map(|name| format!("model.diffusion_model.{name}"));
        assert_eq!(ImageModel::of(below.iter().map(|n| &**n)), Some(flux));
        assert_eq!(flux.weight(&below[1], 2), ImageWeight::Kept);
        assert_eq!(ImageModel::of(["model.embed_tokens.weight"].into_iter()), None);
    }
}
