//! GLM 4 of 2024, of whose config llama.cpp's converter reads fields of an older class.

use anamnesis::GgufMetadataValue;

use super::{json, metadata, named, to_gguf};
use crate::common::data;

/// llama.cpp's converter takes other fields of GLM, which this class does not have.
#[test]
fn glm_keeps_the_numbers_of_its_config() {
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole/glm"), directory.path());
    let mut config = json(&from.join("config.json"));
    config["max_position_embeddings"] = 131_072.into();
    config["rms_norm_eps"] = 1.5625e-7.into();
    config["rope_theta"] = 1e6.into();
    std::fs::write(from.join("config.json"), config.to_string()).unwrap();
    let found = metadata(&to_gguf(&from, directory.path()));
    for (key, expected) in [
        ("context_length", GgufMetadataValue::U32(131_072)),
        ("attention.layer_norm_rms_epsilon", GgufMetadataValue::F32(1.5625e-7)),
        ("rope.freq_base", GgufMetadataValue::F32(1e6)),
        ("rope.dimension_count", GgufMetadataValue::U32(4)),
    ] {
        assert_eq!(found[&format!("chatglm.{key}")], expected, "{key}");
    }
}
