//! Searches for scales with a minimum, several groups side by side, and for scales of such scales.
//!
//! A group of values `x` with weights `w` gets a scale `s`, a minimum `m` of at most 0, and codes
//! `l` from 0 on such that Σw(sl + m - x)² is small. For given codes the best `s` and `m` are those
//! of a weighted linear regression; if `m` would be positive it is 0, and `s` is Σwxl / Σwl².
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `make_qkx2_quants`, `make_qkx3_quants` and
//! `make_qp_quants`.

use super::RowImportance;
use super::search::{
    Lanes, Mask, TINY, clamp, larger, mask, nearest_in, nearest_int, opaque, select, transpose,
};
use crate::element::ROUND_TO_INTEGER;
use crate::simd::{Aligned, from_fn, zip};
use crate::simd::{Flat, Transpose};

/// Parameters of [`fit_affine`]: tried scales map the range of a group to
/// `top + first + delta * step` codes.
#[derive(Clone, Copy)]
pub(super) struct AffineSearch {
    /// The highest code.
    pub(super) top: f32,
    /// ggml's `rmin`.
    pub(super) first: f32,
    /// ggml's `rdelta`.
    pub(super) delta: f32,
    /// The last step; the first is 0.
    pub(super) steps: u8,
    /// Whether errors are squared. Else their magnitudes are summed: ggml's `use_mad`.
    pub(super) squared: bool,
    /// Whether values are limited to the codes before they are rounded, rather than after. The two
    /// differ only for NaN and for values so large that [`nearest_in`] does not round them.
    pub(super) clamped: bool,
}

impl AffineSearch {
    /// The code of a value that was shifted and scaled to codes.
    #[inline(always)]
    fn code(&self, x: f32) -> f32 {
        if self.clamped {
            (clamp(x, 0.0, self.top) + ROUND_TO_INTEGER) - ROUND_TO_INTEGER
        } else {
            nearest_in(x, 0.0, self.top)
        }
    }
}

/// The result of a search: values are `scale * code - min`. As in ggml the minimum is stored with
/// the sign turned.
pub(super) struct AffineFit<const G: usize> {
    pub(super) scale: Lanes<G>,
    pub(super) min: Lanes<G>,
    /// The codes are the values less `base` times `inverse`, rounded. These are what was tried;
    /// `scale` and `min` were fitted to the codes afterwards.
    inverse: Lanes<G>,
    base: Lanes<G>,
    /// Whether no step was better than the first codes, which are always limited after rounding.
    start: Mask<G>,
}

impl<const G: usize> AffineFit<G> {
    /// The code of `x` in lane `g`.
    #[inline(always)]
    pub(super) fn code(&self, search: &AffineSearch, g: usize, x: f32) -> u8 {
        let x = self.inverse[g] * (x - self.base[g]);
        (if self.start[g] != 0 {
            nearest_in(x, 0.0, search.top)
        } else {
            search.code(x)
        }) as u8
    }
}

/// The weighted error of each lane for given codes, scale and minimum.
#[inline(always)]
fn error<const N: usize, const G: usize>(
    x: &[Lanes<G>; N],
    w: &[Lanes<G>; N],
    codes: &[Lanes<G>; N],
    (scale, min): (Lanes<G>, Lanes<G>),
    squared: bool,
) -> Lanes<G> {
    let mut sum = [0.0; G];
    for ((x, w), l) in zip(zip(x.iter(), w), codes) {
        for g in 0..G {
            let diff = scale[g] * l[g] + min[g] - x[g];
            sum[g] += w[g] * if squared { diff * diff } else { diff.abs() };
        }
    }
    sum
}

/// Σab and Σac in each lane.
#[inline(always)]
fn products<const N: usize, const G: usize>(
    a: &[Lanes<G>; N],
    b: &[Lanes<G>; N],
    c: &[Lanes<G>; N],
) -> (Lanes<G>, Lanes<G>) {
    let (mut ab, mut ac) = ([0.0; G], [0.0; G]);
    for ((a, b), c) in zip(zip(a.iter(), b), c) {
        for g in 0..G {
            ab[g] += a[g] * b[g];
            ac[g] += a[g] * c[g];
        }
    }
    (ab, ac)
}

/// The scale and minimum of each lane with the least weighted error: ggml's `make_qkx2_quants` and
/// `make_qkx3_quants`. Each step shifts by the minimum of the best one before it, so that steps
/// depend on each other; only groups are side by side.
#[inline(always)]
pub(super) fn fit_affine<const N: usize, const G: usize>(
    x: &[Lanes<G>; N],
    w: &[Lanes<G>; N],
    search: &AffineSearch,
) -> AffineFit<G> {
    let (x, w) = (Aligned(*x), Aligned(*w));
    let (x, w) = (opaque(&x.0), opaque(&w.0));
    let (mut min, mut max, mut sum_w) = (x[0], x[0], w[0]);
    let mut sum_x: Lanes<G> = from_fn(|g| w[0][g] * x[0][g]);
    for (x, w) in zip(x.iter(), w).skip(1) {
        for g in 0..G {
            min[g] = if x[g] < min[g] { x[g] } else { min[g] };
            max[g] = if x[g] > max[g] { x[g] } else { max[g] };
            sum_w[g] += w[g];
            sum_x[g] += w[g] * x[g];
        }
    }
    min = from_fn(|g| if min[g] > 0.0 { 0.0 } else { min[g] });
    // In a flat group, of which all values are the same and not positive, scales are infinite or
    // NaN. ggml returns at once; here such lanes go along, and get their results at the end.
    let (low, flat): (Lanes<G>, Lanes<G>) =
        (min, from_fn(|g| if max[g] == min[g] { 1.0 } else { 0.0 }));

    let (mut codes, mut terms) = (Aligned([[0.0; G]; N]), Aligned([[0.0; G]; N]));
    let (codes, terms) = (&mut codes.0, &mut terms.0);
    let (mut inverse, mut base) = (from_fn(|g| search.top / (max[g] - min[g])), min);
    let mut scale: Lanes<G> = from_fn(|g| 1.0 / inverse[g]);
    let mut best = [0.0; G];
    for (x, w) in zip(x.iter(), w) {
        for g in 0..G {
            let l = nearest_in(inverse[g] * (x[g] - min[g]), 0.0, search.top);
            let diff = scale[g] * l + min[g] - x[g];
            best[g] += w[g]
                * if search.squared {
                    diff * diff
                } else {
                    diff.abs()
                };
        }
    }
    let mut start = [u32::MAX; G];
    for step in 0..=search.steps {
        let span = search.first + search.delta * f32::from(step) + search.top;
        let tried: Lanes<G> = from_fn(|g| span / (max[g] - min[g]));
        let mut sum_l = [0.0; G];
        for (((x, w), codes), terms) in zip(zip(zip(x.iter(), w), &mut *codes), &mut *terms) {
            for g in 0..G {
                let l = search.code(tried[g] * (x[g] - min[g]));
                let wl = w[g] * l;
                codes[g] = l;
                terms[g] = wl;
                sum_l[g] += wl;
            }
        }
        let (sum_l2, sum_xl) = products(terms, codes, x);
        // The linear regression of the values by their codes. `det` is not positive if all codes
        // are the same, and then the rest is not used.
        let det: Lanes<G> = from_fn(|g| sum_w[g] * sum_l2[g] - sum_l[g] * sum_l[g]);
        let least: Lanes<G> = from_fn(|g| (sum_l2[g] * sum_x[g] - sum_l[g] * sum_xl[g]) / det[g]);
        let slope: Lanes<G> = from_fn(|g| (sum_w[g] * sum_xl[g] - sum_x[g] * sum_l[g]) / det[g]);
        let positive = mask(|g| least[g] > 0.0);
        let slope = select(positive, from_fn(|g| sum_xl[g] / sum_l2[g]), slope);
        let least = select(positive, [0.0; G], least);
        let found = error(x, w, codes, (slope, least), search.squared);
        // A NaN in either comparison is not better, as in ggml, whose branch is not taken then.
        let better = mask(|g| (det[g] > 0.0) & (found[g] < best[g]));
        best = select(better, found, best);
        scale = select(better, slope, scale);
        inverse = select(better, tried, inverse);
        base = select(better, min, base);
        min = select(better, least, min);
        for g in 0..G {
            start[g] &= !better[g];
        }
    }
    for g in 0..G {
        let flat = flat[g] != 0.0;
        scale[g] = if flat { 0.0 } else { scale[g] };
        inverse[g] = if flat { 0.0 } else { inverse[g] };
        min[g] = -if flat { low[g] } else { min[g] };
    }
    AffineFit { scale, min, inverse, base, start }
}

/// The scale, the minimum and the codes of each of `G` blocks of Q4_1 or Q5_1 side by side, whose
/// values are `scale * code + min`.
#[inline(always)]
pub(super) fn fit_unsigned<const G: usize>(
    values: &[f32],
    importance: RowImportance<'_, 32>,
    top: u8,
    by: impl Transpose,
) -> [(f32, f32, [u8; 32]); G] {
    let x: [Lanes<G>; 32] = transpose(values, by);
    let mut w: [Lanes<G>; 32] = transpose(importance.weights.flat(), by);
    for (w, x) in zip(&mut w[..], &x) {
        for g in 0..G {
            w[g] *= (importance.row_square + x[g] * x[g]).sqrt();
        }
    }
    let search = AffineSearch {
        top: f32::from(top),
        first: -0.9,
        delta: 0.05,
        steps: 36,
        squared: true,
        clamped: true,
    };
    let fit = fit_affine(&x, &w, &search);
    let mut blocks = [(0.0, 0.0, [0; 32]); G];
    for (g, ((scale, min, codes), values)) in
        zip(&mut blocks[..], values.as_chunks::<32>().0).enumerate()
    {
        (*scale, *min) = (fit.scale[g], -fit.min[g]);
        for (code, &x) in zip(&mut codes[..], values) {
            *code = fit.code(&search, g, x);
        }
    }
    blocks
}

/// The scales of positive values for codes from 0 to `top`, by coordinate descent: ggml's
/// `make_qp_quants`. K-quants use it for the scales and minimums of groups, which are the lanes
/// here. Codes are as ggml has them: those of negative values wrap in the byte.
#[inline(always)]
pub(super) fn fit_nonnegative<const N: usize, const L: usize>(
    x: &[Lanes<L>; N],
    w: &[Lanes<L>; N],
    top: i32,
) -> (Lanes<L>, [[i32; L]; N]) {
    let (x, w) = (opaque(x), opaque(w));
    let mut max = [0.0; L];
    for x in x {
        max = from_fn(|l| larger(max[l], x[l]));
    }
    let inverse = nonnegative_start(x, w, top, &max);
    let (mut lx, mut l2) = ([0.0; L], [0.0; L]);
    let mut codes = [[0; L]; N];
    for ((x, w), codes) in zip(zip(x.iter(), w), &mut codes) {
        for l in 0..L {
            let code = nearest_int(inverse[l] * x[l]).min(top);
            codes[l] = code & 255;
            let code = code as f32;
            lx[l] += w[l] * x[l] * code;
            l2[l] += w[l] * code * code;
        }
    }
    for _ in 0..5 {
        // As in `descent`, lanes go on until no code of any has changed.
        let mut changed = [0; L];
        for ((x, w), codes) in zip(zip(x.iter(), w), &mut codes) {
            // The sums without this value: the scale that fits the others decides which code it
            // gets.
            let (mut rest_lx, mut rest_l2) = ([0.0; L], [0.0; L]);
            let (mut new_lx, mut new_l2) = ([0.0; L], [0.0; L]);
            let mut new = [0; L];
            for l in 0..L {
                let code = codes[l] as f32;
                rest_lx[l] = lx[l] - w[l] * x[l] * code;
                rest_l2[l] = l2[l] - w[l] * code * code;
                new[l] = nearest_int(x[l] * rest_l2[l] / rest_lx[l]).min(top);
                let code = new[l] as f32;
                new_lx[l] = rest_lx[l] + w[l] * x[l] * code;
                new_l2[l] = rest_l2[l] + w[l] * code * code;
            }
            let better = mask(|l| {
                (rest_lx[l] > 0.0)
                    & (rest_l2[l] > 0.0)
                    & (new[l] != codes[l])
                    & (new_lx[l] * new_lx[l] * l2[l] > lx[l] * lx[l] * new_l2[l])
            });
            lx = select(better, new_lx, lx);
            l2 = select(better, new_l2, l2);
            for l in 0..L {
                codes[l] = if better[l] != 0 {
                    new[l] & 255
                } else {
                    codes[l]
                };
                changed[l] |= better[l];
            }
        }
        if changed == [0; L] {
            break;
        }
    }
    let is_zero = mask(|l| max[l] < TINY);
    for codes in &mut codes {
        for l in 0..L {
            codes[l] &= !is_zero[l] as i32;
        }
    }
    let scale = from_fn(|l| if l2[l] > 0.0 { lx[l] / l2[l] } else { 0.0 });
    (select(is_zero, [0.0; L], scale), codes)
}

/// The inverse scales with the least weighted error, of those that map `max` to `top` or up to 0.4
/// more or less.
#[inline(always)]
fn nonnegative_start<const N: usize, const L: usize>(
    x: &[Lanes<L>; N],
    w: &[Lanes<L>; N],
    top: i32,
    max: &Lanes<L>,
) -> Lanes<L> {
    // The middle try is ggml's first, so that of equal errors it wins. Its codes are not limited to
    // `top` there, but kept in bytes, in which they wrap.
    let mut inverse = from_fn(|l| top as f32 / max[l]);
    let mut best = nonnegative_error(x, w, &inverse, |code| code & 255);
    for step in [-4, -3, -2, -1, 1, 2, 3, 4] {
        let level = 0.1 * step as f32 + top as f32;
        let tried = from_fn(|l| level / max[l]);
        let errors = nonnegative_error(x, w, &tried, |code| code.min(top));
        let better = mask(|l| errors[l] < best[l]);
        best = select(better, errors, best);
        inverse = select(better, tried, inverse);
    }
    inverse
}

/// The weighted error of each lane for a tried inverse scale, with codes as they are `limited`.
#[inline(always)]
fn nonnegative_error<const N: usize, const L: usize>(
    x: &[Lanes<L>; N],
    w: &[Lanes<L>; N],
    tried: &Lanes<L>,
    limited: impl Fn(i32) -> i32,
) -> Lanes<L> {
    let scales: Lanes<L> = from_fn(|l| 1.0 / tried[l]);
    let mut errors = [0.0; L];
    for (x, w) in zip(x.iter(), w) {
        for l in 0..L {
            let code = limited(nearest_int(tried[l] * x[l]));
            let diff = x[l] - scales[l] * code as f32;
            errors[l] += w[l] * diff * diff;
        }
    }
    errors
}
