//! Element types by the names of Burn: `DType` of `burn-std`.

use super::Dtype;

/// `Flex32` computes with fewer bits than it is stored in.
const NAMES: &[(&str, Dtype)] = &[
    ("F64", Dtype::F64),
    ("F32", Dtype::F32),
    ("Flex32", Dtype::F32),
    ("F16", Dtype::F16),
    ("BF16", Dtype::BF16),
    ("I64", Dtype::I64),
    ("I32", Dtype::I32),
    ("I16", Dtype::I16),
    ("I8", Dtype::I8),
    ("U64", Dtype::U64),
    ("U32", Dtype::U32),
    ("U16", Dtype::U16),
    ("U8", Dtype::U8),
];

/// The dtype that Burn calls `name`. Booleans, which have no name alone, are not among them.
pub(crate) fn from_burn(name: &str) -> Option<Dtype> {
    let found = NAMES.iter().find(|(known, _)| *known == name);
    found.map(|&(_, dtype)| dtype)
}

/// The name in Burn; `None` if it has no such type, and for booleans.
pub(crate) fn burn_name(dtype: Dtype) -> Option<&'static str> {
    let found = NAMES.iter().find(|(_, known)| *known == dtype);
    found.map(|&(name, _)| name)
}
