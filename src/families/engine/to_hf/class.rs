//! The class of a GGUF file.

use crate::families::CLASSES;
use crate::families::engine::table::{ModelClass, Sign};
use crate::model::gguf::GgufMetadata;
use crate::model::gguf_keys::PRE_TOKENIZER;
use crate::{AnamnesisError, Result};

/// What `general.type` calls files that are no models, and what they are.
const NO_MODELS: &[(&str, &str)] = &[
    ("adapter", "an adapter, which `amn merge` merges into its model"),
    (
        "mmproj",
        "the tower of a multimodal model; `amn remember MODEL.gguf --mmproj THIS.gguf -o DIR` writes both",
    ),
    ("imatrix", "an importance matrix"),
];

/// The class of a GGUF file.
///
/// # Errors
/// `Unsupported` if it is no model, or no class has its architecture.
pub(super) fn class_of(
    metadata: &GgufMetadata,
    has_tensor: impl Fn(&str) -> bool,
) -> Result<&'static ModelClass> {
    let architecture = metadata.get("general.architecture");
    let name = architecture
        .as_ref()
        .and_then(|value| value.as_string())
        .unwrap_or_default();
    let kind = metadata.get("general.type");
    let kind = kind.as_ref().and_then(|kind| kind.as_string());
    // Early towers say their architecture alone.
    let kind = kind.or_else(|| (name == "clip").then_some("mmproj"));
    if let Some((kind, what)) = NO_MODELS.iter().find(|(known, _)| kind == Some(*known)) {
        let what = format!(
            "general.type: the file is {what}; its tensors alone are written to a FILE.safetensors"
        );
        return Err(AnamnesisError::unsupported(*kind, what));
    }
    let experts = metadata.get(&format!("{name}.expert_count"));
    let has_experts = experts
        .and_then(|value| value.as_unsigned())
        .is_some_and(|n| n > 0);
    let is_number = |key: &str, number: u64| {
        let found = metadata.get(&format!("{name}.{key}"));
        let found = found.as_ref();
        let flag = || found?.as_bool().map(u64::from);
        found.and_then(|value| value.as_unsigned()).or_else(flag) == Some(number)
    };
    let is_text = |key: &str, text: &str| {
        let found = metadata.get(key);
        found.as_ref().and_then(|value| value.as_string()) == Some(text)
    };
    let is_so = |sign: &Sign| match *sign {
        Sign::Experts => has_experts,
        Sign::Key(key, number) => is_number(key, number),
        Sign::PreTokenizer(pre) => is_text(PRE_TOKENIZER, pre),
        Sign::Tokenizer(kind) => is_text("tokenizer.ggml.model", kind),
        Sign::Tensor(tensor) => has_tensor(tensor),
        Sign::Has(key) => metadata.get(&format!("{name}.{key}")).is_some(),
        Sign::List(key) => {
            let found = metadata.get(&format!("{name}.{key}"));
            found.is_some_and(|value| value.as_array().is_some())
        }
        Sign::Rest => true,
        Sign::Never | Sign::All(_) => false,
    };
    let fits = |class: &&&ModelClass| {
        let is_one = match class.traits.sign {
            Sign::All(signs) => signs.iter().all(is_so),
            ref sign => is_so(sign),
        };
        class.gguf == name && is_one
    };
    CLASSES.iter().find(fits).copied().ok_or_else(|| {
        let what = "general.architecture: it has no names of transformers here; its tensors alone are written to a FILE.safetensors";
        AnamnesisError::unsupported(name, what)
    })
}
