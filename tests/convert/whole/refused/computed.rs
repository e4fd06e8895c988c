//! What llama.cpp would compute otherwise than transformers: errors, notes, and keys that say it.

use std::path::Path;

use anamnesis::{ConvertTarget, GgufMetadataValue, parse};
use serde_json::{Value, json};

use super::{gguf_refusal, refusal, set};
use crate::common::data;
use crate::whole::named;

#[test]
fn fields() {
    let yarn = |name: &str, value: f64| {
        let mut all =
            json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128});
        all[name] = value.into();
        json!({"rope_scaling": all})
    };
    let untied = || json!({"tie_word_embeddings": false});
    let both = |base: f64| {
        json!({
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "rope_parameters": {"rope_type": "linear", "factor": base, "rope_theta": 10_000.0},
        })
    };
    let no_yarn = json!({"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_type": "linear", "factor": 2.0}});
    let long = |factor: f64| {
        let mut all = json!({"rope_type": "longrope", "attention_factor": factor});
        all["short_factor"] = [1.0; 6].into();
        all["long_factor"] = [2.0; 6].into();
        json!({"rope_scaling": all})
    };
    let grouped = |method: Value| json!({"n_group": 2, "topk_group": 1, "topk_method": method});
    let rows = [
        ("gemma", untied(), "tie_word_embeddings"),
        ("gemma2", untied(), "tie_word_embeddings"),
        ("gemma3", untied(), "tie_word_embeddings"),
        ("cohere", untied(), "tie_word_embeddings"),
        ("cohere2", untied(), "tie_word_embeddings"),
        ("gemma", json!({"use_bidirectional_attention": true}), "use_bidirectional_attention"),
        ("gemma2", json!({"use_bidirectional_attention": true}), "use_bidirectional_attention"),
        ("gemma3", json!({"use_bidirectional_attention": true}), "use_bidirectional_attention"),
        ("gemma4", json!({"use_bidirectional_attention": "all"}), "use_bidirectional_attention"),
        ("gemma", json!({"hidden_act": "relu"}), "hidden_act"),
        ("qwen2_yarn", yarn("attention_factor", 1.0), "attention_factor"),
        ("qwen2_yarn", yarn("attn_factor", 1.5), "attn_factor"),
        ("qwen2_yarn", yarn("beta_fast", 16.0), "beta_fast"),
        ("qwen2_yarn", yarn("beta_slow", 2.0), "beta_slow"),
        ("phi3_long", long(1.7), "attention_factor"),
        ("qwen2", both(4.0), "rope_scaling"),
        ("qwen2", no_yarn, "rope_scaling"),
        ("gpt_oss", json!({"rope_scaling": null}), "rope_scaling"),
        ("gpt_oss", json!({"swiglu_limit": 8.0}), "swiglu_limit"),
        ("gpt_oss", json!({"swiglu_alpha": 1.5}), "swiglu_alpha"),
        ("gpt_oss", json!({"attention_bias": false}), "attention_bias"),
        ("stablelm", json!({"use_parallel_residual": true}), "post_attention_layernorm"),
        ("deepseek_v2_lite", grouped("greedy".into()), "topk_method"),
        ("deepseek_v2_lite", grouped(Value::Null), "topk_method"),
    ];
    let mut wrong = Vec::new();
    for (model, fields, named) in rows {
        let error = refusal(model, set("config.json", fields.clone()));
        if !error.contains(named) {
            wrong.push(format!("{model} {fields}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Removes the tensors whose names `is_gone` picks.
fn without(is_gone: impl Fn(&str) -> bool) -> impl FnOnce(&Path) {
    move |directory| {
        let path = directory.join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut all = file.tensors();
        let count = all.len();
        all.retain(|(name, _)| !is_gone(name));
        assert!(all.len() < count);
        std::fs::write(path, safetensors::serialize(all, None).unwrap()).unwrap();
    }
}

/// Biases that are missing in one layer, or in all.
#[test]
fn biases() {
    type Edit = Box<dyn FnOnce(&Path)>;
    let rows: [(&str, Edit, &str); 7] = [
        ("qwen2", Box::new(without(|name| name.ends_with("_proj.bias"))), "layers.0.self_attn."),
        (
            "qwen2",
            Box::new(without(|name| name.ends_with("layers.1.self_attn.k_proj.bias"))),
            "layers.1.self_attn.k_proj.bias",
        ),
        (
            "llama_bias",
            Box::new(without(|name| name.ends_with("layers.1.self_attn.v_proj.bias"))),
            "layers.1.self_attn.v_proj.bias",
        ),
        (
            "llama_bias",
            Box::new(without(|name| name.ends_with("_proj.bias"))),
            "layers.0.self_attn.",
        ),
        ("gpt_oss", Box::new(without(|name| name.ends_with("mlp.router.bias"))), "mlp.router.bias"),
        (
            "starcoder2",
            Box::new(without(|name| name.ends_with(".bias") && !name.contains("norm"))),
            ".bias",
        ),
        ("phi2", Box::new(without(|name| name == "lm_head.weight")), "lm_head.weight"),
    ];
    for (model, edit, named) in rows {
        let error = refusal(model, edit);
        assert!(error.contains(named) && error.contains("there is none"), "{model}: {error}");
    }
}

/// StableLM: the flag and the norm that a parallel residual does not have, in both directions.
#[test]
fn parallel_residual() {
    const KEY: &str = "stablelm.use_parallel_residual";
    let is_norm = |name: &str| name.contains("post_attention_layernorm");
    let error = refusal("stablelm", without(is_norm));
    assert!(error.contains("post_attention_layernorm"), "{error}");
    let error = gguf_refusal("stablelm", (KEY, GgufMetadataValue::Bool(true)));
    assert!(error.contains("ffn_norm"), "{error}");
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole/stablelm"), directory.path());
    without(is_norm)(&from);
    set("config.json", json!({"use_parallel_residual": true}))(&from);
    let output = directory.path().join("out.gguf");
    parse(&from)
        .unwrap()
        .convert(&output, ConvertTarget::Gguf)
        .unwrap();
    let found = parse(&output).unwrap().gguf().unwrap().metadata().get(KEY);
    assert_eq!(found, Some(GgufMetadataValue::Bool(true)));
}

/// What a copy of the model `name` becomes that `edit` has changed: the notes, and the value of a
/// key.
fn converted(name: &str, fields: Value, key: &str) -> (Vec<String>, Option<GgufMetadataValue>) {
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole").join(name), directory.path());
    set("config.json", fields)(&from);
    let output = directory.path().join("out.gguf");
    let report = parse(&from)
        .unwrap()
        .convert(&output, ConvertTarget::Gguf)
        .unwrap();
    let value = parse(&output).unwrap().gguf().unwrap().metadata().get(key);
    (report.notes, value)
}

#[test]
fn notes() {
    let windows = |kinds: [&str; 3]| json!({"sliding_window": 64, "layer_types": kinds});
    let (full, sliding) = ("full_attention", "sliding_attention");
    let grouped = json!({"n_group": 2, "topk_group": 1, "topk_method": "group_limited_greedy"});
    let rows = [
        ("mistral", json!({"sliding_window": 64}), "sliding_window", true),
        ("mistral", json!({"sliding_window": 4096}), "sliding_window", false),
        ("mixtral", json!({"sliding_window": 64}), "sliding_window", true),
        ("starcoder2", json!({"sliding_window": 64}), "sliding_window", true),
        ("phi3", json!({"sliding_window": 64}), "sliding_window", true),
        (
            "qwen3_moe",
            json!({"sliding_window": 64, "use_sliding_window": true}),
            "sliding_window",
            true,
        ),
        (
            "qwen3_moe",
            json!({"sliding_window": 64, "use_sliding_window": null}),
            "sliding_window",
            false,
        ),
        ("dots1", windows([full, full, sliding]), "sliding_window", true),
        ("dots1", windows([full, full, full]), "sliding_window", false),
        (
            "dots1",
            json!({"sliding_window": 64, "layer_types": null, "max_window_layers": 1}),
            "sliding_window",
            true,
        ),
        ("dots1", json!({"sliding_window": 64, "layer_types": null}), "sliding_window", false),
        ("llama", json!({"sliding_window": 64}), "sliding_window", false),
        ("deepseek_v2_lite", grouped, "topk_method", true),
        ("deepseek_v2_lite", json!({}), "topk_method", false),
        ("deepseek_v2_lite", json!({"norm_topk_prob": true}), "norm_topk_prob", true),
        ("deepseek_v2_lite", json!({}), "norm_topk_prob", false),
        ("gemma", json!({"hidden_act": "gelu"}), "hidden_act", true),
        ("gemma", json!({}), "hidden_act", false),
        (
            "smollm3",
            json!({"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention"]}),
            "sliding_window",
            true,
        ),
        ("smollm3", json!({"sliding_window": 64}), "sliding_window", false),
        ("exaone4", json!({"max_position_embeddings": 8192}), "sliding_window", false),
        (
            "mistral",
            json!({"sliding_window": null, "max_position_embeddings": 8192}),
            "transformers has 4096 then",
            true,
        ),
        (
            "mixtral",
            json!({"sliding_window": null, "max_position_embeddings": 8192}),
            "sliding_window",
            false,
        ),
        (
            "dots1",
            json!({"sliding_window": null, "layer_types": null, "max_window_layers": 1, "max_position_embeddings": 8192}),
            "transformers has 4096 then",
            true,
        ),
        ("glm4_moe_lite", json!({"rms_norm_eps": 1e-5}), "norms of latent vectors", true),
        ("deepseek_v3", json!({}), "rms_norm_eps", false),
    ];
    for (model, fields, named, is_noted) in rows {
        let (notes, _) = converted(model, fields.clone(), "");
        let found = notes.iter().any(|note| note.contains(named));
        assert_eq!(found, is_noted, "{model} {fields}: {notes:?}");
    }
}

/// Numbers without a point, and two fields of rope that say the same.
#[test]
fn what_is_the_same() {
    let both = json!({
        "rope_scaling": {"type": "linear", "factor": 2},
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
    });
    let yarn = json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.1386294, "beta_fast": 32, "beta_slow": 1}});
    for (model, fields) in [
        ("gpt_oss", json!({"swiglu_limit": 7})),
        ("qwen2", both),
        ("qwen2_yarn", yarn),
        ("gemma", json!({"tie_word_embeddings": true, "use_bidirectional_attention": false})),
    ] {
        converted(model, fields, "");
    }
}

/// Keys of `conversion/base.py` of llama.cpp.
#[test]
fn causal() {
    for model in ["qwen3", "llama", "mistral"] {
        let architecture = if model == "qwen3" { "qwen3" } else { "llama" };
        let key = format!("{architecture}.attention.causal");
        let found = |flag: bool| converted(model, json!({"is_causal": flag}), &key).1;
        assert_eq!(found(false), Some(GgufMetadataValue::Bool(false)), "{model}");
        assert_eq!(found(true), None, "{model}");
    }
}

/// As `conversion/qwen.py` of llama.cpp has it, with the number of `LLAMA_POOLING_TYPE_LAST`.
#[test]
fn pooling_of_decoders() {
    for model in ["qwen2", "qwen3"] {
        let directory = crate::common::tempdir().unwrap();
        let from = named(&data().join("whole").join(model), directory.path());
        let modules = json!([
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ]);
        std::fs::write(from.join("modules.json"), modules.to_string()).unwrap();
        std::fs::create_dir(from.join("1_Pooling")).unwrap();
        let pooling = json!({"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false});
        std::fs::write(from.join("1_Pooling/config.json"), pooling.to_string()).unwrap();
        let output = directory.path().join("out.gguf");
        parse(&from)
            .unwrap()
            .convert(&output, ConvertTarget::Gguf)
            .unwrap();
        let key = format!("{model}.pooling_type");
        let found = parse(&output).unwrap().gguf().unwrap().metadata().get(&key);
        assert_eq!(found, Some(GgufMetadataValue::U32(3)));
    }
}
