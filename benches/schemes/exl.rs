//! Models of EXL2 and EXL3.

use super::{Part, PartsOf, codes, cols, f16s, rows};

fn exl3(bits: usize, codebook: Option<(&'static str, u32)>) -> Vec<Part> {
    let mut parts = vec![
        Part(
            "w.trellis",
            "I16",
            vec![cols() / 16, rows() / 16, 16 * bits],
            codes(cols() * rows() * bits / 8),
        ),
        Part("w.suh", "F16", vec![cols()], f16s(cols())),
        Part("w.svh", "F16", vec![rows()], f16s(rows())),
    ];
    parts.extend(
        codebook.map(|(name, mark)| Part(name, "I32", vec![], mark.to_le_bytes().to_vec())),
    );
    parts
}

/// Groups of 128 inputs: half of them of five bits, half of three.
fn exl2() -> Vec<Part> {
    let groups = cols() / 128;
    let bits = |g: usize| if g < groups / 2 { 5 } else { 3 };
    let word = |g: usize| (0..g).map(|g| bits(g) * 4).sum::<usize>();
    let table = (0..groups).flat_map(|g| [bits(g) as i16, word(g) as i16]);
    let order = (0..cols()).flat_map(|k| ((k * 1021 % cols()) as u32).to_le_bytes());
    let words = word(groups);
    vec![
        Part("w.q_weight", "I32", vec![words, rows()], codes(words * rows() * 4)),
        Part("w.q_invperm", "I32", vec![cols()], order.collect()),
        Part("w.q_scale", "I32", vec![groups, rows() / 8], codes(groups * rows() / 2)),
        Part("w.q_scale_max", "F16", vec![groups], f16s(groups)),
        Part("w.q_groups", "I16", vec![groups * 2], table.flat_map(i16::to_le_bytes).collect()),
    ]
}

pub const SCHEMES: &[PartsOf] = &[
    ("exl2", exl2),
    ("exl3-3", || exl3(3, None)),
    ("exl3-4", || exl3(4, Some(("w.mcg", 0xcbac_1fed)))),
    ("exl3-6", || exl3(6, Some(("w.mul1", 0x83dc_d12d)))),
];
