//! A GGUF file for each block type.

use super::{MakeFile, codes, cols, gguf, rows};

/// GGUF types: name, number, values and bytes of a block, and where it has f16 scales.
#[rustfmt::skip]
const GGML: &[(&str, u32, usize, usize, &[usize])] = &[
    ("q4_0", 2, 32, 18, &[0]), ("q4_1", 3, 32, 20, &[0, 2]), ("q5_0", 6, 32, 22, &[0]), ("q5_1", 7, 32, 24, &[0, 2]),
    ("q8_0", 8, 32, 34, &[0]), ("q8_1", 9, 32, 36, &[0, 2]), ("q2_k", 10, 256, 84, &[80, 82]),
    ("q3_k", 11, 256, 110, &[108]), ("q4_k", 12, 256, 144, &[0, 2]), ("q5_k", 13, 256, 176, &[0, 2]),
    ("q6_k", 14, 256, 210, &[208]), ("q8_k", 15, 256, 292, &[]), ("iq2_xxs", 16, 256, 66, &[0]),
    ("iq2_xs", 17, 256, 74, &[0]), ("iq3_xxs", 18, 256, 98, &[0]), ("iq1_s", 19, 256, 50, &[0]),
    ("iq4_nl", 20, 32, 18, &[0]), ("iq3_s", 21, 256, 110, &[0]), ("iq2_s", 22, 256, 82, &[0]),
    ("iq4_xs", 23, 256, 136, &[0]), ("iq1_m", 29, 256, 56, &[]), ("tq1_0", 34, 256, 54, &[52]),
    ("tq2_0", 35, 256, 66, &[64]), ("gguf-mxfp4", 39, 32, 17, &[]), ("gguf-nvfp4", 40, 64, 36, &[]), ("q1_0", 41, 128, 18, &[0]),
    ("q2_0", 42, 64, 18, &[0]),
];

/// Types of ik_llama.cpp: name, number, values and bytes of a block, and bytes before each row.
/// Without these, a block begins with an f16 scale.
#[rustfmt::skip]
const IK: &[(&str, u32, usize, usize, usize)] = &[
    ("q6_0", 133, 32, 26, 0), ("iq1_bn", 134, 64, 13, 2), ("iq2_bn", 135, 64, 16, 4), ("iq2_k", 137, 256, 76, 0),
    ("iq3_k", 138, 256, 110, 0), ("iq4_k", 139, 256, 144, 0), ("iq5_k", 140, 256, 176, 0), ("iq6_k", 141, 256, 212, 0),
    ("iq4_ks", 144, 256, 136, 4), ("iq2_ks", 145, 256, 70, 2), ("iq4_kss", 146, 256, 128, 4), ("q8_kv", 151, 32, 32, 8),
    ("iq5_ks", 152, 256, 168, 4), ("iq2_kt", 153, 256, 68, 4), ("iq3_kt", 154, 256, 100, 4), ("iq4_kt", 155, 256, 128, 4),
    ("iq3_ks", 156, 256, 102, 2), ("iq2_kl", 157, 256, 86, 2), ("iq1_kt", 158, 256, 56, 4),
];

/// Types with interleaved rows: name, number, values and bytes of a block, and bytes before each
/// row: an F32 or f16 scale. Scales of blocks may be anything.
#[rustfmt::skip]
const INTERLEAVED: &[(&str, u32, usize, usize, usize)] = &[
    ("q4_0_r8", 202, 32, 18, 0), ("q5_0_r4", 206, 32, 22, 0), ("q8_0_r8", 208, 32, 34, 0), ("q2_k_r4", 210, 256, 84, 0),
    ("q3_k_r4", 211, 256, 110, 0), ("q4_k_r4", 212, 256, 144, 0), ("q5_k_r4", 213, 256, 176, 0), ("q6_k_r4", 214, 256, 210, 0),
    ("iq2_xxs_r4", 216, 256, 66, 0), ("iq2_xs_r4", 217, 256, 74, 0), ("iq3_xxs_r4", 218, 256, 98, 0), ("iq1_s_r4", 219, 32, 6, 2),
    ("iq4_nl_r4", 220, 32, 18, 0), ("iq3_s_r4", 221, 256, 110, 0), ("iq2_s_r4", 222, 256, 82, 0), ("iq4_xs_r8", 223, 256, 136, 0),
    ("iq1_m_r4", 229, 32, 7, 2), ("bf16_r16", 230, 1, 2, 0), ("q6_0_r4", 233, 32, 26, 0), ("iq2_bn_r4", 335, 64, 16, 4),
    ("iq2_k_r4", 337, 256, 76, 0), ("iq3_k_r4", 338, 256, 110, 0), ("iq4_k_r4", 339, 256, 144, 0), ("iq5_k_r4", 340, 256, 176, 0),
    ("iq4_ks_r4", 344, 256, 136, 4), ("iq5_ks_r4", 352, 256, 168, 4), ("mxfp4_r8", 353, 32, 17, 0), ("q8_kv_r8", 398, 32, 32, 4),
    ("q8_k_r8", 399, 256, 258, 0),
];

pub fn interleaved_files() -> impl Iterator<Item = (&'static str, MakeFile)> {
    INTERLEAVED
        .iter()
        .map(|&(name, number, block, size, header)| {
            let make: MakeFile = Box::new(move || {
                let mut bytes = codes(rows() * cols() / block * size + rows() * header);
                // The headers of the rows that are stored together precede their blocks. Types with
                // headers interleave four rows or eight.
                let stored_rows = if name.ends_with("r8") { 8 } else { 4 };
                for stored in bytes.chunks_exact_mut(stored_rows * (header + cols() / block * size))
                {
                    for scale in stored[..stored_rows * header].chunks_exact_mut(header.max(1)) {
                        match header {
                            2 => scale.copy_from_slice(&0x1c3du16.to_le_bytes()),
                            _ => scale.copy_from_slice(&0.004f32.to_le_bytes()),
                        }
                    }
                }
                let shape = [cols() as u64, rows() as u64];
                let file = gguf::Gguf::default().tensor("w.weight", number, &shape, &bytes);
                file.file()
            });
            (name, make)
        })
}

pub fn ik_files() -> impl Iterator<Item = (&'static str, MakeFile)> {
    IK.iter().map(|&(name, number, block, size, header)| {
        let make: MakeFile = Box::new(move || {
            let scale = if header == 0 {
                size
            } else {
                header + cols() / block * size
            };
            let mut bytes = codes(rows() * cols() / block * size + rows() * header);
            for scaled in bytes.chunks_exact_mut(scale) {
                match header {
                    0 | 2 => scaled[..2].copy_from_slice(&0x1c3du16.to_le_bytes()),
                    _ => scaled[..4].copy_from_slice(&0.004f32.to_le_bytes()),
                }
            }
            let shape = [cols() as u64, rows() as u64];
            let file = gguf::Gguf::default().tensor("w.weight", number, &shape, &bytes);
            file.file()
        });
        (name, make)
    })
}

pub fn files() -> impl Iterator<Item = (&'static str, MakeFile)> {
    GGML.iter().map(|&(name, number, block, size, scales)| {
        let make: MakeFile = Box::new(move || {
            let mut bytes = codes(rows() * cols() / block * size);
            for block in bytes.chunks_exact_mut(size) {
                scales
                    .iter()
                    .for_each(|&at| block[at..at + 2].copy_from_slice(&0x1c3du16.to_le_bytes()));
            }
            let shape = [cols() as u64, rows() as u64];
            gguf::Gguf::default()
                .tensor("w.weight", number, &shape, &bytes)
                .file()
        });
        (name, make)
    })
}
