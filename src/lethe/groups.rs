//! Groups of values of a row that share a scale of one byte: MXFP4, MXFP8, NVFP4. Two codes of four bits lie in a
//! byte, the first in its low nibble.

use super::narrow::{Narrow, largest};
use crate::simd::Routine;

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
    fn meet(&self, x: f32, factor: f32) -> f32;

    /// The code of such a value, and what it stands for.
    fn code(&self, x: f32) -> (u32, f32);
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
        let groups = self.values.as_chunks::<GROUP>().0.iter().zip(self.back.as_chunks_mut::<GROUP>().0);
        let stored = self.codes.chunks_exact_mut(bytes).zip(self.shared.iter_mut());
        for ((values, back), (codes, byte)) in groups.zip(stored) {
            let shared = self.recipe.share(largest(values, 0.0));
            *byte = shared.byte;
            let mut whole = [0u8; GROUP];
            for ((&x, code), back) in values.iter().zip(&mut whole).zip(back) {
                let (bits, value) = self.recipe.code(self.recipe.meet(x, shared.factor));
                *code = bits as u8;
                *back = value * shared.scale;
            }
            if nibbles {
                for (out, pair) in codes.iter_mut().zip(whole.as_chunks::<2>().0) {
                    *out = pair[0] | pair[1] << 4;
                }
            } else {
                codes.copy_from_slice(&whole);
            }
        }
    }
}
