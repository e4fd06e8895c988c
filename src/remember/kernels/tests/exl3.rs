//! EXL3: values of tiles as its library has them, and weights against sums of single products.

use safetensors::SafeTensors;

use super::{HOSTILE, bytes, check};
use crate::element::f32_from_f16;
use crate::remember::kernels::exl3::{
    BLOCK, BLOCK_LEN, BitRate, BlockSums, Codebook, MAX_BITS, RING, RingRows, TILE, TrellisRows,
    ring_bytes,
};
use crate::simd::{Level, perform};
use crate::test_utils::{effort, miri_or, test_data};

const CODEBOOKS: [(&str, Codebook); 3] =
    [("3inst", Codebook::ThreeInst), ("mcg", Codebook::Mcg), ("mul1", Codebook::Mul1)];

/// The half that a codebook has for `state`, by operations of halves.
fn value(codebook: Codebook, state: u32) -> f64 {
    let half = |bits: u32| f64::from(f32_from_f16(bits as u16));
    // Sums and products of two halves are exact in F64.
    let rounded = |x: f64| f64::from(half::f16::from_f64_const(x));
    let x = match codebook {
        Codebook::ThreeInst => state.wrapping_mul(89_226_354).wrapping_add(64_248_484),
        Codebook::Mcg => state.wrapping_mul(0xcbac_1fed),
        Codebook::Mul1 => {
            let sum: u32 = state
                .wrapping_mul(0x83dc_d12d)
                .to_le_bytes()
                .map(u32::from)
                .iter()
                .sum();
            return rounded(half(0x6400 + sum) * half(0x1eee) + half(0xc931));
        }
    };
    let x = (x & 0x8fff_8fff) ^ 0x3b60_3b60;
    rounded(half(x & 0xffff) + half(x >> 16))
}

/// All rates.
fn rates() -> impl Iterator<Item = BitRate> + Clone {
    (0..=17).filter_map(|half| BitRate::of_tile(8 * half))
}

/// Value (k, n) of a tile, bit by bit.
fn inner(tile: &[u8], rate: BitRate, codebook: Codebook, (k, n): (usize, usize)) -> f64 {
    // Eight neighbours of the stream lie in rows 2q, 2q + 1, 2q + 8, 2q + 9 of columns c and c + 8.
    let at = (n % 8 * 4 + k % 8 / 2) * 8 + n / 8 * 4 + k / 8 * 2 + k % 2;
    let bit = |i: usize| {
        let word = i / 32 * 4;
        u32::from(tile[word + 3 - i % 32 / 8] >> (7 - i % 8) & 1)
    };
    let total = 8 * tile.len();
    let end = (at + 1) * rate.of_two() / 2;
    let state = (0..16).fold(0, |state, i| state << 1 | bit((end + total - 16 + i) % total));
    value(codebook, state)
}

fn sums(tiles: &[u8], across: usize, rate: BitRate, codebook: Codebook, level: Level) -> Vec<i32> {
    let down = tiles.len() / (across * rate.tile_bytes());
    let mut sums = vec![0; down * across * TILE * TILE];
    let mut routine = BlockSums { tiles, across, rate, codebook, sums: &mut sums };
    perform(level, &mut routine);
    sums
}

/// The naive twin has the values that the library has.
#[test]
fn exl3_tiles() {
    let Some(data) = test_data() else {
        return;
    };
    let read = |name: &str| std::fs::read(data.join("exl3").join(name)).unwrap();
    let [whole, half] = ["tiles.safetensors", "half_tiles.safetensors"].map(read);
    let [whole, half] = [&whole, &half].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    for rate in rates() {
        for (name, codebook) in CODEBOOKS {
            let bits = rate.bits;
            let (file, name) = match (rate.has_half, codebook) {
                (false, _) => (&whole, format!("{name}.{bits}")),
                (true, Codebook::Mul1) => (&half, format!("{bits}.5")),
                (true, _) => continue,
            };
            let tensor = |part| file.tensor(&format!("{name}.{part}")).unwrap();
            let (tile, want) = (tensor("trellis"), tensor("inner"));
            assert_eq!(tile.data().len(), rate.tile_bytes());
            for (i, &want) in want.data().as_chunks().0.iter().enumerate() {
                let want = f64::from(f32_from_f16(u16::from_le_bytes(want)));
                let got = inner(tile.data(), rate, codebook, (i / TILE, i % TILE));
                assert_eq!(got.to_bits(), want.to_bits(), "{name}, {i}");
            }
        }
    }
}

/// Every state of every codebook.
#[test]
fn exl3_states() {
    for (name, codebook) in CODEBOOKS {
        for state in (0..=u16::MAX).step_by(miri_or(251, 1)) {
            let got = f64::from(codebook.integer(state.into())) * codebook.unit();
            let want = value(codebook, state.into());
            assert_eq!(got, want, "{name} {state:04x}");
        }
    }
}

/// Against sums of 16384 values for each weight, and products in F64.
#[test]
fn exl3_kernel() {
    let all = CODEBOOKS.map(|(_, codebook)| codebook);
    let cases = rates().flat_map(|rate| all.map(|codebook| (rate, codebook)));
    assert_eq!(cases.clone().count(), 3 * 11);
    for (rate, codebook) in cases.step_by(miri_or(11, effort([2, 1, 1]))) {
        // Some cases have several blocks either way, and end within one.
        let [down, across, cols] = if rate.bits == 3 {
            [2, 2, 200]
        } else {
            [1, 1, 128]
        };
        let len = rate.tile_bytes();
        let tiles = bytes(down * across * 64 * len);
        let reference = sums(&tiles, across * 8, rate, codebook, Level::Baseline);
        for level in Level::available() {
            assert!(reference == sums(&tiles, across * 8, rate, codebook, level));
        }
        // Hostile factors leave nothing to the products in F32, so the others have usual ones.
        let widened = |i: usize| match codebook {
            Codebook::Mcg => HOSTILE[i % HOSTILE.len()],
            _ => (i * 37 % 101) as f32 / 400.0 - 0.12,
        };
        let half = |i| f32_from_f16(half::f16::from_f32_const(widened(i)).to_bits());
        let outputs: Vec<f32> = (0..across * BLOCK).map(half).collect();
        let unit = (codebook.unit() / 128.0) as f32;
        let inputs: Vec<f32> = (0..down * BLOCK).map(|i| half(i * 3 + 1) * unit).collect();
        let (first, rows) = (BLOCK * across - 35, 35);
        let kernel = TrellisRows {
            sums: &reference,
            first,
            cols,
            inputs: &inputs,
            outputs: &outputs[first..],
        };
        let tile = |k: usize, n: usize| {
            let at = (k / TILE * across * 8 + n / TILE) * len;
            inner(&tiles[at..at + len], rate, codebook, (k % TILE, n % TILE))
        };
        let sign = |a: usize, b: usize| {
            if (a & b).count_ones().is_multiple_of(2) {
                1.0
            } else {
                -1.0
            }
        };
        // C times H first, for each row of C and the outputs that are looked at.
        let block = first / BLOCK * BLOCK;
        let right: Vec<Vec<f64>> = (0..down * BLOCK)
            .map(|k| {
                let row: Vec<f64> = (0..BLOCK).map(|n| tile(k, block + n)).collect();
                let one = |n: usize| (0..BLOCK).map(|i| sign(i, n) * row[i]).sum();
                (BLOCK - rows..BLOCK).map(one).collect()
            })
            .collect();
        let twin = |i: usize| {
            let (n, k) = (i / cols, i % cols);
            let from = k / BLOCK * BLOCK;
            let sum: f64 = (0..BLOCK)
                .map(|i| sign(i, k % BLOCK) * right[from + i][n])
                .sum();
            (sum / codebook.unit() * f64::from(inputs[k]) * f64::from(outputs[first + n])) as f32
        };
        let want: Vec<f32> = (0..rows * cols).map(twin).collect();
        check(&format!("EXL3 {codebook:?} {rate:?}"), &kernel, want.len(), |i| want[i]);
        assert_eq!(reference.len(), down * across * BLOCK_LEN);
    }
}

/// Tables of embeddings, against sums of 256 values in F64.
#[test]
fn exl3_rings() {
    let (rows, cols) = (3, 300);
    for bits in (1..=MAX_BITS).step_by(miri_or(4, 1)) {
        let len = ring_bytes(bits);
        let mut rings = bytes(2 * rows * len);
        let signs: Vec<f32> = (0..2 * RING).map(|i| [1.0, -1.0][i * i / 3 % 2]).collect();
        for (i, ring) in rings.chunks_exact_mut(len).enumerate() {
            let scale = half::f16::from_f32_const(0.01 + i as f32 / 7.0);
            ring[..2].copy_from_slice(&scale.to_le_bytes());
        }
        let kernel = RingRows { rings: &rings, bits, first: 1, cols, signs: &signs };
        let twin = |i: usize| {
            let (row, col) = (1 + i / cols, i % cols);
            let ring = &rings[(row * 2 + col / RING) * len..][..len];
            let (scale, stream) = ring.split_at(2);
            let total = RING * bits;
            let bit = |at: usize| u32::from(stream[at % total / 8] >> (at % 8) & 1);
            // Bits of a value lie together, lowest first, and those of the value before it are
            // above them.
            let state = |i: usize| {
                let bits = (0..16).map(|k| {
                    let value = (i + RING - k / bits) % RING;
                    bit(value * bits + k % bits) << k
                });
                bits.sum::<u32>()
            };
            let sum: f64 = (0..RING)
                .map(|k| {
                    let is_odd = (k & (col % RING)).count_ones() % 2 == 1;
                    let value = value(Codebook::Mul1, state(k));
                    if is_odd { -value } else { value }
                })
                .sum();
            let scale = f32_from_f16(u16::from_le_bytes([scale[0], scale[1]]));
            (sum / 16.0 * f64::from(scale) * f64::from(signs[col])) as f32
        };
        let want: Vec<f32> = (0..(rows - 1) * cols).map(twin).collect();
        check(&format!("EXL3 rings {bits}"), &kernel, want.len(), |i| want[i]);
    }
}
