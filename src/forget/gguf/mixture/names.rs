//! What llama.cpp calls the tensors that Hugging Face's models have under names of their own.
//!
//! Source: gguf 0.19.0 (PyPI) `gguf/tensor_mapping.py`. Only what decides over a tensor's type has to be the same.

mod table;

use std::collections::HashMap;
use std::sync::LazyLock;

use self::table::{LEAVES, TOPS};

/// A tensor's name in llama.cpp's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Canonical {
    /// `blk.3.ffn_down_exps.weight`; of a name that is not known, that name.
    pub name: String,
    /// Which of the experts that llama.cpp stores together, if this is one by itself.
    pub expert: Option<usize>,
    /// Whether it belongs to an encoder of images or sounds, which llama.cpp keeps in a file of its own.
    pub foreign: bool,
}

/// What comes before a layer's number.
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

/// Parts of names of encoders of images and sounds, and of what joins them to a language model.
const FOREIGN: &[&str] = &[
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

/// Names of tensors that are in no layer, and can be of other things, too.
const VAGUE: &[&str] = &[
    "output",
    "head",
    "encoder",
    "shared",
    "embedding",
    "embeddings",
];

/// What names begin with that are about a whole model.
const WHOLE: &[&str] = &["model", "language_model", "transformer", "backbone", "rwkv"];

/// [`LEAVES`], by the names that models have.
static BY_LEAF: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    LEAVES
        .iter()
        .flat_map(|(ours, theirs)| theirs.iter().map(move |leaf| (*leaf, *ours)))
        .collect()
});

/// What llama.cpp calls the tensor `name`.
pub(crate) fn canonical(name: &str) -> Canonical {
    let plain = |foreign| Canonical {
        name: name.to_owned(),
        expert: None,
        foreign,
    };
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
    if prefix.iter().any(|part| {
        FOREIGN
            .iter()
            .any(|word| part.to_ascii_lowercase().contains(word))
    }) {
        return plain(true);
    }
    let Some(at) = layer else {
        let found = base.and_then(|_| top(&parts));
        return found.map_or_else(
            || plain(false),
            |name| Canonical {
                name,
                expert: None,
                foreign: false,
            },
        );
    };
    let (bid, mut leaf) = (parts[at + 1], parts[at + 2..].to_vec());
    let numbered = leaf
        .windows(2)
        .position(|pair| pair[0] == "experts" && number(pair[1]).is_some());
    let expert = numbered.and_then(|at| number(leaf.remove(at + 1)));
    let leaf = leaf.join(".");
    match (BY_LEAF.get(leaf.as_str()), base) {
        // Of all tensors only experts in one are stored without a suffix.
        (Some(ours), None) if !ours.ends_with("_exps") => plain(false),
        (None, None) => plain(false),
        (ours, _) => {
            let ours = ours.map_or_else(|| guess(prefix, &leaf), |&ours| ours.to_owned());
            let stack = match leaf.starts_with("layer.") {
                true if prefix.contains(&"decoder") => "dec.blk",
                true => "enc.blk",
                false => "blk",
            };
            Canonical {
                name: format!("{stack}.{bid}.{ours}.weight"),
                expert,
                foreign: false,
            }
        }
    }
}

fn number(text: &str) -> Option<usize> {
    text.parse()
        .ok()
        .filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The name of a tensor that is in no layer.
fn top(parts: &[&str]) -> Option<String> {
    let (last, outer) = parts.split_last()?;
    if is_norm(last) {
        return Some(format!("{}_norm.weight", parts.join(".")));
    }
    let is_head = matches!(outer.last(), Some(&("lm_head" | "head")))
        && matches!(*last, "linear" | "out" | "decoder");
    let last = if is_head { &"output" } else { last };
    // Some names say what they are only where nothing but the whole model is around them.
    if !is_head && VAGUE.contains(last) && !outer.iter().all(|part| WHOLE.contains(part)) {
        return None;
    }
    TOPS.iter()
        .find(|(theirs, _)| theirs == last)
        .map(|(_, ours)| format!("{ours}.weight"))
}

/// A name for what the table does not have.
fn guess(prefix: &[&str], leaf: &str) -> String {
    match leaf.rsplit('.').next().unwrap_or(leaf) {
        // The output of an attention, or of a state space.
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
    let is_short =
        |rest: &str| rest.is_empty() || rest.starts_with(|c: char| c == '_' || c.is_ascii_digit());
    part.contains("norm") || part.strip_prefix("ln").is_some_and(is_short) || part.ends_with("_ln")
}
