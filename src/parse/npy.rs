//! NPY arrays: magic, version, a header that is a Python literal, data.
//!
//! Format: NumPy `numpy/lib/format.py`, versions 1.0 to 3.0.

use super::python::{self, Literal};
use crate::model::row_major_strides;
use crate::{AnamnesisError, Dtype, Result};

/// Largest header that is read; NumPy's own limit is 10 000 bytes.
const MAX_HEADER_BYTES: usize = 1 << 20;
const MAX_DIMS: usize = 64;

/// Bytes that a first read should have: magic, version and length, and most headers with them.
pub(super) const FIRST: usize = 128;

/// What an array's header says.
#[derive(Debug)]
pub(super) struct Npy {
    /// Bytes before the data.
    pub header_len: usize,
    pub shape: Vec<usize>,
    /// How the elements are stored, or what they are if no tensor can hold them.
    pub kind: std::result::Result<Elements, String>,
    pub fortran: bool,
}

/// Elements that a tensor can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Elements {
    pub dtype: Dtype,
    pub big_endian: bool,
}

impl Npy {
    /// Bytes of the data; `None` if no tensor can hold them.
    pub(super) fn data_len(&self) -> Option<usize> {
        self.kind.as_ref().ok()?.dtype.byte_len(&self.shape)
    }

    /// Strides in elements, where they are not those of the C order.
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

/// Length of the whole header, from the first bytes of a file.
pub(super) fn header_len(first: &[u8]) -> Result<usize> {
    let wrong = |what: &str| Err(AnamnesisError::parse(format!("not an NPY array: {what}")));
    let (len, prefix) = match first {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, 0, a, b, ..] => (u32::from(u16::from_le_bytes([*a, *b])), 10),
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, 0, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]), 12),
        [0x93, b'N', b'U', b'M', b'P', b'Y', major, minor, ..] => {
            return Err(AnamnesisError::unsupported(
                format!("NPY version {major}.{minor}"),
                "versions 1.0, 2.0 and 3.0 are read",
            ));
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => return wrong("it is truncated"),
        _ => return wrong("its magic is missing"),
    };
    let len = len as usize + prefix;
    if len > MAX_HEADER_BYTES {
        let message = format!("an NPY header of {len} bytes, at most {MAX_HEADER_BYTES} are read");
        return Err(AnamnesisError::LimitExceeded { limit: "NPY_MAX_HEADER_BYTES", message });
    }
    Ok(len)
}

/// Reads a whole header.
pub(super) fn parse(header: &[u8]) -> Result<Npy> {
    let prefix = if header.get(6) == Some(&1) { 10 } else { 12 };
    let wrong = |what: &str| AnamnesisError::parse(format!("NPY header: {what}"));
    let body = header.get(prefix..).ok_or_else(|| wrong("it is truncated"))?;
    // Versions 1 and 2 are Latin-1, of which only the names in structured types could make use.
    let latin: String = body.iter().map(|&b| char::from(b)).collect();
    let text = if header.get(6) == Some(&3) { std::str::from_utf8(body).ok() } else { Some(latin.as_str()) };
    let literal = text.and_then(python::parse).ok_or_else(|| wrong("it is no Python literal"))?;
    let Literal::Dict(entries) = literal else { return Err(wrong("it is no dict")) };
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    for (key, value) in entries {
        let place = match &key {
            Literal::Str(key) if key == "descr" => &mut descr,
            Literal::Str(key) if key == "fortran_order" => &mut fortran,
            Literal::Str(key) if key == "shape" => &mut shape,
            _ => return Err(wrong("it has a key besides descr, fortran_order and shape")),
        };
        if place.replace(value).is_some() {
            return Err(wrong("a key is given twice"));
        }
    }
    let (Some(descr), Some(Literal::Bool(fortran)), Some(Literal::Tuple(dims))) = (descr, fortran, shape) else {
        return Err(wrong("it wants a descr, a fortran_order of True or False, and a tuple as shape"));
    };
    if dims.len() > MAX_DIMS {
        let message = format!("an array of {} dimensions, at most {MAX_DIMS} are read", dims.len());
        return Err(AnamnesisError::LimitExceeded { limit: "NPY_MAX_DIMS", message });
    }
    let dim = |d: Literal| if let Literal::Int(d) = d { usize::try_from(d).ok() } else { None };
    let shape: Option<Vec<usize>> = dims.into_iter().map(dim).collect();
    let shape = shape.ok_or_else(|| wrong("a dimension is no size"))?;
    if shape.iter().try_fold(16usize, |n, &d| n.checked_mul(d)).is_none() {
        return Err(wrong(&format!("its shape {shape:?} overflows")));
    }
    Ok(Npy { header_len: header.len(), shape, kind: elements(&descr), fortran })
}

/// The elements that a `descr` names.
fn elements(descr: &Literal) -> std::result::Result<Elements, String> {
    let Literal::Str(text) = descr else { return Err("structured".to_owned()) };
    let (big_endian, code) = match text.split_at_checked(1) {
        Some((">", code)) => (true, code),
        Some(("<" | "|" | "=", code)) => (false, code),
        _ => (false, text.as_str()),
    };
    let dtype = match code {
        "b1" | "?" => Dtype::Bool,
        "u1" => Dtype::U8,
        "i1" => Dtype::I8,
        "u2" => Dtype::U16,
        "i2" => Dtype::I16,
        "u4" => Dtype::U32,
        "i4" => Dtype::I32,
        "u8" => Dtype::U64,
        "i8" => Dtype::I64,
        "f2" => Dtype::F16,
        "f4" => Dtype::F32,
        "f8" => Dtype::F64,
        "c8" => Dtype::C64,
        // What ml_dtypes leaves of its bfloat16 and its eight-bit floats.
        "V2" => Dtype::BF16,
        "V1" => Dtype::F8E4M3,
        "f1" => Dtype::F8E5M2,
        _ => return Err(describe(code, text)),
    };
    Ok(Elements { dtype, big_endian: big_endian && dtype.bits() > 8 })
}

/// What an array is that no tensor can hold.
fn describe(code: &str, text: &str) -> String {
    let kind = match code.chars().next() {
        Some('O') => "objects",
        Some('U') => "text",
        Some('S' | 'a') => "bytes",
        Some('M' | 'm') => "dates",
        Some('c') => "complex numbers of this width",
        Some('V') => "records",
        _ => "elements of an unknown type",
    };
    format!("{kind} ({text})")
}
