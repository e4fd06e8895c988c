//! NPY arrays: a magic, a version, a header that is a Python literal, and data.
//!
//! Format: NumPy `numpy/lib/format.py`, versions 1.0 to 3.0.

use super::python::{self, Literal};
use crate::limits::cap;
use crate::model::strided::row_major_strides;
use crate::{AnamnesisError, Dtype, Result};

/// Largest header that is read, in bytes; NumPy has the same limit (`_MAX_HEADER_SIZE`).
const MAX_HEADER_BYTES: usize = 10_000;

/// Most dimensions of an array; NumPy 2 has the same limit.
const MAX_DIMS: usize = 64;

/// Bytes of the first read of a file: magic, version and length in any case, and most headers as a
/// whole.
pub(super) const FIRST_READ: usize = 128;

/// The header of an array.
#[derive(Debug)]
pub(super) struct NpyHeader {
    /// Bytes before the data.
    pub header_len: usize,
    pub shape: Vec<usize>,
    /// The element type; `Err` names what the elements are if no tensor can hold them.
    pub kind: std::result::Result<NpyElements, String>,
    /// Whether the elements are in Fortran order, with the first dimension innermost.
    pub fortran: bool,
}

/// An element type that a tensor can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NpyElements {
    pub dtype: Dtype,
    pub big_endian: bool,
}

impl NpyHeader {
    /// Whether the dtype is a guess: NumPy writes all one-byte types of ml_dtypes as `V1`, and E4M3
    /// is the usual one.
    pub(super) fn is_guess(&self) -> bool {
        matches!(self.kind, Ok(NpyElements { dtype: Dtype::F8E4M3, .. }))
    }

    /// Whether the data is a pickle of objects.
    #[cfg(feature = "pth")]
    pub(super) fn holds_objects(&self) -> bool {
        matches!(&self.kind, Err(what) if what.starts_with(OBJECTS))
    }

    /// Bytes of the data; `None` if no tensor can hold the elements.
    pub(super) fn data_len(&self) -> Option<usize> {
        self.kind.as_ref().ok()?.dtype.byte_len(&self.shape)
    }

    /// Strides in elements; `None` if the elements are in row-major order, which includes Fortran
    /// order of a vector.
    pub(super) fn strides(&self) -> Option<Vec<usize>> {
        if !self.fortran {
            return None;
        }
        let reversed: Vec<usize> = self.shape.iter().rev().copied().collect();
        let mut strides = row_major_strides(&reversed);
        strides.reverse();
        (strides != row_major_strides(&self.shape)).then_some(strides)
    }
}

/// Length of the header with its magic, from the first bytes of a file.
///
/// # Errors
/// `Parse` if this is no NPY file; `Unsupported` for an unknown version; `LimitExceeded`.
pub(super) fn header_len(first: &[u8]) -> Result<usize> {
    let wrong = |what: &str| Err(AnamnesisError::parse(format!("not an NPY array: {what}")));
    let (len, prefix) = match first {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, 0, a, b, ..] => {
            (u32::from(u16::from_le_bytes([*a, *b])), 10)
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, 0, a, b, c, d, ..] => {
            (u32::from_le_bytes([*a, *b, *c, *d]), 12)
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1..=3, 0, ..] => return wrong("it is truncated"),
        [0x93, b'N', b'U', b'M', b'P', b'Y', major, minor, ..] => {
            return Err(AnamnesisError::unsupported(
                format!("NPY version {major}.{minor}"),
                "versions 1.0, 2.0 and 3.0 are read",
            ));
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => return wrong("it is truncated"),
        _ => return wrong("its magic is missing"),
    };
    let len = len as usize;
    cap("NPY_MAX_HEADER_BYTES", len as u64, MAX_HEADER_BYTES as u64, "bytes of an NPY header")?;
    Ok(len + prefix)
}

/// Parses a header of the length that [`header_len`] gives.
///
/// # Errors
/// `Parse` if it is malformed, has other keys than NumPy writes, or names an unknown type;
/// `LimitExceeded`.
pub(super) fn parse(header: &[u8]) -> Result<NpyHeader> {
    let prefix = if header.get(6) == Some(&1) { 10 } else { 12 };
    let wrong = |what: &str| AnamnesisError::parse(format!("NPY header: {what}"));
    let body = header
        .get(prefix..)
        .ok_or_else(|| wrong("it is truncated"))?;
    // Versions 1 and 2 are Latin-1, whose bytes are the code points; version 3 is UTF-8. Python 2
    // wrote the older ones.
    let latin: String = body.iter().map(|&b| char::from(b)).collect();
    let is_latin = header.get(6) != Some(&3);
    let text = if is_latin {
        Some(latin.as_str())
    } else {
        std::str::from_utf8(body).ok()
    };
    let literal = text
        .and_then(|text| python::parse(text, is_latin))
        .ok_or_else(|| wrong("it is no Python literal"))?;
    let Literal::Dict(entries) = literal else {
        return Err(wrong("it is no dict"));
    };
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    for (key, value) in entries {
        let slot = match &key {
            Literal::Str(key) if key == "descr" => &mut descr,
            Literal::Str(key) if key == "fortran_order" => &mut fortran,
            Literal::Str(key) if key == "shape" => &mut shape,
            _ => return Err(wrong("it has a key besides descr, fortran_order and shape")),
        };
        // In Python the last value of a repeated key counts, in other readers the first.
        if slot.replace(value).is_some() {
            return Err(wrong("it has a key twice"));
        }
    }
    let (Some(descr), Some(Literal::Bool(fortran)), Some(Literal::Tuple(dims))) =
        (descr, fortran, shape)
    else {
        return Err(wrong(
            "it wants a descr, a fortran_order of True or False, and a tuple as shape",
        ));
    };
    cap("NPY_MAX_DIMS", dims.len() as u64, MAX_DIMS as u64, "dimensions of an array")?;
    let dim = |d: Literal| {
        if let Literal::Int(d) = d {
            usize::try_from(d).ok()
        } else {
            None
        }
    };
    let shape: Option<Vec<usize>> = dims.into_iter().map(dim).collect();
    let shape = shape.ok_or_else(|| wrong("a dimension is no size"))?;
    // 16 bytes is the widest element, so that no product of sizes overflows later.
    if shape
        .iter()
        .try_fold(16usize, |n, &d| n.checked_mul(d))
        .is_none()
    {
        return Err(wrong(&format!("its shape {shape:?} overflows")));
    }
    Ok(NpyHeader { header_len: header.len(), shape, kind: elements(&descr)?, fortran })
}

/// Elements that are objects of Python.
const OBJECTS: &str = "objects";

/// Element types by NumPy's three spellings: code, character, name.
const TYPES: &[(&str, &str, &str, Dtype)] = &[
    ("b1", "?", "bool", Dtype::Bool),
    ("u1", "B", "uint8", Dtype::U8),
    ("i1", "b", "int8", Dtype::I8),
    ("u2", "H", "uint16", Dtype::U16),
    ("i2", "h", "int16", Dtype::I16),
    ("u4", "I", "uint32", Dtype::U32),
    ("i4", "i", "int32", Dtype::I32),
    ("u8", "Q", "uint64", Dtype::U64),
    ("i8", "q", "int64", Dtype::I64),
    ("f2", "e", "float16", Dtype::F16),
    ("f4", "f", "float32", Dtype::F32),
    ("f8", "d", "float64", Dtype::F64),
    ("c8", "F", "complex64", Dtype::C64),
    // Types of ml_dtypes, as NumPy stores them. Several are `V1`; see `NpyHeader::is_guess`.
    ("V2", "V2", "bfloat16", Dtype::BF16),
    ("V1", "V1", "float8_e4m3fn", Dtype::F8E4M3),
    ("f1", "f1", "float8_e5m2", Dtype::F8E5M2),
];

/// The element type that a `descr` names. The inner `Err` describes one that no tensor can hold.
///
/// # Errors
/// `Parse` if NumPy has no such type.
fn elements(descr: &Literal) -> Result<std::result::Result<NpyElements, String>> {
    let text = match descr {
        Literal::Str(text) => text,
        Literal::List(_) | Literal::Tuple(_) => return Ok(Err("records".to_owned())),
        _ => return Err(AnamnesisError::parse("NPY header: its descr is no type")),
    };
    let (big_endian, code) = match text.split_at_checked(1) {
        Some((">", code)) => (true, code),
        Some(("<" | "|" | "=", code)) => (false, code),
        _ => (false, text.as_str()),
    };
    // A name stands alone.
    let is_named = |&&(short, char, name, _): &&(&str, &str, &str, Dtype)| {
        [short, char].contains(&code) || name == text
    };
    if let Some(&(.., dtype)) = TYPES.iter().find(is_named) {
        return Ok(Ok(NpyElements { dtype, big_endian: big_endian && dtype.bits() > 8 }));
    }
    let kind = match (code.chars().next(), code.get(1..).unwrap_or_default()) {
        (Some('O'), _) => OBJECTS,
        (Some('U'), _) => "text",
        (Some('S' | 'a'), _) => "bytes",
        (Some('M' | 'm'), _) => "dates",
        (Some('c'), "16" | "24" | "32") | (Some('D' | 'G'), "") => "complex numbers of this width",
        (Some('f'), "10" | "12" | "16") | (Some('g'), "") => "long doubles",
        (Some('V' | 'W'), n) if n.parse::<usize>().is_ok() => {
            "elements whose type the file does not say"
        }
        _ => {
            return Err(AnamnesisError::parse(format!("NPY header: there is no type `{text}`")));
        }
    };
    Ok(Err(format!("{kind} ({text})")))
}
