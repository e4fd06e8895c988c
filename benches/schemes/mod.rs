//! The models that are decoded: one tensor of `ROWS` × `COLS` in each scheme. The program says how many these are.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{COLS, ROWS};

mod dfloat11;
mod exl;
mod ggml;
#[path = "../../tests/common/gguf.rs"]
mod gguf;
mod nunchaku;
mod ollama;
mod sdnq;
mod transforms;
mod vectors;

struct Part(&'static str, &'static str, Vec<usize>, Vec<u8>);

fn codes(n: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..n).map(|_| next() & 0x77).collect()
}

fn f32s(n: usize) -> Vec<u8> {
    (0..n)
        .flat_map(|i| (0.001 + (i % 97) as f32 * 1e-4).to_le_bytes())
        .collect()
}

fn f16s(n: usize) -> Vec<u8> {
    (0..n)
        .flat_map(|i| half::f16::from_f32(0.001 + (i % 97) as f32 * 1e-4).to_le_bytes())
        .collect()
}

fn bf16s(n: usize) -> Vec<u8> {
    (0..n)
        .flat_map(|i| half::bf16::from_f32(0.001 + (i % 97) as f32 * 1e-4).to_le_bytes())
        .collect()
}

fn gptq(bits: usize, act_order: bool) -> Vec<Part> {
    let groups = COLS / 128;
    let group = |k: usize| if act_order { k * 31 % groups } else { k / 128 } as u32;
    vec![
        Part(
            "w.qweight",
            "I32",
            vec![COLS * bits / 32, ROWS],
            codes(COLS * ROWS * bits / 8),
        ),
        Part(
            "w.qzeros",
            "I32",
            vec![groups, ROWS * bits / 32],
            codes(groups * ROWS * bits / 8),
        ),
        Part("w.scales", "F16", vec![groups, ROWS], f16s(groups * ROWS)),
        Part(
            "w.g_idx",
            "I32",
            vec![COLS],
            (0..COLS).flat_map(|k| group(k).to_le_bytes()).collect(),
        ),
    ]
}

fn schemes() -> Vec<(&'static str, Vec<Part>)> {
    let n = ROWS * COLS;
    let fp8 = |dtype: &'static str, shape: Vec<usize>| {
        let scales = f32s(shape.iter().product());
        vec![
            Part("w.weight", dtype, vec![ROWS, COLS], codes(n)),
            Part("w.weight_scale", "F32", shape, scales),
        ]
    };
    let state = serde_json::json!({"quant_type": "nf4", "blocksize": 64, "shape": [ROWS, COLS]})
        .to_string()
        .into_bytes();
    let awq = vec![
        Part("w.qweight", "I32", vec![COLS, ROWS / 8], codes(n / 2)),
        Part(
            "w.qzeros",
            "I32",
            vec![COLS / 128, ROWS / 8],
            codes(n / 256),
        ),
        Part("w.scales", "F16", vec![COLS / 128, ROWS], f16s(n / 128)),
    ];
    // In each of eight rotations every column of a group is in one pair.
    let places =
        (0..8 * COLS).flat_map(|i| ((i % 128 * 5 + i / COLS * 3) as i16 % 128).to_le_bytes());
    let paroquant = vec![
        Part("w.qweight", "I32", vec![COLS, ROWS / 8], codes(n / 2)),
        Part(
            "w.qzeros",
            "I32",
            vec![COLS / 128, ROWS / 8],
            codes(n / 256),
        ),
        Part("w.scales", "F16", vec![COLS / 128, ROWS], f16s(n / 128)),
        Part("w.theta", "F16", vec![8, COLS / 2], f16s(4 * COLS)),
        Part("w.pairs", "I16", vec![8, COLS], places.collect()),
        Part("w.channel_scales", "F16", vec![1, COLS], f16s(COLS)),
    ];
    let nf4 = vec![
        Part("w.weight", "U8", vec![n / 2, 1], codes(n / 2)),
        Part("w.weight.absmax", "F32", vec![n / 64], f32s(n / 64)),
        Part("w.weight.quant_map", "F32", vec![16], f32s(16)),
        Part(
            "w.weight.quant_state.bitsandbytes__nf4",
            "U8",
            vec![state.len()],
            state,
        ),
    ];
    let nvfp4 = vec![
        Part("w.weight", "U8", vec![ROWS, COLS / 2], codes(n / 2)),
        Part(
            "w.weight_scale",
            "F8_E4M3",
            vec![ROWS, COLS / 16],
            codes(n / 16),
        ),
        Part("w.weight_scale_2", "F32", vec![], f32s(1)),
    ];
    let exponents = |n: usize| (0..n).map(|i| 117 + (i % 7) as u8).collect::<Vec<u8>>();
    let per_row = |name: &'static str, scale: &'static str, zero: Option<&'static str>| {
        let mut parts = vec![
            Part(name, "I8", vec![ROWS, COLS], codes(n)),
            Part(scale, "F32", vec![ROWS, 1], f32s(ROWS)),
        ];
        parts.extend(zero.map(|zero| Part(zero, "I8", vec![ROWS, 1], codes(ROWS))));
        parts
    };
    let w4a16 = |asymmetric: bool| {
        let dims = [ROWS as i64, COLS as i64].map(i64::to_le_bytes).concat();
        let mut parts = vec![
            Part("w.weight_packed", "I32", vec![ROWS, COLS / 8], codes(n / 2)),
            Part(
                "w.weight_scale",
                "BF16",
                vec![ROWS, COLS / 128],
                bf16s(n / 128),
            ),
            Part("w.weight_shape", "I64", vec![2], dims),
        ];
        let zeros = Part(
            "w.weight_zero_point",
            "I32",
            vec![ROWS / 8, COLS / 128],
            codes(n / 256),
        );
        parts.extend(asymmetric.then_some(zeros));
        parts
    };
    let mlx = |bits: usize| {
        vec![
            Part(
                "w.weight",
                "U32",
                vec![ROWS, COLS * bits / 32],
                codes(n * bits / 8),
            ),
            Part("w.scales", "BF16", vec![ROWS, COLS / 64], bf16s(n / 64)),
            Part("w.biases", "BF16", vec![ROWS, COLS / 64], bf16s(n / 64)),
        ]
    };
    let mlx_mxfp8 = vec![
        Part("w.weight", "U32", vec![ROWS, COLS / 4], codes(n)),
        Part("w.scales", "U8", vec![ROWS, COLS / 32], exponents(n / 32)),
    ];
    let mxfp8 = vec![
        Part("w.weight", "F8_E4M3", vec![ROWS, COLS], codes(n)),
        Part(
            "w.weight_scale",
            "U8",
            vec![ROWS, COLS / 32],
            exponents(n / 32),
        ),
    ];
    let mxfp4 = vec![
        Part("w.weight_packed", "U8", vec![ROWS, COLS / 2], codes(n / 2)),
        Part(
            "w.weight_scale",
            "U8",
            vec![ROWS, COLS / 32],
            exponents(n / 32),
        ),
    ];
    let gpt_oss = vec![
        Part(
            "w.down_proj_blocks",
            "U8",
            vec![1, ROWS, COLS / 32, 16],
            codes(n / 2),
        ),
        Part(
            "w.down_proj_scales",
            "U8",
            vec![1, ROWS, COLS / 32],
            exponents(n / 32),
        ),
    ];
    let hqq = |packing: &str, bits: usize| {
        let word = |x: usize| (x as i64).to_le_bytes().to_vec();
        vec![
            Part(
                "w.W_q",
                "U8",
                vec![n / 64 * bits / 8, 64],
                codes(n * bits / 8),
            ),
            Part("w.scale", "F16", vec![n / 64, 1], f16s(n / 64)),
            Part("w.zero", "F16", vec![n / 64, 1], f16s(n / 64)),
            Part(
                "w.packing",
                "U8",
                vec![packing.len()],
                packing.as_bytes().to_vec(),
            ),
            Part("w.axis", "I64", vec![], word(1)),
            Part("w.group_size", "I64", vec![], word(64)),
            Part("w.shape", "I64", vec![2], [word(ROWS), word(COLS)].concat()),
        ]
    };
    // One of ComfyUI's formats: a weight of so many codes a byte, its companions, and the description of the layer.
    let comfy = |text: &str, per_byte: usize, companions: Vec<Part>| {
        let mut parts = vec![
            Part(
                "w.weight",
                "I8",
                vec![ROWS, COLS / per_byte],
                codes(n / per_byte),
            ),
            Part(
                "w.comfy_quant",
                "U8",
                vec![text.len()],
                text.as_bytes().to_vec(),
            ),
        ];
        parts.extend(companions);
        parts
    };
    let of_rows = |name: &'static str| Part(name, "F32", vec![ROWS], f32s(ROWS));
    let of_groups = |name: &'static str| Part(name, "BF16", vec![COLS / 64, ROWS], bf16s(n / 64));
    let relative = vec![
        // Below the bytes that stand for NaN.
        Part(
            "w.weight_s_rel",
            "F8_E4M3",
            vec![ROWS, COLS / 16],
            codes(n / 16).iter().map(|byte| byte & 0x7b).collect(),
        ),
        of_rows("w.weight_s_channel"),
        Part("w.weight_codebook", "F32", vec![16], f32s(16)),
    ];
    let svdquant = vec![
        of_groups("w.weight_scale"),
        Part("w.smooth_factor", "BF16", vec![COLS], bf16s(COLS)),
        Part("w.proj_down", "BF16", vec![COLS, 32], bf16s(COLS * 32)),
        Part("w.proj_up", "BF16", vec![ROWS, 32], bf16s(ROWS * 32)),
    ];
    let number = |n: usize| (n as u32).to_le_bytes().to_vec();
    let f8q8 = vec![
        Part("uqff.version.major", "U32", vec![], number(1)),
        Part("uqff.version.minor", "U32", vec![], number(2)),
        Part("w.weight", "U8", vec![n / 32 * 33], codes(n / 32 * 33)),
        Part("w.weight.format", "U8", vec![], vec![5]),
        Part("w.weight.num_blocks", "U32", vec![], number(n / 32)),
        Part(
            "w.weight.shape",
            "U32",
            vec![2],
            [number(ROWS), number(COLS)].concat(),
        ),
    ];
    let awq_w4a16 = vec![of_groups("w.weight_scale"), of_groups("w.weight_zeros")];
    vec![
        (
            "comfy-int8-convrot",
            comfy(
                r#"{"format":"int8_tensorwise","convrot":true}"#,
                1,
                vec![of_rows("w.weight_scale")],
            ),
        ),
        (
            "comfy-w4a4",
            comfy(
                r#"{"format":"convrot_w4a4"}"#,
                2,
                vec![of_rows("w.weight_scale")],
            ),
        ),
        (
            "comfy-w4a8",
            comfy(r#"{"format":"asym_w4a8_int8"}"#, 2, relative),
        ),
        (
            "comfy-awq",
            comfy(r#"{"format":"awq_w4a16"}"#, 2, awq_w4a16),
        ),
        (
            "comfy-svdquant",
            comfy(r#"{"format":"svdquant_w4a4"}"#, 2, svdquant),
        ),
        ("paroquant", paroquant),
        ("fp-quant-mxfp4", fp_quant(32)),
        ("fp-quant-nvfp4", fp_quant(16)),
        (
            "qqq",
            vec![
                Part("w.B", "I32", vec![COLS / 16, ROWS * 2], codes(n / 2)),
                Part("w.s_channel", "F32", vec![1, ROWS], f32s(ROWS)),
                Part("w.s_group", "F16", vec![COLS / 128, ROWS], f16s(n / 128)),
            ],
        ),
        (
            "marlin",
            vec![
                Part("w.B", "I32", vec![COLS / 16, ROWS * 2], codes(n / 2)),
                Part("w.s", "F16", vec![COLS / 128, ROWS], f16s(n / 128)),
            ],
        ),
        (
            "modelslim-w4a8",
            vec![
                Part("w.weight", "I8", vec![ROWS / 2, COLS], codes(n / 2)),
                Part("w.weight_scale", "F32", vec![ROWS, 1], f32s(ROWS)),
                Part("w.weight_offset", "F32", vec![ROWS, 1], f32s(ROWS)),
            ],
        ),
        (
            "sglang-w4",
            vec![
                Part("w.weight", "I8", vec![ROWS, COLS / 2], codes(n / 2)),
                Part(
                    "w.weight_scale_inv",
                    "F32",
                    vec![ROWS, COLS / 128],
                    f32s(n / 128),
                ),
            ],
        ),
        ("exl2", exl::exl2()),
        ("exl3-3", exl::exl3(3, None)),
        ("exl3-4", exl::exl3(4, Some(("w.mcg", 0xcbac_1fed)))),
        ("exl3-6", exl::exl3(6, Some(("w.mul1", 0x83dc_d12d)))),
        (
            "sglang-int8",
            vec![
                Part("w.weight", "I8", vec![ROWS, COLS], codes(n)),
                Part(
                    "w.weight_scale_inv",
                    "F32",
                    vec![ROWS / 128, COLS / 128],
                    f32s(n >> 14),
                ),
            ],
        ),
        ("fp8-tensor", fp8("F8_E4M3", vec![])),
        ("fp8-block", fp8("F8_E4M3", vec![ROWS / 128, COLS / 128])),
        ("fp8-channel", fp8("F8_E4M3", vec![ROWS, 1])),
        ("fp8-e5m2", fp8("F8_E5M2", vec![])),
        ("fp8-fnuz", fp8("F8_E4M3FNUZ", vec![])),
        ("gptq2", gptq(2, false)),
        ("gptq3", gptq(3, false)),
        ("gptq4", gptq(4, false)),
        ("gptq8", gptq(8, false)),
        ("gptq4-act", gptq(4, true)),
        ("awq", awq),
        ("nf4", nf4),
        (
            "int8",
            vec![
                Part("w.weight", "I8", vec![ROWS, COLS], codes(n)),
                Part("w.SCB", "F32", vec![ROWS], f32s(ROWS)),
            ],
        ),
        ("nvfp4", nvfp4),
        ("ct-int8", per_row("w.weight", "w.weight_scale", None)),
        (
            "ct-int8-asym",
            per_row("w.weight", "w.weight_scale", Some("w.weight_zero_point")),
        ),
        (
            "quanto8",
            per_row("w.weight._data", "w.weight._scale", None),
        ),
        ("mxfp8", mxfp8),
        ("mlx-mxfp8", mlx_mxfp8),
        ("mxfp4", mxfp4),
        ("gpt-oss", gpt_oss),
        ("w4a16", w4a16(false)),
        ("w4a16-asym", w4a16(true)),
        ("mlx3", mlx(3)),
        ("mlx4", mlx(4)),
        ("mlx8", mlx(8)),
        ("hqq4", hqq("4bit_u8", 4)),
        ("hqq8", hqq("8bit_u8", 8)),
        ("marlin24", marlin24()),
        ("sinq4", sinq4()),
        ("uqff-f8q8", f8q8),
        ("dfloat11", dfloat11::dfloat11()),
    ]
}

/// Four bits in groups of 128, of each four of which the first two are stored.
fn marlin24() -> Vec<Part> {
    let n = ROWS * COLS;
    vec![
        Part(
            "w.weight_packed",
            "I32",
            vec![COLS / 32, ROWS * 2],
            codes(n / 4),
        ),
        Part(
            "w.meta",
            "I16",
            vec![COLS / 32, ROWS * 2],
            vec![0x44; n / 8],
        ),
        Part(
            "w.scale_packed",
            "F16",
            vec![COLS / 128, ROWS],
            f16s(n / 128),
        ),
    ]
}

/// Four bits in groups of 64, with numbers of eight bits.
fn sinq4() -> Vec<Part> {
    let groups = ROWS * COLS / 64;
    vec![
        Part("w.W_q", "U8", vec![groups / 2, 64], codes(ROWS * COLS / 2)),
        Part("w.meta.scale.x", "U8", vec![32, groups / 32], codes(groups)),
        Part(
            "w.meta.scale.s",
            "F16",
            vec![1, groups / 32],
            f16s(groups / 32),
        ),
        Part(
            "w.meta.scale.m",
            "F16",
            vec![1, groups / 32],
            f16s(groups / 32),
        ),
        Part("w.meta.zero.x", "U8", vec![groups, 1], codes(groups)),
        Part("w.meta.zero.s", "F16", vec![1, 1], f16s(1)),
        Part("w.meta.zero.m", "F16", vec![1, 1], f16s(1)),
        Part("w.meta.scale2", "F16", vec![1, COLS], f16s(COLS)),
    ]
}

fn sinq_meta() -> String {
    let meta = serde_json::json!({
        "nbits": 4, "group_size": 64, "shape": [ROWS, COLS], "axis": 1, "packing": "4bit_u8",
        "method": "sinq_quantAux", "compute_dtype": "torch.bfloat16", "view_as_float": false,
    });
    serde_json::json!({"w": {"meta": meta}}).to_string()
}

/// Rotations of 128 columns, and a scale for `block` codes.
fn fp_quant(block: usize) -> Vec<Part> {
    let n = ROWS * COLS;
    let sign = |i: usize| 1.0 - ((i / 128) & (i % 128)).count_ones() as f32 % 2.0 * 2.0;
    let matrix = (0..128 * 128).flat_map(|i| half::bf16::from_f32(0.0885 * sign(i)).to_le_bytes());
    vec![
        Part("w.qweight", "U8", vec![ROWS, COLS / 2], codes(n / 2)),
        Part(
            "w.scales",
            "U8",
            vec![ROWS, COLS / block],
            // 2^-7 as a power of two, 4 as E4M3: halves of such values are normal numbers.
            vec![if block == 32 { 0x78 } else { 0x48 }; n / block],
        ),
        Part("w.weight_global_scale", "F32", vec![1], f32s(1)),
        Part(
            "w.forward_hadamard_matrix",
            "BF16",
            vec![128, 128],
            matrix.collect(),
        ),
    ]
}

fn file(parts: &[Part]) -> Vec<u8> {
    file_with(parts, serde_json::Map::new())
}

/// A safetensors file whose header begins as `header`.
fn file_with(parts: &[Part], mut header: serde_json::Map<String, serde_json::Value>) -> Vec<u8> {
    let mut at = 0;
    for Part(name, dtype, shape, bytes) in parts {
        let record = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes.len()]});
        header.insert((*name).to_owned(), record);
        at += bytes.len();
    }
    let json = serde_json::to_vec(&header).unwrap();
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend(json);
    parts.iter().for_each(|part| out.extend(&part.3));
    out
}

/// The file of every model, by the name of its scheme.
pub fn files() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    schemes()
        .into_iter()
        .map(|(name, parts)| (name, file(&parts)))
        .chain(nunchaku::files())
        .chain(sdnq::files())
        .chain(transforms::files())
        .chain(ollama::files())
        .chain(vectors::files())
        .chain(ggml::files())
        .chain(ggml::ik_files())
        .chain(ggml::interleaved_files())
}

/// The name and the text of the file that has to lie beside the model of a scheme, if there is one.
pub fn config(name: &str) -> Option<(&'static str, String)> {
    Some(match name {
        "sinq4" => ("model.safetensors.index.json.meta.json", sinq_meta()),
        "dfloat11" => ("config.json", dfloat11::config()),
        ollama::NAME => (ollama::MANIFEST, ollama::manifest()),
        "sglang-w4" => (
            "config.json",
            r#"{"quantization_config": {"quant_method": "w4afp8"}}"#.to_owned(),
        ),
        "modelslim-w4a8" => {
            let kind = "W4A8_DYNAMIC";
            let parts = serde_json::json!({"w.weight": kind, "w.weight_scale": kind, "w.weight_offset": kind});
            ("quant_model_description.json", parts.to_string())
        }
        _ => {
            let bits = name.strip_prefix("mlx").filter(|bits| bits.len() == 1)?;
            let text = format!(r#"{{"quantization": {{"group_size": 64, "bits": {bits}}}}}"#);
            ("config.json", text)
        }
    })
}

/// Writes the file of the scheme `name` with what belongs beside it into a directory of its own in `scratch`. Returns the path to
/// parse.
pub fn write(scratch: &Path, name: &str, file: &[u8]) -> PathBuf {
    let dir = scratch.join(name);
    let write = |path: &str, bytes: &[u8]| {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    };
    let beside = config(name).map(|(path, text)| write(path, text.as_bytes()));
    match name {
        ollama::NAME => {
            write(&ollama::blob(), file);
            beside.unwrap()
        }
        _ => write("model.safetensors", file),
    }
}
