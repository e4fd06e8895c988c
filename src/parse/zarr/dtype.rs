//! Element types, as both versions write them.

use crate::Dtype;

/// An element type, and whether its bytes are the most significant first.
pub(super) type ZarrType = (std::result::Result<Dtype, String>, bool);

/// Types of NumPy, by their letter and size.
const CODES: &[(&str, Dtype)] = &[
    ("b1", Dtype::Bool),
    ("u1", Dtype::U8),
    ("i1", Dtype::I8),
    ("u2", Dtype::U16),
    ("i2", Dtype::I16),
    ("u4", Dtype::U32),
    ("i4", Dtype::I32),
    ("u8", Dtype::U64),
    ("i8", Dtype::I64),
    ("f2", Dtype::F16),
    ("f4", Dtype::F32),
    ("f8", Dtype::F64),
    ("c8", Dtype::C64),
];

/// The type of an array of version 2: `<f4` as in NumPy, or a name of ml_dtypes.
pub(super) fn of_version_2(text: &str) -> ZarrType {
    let is_big_endian = text.starts_with('>');
    let code = text.trim_start_matches(['<', '>', '|']);
    let found = CODES.iter().find(|(known, _)| *known == code);
    let dtype = found.map(|&(_, dtype)| dtype);
    let dtype = dtype.or_else(|| Dtype::from_numpy(text));
    (dtype.ok_or_else(|| text.to_owned()), is_big_endian)
}
