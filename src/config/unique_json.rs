//! JSON values without repeated keys. Python and `serde_json` take the last value of a repeated
//! key, and other readers the first; so a text that repeats a key with another value means two
//! things.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Memory that parsed JSON may take for each byte of its text, besides
/// [`FREE_JSON_BYTES`](crate::limits::FREE_JSON_BYTES). An object with one short entry takes 80
/// bytes for each byte, and the entry of a module in a quantization config about ten.
const BYTES_PER_BYTE: usize = 4;

/// Memory of a `BTreeMap`'s node, which an object with one entry has.
const NODE_BYTES: usize = 640;

/// Memory of each further entry of an object, in nodes that are half full, and of its key.
const ENTRY_BYTES: usize = 128;

/// Memory of the first item of an array: `Vec` makes room for four.
const FIRST_ITEM_BYTES: usize = 128;

/// Memory of each further item of an array, which grows by doubling.
const ITEM_BYTES: usize = 64;

/// Memory of a string besides its bytes.
const STRING_BYTES: usize = 16;

/// A parsed JSON text.
#[derive(Debug, Default)]
pub(crate) struct UniqueJson {
    /// The text's value. Of a key that is repeated with one value, that value.
    pub value: Value,
    /// Paths of the first keys that are repeated with another value.
    pub repeated: Vec<Vec<String>>,
}

/// Most paths of repeated keys that are kept.
const MAX_REPEATED: usize = 64;

/// Why a text is no [`UniqueJson`].
#[derive(Debug)]
pub(crate) enum JsonError {
    /// It is no JSON.
    Syntax(serde_json::Error),
    /// Its value would take more memory than it may.
    TooLarge,
}

/// Parses `json`. Memory beyond a multiple of the text's length is taken from `free`.
///
/// # Errors
/// Those of [`JsonError`].
pub(crate) fn parse(json: &[u8], free: &mut usize) -> Result<UniqueJson, JsonError> {
    let share = json.len().saturating_mul(BYTES_PER_BYTE);
    let mut state = JsonState {
        left: free.saturating_add(share),
        is_too_large: false,
        path: Vec::new(),
        repeated: Vec::new(),
    };
    let mut reader = serde_json::Deserializer::from_slice(json);
    let value = UniqueValue(&mut state).deserialize(&mut reader);
    let value = value.and_then(|value| reader.end().map(|()| value));
    match value {
        Ok(value) => {
            *free = state.left.min(*free);
            Ok(UniqueJson { value, repeated: state.repeated })
        }
        Err(_) if state.is_too_large => Err(JsonError::TooLarge),
        Err(error) => Err(JsonError::Syntax(error)),
    }
}

/// Parses a JSON text that stands inside a model file. Memory beyond a multiple of its length is
/// taken from `free`.
///
/// # Errors
/// Says what is wrong: it is no JSON, it repeats a key with another value, or its value would take
/// too much memory.
pub(crate) fn parse_embedded(json: &[u8], free: &mut usize) -> Result<Value, String> {
    match parse(json, free) {
        Ok(UniqueJson { value, repeated }) => match repeated.first() {
            Some(path) => Err(format!("`{}` is there twice", path.join("."))),
            None => Ok(value),
        },
        Err(JsonError::Syntax(error)) => Err(error.to_string()),
        Err(JsonError::TooLarge) => Err("its values take too much memory".to_owned()),
    }
}

/// What the visitors of one text share.
struct JsonState {
    /// Memory that values may still take.
    left: usize,
    is_too_large: bool,
    /// Keys from the root to the value that is being read.
    path: Vec<String>,
    repeated: Vec<Vec<String>>,
}

impl JsonState {
    fn charge<E: Error>(&mut self, bytes: usize) -> Result<(), E> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.is_too_large = true;
                Err(E::custom("it takes too much memory"))
            }
        }
    }
}

struct UniqueValue<'a>(&'a mut JsonState);

impl<'de> DeserializeSeed<'de> for UniqueValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.0.charge(STRING_BYTES + value.len())?;
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(UniqueValue(&mut *self.0))? {
            let bytes = if items.is_empty() {
                FIRST_ITEM_BYTES
            } else {
                ITEM_BYTES
            };
            self.0.charge(bytes)?;
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let bytes = if entries.is_empty() {
                NODE_BYTES
            } else {
                ENTRY_BYTES
            };
            self.0.charge(bytes + key.len())?;
            self.0.path.push(key);
            let value = map.next_value_seed(UniqueValue(&mut *self.0))?;
            let repeats = self.0.path.last().and_then(|key| entries.get(key));
            if repeats.is_some_and(|first| *first != value) && self.0.repeated.len() < MAX_REPEATED
            {
                self.0.repeated.push(self.0.path.clone());
            }
            if let Some(key) = self.0.path.pop() {
                entries.insert(key, value);
            }
        }
        Ok(Value::Object(entries))
    }
}
