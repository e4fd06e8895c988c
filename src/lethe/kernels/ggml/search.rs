//! Searches for the scales of groups of values without a minimum, and what all searches share.
//!
//! A group of values `x` with weights `w` gets a scale `s` and integer codes `l` such that Σw(x -
//! sl)² is small. For given codes the best scale is Σwxl / Σwl², with which the error is Σwx² -
//! (Σwxl)² / Σwl². So codes are the better the larger (Σwxl)² / Σwl² is; the reference compares
//! cross products of it and does not divide.
//!
//! Several groups are searched side by side, one in each lane. A lane has the sums of ggml's
//! reference in its order, so that every bit is the same. A choice that is a branch there is a
//! select here.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `make_qx_quants`.

use crate::element::ROUND_TO_INTEGER;
use crate::simd::{Aligned, LANES, Transpose, from_fn, zip};

/// One number for each lane.
pub(super) type Lanes<const G: usize> = [f32; G];

/// A group whose magnitudes are all smaller counts as zeros: ggml's `GROUP_MAX_EPS`.
pub(super) const TINY: f32 = 1e-15;

/// `G` groups of `N` consecutive values, with group `g` in lane `g`. Squares are transposed `by`
/// registers, for LLVM moves each value by itself; `N` is a multiple of their size, and so is `G`
/// unless it is smaller.
#[inline(always)]
pub(super) fn transpose<const N: usize, const G: usize>(
    values: &[f32],
    by: impl Transpose,
) -> [Lanes<G>; N] {
    let mut out = [[0.0; G]; N];
    let groups = values.as_chunks::<N>().0;
    if G < LANES {
        for (g, group) in groups.iter().take(G).enumerate() {
            for (out, &x) in zip(&mut out[..], group) {
                out[g] = x;
            }
        }
        return out;
    }
    for (first, groups) in groups.as_chunks::<LANES>().0.iter().enumerate() {
        for (left, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut square = [[0.0; LANES]; LANES];
            for (row, group) in zip(&mut square[..], groups) {
                *row = group.as_chunks().0[left];
            }
            for (out, column) in zip(&mut out[..], by.columns(square)) {
                out.as_chunks_mut().0[first] = column;
            }
        }
    }
    out
}

/// `x` rounded to nearest even; from 2²² on in magnitude something else, but what ggml's
/// `nearest_int` returns.
#[inline(always)]
pub(super) fn nearest_int(x: f32) -> i32 {
    ((x + ROUND_TO_INTEGER).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// [`nearest_int`] as a float, limited to `low` to `high`.
#[inline(always)]
pub(super) fn nearest_in(x: f32, low: f32, high: f32) -> f32 {
    // `nearest_int` keeps the 23 low bits of the sum and subtracts 2²². With the exponent of 2²³
    // before them they are a float, which exceeds `ROUND_TO_INTEGER` by just that integer. The exponent is
    // there already unless `x` is too large.
    let rounded = f32::from_bits((x + ROUND_TO_INTEGER).to_bits() & 0x007f_ffff | 0x4b00_0000)
        - ROUND_TO_INTEGER;
    clamp(rounded, low, high)
}

/// `x` limited to `low` to `high`. A NaN becomes `low`.
#[inline(always)]
pub(super) fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// All bits set in a lane for which a condition holds, else none: an operand for selects without
/// branches.
pub(super) type Mask<const G: usize> = [u32; G];

#[inline(always)]
pub(super) fn mask<const G: usize>(f: impl Fn(usize) -> bool) -> Mask<G> {
    from_fn(|g| 0u32.wrapping_sub(u32::from(f(g))))
}

/// `then` in lanes where the mask is set, else `otherwise`.
#[inline(always)]
pub(super) fn select<const G: usize>(
    mask: Mask<G>,
    then: Lanes<G>,
    otherwise: Lanes<G>,
) -> Lanes<G> {
    from_fn(|g| f32::from_bits(then[g].to_bits() & mask[g] | otherwise[g].to_bits() & !mask[g]))
}

/// `values`, of which the compiler forgets how they were made. LLVM would otherwise follow single
/// values through [`transpose`] and take the lanes apart.
#[inline(always)]
pub(super) fn opaque<T>(values: &T) -> &T {
    std::hint::black_box(values)
}

/// `a` if it is larger, else `b`: of a NaN and a number the second, as C's `a > b ? a : b`.
#[inline(always)]
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The value with the largest magnitude in each lane, with its sign; the first of several.
#[inline(always)]
pub(super) fn signed_max_abs<const N: usize, const G: usize>(x: &[Lanes<G>; N]) -> Lanes<G> {
    let (mut most, mut peak) = ([0.0; G], [0.0; G]);
    for x in x {
        for g in 0..G {
            let larger = x[g].abs() > most[g];
            most[g] = if larger { x[g].abs() } else { most[g] };
            peak[g] = if larger { x[g] } else { peak[g] };
        }
    }
    peak
}

/// The result of a search: a scale for codes from `-half` to `half - 1`.
pub(super) struct SymmetricFit<const G: usize> {
    pub(super) scale: Lanes<G>,
    /// The codes are the values times this, rounded. It is the inverse that was tried, not the
    /// inverse of `scale`, which was fitted to the codes afterwards.
    inverse: Lanes<G>,
    /// Groups that count as zeros. As in ggml their stored codes are 0, although `half` would stand
    /// for zero.
    zero: [bool; G],
    half: f32,
}

impl<const G: usize> SymmetricFit<G> {
    /// The code of `x` in lane `g` as it is stored, `half` more than its value.
    #[inline(always)]
    pub(super) fn code(&self, g: usize, x: f32) -> u8 {
        let code = nearest_in(self.inverse[g] * x, -self.half, self.half - 1.0) + self.half;
        if self.zero[g] { 0 } else { code as u8 }
    }
}

/// Σwxl and Σwl² over the `N` values of each lane, for the codes l that `inverse` gives. `wx` is
/// the product of weight and value, which is the same in all tries. `FINITE` says that values are
/// finite; weights need not be.
#[inline(always)]
fn moments<const FINITE: bool, const N: usize, const G: usize>(
    x: impl Fn(usize, usize) -> f32,
    w: impl Fn(usize, usize) -> f32,
    wx: impl Fn(usize, usize) -> f32,
    half: f32,
    inverse: Lanes<G>,
) -> (Lanes<G>, Lanes<G>) {
    let (mut lx, mut l2) = ([0.0; G], [0.0; G]);
    for i in 0..N {
        for g in 0..G {
            let l = inverse[g] * x(i, g);
            let l = if FINITE {
                // The product is at most `half + 0.9` in magnitude, so adding `ROUND_TO_INTEGER` rounds it. If
                // `inverse` is infinite or NaN the group counts as zeros, and the sums are not
                // used.
                clamp((l + ROUND_TO_INTEGER) - ROUND_TO_INTEGER, -half, half - 1.0)
            } else {
                nearest_in(l, -half, half - 1.0)
            };
            lx[g] += wx(i, g) * l;
            l2[g] += w(i, g) * l * l;
        }
    }
    (lx, l2)
}

/// Tried scales map the largest magnitude to `half + 0.1 * step`. Step 0 comes before them.
const STEPS: [i8; 18] = [-9, -8, -7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9];

/// The scale of each lane with the least weighted error, of those that map its value of the largest
/// magnitude to about `-half`: ggml's `make_qx_quants` with `rmse_type` 1. That value is mapped to
/// the negative end because there is one code more.
#[inline(always)]
pub(super) fn fit_symmetric<const N: usize, const G: usize>(
    x: &[Lanes<G>; N],
    w: &[Lanes<G>; N],
    half: f32,
) -> SymmetricFit<G> {
    let (x, w) = (Aligned(*x), Aligned(*w));
    let (x, w) = (opaque(&x.0), opaque(&w.0));
    let peak = signed_max_abs(x);
    let mut wx = Aligned([[0.0; G]; N]);
    for ((wx, w), x) in zip(zip(&mut wx.0, w), x) {
        *wx = from_fn(|g| w[g] * x[g]);
    }
    let wx = &wx.0;
    let sums = |inverse| {
        moments::<true, N, G>(|i, g| x[i][g], |i, g| w[i][g], |i, g| wx[i][g], half, inverse)
    };
    let mut inverse = from_fn(|g| -half / peak[g]);
    let (lx, l2) = sums(inverse);
    let mut scale = from_fn(|g| if l2[g] == 0.0 { 0.0 } else { lx[g] / l2[g] });
    let mut best: Lanes<G> = from_fn(|g| scale[g] * lx[g]);
    for step in STEPS {
        let level = -(half + 0.1 * f32::from(step));
        let tried = from_fn(|g| level / peak[g]);
        let (lx, l2) = sums(tried);
        let better = mask(|g| (l2[g] > 0.0) & (lx[g] * lx[g] > best[g] * l2[g]));
        let ratio: Lanes<G> = from_fn(|g| lx[g] / l2[g]);
        scale = select(better, ratio, scale);
        best = select(better, from_fn(|g| ratio[g] * lx[g]), best);
        inverse = select(better, tried, inverse);
    }
    let mut zero = [false; G];
    for g in 0..G {
        zero[g] = peak[g].abs() < TINY;
        scale[g] = if zero[g] { 0.0 } else { scale[g] };
    }
    SymmetricFit { scale, inverse, zero, half }
}

/// [`fit_symmetric`] for a single group, with one step in each lane. `peak` is the first value with
/// the largest magnitude. Values that are scales of groups need not be finite.
#[inline(always)]
pub(super) fn fit_symmetric_group<const FINITE: bool, const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    peak: f32,
    half: f32,
) -> SymmetricFit<1> {
    if peak.abs() < TINY {
        return SymmetricFit { scale: [0.0], inverse: [0.0], zero: [true], half };
    }
    let mut wx = [0.0; N];
    for ((wx, w), x) in zip(zip(&mut wx[..], w), x) {
        *wx = w * x;
    }
    // Step 0, the steps, and lanes that fill the registers and are not looked at.
    let tried: Lanes<24> = from_fn(|c| match c {
        0 => -half / peak,
        c => -(half + 0.1 * f32::from(STEPS[(c - 1).min(17)])) / peak,
    });
    let (lx, l2) = moments::<FINITE, N, 24>(|i, _| x[i], |i, _| w[i], |i, _| wx[i], half, tried);
    let (lx, l2, tried) = (opaque(&lx), opaque(&l2), opaque(&tried));
    // Quotients of all lanes at once: a division for each better step would be waited for.
    let ratios: Lanes<24> = from_fn(|c| lx[c] / l2[c]);
    let scores: Lanes<24> = from_fn(|c| ratios[c] * lx[c]);
    let squares: Lanes<24> = from_fn(|c| lx[c] * lx[c]);
    let (ratios, scores, squares) = (opaque(&ratios), opaque(&scores), opaque(&squares));
    let mut scale = if l2[0] == 0.0 { 0.0 } else { ratios[0] };
    let mut best = scale * lx[0];
    let mut inverse = tried[0];
    for c in 1..19 {
        if l2[c] > 0.0 && squares[c] > best * l2[c] {
            (scale, best, inverse) = (ratios[c], scores[c], tried[c]);
        }
    }
    SymmetricFit { scale: [scale], inverse: [inverse], zero: [false], half }
}
