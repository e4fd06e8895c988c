//! What the later families refuse: settings that llama.cpp cannot be told, and sizes that
//! contradict each other.

use anamnesis::GgufMetadataArray;
use anamnesis::GgufMetadataValue::{self, Array, Bool, String as Text, U32};
use serde_json::{Value, json};

use super::{gguf_refusal, refusal, set};
use crate::common::effort;

/// Rows of (model, fields of its config, what the error names); null removes a field.
const CONFIGS: &str = include_str!("configs.jsonl");

#[test]
fn configs() {
    let mut wrong = Vec::new();
    for line in CONFIGS.lines().step_by(effort([5, 1, 1])) {
        let (model, fields, named): (String, Value, String) = serde_json::from_str(line).unwrap();
        let error = refusal(&model, set("config.json", fields));
        if !error.contains(&named) {
            wrong.push(format!("{line}: {error}"));
        }
    }
    assert!(CONFIGS.lines().count() > 300);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// llama.cpp does not take the embedding for the output of these, so that a tied model would not
/// load.
#[test]
fn outputs_that_are_missing() {
    for model in ["olmo2", "olmoe", "stablelm", "nemotron", "dots1"] {
        let error = refusal(model, |directory| {
            set("config.json", json!({"tie_word_embeddings": true}))(directory);
            let path = directory.join("model.safetensors");
            let bytes = std::fs::read(&path).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let mut all = file.tensors();
            all.retain(|(name, _)| name != "lm_head.weight");
            std::fs::write(path, safetensors::serialize(all, None).unwrap()).unwrap();
        });
        assert!(error.contains("lm_head"), "{model}: {error}");
    }
}

#[test]
fn metadata() {
    let flags = |flags: &[bool]| Array(Box::new(GgufMetadataArray::Bool(flags.to_vec())));
    let counts = |counts: &[i32]| Array(Box::new(GgufMetadataArray::I32(counts.to_vec())));
    let rows: Vec<(&str, &str, GgufMetadataValue, &str)> = vec![
        ("gemma4", "gemma4.attention.key_length", U32(8), "gemma4.attention.value_length"),
        ("gemma4", "gemma4.attention.shared_kv_layers", U32(1), "gemma4.feed_forward_length"),
        (
            "gemma4",
            "gemma4.feed_forward_length",
            counts(&[24, 24, 24, 24, 48]),
            "gemma4.feed_forward_length",
        ),
        ("gemma4", "gemma4.feed_forward_length", counts(&[24, 24]), "gemma4.feed_forward_length"),
        ("gemma4", "gemma4.attention.sliding_window_pattern", flags(&[true; 5]), "layer_types"),
        ("gemma4", "gemma4.embedding_length_per_layer_input", U32(0), "per_layer"),
        (
            "gemma4_moe",
            "gemma4.attention.head_count_kv",
            counts(&[2, 1, 1]),
            "gemma4.attention.head_count_kv",
        ),
        (
            "gemma4_moe",
            "gemma4.attention.head_count_kv",
            counts(&[2, 2]),
            "gemma4.attention.head_count_kv",
        ),
        (
            "gemma4_moe",
            "gemma4.attention.head_count_kv",
            counts(&[-2, -2, 1]),
            "num_key_value_heads",
        ),
        ("lfm2_moe", "lfm2moe.expert_gating_func", U32(1), "lfm2moe.expert_gating_func"),
        ("mamba", "mamba.attention.head_count", U32(4), "mamba.attention.head_count"),
        ("mamba2", "mamba2.ssm.group_count", U32(3), "n_groups"),
        ("mamba2", "mamba2.ssm.inner_size", U32(65), "mamba2.ssm.inner_size"),
        ("mamba2", "mamba2.ssm.inner_size", U32(128), "num_heads"),
        ("granite_hybrid", "granitehybrid.rope.scaling.finetuned", Bool(true), "BambaForCausalLM"),
        (
            "granite_hybrid",
            "granitehybrid.attention.head_count_kv",
            counts(&[0, 0, 0]),
            "num_key_value_heads",
        ),
        (
            "granite_hybrid",
            "granitehybrid.expert_shared_feed_forward_length",
            U32(40),
            "shared_intermediate_size",
        ),
        ("t5", "t5.decoder_block_count", U32(1), "num_decoder_layers"),
        ("t5", "t5.attention.relative_buckets_count", U32(16), "relative_attention_num_buckets"),
        ("jamba", "jamba.attention.head_count_kv", counts(&[2, 0, 2, 2]), "head_count_kv"),
        ("jamba", "jamba.attention.head_count_kv", counts(&[2, 0, 2, 0]), "blk.2.attn_q"),
        (
            "granite_attending",
            "granite.rope.scaling.finetuned",
            Bool(false),
            "granite.rope.scaling.finetuned",
        ),
        ("internlm2", "internlm2.attention.head_count_kv", U32(1), "attn_k"),
        ("nomic_bert", "nomic-bert.context_length", U32(1024), "nomic-bert.context_length"),
        ("llama4", "llama4.interleave_moe_layer_step", U32(1), "ffn"),
        ("llama4", "llama4.expert_feed_forward_length", U32(40), "intermediate_size"),
        (
            "nemotron_h_moe",
            "nemotron_h_moe.feed_forward_length",
            counts(&[0, 20, 20, 0]),
            "nemotron_h_moe.feed_forward_length",
        ),
        ("nemotron_h_moe", "nemotron_h_moe.expert_feed_forward_length", U32(24), "nemotron_h_moe."),
        (
            "nemotron_h",
            "nemotron_h.feed_forward_length",
            counts(&[0, 48, 48, 0]),
            "nemotron_h.feed_forward_length",
        ),
        (
            "nemotron_h",
            "nemotron_h.feed_forward_length",
            counts(&[0, 0, 0, 0]),
            "intermediate_size",
        ),
        (
            "nemotron_h",
            "nemotron_h.feed_forward_length",
            counts(&[0, 48]),
            "nemotron_h.feed_forward_length",
        ),
        ("deepseek_v3", "deepseek2.attention.head_count_kv", U32(4), "head_count_kv"),
        ("deepseek_v3", "deepseek2.attention.key_length_mla", U32(3), "key_length_mla"),
        ("deepseek_v3", "deepseek2.attention.key_length", U32(21), "key_length"),
        ("deepseek_v3", "deepseek2.attention.value_length", U32(15), "kv_lora_rank"),
        ("deepseek_v3", "deepseek2.attention.value_length_mla", U32(8), "v_head_dim"),
        ("deepseek_v3", "deepseek2.expert_weights_norm", U32(1), "expert_weights_norm"),
        ("deepseek_v3", "deepseek2.leading_dense_block_count", U32(2), "blk.1"),
        ("glm4_moe_mtp", "glm4moe.expert_gating_func", U32(1), "expert_gating_func"),
        ("glm4_moe_mtp", "glm4moe.nextn_predict_layers", U32(0), "blk.2"),
        ("glm4_moe_mtp", "glm4moe.nextn_predict_layers", U32(4), "block_count"),
        ("glm4_moe_mtp", "glm4moe.rope.dimension_count", U32(17), "rope.dimension_count"),
        ("qwen3_next", "qwen3next.ssm.inner_size", U32(33), "ssm.inner_size"),
        ("qwen3_next", "qwen3next.ssm.group_count", U32(3), "linear_num_key_heads"),
        ("qwen3_next", "qwen3next.attention.recurrent_layers", flags(&[true; 4]), "blk.3"),
        ("qwen3_next", "qwen3next.attention.recurrent_layers", Bool(true), "recurrent_layers"),
        ("lfm2", "lfm2.attention.head_count_kv", U32(2), "head_count_kv"),
        ("cohere", "command-r.rope.scaling.type", Text("yarn".into()), "rope.scaling.type"),
        ("olmoe", "olmoe.attention.head_count_kv", U32(2), "num_key_value_heads"),
        ("gpt2", "gpt2.feed_forward_length", U32(64), "feed_forward_length"),
        ("gpt2", "gpt2.context_length", U32(64), "n_positions"),
        ("falcon", "falcon.attention.head_count_kv", U32(2), "heads"),
        ("bloom", "bloom.attention.head_count_kv", U32(2), "n_head"),
        ("mpt", "mpt.attention.max_alibi_bias", GgufMetadataValue::F32(0.0), "max_alibi_bias"),
        ("mpt", "mpt.attention.max_alibi_bias", GgufMetadataValue::F32(8.5), "max_alibi_bias"),
        ("mpt", "mpt.attention.head_count_kv", U32(1), "attn_qkv"),
        ("mpt", "mpt.feed_forward_length", U32(64), "feed_forward_length"),
        ("falcon", "falcon.tensor_data_layout", Text("other".into()), "tensor_data_layout"),
        ("phi2", "phi2.attention.head_count_kv", U32(2), "num_attention_heads"),
        ("hunyuan", "hunyuan-dense.rope.freq_base", GgufMetadataValue::F32(12_345.0), "freq_base"),
        ("bert", "bert.attention.causal", Bool(true), "causal"),
        ("xlm_roberta", "tokenizer.ggml.padding_token_id", U32(200), "position"),
        ("qwen3_moe", "qwen3moe.expert_count", U32(0), "experts"),
        ("qwen3_moe", "qwen3moe.expert_used_count", U32(5), "num_experts_per_tok"),
    ];
    let mut wrong = Vec::new();
    for (model, key, value, named) in rows {
        let error = gguf_refusal(model, (key, value));
        if !error.contains(named) {
            wrong.push(format!("{model} {key}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Pooling of sentence-transformers that llama.cpp does not have, and files that are missing or
/// malformed.
#[test]
fn pooling() {
    const FILE: &str = "1_Pooling/config.json";
    let rows = [
        json!({"pooling_mode_mean_tokens": false}),
        json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}),
        json!({"pooling_mode_mean_tokens": null, "pooling_mode": "max"}),
    ];
    for fields in rows {
        let error = refusal("bert", set(FILE, fields.clone()));
        assert!(error.contains(FILE), "{fields}: {error}");
    }
    let error = refusal("bert", |directory| {
        std::fs::remove_file(directory.join(FILE)).unwrap();
    });
    assert!(error.contains(FILE), "{error}");
}

/// Texts that a tokenizer cuts otherwise than llama.cpp does.
#[test]
fn word_pieces() {
    let normalizer = json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": false, "strip_accents": null, "lowercase": true});
    for (field, value) in
        [("normalizer", normalizer), ("pre_tokenizer", json!({"type": "Whitespace"}))]
    {
        let error = refusal("bert", set("tokenizer.json", json!({ field: value })));
        assert!(error.contains(field), "{error}");
    }
}
