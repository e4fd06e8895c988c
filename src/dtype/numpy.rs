//! Element types by the names of NumPy and of ml_dtypes, as Flax and Zarr write them.

use super::Dtype;

const NAMES: &[(&str, Dtype)] = &[
    ("bool", Dtype::Bool),
    ("uint8", Dtype::U8),
    ("int8", Dtype::I8),
    ("uint16", Dtype::U16),
    ("int16", Dtype::I16),
    ("uint32", Dtype::U32),
    ("int32", Dtype::I32),
    ("uint64", Dtype::U64),
    ("int64", Dtype::I64),
    ("float16", Dtype::F16),
    ("bfloat16", Dtype::BF16),
    ("float32", Dtype::F32),
    ("float64", Dtype::F64),
    ("complex64", Dtype::C64),
    ("float8_e4m3fn", Dtype::F8E4M3),
    ("float8_e5m2", Dtype::F8E5M2),
    ("float8_e4m3fnuz", Dtype::F8E4M3Fnuz),
    ("float8_e5m2fnuz", Dtype::F8E5M2Fnuz),
    ("float8_e8m0fnu", Dtype::F8E8M0),
];

impl Dtype {
    /// The dtype that NumPy or ml_dtypes calls `name`.
    pub(crate) fn from_numpy(name: &str) -> Option<Self> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|&(_, dtype)| dtype)
    }

    /// The name in NumPy or ml_dtypes; `None` if neither has such a type.
    #[cfg(feature = "msgpack")]
    pub(crate) fn numpy_name(self) -> Option<&'static str> {
        let found = NAMES.iter().find(|(_, dtype)| *dtype == self);
        found.map(|&(name, _)| name)
    }
}
