//! Names of tensors as patterns: `{i}` stands for the number of a layer, and `{e}` for that of an
//! expert; and parts of names that say of what a tensor is.

/// The numbers in a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Place {
    pub layer: Option<usize>,
    pub expert: Option<usize>,
}

/// The numbers in `name`, if it is one of `pattern`.
pub(crate) fn find(pattern: &str, name: &str) -> Option<Place> {
    let mut place = Place::default();
    let (mut pattern, mut name) = (pattern.split('.'), name.split('.'));
    loop {
        match (pattern.next(), name.next()) {
            (None, None) => return Some(place),
            (Some("{i}"), Some(text)) => place.layer = Some(number(text)?),
            (Some("{e}"), Some(text)) => place.expert = Some(number(text)?),
            (Some(part), Some(text)) if part == text => {}
            _ => return None,
        }
    }
}

/// As [`find`], of a pattern in which `{e}` may stand for one of `names`.
pub(crate) fn find_one(pattern: &str, names: &[&str], name: &str) -> Option<Place> {
    if names.is_empty() || !pattern.contains("{e}") {
        return find(pattern, name);
    }
    let mut all = names.iter().enumerate();
    all.find_map(|(number, part)| {
        let place = find(&pattern.replace("{e}", part), name)?;
        Some(Place { expert: Some(number), ..place })
    })
}

/// The name of `pattern` with the numbers of `place`.
pub(crate) fn fill(pattern: &str, place: Place) -> String {
    let mut name = String::with_capacity(pattern.len() + 8);
    for (at, part) in pattern.split('.').enumerate() {
        if at > 0 {
            name.push('.');
        }
        match (part, place) {
            ("{i}", Place { layer: Some(n), .. }) | ("{e}", Place { expert: Some(n), .. }) => {
                name.push_str(&n.to_string());
            }
            _ => name.push_str(part),
        }
    }
    name
}

/// A number as it is written in names: digits without a zero in front.
fn number(text: &str) -> Option<usize> {
    let is_plain = text == "0" || !text.starts_with('0');
    let is_digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain && is_digits)
}

/// `name` without its last part, if that is `weight` or `bias`, and the part with its dot.
pub(crate) fn split_suffix(name: &str) -> (&str, &'static str) {
    let suffixes = [".weight", ".bias"].into_iter();
    let mut found = suffixes.filter_map(|suffix| Some((name.strip_suffix(suffix)?, suffix)));
    found.next_back().unwrap_or((name, ""))
}

/// What names of classes end with whose tensors lack the [`BASE_PREFIX`] that they have in models
/// with an output.
pub(crate) const BASE_MODEL: &str = "Model";

/// What names of tensors begin with that belong to the model without its output.
pub(crate) const BASE_PREFIX: &str = "model.";

/// Ends of names of buffers that old checkpoints have, and that can be computed.
const BUFFERS: &[&str] = &[
    ".rotary_emb.inv_freq",
    ".attention.masked_bias",
    ".attention.bias",
    ".attn.masked_bias",
    ".attn.bias",
    "embeddings.position_ids",
    "embeddings.token_type_ids",
];

/// Parts of names of what is not the language model of a multimodal one.
///
/// Source: `TextModel.filter_tensors` in `conversion/base.py` of llama.cpp.
const TOWERS: &[&str] = &[
    "visual.",
    "vision.",
    "audio.",
    "vision_",
    "audio_",
    "projector.",
    "patch_embed",
    "patch_merger.",
    "patch_merge_mlp.",
    "model.connector.",
    // The projector of InternVL.
    "mlp1.",
    // Towers that have names of their own, and what makes images and speech.
    "siglip2.",
    "vit.",
    "sam_model.",
    "qwen2_model.",
    "image_newline",
    "view_seperator",
    "mlp_AR.",
    "merger.",
    "speech_encoder.",
    "ln_speech.",
    "image_start",
    "image_end",
    "image_pad",
    "aligner.",
    "vqmodel.",
    "model.generation_",
    "talker.",
    "token2wav.",
    "code2wav.",
];

/// Whether the tensor `name` is a buffer that can be computed.
pub(crate) fn is_buffer(name: &str) -> bool {
    BUFFERS.iter().any(|end| name.ends_with(end))
}

/// Whether the tensor `name` of a multimodal model is not of its language model, but of a tower of
/// images or sounds, or of what joins both.
pub(crate) fn is_of_tower(name: &str) -> bool {
    TOWERS.iter().any(|part| name.contains(part))
}

/// Whether the tensor `name` is of a layer behind the last of `layers`.
pub(crate) fn is_behind(name: &str, layers: usize) -> bool {
    // Some files have the names of the model without its output.
    let rest = name
        .strip_prefix(BASE_PREFIX)
        .unwrap_or(name)
        .strip_prefix("layers.");
    let number = rest.and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    number.is_some_and(|layer| layer >= layers)
}

/// `name` without what names of a language model have in multimodal models.
pub(crate) fn of_language_model(name: &str) -> String {
    let starts = ["thinker.", "llm.", "lfm2."].into_iter();
    let name = starts.fold(name, |name, start| name.strip_prefix(start).unwrap_or(name));
    name.replace("language_model.", "")
        .replace("text_model.", "")
}
