//! What `config.json` says in MLX.

use serde_json::Value;

use super::{forget, json, model, tensors, write_hf};

/// A missing field is false to transformers and true to some classes of mlx-lm, so it is written.
#[test]
fn an_output_layer_without_a_field() {
    let directory = crate::common::tempdir().unwrap();
    let mut found = model("llama");
    let config = found["config"].as_object_mut().unwrap();
    config.remove("tie_word_embeddings");
    let [from, to] = ["hf", "to"].map(|name| directory.path().join(name));
    write_hf(&found, &from);
    forget(&from, &to, "mlx-4bit").unwrap();
    assert_eq!(json(&to.join("config.json"))["tie_word_embeddings"], false);
    assert!(tensors(&to).contains_key("lm_head.scales"));
}

/// What mlx-lm needs, or has another default for than transformers, is written.
#[test]
fn silent_configs() {
    for (name, fields) in [
        ("cohere", json!({ "rope_theta": 10_000.0, "num_key_value_heads": 2 })),
        ("cohere2", json!({ "rope_theta": 10_000.0, "head_dim": 16 })),
        ("ernie4_5", json!({ "tie_word_embeddings": true })),
        ("exaone4", json!({ "sliding_window_pattern": null })),
        ("glm4", json!({ "partial_rotary_factor": 0.5 })),
        ("lfm2", json!({ "block_dim": 64, "block_auto_adjust_ff_dim": true })),
        ("qwen2", json!({ "rope_theta": 10_000.0, "rms_norm_eps": 1e-6 })),
        ("qwen3", json!({ "rope_theta": 10_000.0 })),
        (
            "qwen3_moe",
            json!({ "rope_theta": 10_000.0, "decoder_sparse_step": 1, "mlp_only_layers": [] }),
        ),
        ("nemotron", json!({ "hidden_act": "relu2" })),
        (
            "qwen3_next",
            json!({ "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true }),
        ),
        (
            "glm4_moe",
            json!({ "rope_scaling": null, "n_shared_experts": 1, "partial_rotary_factor": 0.5 }),
        ),
        ("minimax_m2", json!({ "shared_intermediate_size": 0, "rotary_dim": 8 })),
        ("mamba", json!({ "conv_kernel": 4, "use_bias": false, "use_conv_bias": true })),
        ("nemotron_h", json!({ "use_bias": false, "use_conv_bias": true, "mlp_bias": false })),
        (
            "granite_hybrid",
            json!({
                "position_embedding_type": "nope", "time_step_limit": [0.0, { "__float__": "Infinity" }],
                "mamba_conv_bias": true, "mamba_proj_bias": false, "mamba_d_conv": 4,
            }),
        ),
        ("starcoder2", json!({ "rope_theta": 10_000.0 })),
        ("gpt2", json!({ "n_ctx": 128, "layer_norm_epsilon": 1e-5 })),
        ("gpt_bigcode", json!({ "n_inner": 256 })),
        ("step3p5", json!({ "partial_rotary_factors": [0.5, 1.0] })),
        ("exaone_moe", json!({ "is_moe_layer": [false, false, false, true] })),
        ("glm", json!({ "rope_theta": 10_000.0 })),
        ("phi", json!({ "partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5 })),
        ("internlm2", json!({ "bias": false })),
        ("hunyuan_dense", json!({ "attention_bias": false, "rope_theta": 10_000.0 })),
        (
            "nemotron_h_moe",
            json!({
                "norm_topk_prob": true, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "use_conv_bias": true,
            }),
        ),
    ] {
        let directory = crate::common::tempdir().unwrap();
        let [from, to] = ["hf", "to"].map(|name| directory.path().join(name));
        let mut found = model(name);
        let config = found["config"].as_object_mut().unwrap();
        for field in fields.as_object().unwrap().keys() {
            // Heads of keys have no default that these tensors fit.
            if field != "num_key_value_heads" {
                config.remove(field);
            }
        }
        write_hf(&found, &from);
        forget(&from, &to, "mlx-4bit").unwrap();
        let config = json(&to.join("config.json"));
        for (field, value) in fields.as_object().unwrap() {
            assert_eq!(config.get(field), Some(value), "{name} `{field}`");
        }
    }
}

/// Writes `found` with the fields `fields`, of which those that are null are not there, and returns
/// its config in MLX and the notes, or what is wrong: nothing is written then.
pub(super) fn in_mlx(mut found: Value, fields: &Value) -> Result<(Value, Vec<String>), String> {
    let directory = crate::common::tempdir().unwrap();
    let [from, to] = ["hf", "to"].map(|name| directory.path().join(name));
    let config = found["config"].as_object_mut().unwrap();
    for (field, value) in fields.as_object().unwrap() {
        match value {
            Value::Null => config.remove(field),
            value => config.insert(field.clone(), value.clone()),
        };
    }
    write_hf(&found, &from);
    let report = forget(&from, &to, "mlx-4bit").map_err(|error| {
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        error.to_string()
    })?;
    Ok((json(&to.join("config.json")), report.notes))
}

/// Classes that do not read `rope_parameters`, which transformers 5 writes, get what these say in
/// fields that they read.
#[test]
fn rope_parameters() {
    let linear = json!({ "rope_type": "linear", "factor": 4.0, "rope_theta": 50_000.0 });
    let scaling = json!({ "rope_type": "linear", "factor": 4.0, "type": "linear" });
    let part = json!({ "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5 });
    let whole = json!({ "rope_type": "default", "rope_theta": 500.0 });
    let gemma = json!({
        "sliding_attention": { "rope_type": "default", "rope_theta": 100.0 },
        "full_attention": { "rope_type": "linear", "factor": 4.0, "rope_theta": 50_000.0 },
    });
    for (name, parameters, wanted) in [
        ("llama", &linear, json!({ "rope_theta": 50_000.0, "rope_scaling": scaling })),
        ("starcoder2", &whole, json!({ "rope_theta": 500.0, "rope_scaling": null })),
        ("stablelm", &part, json!({ "rope_theta": 500.0, "partial_rotary_factor": 0.5 })),
        ("gpt_neox", &part, json!({ "rotary_emb_base": 500.0, "rotary_pct": 0.5 })),
        // mlx-lm reads these where they are.
        ("qwen3", &linear, json!({ "rope_theta": null, "rope_scaling": null })),
        (
            "gemma3",
            &gemma,
            json!({ "rope_theta": 50_000.0, "rope_local_base_freq": 100.0, "rope_scaling": scaling }),
        ),
    ] {
        let fields = json!({
            "rope_parameters": parameters, "rope_theta": null, "rope_scaling": null, "rope_local_base_freq": null,
            "rotary_emb_base": null, "rotary_pct": null, "partial_rotary_factor": null,
        });
        let (config, _) = in_mlx(model(name), &fields).unwrap();
        assert_eq!(config["rope_parameters"], *parameters, "{name}");
        for (field, value) in wanted.as_object().unwrap() {
            assert_eq!(config[field], *value, "{name} `{field}`");
        }
    }
    for (name, fields, what) in [
        ("starcoder2", json!({ "rope_parameters": linear, "rope_theta": null }), "has no scaling"),
        ("gemma2", json!({ "rope_scaling": scaling }), "`rope_scaling`"),
        (
            "llama",
            json!({ "rope_parameters": linear, "rope_theta": 10.0 }),
            "`rope_theta`: it is 10.0",
        ),
        ("deepseek_v2", json!({ "rope_scaling": null }), "YaRN"),
        ("deepseek_v2", json!({ "rope_scaling": linear }), "YaRN"),
    ] {
        let error = in_mlx(model(name), &fields).unwrap_err();
        assert!(error.contains(what), "{name}: {error}");
    }
}

/// A language model that is nested gets its fields where mlx-lm looks for them.
#[test]
fn nested_fields() {
    let mut found = model("qwen3_5");
    let text = found["config"]["text_config"].as_object_mut().unwrap();
    for field in ["rope_parameters", "tie_word_embeddings", "linear_key_head_dim"] {
        text.remove(field).unwrap();
    }
    text.insert("rope_theta".to_owned(), json!(5000.0));
    text.insert("linear_key_head_dim".to_owned(), json!(16));
    let (config, _) = in_mlx(found, &json!({})).unwrap();
    let text = &config["text_config"];
    assert_eq!(text["tie_word_embeddings"], true);
    let rope = json!({ "type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.25 });
    assert_eq!(text["rope_parameters"], rope);
    assert!(config.get("rope_parameters").is_none() && config["model_type"] == "qwen3_5");
}

/// mlx-lm sees the whole text in classes that have windows in transformers. The weights are the
/// same, so a note says it.
#[test]
fn ignored_windows() {
    let on = json!({ "sliding_window": 128, "use_sliding_window": true, "layer_types": null });
    let alone = json!({ "sliding_window": 128 });
    let off = json!({ "sliding_window": 128, "use_sliding_window": false });
    let long = json!({ "sliding_window": 512 });
    let full = json!({ "sliding_window": 128, "layer_types": ["full_attention"] });
    let sliding = json!({ "sliding_window": 128, "layer_types": ["sliding_attention"] });
    for (name, fields, is_noted) in [
        ("starcoder2", &on, true),
        ("starcoder2", &long, false),
        ("phi3", &on, true),
        ("mistral_f16", &on, true),
        ("mixtral", &on, true),
        ("gemma2", &sliding, true),
        ("gemma2", &full, false),
        ("qwen2", &on, true),
        ("qwen2", &off, false),
        ("qwen2", &alone, false),
        ("qwen3", &on, true),
        ("llama", &on, false),
        ("gpt_oss", &alone, false),
    ] {
        let (config, notes) = in_mlx(model(name), fields).unwrap();
        let notes: Vec<_> = notes
            .iter()
            .filter(|note| note.contains("`sliding_window`"))
            .collect();
        assert_eq!(notes.len(), usize::from(is_noted), "{name}: {notes:?}");
        assert!(notes.iter().all(|note| note.contains(" 128 tokens")), "{notes:?}");
        assert_eq!(config["sliding_window"], fields["sliding_window"], "{name}");
    }
}

/// Python writes a name for infinity that no other reader of JSON knows. mlx-lm knows the object
/// that transformers 5 writes.
#[test]
fn infinite_time_steps() {
    let directory = crate::common::tempdir().unwrap();
    let [from, to] = ["hf", "to"].map(|name| directory.path().join(name));
    let found = model("granite_hybrid");
    write_hf(&found, &from);
    let object = r#"{"__float__":"Infinity"}"#;
    let text = found["config"].to_string();
    assert!(text.contains(object));
    std::fs::write(from.join("config.json"), text.replace(object, "Infinity")).unwrap();
    forget(&from, &to, "mlx-4bit").unwrap();
    let limits = &json(&to.join("config.json"))["time_step_limit"];
    assert_eq!(*limits, json!([0.0, { "__float__": "Infinity" }]));
}
