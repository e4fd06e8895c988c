//! Parts of the IQ encoders against naive ones, for more cases than blocks have.

use super::super::{iq1_split, iq4};
use super::Rng;
use super::iq_search::{nearest_level, sorted, split16, split32};
use crate::kernels::remember::ggml::grids;
use crate::test_utils::miri_or;

#[test]
fn splits_as_its_twin() {
    let mut rng = Rng(17);
    let found =
        |split: iq1_split::ThreeWaySplit| (split.first, split.second, split.shift, split.scale);
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
        let (values, weights) = (
            values.as_chunks::<16>().0[0],
            weights.as_chunks::<16>().0[0],
        );
        let order = iq1_split::order(&values);
        assert_eq!(
            iq1_split::split16(&order, &values, &weights).map(found),
            split16(&order, &values, &weights),
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
