//! Every kernel at every CPU level and output type, against a twin that computes one value at a
//! time.

mod exl2;
mod exl3;
mod grouped;
mod hadamard;
mod low_rank;
mod marlin;
mod rotated;
mod rotated_pairs;
mod spqr;
mod stacks;
mod transpose;
mod vectors;

use half::{bf16, f16};

use crate::element::Out;
use crate::remember::kernels::grouped::{CodeValue, GroupedRows};
use crate::simd::{Kernel, Level, dispatch, perform};
use crate::test_utils::miri_or;

/// Scales that go wrong first.
const HOSTILE: [f32; 10] =
    [1e-3, -0.37, 0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, 3e38, 6e-8];

fn scales(n: usize) -> Vec<f32> {
    (0..n).map(|i| HOSTILE[i % HOSTILE.len()]).collect()
}

fn bytes(n: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..n).map(|_| next()).collect()
}

fn words(n: usize) -> Vec<u32> {
    bytes(n * 4)
        .as_chunks()
        .0
        .iter()
        .map(|&b| u32::from_le_bytes(b))
        .collect()
}

/// A kernel, or what runs several.
trait Decoder {
    fn decode_at(&self, level: Level, out: Out<'_>);
}

impl<K: Kernel> Decoder for K {
    fn decode_at(&self, level: Level, out: Out<'_>) {
        dispatch(level, self, out);
    }
}

impl<V: CodeValue> Decoder for GroupedRows<'_, V> {
    fn decode_at(&self, level: Level, out: Out<'_>) {
        self.decode(level, out);
    }
}

/// Runs `kernel` over `n` values at every level and type, and shows the results to `see`.
fn each_level(kernel: &impl Decoder, n: usize, see: impl Fn(Level, &[f32], &[f16], &[bf16])) {
    for level in Level::available() {
        let (mut single, mut half, mut brain) =
            (vec![0f32; n], vec![f16::ZERO; n], vec![bf16::ZERO; n]);
        kernel.decode_at(level, Out::F32(&mut single));
        kernel.decode_at(level, Out::F16(&mut half));
        kernel.decode_at(level, Out::Bf16(&mut brain));
        see(level, &single, &half, &brain);
    }
}

/// At every level and type, value `i` must be `twin(i)`, rounded once.
fn check(name: &str, kernel: &impl Decoder, n: usize, twin: impl Fn(usize) -> f32) {
    let want: Vec<f32> = (0..n).map(twin).collect();
    each_level(kernel, n, |level, single, half, brain| {
        for (i, &want) in want.iter().enumerate() {
            if want.is_nan() {
                assert!(
                    single[i].is_nan() && half[i].is_nan() && brain[i].is_nan(),
                    "{name} {level:?} [{i}]"
                );
                continue;
            }
            assert_eq!(single[i].to_bits(), want.to_bits(), "{name} F32 {level:?} [{i}]");
            assert_eq!(
                half[i].to_bits(),
                f16::from_f32_const(want).to_bits(),
                "{name} F16 {level:?} [{i}]: {want:e}"
            );
            assert_eq!(
                brain[i].to_bits(),
                bf16::from_f32(want).to_bits(),
                "{name} BF16 {level:?} [{i}]: {want:e}"
            );
        }
    });
}

#[test]
fn act_order_kernel() {
    use super::gptq::IndexedRows;
    let widths = [96usize, 77, miri_or(33, 515)];
    for (bits, cols) in (2..=8).flat_map(|bits| widths.map(|cols| (bits, cols))) {
        let (rows, groups) = (3, 5);
        let row_bytes = (cols * bits).div_ceil(32) * 4;
        let (bytes, scales) = (bytes(rows * row_bytes), scales(rows * groups));
        let zeros: Vec<f32> = (0..rows * groups)
            .map(|i| (i % (1 << bits)) as f32)
            .collect();
        let index: Vec<u32> = (0..cols).map(|k| (k * 31 % groups) as u32).collect();
        let kernel = IndexedRows {
            bytes: &bytes,
            row_bytes,
            bits,
            cols,
            scales: &scales,
            zeros: &zeros,
            groups,
            index: &index,
        };
        check(&format!("GPTQ {bits}"), &kernel, rows * cols, |i| {
            let (r, k) = (i / cols, i % cols);
            let bit = |at: usize| u32::from(bytes[r * row_bytes + at / 8] >> (at % 8) & 1);
            let code: u32 = (0..bits).map(|b| bit(k * bits + b) << b).sum();
            let g = r * groups + index[k] as usize;
            (code as f32 - zeros[g]) * scales[g]
        });
    }
}

/// One value at both sides of each bound, among others.
#[test]
fn values_beyond_the_range() {
    use super::cast::{Cast, CastValues};
    use crate::TargetDtype::{BF16, F16, F32};
    let largest = f32::MAX.to_bits();
    let bounds = [65520f32.to_bits(), 0x7f7f_8000, largest, largest + 1];
    let near = bounds
        .into_iter()
        .flat_map(|bits| [bits - 1, bits, bits + 1]);
    for x in near.flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)]) {
        for (place, target) in [0, 20, 36]
            .into_iter()
            .flat_map(|p| [F16, BF16, F32].map(|t| (p, t)))
        {
            let mut values = [0.5; 37];
            values[place] = x;
            let values = CastValues::F32(&values);
            for level in Level::available() {
                let cast = Cast::new(values, false);
                let mut out = [0; 37];
                dispatch(level, &cast, Out::new(target, &mut out).first(37));
                let is_found = values.first_overflow(target).is_some();
                assert_eq!(cast.has_overflow(), is_found, "{level:?} {target}: {x:e}");
            }
        }
    }
}

/// Casts of F32 and F64 against roundings of one value; what overflows is found, and clamped before
/// it is rounded if asked for.
#[test]
fn cast_kernel() {
    use super::cast::{Cast, CastValues, largest};
    use crate::TargetDtype::{BF16, F16, F32};
    let mut doubles: Vec<f64> = words(miri_or(115, 515))
        .iter()
        .map(|&w| f32::from_bits(w).into())
        .collect();
    doubles.extend(HOSTILE.map(f64::from));
    doubles.extend([65504.0, 65519.99, 65520.0, -65520.0, 3.39e38, 3.3961776e38]);
    let singles: Vec<f32> = doubles.iter().map(|&x| x as f32).collect();
    doubles.extend([1e39, -1e300, f64::MAX, f64::NAN, f64::INFINITY, 1e-320]);
    let bytes: Vec<u8> = doubles.iter().flat_map(|x| x.to_le_bytes()).collect();
    let wide: Vec<f64> = singles.iter().map(|&x| x.into()).collect();
    for (values, doubles) in
        [(CastValues::F32(&singles), &wide), (CastValues::F64(&bytes), &doubles)]
    {
        let checked = Cast::new(values, false);
        check("cast", &checked, doubles.len(), |i| doubles[i] as f32);
        assert!(checked.has_overflow());
        let saturating = Cast::new(values, true);
        each_level(&saturating, doubles.len(), |level, single, half, brain| {
            for (i, &x) in doubles.iter().enumerate() {
                let twin = |target| match x.is_finite() {
                    true => x.clamp(-f64::from(largest(target)), largest(target).into()) as f32,
                    false => x as f32,
                };
                let is = |got: f32, want: f32| {
                    let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                    assert!(same, "{level:?} [{i}]: {x:e} gives {got:e}");
                };
                is(single[i], twin(F32));
                is(half[i].to_f32_const(), f16::from_f32_const(twin(F16)).to_f32_const());
                is(brain[i].to_f32(), bf16::from_f32(twin(BF16)).to_f32());
            }
        });
        assert!(!saturating.has_overflow());
        for target in [F32, F16, BF16] {
            let beyond = |x: &f64| x.is_finite() && x.abs() > 1.001 * f64::from(largest(target));
            let first = values.first_overflow(target).map(|(i, _)| i);
            assert_eq!(first, doubles.iter().position(beyond), "{target}");
        }
    }
}

/// Against rotations of one row of F64 after the other.
#[test]
fn paroquant_kernel() {
    use super::awq::POSITION;
    use super::paroquant::ParoRows;
    let cases = [
        (128usize, 128usize, 8usize, 0usize, 8usize),
        (96, 32, 3, 5, 9),
        (12, 4, 1, 7, 1),
        (256, 256, 2, 3, 4),
        // Rows of several runs, and groups that are not whole vectors.
        (64, 32, 2, 3, 30),
        (18, 6, 2, 0, 17),
    ];
    for (cols, size, rotations, first, rows) in cases {
        let groups = cols / size;
        let words = words((first + rows).div_ceil(8) * cols);
        let scales = scales(rows * groups);
        let zeros: Vec<f32> = (0..rows * groups).map(|i| (i % 16) as f32).collect();
        // In each rotation another order of the columns.
        let pairs: Vec<u8> = (0..rotations * cols)
            .map(|i| ((i % size * 5 + i / size * 3) % size) as u8)
            .collect();
        let angles: Vec<f32> = (0..rotations * cols).map(|i| (i as f32).sin()).collect();
        let factors: Vec<f32> = (0..cols).map(|i| 1.5 - i as f32 / 64.0).collect();
        let kernel = ParoRows {
            words: &words,
            first,
            cols,
            scales: &scales,
            zeros: &zeros,
            group_size: size,
            rotations,
            pairs: &pairs,
            angles: &angles,
            factors: &factors,
        };
        let row = |r: usize| -> Vec<f32> {
            let mut values: Vec<f64> = (0..cols)
                .map(|k| {
                    let word = words[(first + r) / 8 * cols + k];
                    let code = word >> (POSITION[(first + r) % 8] * 4) & 15;
                    let g = r * groups + k / size;
                    (f64::from(code) - f64::from(zeros[g])) * f64::from(scales[g])
                })
                .collect();
            for p in 0..rotations * cols / 2 {
                let group = 2 * p / (rotations * size) * size;
                let [i, j] = [0, 1].map(|n| group + usize::from(pairs[2 * p + n]));
                let [cos, sin] = [0, 1].map(|n| f64::from(angles[2 * p + n]));
                let [a, b] = [values[i], values[j]];
                values[i] = a * cos - b * sin;
                values[j] = a * sin + b * cos;
            }
            let scaled = values.iter().zip(&factors);
            scaled.map(|(v, &f)| (v * f64::from(f)) as f32).collect()
        };
        let want: Vec<f32> = (0..rows).flat_map(row).collect();
        check("ParoQuant", &kernel, rows * cols, |i| want[i]);
    }
}

#[test]
fn codebook_kernel() {
    use super::codebook::{AppendCodebookBlocks, CodebookBlocks, PairTable};
    let codebook: [f32; 16] =
        std::array::from_fn(|i| if i == 8 { -0.0 } else { i as f32 / 7.0 - 1.0 });
    for high_first in [true, false] {
        let pairs = PairTable::new(&codebook, high_first);
        let cases = [
            (0usize, 256usize, 64usize),
            (0, 77, 64),
            (10, 1291, 32),
            (48, 4001, 64),
            (6, 3, 128),
            (0, 1600, 16),
            (2, 50, 6),
            // Units of 64 values that are looked up in registers: from within a block, over many
            // blocks, with a rest, and a first block that ends with the first unit.
            (0, 64 * 40, 64),
            (64, 5000, 128),
            (192, 1000, 256),
            (64 * 3, 4096 + 63, 4096),
        ];
        // Every rest behind such units.
        let rests = (0..=130).step_by(miri_or(13, 1)).map(|n| (64, n, 128));
        let cases = cases
            .into_iter()
            .filter(|&(_, n, _)| n <= miri_or(300, usize::MAX));
        for (start, n, block) in cases.chain(rests) {
            let (bytes, scales) =
                (bytes(usize::div_ceil(n, 2)), scales((start + n).div_ceil(block)));
            let kernel =
                CodebookBlocks { pairs: &pairs, bytes: &bytes, start, block, scales: &scales };
            let twin = |i: usize| {
                let high = i.is_multiple_of(2) == high_first;
                let code = if high {
                    bytes[i / 2] >> 4
                } else {
                    bytes[i / 2] & 15
                };
                codebook[usize::from(code)] * scales[(start + i) / block]
            };
            check("codebook", &kernel, n, twin);
            for level in Level::available() {
                let mut out = vec![7];
                let mut routine = AppendCodebookBlocks {
                    blocks: CodebookBlocks { ..kernel },
                    values: n,
                    out: &mut out,
                };
                perform(level, &mut routine);
                assert_eq!((out[0], out.len()), (7, 1 + 2 * n));
                for (i, &made) in out[1..].as_chunks().0.iter().enumerate() {
                    let (made, want) = (bf16::from_le_bytes(made), bf16::from_f32(twin(i)));
                    let both_nan = made.is_nan() && want.is_nan();
                    let case = format!("{level:?} {start} {n} {block} [{i}]");
                    assert!(both_nan || made.to_bits() == want.to_bits(), "{case}");
                }
            }
        }
    }
}

#[test]
fn int8_kernel() {
    use super::bnb::Int8Rows;
    let (codes, scb) = (bytes(10 * 37), scales(10));
    check("INT8", &Int8Rows { codes: &codes, cols: 37, scb: &scb }, 370, |i| {
        f32::from(codes[i] as i8) * scb[i / 37] * 7.874_016e-3
    });
}
