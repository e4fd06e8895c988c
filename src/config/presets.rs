//! Presets of compressed-tensors, by whose names a config may call its groups: what they say of
//! weights.

use serde_json::{Map, Value, json};

/// Presets besides those of integers in groups of 128 (`W4A16`), which their names describe.
///
/// Source: compressed-tensors 0.20 `quantization/quant_scheme.py` (`PRESET_SCHEMES`).
fn named(name: &str) -> Option<Value> {
    let int8 = json!({"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": true});
    let float = |bits: u8, strategy: &str| json!({"type": "float", "num_bits": bits, "strategy": strategy, "symmetric": true});
    let mut value = match name {
        "W8A8" | "INT8" => int8,
        "W4AFP8" => return integers(4),
        "W4A16_ASYM" => {
            let mut value = integers(4)?;
            value["symmetric"] = json!(false);
            return Some(value);
        }
        "FP8" => float(8, "tensor"),
        "FP8_DYNAMIC" => float(8, "channel"),
        "FP8_BLOCK" => float(8, "block"),
        "NVFP4" | "NVFP4A16" => float(4, "tensor_group"),
        _ => match name.get(..5)? {
            "MXFP4" => float(4, "group"),
            "MXFP6" => float(6, "group"),
            "MXFP8" => float(8, "group"),
            _ => return None,
        },
    };
    match value["strategy"].as_str() {
        Some("block") => value["block_structure"] = json!([128, 128]),
        Some("tensor_group") => value["group_size"] = json!(16),
        Some("group") => value["group_size"] = json!(32),
        _ => {}
    }
    Some(value)
}

fn integers(bits: u8) -> Option<Value> {
    (2..=8).contains(&bits).then(
        || json!({"type": "int", "num_bits": bits, "strategy": "group", "group_size": 128, "symmetric": true}),
    )
}

/// What the preset `name` says of weights, as a config would spell it out.
pub(super) fn weights(name: &str) -> Option<Map<String, Value>> {
    let upper = name.to_uppercase();
    let by_name = || {
        let (bits, activations) = upper.strip_prefix('W')?.split_once('A')?;
        matches!(activations, "4" | "8" | "16").then(|| integers(bits.parse().ok()?))?
    };
    match named(&upper).or_else(by_name)? {
        Value::Object(map) => Some(map),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::weights;

    #[test]
    fn names() {
        let group = |name| weights(name).and_then(|map| map.get("group_size")?.as_u64());
        assert_eq!(group("W4A16"), Some(128));
        assert_eq!(group("w8a16"), Some(128));
        assert_eq!(group("NVFP4A16"), Some(16));
        assert_eq!(group("MXFP6A8"), Some(32));
        assert_eq!(weights("W8A8").unwrap()["strategy"], "channel");
        assert_eq!(weights("FP8_BLOCK").unwrap()["block_structure"][0], 128);
        assert_eq!(weights("W4A16_ASYM").unwrap()["symmetric"], false);
        assert!(weights("group_0").is_none());
        assert!(weights("W9A16").is_none());
    }
}
