//! Llama, Mistral and Mixtral, which are one architecture to llama.cpp, and Mistral 3, which has
//! the same tensors.
//!
//! Source: `conversion/llama.py`, class `LlamaModel`, and `conversion/mistral3.py` of llama.cpp;
//! defaults of transformers 4.57.6, of Ministral 3 those of 5.24.

use super::{ATTENTION_BIASES, ENDS, MLP, MLP_BIASES, NORMS, VALUES};
use crate::Result;
use crate::families::engine::rows::*;

/// Queries and keys: rope turns pairs of neighbours in llama.cpp's `llama`.
pub(super) const ROTATED: &[TensorRule] = &[
    heads("blk.{i}.attn_q", "model.layers.{i}.self_attn.q_proj", &[Queries, Hidden]),
    heads("blk.{i}.attn_k", "model.layers.{i}.self_attn.k_proj", &[Keys, Hidden]),
];

pub(super) const MIXTRAL_EXPERTS: &[TensorRule] = &[
    same("blk.{i}.ffn_gate_inp", "model.layers.{i}.block_sparse_moe.gate", &[Experts, Hidden]),
    experts(
        "blk.{i}.ffn_gate_exps",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w1",
        &[Inner, Hidden],
    ),
    experts(
        "blk.{i}.ffn_down_exps",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w2",
        &[Hidden, Inner],
    ),
    experts(
        "blk.{i}.ffn_up_exps",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w3",
        &[Inner, Hidden],
    ),
];

pub(super) const SETTINGS: &[Setting] = &[
    count("vocab_size", &["vocab_size"]),
    Setting { key: "rope.dimension_count", fields: &["head_dim"], kind: Kind::HeadSize },
];

const TRAITS: Traits = Traits { has_pre_norms: true, rope: RopeTraits::LLAMA3, ..Traits::PLAIN };

/// Stacks of experts in mlx-lm, in the module that Mixtral names otherwise.
pub(super) const MIXTRAL_STACKS: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate_exps", "model.layers.{i}.block_sparse_moe.switch_mlp.gate_proj"),
    ("blk.{i}.ffn_up_exps", "model.layers.{i}.block_sparse_moe.switch_mlp.up_proj"),
    ("blk.{i}.ffn_down_exps", "model.layers.{i}.block_sparse_moe.switch_mlp.down_proj"),
];

pub(super) const LLAMA: ModelClass = ModelClass {
    gguf: "llama",
    classes: &[
        "LlamaForCausalLM",
        "LLaMAForCausalLM",
        "IQuestCoderForCausalLM",
        "LlamaModel",
        "VoxtralForConditionalGeneration",
        // SmolVLM and Idefics 3
        "VLlama3ForCausalLM",
        "JanusForConditionalGeneration",
    ],
    model_type: "llama",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_act", Text("silu"))],
    biases: &[("attention_bias", ATTENTION_BIASES), ("mlp_bias", MLP_BIASES)],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, MLP],
    settings: &[SETTINGS],
    traits: Traits {
        head_dim: HeadDim::Stated,
        reads_causal: true,
        nested_type: Some("llama"),
        ..TRAITS
    },
    tokenizer: &LLAMA_TOKENIZER,
    mlx: Some(&LLAMA_MLX),
    ..ModelClass::PLAIN
};

/// LLaVA of Llama: as [`LLAMA`], which mlx-lm has with a config of images around it.
pub(super) const LLAVA: ModelClass =
    ModelClass { classes: &["LlavaForConditionalGeneration"], mlx: Some(&LLAVA_MLX), ..LLAMA };

/// Llama that embeds texts, and whose tokens see those behind them.
pub(super) const LLAMA_EMBED: ModelClass = ModelClass {
    gguf: "llama-embed",
    classes: &["LlamaBidirectionalModel"],
    model_type: "llama_bidirec",
    tensors: &[&[ENDS[0], ENDS[1]], NORMS, ROTATED, VALUES, MLP],
    settings: &[SETTINGS, &[setting(Kind::FixedFlag(false), "attention.causal", &[])]],
    traits: Traits {
        ties_output: true,
        reads_causal: false,
        nested_type: None,
        also_implied: &[("is_causal", Bool(false))],
        ..LLAMA.traits
    },
    mlx: None,
    ..LLAMA
};

/// Nanbeige, whose layers all tokens go through several times.
///
/// Source: `conversion/nanbeige.py` of llama.cpp.
pub(super) const NANBEIGE: ModelClass = ModelClass {
    gguf: "nanbeige",
    classes: &["NanbeigeForCausalLM"],
    model_type: "nanbeige",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("num_loops", Int(1)),
        ("skip_loop_final_norm", Bool(false)),
    ],
    settings: &[
        SETTINGS,
        &[
            setting(Kind::Required, "num_loops", &["num_loops"]),
            setting(Kind::Flag, "skip_loop_final_norm", &["skip_loop_final_norm"]),
        ],
    ],
    biases: &[],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
    ],
    traits: Traits { head_dim: HeadDim::AsConfig, ..TRAITS },
    mlx: Some(&NANBEIGE_MLX),
    ..LLAMA
};

const NANBEIGE_MLX: MlxClass = MlxClass {
    stated_fields: &[
        COMMON_FIELDS,
        &["num_key_value_heads", "head_dim", "num_loops", "skip_loop_final_norm"],
    ],
    ..LIKE_LLAMA
};

/// Sarashina 2 for images, whose language model is Llama under another name.
pub(super) const SARASHINA: ModelClass = ModelClass {
    classes: &["Sarashina2VisionForCausalLM"],
    traits: Traits { nested_type: None, sign: Sign::Never, left_out: &["norm."], ..LLAMA.traits },
    mlx: None,
    ..LLAMA
};

/// InternLM 3, which llama.cpp has as Llama.
///
/// Source: `conversion/internlm.py` of llama.cpp; defaults of transformers 5.24.
pub(super) const INTERNLM3: ModelClass = ModelClass {
    classes: &["InternLM3ForCausalLM"],
    model_type: "internlm3",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(2)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_act", Text("silu")), ("qkv_bias", Bool(false)), ("bias", Bool(false))],
    traits: Traits { reads_causal: false, sign: Sign::Never, ..LLAMA.traits },
    tokenizer: &INTERNLM3_TOKENIZER,
    mlx: Some(&INTERNLM3_MLX),
    ..LLAMA
};

const INTERNLM3_MLX: MlxClass = MlxClass {
    implied: &[SILU, ("bias", Bool(false)), ("qkv_bias", Bool(false))],
    scalings: &["linear", "dynamic"],
    stated_fields: &[COMMON_FIELDS, &["max_position_embeddings", "num_key_value_heads"]],
    equal_sizes: HEADS_FILL_HIDDEN,
    ..MlxClass::PLAIN
};

const LLAMA_MLX: MlxClass = MlxClass { reads_kinds: true, ..LIKE_LLAMA };

const LLAVA_MLX: MlxClass = MlxClass {
    stated_fields: &[
        COMMON_FIELDS,
        &[
            "hidden_size",
            "num_hidden_layers",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
        ],
    ],
    prefix: Prefix::IfNested("language_model."),
    ..LLAMA_MLX
};

pub(super) const MISTRAL: ModelClass = ModelClass {
    classes: &["MistralForCausalLM", "LlavaForConditionalGeneration"],
    model_type: "mistral",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(8)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
    ],
    traits: Traits {
        sign: Sign::Never,
        nested_type: Some("mistral"),
        lost_windows: LostWindows::Everywhere,
        default_window: Some(4096),
        ..TRAITS
    },
    mlx: Some(&MISTRAL_MLX),
    ..LLAMA
};

/// Pixtral and Mistral 3 have a config of images around it.
const MISTRAL_MLX: MlxClass = MlxClass {
    reads_kinds: true,
    stated_fields: &[COMMON_FIELDS, &["num_key_value_heads"]],
    lost_windows: LostWindows::Everywhere,
    prefix: Prefix::IfNested("language_model."),
    ..LIKE_LLAMA
};

pub(super) const MIXTRAL: ModelClass = ModelClass {
    classes: &["MixtralForCausalLM"],
    model_type: "mixtral",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(8)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(1e6)),
        ("num_local_experts", Int(8)),
        ("num_experts_per_tok", Int(2)),
    ],
    biases: &[],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, MIXTRAL_EXPERTS],
    traits: Traits { sign: Sign::Experts, lost_windows: LostWindows::Everywhere, ..TRAITS },
    mlx: Some(&MIXTRAL_MLX),
    ..LLAMA
};

const MIXTRAL_MLX: MlxClass = MlxClass {
    renamed: MIXTRAL_STACKS,
    implied: &[SILU, NO_SCALING],
    equal_sizes: HEADS_FILL_HIDDEN,
    lost_windows: LostWindows::Everywhere,
    ..MlxClass::PLAIN
};

/// The language model of Mistral Small 3.1 and later.
pub(super) const MISTRAL3: ModelClass = ModelClass {
    gguf: "mistral3",
    classes: &["MistralForCausalLM", "Mistral3ForConditionalGeneration"],
    traits: Traits { head_dim: HeadDim::Stated, sign: Sign::Rest, ..MISTRAL.traits },
    mlx: Some(&MISTRAL_MLX),
    ..MISTRAL
};

/// Queries behind the length of the training are scaled, by their positions.
pub(super) const MINISTRAL3: ModelClass = ModelClass {
    gguf: "mistral3",
    classes: &["Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"],
    model_type: "ministral3",
    defaults: &[
        ("max_position_embeddings", Int(262_144)),
        ("num_key_value_heads", Int(8)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-5)),
        // Of a model that states its rope, as all have to.
        ("rope_theta", Float(10_000.0)),
    ],
    settings: &[
        SETTINGS,
        &[
            setting(Kind::Scaling, "rope.scaling.yarn_log_multiplier", &["mscale_all_dim"]),
            setting(Kind::Scaling, "attention.temperature_scale", &["llama_4_scaling_beta"]),
        ],
    ],
    traits: Traits {
        nested_type: Some("ministral3"),
        sign: Sign::Has("attention.temperature_scale"),
        default_window: None,
        ..MISTRAL.traits
    },
    mlx: Some(&MINISTRAL3_MLX),
    ..MISTRAL
};

const MINISTRAL3_MLX: MlxClass = MlxClass {
    implied: &[SILU, NO_BIAS, ("sliding_window", Absent)],
    scalings: &["yarn"],
    stated_fields: &[&["rms_norm_eps", "num_key_value_heads", "head_dim", "tie_word_embeddings"]],
    rope: RopeFields::NestedAlone,
    prefix: Prefix::IfNested("language_model."),
    ..MlxClass::PLAIN
};

/// The tokenizers of the converter's class of Llama.
pub(super) const LLAMA_TOKENIZER: TokenizerRules = TokenizerRules {
    before: &[KeyRule::SpacePrefix],
    after: &[KeyRule::Own(by_size)],
    ..TokenizerRules::PLAIN
};

/// Keys of Code Llama and of small Granite models, told by the sizes of their vocabularies.
fn by_size(files: &TokenizerFiles<'_>, keys: &mut KeyList) -> Result<()> {
    match files.request.vocab_size {
        32016 => files.write_end_of_turn(32010, keys)?,
        49152 => keys.ggml_flag("add_bos_token", false),
        _ => {}
    }
    Ok(())
}

const INTERNLM3_TOKENIZER: TokenizerRules = TokenizerRules {
    between: &[KeyRule::SpacePrefix],
    special: Some(end_of_chat),
    ..TokenizerRules::PLAIN
};

/// Chat models end a turn with a token that the files do not name as EOS. Only what
/// tokenizer_config.json marks as special counts.
fn end_of_chat(files: &TokenizerFiles<'_>, special: &mut SpecialVocab) -> Result<()> {
    let listed = files.listed_tokens()?;
    let mut ends = listed.iter().filter(|token| token.content == "<|im_end|>");
    if let Some(end) = ends.rfind(|token| token.special) {
        special.replace_id("eos", end.id);
    }
    Ok(())
}
