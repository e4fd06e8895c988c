//! Keys of GGUF metadata that other outputs have to know: a model's metadata of text has those of
//! the GGUF file that it was made from.

/// Prefix of the keys of GGUF metadata in a model's metadata of text.
pub(crate) const PREFIX: &str = "gguf.";

/// What kind of model a file holds: programs that run models load no file without it.
#[cfg_attr(not(feature = "gguf"), allow(dead_code))]
pub(crate) const ARCHITECTURE: &str = "general.architecture";

/// What the places of tensors in the data are multiples of.
#[cfg_attr(not(feature = "gguf"), allow(dead_code))]
pub(crate) const ALIGNMENT: &str = "general.alignment";

/// llama.cpp's name of the pre-tokenizer.
#[cfg_attr(not(feature = "gguf"), allow(dead_code))]
pub(crate) const PRE_TOKENIZER: &str = "tokenizer.ggml.pre";

/// The texts of all tokens.
#[cfg_attr(not(feature = "gguf"), allow(dead_code))]
pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";

/// The chat template; those of other uses have a name behind it.
#[cfg_attr(not(feature = "gguf"), allow(dead_code))]
pub(crate) const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// The type of most tensors, a number of llama.cpp's `enum llama_ftype`.
pub(crate) const FILE_TYPE: &str = "general.file_type";

/// Version of the layout of ggml's block types.
pub(crate) const VERSION: &str = "general.quantization_version";

/// Begins the keys of rotated weights in files of PrismML. They are untrue of tensors decoded from
/// these.
pub(crate) const ROTATIONS: &str = "prism.hadamard.";

/// Says in files of 1bit-MONSTER that all weights of Q4_0 are rotated.
pub(crate) const ROTATED_Q4_0: &str = "onebit.hadamard_q4_0";

/// Prefix of the keys under which ComfyUI-GGUF keeps original shapes. It reshapes tensors so that
/// rows are whole blocks, and to have few dimensions.
pub(crate) const ORIGINAL_SHAPE: &str = "comfy.gguf.orig_shape.";

/// Whether `key` describes how a model is split. Such keys are not copied: an output is split in
/// its own way.
pub(crate) fn is_split_key(key: &str) -> bool {
    matches!(key, "split.no" | "split.count" | "split.tensors.count")
}

/// Whether `key` says how weights are rotated.
pub(crate) fn is_rotation_key(key: &str) -> bool {
    key.starts_with(ROTATIONS) || key == ROTATED_Q4_0
}
