//! SDNQ's models, each with its config in the file's metadata.

use super::{FileOf, Part, bf16s, codes, cols, f32s, file_with, rows};

/// A model of codes of `dtype` in groups of `group`, with more keys in its config and more tensors.
fn model(dtype: &str, group: usize, more: &str, parts: Vec<Part>) -> Vec<u8> {
    let rotates = more.contains("hadamard");
    let config = format!(
        r#"{{"quant_method":"sdnq","sdnq_version":"0.2.8","weights_dtype":"{dtype}","use_hadamard":{rotates}{more}}}"#
    );
    let metadata = serde_json::json!({ "quantization_config": config });
    let header = serde_json::Map::from_iter([("__metadata__".to_owned(), metadata)]);
    let digits = dtype.trim_start_matches(|c: char| !c.is_ascii_digit());
    let (n, bits): (_, usize) = (rows() * cols(), digits.parse().unwrap_or(0));
    let (stored, shape) = match bits {
        16 if dtype.starts_with('f') => ("F16", vec![rows(), cols()]),
        16 => ("I16", vec![rows(), cols()]),
        12 => ("I16", vec![n / 4, 3]),
        10 | 14 => ("I16", vec![n / 8, bits / 2]),
        9.. => ("I16", vec![n / 16, bits]),
        8 => ("I8", vec![rows(), cols()]),
        4 => ("U8", vec![n / 2]),
        6 => ("U8", vec![n / 4, 3]),
        _ => ("U8", vec![n / 8, bits]),
    };
    let scales = vec![rows(), cols() / group, 1];
    let mut all = vec![Part("w.weight", stored, shape, codes(n * bits / 8))];
    if more.contains("codebook") {
        let entries = vec![rows(), cols() / group, 1 << bits];
        let count = entries.iter().product();
        all.push(Part("w.scale", "F32", entries, f32s(count)));
    } else {
        let shape = if group == cols() {
            vec![rows(), 1]
        } else {
            scales
        };
        let count = shape.iter().product();
        all.push(Part("w.scale", "F32", shape.clone(), f32s(count)));
        if dtype.starts_with('u') {
            all.push(Part("w.zero_point", "F32", shape, f32s(count)));
        }
    }
    all.extend(parts);
    file_with(&all, header)
}

fn factors() -> Vec<Part> {
    vec![
        Part("w.svd_up", "BF16", vec![rows(), 32], bf16s(rows() * 32)),
        Part("w.svd_down", "BF16", vec![32, cols()], bf16s(32 * cols())),
    ]
}

pub const FILES: &[FileOf] = &[
    ("sdnq-uint4", || model("uint4", 64, "", vec![])),
    ("sdnq-uint5", || model("uint5", 128, "", vec![])),
    ("sdnq-uint6", || model("uint6", 256, "", vec![])),
    ("sdnq-uint7", || model("uint7", 512, "", vec![])),
    ("sdnq-uint3", || model("uint3", 32, "", vec![])),
    ("sdnq-int8", || model("int8", cols(), "", vec![])),
    ("sdnq-int6", || model("int6", 256, "", vec![])),
    ("sdnq-int9", || model("int9", 1024, "", vec![])),
    ("sdnq-int12", || model("int12", 1024, "", vec![])),
    ("sdnq-int15", || model("int15", 1024, "", vec![])),
    ("sdnq-uint10", || model("uint10", 1024, "", vec![])),
    ("sdnq-int16", || model("int16", 1024, "", vec![])),
    ("sdnq-float16", || model("float16", 1024, "", vec![])),
    ("sdnq-codebook", || model("uint4", 512, r#","use_codebook":true"#, vec![])),
    ("sdnq-hadamard", || model("uint4", 64, r#","hadamard_group_size":256"#, vec![])),
    ("sdnq-svd", || model("uint4", 128, r#","use_svd":true"#, factors())),
];
