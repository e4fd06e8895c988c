//! What the message of a tensor says.

use std::ops::Range;

use crate::limits::cap;
use crate::model::Shape;
use crate::parse::message::{FieldAt, MessageReader};
use crate::protobuf::{FieldKind, varint};
use crate::source::NumberKind;
use crate::{AnamnesisError, Dtype, Result};

/// Most dimensions of a tensor.
const MAX_DIMS: u64 = 64;

/// Longest list of packed dimensions, in bytes.
const MAX_DIMS_BYTES: u64 = MAX_DIMS * 10;

/// What a `TensorProto` says, or the attribute that a number or a list of numbers is.
#[derive(Debug, Clone, Default)]
pub(super) struct TensorFields {
    pub message: Range<u64>,
    pub name: Range<u64>,
    /// As stored: negative ones are large numbers.
    pub dims: Vec<u64>,
    pub data_type: u64,
    pub raw: Option<Range<u64>>,
    /// The last list of packed floats or doubles, and how many fields have some.
    pub floats: Range<u64>,
    pub float_fields: usize,
    /// Entries that say where the data is in another file.
    pub external: Vec<Range<u64>>,
    pub is_external: bool,
    pub has_segment: bool,
    /// The field of an attribute that is the value, and whether it is a list.
    pub attribute: Option<(u64, bool)>,
}

/// Most entries about another file.
const MAX_ENTRIES: usize = 16;

impl TensorFields {
    pub(super) fn read(file: &mut MessageReader<'_>, message: Range<u64>) -> Result<Self> {
        let mut out = Self { message: message.clone(), ..Self::default() };
        let mut rest = message;
        while let Some(field) = file.next(&mut rest)? {
            match (field.number, field.bytes(), field.varint()) {
                (1, ..) => Self::read_dims(file, &field, &mut out.dims)?,
                (2, _, Some(data_type)) => out.data_type = data_type,
                (3, Some(_), _) => out.has_segment = true,
                (4 | 10, ..) => {
                    out.floats = field.content;
                    out.float_fields += 1;
                }
                (8, Some(name), _) => out.name = name,
                (9, Some(raw), _) => out.raw = Some(raw),
                (13, Some(entry), _) if out.external.len() < MAX_ENTRIES => {
                    out.external.push(entry);
                }
                (14, _, Some(location)) => out.is_external = location == 1,
                _ => {}
            }
        }
        Ok(out)
    }

    /// Adds the dimensions of `field`, which may be packed.
    pub(super) fn read_dims(
        file: &mut MessageReader<'_>,
        field: &FieldAt,
        dims: &mut Vec<u64>,
    ) -> Result<()> {
        match field.kind {
            FieldKind::Varint(dim) => dims.push(dim),
            FieldKind::Bytes(n) => {
                cap("MAX_TENSOR_DIMS", n, MAX_DIMS_BYTES, "bytes of dimensions")?;
                let mut bytes = file.bytes(field.content.clone())?;
                while !bytes.is_empty() {
                    let (dim, n) = varint(bytes).map_err(AnamnesisError::parse)?;
                    dims.push(dim);
                    bytes = &bytes[n..];
                }
            }
            _ => return Err(AnamnesisError::parse("a dimension is no integer")),
        }
        cap("MAX_TENSOR_DIMS", dims.len() as u64, MAX_DIMS, "dimensions of a tensor")
    }

    /// The value of a `Constant` node that is no tensor: the attribute `name` of one number or
    /// several.
    pub(super) fn of_attribute(message: Range<u64>, name: &str) -> Self {
        let (field, data_type) = match name {
            "value_float" => ((2, false), 1),
            "value_floats" => ((7, true), 1),
            "value_int" => ((3, false), 7),
            _ => ((8, true), 7),
        };
        Self { message, data_type, attribute: Some(field), ..Self::default() }
    }

    /// The element type, or what the elements are that no tensor can hold.
    pub(super) fn dtype(&self) -> std::result::Result<Dtype, String> {
        Ok(match self.data_type {
            1 => Dtype::F32,
            2 => Dtype::U8,
            3 => Dtype::I8,
            4 => Dtype::U16,
            5 => Dtype::I16,
            6 => Dtype::I32,
            7 => Dtype::I64,
            8 => return Err("text (STRING)".to_owned()),
            9 => Dtype::Bool,
            10 => Dtype::F16,
            11 => Dtype::F64,
            12 => Dtype::U32,
            13 => Dtype::U64,
            14 => Dtype::C64,
            15 => return Err("COMPLEX128".to_owned()),
            16 => Dtype::BF16,
            17 => Dtype::F8E4M3,
            18 => Dtype::F8E4M3Fnuz,
            19 => Dtype::F8E5M2,
            20 => Dtype::F8E5M2Fnuz,
            21 => Dtype::U4,
            22 => Dtype::I4,
            23 => Dtype::F4,
            24 => Dtype::F8E8M0,
            25 => Dtype::U2,
            26 => Dtype::I2,
            other => return Err(format!("element type {other} of ONNX")),
        })
    }

    /// Where the numbers of the elements are, if they lie in a field of their own: its number, how
    /// they are stored, and bytes of a number of an element.
    pub(super) fn typed_field(&self, dtype: Dtype) -> (u64, NumberKind, usize) {
        if let Some((number, _)) = self.attribute {
            return match dtype {
                Dtype::F32 => (number, NumberKind::Fixed, 4),
                _ => (number, NumberKind::Varint, 8),
            };
        }
        match dtype {
            Dtype::F32 | Dtype::C64 => (4, NumberKind::Fixed, 4),
            Dtype::F64 => (10, NumberKind::Fixed, 8),
            Dtype::I64 => (7, NumberKind::Varint, 8),
            Dtype::U32 => (11, NumberKind::Varint, 4),
            Dtype::U64 => (11, NumberKind::Varint, 8),
            // Of types of less than a byte, a number has a byte of several elements.
            _ => (5, NumberKind::Varint, dtype.byte_size()),
        }
    }

    /// The dimensions, and the bytes that so many elements take.
    pub(super) fn size(&self, dtype: Dtype) -> Result<(Shape, u64)> {
        let wrong =
            |what: &str| AnamnesisError::parse(format!("{what} ({:?})", self.signed_dims()));
        if self.dims.iter().any(|&dim| dim as i64 <= -1) {
            return Err(wrong("a dimension is negative"));
        }
        let dims = self.dims.iter().map(|&dim| usize::try_from(dim).ok());
        let shape: Option<Shape> = dims.collect::<Option<Vec<_>>>().map(Shape::from);
        let shape = shape.ok_or_else(|| wrong("its size overflows"))?;
        let bytes = dtype.packed_len(&shape);
        bytes
            .map(|bytes| (shape, bytes))
            .ok_or_else(|| wrong("its size overflows"))
    }

    /// Whether the elements, two a byte, end within one.
    pub(super) fn has_half_byte(&self) -> bool {
        self.dims.iter().all(|dim| dim % 2 == 1)
    }

    fn signed_dims(&self) -> Vec<i64> {
        self.dims.iter().map(|&dim| dim as i64).collect()
    }
}
