//! Groups of values of a row that share a scale of one byte: MXFP4, MXFP6, MXFP8, NVFP4. Two codes of
//! four bits lie in a byte, the first in its low nibble; others have a byte each.

use super::activations::Activations;
use super::narrow::{NarrowFloat, max_abs, narrow_number, nearest_magnitude, with_sign_of};
use crate::remember::kernels::fp8::f32_from_exponent;
use crate::remember::kernels::nvfp4::BLOCK as NVFP4_BLOCK;
use crate::simd::{Flat, Level, Routine, copy, perform, zip};

/// The scale of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupScale {
    /// The byte that is stored.
    pub byte: u8,
    /// The operand of [`GroupArithmetic::scaled`].
    pub factor: f32,
    /// The value of the stored byte, by which decoding multiplies.
    pub scale: f32,
}

/// A library's arithmetic for groups of `GROUP` values: how it finds a scale and how it rounds.
/// Implementations are `#[inline(always)]`.
pub(crate) trait GroupArithmetic<const GROUP: usize>: Sync {
    /// The float that values become. [`NarrowFloat::SIGN_BIT`] tells whether its codes have four
    /// bits.
    type Code: NarrowFloat;

    /// The scale of a group whose largest magnitude is `max_abs`.
    fn group_scale(&self, max_abs: f32) -> GroupScale;

    /// The scale whose stored byte is this one, if a library decodes it to a number other than 0: by
    /// default a power of two, by whose reciprocal values are multiplied.
    #[inline(always)]
    fn scale_of(&self, byte: u8) -> Option<GroupScale> {
        let scale = f32_from_exponent(byte);
        (byte < u8::MAX).then(|| GroupScale { byte, factor: 1.0 / scale, scale })
    }

    /// Whether scaled values are rounded, by [`round`](Self::round).
    const ROUNDS: bool = false;

    /// `x` over the group's scale. `factor` is the group's [`GroupScale::factor`].
    #[inline(always)]
    fn scaled(&self, x: f32, factor: f32) -> f32 {
        x * factor
    }

    /// Rounds scaled values to the dtype in which the library computes.
    #[inline(always)]
    fn round(&self, scaled: &mut [f32]) {
        let _ = scaled;
    }

    /// The code of a scaled value, and the value that the code decodes to.
    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        narrow_number::<Self::Code>(x)
    }
}

/// Encodes whole groups that lie one after the other.
pub(crate) struct EncodeGroups<'a, A, const GROUP: usize> {
    pub arithmetic: &'a A,
    pub values: &'a [f32],
    pub activations: Activations<'a>,
    pub codes: &'a mut [u8],
    /// One byte for each group.
    pub scale_bytes: &'a mut [u8],
    /// Receives the values that decoding gives.
    pub back: &'a mut [f32],
}

impl<A: GroupArithmetic<GROUP>, const GROUP: usize> Routine for EncodeGroups<'_, A, GROUP> {
    #[inline(always)]
    fn run(&mut self) {
        let is_four_bits = A::Code::SIGN_BIT == 8;
        let bytes = if is_four_bits { GROUP / 2 } else { GROUP };
        let batches = zip(self.values.chunks(GROUP * BATCH), self.back.chunks_mut(GROUP * BATCH));
        let stored = zip(self.codes.chunks_mut(bytes * BATCH), self.scale_bytes.chunks_mut(BATCH));
        let Activations { variances, means, .. } = self.activations;
        let mut statistics = zip(variances.chunks(GROUP * BATCH), means.chunks(GROUP * BATCH));
        let (mut first, mut carried) = (0, 0.0);
        for ((values, back), (codes, scale_bytes)) in zip(batches, stored) {
            let values = values.as_chunks::<GROUP>().0;
            let maxima = largest_of_groups(values);
            // One array for each field, so that LLVM finds several scales in a register.
            let mut bytes_of_scales = [0; BATCH];
            let (mut factors, mut scales) = ([0.0; BATCH], [0.0; BATCH]);
            for g in 0..BATCH {
                let scale = self.arithmetic.group_scale(maxima[g]);
                bytes_of_scales[g] = scale.byte;
                factors[g] = scale.factor;
                scales[g] = scale.scale;
            }
            // Codes of more bits are about as fine under any exponent that holds the largest value, so
            // that nothing is to be found.
            if is_four_bits && let Some((variances, means)) = statistics.next() {
                let statistics =
                    zip(variances.as_chunks::<GROUP>().0, means.as_chunks::<GROUP>().0);
                for (g, (values, statistics)) in zip(values.iter(), statistics).enumerate() {
                    if self.activations.begins_row(first + g, GROUP) {
                        carried = 0.0;
                    }
                    let plain = GroupScale {
                        byte: bytes_of_scales[g],
                        factor: factors[g],
                        scale: scales[g],
                    };
                    let best;
                    (best, carried) =
                        search_scale(self.arithmetic, values, statistics, plain, carried);
                    (bytes_of_scales[g], factors[g], scales[g]) =
                        (best.byte, best.factor, best.scale);
                }
                first += BATCH;
            }
            copy(&bytes_of_scales[..scale_bytes.len()], scale_bytes);
            let mut unpacked = [[0u8; GROUP]; BATCH];
            let code_bytes = match is_four_bits {
                true => &mut unpacked[..],
                false => codes.as_chunks_mut::<GROUP>().0,
            };
            let mut scaled = [[0.0; GROUP]; BATCH];
            if A::ROUNDS {
                for ((scaled, values), factor) in zip(zip(&mut scaled[..], values), factors) {
                    for (scaled, &x) in zip(&mut scaled[..], values) {
                        *scaled = self.arithmetic.scaled(x, factor);
                    }
                }
                self.arithmetic.round(scaled.flat_mut());
            }
            let values = zip(values.iter(), &scaled);
            let groups = zip(zip(values, back.as_chunks_mut::<GROUP>().0), code_bytes);
            let scales = zip(factors, scales);
            for (((values, back), codes), scale) in zip(groups, scales) {
                encode_group::<A, GROUP>(self.arithmetic, values, scale, codes, back);
            }
            if is_four_bits {
                // All groups at once: a vector load of what narrower stores have just written would
                // wait for them.
                pack_pairs(unpacked.flat(), codes);
            }
        }
    }
}

/// The slices that encoding of a tile's groups reads and writes, for any arithmetic.
pub(crate) struct GroupBuffers<'a> {
    pub values: &'a [f32],
    pub activations: Activations<'a>,
    pub codes: &'a mut [u8],
    /// One byte for each group.
    pub scale_bytes: &'a mut [u8],
    /// Receives the values that decoding gives.
    pub back: &'a mut [f32],
    pub level: Level,
}

impl GroupBuffers<'_> {
    /// Encodes the groups with `arithmetic`.
    pub(crate) fn encode_with<A: GroupArithmetic<GROUP>, const GROUP: usize>(self, arithmetic: &A) {
        let Self { values, activations, codes, scale_bytes, back, level } = self;
        let groups = EncodeGroups { arithmetic, values, activations, codes, scale_bytes, back };
        perform(level, &mut { groups });
    }
}

/// Scales that are tried, as what is added to the byte of the library's. Bytes of MXFP4 are exponents.
const STEPS: [i32; 8] = [0, -1, 1, -2, 2, -3, 3, 4];

/// Bytes of NVFP4 that differ by eight are a factor of two. The best scale is the library's or a
/// neighbour, or one under which the largest value meets a smaller code.
const STEPS_OF_NVFP4: [i32; 8] = [0, -1, 1, -2, 3, 4, 5, 6];

/// The other scales of NVFP4, of which any may be the best if some values count more than others.
const OTHERS_OF_NVFP4: [i32; 8] = [2, 7, -3, -4, -5, -6, -7, -8];

/// Of the library's scale of a group and those around it the one under which errors cost least; the
/// library's, if none is better. With what is carried on.
#[inline(always)]
fn search_scale<A: GroupArithmetic<GROUP>, const GROUP: usize>(
    arithmetic: &A,
    values: &[f32; GROUP],
    (variances, means): (&[f32; GROUP], &[f32; GROUP]),
    plain: GroupScale,
    carried: f32,
) -> (GroupScale, f32) {
    const TRIED: usize = STEPS.len();
    // Codes are symmetric: the error of a magnitude counts with the sign of the value.
    let (mut magnitudes, mut signed) = ([0.0; GROUP], [0.0; GROUP]);
    for i in 0..GROUP {
        magnitudes[i] = values[i].abs();
        signed[i] = with_sign_of(values[i], means[i]);
    }
    let (mut steps, mut others) = match GROUP {
        NVFP4_BLOCK => (STEPS_OF_NVFP4, is_uneven(variances).then_some(OTHERS_OF_NVFP4)),
        _ => (STEPS, None),
    };
    let (mut found, mut end, mut least) = (plain, carried, f32::INFINITY);
    loop {
        let (mut tried, mut inverses, mut scales) = ([plain; TRIED], [0.0; TRIED], [0.0; TRIED]);
        for i in 0..TRIED {
            let byte = u8::try_from(i32::from(plain.byte) + steps[i]).ok();
            let byte = byte.filter(|_| steps[i] != 0);
            if let Some(scale) = byte.and_then(|byte| arithmetic.scale_of(byte)) {
                tried[i] = scale;
            }
            // Quotients are products here: where the last place decides on a code, both cost the same.
            inverses[i] = arithmetic.scaled(1.0, tried[i].factor);
            scales[i] = tried[i].scale;
        }
        let (mut squares, mut errors) = ([0.0; TRIED], [carried; TRIED]);
        for ((&x, &mean), &variance) in zip(zip(magnitudes.iter(), &signed), variances) {
            for i in 0..TRIED {
                let error = nearest_magnitude::<A::Code>(x * inverses[i]) * scales[i] - x;
                squares[i] += variance * error * error;
                errors[i] += mean * error;
            }
        }
        for i in 0..TRIED {
            let cost = squares[i] + errors[i] * errors[i];
            if cost < least {
                (least, found, end) = (cost, tried[i], errors[i]);
            }
        }
        match others.take() {
            Some(others) => steps = others,
            None => return (found, end),
        }
    }
}

/// Whether some values of a group count more than others.
#[inline(always)]
fn is_uneven<const GROUP: usize>(variances: &[f32; GROUP]) -> bool {
    let mut differ = false;
    for &variance in variances {
        differ |= variance != variances[0];
    }
    differ
}

/// Groups whose scales are found before any of them is encoded: a scale is one long chain of
/// dependent operations.
const BATCH: usize = 16;

/// Values of a group of an MX format. Those of NVFP4 have half as many.
const MOST_IN_GROUP: usize = 32;

/// Encodes one group under the factor and the scale of its [`GroupScale`]. `scaled` are its scaled
/// values where these are rounded.
#[inline(always)]
fn encode_group<A: GroupArithmetic<GROUP>, const GROUP: usize>(
    arithmetic: &A,
    (values, scaled): (&[f32; GROUP], &[f32; GROUP]),
    (factor, scale): (f32, f32),
    codes: &mut [u8; GROUP],
    back: &mut [f32; GROUP],
) {
    for (((&x, &scaled), code), back) in zip(zip(zip(values.iter(), scaled), codes), back) {
        let scaled = match A::ROUNDS {
            true => scaled,
            false => arithmetic.scaled(x, factor),
        };
        let (bits, value) = arithmetic.code(scaled);
        *code = bits as u8;
        *back = value * scale;
    }
}

/// Packs as many codes of four bits as `codes` has room for.
#[inline(always)]
fn pack_pairs(unpacked: &[u8], codes: &mut [u8]) {
    for (out, pair) in zip(&mut codes[..], unpacked.as_chunks::<2>().0) {
        // Of two codes in a word of 16 bits, the second is shifted down onto the high nibble of the
        // first.
        let pair = u16::from_le_bytes(*pair);
        *out = (pair | pair >> 4) as u8;
    }
}

/// The largest magnitudes of up to [`BATCH`] groups of finite values; 0 for those that are not
/// there.
#[inline(always)]
fn largest_of_groups<const GROUP: usize>(groups: &[[f32; GROUP]]) -> [f32; BATCH] {
    let mut maxima = [0.0; BATCH];
    let Some(groups) = groups.first_chunk::<BATCH>() else {
        for (values, max) in zip(groups.iter(), &mut maxima) {
            *max = max_abs(values, 0.0);
        }
        return maxima;
    };
    // Neighbours are compared until each group has one left: as many groups as lanes end in one
    // register, where the maximum of each group by itself would take as many steps for one.
    // Magnitudes are ordered as their bits are.
    const { assert!(GROUP == MOST_IN_GROUP || GROUP == MOST_IN_GROUP / 2) };
    let mut magnitudes = [0; MOST_IN_GROUP * BATCH];
    for (magnitude, x) in zip(&mut magnitudes[..], groups.flat()) {
        *magnitude = (x.to_bits() & 0x7fff_ffff).cast_signed();
    }
    let of_16 = match GROUP {
        MOST_IN_GROUP => larger_of_pairs::<{ 16 * BATCH }>(&magnitudes),
        _ => magnitudes[..16 * BATCH]
            .try_into()
            .unwrap_or([0; 16 * BATCH]),
    };
    let of_8 = larger_of_pairs::<{ 8 * BATCH }>(&of_16);
    let of_4 = larger_of_pairs::<{ 4 * BATCH }>(&of_8);
    let of_2 = larger_of_pairs::<{ 2 * BATCH }>(&of_4);
    let of_1 = larger_of_pairs::<BATCH>(&of_2);
    for (max, magnitude) in zip(&mut maxima[..], of_1) {
        *max = f32::from_bits(magnitude.cast_unsigned());
    }
    maxima
}

/// The larger number of each pair of neighbours.
#[inline(always)]
fn larger_of_pairs<const N: usize>(numbers: &[i32]) -> [i32; N] {
    let mut larger = [0; N];
    for (larger, [a, b]) in zip(&mut larger[..], numbers.as_chunks().0) {
        *larger = *a.max(b);
    }
    larger
}

#[cfg(test)]
mod tests {
    use std::marker::PhantomData;

    use super::*;
    use crate::lethe::kernels::mx::{self, BLOCK};
    use crate::lethe::kernels::narrow::Fp4E2M1;
    use crate::test_utils::miri_or;

    const CODES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

    /// torchao's FLOOR, one value at a time.
    fn twin(values: &[f32]) -> (Vec<u8>, Vec<u8>) {
        let (mut codes, mut shared) = (vec![], vec![]);
        for group in values.chunks(BLOCK) {
            let max = group.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            let exponent = (1..255)
                .rev()
                .find(|&e| 2f64.powi(e - 127) <= f64::from(max))
                .unwrap_or(0);
            let byte = (exponent - 2).max(0);
            shared.push(byte as u8);
            let scale = 2f64.powi(byte.max(1) - 127);
            let code = |&x: &f32| {
                let distance =
                    |code: usize| (f64::from(CODES[code]) - f64::from(x.abs()) / scale).abs();
                let nearest = (0..8).min_by(|&a, &b| {
                    distance(a)
                        .total_cmp(&distance(b))
                        .then((a & 1).cmp(&(b & 1)))
                });
                nearest.unwrap() as u8 | if x.is_sign_negative() { 8 } else { 0 }
            };
            let all: Vec<u8> = group.iter().map(code).collect();
            codes.extend(all.chunks(2).map(|pair| pair[0] | pair[1] << 4));
        }
        (codes, shared)
    }

    #[test]
    fn groups_are_as_one_value_at_a_time() {
        let mut state = 3u32;
        let mut values: Vec<f32> = (0..BLOCK * miri_or(12, 200))
            .map(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Groups of several scales, and among the values middles between codes.
                let x = if state & 64 == 0 {
                    (state >> 8) as f32 / 1e6
                } else {
                    (state >> 16) as f32 % 30.0 / 4.0
                };
                x * 2f32.powi((i / BLOCK) as i32 * miri_or(7, 1) % 60 - 30)
                    * if state & 128 == 0 { 1.0 } else { -1.0 }
            })
            .collect();
        values[..BLOCK].fill(0.0);
        values[BLOCK..2 * BLOCK].fill(-0.0);
        values[2 * BLOCK..3 * BLOCK].fill(f32::MIN_POSITIVE / 64.0);
        values[3 * BLOCK] = f32::MAX;
        let (codes, shared) = twin(&values);
        for level in Level::available() {
            let mut ours = EncodeGroups {
                arithmetic: &mx::TorchAoMx::<Fp4E2M1>(mx::ScaleMode::Floor, PhantomData),
                values: &values,
                activations: Activations::default(),
                codes: &mut vec![0; codes.len()],
                scale_bytes: &mut vec![0; shared.len()],
                back: &mut vec![0.0; values.len()],
            };
            perform(level, &mut ours);
            assert_eq!((&*ours.codes, &*ours.scale_bytes), (&*codes, &*shared), "{level:?}");
            for (i, (&x, &back)) in values.iter().zip(&*ours.back).enumerate() {
                let (code, scale) = (
                    codes[i / 2] >> (i % 2 * 4) & 15,
                    2f64.powi(i32::from(shared[i / BLOCK]) - 127),
                );
                let expected = (f64::from(CODES[usize::from(code & 7)]) * scale) as f32;
                assert_eq!((back.abs(), back.is_sign_negative()), (expected, x.is_sign_negative()));
            }
        }
    }
}
