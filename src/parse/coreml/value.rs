//! Values: their types and shapes, and where their elements are.

use std::ops::Range;

use super::spec::Spec;
use super::wrong;
use crate::limits::cap;
use crate::parse::message::MessageReader;
use crate::source::{Derived, FieldPlace, NumberKind, RepeatedField, Source};
use crate::{Dtype, Result};

/// Most dimensions of a tensor.
const MAX_DIMS: u64 = 64;

/// What a blob of a file of weights begins with, and how long that is.
const BLOB_MARK: u32 = 0xdead_beef;
const BLOB_HEAD: usize = 64;

/// What the name of a file of weights begins with: the directory of the model.
const MODEL_PATH: &str = "@model_path/";

/// An element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ElementKind {
    pub name: &'static str,
    pub bits: usize,
    /// `None` if no tensor can have such elements.
    pub dtype: Option<Dtype>,
    /// The number of the type in files of weights; 0 if they have none of it.
    blob: u32,
}

const fn kind(name: &'static str, bits: usize, dtype: Option<Dtype>, blob: u32) -> ElementKind {
    ElementKind { name, bits, dtype, blob }
}

pub(super) const FLOAT32: ElementKind = kind("FLOAT32", 32, Some(Dtype::F32), 2);
pub(super) const FLOAT16: ElementKind = kind("FLOAT16", 16, Some(Dtype::F16), 1);

/// The element types by their numbers in `MIL.proto`; numbers of blobs by `BlobDataType.hpp` of MILBlob.
const KINDS: &[(u64, ElementKind)] = &[
    (1, kind("BOOL", 8, Some(Dtype::Bool), 0)),
    (10, FLOAT16),
    (11, FLOAT32),
    (12, kind("FLOAT64", 64, Some(Dtype::F64), 0)),
    (13, kind("BFLOAT16", 16, Some(Dtype::BF16), 5)),
    (21, kind("INT8", 8, Some(Dtype::I8), 4)),
    (22, kind("INT16", 16, Some(Dtype::I16), 6)),
    (23, kind("INT32", 32, Some(Dtype::I32), 14)),
    (24, kind("INT64", 64, Some(Dtype::I64), 0)),
    (25, kind("INT4", 4, Some(Dtype::I4), 8)),
    (31, kind("UINT8", 8, Some(Dtype::U8), 3)),
    (32, kind("UINT16", 16, Some(Dtype::U16), 7)),
    (33, kind("UINT32", 32, Some(Dtype::U32), 15)),
    (34, kind("UINT64", 64, Some(Dtype::U64), 0)),
    (35, kind("UINT4", 4, Some(Dtype::U4), 11)),
    (36, kind("UINT2", 2, Some(Dtype::U2), 10)),
    (37, kind("UINT1", 1, None, 9)),
    (38, kind("UINT6", 6, None, 13)),
    (39, kind("UINT3", 3, None, 12)),
    (40, kind("FLOAT8E4M3FN", 8, Some(Dtype::F8E4M3), 16)),
    (41, kind("FLOAT8E5M2", 8, Some(Dtype::F8E5M2), 17)),
];

impl ElementKind {
    /// Unsigned integers of so many bits, which are stored as UINT8.
    pub(super) const fn packed(bits: usize) -> Self {
        kind("packed", bits, None, 3)
    }

    pub(super) fn is_unsigned(&self) -> bool {
        self.dtype.is_none() || matches!(self.dtype, Some(Dtype::U2 | Dtype::U4 | Dtype::U8))
    }
}

/// A tensor that a model stores.
#[derive(Debug, Clone)]
pub(super) struct StoredValue {
    pub kind: ElementKind,
    pub shape: Vec<usize>,
    pub data: StoredData,
}

/// Where elements are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum StoredData {
    /// Numbers of a field of a message.
    Numbers { message: Range<u64>, number: u64, kind: NumberKind },
    /// The bytes of a field.
    Bytes(Range<u64>),
    /// In a file of weights, by the place of what describes them.
    Blob { file: String, at: u64 },
}

/// Where the bytes of a tensor are.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredPlace {
    pub source: usize,
    pub offset: u64,
    pub len: u64,
}

impl StoredValue {
    /// Reads a `Value`; `None` if it is no tensor of numbers.
    pub(super) fn read(file: &mut MessageReader<'_>, message: Range<u64>) -> Result<Option<Self>> {
        let (mut of_type, mut data) = (None, None);
        let mut rest = message;
        while let Some(field) = file.next(&mut rest)? {
            match (field.number, field.bytes()) {
                (2, Some(inner)) => of_type = tensor_type(file, inner)?,
                (3, Some(inner)) => data = immediate(file, inner)?,
                (5, Some(inner)) => data = Some(blob(file, inner)?),
                _ => {}
            }
        }
        let (Some((kind, shape)), Some(data)) = (of_type, data) else {
            return Ok(None);
        };
        Ok(Some(Self { kind, shape, data }))
    }

    /// Elements.
    pub(super) fn count(&self) -> Result<u64> {
        let count = self
            .shape
            .iter()
            .try_fold(1u64, |n, &dim| n.checked_mul(dim as u64));
        count.ok_or_else(|| self.overflows())
    }

    fn overflows(&self) -> crate::AnamnesisError {
        wrong(format!("its size overflows ({:?})", self.shape))
    }

    /// Finds the elements, in a source of `spec` or in one that is added.
    ///
    /// # Errors
    /// `Parse` if there are more or fewer than the shape says; those of another file.
    pub(super) fn place(&self, spec: &mut Spec<'_>) -> Result<StoredPlace> {
        let bits = self.count()?.checked_mul(self.kind.bits as u64);
        let len = bits.ok_or_else(|| self.overflows())?.div_ceil(8);
        let (place, what) = match &self.data {
            StoredData::Bytes(range) => {
                let place =
                    StoredPlace { source: 0, offset: range.start, len: range.end - range.start };
                (place, "bytes")
            }
            StoredData::Blob { file, at } => (self.blob_place(spec, file, *at)?, "bytes"),
            StoredData::Numbers { message, number, kind } => {
                (self.number_place(spec, message, *number, *kind)?, "bytes of numbers")
            }
        };
        match place.len == len {
            true => Ok(place),
            false => Err(wrong(format!(
                "it has {} {what}, and {} {:?} needs {len}",
                place.len, self.kind.name, self.shape
            ))),
        }
    }

    /// Finds the numbers of a field, each of which is an element.
    fn number_place(
        &self,
        spec: &mut Spec<'_>,
        message: &Range<u64>,
        number: u64,
        kind: NumberKind,
    ) -> Result<StoredPlace> {
        let width = self.kind.bits / 8;
        if !matches!(width, 1 | 2 | 4 | 8) {
            return Err(wrong(format!("{} elements are numbers of a field", self.kind.name)));
        }
        // Packed floats alone in their message lie there as they are.
        let mut rest = message.clone();
        if kind == NumberKind::Fixed
            && let Some(field) = spec.file.next(&mut rest)?
            && let (Some(range), true) = (field.bytes(), field.number == number)
            && rest.is_empty()
        {
            let len = range.end - range.start;
            return Ok(StoredPlace { source: 0, offset: range.start, len });
        }
        let Range { start, end } = *message;
        spec.charge(end - start)?;
        let place = FieldPlace { start, end, number, kind, width };
        let field = RepeatedField::new(spec.contents.sources[0].share(), place)?;
        let len = field.count() * width as u64;
        spec.contents
            .sources
            .push(Source::Derived(Box::new(Derived::Repeated(field))));
        Ok(StoredPlace { source: spec.contents.sources.len() - 1, offset: 0, len })
    }

    /// Finds a blob of a file of weights by what it begins with at `at`: a mark, the element type, and
    /// length and offset of the data.
    fn blob_place(&self, spec: &mut Spec<'_>, file: &str, at: u64) -> Result<StoredPlace> {
        let location = file.strip_prefix(MODEL_PATH).unwrap_or(file);
        let (source, file_len) = spec.other_file(location)?;
        let outside =
            || wrong(format!("its data is at {at} of `{location}`, which has {file_len} bytes"));
        let behind = at
            .checked_add(BLOB_HEAD as u64)
            .filter(|&end| end <= file_len);
        behind.ok_or_else(outside)?;
        let mut head = [0; BLOB_HEAD];
        spec.contents.sources[source].read_at(at, &mut head)?;
        let (words, longs) = (head.as_chunks::<4>().0, head.as_chunks::<8>().0);
        let [mark, found] = [words[0], words[1]].map(u32::from_le_bytes);
        let [len, offset] = [longs[1], longs[2]].map(u64::from_le_bytes);
        if mark != BLOB_MARK {
            return Err(wrong(format!("no data begins at {at} of `{location}`")));
        }
        if found != self.kind.blob || found == 0 {
            let name = self.kind.name;
            return Err(wrong(format!(
                "it is {name}, and its data in `{location}` has type {found}"
            )));
        }
        let end = offset.checked_add(len).filter(|&end| end <= file_len);
        end.ok_or_else(outside)?;
        Ok(StoredPlace { source, offset, len })
    }

    /// Whether another tensor has the same shape and elements.
    pub(super) fn is_same(&self, other: &Self, spec: &mut Spec<'_>) -> Result<bool> {
        if self.shape != other.shape || self.kind != other.kind || self.data == other.data {
            return Ok(self.shape == other.shape && self.kind == other.kind);
        }
        let places = [self.place(spec)?, other.place(spec)?];
        spec.charge(places[0].len)?;
        let [mut one, mut two] = [[0; 4096]; 2];
        let mut at = 0;
        while at < places[0].len {
            let n = (places[0].len - at).min(one.len() as u64) as usize;
            for (place, piece) in places.iter().zip([&mut one, &mut two]) {
                spec.contents.sources[place.source].read_at(place.offset + at, &mut piece[..n])?;
            }
            if one[..n] != two[..n] {
                return Ok(false);
            }
            at += n as u64;
        }
        Ok(true)
    }

    /// The elements of a short tensor of integers.
    ///
    /// # Errors
    /// There are more than a tensor has dimensions, or they are no integers.
    pub(super) fn integers(&self, spec: &mut Spec<'_>) -> Result<Vec<i64>> {
        cap("MAX_TENSOR_DIMS", self.count()?, MAX_DIMS, "dimensions of a tensor")?;
        let place = self.place(spec)?;
        let mut bytes = vec![0; place.len as usize];
        spec.contents.sources[place.source].read_at(place.offset, &mut bytes)?;
        Ok(match self.kind.dtype {
            Some(Dtype::I32) => bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| i32::from_le_bytes(b).into())
                .collect(),
            Some(Dtype::U32) => bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| u32::from_le_bytes(b).into())
                .collect(),
            _ => return Err(wrong(format!("{} in place of numbers", self.kind.name))),
        })
    }
}

/// Reads a `ValueType`: element type and dimensions, if it is a tensor of numbers.
fn tensor_type(
    file: &mut MessageReader<'_>,
    message: Range<u64>,
) -> Result<Option<(ElementKind, Vec<usize>)>> {
    let Some(mut tensor) = only_field(file, message, 1)? else {
        return Ok(None);
    };
    let (mut number, mut shape) = (0, Vec::new());
    while let Some(field) = file.next(&mut tensor)? {
        match (field.number, field.bytes(), field.varint()) {
            (1, _, Some(kind)) => number = kind,
            (3, Some(dimension), _) => {
                cap("MAX_TENSOR_DIMS", shape.len() as u64 + 1, MAX_DIMS, "dimensions of a tensor")?;
                let constant = only_field(file, dimension, 1)?;
                let mut constant =
                    constant.ok_or_else(|| wrong("a constant has an unknown size"))?;
                let mut size = 0;
                while let Some(field) = file.next(&mut constant)? {
                    size = match (field.number, field.varint()) {
                        (1, Some(value)) => value,
                        _ => size,
                    };
                }
                let size = usize::try_from(size).map_err(|_| wrong("its size overflows"))?;
                shape.push(size);
            }
            _ => {}
        }
    }
    let kind = KINDS.iter().find(|(other, _)| *other == number);
    match (kind, number) {
        (Some((_, kind)), _) => Ok(Some((*kind, shape))),
        // Text.
        (None, 2) => Ok(None),
        (None, number) => Err(wrong(format!("element type {number} is not known"))),
    }
}

/// Reads an `ImmediateValue`: the numbers of a tensor; `None` if it is no such.
fn immediate(file: &mut MessageReader<'_>, message: Range<u64>) -> Result<Option<StoredData>> {
    let Some(mut tensor) = only_field(file, message, 1)? else {
        return Ok(None);
    };
    let mut found = None;
    while let Some(field) = file.next(&mut tensor)? {
        let Some(message) = field.bytes() else {
            continue;
        };
        let kind = match field.number {
            1 | 6 => NumberKind::Fixed,
            2 | 3 | 5 => NumberKind::Varint,
            // Without bytes it is an empty tensor.
            7 => {
                let bytes = only_field(file, message.clone(), 1)?;
                found = Some(StoredData::Bytes(bytes.unwrap_or(message.end..message.end)));
                continue;
            }
            _ => continue,
        };
        found = Some(StoredData::Numbers { message, number: 1, kind });
    }
    Ok(found)
}

/// Reads a `BlobFileValue`.
fn blob(file: &mut MessageReader<'_>, mut rest: Range<u64>) -> Result<StoredData> {
    let (mut name, mut at) = (String::new(), 0);
    while let Some(field) = file.next(&mut rest)? {
        match (field.number, field.bytes(), field.varint()) {
            (1, Some(text), _) => name = file.text(text)?,
            (2, _, Some(offset)) => at = offset,
            _ => {}
        }
    }
    Ok(StoredData::Blob { file: name, at })
}

/// The content of the last field `number` of a message.
pub(super) fn only_field(
    file: &mut MessageReader<'_>,
    mut rest: Range<u64>,
    number: u64,
) -> Result<Option<Range<u64>>> {
    let mut found = None;
    while let Some(field) = file.next(&mut rest)? {
        if field.number == number {
            found = field.bytes().or(found);
        }
    }
    Ok(found)
}
