//! Integers packed along inputs or in tiles of GPUs: GPTQ, AWQ, ParoQuant, Marlin, QQQ.

use super::{Part, PartsOf, codes, cols, f16s, f32s, rows};

fn gptq(bits: usize, act_order: bool) -> Vec<Part> {
    let groups = cols() / 128;
    let group = |k: usize| if act_order { k * 31 % groups } else { k / 128 } as u32;
    vec![
        Part(
            "w.qweight",
            "I32",
            vec![cols() * bits / 32, rows()],
            codes(cols() * rows() * bits / 8),
        ),
        Part(
            "w.qzeros",
            "I32",
            vec![groups, rows() * bits / 32],
            codes(groups * rows() * bits / 8),
        ),
        Part("w.scales", "F16", vec![groups, rows()], f16s(groups * rows())),
        Part(
            "w.g_idx",
            "I32",
            vec![cols()],
            (0..cols()).flat_map(|k| group(k).to_le_bytes()).collect(),
        ),
    ]
}

/// AWQ of four bits, in groups of 128.
fn awq() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.qweight", "I32", vec![cols(), rows() / 8], codes(n / 2)),
        Part("w.qzeros", "I32", vec![cols() / 128, rows() / 8], codes(n / 256)),
        Part("w.scales", "F16", vec![cols() / 128, rows()], f16s(n / 128)),
    ]
}

/// AWQ between eight rotations of the inputs of a group.
fn paroquant() -> Vec<Part> {
    // In each of eight rotations every column of a group is in one pair.
    let places =
        (0..8 * cols()).flat_map(|i| ((i % 128 * 5 + i / cols() * 3) as i16 % 128).to_le_bytes());
    let mut parts = awq();
    parts.extend([
        Part("w.theta", "F16", vec![8, cols() / 2], f16s(4 * cols())),
        Part("w.pairs", "I16", vec![8, cols()], places.collect()),
        Part("w.channel_scales", "F16", vec![1, cols()], f16s(cols())),
    ]);
    parts
}

/// Four bits in groups of 128, of each four of which the first two are stored.
fn marlin24() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.weight_packed", "I32", vec![cols() / 32, rows() * 2], codes(n / 4)),
        Part("w.meta", "I16", vec![cols() / 32, rows() * 2], vec![0x44; n / 8]),
        Part("w.scale_packed", "F16", vec![cols() / 128, rows()], f16s(n / 128)),
    ]
}

fn marlin() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.B", "I32", vec![cols() / 16, rows() * 2], codes(n / 2)),
        Part("w.s", "F16", vec![cols() / 128, rows()], f16s(n / 128)),
    ]
}

fn qqq() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("w.B", "I32", vec![cols() / 16, rows() * 2], codes(n / 2)),
        Part("w.s_channel", "F32", vec![1, rows()], f32s(rows())),
        Part("w.s_group", "F16", vec![cols() / 128, rows()], f16s(n / 128)),
    ]
}

pub const SCHEMES: &[PartsOf] = &[
    ("gptq2", || gptq(2, false)),
    ("gptq3", || gptq(3, false)),
    ("gptq4", || gptq(4, false)),
    ("gptq8", || gptq(8, false)),
    ("gptq4-act", || gptq(4, true)),
    ("awq", awq),
    ("paroquant", paroquant),
    ("marlin", marlin),
    ("marlin24", marlin24),
    ("qqq", qqq),
];
