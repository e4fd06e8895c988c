//! Naive encoders of IQ2 and IQ3, and what all IQ types share.

use super::super::*;
use super::iq_search::{self, Again, NaiveGrid, NaiveSearch};
use super::search::{nearest, positive, square, weigh};
use super::{BlockWriter, EncodeTwin, TwinImportance};

/// Squares of larger values times their importance overflow, which ggml asserts not to happen.
pub(super) const LARGEST: f32 = 1e9;

/// The weights of the values from `at` on; `otherwise` gives that of a value without importance.
pub(super) fn weights(
    x: &[f32],
    at: usize,
    importance: TwinImportance<'_>,
    mean_square: f32,
    otherwise: impl Fn(f32) -> f32,
) -> Vec<f32> {
    match importance {
        Some((w, _)) => weigh(x, &w[at..at + x.len()], mean_square),
        None => x.iter().map(|&x| otherwise(x)).collect(),
    }
}

/// The largest by ggml's macro `MAX`, from the first on.
pub(super) fn largest(values: &[f32]) -> f32 {
    let rest = values.iter().copied();
    rest.fold(values[0], |a, b| if a > b { a } else { b })
}

/// What a group of a block becomes: indices of points, signs of each eight values, and the
/// scale.
type TwinGroup = (Vec<i32>, Vec<i32>, f32);

/// Magnitudes, and the signs of each eight values. If the number of signs has to be even, the
/// cheapest value is taken for one of the other sign.
fn split_signs(x: &[f32], w: &[f32], is_even: bool) -> (Vec<f32>, Vec<i32>) {
    let (mut magnitudes, mut signs) = (vec![], vec![]);
    for (x, w) in x.chunks(8).zip(w.chunks(8)) {
        let mut bits = (0..8).fold(0, |bits, i| bits | i32::from(x[i] < 0.0) << i);
        let mut eight: Vec<f32> = x.iter().map(|x| if *x < 0.0 { -x } else { *x }).collect();
        if is_even && bits.count_ones() % 2 == 1 {
            let cost = |i: usize| w[i] * x[i] * x[i];
            let least = (1..8).fold(0, |least, i| if cost(i) < cost(least) { i } else { least });
            eight[least] = -eight[least];
            bits ^= 1 << least;
        }
        magnitudes.extend(eight);
        signs.push(bits);
    }
    (magnitudes, signs)
}

/// A group whose magnitudes are not all below `least` or zero. `start` gives the scale to begin
/// with, and the largest magnitude for the search, from the magnitudes; there is no group if it
/// gives none.
fn group<const N: usize>(
    search: &NaiveSearch<'_, N>,
    x: &[f32],
    w: &[f32],
    (is_even, least): (bool, f32),
    start: impl Fn(&[f32]) -> Option<(f32, f32)>,
) -> Option<TwinGroup> {
    let (magnitudes, mut signs) = split_signs(x, w, is_even);
    let max = largest(&magnitudes);
    if max < least || max == 0.0 {
        return None;
    }
    let (scale, max) = start(&magnitudes)?;
    let (scale, points) = search.fit(&magnitudes, w, max, scale);
    if scale < 0.0 {
        signs.iter_mut().for_each(|signs| *signs = !*signs);
    }
    let indices = points.iter().map(|p| search.grid.index(p)).collect();
    Some((indices, signs, scale.abs()))
}

/// The unit of the scales, and the code of each in 4 bits. `None` if all are zero.
fn scale_codes(groups: &[Option<TwinGroup>]) -> Option<(f32, Vec<i32>)> {
    let scales: Vec<f32> = groups
        .iter()
        .map(|group| group.as_ref().map_or(0.0, |group| group.2))
        .collect();
    let max = largest(&scales);
    let d = max / 31.0;
    let code = |scale: &f32| nearest(0.5 * (1.0 / d * scale - 1.0)).clamp(0, 15);
    (max != 0.0).then(|| (d, scales.iter().map(code).collect()))
}

/// The search of a 2-bit type for scales from `(5 ± tries / 20) / max` on.
fn iq2_search(grid: &NaiveGrid<8>, tries: i32, again: Again) -> NaiveSearch<'_, 8> {
    NaiveSearch { grid, top: 2, tries, step: 0.1, again }
}

impl EncodeTwin for IQ2_XXS {
    const LARGEST: f32 = LARGEST;
    const NORMAL_ERROR: f64 = 0.36;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let mean_square = square(x) / 256.0;
        let importance = importance.or(Some((&[1.0; 256], 0.0)));
        let groups = iq_search::IQ2_XXS.with(|grid| {
            let search = iq2_search(grid, 13, Again::All);
            let group = |(g, x): (usize, &[f32])| {
                let w = weights(x, 32 * g, importance, mean_square, |_| 0.0);
                group(&search, x, &w, (true, 1e-15), |magnitudes| {
                    let scale = positive(magnitudes, &w, 4).0;
                    (scale * 3.0 > 0.0).then_some((scale, scale * 3.0))
                })
            };
            x.chunks(32).enumerate().map(group).collect::<Vec<_>>()
        });
        let Some((d, codes)) = scale_codes(&groups) else {
            return;
        };
        out.put_f16(0, d);
        for (g, group) in groups.into_iter().enumerate() {
            let at = 2 + 8 * g;
            out.set(at + 4, 28, 4, codes[g]);
            for (k, (index, signs)) in group.iter().flat_map(|g| g.0.iter().zip(&g.1)).enumerate() {
                out.set(at + k, 0, 8, *index);
                out.set(at + 4, 7 * k, 7, *signs);
            }
        }
    }
}

/// The groups of 16 values of IQ2_XS and IQ2_S.
fn groups_of_16(
    grid: &NaiveGrid<8>,
    x: &[f32],
    (is_even, least): (bool, f32),
    w: impl Fn(&[f32], usize) -> Vec<f32>,
) -> Vec<Option<TwinGroup>> {
    let search = iq2_search(grid, 19, Again::OffGrid);
    let group = |(g, x): (usize, &[f32])| {
        group(&search, x, &w(x, 16 * g), (is_even, least), |magnitudes| {
            let max = largest(magnitudes);
            Some((max / 5.0, max))
        })
    };
    x.chunks(16).enumerate().map(group).collect()
}

impl EncodeTwin for IQ2_XS {
    const LARGEST: f32 = LARGEST;
    const NORMAL_ERROR: f64 = 0.315;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let mean_square = square(x) / 256.0;
        let importance = importance.or(Some((&[1.0; 256], 0.0)));
        let w = |x: &[f32], at| weights(x, at, importance, mean_square, |_| 0.0);
        let groups = iq_search::IQ2_XS.with(|grid| groups_of_16(grid, x, (true, 1e-15), w));
        let Some((d, codes)) = scale_codes(&groups) else {
            return;
        };
        out.put_f16(0, d);
        for (g, group) in groups.into_iter().enumerate() {
            out.set(66, 4 * g, 4, codes[g]);
            for (k, (index, signs)) in group.iter().flat_map(|g| g.0.iter().zip(&g.1)).enumerate() {
                out.set(2 + 4 * g + 2 * k, 0, 9, *index);
                out.set(2 + 4 * g + 2 * k, 9, 7, *signs);
            }
        }
    }
}

impl EncodeTwin for IQ2_S {
    const LARGEST: f32 = LARGEST;
    const NORMAL_ERROR: f64 = 0.26;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let mean_square = 2.0 * square(x) / 256.0;
        let w =
            |x: &[f32], at| weights(x, at, importance, mean_square, |x| 0.25 * mean_square + x * x);
        let groups = iq_search::IQ2_S.with(|grid| groups_of_16(grid, x, (false, 1e-8), w));
        for (g, (indices, signs, _)) in groups
            .iter()
            .enumerate()
            .filter_map(|(g, group)| Some((g, group.as_ref()?)))
        {
            for k in 0..2 {
                let i = 2 * g + k;
                out.set(2 + i, 0, 8, indices[k]);
                out.set(34 + i, 0, 8, signs[k]);
                out.set(66, 2 * i, 2, indices[k] >> 8);
            }
        }
        let Some((d, codes)) = scale_codes(&groups) else {
            return;
        };
        out.put_f16(0, d * 0.9875);
        (0..16).for_each(|g| out.set(74, 4 * g, 4, codes[g]));
    }
}

/// The groups of 32 values of the 3-bit types.
fn iq3_groups(
    search: &NaiveSearch<'_, 4>,
    x: &[f32],
    importance: TwinImportance<'_>,
    (is_even, least): (bool, f32),
) -> Vec<Option<TwinGroup>> {
    let mean_square = 2.0 * square(x) / 256.0;
    let group = |(g, x): (usize, &[f32])| {
        let w = weights(x, 32 * g, importance, mean_square, |x| x * x);
        group(search, x, &w, (is_even, least), |magnitudes| {
            let max = largest(magnitudes);
            Some((max / 15.0, max))
        })
    };
    x.chunks(32).enumerate().map(group).collect()
}

impl EncodeTwin for IQ3_XXS {
    const LARGEST: f32 = LARGEST;
    const NORMAL_ERROR: f64 = 0.19;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let groups = iq_search::IQ3_XXS.with(|grid| {
            let search = NaiveSearch { grid, top: 7, tries: 31, step: 0.2, again: Again::OffGrid };
            iq3_groups(&search, x, importance, (true, 1e-8))
        });
        let Some((d, codes)) = scale_codes(&groups) else {
            return;
        };
        out.put_f16(0, d * 1.0125);
        for (g, group) in groups.iter().enumerate() {
            out.set(66 + 4 * g, 28, 4, codes[g]);
            let Some((indices, signs, _)) = group else {
                continue;
            };
            (0..8).for_each(|k| out.set(2 + 8 * g + k, 0, 8, indices[k]));
            (0..4).for_each(|k| out.set(66 + 4 * g, 7 * k, 7, signs[k]));
        }
    }
}

impl EncodeTwin for IQ3_S {
    const LARGEST: f32 = LARGEST;
    const NORMAL_ERROR: f64 = 0.145;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let groups = iq_search::IQ3_S.with(|grid| {
            let search =
                NaiveSearch { grid, top: 7, tries: 19, step: 0.2, again: Again::AllIfAnyOffGrid };
            iq3_groups(&search, x, importance, (false, 0.0))
        });
        // ggml's pointers to indices and signs do not move past a group of zeros.
        let mut at = 0;
        for (g, group) in groups.iter().enumerate() {
            let Some((indices, signs, _)) = group else {
                continue;
            };
            for (k, index) in indices.iter().enumerate() {
                out.set(2 + 8 * at + k, 0, 8, *index);
                out.set(66 + g, k, 1, index >> 8);
            }
            (0..4).for_each(|k| out.set(74 + 4 * at + k, 0, 8, signs[k]));
            at += 1;
        }
        let Some((d, codes)) = scale_codes(&groups) else {
            return;
        };
        out.put_f16(0, d * 1.033);
        (0..8).for_each(|g| out.set(106, 4 * g, 4, codes[g]));
    }
}
