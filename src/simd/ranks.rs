//! Ranks of values among fifteen bounds.

use super::{InMemory, LANES, zip};

/// Values whose ranks are found together: those of a register of AVX-512.
pub(crate) const RANKED_VALUES: usize = 16;

/// How a body that is generic over levels finds ranks. A value of it is proof that the CPU can.
pub(crate) trait Ranks: Copy {
    /// The number of bounds below each value, 0 for NaN.
    fn ranks(self, values: [f32; RANKED_VALUES], bounds: &Bounds) -> [u32; RANKED_VALUES];

    /// The entry of `table` at each rank.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    fn at_ranks(self, table: &[f32; 16], ranks: [u32; RANKED_VALUES]) -> [f32; RANKED_VALUES];
}

impl Ranks for InMemory {
    /// Fifteen comparisons without a branch are vectorised, which a search by halves in memory is
    /// not.
    #[inline(always)]
    fn ranks(self, values: [f32; RANKED_VALUES], bounds: &Bounds) -> [u32; RANKED_VALUES] {
        let mut ranks = [0; RANKED_VALUES];
        for &bound in &bounds.all {
            for (rank, &x) in zip(&mut ranks[..], &values) {
                *rank += u32::from(x > bound);
            }
        }
        ranks
    }

    #[inline(always)]
    fn at_ranks(self, table: &[f32; 16], ranks: [u32; RANKED_VALUES]) -> [f32; RANKED_VALUES] {
        let mut entries = [0.0; RANKED_VALUES];
        for (entry, rank) in zip(&mut entries[..], ranks) {
            *entry = table[rank as usize & 15];
        }
        entries
    }
}

/// Fifteen bounds between sixteen ranks.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    /// The bounds in ascending order.
    pub all: [f32; 15],
    /// The bounds that halve what is left after one, two and three comparisons, by the number of
    /// bounds of the steps before that are below the value. What repeats is never looked up.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) steps: [[f32; LANES]; 3],
    /// `None` if a bucket would have several bounds.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) buckets: Option<Buckets>,
}

/// Bounds by [`bucket`], of which each has one at most.
#[derive(Debug, Clone)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) struct Buckets {
    /// The bound in each bucket; infinite where there is none.
    pub bounds: [f32; 32],
    /// The number of bounds in the buckets before each.
    pub below: [u32; 32],
}

/// The factor and the summand that give the lowest five bits of a sum the number of a bucket. The
/// sum's last place is 1.
pub(super) const BUCKET: (f32, f32) = (15.0, 12_582_928.0);

/// The bucket, below 32, of a value from -1 to 1. Larger values have the same or a larger one.
fn bucket(x: f32) -> usize {
    (x * BUCKET.0 + BUCKET.1).to_bits() as usize & 31
}

impl Bounds {
    /// `all` ascend.
    #[cfg_attr(not(feature = "bnb"), allow(dead_code))]
    pub(crate) fn new(all: [f32; 15]) -> Self {
        let step = |first: usize, distance: usize| {
            std::array::from_fn(|i| all[(first + i * distance) % 16])
        };
        Self { all, steps: [step(3, 8), step(1, 4), step(0, 2)], buckets: Buckets::new(&all) }
    }
}

impl Buckets {
    fn new(all: &[f32; 15]) -> Option<Self> {
        let mut bounds = [f32::INFINITY; 32];
        for &bound in all {
            // Values beyond ±1 count as ±1, so that bounds have to lie between.
            if !(-1.0 < bound && bound < 1.0) || bounds[bucket(bound)].is_finite() {
                return None;
            }
            bounds[bucket(bound)] = bound;
        }
        let mut below = [0; 32];
        for i in 1..32 {
            below[i] = below[i - 1] + u32::from(bounds[i - 1].is_finite());
        }
        Some(Self { bounds, below })
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "x86_64")]
    use super::super::{Avx2, Avx512};
    use super::super::{Level, Routine, perform};
    use super::*;
    use crate::test_utils::miri_or;

    /// The ranks of a register's values, and the entries of a table there.
    struct Ranked<'a> {
        values: [f32; RANKED_VALUES],
        bounds: &'a Bounds,
        ranks: [u32; RANKED_VALUES],
        entries: [f32; RANKED_VALUES],
    }

    impl Ranked<'_> {
        #[inline(always)]
        fn find(&mut self, with: impl Ranks) {
            self.ranks = with.ranks(self.values, self.bounds);
            self.entries = with.at_ranks(&TABLE, self.ranks);
        }
    }

    impl Routine for Ranked<'_> {
        const HAS_AVX512: bool = true;

        fn run(&mut self) {
            self.find(InMemory);
        }

        #[cfg(target_arch = "x86_64")]
        fn run_avx2(&mut self, avx2: Avx2) {
            self.find(avx2);
        }

        #[cfg(target_arch = "x86_64")]
        fn run_avx512(&mut self, avx512: Avx512) {
            self.find(avx512);
        }
    }

    const TABLE: [f32; 16] =
        [3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, 5.0, 3.5, 5.5, 8.0, 9.5, 7.0, -1.0, -2.0, -3.0];

    #[test]
    fn ranks_count_bounds() {
        let even: [f32; 15] = std::array::from_fn(|i| (i as f32 - 7.0) / 8.0 + 0.01);
        let (mut close, mut wide) = (even, even);
        close[8] = close[7];
        wide[14] = 1.0;
        assert!(Bounds::new(even).buckets.is_some());
        assert!(Bounds::new(close).buckets.is_none() && Bounds::new(wide).buckets.is_none());
        for all in [even, close, wide] {
            let bounds = Bounds::new(all);
            let mut values =
                vec![0.0, -0.0, 1.0, -1.0, 2.5, -7.0, f32::INFINITY, f32::NEG_INFINITY];
            values.extend([f32::NAN, -f32::NAN, f32::MAX, f32::MIN_POSITIVE]);
            for bound in all {
                let bits = bound.to_bits();
                values.extend([bits - 1, bits, bits + 1].map(f32::from_bits));
            }
            values.extend((0..miri_or(40, 4000)).map(|i| (i as f32 * 0.37).sin() * 1.1));
            // The ends of buckets.
            for i in -15..15 {
                let bits = ((i as f32 + 0.5) / BUCKET.0).to_bits();
                values.extend((bits - 3..bits + 4).map(f32::from_bits));
            }
            for values in values.as_chunks::<RANKED_VALUES>().0 {
                let want = values.map(|x| all.iter().filter(|&&bound| x > bound).count() as u32);
                for level in Level::available() {
                    let mut ranked = Ranked {
                        values: *values,
                        bounds: &bounds,
                        ranks: [99; RANKED_VALUES],
                        entries: [0.0; RANKED_VALUES],
                    };
                    perform(level, &mut ranked);
                    assert_eq!(ranked.ranks, want, "{level:?}: {values:?}");
                    assert_eq!(ranked.entries, want.map(|rank| TABLE[rank as usize]));
                }
            }
        }
    }
}
