//! [`Model`]: what a config says of a model, for all who ask about it on the way to GGUF.

use serde_json::Value;

use super::dims::Dims;
use super::fields::Fields;
use super::rope::Rope;
use super::table::ModelClass;

/// A model as its config states it.
pub(in crate::families) struct Model<'a> {
    pub class: &'a ModelClass,
    /// The config as it is stored. A field that is null says something else than one that is
    /// missing.
    pub stated: &'a Value,
    /// The fields that are not null, with what the class takes for granted.
    pub fields: &'a Fields,
    pub dims: &'a Dims,
    pub rope: &'a Rope,
}

impl Model<'_> {
    /// What computes the model, as messages name it.
    pub(in crate::families) fn owner(&self) -> String {
        format!("llama.cpp's {}", self.class.gguf)
    }
}
