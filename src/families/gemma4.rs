//! Gemma 4: layers with a window and layers that see the whole text have heads of different
//! lengths.
//!
//! Source: `Gemma4Model` in `conversion/gemma.py` of llama.cpp; defaults of transformers 5.23.

pub(super) mod assistant;
pub(super) mod dspark;
pub(super) mod sizes;

use serde_json::Value;

use self::sizes::{DOUBLE_WIDE, FULL_HEAD, FULL_KV_HEADS, SHARED};
use super::gemma::FOUR_NORMS;
use super::{CAUSAL, ENDS, MLP, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::fields::{
    FULL_ATTENTION, LAYER_KINDS, LAYERS, array, float, wrong_key,
};
use crate::families::engine::rows::*;
use crate::families::engine::table::ConfigFields;
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};

const ATTENTION: &[TensorRule] = &[
    QUERIES[0],
    TensorRule { need: Need::OwnKeys, ..QUERIES[1] },
    TensorRule { need: Need::OwnValues, ..VALUES[0] },
    VALUES[1],
    super::HEAD_NORMS[0],
    TensorRule { need: Need::OwnKeys, ..super::HEAD_NORMS[1] },
    parameter(
        "blk.{i}.layer_output_scale.weight",
        "model.layers.{i}.layer_scalar",
        (Transform::None, &[One], &[One]),
    ),
];

/// Length of what each layer gets of a token beside the hidden state.
const INPUT: Dim = Field("hidden_size_per_layer_input");
const WITH_INPUTS: Need = Need::Above0("hidden_size_per_layer_input");
pub(super) const ALL_INPUTS: Dim = Product(&[INPUT, Layers]);

pub(super) const INPUTS: &[TensorRule] = &[
    only(
        WITH_INPUTS,
        "per_layer_token_embd",
        "model.embed_tokens_per_layer",
        &[Field("vocab_size_per_layer_input"), ALL_INPUTS],
    ),
    only(
        WITH_INPUTS,
        "per_layer_model_proj",
        "model.per_layer_model_projection",
        &[ALL_INPUTS, Hidden],
    ),
    only(WITH_INPUTS, "per_layer_proj_norm", "model.per_layer_projection_norm", &[INPUT]),
    only(
        WITH_INPUTS,
        "blk.{i}.inp_gate",
        "model.layers.{i}.per_layer_input_gate",
        &[INPUT, Hidden],
    ),
    only(WITH_INPUTS, "blk.{i}.proj", "model.layers.{i}.per_layer_projection", &[Hidden, INPUT]),
    only(WITH_INPUTS, "blk.{i}.post_norm", "model.layers.{i}.post_per_layer_input_norm", &[Hidden]),
];

/// The experts of checkpoints in NVFP4.
const EXPERTS_APART: &[(&str, &[&str])] = &[
    (
        "model.layers.{i}.experts.gate_up_proj",
        &[
            "model.layers.{i}.experts.{e}.gate_proj.weight",
            "model.layers.{i}.experts.{e}.up_proj.weight",
        ],
    ),
    ("model.layers.{i}.experts.down_proj", &["model.layers.{i}.experts.{e}.down_proj.weight"]),
];

const WITH_EXPERTS: Need = Need::If("enable_moe_block");

/// A parameter of layers with experts.
const fn of_experts(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    TensorRule { need: WITH_EXPERTS, ..parameter(gguf, hf, (Transform::None, shape, shape)) }
}

/// Experts beside the feed-forward layer.
const EXPERTS: &[TensorRule] = &[
    only(WITH_EXPERTS, "blk.{i}.ffn_gate_inp", "model.layers.{i}.router.proj", &[Experts, Hidden]),
    of_experts("blk.{i}.ffn_gate_inp.scale", "model.layers.{i}.router.scale", &[Hidden]),
    of_experts(
        "blk.{i}.ffn_down_exps.scale",
        "model.layers.{i}.router.per_expert_scale",
        &[Experts],
    ),
    of_experts(
        "blk.{i}.ffn_gate_up_exps.weight",
        "model.layers.{i}.experts.gate_up_proj",
        &[Experts, Sum(&[ExpertInner, ExpertInner]), Hidden],
    ),
    of_experts(
        "blk.{i}.ffn_down_exps.weight",
        "model.layers.{i}.experts.down_proj",
        &[Experts, Hidden, ExpertInner],
    ),
    only(
        WITH_EXPERTS,
        "blk.{i}.post_ffw_norm_1",
        "model.layers.{i}.post_feedforward_layernorm_1",
        &[Hidden],
    ),
    only(
        WITH_EXPERTS,
        "blk.{i}.post_ffw_norm_2",
        "model.layers.{i}.post_feedforward_layernorm_2",
        &[Hidden],
    ),
    only(
        WITH_EXPERTS,
        "blk.{i}.pre_ffw_norm_2",
        "model.layers.{i}.pre_feedforward_layernorm_2",
        &[Hidden],
    ),
];

/// Stacks of Gemma 4, whose experts are parameters of transformers.
const GEMMA4_STACKS: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate_exps.weight", "model.layers.{i}.experts.switch_glu.gate_proj.weight"),
    ("blk.{i}.ffn_up_exps.weight", "model.layers.{i}.experts.switch_glu.up_proj.weight"),
    ("blk.{i}.ffn_down_exps.weight", "model.layers.{i}.experts.switch_glu.down_proj.weight"),
];

/// One of the projections of the experts of Gemma 4, which GGUF has in one.
const fn gemma4_half(half: usize, gguf: &'static str) -> TensorRule {
    const WIDTH: Dim = ExpertInner;
    TensorRule {
        need: Need::If("enable_moe_block"),
        ..parameter(
            gguf,
            "model.layers.{i}.experts.gate_up_proj",
            (
                Transform::Parts(Parts::one(Turn::Equal(2), half)),
                &[Experts, Sum(&[WIDTH, WIDTH]), Hidden],
                &[Experts, WIDTH, Hidden],
            ),
        )
    }
}

pub(super) const GEMMA4: ModelClass = ModelClass {
    gguf: "gemma4",
    classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    model_type: "gemma4_text",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(4)),
        ("head_dim", Int(256)),
        ("rms_norm_eps", Float(1e-6)),
        ("sliding_window", Int(512)),
        ("num_kv_shared_layers", Int(0)),
        ("vocab_size_per_layer_input", Int(262_144)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[("hidden_activation", Text("gelu_pytorch_tanh")), ("attention_bias", Bool(false))],
    own_fields: &[("num_local_experts", "num_experts"), ("num_experts_per_tok", "top_k_experts")],
    tensors: &[ENDS, FOUR_NORMS, ATTENTION, MLP, INPUTS, EXPERTS],
    settings: &[&[
        // llama.cpp caps at 30 without the key.
        setting(Kind::Own(&CAP), "final_logit_softcapping", &["final_logit_softcapping"]),
        count("attention.sliding_window", &["sliding_window"]),
        count("attention.shared_kv_layers", &[SHARED]),
        count("embedding_length_per_layer_input", &["hidden_size_per_layer_input"]),
        setting(Kind::Layers("sliding_attention"), "attention.sliding_window_pattern", &[]),
        setting(Kind::Required, "attention.key_length", &[FULL_HEAD]),
        setting(Kind::Required, "attention.value_length", &[FULL_HEAD]),
        setting(Kind::Required, "attention.key_length_swa", &["head_dim"]),
        setting(Kind::Required, "attention.value_length_swa", &["head_dim"]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        // What follows is a list where it differs by layer.
        setting(Kind::Own(&INNER), "feed_forward_length", &["intermediate_size"]),
        setting(Kind::Own(&KV_HEADS), "attention.head_count_kv", &["num_key_value_heads"]),
        setting(Kind::Required, "rope.dimension_count", &[FULL_HEAD]),
        setting(Kind::Required, "rope.dimension_count_swa", &["head_dim"]),
    ]],
    traits: Traits {
        rope: RopeTraits { partial: Some(1.0), by_kind: true, ..RopeTraits::PLAIN },
        experts_apart: EXPERTS_APART,
        by_layer: Some(&ByLayer { sizes: sizes::layers, restore_rope: Some(sizes::set_rope) }),
        completes: &[sizes::complete],
        from_tensors: &[sizes::from_tensors],
        layer_kinds: Some(("sliding_attention", 6)),
        also_implied: &[CAUSAL],
        ..Traits::PLAIN
    },
    mlx: Some(&GEMMA4_MLX),
    ..ModelClass::PLAIN
};

/// Gemma 4 whose images and sounds are tokens.
pub(super) const GEMMA4_UNIFIED: ModelClass = ModelClass {
    classes: &["Gemma4UnifiedForConditionalGeneration"],
    traits: Traits { sign: Sign::Never, ..GEMMA4.traits },
    tokenizer: &UNIFIED_TOKENIZER,
    ..GEMMA4
};

const GEMMA4_MLX: MlxClass = MlxClass {
    renamed: GEMMA4_STACKS,
    parts: &[gemma4_half(0, GEMMA4_STACKS[0].0), gemma4_half(1, GEMMA4_STACKS[1].0)],
    modes: ROUTER_8_BITS,
    implied: &[("hidden_activation", Text("gelu_pytorch_tanh")), NO_BIAS],
    scalings: &["proportional"],
    stated_fields: &[&[
        "num_key_value_heads",
        "head_dim",
        "global_head_dim",
        "num_global_key_value_heads",
        "num_kv_shared_layers",
        "attention_k_eq_v",
        "use_double_wide_mlp",
        "enable_moe_block",
        "hidden_size_per_layer_input",
        "vocab_size_per_layer_input",
        "layer_types",
        "sliding_window",
        "final_logit_softcapping",
    ]],
    rope: RopeFields::Nested,
    reads_outer_vocab: true,
    prefix: Prefix::IfNested("language_model."),
    ..MlxClass::PLAIN
};

/// FLOAT32 that is 0 if the field is null.
const CAP: OwnSetting = own(
    |setting, model| {
        let cap = model.fields.agreed(setting.fields)?.unwrap_or(0.0);
        Ok(Some(GgufMetadataValue::F32(cap as f32)))
    },
    |stated, _| match float(stated.value).ok_or_else(|| stated.other_type())? {
        zero if zero == 0.0 => Ok(Some(Value::Null)),
        cap => Ok(Some(cap)),
    },
);

/// UINT32: the width of a feed-forward layer, or INT32\[\] of all layers where those without keys
/// have twice the width.
const INNER: OwnSetting = own(
    |setting, model| {
        if !model.fields.flag(DOUBLE_WIDE) {
            let inner = model.fields.count(setting.fields)?;
            return Ok(inner.map(GgufMetadataValue::U32));
        }
        let width = |layer| i32::try_from(model.dims.inner_of(Some(layer))?).ok();
        let widths: Option<_> = (0..model.dims.layers).map(width).collect();
        let too_large = || setting.wrong("it is missing or too large");
        Ok(Some(array(GgufMetadataArray::I32(widths.ok_or_else(too_large)?))))
    },
    |stated, config| match stated.value.as_array() {
        Some(GgufMetadataArray::I32(widths)) => least_width(config, stated.key, widths),
        _ => Ok(Some(stated.count()?.into())),
    },
);

/// The width of most feed-forward layers, if `widths` has twice as much for those that use keys of
/// earlier layers.
fn least_width(config: &mut ConfigFields<'_>, key: &str, widths: &[i32]) -> Result<Option<Value>> {
    let least = widths.iter().copied().min().unwrap_or(0);
    let number = |field: &str| {
        config
            .fields
            .get(field)
            .and_then(Value::as_u64)
            .unwrap_or(0)
    };
    let (layers, shared) = (number(LAYERS[0]), number(SHARED));
    let width = |layer: u64| match layer + shared >= layers {
        true => least.checked_mul(2),
        false => Some(least),
    };
    let mut found = (0..).zip(widths);
    let is_so =
        widths.len() as u64 == layers && found.all(|(layer, found)| width(layer) == Some(*found));
    if !is_so {
        let what = "it is not one width, and twice as much in layers without keys";
        return Err(wrong_key(key, what));
    }
    config.set(DOUBLE_WIDE, true.into(), key)?;
    Ok(Some(least.into()))
}

/// UINT32: the heads of keys and values, or INT32\[\] of all layers where the config has another
/// field for those that see the whole text.
const KV_HEADS: OwnSetting = own(
    |setting, model| {
        if model.fields.get(&[FULL_KV_HEADS]).is_none() {
            let heads = model.fields.count(setting.fields)?;
            return Ok(heads.map(GgufMetadataValue::U32));
        }
        let heads = |layer| model.dims.kv_heads_of(Some(layer));
        let heads = (0..model.dims.layers).map(heads);
        let heads = heads.map(|n| i32::try_from(n).unwrap_or(i32::MAX));
        Ok(Some(array(GgufMetadataArray::I32(heads.collect()))))
    },
    |stated, config| match stated.value.as_array() {
        Some(GgufMetadataArray::I32(heads)) => windowed_kv_heads(config, stated.key, heads),
        _ => Ok(Some(stated.count()?.into())),
    },
);

/// The heads of keys and values of layers with a window, of `heads`, the heads of each layer.
fn windowed_kv_heads(
    config: &mut ConfigFields<'_>,
    key: &str,
    heads: &[i32],
) -> Result<Option<Value>> {
    let kinds = config.fields.get(LAYER_KINDS).and_then(Value::as_array);
    let kinds = kinds.filter(|kinds| kinds.len() == heads.len());
    let kinds = kinds.ok_or_else(|| wrong_key(key, "it has another number of layers"))?;
    let mut found: [Option<i32>; 2] = [None; 2];
    for (kind, heads) in kinds.iter().zip(heads) {
        let of_kind = &mut found[usize::from(kind == FULL_ATTENTION)];
        if *of_kind.get_or_insert(*heads) != *heads {
            return Err(wrong_key(key, "layers of one kind have different numbers"));
        }
    }
    let [windowed, full] = found;
    let full = full.or(windowed).unwrap_or(0);
    config.set(FULL_KV_HEADS, full.into(), key)?;
    Ok(Some(windowed.unwrap_or(full).into()))
}

const UNIFIED_TOKENIZER: TokenizerRules =
    TokenizerRules { after: &[KeyRule::Own(suppressed)], ..TokenizerRules::PLAIN };

/// The tokens that the model must not generate.
fn suppressed(files: &TokenizerFiles<'_>, keys: &mut KeyList) -> Result<()> {
    let generation = files.request.texts.json("generation_config.json")?;
    let tokens = generation
        .as_ref()
        .and_then(|config| config.get("suppress_tokens")?.as_array());
    let id = |token: &Value| token.as_i64().and_then(|id| i32::try_from(id).ok());
    let tokens: Option<Vec<i32>> = tokens.and_then(|tokens| tokens.iter().map(id).collect());
    keys.ggml_array("suppress_tokens", GgufMetadataArray::I32(tokens.unwrap_or_default()));
    Ok(())
}
