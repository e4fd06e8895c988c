//! llama.cpp's names of tensors in Hugging Face's models.
//!
//! The rules of mixtures look at llama.cpp's names, so a model in safetensors must be translated
//! before. The tables of llama.cpp depend on the architecture; here one table serves all. Only what
//! decides on a tensor's type has to be the same: its layer, its kind, and whether it is quantized
//! at all.
//!
//! Source: gguf 0.19.0 (PyPI) `gguf/tensor_mapping.py`.

mod table;

use std::collections::HashMap;
use std::sync::LazyLock;

use self::table::{LAYER_TENSORS, MODEL_TENSORS};

/// A tensor's name in llama.cpp's naming.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LlamaName {
    /// The name, such as `blk.3.ffn_down_exps.weight`. A name that is not known stays as it is.
    pub name: String,
    /// Index of the expert, if the tensor is a single expert. llama.cpp stores all experts of a
    /// layer as one tensor.
    pub expert: Option<usize>,
    /// Whether it belongs to an encoder of images or sounds, which llama.cpp stores in another
    /// file.
    pub is_multimodal: bool,
}

/// Parts of names that stand before a layer's number.
const LAYERS: &[&str] = &[
    "layers",
    "h",
    "blocks",
    "block",
    "layer",
    "decoder_layer",
    "transformer_encoder",
    "decoder_layers",
];

/// Words in the names of encoders of images and sounds, and of projectors that join them to a
/// language model.
const MULTIMODAL: &[&str] = &[
    "visual",
    "vision",
    "audio",
    "speech",
    "image",
    "multi_modal",
    "multimodal",
    "mm_projector",
    "connector",
    "resampler",
    "perceiver",
    "qformer",
];

/// Last parts of names that name a tensor of the whole model only if nothing but [`WHOLE`] is
/// before them.
const AMBIGUOUS: &[&str] = &["output", "head", "encoder", "shared", "embedding", "embeddings"];

/// Parts of names that stand for the whole model.
const WHOLE: &[&str] = &["model", "language_model", "transformer", "backbone", "rwkv"];

/// [`LAYER_TENSORS`] by the names in Hugging Face's models.
static BY_LEAF: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    LAYER_TENSORS
        .iter()
        .flat_map(|(ours, theirs)| theirs.iter().map(move |leaf| (*leaf, *ours)))
        .collect()
});

/// Translates `name` into llama.cpp's naming. Names that are in it already stay.
pub(crate) fn llama_name(name: &str) -> LlamaName {
    let plain = |is_multimodal| LlamaName { name: name.to_owned(), expert: None, is_multimodal };
    // llama.cpp's own prefix of layers; such a name needs no table.
    if name.starts_with("blk.") {
        return plain(false);
    }
    let base = name.strip_suffix(".weight");
    let parts: Vec<&str> = base.unwrap_or(name).split('.').collect();
    let is_layer = |pair: &[&str]| LAYERS.contains(&pair[0]) && number(pair[1]).is_some();
    let layer = parts.windows(2).position(is_layer);
    let prefix = parts
        .get(..layer.unwrap_or(parts.len()))
        .unwrap_or_default();
    // Only before the layer's number: inside a layer the same words name parts of a language model.
    if prefix.iter().any(|part| {
        MULTIMODAL
            .iter()
            .any(|word| part.to_ascii_lowercase().contains(word))
    }) {
        return plain(true);
    }
    let Some(at) = layer else {
        let found = base.and_then(|_| model_tensor(&parts));
        return found.map_or_else(
            || plain(false),
            |name| LlamaName { name, expert: None, is_multimodal: false },
        );
    };
    let (bid, mut leaf) = (parts[at + 1], parts[at + 2..].to_vec());
    // `experts.7.` is one expert, and `experts.gate_up_proj` a stack that has no number.
    let numbered = leaf
        .windows(2)
        .position(|pair| pair[0] == "experts" && number(pair[1]).is_some());
    let expert = numbered.and_then(|at| number(leaf.remove(at + 1)));
    let leaf = leaf.join(".");
    match (BY_LEAF.get(leaf.as_str()), base) {
        // Without `.weight` a name is a parameter; only stacks of experts are parameters that hold
        // a matrix.
        (Some(ours), None) if !ours.ends_with("_exps") => plain(false),
        (None, None) => plain(false),
        (ours, _) => {
            // An unknown leaf keeps its name, for rules look only at a few words in it.
            let ours =
                ours.map_or_else(|| guess_layer_tensor(prefix, &leaf), |&ours| ours.to_owned());
            // T5 calls the parts of a layer `layer.0.`, and has an encoder and a decoder, which
            // llama.cpp tells apart by prefix.
            let stack = match leaf.starts_with("layer.") {
                true if prefix.contains(&"decoder") => "dec.blk",
                true => "enc.blk",
                false => "blk",
            };
            LlamaName { name: format!("{stack}.{bid}.{ours}.weight"), expert, is_multimodal: false }
        }
    }
}

fn number(text: &str) -> Option<usize> {
    text.parse()
        .ok()
        // `parse` accepts a sign, which no layer has.
        .filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The llama.cpp name of a tensor that is in no layer.
fn model_tensor(parts: &[&str]) -> Option<String> {
    let (last, outer) = parts.split_last()?;
    if is_norm(last) {
        return Some(format!("{}_norm.weight", parts.join(".")));
    }
    let is_head = matches!(outer.last(), Some(&("lm_head" | "head")))
        && matches!(*last, "linear" | "out" | "decoder");
    // A head of several modules (`lm_head.linear`) is still the output layer.
    let last = if is_head { &"output" } else { last };
    // `output.weight` is the output layer, `attention.output.weight` is not.
    if !is_head && AMBIGUOUS.contains(last) && !outer.iter().all(|part| WHOLE.contains(part)) {
        return None;
    }
    MODEL_TENSORS
        .iter()
        .find(|(theirs, _)| theirs == last)
        .map(|(_, ours)| format!("{ours}.weight"))
}

/// A llama.cpp name for a tensor of a layer that is not in the table, with the same treatment by
/// the rules.
fn guess_layer_tensor(prefix: &[&str], leaf: &str) -> String {
    match leaf.rsplit('.').next().unwrap_or(leaf) {
        // `mixer.out_proj` is the output of an attention in transformers, and of a state space in
        // Mamba.
        "out_proj"
            if leaf == "mixer.out_proj"
                && prefix
                    .iter()
                    .any(|part| matches!(*part, "transformer" | "encoder")) =>
        {
            "attn_output".to_owned()
        }
        last if is_norm(last) => format!("{leaf}_norm"),
        last if last == "gate" || last.contains("router") => "ffn_gate_inp".to_owned(),
        _ => leaf.to_owned(),
    }
}

fn is_norm(part: &str) -> bool {
    let part = part.to_ascii_lowercase();
    // `ln_1` and `ln1` are norms; a longer word that begins with `ln` is not.
    let is_short =
        |rest: &str| rest.is_empty() || rest.starts_with(|c: char| c == '_' || c.is_ascii_digit());
    part.contains("norm") || part.strip_prefix("ln").is_some_and(is_short) || part.ends_with("_ln")
}

/// Whether `name`, in llama.cpp's naming, is a table of token embeddings.
pub(crate) fn is_token_embedding(name: &str) -> bool {
    matches!(name, "token_embd.weight" | "per_layer_token_embd.weight")
}
