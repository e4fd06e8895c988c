//! Integers by groups of values, rounded to nearest: what compressed-tensors, gptqmodel, AutoAWQ,
//! bitsandbytes, HQQ, MLX and SDNQ make of a group.
//!
//! Each rule does the float operations of its library in their order, each rounded to the dtype in
//! which the library computes: the model's for compressed-tensors, F16 for AutoAWQ, F32 for
//! gptqmodel, bitsandbytes, HQQ, MLX and SDNQ.

mod hqq;
mod rules;
mod sdnq;
mod search;
#[cfg(test)]
mod tests;

use self::hqq::HqqInt;
pub(crate) use self::hqq::StepErrors;
use self::rules::AwqInt;
use self::rules::GptqInt;
use self::rules::{CompressedTensorsInt, LlmInt8, MlxAffine};
use self::sdnq::{SdnqInt, SdnqUint};
use self::search::{Fit, FitGroup, ZeroPoint};
use crate::TargetDtype;
use crate::element::ROUND_TO_INTEGER;
use crate::lethe::kernels::activations::{Activations, SearchedGroup};
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{Aligned, Flat, Level, Routine, perform, zip};

/// The library whose arithmetic applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IntegerRule {
    CompressedTensors {
        symmetric: bool,
    },
    Gptq {
        symmetric: bool,
    },
    Awq,
    LlmInt8,
    Mlx,
    /// After so many steps of its optimiser.
    Hqq {
        steps: usize,
    },
    Sdnq {
        is_signed: bool,
    },
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
    /// The zero point of each group, an unsigned integer as the codes are; of HQQ any number; or what
    /// MLX and SDNQ add.
    pub offsets: Vec<f32>,
}

/// The scale and the offset of a group: with which values are encoded, and as they are stored.
#[derive(Debug, Clone, Copy, Default)]
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

    /// The bounds of up to [`BATCH`] groups of cast values, for [`params`](Self::params): their
    /// smallest and their largest values, or other numbers that a library finds of all values.
    #[inline(always)]
    fn bounds(self, values: &[f32], group: usize) -> [[f32; BATCH]; 2] {
        min_max_of_groups(values, group, |x| self.cast(x))
    }

    /// Scale and offset of a group whose cast values lie in `min..=max`.
    fn params(self, min: f32, max: f32) -> QuantParams;

    /// Scale and offset under which codes stand for what `fit` says, as far as the stored types hold
    /// it.
    fn fitted(self, fit: Fit) -> QuantParams;

    /// What is divided by the group's scale for the code of the cast value `x`.
    #[inline(always)]
    fn dividend(self, x: f32, params: &QuantParams) -> f32 {
        let _ = params;
        x
    }

    /// Whether quotients are rounded or are products, so that [`divide`](Self::divide) makes them.
    const ROUNDS: bool = false;

    /// The quotients of values of a group by its scale.
    #[inline(always)]
    fn divide(self, values: &[f32], params: &QuantParams, quotients: &mut [f32]) {
        let _ = (values, params, quotients);
    }

    /// The unsigned code of a value whose dividend has this quotient by the scale, as its sum with
    /// [`ROUND_TO_INTEGER`].
    fn code(self, quotient: f32, params: &QuantParams) -> f32;

    /// The value that decoding gives: of most libraries the code less the zero point, times the
    /// scale. `FMA`: a product and a sum are rounded once by an instruction.
    #[inline(always)]
    fn decode<const FMA: bool>(self, code: f32, params: &QuantParams) -> f32 {
        (code - params.stored_offset) * params.stored_scale
    }
}

/// `x` rounded to an integer, to nearest even. Its magnitude is below 2^22, so that the sum stays
/// in one binade. Unlike `round_ties_even`, this is no library call without SSE4.1.
#[inline(always)]
fn round_to_even(x: f32) -> f32 {
    (x + ROUND_TO_INTEGER) - ROUND_TO_INTEGER
}

/// `x` within bounds; `low` for NaN. `f32::clamp` keeps NaN, and panics where the bounds are not in
/// order.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// Values that are compared side by side: two registers of AVX2 for the minima and two for the
/// maxima.
const LANES: usize = 16;

/// The smallest and the largest values of groups, each cast before.
#[inline(always)]
fn min_max_of_groups(
    values: &[f32],
    group: usize,
    cast: impl Fn(f32) -> f32 + Copy,
) -> [[f32; BATCH]; 2] {
    let mut low = Aligned([[0.0; LANES]; BATCH]);
    let mut high = low;
    for ((low, high), values) in zip(zip(&mut low.0, &mut high.0), values.chunks_exact(group)) {
        (*low, *high) = min_max(values, cast);
    }
    [of_lanes(&low.0, smaller), of_lanes(&high.0, larger)]
}

/// The smallest and the largest of the `values` of each lane, each cast before.
#[inline(always)]
fn min_max(values: &[f32], cast: impl Fn(f32) -> f32) -> ([f32; LANES], [f32; LANES]) {
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for ((low, high), &x) in zip(zip(&mut low[..], &mut high), chunk) {
            let x = cast(x);
            *low = smaller(*low, x);
            *high = larger(*high, x);
        }
    }
    for ((low, high), &x) in zip(zip(&mut low[..], &mut high), rest) {
        *low = smaller(*low, cast(x));
        *high = larger(*high, cast(x));
    }
    (low, high)
}

/// Which of the lanes of each group `choose` prefers. Neighbours are compared until one of each
/// group is left: the lanes of a single group would be a chain of comparisons, as long as two rows
/// of a short group, and LLVM takes them apart before.
#[inline(always)]
fn of_lanes(
    lanes: &[[f32; LANES]; BATCH],
    choose: impl Fn(f32, f32) -> f32 + Copy,
) -> [f32; BATCH] {
    let of_8 = of_pairs::<{ 8 * BATCH }>(lanes.flat(), choose);
    let of_4 = of_pairs::<{ 4 * BATCH }>(&of_8, choose);
    let of_2 = of_pairs::<{ 2 * BATCH }>(&of_4, choose);
    of_pairs::<BATCH>(&of_2, choose)
}

/// Which of each pair of neighbours `choose` prefers.
#[inline(always)]
fn of_pairs<const N: usize>(numbers: &[f32], choose: impl Fn(f32, f32) -> f32) -> [f32; N] {
    let mut chosen = [0.0; N];
    for (chosen, [a, b]) in zip(&mut chosen[..], numbers.as_chunks().0) {
        *chosen = choose(*a, *b);
    }
    chosen
}

/// The smaller of two numbers, by one instruction: `f32::min` heeds NaN.
#[inline(always)]
fn smaller(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// The larger of two numbers, as [`smaller`].
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
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
        self.encode::<false>();
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, _: Avx2) {
        self.encode::<true>();
    }
}

impl<A: IntegerArithmetic> EncodeIntegerGroups<'_, A> {
    #[inline(always)]
    fn encode<const FMA: bool>(&mut self) {
        let (arithmetic, group) = (self.arithmetic, self.group);
        let batch = (BATCH_VALUES / group).clamp(1, BATCH);
        let batches = zip(
            zip(self.values.chunks(group * batch), self.back.chunks_mut(group * batch)),
            self.out.codes.chunks_mut(group * batch),
        );
        let stored = zip(self.out.scales.chunks_mut(batch), self.out.offsets.chunks_mut(batch));
        for (((values, back), codes), (scales, offsets)) in zip(batches, stored) {
            let [low, high] = arithmetic.bounds(values, group);
            let params = params_of_groups(arithmetic, &low, &high);
            for ((scale, offset), params) in zip(zip(&mut scales[..], offsets), &params) {
                (*scale, *offset) = (params.stored_scale, params.stored_offset);
            }
            let groups = zip(
                zip(values.chunks_exact(group), back.chunks_exact_mut(group)),
                codes.chunks_exact_mut(group),
            );
            for (((values, back), codes), params) in zip(groups, &params) {
                encode_group::<A, FMA>(arithmetic, params, values, codes, back);
            }
        }
    }
}

/// Encodes one group under its fit, or as the library does where that costs no more.
struct TryFit<'a, A> {
    arithmetic: A,
    fit: Fit,
    group: SearchedGroup<'a>,
    back: &'a mut [f32],
    codes: &'a mut [u8],
    scale: &'a mut f32,
    offset: &'a mut f32,
    /// What is carried on to the next group.
    carried: f32,
}

impl<A: IntegerArithmetic> Routine for TryFit<'_, A> {
    #[inline(always)]
    fn run(&mut self) {
        self.try_fit::<false>();
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, _: Avx2) {
        self.try_fit::<true>();
    }
}

impl<A: IntegerArithmetic> TryFit<'_, A> {
    #[inline(always)]
    fn try_fit<const FMA: bool>(&mut self) {
        let (arithmetic, values) = (self.arithmetic, self.group.values);
        let [low, high] = arithmetic.bounds(values, values.len());
        let tried = [arithmetic.fitted(self.fit), arithmetic.params(low[0], high[0])];
        let (mut costs, mut carried) = ([f32::INFINITY; 2], [0.0; 2]);
        // The third time is for the fit, if it is the better of the two.
        for i in 0..3 {
            let params = &tried[i % 2];
            if i < 2 || costs[0] < costs[1] {
                encode_group::<A, FMA>(arithmetic, params, values, self.codes, self.back);
                (*self.scale, *self.offset) = (params.stored_scale, params.stored_offset);
                if i < 2 {
                    let cost = self.group.cost_of(self.back);
                    carried[i] = cost.carried;
                    if params.stored_scale != 0.0 {
                        costs[i] = cost.total;
                    }
                }
                self.carried = carried[i % 2];
            }
        }
    }
}

/// Groups whose parameters are found before any of them is encoded, at most: parameters are one
/// long chain of dependent operations.
const BATCH: usize = 16;

/// Values of such groups, at most: they are still in the L1 cache when they are encoded. A group
/// may have more.
const BATCH_VALUES: usize = 4 << 10;

/// The parameters of [`BATCH`] groups, of which some may not be there.
#[inline(always)]
fn params_of_groups<A: IntegerArithmetic>(
    arithmetic: A,
    low: &[f32; BATCH],
    high: &[f32; BATCH],
) -> [QuantParams; BATCH] {
    // One array for each field, so that LLVM finds several groups' in a register.
    let (mut scale, mut offset) = ([0.0; BATCH], [0.0; BATCH]);
    let (mut stored_scale, mut stored_offset) = ([0.0; BATCH], [0.0; BATCH]);
    for g in 0..BATCH {
        let params = arithmetic.params(low[g], high[g]);
        (scale[g], offset[g]) = (params.scale, params.offset);
        (stored_scale[g], stored_offset[g]) = (params.stored_scale, params.stored_offset);
    }
    let mut all = [QuantParams::default(); BATCH];
    for (g, params) in all.iter_mut().enumerate() {
        *params = QuantParams {
            scale: scale[g],
            offset: offset[g],
            stored_scale: stored_scale[g],
            stored_offset: stored_offset[g],
        };
    }
    all
}

/// Values that are divided and encoded in turn: each step is a loop, whose results stay in the L1
/// cache.
const PART: usize = 64;

/// Encodes one group.
#[inline(always)]
fn encode_group<A: IntegerArithmetic, const FMA: bool>(
    arithmetic: A,
    params: &QuantParams,
    values: &[f32],
    codes: &mut [u8],
    back: &mut [f32],
) {
    // The cast is repeated rather than kept, for a group may be a whole row. A copy of the parameters
    // cannot change when codes are stored, so that it stays in registers.
    let params = *params;
    if !A::ROUNDS {
        for ((&x, back), code) in zip(zip(values.iter(), back), codes) {
            let dividend = arithmetic.dividend(arithmetic.cast(x), &params);
            (*code, *back) =
                encode_quotient::<A, FMA>(arithmetic, &params, dividend / params.scale);
        }
        return;
    }
    let parts = zip(values.chunks(PART), codes.chunks_mut(PART));
    for ((values, codes), back) in zip(parts, back.chunks_mut(PART)) {
        let mut quotients = [0.0; PART];
        let quotients = &mut quotients[..values.len()];
        arithmetic.divide(values, &params, quotients);
        for ((&quotient, back), code) in zip(zip(quotients.iter(), back), codes) {
            (*code, *back) = encode_quotient::<A, FMA>(arithmetic, &params, quotient);
        }
    }
}

/// The code of a value, and the value that decoding gives.
#[inline(always)]
fn encode_quotient<A: IntegerArithmetic, const FMA: bool>(
    arithmetic: A,
    params: &QuantParams,
    quotient: f32,
) -> (u8, f32) {
    let sum = arithmetic.code(quotient, params);
    // The integer lies in the low byte of the sum, so no conversion instruction is needed.
    (sum.to_bits() as u8, arithmetic.decode::<FMA>(sum - ROUND_TO_INTEGER, params))
}

impl IntegerQuantizer {
    /// Encodes whole groups into `out`; `back` receives the values that decoding gives. With
    /// `activations` scales and zero points are searched, and the errors of a group cost no more
    /// than without.
    pub(crate) fn encode(
        &self,
        values: &[f32],
        activations: Activations<'_>,
        level: Level,
        back: &mut [f32],
        out: &mut IntegerGroups,
    ) {
        let groups = values.len() / self.group.max(1);
        out.codes.resize(values.len(), 0);
        out.scales.resize(groups, 0.0);
        out.offsets.resize(groups, 0.0);
        let (bits, input) = (self.bits, (values, activations));
        match self.rule {
            IntegerRule::CompressedTensors { symmetric } => {
                let arithmetic = CompressedTensorsInt::new(bits, symmetric, self.dtype);
                self.encode_by(arithmetic, input, level, back, out);
            }
            IntegerRule::Gptq { symmetric } => {
                self.encode_by(GptqInt::new(bits, symmetric), input, level, back, out);
            }
            IntegerRule::Awq => self.encode_by(AwqInt, input, level, back, out),
            IntegerRule::LlmInt8 => self.encode_by(LlmInt8, input, level, back, out),
            IntegerRule::Mlx => {
                self.encode_by(MlxAffine::new(bits, self.dtype), input, level, back, out);
            }
            IntegerRule::Hqq { steps } => {
                self.encode_by(HqqInt::new(bits, self.dtype, steps), input, level, back, out);
            }
            IntegerRule::Sdnq { is_signed: true } => {
                self.encode_by(SdnqInt::new(bits), input, level, back, out);
            }
            IntegerRule::Sdnq { is_signed: false } => {
                self.encode_by(SdnqUint::new(bits), input, level, back, out);
            }
        }
    }

    fn encode_by(
        &self,
        arithmetic: impl IntegerArithmetic,
        (values, activations): (&[f32], Activations<'_>),
        level: Level,
        back: &mut [f32],
        out: &mut IntegerGroups,
    ) {
        let group = self.group.max(1);
        if activations.is_empty() {
            perform(level, &mut EncodeIntegerGroups { arithmetic, group, values, back, out });
            return;
        }
        let (max_code, zero) = (rules::max_code(self.bits), self.rule.zero_point());
        let Activations { variances, means, .. } = activations;
        let statistics = zip(variances.chunks_exact(group), means.chunks_exact(group));
        let groups = zip(values.chunks_exact(group), statistics);
        let outputs = zip(back.chunks_exact_mut(group), out.codes.chunks_exact_mut(group));
        let stored = zip(&mut out.scales[..], &mut out.offsets[..]);
        let mut carried = 0.0;
        for (i, (((values, (variances, means)), (back, codes)), (scale, offset))) in
            zip(zip(groups, outputs), stored).enumerate()
        {
            if activations.begins_row(i, group) {
                carried = 0.0;
            }
            let group = SearchedGroup { values, variances, means, carried };
            let mut search = FitGroup { max_code, zero, group, fit: Fit::default() };
            perform(level, &mut search);
            let fit = search.fit;
            let mut tried = TryFit { arithmetic, fit, group, back, codes, scale, offset, carried };
            perform(level, &mut tried);
            carried = tried.carried;
        }
    }
}

impl IntegerRule {
    fn zero_point(self) -> ZeroPoint {
        match self {
            Self::CompressedTensors { symmetric: true }
            | Self::Gptq { symmetric: true }
            | Self::Sdnq { is_signed: true }
            | Self::LlmInt8 => ZeroPoint::Middle,
            Self::CompressedTensors { .. } | Self::Gptq { .. } | Self::Awq => ZeroPoint::Code,
            Self::Mlx | Self::Hqq { .. } | Self::Sdnq { .. } => ZeroPoint::Any,
        }
    }
}
