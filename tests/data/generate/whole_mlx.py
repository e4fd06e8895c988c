"""Tiny models of transformers, and what mlx-lm makes of them.

    python whole_mlx.py hf OUT       transformers 4.57.6, torch 2.6.0 (5.23.0, for some 5.24.0, and 2.15.0 for `NEWER`, which are named)
    python whole_mlx.py mlx OUT      mlx[cpu] 0.32.4, mlx-lm 0.32.2
    python whole_mlx.py recipes OUT RECIPES  the same, with `--quant-predicate`: models of OUT, with more layers, into RECIPES

Two more steps check what `amn` writes; nothing of them is stored:

    AMN=amn python whole_mlx.py write OUT    mlx: MLX directories and those that come back, in OUT/check, with mlx-lm's logits
    python whole_mlx.py load OUT             transformers: every key is there, and logits are those of mlx-lm

OUT/NAME.json gets the config, dtype and shape of each tensor of transformers, and then for each scheme the entries of the config
and dtype, shape and CRC-32 of each tensor of mlx-lm. Values follow from a tensor's name (`values`), so that none are stored.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

VOCAB = 96
BASE = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1)
MOE = dict(num_experts=2, num_experts_per_tok=2)
GEMMA = dict(BASE, head_dim=16, sliding_window=128)
OSS = dict(BASE, head_dim=16, num_hidden_layers=2, num_local_experts=2, num_experts_per_tok=2, sliding_window=128,
           tie_word_embeddings=False,
           rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=128))
MXFP4 = dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])
# Name: model_type, config, further fields of config.json, further tensors.
MODELS = {
    "llama": ("llama", dict(BASE, tie_word_embeddings=False), {}, {}),
    "llama_tied": ("llama", dict(BASE, attention_bias=True, tie_word_embeddings=True), {},
                   {"lm_head.weight": ["BF16", [VOCAB, 64]], "model.layers.0.self_attn.rotary_emb.inv_freq": ["F32", [8]]}),
    "mistral_f16": ("mistral", dict(BASE, head_dim=32, tie_word_embeddings=False), {"torch_dtype": "float16"}, {}),
    "mixtral": ("mixtral", dict(BASE, num_local_experts=2, num_experts_per_tok=2, tie_word_embeddings=False), {}, {}),
    "qwen2": ("qwen2", dict(BASE, tie_word_embeddings=True), {}, {}),
    "qwen3": ("qwen3", dict(BASE, head_dim=32, tie_word_embeddings=True), {}, {}),
    "qwen2_moe": ("qwen2_moe", dict(BASE, **MOE, moe_intermediate_size=96, shared_expert_intermediate_size=64, tie_word_embeddings=False), {}, {}),
    "qwen3_moe": ("qwen3_moe", dict(BASE, **MOE, head_dim=16, moe_intermediate_size=64, norm_topk_prob=True, tie_word_embeddings=False), {}, {}),
    "gemma": ("gemma", dict(BASE, head_dim=16), {}, {}),
    "gemma2": ("gemma2", dict(GEMMA, query_pre_attn_scalar=16), {}, {}),
    "gemma3": ("gemma3_text", dict(GEMMA, query_pre_attn_scalar=16), {}, {}),
    "gemma3_vision": ("gemma3_text", dict(GEMMA, query_pre_attn_scalar=16), {},
                      {"vision_tower.vision_model.post_layernorm.weight": ["BF16", [8]],
                       "multi_modal_projector.mm_input_projection_weight": ["BF16", [8, 64]]}),
    "gpt_oss": ("gpt_oss", OSS, {"quantization_config": MXFP4}, {}),
}
TIED = dict(BASE, tie_word_embeddings=True)
UNTIED = dict(BASE, tie_word_embeddings=False)
GRANITE = dict(attention_multiplier=0.0625, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0)
MODELS.update({
    "smollm3": ("smollm3", dict(TIED, num_hidden_layers=4, pad_token_id=0), {}, {}),
    "olmo2": ("olmo2", dict(UNTIED, pad_token_id=0), {}, {}),
    "olmo3": ("olmo3", dict(UNTIED, num_hidden_layers=4, sliding_window=128, pad_token_id=0), {}, {}),
    "starcoder2": ("starcoder2", TIED, {}, {}),
    "stablelm": ("stablelm", dict(UNTIED, use_qkv_bias=True), {}, {}),
    "exaone4": ("exaone4", dict(TIED, head_dim=16, sliding_window=None, layer_types=["full_attention"], pad_token_id=0), {"sliding_window_pattern": None}, {}),
    "seed_oss": ("seed_oss", dict(UNTIED, head_dim=16, pad_token_id=0), {}, {}),
    "ernie4_5": ("ernie4_5", dict(TIED, head_dim=16, pad_token_id=0), {"tie_word_embeddings": True}, {}),
    "cohere": ("cohere", dict(TIED, use_qk_norm=True, pad_token_id=0), {}, {}),
    "cohere2": ("cohere2", dict(TIED, num_hidden_layers=4, head_dim=16, sliding_window=128, pad_token_id=0), {}, {}),
    "nemotron": ("nemotron", dict(UNTIED, pad_token_id=0), {}, {}),
    "gpt_neox": ("gpt_neox", dict(UNTIED, intermediate_size=256, num_key_value_heads=4, rotary_pct=0.5), {}, {}),
    "phi3": ("phi3", dict(UNTIED, original_max_position_embeddings=512, pad_token_id=0), {}, {}),
    "granite": ("granite", dict(UNTIED, **GRANITE), {}, {}),
    "glm4": ("glm4", dict(UNTIED, head_dim=16, pad_token_id=0), {}, {}),
    "lfm2": ("lfm2", dict(TIED, num_hidden_layers=2, layer_types=["conv", "full_attention"], conv_L_cache=3, block_multiple_of=32), {"block_dim": 64}, {}),
    "olmoe": ("olmoe", dict(UNTIED, num_key_value_heads=4, **MOE, pad_token_id=0), {}, {}),
    "granitemoe": ("granitemoe", dict(TIED, **GRANITE, num_local_experts=2, num_experts_per_tok=2), {}, {}),
    "dots1": ("dots1", dict(UNTIED, num_hidden_layers=2, num_key_value_heads=4, head_dim=16, scoring_func="sigmoid", n_routed_experts=2, num_experts_per_tok=2,
                            moe_intermediate_size=64, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, pad_token_id=0),
              {"torch_dtype": "bfloat16"}, {}),
    "deepseek_v3": ("deepseek_v3", dict(UNTIED, num_hidden_layers=2, num_key_value_heads=4, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=64,
                                        qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
                                        n_shared_experts=1, first_k_dense_replace=1, n_group=2, topk_group=1, scoring_func="sigmoid"),
                    {"torch_dtype": "bfloat16"}, {"model.layers.1.mlp.gate.e_score_correction_bias": ["F32", [4]]}),
})
YARN = dict(rope_type="yarn", type="yarn", factor=4.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=128)
LATENT = dict(UNTIED, num_hidden_layers=2, num_key_value_heads=4, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=64, qk_rope_head_dim=16, v_head_dim=32,
              n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, n_shared_experts=1, first_k_dense_replace=1, n_group=2, topk_group=1)
BF16 = {"torch_dtype": "bfloat16"}
LINEAR = dict(num_hidden_layers=4, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
LINEAR_ROPE = dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25, mrope_interleaved=True, mrope_section=[2, 1, 1])
STATES = dict(GRANITE, num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"], mamba_n_heads=4, mamba_d_state=8, mamba_n_groups=1, pad_token_id=0,
              position_embedding_type="nope")
NO_LIMIT = {"time_step_limit": [0.0, {"__float__": "Infinity"}]}
MODELS.update({
    "deepseek_v2": ("deepseek_v2", dict(LATENT, topk_method="group_limited_greedy", rope_scaling=YARN), {}, {}),
    "glm4_moe": ("glm4_moe", dict(UNTIED, num_hidden_layers=2, head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, n_group=1,
                                  topk_group=1, use_qk_norm=True, attention_bias=True, pad_token_id=0, num_nextn_predict_layers=1), BF16,
                 {"model.layers.1.mlp.gate.e_score_correction_bias": ["F32", [4]], "model.layers.2.enorm.weight": ["BF16", [64]]}),
    "qwen3_next": ("qwen3_next", dict(UNTIED, **LINEAR, **MOE, moe_intermediate_size=64, shared_expert_intermediate_size=64), {}, {"mtp.norm.weight": ["BF16", [64]]}),
    "granite_hybrid": ("granitemoehybrid", dict(TIED, **STATES, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=128), NO_LIMIT, {}),
    "granite_hybrid_moe": ("granitemoehybrid", dict(UNTIED, **STATES, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=64), NO_LIMIT, {}),
    "mamba": ("mamba", dict(hidden_size=64, num_hidden_layers=1, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, state_size=8, time_step_rank=64), {}, {}),
    "mamba2": ("mamba2", dict(hidden_size=64, num_hidden_layers=1, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, num_heads=4, head_dim=32, n_groups=1, state_size=8),
               {"intermediate_size": 128, **NO_LIMIT}, {}),
    "glm4_moe_lite": ("glm4_moe_lite", dict(LATENT, scoring_func="sigmoid"), {"rope_theta": 10000.0, **BF16}, {"model.layers.2.enorm.weight": ["BF16", [64]]}),
    "minimax_m2": ("minimax_m2", dict(UNTIED, head_dim=16, rotary_dim=8, scoring_func="sigmoid", num_local_experts=4, num_experts_per_tok=2),
                   {"rope_theta": 5000000.0, "partial_rotary_factor": 0.5, "shared_intermediate_size": 0, **BF16}, {"model.layers.0.block_sparse_moe.e_score_correction_bias": ["F32", [4]]}),
    "lfm2_moe": ("lfm2_moe", dict(TIED, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], conv_L_cache=3, num_dense_layers=1, num_experts=4,
                                  num_experts_per_tok=2, moe_intermediate_size=64), BF16,
                 {f"model.layers.{i}.feed_forward.expert_bias": ["F32", [4]] for i in (1, 2)}),
    "qwen3_5": ("qwen3_5_text", dict(TIED, **LINEAR, rope_parameters=LINEAR_ROPE), BF16,
                {f"model.language_model.layers.{i}.linear_attn.A_log": ["F32", [4]] for i in range(3)}),
    "qwen3_5_moe": ("qwen3_5_moe_text", dict(UNTIED, **LINEAR, rope_parameters=LINEAR_ROPE, **MOE, moe_intermediate_size=64, shared_expert_intermediate_size=64), {}, {}),
    "nemotron_h": ("nemotron_h", dict(UNTIED, head_dim=16, layers_block_type=["linear_attention", "full_attention", "mlp"], mamba_num_heads=4, mamba_head_dim=16,
                                      n_groups=2, ssm_state_size=8), {"num_hidden_layers": 3, "hybrid_override_pattern": "M*-", **BF16},
                   {"backbone.layers.0.mixer.A_log": ["F32", [4]]}),
})
GEMMA4 = dict(TIED, head_dim=16, global_head_dim=32, sliding_window=128, vocab_size_per_layer_input=VOCAB)
KINDS = ["sliding_attention", "sliding_attention", "full_attention"]
MODELS.update({
    "gemma4": ("gemma4_text", dict(GEMMA4, num_hidden_layers=5, layer_types=KINDS + KINDS[1:], num_kv_shared_layers=2, use_double_wide_mlp=True,
                                   hidden_size_per_layer_input=64), {"global_head_dim": 32, "num_global_key_value_heads": None},
               {"model.layers.3.self_attn.k_proj.weight": ["BF16", [32, 64]], "model.layers.3.self_attn.v_proj.weight": ["BF16", [32, 64]],
                "model.layers.3.self_attn.k_norm.weight": ["BF16", [16]]}),
    "gemma4_moe": ("gemma4_text", dict(GEMMA4, num_hidden_layers=3, layer_types=KINDS, hidden_size_per_layer_input=0, attention_k_eq_v=True,
                                       num_global_key_value_heads=1, enable_moe_block=True, num_experts=2, top_k_experts=2, moe_intermediate_size=64,
                                       final_logit_softcapping=30.0), {"global_head_dim": 32, "num_global_key_value_heads": 1}, {}),
})
ALPHA = dict(type="dynamic", alpha=1000.0, factor=1.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0)
MODELS.update({
    "gpt2": ("gpt2", dict(vocab_size=VOCAB, n_positions=128, n_embd=64, n_layer=1, n_head=4, bos_token_id=0, eos_token_id=1), {"n_ctx": 128},
             {"h.0.attn.bias": ["F32", [1, 1, 128, 128]]}),
    "phi": ("phi", dict(UNTIED, intermediate_size=256, num_key_value_heads=4, partial_rotary_factor=0.5), {}, {}),
    "hunyuan_dense": ("hunyuan_v1_dense", dict(TIED, head_dim=32, rope_scaling=ALPHA, max_position_embeddings=32768, pad_token_id=0), {}, {}),
    "internlm2": ("internlm2", dict(UNTIED, architectures=["InternLM2ForCausalLM"], model_type="internlm2", bias=False, hidden_act="silu", rms_norm_eps=1e-5,
                                    rope_theta=1000000, rope_scaling=dict(type="dynamic", factor=2.0), torch_dtype="bfloat16"), {}, {}),
    "exaone": ("exaone", dict(architectures=["ExaoneForCausalLM"], model_type="exaone", activation_function="silu", hidden_size=64, intermediate_size=128, num_layers=1, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
                              vocab_size=VOCAB, layer_norm_epsilon=1e-5, rope_theta=1000000, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False, torch_dtype="bfloat16",
                              rope_scaling=dict(rope_type="llama3", factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0, original_max_position_embeddings=128)), {}, {}),
    "nanbeige": ("nanbeige", dict(UNTIED, architectures=["NanbeigeForCausalLM"], model_type="nanbeige", hidden_act="silu", rms_norm_eps=1e-5, rope_theta=1000000, head_dim=16, num_loops=2, skip_loop_final_norm=True, torch_dtype="bfloat16"), {}, {}),
    "deepseek": ("deepseek", dict(UNTIED, architectures=["DeepseekForCausalLM"], model_type="deepseek", hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000, num_key_value_heads=4, num_hidden_layers=2, n_routed_experts=2, n_shared_experts=1,
                                  num_experts_per_tok=1, moe_intermediate_size=64, first_k_dense_replace=1, moe_layer_freq=1, norm_topk_prob=False, scoring_func="softmax", torch_dtype="bfloat16"), {}, {}),
    "nemotron_h_moe": ("nemotron_h", dict(UNTIED, head_dim=16, layers_block_type=["linear_attention", "full_attention", "moe"], mamba_num_heads=4, mamba_head_dim=16,
                                          n_groups=2, ssm_state_size=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
                                          moe_shared_expert_intermediate_size=128, n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True,
                                          routed_scaling_factor=2.5), {"num_hidden_layers": 3, "hybrid_override_pattern": "M*E", **BF16},
                       {"backbone.layers.0.mixer.A_log": ["F32", [4]], "backbone.layers.2.mixer.gate.e_score_correction_bias": ["F32", [4]]}),
})
LIKE_LLAMA = {
    "model.embed_tokens.weight": [VOCAB, 64], "model.norm.weight": [64], "lm_head.weight": [VOCAB, 64], "model.layers.0.input_layernorm.weight": [64], "model.layers.0.post_attention_layernorm.weight": [64],
    **{f"model.layers.0.self_attn.{part}_proj.weight": [64, 64] for part in "qkvo"}, "model.layers.0.mlp.gate_proj.weight": [128, 64], "model.layers.0.mlp.up_proj.weight": [128, 64], "model.layers.0.mlp.down_proj.weight": [64, 128]}
# Tensors of classes that are not in transformers, but beside published models: layer by layer, and then the others.
WRITTEN = {
    "internlm2": {
        "model.layers.0.attention.wqkv.weight": [128, 64], "model.layers.0.attention.wo.weight": [64, 64],
        "model.layers.0.feed_forward.w1.weight": [128, 64], "model.layers.0.feed_forward.w2.weight": [64, 128],
        "model.layers.0.feed_forward.w3.weight": [128, 64], "model.layers.0.attention_norm.weight": [64], "model.layers.0.ffn_norm.weight": [64],
        "model.tok_embeddings.weight": [VOCAB, 64], "model.norm.weight": [64], "output.weight": [VOCAB, 64]},
    "nanbeige": {**LIKE_LLAMA, **{f"model.layers.0.self_attn.{part}_proj.weight": [32, 64] for part in "kv"}},
    "deepseek": {
        **LIKE_LLAMA, **{key.replace("layers.0", "layers.1"): shape for key, shape in LIKE_LLAMA.items() if "mlp" not in key}, "model.layers.1.mlp.gate.weight": [2, 64],
        **{f"model.layers.1.mlp.{of}.{part}_proj.weight": [64, 64] for of in ("experts.0", "experts.1", "shared_experts") for part in ("gate", "up", "down")}},
    "exaone": {
        **{f"transformer.h.0.attn.attention.{part}_proj.weight": [64 if part in ("q", "out") else 32, 64] for part in ("q", "k", "v", "out")},
        "transformer.h.0.mlp.c_fc_0.weight": [128, 64], "transformer.h.0.mlp.c_fc_1.weight": [128, 64], "transformer.h.0.mlp.c_proj.weight": [64, 128],
        "transformer.h.0.ln_1.weight": [64], "transformer.h.0.ln_2.weight": [64],
        "transformer.wte.weight": [VOCAB, 64], "transformer.ln_f.weight": [64], "lm_head.weight": [VOCAB, 64]},
}
# Classes that transformers 4.57.6 does not know: these are of 5.23.0 with torch 2.15.0.
NEWER = ("glm4_moe_lite", "minimax_m2", "lfm2_moe", "qwen3_5", "qwen3_5_moe", "nemotron_h", "nemotron_h_moe", "gemma4", "gemma4_moe", "mistral3", "ministral3", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe")
MODELS.update({
    "mistral3": ("mistral", dict(UNTIED, head_dim=32, sliding_window=None), {}, {}),
    "ministral3": ("ministral3", dict(UNTIED, head_dim=16, rope_parameters=dict(
        type="yarn", rope_type="yarn", rope_theta=1e6, factor=16.0, original_max_position_embeddings=4, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
        mscale_all_dim=1.0, llama_4_scaling_beta=0.1)), {}, {}),
    "qwen2_vl": ("qwen2", dict(UNTIED, rope_theta=1e6), {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}}, {}),
    "qwen3_vl": ("qwen3", dict(TIED, head_dim=32), {}, {}),
    "qwen3_vl_moe": ("qwen3_moe", dict(UNTIED, **MOE, head_dim=16, moe_intermediate_size=64, norm_topk_prob=True), {}, {}),
})
NEWER += ("solar_open", "afmoe")
MODELS.update({
    "solar_open": ("solar_open", dict(UNTIED, head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, n_shared_experts=1, pad_token_id=0),
                   {"first_k_dense_replace": 0, "rope_scaling": None, "use_qk_norm": False, "rope_theta": 1000000.0, "partial_rotary_factor": 1.0, **BF16}, {"model.layers.0.mlp.gate.e_score_correction_bias": ["F32", [4]]}),
    "afmoe": ("afmoe", dict(UNTIED, num_hidden_layers=4, head_dim=16, num_experts=2, num_experts_per_tok=2, moe_intermediate_size=64, num_shared_experts=1, num_dense_layers=3, sliding_window=128, mup_enabled=True, route_scale=2.0, pad_token_id=0),
              {"route_norm": True, "score_func": "sigmoid", "rope_theta": 10000.0, **BF16}, {"model.layers.3.mlp.expert_bias": ["F32", [2]]}),
})
# These are of 5.24.0 with torch 2.15.0.
NEWER += ("phimoe", "deepseek_v32", "glm_moe_dsa")
INDEXER = dict(LATENT, scoring_func="sigmoid", index_n_heads=2, index_head_dim=32, index_topk=4)
CHOICE = {"model.layers.1.mlp.gate.e_score_correction_bias": ["F32", [4]], "model.layers.2.enorm.weight": ["BF16", [64]]}
LIKE_MINICPM = dict(UNTIED, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, torch_dtype="bfloat16")
LING = dict(UNTIED, architectures=["BailingMoeForCausalLM"], model_type="bailing_moe", hidden_act="silu", rms_norm_eps=1e-5, rope_theta=600000.0, head_dim=16, num_experts=2,
            num_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True, norm_head=False, norm_softmax=False, use_bias=False, use_qkv_bias=False,
            first_k_dense_replace=0, torch_dtype="bfloat16")
LONG = dict(type="longrope", rope_type="longrope", short_factor=[1.0] * 8, long_factor=[2.0] * 8, short_mscale=1.2, long_mscale=1.2, original_max_position_embeddings=128)
MODELS.update({
    "phimoe": ("phimoe", dict(UNTIED, num_local_experts=2, num_experts_per_tok=2, attention_bias=True, lm_head_bias=True, original_max_position_embeddings=128, pad_token_id=0,
                              rope_scaling=LONG), {"rope_theta": 1000000.0, "rope_scaling": LONG, **BF16}, {}),
    "deepseek_v32": ("deepseek_v32", INDEXER, {"rope_theta": 10000.0, "rope_scaling": None, "topk_method": "noaux_tc", "moe_layer_freq": 1, **BF16}, CHOICE),
    "glm_moe_dsa": ("glm_moe_dsa", dict(INDEXER, n_group=1, rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
                    {"topk_method": "noaux_tc", "moe_layer_freq": 1, **BF16}, CHOICE),
    "internlm3": ("internlm3", dict(LIKE_MINICPM, architectures=["InternLM3ForCausalLM"], model_type="internlm3", head_dim=16, bias=False, qkv_bias=False,
                                    rope_scaling=dict(rope_type="dynamic", factor=6.0)), {}, {}),
    "minicpm": ("minicpm", dict(LIKE_MINICPM, architectures=["MiniCPMForCausalLM"], model_type="minicpm", scale_emb=12, scale_depth=1.4,
                                dim_model_base=32), {}, {}),
    "xverse": ("xverse", dict(LIKE_MINICPM, architectures=["XverseForCausalLM"], model_type="xverse", num_key_value_heads=4), {}, {}),
    "bailing_moe": ("bailing_moe", LING, {}, {}),
    "bailing_moe2": ("bailing_moe", dict(LING, architectures=["BailingMoeV2ForCausalLM"], num_hidden_layers=2, first_k_dense_replace=1, num_experts=4, n_group=2, topk_group=1,
                                         partial_rotary_factor=0.5, routed_scaling_factor=2.5, score_function="sigmoid", moe_router_enable_expert_bias=True, use_qk_norm=True), {}, {}),
})
WITH_FEW_KEYS = {**LIKE_LLAMA, **{f"model.layers.0.self_attn.{part}_proj.weight": [32, 64] for part in "kv"}}


def ling(layer, experts):
    """A layer of Ling, whose queries, keys and values are one matrix."""
    name = f"model.layers.{layer}."
    widths = {f"mlp.experts.{n}": 64 for n in range(experts)} | {"mlp.shared_experts": 64} if experts else {"mlp": 128}
    shapes = {"input_layernorm": [64], "post_attention_layernorm": [64], "attention.query_key_value": [128, 64], "attention.dense": [64, 64]}
    for mlp, width in widths.items():
        shapes |= {f"{mlp}.gate_proj": [width, 64], f"{mlp}.up_proj": [width, 64], f"{mlp}.down_proj": [64, width]}
    return {f"{name}{key}.weight": shape for key, shape in (shapes | ({"mlp.gate": [experts, 64]} if experts else {})).items()}


LING_ENDS = {"model.word_embeddings.weight": [VOCAB, 64], "model.norm.weight": [64], "lm_head.weight": [VOCAB, 64]}
LING_NORMS = {f"model.layers.{layer}.attention.{of}_layernorm.weight": [16] for layer in (0, 1) for of in ("query", "key")}
WRITTEN.update({
    "internlm3": WITH_FEW_KEYS,
    "minicpm": WITH_FEW_KEYS,
    "xverse": LIKE_LLAMA,
    "bailing_moe": {**LING_ENDS, **ling(0, 2)},
    "bailing_moe2": {**LING_ENDS, **ling(0, 0), **ling(1, 4), **LING_NORMS, "model.layers.1.mlp.gate.expert_bias": [4]},
})
# These are of 5.24.0 with torch 2.15.0, too.
NEWER += ("exaone_moe", "mimo_v2_flash", "laguna", "mellum", "apertus", "minicpm3", "jamba", "gpt_bigcode", "youtu", "kimi_linear", "glm")
WINDOWED = dict(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], sliding_window=128, head_dim=16)
OF_KINDS = dict(full_attention=dict(rope_type="default", rope_theta=500000.0), sliding_attention=dict(rope_type="default", rope_theta=10000.0))
MIMO = dict(hybrid_layer_pattern=[0, 1], moe_layer_freq=[0, 1], add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False, sliding_window_size=128, layernorm_epsilon=1e-5, rope_theta=5000000.0, swa_rope_theta=10000.0,
            swa_num_attention_heads=4, swa_num_key_value_heads=4, swa_head_dim=32, swa_v_head_dim=16, partial_rotary_factor=0.334, n_shared_experts=None, topk_method="noaux_tc", scoring_func="sigmoid")
MODELS.update({
    "exaone_moe": ("exaone_moe", dict(UNTIED, num_hidden_layers=4, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, num_shared_experts=1, first_k_dense_replace=3, n_group=2, topk_group=1, sliding_window=128, pad_token_id=0),
                   {"is_moe_layer": [False, False, False, True], "rope_theta": 10000.0, **BF16}, {"model.layers.3.mlp.e_score_correction_bias": ["F32", [4]]}),
    "mimo_v2_flash": ("mimo_v2_flash", dict(UNTIED, num_hidden_layers=2, num_key_value_heads=2, head_dim=32, v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, layer_types=["full_attention", "sliding_attention"],
                                            mlp_layer_types=["dense", "sparse"], pad_token_id=0), dict(MIMO, **BF16), {"model.layers.1.mlp.gate.e_score_correction_bias": ["F32", [4]]}),
    "laguna": ("laguna", dict(UNTIED, **WINDOWED | dict(layer_types=["full_attention", "sliding_attention"]), num_experts=2, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64, num_attention_heads_per_layer=[4, 6],
                              moe_routed_scaling_factor=2.5, pad_token_id=0), BF16, {"model.layers.1.mlp.experts.e_score_correction_bias": ["F32", [2]]}),
    "mellum": ("mellum", dict(UNTIED, **WINDOWED, **MOE, moe_intermediate_size=64, rope_parameters=OF_KINDS, pad_token_id=0), {"num_experts": 2}, {}),
    "apertus": ("apertus", dict(UNTIED, rope_parameters=dict(rope_type="llama3", rope_theta=12000000.0, factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0, original_max_position_embeddings=128)),
                {"mlp_bias": False, "post_norm": False, "qk_norm": True, "rope_theta": 12000000.0,
                 "rope_scaling": dict(rope_type="llama3", type="llama3", factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0, original_max_position_embeddings=128)}, {}),
    "minicpm3": ("minicpm3", dict(UNTIED, num_key_value_heads=4, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=64, qk_rope_head_dim=16, v_head_dim=16, scale_emb=12, scale_depth=1.4, dim_model_base=32, original_max_position_embeddings=128, pad_token_id=0,
                                  rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.5] * 8, long_factor=[1.5] * 8, original_max_position_embeddings=128)),
                 {"rope_theta": 10000.0, "rope_scaling": dict(rope_type="longrope", type="longrope", short_factor=[1.5] * 8, long_factor=[1.5] * 8, original_max_position_embeddings=128)}, {}),
    "jamba": ("jamba", dict(UNTIED, num_hidden_layers=2, attn_layer_period=2, attn_layer_offset=1, num_experts=1, num_experts_per_tok=1, mamba_d_state=8, mamba_d_conv=4, mamba_dt_rank=64, use_mamba_kernels=False, pad_token_id=0), {}, {}),
    "gpt_bigcode": ("gpt_bigcode", dict(vocab_size=VOCAB, n_positions=128, n_embd=64, n_layer=1, n_head=4, n_inner=256, bos_token_id=0, eos_token_id=1, tie_word_embeddings=True, activation_function="gelu"), {}, {}),
    "youtu": ("youtu", dict(TIED, num_key_value_heads=4, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=64, qk_rope_head_dim=16, v_head_dim=32), {"model_type": "youtu_llm", "rope_theta": 10000.0}, {}),
    "glm": ("glm", dict(UNTIED, num_attention_heads=4, head_dim=16, partial_rotary_factor=1.0, pad_token_id=0, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=1.0)), {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}, {}),
    "kimi_linear": ("kimi_linear", dict(UNTIED, num_hidden_layers=2, num_key_value_heads=4, head_dim=16, kv_lora_rank=64, qk_nope_head_dim=64, qk_rope_head_dim=16, v_head_dim=32, num_experts=4, num_experts_per_token=2, num_shared_experts=1, moe_intermediate_size=64,
                                        first_k_dense_replace=1, linear_attn_config=dict(full_attn_layers=[2], kda_layers=[1], head_dim=64, num_heads=4, short_conv_kernel_size=4), pad_token_id=0),
                    {"rope_theta": 10000.0, "model_max_length": 512, **BF16}, {"model.layers.1.block_sparse_moe.gate.e_score_correction_bias": ["F32", [4]], "model.layers.0.self_attn.A_log": ["F32", [1, 1, 4, 1]], "model.layers.0.self_attn.dt_bias": ["F32", [256]]}),
})
STEP = dict(hidden_act="silu", hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=512, vocab_size=VOCAB, rms_norm_eps=1e-5, tie_word_embeddings=False, torch_dtype="bfloat16", architectures=["Step3p5ForCausalLM"],
            model_type="step3p5", num_attention_groups=2, head_dim=16, use_head_wise_attn_gate=True, layer_types=["full_attention", "sliding_attention", "sliding_attention"],
            attention_other_setting=dict(attention_type="sliding_attention", num_attention_heads=6, num_attention_groups=2, head_dim=16), partial_rotary_factors=[0.5, 1.0, 1.0], rope_theta=[5000000.0, 10000.0, 10000.0], sliding_window=128,
            moe_num_experts=4, moe_top_k=2, moe_intermediate_size=64, share_expert_dim=64, moe_layers_enum="1", moe_every_n_layer=1, moe_router_activation="sigmoid", moe_router_scaling_factor=3.0, norm_expert_weight=True, use_moe_router_bias=True,
            swiglu_limits=[None, 7.0, None], swiglu_limits_shared=[None, 16.0, None], num_nextn_predict_layers=1)
PLAMO = dict(hidden_act="silu", hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, vocab_size=VOCAB, rms_norm_eps=1e-6, tie_word_embeddings=False, torch_dtype="bfloat16", architectures=["PlamoForCausalLM"], model_type="plamo", n_shared_head=2, rope_theta=10000.0)
MODELS.update({
    "step3p5": ("step3p5", STEP, {}, {}),
    "qwen": ("qwen", dict(architectures=["QWenLMHeadModel"], model_type="qwen", hidden_size=64, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, kv_channels=16, max_position_embeddings=512, seq_length=512, vocab_size=VOCAB, layer_norm_epsilon=1e-6,
                           rotary_emb_base=10000, rotary_pct=1.0, no_bias=True, scale_attn_weights=True, use_dynamic_ntk=True, use_logn_attn=True, tie_word_embeddings=False, torch_dtype="bfloat16"), {}, {}),
    "plamo": ("plamo", PLAMO, {}, {}),
    "openelm": ("openelm", dict(architectures=["OpenELMForCausalLM"], model_type="openelm", model_dim=64, num_transformer_layers=2, head_dim=16, vocab_size=VOCAB, max_context_length=512, num_query_heads=[2, 4], num_kv_heads=[1, 2], ffn_multipliers=[1.0, 2.0],
                                ffn_dim_divisor=64, rope_freq_constant=10000, activation_fn_name="swish", ffn_with_glu=True, normalize_qk_projections=True, share_input_output_layers=True, torch_dtype="bfloat16"), {}, {}),
    "deci": ("nemotron-nas", dict(architectures=["DeciLMForCausalLM"], model_type="nemotron-nas", hidden_act="silu", hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=None, intermediate_size=None, max_position_embeddings=512, vocab_size=VOCAB,
                                  rms_norm_eps=1e-5, rope_theta=500000.0, attention_bias=False, mlp_bias=False, tie_word_embeddings=False, torch_dtype="bfloat16",
                                  block_configs=[{"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 6.0}}, {"attention": {"no_op": True}, "ffn": {"ffn_mult": 12.0}}, {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 6.0}}]), {}, {}),
})


def in_layer(layer, shapes):
    return {f"model.layers.{layer}.{name}": shape for name, shape in shapes.items()}


def gated(prefix, width):
    return {f"{prefix}.{part}_proj.weight": [64, width] if part == "down" else [width, 64] for part in ("gate", "up", "down")}


def attending(queries, keys):
    return {f"self_attn.{part}_proj.weight": [64, queries] if part == "o" else [keys if part in "kv" else queries, 64] for part in "qkvo"}


ENDS = {"model.embed_tokens.weight": [VOCAB, 64], "model.norm.weight": [64], "lm_head.weight": [VOCAB, 64]}
BEFORE = {"input_layernorm.weight": [64]}
BEHIND = {"post_attention_layernorm.weight": [64]}
STEP_LAYER = {**BEFORE, **BEHIND, "self_attn.q_norm.weight": [16], "self_attn.k_norm.weight": [16]}
STEP_EXPERTS = {"moe.gate.weight": [4, 64], "moe.router_bias": [4], "moe.gate_proj.weight": [4, 64, 64], "moe.up_proj.weight": [4, 64, 64], "moe.down_proj.weight": [4, 64, 64], **gated("share_expert", 64)}


def openelm(heads, kv_heads, width):
    return {"attn_norm.weight": [64], "ffn_norm.weight": [64], "attn.qkv_proj.weight": [16 * (heads + 2 * kv_heads), 64], "attn.q_norm.weight": [16], "attn.k_norm.weight": [16],
            "attn.out_proj.weight": [64, 16 * heads], "ffn.proj_1.weight": [2 * width, 64], "ffn.proj_2.weight": [64, width]}


WRITTEN.update({
    "step3p5": {**ENDS, **in_layer(0, {**STEP_LAYER, **attending(64, 32), "self_attn.g_proj.weight": [4, 64], **gated("mlp", 128)}),
                **in_layer(1, {**STEP_LAYER, **attending(96, 32), "self_attn.g_proj.weight": [6, 64], **STEP_EXPERTS})},
    "qwen": {"transformer.wte.weight": [VOCAB, 64], "transformer.ln_f.weight": [64], "lm_head.weight": [VOCAB, 64],
             **{f"transformer.h.0.{name}": shape for name, shape in {"ln_1.weight": [64], "ln_2.weight": [64], "attn.c_attn.weight": [192, 64], "attn.c_attn.bias": [192], "attn.c_proj.weight": [64, 64],
                                                                      "mlp.w1.weight": [128, 64], "mlp.w2.weight": [128, 64], "mlp.c_proj.weight": [64, 128]}.items()}},
    "plamo": {**ENDS, **{f"model.layers.layers.0.{name}": shape for name, shape in {"norm.weight": [64], **attending(64, 32), **gated("mlp", 128)}.items()}},
    "openelm": {"transformer.token_embeddings.weight": [VOCAB, 64], "transformer.norm.weight": [64],
                **{f"transformer.layers.{layer}.{name}": shape for layer, sizes in enumerate([(2, 1, 64), (4, 2, 128)]) for name, shape in openelm(*sizes).items()}},
    "deci": {**ENDS, **in_layer(0, {**BEFORE, **BEHIND, **attending(64, 32), **gated("mlp", 256)}), **in_layer(1, {**BEHIND, **gated("mlp", 512)}), **in_layer(2, {**BEFORE, **BEHIND, **attending(64, 16), **gated("mlp", 256)})},
})
NEWER += ("gemma3n", "llama4", "kimi_k25", "falcon_mamba", "gemma4_unified")
MODELS.update({
    "gemma3n": ("gemma3n_text", dict(TIED, num_hidden_layers=4, head_dim=16, layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"], num_kv_shared_layers=2, sliding_window=128, vocab_size_per_layer_input=VOCAB,
                                     hidden_size_per_layer_input=16, laurel_rank=64, activation_sparsity_pattern=[0.95, 0.0, 0.0, 0.0], pad_token_id=0), {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": None},
                {f"model.language_model.layers.{i}.self_attn.{part}.weight": ["BF16", [16] if part == "k_norm" else [32, 64]] for i in (2, 3) for part in ("k_proj", "v_proj", "k_norm")}),
    "llama4": ("llama4_text", dict(UNTIED, num_hidden_layers=4, head_dim=16, intermediate_size_mlp=128, num_local_experts=2, num_experts_per_tok=1, interleave_moe_layer_step=2, attention_chunk_size=8192, pad_token_id=0), {"rope_theta": 500000.0, "rope_scaling": None}, {}),
    "kimi_k25": ("deepseek_v3", MODELS["deepseek_v3"][1], {"rope_theta": 10000.0, **BF16}, {"language_model.model.layers.1.mlp.gate.e_score_correction_bias": ["F32", [4]]}),
    "falcon_mamba": ("falcon_mamba", dict(hidden_size=64, num_hidden_layers=1, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, state_size=8, time_step_rank=64), {}, {}),
    "gemma4_unified": ("gemma4_text", dict(GEMMA4, num_hidden_layers=3, layer_types=KINDS, num_kv_shared_layers=0, hidden_size_per_layer_input=0), {"global_head_dim": 32, "num_global_key_value_heads": None, "hidden_size_per_layer_input": 0}, {}),
})
LING3 = dict(LING, architectures=["BailingMoeV3ForCausalLM"], model_type="bailing_hybrid", num_hidden_layers=2, num_key_value_heads=4, rms_norm_eps=1e-6, rope_theta=6000000.0, head_dim=32, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=64, qk_rope_head_dim=16, v_head_dim=32,
             no_kda_lora=True, kda_safe_gate=True, kda_lower_bound=-5.0, gated_attention_proj_granularity_type="head_wise", short_conv_kernel_size=4, layer_group_size=2, first_k_dense_replace=1, num_experts=4, moe_shared_expert_intermediate_size=64,
             n_group=2, topk_group=1, routed_scaling_factor=2.5, score_function="sigmoid", pad_token_id=0)
PLAMO3 = dict(hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCAB, rms_norm_eps=1e-6, tie_word_embeddings=True, torch_dtype="bfloat16", max_position_embeddings=512)
MUSE = dict(model_type="muse_glimmer_text", hidden_activation="silu", hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=VOCAB, max_position_embeddings=512, rms_norm_eps=1e-5, post_norm_eps=1e-8,
            sliding_window=128, layer_types=["sliding_attention"] * 3 + ["full_attention"], layer_rope_theta=[500000.0] * 3 + [0], rope_parameters=dict(rope_type="default", rope_theta=500000.0), rope_theta=500000.0, qk_scale_factor=3.87, final_logit_softcapping=20.0,
            output_multiplier=0.19611613513818404, tie_word_embeddings=False)
MINIMAX_M3 = dict(BASE, model_type="minimax_m3", head_dim=32, rotary_dim=16, num_hidden_layers=2, intermediate_size=64, dense_intermediate_size=128, shared_intermediate_size=64, num_local_experts=4, num_experts_per_tok=2, n_shared_experts=1, rms_norm_eps=1e-6, rope_theta=5000000.0,
                  routed_scaling_factor=2.0, scoring_func="sigmoid", use_qk_norm=True, use_gemma_norm=True, hidden_act="swigluoai", swiglu_alpha=1.702, swiglu_limit=7.0, moe_layer_freq=[0, 1], tie_word_embeddings=False,
                  sparse_attention_config=dict(sparse_num_index_heads=2, sparse_index_dim=32, sparse_topk_blocks=2, sparse_block_size=4, sparse_local_block=1, sparse_attention_freq=[0, 1]))
MODELS.update({
    "minimax_m3": ("minimax_m3_vl", dict(architectures=["MiniMaxM3SparseForConditionalGeneration"], model_type="minimax_m3_vl", torch_dtype="bfloat16", tie_word_embeddings=False, text_config=MINIMAX_M3, vision_config=dict(hidden_size=8)), {}, {}),
    "bailing_moe3": ("bailing_hybrid", LING3, {}, {}),
    "plamo2": ("plamo2", dict(PLAMO3, architectures=["Plamo2ForCausalLM"], model_type="plamo2", num_hidden_layers=2, hidden_size_per_head=16, attention_window_size=2048, full_attention_idx=[], mamba_d_state=64, mamba_d_conv=4, mamba_num_heads=4, mamba_step=2,
                              mamba_enabled=True, mamba_chunk_size=256, rope_theta=10000.0), {}, {}),
    "plamo3": ("plamo3", dict(PLAMO3, architectures=["Plamo3ForCausalLM"], model_type="plamo3", num_hidden_layers=2, head_dim=16, window_size=128, sliding_window_pattern=2, rope_theta=1000000.0, rope_local_theta=10000, hidden_activation="swiglu", attention_bias=False), {}, {}),
    "talkie": ("talkie", dict(architectures=["TalkieForCausalLM"], model_type="talkie", hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, head_dim=16, vocab_size=VOCAB, max_position_embeddings=512, rope_theta=1000000.0,
                              torch_dtype="bfloat16"), {}, {}),
    "muse_glimmer": ("muse_glimmer", dict(architectures=["MuseGlimmerForConditionalGeneration"], model_type="muse_glimmer", torch_dtype="bfloat16", tie_word_embeddings=False, text_config=MUSE, vision_config=dict(hidden_size=8)), {}, {}),
})
LING3_LAYER = {**BEFORE, **BEHIND}
PLAMO3_LAYER = {**{f"{name}_norm.weight": [64] for name in ("pre_mixer", "post_mixer", "pre_mlp", "post_mlp")}, "mlp.gate_up_proj.weight": [256, 64], "mlp.down_proj.weight": [64, 128]}


def plamo(layer, shapes):
    return {f"model.layers.layers.{layer}.{name}": shape for name, shape in {**PLAMO3_LAYER, **shapes}.items()}


M3_LAYER = {**BEFORE, **BEHIND, **attending(128, 64), "self_attn.q_norm.weight": [32], "self_attn.k_norm.weight": [32]}
WRITTEN.update({
    "minimax_m3": {f"language_model.{name}": shape for name, shape in {
        **ENDS, **in_layer(0, {**M3_LAYER, **gated("mlp", 128)}),
        **in_layer(1, {**M3_LAYER, "self_attn.index_q_proj.weight": [64, 64], "self_attn.index_k_proj.weight": [32, 64], "self_attn.index_q_norm.weight": [32], "self_attn.index_k_norm.weight": [32], "block_sparse_moe.gate.weight": [4, 64],
                       "block_sparse_moe.e_score_correction_bias": [4], **gated("block_sparse_moe.shared_experts", 64), **{f"block_sparse_moe.experts.{e}.w{n}.weight": [64, 64] for e in range(4) for n in (1, 2, 3)}})}.items()},
    "bailing_moe3": {
        **LING_ENDS,
        **in_layer(0, {**LING3_LAYER, **{f"attention.{part}_proj.weight": [128, 64] for part in "qkvfg"}, **{f"attention.{part}_conv1d.weight": [128, 1, 4] for part in "qkv"}, "attention.b_proj.weight": [4, 64], "attention.o_norm.weight": [32],
                       "attention.o_proj.weight": [64, 128], "attention.A_log": [4], "attention.dt_bias": [128], **gated("mlp", 128)}),
        **in_layer(1, {**LING3_LAYER, "attention.q_a_proj.weight": [64, 64], "attention.q_a_layernorm.weight": [64], "attention.q_b_proj.weight": [320, 64], "attention.kv_a_proj_with_mqa.weight": [80, 64], "attention.kv_a_layernorm.weight": [64],
                       "attention.kv_b_proj.weight": [384, 64], "attention.g_proj.weight": [4, 64], "attention.dense.weight": [64, 128], "mlp.gate.weight": [4, 64], "mlp.gate.expert_bias": [4],
                       **{key: shape for of in ("experts.0", "experts.1", "experts.2", "experts.3", "shared_experts") for key, shape in gated(f"mlp.{of}", 64).items()}})},
    "plamo2": {
        "model.embed_tokens.weight": [VOCAB, 64], "model.norm.weight": [64],
        **plamo(0, {"mixer.in_proj.weight": [128, 64], "mixer.conv1d.weight": [64, 1, 4], "mixer.bcdt_proj.weight": [192, 64], "mixer.dt_proj.weight": [4, 64], "mixer.dt_bias": [4], "mixer.dt_norm_weight": [64], "mixer.B_norm_weight": [64],
                    "mixer.C_norm_weight": [64], "mixer.A_log": [4], "mixer.D": [4], "mixer.out_proj.weight": [64, 64]}),
        **plamo(1, {"mixer.qkv_proj.weight": [128, 64], "mixer.o_proj.weight": [64, 64], "mixer.q_weight": [4, 16], "mixer.k_weight": [2, 16]})},
    "plamo3": {"model.embed_tokens.weight": [VOCAB, 64], "model.norm.weight": [64],
               **{key: shape for layer in (0, 1) for key, shape in plamo(layer, {"mixer.qkv_proj.weight": [128, 64], "mixer.o_proj.weight": [64, 64], "mixer.q_norm.weight": [16], "mixer.k_norm.weight": [16]}).items()}},
    "talkie": {"model.embed.weight": [VOCAB, 64], "lm_head": [VOCAB, 64], "lm_head_gain.w_g": [1],
               **{f"model.blocks.0.{name}": shape for name, shape in {**{f"attn.attn_{part}.weight": [64, 64] for part in ("query", "key", "value", "resid")}, "attn.head_gain.head_g": [4], "attn_gain.a_g": [1], "mlp_gain.a_g": [1],
                                                                       "embed_skip.a_g": [1], "mlp.mlp_gate.weight": [128, 64], "mlp.mlp_linear.weight": [128, 64], "mlp.mlp_resid.weight": [64, 128]}.items()}},
    "muse_glimmer": {"lm_head.weight": [VOCAB, 64], **{f"model.language_model.{name.removeprefix('model.')}": shape for name, shape in {
        "embed_tokens.weight": [VOCAB, 64], "norm.weight": [64],
        **{key: shape for layer in range(4) for key, shape in in_layer(layer, {**BEFORE, **BEHIND, "pre_feedforward_layernorm.weight": [64], "post_feedforward_layernorm.weight": [64], **attending(64, 32), "self_attn.gate_proj.weight": [64, 64],
                                                                                **gated("mlp", 128)}).items()}}.items()}},
})
MODELS.update({
    "spark2_5": ("spark2_5", dict(TIED, architectures=["Spark2_5ForCausalLM"], model_type="spark2_5", num_hidden_layers=2, head_dim=16, rms_norm_eps=1e-6, hidden_act="gelu", sliding_window=128, layer_types=["sliding_attention", "full_attention"], gate_attn_act_mode="sigmoid",
                                  headwise_attn_output_gate=True, torch_dtype="bfloat16", rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1000000.0, partial_rotary_factor=0.5),
                                                                                                              sliding_attention=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=1.0))), {}, {}),
})
WRITTEN.update({
    "spark2_5": {"model.embedding.weight": [VOCAB, 64], "model.norm.weight": [64], **{key: shape for layer in (0, 1) for key, shape in in_layer(layer, {
        **BEFORE, **BEHIND, "self_attn.q_k_v_proj.weight": [128, 64], "self_attn.g_proj.weight": [4, 64], "self_attn.out_proj.weight": [64, 64], **gated("mlp", 128)}).items()}},
})
MODELS.update({
    "rwkv7": ("rwkv7", dict(architectures=["RWKV7ForCausalLM"], model_type="rwkv7", hidden_size=64, intermediate_size=256, num_hidden_layers=2, head_dim=16, num_heads=None, vocab_size=VOCAB, norm_eps=1e-5, norm_bias=True, norm_first=True, hidden_act="sqrelu", hidden_ratio=4.0,
                            a_low_rank_dim=64, v_low_rank_dim=64, gate_low_rank_dim=64, decay_low_rank_dim=64, tie_word_embeddings=False, torch_dtype="bfloat16"), {}, {}),
    "pixtral": ("mistral", dict(UNTIED, head_dim=32, sliding_window=None), {}, {}),
})
NEWER += ("pixtral",)


def rwkv7(layer):
    norms = ("pre_norm", "attn_norm", "ffn_norm", "attn.g_norm")[layer > 0:]
    shapes = {f"{norm}.{part}": [64] for norm in norms for part in ("weight", "bias")} | {f"attn.x_{part}": [1, 1, 64] for part in "rwkvag"} | {f"attn.{part}_proj.weight": [64, 64] for part in "rkvo"}
    shapes |= {"attn.k_k": [64], "attn.k_a": [64], "attn.r_k": [4, 16], "ffn.x_k": [64], "ffn.key.weight": [256, 64], "ffn.value.weight": [64, 256]}
    for lora in "wavg" if layer else "wag":
        shapes |= {f"attn.{lora}_lora.lora.{part}.weight": [64, 64] for part in (0, 2)} | ({} if lora == "g" else {f"attn.{lora}_lora.lora.2.bias": [64]})
    return in_layer(layer, shapes)


WRITTEN["rwkv7"] = {"model.embeddings.weight": [VOCAB, 64], "model.norm.weight": [64], "model.norm.bias": [64], "lm_head.weight": [VOCAB, 64], **rwkv7(0), **rwkv7(1)}
PLAIN_QUERIES = {key: shape for key, shape in WRITTEN["bailing_moe3"].items() if "attention.q_a_" not in key and "attention.q_b_" not in key}
MODELS.update({
    "bailing_moe3_queries": ("bailing_hybrid", dict(LING3, q_lora_rank=None), {}, {}),
    "dbrx": ("dbrx", dict(architectures=["DbrxForCausalLM"], model_type="dbrx", d_model=64, n_heads=4, n_layers=2, max_seq_len=512, vocab_size=VOCAB, tie_word_embeddings=False, rope_theta=500000.0, torch_dtype="bfloat16",
                          attn_config=dict(clip_qkv=8, kv_n_heads=2, rope_theta=500000), ffn_config=dict(ffn_hidden_size=128, moe_num_experts=4, moe_top_k=2)), {}, {}),
    "llava": ("llama", dict(UNTIED), {}, {}),
})
NEWER += ("llava",)
WRITTEN.update({
    "bailing_moe3_queries": {**PLAIN_QUERIES, "model.layers.1.attention.q_proj.weight": [320, 64]},
    "dbrx": {"transformer.wte.weight": [VOCAB, 64], "transformer.norm_f.weight": [64], "lm_head.weight": [VOCAB, 64],
             **{f"transformer.blocks.{layer}.{name}": shape for layer in (0, 1) for name, shape in {
                 "norm_attn_norm.norm_1.weight": [64], "norm_attn_norm.norm_2.weight": [64], "norm_attn_norm.attn.Wqkv.weight": [128, 64],
                 "norm_attn_norm.attn.out_proj.weight": [64, 64], "ffn.router.layer.weight": [4, 64], "ffn.experts.mlp.w1": [512, 64],
                 "ffn.experts.mlp.v1": [512, 64], "ffn.experts.mlp.w2": [512, 64]}.items()}},
})
# Scheme of `amn forget`: arguments of mlx-lm.
SCHEMES = {"mlx-4bit": dict(q_bits=4), "mlx-8bit": dict(q_bits=8), "mlx-mxfp4": dict(q_mode="mxfp4")}


def to_mxfp4(tensors):
    """Experts of gpt-oss as blocks of 32 codes with a scale."""
    out = {}
    for name, (dtype, shape) in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, inner, outer = shape
            out[name + "_blocks"] = ["U8", [experts, outer, inner // 32, 16]]
            out[name + "_scales"] = ["U8", [experts, outer, inner // 32]]
        else:
            out[name] = [dtype, shape]
    return out


def saved_tensors(model):
    """Names and shapes as the model saves them, which newer versions of transformers have otherwise in memory."""
    from safetensors import safe_open

    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        with safe_open(Path(directory) / "model.safetensors", "np") as f:
            return {key: ["BF16", list(f.get_slice(key).get_shape())] for key in f.keys()}


def as_published(name, saved, tensors):
    """What transformers 5 saves otherwise than the models are published."""
    if name == "nemotron_h":
        # Of a model without experts it writes fields of experts that are not there.
        extra = ("expert", "moe", "group", "routed", "topk", "layers_block_type")
        for key in [key for key in saved if any(part in key for part in extra) and key != "n_groups"]:
            del saved[key]
    if name == "mimo_v2_flash":
        # Lists of numbers in place of kinds.
        for key in ("rope_parameters", "layer_types", "mlp_layer_types", "rms_norm_eps"):
            del saved[key]
    if name == "kimi_linear":
        # transformers saves the layer without experts under the name of the others.
        tensors = {key.replace("layers.0.block_sparse_moe.", "layers.0.mlp."): value for key, value in tensors.items()}
    if name == "gpt2":
        # mlx-lm knows the names without the prefix alone.
        tensors = {key.removeprefix("transformer."): value for key, value in tensors.items()}
    if name.startswith("qwen3_5"):
        # The language model of a model with images.
        whole = "Qwen3_5Moe" if name == "qwen3_5_moe" else "Qwen3_5"
        text = {key: value for key, value in saved.items() if key != "architectures"}
        outer = {"architectures": [whole + "ForConditionalGeneration"], "model_type": name, "eos_token_id": 1, "text_config": text,
                 "tie_word_embeddings": text["tie_word_embeddings"], "vision_config": {"model_type": name, "hidden_size": 8}}
        tensors = {key.replace("model.", "model.language_model.", 1): value for key, value in tensors.items() if ".experts." not in key}
        if name == "qwen3_5_moe":
            experts, width, hidden = text["num_experts"], text["moe_intermediate_size"], text["hidden_size"]
            for layer in range(text["num_hidden_layers"]):
                prefix = f"model.language_model.layers.{layer}.mlp.experts."
                tensors[prefix + "gate_up_proj"] = ["BF16", [experts, 2 * width, hidden]]
                tensors[prefix + "down_proj"] = ["BF16", [experts, hidden, width]]
        tensors["model.visual.pos_embed.weight"] = ["BF16", [16, 8]]
        tensors["mtp.norm.weight"] = ["BF16", [64]]
        return outer, tensors
    if name == "gemma4_moe":
        text = {key: value for key, value in saved.items() if key != "architectures"}
        outer = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "eos_token_id": 1, "vocab_size": VOCAB, "text_config": text,
                 "tie_word_embeddings": True, "vision_config": {"model_type": "gemma4_vision", "hidden_size": 8}}
        tensors = {key.replace("model.", "model.language_model.", 1): value for key, value in tensors.items()}
        tensors["model.embed_vision.embedding_projection.weight"] = ["BF16", [64, 8]]
        return outer, tensors
    return saved, tensors


# Language models of models with images: class and `model_type` of the whole model, and what names begin with.
NESTED = {
    "mistral3": ("Mistral3ForConditionalGeneration", "mistral3", "language_model."),
    "ministral3": ("Mistral3ForConditionalGeneration", "mistral3", "language_model."),
    "qwen2_vl": ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", ""),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", "qwen3_vl", "model.language_model."),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", "model.language_model."),
    "pixtral": ("LlavaForConditionalGeneration", "llava", "language_model."),
    "llava": ("LlavaForConditionalGeneration", "llava", "language_model."),
    "gemma3n": ("Gemma3nForConditionalGeneration", "gemma3n", "model.language_model."),
    "gemma4_unified": ("Gemma4UnifiedForConditionalGeneration", "gemma4_unified", "model.language_model."),
    "llama4": ("Llama4ForConditionalGeneration", "llama4", "language_model."),
    "kimi_k25": ("KimiK25ForConditionalGeneration", "kimi_k25", "language_model."),
}
# Of these, further fields are those of the language model.
INNER_FIELDS = ("gemma4_moe", "gemma3n", "gemma4_unified", "llama4", "kimi_k25")
TOWERS = {"gemma3n": "model.vision_tower.norm.weight", "gemma4_unified": "model.embed_vision.embedding_projection.weight", "llama4": "vision_model.layernorm_pre.weight"}


def nest(name, saved, tensors):
    """The model with the names and the config of one with images."""
    architecture, outer_type, prefix = NESTED[name]
    text = {key: value for key, value in saved.items() if key not in ("architectures", "dtype", "torch_dtype")}
    if name.startswith("qwen3_vl"):
        text |= {"rope_theta": text.pop("rope_parameters")["rope_theta"],
                 "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]}, "model_type": f"{name}_text"}
    if name == "qwen3_vl_moe" and "num_local_experts" in text:
        text["num_experts"] = text.pop("num_local_experts")
    if name in ("mistral3", "pixtral", "llava", "qwen2_vl"):
        text["rope_theta"] = text.pop("rope_parameters")["rope_theta"]
    outer = {"architectures": [architecture], "model_type": outer_type, "eos_token_id": 1, "torch_dtype": "bfloat16",
             "vision_config": {"model_type": outer_type, "hidden_size": 8}}
    if name == "gemma4_unified":
        outer["vocab_size"] = VOCAB
    outer = text | outer if name == "qwen2_vl" else outer | {"text_config": text, "tie_word_embeddings": text["tie_word_embeddings"]}
    if prefix == "language_model.":
        tensors = {prefix + key: value for key, value in tensors.items()}
    elif prefix:
        tensors = {key.replace("model.", prefix, 1): value for key, value in tensors.items() if ".experts." not in key}
        if name == "qwen3_vl_moe":  # matrices [in, out], of all experts in one tensor
            experts, width, hidden = text["num_experts"], text["moe_intermediate_size"], text["hidden_size"]
            for layer in range(text["num_hidden_layers"]):
                place = f"{prefix}layers.{layer}.mlp.experts."
                tensors[place + "gate_up_proj"] = ["BF16", [experts, hidden, 2 * width]]
                tensors[place + "down_proj"] = ["BF16", [experts, width, hidden]]
    tower = "vision_tower.ln_pre.weight" if prefix == "language_model." else "visual.norm.weight" if not prefix else "model.visual.norm.weight"
    tensors[TOWERS.get(name, tower)] = ["BF16", [8]]
    return outer, tensors


# Tensors of F32 in classes that are not in transformers.
WIDE = ("expert_bias", "e_score_correction_bias", "router_bias", "attention.A_log", "attention.dt_bias")


def describe(name):
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    model_type, config, fields, more = MODELS[name]
    if name in WRITTEN:
        return {"config": config, "hf": {key: ["F32" if key.endswith(WIDE) else "BF16", shape] for key, shape in WRITTEN[name].items()}}
    with torch.device("cpu" if name in NEWER else "meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**config), torch_dtype=torch.bfloat16)
    tied = model._tied_weights_keys if model.config.tie_word_embeddings else []
    tensors = {key: ["BF16", list(value.shape)] for key, value in model.state_dict().items() if key not in (tied or [])}
    with tempfile.TemporaryDirectory() as directory:
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(directory)
        saved = json.loads((Path(directory) / "config.json").read_text())
    if name in NEWER:
        tensors = saved_tensors(model)
    saved, tensors = as_published(name, saved, tensors)
    if name in NESTED:
        saved, tensors = nest(name, saved, tensors)
    if name == "gpt_oss":
        tensors = to_mxfp4(tensors)
    if name == "gemma3_vision":
        tensors = {"language_model." + key: value for key, value in tensors.items()}
        saved = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 2],
                 "vocab_size": VOCAB, "text_config": {key: value for key, value in saved.items() if key != "architectures"},
                 "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 8}}
    (saved["text_config"] if name in INNER_FIELDS else saved).update(fields)
    tensors.update(more)
    return {"config": saved, "hf": tensors}


def values(name, dtype, shape):
    """Bytes of a tensor: a linear congruential generator that the CRC-32 of the name begins."""
    import numpy as np

    count, state, numbers = int(np.prod(shape)), zlib.crc32(name.encode()), []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        numbers.append(state)
    numbers = np.array(numbers, dtype=np.uint32)
    if dtype == "U8":
        # Exponents near that of 1; codes of any value.
        return (120 + (numbers >> 28) if name.endswith("_scales") else numbers >> 24).astype(np.uint8)
    bits = (numbers >> 31 << 15) | (0x3D00 + ((numbers >> 16) & 0x1FF))
    if dtype == "F32":
        return (bits << 16).astype(np.uint32)
    return bits.astype(np.uint16)


def write_hf(model, source):
    import mlx.core as mx

    (source / "config.json").write_text(json.dumps(model["config"]))
    types = {"BF16": mx.bfloat16, "F32": mx.float32, "U8": mx.uint8}
    arrays = {name: mx.array(values(name, dtype, shape)).view(types[dtype]).reshape(shape) for name, (dtype, shape) in model["hf"].items()}
    mx.save_safetensors(str(source / "model.safetensors"), arrays, metadata={"format": "pt"})


# Models that mlx-lm's recipes are tried on: with one tensor for each matrix, with routers of 8 bits, with other layers of 8 bits,
# with latent attention, and with experts that are MXFP4 already.
RECIPES = {
    "llama": ("2_6", "4_6"),
    "qwen3_moe": ("3_6",),
    "granite": ("4_6",),
    "deepseek_v3": ("3_4",),
    "gpt_oss": ("2_6",),
}


def with_layers(found, count):
    """The model with as many layers, which are its last one again."""
    config = found["config"]
    last = config["num_hidden_layers"] - 1
    config["num_hidden_layers"] = count
    if "layer_types" in config:
        config["layer_types"] = (config["layer_types"] * count)[:count]
    for name, entry in list(found["hf"].items()):
        for layer in range(last + 1, count):
            found["hf"][name.replace(f"layers.{last}.", f"layers.{layer}.")] = entry


def recipes(root, name):
    found = json.loads((root / f"{name}.json").read_text())
    with_layers(found, 8 if name == "llama" else 3)
    schemes = {f"mlx-mixed-{recipe.replace('_', '-')}": dict(quant_predicate=f"mixed_{recipe}", q_group_size=64) for recipe in RECIPES[name]}
    with tempfile.TemporaryDirectory() as directory:
        found["mlx"] = convert(found, Path(directory), schemes)
    return found


def convert(model, directory, schemes):
    """What mlx_lm.convert writes of `model`, without a tokenizer."""
    import mlx.core as mx
    import mlx_lm.convert
    from mlx_lm.utils import load_model

    class Tokenizer:
        def save_pretrained(self, path):
            pass

    source = directory / "hf"
    source.mkdir()
    write_hf(model, source)

    def load(path, **_):
        loaded, config = load_model(Path(path), lazy=True)
        return loaded, Tokenizer(), config

    sys.modules["mlx_lm.convert"].load = load
    names = {mx.bfloat16: "BF16", mx.float16: "F16", mx.float32: "F32", mx.uint32: "U32", mx.uint8: "U8"}
    found = {}
    for scheme, arguments in schemes.items():
        out = directory / scheme
        sys.modules["mlx_lm.convert"].convert(str(source), str(out), quantize=True, **arguments)
        config = json.loads((out / "config.json").read_text())
        assert config["quantization"] == config["quantization_config"]
        tensors = {}
        for name, array in sorted(mx.load(str(out / "model.safetensors")).items()):
            raw = bytes(memoryview(array.reshape(-1).view(mx.uint8)))
            tensors[name] = [names[array.dtype], list(array.shape), zlib.crc32(raw)]
        found[scheme] = {"quantization": config["quantization"], "keys": sorted(config), "tensors": tensors}
        shutil.rmtree(out)
    return found


TOKENS = [[5, 17, 3, 88, 42, 9, 60, 31]]


def with_six_layers(found):
    """The model with its layer six times: mlx-lm's Gemma 3 looks for the sixth."""
    config = found["config"].get("text_config", found["config"])
    config.update(num_hidden_layers=6, layer_types=["sliding_attention"] * 5 + ["full_attention"])
    for name, entry in list(found["hf"].items()):
        for layer in range(1, 6):
            found["hf"][name.replace("layers.0.", f"layers.{layer}.")] = entry


def write(root, name):
    """Runs `amn` both ways, and saves the logits that mlx-lm computes with the model."""
    import mlx.core as mx
    import numpy as np
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model

    directory = root / "check" / name
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "hf").mkdir(parents=True)
    found = json.loads((root / f"{name}.json").read_text())
    if name in ("gemma3", "gemma3_vision"):
        with_six_layers(found)
    if name == "gpt_oss":
        found["config"]["rope_scaling"] = None  # mlx-lm rounds YaRN's bounds, which this model does not
    write_hf(found, directory / "hf")
    amn = os.environ["AMN"]
    subprocess.run([amn, "forget", directory / "hf", "--to", "mlx-8bit", "-o", directory / "mlx"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([amn, "remember", directory / "mlx", "--to", "f32", "-o", directory / "back"], check=True, stdout=subprocess.DEVNULL)
    model, _ = load_model(directory / "mlx")
    model.set_dtype(mx.float32)
    # Without a cache, layers of Gemma 3n that share keys compute some of their own.
    cache = make_prompt_cache(model) if name.startswith("gemma3n") else None
    np.save(directory / "logits.npy", np.array(model(mx.array(TOKENS), cache=cache)))


def load(root, name):
    """Loads what came back, and compares its logits with mlx-lm's."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    directory = root / "check" / name
    model, info = AutoModelForCausalLM.from_pretrained(directory / "back", torch_dtype=torch.float32, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")), info
    with torch.no_grad():
        logits = model(torch.tensor(TOKENS)).logits.numpy()
    expected = np.load(directory / "logits.npy")
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    print(f"{name}: {type(model).__name__}, {error:.1e}")


if __name__ == "__main__":
    step, root = sys.argv[1], Path(sys.argv[2])
    root.mkdir(parents=True, exist_ok=True)
    if step == "recipes":
        for name in RECIPES:
            (Path(sys.argv[3]) / f"{name}.json").write_text(json.dumps(recipes(root, name), separators=(",", ":")) + "\n")
        sys.exit()
    for name in sys.argv[3:] or [name for name in MODELS if step != "hf" or name not in NEWER]:
        path = root / f"{name}.json"
        if step in ("write", "load"):
            {"write": write, "load": load}[step](root, name)
            continue
        if step == "hf":
            found = describe(name)
        else:
            found = json.loads(path.read_text())
            with tempfile.TemporaryDirectory() as directory:
                found["mlx"] = convert(found, Path(directory), SCHEMES)
        path.write_text(json.dumps(found, separators=(",", ":")) + "\n")
        print(name)
