//! Files that are no models, but change models or belong to them: adapters, towers, importance
//! matrices.

use super::ParsedModel;

/// Whether a tensor of this name is of a kind of file.
type IsName = fn(&str) -> bool;

/// Kinds of adapters by the names of their tensors.
const ADAPTERS: &[(IsName, &str)] = &[
    (|name| name.starts_with("base_model.model."), "LoRA adapter of PEFT"),
    (|name| name.ends_with(".lora_a") || name.ends_with(".lora_b"), "LoRA adapter of mlx-lm"),
    (is_of_image_adapter, "LoRA adapter of an image or video model"),
];

const DRAFT: &str = "draft for speculative decoding";

/// Tensors that drafts alone have.
const OF_DRAFTS: &[&str] = &[
    "d2t",
    "hidden_norm.weight",
    "midlayer.hidden_norm.weight",
    "layers.0.hidden_norm.weight",
    "model.layers.0.hidden_norm.weight",
    "model.hidden_norm.weight",
    // Of assistants of Muse Glimmer and Gemma 4.
    "encoder.output_norm_enc.weight",
    "pre_projection.weight",
];

const DRAFTS: &[(IsName, &str)] = &[(|name| OF_DRAFTS.contains(&name), DRAFT)];

/// Parts of the names of tensors that diffusers, kohya's scripts and LyCORIS give.
const OF_IMAGE_ADAPTERS: &[&str] = &[
    ".lora_A.",
    ".lora_B.",
    ".lora_embedding_",
    ".lora_down.",
    ".lora_up.",
    ".lora.down.",
    ".lora.up.",
    "_lora.down.",
    "_lora.up.",
    ".lora_linear_layer.",
    ".hada_w1_",
    ".lokr_w1",
    ".lora_mid.",
    ".dora_scale",
    ".oft_blocks",
];

/// What files of GGUF are by `general.type`, and what these are by `general.architecture`.
#[cfg(feature = "gguf")]
const GGUF_KINDS: &[(&str, &str, &str)] = &[
    ("general.type", "adapter", "LoRA adapter of llama.cpp"),
    ("general.type", "mmproj", "tower of a multimodal model"),
    ("general.type", "imatrix", "importance matrix"),
    ("general.architecture", "clip", "tower of a multimodal model"),
    ("general.architecture", "controlvector", "control vector"),
    ("general.architecture", "eagle3", DRAFT),
    ("general.architecture", "dflash", DRAFT),
    ("general.architecture", "gemma4-assistant", DRAFT),
];

fn is_of_image_adapter(name: &str) -> bool {
    OF_IMAGE_ADAPTERS.iter().any(|part| name.contains(part))
}

/// Whether `name` is that of a tensor of an adapter.
#[cfg(feature = "gguf")]
pub(crate) fn is_of_adapter(name: &str) -> bool {
    ADAPTERS.iter().any(|(is_it, _)| is_it(name))
}

impl ParsedModel {
    /// What the file is, if it is no model by itself.
    pub(crate) fn kind(&self) -> Option<&'static str> {
        #[cfg(feature = "gguf")]
        if let Some(gguf) = self.gguf() {
            let is_it = |key: &str, expected: &str| {
                let value = gguf.metadata().get(key);
                value.as_ref().and_then(|value| value.as_string()) == Some(expected)
            };
            let mut kinds = GGUF_KINDS.iter();
            return kinds.find_map(|(key, value, kind)| is_it(key, value).then_some(*kind));
        }
        let has = |is_it: &IsName| self.tensors().any(|t| is_it(t.name()));
        let mut kinds = ADAPTERS.iter().chain(DRAFTS);
        kinds.find_map(|(is_it, kind)| has(is_it).then_some(*kind))
    }
}
