//! What mlx-lm reads of rotary positions, in the fields in which it reads it.

use serde_json::{Map, Value};

use super::NamedClass;
use crate::Result;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::rope::{
    PARAMETERS, Rope, SCALING, long_attention_factor, yarn_attention_factor,
};
use crate::families::engine::table::mlx::{NO_SCALING, RopeFields};
use crate::families::engine::table::{Model, ModelClass, OwnScaling};

const BASE: &str = "rope_theta";
const PARTIAL: &str = "partial_rotary_factor";
const ATTENTION_FACTOR: &str = "attention_factor";
const TRUNCATE: &str = "truncate";
const ORIGINAL: &str = "original_max_position_embeddings";

/// Fails if positions are scaled and mlx-lm does not scale them, or needs a scaling that is not
/// there.
///
/// # Errors
/// `Parse` that names the field.
pub(super) fn check(found: &NamedClass<'_>, model: &Model<'_>) -> Result<()> {
    let Model { class, fields, rope, .. } = model;
    let (mlx, owner) = (found.mlx, class.model_type);
    let field = match fields.0.contains_key(PARAMETERS) {
        true => PARAMETERS,
        false => SCALING,
    };
    if rope.has_local_scaling {
        let what = format!("mlx-lm's {owner} has no scaling in layers with a window");
        return Err(wrong(field, what));
    }
    if mlx.implied.contains(&NO_SCALING) && rope.kind != "default" {
        let what = format!("it is `{}`, and mlx-lm's {owner} has no scaling", rope.kind);
        return Err(wrong(field, what));
    }
    let is_stated = [PARAMETERS, SCALING]
        .iter()
        .any(|name| fields.0.contains_key(*name));
    if class.traits.rope.has(OwnScaling::ExactYarn) && !is_stated {
        let what = format!("it is missing: transformers has YaRN then, and mlx-lm's {owner} none");
        return Err(wrong(SCALING, what));
    }
    let is_plain = rope.kind == "default" || mlx.implied.contains(&NO_SCALING);
    if !is_plain && !mlx.scalings.contains(&rope.kind.as_str()) {
        let what = format!("mlx-lm's {owner} has no scaling `{}`", rope.kind);
        return Err(wrong(field, what));
    }
    // transformers reads `rope_type` first, and mlx-lm `type`. An `mrope` of text alone is not
    // scaled.
    if let Some(kind) = rope.scaling.0.get("type").and_then(Value::as_str)
        && kind.to_lowercase() != rope.kind
        && (kind, rope.kind.as_str()) != ("mrope", "default")
    {
        let what = format!("its `type` is `{kind}`, and its `rope_type` is `{}`", rope.kind);
        return Err(wrong(field, what));
    }
    let is_whole = rope.partial.is_none_or(|part| part == 1.0);
    if class.traits.rope.partial.is_none() && !is_whole {
        let what = format!("mlx-lm's {owner} rotates whole heads");
        return Err(wrong(PARTIAL, what));
    }
    if class.traits.rope.has(OwnScaling::Alpha) {
        check_alpha(owner, fields, rope)?;
    }
    match rope.kind.as_str() {
        "yarn" => check_yarn(class, fields, &rope.scaling)?,
        "longrope" | "su" => check_long(owner, fields, &rope.scaling)?,
        _ => {}
    }
    if mlx.rope == RopeFields::FlatYarn
        && (rope.kind != "yarn" || rope.scaling.number(&["factor"])?.is_none())
    {
        let what = format!("mlx-lm's {owner} needs YaRN with a `factor`");
        return Err(wrong(field, what));
    }
    if mlx.rope == RopeFields::NestedByKind && rope.is_by_kind != Some(true) {
        let what = format!("mlx-lm's {owner} reads it by the kind of layers alone");
        return Err(wrong(PARAMETERS, what));
    }
    Ok(())
}

/// Fails if an `alpha` raises the base in mlx-lm alone, or in transformers alone, or mlx-lm does
/// not load the scaling.
///
/// Source: `mlx_lm/models/hunyuan_v1_dense.py`, `HunYuanDenseV1RotaryEmbedding` of transformers.
fn check_alpha(owner: &str, fields: &Fields, rope: &Rope) -> Result<()> {
    if rope.kind == "default" {
        let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
        return match fields.0.get(SCALING).is_none_or(is_empty) {
            true => Ok(()),
            false => Err(wrong(SCALING, format_args!("mlx-lm's {owner} takes it for `dynamic`"))),
        };
    }
    for field in ["alpha", "factor"] {
        if rope.scaling.number(&[field])?.is_none_or(|x| x <= 0.0) {
            let what = format!("it is missing or 0, and mlx-lm's {owner} needs it");
            return Err(wrong(field, what));
        }
    }
    Ok(())
}

/// Fails if YaRN scales otherwise in mlx-lm than in transformers.
///
/// Source: `YarnRoPE` in `mlx_lm/models/rope_utils.py`, `_compute_yarn_parameters` in
/// `modeling_rope_utils.py` of transformers.
fn check_yarn(class: &ModelClass, fields: &Fields, scaling: &Fields) -> Result<()> {
    let owner = class.model_type;
    // transformers 5 computes a missing one from the two lengths.
    let Some(factor) = scaling.number(&["factor"])? else {
        let what = format!("it is missing, and mlx-lm's {owner} needs it");
        return Err(wrong("factor", what));
    };
    let scale = |weight: f64| yarn_attention_factor(factor, weight);
    let [attention, dividend, divisor] =
        [ATTENTION_FACTOR, "mscale", "mscale_all_dim"].map(|name| scaling.number(&[name]));
    let (attention, dividend, divisor) = (attention?, dividend?, divisor?);
    // transformers takes the two for missing unless both are there, and not 0.
    let both = dividend
        .zip(divisor)
        .filter(|(a, b)| *a != 0.0 && *b != 0.0);
    let inferred = both.map_or(scale(1.0), |(a, b)| scale(a) / scale(b));
    let wanted = attention.unwrap_or(inferred);
    let computed = scale(dividend.unwrap_or(1.0)) / scale(divisor.unwrap_or(0.0));
    if !is_near(wanted, computed) {
        let field = match attention {
            Some(_) => ATTENTION_FACTOR,
            None => "mscale",
        };
        let what =
            format!("attention is scaled by {wanted}, and in mlx-lm's {owner} by {computed}");
        return Err(wrong(field, what));
    }
    if is_exact(scaling) && !class.traits.rope.has(OwnScaling::ExactYarn) {
        let what = format!("it is false, and mlx-lm's {owner} has true");
        return Err(wrong(TRUNCATE, what));
    }
    if scaling.number(&[ORIGINAL])?.is_none()
        && fields.count(&["max_position_embeddings"])? != Some(4096)
    {
        let what = format!("it is missing, and mlx-lm's {owner} has 4096");
        return Err(wrong(ORIGINAL, what));
    }
    Ok(())
}

/// Fails if factors for long texts scale attention otherwise than mlx-lm computes it.
///
/// Source: `SuScaledRoPE` in `mlx_lm/models/rope_utils.py`.
fn check_long(owner: &str, fields: &Fields, scaling: &Fields) -> Result<()> {
    let original = f64::from(fields.need(&[ORIGINAL])?);
    // transformers 5 has it here alone, and mlx-lm does not look for it.
    if let Some(stated) = scaling.number(&[ORIGINAL])?.filter(|n| *n != original) {
        let what = format!("it is {stated}, and mlx-lm's {owner} has {original}");
        return Err(wrong(ORIGINAL, what));
    }
    let Some(stated) = scaling.number(&[ATTENTION_FACTOR])? else {
        return Ok(());
    };
    let computed = long_attention_factor(fields)?;
    match is_near(stated, computed) {
        true => Ok(()),
        false => {
            let what = format!("it is {stated}, and mlx-lm's {owner} has {computed}");
            Err(wrong(ATTENTION_FACTOR, what))
        }
    }
}

/// What a user should know of positions that mlx-lm scales otherwise than transformers.
pub(super) fn note(model: &Model<'_>) -> Option<String> {
    let Model { class, rope, .. } = model;
    let owner = class.model_type;
    let [short, long] = ["short_factor", "long_factor"].map(|name| rope.scaling.0.get(name));
    match rope.kind.as_str() {
        "yarn" if is_exact(&rope.scaling) && class.traits.rope.has(OwnScaling::ExactYarn) => Some(
            format!("`{TRUNCATE}`: it is false, and mlx-lm's {owner} rounds the bounds of YaRN"),
        ),
        "longrope" | "su" if short != long => Some(format!(
            "`short_factor`: mlx-lm's {owner} ignores it; texts of all lengths get `long_factor`"
        )),
        _ => None,
    }
}

/// Whether YaRN's bounds are not rounded.
fn is_exact(scaling: &Fields) -> bool {
    scaling.0.get(TRUNCATE).and_then(Value::as_bool) == Some(false)
}

/// Whether two numbers are the same, but for the digits that a config leaves out.
fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * b.abs()
}

/// Writes into the config `text` what `rope_parameters` says, in the fields that mlx-lm reads.
///
/// # Errors
/// `Parse` that names a field which says something else than `rope_parameters`.
pub(super) fn state(
    text: &mut Map<String, Value>,
    found: &NamedClass<'_>,
    model: &Model<'_>,
) -> Result<()> {
    let Model { class, fields, rope, .. } = model;
    let mlx = found.mlx;
    let has_parameters = fields.0.contains_key(PARAMETERS);
    let scaling = || {
        let mut all = rope.scaling.0.clone();
        all.retain(|name, _| name != BASE && name != PARTIAL);
        // Some classes of mlx-lm know the older name alone.
        all.entry("type").or_insert(rope.kind.as_str().into());
        Value::from(all)
    };
    if mlx.rope == RopeFields::FlatTyped
        && let Some(Value::Object(stated)) = text.get_mut(SCALING)
        && rope.kind != "default"
    {
        let kind = stated.entry("type").or_insert(Value::Null);
        if kind.is_null() {
            *kind = rope.kind.as_str().into();
        }
    }
    match mlx.rope {
        RopeFields::Flat | RopeFields::FlatYarn | RopeFields::FlatTyped if has_parameters => {
            let mut state = |name: &str, value: Value| match text.get(name) {
                Some(stated) if !stated.is_null() && stated.as_f64() != value.as_f64() => {
                    let what = format!("it is {stated}, and {PARAMETERS} says {value}");
                    Err(wrong(name, what))
                }
                Some(stated) if !stated.is_null() => Ok(()),
                _ => {
                    text.insert(name.to_owned(), value);
                    Ok(())
                }
            };
            if let Some(base) = rope.base {
                state(BASE, base.into())?;
            }
            if let Some(base) = rope.local_base {
                state("rope_local_base_freq", base.into())?;
            }
            if let Some(part) = rope.partial {
                state(PARTIAL, part.into())?;
            }
            if rope.kind != "default" && text.get(SCALING).is_none_or(Value::is_null) {
                text.insert(SCALING.to_owned(), scaling());
            }
        }
        RopeFields::NestedAlone => {
            let parameters = text.entry(PARAMETERS).or_insert_with(scaling);
            let part = rope.partial.or(class.traits.rope.partial);
            for (name, value) in [(BASE, rope.base), (PARTIAL, part)] {
                if let (Some(all), Some(value)) = (parameters.as_object_mut(), value) {
                    all.entry(name).or_insert(value.into());
                }
            }
        }
        _ => {}
    }
    Ok(())
}
