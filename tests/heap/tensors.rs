//! Tensors of each scheme that the test decodes.

use crate::common::{Random, Raw, f32s, raw};

/// Tensors of `scheme`: a weight of 6 Mi values, and a small one.
pub fn tensors(scheme: &str) -> Vec<Raw> {
    let mut random = Random(7);
    let k = 4096usize;
    [1536usize, 256]
        .into_iter()
        .enumerate()
        .flat_map(|(i, n)| {
            let name = |part: &str| format!("{i}.{part}");
            match scheme {
                "fp8" => vec![
                    raw(&name("weight"), "F8_E4M3", &[n, k], random.bytes(n * k)),
                    raw(
                        &name("weight_scale_inv"),
                        "F32",
                        &[n / 128, k / 128],
                        f32s(&random.floats(n * k / 16384)),
                    ),
                ],
                "gptq" => vec![
                    raw(&name("qweight"), "I32", &[k / 8, n], random.bytes(k * n / 2)),
                    raw(&name("qzeros"), "I32", &[k / 32, n / 8], random.bytes(k * n / 64)),
                    raw(&name("scales"), "F32", &[k / 32, n], f32s(&random.floats(k * n / 32))),
                    raw(
                        &name("g_idx"),
                        "I32",
                        &[k],
                        (0..k)
                            .flat_map(|i| ((i * 7 % (k / 32)) as u32).to_le_bytes())
                            .collect(),
                    ),
                ],
                "awq" => vec![
                    raw(&name("qweight"), "I32", &[k, n / 8], random.bytes(k * n / 2)),
                    raw(&name("qzeros"), "I32", &[k / 128, n / 8], random.bytes(k * n / 256)),
                    raw(&name("scales"), "F32", &[k / 128, n], f32s(&random.floats(k * n / 128))),
                ],
                "int8 words" => vec![
                    raw(&name("qweight"), "I8", &[k / 2, n], random.bytes(k * n / 2)),
                    raw(&name("qzeros"), "I8", &[k / 32, n / 2], random.bytes(k * n / 64)),
                    raw(&name("scales"), "F32", &[k / 32, n], f32s(&random.floats(k * n / 32))),
                ],
                "awq of 5 bits" => vec![
                    raw(&name("qweight"), "I32", &[k, n / 32 * 5], random.bytes(k * n / 8 * 5)),
                    raw(
                        &name("qzeros"),
                        "I32",
                        &[k / 128, n / 32 * 5],
                        random.bytes(k * n / 1024 * 5),
                    ),
                    raw(&name("scales"), "F32", &[k / 128, n], f32s(&random.floats(k * n / 128))),
                ],
                "gemv" => vec![
                    raw(&name("qweight"), "I32", &[n, k / 8], random.bytes(k * n / 2)),
                    raw(&name("qzeros"), "I32", &[n, k / 256], random.bytes(k * n / 64)),
                    raw(&name("scales"), "F32", &[n, k / 32], f32s(&random.floats(k * n / 32))),
                ],
                "gemv_fast" => vec![
                    raw(&name("qweight"), "I16", &[n / 4, k], random.bytes(k * n / 2)),
                    raw(
                        &name("scaled_zeros"),
                        "F32",
                        &[k / 32, n],
                        f32s(&random.floats(k * n / 32)),
                    ),
                    raw(&name("scales"), "F32", &[k / 32, n], f32s(&random.floats(k * n / 32))),
                ],
                "marlin" => vec![
                    raw(&name("B"), "I32", &[k / 16, n * 2], random.bytes(k * n / 2)),
                    raw(&name("s"), "F32", &[k / 32, n], f32s(&random.floats(k * n / 32))),
                ],
                "exl2" => {
                    let groups = k / 128;
                    let order = (0..k as u32).rev().flat_map(u32::to_le_bytes);
                    let words = (0..groups as i16).flat_map(|g| [4, g * 16]);
                    vec![
                        raw(&name("q_weight"), "I32", &[k / 8, n], random.bytes(k * n / 2)),
                        raw(&name("q_invperm"), "I32", &[k], order.collect()),
                        raw(
                            &name("q_scale"),
                            "I32",
                            &[groups, n / 8],
                            random.bytes(groups * n / 2),
                        ),
                        raw(&name("q_scale_max"), "F16", &[groups], vec![0x3c; groups * 2]),
                        raw(
                            &name("q_groups"),
                            "I16",
                            &[groups * 2],
                            words.flat_map(i16::to_le_bytes).collect(),
                        ),
                    ]
                }
                "exl3" => vec![
                    raw(&name("trellis"), "I16", &[k / 16, n / 16, 64], random.bytes(k * n / 2)),
                    raw(&name("suh"), "F16", &[k], vec![0x3c; k * 2]),
                    raw(&name("svh"), "F16", &[n], vec![0x3c; n * 2]),
                ],
                "nf4" => {
                    let state = format!(r#"{{"blocksize":64,"shape":[{n},{k}]}}"#).into_bytes();
                    vec![
                        raw(&name("weight"), "U8", &[n * k / 2, 1], random.bytes(n * k / 2)),
                        raw(
                            &name("weight.absmax"),
                            "F32",
                            &[n * k / 64],
                            f32s(&random.floats(n * k / 64)),
                        ),
                        raw(&name("weight.quant_map"), "F32", &[16], f32s(&random.floats(16))),
                        raw(
                            &name("weight.quant_state.bitsandbytes__nf4"),
                            "U8",
                            &[state.len()],
                            state,
                        ),
                    ]
                }
                "svd" => vec![
                    raw(&name("weight"), "U8", &[n, k / 2], random.bytes(n * k / 2)),
                    raw(&name("weight_scale"), "F8_E4M3", &[n, k / 32], random.bytes(n * k / 32)),
                    raw(&name("weight_scale_2"), "F32", &[], f32s(&[0.5])),
                    raw(&name("pre_quant_scale"), "F32", &[k], f32s(&random.floats(k))),
                    raw(&name("svdquant_lora_a"), "F32", &[33, k], f32s(&random.floats(33 * k))),
                    raw(&name("svdquant_lora_b"), "F32", &[n, 33], f32s(&random.floats(33 * n))),
                ],
                // ComfyUI's layout of NVFP4, as one row of tiles.
                "comfy" => vec![
                    raw(&name("weight"), "U8", &[32, n * k / 64], random.bytes(n * k / 2)),
                    raw(
                        &name("weight_scale"),
                        "F8_E4M3",
                        &[128, n * k / 512],
                        random.bytes(n * k / 4),
                    ),
                    raw(&name("weight_scale_2"), "F32", &[], f32s(&[0.5])),
                    raw(&name("comfy_quant"), "U8", &[18], br#"{"format":"nvfp4"}"#.to_vec()),
                ],
                "quark" => vec![
                    raw(&name("weight"), "I32", &[k, n / 8], random.bytes(k * n / 2)),
                    raw(
                        &name("weight_zero_point"),
                        "I32",
                        &[k / 16, n / 8],
                        random.bytes(k * n / 32),
                    ),
                    raw(
                        &name("weight_scale"),
                        "F32",
                        &[k / 16, n],
                        f32s(&random.floats(k * n / 16)),
                    ),
                ],
                // One value per row needs the most scales per value; beside it a plain tensor of as
                // many values, so that each has half of them.
                _ => {
                    let rows = n * k / 2;
                    vec![
                        raw(&name("weight"), "F8_E5M2", &[rows, 1], random.bytes(rows)),
                        raw(&name("weight_scale"), "F32", &[rows, 1], vec![0x3c; rows * 4]),
                        raw(&name("embedding"), "F32", &[n / 2, k], random.bytes(rows * 4)),
                    ]
                }
            }
        })
        .collect()
}

/// A GGUF file with a tensor of short rows and one of a single row, 4 Mi values each.
pub fn gguf() -> Vec<u8> {
    let (n, blocks) = (4u64 << 20, (4usize << 20) / 256);
    let bytes = Random(7).bytes(blocks * 144);
    let file = crate::common::gguf::Gguf::default().tensor("rows", 12, &[256, n / 256], &bytes);
    file.tensor("row", 12, &[n], &bytes).file()
}
