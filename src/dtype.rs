//! Element types: one table for all containers.

mod swap;
mod target;

use std::fmt;

pub use self::target::TargetDtype;
use crate::{AnamnesisError, Result};

/// What the bits of an element mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    Int,
    Float,
    /// A float of eight bits or fewer: seldom a value by itself, mostly a code that wants a scale.
    Code,
    /// Values of ggml's that are quantized together, with their scales among them.
    Block,
    Complex,
    Unknown,
}

/// One row of the table.
struct Row {
    name: &'static str,
    /// Elements that are stored together.
    block: usize,
    /// Bits of a block.
    bits: usize,
    kind: Kind,
    safetensors: Option<safetensors::Dtype>,
    /// Number of the type in GGUF files.
    ggml: Option<u32>,
}

macro_rules! optional {
    (- $($as:tt)*) => {
        None
    };
    ($some:tt $($as:tt)*) => {
        Some($($as)*)
    };
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident $name:literal $bits:literal / $block:literal $kind:ident $st:tt $ggml:tt;)*) => {
        /// Element type of a stored tensor.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[allow(non_camel_case_types)] // ggml's own names
        pub enum Dtype {
            $($(#[$doc])* $variant,)*
            /// A type of some GGUF writer, by its number; its values cannot be read.
            UnknownGgml(u32),
        }

        impl Dtype {
            /// Every dtype that is known.
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),*];

            fn row(self) -> &'static Row {
                match self {
                    $(Self::$variant => &Row {
                        name: $name, block: $block, bits: $bits, kind: Kind::$kind,
                        safetensors: optional!($st safetensors::Dtype::$st),
                        ggml: optional!($ggml $ggml),
                    },)*
                    Self::UnknownGgml(_) => &Row {
                        name: "unknown", block: 1, bits: 0, kind: Kind::Unknown, safetensors: None, ggml: None,
                    },
                }
            }
        }
    };
}

dtypes! {
    // name, bits of a block / its elements, kind, safetensors, number in GGUF
    /// Boolean, one byte.
    Bool "BOOL" 8/1 Bool BOOL -;
    /// Unsigned 8-bit integer.
    U8 "U8" 8/1 Int U8 -;
    /// Signed 8-bit integer.
    I8 "I8" 8/1 Int I8 24;
    /// Unsigned 16-bit integer.
    U16 "U16" 16/1 Int U16 -;
    /// Signed 16-bit integer.
    I16 "I16" 16/1 Int I16 25;
    /// Unsigned 32-bit integer.
    U32 "U32" 32/1 Int U32 -;
    /// Signed 32-bit integer.
    I32 "I32" 32/1 Int I32 26;
    /// Unsigned 64-bit integer.
    U64 "U64" 64/1 Int U64 -;
    /// Signed 64-bit integer.
    I64 "I64" 64/1 Int I64 27;
    /// IEEE half precision.
    F16 "F16" 16/1 Float F16 1;
    /// bfloat16.
    BF16 "BF16" 16/1 Float BF16 30;
    /// IEEE single precision.
    F32 "F32" 32/1 Float F32 0;
    /// IEEE double precision.
    F64 "F64" 64/1 Float F64 28;
    /// Complex with two F32 parts.
    C64 "C64" 64/1 Complex C64 -;
    /// OCP 8-bit float, 4 exponent bits, no infinity.
    F8E4M3 "F8_E4M3" 8/1 Code F8_E4M3 -;
    /// OCP 8-bit float, 5 exponent bits.
    F8E5M2 "F8_E5M2" 8/1 Code F8_E5M2 -;
    /// OCP 8-bit power-of-two scale.
    F8E8M0 "F8_E8M0" 8/1 Code F8_E8M0 -;
    /// 8-bit float with bias 8, one NaN and no negative zero (AMD).
    F8E4M3Fnuz "F8_E4M3FNUZ" 8/1 Code F8_E4M3FNUZ -;
    /// 8-bit float with bias 16, one NaN and no negative zero (AMD).
    F8E5M2Fnuz "F8_E5M2FNUZ" 8/1 Code F8_E5M2FNUZ -;
    /// OCP 6-bit float, 2 exponent bits.
    F6E2M3 "F6_E2M3" 6/1 Code F6_E2M3 -;
    /// OCP 6-bit float, 3 exponent bits.
    F6E3M2 "F6_E3M2" 6/1 Code F6_E3M2 -;
    /// OCP 4-bit float E2M1.
    F4 "F4" 4/1 Code F4 -;
    /// ggml: 4-bit, one scale; 18 bytes hold 32 values.
    Q4_0 "Q4_0" 144/32 Block - 2;
    /// ggml: 4-bit, scale and minimum; 20 bytes hold 32 values.
    Q4_1 "Q4_1" 160/32 Block - 3;
    /// ggml: 5-bit, one scale; 22 bytes hold 32 values.
    Q5_0 "Q5_0" 176/32 Block - 6;
    /// ggml: 5-bit, scale and minimum; 24 bytes hold 32 values.
    Q5_1 "Q5_1" 192/32 Block - 7;
    /// ggml: 8-bit, one scale; 34 bytes hold 32 values.
    Q8_0 "Q8_0" 272/32 Block - 8;
    /// ggml: 8-bit, scale and sum; 36 bytes hold 32 values.
    Q8_1 "Q8_1" 288/32 Block - 9;
    /// ggml: 2-bit, 4-bit scales and minimums; 84 bytes hold 256 values.
    Q2_K "Q2_K" 672/256 Block - 10;
    /// ggml: 3-bit, 6-bit scales; 110 bytes hold 256 values.
    Q3_K "Q3_K" 880/256 Block - 11;
    /// ggml: 4-bit, 6-bit scales and minimums; 144 bytes hold 256 values.
    Q4_K "Q4_K" 1152/256 Block - 12;
    /// ggml: 5-bit, 6-bit scales and minimums; 176 bytes hold 256 values.
    Q5_K "Q5_K" 1408/256 Block - 13;
    /// ggml: 6-bit, 8-bit scales; 210 bytes hold 256 values.
    Q6_K "Q6_K" 1680/256 Block - 14;
    /// ggml: 8-bit, F32 scale; 292 bytes hold 256 values.
    Q8_K "Q8_K" 2336/256 Block - 15;
    /// ggml: 2-bit grid of 256; 66 bytes hold 256 values.
    IQ2_XXS "IQ2_XXS" 528/256 Block - 16;
    /// ggml: 2-bit grid of 512; 74 bytes hold 256 values.
    IQ2_XS "IQ2_XS" 592/256 Block - 17;
    /// ggml: 3-bit grid of 256; 98 bytes hold 256 values.
    IQ3_XXS "IQ3_XXS" 784/256 Block - 18;
    /// ggml: 1.5-bit grid of 2048; 50 bytes hold 256 values.
    IQ1_S "IQ1_S" 400/256 Block - 19;
    /// ggml: 4-bit codebook; 18 bytes hold 32 values.
    IQ4_NL "IQ4_NL" 144/32 Block - 20;
    /// ggml: 3-bit grid of 512; 110 bytes hold 256 values.
    IQ3_S "IQ3_S" 880/256 Block - 21;
    /// ggml: 2-bit grid of 1024; 82 bytes hold 256 values.
    IQ2_S "IQ2_S" 656/256 Block - 22;
    /// ggml: 4-bit codebook, 6-bit scales; 136 bytes hold 256 values.
    IQ4_XS "IQ4_XS" 1088/256 Block - 23;
    /// ggml: 1.75-bit grid of 2048; 56 bytes hold 256 values.
    IQ1_M "IQ1_M" 448/256 Block - 29;
    /// ggml: ternary, five to a byte; 54 bytes hold 256 values.
    TQ1_0 "TQ1_0" 432/256 Block - 34;
    /// ggml: ternary, four to a byte; 66 bytes hold 256 values.
    TQ2_0 "TQ2_0" 528/256 Block - 35;
    /// ggml: E2M1 with a power-of-two scale; 17 bytes hold 32 values.
    MXFP4 "MXFP4" 136/32 Block - 39;
    /// ggml: E2M1 with UE4M3 scales for 16 values each; 36 bytes hold 64 values.
    NVFP4 "NVFP4" 288/64 Block - 40;
    /// ggml: signs with one scale; 18 bytes hold 128 values.
    Q1_0 "Q1_0" 144/128 Block - 41;
    /// ggml: 2-bit, one scale; 18 bytes hold 64 values.
    Q2_0 "Q2_0" 144/64 Block - 42;
}

impl Dtype {
    /// Name as its container spells it, e.g. `BF16`, `F8_E4M3` or `Q4_K`.
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

    /// Bytes of `n` elements in a row.
    ///
    /// # Errors
    /// `Unsupported` if the type is unknown; `Parse` if they are no whole blocks or bytes, or overflow.
    pub fn byte_size_for_n_elements(self, n: u64) -> Result<u64> {
        if self.row().kind == Kind::Unknown {
            return Err(AnamnesisError::unsupported(
                format!("GGUF {self}"),
                "its size is unknown",
            ));
        }
        let bytes = usize::try_from(n).ok().and_then(|n| self.byte_len(&[n]));
        bytes
            .map(|bytes| bytes as u64)
            .ok_or_else(|| AnamnesisError::parse(format!("{n} elements of {self}")))
    }

    /// Elements that are stored together: 1, or the block of a ggml type. Rows are whole blocks.
    #[must_use]
    pub fn block_size(self) -> usize {
        self.row().block
    }

    /// Bytes of such a block; `None` if the type is unknown or an element ends within a byte.
    #[must_use]
    pub fn type_size(self) -> Option<usize> {
        let bits = self.row().bits;
        (bits > 0 && bits.is_multiple_of(8)).then_some(bits / 8)
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

    /// Whether this is a float of eight bits or fewer, or a block type of ggml's.
    #[must_use]
    pub fn is_quantized(self) -> bool {
        matches!(self.row().kind, Kind::Code | Kind::Block)
    }

    /// Whether elements are stored in ggml's blocks, with their scales among them.
    #[must_use]
    pub fn is_ggml_block(self) -> bool {
        self.row().kind == Kind::Block
    }

    /// The type with number `id` in GGUF files.
    pub(crate) fn from_ggml(id: u32) -> Self {
        Self::ALL
            .iter()
            .copied()
            .find(|d| d.row().ggml == Some(id))
            .unwrap_or(Self::UnknownGgml(id))
    }

    /// The number that GGUF files have for this type.
    pub(crate) fn ggml_id(self) -> Option<u32> {
        match self {
            Self::UnknownGgml(id) => Some(id),
            _ => self.row().ggml,
        }
    }

    /// Whether safetensors files can hold the type.
    pub(crate) fn in_safetensors(self) -> bool {
        self.row().safetensors.is_some()
    }

    /// Bytes of `shape` at this dtype; `None` if it overflows, does not end on a byte, or has rows that are
    /// not whole blocks.
    pub(crate) fn byte_len(self, shape: &[usize]) -> Option<usize> {
        let Row {
            block, bits, kind, ..
        } = *self.row();
        if block > 1 && !shape.last().unwrap_or(&1).is_multiple_of(block) || kind == Kind::Unknown {
            return None;
        }
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
        let bits = (elements / block).checked_mul(bits)?;
        bits.is_multiple_of(8).then_some(bits / 8)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_those_of_safetensors() {
        for &dtype in Dtype::ALL {
            let Some(theirs) = dtype.row().safetensors else {
                continue;
            };
            assert_eq!(dtype.name(), theirs.to_string());
            assert_eq!(dtype.bits(), theirs.bitsize());
            assert_eq!(Dtype::try_from(theirs).unwrap(), dtype);
        }
    }

    #[test]
    fn ggml_numbers_are_unique() {
        for id in 0..64 {
            assert!(
                Dtype::ALL
                    .iter()
                    .filter(|d| d.row().ggml == Some(id))
                    .count()
                    <= 1
            );
            assert_eq!(Dtype::from_ggml(id).ggml_id(), Some(id));
        }
    }

    #[test]
    fn sub_byte_lengths() {
        assert_eq!(Dtype::F4.byte_len(&[3, 2]), Some(3));
        assert_eq!(Dtype::F4.byte_len(&[3]), None);
        assert_eq!(Dtype::F64.byte_len(&[usize::MAX, 2]), None);
        assert_eq!(Dtype::Q4_K.byte_len(&[3, 512]), Some(6 * 144));
        assert_eq!(Dtype::Q4_K.byte_len(&[512, 3]), None);
    }
}
