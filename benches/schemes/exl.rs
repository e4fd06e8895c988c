//! Models of EXL2 and EXL3.

use super::{COLS, Part, ROWS, codes, f16s};

pub fn exl3(bits: usize, codebook: Option<(&'static str, u32)>) -> Vec<Part> {
    let mut parts = vec![
        Part(
            "w.trellis",
            "I16",
            vec![COLS / 16, ROWS / 16, 16 * bits],
            codes(COLS * ROWS * bits / 8),
        ),
        Part("w.suh", "F16", vec![COLS], f16s(COLS)),
        Part("w.svh", "F16", vec![ROWS], f16s(ROWS)),
    ];
    parts.extend(
        codebook.map(|(name, mark)| Part(name, "I32", vec![], mark.to_le_bytes().to_vec())),
    );
    parts
}

/// Groups of 128 inputs: half of them of five bits, half of three.
pub fn exl2() -> Vec<Part> {
    let groups = COLS / 128;
    let bits = |g: usize| if g < groups / 2 { 5 } else { 3 };
    let word = |g: usize| (0..g).map(|g| bits(g) * 4).sum::<usize>();
    let table = (0..groups).flat_map(|g| [bits(g) as i16, word(g) as i16]);
    let order = (0..COLS).flat_map(|k| ((k * 1021 % COLS) as u32).to_le_bytes());
    let words = word(groups);
    vec![
        Part(
            "w.q_weight",
            "I32",
            vec![words, ROWS],
            codes(words * ROWS * 4),
        ),
        Part("w.q_invperm", "I32", vec![COLS], order.collect()),
        Part(
            "w.q_scale",
            "I32",
            vec![groups, ROWS / 8],
            codes(groups * ROWS / 2),
        ),
        Part("w.q_scale_max", "F16", vec![groups], f16s(groups)),
        Part(
            "w.q_groups",
            "I16",
            vec![groups * 2],
            table.flat_map(i16::to_le_bytes).collect(),
        ),
    ]
}
