//! Weights that are encoded.

use half::bf16;

/// The bytes of `n` values: sums of four uniform numbers, nearly normal.
pub fn bf16_bytes(n: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let values = (0..n).map(|_| bf16::from_f32((next() + next() + next() + next()) * 0.05));
    values.flat_map(bf16::to_le_bytes).collect()
}
