//! Models that llama.cpp has no place for, or not enough of: what is refused is what it does not load.

use std::collections::BTreeMap;
use std::path::Path;

use anamnesis::{ConvertOptions, ConvertTarget, GgufMetadataValue, ModelScope, TargetDtype, parse};
use serde_json::{Value, json};

use super::{refusal, set};
use crate::canonical::canonical_gguf;
use crate::common::{data, effort};
use crate::whole::{Tensors, tensors, write};

/// Sets fields of the config and changes the tensors.
fn changed(fields: Value, change: impl FnOnce(&mut Tensors)) -> impl FnOnce(&Path) {
    move |directory| {
        set("config.json", fields)(directory);
        let mut all = tensors(&directory.join("model.safetensors"));
        change(&mut all);
        write(&all, directory);
    }
}

/// Adds a bias of `rows` zeros to each of `projections` in all layers.
fn add_biases(all: &mut Tensors, projections: &[&str]) {
    let names: Vec<_> = all.keys().cloned().collect();
    for name in names {
        let Some(base) = name.strip_suffix(".weight") else {
            continue;
        };
        if projections
            .iter()
            .any(|projection| base.ends_with(projection))
        {
            let rows = all[&name].1[0];
            let bias = ("BF16".to_owned(), vec![rows], vec![0; 2 * rows]);
            all.insert(format!("{base}.bias"), bias);
        }
    }
}

const ATTENTION: [&str; 4] = ["q_proj", "k_proj", "v_proj", "o_proj"];
const MLP: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Biases of attention and of the feed-forward layer.
#[test]
fn biases_without_a_place() {
    for (model, field, projections, named) in [
        ("qwen3", "attention_bias", &ATTENTION[..], "blk.0.attn_output.bias"),
        ("qwen3_moe", "attention_bias", &ATTENTION, "blk.0.attn_output.bias"),
        ("smollm3", "attention_bias", &ATTENTION, "blk.0.attn_output.bias"),
        ("smollm3", "mlp_bias", &MLP, "blk.0.ffn_down.bias"),
        ("arcee", "attention_bias", &ATTENTION, "blk.0.attn_output.bias"),
        ("arcee", "mlp_bias", &["up_proj", "down_proj"], "blk.0.ffn_down.bias"),
        ("olmo2", "attention_bias", &ATTENTION, "blk.0.attn_output.bias"),
        ("seed_oss", "attention_out_bias", &["o_proj"], "blk.0.attn_output.bias"),
    ] {
        let edit = changed(json!({field: true}), |all| add_biases(all, projections));
        let error = refusal(model, edit);
        let what = format!("has no place for the tensor `{named}`");
        assert!(error.contains(&what) || model == "seed_oss", "{model}: {error}");
        assert!(error.contains("--tensors-only") || model == "seed_oss", "{model}: {error}");
    }
}

/// Biases that llama.cpp cannot do without.
#[test]
fn biases_that_are_needed() {
    for (model, field, named) in [
        ("starcoder2", "use_bias", "blk.0.attn_output.bias"),
        ("gpt_neox", "attention_bias", "blk.0.attn_qkv.bias"),
    ] {
        let is_gone = |name: &String| {
            let of_norms = name.contains("norm");
            name.ends_with(".bias")
                && !of_norms
                && (model == "starcoder2" || name.contains("attention"))
        };
        let edit = changed(json!({field: false}), |all| {
            all.retain(|name, _| !is_gone(name));
        });
        let error = refusal(model, edit);
        assert!(error.contains(&format!("tensor `{named}` is missing")), "{model}: {error}");
    }
}

#[test]
fn outputs_that_are_needed() {
    for model in [
        "qwen2_moe",
        "olmo2",
        "olmoe",
        "minimax_m2",
        "apertus",
        "bailing_moe2",
        "gpt_oss",
        "dots1",
        "phi2",
    ] {
        let edit = changed(json!({"tie_word_embeddings": true}), |all| {
            all.retain(|name, _| !name.starts_with("lm_head"));
        });
        let error = refusal(model, edit);
        assert!(error.contains("output") || error.contains("lm_head"), "{model}: {error}");
    }
}

/// Heads that are together wider than the hidden state, in graphs that have no room for them.
#[test]
fn wide_heads() {
    for model in [
        "olmo2",
        "starcoder2",
        "cohere",
        "cohere2",
        "exaone4",
        "nemotron",
        "qwen2",
        "stablelm",
        "olmoe",
    ] {
        let edit = changed(json!({"head_dim": 16}), |all| {
            for (name, (dtype, shape, bytes)) in all.iter_mut() {
                let is_out = name.contains("o_proj");
                let of_heads = ["q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"];
                if !of_heads.iter().any(|part| name.contains(part)) || is_out && shape.len() == 1 {
                    continue;
                }
                let axis = if is_out { 1 } else { 0 };
                shape[axis] *= 2;
                let size = if dtype == "F32" { 4 } else { 2 };
                *bytes = vec![0; size * shape.iter().product::<usize>()];
            }
        });
        let error = refusal(model, edit);
        let is_named = ["has room for", "head_dim"]
            .iter()
            .any(|what| error.contains(what));
        assert!(is_named, "{model}: {error}");
    }
}

/// llama.cpp goes by the number of layers.
#[test]
fn what_follows_from_the_depth() {
    let norms = |all: &mut Tensors| {
        for layer in 0..2 {
            for (name, heads) in [("q_norm", 4), ("k_norm", 2)] {
                let norm = ("BF16".to_owned(), vec![heads, 8], vec![0; heads * 16]);
                all.insert(format!("model.layers.{layer}.self_attn.{name}.weight"), norm);
            }
        }
    };
    let error = refusal("cohere", changed(json!({"use_qk_norm": true}), norms));
    assert!(error.contains("no place for the tensor `blk.0.attn_k_norm.weight`"), "{error}");
    let error = refusal(
        "deepseek_v2_lite",
        changed(json!({"num_hidden_layers": 3}), |all| {
            let behind = |name: &str| {
                let number = name.strip_prefix("model.layers.");
                number
                    .and_then(|rest| rest.split('.').next()?.parse().ok())
                    .is_some_and(|n: u32| n >= 3)
            };
            all.retain(|name, _| !behind(name));
        }),
    );
    assert!(error.contains("deepseek2.attention.q_lora_rank"), "{error}");
}

#[test]
fn kinds_of_layers_that_nobody_knows() {
    for (model, layers) in [
        ("olmo3", 4),
        ("exaone4", 2),
        ("smollm3", 4),
        ("llama", 2),
        ("qwen3", 2),
        ("minimax_m2", 2),
    ] {
        for word in ["full_atention", "linear_attention", ""] {
            let mut kinds = vec!["full_attention"; layers];
            kinds[1] = word;
            let error = refusal(model, set("config.json", json!({"layer_types": kinds})));
            assert!(error.contains("`layer_types`"), "{model} {word}: {error}");
        }
    }
}

/// The width of shared experts, of which the tensors have another.
#[test]
fn shared_experts() {
    for (model, field) in [
        ("bailing_moe2", "moe_shared_expert_intermediate_size"),
        ("qwen2_moe", "shared_expert_intermediate_size"),
        ("nemotron_h_moe", "moe_shared_expert_intermediate_size"),
    ] {
        let error = refusal(model, set("config.json", json!({field: 64})));
        assert!(error.contains("64"), "{model}: {error}");
    }
}

/// Keys without which llama.cpp does not load a model: the class's defaults are not taken for them.
/// Without the width of shared experts it has no place for those of two classes, whose config has the
/// width by another field.
#[test]
fn keys_that_are_needed() {
    let recorded = std::fs::read(data().join("graphs.json")).unwrap();
    let recorded: BTreeMap<String, Vec<String>> = serde_json::from_slice(&recorded).unwrap();
    let directory = crate::common::tempdir().unwrap();
    let [edited, output] = ["edited.gguf", "out"].map(|name| directory.path().join(name));
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (number, (name, loaded)) in recorded.iter().enumerate() {
        let path = canonical_gguf(data().join("whole").join(name));
        let bytes = std::fs::read(&path).unwrap();
        let model = parse(&path).unwrap();
        let gguf = model.gguf().unwrap();
        let prefix = format!("{}.", gguf.architecture().unwrap());
        let is_needed = |key: &&str| {
            key.starts_with(&prefix) && !loaded.contains(&format!("without key {key}"))
        };
        // Another one of so many keys of each model.
        let step = effort([4, 1, 1]);
        let keys = gguf.metadata().keys().filter(is_needed);
        for key in keys.skip(number % step).step_by(step) {
            let at = bytes.windows(key.len()).position(|at| at == key.as_bytes());
            let mut bytes = bytes.clone();
            bytes[at.unwrap() + key.len() - 1] = b'_';
            std::fs::write(&edited, bytes).unwrap();
            let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
            count += 1;
            let converted = parse(&edited).and_then(|model| model.convert(&output, options));
            if converted.is_ok() {
                wrong.push(format!("{name} {key}"));
            }
            _ = std::fs::remove_dir_all(&output);
        }
    }
    assert!(count > effort([80, 400, 400]) && wrong.is_empty(), "{count} {wrong:#?}");
}

/// Numbers of the metadata that the tensors refute.
#[test]
fn keys_that_tensors_refute() {
    let directory = crate::common::tempdir().unwrap();
    let [edited, output] = ["edited.gguf", "out"].map(|name| directory.path().join(name));
    for (key, number) in [
        ("llama.vocab_size", 300),
        ("llama.block_count", 3),
        ("llama.block_count", 1),
        ("llama.block_count", 0),
    ] {
        let canonical = parse(canonical_gguf(data().join("whole/llama"))).unwrap();
        let value = GgufMetadataValue::U32(number);
        let options = ConvertOptions::new(ConvertTarget::Gguf);
        let options = options
            .with_gguf_metadata(vec![(key.to_owned(), value)])
            .with_scope(ModelScope::Tensors);
        canonical.convert(&edited, options).unwrap();
        let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
        let converted = parse(&edited).and_then(|model| model.convert(&output, options));
        assert!(converted.is_err(), "{key} {number}");
        std::fs::remove_file(&edited).unwrap();
    }
}
