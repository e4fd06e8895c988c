//! Datatypes: which element type a tensor has that holds them.

use super::file::{Hdf5File, StructureFields, wrong};
use crate::{Dtype, Result};

/// A datatype.
#[derive(Debug, Clone)]
pub(super) struct Datatype {
    /// Bytes of an element.
    pub size: usize,
    /// The element type; `Err` says what elements are that no tensor can hold.
    pub element: std::result::Result<(Dtype, bool), Untyped>,
}

/// Elements that are no numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Untyped {
    Text,
    /// Text or lists of any length: their length, an address and a number.
    Variable,
    /// Bytes without a meaning, such as those of BF16.
    Opaque,
    Other(&'static str),
}

impl Untyped {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Variable => "text or lists of any length",
            Self::Opaque => "opaque bytes",
            Self::Other(name) => name,
        }
    }
}

/// Formats of floats: bits, places and sizes of exponent and mantissa, bias.
const FLOATS: &[([u32; 6], Dtype)] = &[
    ([16, 10, 5, 0, 10, 15], Dtype::F16),
    ([16, 7, 8, 0, 7, 127], Dtype::BF16),
    ([32, 23, 8, 0, 23, 127], Dtype::F32),
    ([64, 52, 11, 0, 52, 1023], Dtype::F64),
    ([8, 3, 4, 0, 3, 7], Dtype::F8E4M3),
    ([8, 2, 5, 0, 2, 15], Dtype::F8E5M2),
];

impl Datatype {
    /// Reads a datatype message.
    ///
    /// # Errors
    /// `Parse` if it is malformed.
    pub(super) fn read(file: &Hdf5File<'_>, message: &[u8]) -> Result<Self> {
        Self::of_fields(&mut file.fields(message), 0)
    }

    fn of_fields(fields: &mut StructureFields<'_>, depth: usize) -> Result<Self> {
        let class_and_version = fields.u8()?;
        let bits = fields.number(3)?;
        let size = fields.u32()? as usize;
        let other = |name| Err(Untyped::Other(name));
        let element = match class_and_version & 15 {
            0 => integer(fields, bits, size)?,
            1 => float(fields, bits, size)?,
            3 => Err(Untyped::Text),
            // PyTables has truth values as fields of bits.
            4 if size == 1 => Ok((Dtype::Bool, false)),
            4 => other("fields of bits"),
            5 => Err(Untyped::Opaque),
            6 => complex(fields, class_and_version >> 4, bits, size, depth)?,
            7 => other("references"),
            8 => truth_values(fields, class_and_version >> 4, bits, depth)?,
            9 => Err(Untyped::Variable),
            10 => other("arrays as elements"),
            _ => other("elements of a type that is not read"),
        };
        match size {
            0 => Err(wrong("elements of no bytes")),
            _ => Ok(Self { size, element }),
        }
    }
}

/// The element type and whether it is big-endian, or what else it is.
type Element = std::result::Result<(Dtype, bool), Untyped>;

fn integer(fields: &mut StructureFields<'_>, bits: u64, size: usize) -> Result<Element> {
    let (offset, precision) = (fields.u16()?, fields.u16()?);
    let (is_big, is_signed) = (bits & 1 != 0, bits & 8 != 0);
    let is_whole = offset == 0 && usize::from(precision) == size.saturating_mul(8);
    let dtype = match (size, is_signed) {
        (1, false) => Dtype::U8,
        (1, true) => Dtype::I8,
        (2, false) => Dtype::U16,
        (2, true) => Dtype::I16,
        (4, false) => Dtype::U32,
        (4, true) => Dtype::I32,
        (8, false) => Dtype::U64,
        (8, true) => Dtype::I64,
        _ => return Ok(Err(Untyped::Other("integers of another size"))),
    };
    match is_whole {
        true => Ok(Ok((dtype, is_big && size > 1))),
        false => Ok(Err(Untyped::Other("integers of some bits of an element"))),
    }
}

fn float(fields: &mut StructureFields<'_>, bits: u64, size: usize) -> Result<Element> {
    let (offset, precision) = (fields.u16()?, fields.u16()?);
    let mut form = [u32::from(precision), 0, 0, 0, 0, 0];
    for part in &mut form[1..5] {
        *part = fields.u8()?.into();
    }
    form[5] = fields.u32()?;
    // Bit 6 with bit 0 is the order of VAX. The first bit of the mantissa is not stored, and the sign
    // is the last bit.
    let (is_big, is_vax) = (bits & 1 != 0, bits & 0x40 != 0);
    let is_ieee = bits >> 4 & 3 == 2 && bits >> 8 & 0xff == u64::from(precision.saturating_sub(1));
    let found = FLOATS
        .iter()
        .find(|(known, dtype)| *known == form && dtype.bits() == size * 8);
    match found {
        Some(&(_, dtype)) if offset == 0 && is_ieee && !is_vax => {
            Ok(Ok((dtype, is_big && size > 1)))
        }
        _ => Ok(Err(Untyped::Other("floats of another format"))),
    }
}

/// An enumeration, which is h5py's truth values if it has two of one byte.
fn truth_values(
    fields: &mut StructureFields<'_>,
    version: u8,
    bits: u64,
    depth: usize,
) -> Result<Element> {
    let other = Ok(Err(Untyped::Other("an enumeration")));
    if depth > 0 || bits & 0xffff != 2 {
        return other;
    }
    let base = Datatype::of_fields(fields, 1)?;
    // Names before version 3 are padded to eight bytes.
    let mut names = [""; 2];
    for name in &mut names {
        *name = fields.text()?;
        if version < 3 {
            let padding = (8 - (name.len() + 1) % 8) % 8;
            fields.take(padding)?;
        }
    }
    match (base.size, names) {
        (1, ["FALSE", "TRUE"]) if fields.take(2)? == [0, 1] => Ok(Ok((Dtype::Bool, false))),
        _ => other,
    }
}

/// A record, which is a complex number of NumPy if it has two floats `r` and `i`.
fn complex(
    fields: &mut StructureFields<'_>,
    version: u8,
    bits: u64,
    size: usize,
    depth: usize,
) -> Result<Element> {
    let other = Ok(Err(Untyped::Other("records")));
    if depth > 0 || bits & 0xffff != 2 || size != 8 {
        return other;
    }
    for (name, place) in [("r", 0), ("i", 4)] {
        if fields.text()? != name {
            return other;
        }
        if version < 3 {
            fields.take(6)?;
        }
        let at = fields.number(if version < 3 { 4 } else { 1 })?;
        if version == 1 {
            // Dimensions, which such a member has none of.
            fields.take(28)?;
        }
        match Datatype::of_fields(fields, 1)?.element {
            Ok((Dtype::F32, false)) if at == place => {}
            _ => return other,
        }
    }
    Ok(Ok((Dtype::C64, false)))
}
