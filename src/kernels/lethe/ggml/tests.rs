//! Every block type at every CPU level: the bytes that ggml's C encodes, and those of a twin that does one value after
//! the other.

mod search;
mod twin;

use std::path::Path;

use super::encoder;
use crate::Dtype;
use crate::simd::Level;

const COLS: usize = 512;

/// A block type: its bytes, its values, and whether there is a golden file for each kind of importance.
struct Type {
    dtype: Dtype,
    bytes: usize,
    values: usize,
    importance: bool,
}

macro_rules! types {
    ($($dtype:ident $bytes:literal $values:literal $importance:literal;)*) => {
        const TYPES: &[Type] =
            &[$(Type { dtype: Dtype::$dtype, bytes: $bytes, values: $values, importance: $importance }),*];
    };
}

types! {
    Q4_0 18 32 true;
    Q4_1 20 32 true;
    Q5_0 22 32 true;
    Q5_1 24 32 true;
    Q8_0 34 32 false;
    Q8_1 36 32 false;
    Q2_K 84 256 true;
    Q3_K 110 256 true;
    Q4_K 144 256 true;
    Q5_K 176 256 true;
    Q6_K 210 256 true;
    Q8_K 292 256 false;
    TQ1_0 54 256 false;
    TQ2_0 66 256 false;
    Q1_0 18 128 false;
    Q2_0 18 64 false;
    MXFP4 17 32 false;
    NVFP4 36 64 false;
}

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
    t: &Type,
    values: &[f32],
    cols: usize,
    importance: Option<&[f32]>,
    level: Level,
) -> Vec<u8> {
    let mut out = vec![0xAA; values.len() / t.values * t.bytes];
    encoder(t.dtype).unwrap()(values, cols, importance, level, &mut out);
    out
}

/// `file` holds as many of the leading rows as could be encoded there.
fn check(t: &Type, file_name: &str, importance: Option<&[f32]>) {
    let (values, expected) = (floats("values.f32"), file(file_name));
    let values = &values[..expected.len() / t.bytes * t.values];
    for level in Level::available() {
        let out = encoded(t, values, COLS, importance, level);
        let differ = out.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(
            differ.map(|at| (at / t.bytes, at % t.bytes)),
            None,
            "{file_name} at {level:?}: block, byte"
        );
    }
}

#[test]
fn encodes_as_ggml() {
    for t in TYPES {
        let name = format!("{:?}", t.dtype).to_lowercase();
        check(t, &format!("{name}.bin"), None);
        let importance = floats("importance.f32");
        check(
            t,
            &format!(
                "{name}{}.bin",
                if t.importance { ".importance" } else { "" }
            ),
            Some(&importance),
        );
    }
}

/// Blocks of 256 of all kinds, of which none is too small for a scale to have an inverse.
fn hostile(rng: &mut Rng) -> Vec<f32> {
    let scale = 2f32.powi(rng.below(40) as i32 - 28);
    let kind = rng.below(9);
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
            7 => rng.unit() * 1e30,
            _ => scale,
        })
        .collect();
    if rng.below(4) == 0 {
        values[at] *= 50.0;
    }
    values
}

/// xorshift64*
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: u64) -> usize {
        (self.next() % n) as usize
    }

    /// From -1 to 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

#[test]
fn encodes_as_its_twin() {
    const BLOCKS: usize = 3;
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    for round in 0..60 {
        let values: Vec<f32> = (0..2 * BLOCKS).flat_map(|_| hostile(&mut rng)).collect();
        let weights: Vec<f32> = (0..BLOCKS * 256)
            .map(|_| rng.unit().max(0.0) * rng.unit().abs())
            .collect();
        for t in TYPES {
            // Long rows, and rows of one block.
            let cols = if round % 2 == 0 {
                BLOCKS * 256
            } else {
                t.values
            };
            for importance in [None, Some(&weights[..cols])] {
                let blocks = values.chunks(cols).flat_map(|row| {
                    let row_square = row.iter().fold(0.0, |sum, x| sum + x * x) / cols as f32;
                    row.chunks(t.values).enumerate().flat_map(move |(i, x)| {
                        let importance =
                            importance.map(|w| (&w[i * t.values..][..t.values], row_square));
                        twin::twin(t.dtype, t.bytes, x, importance)
                    })
                });
                let expected: Vec<u8> = blocks.collect();
                for level in Level::available() {
                    let out = encoded(t, &values, cols, importance, level);
                    let differ = out.iter().zip(&expected).position(|(a, b)| a != b);
                    let place = differ.map(|at| (at / t.bytes, at % t.bytes));
                    assert_eq!(
                        place,
                        None,
                        "{:?} at {level:?}, {}: block, byte",
                        t.dtype,
                        importance.is_some()
                    );
                }
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
    for t in TYPES.iter().filter(|t| {
        matches!(
            t.dtype,
            Dtype::Q8_0 | Dtype::Q4_0 | Dtype::Q5_1 | Dtype::Q2_0
        )
    }) {
        for level in Level::available() {
            assert!(
                encoded(t, &values, 256, None, level)
                    .iter()
                    .all(|&byte| byte == 0 || byte == 0x80),
                "{:?}",
                t.dtype
            );
        }
    }
    for level in Level::available() {
        let trits = encoded(&TYPES[13], &values, 256, None, level);
        assert!(
            trits[..64].iter().all(|&byte| byte == 0b0101_0101),
            "zeros of TQ2_0"
        );
    }
}
