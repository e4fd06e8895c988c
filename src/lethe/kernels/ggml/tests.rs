//! Every block type at every CPU level: the bytes that ggml's C encodes, and those of a naive
//! encoder that handles one value after the other ([`EncodeTwin`]).

mod iq;
mod iq1;
mod iq4;
mod iq_search;
mod iq_units;
mod k_quants;
mod legacy;
mod search;
mod ternary_fp4;

use std::path::PathBuf;

use half::f16;

use super::*;
use crate::element::Out;
use crate::remember::kernels::ggml::decoder;
use crate::test_utils::{effort, miri_or, packaged_data, test_data};

/// The importance of a block's values, and the mean square of the row that the block is in.
type TwinImportance<'a> = Option<(&'a [f32], f32)>;

/// A naive encoder of a block type, after ggml's C.
trait EncodeTwin {
    /// Whether importance changes what is encoded.
    const HEEDS_IMPORTANCE: bool = true;
    /// Values of which none is larger in magnitude are compared with the twin. Squares of larger
    /// ones overflow in those types of which ggml asserts that they do not.
    const LARGEST: f32 = f32::MAX;
    /// An upper bound, close to the fact, of the relative error of normally distributed values.
    const NORMAL_ERROR: f64;

    /// Encodes a block into `out`, which is all zeros.
    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter);
}

/// A block in which any bits can be set.
struct BlockWriter(Vec<u8>);

impl BlockWriter {
    /// Sets the `n` bits from bit `from` of byte `at` on, lowest first.
    fn set(&mut self, at: usize, from: usize, n: usize, value: i32) {
        for j in from..from + n {
            self.0[at + j / 8] |= ((value >> (j - from) & 1) as u8) << (j % 8);
        }
    }

    /// Stores `x` as f16 at byte `at`, and returns the value that was stored.
    fn put_f16(&mut self, at: usize, x: f32) -> f32 {
        let x = f16::from_f32(x);
        self.set(at, 0, 16, i32::from(x.to_bits()));
        x.to_f32_const()
    }
}

/// A block type under test.
struct EncodeCase {
    dtype: Dtype,
    bytes: usize,
    values: usize,
    heeds_importance: bool,
    largest: f32,
    normal_error: f64,
    encode_naively: fn(&[f32], TwinImportance<'_>, &mut BlockWriter),
}

macro_rules! tested_types {
    ({ $($block:ident $number:literal $bytes:literal / $values:literal $what:literal $words:tt;)* } $ik:tt $interleaved:tt) => {
        const TYPES: &[EncodeCase] = &[$(EncodeCase {
            dtype: Dtype::$block,
            bytes: $bytes,
            values: $values,
            heeds_importance: $block::HEEDS_IMPORTANCE,
            largest: $block::LARGEST,
            normal_error: $block::NORMAL_ERROR,
            encode_naively: $block::encode_naively,
        }),*];
    };
}
ggml_block_types! { tested_types {} }

impl EncodeCase {
    fn encoded(
        &self,
        values: &[f32],
        cols: usize,
        importance: Option<&[f32]>,
        level: Level,
    ) -> Vec<u8> {
        let mut out = vec![0xAA; values.len() / self.values * self.bytes];
        encoder(self.dtype).unwrap()(values, cols, importance, level, &mut out);
        out
    }

    /// Encodes `values` at every level, which must give `expected`.
    fn check(
        &self,
        values: &[f32],
        cols: usize,
        importance: Option<&[f32]>,
        expected: &[u8],
        what: &str,
    ) {
        assert_eq!(values.len() / self.values * self.bytes, expected.len(), "{what}");
        for level in Level::available() {
            let out = self.encoded(values, cols, importance, level);
            let differ = (0..out.len())
                .find(|&at| out[at] != expected[at] && !is_sign_of_nan(&out, expected, at));
            assert_eq!(
                differ.map(|at| (at / self.bytes, at % self.bytes)),
                None,
                "{} {what} at {level:?}, importance {}: block, byte",
                self.dtype,
                importance.is_some()
            );
        }
    }

    /// What the naive encoder makes of rows of `cols` values.
    fn twin(&self, values: &[f32], cols: usize, importance: Option<&[f32]>) -> Vec<u8> {
        let blocks = values.chunks(cols).flat_map(|row| {
            let mean_square = row.iter().fold(0.0, |sum, x| sum + x * x) / cols as f32;
            row.chunks(self.values).enumerate().flat_map(move |(i, x)| {
                let weights = importance.map(|w| &w[i * self.values..][..self.values]);
                let mut out = BlockWriter(vec![0; self.bytes]);
                (self.encode_naively)(x, weights.map(|w| (w, mean_square)), &mut out);
                out.0
            })
        });
        blocks.collect()
    }
}

/// Whether bytes `at` differ in the sign of a scale that is NaN in both, in F16 or F32: zero over
/// zero has a sign on x86-64, where goldens were made, and none on other CPUs.
fn is_sign_of_nan(out: &[u8], expected: &[u8], at: usize) -> bool {
    let is_half = |bytes: &[u8]| {
        let half = bytes[..at + 1].last_chunk().copied();
        half.is_some_and(|half| f16::from_le_bytes(half).is_nan())
    };
    let is_single = |bytes: &[u8]| {
        let single = bytes[..at + 1].last_chunk().copied();
        single.is_some_and(|single| f32::from_le_bytes(single).is_nan())
    };
    let is_nan = is_half(out) && is_half(expected) || is_single(out) && is_single(expected);
    cfg!(not(target_arch = "x86_64")) && out[at] ^ expected[at] == 0x80 && is_nan
}

/// The types under test. Encoders that search a grid make a table of all neighbours first, which
/// would take Miri hours.
fn types() -> impl Iterator<Item = &'static EncodeCase> {
    let is_searched = |t: &EncodeCase| {
        let grids = ["IQ1", "IQ2", "IQ3"];
        grids.iter().any(|grid| t.dtype.name().starts_with(grid))
    };
    TYPES.iter().filter(move |t| !cfg!(miri) || !is_searched(t))
}

/// Pseudo-random numbers: xorshift64*.
struct Rng(u64);

impl Rng {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: u64) -> usize {
        (self.bits() % n) as usize
    }

    /// Uniform from 0 to 1.
    fn fraction(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 16_777_216.0
    }

    /// Uniform from -1 to 1.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    /// About normally distributed, with variance 1.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.fraction()).sum::<f32>() - 6.0
    }

    fn normals<const N: usize>(&mut self, scale: f32) -> [f32; N] {
        std::array::from_fn(|_| self.normal() * scale)
    }
}

/// Columns of the golden values.
const GOLDEN_COLS: usize = 512;
/// The row that is missing from the golden blocks of types of which ggml aborts on it.
const ABORTING_ROW: usize = 12;
/// Block types without golden blocks.
const WITHOUT_GOLDENS: [Dtype; 0] = [];

fn golden_path(name: &str) -> PathBuf {
    let folder = packaged_data().join("ggml_encode");
    folder.join(name)
}

fn golden(name: &str) -> Vec<u8> {
    let path = golden_path(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn golden_floats(name: &str) -> Vec<f32> {
    let bytes = golden(name);
    let floats = bytes.as_chunks().0.iter();
    floats.map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// Every `step`-th of the rows of `len`, from row `first` on.
fn some_rows<T: Copy>(all: &[T], len: usize, first: usize, step: usize) -> Vec<T> {
    let rows = all.chunks(len).skip(first).step_by(step);
    rows.collect::<Vec<_>>().concat()
}

/// Goldens hold as many of the leading rows as ggml could encode.
#[test]
#[cfg_attr(miri, ignore = "many blocks; Miri has `one_block_of_each_type`")]
fn encodes_as_ggml() {
    if test_data().is_none() {
        return;
    }
    let (all, importance) = (golden_floats("values.f32"), golden_floats("importance.f32"));
    for t in TYPES.iter().filter(|t| !WITHOUT_GOLDENS.contains(&t.dtype)) {
        for importance in [None, Some(&importance[..])] {
            if importance.is_none() && requires_importance(t.dtype) {
                continue;
            }
            let suffix = if importance.is_some() && t.heeds_importance {
                ".importance"
            } else {
                ""
            };
            let name = format!("{}{suffix}.bin", t.dtype.name().to_lowercase());
            let (expected, mut values) = (golden(&name), all.clone());
            let count = expected.len() / t.bytes * t.values;
            if count + GOLDEN_COLS == values.len() && t.dtype.name().starts_with("IQ") {
                values.drain(ABORTING_ROW * GOLDEN_COLS..(ABORTING_ROW + 1) * GOLDEN_COLS);
            }
            // Rows do not depend on each other. Other ones without importance than with it, but for the gate.
            let first = effort([usize::from(importance.is_some()), 0, 0]);
            let step = effort([2, 1, 1]);
            let values = some_rows(&values[..count], GOLDEN_COLS, first, step);
            let row_bytes = GOLDEN_COLS / t.values * t.bytes;
            let expected = some_rows(&expected, row_bytes, first, step);
            t.check(&values, GOLDEN_COLS, importance, &expected, &name);
        }
    }
    for dtype in WITHOUT_GOLDENS {
        assert!(!golden_path(&format!("{}.bin", dtype.name().to_lowercase())).exists());
    }
}

/// Kinds of hostile values, of which the last is too large for some types.
const KINDS: usize = 9;

/// 256 values of a kind, of which none is so small that a scale has no inverse.
fn hostile(rng: &mut Rng, kind: usize) -> Vec<f32> {
    let scale = 2f32.powi(rng.below(40) as i32 - 28);
    let at = rng.below(256);
    let mut values: Vec<f32> = (0..256)
        .map(|i| match kind {
            0 => rng.unit() * scale,
            1 => rng.unit().powi(5) * scale,
            2 => rng.below(17) as f32 / 8.0 - 1.0,
            3 if i == at => 1e4 * rng.unit(),
            3 => 0.0,
            4 if i % 64 < 32 => rng.unit().signum() * 0.0,
            4 => rng.unit() * 1e-9,
            5 => (rng.unit() + 1.5) * scale,
            6 => (rng.unit() - 1.5) * scale,
            7 => scale,
            _ => rng.unit() * 1e30,
        })
        .collect();
    if rng.below(4) == 0 {
        values[at] *= 50.0;
    }
    values
}

#[test]
#[cfg_attr(miri, ignore = "many blocks; Miri has `one_block_of_each_type`")]
fn encodes_as_its_twin() {
    const BLOCKS: usize = 3;
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    for round in 0..effort([4, 20, 60]) {
        // Each kind comes in two rounds that all types take, and in the two that follow.
        let kinds = KINDS - usize::from(round % 4 < 2);
        let kind = |i: usize| (round * 2 * BLOCKS + round / 4 + i) % kinds;
        let values: Vec<f32> = (0..2 * BLOCKS)
            .flat_map(|i| hostile(&mut rng, kind(i)))
            .collect();
        let weights: Vec<f32> = (0..BLOCKS * 256)
            .map(|_| rng.unit().max(0.0) * rng.unit().abs())
            .collect();
        let largest = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        for t in TYPES.iter().filter(|t| largest <= t.largest) {
            // Long rows, and rows of one block.
            let cols = if round % 2 == 0 {
                BLOCKS * 256
            } else {
                t.values
            };
            let importance = [None, Some(&weights[..cols])];
            // Each kind comes without importance and with it in four rounds.
            let tried = effort([round / 2 % 2..round / 2 % 2 + 1, 0..2, 0..2]);
            for &importance in &importance[tried] {
                let expected = t.twin(&values, cols, importance);
                t.check(&values, cols, importance, &expected, "twin");
            }
        }
    }
}

/// Where the inverse of a scale is infinite, C converts what is out of range; x86 makes that 0.
#[test]
fn scales_without_inverse() {
    let mut values = [0.0; 256];
    for (i, x) in values.iter_mut().enumerate() {
        *x = f32::from_bits(i as u32 % 5 * 0x100) * if i % 2 == 0 { 1.0 } else { -1.0 };
    }
    for t in types() {
        for level in Level::available() {
            let out = t.encoded(&values, 256, None, level);
            match t.dtype {
                Dtype::Q8_0 | Dtype::Q4_0 | Dtype::Q5_1 | Dtype::Q2_0 => {
                    assert!(out.iter().all(|&byte| byte == 0 || byte == 0x80), "{}", t.dtype);
                }
                Dtype::TQ2_0 => assert!(out[..64].iter().all(|&byte| byte == 0b0101_0101)),
                _ => {}
            }
        }
    }
}

/// Values for which there is no twin or golden: subnormal, huge, and ties.
#[test]
#[cfg_attr(miri, ignore = "many blocks; Miri has `one_block_of_each_type`")]
fn levels_agree() {
    let mut rng = Rng(1);
    for cols in effort([&[512][..], &[256, 768, 1280], &[256, 768, 1280]]) {
        let (rows, cols) = (6, *cols);
        let mut values: Vec<f32> = (0..rows * cols).map(|_| rng.normal() * 0.05).collect();
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
            .map(|i| if i % 50 < 9 { 0.0 } else { rng.fraction() })
            .collect();
        for (at, t) in TYPES.iter().enumerate() {
            // In the gate each type without importance and with it, otherwise with either.
            let all = [None, Some(&importance[..])];
            let tried = effort([at % 2..at % 2 + 1, 0..2, 0..2]);
            for &importance in &all[tried] {
                let expected = t.encoded(&values, cols, importance, Level::Baseline);
                t.check(&values, cols, importance, &expected, "baseline");
            }
        }
    }
}

#[test]
fn takes_what_ggml_aborts_on() {
    let cols = miri_or(256, effort([256, 512, 512]));
    let specials = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, -f32::NAN];
    for t in types() {
        for (i, special) in specials.into_iter().take(miri_or(1, 6)).enumerate() {
            let mut rng = Rng(i as u64 + 1);
            let mut values: Vec<f32> = (0..cols).map(|_| rng.normal()).collect();
            values[17] = special;
            values[cols / 2..][..64].fill(special);
            let importance: Vec<f32> = (0..cols).map(|_| rng.fraction() * 1e38).collect();
            for level in Level::available() {
                let all = [None, Some(&importance[..]), Some(&values[..])];
                let tried = effort([i % 3..i % 3 + 1, 0..3, 0..3]);
                let tried = if cfg!(miri) { 2..3 } else { tried };
                for &importance in &all[tried] {
                    t.encoded(&values, cols, importance, level);
                }
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "many blocks; Miri has `one_block_of_each_type`")]
fn decodes_to_what_was_encoded() {
    let mut rng = Rng(7);
    let rows = effort([8, 32, 32]);
    let values: Vec<f32> = (0..rows * 1024).map(|_| rng.normal()).collect();
    let square = |x: f32| f64::from(x) * f64::from(x);
    let total = values.iter().map(|&x| square(x)).sum::<f64>();
    let mut wrong = vec![];
    for t in TYPES {
        let blocks = t.encoded(&values, 1024, Some(&[1.0; 1024]), Level::detect());
        let mut decoded = vec![0.0f32; values.len()];
        decoder(t.dtype).unwrap()(&blocks, None, Level::detect(), Out::F32(&mut decoded));
        let pairs = values.iter().zip(&decoded);
        let error = (pairs.map(|(a, b)| square(a - b)).sum::<f64>() / total).sqrt();
        if error > t.normal_error || error < 0.8 * t.normal_error {
            wrong.push((t.dtype, error));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Little enough for Miri, which takes hours for the tests of many blocks.
#[test]
fn one_block_of_each_type() {
    let mut rng = Rng(11);
    let values: Vec<f32> = (0..256).map(|_| rng.normal()).collect();
    for t in types() {
        let blocks = t.encoded(&values, 256, Some(&[1.0; 256]), Level::detect());
        let mut decoded = vec![f32::NAN; values.len()];
        decoder(t.dtype).unwrap()(&blocks, None, Level::detect(), Out::F32(&mut decoded));
        let errors = values.iter().zip(&decoded).map(|(a, b)| (a - b).abs());
        // Normal values of one sign and of the other are nearer to each other than this.
        assert!(decoded.iter().all(|x| x.is_finite()), "{}", t.dtype);
        assert!(errors.fold(0.0, f32::max) < 6.0, "{}", t.dtype);
    }
}

#[test]
fn which_types_require_importance() {
    let requiring: Vec<_> = TYPES
        .iter()
        .filter(|t| requires_importance(t.dtype))
        .collect();
    let dtypes: Vec<_> = requiring.iter().map(|t| t.dtype).collect();
    assert_eq!(dtypes, [Dtype::IQ2_XXS, Dtype::IQ2_XS, Dtype::IQ1_S]);
    let mut rng = Rng(3);
    let values: Vec<f32> = (0..1024).map(|_| rng.normal()).collect();
    for t in requiring.into_iter().take(miri_or(0, usize::MAX)) {
        let all_ones = t.encoded(&values, 512, Some(&[1.0; 512]), Level::detect());
        t.check(&values, 512, None, &all_ones, "importance of ones");
    }
}
