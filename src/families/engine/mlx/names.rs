//! Names of mlx-lm that several classes share, or that a class has many of: the rule's name in
//! GGUF, and mlx-lm's.

/// Stacks of experts in place of single ones.
pub(super) const STACKS: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate_exps", "model.layers.{i}.mlp.switch_mlp.gate_proj"),
    ("blk.{i}.ffn_up_exps", "model.layers.{i}.mlp.switch_mlp.up_proj"),
    ("blk.{i}.ffn_down_exps", "model.layers.{i}.mlp.switch_mlp.down_proj"),
];

/// As [`STACKS`], with the name that Mixtral gives the module.
pub(super) const MIXTRAL_STACKS: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate_exps", "model.layers.{i}.block_sparse_moe.switch_mlp.gate_proj"),
    ("blk.{i}.ffn_up_exps", "model.layers.{i}.block_sparse_moe.switch_mlp.up_proj"),
    ("blk.{i}.ffn_down_exps", "model.layers.{i}.block_sparse_moe.switch_mlp.down_proj"),
];

/// As [`STACKS`], and the two parts of the projection from the latent vector of keys and values.
pub(super) const LATENT_STACKS: &[(&str, &str)] = &[
    STACKS[0],
    STACKS[1],
    STACKS[2],
    ("blk.{i}.attn_k_b", "model.layers.{i}.self_attn.embed_q"),
    ("blk.{i}.attn_v_b", "model.layers.{i}.self_attn.unembed_out"),
];

/// Names of GPT-NeoX, whose parts are all called otherwise.
pub(super) const GPT_NEOX_NAMES: &[(&str, &str)] = &[
    ("token_embd", "model.embed_in"),
    ("output_norm", "model.final_layer_norm"),
    ("output", "model.embed_out"),
    ("blk.{i}.attn_norm", "model.h.{i}.input_layernorm"),
    ("blk.{i}.ffn_norm", "model.h.{i}.post_attention_layernorm"),
    ("blk.{i}.attn_qkv", "model.h.{i}.attention.query_key_value"),
    ("blk.{i}.attn_output", "model.h.{i}.attention.dense"),
    ("blk.{i}.ffn_up", "model.h.{i}.mlp.dense_h_to_4h"),
    ("blk.{i}.ffn_down", "model.h.{i}.mlp.dense_4h_to_h"),
];

/// Names of GPT-2. mlx-lm takes the matrices of layers for `[in, out]`, and has them as `[out,
/// in]`.
pub(super) const GPT2_NAMES: &[(&str, &str)] = &[
    ("token_embd", "model.wte"),
    ("position_embd", "model.wpe"),
    ("output_norm", "model.ln_f"),
    ("blk.{i}.attn_norm", "model.h.{i}.ln_1"),
    ("blk.{i}.attn_qkv", "model.h.{i}.attn.c_attn"),
    ("blk.{i}.attn_output", "model.h.{i}.attn.c_proj"),
    ("blk.{i}.ffn_norm", "model.h.{i}.ln_2"),
    ("blk.{i}.ffn_up", "model.h.{i}.mlp.c_fc"),
    ("blk.{i}.ffn_down", "model.h.{i}.mlp.c_proj"),
];

/// Stacks of Nemotron 3, whose experts have no gate.
pub(super) const NEMOTRON_STACKS: &[(&str, &str)] = &[
    ("blk.{i}.ffn_up_exps", "backbone.layers.{i}.mixer.switch_mlp.fc1"),
    ("blk.{i}.ffn_down_exps", "backbone.layers.{i}.mixer.switch_mlp.fc2"),
];

/// Stacks of gpt-oss, whose projections have biases.
pub(super) const GPT_OSS_NAMES: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate_exps.weight", "model.layers.{i}.mlp.experts.gate_proj.weight"),
    ("blk.{i}.ffn_up_exps.weight", "model.layers.{i}.mlp.experts.up_proj.weight"),
    ("blk.{i}.ffn_gate_exps.bias", "model.layers.{i}.mlp.experts.gate_proj.bias"),
    ("blk.{i}.ffn_up_exps.bias", "model.layers.{i}.mlp.experts.up_proj.bias"),
    ("blk.{i}.ffn_down_exps.weight", "model.layers.{i}.mlp.experts.down_proj.weight"),
    ("blk.{i}.ffn_down_exps.bias", "model.layers.{i}.mlp.experts.down_proj.bias"),
];

/// As [`STACKS`], of dots.llm1.
pub(super) const DOTS_STACKS: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate_exps", "model.layers.{i}.mlp.experts.gate_proj"),
    ("blk.{i}.ffn_up_exps", "model.layers.{i}.mlp.experts.up_proj"),
    ("blk.{i}.ffn_down_exps", "model.layers.{i}.mlp.experts.down_proj"),
];

/// Names of LFM 2 with experts: projections are called by what they do, and experts are stacks.
pub(super) const LFM2_MOE_NAMES: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate", "model.layers.{i}.feed_forward.gate_proj"),
    ("blk.{i}.ffn_up", "model.layers.{i}.feed_forward.up_proj"),
    ("blk.{i}.ffn_down", "model.layers.{i}.feed_forward.down_proj"),
    ("blk.{i}.ffn_gate_exps", "model.layers.{i}.feed_forward.switch_mlp.gate_proj"),
    ("blk.{i}.ffn_up_exps", "model.layers.{i}.feed_forward.switch_mlp.up_proj"),
    ("blk.{i}.ffn_down_exps", "model.layers.{i}.feed_forward.switch_mlp.down_proj"),
];

/// As [`MIXTRAL_STACKS`], and the feed-forward layer of models without experts. Beside experts its
/// projections stay fused.
pub(super) const GRANITE_HYBRID_NAMES: &[(&str, &str)] = &[
    MIXTRAL_STACKS[0],
    MIXTRAL_STACKS[1],
    MIXTRAL_STACKS[2],
    ("blk.{i}.ffn_gate", "model.layers.{i}.mlp.gate_proj"),
    ("blk.{i}.ffn_up", "model.layers.{i}.mlp.up_proj"),
    ("blk.{i}.ffn_down", "model.layers.{i}.mlp.down_proj"),
];

/// Stacks of Gemma 4, whose experts are parameters of transformers.
pub(super) const GEMMA4_STACKS: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate_exps.weight", "model.layers.{i}.experts.switch_glu.gate_proj.weight"),
    ("blk.{i}.ffn_up_exps.weight", "model.layers.{i}.experts.switch_glu.up_proj.weight"),
    ("blk.{i}.ffn_down_exps.weight", "model.layers.{i}.experts.switch_glu.down_proj.weight"),
];
