//! [`Model`]: what a config says of a model, for all who ask about it.

use serde_json::Value;

use super::ModelClass;
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::Fields;
use crate::families::engine::rope::Rope;

/// A model as its config states it.
pub(crate) struct Model<'a> {
    pub class: &'a ModelClass,
    /// The config as it is stored. A field that is null says something else than one that is
    /// missing.
    pub stated: &'a Value,
    /// The fields that are not null, with what the class takes for granted.
    pub fields: Fields,
    pub dims: Dims,
    pub rope: Rope,
}

impl Model<'_> {
    /// What computes the model, as messages name it.
    pub(crate) fn owner(&self) -> String {
        format!("llama.cpp's {}", self.class.gguf)
    }

    /// The law that the config has no `field` with another value than `expected`, which llama.cpp
    /// takes for granted.
    ///
    /// # Errors
    /// `Parse` that names the field.
    pub(crate) fn expect(&self, field: &str, expected: &Value) -> Result<Option<String>> {
        self.fields.expect(field, expected, &self.owner())?;
        Ok(None)
    }

    /// What the laws of the class make of the model.
    ///
    /// # Errors
    /// As a [`Law`](super::Law).
    pub(crate) fn laws(&self) -> Result<Vec<String>> {
        let laws = self.class.traits.laws.iter();
        laws.filter_map(|law| law(self).transpose()).collect()
    }
}
