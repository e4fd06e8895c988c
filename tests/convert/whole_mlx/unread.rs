//! Fields of the config that mlx-lm does not read, because its class has one value for them.

use serde_json::{Map, Value, json};

use super::configs::in_mlx;
use super::model;

/// YaRN by a factor of 4, whose attention transformers scales by 0.1 ln 4 + 1, with the fields `others`.
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

/// What mlx-lm would compute otherwise than transformers is refused.
#[test]
fn other_values_are_refused() {
    let linear = json!({ "rope_scaling": { "rope_type": "linear", "factor": 2.0 } });
    for (name, fields, what) in [
        (
            "gemma",
            json!({ "tie_word_embeddings": false }),
            "`tie_word_embeddings`",
        ),
        (
            "gemma2",
            json!({ "tie_word_embeddings": false }),
            "`tie_word_embeddings`",
        ),
        (
            "gemma3",
            json!({ "tie_word_embeddings": false }),
            "`tie_word_embeddings`",
        ),
        (
            "gemma3_vision",
            json!({ "tie_word_embeddings": false }),
            "`tie_word_embeddings`",
        ),
        (
            "cohere",
            json!({ "tie_word_embeddings": false }),
            "`tie_word_embeddings`",
        ),
        (
            "lfm2_moe",
            json!({ "tie_word_embeddings": false }),
            "`tie_word_embeddings`",
        ),
        (
            "glm4",
            json!({ "tie_word_embeddings": true }),
            "`tie_word_embeddings`",
        ),
        (
            "gpt_oss",
            json!({ "tie_word_embeddings": true }),
            "`tie_word_embeddings`",
        ),
        (
            "qwen2_moe",
            json!({ "tie_word_embeddings": true }),
            "`tie_word_embeddings`",
        ),
        (
            "deepseek_v3",
            json!({ "tie_word_embeddings": true }),
            "`tie_word_embeddings`",
        ),
        ("gemma", json!({ "hidden_act": "relu" }), "`hidden_act`"),
        (
            "gemma",
            json!({ "hidden_activation": "relu" }),
            "`hidden_activation`",
        ),
        (
            "gemma2",
            json!({ "hidden_activation": "relu" }),
            "`hidden_activation`",
        ),
        (
            "gemma3",
            json!({ "hidden_activation": "relu" }),
            "`hidden_activation`",
        ),
        (
            "gemma3",
            json!({ "hidden_activation": "gelu" }),
            "`hidden_activation`",
        ),
        (
            "gemma3",
            json!({ "final_logit_softcapping": 30.0 }),
            "`final_logit_softcapping`",
        ),
        (
            "gemma3",
            json!({ "attn_logit_softcapping": 50.0 }),
            "`attn_logit_softcapping`",
        ),
        (
            "starcoder2",
            json!({ "hidden_act": "relu" }),
            "`hidden_act`",
        ),
        (
            "nemotron_h",
            json!({ "mamba_hidden_act": "relu" }),
            "`mamba_hidden_act`",
        ),
        (
            "llama",
            yarn(json!({ "attention_factor": 2.0 })),
            "`attention_factor`: attention is scaled by 2,",
        ),
        (
            "qwen2",
            yarn(json!({ "attention_factor": 1.0 })),
            "`attention_factor`",
        ),
        (
            "qwen3",
            yarn(json!({ "attention_factor": 1.0 })),
            "`attention_factor`",
        ),
        // transformers reads both or none.
        ("llama", yarn(json!({ "mscale": 0.5 })), "`mscale`"),
        ("llama", yarn(json!({ "mscale_all_dim": 1.0 })), "`mscale`"),
        ("llama", yarn(json!({ "truncate": false })), "`truncate`"),
        (
            "llama",
            yarn(json!({ "original_max_position_embeddings": null })),
            "`original_max_position_embeddings`: it is missing",
        ),
        (
            "phi3",
            long(json!({ "attention_factor": 2.0 })),
            "`attention_factor`: it is 2,",
        ),
        (
            "phi3",
            long(json!({ "original_max_position_embeddings": 256 })),
            "`original_max_position_embeddings`: it is 256, and mlx-lm's phi3 has 128",
        ),
        (
            "gpt_oss",
            json!({ "rope_scaling": null }),
            "`rope_scaling`: it is missing",
        ),
        (
            "llama",
            yarn(json!({ "type": "linear" })),
            "`rope_scaling`: its `type` is `linear`",
        ),
        ("phi3", yarn(json!({})), "has no scaling `yarn`"),
        ("nemotron", yarn(json!({})), "has no scaling `yarn`"),
        ("llama", long(json!({})), "has no scaling `longrope`"),
        ("mixtral", linear.clone(), "`rope_scaling`"),
        ("qwen2_moe", linear.clone(), "`rope_scaling`"),
        ("qwen3_moe", yarn(json!({})), "`rope_scaling`"),
        (
            "llama",
            json!({ "partial_rotary_factor": 0.5 }),
            "`partial_rotary_factor`",
        ),
        (
            "cohere2",
            json!({ "partial_rotary_factor": 0.5 }),
            "`partial_rotary_factor`",
        ),
        ("llama", json!({ "is_causal": false }), "`is_causal`"),
        ("qwen2", json!({ "is_causal": false }), "`is_causal`"),
        (
            "gemma3",
            json!({ "use_bidirectional_attention": true }),
            "`use_bidirectional_attention`",
        ),
        (
            "gemma4",
            json!({ "use_bidirectional_attention": "all" }),
            "`use_bidirectional_attention`",
        ),
        (
            "gemma3",
            json!({ "layer_types": ["full_attention"] }),
            "`layer_types`",
        ),
        (
            "gemma3",
            json!({ "sliding_window_pattern": 1 }),
            "`layer_types`",
        ),
        (
            "smollm3",
            json!({ "use_sliding_window": true }),
            "`use_sliding_window`",
        ),
        (
            "qwen2_moe",
            json!({ "norm_topk_prob": true }),
            "`norm_topk_prob`",
        ),
        (
            "qwen2_moe",
            json!({ "decoder_sparse_step": 2 }),
            "`decoder_sparse_step`",
        ),
        ("qwen2_moe", json!({ "qkv_bias": false }), "`qkv_bias`"),
        ("gpt_oss", json!({ "swiglu_limit": 5.0 }), "`swiglu_limit`"),
        ("gpt_oss", json!({ "swiglu_alpha": 1.0 }), "`swiglu_alpha`"),
        // transformers does not read these, and mlx-lm does.
        (
            "llama",
            json!({ "rope_traditional": true }),
            "`rope_traditional`",
        ),
        (
            "glm4",
            json!({ "rope_traditional": false }),
            "`rope_traditional`",
        ),
        (
            "qwen3_5_moe",
            json!({ "norm_topk_prob": false }),
            "`norm_topk_prob`",
        ),
        ("mamba", json!({ "use_bcdt_rms": true }), "`use_bcdt_rms`"),
    ] {
        match in_mlx(model(name), &fields) {
            Ok(_) => panic!("{name} {fields}"),
            Err(error) => assert!(error.contains(what), "{name}: {what}: {error}"),
        }
    }
}

/// What says in other fields what mlx-lm computes is no reason to refuse a model.
#[test]
fn the_same_values() {
    let linear = json!({ "rope_scaling": { "rope_type": "linear", "factor": 2.0 } });
    for (name, fields) in [
        ("gemma", json!({ "tie_word_embeddings": true })),
        ("glm4", json!({ "tie_word_embeddings": false })),
        ("llama", yarn(json!({}))),
        // 0.1 ln 4 + 1
        (
            "llama",
            yarn(json!({ "attention_factor": 1.138_629_436_111_989 })),
        ),
        (
            "llama",
            yarn(json!({ "beta_fast": 64.0, "beta_slow": 2.0 })),
        ),
        (
            "llama",
            yarn(json!({ "mscale": 0.7, "mscale_all_dim": 0.5 })),
        ),
        (
            "llama",
            yarn(json!({ "attention_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0 })),
        ),
        // The root of 1 + ln 4 / ln 128
        (
            "phi3",
            long(json!({ "attention_factor": 1.133_893_419_027_681_7 })),
        ),
        ("nemotron", linear.clone()),
        ("gemma3", linear.clone()),
        ("gemma3", json!({ "use_bidirectional_attention": null })),
        (
            "gemma3",
            json!({ "layer_types": ["full_attention"], "sliding_window_pattern": 1 }),
        ),
        ("gemma4", json!({ "use_bidirectional_attention": "vision" })),
        (
            "gpt_oss",
            json!({ "swiglu_limit": 7.0, "swiglu_alpha": 1.702 }),
        ),
        (
            "llama",
            json!({ "is_causal": true, "partial_rotary_factor": 1.0 }),
        ),
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
        (
            "gemma",
            json!({ "hidden_act": null }),
            Some("computes `gelu`"),
        ),
        ("gemma", json!({ "hidden_act": "gelu" }), None),
        ("gemma2", json!({ "layer_types": ["full_attention"] }), None),
        (
            "starcoder2",
            json!({}),
            Some("mlx-lm's starcoder2 computes `gelu`"),
        ),
        ("starcoder2", json!({ "hidden_act": "gelu" }), None),
        (
            "gpt_neox",
            json!({}),
            Some("mlx-lm's gpt_neox computes `gelu_fast`"),
        ),
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
    ] {
        let (_, notes) = in_mlx(model(name), &fields).unwrap();
        let of_mlx: Vec<_> = notes
            .iter()
            .filter(|note| note.contains("mlx-lm's"))
            .collect();
        assert_eq!(
            of_mlx.len(),
            usize::from(what.is_some()),
            "{name} {fields}: {notes:?}"
        );
        assert!(
            of_mlx.iter().all(|note| note.contains(what.unwrap())),
            "{name}: {notes:?}"
        );
    }
}

/// Defaults of transformers that are others in mlx-lm are written.
#[test]
fn other_defaults() {
    for (name, field, default) in [
        ("gemma2", "query_pre_attn_scalar", json!(256)),
        ("gemma3", "sliding_window", json!(4096)),
    ] {
        let (config, _) = in_mlx(model(name), &json!({ field: null })).unwrap();
        assert_eq!(config[field], default, "{name} `{field}`");
    }
}
