//! Models of nunchaku's, each with its config in the file's metadata.

use super::{FileOf, Part, bf16s, codes, cols, file_with, rows};

/// A model of one layer.
fn model(dtype: &str, group: usize, parts: &[Part]) -> Vec<u8> {
    let config =
        format!(r#"{{"method":"svdquant","weight":{{"dtype":"{dtype}","group_size":{group}}}}}"#);
    let metadata = serde_json::json!({
        "quantization_config": config,
        "model_class": "NunchakuFluxTransformer2dModel",
    });
    let header = serde_json::Map::from_iter([("__metadata__".to_owned(), metadata)]);
    file_with(parts, header)
}

fn layer() -> Vec<Part> {
    let n = rows() * cols();
    vec![
        Part("mlp_fc1.qweight", "I8", vec![rows(), cols() / 2], codes(n / 2)),
        Part("mlp_fc1.smooth", "BF16", vec![cols()], bf16s(cols())),
        Part("mlp_fc1.lora_down", "BF16", vec![cols(), 32], bf16s(cols() * 32)),
        Part("mlp_fc1.lora_up", "BF16", vec![rows(), 32], bf16s(rows() * 32)),
    ]
}

fn scales(name: &'static str, rows: usize) -> Part {
    let groups = cols() / 64;
    Part(name, "BF16", vec![groups, rows], bf16s(groups * rows))
}

fn int4() -> Vec<u8> {
    let mut parts = layer();
    parts.push(scales("mlp_fc1.wscales", rows()));
    model("int4", 64, &parts)
}

fn nvfp4() -> Vec<u8> {
    let mut parts = layer();
    let micro = codes(rows() * cols() / 16);
    parts.push(Part(
        "mlp_fc1.wscales",
        "F8_E4M3",
        vec![cols() / 16, rows()],
        micro.iter().map(|byte| byte & 0x77).collect(),
    ));
    parts.push(Part("mlp_fc1.wtscale", "BF16", vec![1], bf16s(1)));
    model("fp4_e2m1_all", 16, &parts)
}

fn modulation() -> Vec<u8> {
    // As many rows as are six vectors.
    let rows = rows() / 12 * 12;
    let parts = [
        Part("norm1.linear.qweight", "I32", vec![rows / 4, cols() / 2], codes(rows * cols() / 2)),
        scales("norm1.linear.wscales", rows),
        scales("norm1.linear.wzeros", rows),
        Part("norm1.linear.bias", "BF16", vec![rows], bf16s(rows)),
    ];
    model("int4", 64, &parts)
}

pub const FILES: &[FileOf] =
    &[("nunchaku-int4", int4), ("nunchaku-nvfp4", nvfp4), ("nunchaku-modulation", modulation)];
