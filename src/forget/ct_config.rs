//! The config of compressed-tensors, as its `ModelCompressor` writes it (0.20.0).

use serde_json::{Value, json};

/// The config of a model all of whose weights are in `format`, but for `ignore`.
pub(super) fn config(
    format: &str,
    weights: &Value,
    activations: &Value,
    ignore: &[String],
) -> Value {
    json!({
        "config_groups": {
            "group_0": {
                "format": format,
                "input_activations": activations,
                "output_activations": null,
                "targets": ["Linear"],
                "weights": weights,
            },
        },
        "format": format,
        "global_compression_ratio": null,
        "ignore": ignore,
        "kv_cache_scheme": null,
        "moe_sparsity_config": null,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.20.0",
    })
}

/// What it says of weights or activations that are floats. `more` is what only some have.
pub(super) fn floats(
    bits: u32,
    strategy: &str,
    dynamic: bool,
    group: Option<usize>,
    more: Value,
) -> Value {
    let mut value = json!({
        "dynamic": dynamic,
        "group_size": group,
        "num_bits": bits,
        "strategy": strategy,
        "symmetric": true,
        "type": "float",
    });
    if let (Some(value), Value::Object(more)) = (value.as_object_mut(), more) {
        value.extend(more);
    }
    value
}
