//! The kernels against the model: the same values, and nothing that the model refuses.

use super::direct::{self, Bnb4Slices, NestedAbsmax, PackedSlices};
use super::model;
use crate::test_utils::effort;
use crate::{AnamnesisError, Dtype, Result};

/// Bytes without a pattern.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> usize {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() % n
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }

    /// Scales of any bits, and zeros, subnormals, infinities and NaN more often than by chance.
    fn scales(&mut self, n: usize, dtype: Dtype) -> Vec<u8> {
        let size = dtype.type_size().unwrap();
        let infinite: u32 = if dtype == Dtype::F16 {
            0x7c00_0000
        } else {
            0x7f80_0000
        };
        let special = [0, 1 << 31, 1 << (32 - 8 * size), infinite, infinite | 1 << 31, !0];
        let scale = |noise: &mut Self| match noise.below(4) {
            0 => special[noise.below(special.len())],
            1 => 0x3c00_0000 | (noise.next() as u32) >> 5,
            _ => (noise.next() as u32) << 1,
        };
        let bytes = (0..n).flat_map(|_| scale(self).to_le_bytes()[4 - size..].to_vec());
        bytes.collect()
    }

    /// A length, and now and then another one.
    fn cut(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        match self.below(20) {
            0 => drop(bytes.pop()),
            1 => bytes.push(0),
            2 => bytes.truncate(bytes.len() / 2),
            _ => (),
        }
        bytes
    }
}

/// Whether two lists of BF16 are equal. Of a NaN in a codebook times a NaN as a scale either may be
/// kept.
fn are_equal(a: &[u8], b: &[u8]) -> bool {
    let values = |bytes: &[u8]| {
        let values = bytes.as_chunks().0.iter();
        values
            .map(|&bytes| half::bf16::from_le_bytes(bytes))
            .collect::<Vec<_>>()
    };
    let is_equal =
        |(a, b): (&half::bf16, &half::bf16)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    a.len() == b.len() && values(a).iter().zip(&values(b)).all(is_equal)
}

/// Compares what the kernels made with what the model makes, and counts how often each was made.
fn compare(
    counts: &mut [usize; 2],
    what: &str,
    direct: Result<Option<Vec<u8>>>,
    model: Result<Vec<u8>>,
) {
    match (direct.unwrap(), model) {
        (Some(direct), Ok(model)) => {
            assert!(are_equal(&direct, &model), "{what}");
            counts[0] += 1;
        }
        (Some(_), Err(e)) => panic!("{what}: the model says {e}"),
        (None, Err(AnamnesisError::Parse { .. } | AnamnesisError::Unsupported { .. })) => {
            counts[1] += 1;
        }
        (None, other) => drop(other.unwrap()),
    }
}

const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

/// The kernels give what the pipeline gives, and take nothing that the pipeline refuses.
#[test]
fn kernels_equal_models_for_fp8_and_int8() {
    let (mut noise, mut counts) = (Noise(1), [0; 2]);
    let rounds = effort([100, 300, 300]);
    for round in 0..rounds {
        let rows = [1, 2, 127, 128, 129, 300, noise.below(400)][noise.below(7)];
        let cols = [1, 2, 63, 128, 130, 257, noise.below(400)][noise.below(7)];
        let dtype = FLOATS[noise.below(3)];
        let codes = noise.bytes(rows * cols);
        let weight = noise.cut(codes);
        let what = format!("round {round}: {rows} x {cols}, {dtype}");
        let blocks = [rows.div_ceil(128), cols.div_ceil(128)];
        let scales = noise.scales(blocks[0] * blocks[1], dtype);
        let scales = noise.cut(scales);
        let model = model::fp8_blocks(&weight, &scales, rows, cols, dtype);
        let direct = direct::fp8(&weight, &scales, [rows, cols], [128, 128], dtype);
        compare(&mut counts, &what, direct, model);

        let scales = noise.scales(rows, dtype);
        let scales = noise.cut(scales);
        let model = model::fp8_rows(&weight, &scales, rows, cols, dtype);
        let direct = direct::fp8(&weight, &scales, [rows, cols], [1, cols.max(1)], dtype);
        compare(&mut counts, &what, direct, model);

        let scale = noise.scales(1, Dtype::F32);
        let number = f32::from_le_bytes(scale.as_chunks().0[0]);
        let model = model::fp8_tensor(&weight, number);
        let direct = direct::fp8_per_tensor(&weight, number).map(Some);
        compare(&mut counts, &what, direct, model);

        let scales = noise.scales(rows, Dtype::F32);
        let scales = noise.cut(scales);
        let model = model::bnb_int8(&weight, &scales, rows, cols);
        let direct = direct::bnb_int8(&weight, &scales, [rows, cols]);
        compare(&mut counts, &what, direct, model);
    }
    let [equal, refused] = effort([[150, 20], [700, 100], [700, 100]]);
    assert!(counts[0] > equal && counts[1] > refused, "{counts:?}");
}

#[test]
fn kernels_equal_models_for_bnb4() {
    let (mut noise, mut counts, mut nested_counts) = (Noise(2), [0; 2], [0; 2]);
    for round in 0..300 {
        let n = [1, 63, 64, 65, 4096, noise.below(20_000)][noise.below(6)];
        let block = [32, 64, 128, 256, 512, 1024, 4096, 1 << 40][noise.below(8)];
        let codes = noise.bytes(n.div_ceil(2));
        let codes = noise.cut(codes);
        let absmax = noise.scales(n.div_ceil(block.max(1)), Dtype::F32);
        let absmax = noise.cut(absmax);
        let mut map = noise.scales(16, Dtype::F32);
        if noise.below(2) == 0 {
            map[32..36].fill(0);
        }
        let map = noise.cut(map);
        let plain = Bnb4Slices {
            codes: &codes,
            absmax: &absmax,
            quant_map: &map,
            nested: None,
            values: n,
            block,
        };
        let (model, direct) = (model::bnb4(plain), direct::bnb4(plain));
        let what = format!("round {round}: {n} in blocks of {block}");
        compare(&mut counts, &what, direct, model);

        let blocks = n.div_ceil(block.max(1));
        let scales = noise.bytes(blocks);
        let scales = noise.cut(scales);
        let outer_block = [32, 64, 128, 256, 1 << 40][noise.below(5)];
        let outer = noise.scales(blocks.div_ceil(outer_block.max(1)), Dtype::F32);
        let (outer, levels) = (noise.cut(outer), noise.scales(256, Dtype::F32));
        let offset = noise.scales(1, Dtype::F32);
        let nested = Some(NestedAbsmax {
            absmax: &outer,
            quant_map: &noise.cut(levels),
            offset: f32::from_le_bytes(offset.as_chunks().0[0]),
            block: outer_block,
        });
        let nested = Bnb4Slices { absmax: &scales, nested, ..plain };
        let (model, direct) = (model::bnb4(nested), direct::bnb4(nested));
        let what = format!("{what}, scales in blocks of {outer_block}");
        compare(&mut nested_counts, &what, direct, model);
    }
    assert!(counts[0] > 100 && counts[1] > 40, "{counts:?}");
    assert!(nested_counts[0] > 60 && nested_counts[1] > 80, "{nested_counts:?}");
}

/// As many values as two threads are started for: their output is in slabs, that of one thread is
/// appended.
#[test]
fn kernels_equal_models_for_bnb4_with_two_threads() {
    let (mut noise, n) = (Noise(5), (2usize << 20) + 65);
    let slices = Bnb4Slices {
        codes: &noise.bytes(n.div_ceil(2)),
        absmax: &noise.scales(n.div_ceil(64), Dtype::F32),
        quant_map: &noise.scales(16, Dtype::F32),
        nested: None,
        values: n,
        block: 64,
    };
    assert!(direct::bnb4(slices).unwrap() == Some(model::bnb4(slices).unwrap()));
}

#[test]
fn kernels_equal_models_for_gptq_and_awq() {
    let (mut noise, mut counts) = (Noise(3), [0; 2]);
    for round in 0..400 {
        let inputs = [8, 16, 32, 96, 128, 256, 8 * noise.below(40)][noise.below(7)];
        let outputs = [8, 16, 24, 64, 128, 8 * noise.below(40), noise.below(99)][noise.below(7)];
        let bits = [2, 3, 4, 4, 4, 8][noise.below(6)];
        let divisors: Vec<usize> = (1..=inputs).filter(|d| inputs.is_multiple_of(*d)).collect();
        let Some(&group_size) = divisors.get(noise.below(divisors.len().max(1))) else {
            continue;
        };
        let (groups, dtype) = (inputs / group_size, FLOATS[noise.below(3)]);
        let words = |n: usize| (n * bits).div_ceil(32) * 4;
        let scales = noise.scales(groups * outputs, dtype);
        let scales = noise.cut(scales);
        let zeros = noise.bytes(groups * words(outputs));
        let zeros = noise.cut(zeros);
        let codes = noise.bytes(words(inputs) * outputs);
        let codes = noise.cut(codes);
        let groups = groups + usize::from(noise.below(20) == 0);
        let index: Vec<u8> = (0..inputs)
            .flat_map(|_| (noise.below(groups) as u32).to_le_bytes())
            .collect();
        let index = noise.cut(index);
        let index = (noise.below(2) == 0).then_some(&index[..]);
        let mut packed = PackedSlices {
            codes: &codes,
            scales: &scales,
            zeros: &zeros,
            inputs,
            outputs,
            group_size,
            bits,
            scale_dtype: dtype,
        };
        let what = format!("round {round}: {inputs} x {outputs}, {bits} bits, {group_size}");
        let model = model::gptq(packed, index);
        compare(&mut counts, &what, direct::gptq(packed, index), model);
        let codes = noise.bytes(inputs * words(outputs));
        packed.codes = &codes;
        compare(&mut counts, &what, direct::awq(packed), model::awq(packed));
    }
    assert!(counts[0] > 200 && counts[1] > 100, "{counts:?}");
}
