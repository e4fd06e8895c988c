//! [`Tally`]: counts of special values among floats.

use crate::Dtype;
use crate::simd::{Level, Routine, perform};

/// Counts of values by class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub values: u64,
    pub nan: u64,
    pub infinite: u64,
    pub zero: u64,
    /// Negative and not zero; infinities and NaN with a sign count.
    pub negative: u64,
    /// Not zero, and below the least number of full precision.
    pub subnormal: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.values += other.values;
        self.nan += other.nan;
        self.infinite += other.infinite;
        self.zero += other.zero;
        self.negative += other.negative;
        self.subnormal += other.subnormal;
    }

    /// Whether values of `dtype` can be tallied.
    pub(super) fn supports(dtype: Dtype) -> bool {
        FloatFormat::of(dtype).is_some()
    }

    /// Adds the values of `dtype` in `bytes`, if they can be tallied.
    pub(super) fn add_bytes(&mut self, dtype: Dtype, bytes: &[u8], level: Level) {
        if let Some(format) = FloatFormat::of(dtype) {
            let tally = self;
            let mut routine = TallyBytes { format, bytes, tally };
            perform(level, &mut routine);
        }
    }
}

/// The classes of a float format by its bits without the sign.
#[derive(Clone, Copy)]
struct FloatFormat {
    bits: u32,
    /// Infinity; all ones if there is none.
    infinity: u64,
    /// The largest finite number. What is above it, and not infinity, is NaN.
    largest: u64,
    /// The least number of full precision.
    normal: u64,
}

impl FloatFormat {
    /// The format of a float dtype that has a sign bit at the top.
    fn of(dtype: Dtype) -> Option<Self> {
        let ieee = |bits: u32, mantissa: u32| Self {
            bits,
            infinity: ((1 << (bits - 1 - mantissa)) - 1) << mantissa,
            largest: (((1 << (bits - 1 - mantissa)) - 1) << mantissa) - 1,
            normal: 1 << mantissa,
        };
        Some(match dtype {
            Dtype::F64 => ieee(64, 52),
            Dtype::F32 | Dtype::C64 => ieee(32, 23),
            Dtype::F16 => ieee(16, 10),
            Dtype::BF16 => ieee(16, 7),
            Dtype::F8E5M2 => ieee(8, 2),
            // OCP: no infinity, and one NaN for each sign.
            Dtype::F8E4M3 => Self { bits: 8, infinity: u64::MAX, largest: 0x7e, normal: 8 },
            _ => return None,
        })
    }
}

/// Tallies the values of `bytes`.
struct TallyBytes<'a> {
    format: FloatFormat,
    bytes: &'a [u8],
    tally: &'a mut Tally,
}

impl Routine for TallyBytes<'_> {
    #[inline(always)]
    fn run(&mut self) {
        /// Values that are counted in the type of their bits, so that a vector has as many counters
        /// as values.
        const CHUNK: usize = 128;
        macro_rules! count {
            ($type:ty) => {{
                let sign: $type = 1 << (<$type>::BITS - 1);
                // A bound that this type does not hold, such as the infinity of a format without
                // one, is cut to all ones. No value without its sign has them.
                let [infinity, largest, normal] = [
                    self.format.infinity as $type,
                    self.format.largest as $type,
                    self.format.normal as $type,
                ];
                let (values, _) = self.bytes.as_chunks::<{ size_of::<$type>() }>();
                for chunk in values.chunks(CHUNK) {
                    let [mut above, mut infinite, mut zero, mut negative, mut small]: [$type; 5] =
                        [0; 5];
                    for bytes in chunk {
                        let bits = <$type>::from_le_bytes(*bytes);
                        let abs = bits & !sign;
                        above += <$type>::from(abs > largest);
                        infinite += <$type>::from(abs == infinity);
                        zero += <$type>::from(abs == 0);
                        negative += <$type>::from(bits > sign);
                        small += <$type>::from(abs < normal);
                    }
                    self.tally.values += chunk.len() as u64;
                    self.tally.nan += u64::from(above - infinite);
                    self.tally.infinite += u64::from(infinite);
                    self.tally.zero += u64::from(zero);
                    self.tally.negative += u64::from(negative);
                    self.tally.subnormal += u64::from(small - zero);
                }
            }};
        }
        match self.format.bits {
            8 => count!(u8),
            16 => count!(u16),
            32 => count!(u32),
            _ => count!(u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// Every F16 and BF16 against the `half` crate, at every level.
    #[test]
    fn classes_are_those_of_half() {
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        macro_rules! expected {
            ($type:ty) => {{
                let count = |is: fn($type) -> bool| {
                    let values = (0..=u16::MAX).map(<$type>::from_bits);
                    values.filter(|&x| is(x)).count() as u64
                };
                Tally {
                    values: 1 << 16,
                    nan: count(<$type>::is_nan),
                    infinite: count(<$type>::is_infinite),
                    zero: count(|x| x.to_f32() == 0.0),
                    negative: count(|x| x.is_sign_negative() && x.to_f32() != 0.0),
                    subnormal: count(|x| !x.is_normal() && x.is_finite() && x.to_f32() != 0.0),
                }
            }};
        }
        for (dtype, expected) in [(Dtype::F16, expected!(f16)), (Dtype::BF16, expected!(bf16))] {
            for level in Level::available() {
                let mut tally = Tally::default();
                tally.add_bytes(dtype, &all, level);
                assert_eq!(tally, expected, "{dtype}");
            }
        }
    }

    #[test]
    fn wide_and_narrow_floats() {
        let values = [f32::NAN, f32::INFINITY, -0.0, -1.0, 1e-40, 1.0];
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut tally = Tally::default();
        tally.add_bytes(Dtype::F32, &bytes, Level::Baseline);
        let expected = Tally { values: 6, nan: 1, infinite: 1, zero: 1, negative: 1, subnormal: 1 };
        assert_eq!(tally, expected);
        let doubles: Vec<u8> = values
            .iter()
            .flat_map(|&x| f64::from(x).to_le_bytes())
            .collect();
        let mut tally = Tally::default();
        tally.add_bytes(Dtype::F64, &doubles, Level::Baseline);
        assert_eq!((tally.nan, tally.infinite, tally.zero, tally.subnormal), (1, 1, 1, 0));
        let mut tally = Tally::default();
        tally.add_bytes(Dtype::F8E4M3, &[0x7f, 0xff, 0x7e, 0, 0x80, 7, 8], Level::Baseline);
        assert_eq!((tally.nan, tally.infinite, tally.zero, tally.subnormal), (2, 0, 2, 1));
    }
}
