//! The search for scales without a minimum by coordinate descent: ggml's for Q3_K without
//! importance.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `make_q3_quants`.

use std::cell::Cell;

use super::search::{
    Lanes, Mask, TINY, mask, nearest_in, opaque, select, signed_max_abs, transpose,
};
use crate::simd::{Flat, Transpose, from_fn, zip};

/// The code of step 0.
#[inline(always)]
fn first_code(inverse: f32, x: f32, half: f32) -> f32 {
    nearest_in(inverse * x, -half, half - 1.0)
}

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
        Self { x: zeros, w: zeros, wx: zeros, codes: zeros, lx: sums, l2: sums }
    }

    /// Starts with the codes of step 0, for values of which `peak` have the largest magnitudes. In
    /// place, for a descent is large.
    #[inline(always)]
    fn start(&mut self, x: &[Lanes<G>; N], peak: &Lanes<G>, half: f32) {
        // A group of zeros divides by 0; its lane is cleared at the end.
        let inverse: Lanes<G> = from_fn(|g| -half / peak[g]);
        let (mut lx, mut l2) = ([0.0; G], [0.0; G]);
        for i in 0..N {
            let x = x[i];
            let w: Lanes<G> = from_fn(|g| x[g] * x[g]);
            let wx: Lanes<G> = from_fn(|g| w[g] * x[g]);
            let codes: Lanes<G> = from_fn(|g| first_code(inverse[g], x[g], half));
            lx = from_fn(|g| lx[g] + wx[g] * codes[g]);
            l2 = from_fn(|g| l2[g] + w[g] * codes[g] * codes[g]);
            (self.x[i], self.w[i], self.wx[i], self.codes[i]) = (x, w, wx, codes);
        }
        (self.lx, self.l2) = (lx, l2);
    }

    /// The groups in which some code may be replaced first; in all others, none is.
    #[inline(always)]
    fn moves(&self, half: f32) -> Mask<G> {
        let (lx, l2, mut moves) = (self.lx, self.l2, [0; G]);
        for i in 0..N {
            let (x, w, wx, codes) = (&self.x[i], &self.w[i], &self.wx[i], &self.codes[i]);
            let rest_lx: Lanes<G> = from_fn(|g| lx[g] - wx[g] * codes[g]);
            let rest_l2: Lanes<G> = from_fn(|g| l2[g] - w[g] * codes[g] * codes[g]);
            let new: Lanes<G> =
                from_fn(|g| nearest_in(x[g] * rest_l2[g] / rest_lx[g], -half, half - 1.0));
            let differs: Mask<G> = mask(|g| (rest_lx[g] > 0.0) & (new[g] != codes[g]));
            for g in 0..G {
                moves[g] |= differs[g];
            }
        }
        moves
    }

    /// The scales that fit the codes, 0 where `peak` counts as zero.
    #[inline(always)]
    fn scales(&self, peak: &Lanes<G>) -> Lanes<G> {
        from_fn(|g| {
            if peak[g].abs() >= TINY && self.l2[g] > 0.0 {
                self.lx[g] / self.l2[g]
            } else {
                0.0
            }
        })
    }

    /// Replaces code `i` of each group where that makes (Σwxl)² / Σwl² larger. Returns the groups
    /// in which it does.
    #[inline(always)]
    fn replace_code(&mut self, i: usize, half: f32) -> Mask<G> {
        let (lx, l2, codes) = (self.lx, self.l2, self.codes[i]);
        let (x, w, wx) = (&self.x[i], &self.w[i], &self.wx[i]);
        let rest_lx: Lanes<G> = from_fn(|g| lx[g] - wx[g] * codes[g]);
        let rest_l2: Lanes<G> = from_fn(|g| l2[g] - w[g] * codes[g] * codes[g]);
        let new: Lanes<G> =
            from_fn(|g| nearest_in(x[g] * rest_l2[g] / rest_lx[g], -half, half - 1.0));
        let new_lx: Lanes<G> = from_fn(|g| rest_lx[g] + wx[g] * new[g]);
        let new_l2: Lanes<G> = from_fn(|g| rest_l2[g] + w[g] * new[g] * new[g]);
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

/// Blocks that are fitted together. Codes change in about a fifth of their groups, which fill the
/// lanes of one descent.
pub(super) const TILE: usize = 16;
/// The lanes of the descents that are done in turn, and how many these are.
const LANES: usize = 16;
const IN_TURN: usize = 4;
/// Groups that descend in a pass.
const PASS: usize = LANES * IN_TURN;
/// The slot of a group that keeps its first codes.
const FIRST: u16 = u16::MAX;

/// The scales of the 16 groups of each of up to [`TILE`] blocks by coordinate descent, with the
/// square of a value as its weight: ggml's `make_q3_quants`.
///
/// From the codes of step 0 on, one code after the other is replaced by the best for the scale that
/// fits the other values, as long as (Σwxl)² / Σwl² grows, for at most five rounds.
pub(super) struct Descended {
    pub(super) scales: [Lanes<16>; TILE],
    half: f32,
    peaks: [Lanes<16>; TILE],
    /// Where in `codes` a group has those that replaced its first ones: a set of lanes and a lane
    /// of it.
    slots: [[u16; 16]; TILE],
    codes: [[Lanes<LANES>; 16]; TILE],
    /// The groups of the blocks that descend, one behind the other, and behind them what is left of
    /// others.
    gathered: [[f32; 16]; 16 * TILE + 1],
    descents: [Descent<16, LANES>; IN_TURN],
}

thread_local! {
    static KEPT: Cell<Option<Box<Descended>>> = const { Cell::new(None) };
}

impl Descended {
    /// What the thread has kept, or a new one: to fill it with zeros for each few blocks would take
    /// a twentieth of the time.
    pub(super) fn take(half: f32) -> Box<Self> {
        let mut fits = KEPT.take().unwrap_or_else(|| Box::new(Self::of_zeros()));
        fits.half = half;
        fits
    }

    /// Keeps it for the next blocks.
    pub(super) fn keep(self: Box<Self>) {
        KEPT.set(Some(self));
    }

    fn of_zeros() -> Self {
        Self {
            scales: [[0.0; 16]; TILE],
            half: 0.0,
            peaks: [[0.0; 16]; TILE],
            slots: [[FIRST; 16]; TILE],
            codes: [[[0.0; LANES]; 16]; TILE],
            gathered: [[0.0; 16]; 16 * TILE + 1],
            descents: [Descent::of_zeros(); IN_TURN],
        }
    }

    /// Fits up to [`TILE`] blocks. Most groups keep their first codes: a look at all codes, of
    /// which none waits for another, tells them from the others, which are gathered into lanes and
    /// descend.
    #[inline(always)]
    pub(super) fn fit(&mut self, blocks: &[[f32; 256]], by: impl Transpose) {
        let (mut places, mut count) = ([0; 16 * TILE + 1], 0);
        let descent = &mut self.descents[0];
        for (b, values) in blocks.iter().take(TILE).enumerate() {
            let x = transpose::<16, 16>(values, by);
            let x = opaque(&x);
            let peak = signed_max_abs(x);
            descent.start(x, &peak, self.half);
            let moves = descent.moves(self.half);
            self.peaks[b] = peak;
            self.slots[b] = [FIRST; 16];
            self.scales[b] = descent.scales(&peak);
            // Every group is written, and overwritten by the next unless it moves: no branch is
            // mispredicted.
            for (g, group) in values.as_chunks::<16>().0.iter().enumerate() {
                self.gathered[count] = *group;
                places[count] = 16 * b + g;
                count += (moves[g] & 1) as usize;
            }
        }
        // Groups of zeros, which do not move, fill the last pass.
        let end = count.next_multiple_of(PASS);
        self.gathered[count..end].fill([0.0; 16]);
        for first in (0..count).step_by(PASS) {
            self.descend(&places[first..count.min(first + PASS)], first, by);
        }
    }

    /// Descends in the gathered groups from `first` on, of which as many as `places` are those at
    /// these places; their codes get the slots from `first` on.
    #[inline(always)]
    fn descend(&mut self, places: &[usize], first: usize, by: impl Transpose) {
        let mut peaks = [[0.0; LANES]; IN_TURN];
        let groups = self.gathered[first..][..PASS].as_chunks::<LANES>().0;
        for ((descent, peak), groups) in zip(zip(&mut self.descents[..], &mut peaks), groups) {
            let x = transpose(groups.flat(), by);
            let x = opaque(&x);
            *peak = signed_max_abs(x);
            descent.start(x, peak, self.half);
        }
        for _ in 0..5 {
            // ggml stops in a group when no code has changed. A further round then changes nothing,
            // for the sums are the same; so lanes may go on until all have stopped.
            let mut changed = [0; LANES];
            for i in 0..16 {
                // Each code waits for the one before it, with a division in between.
                for descent in &mut self.descents {
                    let better = descent.replace_code(i, self.half);
                    for g in 0..LANES {
                        changed[g] |= better[g];
                    }
                }
            }
            if changed == [0; LANES] {
                break;
            }
        }
        let mut scales = [[0.0; LANES]; IN_TURN];
        for (k, descent) in self.descents.iter().enumerate() {
            scales[k] = descent.scales(&peaks[k]);
            self.codes[first / LANES + k] = descent.codes;
        }
        for (n, (&place, &scale)) in zip(places.iter(), scales.flat()).enumerate() {
            self.scales[place / 16][place % 16] = scale;
            self.slots[place / 16][place % 16] = (first + n) as u16;
        }
    }

    /// The code of `x`, which is value `i` of group `g` of block `b`, as it is stored: `half` more
    /// than its value.
    #[inline(always)]
    pub(super) fn code(&self, (b, g, i): (usize, usize, usize), x: f32) -> u8 {
        let (peak, slot) = (self.peaks[b][g], usize::from(self.slots[b][g]));
        if peak.abs() < TINY {
            return 0;
        }
        let code = if slot == usize::from(FIRST) {
            first_code(-self.half / peak, x, self.half)
        } else {
            self.codes[slot / LANES][i][slot % LANES]
        };
        (code + self.half) as u8
    }
}
