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
    Lanes, MAGIC, Mask, TINY, clamp, larger, mask, nearest_in, nearest_int, opaque, per_lane,
    select, transpose,
};

/// Parameters of [`fit_affine`]: tried scales map the range of a group to
/// `top + first + delta * step` codes.
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
            (clamp(x, 0.0, self.top) + MAGIC) - MAGIC
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
    for ((x, w), l) in x.iter().zip(w).zip(codes) {
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
    for ((a, b), c) in a.iter().zip(b).zip(c) {
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
    let (x, w) = (opaque(x), opaque(w));
    let (mut min, mut max, mut sum_w) = (x[0], x[0], w[0]);
    let mut sum_x: Lanes<G> = per_lane(|g| w[0][g] * x[0][g]);
    for (x, w) in x.iter().zip(w).skip(1) {
        for g in 0..G {
            min[g] = if x[g] < min[g] { x[g] } else { min[g] };
            max[g] = if x[g] > max[g] { x[g] } else { max[g] };
            sum_w[g] += w[g];
            sum_x[g] += w[g] * x[g];
        }
    }
    min = per_lane(|g| if min[g] > 0.0 { 0.0 } else { min[g] });
    // In a flat group, of which all values are the same and not positive, scales are infinite or
    // NaN. ggml returns at once; here such lanes go along, and get their results at the end.
    let (low, flat): (Lanes<G>, Lanes<G>) =
        (min, per_lane(|g| if max[g] == min[g] { 1.0 } else { 0.0 }));

    let (mut codes, mut terms) = ([[0.0; G]; N], [[0.0; G]; N]);
    let (mut inverse, mut base) = (per_lane(|g| search.top / (max[g] - min[g])), min);
    let mut scale: Lanes<G> = per_lane(|g| 1.0 / inverse[g]);
    let mut best = [0.0; G];
    for (x, w) in x.iter().zip(w) {
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
        let tried: Lanes<G> = per_lane(|g| span / (max[g] - min[g]));
        let mut sum_l = [0.0; G];
        for (((x, w), codes), terms) in x.iter().zip(w).zip(&mut codes).zip(&mut terms) {
            for g in 0..G {
                let l = search.code(tried[g] * (x[g] - min[g]));
                let wl = w[g] * l;
                codes[g] = l;
                terms[g] = wl;
                sum_l[g] += wl;
            }
        }
        let (sum_l2, sum_xl) = products(&terms, &codes, x);
        // The linear regression of the values by their codes. `det` is not positive if all codes
        // are the same, and then the rest is not used.
        let det: Lanes<G> = per_lane(|g| sum_w[g] * sum_l2[g] - sum_l[g] * sum_l[g]);
        let least: Lanes<G> = per_lane(|g| (sum_l2[g] * sum_x[g] - sum_l[g] * sum_xl[g]) / det[g]);
        let slope: Lanes<G> = per_lane(|g| (sum_w[g] * sum_xl[g] - sum_x[g] * sum_l[g]) / det[g]);
        let positive = mask(|g| least[g] > 0.0);
        let slope = select(positive, per_lane(|g| sum_xl[g] / sum_l2[g]), slope);
        let least = select(positive, [0.0; G], least);
        let found = error(x, w, &codes, (slope, least), search.squared);
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
    AffineFit {
        scale,
        min,
        inverse,
        base,
        start,
    }
}

/// The scale, the minimum and the codes of each of `G` blocks of Q4_1 or Q5_1 side by side, whose values
/// are `scale * code + min`.
#[inline(always)]
pub(super) fn fit_unsigned<const G: usize>(
    values: &[f32],
    importance: RowImportance<'_, 32>,
    top: u8,
) -> [(f32, f32, [u8; 32]); G] {
    let x: [Lanes<G>; 32] = transpose(values);
    let mut w: [Lanes<G>; 32] = transpose(importance.weights.as_flattened());
    for (w, x) in w.iter_mut().zip(&x) {
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
    for (g, ((scale, min, codes), values)) in blocks
        .iter_mut()
        .zip(values.as_chunks::<32>().0)
        .enumerate()
    {
        (*scale, *min) = (fit.scale[g], -fit.min[g]);
        for (code, &x) in codes.iter_mut().zip(values) {
            *code = fit.code(&search, g, x);
        }
    }
    blocks
}

/// The scale of positive values for codes from 0 to `top`, by coordinate descent: ggml's
/// `make_qp_quants`. K-quants use it for the scales and minimums of groups. `codes` are left as
/// ggml has them: those of negative values wrap in the byte.
#[inline(always)]
pub(super) fn fit_nonnegative<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    top: i32,
    codes: &mut [u8; N],
) -> f32 {
    let max = x.iter().fold(0.0, |max, &x| larger(max, x));
    if max < TINY {
        *codes = [0; N];
        return 0.0;
    }
    let mut inverse = nonnegative_start(x, w, top, max);
    let (mut lx, mut l2) = (0.0, 0.0);
    for ((&x, &w), code) in x.iter().zip(w).zip(codes.iter_mut()) {
        let l = nearest_int(inverse * x).min(top);
        *code = l as u8;
        lx += w * x * l as f32;
        l2 += w * l as f32 * l as f32;
    }
    for _ in 0..5 {
        let mut changed = false;
        for ((&x, &w), code) in x.iter().zip(w).zip(codes.iter_mut()) {
            // The sums without this value: the scale that fits the others decides which code it
            // gets.
            let l = f32::from(*code);
            let (mut new_lx, mut new_l2) = (lx - w * x * l, l2 - w * l * l);
            if new_lx > 0.0 && new_l2 > 0.0 {
                let new = nearest_int(x * new_l2 / new_lx).min(top);
                new_lx += w * x * new as f32;
                new_l2 += w * new as f32 * new as f32;
                if new != i32::from(*code) && new_lx * new_lx * l2 > lx * lx * new_l2 {
                    (*code, lx, l2) = (new as u8, new_lx, new_l2);
                    changed = true;
                }
            }
        }
        if !changed {
            break;
        }
    }
    inverse = lx / l2;
    if l2 > 0.0 { inverse } else { 0.0 }
}

/// The inverse scale with the least weighted error, of those that map `max` to `top` or up to 0.4
/// more or less. The nine tries are the lanes.
#[inline(always)]
fn nonnegative_start<const N: usize>(x: &[f32; N], w: &[f32; N], top: i32, max: f32) -> f32 {
    let level = |c: usize| 0.1 * (c as i32 - 4) as f32 + top as f32;
    let tried: Lanes<9> = per_lane(|c| {
        if c == 4 {
            top as f32 / max
        } else {
            level(c) / max
        }
    });
    let scales: Lanes<9> = per_lane(|c| 1.0 / tried[c]);
    let mut errors = [0.0; 9];
    for (&x, &w) in x.iter().zip(w) {
        for c in 0..9 {
            let l = nearest_int(tried[c] * x);
            // ggml does not limit the codes of the middle try to `top`, but keeps them in bytes, in
            // which they wrap.
            let l = if c == 4 { l & 255 } else { l.min(top) };
            let diff = x - scales[c] * l as f32;
            errors[c] += w * diff * diff;
        }
    }
    // The middle try is ggml's first, so that of equal errors it wins.
    let (mut best, mut inverse) = (errors[4], tried[4]);
    for c in [0, 1, 2, 3, 5, 6, 7, 8] {
        if errors[c] < best {
            (best, inverse) = (errors[c], tried[c]);
        }
    }
    inverse
}
