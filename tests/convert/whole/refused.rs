//! Directories that contradict themselves, and GGUF files that are no model of transformers: the
//! error names field or tensor and file, and nothing is written.

mod computed;
mod families;
mod graphs;
mod keys;

use std::path::Path;

use anamnesis::{ConvertOptions, ConvertTarget, GgufMetadataValue, ModelScope, TargetDtype, parse};
use serde_json::{Value, json};

use super::named;
use crate::canonical::canonical_gguf;
use crate::common::data;
use crate::common::gguf::Gguf;

/// Converts a copy of the model `name` that `edit` has changed, and returns the error.
fn refusal(name: &str, edit: impl FnOnce(&Path)) -> String {
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole").join(name), directory.path());
    edit(&from);
    let output = directory.path().join("out.gguf");
    let converted = parse(&from).and_then(|model| model.convert(&output, ConvertTarget::Gguf));
    assert!(!output.exists(), "{name}");
    converted.unwrap_err().to_string()
}

/// Sets fields of a JSON file; null removes one.
pub fn set(file: &'static str, fields: Value) -> impl FnOnce(&Path) {
    move |directory| {
        let path = directory.join(file);
        let mut all: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for (key, value) in fields.as_object().unwrap() {
            match value {
                Value::Null => all.as_object_mut().unwrap().remove(key),
                value => all
                    .as_object_mut()
                    .unwrap()
                    .insert(key.clone(), value.clone()),
            };
        }
        std::fs::write(path, all.to_string()).unwrap();
    }
}

/// Files of llama.cpp that are no models have keys of one.
#[test]
fn files_that_are_no_models() {
    let directory = crate::common::tempdir().unwrap();
    let adapter = data().join("adapters/plain.gguf");
    let projector = directory.path().join("projector.gguf");
    let kind = ("general.type".to_owned(), GgufMetadataValue::String("mmproj".to_owned()));
    let options = ConvertOptions::new(ConvertTarget::Gguf).with_gguf_metadata(vec![kind]);
    parse(&adapter)
        .unwrap()
        .convert(&projector, options)
        .unwrap();
    let vocabulary = directory.path().join("vocabulary.gguf");
    let architecture = Gguf::default().text("general.architecture", "llama");
    std::fs::write(&vocabulary, architecture.file()).unwrap();
    for (path, what) in [
        (&adapter, "general.type: the file is an adapter, which `amn merge`"),
        (&projector, "general.type: the file is the tower"),
        (&vocabulary, "--vocab-only"),
    ] {
        let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
        let result = parse(path).and_then(|model| model.plan(options).map(drop));
        let error = result.unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

/// null is no cap to transformers, and a missing field the default; llama.cpp's Gemma 2 has a cap
/// whatever the file says.
#[test]
fn caps_that_are_null() {
    for field in ["attn_logit_softcapping", "final_logit_softcapping"] {
        let edit = |directory: &Path| {
            let path = directory.join("config.json");
            let mut all: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            all[field] = Value::Null;
            std::fs::write(path, all.to_string()).unwrap();
        };
        let error = refusal("gemma2", edit);
        assert!(error.contains(field) && error.contains("null"), "{error}");
    }
}

#[test]
fn configs_that_contradict() {
    let rows = [
        ("llama", json!({"num_hidden_layers": null}), "num_hidden_layers"),
        ("llama", json!({"hidden_size": null}), "hidden_size"),
        ("llama", json!({"num_attention_heads": null}), "num_attention_heads"),
        ("llama", json!({"vocab_size": null}), "vocab_size"),
        ("llama", json!({"num_hidden_layers": 3}), "model.layers.2"),
        ("llama", json!({"num_hidden_layers": 1}), "model.layers.1"),
        ("llama", json!({"num_hidden_layers": "two"}), "num_hidden_layers"),
        ("llama", json!({"num_hidden_layers": 4_000_000_000u32}), "num_hidden_layers"),
        ("llama", json!({"num_attention_heads": 8}), "num_attention_heads"),
        ("llama", json!({"num_attention_heads": 0}), "num_attention_heads"),
        ("llama", json!({"num_key_value_heads": 4}), "num_key_value_heads"),
        ("llama", json!({"num_key_value_heads": 3}), "num_key_value_heads"),
        ("llama", json!({"hidden_size": 48}), "hidden_size"),
        ("llama", json!({"intermediate_size": 64}), "intermediate_size"),
        ("llama", json!({"vocab_size": 289}), "vocab_size"),
        ("llama", json!({"head_dim": 16}), "head_dim"),
        ("llama", json!({"rms_norm_eps": "small"}), "rms_norm_eps"),
        ("llama", json!({"rope_theta": [1]}), "rope_theta"),
        ("llama", json!({"hidden_act": "gelu"}), "hidden_act"),
        ("llama", json!({"rope_scaling": {"rope_type": "spiral"}}), "rope_type"),
        ("llama", json!({"rope_scaling": {"rope_type": "linear"}}), "factor"),
        (
            "qwen2",
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
            "original_max_position_embeddings",
        ),
        ("qwen2", json!({"use_sliding_window": true}), "use_sliding_window"),
        ("mixtral", json!({"num_local_experts": 5}), "experts"),
        ("mixtral", json!({"num_local_experts": 3}), "experts"),
        ("qwen3_moe", json!({"norm_topk_prob": null}), "norm_topk_prob"),
        ("qwen3_moe", json!({"moe_intermediate_size": 24}), "moe_intermediate_size"),
        ("gemma2", json!({"query_pre_attn_scalar": 32}), "query_pre_attn_scalar"),
        ("gemma3", json!({"attn_logit_softcapping": 30.0}), "attn_logit_softcapping"),
        ("gemma3", json!({"sliding_window_pattern": 5}), "sliding_window_pattern"),
        ("gemma2", json!({"layer_types": ["full_attention", "full_attention"]}), "layer_types"),
        ("gemma", json!({"rope_theta": 20_000.0}), "rope_theta"),
        ("gemma2", json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}), "rope_type"),
        ("qwen2", json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}), "rope_type"),
        ("llama", json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        ("llama_bias", json!({"tie_word_embeddings": false}), "lm_head"),
        ("gpt_oss", json!({"layer_types": ["full_attention", "sliding_attention"]}), "layer_types"),
    ];
    for (model, fields, named) in rows {
        let error = refusal(model, set("config.json", fields.clone()));
        assert!(error.contains(named) && !error.contains("panic"), "{fields}: {error}");
    }
}

#[test]
fn unknown_classes() {
    let fields = json!({"architectures": ["StarshipForCausalLM"]});
    let error = refusal("llama", set("config.json", fields));
    assert!(error.contains("StarshipForCausalLM") && error.contains("tensors-only"), "{error}");
}

/// Of a model without a class, the tensors are written as before.
#[test]
fn no_class() {
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole/llama"), directory.path());
    set("config.json", json!({"architectures": null}))(&from);
    let output = directory.path().join("out.gguf");
    parse(&from)
        .unwrap()
        .convert(&output, ConvertTarget::Gguf)
        .unwrap();
    assert!(
        parse(&output)
            .unwrap()
            .tensor("model.norm.weight")
            .is_some()
    );
    let options = ConvertOptions::new(ConvertTarget::Gguf).with_scope(ModelScope::Model);
    let error = parse(&from)
        .unwrap()
        .convert(&output, options)
        .unwrap_err()
        .to_string();
    assert!(error.contains("architectures"), "{error}");
}

/// Tensors that are missing, unknown or twice.
#[test]
fn tensors_that_contradict() {
    let rows = [
        ("model.layers.1.mlp.up_proj.weight", None, "model.layers.1.mlp.up_proj"),
        ("model.norm.weight", Some("model.norm.wait"), "model.norm.wait"),
        (
            "model.layers.1.mlp.up_proj.weight",
            Some("model.layers.01.mlp.up_proj.weight"),
            "model.layers.01",
        ),
        (
            "model.layers.1.mlp.up_proj.weight",
            Some("model.layers.7.mlp.up_proj.weight"),
            "mlp.up_proj",
        ),
        ("model.embed_tokens.weight", Some("embed.weight"), "embed"),
    ];
    for (name, renamed, expected) in rows {
        let error = refusal("llama", |directory| {
            let path = directory.join("model.safetensors");
            let bytes = std::fs::read(&path).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let all = file
                .tensors()
                .into_iter()
                .filter_map(|(found, view)| match renamed {
                    _ if found != name => Some((found, view)),
                    Some(other) => Some((other.to_owned(), view)),
                    None => None,
                });
            let all: Vec<_> = all.collect();
            let bytes = safetensors::serialize(all, None).unwrap();
            std::fs::write(path, bytes).unwrap();
        });
        assert!(error.contains(expected), "{name}: {error}");
    }
}

/// GGUF files that are no model of transformers.
#[test]
fn gguf_that_contradicts() {
    use anamnesis::GgufMetadataValue::{Bool, F32, String as Text, U32};

    let rows = [
        ("general.architecture", Text("starship".into()), "starship"),
        ("llama.block_count", U32(3), "blk.2"),
        ("llama.block_count", Text("two".into()), "llama.block_count"),
        ("llama.attention.head_count", U32(8), "head"),
        ("llama.attention.head_count_kv", U32(3), "num_key_value_heads"),
        ("llama.embedding_length", U32(16), "hidden_size"),
        ("llama.feed_forward_length", U32(16), "intermediate_size"),
        ("llama.attention.key_length", U32(4), "llama.attention.value_length"),
        ("llama.rope.freq_base", F32(3.0), "rope_freqs"),
        ("llama.rope.dimension_count", Bool(true), "llama.rope.dimension_count"),
        ("tokenizer.ggml.model", Text("morse".into()), "tokenizer.ggml.model"),
    ];
    for (key, value, named) in rows {
        let error = gguf_refusal("llama", (key, value));
        assert!(error.contains(named), "{key}: {error}");
    }
}

/// Sets a key of the GGUF file of the model `name`, and returns why it becomes no directory.
fn gguf_refusal(name: &str, (key, value): (&str, GgufMetadataValue)) -> String {
    let directory = crate::common::tempdir().unwrap();
    let [edited, output] = ["edited.gguf", "out"].map(|name| directory.path().join(name));
    let canonical = parse(canonical_gguf(data().join("whole").join(name))).unwrap();
    let options = ConvertOptions::new(ConvertTarget::Gguf);
    let options = options
        .with_gguf_metadata(vec![(key.to_owned(), value)])
        .with_scope(ModelScope::Tensors);
    canonical.convert(&edited, options).unwrap();
    let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
    let converted = parse(&edited).unwrap().convert(&output, options);
    assert!(!output.exists(), "{name} {key}");
    converted.unwrap_err().to_string()
}
