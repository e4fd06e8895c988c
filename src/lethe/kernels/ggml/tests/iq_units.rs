//! Parts of the IQ encoders against naive ones, for more cases than blocks have.

use super::super::iq1_split::{self, ThreeWaySplit};
use super::super::iq4;
use super::Rng;
use super::iq_search::{nearest_level, sorted, split16, split32};
use crate::remember::kernels::ggml::grids;
use crate::test_utils::{effort, miri_or};

#[test]
fn splits_as_its_twin() {
    let mut rng = Rng(17);
    let found = |split: ThreeWaySplit| (split.first, split.second, split.shift, split.scale);
    for round in 0..miri_or(2, 200) {
        let (mut values, weights) = (rng.normals::<32>(1.0), rng.normals::<32>(1.0));
        let weights = weights.map(|x: f32| x * x);
        if round % 3 == 0 {
            values = values.map(|x| x.round() - 0.5);
        }
        let order = iq1_split::order(&values);
        assert_eq!(
            iq1_split::split32(&order, &values, &weights).map(found),
            split32(&order, &values, &weights),
            "round {round}"
        );
        let (values, weights) = (values.as_chunks::<16>().0[0], weights.as_chunks::<16>().0[0]);
        let order = iq1_split::order(&values);
        assert_eq!(
            iq1_split::split16(&order, &values, &weights).map(found),
            split16(&order, &values, &weights),
            "round {round}"
        );
    }
}

/// Few different values and weights give splits of equal scores, of which the first wins, and
/// extreme ones give sums that overflow or become zero.
#[test]
fn splits_as_its_twin_where_scores_are_equal_or_extreme() {
    let mut rng = Rng(23);
    // As bits, for NaN is not equal to itself.
    let found = |split: ThreeWaySplit| {
        let ThreeWaySplit { first, second, shift, scale } = split;
        (first, second, shift, scale.to_bits())
    };
    let twin = |(first, second, shift, scale): (usize, usize, usize, f32)| {
        (first, second, shift, scale.to_bits())
    };
    let powers = [0, -140, -100, -75, -60, -50, -40, -30, -20, 20, 30, 40, 50, 60, 75, 100, 126];
    for round in 0..miri_or(2, effort([600, 3000, 3000])) {
        let (values, weights) = (rng.normals::<32>(1.0), rng.normals::<32>(1.0));
        let (x_power, w_power) = (powers[round % 17], powers[round / 17 % 17]);
        let steps = [1e6, 4.0, 1.0][round % 3];
        let values = values.map(|x: f32| (x * steps).round() / steps * 2f32.powi(x_power));
        let weights = weights.map(|w: f32| match round % 4 {
            0 => 1.0,
            1 => (w * w).round(),
            2 => w,
            _ => w * w,
        });
        let weights = weights.map(|w| w * 2f32.powi(w_power));
        let order = iq1_split::order(&values);
        assert_eq!(
            iq1_split::split32(&order, &values, &weights).map(found),
            split32(&order, &values, &weights).map(twin),
            "round {round}"
        );
        let (values, weights) = (values.as_chunks::<16>().0[1], weights.as_chunks::<16>().0[1]);
        let order = iq1_split::order(&values);
        assert_eq!(
            iq1_split::split16(&order, &values, &weights).map(found),
            split16(&order, &values, &weights).map(twin),
            "round {round}"
        );
    }
}

#[test]
fn order_is_stable() {
    let mut rng = Rng(9);
    for distinct in [1, 2, 5, 1000] {
        let values = rng.normals::<32>(1.0);
        let values = values.map(|x: f32| (x * distinct as f32 / 4.0).round());
        assert_eq!(iq1_split::order(&values).to_vec(), sorted(&values));
    }
}

#[test]
fn iq4_levels() {
    let check = |x: f32| {
        let (index, level) = iq4::both(x);
        assert_eq!(
            (usize::from(index), level),
            (nearest_level(x), grids::IQ4[nearest_level(x)]),
            "{x:e}"
        );
    };
    // Around each half and whole number, and everywhere.
    for halves in (-300..=300).step_by(miri_or(17, 1)) {
        let bits = (halves as f32 / 2.0).to_bits();
        (0..=2000)
            .step_by(miri_or(100, 1))
            .for_each(|i| check(f32::from_bits(bits.wrapping_add(i).wrapping_sub(1000))));
    }
    (0..=u32::MAX)
        .step_by(4099 * miri_or(1009, 1))
        .map(f32::from_bits)
        .for_each(check);
}
