//! Models of nunchaku's, each with its config in the file's metadata.

use super::{Part, bf16s, codes, cols, file_with, rows};

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

pub fn files() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let n = rows() * cols();
    let layer = || {
        vec![
            Part(
                "mlp_fc1.qweight",
                "I8",
                vec![rows(), cols() / 2],
                codes(n / 2),
            ),
            Part("mlp_fc1.smooth", "BF16", vec![cols()], bf16s(cols())),
            Part(
                "mlp_fc1.lora_down",
                "BF16",
                vec![cols(), 32],
                bf16s(cols() * 32),
            ),
            Part(
                "mlp_fc1.lora_up",
                "BF16",
                vec![rows(), 32],
                bf16s(rows() * 32),
            ),
        ]
    };
    let scales = |name: &'static str, rows| {
        Part(
            name,
            "BF16",
            vec![cols() / 64, rows],
            bf16s(cols() / 64 * rows),
        )
    };
    let mut int4 = layer();
    int4.push(scales("mlp_fc1.wscales", rows()));
    let mut nvfp4 = layer();
    let micro = codes(n / 16).iter().map(|byte| byte & 0x77).collect();
    nvfp4.push(Part(
        "mlp_fc1.wscales",
        "F8_E4M3",
        vec![cols() / 16, rows()],
        micro,
    ));
    nvfp4.push(Part("mlp_fc1.wtscale", "BF16", vec![1], bf16s(1)));
    // As many rows as are six vectors.
    let rows = rows() / 12 * 12;
    let modulation = vec![
        Part(
            "norm1.linear.qweight",
            "I32",
            vec![rows / 4, cols() / 2],
            codes(rows * cols() / 2),
        ),
        scales("norm1.linear.wscales", rows),
        scales("norm1.linear.wzeros", rows),
        Part("norm1.linear.bias", "BF16", vec![rows], bf16s(rows)),
    ];
    [
        ("nunchaku-int4", model("int4", 64, &int4)),
        ("nunchaku-nvfp4", model("fp4_e2m1_all", 16, &nvfp4)),
        ("nunchaku-modulation", model("int4", 64, &modulation)),
    ]
    .into_iter()
}
