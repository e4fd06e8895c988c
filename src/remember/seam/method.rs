//! [`MethodFacts`]: what the method of a config says of every weight, beside what the config says
//! of each.

use crate::Dtype;
use crate::config::QuantMethod;
use crate::remember::seam::{CodeType, Fp8Format, Granularity, Group, QuantScheme};

/// What a method says of every weight of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MethodFacts {
    pub method: &'static QuantMethod,
    /// The type of the codes, unless a word of the config says another.
    pub codes: StatedCodes,
    /// How messages say it, where no word of a config says another.
    pub fixed: Option<&'static str>,
    /// Which values share a scale, and how messages say it.
    pub scales: Option<(Granularity, &'static str)>,
    /// Rows and columns of the blocks where the config does not state them, and how messages say it.
    pub block: Option<([usize; 2], &'static str)>,
    /// How messages say that there are no blocks: of the method, and of a config with a null for
    /// their size.
    pub no_blocks: [Option<&'static str>; 2],
    /// Scales keep the dimension that was reduced, with one entry.
    pub keeps_reduced: bool,
}

impl MethodFacts {
    /// Of a method that has one type of codes.
    pub(crate) const fn new(method: &'static QuantMethod, codes: StatedCodes) -> Self {
        Self {
            method,
            codes,
            fixed: None,
            scales: None,
            block: None,
            no_blocks: [None, None],
            keeps_reduced: false,
        }
    }
}

/// How the configs of a library name what a weight is quantized to.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// Words for types of codes (`dtype`, `fmt`, `data_type`, `format`).
    pub words: &'static [(&'static str, StatedCodes)],
    /// Values of `quant_algo`, which may be the beginnings of longer ones.
    pub algorithms: &'static [Algorithm],
}

/// A value of `quant_algo`: codes, and scales where the name fixes them.
pub(crate) type Algorithm = (&'static str, StatedCodes, Option<Granularity>);

/// A type of codes, as far as configs name it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StatedCodes {
    Int(u8),
    /// A float of this many bits, and which one of eight.
    Float(u8, Option<Fp8Format>),
    /// Integers in words: what GPTQ and AWQ have, whatever their width.
    Words,
    /// Integers of four bits in some layers, and E4M3 in the others.
    Int4OrE4M3,
}

impl StatedCodes {
    pub(crate) const E4M3: Self = Self::Float(8, Some(Fp8Format::E4M3));
    pub(crate) const E5M2: Self = Self::Float(8, Some(Fp8Format::E5M2));
    pub(crate) const FLOAT4: Self = Self::Float(4, None);

    /// The codes of a weight. `None` of a scheme whose configs are its own, and are checked by it.
    pub(super) fn of(group: &Group<'_>) -> Option<Self> {
        Some(match group.scheme {
            // Sparse values are codes if they have a scale.
            QuantScheme::Sparse => match group.parts[0].1.dtype() {
                Dtype::I8 => Self::Int(8),
                dtype => Self::Float(8, Some(Fp8Format::of(dtype)?)),
            },
            QuantScheme::FineGrainedFp8 { format, .. }
            | QuantScheme::PerChannelFp8 { format }
            | QuantScheme::PerTensorFp8 { format } => Self::Float(8, Some(format)),
            QuantScheme::Nvfp4 { .. } => Self::Float(4, None),
            QuantScheme::Grouped { codes, .. } => match codes {
                CodeType::Int(bits) | CodeType::Uint(bits) => Self::Int(bits),
                CodeType::Fp4 | CodeType::Mxfp4 | CodeType::Nvfp4 => Self::Float(4, None),
                CodeType::Fp6 | CodeType::Fp6E2M3 | CodeType::Fp6E3M2 => Self::Float(6, None),
                CodeType::Fp8 | CodeType::Mxfp8 => Self::Float(8, None),
                CodeType::Fp16 | CodeType::Bf16 => Self::Float(16, None),
                // Their scheme's configs are its own.
                CodeType::Ternary
                | CodeType::Minifloat { .. }
                | CodeType::Nf4
                | CodeType::Codebook(_) => return None,
            },
            _ => return None,
        })
    }

    /// Whether codes that are `found` can be called like this.
    pub(super) fn allows(self, found: Self) -> bool {
        match (self, found) {
            // Narrower integers are stored in bytes as well.
            (Self::Words, Self::Int(found)) => found < 8,
            (Self::Int4OrE4M3, found) => found == Self::Int(4) || found == Self::E4M3,
            (Self::Int(stated), Self::Int(found)) => {
                stated == found || stated < found && found == 8
            }
            (Self::Float(8, Some(stated)), Self::Float(8, Some(found))) => stated == found,
            // Models whose config has one word for all layers have experts of four bits
            // (DeepSeek-V4's `fmt: e4m3`).
            (Self::Float(stated, _), Self::Float(found, _)) => stated == found || found == 4,
            _ => false,
        }
    }
}
