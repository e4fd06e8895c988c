//! Groups of values of a row that share a scale of one byte: MXFP4, MXFP8, NVFP4. Two codes of four bits lie in a
//! byte, the first in its low nibble.

use super::narrow::{Narrow, largest, narrow};
use crate::simd::{Level, Routine, perform};

/// What the values of a group share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared {
    /// What is stored.
    pub byte: u8,
    /// What values meet.
    pub factor: f32,
    /// What codes are multiplied by when they are decoded.
    pub scale: f32,
}

/// How a library scales and rounds. `GROUP` values share a scale.
pub(crate) trait Recipe<const GROUP: usize>: Sync {
    /// What values become: [`Narrow::SIGN`] tells whether its codes have eight bits or four.
    type Code: Narrow;

    /// Of a group's largest magnitude.
    fn share(&self, max: f32) -> Shared;

    /// A value with the group's factor.
    #[inline(always)]
    fn meet(&self, x: f32, factor: f32) -> f32 {
        x * factor
    }

    /// The code of such a value, and what it stands for.
    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        narrow::<Self::Code>(x)
    }
}

/// A run of whole groups.
pub(crate) struct Groups<'a, R, const GROUP: usize> {
    pub recipe: &'a R,
    pub values: &'a [f32],
    pub codes: &'a mut [u8],
    /// One byte for each group.
    pub shared: &'a mut [u8],
    /// What decoding gives.
    pub back: &'a mut [f32],
}

impl<R: Recipe<GROUP>, const GROUP: usize> Routine for Groups<'_, R, GROUP> {
    #[inline(always)]
    fn run(&mut self) {
        let nibbles = R::Code::SIGN == 8;
        let bytes = if nibbles { GROUP / 2 } else { GROUP };
        let batches = self
            .values
            .chunks(GROUP * BATCH)
            .zip(self.back.chunks_mut(GROUP * BATCH));
        let stored = self
            .codes
            .chunks_mut(bytes * BATCH)
            .zip(self.shared.chunks_mut(BATCH));
        for ((values, back), (codes, shared)) in batches.zip(stored) {
            let values = values.as_chunks::<GROUP>().0;
            let mut all = [Shared {
                byte: 0,
                factor: 0.0,
                scale: 0.0,
            }; BATCH];
            for ((values, of_group), byte) in values.iter().zip(&mut all).zip(shared) {
                *of_group = self.recipe.share(largest(values, 0.0));
                *byte = of_group.byte;
            }
            let groups = values
                .iter()
                .zip(back.as_chunks_mut::<GROUP>().0)
                .zip(codes.chunks_exact_mut(bytes));
            for (((values, back), codes), shared) in groups.zip(&all) {
                encode::<R, GROUP>(self.recipe, values, shared, codes, back);
            }
        }
    }
}

/// Groups of a tile, whatever the recipe, and where their codes, scales and values go.
pub(crate) struct Job<'a> {
    pub values: &'a [f32],
    pub codes: &'a mut [u8],
    /// One byte for each group.
    pub shared: &'a mut [u8],
    pub back: &'a mut [f32],
    pub level: Level,
}

impl Job<'_> {
    /// Does it as `recipe` says.
    pub(crate) fn run<R: Recipe<GROUP>, const GROUP: usize>(self, recipe: &R) {
        let Self {
            values,
            codes,
            shared,
            back,
            level,
        } = self;
        perform(
            level,
            &mut Groups {
                recipe,
                values,
                codes,
                shared,
                back,
            },
        );
    }
}

/// Groups whose scales are found before any is encoded: a scale is one long chain of operations, and several of them
/// go on at the same time.
const BATCH: usize = 16;

/// One group.
#[inline(always)]
fn encode<R: Recipe<GROUP>, const GROUP: usize>(
    recipe: &R,
    values: &[f32; GROUP],
    shared: &Shared,
    codes: &mut [u8],
    back: &mut [f32; GROUP],
) {
    let mut whole = [0u8; GROUP];
    for ((&x, code), back) in values.iter().zip(&mut whole).zip(back) {
        let (bits, value) = recipe.code(recipe.meet(x, shared.factor));
        *code = bits as u8;
        *back = value * shared.scale;
    }
    if R::Code::SIGN == 8 {
        for (out, pair) in codes.iter_mut().zip(whole.as_chunks::<2>().0) {
            let pair = u16::from_le_bytes(*pair);
            *out = (pair | pair >> 4) as u8;
        }
    } else {
        codes.copy_from_slice(&whole);
    }
}

#[cfg(test)]
mod tests {
    use std::marker::PhantomData;

    use super::*;
    use crate::kernels::lethe::mx::{self, BLOCK};
    use crate::kernels::lethe::narrow::E2M1;

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
        let mut values: Vec<f32> = (0..BLOCK * 200)
            .map(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Groups of several scales, and among the values middles between codes.
                let x = if state & 64 == 0 {
                    (state >> 8) as f32 / 1e6
                } else {
                    (state >> 16) as f32 % 30.0 / 4.0
                };
                x * 2f32.powi((i / BLOCK) as i32 % 60 - 30)
                    * if state & 128 == 0 { 1.0 } else { -1.0 }
            })
            .collect();
        values[..BLOCK].fill(0.0);
        values[BLOCK..2 * BLOCK].fill(-0.0);
        values[2 * BLOCK..3 * BLOCK].fill(f32::MIN_POSITIVE / 64.0);
        values[3 * BLOCK] = f32::MAX;
        let (codes, shared) = twin(&values);
        for level in Level::available() {
            let mut ours = Groups {
                recipe: &mx::TorchAo::<{ mx::FLOOR }, E2M1>(PhantomData),
                values: &values,
                codes: &mut vec![0; codes.len()],
                shared: &mut vec![0; shared.len()],
                back: &mut vec![0.0; values.len()],
            };
            perform(level, &mut ours);
            assert_eq!(
                (&*ours.codes, &*ours.shared),
                (&*codes, &*shared),
                "{level:?}"
            );
            for (i, (&x, &back)) in values.iter().zip(&*ours.back).enumerate() {
                let (code, scale) = (
                    codes[i / 2] >> (i % 2 * 4) & 15,
                    2f64.powi(i32::from(shared[i / BLOCK]) - 127),
                );
                let expected = (f64::from(CODES[usize::from(code & 7)]) * scale) as f32;
                assert_eq!(
                    (back.abs(), back.is_sign_negative()),
                    (expected, x.is_sign_negative())
                );
            }
        }
    }
}
