//! What both kinds of quantized linear layers share.

use serde_json::json;

use super::{Bnb4, Bnb4QuantType};
use crate::TargetDtype;
use crate::lethe::WeightInfo;

/// The reason why `weight` cannot be the weight of a quantized linear layer: the library replaces
/// `nn.Linear` only.
pub(super) fn linear_layer_objection(weight: &WeightInfo<'_>) -> Option<String> {
    if base(weight.name).is_none() {
        return Some("its name does not end in `weight`, as those of linear layers do".to_owned());
    }
    match weight.shape {
        [rows, cols] if rows * cols > 0 => None,
        [_, _] => Some("it has no values".to_owned()),
        shape => {
            Some(format!("it has {} dimensions, and weights of linear layers have 2", shape.len()))
        }
    }
}

/// `name` without its last part, `weight`, which is all of it in a model that is a single layer.
pub(super) fn base(name: &str) -> Option<&str> {
    crate::remember::seam::base_of(name, "weight")
}

/// The `quantization_config` that transformers writes for 4-bit weights, or without `four` for
/// INT8. It always has the keys of both, with the library's defaults for the one that is not used.
pub(super) fn config(four: Option<&Bnb4>, skipped: &[String]) -> serde_json::Value {
    let compute = four.map_or(TargetDtype::F32, |four| four.compute_dtype);
    json!({
        "_load_in_4bit": four.is_some(),
        "_load_in_8bit": four.is_none(),
        "bnb_4bit_compute_dtype": compute.torch_name(),
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": four.map_or(Bnb4QuantType::Fp4, |four| four.quant_type).name(),
        "bnb_4bit_use_double_quant": four.is_some_and(|four| four.double_quant),
        "llm_int8_enable_fp32_cpu_offload": false,
        "llm_int8_has_fp16_weight": false,
        "llm_int8_skip_modules": skipped,
        "llm_int8_threshold": 6.0,
        "load_in_4bit": four.is_some(),
        "load_in_8bit": four.is_none(),
        "quant_method": "bitsandbytes",
    })
}
