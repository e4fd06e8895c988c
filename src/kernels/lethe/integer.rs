//! Integers by groups of values, rounded to nearest: what compressed-tensors, gptqmodel, AutoAWQ and MLX make of a group
//! from its smallest and its largest value.
//!
//! Each rule does the float operations of its library in their order, each rounded to the dtype in which the library
//! computes: the model's for compressed-tensors, F16 for AutoAWQ, F32 for gptqmodel and MLX.

mod rules;
#[cfg(test)]
mod tests;

use half::{bf16, f16};

use self::rules::AwqInt;
use self::rules::GptqInt;
use self::rules::{CompressedTensorsInt, MlxAffine};
use crate::TargetDtype;
use crate::simd::{Level, Routine, perform};

/// The library whose arithmetic applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IntegerRule {
    CompressedTensors { symmetric: bool },
    Gptq { symmetric: bool },
    Awq,
    Mlx,
}

/// Encodes the groups of a tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IntegerQuantizer {
    pub rule: IntegerRule,
    pub bits: usize,
    /// Number of values of a group, which lie one after the other.
    pub group: usize,
    /// The dtype of the model's values.
    pub dtype: TargetDtype,
}

/// Encoded groups, in the order of their values.
#[derive(Debug, Default)]
pub(crate) struct IntegerGroups {
    /// A byte for each value, the unsigned code. Signed codes have half of their range added.
    pub codes: Vec<u8>,
    /// The scale of each group, rounded to the dtype in which it is stored.
    pub scales: Vec<f32>,
    /// The zero point of each group, an unsigned integer as the codes are, or the bias of MLX.
    pub offsets: Vec<f32>,
}

/// The scale and the offset of a group: with which values are encoded, and as they are stored.
#[derive(Debug, Clone, Copy)]
struct QuantParams {
    scale: f32,
    offset: f32,
    stored_scale: f32,
    stored_offset: f32,
}

/// One library's arithmetic. Implementations are `#[inline(always)]`.
trait IntegerArithmetic: Copy {
    /// `x` in the dtype to which the library casts weights before anything else.
    fn cast(self, x: f32) -> f32;

    /// Scale and offset of a group whose cast values lie in `min..=max`.
    fn params(self, min: f32, max: f32) -> QuantParams;

    /// The unsigned code of a cast value, an integer.
    fn code(self, x: f32, params: &QuantParams) -> f32;

    /// The value that decoding gives.
    fn decode(self, code: f32, params: &QuantParams) -> f32;
}

/// 1.5 · 2^23. The last place of a sum with it is 1: addition rounds to integers, to nearest even, and leaves them in the
/// lowest bits.
const ROUND_TO_INTEGER: f32 = 12_582_912.0;

/// `x` rounded to an integer, to nearest even. Its magnitude is below 2^22, so that the sum stays in one binade. Unlike
/// `round_ties_even`, this is no library call without SSE4.1.
#[inline(always)]
fn round_to_even(x: f32) -> f32 {
    (x + ROUND_TO_INTEGER) - ROUND_TO_INTEGER
}

/// `x` within bounds; `low` for NaN. `f32::clamp` keeps NaN, and panics where the bounds are not in order.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// Values that are compared side by side: two registers of AVX2 for the minima and two for the maxima.
const LANES: usize = 16;

/// The smallest and the largest of `values`, each cast before.
#[inline(always)]
fn min_max(values: &[f32], cast: impl Fn(f32) -> f32) -> (f32, f32) {
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for ((low, high), &x) in low.iter_mut().zip(&mut high).zip(chunk) {
            let x = cast(x);
            // `min`, not a comparison, of which LLVM would make a store under a mask.
            *low = low.min(x);
            *high = high.max(x);
        }
    }
    for ((low, high), &x) in low.iter_mut().zip(&mut high).zip(rest) {
        *low = low.min(cast(x));
        *high = high.max(cast(x));
    }
    // Half of the lanes at a time: lane by lane would be a chain of comparisons, as long as two rows of a short group.
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            low[l] = low[l].min(low[l + half]);
            high[l] = high[l].max(high[l + half]);
        }
    }
    (low[0], high[0])
}

/// Encodes whole groups that lie one after the other.
struct EncodeIntegerGroups<'a, A> {
    arithmetic: A,
    group: usize,
    values: &'a [f32],
    back: &'a mut [f32],
    out: &'a mut IntegerGroups,
}

impl<A: IntegerArithmetic> Routine for EncodeIntegerGroups<'_, A> {
    #[inline(always)]
    fn run(&mut self) {
        let arithmetic = self.arithmetic;
        let groups = self
            .values
            .chunks_exact(self.group)
            .zip(self.back.chunks_exact_mut(self.group));
        let params = self.out.scales.iter_mut().zip(&mut self.out.offsets);
        let codes = self.out.codes.chunks_exact_mut(self.group);
        for (((values, back), codes), (scale, offset)) in groups.zip(codes).zip(params) {
            let (low, high) = min_max(values, |x| arithmetic.cast(x));
            let params = arithmetic.params(low, high);
            (*scale, *offset) = (params.stored_scale, params.stored_offset);
            for ((&x, back), code) in values.iter().zip(back).zip(codes) {
                // The cast is repeated rather than kept, for a group may be a whole row.
                let integer = arithmetic.code(arithmetic.cast(x), &params);
                *back = arithmetic.decode(integer, &params);
                // The integer lies in the low byte of the sum, so no conversion instruction is
                // needed.
                *code = (integer + ROUND_TO_INTEGER).to_bits() as u8;
            }
        }
    }
}

impl IntegerQuantizer {
    /// Encodes whole groups into `out`; `back` receives the values that decoding gives.
    pub(crate) fn encode(
        &self,
        values: &[f32],
        level: Level,
        back: &mut [f32],
        out: &mut IntegerGroups,
    ) {
        let groups = values.len() / self.group.max(1);
        out.codes.resize(values.len(), 0);
        out.scales.resize(groups, 0.0);
        out.offsets.resize(groups, 0.0);
        let bits = self.bits;
        macro_rules! run {
            ($arithmetic:expr) => {
                perform(
                    level,
                    &mut EncodeIntegerGroups {
                        arithmetic: $arithmetic,
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
                run!(CompressedTensorsInt::<$dtype, $symmetric>::new(bits))
            };
        }
        match (self.rule, self.dtype) {
            (IntegerRule::CompressedTensors { symmetric }, dtype) => match (dtype, symmetric) {
                (TargetDtype::F32, true) => signed!(f32, true),
                (TargetDtype::F16, true) => signed!(f16, true),
                (TargetDtype::BF16, true) => signed!(bf16, true),
                (TargetDtype::F32, false) => signed!(f32, false),
                (TargetDtype::F16, false) => signed!(f16, false),
                (TargetDtype::BF16, false) => signed!(bf16, false),
            },
            (IntegerRule::Gptq { symmetric }, _) => run!(GptqInt::new(bits, symmetric)),
            (IntegerRule::Awq, _) => run!(AwqInt),
            (IntegerRule::Mlx, TargetDtype::F32) => run!(MlxAffine::<f32>::new(bits)),
            (IntegerRule::Mlx, TargetDtype::F16) => run!(MlxAffine::<f16>::new(bits)),
            (IntegerRule::Mlx, TargetDtype::BF16) => run!(MlxAffine::<bf16>::new(bits)),
        }
    }
}
