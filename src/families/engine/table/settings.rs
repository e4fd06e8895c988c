//! Settings of tables: keys of the metadata, and what their values are made of.

use serde_json::{Map, Value};

use super::{Model, ModelClass};
use crate::families::engine::fields::{wrong, wrong_key};
use crate::model::gguf::{GgufMetadata, GgufMetadataArray, GgufMetadataValue};
use crate::{AnamnesisError, Result};

/// A setting of the architecture: a key of the metadata, and the field of `config.json`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    /// Key without the architecture's name. One that begins with a dot has none in front.
    pub key: &'static str,
    /// Fields that it may have, the usual one first.
    pub fields: &'static [&'static str],
    pub kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// UINT32 that a config must state.
    Required,
    /// UINT32.
    Count,
    /// UINT32 that is not there if the field is null.
    Nullable,
    /// FLOAT32.
    Number,
    /// UINT32: the size of a head, which `head_dim` states or which follows from other fields.
    HeadSize,
    /// UINT32: how many dimensions of a head rotate.
    Rotating,
    /// UINT32: the sum of the fields, of which those that are missing count 0. Coming back, the
    /// first field is the one that no other key states.
    Sum,
    /// UINT32: the product of the fields. Coming back, the first field is the one that no other key
    /// states.
    Product,
    /// UINT32 that is the same in all models of the class.
    Fixed(u32),
    /// BOOL.
    Flag,
    /// BOOL that is there only if it is true.
    FlagIfTrue,
    /// FLOAT32: a tenth of `mscale_all_dim` of YaRN.
    YarnLog,
    /// FLOAT32: the field of the scaling of rope, which must be there.
    Scaling,
    /// Not written, and ignored on the way back.
    Omitted,
    /// INT32\[4\]: how many pairs of a head rotate by each axis of an image, which the config must
    /// say. Coming back they are not said: in a text all axes have the same positions.
    TextSections,
    /// STRING that is the same in all models of the class.
    Text(&'static str),
    /// STRING: `none`, unless rope is scaled linearly.
    LinearOrNone,
    /// BOOL\[\]: which layers `layer_types` calls so. It is there only if the config has all the
    /// fields.
    Layers(&'static str),
    /// INT32\[\]: the heads of keys and values of each layer, 0 for those that `layer_types` calls
    /// by the first name; the second is that of the others.
    KvHeadsBut(&'static str, &'static str),
    /// As `Product`, of a key that another setting writes.
    ProductToo,
    /// BOOL that is the same in all models of the class.
    FixedFlag(bool),
    /// STRING\[\]: the names of `id2label` in the order of their numbers, unless they are those
    /// that transformers makes up; and whether there must be names.
    Labels(bool),
    /// UINT32: so many times the hidden size. The fields must say the same, if there are any.
    TimesHidden(u32),
    /// What the family alone has.
    Own(&'static OwnSetting),
}

impl Setting {
    /// The key in a file of `class`.
    pub(crate) fn whole_key(&self, class: &ModelClass) -> String {
        match self.key.strip_prefix('.') {
            Some(key) => key.to_owned(),
            None => format!("{}.{}", class.gguf, self.key),
        }
    }

    /// `n` as UINT32.
    ///
    /// # Errors
    /// `Parse` that names the field if it is too large.
    pub(crate) fn count(&self, n: usize) -> Result<GgufMetadataValue> {
        let too_large = |_| self.wrong("it is too large");
        u32::try_from(n)
            .map(GgufMetadataValue::U32)
            .map_err(too_large)
    }

    /// The error that the first field is wrong.
    pub(crate) fn wrong(&self, what: impl std::fmt::Display) -> AnamnesisError {
        wrong(self.fields.first().unwrap_or(&self.key), what)
    }
}

/// What a key that one family alone has is made of, and what it says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnSetting {
    /// The value of the key; `None`: the model has no such key.
    pub to_gguf: fn(&Setting, &Model<'_>) -> Result<Option<GgufMetadataValue>>,
    /// The value of the setting's first field that the key says; `None`: it says nothing.
    pub to_hf: fn(&StatedKey<'_>, &mut ConfigFields<'_>) -> Result<Option<Value>>,
    /// Whether each file has the key.
    pub is_required: bool,
}

/// A key that a file may lack.
pub(crate) const fn own(
    to_gguf: fn(&Setting, &Model<'_>) -> Result<Option<GgufMetadataValue>>,
    to_hf: fn(&StatedKey<'_>, &mut ConfigFields<'_>) -> Result<Option<Value>>,
) -> OwnSetting {
    OwnSetting { to_gguf, to_hf, is_required: false }
}

/// A key that each file has.
pub(crate) const fn required(setting: OwnSetting) -> OwnSetting {
    OwnSetting { is_required: true, ..setting }
}

impl PartialEq for OwnSetting {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for OwnSetting {}

/// A setting of another kind.
pub(crate) const fn setting(
    kind: Kind,
    key: &'static str,
    fields: &'static [&'static str],
) -> Setting {
    Setting { key, fields, kind }
}

/// A setting that only some models have.
pub(crate) const fn count(key: &'static str, fields: &'static [&'static str]) -> Setting {
    Setting { key, fields, kind: Kind::Count }
}

/// A number of type FLOAT32 that only some models have.
pub(crate) const fn number(key: &'static str, fields: &'static [&'static str]) -> Setting {
    Setting { key, fields, kind: Kind::Number }
}

/// The fields of a config while they are found.
pub(crate) struct ConfigFields<'a> {
    pub class: &'static ModelClass,
    pub metadata: &'a GgufMetadata,
    /// Layers behind the last one that predict further tokens, of which the config says nothing.
    pub prediction: usize,
    pub fields: Map<String, Value>,
}

/// A key of the metadata with its value.
pub(crate) struct StatedKey<'a> {
    /// With the architecture's name.
    pub key: &'a str,
    pub value: &'a GgufMetadataValue,
}

impl<'a> StatedKey<'a> {
    /// The value as a number that counts something.
    ///
    /// # Errors
    /// `Parse` if it is of another type.
    pub(crate) fn count(&self) -> Result<u64> {
        let count = self.value.as_unsigned();
        count.ok_or_else(|| self.other_type())
    }

    /// The value as a list of numbers.
    ///
    /// # Errors
    /// `Parse` if it is of another type.
    pub(crate) fn numbers(&self) -> Result<&'a [i32]> {
        match self.value.as_array() {
            Some(GgufMetadataArray::I32(numbers)) => Ok(numbers),
            _ => Err(self.other_type()),
        }
    }

    /// The error that the value is of another type than the architecture has, or another value.
    pub(crate) fn other_type(&self) -> AnamnesisError {
        let found = self.value.type_name();
        wrong_key(self.key, format_args!("{found} is not what the architecture has"))
    }
}
