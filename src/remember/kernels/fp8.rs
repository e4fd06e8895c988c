//! Floats of eight bits, powers of two of eight bits, and the grid that scales make over a weight.
//!
//! Formats: OCP 8-bit floating point,
//! <https://www.opencompute.org/documents/ocp-8-bit-floating-point-specification-ofp8-revision-1-0-2023-12-01-pdf-1>;
//! FNUZ variants: <https://arxiv.org/abs/2206.02915>.

/// An 8-bit float format.
pub(crate) trait Float8: Copy + Sync {
    /// The exact value of a code.
    fn widen(code: u8) -> f32;
}

/// OCP's format with four bits of exponent: NaN, but no infinity.
#[derive(Clone, Copy)]
pub(crate) struct E4M3;

/// OCP's format with five bits of exponent: the upper byte of an IEEE half.
#[derive(Clone, Copy)]
pub(crate) struct E5M2;

/// AMD's E4M3: a bias one higher, one NaN, and no negative zero.
#[derive(Clone, Copy)]
pub(crate) struct E4M3Fnuz;

/// AMD's E5M2: a bias one higher, one NaN, and no negative zero.
#[derive(Clone, Copy)]
pub(crate) struct E5M2Fnuz;

impl Float8 for E4M3 {
    #[inline(always)]
    fn widen(code: u8) -> f32 {
        if code & 0x7f == 0x7f {
            f32::NAN
        } else {
            finite::<3, 7>(code)
        }
    }
}

impl Float8 for E5M2 {
    #[inline(always)]
    fn widen(code: u8) -> f32 {
        let special =
            f32::from_bits(u32::from(code & 0x80) << 24 | 0x7f80_0000 | u32::from(code & 3) << 21);
        if code & 0x7f >= 0x7c {
            special
        } else {
            finite::<2, 15>(code)
        }
    }
}

impl Float8 for E4M3Fnuz {
    #[inline(always)]
    fn widen(code: u8) -> f32 {
        if code == 0x80 {
            f32::NAN
        } else {
            finite::<3, 8>(code)
        }
    }
}

impl Float8 for E5M2Fnuz {
    #[inline(always)]
    fn widen(code: u8) -> f32 {
        if code == 0x80 {
            f32::NAN
        } else {
            finite::<2, 16>(code)
        }
    }
}

/// Sign, exponent, `MANTISSA` bits, all exponents finite. No step touches an f32 subnormal, which
/// some CPUs handle in microcode.
#[inline(always)]
pub(crate) fn finite<const MANTISSA: u32, const BIAS: u32>(code: u8) -> f32 {
    let magnitude = u32::from(code & 0x7f);
    let aligned = magnitude << (23 - MANTISSA);
    // The exponent rises by the difference of the biases.
    let normal = aligned + ((127 - BIAS) << 23);
    let smallest = (128 - BIAS) << 23; // the smallest normal; one place up, a subnormal is its excess
    let subnormal = (f32::from_bits(aligned + smallest) - f32::from_bits(smallest)).to_bits();
    let magnitude = if magnitude < 1 << MANTISSA {
        subnormal
    } else {
        normal
    };
    f32::from_bits(magnitude | u32::from(code & 0x80) << 24)
}

/// The power of two that an E8M0 byte stands for: 2^(b - 127), NaN for 255
/// (OCP microscaling formats; torch `float8_e8m0fnu`).
#[inline(always)]
pub(crate) fn f32_from_e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22), // 2^-127 is subnormal
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// The power of two of a plain exponent byte: 2^(b - 127), infinity for 255
/// (transformers, modelopt: `exp2(b - 127)`).
#[inline(always)]
pub(crate) fn f32_from_exponent(code: u8) -> f32 {
    if code == 255 {
        f32::INFINITY
    } else {
        f32_from_e8m0(code)
    }
}

/// Half of the power of two of an exponent byte: 2^(b - 128), which is finite for all.
#[inline(always)]
pub(crate) fn half_of_exponent(code: u8) -> f32 {
    let code = u32::from(code);
    f32::from_bits(if code < 2 {
        1 << (21 + code)
    } else {
        (code - 1) << 23
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    /// E5M2 is the upper byte of an IEEE half.
    #[test]
    fn e5m2_is_half_a_half() {
        for code in 0..=255u8 {
            let expected = f16::from_bits(u16::from(code) << 8).to_f32_const();
            let ours = E5M2::widen(code);
            assert!(
                ours.to_bits() == expected.to_bits() || ours.is_nan() && expected.is_nan(),
                "{code:02x}"
            );
        }
    }

    /// The definition of each format, term by term.
    #[test]
    fn formats_equal_their_definition() {
        let by_definition = |code: u8, mantissa: i32, bias: i32| {
            let (e, m) =
                (i32::from(code & 0x7f) >> mantissa, f64::from(code & ((1 << mantissa) - 1)));
            let m = m / f64::from(1 << mantissa);
            let value = if e == 0 {
                m * 2f64.powi(1 - bias)
            } else {
                (1.0 + m) * 2f64.powi(e - bias)
            };
            if code & 0x80 == 0 { value } else { -value }
        };
        for code in (0..=255u8).filter(|code| code & 0x7f != 0x7f) {
            assert_eq!(
                f64::from(E4M3::widen(code)).to_bits(),
                by_definition(code, 3, 7).to_bits(),
                "{code:02x}"
            );
        }
        for code in (0..=255u8).filter(|&code| code != 0x80) {
            assert_eq!(
                f64::from(E4M3Fnuz::widen(code)).to_bits(),
                by_definition(code, 3, 8).to_bits(),
                "{code:02x}"
            );
            assert_eq!(
                f64::from(E5M2Fnuz::widen(code)).to_bits(),
                by_definition(code, 2, 16).to_bits(),
                "{code:02x}"
            );
        }
        assert!(E4M3::widen(0x7f).is_nan() && E4M3::widen(0xff).is_nan());
        assert!(E4M3Fnuz::widen(0x80).is_nan() && E5M2Fnuz::widen(0x80).is_nan());
        assert_eq!(f32_from_e8m0(0), 2f32.powi(-127));
        assert_eq!(f32_from_e8m0(254), 2f32.powi(127));
    }
}
