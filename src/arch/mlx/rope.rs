//! What mlx-lm reads of rotary positions, in the fields in which it reads it.

use serde_json::{Map, Value};

use super::classes::NO_SCALING;
use super::{MlxClass, RopeFields};
use crate::Result;
use crate::arch::fields::{Fields, wrong};
use crate::arch::rope::Rope;
use crate::arch::table::ModelClass;

const BASE: &str = "rope_theta";
const PARTIAL: &str = "partial_rotary_factor";
const SCALING: &str = "rope_scaling";
const PARAMETERS: &str = "rope_parameters";

/// Fails if positions are scaled and mlx-lm does not scale them, or needs a scaling that is not there.
///
/// # Errors
/// `Parse` that names the field.
pub(super) fn check(mlx: &MlxClass, fields: &Fields) -> Result<()> {
    let (rope, owner) = (Rope::new(fields)?, mlx.model_type);
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
    if mlx.rope == RopeFields::FlatYarn
        && (rope.kind != "yarn" || rope.scaling.number(&["factor"])?.is_none())
    {
        let what = format!("mlx-lm's {owner} needs YaRN with a `factor`");
        return Err(wrong(field, what));
    }
    Ok(())
}

/// Writes into the config `text` what `rope_parameters` says, in the fields that mlx-lm reads.
///
/// # Errors
/// `Parse` that names a field which says something else than `rope_parameters`.
pub(super) fn state(
    text: &mut Map<String, Value>,
    (mlx, class): (&MlxClass, &ModelClass),
    fields: &Fields,
) -> Result<()> {
    let rope = Rope::new(fields)?;
    let has_parameters = fields.0.contains_key(PARAMETERS);
    let scaling = || {
        let mut all = rope.scaling.0.clone();
        all.retain(|name, _| name != BASE && name != PARTIAL);
        // Some classes of mlx-lm know the older name alone.
        all.entry("type").or_insert(rope.kind.as_str().into());
        Value::from(all)
    };
    match mlx.rope {
        RopeFields::Flat | RopeFields::FlatYarn if has_parameters => {
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
            let part = rope.partial.or(class.traits.partial_rotary);
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
