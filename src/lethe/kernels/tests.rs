//! Every kernel at every CPU level, against a twin that computes one value at a time.

mod searches;

use half::f16;

use super::activations::Activations;
use super::bnb::nested::{dynamic_map, encode_nested};
use super::bnb::{FP4_CODEBOOK, NF4_CODEBOOK, codebook_encoder};
use super::codebook::MIN_SCALE;
use super::integer::{IntegerGroups, IntegerQuantizer, IntegerRule};
use super::{int8, mean, qnat};
use crate::TargetDtype;
use crate::element::Element;
use crate::remember::kernels::qnat::level;
use crate::simd::Level;
use crate::test_utils::miri_or;

/// Random numbers between -1 and 1.
fn random(n: usize) -> impl Iterator<Item = f32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    })
    .take(n)
}

/// Noise, and values that go wrong first: outliers, zeros of both signs, constants, subnormals,
/// ties.
fn hard_cases(n: usize) -> Vec<Vec<f32>> {
    let noise: Vec<f32> = random(n).collect();
    let map =
        |f: &dyn Fn(usize, f32) -> f32| noise.iter().enumerate().map(|(i, &x)| f(i, x)).collect();
    vec![
        noise.clone(),
        map(&|_, x| x * x * x * 0.05),
        map(&|_, x| 0.02 / (x + 1.0001) - 0.01),
        map(&|i, x| if i % 50 == 7 { -9.0 } else { x * 0.01 }),
        map(&|i, _| if i % 3 == 0 { -0.0 } else { 0.0 }),
        map(&|_, _| -0.37),
        map(&|_, x| x * 1e-38),
        map(&|_, x| x * 1e-42),
        map(&|_, x| x * f32::MAX),
        map(&|i, x| if i / 64 % 2 == 0 { 0.0 } else { x }),
        map(&|i, x| (x * 8.0).trunc() / if i % 2 == 0 { 8.0 } else { 3.0 }),
    ]
}

fn absmax(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |max, x| max.max(x.abs()))
}

#[test]
fn bitsandbytes_4_bit() {
    for (codebook, fp4) in [(&NF4_CODEBOOK, false), (&FP4_CODEBOOK, true)] {
        let mut sorted: Vec<usize> = (0..16).collect();
        sorted.sort_by(|&a, &b| codebook[a].partial_cmp(&codebook[b]).unwrap());
        let code = |x: f32| {
            let rank = (0..15)
                .filter(|&i| (codebook[sorted[i]] + codebook[sorted[i + 1]]) / 2.0 < x)
                .count();
            sorted[rank] as u8
        };
        assert_eq!((code(1e-9), code(-1e-9)), if fp4 { (8, 0) } else { (7, 7) });
        let encoder = codebook_encoder(codebook);
        for (n, block) in [
            (1, 64),
            (2, 32),
            (63, 64),
            (64, 64),
            (129, 64),
            (32, 32),
            (1000, 128),
            (4100, 4096),
            (600, 48),
        ]
        .into_iter()
        .filter(|&(n, _)| n <= miri_or(64, usize::MAX))
        {
            for values in hard_cases(n) {
                let (mut want, mut scales) = (vec![0u8; n.div_ceil(2)], Vec::new());
                for (b, values) in values.chunks(block).enumerate() {
                    let (scale, whole) = (absmax(values), values.len() == block);
                    let least = scale.max(MIN_SCALE);
                    scales.push(if whole { scale } else { least });
                    let padded = values
                        .iter()
                        .copied()
                        .chain((values.len() % 2 == 1).then_some(0.0));
                    for (i, x) in padded.enumerate() {
                        let x = if whole { x * (1.0 / least) } else { x / least };
                        want[(b * block + i) / 2] |=
                            code(x.clamp(-1.0, 1.0)) << if i % 2 == 0 { 4 } else { 0 };
                    }
                }
                for level in Level::available() {
                    let (mut codes, mut found) = (Vec::new(), Vec::new());
                    let mut back = vec![f32::NAN; n];
                    let stored = (&mut codes, &mut found);
                    encoder.encode(&values, block, level, stored, &mut back);
                    assert_eq!(codes, want, "{level:?} {n} in blocks of {block}: {values:?}");
                    assert_eq!(bits(&found), bits(&scales), "{level:?} {n} in blocks of {block}");
                    for (i, &value) in back.iter().enumerate() {
                        let code = want[i / 2] >> if i % 2 == 0 { 4 } else { 0 } & 15;
                        assert_eq!(value, codebook[usize::from(code)] * scales[i / block]);
                    }
                    assert_eq!(encoder.encode_with(&values, block, &mut found, level), want);
                }
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn bitsandbytes_8_bit() {
    let (rule, dtype) = (IntegerRule::LlmInt8, TargetDtype::F32);
    let llm_int8 = IntegerQuantizer { rule, bits: 8, group: 1, dtype };
    for (n, cols) in [(1, 1), (3, 3), (66, 33), (1024, 256), (1200, 300), (515, 515)]
        .into_iter()
        .filter(|&(n, _)| n <= miri_or(66, usize::MAX))
    {
        for values in hard_cases(n)
            .into_iter()
            .map(|values| values.into_iter().map(|x| x.clamp(-65504.0, 65504.0)))
        {
            let values: Vec<f32> = values.collect();
            let halves: Vec<f32> = values
                .iter()
                .map(|&x| <f16 as Element>::from_f32(x).to_f32())
                .collect();
            let scales: Vec<f32> = halves.chunks(cols).map(absmax).collect();
            let code = |i: usize| match scales[i / cols] {
                0.0 => 0,
                scale => (halves[i] * ((1.0 / scale) * 127.0)).round_ties_even() as i8 as u8,
            };
            let want: Vec<u8> = (0..n).map(code).collect();
            for level in Level::available() {
                let mut found = IntegerGroups::default();
                let q = IntegerQuantizer { group: cols, ..llm_int8 };
                q.encode(&values, Activations::default(), level, &mut vec![0.0; n], &mut found);
                assert_eq!(bits(&found.scales), bits(&scales), "{level:?} rows of {cols}");
                let codes: Vec<u8> = found.codes.iter().map(|code| code ^ 0x80).collect();
                assert_eq!(codes, want, "{level:?} rows of {cols}: {values:?}");
                assert_eq!(int8::encode_with(&halves, cols, &scales, level), want);
            }
        }
    }
    let (mut found, q) = (IntegerGroups::default(), IntegerQuantizer { group: 1, ..llm_int8 });
    let values = [65519.0, 65520.0];
    q.encode(&values, Activations::default(), Level::Baseline, &mut [0.0; 2], &mut found);
    assert_eq!(found.scales, [65504.0, f32::INFINITY]);
}

#[test]
fn qlora() {
    let code = |x: f32| {
        let distance = |code: &usize| (x - level(*code)).abs();
        (0..16)
            .min_by(|a, b| distance(a).total_cmp(&distance(b)))
            .unwrap() as u8
    };
    let middle = |i: usize| (level(i) + level(i + 1)) / 2.0;
    let around =
        |x: f32| (-3i32..4).map(move |ulps| f32::from_bits(x.to_bits().wrapping_add_signed(ulps)));
    let edges: Vec<f32> = (0..15)
        .flat_map(|i| [1.0].into_iter().chain(around(middle(i))))
        .collect();
    for (n, block) in [(1, 1), (2, 2), (7, 7), (64, 64), (640, 64), (75, 25), (120, 8)]
        .into_iter()
        .filter(|&(n, _)| n <= miri_or(120, usize::MAX))
    {
        for values in hard_cases(n)
            .into_iter()
            .chain((block == 8).then(|| edges.clone()))
        {
            let (mut want, mut scales) = (Vec::new(), Vec::new());
            for values in values.chunks(block) {
                let scale = if absmax(values) == 0.0 {
                    1.0
                } else {
                    absmax(values)
                };
                scales.push(scale);
                let byte = |pair: &[f32]| {
                    code(pair[0] / scale) | pair.get(1).map_or(0, |x| code(x / scale) << 4)
                };
                want.extend(values.chunks(2).map(byte));
            }
            for level in Level::available() {
                let (mut codes, mut found) = (Vec::new(), Vec::new());
                qnat::encode(level, &values, block, &mut codes, &mut found);
                assert_eq!(codes, want, "{level:?} {n} in blocks of {block}: {values:?}");
                assert_eq!(bits(&found), bits(&scales), "{level:?} {n} in blocks of {block}");
            }
        }
    }
}

/// The codes of scales are the nearest levels, but for the width of the lookup's steps.
#[test]
fn nested_scales_are_near() {
    let map = dynamic_map();
    assert!(map.is_sorted() && map[127] == 0.0 && map[255] == 1.0 && map[0] == -map[254]);
    for values in hard_cases(600)
        .into_iter()
        .filter(|values| absmax(values) < 1e30 && absmax(values) > 1e-30)
    {
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        encode_nested(&values, 0.25, &mut codes, &mut scales);
        assert_eq!(scales.len(), 3);
        for (i, &x) in values.iter().enumerate().step_by(miri_or(37, 1)) {
            let (x, code) = ((x - 0.25) / scales[i / 256], codes[i]);
            let best = map
                .iter()
                .map(|level| (level - x).abs())
                .fold(f32::MAX, f32::min);
            assert!((map[usize::from(code)] - x).abs() <= best + 1.0 / 32768.0, "{x}: code {code}");
        }
    }
}

/// Means by torch 2.15 on one thread, of `i * 2654435761 % 2^32`, its low byte left out, over 2^32.
#[test]
fn means_of_torch() {
    let value = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32;
    #[rustfmt::skip]
    let means = [
        (1, 0x00000000), (2, 0x3e9e3779), (3, 0x3e91c448), (4, 0x3edaa66c),
        (5, 0x3edf444d), (7, 0x3ed9df22), (8, 0x3ed38453), (9, 0x3ef1bbcb),
        (31, 0x3efe1d28), (32, 0x3ef8b7bc), (33, 0x3efd3cca), (63, 0x3efc1a22),
        (100, 0x3efc40dc), (511, 0x3eff6ae1), (1000, 0x3efffce6), (4095, 0x3efff869),
        (40000, 0x3effff23), (262144, 0x3f000003), (300001, 0x3effffb1),
    ];
    for (n, want) in means
        .into_iter()
        .filter(|&(n, _)| n <= miri_or(4095, u32::MAX))
    {
        let values: Vec<f32> = (0..n).map(value).collect();
        assert_eq!(mean::mean(&values).to_bits(), want, "{n}");
    }
}
