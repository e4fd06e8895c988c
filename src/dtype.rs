//! Element types: one table for all containers.

use std::fmt;
use std::str::FromStr;

use crate::{AnamnesisError, Result};

/// What the bits of an element mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    Int,
    Float,
    /// A float of eight bits or fewer: seldom a value by itself, mostly a code that wants a scale.
    Code,
    Complex,
}

/// One row of the table.
struct Row {
    dtype: Dtype,
    name: &'static str,
    bits: usize,
    kind: Kind,
    safetensors: safetensors::Dtype,
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident $name:literal $bits:literal $kind:ident $safetensors:ident;)*) => {
        /// Element type of a stored tensor.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Dtype { $($(#[$doc])* $variant,)* }

        /// Every dtype, in the order of the enum: a dtype's discriminant is its index.
        const TABLE: &[Row] = &[$(Row {
            dtype: Dtype::$variant, name: $name, bits: $bits, kind: Kind::$kind,
            safetensors: safetensors::Dtype::$safetensors,
        },)*];
    };
}

dtypes! {
    /// Boolean, one byte.
    Bool "BOOL" 8 Bool BOOL;
    /// Unsigned 8-bit integer.
    U8 "U8" 8 Int U8;
    /// Signed 8-bit integer.
    I8 "I8" 8 Int I8;
    /// Unsigned 16-bit integer.
    U16 "U16" 16 Int U16;
    /// Signed 16-bit integer.
    I16 "I16" 16 Int I16;
    /// Unsigned 32-bit integer.
    U32 "U32" 32 Int U32;
    /// Signed 32-bit integer.
    I32 "I32" 32 Int I32;
    /// Unsigned 64-bit integer.
    U64 "U64" 64 Int U64;
    /// Signed 64-bit integer.
    I64 "I64" 64 Int I64;
    /// IEEE half precision.
    F16 "F16" 16 Float F16;
    /// bfloat16.
    BF16 "BF16" 16 Float BF16;
    /// IEEE single precision.
    F32 "F32" 32 Float F32;
    /// IEEE double precision.
    F64 "F64" 64 Float F64;
    /// Complex with two F32 parts.
    C64 "C64" 64 Complex C64;
    /// OCP 8-bit float, 4 exponent bits, no infinity.
    F8E4M3 "F8_E4M3" 8 Code F8_E4M3;
    /// OCP 8-bit float, 5 exponent bits.
    F8E5M2 "F8_E5M2" 8 Code F8_E5M2;
    /// OCP 8-bit power-of-two scale.
    F8E8M0 "F8_E8M0" 8 Code F8_E8M0;
    /// 8-bit float with bias 8, one NaN and no negative zero (AMD).
    F8E4M3Fnuz "F8_E4M3FNUZ" 8 Code F8_E4M3FNUZ;
    /// 8-bit float with bias 16, one NaN and no negative zero (AMD).
    F8E5M2Fnuz "F8_E5M2FNUZ" 8 Code F8_E5M2FNUZ;
    /// OCP 6-bit float, 2 exponent bits.
    F6E2M3 "F6_E2M3" 6 Code F6_E2M3;
    /// OCP 6-bit float, 3 exponent bits.
    F6E3M2 "F6_E3M2" 6 Code F6_E3M2;
    /// OCP 4-bit float E2M1.
    F4 "F4" 4 Code F4;
}

impl Dtype {
    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Name as safetensors spells it, e.g. `BF16` or `F8_E4M3`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Bits of one element.
    #[must_use]
    pub fn bits(self) -> usize {
        self.row().bits
    }

    /// Whether elements are integers (booleans are not).
    #[must_use]
    pub fn is_integer(self) -> bool {
        self.row().kind == Kind::Int
    }

    /// Whether this is F16, BF16, F32 or F64.
    #[must_use]
    pub fn is_floating_point(self) -> bool {
        self.row().kind == Kind::Float
    }

    /// Whether this is a float of eight bits or fewer.
    #[must_use]
    pub fn is_quantized(self) -> bool {
        self.row().kind == Kind::Code
    }

    /// Bytes of `shape` at this dtype; `None` if it overflows or does not end on a byte.
    pub(crate) fn byte_len(self, shape: &[usize]) -> Option<usize> {
        let bits = shape.iter().try_fold(self.bits(), |n, &d| n.checked_mul(d))?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl serde::Serialize for Dtype {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl TryFrom<safetensors::Dtype> for Dtype {
    type Error = AnamnesisError;

    fn try_from(dtype: safetensors::Dtype) -> Result<Self> {
        let row = TABLE.iter().find(|row| row.safetensors == dtype);
        row.map(|row| row.dtype).ok_or_else(|| AnamnesisError::unsupported(dtype.to_string(), "unknown dtype"))
    }
}

/// Element type of recovered weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TargetDtype {
    /// bfloat16, round to nearest even.
    #[default]
    BF16,
    /// IEEE single precision, exact.
    F32,
    /// IEEE half precision, round to nearest even, overflow to infinity.
    F16,
}

impl TargetDtype {
    /// Bytes of one element.
    #[must_use]
    pub const fn byte_size(self) -> usize {
        match self {
            Self::BF16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// The same type as a stored dtype.
    #[must_use]
    pub const fn dtype(self) -> Dtype {
        match self {
            Self::BF16 => Dtype::BF16,
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
        }
    }
}

impl fmt::Display for TargetDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dtype().fmt(f)
    }
}

impl FromStr for TargetDtype {
    type Err = AnamnesisError;

    fn from_str(text: &str) -> Result<Self> {
        let all = [Self::BF16, Self::F32, Self::F16];
        let found = all.into_iter().find(|d| d.dtype().name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| AnamnesisError::unsupported(text, "supported target dtypes: bf16, f32, f16"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discriminant_is_the_row() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.dtype as usize, i);
            assert_eq!(row.name, row.safetensors.to_string());
            assert_eq!(row.bits, row.safetensors.bitsize());
            assert_eq!(Dtype::try_from(row.safetensors).unwrap(), row.dtype);
        }
    }

    #[test]
    fn sub_byte_lengths() {
        assert_eq!(Dtype::F4.byte_len(&[3, 2]), Some(3));
        assert_eq!(Dtype::F4.byte_len(&[3]), None);
        assert_eq!(Dtype::F64.byte_len(&[usize::MAX, 2]), None);
    }
}
