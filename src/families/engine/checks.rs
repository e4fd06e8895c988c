//! What a config says that llama.cpp does not compute as transformers does. It is an error, or a
//! note where only some texts differ, or where the difference is one of llama.cpp's own converter.

use serde_json::{Map, Value};

use super::fields::{Fields, LAYER_KINDS, LAYERS, is_same, wrong};
use super::kinds::check_kinds;
use super::rope::{PARAMETERS, Rope, SCALING, yarn_attention_factor};
use super::table::{Kind, LostWindows, Model, ModelClass, OwnScaling};
use super::tied::{TIED, is_untied};
use crate::Result;
use crate::config::text_config;

pub(crate) const WINDOW: &str = "sliding_window";
/// Fails if the config says something that a GGUF file of the class cannot say. Returns what the laws of the class say for [`notes`].
///
/// # Errors
/// `Parse` that names the field.
pub(crate) fn check(model: &Model<'_>) -> Result<Vec<String>> {
    let Model { class, stated: config, fields, dims, rope } = model;
    fields.check_implied(class, dims)?;
    rope.check(class)?;
    let owner = model.owner();
    let nearly_same = model.laws()?;
    fields.check_values(class.traits.also_implied, &owner)?;
    let mut rules = class.tensors.iter().flat_map(|rules| rules.iter());
    let has_output = rules.any(|rule| rule.gguf == "output");
    if class.traits.ties_output && has_output && is_untied(config, fields)? {
        let what = format!("it is false, and {owner} takes the embedding for `lm_head`");
        return Err(wrong(TIED, what));
    }
    let bidirectional = "use_bidirectional_attention";
    if fields.0.get(bidirectional).is_some_and(|x| x == "all") {
        let what = format!("it is \"all\", and {owner} has causal attention");
        return Err(wrong(bidirectional, what));
    }
    if let (Some(rotary), Some(part)) = (fields.count(&["rotary_dim"])?, rope.partial)
        && dims.head as f64 * part != f64::from(rotary)
    {
        let what = format!("it is {rotary}, and the part of a head that rotates is {part}");
        return Err(wrong("rotary_dim", what));
    }
    let dense = "mlp_only_layers";
    let layers = fields.0.get(dense).and_then(Value::as_array);
    if layers.is_some_and(|layers| !layers.is_empty()) {
        let what = format!("{owner} has experts in all layers");
        return Err(wrong(dense, what));
    }
    check_kinds(class, fields)?;
    check_pairs(model)?;
    check_groups(class, fields)?;
    check_original(class, fields, rope)?;
    check_yarn(class, rope)?;
    check_rope(class, fields, rope)?;
    Ok(nearly_same)
}

/// Adds the window that transformers has where `config` has no field for it, not even null, to the
/// `fields` of a model of `class`, if GGUF has one.
pub(crate) fn add_default_window(class: &ModelClass, config: &Value, fields: &mut Fields) {
    let has_window = class.has_setting(Kind::Nullable);
    if let Some(window) = class.traits.default_window
        && has_window
        && said(config, WINDOW).is_none()
    {
        fields.0.insert(WINDOW.to_owned(), window.into());
    }
}

/// What `config` says of `field`, null included: the nested config of the language model, or else
/// the one around it.
pub(crate) fn said<'c>(config: &'c Value, field: &str) -> Option<&'c Value> {
    let found = text_config(config).and_then(|text| text.get(field));
    found.or_else(|| config.get(field))
}

/// Fails if the part of a head that rotates is no whole number of pairs: transformers rounds their
/// number up then, and llama.cpp down.
fn check_pairs(model: &Model<'_>) -> Result<()> {
    let Model { class, fields, dims, rope, .. } = model;
    let rotary = fields.count(&["rotary_dim"])?.map(|rotary| rotary as usize);
    let part = Some(rope.rotating(class, dims)).filter(|part| *part != dims.head);
    let found = [("rotary_dim", rotary), ("partial_rotary_factor", part)];
    let is_odd = |part: &usize| !part.is_multiple_of(2);
    let mut odd = found
        .into_iter()
        .filter_map(|(field, part)| Some((field, part.filter(is_odd)?)));
    match odd.next() {
        None => Ok(()),
        Some((field, part)) => {
            let what = format!("{part} dimensions of a head rotate, which are no pairs");
            Err(wrong(field, what))
        }
    }
}

/// Fails if experts are in groups, and the class has none.
fn check_groups(class: &ModelClass, fields: &Fields) -> Result<()> {
    if has_groups(&fields.0) && !class.traits.has_expert_groups {
        let what = format!("{} has no groups of experts", class.classes[0]);
        return Err(wrong("n_group", what));
    }
    Ok(())
}

/// Fails if the config states the length of the training twice, and differently: transformers 5
/// goes by the one outside of rope.
fn check_original(class: &ModelClass, fields: &Fields, rope: &Rope) -> Result<()> {
    let field = "original_max_position_embeddings";
    let (outer, inner) = (fields.number(&[field])?, rope.scaling.number(&[field])?);
    match (outer, inner) {
        (Some(outer), Some(inner))
            if outer != inner && !class.traits.rope.has(OwnScaling::Long) =>
        {
            let what = format!("it is {outer}, and that of rope is {inner}");
            Err(wrong(field, what))
        }
        _ => Ok(()),
    }
}

/// The bounds of YaRN that llama.cpp takes, with their fields.
const BOUNDS: [(&str, f64); 2] = [("beta_fast", 32.0), ("beta_slow", 1.0)];

/// The notes of bounds of YaRN that llama.cpp does not take.
fn lost_bounds(class: &ModelClass, rope: &Rope) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let bounds = BOUNDS.iter();
    for (field, expected) in
        bounds.filter(|_| rope.kind == "yarn" && class.traits.rope.has(OwnScaling::LostBounds))
    {
        let found = rope.scaling.number(&[field])?;
        if let Some(found) = found.filter(|found| found != expected) {
            notes.push(format!(
                "`{field}` is {found}: llama.cpp's {} does not read the key and takes {expected}, so that it turns positions otherwise than transformers, \
                 as with the file that its own converter writes",
                class.gguf
            ));
        }
    }
    Ok(notes)
}

/// Fails if YaRN has other parameters than llama.cpp takes for granted: it does not read their keys
/// in any class of the table.
///
/// Source: `_compute_yarn_parameters` in `modeling_rope_utils.py` of transformers.
pub(crate) fn check_yarn(class: &ModelClass, rope: &Rope) -> Result<()> {
    if rope.kind != "yarn" {
        return Ok(());
    }
    let factor = rope.scaling.number(&["factor"])?.unwrap_or(1.0);
    let has_scale = rope.scaling.number(&["mscale_all_dim"])?.is_some();
    // With the two equal scales that alone are taken, the factor is 1.
    let attention = match has_scale {
        true => 1.0,
        false => yarn_attention_factor(factor, 1.0),
    };
    for (field, expected) in
        [("attention_factor", attention), ("attn_factor", attention), BOUNDS[0], BOUNDS[1]]
    {
        if field.starts_with("beta") && class.traits.rope.has(OwnScaling::LostBounds) {
            continue;
        }
        // Configs state the factor of attention with some digits.
        let found = rope.scaling.number(&[field])?;
        if let Some(found) = found.filter(|found| (found - expected).abs() > 1e-4) {
            let what = format!("it is {found}, and llama.cpp's {} has {expected}", class.gguf);
            return Err(wrong(field, what));
        }
    }
    Ok(())
}

/// Whether a token goes to the best groups of experts.
pub(crate) fn has_groups(fields: &Map<String, Value>) -> bool {
    let groups = fields.get("n_group").and_then(Value::as_u64);
    groups > Some(1)
}

/// Fails if the two fields of rope differ, or the class has a scaling where both are missing.
fn check_rope(class: &ModelClass, fields: &Fields, rope: &Rope) -> Result<()> {
    let of = |name: &str| fields.0.get(name).and_then(Value::as_object);
    let Some(scaling) = of(SCALING) else {
        // gpt-oss, the class of exact YaRN, has YaRN of factor 32 then. transformers 4 has no
        // scaling if the field is null.
        let is_silent = class.traits.rope.has(OwnScaling::ExactYarn) && of(PARAMETERS).is_none();
        let what = "it is missing or null: transformers has YaRN with `factor` 32 then, or no scaling, by its version";
        return match is_silent {
            true => Err(wrong(SCALING, what)),
            false => Ok(()),
        };
    };
    if of(PARAMETERS).is_none() {
        return Ok(());
    }
    // transformers 5 takes `rope_scaling` where there are both, transformers 4 knows no other, and
    // `rope` is of the second.
    let scaling = Fields::of(scaling.clone());
    let kind = scaling.get(&["rope_type", "type"]);
    let kind = kind.map_or("default", |(_, kind)| kind.as_str().unwrap_or_default());
    let others = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
    let agrees = |name: &String| match (scaling.0.get(name), rope.scaling.0.get(name)) {
        (Some(one), Some(other)) => is_same(one, other),
        (None, None) => true,
        _ => others.contains(&name.as_str()),
    };
    let is_type = |name: &String| name == "type" || name == "rope_type";
    let mut names = scaling.0.keys().chain(rope.scaling.0.keys());
    let differs = names.find(|name| !is_type(name) && !agrees(name));
    match differs {
        None if kind.to_lowercase() == rope.kind => Ok(()),
        name => {
            let name = name.map_or("rope_type", String::as_str);
            let what = format!("it says something else than `{PARAMETERS}` of `{name}`");
            Err(wrong(SCALING, what))
        }
    }
}

/// What a user should know of a model that llama.cpp computes otherwise than transformers, with
/// what the laws of its class say, `nearly_same`.
///
/// # Errors
/// `Parse` that names a field of another type.
pub(crate) fn notes(model: &Model<'_>, nearly_same: Vec<String>) -> Result<Vec<String>> {
    let Model { class, stated: config, fields, rope, .. } = model;
    let mut notes = lost_bounds(class, rope)?;
    let owner = model.owner();
    notes.extend(ignored_window(class.traits.lost_windows, class, (config, fields), &owner)?);
    notes.extend(latent_norms(fields, &owner)?);
    notes.extend(nearly_same);
    notes.extend(class.traits.other_scores.map(|[what, _]| what.to_owned()));
    Ok(notes)
}

/// The note that `owner` has `rms_norm_eps` in the norms of latent vectors as well, where
/// transformers has a constant.
pub(crate) fn latent_norms(fields: &Fields, owner: &str) -> Result<Option<String>> {
    // Of the norms in `DeepseekV3Attention` and `Glm4MoeLiteAttention`.
    const CONSTANT: f64 = 1e-6;
    const FIELD: &str = "rms_norm_eps";
    let has_latent = fields.0.contains_key("kv_lora_rank");
    let found = fields
        .number(&[FIELD])?
        .filter(|found| has_latent && *found != CONSTANT);
    Ok(found.map(|found| {
        format!("`{FIELD}`: {owner} has {found:e} in the norms of latent vectors, too, and transformers {CONSTANT:e} there, which is nearly the same")
    }))
}

/// The note that `owner` sees the whole text where transformers sees a window of it, in the layers
/// `lost` of a model of `class`; `None` if there are none, or no text is longer than the window.
///
/// # Errors
/// `Parse` that names a field of another type.
pub(crate) fn ignored_window(
    lost: LostWindows,
    class: &ModelClass,
    (config, fields): (&Value, &Fields),
    owner: &str,
) -> Result<Option<String>> {
    if !has_windows(lost, fields)? {
        return Ok(None);
    }
    let stated = fields.count(&[WINDOW])?;
    // null says that there is none.
    let default = class.traits.default_window;
    let default = default.filter(|_| said(config, WINDOW).is_none());
    let Some(window) = stated.or(default) else {
        return Ok(None);
    };
    let longest = fields.count(&["max_position_embeddings"])?;
    if longest.is_some_and(|longest| longest <= window) {
        return Ok(None);
    }
    Ok(Some(match stated {
        Some(_) => format!(
            "`{WINDOW}`: {owner} ignores it; texts of more than {window} tokens are computed otherwise than by transformers"
        ),
        None => format!(
            "`{WINDOW}`: it is missing, and transformers has {window} then; {owner} has none, and computes longer texts otherwise. null says that there is none"
        ),
    }))
}

/// Whether transformers has windows in some of the layers `lost`, if there is a window.
fn has_windows(lost: LostWindows, fields: &Fields) -> Result<bool> {
    const FLAG: &str = "use_sliding_window";
    let by_kind = has_sliding_kind(fields);
    Ok(match lost {
        LostWindows::Nowhere => false,
        LostWindows::Everywhere => fields.boolean(FLAG)? != Some(false),
        LostWindows::Flagged => fields.flag(FLAG) && by_kind != Some(false),
        LostWindows::From(default) => match by_kind {
            Some(is_sliding) => is_sliding,
            None => {
                let first = fields.count(&["max_window_layers"])?.unwrap_or(default);
                first < fields.need(LAYERS)?
            }
        },
    })
}

/// Whether `layer_types` says that a layer has a window; `None` if it is not there.
pub(crate) fn has_sliding_kind(fields: &Fields) -> Option<bool> {
    let kinds = fields.0.get(LAYER_KINDS)?.as_array()?;
    Some(kinds.iter().any(|kind| kind == "sliding_attention"))
}
