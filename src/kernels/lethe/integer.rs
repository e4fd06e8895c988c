//! Integers by groups of values, rounded to nearest: what compressed-tensors, gptqmodel, AutoAWQ and MLX do with the
//! smallest and the largest value of each group.
//!
//! Every rule does the float operations of its library in their order, each rounded to the type that the library computes
//! in: the model's for compressed-tensors, F16 for AutoAWQ, F32 for gptqmodel and MLX.

mod rules;
#[cfg(test)]
mod tests;

use half::{bf16, f16};

#[cfg(feature = "awq")]
use self::rules::Awq;
#[cfg(feature = "gptq")]
use self::rules::Gptq;
use self::rules::{Mlx, Signed};
use crate::TargetDtype;
use crate::simd::{Level, Routine, perform};

/// Whose arithmetic it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    CompressedTensors {
        symmetric: bool,
    },
    #[cfg(feature = "gptq")]
    Gptq {
        symmetric: bool,
    },
    #[cfg(feature = "awq")]
    Awq,
    Mlx,
}

/// How all groups of a tensor are encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quantizer {
    pub rule: Rule,
    pub bits: usize,
    /// Values of a group, which lie together.
    pub group: usize,
    /// The type of the model.
    pub dtype: TargetDtype,
}

/// What becomes of groups, in their order.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// A byte for each value: the code without a sign. Signed ones have half of their range added.
    pub codes: Vec<u8>,
    /// A number for each group, already one of the type that it is stored in.
    pub scales: Vec<f32>,
    /// Zero points as the codes are, or biases.
    pub offsets: Vec<f32>,
}

/// The numbers of a group: those that values are coded with, and those that are stored.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    scale: f32,
    offset: f32,
    stored_scale: f32,
    stored_offset: f32,
}

/// One library's arithmetic. `#[inline(always)]`, all of it.
trait Recipe: Copy {
    /// What a value is before anything else.
    fn take(self, x: f32) -> f32;

    /// The numbers of a group.
    fn numbers(self, min: f32, max: f32) -> Numbers;

    /// The code of a value that was taken, a small integer.
    fn code(self, x: f32, numbers: &Numbers) -> f32;

    /// What decoding will give.
    fn back(self, code: f32, numbers: &Numbers) -> f32;
}

/// 1.5 · 2^23: what is added to it is rounded to an integer, to nearest even, in its lowest bits.
const INTEGER: f32 = 12_582_912.0;

/// `x` rounded to nearest even. Of magnitudes below 2^22.
#[inline(always)]
fn nearest(x: f32) -> f32 {
    (x + INTEGER) - INTEGER
}

/// `x` within bounds. NaN becomes the lower one.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// Values that are compared side by side.
const LANES: usize = 16;

/// The smallest and the largest of what `take` makes of values.
#[inline(always)]
fn extremes(values: &[f32], take: impl Fn(f32) -> f32) -> (f32, f32) {
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let (runs, rest) = values.as_chunks::<LANES>();
    for run in runs {
        for ((low, high), &x) in low.iter_mut().zip(&mut high).zip(run) {
            let x = take(x);
            // `min`, not a comparison, of which LLVM would make a store under a mask.
            *low = low.min(x);
            *high = high.max(x);
        }
    }
    for ((low, high), &x) in low.iter_mut().zip(&mut high).zip(rest) {
        *low = low.min(take(x));
        *high = high.max(take(x));
    }
    let (mut least, mut most) = (low[0], high[0]);
    for (low, high) in low.into_iter().zip(high) {
        (least, most) = (least.min(low), most.max(high));
    }
    (least, most)
}

/// All groups of a run of values.
struct Run<'a, R> {
    recipe: R,
    group: usize,
    values: &'a [f32],
    back: &'a mut [f32],
    out: &'a mut Groups,
}

impl<R: Recipe> Routine for Run<'_, R> {
    #[inline(always)]
    fn run(&mut self) {
        let recipe = self.recipe;
        let groups = self
            .values
            .chunks_exact(self.group)
            .zip(self.back.chunks_exact_mut(self.group));
        let numbers = self.out.scales.iter_mut().zip(&mut self.out.offsets);
        let codes = self.out.codes.chunks_exact_mut(self.group);
        for (((values, back), codes), (scale, offset)) in groups.zip(codes).zip(numbers) {
            let (low, high) = extremes(values, |x| recipe.take(x));
            let numbers = recipe.numbers(low, high);
            (*scale, *offset) = (numbers.stored_scale, numbers.stored_offset);
            for ((&x, back), code) in values.iter().zip(back).zip(codes) {
                let integer = recipe.code(recipe.take(x), &numbers);
                *back = recipe.back(integer, &numbers);
                *code = (integer + INTEGER).to_bits() as u8;
            }
        }
    }
}

impl Quantizer {
    /// Encodes whole groups, and makes `back` what decoding will give.
    pub(crate) fn run(&self, values: &[f32], level: Level, back: &mut [f32], out: &mut Groups) {
        let groups = values.len() / self.group.max(1);
        out.codes.resize(values.len(), 0);
        out.scales.resize(groups, 0.0);
        out.offsets.resize(groups, 0.0);
        let bits = self.bits;
        macro_rules! run {
            ($recipe:expr) => {
                perform(
                    level,
                    &mut Run {
                        recipe: $recipe,
                        group: self.group.max(1),
                        values,
                        back,
                        out,
                    },
                )
            };
        }
        macro_rules! signed {
            ($dtype:ident, $symmetric:literal) => {
                run!(Signed::<$dtype, $symmetric>::new(bits, $dtype::EPSILON))
            };
        }
        match (self.rule, self.dtype) {
            (Rule::CompressedTensors { symmetric: true }, TargetDtype::F32) => signed!(f32, true),
            (Rule::CompressedTensors { symmetric: true }, TargetDtype::F16) => signed!(f16, true),
            (Rule::CompressedTensors { symmetric: true }, TargetDtype::BF16) => signed!(bf16, true),
            (Rule::CompressedTensors { symmetric: false }, TargetDtype::F32) => signed!(f32, false),
            (Rule::CompressedTensors { symmetric: false }, TargetDtype::F16) => signed!(f16, false),
            (Rule::CompressedTensors { symmetric: false }, TargetDtype::BF16) => {
                signed!(bf16, false)
            }
            #[cfg(feature = "gptq")]
            (Rule::Gptq { symmetric }, _) => run!(Gptq::new(bits, symmetric)),
            #[cfg(feature = "awq")]
            (Rule::Awq, _) => run!(Awq),
            (Rule::Mlx, TargetDtype::F32) => run!(Mlx::<f32>::new(bits)),
            (Rule::Mlx, TargetDtype::F16) => run!(Mlx::<f16>::new(bits)),
            (Rule::Mlx, TargetDtype::BF16) => run!(Mlx::<bf16>::new(bits)),
        }
    }
}
