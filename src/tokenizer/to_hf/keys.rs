//! [`GgufTokenizer`]: typed values of a GGUF file's metadata, with errors that name the key.

use crate::model::gguf::{GgufMetadata, GgufMetadataArray, GgufMetadataValue};
use crate::{AnamnesisError, Result};

/// A `Parse` error about the metadata key `key`.
pub(super) fn malformed(key: &str, what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("metadata key `{key}`: {what}"))
}

/// Metadata of a GGUF file, read by key and type. Values are decoded at each call, so a caller
/// keeps what it needs twice.
#[derive(Clone, Copy)]
pub(super) struct GgufTokenizer<'a>(pub &'a GgufMetadata);

impl GgufTokenizer<'_> {
    /// The value of `key`, taken apart by `take`.
    ///
    /// # Errors
    /// `Parse` if the value is of another type than `wanted`, which `take` says with `None`, or
    /// holds text that is not UTF-8: the metadata has replacement characters there, with which a
    /// token would never be found.
    fn read<T>(
        self,
        key: &str,
        wanted: &str,
        take: impl FnOnce(GgufMetadataValue) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.0.get(key) else {
            return Ok(None);
        };
        if self.0.has_malformed_text(key) {
            return Err(malformed(key, "its text is not UTF-8"));
        }
        let found = match &value {
            GgufMetadataValue::Array(items) => format!("an array of {}", items.item_name()),
            other => format!("of type {}", other.type_name()),
        };
        take(value)
            .map(Some)
            .ok_or_else(|| malformed(key, format_args!("it is {found}, and should be {wanted}")))
    }

    /// Items of the array `key`, taken by `take`.
    fn array<T>(
        self,
        key: &str,
        wanted: &str,
        take: impl FnOnce(GgufMetadataArray) -> Option<Vec<T>>,
    ) -> Result<Option<Vec<T>>> {
        self.read(key, wanted, |value| match value {
            GgufMetadataValue::Array(items) => take(*items),
            _ => None,
        })
    }

    pub(super) fn text(self, key: &str) -> Result<Option<String>> {
        self.read(key, "a string", |value| match value {
            GgufMetadataValue::String(text) => Some(text),
            _ => None,
        })
    }

    pub(super) fn flag(self, key: &str) -> Result<Option<bool>> {
        self.read(key, "a bool", |value| value.as_bool())
    }

    pub(super) fn number(self, key: &str) -> Result<Option<u64>> {
        let wanted = "an integer that is not negative";
        self.read(key, wanted, |value| value.as_unsigned())
    }

    pub(super) fn texts(self, key: &str) -> Result<Option<Vec<String>>> {
        self.array(key, "an array of strings", |items| match items {
            GgufMetadataArray::String(texts) => Some(texts),
            _ => None,
        })
    }

    /// Numbers of tokens' types. gguf-py writes `i32`; llama.cpp accepts only that.
    pub(super) fn types(self, key: &str) -> Result<Option<Vec<i64>>> {
        self.array(key, "an array of i32 or u32", |items| match items {
            GgufMetadataArray::I32(items) => Some(items.into_iter().map(i64::from).collect()),
            GgufMetadataArray::U32(items) => Some(items.into_iter().map(i64::from).collect()),
            _ => None,
        })
    }

    /// Scores of tokens, which llama.cpp accepts as integers too.
    pub(super) fn scores(self, key: &str) -> Result<Option<Vec<f32>>> {
        let scores = self.array(key, "an array of f32 or i32", |items| match items {
            GgufMetadataArray::F32(items) => Some(items),
            GgufMetadataArray::I32(items) => Some(items.into_iter().map(|n| n as f32).collect()),
            _ => None,
        })?;
        let not_a_number = scores.iter().flatten().position(|score| !score.is_finite());
        match not_a_number {
            Some(id) => Err(malformed(key, format_args!("score {id} is not finite"))),
            None => Ok(scores),
        }
    }

    pub(super) fn bytes(self, key: &str) -> Result<Option<Vec<u8>>> {
        self.array(key, "an array of u8 or i8", |items| match items {
            GgufMetadataArray::U8(bytes) => Some(bytes),
            GgufMetadataArray::I8(bytes) => {
                Some(bytes.into_iter().map(i8::cast_unsigned).collect())
            }
            _ => None,
        })
    }

    /// The token id in `key`.
    ///
    /// # Errors
    /// `Parse` if there are not more than that many of the `tokens`.
    pub(super) fn token_id(self, key: &str, tokens: usize) -> Result<Option<u32>> {
        let Some(id) = self.number(key)? else {
            return Ok(None);
        };
        match u32::try_from(id) {
            Ok(id) if (id as usize) < tokens => Ok(Some(id)),
            _ => Err(malformed(
                key,
                format_args!("there is no token {id}; `tokenizer.ggml.tokens` has {tokens}"),
            )),
        }
    }
}
