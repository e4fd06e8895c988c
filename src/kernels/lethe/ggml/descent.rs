//! The search for scales without a minimum by coordinate descent: ggml's for Q3_K without importance.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `make_q3_quants`.

use super::search::{
    Lanes, Mask, TINY, mask, nearest_in, opaque, per_lane, select, signed_max_abs,
};

/// Groups whose codes are chosen together, and the sums over them.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Descent<const N: usize, const G: usize> {
    /// The values, and each times its weight, which is its square.
    x: [Lanes<G>; N],
    w: [Lanes<G>; N],
    wx: [Lanes<G>; N],
    codes: [Lanes<G>; N],
    /// Σwxl and Σwl².
    lx: Lanes<G>,
    l2: Lanes<G>,
}

impl<const N: usize, const G: usize> Descent<N, G> {
    #[inline(always)]
    fn of_zeros() -> Self {
        let (zeros, sums) = ([[0.0; G]; N], [0.0; G]);
        Self {
            x: zeros,
            w: zeros,
            wx: zeros,
            codes: zeros,
            lx: sums,
            l2: sums,
        }
    }

    /// The codes of step 0, for values of which `peak` have the largest magnitudes.
    #[inline(always)]
    fn new(x: &[Lanes<G>; N], peak: Lanes<G>, half: f32) -> Self {
        // A group of zeros divides by 0; its lane is cleared at the end.
        let inverse: Lanes<G> = per_lane(|g| -half / peak[g]);
        let (mut w, mut wx, mut codes) = (*x, *x, *x);
        let (mut lx, mut l2) = ([0.0; G], [0.0; G]);
        for i in 0..N {
            w[i] = per_lane(|g| x[i][g] * x[i][g]);
            wx[i] = per_lane(|g| w[i][g] * x[i][g]);
            codes[i] = per_lane(|g| nearest_in(inverse[g] * x[i][g], -half, half - 1.0));
            lx = per_lane(|g| lx[g] + wx[i][g] * codes[i][g]);
            l2 = per_lane(|g| l2[g] + w[i][g] * codes[i][g] * codes[i][g]);
        }
        let x = *x;
        Self {
            x,
            w,
            wx,
            codes,
            lx,
            l2,
        }
    }

    /// Replaces code `i` of each group where that makes (Σwxl)² / Σwl² larger. Returns the groups in which it does.
    #[inline(always)]
    fn replace_code(&mut self, i: usize, half: f32) -> Mask<G> {
        let (lx, l2, codes) = (self.lx, self.l2, self.codes[i]);
        let (x, w, wx) = (&self.x[i], &self.w[i], &self.wx[i]);
        let rest_lx: Lanes<G> = per_lane(|g| lx[g] - wx[g] * codes[g]);
        let rest_l2: Lanes<G> = per_lane(|g| l2[g] - w[g] * codes[g] * codes[g]);
        let new: Lanes<G> =
            per_lane(|g| nearest_in(x[g] * rest_l2[g] / rest_lx[g], -half, half - 1.0));
        let new_lx: Lanes<G> = per_lane(|g| rest_lx[g] + wx[g] * new[g]);
        let new_l2: Lanes<G> = per_lane(|g| rest_l2[g] + w[g] * new[g] * new[g]);
        // `&` rather than `&&`: conditions that ggml tests by turns are evaluated together.
        // Where an earlier one fails the others are computed from infinities or NaN, and not
        // used.
        let better = mask(|g| {
            (rest_lx[g] > 0.0)
                & (new[g] != codes[g])
                & (new_l2[g] > 0.0)
                & (new_lx[g] * new_lx[g] * l2[g] > lx[g] * lx[g] * new_l2[g])
        });
        self.codes[i] = select(better, new, codes);
        self.lx = select(better, new_lx, lx);
        self.l2 = select(better, new_l2, l2);
        better
    }
}

/// The scale of each lane by coordinate descent, with the square of a value as its weight: ggml's
/// `make_q3_quants`; and the codes as they are stored, `half` more than their values.
///
/// From the codes of step 0 on, one code after the other is replaced by the best for the scale that
/// fits the other values, as long as (Σwxl)² / Σwl² grows, for at most five rounds. Each waits for
/// the one before it, with a division in between; so `K` blocks of groups are done in turn, whose
/// codes do not wait for each other.
#[inline(always)]
pub(super) fn fit_by_coordinates<const N: usize, const G: usize, const K: usize>(
    x: &[[Lanes<G>; N]; K],
    half: f32,
) -> [(Lanes<G>, [Lanes<G>; N]); K] {
    let (x, mut found) = (opaque(x), [([0.0; G], [[0.0; G]; N]); K]);
    let mut peaks = [[0.0; G]; K];
    let mut descents = [Descent::of_zeros(); K];
    for k in 0..K {
        peaks[k] = signed_max_abs(&x[k]);
        descents[k] = Descent::new(&x[k], peaks[k], half);
    }
    for _ in 0..5 {
        // ggml stops in a group when no code has changed. A further round then changes nothing, for
        // the sums are the same; so lanes may go on until all have stopped.
        let mut changed = [0; G];
        for i in 0..N {
            for descent in &mut descents {
                let better = descent.replace_code(i, half);
                for g in 0..G {
                    changed[g] |= better[g];
                }
            }
        }
        if changed == [0; G] {
            break;
        }
    }
    for ((found, descent), peak) in found.iter_mut().zip(&descents).zip(&peaks) {
        let zero: Lanes<G> = per_lane(|g| if peak[g].abs() < TINY { 0.0 } else { 1.0 });
        let (scale, codes) = found;
        for (codes, chosen) in codes.iter_mut().zip(&descent.codes) {
            *codes = per_lane(|g| {
                if zero[g] == 0.0 {
                    0.0
                } else {
                    chosen[g] + half
                }
            });
        }
        *scale = per_lane(|g| {
            if zero[g] != 0.0 && descent.l2[g] > 0.0 {
                descent.lx[g] / descent.l2[g]
            } else {
                0.0
            }
        });
    }
    found
}
