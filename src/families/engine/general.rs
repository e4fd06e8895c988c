//! What a GGUF file says of itself beside the architecture: name, size, licence, how to sample.
//!
//! Source: `gguf-py/gguf/metadata.py` and `utility.py` of llama.cpp.

use serde_json::Value;

use super::fields::KeyValue;
use super::model_card;
use super::request::GgufRequest;
use crate::Result;
use crate::config::Texts;
use crate::model::gguf::GgufMetadataValue;
use crate::remember::Group;

/// The first keys of a file of `tensors`: its architecture and what it is, how to sample, its name
/// and, if there are tensors, its size, and what its card says; and a note on that card.
///
/// # Errors
/// A file beside the model is malformed.
pub(crate) fn identity(
    (architecture, kind): (&str, &str),
    request: &GgufRequest<'_>,
    texts: &Texts,
    tensors: &[Group<'_>],
) -> Result<(Vec<KeyValue>, Option<String>)> {
    let text = |key: &str, value: &str| {
        let value = GgufMetadataValue::String(value.to_owned());
        (key.to_owned(), value)
    };
    let mut keys = vec![text("general.architecture", architecture), text("general.type", kind)];
    if let Some(config) = texts.json("generation_config.json")? {
        keys.extend(sampling(&config));
    }
    keys.push(text("general.name", &title(&directory_name(request))));
    let sizes = tensors.iter().map(|group| (&*group.name, &*group.shape));
    if !tensors.is_empty() {
        keys.push(text("general.size_label", &size_label(sizes)));
    }
    let (card, note) = model_card::keys(texts)?;
    keys.extend(card);
    Ok((keys, note))
}

/// The name of the model's directory.
pub(crate) fn directory_name(request: &GgufRequest<'_>) -> String {
    let path = request.directory.canonicalize().ok();
    let name = path.as_deref().unwrap_or(request.directory).file_name();
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// Keys of sampling, with the fields of `generation_config.json`.
const SAMPLING: &[(&str, &[&str])] = &[
    ("top_k", &["top_k"]),
    ("top_p", &["top_p"]),
    ("min_p", &["min_p"]),
    ("xtc_probability", &["xtc_probability"]),
    ("xtc_threshold", &["xtc_threshold"]),
    ("temp", &["temperature"]),
    ("penalty_last_n", &["penalty_last_n"]),
    ("penalty_repeat", &["penalty_repeat", "repetition_penalty"]),
    ("mirostat", &["mirostat"]),
    ("mirostat_tau", &["mirostat_tau"]),
    ("mirostat_eta", &["mirostat_eta"]),
];

/// Keys of sampling that are INT32; others are FLOAT32.
const COUNTS: &[&str] = &["top_k", "penalty_last_n", "mirostat"];

/// How to sample, as `generation_config.json` says.
fn sampling(config: &Value) -> Vec<KeyValue> {
    let mut keys = Vec::new();
    for (key, fields) in SAMPLING {
        let found = fields.iter().find_map(|field| config.get(field));
        let value = match COUNTS.contains(key) {
            true => found
                .and_then(Value::as_i64)
                .and_then(|n| i32::try_from(n).ok())
                .map(GgufMetadataValue::I32),
            false => found
                .and_then(Value::as_f64)
                .map(|x| GgufMetadataValue::F32(x as f32)),
        };
        keys.extend(value.map(|value| (format!("general.sampling.{key}"), value)));
    }
    keys
}

/// The name of a model as a title: words for dashes, and capitals for words in lower case.
pub(crate) fn title(name: &str) -> String {
    let is_version = |word: &str| {
        let digits = word.strip_prefix('v').unwrap_or(word);
        digits.starts_with(|c: char| c.is_ascii_digit())
    };
    let words = name.split(['-', ' ']).filter(|word| !word.is_empty());
    let words = words.map(|word| {
        if is_version(word) || word.chars().any(char::is_uppercase) {
            return word.to_owned();
        }
        // As Python's `str.title`: a capital behind everything that is no letter.
        let mut is_first = true;
        let letters = word.chars().flat_map(|c| {
            let capital = std::mem::replace(&mut is_first, !c.is_alphabetic()) && c.is_lowercase();
            let upper = c.to_uppercase().filter(move |_| capital);
            upper.chain((!capital).then_some(c))
        });
        letters.collect()
    });
    words.collect::<Vec<_>>().join(" ")
}

/// How many parameters a model has: `8.0B`, or `8x7B` if it has experts.
pub(crate) fn size_label<'a>(tensors: impl Iterator<Item = (&'a str, &'a [usize])>) -> String {
    let (mut shared, mut expert, mut total) = (0u128, 0u128, 0u128);
    let (mut experts, mut stacks) = (0u128, 0u128);
    for (name, shape) in tensors {
        let size: u128 = shape.iter().map(|&n| n as u128).product();
        total += size;
        match shape {
            [n, _, _] if name.contains("_exps.") && *n > 0 => {
                expert += size / *n as u128;
                experts += *n as u128;
                stacks += 1;
            }
            _ => shared += size,
        }
    }
    match experts.checked_div(stacks) {
        Some(experts) => format!("{experts}x{}", rounded(shared + expert)),
        None => rounded(total),
    }
}

/// A number of parameters with at least two digits.
fn rounded(n: u128) -> String {
    let n = n as f64;
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M")];
    let found = units.into_iter().find(|(least, _)| n > *least);
    let (unit, suffix) = found.unwrap_or((1e3, "K"));
    let scaled = n / unit;
    // Python's `round` takes the even neighbour of a half.
    let digits = match scaled.round_ties_even() as u64 {
        0 => 0,
        whole => whole.to_string().len(),
    };
    format!("{scaled:.*}{suffix}", 2usize.saturating_sub(digits))
}
