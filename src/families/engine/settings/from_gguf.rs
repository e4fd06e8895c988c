//! The fields of a config from the metadata of a GGUF file.

mod by_layer;

use std::fmt::Display;

use serde_json::{Map, Value, json};

use super::{HEAD_SIZES, NORMS_AND_EXPERTS, SIZES, unread};
use crate::Result;
use crate::families::engine::fields::{HEADS, HIDDEN, float, is_same, missing_key, wrong_key};
use crate::families::engine::prediction;
use crate::families::engine::rope::{PARAMETERS, SECTIONS};
use crate::families::engine::table::{
    ConfigFields, Default, Kind, ModelClass, OwnSetting, Setting, StatedKey,
};
use crate::model::gguf::{GgufMetadata, GgufMetadataValue};

/// The fields of the config of a model of `class`, as the metadata of its GGUF file has them.
///
/// # Errors
/// `Parse` that names a key which is missing, has another type or contradicts another.
pub(crate) fn config_of(
    class: &'static ModelClass,
    metadata: &GgufMetadata,
) -> Result<Map<String, Value>> {
    unread::refuse(class, metadata)?;
    let mut config = ConfigFields {
        class,
        metadata,
        prediction: prediction::apart(class, metadata)?,
        fields: Map::new(),
    };
    config
        .fields
        .insert("architectures".to_owned(), json!([class.classes[0]]));
    config
        .fields
        .insert("model_type".to_owned(), class.model_type.into());
    let own_key = |setting: &&Setting| class.settings().any(|own| own.key == setting.key);
    let usual = [SIZES, NORMS_AND_EXPERTS, HEAD_SIZES].into_iter().flatten();
    let all = usual
        .filter(|setting| !own_key(setting))
        .chain(class.settings());
    config.add_all(all)?;
    let mut config = config.fields;
    for (key, field) in [("freq_base", "rope_theta"), ("freq_base_swa", "rope_local_base_freq")] {
        let is_local = key == "freq_base_swa";
        if is_local && !unread::says_local_base(class) {
            continue;
        }
        let base = metadata.get(&format!("{}.rope.{key}", class.gguf));
        let base = base.as_ref().and_then(float);
        let own = class.own_fields.iter().find(|(usual, _)| *usual == field);
        let field = own.map_or(field, |(_, own)| own);
        config.extend(base.map(|base| (field.to_owned(), base)));
    }
    unread::add_causal(&mut config, class, metadata)?;
    if let Some(sections) = config.remove(SECTIONS) {
        let rope = rope_by_axes(&mut config, sections);
        config.insert(PARAMETERS.to_owned(), rope);
    }
    unread::add_missing(&mut config, class, metadata);
    let implied = class.implied.iter();
    for (field, value) in implied.filter(|(_, value)| *value != Default::Absent) {
        let value = Value::from(value);
        if let Some(found) = config.get(*field).filter(|found| !is_same(found, &value)) {
            let what = format!("{field} is {found}, and {} has {value}", class.classes[0]);
            return Err(wrong_key(class.gguf, what));
        }
        config.insert((*field).to_owned(), value);
    }
    for (field, other) in class.equal_fields {
        let Some(value) = config.get(*other).cloned() else {
            continue;
        };
        if let Some(found) = config.get(*field).filter(|found| **found != value) {
            let what = format!("{field} is {found}, and {other} is {value}");
            return Err(wrong_key(class.gguf, what));
        }
        config.insert((*field).to_owned(), value);
    }
    Ok(config)
}

/// The field `rope_parameters` of a model whose heads rotate by several axes.
fn rope_by_axes(config: &mut Map<String, Value>, sections: Value) -> Value {
    let mut rope = Map::new();
    rope.insert("rope_type".to_owned(), "default".into());
    rope.insert("mrope_interleaved".to_owned(), true.into());
    rope.insert(SECTIONS.to_owned(), sections);
    for field in ["rope_theta", ROTATING] {
        rope.extend(config.remove(field).map(|value| (field.to_owned(), value)));
    }
    Value::Object(rope)
}

/// The fields that only the keys of the settings of `class` say, under the names of the table.
///
/// # Errors
/// As [`config_of`].
pub(crate) fn fields_of_keys(
    class: &'static ModelClass,
    metadata: &GgufMetadata,
) -> Result<Map<String, Value>> {
    let mut config = ConfigFields { class, metadata, prediction: 0, fields: Map::new() };
    config.add_all(class.settings())?;
    Ok(config.fields)
}

impl ConfigFields<'_> {
    /// Adds what the keys of the settings `all` say.
    fn add_all(&mut self, all: impl Iterator<Item = &'static Setting>) -> Result<()> {
        // What is computed from other fields comes after them.
        let is_computed = |setting: &&Setting| {
            use Kind::{Product, ProductToo, Rotating, Sum, TimesHidden};
            matches!(setting.kind, Sum | Product | ProductToo | Rotating | TimesHidden(_))
        };
        let (computed, stated): (Vec<&Setting>, Vec<&Setting>) = all.partition(is_computed);
        let (class, metadata) = (self.class, self.metadata);
        for setting in stated.into_iter().chain(computed) {
            let key = setting.whole_key(class);
            match metadata.get(&key) {
                Some(value) => self.add(setting, &key, &value)?,
                None => self.add_missing(setting, &key)?,
            }
        }
        Ok(())
    }

    /// Adds what a setting without its key says.
    fn add_missing(&mut self, setting: &Setting, key: &str) -> Result<()> {
        let value = match setting.kind {
            Kind::Required
            | Kind::Sum
            | Kind::Product
            | Kind::FixedFlag(_)
            | Kind::Own(OwnSetting { is_required: true, .. })
            | Kind::TimesHidden(_) => {
                return Err(missing_key(key));
            }
            Kind::FlagIfTrue => false.into(),
            Kind::Nullable => Value::Null,
            // llama.cpp has one class then.
            Kind::Labels(true) => json!({"0": "LABEL_0"}),
            // llama.cpp turns whole heads then.
            Kind::Rotating => return self.set(ROTATING, 1.0.into(), key),
            _ => return Ok(()),
        };
        self.set(setting.fields[0], value, key)
    }

    /// Adds what the value of a key says.
    fn add(&mut self, setting: &Setting, key: &str, value: &GgufMetadataValue) -> Result<()> {
        let stated = StatedKey { key, value };
        let other_type = || stated.other_type();
        let fixed = |is_same, expected: &dyn Display| self.require_fixed(key, is_same, expected);
        let count = || stated.count();
        let field = setting.fields.first().copied().unwrap_or_default();
        let (field, value) = match setting.kind {
            // The width follows from other keys, and shapes are compared with it.
            Kind::YarnLog | Kind::Scaling | Kind::TextSections | Kind::Omitted => return Ok(()),
            Kind::Own(own) => match (own.to_hf)(&stated, self)? {
                Some(value) => (field, value),
                None => return Ok(()),
            },
            Kind::Fixed(n) => return fixed(value.as_unsigned() == Some(n.into()), &n),
            Kind::LinearOrNone => {
                let is_known = matches!(value.as_string(), Some("none" | "linear"));
                return fixed(is_known, &"none or linear");
            }
            Kind::Text(text) => return fixed(value.as_string() == Some(text), &text),
            Kind::TimesHidden(n) => {
                let size = self.size(HIDDEN);
                let size = size.map(|size| u64::from(n).saturating_mul(size));
                let size = size.ok_or_else(other_type)?;
                fixed(value.as_unsigned() == Some(size), &size)?;
                if setting.fields.is_empty() {
                    return Ok(());
                }
                (field, size.into())
            }
            Kind::Number => (field, float(value).ok_or_else(other_type)?),
            Kind::Flag | Kind::FlagIfTrue => {
                (field, value.as_bool().ok_or_else(other_type)?.into())
            }
            Kind::Required | Kind::Count | Kind::Nullable | Kind::HeadSize => {
                (field, count()?.into())
            }
            Kind::Rotating => {
                let part = self.rotating_part(count()?).ok_or_else(other_type)?;
                (ROTATING, part)
            }
            Kind::Sum | Kind::Product | Kind::ProductToo => {
                (field, self.first_of(setting, key, count()?)?)
            }
            Kind::FixedFlag(flag) => return fixed(value.as_bool() == Some(flag), &flag),
            Kind::Labels(_) | Kind::Layers(_) | Kind::KvHeadsBut(..) => {
                let found = self.of_list(setting, key, value)?;
                found.ok_or_else(other_type)?
            }
        };
        self.set(field, value, key)
    }

    /// Fails unless the value of `key` is `expected`, which all models of the class have.
    ///
    /// # Errors
    /// `Parse` that names the key.
    pub(crate) fn require_fixed(
        &self,
        key: &str,
        is_same: bool,
        expected: &dyn Display,
    ) -> Result<()> {
        match is_same {
            true => Ok(()),
            false => {
                let name = self.class.classes[0];
                Err(wrong_key(key, format_args!("{name} has {expected} there")))
            }
        }
    }

    /// Adds the field `name`, which key `key` says.
    ///
    /// # Errors
    /// `Parse` if another key says something else.
    pub(crate) fn set(&mut self, name: &str, value: Value, key: &str) -> Result<()> {
        let own = self
            .class
            .own_fields
            .iter()
            .find(|(usual, _)| *usual == name);
        // Those of a tower get their own names when all are known.
        let own = own.filter(|_| !self.class.traits.is_tower);
        let name = own.map_or(name, |(_, own)| own);
        if let Some(other) = self.fields.get(name).filter(|other| **other != value) {
            let what = format!("it gives {name} {value}, and another key says {other}");
            return Err(wrong_key(key, what));
        }
        self.fields.insert(name.to_owned(), value);
        Ok(())
    }

    /// The first field of a sum or product whose value is `whole`.
    fn first_of(&self, setting: &Setting, key: &str, whole: u64) -> Result<Value> {
        let rest = &setting.fields[1..];
        let found = rest
            .iter()
            .filter_map(|field| self.fields.get(*field)?.as_u64());
        let first = match setting.kind {
            Kind::Sum => whole.checked_sub(found.sum()),
            _ => {
                let product = found.product();
                whole
                    .checked_div(product)
                    .filter(|first| first * product == whole)
            }
        };
        let wrong = || {
            let what = format!("{whole} does not agree with {}", rest.join(", "));
            wrong_key(key, what)
        };
        Ok(first.ok_or_else(wrong)?.into())
    }

    /// The first field of `names` that there is.
    fn size(&self, names: &[&str]) -> Option<u64> {
        names
            .iter()
            .find_map(|name| self.fields.get(*name)?.as_u64())
    }

    /// The part of a head that rotates, if it is `count` dimensions.
    fn rotating_part(&self, count: u64) -> Option<Value> {
        let size = |field: &str| self.fields.get(field).and_then(Value::as_f64);
        let head = size("head_dim").or_else(|| Some(size(HIDDEN[0])? / size(HEADS[0])?))?;
        let part = count as f64 / head;
        (part > 0.0 && part <= 1.0).then(|| part.into())
    }
}

/// Field of the part of a head that rotates.
const ROTATING: &str = "partial_rotary_factor";
