//! What configs say of nunchaku's layers, compared with their tensors.

use serde_json::{Map, Value};

use super::{FAMILY, NunchakuLayer};
use crate::Result;
use crate::remember::seam::{refused, wrong};

/// Keys of nunchaku's own config. What it says of activations and of refiners says nothing of a
/// weight, and tensors have their rank.
const OWN_KEYS: [&str; 6] =
    ["method", "quant_method", "weight", "activation", "rank", "skip_refiners"];

impl NunchakuLayer<'_, '_> {
    /// Checks what the config says of the layers of a kind, `key`, by the names of Nunchaku Lite.
    ///
    /// # Errors
    /// It says nothing, something else, or what is not known.
    pub(super) fn check_config(&self, key: &str, precision: &str, group: usize) -> Result<()> {
        if self.own.is_some() {
            return self.check_own_config(key, precision, group);
        }
        let section = self.section(key)?;
        self.check_keys(section, key, &["precision", "group_size", "rank", "targets"])?;
        self.check_value(section, key, ("precision", precision.into()))?;
        self.check_value(section, key, ("group_size", group.into()))
    }

    /// The config of nunchaku's own models describes the layers of SVDQuant alone, of which there
    /// is one kind.
    fn check_own_config(&self, key: &str, precision: &str, group: usize) -> Result<()> {
        if let Some(unknown) = self.all.config.keys().find(|key| !OWN_KEYS.contains(key)) {
            let what = format!("the key `{unknown}` of the model's config is unknown");
            return Err(refused(&self.t, FAMILY, what));
        }
        if key != "svdq_w4a4" {
            return Ok(());
        }
        let section = self.section("weight")?;
        self.check_keys(section, "weight", &["dtype", "scale_dtype", "group_size"])?;
        let dtype = match precision {
            "nvfp4" => "fp4_e2m1_all",
            other => other,
        };
        self.check_value(section, "weight", ("dtype", dtype.into()))?;
        self.check_value(section, "weight", ("group_size", group.into()))
    }

    fn section(&self, key: &str) -> Result<&Map<String, Value>> {
        let section = self.all.config.section(key);
        section.ok_or_else(|| {
            let what = format!("the config has no `{key}`, and it is a layer of that kind");
            wrong(&self.t, what)
        })
    }

    fn check_keys(&self, section: &Map<String, Value>, key: &str, known: &[&str]) -> Result<()> {
        match section.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(unknown) => {
                let what = format!("the key `{unknown}` of the config's `{key}` is unknown");
                Err(refused(&self.t, FAMILY, what))
            }
        }
    }

    fn check_value(
        &self,
        section: &Map<String, Value>,
        key: &str,
        (name, value): (&str, Value),
    ) -> Result<()> {
        match section.get(name) {
            Some(found) if *found == value => Ok(()),
            found => {
                let found = found.map_or_else(|| "nothing".to_owned(), Value::to_string);
                let what = format!(
                    "the config's `{key}` has as {name} {found}, and its tensors have {value}"
                );
                Err(wrong(&self.t, what))
            }
        }
    }
}
