//! How a weight is quantized, and how that is written in listings.

use std::fmt;

use crate::Dtype;

/// Format of eight-bit floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[non_exhaustive]
pub enum Fp8Format {
    /// OCP E4M3: no infinity, NaN at 0x7F and 0xFF.
    E4M3,
    /// OCP E5M2: the upper byte of an IEEE half.
    E5M2,
    /// E4M3 with bias 8 and NaN at 0x80.
    E4M3Fnuz,
    /// E5M2 with bias 16 and NaN at 0x80.
    E5M2Fnuz,
}

impl Fp8Format {
    /// The format of `dtype`, or `None` if it is not an eight-bit float.
    #[must_use]
    pub fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F8E4M3 => Some(Self::E4M3),
            Dtype::F8E5M2 => Some(Self::E5M2),
            Dtype::F8E4M3Fnuz => Some(Self::E4M3Fnuz),
            Dtype::F8E5M2Fnuz => Some(Self::E5M2Fnuz),
            _ => None,
        }
    }
}

impl fmt::Display for Fp8Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::E4M3 => "E4M3",
            Self::E5M2 => "E5M2",
            Self::E4M3Fnuz => "E4M3FNUZ",
            Self::E5M2Fnuz => "E5M2FNUZ",
        })
    }
}

/// Which values share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Granularity {
    /// The whole tensor, or each matrix of a stack.
    Tensor,
    /// A row.
    Channel,
    /// This many neighbouring values of a row.
    Group(usize),
    /// A block.
    Block {
        /// Rows of a block.
        rows: usize,
        /// Columns of a block.
        cols: usize,
    },
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor => f.write_str("per-tensor scale"),
            Self::Channel => f.write_str("per-channel scale"),
            Self::Group(n) => write!(f, "groups of {n}"),
            Self::Block { rows, cols } => write!(f, "{rows}x{cols} blocks"),
        }
    }
}

/// Type of the codes of a quantized weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CodeType {
    /// Signed integers of this many bits, in two's complement or with an offset.
    Int(u8),
    /// Unsigned integers of this many bits.
    Uint(u8),
    /// -1, 0 and 1.
    Ternary,
    /// Four-bit floats, E2M1.
    Fp4,
    /// Six-bit floats of the OCP microscaling format.
    Fp6,
    /// Six-bit floats, E2M3.
    Fp6E2M3,
    /// Six-bit floats, E3M2.
    Fp6E3M2,
    /// Eight-bit floats.
    Fp8,
    /// IEEE's floats of sixteen bits.
    Fp16,
    /// Floats of sixteen bits with the exponent of F32.
    Bf16,
    /// Floats of any sizes, all of whose codes are finite.
    Minifloat {
        /// Bits of the exponent.
        exponent: u8,
        /// Bits of the mantissa.
        mantissa: u8,
        /// Whether there is a sign.
        is_signed: bool,
    },
    /// E2M1 in blocks of 32 with an exponent each.
    Mxfp4,
    /// Eight-bit floats in blocks of 32 with an exponent each.
    Mxfp8,
    /// E2M1 in short blocks with an E4M3 scale each.
    Nvfp4,
    /// Entries of the codebook of QLoRA.
    Nf4,
    /// Entries of a codebook in the file, by codes of this many bits.
    Codebook(u8),
}

impl fmt::Display for CodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Int(bits) => write!(f, "INT{bits}"),
            Self::Uint(bits) => write!(f, "UINT{bits}"),
            Self::Ternary => f.write_str("ternary"),
            Self::Fp4 => f.write_str("FP4"),
            Self::Fp6 => f.write_str("FP6"),
            Self::Fp6E2M3 => f.write_str("FP6 (E2M3)"),
            Self::Fp6E3M2 => f.write_str("FP6 (E3M2)"),
            Self::Fp8 => f.write_str("FP8"),
            Self::Fp16 => f.write_str("FP16"),
            Self::Bf16 => f.write_str("BF16"),
            Self::Minifloat { exponent, mantissa, is_signed } => {
                let (prefix, bits) = (if is_signed { "" } else { "U" }, u8::from(is_signed));
                let bits = bits + exponent + mantissa;
                write!(f, "{prefix}FP{bits} (E{exponent}M{mantissa})")
            }
            Self::Mxfp4 => f.write_str("MXFP4"),
            Self::Mxfp8 => f.write_str("MXFP8"),
            Self::Nvfp4 => f.write_str("NVFP4"),
            Self::Nf4 => f.write_str("NF4"),
            Self::Codebook(bits) => write!(f, "codebook of {bits} bits"),
        }
    }
}

impl serde::Serialize for CodeType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How a weight is quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum QuantScheme {
    /// Not quantized.
    Unquantized,
    /// FP8 with a scale for each block of `rows` × `cols` values.
    FineGrainedFp8 {
        /// Layout of the codes.
        format: Fp8Format,
        /// Rows of a block.
        rows: usize,
        /// Columns of a block.
        cols: usize,
    },
    /// FP8 with a scale for each row.
    PerChannelFp8 {
        /// Layout of the codes.
        format: Fp8Format,
    },
    /// FP8 with one scale.
    PerTensorFp8 {
        /// Layout of the codes.
        format: Fp8Format,
    },
    /// FP8 whose values are the weights: a plain cast, no scale.
    CastFp8 {
        /// Layout of the codes.
        format: Fp8Format,
    },
    /// GPTQ: packed integers, scales and zero points by group of input columns.
    Gptq,
    /// AWQ, GEMM layout.
    Awq,
    /// BitsAndBytes NF4 or FP4.
    Bnb4,
    /// BitsAndBytes LLM.int8().
    BnbInt8,
    /// NVIDIA FP4: E2M1 in blocks of 16 with an E4M3 scale each, and a global scale.
    Nvfp4 {
        /// Whether the global scale divides, as compressed-tensors writes it, rather than
        /// multiplies, as ModelOpt does.
        divides: bool,
    },
    /// qlora-rs's native format: NF4 in blocks of any size, with and without zero points.
    Qnat,
    /// Narrow codes with scales, in the layout of one library.
    Grouped {
        /// Name to show: the library or the model that the layout is known by.
        family: &'static str,
        /// Type of the codes: `INT4`, `FP4`, ….
        codes: CodeType,
        /// Which values share a scale.
        scales: Granularity,
    },
    /// Floats or codes whose zeros are not stored.
    Sparse,
    /// BF16 whose exponents are stored in a Huffman code: lossless.
    DFloat11,
    /// EXL2: integers of 2 to 8 bits, each group of inputs with a width of its own.
    Exl2,
    /// EXL3: a trellis code between Hadamard matrices, with factors for inputs and outputs.
    Exl3 {
        /// Whole bits of a value.
        bits: u8,
        /// Whether every second value has one bit more, as in models of 1.5, 2.5 and 3.5 bits.
        has_half_bit: bool,
    },
    /// Vectors of codebooks, or sums of such vectors.
    Vectors {
        /// Name to show: the library that the layout is known by.
        family: &'static str,
        /// Bits of the codes of a vector.
        bits: usize,
        /// Values of a vector.
        values: usize,
    },
    /// A block type of ggml.
    Ggml {
        /// Dtype of the blocks.
        dtype: Dtype,
    },
    /// Recognised, but not decodable by this build.
    Other(&'static str),
}

impl QuantScheme {
    /// Whether the scheme has one byte a code. Many libraries name such a weight and its scale
    /// alike, `X.weight` and `X.weight_scale`, so that the names do not tell the library.
    pub(crate) fn has_common_names(&self) -> bool {
        matches!(
            self,
            Self::FineGrainedFp8 { .. }
                | Self::PerChannelFp8 { .. }
                | Self::PerTensorFp8 { .. }
                | Self::CastFp8 { .. }
                | Self::Grouped { codes: CodeType::Int(8), .. }
        )
    }

    /// Short name of the family: `FP8`, `GPTQ`, `BnB NF4/FP4`, ….
    #[must_use]
    pub fn family(&self) -> &'static str {
        match self {
            Self::Unquantized => "unquantized",
            Self::FineGrainedFp8 { .. }
            | Self::PerChannelFp8 { .. }
            | Self::PerTensorFp8 { .. }
            | Self::CastFp8 { .. } => "FP8",
            Self::Gptq => "GPTQ",
            Self::Awq => "AWQ",
            Self::Bnb4 => "BnB NF4/FP4",
            Self::BnbInt8 => "BnB INT8",
            Self::Nvfp4 { .. } => "NVFP4",
            Self::Ggml { .. } => "GGUF",
            Self::Qnat => "QNAT",
            Self::Grouped { family, .. } | Self::Vectors { family, .. } => family,
            Self::Sparse => "sparse",
            Self::DFloat11 => "DFloat11",
            Self::Exl2 => "EXL2",
            Self::Exl3 { .. } => "EXL3",
            Self::Other(name) => name,
        }
    }

    /// Text for a column of a listing: `FP8 E4M3, per-tensor scale`.
    #[must_use]
    pub fn column(&self) -> String {
        match self {
            Self::FineGrainedFp8 { format, rows, cols } => {
                format!("FP8 {format}, scale per {rows}x{cols} block")
            }
            Self::PerChannelFp8 { format } => format!("FP8 {format}, per-channel scale"),
            Self::PerTensorFp8 { format } => format!("FP8 {format}, per-tensor scale"),
            Self::CastFp8 { format } => format!("FP8 {format}, no scale"),
            _ => self.to_string(),
        }
    }

    /// Text for use inside a sentence: `per-tensor FP8 (E4M3)`.
    #[must_use]
    pub fn phrase(&self) -> String {
        let text = self.to_string();
        match self {
            // These texts begin with an ASCII letter, so the byte index is a character boundary.
            Self::FineGrainedFp8 { .. }
            | Self::PerChannelFp8 { .. }
            | Self::PerTensorFp8 { .. }
            | Self::Unquantized => text[..1].to_lowercase() + &text[1..],
            _ => text,
        }
    }
}

impl fmt::Display for QuantScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unquantized => f.write_str("Unquantized"),
            Self::FineGrainedFp8 { format, rows, cols } => {
                write!(f, "Fine-grained FP8 ({format}), {rows}x{cols} blocks")
            }
            Self::PerChannelFp8 { format } => {
                write!(f, "Per-channel FP8 ({format}), one scale per row")
            }
            Self::PerTensorFp8 { format } => write!(f, "Per-tensor FP8 ({format})"),
            Self::CastFp8 { format } => write!(f, "FP8 ({format}), plain cast without scales"),
            Self::Gptq => f.write_str("GPTQ"),
            Self::Awq => f.write_str("AWQ"),
            Self::Bnb4 => f.write_str("BitsAndBytes NF4/FP4 (4-bit, per-block absmax)"),
            Self::BnbInt8 => f.write_str("BitsAndBytes INT8 (LLM.int8(), per-row absmax)"),
            Self::Nvfp4 { divides: false } => {
                f.write_str("NVIDIA NVFP4 (ModelOpt), 16-value blocks")
            }
            Self::Nvfp4 { divides: true } => {
                f.write_str("NVIDIA NVFP4 (compressed-tensors), 16-value blocks")
            }
            Self::Qnat => f.write_str("QNAT NF4 (qlora-rs)"),
            Self::Grouped { family, codes, scales } => write!(f, "{family} {codes}, {scales}"),
            Self::Sparse => f.write_str("Sparse (compressed-tensors bitmask)"),
            Self::DFloat11 => f.write_str("DFloat11 (BF16, exponents Huffman-coded)"),
            Self::Exl2 => f.write_str("EXL2, groups of 2 to 8 bits"),
            Self::Exl3 { bits, has_half_bit } => {
                let half = if *has_half_bit { ".5" } else { "" };
                write!(f, "EXL3, {bits}{half}-bit trellis")
            }
            Self::Vectors { family, bits, values } => {
                write!(f, "{family}, {bits} bits for {values} values")
            }
            Self::Ggml { dtype: dtype @ Dtype::UnknownGgml(_) } => write!(f, "GGUF {dtype}"),
            Self::Ggml { dtype } => write!(f, "GGUF {dtype}, {}-value blocks", dtype.block_size()),
            Self::Other(name) => f.write_str(name),
        }
    }
}
