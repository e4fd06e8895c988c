//! Keys that change what llama.cpp computes, in files of models whose class in transformers cannot
//! say it.
//!
//! Source: `llama_model_base::load_hparams` of llama.cpp (`src/llama-model.cpp`), which reads some
//! for all architectures, and reads others where an architecture asks for them.

use serde_json::{Map, Value};

use crate::families::engine::fields::wrong_key;

use super::{CAUSAL, GATING, GATING_FUNCTIONS, IS_CAUSAL};
use crate::Result;
use crate::families::engine::table::{Default, ModelClass, OwnScaling, Transform};
use crate::model::gguf::{GgufMetadata, GgufMetadataValue};

/// Such keys, with the values that change nothing.
const KEYS: &[(&str, &[f64])] = &[
    ("rope.scale_linear", &[0.0, 1.0]),
    ("rope.scaling.alpha", &[0.0, 1.0]),
    (CAUSAL, &[1.0]),
    ("attention.sliding_window", &[0.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attention.temperature_length", &[0.0]),
    (SCALE, &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("expert_weights_scale", &[0.0, 1.0]),
    ("swin_norm", &[0.0]),
];

/// Key of what scores of attention are multiplied by.
const SCALE: &str = "attention.scale";

/// The base of rope that llama.cpp takes where a file states none.
const UNSTATED_BASE: f64 = 10_000.0;

/// Keys that a class has and a file need not have, with the field and the value that llama.cpp
/// takes then. A class may have another default.
const MISSING: &[(&str, &str, f64)] = &[
    ("rope.freq_base", "rope_theta", UNSTATED_BASE),
    ("logit_scale", "logit_scale", 1.0),
    ("expert_weights_scale", "routed_scaling_factor", 1.0),
];

/// Whether a field of the config is the base of rope in layers with a window alone.
pub(super) fn says_local_base(class: &ModelClass) -> bool {
    class.traits.rope.by_kind && !class.traits.rope.has_two_bases
}

/// Whether a key is a tensor of transformers.
fn is_of_tensor(class: &ModelClass, key: &str) -> bool {
    let mut rules = class.tensors.iter().flat_map(|rules| rules.iter());
    rules.any(|rule| match rule.transform {
        Transform::Key(whole) => whole.split_once('.') == Some((class.gguf, key)),
        _ => false,
    })
}

/// Fails if a key changes what llama.cpp computes and a model of `class` cannot say so.
///
/// # Errors
/// `Parse` that names the key.
pub(super) fn refuse(class: &ModelClass, metadata: &GgufMetadata) -> Result<()> {
    let get = |key: &str| metadata.get(&format!("{}.{key}", class.gguf));
    let refused = |key: &str, value: &GgufMetadataValue| {
        let (key, name) = (format!("{}.{key}", class.gguf), class.classes[0]);
        let found = number(value).map_or_else(|| value.type_name().to_owned(), |n| n.to_string());
        wrong_key(&key, format_args!("it is {found}, which {name} does not have"))
    };
    for (key, neutral) in KEYS {
        let is_read = class.settings().any(|setting| setting.key == *key)
            || is_of_tensor(class, key)
            || *key == "rope.scaling.alpha" && class.traits.rope.has(OwnScaling::Alpha)
            || *key == CAUSAL && class.traits.reads_causal;
        let Some(value) = get(key).filter(|_| !is_read) else {
            continue;
        };
        if number(&value).is_none_or(|n| !neutral.contains(&n)) {
            return Err(refused(key, &value));
        }
    }
    if let Some(value) = get("expert_group_count").filter(|_| !class.traits.has_expert_groups)
        && number(&value).is_none_or(|n| n > 1.0)
    {
        return Err(refused("expert_group_count", &value));
    }
    let is_own = |key: &str| class.settings().any(|setting| setting.key == key);
    let key = "rope.dimension_count";
    if let (Some(value), Some(head)) = (get(key).filter(|_| !is_own(key)), head_size(get))
        && number(&value) != Some(head as f64)
    {
        return Err(refused(key, &value));
    }
    let key = "rope.freq_base_swa";
    if let Some(value) = get(key).filter(|_| !says_local_base(class) && !is_own(key)) {
        let base = get("rope.freq_base");
        let base = base.as_ref().map_or(Some(UNSTATED_BASE), number);
        if number(&value) != base {
            return Err(refused(key, &value));
        }
    }
    let key = "expert_gating_func";
    match get(key).filter(|_| !is_own(key)) {
        Some(value)
            if number(&value) != Some(0.0) && number(&value) != Some(gating_of(class).into()) =>
        {
            Err(refused(key, &value))
        }
        _ => Ok(()),
    }
}

/// Field of the size of a head.
const HEAD: &str = "head_dim";

/// The size of a head, by the keys that `get` gets; `None` if they do not say it, or not for all
/// layers.
fn head_size(get: impl Fn(&str) -> Option<GgufMetadataValue>) -> Option<u64> {
    let count = |key: &str| get(key)?.as_unsigned();
    let derived = || count("embedding_length")?.checked_div(count("attention.head_count")?);
    count("attention.key_length").or_else(derived)
}

/// Adds to the `config` of a class that reads it that tokens see those behind them. What all
/// decoders are is not written.
///
/// # Errors
/// `Parse` if the key is neither true nor false.
pub(super) fn add_causal(
    config: &mut Map<String, Value>,
    class: &ModelClass,
    metadata: &GgufMetadata,
) -> Result<()> {
    let key = format!("{}.{CAUSAL}", class.gguf);
    let value = metadata.get(&key).filter(|_| class.traits.reads_causal);
    match value.as_ref().map(GgufMetadataValue::as_bool) {
        None | Some(Some(true)) => Ok(()),
        Some(Some(false)) => {
            config.insert(IS_CAUSAL.to_owned(), false.into());
            Ok(())
        }
        Some(None) => Err(wrong_key(&key, "it is neither true nor false")),
    }
}

/// What a user should know of a config with that field.
pub(crate) fn causal_note(config: &Map<String, Value>) -> Option<String> {
    config.get(IS_CAUSAL).map(|value| {
        format!("`{IS_CAUSAL}` is {value}: transformers 5 lets tokens see those behind them, and transformers 4 does not read it")
    })
}

/// Adds to `config` what llama.cpp takes for keys that the file does not have, where transformers
/// takes something else.
pub(super) fn add_missing(
    config: &mut Map<String, Value>,
    class: &ModelClass,
    metadata: &GgufMetadata,
) {
    for &(key, field, value) in MISSING {
        let own = class.own_fields.iter().find(|(usual, _)| *usual == field);
        let field = own.map_or(field, |(_, own)| own);
        let mut defaults = class.defaults.iter();
        let has_other = defaults
            .any(|(name, default)| *name == field && Value::from(default).as_f64() != Some(value));
        let is_open = field == "rope_theta" && class.traits.rope.has_two_bases;
        if (has_other || is_open) && metadata.get(&format!("{}.{key}", class.gguf)).is_none() {
            config.entry(field).or_insert(value.into());
        }
    }
    // Where transformers has a size of heads, llama.cpp divides the hidden size among them.
    let get = |key: &str| metadata.get(&format!("{}.{key}", class.gguf));
    let mut defaults = class.defaults.iter();
    if let Some(head) = head_size(get).filter(|_| defaults.any(|(field, _)| *field == HEAD)) {
        config.entry(HEAD).or_insert(head.into());
    }
    // Without a scale of scores, or with 0, llama.cpp divides them by the root of the size of a
    // head.
    let is_unscaled = || get(SCALE).is_none_or(|scale| number(&scale) == Some(0.0));
    if let Some(setting) = class.settings().find(|setting| setting.key == SCALE)
        && let Some(head) = head_size(get).filter(|_| is_unscaled())
    {
        let head = head as f64;
        config.insert(setting.fields[0].to_owned(), head.sqrt().recip().into());
    }
}

/// The number of the function that turns scores of experts into weights, in a class without a
/// setting for it.
pub(super) fn gating_of(class: &ModelClass) -> u32 {
    let fields = class.implied.iter().chain(class.defaults);
    let mut named = fields.filter_map(|(field, value)| match value {
        Default::Text(name) if GATING.contains(field) => Some(*name),
        _ => None,
    });
    let name = named.next().unwrap_or("softmax");
    let known = GATING_FUNCTIONS.iter().find(|(known, _)| *known == name);
    known.map_or(1, |(_, number)| *number)
}

/// A number, or a flag as one.
fn number(value: &GgufMetadataValue) -> Option<f64> {
    match *value {
        GgufMetadataValue::F32(x) => Some(x.into()),
        GgufMetadataValue::F64(x) => Some(x),
        GgufMetadataValue::Bool(flag) => Some(f64::from(u8::from(flag))),
        ref value => value.as_unsigned().map(|n| n as f64),
    }
}
