//! [`SdnqDtype`]: SDNQ's names of dtypes, such as `uint4`, `float8_e4m3fn` and `float6_e2m4fnu`.
//!
//! Source: sdnq `common.py` (`dtype_dict`).

/// A dtype of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SdnqDtype {
    Int(u8),
    Uint(u8),
    /// A float that SDNQ packs itself. Every code is finite.
    Packed(PackedFloat),
    /// A float that torch has.
    Native(NativeFloat),
}

/// A float of one to sixteen bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedFloat {
    pub exponent: u8,
    pub mantissa: u8,
    pub is_signed: bool,
}

/// A float of torch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NativeFloat {
    F32,
    BF16,
    F16,
    E4M3,
    E5M2,
    E4M3Fnuz,
    E5M2Fnuz,
    E8M0,
}

/// Names that do not tell their sizes, and the dtypes that they stand for.
const ALIASES: &[(&str, &str)] = &[
    ("int1", "uint1"),
    ("bool", "uint1"),
    ("fp32", "float32"),
    ("bf16", "bfloat16"),
    ("fp16", "float16"),
    ("fp15", "float15_e5m9fn"),
    ("fp14", "float14_e5m8fn"),
    ("fp13", "float13_e5m7fn"),
    ("fp12", "float12_e5m6fn"),
    ("fp11", "float11_e5m5fn"),
    ("fp10", "float10_e5m4fn"),
    ("fp9", "float9_e4m4fn"),
    ("fp8", "float8_e4m3fn"),
    ("fp7", "float7_e3m3fn"),
    ("fp6", "float6_e3m2fn"),
    ("fp5", "float5_e2m2fn"),
    ("fp4", "float4_e2m1fn"),
    ("fp3", "float3_e1m1fn"),
    ("fp2", "float2_e1m0fn"),
    ("fp1", "float1_e1m0fnu"),
    ("ufp16", "float16_e5m11fnu"),
    ("ufp15", "float15_e5m10fnu"),
    ("ufp14", "float14_e5m9fnu"),
    ("ufp13", "float13_e5m8fnu"),
    ("ufp12", "float12_e5m7fnu"),
    ("ufp11", "float11_e5m6fnu"),
    ("ufp10", "float10_e5m5fnu"),
    ("ufp9", "float9_e4m5fnu"),
    ("ufp8", "float8_e4m4fnu"),
    ("ufp7", "float7_e3m4fnu"),
    ("ufp6", "float6_e3m3fnu"),
    ("ufp5", "float5_e2m3fnu"),
    ("ufp4", "float4_e2m2fnu"),
    ("ufp3", "float3_e1m2fnu"),
    ("ufp2", "float2_e1m1fnu"),
    ("ufp1", "float1_e1m0fnu"),
    // SDNQ's own E4M3, without NaN, beside torch's.
    ("float8_e4m3fn_sdnq", "float8_e4m3_sdnq"),
];

/// Names of torch's floats.
const NATIVE: &[(&str, NativeFloat)] = &[
    ("float32", NativeFloat::F32),
    ("bfloat16", NativeFloat::BF16),
    ("float16", NativeFloat::F16),
    ("float8_e4m3fn", NativeFloat::E4M3),
    ("float8_e5m2", NativeFloat::E5M2),
    ("float8_e4m3fnuz", NativeFloat::E4M3Fnuz),
    ("float8_e5m2fnuz", NativeFloat::E5M2Fnuz),
    ("float8_e8m0fnu", NativeFloat::E8M0),
];

impl SdnqDtype {
    /// The dtype that configs call `name`; `None` if SDNQ has none of this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
        let name = alias.map_or(name, |(_, name)| name);
        if let Some((_, native)) = NATIVE.iter().find(|(native, _)| *native == name) {
            return Some(Self::Native(*native));
        }
        let integer = |prefix: &str| -> Option<u8> { name.strip_prefix(prefix)?.parse().ok() };
        if let Some(bits) = integer("uint") {
            return is_integer(bits).then_some(Self::Uint(bits));
        }
        if let Some(bits) = integer("int") {
            return is_integer(bits).then_some(Self::Int(bits));
        }
        PackedFloat::parse(name).map(Self::Packed)
    }

    /// Bits of a code.
    pub(crate) fn bits(self) -> u8 {
        match self {
            Self::Int(bits) | Self::Uint(bits) => bits,
            Self::Packed(float) => float.bits(),
            Self::Native(NativeFloat::F32) => 32,
            Self::Native(NativeFloat::BF16 | NativeFloat::F16) => 16,
            Self::Native(_) => 8,
        }
    }

    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Self::Int(_) | Self::Uint(_))
    }

    /// Whether values have no sign, so that a zero point is stored beside their scale.
    pub(crate) fn is_unsigned(self) -> bool {
        match self {
            Self::Uint(_) => true,
            Self::Packed(float) => !float.is_signed,
            Self::Int(_) | Self::Native(_) => false,
        }
    }
}

fn is_integer(bits: u8) -> bool {
    matches!(bits, 1..=16 | 32)
}

impl PackedFloat {
    /// Reads `floatB_eXmYfn`, or `fnu` for a float without a sign.
    fn parse(name: &str) -> Option<Self> {
        let (bits, rest) = name.strip_prefix("float")?.split_once("_e")?;
        let (exponent, rest) = rest.split_once('m')?;
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let (mantissa, kind) = rest.split_at(end);
        let is_signed = match kind {
            "fn" | "_sdnq" => true,
            "fnu" => false,
            _ => return None,
        };
        let float =
            Self { exponent: exponent.parse().ok()?, mantissa: mantissa.parse().ok()?, is_signed };
        let is_known = (1..=5).contains(&float.exponent) && float.mantissa <= 15;
        (is_known && bits.parse() == Ok(float.bits())).then_some(float)
    }

    pub(crate) fn bits(self) -> u8 {
        self.exponent + self.mantissa + u8::from(self.is_signed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let float = |exponent, mantissa, is_signed| {
            Some(SdnqDtype::Packed(PackedFloat { exponent, mantissa, is_signed }))
        };
        for (name, dtype) in [
            ("uint4", Some(SdnqDtype::Uint(4))),
            ("int1", Some(SdnqDtype::Uint(1))),
            ("int32", Some(SdnqDtype::Int(32))),
            ("int17", None),
            ("uint0", None),
            ("fp8", Some(SdnqDtype::Native(NativeFloat::E4M3))),
            ("float8_e4m3fn_sdnq", float(4, 3, true)),
            ("float8_e5m2fn", float(5, 2, true)),
            ("float1_e1m0fnu", float(1, 0, false)),
            ("float6_e3m2fnu", None),
            ("float9_e8m0fn", None),
            ("float8_e4m3", None),
            ("floatx_e4m3fn", None),
            ("nf4", None),
        ] {
            assert_eq!(SdnqDtype::parse(name), dtype, "{name}");
        }
        for (alias, name) in ALIASES {
            assert!(SdnqDtype::parse(name).is_some(), "{alias}");
        }
    }
}
