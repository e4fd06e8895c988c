//! The search of the IQ1 types: which of a group's values become -1, 0 and 1, and by which shift.
//!
//! The three are intervals of the sorted values. All pairs of boundaries between them are tried
//! with each shift, and sums up to each boundary give the error of a pair at once. Pairs are
//! compared by (Σwqx)² / Σwq² in ggml's order, the first boundary outermost and the shift
//! innermost, and the first of the best wins. Values that are equal stay in their order, as the
//! merge sort of glibc's `qsort` leaves them.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_row_iq1_s_impl`, `quantize_row_iq1_m_impl`.

/// What the three codes stand for if they are shifted up.
pub(super) const UP: [f32; 3] = [-0.875, 0.125, 1.125];
/// What the three codes stand for if they are shifted down.
pub(super) const DOWN: [f32; 3] = [-1.125, -0.125, 0.875];

/// Second boundaries that are tried side by side.
const LANES: usize = 8;

/// Where the sorted values are split: those before `first` become -1, those before `second` 0, the
/// others 1.
pub(super) struct ThreeWaySplit {
    pub(super) first: usize,
    pub(super) second: usize,
    /// The shift: 0 for up, 1 for down. In IQ1_M the first half's in bit 1 and the second half's in
    /// bit 0.
    pub(super) shift: usize,
    pub(super) scale: f32,
}

/// The place of each value in ascending order, equal values in theirs. Every value is compared with
/// every other, which takes no branches.
#[inline(always)]
fn ranks<const N: usize>(values: &[f32; N]) -> [usize; N] {
    let mut ranks = [0u32; N];
    for (j, &other) in values.iter().enumerate() {
        for (i, (rank, &x)) in ranks.iter_mut().zip(values).enumerate() {
            *rank += u32::from(if j < i { other <= x } else { other < x });
        }
    }
    let mut indices = [0; N];
    indices
        .iter_mut()
        .zip(ranks)
        .for_each(|(index, rank)| *index = rank as usize);
    indices
}

/// The indices of values in ascending order.
#[inline(always)]
pub(super) fn order<const N: usize>(values: &[f32; N]) -> [usize; N] {
    let mut order = [0; N];
    for (i, rank) in ranks(values).into_iter().enumerate() {
        order[rank] = i;
    }
    order
}

/// Σwqx and Σwq² of one first boundary with `LANES` second ones, for each of `SHIFTS` shifts; q are
/// the levels.
struct SplitSums<const SHIFTS: usize> {
    products: [[f32; LANES]; SHIFTS],
    squares: [[f32; LANES]; SHIFTS],
}

/// Sums of sorted values and weights up to each boundary, from which [`SplitSums`] are made.
trait SplitBoundaries<const SHIFTS: usize> {
    /// The last boundary, which is the number of values.
    const LAST: usize;

    /// The sums of `first` with the second boundaries from `start` on. Must be `#[inline(always)]`
    /// with everything it calls.
    fn compare(&self, first: usize, start: usize, out: &mut SplitSums<SHIFTS>);
}

/// The best split of all. `LANES` pairs are compared with the best so far at once; only if one is
/// better are they gone through in order, which is seldom. Lanes before the first boundary do not
/// count.
#[inline(always)]
fn best_split<B: SplitBoundaries<SHIFTS>, const SHIFTS: usize>(
    boundaries: &B,
) -> Option<ThreeWaySplit> {
    let mut candidates = SplitSums {
        products: [[0.0; LANES]; SHIFTS],
        squares: [[0.0; LANES]; SHIFTS],
    };
    // Below every score: a product of 0 over a positive square is accepted.
    let (mut score, mut best) = (-f32::MAX, None);
    for first in 0..=B::LAST {
        // Chunks of lanes that end before `first` hold no pair; in the first chunk the lanes before
        // it are masked.
        for start in first / LANES..=B::LAST / LANES {
            boundaries.compare(first, start * LANES, &mut candidates);
            let SplitSums { products, squares } = &candidates;
            let mut any = 0;
            for (products, squares) in products.iter().zip(squares) {
                for l in 0..LANES {
                    let possible =
                        u32::from(start * LANES + l >= first) & u32::from(squares[l] > 0.0);
                    any |= possible & u32::from(products[l] * products[l] > score * squares[l]);
                }
            }
            if any == 0 {
                continue;
            }
            for second in first.max(start * LANES)..=B::LAST.min(start * LANES + LANES - 1) {
                for shift in 0..SHIFTS {
                    let (product, square) = (
                        products[shift][second % LANES],
                        squares[shift][second % LANES],
                    );
                    if square > 0.0 && product * product > score * square {
                        let scale = product / square;
                        score = scale * product;
                        best = Some(ThreeWaySplit {
                            first,
                            second,
                            shift,
                            scale,
                        });
                    }
                }
            }
        }
    }
    best
}

/// Sums of values times weights, and of weights, up to each boundary. Past the last there is NaN,
/// which no comparison finds better than anything: so the last lanes may lie there.
struct PrefixSums<const N: usize> {
    x: [f32; N],
    w: [f32; N],
}

impl<const N: usize> PrefixSums<N> {
    /// The sums over all sorted values, or over those that are in `half` of the unsorted ones.
    #[inline(always)]
    fn new(order: &[usize], values: &[f32], weights: &[f32], half: Option<usize>) -> Self {
        let mut sums = Self {
            x: [f32::NAN; N],
            w: [f32::NAN; N],
        };
        let (mut x, mut w) = (0.0, 0.0);
        (sums.x[0], sums.w[0]) = (x, w);
        for (j, &i) in order.iter().enumerate() {
            // Boundaries are places in the order of all values, so a half's sums repeat where the
            // next value is of the other half.
            if half.is_none_or(|half| i / (order.len() / 2) == half) {
                x += weights[i] * values[i];
                w += weights[i];
            }
            (sums.x[j + 1], sums.w[j + 1]) = (x, w);
        }
        sums
    }
}

/// 32 values that share one shift: 0 for up, 1 for down.
impl SplitBoundaries<2> for PrefixSums<40> {
    const LAST: usize = 32;

    #[inline(always)]
    fn compare(&self, first: usize, start: usize, out: &mut SplitSums<2>) {
        let (first_x, first_w) = (self.x[first], self.w[first]);
        for (shift, [low, middle, top]) in [UP, DOWN].into_iter().enumerate() {
            let (low_x, low_w) = (first_x * low, first_w * low * low);
            for l in 0..LANES {
                let (x, w) = (self.x[start + l], self.w[start + l]);
                out.products[shift][l] = low_x + (x - first_x) * middle + (self.x[32] - x) * top;
                out.squares[shift][l] =
                    low_w + (w - first_w) * middle * middle + (self.w[32] - w) * top * top;
            }
        }
    }
}

/// The best split of 32 values.
#[inline(always)]
pub(super) fn split32(
    order: &[usize; 32],
    values: &[f32; 32],
    weights: &[f32; 32],
) -> Option<ThreeWaySplit> {
    best_split(&PrefixSums::<40>::new(order, values, weights, None))
}

/// 16 values, of which each half has one of the two shifts. All values of a half are taken for the
/// highest level first. As levels are 1 apart, each boundary then takes the sum up to it away once.
impl SplitBoundaries<4> for [PrefixSums<24>; 2] {
    const LAST: usize = 16;

    #[inline(always)]
    fn compare(&self, first: usize, start: usize, out: &mut SplitSums<4>) {
        let (mut products, mut squares) = ([[[0.0; LANES]; 2]; 2], [[[0.0; LANES]; 2]; 2]);
        for (half, PrefixSums { x, w }) in self.iter().enumerate() {
            for (shift, levels) in [UP, DOWN].iter().enumerate() {
                let top = levels[2];
                let (x_top, low) = (x[16] * top, w[16] * top * top + w[first] * steps(levels, 0));
                for l in 0..LANES {
                    products[half][shift][l] = x_top - (x[first] + x[start + l]);
                    squares[half][shift][l] = low + w[start + l] * steps(levels, 1);
                }
            }
        }
        for shifts in 0..4 {
            for l in 0..LANES {
                out.products[shifts][l] = products[0][shifts >> 1][l] + products[1][shifts & 1][l];
                out.squares[shifts][l] = squares[0][shifts >> 1][l] + squares[1][shifts & 1][l];
            }
        }
    }
}

/// The best split of 16 values.
#[inline(always)]
pub(super) fn split16(
    order: &[usize; 16],
    values: &[f32; 16],
    weights: &[f32; 16],
) -> Option<ThreeWaySplit> {
    best_split(&[
        PrefixSums::<24>::new(order, values, weights, Some(0)),
        PrefixSums::new(order, values, weights, Some(1)),
    ])
}

/// The difference of the squares of level `i` and the next.
#[inline(always)]
fn steps(levels: &[f32; 3], i: usize) -> f32 {
    levels[i] * levels[i] - levels[i + 1] * levels[i + 1]
}
