//! The files that describe tensors of an archive of `torch.export`.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::TensorView;
use crate::error::InTensor;
use crate::{AnamnesisError, Dtype, Result};

/// Largest file that is read, in bytes: of some 200 000 tensors.
pub(super) const MAX_BYTES: u64 = 64 << 20;

/// Most dimensions of a tensor.
const MAX_DIMENSIONS: usize = 64;

/// What the file says of a tensor, or of an object of another class.
#[derive(Deserialize)]
pub(super) struct Payload {
    /// Name of the file with the data.
    pub path_name: String,
    pub use_pickle: bool,
    pub tensor_meta: Option<TensorMeta>,
}

#[derive(Deserialize)]
pub(super) struct TensorMeta {
    /// Number of torch's `ScalarType` in the schema, which is not that of its C++ type.
    dtype: u32,
    sizes: Vec<Size>,
    strides: Vec<Size>,
    storage_offset: Size,
    pub layout: Layout,
}

/// How a tensor lies in memory, by the number in the schema.
#[derive(Deserialize, PartialEq, Eq, Clone, Copy)]
pub(super) struct Layout(u32);

impl Layout {
    pub(super) const STRIDED: Self = Self(7);
}

#[derive(Deserialize)]
struct Size {
    as_int: usize,
}

/// Dtypes by their numbers. Missing are complex ones that are not read.
const DTYPES: &[(u32, Dtype)] = &[
    (1, Dtype::U8),
    (2, Dtype::I8),
    (3, Dtype::I16),
    (4, Dtype::I32),
    (5, Dtype::I64),
    (6, Dtype::F16),
    (7, Dtype::F32),
    (8, Dtype::F64),
    (10, Dtype::C64),
    (12, Dtype::Bool),
    (13, Dtype::BF16),
    (28, Dtype::U16),
    (29, Dtype::F8E4M3),
    (30, Dtype::F8E5M2),
    (31, Dtype::F8E4M3Fnuz),
    (32, Dtype::F8E5M2Fnuz),
    (33, Dtype::F8E8M0),
    (34, Dtype::U32),
    (35, Dtype::U64),
];

impl TensorMeta {
    /// The dtype; `None` for one that is not read.
    pub(super) fn dtype(&self) -> Option<Dtype> {
        let row = DTYPES.iter().find(|(number, _)| *number == self.dtype);
        row.map(|&(_, dtype)| dtype)
    }
}

impl Payload {
    /// The tensor as a view of the file with its data.
    ///
    /// # Errors
    /// `Parse` if sizes and strides do not go together.
    pub(super) fn view(&self) -> Result<TensorView> {
        let numbers = |sizes: &[Size]| sizes.iter().map(|size| size.as_int).collect::<Vec<_>>();
        let meta = self.tensor_meta.as_ref();
        let meta =
            meta.filter(|m| m.sizes.len() == m.strides.len() && m.sizes.len() <= MAX_DIMENSIONS);
        let wrong = || AnamnesisError::parse("its sizes and strides do not go together");
        let TensorMeta { sizes, strides, storage_offset, .. } = meta.ok_or_else(wrong)?;
        Ok(TensorView {
            storage: 0,
            dtype: None,
            offset: storage_offset.as_int,
            shape: numbers(sizes),
            strides: numbers(strides),
            big_endian: false,
        })
    }
}

/// The tensors of a file, in its order.
///
/// # Errors
/// `Parse` if it is malformed, or lists a name twice: readers differ in which one counts.
pub(super) fn read_config(json: &[u8]) -> Result<Vec<(String, Payload)>> {
    struct Payloads(Vec<(String, Payload)>);
    impl<'de> Deserialize<'de> for Payloads {
        fn deserialize<D: Deserializer<'de>>(
            deserializer: D,
        ) -> std::result::Result<Self, D::Error> {
            struct PayloadsVisitor;
            impl<'de> Visitor<'de> for PayloadsVisitor {
                type Value = Payloads;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a map from names to tensors")
                }

                fn visit_map<A: MapAccess<'de>>(
                    self,
                    mut map: A,
                ) -> std::result::Result<Payloads, A::Error> {
                    let (mut found, mut names) = (Vec::new(), std::collections::HashSet::new());
                    while let Some((name, payload)) = map.next_entry::<String, _>()? {
                        if !names.insert(name.clone()) {
                            let twice = format!("{} is listed twice", InTensor(&name));
                            return Err(A::Error::custom(twice));
                        }
                        found.push((name, payload));
                    }
                    Ok(Payloads(found))
                }
            }
            deserializer.deserialize_map(PayloadsVisitor)
        }
    }
    #[derive(Deserialize)]
    struct PayloadConfig {
        config: Payloads,
    }
    let config: PayloadConfig =
        serde_json::from_slice(json).map_err(|e| AnamnesisError::parse(e.to_string()))?;
    Ok(config.config.0)
}
