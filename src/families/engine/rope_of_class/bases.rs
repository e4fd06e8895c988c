//! Bases of rope that depend on the class: those of kinds of layers, and those that versions of
//! transformers take where a config states none.

use serde_json::{Map, Value, json};

use crate::Result;
use crate::families::engine::fields::{FULL_ATTENTION, wrong};
use crate::families::engine::rope::{PARAMETERS, Rope, SCALING, WINDOWED};
use crate::families::engine::table::ModelClass;

/// The bases that transformers 4 and 5 take in classes with two where a config states none.
const UNSTATED: [f64; 2] = [10_000.0, 500_000.0];

impl Rope {
    /// The base of layers with a window of a model of `class`, if they have one of their own.
    pub(super) fn own_local_base(&self, class: &ModelClass) -> Option<f64> {
        // Of classes with two bases, `rope_parameters` alone states it.
        let is_read = self.is_by_kind == Some(true) || !class.traits.rope.has_two_bases;
        let base = self.local_base.filter(|_| is_read);
        base.filter(|_| class.traits.rope.by_kind)
    }

    /// Fails if transformers does not read the bases of a model of `class` where the config has
    /// them, or takes another one in each version. This is rope as a config states it, without the
    /// defaults of the class.
    ///
    /// # Errors
    /// `Parse` that names the field.
    pub(crate) fn check_bases(&self, class: &ModelClass) -> Result<()> {
        let (traits, name) = (&class.traits, class.classes[0]);
        if let Some(is_by_kind) = self.is_by_kind.filter(|is| *is != traits.rope.by_kind) {
            let what = match is_by_kind {
                true => format!("it differs by layers, and {name} has one rope for all"),
                false => {
                    format!("transformers reads it of {FULL_ATTENTION} and {WINDOWED} in {name}")
                }
            };
            return Err(wrong(PARAMETERS, what));
        }
        if traits.rope.by_kind && self.has_old_type {
            let what = "it has `type` alone, which transformers 4 takes for `rope_type`, and transformers 5 does not read in this class";
            return Err(wrong(SCALING, what));
        }
        if !traits.rope.has_two_bases {
            return Ok(());
        }
        let [older, newer] = UNSTATED;
        let Some(base) = self.base else {
            let what = format!(
                "it is missing: transformers 4 has {older} then, and transformers 5 {newer}"
            );
            return Err(wrong("rope_theta", what));
        };
        if traits.rope.by_kind && self.own_local_base(class).is_none() && base != newer {
            let what = format!(
                "it is {base}: transformers 5 has {newer} in layers with a window unless `{PARAMETERS}` states another for them"
            );
            return Err(wrong("rope_theta", what));
        }
        Ok(())
    }
}

/// Adds rope by the kind of the layers to the `config` of a model of `class` if transformers 5 had
/// another base in those with a window without it.
pub(crate) fn add_kinds(config: &mut Map<String, Value>, class: &ModelClass) {
    if !class.traits.rope.by_kind || !class.traits.rope.has_two_bases {
        return;
    }
    let base = config.get("rope_theta").cloned().unwrap_or_default();
    let scaling = config.get(SCALING).and_then(Value::as_object);
    let mut full = scaling.cloned().unwrap_or_default();
    full.entry("rope_type").or_insert("default".into());
    full.insert("rope_theta".to_owned(), base.clone());
    let windowed = json!({"rope_type": "default", "rope_theta": base});
    let kinds = json!({(FULL_ATTENTION): full, (WINDOWED): windowed});
    config.insert(PARAMETERS.to_owned(), kinds);
}
