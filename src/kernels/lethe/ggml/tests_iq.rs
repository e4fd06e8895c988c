//! The IQ types at every CPU level: the bytes that ggml's C encodes, and what no C is needed for.

mod twins;

use std::path::Path;

use super::{encoder, requires_importance};
use crate::Dtype;
use crate::element::Out;
use crate::kernels::remember::ggml::decoder;
use crate::simd::Level;

/// Columns of the golden values.
const COLS: usize = 512;
/// The row of those that is missing where ggml aborts.
const ABORTS: usize = 12;

/// A block type, its bytes and values, and the relative error of what is random: a bit more than it is.
const TYPES: [(Dtype, usize, usize, f64); 9] = [
    (Dtype::IQ1_S, 50, 256, 0.5),
    (Dtype::IQ1_M, 56, 256, 0.47),
    (Dtype::IQ2_XXS, 66, 256, 0.36),
    (Dtype::IQ2_XS, 74, 256, 0.315),
    (Dtype::IQ2_S, 82, 256, 0.26),
    (Dtype::IQ3_XXS, 98, 256, 0.19),
    (Dtype::IQ3_S, 110, 256, 0.145),
    (Dtype::IQ4_NL, 18, 32, 0.08),
    (Dtype::IQ4_XS, 136, 256, 0.08),
];

fn file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/ggml_encode")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn floats(name: &str) -> Vec<f32> {
    file(name)
        .as_chunks()
        .0
        .iter()
        .map(|&bytes| f32::from_le_bytes(bytes))
        .collect()
}

fn encoded(
    dtype: Dtype,
    values: &[f32],
    cols: usize,
    importance: Option<&[f32]>,
    level: Level,
) -> Vec<u8> {
    let &(_, bytes, elems, _) = TYPES.iter().find(|t| t.0 == dtype).unwrap();
    let mut out = vec![0xAA; values.len() / elems * bytes];
    encoder(dtype).unwrap()(values, cols, importance, level, &mut out);
    out
}

#[test]
fn encodes_as_ggml() {
    let (all, importance) = (floats("values.f32"), floats("importance.f32"));
    for (dtype, bytes, elems, _) in TYPES {
        for (importance, suffix) in [(None, ""), (Some(&importance[..]), ".importance")] {
            if importance.is_none() && requires_importance(dtype) {
                continue;
            }
            let name = format!("{}{suffix}.bin", format!("{dtype:?}").to_lowercase());
            let expected = file(&name);
            let mut values = all.clone();
            if expected.len() / bytes * elems < values.len() {
                values.drain(ABORTS * COLS..(ABORTS + 1) * COLS);
            }
            assert_eq!(expected.len() / bytes * elems, values.len(), "{name}");
            for level in Level::available() {
                let out = encoded(dtype, &values, COLS, importance, level);
                let differ = out.iter().zip(&expected).position(|(a, b)| a != b);
                assert_eq!(
                    differ.map(|at| (at / bytes, at % bytes)),
                    None,
                    "{name} at {level:?}: block, byte"
                );
            }
        }
    }
}

/// Pseudo-random numbers, xorshift.
struct Random(u64);

impl Random {
    /// Uniform in 0..1.
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 24) as f32
    }

    /// About normal.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.next()).sum::<f32>() - 6.0
    }

    fn array<const N: usize>(&mut self, scale: f32) -> [f32; N] {
        std::array::from_fn(|_| self.normal() * scale)
    }
}

#[test]
fn levels_agree() {
    let mut random = Random(1);
    for cols in [256, 768, 1280] {
        let rows = 6;
        let mut values: Vec<f32> = (0..rows * cols).map(|_| random.normal() * 0.05).collect();
        for (row, values) in values.chunks_exact_mut(cols).enumerate() {
            for (i, x) in values.iter_mut().enumerate() {
                match row {
                    0 => *x = [0.0, -0.0, 1e-40, -1e-42, 0.5, -1e-3, 1e-9][i / 32 % 7],
                    1 if i % 32 == 7 => *x *= 1e4,
                    2 => *x *= 1e35,
                    3 => *x = [1.0, -1.0, 0.0][i / 5 % 3],
                    4 if i % 64 < 32 => *x = 0.0,
                    _ => {}
                }
            }
        }
        let importance: Vec<f32> = (0..cols)
            .map(|i| if i % 50 < 9 { 0.0 } else { random.next() })
            .collect();
        for (dtype, ..) in TYPES {
            for importance in [None, Some(&importance[..])] {
                let expected = encoded(dtype, &values, cols, importance, Level::Baseline);
                for level in Level::available() {
                    assert!(
                        encoded(dtype, &values, cols, importance, level) == expected,
                        "{dtype:?} {level:?} {cols}"
                    );
                }
            }
        }
    }
}

#[test]
fn takes_what_ggml_aborts_on() {
    let specials = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        -f32::NAN,
    ];
    for (dtype, ..) in TYPES {
        for (i, special) in specials.into_iter().enumerate() {
            let mut random = Random(i as u64 + 1);
            let mut values: Vec<f32> = (0..512).map(|_| random.normal()).collect();
            values[17] = special;
            values[256..][..64].fill(special);
            let importance: Vec<f32> = (0..512).map(|_| random.next() * 1e38).collect();
            for level in Level::available() {
                encoded(dtype, &values, 512, None, level);
                encoded(dtype, &values, 512, Some(&importance), level);
                encoded(dtype, &values, 512, Some(&values), level);
            }
        }
    }
}

#[test]
fn decodes_to_what_was_encoded() {
    let mut random = Random(7);
    let values: Vec<f32> = (0..32 * 1024).map(|_| random.normal()).collect();
    for (dtype, _, _, bound) in TYPES {
        let blocks = encoded(dtype, &values, 1024, Some(&[1.0; 1024]), Level::detect());
        let mut decoded = vec![0.0f32; values.len()];
        decoder(dtype).unwrap()(&blocks, None, Level::detect(), Out::F32(&mut decoded));
        let square = |x: f32| f64::from(x) * f64::from(x);
        let error: f64 = values
            .iter()
            .zip(&decoded)
            .map(|(a, b)| square(a - b))
            .sum();
        let error = (error / values.iter().map(|&x| square(x)).sum::<f64>()).sqrt();
        assert!(error < bound && error > 0.8 * bound, "{dtype:?}: {error}");
    }
}

#[test]
fn who_needs_importance() {
    let needy: Vec<_> = TYPES
        .iter()
        .map(|t| t.0)
        .filter(|&dtype| requires_importance(dtype))
        .collect();
    assert_eq!(needy, [Dtype::IQ1_S, Dtype::IQ2_XXS, Dtype::IQ2_XS]);
    let mut random = Random(3);
    let values: Vec<f32> = (0..1024).map(|_| random.normal()).collect();
    for dtype in needy {
        let all_ones = encoded(dtype, &values, 512, Some(&[1.0; 512]), Level::detect());
        assert_eq!(
            encoded(dtype, &values, 512, None, Level::detect()),
            all_ones
        );
    }
}
