//! Fields of the config that mlx-lm does not read, because its class has one value for them.

use serde_json::{Map, Value, json};

use super::configs::in_mlx;
use super::model;

/// YaRN by a factor of 4, whose attention transformers scales by 0.1 ln 4 + 1, with the fields
/// `others`.
fn yarn(others: Value) -> Value {
    let mut all =
        json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128 });
    let fields = all.as_object_mut().unwrap();
    fields.extend(serde_json::from_value::<Map<_, _>>(others).unwrap());
    fields.retain(|_, value| !value.is_null());
    json!({ "rope_scaling": all })
}

/// Factors of Phi-3, four times as long as the original text of 128 tokens.
fn long(others: Value) -> Value {
    let mut all =
        json!({ "type": "longrope", "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8] });
    let fields = all.as_object_mut().unwrap();
    fields.extend(serde_json::from_value::<Map<_, _>>(others).unwrap());
    json!({ "rope_scaling": all, "original_max_position_embeddings": 128 })
}

/// A nested field that says something else than the one around it: which of them counts depends on
/// the version of transformers.
#[test]
fn outer_and_nested_fields() {
    let mut found = model("gemma3_vision");
    found["config"]["text_config"]["tie_word_embeddings"] = json!(true);
    in_mlx(found.clone(), &json!({})).unwrap();
    let error = in_mlx(found, &json!({ "tie_word_embeddings": false })).unwrap_err();
    assert!(error.contains("`tie_word_embeddings`"), "{error}");
}

/// What says in other fields what mlx-lm computes is no reason to refuse a model.
#[test]
fn the_same_values() {
    let linear = json!({ "rope_scaling": { "rope_type": "linear", "factor": 2.0 } });
    for (name, fields) in [
        // Layers that mlx-lm leaves out.
        ("deepseek_v3", json!({ "num_nextn_predict_layers": 1 })),
        ("gemma", json!({ "tie_word_embeddings": true })),
        ("glm4", json!({ "tie_word_embeddings": false })),
        ("llama", yarn(json!({}))),
        // 0.1 ln 4 + 1
        ("llama", yarn(json!({ "attention_factor": 1.138_629_436_111_989 }))),
        ("llama", yarn(json!({ "beta_fast": 64.0, "beta_slow": 2.0 }))),
        ("llama", yarn(json!({ "mscale": 0.7, "mscale_all_dim": 0.5 }))),
        ("llama", yarn(json!({ "attention_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0 }))),
        // The root of 1 + ln 4 / ln 128
        ("phi3", long(json!({ "attention_factor": 1.133_893_419_027_681_7 }))),
        ("nemotron", linear.clone()),
        ("gemma3", linear.clone()),
        ("gemma3", json!({ "use_bidirectional_attention": null })),
        ("gemma3", json!({ "layer_types": ["full_attention"], "sliding_window_pattern": 1 })),
        ("gemma4", json!({ "use_bidirectional_attention": "vision" })),
        ("gpt_oss", json!({ "swiglu_limit": 7.0, "swiglu_alpha": 1.702 })),
        ("llama", json!({ "is_causal": true, "partial_rotary_factor": 1.0 })),
    ] {
        if let Err(error) = in_mlx(model(name), &fields) {
            panic!("{name} {fields}: {error}");
        }
    }
}

/// What mlx-lm computes otherwise with all models of a class is noted.
#[test]
fn what_all_models_of_a_class_lose() {
    for (name, fields, what) in [
        ("gemma", json!({}), Some("mlx-lm's gemma computes `gelu`")),
        ("gemma", json!({ "hidden_act": null }), Some("computes `gelu`")),
        ("gemma", json!({ "hidden_act": "gelu" }), None),
        ("gemma2", json!({ "layer_types": ["full_attention"] }), None),
        ("starcoder2", json!({}), Some("mlx-lm's starcoder2 computes `gelu`")),
        ("starcoder2", json!({ "hidden_act": "gelu" }), None),
        ("gpt_neox", json!({}), Some("mlx-lm's gpt_neox computes `gelu_fast`")),
        ("gpt_neox", json!({ "hidden_act": "gelu_fast" }), None),
        ("gpt_oss", json!({}), Some("rounds the bounds of YaRN")),
        ("phi3", long(json!({})), Some("`short_factor`")),
        ("phi3", json!({}), None),
        (
            "dots1",
            json!({ "sliding_window": 128, "layer_types": vec!["sliding_attention"; 2] }),
            Some("`sliding_window`"),
        ),
        (
            "dots1",
            json!({ "sliding_window": 128, "layer_types": null, "max_window_layers": 62 }),
            None,
        ),
        // transformers has a window where there is no field, and Mistral's class has it in all
        // layers.
        (
            "dots1",
            json!({ "sliding_window": null, "layer_types": null, "max_window_layers": 1, "max_position_embeddings": 8192 }),
            Some("transformers has 4096 then; mlx-lm's dots1"),
        ),
        (
            "mistral_f16",
            json!({ "sliding_window": null, "max_position_embeddings": 8192 }),
            Some("transformers has 4096 then; mlx-lm's mistral"),
        ),
        (
            "mistral_f16",
            json!({ "sliding_window": 128, "layer_types": ["full_attention"] }),
            Some("`sliding_window`"),
        ),
        (
            "qwen2",
            json!({ "use_sliding_window": true, "sliding_window": null, "layer_types": null, "max_position_embeddings": 8192 }),
            Some("transformers has 4096 then; mlx-lm's qwen2"),
        ),
        (
            "glm4_moe_lite",
            json!({ "rms_norm_eps": 1e-5 }),
            Some("has 1e-5 in the norms of latent vectors"),
        ),
        ("glm4_moe_lite", json!({ "rms_norm_eps": 1e-6 }), None),
        ("deepseek_v3", json!({ "rms_norm_eps": 1e-5 }), None),
    ] {
        let (_, notes) = in_mlx(model(name), &fields).unwrap();
        let of_mlx: Vec<_> = notes
            .iter()
            .filter(|note| note.contains("mlx-lm's"))
            .collect();
        assert_eq!(of_mlx.len(), usize::from(what.is_some()), "{name} {fields}: {notes:?}");
        assert!(of_mlx.iter().all(|note| note.contains(what.unwrap())), "{name}: {notes:?}");
    }
}

/// Defaults of transformers that are others in mlx-lm are written.
#[test]
fn other_defaults() {
    for (name, field, default) in
        [("gemma2", "query_pre_attn_scalar", json!(256)), ("gemma3", "sliding_window", json!(4096))]
    {
        let (config, _) = in_mlx(model(name), &json!({ field: null })).unwrap();
        assert_eq!(config[field], default, "{name} `{field}`");
    }
}
