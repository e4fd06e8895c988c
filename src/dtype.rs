//! Element types of stored tensors: one table for all containers.

#[cfg(feature = "burnpack")]
pub(crate) mod burn;
pub(crate) mod ggml;
#[cfg(any(feature = "msgpack", feature = "zarr"))]
mod numpy;
mod swap;
mod target;
#[cfg(test)]
mod tests;

use std::fmt;

use self::ggml::ggml_block_types;
pub use self::target::TargetDtype;
use crate::{AnamnesisError, Result};

/// The class of a dtype, which decides how its elements are counted and whether they are values or
/// codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DtypeKind {
    Bool,
    Int,
    /// F16, BF16, F32 or F64: elements are values as they are.
    Float,
    /// A float of at most eight bits. Elements are mostly codes of a quantization scheme, to be
    /// multiplied by a scale from another tensor.
    SmallFloat,
    /// One of ggml's block types: a fixed number of values is stored as one block of bytes that
    /// includes its scales.
    GgmlBlock,
    /// A block type of a fork of llama.cpp, which is decoded only.
    ForkBlock,
    Complex,
    Unknown,
}

/// What the table says of one dtype.
struct DtypeRow {
    name: &'static str,
    /// Elements that are stored together: the values of a ggml block, else 1.
    block: usize,
    /// Bytes before the blocks of each row: 0 but for some types of ik_llama.cpp.
    header: usize,
    /// Bits of a block.
    bits: usize,
    kind: DtypeKind,
    safetensors: Option<safetensors::Dtype>,
    /// Type number in GGUF files.
    ggml: Option<u32>,
}

/// Above the numbers of types in GGUF files are those of types from before: see [`ggml`].
const OLD_BLOCKS: u32 = 1 << 16;

/// `None` for `-`, else `Some` of what follows the first token.
macro_rules! optional {
    (- $($value:tt)*) => {
        None
    };
    ($present:tt $($value:tt)*) => {
        Some($($value)*)
    };
}
pub(crate) use optional;

/// Defines [`Dtype`] from the rows of ordinary dtypes, in braces, and those of
/// [`ggml_block_types!`].
macro_rules! dtypes {
    ({ $($(#[$doc:meta])* $variant:ident $name:literal $bits:literal $kind:ident $st:tt $ggml:tt;)* }
     { $($block:ident $number:literal $bytes:literal / $values:literal $what:literal $words:tt;)* }
     { $($ik:ident $id:literal $header:literal + $size:literal / $n:literal $about:literal;)* }
     { $($mixed:ident $mixed_id:literal $rows:literal of $base:ident $mixed_header:literal + $mixed_size:literal / $mixed_n:literal;)* }) => {
        /// Element type of a stored tensor.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[allow(non_camel_case_types)] // ggml's own names
        pub enum Dtype {
            $($(#[$doc])* $variant,)*
            $(#[doc = concat!("ggml: ", $what, "; ", $bytes, " bytes hold ", $values, " values.")] $block,)*
            $(#[doc = concat!("A fork of llama.cpp: ", $about, "; ", $size, " bytes hold ", $n, " values. Each row begins with ", $header,
                " other bytes.")] $ik,)*
            $(#[doc = concat!("ik_llama.cpp: ", stringify!($base), " with ", $rows, " rows interleaved.")] $mixed,)*
            /// A type of some GGUF writer, by its number; its values cannot be read.
            UnknownGgml(u32),
        }

        impl Dtype {
            /// Every dtype but `UnknownGgml`.
            pub(crate) const ALL: &[Self] = &[$(Self::$variant,)* $(Self::$block,)* $(Self::$ik,)* $(Self::$mixed),*];

            /// How many rows are interleaved, and the type of their blocks when they are not, or
            /// `self` if there is none; `None` if the type interleaves no rows.
            #[cfg_attr(not(feature = "gguf"), allow(dead_code))]
            pub(crate) fn interleaved_rows(self) -> Option<(usize, Self)> {
                match self {
                    $(Self::$mixed => Some(($rows, Self::$base)),)*
                    _ => None,
                }
            }

            fn row(self) -> &'static DtypeRow {
                match self {
                    $(Self::$variant => &DtypeRow {
                        name: $name, block: 1, header: 0, bits: $bits, kind: DtypeKind::$kind,
                        safetensors: optional!($st safetensors::Dtype::$st),
                        ggml: optional!($ggml $ggml),
                    },)*
                    $(Self::$block => &DtypeRow {
                        name: stringify!($block), block: $values, header: 0, bits: 8 * $bytes,
                        kind: DtypeKind::GgmlBlock,
                        safetensors: None,
                        ggml: Some($number),
                    },)*
                    $(Self::$ik => &DtypeRow {
                        name: stringify!($ik), block: $n, header: $header, bits: 8 * $size,
                        kind: DtypeKind::ForkBlock,
                        safetensors: None,
                        ggml: Some($id),
                    },)*
                    $(Self::$mixed => &DtypeRow {
                        name: stringify!($mixed), block: $mixed_n, header: $mixed_header, bits: 8 * $mixed_size,
                        kind: DtypeKind::ForkBlock,
                        safetensors: None,
                        ggml: Some($mixed_id),
                    },)*
                    Self::UnknownGgml(_) => &DtypeRow {
                        name: "unknown", block: 1, header: 0, bits: 0, kind: DtypeKind::Unknown,
                        safetensors: None,
                        ggml: None,
                    },
                }
            }
        }
    };
}

ggml_block_types! { dtypes { {
    // name, bits, kind, in safetensors, type number in GGUF
    /// Boolean, one byte.
    Bool "BOOL" 8 Bool BOOL -;
    /// Unsigned 8-bit integer.
    U8 "U8" 8 Int U8 -;
    /// Signed 8-bit integer.
    I8 "I8" 8 Int I8 24;
    /// Unsigned 16-bit integer.
    U16 "U16" 16 Int U16 -;
    /// Signed 16-bit integer.
    I16 "I16" 16 Int I16 25;
    /// Unsigned 32-bit integer.
    U32 "U32" 32 Int U32 -;
    /// Signed 32-bit integer.
    I32 "I32" 32 Int I32 26;
    /// Unsigned 64-bit integer.
    U64 "U64" 64 Int U64 -;
    /// Signed 64-bit integer.
    I64 "I64" 64 Int I64 27;
    /// IEEE half precision.
    F16 "F16" 16 Float F16 1;
    /// bfloat16.
    BF16 "BF16" 16 Float BF16 30;
    /// IEEE single precision.
    F32 "F32" 32 Float F32 0;
    /// IEEE double precision.
    F64 "F64" 64 Float F64 28;
    /// Complex with two F32 parts.
    C64 "C64" 64 Complex C64 -;
    /// OCP 8-bit float, 4 exponent bits, no infinity.
    F8E4M3 "F8_E4M3" 8 SmallFloat F8_E4M3 -;
    /// OCP 8-bit float, 5 exponent bits.
    F8E5M2 "F8_E5M2" 8 SmallFloat F8_E5M2 -;
    /// OCP 8-bit power-of-two scale.
    F8E8M0 "F8_E8M0" 8 SmallFloat F8_E8M0 -;
    /// 8-bit float with bias 8, one NaN and no negative zero (AMD).
    F8E4M3Fnuz "F8_E4M3FNUZ" 8 SmallFloat F8_E4M3FNUZ -;
    /// 8-bit float with bias 16, one NaN and no negative zero (AMD).
    F8E5M2Fnuz "F8_E5M2FNUZ" 8 SmallFloat F8_E5M2FNUZ -;
    /// OCP 6-bit float, 2 exponent bits.
    F6E2M3 "F6_E2M3" 6 SmallFloat F6_E2M3 -;
    /// OCP 6-bit float, 3 exponent bits.
    F6E3M2 "F6_E3M2" 6 SmallFloat F6_E3M2 -;
    /// OCP 4-bit float E2M1.
    F4 "F4" 4 SmallFloat F4 -;
    /// Unsigned 4-bit integer, two a byte, the first in the lower half.
    U4 "U4" 4 Int - -;
    /// Signed 4-bit integer, two a byte, the first in the lower half.
    I4 "I4" 4 Int - -;
    /// Unsigned 2-bit integer, four a byte, the first in the lowest bits.
    U2 "U2" 2 Int - -;
    /// Signed 2-bit integer, four a byte, the first in the lowest bits.
    I2 "I2" 2 Int - -;
} } }

/// Most elements of a tensor, counted as if no dimension were zero.
const MAX_ELEMENTS: u64 = (usize::MAX >> 6) as u64 + 1;

impl Dtype {
    /// Name as safetensors or GGUF spells it, e.g. `BF16`, `F8_E4M3` or `Q4_K`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Bits of one element, rounded up where elements are stored in blocks.
    #[must_use]
    pub fn bits(self) -> usize {
        self.row().bits.div_ceil(self.row().block)
    }

    /// Bytes of one element, rounded up.
    #[must_use]
    pub fn byte_size(self) -> usize {
        self.bits().div_ceil(8)
    }

    /// Bytes that `n` consecutive elements take: of a type whose rows begin with a scale, those of
    /// one row.
    ///
    /// # Errors
    /// `Unsupported` if the type is unknown; `Parse` if `n` elements are not whole blocks and
    /// bytes, or their size overflows.
    pub fn byte_size_for_n_elements(self, n: u64) -> Result<u64> {
        if self.row().kind == DtypeKind::Unknown {
            return Err(AnamnesisError::unsupported(format!("GGUF {self}"), "its size is unknown"));
        }
        let bytes = usize::try_from(n).ok().and_then(|n| self.byte_len(&[n]));
        bytes
            .map(|bytes| bytes as u64)
            .ok_or_else(|| AnamnesisError::parse(format!("{n} elements of {self}")))
    }

    /// Elements that are stored together: the values of a block of a ggml block type, else 1. The
    /// last dimension of a tensor is a multiple of it.
    #[must_use]
    pub fn block_size(self) -> usize {
        self.row().block
    }

    /// Bytes of [`block_size`](Self::block_size) elements, without the scale that rows of some
    /// types of ik_llama.cpp begin with; `None` if the type is unknown or an element ends within a
    /// byte.
    #[must_use]
    pub fn type_size(self) -> Option<usize> {
        let bits = self.row().bits;
        (bits > 0 && bits.is_multiple_of(8)).then_some(bits / 8)
    }

    /// Whether elements are integers. Booleans do not count.
    #[must_use]
    pub fn is_integer(self) -> bool {
        self.row().kind == DtypeKind::Int
    }

    /// Whether this is F16, BF16, F32 or F64.
    #[must_use]
    pub fn is_floating_point(self) -> bool {
        self.row().kind == DtypeKind::Float
    }

    /// Bytes before the blocks of each row, which hold the row's scale; 0 for most types.
    pub(crate) fn row_header(self) -> usize {
        self.row().header
    }

    /// Whether this is a float of eight bits or fewer, or one of ggml's block types.
    #[must_use]
    pub fn is_quantized(self) -> bool {
        self.row().kind == DtypeKind::SmallFloat || self.is_ggml_block()
    }

    /// Whether this is one of ggml's block types, which store values together with their scales.
    /// Those of forks of llama.cpp count.
    #[must_use]
    pub fn is_ggml_block(self) -> bool {
        matches!(self.row().kind, DtypeKind::GgmlBlock | DtypeKind::ForkBlock)
    }

    /// The fork of llama.cpp that has this block type, which ggml has not; `None` for any other
    /// type.
    #[cfg_attr(not(any(feature = "gguf", feature = "lethe")), allow(dead_code))]
    pub(crate) fn fork(self) -> Option<&'static str> {
        match self {
            Self::PQ2_0 | Self::PTQ1_0 => Some("PrismML's llama.cpp"),
            _ if self.is_old_block() => Some("ggml before May 2023"),
            _ => (self.row().kind == DtypeKind::ForkBlock).then_some("ik_llama.cpp"),
        }
    }

    /// The dtype whose type number in GGUF files is `id`.
    #[cfg(feature = "gguf")]
    pub(crate) fn from_ggml(id: u32) -> Self {
        Self::ALL
            .iter()
            .copied()
            .find(|d| d.row().ggml == Some(id) && !d.is_old_block())
            .unwrap_or(Self::UnknownGgml(id))
    }

    /// The dtype of type `id` of ggml in `version` of its blocks, if there were such blocks.
    #[cfg(feature = "gguf")]
    pub(crate) fn from_old_ggml(id: u32, version: u32) -> Option<Self> {
        let number = (version + 1).checked_mul(OLD_BLOCKS)?.checked_add(id)?;
        let found = Self::ALL.iter().find(|d| d.row().ggml == Some(number));
        found.copied()
    }

    /// Whether this is a block type of ggml from before May 2023.
    fn is_old_block(self) -> bool {
        self.row().ggml.is_some_and(|id| id >= OLD_BLOCKS)
    }

    /// The type number in GGUF files; `None` if they cannot hold the dtype.
    #[cfg_attr(not(feature = "gguf"), allow(dead_code))]
    pub(crate) fn ggml_id(self) -> Option<u32> {
        match self {
            Self::UnknownGgml(id) => Some(id),
            _ => self.row().ggml.filter(|_| !self.is_old_block()),
        }
    }

    /// The dtype in the `safetensors` crate.
    ///
    /// # Errors
    /// `Unsupported` if safetensors files cannot hold the type.
    pub fn to_safetensors_dtype(self) -> Result<safetensors::Dtype> {
        self.row()
            .safetensors
            .ok_or_else(|| AnamnesisError::unsupported(self.to_string(), "no dtype of safetensors"))
    }

    /// Whether safetensors files can hold the type.
    pub(crate) fn in_safetensors(self) -> bool {
        self.row().safetensors.is_some()
    }

    /// Bytes of a tensor of this dtype. `None` if the type is unknown, if they do not end on a
    /// byte, if the last dimension is not whole blocks, or if the dimensions that are not zero
    /// multiply to more than any memory has.
    pub(crate) fn byte_len(self, shape: &[usize]) -> Option<usize> {
        let DtypeRow { block, header, bits, kind, .. } = *self.row();
        if block > 1 && !shape.last().unwrap_or(&1).is_multiple_of(block)
            || kind == DtypeKind::Unknown
        {
            return None;
        }
        // A zero must not hide what overflows: later, any part of the shape is multiplied without a
        // check, and codes are unpacked to as many as 32 times their number.
        let nonzero = |n: u64, &d: &usize| n.checked_mul(d.max(1) as u64);
        let bound = shape.iter().try_fold(1, nonzero)?;
        if bound > MAX_ELEMENTS {
            return None;
        }
        let elements: usize = shape.iter().product();
        let bits = (elements / block).checked_mul(bits)?;
        // A tensor without elements has no headers, either.
        let rows = elements / shape.last().map_or(1, |&cols| cols.max(1));
        let headers = rows.checked_mul(header)?;
        let blocks = bits.is_multiple_of(8).then_some(bits / 8)?;
        blocks.checked_add(headers)
    }

    /// Bytes of a tensor whose elements follow each other without gaps, as graphs store them: the last
    /// byte may have room for more. `None` as of [`byte_len`](Self::byte_len).
    #[cfg_attr(
        not(any(
            feature = "onnx",
            feature = "openvino",
            feature = "tflite",
            feature = "executorch"
        )),
        allow(dead_code)
    )]
    pub(crate) fn packed_len(self, shape: &[usize]) -> Option<u64> {
        match self.bits() {
            // Bytes as of the next wider type that has whole ones.
            bits @ (1 | 2 | 4) => {
                let bytes = Self::U8.byte_len(shape)? as u64;
                Some(bytes.div_ceil(8 / bits as u64))
            }
            _ => self.byte_len(shape).map(|bytes| bytes as u64),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownGgml(id) => f.pad(&format!("type {id}")),
            _ => f.pad(self.name()),
        }
    }
}

impl serde::Serialize for Dtype {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl TryFrom<safetensors::Dtype> for Dtype {
    type Error = AnamnesisError;

    fn try_from(dtype: safetensors::Dtype) -> Result<Self> {
        let found = Self::ALL
            .iter()
            .copied()
            .find(|d| d.row().safetensors == Some(dtype));
        found.ok_or_else(|| AnamnesisError::unsupported(dtype.to_string(), "unknown dtype"))
    }
}

impl TryFrom<Dtype> for safetensors::Dtype {
    type Error = AnamnesisError;

    fn try_from(dtype: Dtype) -> Result<Self> {
        dtype.to_safetensors_dtype()
    }
}
