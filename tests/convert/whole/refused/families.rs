//! What the later families refuse: settings that llama.cpp cannot be told, and sizes that contradict each other.

use anamnesis::GgufMetadataArray;
use anamnesis::GgufMetadataValue::{self, Array, Bool, String as Text, U32};
use serde_json::{Value, json};

use super::{gguf_refusal, refusal, set};

/// Rows of (model, fields of its config, what the error names).
fn rows() -> Vec<(&'static str, Value, &'static str)> {
    let scaling = |scale: f64| json!({"rope_type": "yarn", "factor": 4.0, "mscale": scale, "mscale_all_dim": 1.0, "original_max_position_embeddings": 128});
    let long = |n: usize| json!({"type": "longrope", "long_factor": vec![1.0; n], "short_factor": vec![1.0; n]});
    let linear = ["linear_attention"; 3];
    vec![
        // Older classes.
        (
            "gpt2",
            json!({"activation_function": "relu"}),
            "activation_function",
        ),
        ("gpt2", json!({"n_inner": 64}), "n_inner"),
        ("gpt2", json!({"n_ctx": 64}), "n_ctx"),
        (
            "gpt2",
            json!({"n_positions": 64, "n_ctx": 64}),
            "n_positions",
        ),
        (
            "gpt2",
            json!({"scale_attn_by_inverse_layer_idx": true}),
            "scale_attn_by_inverse_layer_idx",
        ),
        ("gpt2", json!({"n_head": 5}), "heads"),
        (
            "bloom",
            json!({"apply_residual_connection_post_layernorm": true}),
            "apply_residual_connection_post_layernorm",
        ),
        ("falcon", json!({"alibi": true}), "alibi"),
        ("falcon", json!({"parallel_attn": false}), "parallel_attn"),
        ("falcon", json!({"multi_query": false}), "query_key_value"),
        ("falcon", json!({"ffn_hidden_size": 96}), "ffn_hidden_size"),
        ("falcon", json!({"rope_theta": 50_000.0}), "rope_theta"),
        (
            "falcon",
            json!({"max_position_embeddings": 8192}),
            "max_position_embeddings",
        ),
        (
            "falcon_new",
            json!({"new_decoder_architecture": false}),
            "ln_attn",
        ),
        (
            "falcon_new",
            json!({"num_ln_in_parallel_attn": 1}),
            "num_ln_in_parallel_attn",
        ),
        (
            "falcon_new",
            json!({"num_kv_heads": 4}),
            "num_key_value_heads",
        ),
        ("phi2", json!({"qk_layernorm": true}), "qk_layernorm"),
        (
            "phi2",
            json!({"num_key_value_heads": 2}),
            "num_key_value_heads",
        ),
        (
            "phi2",
            json!({"intermediate_size": 96}),
            "intermediate_size",
        ),
        ("phi2", json!({"rope_theta": 1e6}), "rope_theta"),
        ("hunyuan", json!({"rope_theta": 20_000.0}), "rope_theta"),
        (
            "hunyuan",
            json!({"max_position_embeddings": 4096}),
            "max_position_embeddings",
        ),
        (
            "hunyuan",
            json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
            "alpha",
        ),
        ("hunyuan", json!({"head_dim": 2}), "head_dim"),
        (
            "ernie4_5_moe",
            json!({"intermediate_size": 96}),
            "intermediate_size",
        ),
        (
            "ernie4_5_moe",
            json!({"moe_layer_interval": 2}),
            "moe_layer_interval",
        ),
        (
            "ernie4_5_moe",
            json!({"moe_layer_end_index": 1}),
            "moe_layer_end_index",
        ),
        (
            "ernie4_5_moe",
            json!({"moe_layer_start_index": 2}),
            "layers.1",
        ),
        (
            "ernie4_5_moe",
            json!({"moe_num_shared_experts": 1}),
            "intermediate_size",
        ),
        ("ernie4_5_moe", json!({"moe_k": 5}), "num_experts_per_tok"),
        // Encoders.
        (
            "modern_bert",
            json!({"hidden_activation": "silu"}),
            "hidden_activation",
        ),
        (
            "modern_bert",
            json!({"layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"]}),
            "layer_types",
        ),
        (
            "modern_bert",
            json!({"layer_norm_eps": 1e-6}),
            "layer_norm_eps",
        ),
        (
            "modern_bert",
            json!({"classifier_pooling": "max"}),
            "classifier_pooling",
        ),
        ("modern_bert", json!({"num_hidden_layers": 3}), "layers.3"),
        ("bert", json!({"hidden_act": "relu"}), "hidden_act"),
        ("bert", json!({"is_decoder": true}), "is_decoder"),
        (
            "bert",
            json!({"position_embedding_type": "relative_key"}),
            "position_embedding_type",
        ),
        ("bert", json!({"type_vocab_size": 3}), "type_vocab_size"),
        ("bert", json!({"max_position_embeddings": 64}), "position"),
        ("xlm_roberta", json!({"pad_token_id": 127}), "position"),
        ("xlm_roberta_rank", json!({"id2label": null}), "id2label"),
        (
            "xlm_roberta_rank",
            json!({"id2label": {"0": "no", "1": "yes"}}),
            "id2label",
        ),
        (
            "xlm_roberta_rank",
            json!({"id2label": {"1": "yes"}}),
            "id2label",
        ),
        // Experts.
        (
            "mixtral",
            json!({"num_experts_per_tok": 5}),
            "num_experts_per_tok",
        ),
        (
            "mixtral",
            json!({"num_experts_per_tok": 0}),
            "num_experts_per_tok",
        ),
        ("deepseek_v3", json!({"n_group": 3}), "n_group"),
        ("deepseek_v3", json!({"topk_group": 3}), "topk_group"),
        (
            "qwen3_moe",
            json!({"decoder_sparse_step": 2}),
            "decoder_sparse_step",
        ),
        ("minimax_m2", json!({"rotary_dim": 17}), "rotary_dim"),
        (
            "qwen3_5",
            json!({"rope_parameters": {"mrope_section": [2, 2, 1], "partial_rotary_factor": 0.5}}),
            "mrope_section",
        ),
        // Latent keys and values.
        (
            "deepseek_v3",
            json!({"num_key_value_heads": 2}),
            "num_key_value_heads",
        ),
        (
            "deepseek_v3",
            json!({"rope_scaling": scaling(0.7)}),
            "mscale",
        ),
        (
            "deepseek_v3",
            json!({"rope_interleave": false}),
            "rope_interleave",
        ),
        (
            "deepseek_v3",
            json!({"attention_bias": true}),
            "attention_bias",
        ),
        (
            "deepseek_v3",
            json!({"scoring_func": "softmax"}),
            "scoring_func",
        ),
        (
            "deepseek_v3",
            json!({"first_k_dense_replace": 2}),
            "model.layers.1.mlp",
        ),
        (
            "deepseek_v3",
            json!({"first_k_dense_replace": 0}),
            "model.layers.0.mlp",
        ),
        (
            "deepseek_v3",
            json!({"first_k_dense_replace": 4}),
            "first_k_dense_replace",
        ),
        (
            "deepseek_v3",
            json!({"qk_nope_head_dim": 10}),
            "qk_nope_head_dim",
        ),
        ("deepseek_v3", json!({"v_head_dim": 11}), "v_head_dim"),
        ("deepseek_v3", json!({"kv_lora_rank": 12}), "kv_lora_rank"),
        (
            "deepseek_v3",
            json!({"q_lora_rank": null}),
            "self_attn.q_proj",
        ),
        ("deepseek_v2_lite", json!({"q_lora_rank": 24}), "q_a_proj"),
        (
            "deepseek_v3",
            json!({"n_shared_experts": 1}),
            "n_shared_experts",
        ),
        ("deepseek_v3", json!({"n_routed_experts": 5}), "experts"),
        (
            "deepseek_v3",
            json!({"norm_topk_prob": 1}),
            "norm_topk_prob",
        ),
        // GLM.
        (
            "glm4",
            json!({"partial_rotary_factor": 1.5}),
            "partial_rotary_factor",
        ),
        ("glm4_moe_mtp", json!({"use_qk_norm": false}), "k_norm"),
        (
            "glm4_moe_mtp",
            json!({"num_nextn_predict_layers": 2}),
            "model.layers.3",
        ),
        (
            "glm4_moe_mtp",
            json!({"num_nextn_predict_layers": 70_000}),
            "num_nextn_predict_layers",
        ),
        (
            "glm4_moe_mtp",
            json!({"num_nextn_predict_layers": null}),
            "model.layers.2",
        ),
        // Linear attention.
        ("qwen3_next", json!({"layer_types": linear}), "layer_types"),
        (
            "qwen3_next",
            json!({"layer_types": "linear"}),
            "layer_types",
        ),
        (
            "qwen3_next",
            json!({"layer_types": null, "full_attention_interval": 2}),
            "model.layers.1",
        ),
        (
            "qwen3_next",
            json!({"linear_num_key_heads": 3}),
            "linear_num_key_heads",
        ),
        (
            "qwen3_next",
            json!({"linear_num_key_heads": 0}),
            "linear_num_key_heads",
        ),
        (
            "qwen3_next",
            json!({"linear_conv_kernel_dim": 5}),
            "linear_conv_kernel_dim",
        ),
        (
            "qwen3_next",
            json!({"decoder_sparse_step": 2}),
            "decoder_sparse_step",
        ),
        (
            "qwen3_5",
            json!({"linear_num_value_heads": 3}),
            "linear_num_value_heads",
        ),
        (
            "qwen3_5",
            json!({"linear_value_head_dim": 0}),
            "linear_value_head_dim",
        ),
        (
            "qwen3_5",
            json!({"rope_parameters": {"mrope_section": [1, 2, 3, 4, 5]}}),
            "mrope_section",
        ),
        (
            "minimax_m2",
            json!({"scoring_func": "softmax"}),
            "scoring_func",
        ),
        ("minimax_m2", json!({"rotary_dim": null}), "rotary_dim"),
        // Short convolutions.
        (
            "lfm2",
            json!({"layer_types": ["conv", "conv", "conv"]}),
            "model.layers.1",
        ),
        ("lfm2", json!({"block_multiple_of": 0}), "block_multiple_of"),
        (
            "lfm2",
            json!({"block_multiple_of": 64}),
            "intermediate_size",
        ),
        ("lfm2", json!({"conv_bias": true}), "conv_bias"),
        // Sizes of single layers.
        (
            "gemma4",
            json!({"per_layer_config": {"2": {"head_dim": 16}}}),
            "per_layer_config",
        ),
        (
            "gemma4",
            json!({"per_layer_config": {"2": {"head_dim": 16}, "4": {"head_dim": 8}}}),
            "per_layer_config",
        ),
        (
            "gemma4",
            json!({"per_layer_config": {"2": {"head_dim": 16, "hidden_size": 8}, "4": {"head_dim": 16, "hidden_size": 8}}}),
            "hidden_size",
        ),
        (
            "gemma4",
            json!({"per_layer_config": null, "global_head_dim": 8}),
            "head_dim",
        ),
        (
            "gemma4",
            json!({"num_kv_shared_layers": 4}),
            "num_kv_shared_layers",
        ),
        (
            "gemma4",
            json!({"num_kv_shared_layers": 1}),
            "num_kv_shared_layers",
        ),
        (
            "gemma4",
            json!({"num_kv_shared_layers": 0}),
            "intermediate_size",
        ),
        (
            "gemma4",
            json!({"use_double_wide_mlp": false}),
            "intermediate_size",
        ),
        (
            "gemma4",
            json!({"use_bidirectional_attention": "all"}),
            "use_bidirectional_attention",
        ),
        (
            "gemma4",
            json!({"vocab_size_per_layer_input": 300}),
            "vocab_size_per_layer_input",
        ),
        (
            "gemma4",
            json!({"hidden_size_per_layer_input": 0}),
            "per_layer",
        ),
        ("gemma4", json!({"attention_k_eq_v": true}), "v_proj"),
        (
            "gemma4",
            json!({"layer_types": vec!["sliding_attention"; 5], "per_layer_config": null, "global_head_dim": 16}),
            "layer_types",
        ),
        (
            "gemma4",
            json!({"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}}),
            "rope_type",
        ),
        (
            "gemma4",
            json!({"rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "factor": 2.0}}}),
            "factor",
        ),
        (
            "gemma4",
            json!({"rope_parameters": {"full_attention": {"rope_type": "proportional"}, "sliding_attention": {"rope_type": "linear", "factor": 2.0}}}),
            "rope_parameters",
        ),
        (
            "gemma4_moe",
            json!({"attention_k_eq_v": false}),
            "num_global_key_value_heads",
        ),
        ("gemma4_moe", json!({"enable_moe_block": false}), "experts"),
        (
            "gemma4_moe",
            json!({"moe_intermediate_size": 11}),
            "moe_intermediate_size",
        ),
        (
            "gemma4_moe",
            json!({"top_k_experts": 5}),
            "num_experts_per_tok",
        ),
        (
            "lfm2_moe",
            json!({"routed_scaling_factor": 2.0}),
            "routed_scaling_factor",
        ),
        (
            "lfm2_moe",
            json!({"use_expert_bias": false}),
            "use_expert_bias",
        ),
        ("lfm2_moe", json!({"num_dense_layers": 2}), "feed_forward"),
        // State spaces.
        ("mamba", json!({"hidden_act": "gelu"}), "hidden_act"),
        ("mamba", json!({"expand": 3}), "expand"),
        ("mamba", json!({"use_conv_bias": false}), "use_conv_bias"),
        ("mamba", json!({"state_size": 9}), "state_size"),
        ("mamba", json!({"time_step_rank": "auto"}), "time_step_rank"),
        (
            "mamba",
            json!({"intermediate_size": 96}),
            "intermediate_size",
        ),
        ("mamba2", json!({"n_groups": 3}), "n_groups"),
        ("mamba2", json!({"expand": 3}), "expand"),
        (
            "mamba2",
            json!({"head_dim": 8, "num_heads": 8}),
            "num_heads",
        ),
        (
            "mamba2",
            json!({"time_step_limit": [0.0, 0.1]}),
            "time_step_limit",
        ),
        (
            "mamba2",
            json!({"time_step_limit": [0.001, "Infinity"]}),
            "time_step_limit",
        ),
        (
            "granite_hybrid",
            json!({"position_embedding_type": "rope"}),
            "position_embedding_type",
        ),
        (
            "granite_hybrid",
            json!({"layer_types": vec!["attention"; 3]}),
            "mamba",
        ),
        (
            "granite_hybrid",
            json!({"layer_types": vec!["mamba"; 3]}),
            "mamba.in_proj",
        ),
        (
            "granite_hybrid",
            json!({"intermediate_size": 40}),
            "intermediate_size",
        ),
        (
            "granite_hybrid",
            json!({"shared_intermediate_size": 40}),
            "shared_intermediate_size",
        ),
        ("granite_hybrid", json!({"mamba_d_head": 8}), "mamba_d_head"),
        ("granite_hybrid", json!({"mamba_expand": 3}), "mamba_expand"),
        (
            "granite_hybrid",
            json!({"num_local_experts": 4, "num_experts_per_tok": 2}),
            "block_sparse_moe",
        ),
        (
            "granite_hybrid_moe",
            json!({"num_local_experts": 0}),
            "experts",
        ),
        (
            "nemotron_h",
            json!({"hybrid_override_pattern": "M*EM"}),
            "hybrid_override_pattern",
        ),
        (
            "nemotron_h",
            json!({"hybrid_override_pattern": "M*M-"}),
            "backbone.layers",
        ),
        (
            "nemotron_h",
            json!({"hybrid_override_pattern": "M*-"}),
            "layer_types",
        ),
        (
            "nemotron_h",
            json!({"hybrid_override_pattern": null}),
            "layer_types",
        ),
        (
            "nemotron_h",
            json!({"num_experts_per_tok": 2}),
            "hybrid_override_pattern",
        ),
        (
            "nemotron_h",
            json!({"mlp_hidden_act": "silu"}),
            "mlp_hidden_act",
        ),
        ("nemotron_h", json!({"mamba_head_dim": 8}), "mamba_head_dim"),
        ("nemotron_h", json!({"head_dim": 8}), "head_dim"),
        ("nemotron_h", json!({"rms_norm_eps": 1e-6}), "rms_norm_eps"),
        (
            "nemotron_h_moe",
            json!({"hybrid_override_pattern": "M*-M"}),
            "hybrid_override_pattern",
        ),
        (
            "nemotron_h_moe",
            json!({"hybrid_override_pattern": "ME*M"}),
            "backbone.layers.2",
        ),
        (
            "nemotron_h_moe",
            json!({"n_routed_experts": 5}),
            "num_experts",
        ),
        (
            "nemotron_h_moe",
            json!({"num_experts_per_tok": null}),
            "hybrid_override_pattern",
        ),
        (
            "nemotron_h_moe",
            json!({"moe_latent_size": 16}),
            "moe_latent_size",
        ),
        (
            "nemotron_h_moe",
            json!({"moe_intermediate_size": 24}),
            "moe_intermediate_size",
        ),
        (
            "nemotron_h_moe",
            json!({"moe_shared_expert_intermediate_size": 20}),
            "moe_shared_expert_intermediate_size",
        ),
        (
            "granite_attending",
            json!({"position_embedding_type": null}),
            "position_embedding_type",
        ),
        (
            "granite_attending",
            json!({"position_embedding_type": "nope"}),
            "position_embedding_type",
        ),
        (
            "granite_attending",
            json!({"num_local_experts": 4, "num_experts_per_tok": 2}),
            "num_local_experts",
        ),
        (
            "granite_attending",
            json!({"layer_types": null, "position_embedding_type": null}),
            "layer_types",
        ),
        (
            "granite_attending",
            json!({"layer_types": ["attention", "linear_attention"], "position_embedding_type": null}),
            "layers.1.mamba",
        ),
        (
            "granite_attending",
            json!({"intermediate_size": 40}),
            "intermediate_size",
        ),
        // Queries, keys and values of groups of heads.
        ("internlm2", json!({"bias": true}), "bias"),
        ("internlm2", json!({"head_dim": 16}), "head_dim"),
        (
            "internlm2",
            json!({"num_key_value_heads": 4}),
            "attention.wqkv",
        ),
        (
            "internlm2",
            json!({"rope_scaling": {"type": "longrope", "factor": 2.0}}),
            "rope_type",
        ),
        // Encoders with rotary positions.
        ("nomic_bert", json!({"n_positions": 4096}), "n_positions"),
        (
            "nomic_bert",
            json!({"max_trained_positions": 512}),
            "max_trained_positions",
        ),
        ("nomic_bert", json!({"prenorm": true}), "prenorm"),
        (
            "nomic_bert",
            json!({"rotary_emb_fraction": 0.5}),
            "rotary_emb_fraction",
        ),
        (
            "nomic_bert",
            json!({"rotary_scaling_factor": 2.0}),
            "rotary_scaling_factor",
        ),
        (
            "nomic_bert",
            json!({"moe_every_n_layers": 2}),
            "moe_every_n_layers",
        ),
        ("nomic_bert", json!({"n_inner": 64}), "intermediate_size"),
        // Layers that come back every so often.
        ("jamba", json!({"attn_layer_period": 2}), "model.layers"),
        (
            "jamba",
            json!({"attn_layer_offset": 3}),
            "attn_layer_offset",
        ),
        (
            "jamba",
            json!({"attn_layer_period": 9, "attn_layer_offset": 8}),
            "attention",
        ),
        ("jamba", json!({"expert_layer_offset": 0}), "feed_forward"),
        (
            "jamba",
            json!({"expert_layer_period": 0}),
            "expert_layer_offset",
        ),
        (
            "jamba",
            json!({"layer_types": vec!["attention"; 4]}),
            "layer_types",
        ),
        (
            "jamba",
            json!({"num_experts": 1, "num_experts_per_tok": 1}),
            "experts",
        ),
        ("jamba", json!({"mamba_expand": 3}), "mamba_expand"),
        ("jamba", json!({"mamba_dt_rank": "auto"}), "mamba_dt_rank"),
        ("jamba", json!({"mamba_dt_rank": 7}), "mamba_dt_rank"),
        ("jamba", json!({"sliding_window": 64}), "sliding_window"),
        // Encoder and decoder.
        (
            "t5",
            json!({"feed_forward_proj": null}),
            "feed_forward_proj",
        ),
        (
            "t5",
            json!({"tie_word_embeddings": true}),
            "tie_word_embeddings",
        ),
        (
            "t5",
            json!({"tie_word_embeddings": null}),
            "tie_word_embeddings",
        ),
        (
            "t5",
            json!({"relative_attention_max_distance": 64}),
            "relative_attention_max_distance",
        ),
        ("t5", json!({"num_decoder_layers": 3}), "num_decoder_layers"),
        (
            "t5",
            json!({"num_layers": 3, "num_decoder_layers": 3}),
            "block.2",
        ),
        (
            "t5",
            json!({"num_decoder_layers": null}),
            "num_decoder_layers",
        ),
        ("t5", json!({"d_kv": 16}), "head_dim"),
        (
            "t5",
            json!({"relative_attention_num_buckets": 16}),
            "relative_attention_num_buckets",
        ),
        // Llama 4.
        (
            "llama4",
            json!({"interleave_moe_layer_step": 1, "moe_layers": null}),
            "feed_forward",
        ),
        (
            "llama4",
            json!({"interleave_moe_layer_step": 0}),
            "interleave_moe_layer_step",
        ),
        ("llama4", json!({"moe_layers": [0, 2]}), "moe_layers"),
        ("llama4", json!({"use_qk_norm": false}), "use_qk_norm"),
        (
            "llama4",
            json!({"attention_chunk_size": 4096}),
            "attention_chunk_size",
        ),
        (
            "llama4",
            json!({"attn_temperature_tuning": 0}),
            "attn_temperature_tuning",
        ),
        (
            "llama4",
            json!({"layer_types": vec!["full_attention"; 4]}),
            "layer_types",
        ),
        (
            "llama4",
            json!({"no_rope_layers": [1, 1, 1, 1]}),
            "no_rope_layers",
        ),
        ("llama4", json!({"num_local_experts": 3}), "num_experts"),
        (
            "llama4",
            json!({"intermediate_size_mlp": 48}),
            "intermediate_size_mlp",
        ),
        // Rotary positions.
        ("phi3_long", json!({"rope_scaling": long(5)}), "long_factor"),
        ("phi3_long", json!({"head_dim": 8}), "head_dim"),
        ("granite", json!({"head_dim": 16}), "head_dim"),
        (
            "smollm3",
            json!({"no_rope_layers": [1, 0, 1, 0]}),
            "no_rope_layers",
        ),
        (
            "smollm3",
            json!({"no_rope_layer_interval": 2}),
            "no_rope_layer_interval",
        ),
        ("stablelm", json!({"rope_theta": 50_000}), "rope_theta"),
        (
            "cohere2",
            json!({"layer_types": vec!["full_attention"; 4]}),
            "layer_types",
        ),
        ("exaone4", json!({"sliding_window": 128}), "sliding_window"),
        (
            "olmo3",
            json!({"layer_types": vec!["full_attention"; 3]}),
            "layer_types",
        ),
        (
            "gpt_neox",
            json!({"rotary_emb_base": 25_000}),
            "rotary_emb_base",
        ),
        (
            "gpt_neox",
            json!({"rotary_emb_base": 25_000, "rope_theta": 25_000}),
            "rope_theta",
        ),
        ("gpt_neox", json!({"rotary_pct": 0.75}), "rotary_pct"),
        // What llama.cpp takes for granted.
        (
            "olmoe",
            json!({"num_key_value_heads": 2}),
            "num_key_value_heads",
        ),
        ("olmoe", json!({"rms_norm_eps": 1e-6}), "rms_norm_eps"),
        (
            "dots1",
            json!({"num_key_value_heads": 2}),
            "num_key_value_heads",
        ),
        ("stablelm", json!({"qk_layernorm": true}), "qk_layernorm"),
        ("starcoder2", json!({"hidden_act": "silu"}), "hidden_act"),
        ("granitemoe", json!({"num_local_experts": 3}), "num_experts"),
    ]
}

#[test]
fn configs() {
    let mut wrong = Vec::new();
    for (model, fields, named) in rows() {
        let error = refusal(model, set("config.json", fields.clone()));
        if !error.contains(named) {
            wrong.push(format!("{model} {fields}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// llama.cpp does not take the embedding for the output of these, so that a tied model would not load.
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
        (
            "gemma4",
            "gemma4.attention.key_length",
            U32(8),
            "gemma4.attention.value_length",
        ),
        (
            "gemma4",
            "gemma4.attention.shared_kv_layers",
            U32(1),
            "gemma4.feed_forward_length",
        ),
        (
            "gemma4",
            "gemma4.feed_forward_length",
            counts(&[24, 24, 24, 24, 48]),
            "gemma4.feed_forward_length",
        ),
        (
            "gemma4",
            "gemma4.feed_forward_length",
            counts(&[24, 24]),
            "gemma4.feed_forward_length",
        ),
        (
            "gemma4",
            "gemma4.attention.sliding_window_pattern",
            flags(&[true; 5]),
            "layer_types",
        ),
        (
            "gemma4",
            "gemma4.embedding_length_per_layer_input",
            U32(0),
            "per_layer",
        ),
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
        (
            "lfm2_moe",
            "lfm2moe.expert_gating_func",
            U32(1),
            "lfm2moe.expert_gating_func",
        ),
        (
            "mamba",
            "mamba.ssm.dt_b_c_rms",
            Bool(true),
            "mamba.ssm.dt_b_c_rms",
        ),
        (
            "mamba",
            "mamba.attention.head_count",
            U32(4),
            "mamba.attention.head_count",
        ),
        ("mamba2", "mamba2.ssm.group_count", U32(3), "n_groups"),
        (
            "mamba2",
            "mamba2.ssm.inner_size",
            U32(65),
            "mamba2.ssm.inner_size",
        ),
        ("mamba2", "mamba2.ssm.inner_size", U32(128), "num_heads"),
        (
            "granite_hybrid",
            "granitehybrid.rope.scaling.finetuned",
            Bool(true),
            "granitehybrid.rope.scaling.finetuned",
        ),
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
        (
            "t5",
            "t5.attention.relative_buckets_count",
            U32(16),
            "relative_attention_num_buckets",
        ),
        (
            "jamba",
            "jamba.attention.head_count_kv",
            counts(&[2, 0, 2, 2]),
            "head_count_kv",
        ),
        (
            "jamba",
            "jamba.attention.head_count_kv",
            counts(&[2, 0, 2, 0]),
            "blk.2.attn_q",
        ),
        (
            "granite_attending",
            "granite.rope.scaling.finetuned",
            Bool(false),
            "granite.rope.scaling.finetuned",
        ),
        (
            "internlm2",
            "internlm2.attention.head_count_kv",
            U32(1),
            "attn_k",
        ),
        (
            "nomic_bert",
            "nomic-bert.context_length",
            U32(1024),
            "nomic-bert.context_length",
        ),
        ("llama4", "llama4.interleave_moe_layer_step", U32(1), "ffn"),
        (
            "llama4",
            "llama4.expert_feed_forward_length",
            U32(40),
            "intermediate_size",
        ),
        (
            "nemotron_h_moe",
            "nemotron_h_moe.feed_forward_length",
            counts(&[0, 20, 20, 0]),
            "nemotron_h_moe.feed_forward_length",
        ),
        (
            "nemotron_h_moe",
            "nemotron_h_moe.expert_feed_forward_length",
            U32(24),
            "nemotron_h_moe.",
        ),
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
        (
            "deepseek_v3",
            "deepseek2.attention.head_count_kv",
            U32(4),
            "head_count_kv",
        ),
        (
            "deepseek_v3",
            "deepseek2.attention.key_length_mla",
            U32(3),
            "key_length_mla",
        ),
        (
            "deepseek_v3",
            "deepseek2.attention.key_length",
            U32(21),
            "key_length",
        ),
        (
            "deepseek_v3",
            "deepseek2.attention.value_length",
            U32(15),
            "kv_lora_rank",
        ),
        (
            "deepseek_v3",
            "deepseek2.attention.value_length_mla",
            U32(8),
            "v_head_dim",
        ),
        (
            "deepseek_v3",
            "deepseek2.expert_weights_norm",
            U32(1),
            "expert_weights_norm",
        ),
        (
            "deepseek_v3",
            "deepseek2.leading_dense_block_count",
            U32(2),
            "blk.1",
        ),
        (
            "glm4_moe_mtp",
            "glm4moe.expert_gating_func",
            U32(1),
            "expert_gating_func",
        ),
        (
            "glm4_moe_mtp",
            "glm4moe.nextn_predict_layers",
            U32(0),
            "blk.2",
        ),
        (
            "glm4_moe_mtp",
            "glm4moe.nextn_predict_layers",
            U32(4),
            "block_count",
        ),
        (
            "glm4_moe_mtp",
            "glm4moe.rope.dimension_count",
            U32(17),
            "rope.dimension_count",
        ),
        (
            "qwen3_next",
            "qwen3next.ssm.inner_size",
            U32(33),
            "ssm.inner_size",
        ),
        (
            "qwen3_next",
            "qwen3next.ssm.group_count",
            U32(3),
            "linear_num_key_heads",
        ),
        (
            "qwen3_next",
            "qwen3next.attention.recurrent_layers",
            flags(&[true; 4]),
            "blk.3",
        ),
        (
            "qwen3_next",
            "qwen3next.attention.recurrent_layers",
            Bool(true),
            "recurrent_layers",
        ),
        (
            "lfm2",
            "lfm2.attention.head_count_kv",
            U32(2),
            "head_count_kv",
        ),
        (
            "cohere",
            "command-r.rope.scaling.type",
            Text("yarn".into()),
            "rope.scaling.type",
        ),
        (
            "olmoe",
            "olmoe.attention.head_count_kv",
            U32(2),
            "num_key_value_heads",
        ),
        (
            "gpt2",
            "gpt2.feed_forward_length",
            U32(64),
            "feed_forward_length",
        ),
        ("gpt2", "gpt2.context_length", U32(64), "n_positions"),
        ("falcon", "falcon.attention.head_count_kv", U32(2), "heads"),
        ("bloom", "bloom.attention.head_count_kv", U32(2), "n_head"),
        (
            "falcon",
            "falcon.tensor_data_layout",
            Text("other".into()),
            "tensor_data_layout",
        ),
        (
            "phi2",
            "phi2.attention.head_count_kv",
            U32(2),
            "num_attention_heads",
        ),
        (
            "hunyuan",
            "hunyuan-dense.rope.freq_base",
            GgufMetadataValue::F32(12_345.0),
            "freq_base",
        ),
        ("bert", "bert.attention.causal", Bool(true), "causal"),
        (
            "xlm_roberta",
            "tokenizer.ggml.padding_token_id",
            U32(200),
            "position",
        ),
        ("qwen3_moe", "qwen3moe.expert_count", U32(0), "experts"),
        (
            "qwen3_moe",
            "qwen3moe.expert_used_count",
            U32(5),
            "num_experts_per_tok",
        ),
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

/// Pooling of sentence-transformers that llama.cpp does not have, and files that are missing or malformed.
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
    for (field, value) in [
        ("normalizer", normalizer),
        ("pre_tokenizer", json!({"type": "Whitespace"})),
    ] {
        let error = refusal("bert", set("tokenizer.json", json!({ field: value })));
        assert!(error.contains(field), "{error}");
    }
}
