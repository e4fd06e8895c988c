//! PLaMo 1, 2 and 3.
//!
//! Source: `conversion/plamo.py` of llama.cpp; defaults of the code beside published models.

use serde_json::{Map, Value};

use super::mamba::vector;
use super::{ENDS, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS};
use crate::families::engine::fields::{
    FULL_ATTENTION, Fields, HEADS, LAYER_KINDS, LAYERS, array, wrong, wrong_key,
};
use crate::families::engine::rows::*;
use crate::families::engine::table::{Model, OwnSetting, TensorShapes, Tiling, own, required};
use crate::model::gguf::GgufMetadataArray;
use crate::remember::layout::assembled::Change;

/// Heads of queries that share one of keys and values. Neighbours of them do not: GGUF has those that
/// share one side by side.
const SHARED: &str = "n_shared_head";
const REGROUPED: Tiling = Tiling {
    groups: Field(SHARED),
    parts: Field("num_key_value_heads"),
    len: Head,
    behind: None,
    is_of_columns: false,
    change: Change::None,
};
const REGROUPED_COLUMNS: Tiling = Tiling { is_of_columns: true, ..REGROUPED };

macro_rules! layer {
    ($name:literal) => {
        concat!("model.layers.layers.{i}.", $name)
    };
}

const LAYER: &[TensorRule] = &[
    same("blk.{i}.attn_norm", layer!("norm"), &[Hidden]),
    TensorRule {
        hf: layer!("self_attn.q_proj"),
        transform: Transform::Tiled(&REGROUPED),
        ..QUERIES[0]
    },
    TensorRule { hf: layer!("self_attn.k_proj"), ..QUERIES[1] },
    TensorRule { hf: layer!("self_attn.v_proj"), ..VALUES[0] },
    TensorRule {
        hf: layer!("self_attn.o_proj"),
        transform: Transform::Tiled(&REGROUPED_COLUMNS),
        ..VALUES[1]
    },
    same("blk.{i}.ffn_gate", layer!("mlp.gate_proj"), &[Inner, Hidden]),
    same("blk.{i}.ffn_up", layer!("mlp.up_proj"), &[Inner, Hidden]),
    same("blk.{i}.ffn_down", layer!("mlp.down_proj"), &[Hidden, Inner]),
];

pub(super) const PLAMO: ModelClass = ModelClass {
    gguf: "plamo",
    classes: &["PlamoForCausalLM"],
    model_type: "plamo",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        (SHARED, Int(8)),
    ],
    implied: &[("hidden_act", Text("silu"))],
    tensors: &[ENDS, LAYER],
    settings: &[&[]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits::FIXED,
        needs_output: true,
        completes: &[share_heads],
        from_tensors: &[shared_heads],
        ..Traits::PLAIN
    },
    mlx: Some(&PLAMO_MLX),
    ..ModelClass::PLAIN
};

const PLAMO_MLX: MlxClass = MlxClass {
    implied: &[SILU, NO_SCALING],
    stated_fields: &[COMMON_FIELDS, &[SHARED]],
    equal_sizes: HEADS_FILL_HIDDEN,
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};

/// States the heads of keys and values. What configs say of them, the code does not read.
fn share_heads(fields: &mut Fields) -> Result<()> {
    let (heads, shared) = (fields.need(HEADS)?, fields.need(&[SHARED])?);
    if shared == 0 || !heads.is_multiple_of(shared) {
        let what = format!("it is {shared}, and there are {heads} heads");
        return Err(wrong(SHARED, what));
    }
    let keys = heads / shared;
    fields
        .0
        .insert("num_key_value_heads".to_owned(), keys.into());
    Ok(())
}

fn shared_heads(config: &mut Map<String, Value>, _: &TensorShapes<'_>) -> Result<()> {
    let count = |field: &str| config.get(field).and_then(Value::as_u64);
    let keys = count("num_key_value_heads").filter(|keys| *keys > 0);
    let heads = count("num_attention_heads").unwrap_or(0);
    let shared = keys.map(|keys| heads / keys).unwrap_or(0);
    config.insert(SHARED.to_owned(), shared.into());
    Ok(())
}

/// A norm that is stored without what is added to it, `number` as bits.
const fn plus(number: f32, rule: TensorRule) -> TensorRule {
    TensorRule { transform: Transform::Reshaped(Change::Plus(number.to_bits())), ..rule }
}

/// A norm whose name in GGUF has no end.
const fn bare(gguf: &'static str, hf: &'static str) -> TensorRule {
    parameter(gguf, hf, (Transform::None, &[Hidden], &[Hidden]))
}

/// 1 / 5^1.5.
const FIFTH: f32 = 0.089_442_72;

/// What all layers have.
const NORMS_AND_MLP: &[TensorRule] = &[
    ENDS[0],
    plus(1.0, ENDS[1]),
    ENDS[2],
    plus(1.0, same("blk.{i}.attn_norm", layer!("pre_mixer_norm"), &[Hidden])),
    plus(0.2, bare("blk.{i}.post_attention_norm", layer!("post_mixer_norm.weight"))),
    plus(1.0, same("blk.{i}.ffn_norm", layer!("pre_mlp_norm"), &[Hidden])),
    plus(FIFTH, bare("blk.{i}.post_ffw_norm", layer!("post_mlp_norm.weight"))),
    same("blk.{i}.ffn_up", layer!("mlp.gate_up_proj"), &[TwoInner, Hidden]),
    same("blk.{i}.ffn_down", layer!("mlp.down_proj"), &[Hidden, Inner]),
];

const MIXER: &[TensorRule] = &[
    same("blk.{i}.attn_qkv", layer!("mixer.qkv_proj"), &[Sum(&[Queries, Keys, Keys]), Hidden]),
    same("blk.{i}.attn_output", layer!("mixer.o_proj"), &[Hidden, Queries]),
];

pub(super) const PLAMO3: ModelClass = ModelClass {
    gguf: "plamo3",
    classes: &["Plamo3ForCausalLM", "PLaMo3ForCausalLM"],
    model_type: "plamo3",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("head_dim", Int(128)),
        ("num_key_value_heads", Int(4)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("hidden_activation", Text("swiglu")),
        ("attention_bias", Bool(false)),
        ("scale_embedding", Bool(false)),
        ("rope_scaling_factor", Int(1)),
    ],
    tensors: &[
        NORMS_AND_MLP,
        MIXER,
        &[
            plus(1.0, same("blk.{i}.attn_q_norm", layer!("mixer.q_norm"), &[Head])),
            plus(1.0, same("blk.{i}.attn_k_norm", layer!("mixer.k_norm"), &[Head])),
        ],
    ],
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        setting(Kind::Required, "attention.sliding_window", &["window_size"]),
        setting(Kind::Required, "attention.sliding_window_pattern", &["sliding_window_pattern"]),
        setting(Kind::Own(&BASE), "rope.freq_base_swa", &["rope_local_theta"]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Stated,
        also_implied: &[("rope_scaling", Absent)],
        completes: &[stated_base],
        ..Traits::PLAIN
    },
    tokenizer: &TokenizerRules {
        own: Some(|files, keys| files.write_plamo(keys, true)),
        ..TokenizerRules::PLAIN
    },
    mlx: Some(&PLAMO3_MLX),
    ..ModelClass::PLAIN
};

const PLAMO3_MLX: MlxClass = MlxClass {
    implied: &[
        ("hidden_activation", Text("swiglu")),
        NO_BIAS,
        NO_SCALING,
        ("scale_embedding", Bool(false)),
        ("rope_scaling_factor", Int(1)),
    ],
    stated_fields: &[&[
        "rope_theta",
        "rms_norm_eps",
        "num_key_value_heads",
        "head_dim",
        "window_size",
        "sliding_window_pattern",
        "rope_local_theta",
    ]],
    ..MlxClass::PLAIN
};

/// Fails if there is no base: versions of the code have other defaults.
fn stated_base(fields: &mut Fields) -> Result<()> {
    match fields.number(&["rope_theta"])? {
        Some(_) => Ok(()),
        None => Err(wrong("rope_theta", "it is missing")),
    }
}

/// FLOAT32 that each config states: versions of the code have other defaults.
const BASE: OwnSetting = required(own(
    |setting, model| {
        let base = model.fields.number(setting.fields)?;
        let base = base.ok_or_else(|| setting.wrong("it is missing"))?;
        Ok(Some(crate::GgufMetadataValue::F32(base as f32)))
    },
    |stated, _| {
        let base = crate::families::engine::fields::float(stated.value);
        Ok(Some(base.ok_or_else(|| stated.other_type())?))
    },
));

const MAMBA: Need = Need::Kind("mamba");
const ATTENDING: Need = Need::Kind(FULL_ATTENTION);
const STATE: Dim = Field("mamba_d_state");
const WIDTH: Dim = Product(&[Head, STEPS]);
const STEPS: Dim = Field("mamba_num_heads");
/// The width of time steps, which no field states.
const STEP_WIDTH: &str = "mamba_dt_dim";
const RANK: Dim = Field(STEP_WIDTH);

const fn in_mamba(rule: TensorRule) -> TensorRule {
    in_layers(MAMBA, rule)
}

/// A norm or the parameters of heads, whose names have no ends.
const fn of_mamba(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    in_mamba(vector(gguf, hf, shape))
}

const STATE_SPACE: &[TensorRule] = &[
    only(MAMBA, "blk.{i}.ssm_in", layer!("mixer.in_proj"), &[Sum(&[WIDTH, WIDTH]), Hidden]),
    in_mamba(super::mamba::filters(
        "blk.{i}.ssm_conv1d.weight",
        layer!("mixer.conv1d.weight"),
        &[WIDTH, One, Field("mamba_d_conv")],
        &[WIDTH, Field("mamba_d_conv")],
    )),
    only(MAMBA, "blk.{i}.ssm_x", layer!("mixer.bcdt_proj"), &[Sum(&[STATE, STATE, RANK]), WIDTH]),
    of_mamba("blk.{i}.ssm_dt.weight", layer!("mixer.dt_proj.weight"), &[STEPS, RANK]),
    of_mamba("blk.{i}.ssm_dt.bias", layer!("mixer.dt_bias"), &[STEPS]),
    of_mamba("blk.{i}.ssm_dt_norm", layer!("mixer.dt_norm_weight"), &[RANK]),
    of_mamba("blk.{i}.ssm_b_norm", layer!("mixer.B_norm_weight"), &[STATE]),
    of_mamba("blk.{i}.ssm_c_norm", layer!("mixer.C_norm_weight"), &[STATE]),
    in_mamba(parameter(
        "blk.{i}.ssm_a",
        layer!("mixer.A_log"),
        (Transform::NEG_EXP, &[STEPS], &[STEPS]),
    )),
    of_mamba("blk.{i}.ssm_d", layer!("mixer.D"), &[STEPS]),
    only(MAMBA, "blk.{i}.ssm_out", layer!("mixer.out_proj"), &[Hidden, WIDTH]),
    in_layers(ATTENDING, MIXER[0]),
    in_layers(ATTENDING, MIXER[1]),
    in_layers(
        ATTENDING,
        vector("blk.{i}.attn_q_norm.weight", layer!("mixer.q_weight"), &[Heads, Head]),
    ),
    in_layers(
        ATTENDING,
        vector(
            "blk.{i}.attn_k_norm.weight",
            layer!("mixer.k_weight"),
            &[Field("num_key_value_heads"), Head],
        ),
    ),
];

pub(super) const PLAMO2: ModelClass = ModelClass {
    gguf: "plamo2",
    classes: &["Plamo2ForCausalLM", "PLaMo2ForCausalLM"],
    model_type: "plamo2",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("num_key_value_heads", Int(4)),
        (HEAD_WIDTH, Int(128)),
        ("mamba_d_state", Int(64)),
        ("mamba_d_conv", Int(4)),
        ("mamba_num_heads", Int(64)),
        (STEP, Int(2)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[("mamba_enabled", Bool(true))],
    tensors: &[NORMS_AND_MLP, STATE_SPACE],
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        setting(Kind::Own(&HEADS_BY_LAYER), "attention.head_count", &["num_attention_heads"]),
        setting(
            Kind::KvHeadsBut("mamba", FULL_ATTENTION),
            "attention.head_count_kv",
            &["num_key_value_heads"],
        ),
        setting(Kind::HeadSize, "attention.key_length", &["head_dim"]),
        setting(Kind::HeadSize, "attention.value_length", &["head_dim"]),
        setting(Kind::Required, "ssm.state_size", &["mamba_d_state"]),
        setting(Kind::Required, "ssm.conv_kernel", &["mamba_d_conv"]),
        setting(Kind::Required, "ssm.time_step_rank", &["mamba_num_heads"]),
        setting(Kind::Product, "ssm.inner_size", &["head_dim", "mamba_num_heads"]),
        setting(Kind::Fixed(0), "ssm.group_count", &[]),
    ]],
    traits: Traits {
        laws: &[windows],
        needs_kind: Some(FULL_ATTENTION),
        completes: &[complete],
        restores: &[restore],
        ..Traits::PLAIN
    },
    tokenizer: &TokenizerRules {
        own: Some(|files, keys| files.write_plamo(keys, false)),
        ..TokenizerRules::PLAIN
    },
    mlx: Some(&PLAMO2_MLX),
    ..ModelClass::PLAIN
};

const PLAMO2_MLX: MlxClass = MlxClass {
    implied: &[("mamba_enabled", Bool(true)), ("rope_theta", Float(10_000.0)), NO_SCALING],
    stated_fields: &[&[
        "rms_norm_eps",
        "num_key_value_heads",
        HEAD_WIDTH,
        "mamba_d_state",
        "mamba_d_conv",
        "mamba_num_heads",
        STEP,
    ]],
    laws: &[windows_in_mlx],
    ..MlxClass::PLAIN
};

fn windows_in_mlx(model: &Model<'_>) -> Result<Option<String>> {
    Ok(lost_window(model)?.map(|window| {
        format!("mlx-lm's plamo2 has no windows: of texts longer than {window} tokens it computes something else")
    }))
}

/// Field of the length of a head.
const HEAD_WIDTH: &str = "hidden_size_per_head";
/// Field of how many layers there are from one with attention to the next.
const STEP: &str = "mamba_step";

/// Whether a layer has a state space.
fn is_mamba(layer: usize, layers: usize, step: usize) -> bool {
    match layers <= step / 2 {
        true => layer + 1 != layers,
        false => layer % step != step / 2,
    }
}

/// States kinds of layers and sizes that the class computes.
fn complete(fields: &mut Fields) -> Result<()> {
    let step = fields.need(&[STEP])? as usize;
    if step < 2 {
        return Err(wrong(STEP, "it is below 2"));
    }
    let layers = fields.need(LAYERS)?.min(MOST_LAYERS) as usize;
    let kind = |layer| {
        if is_mamba(layer, layers, step) {
            "mamba"
        } else {
            FULL_ATTENTION
        }
    };
    let kinds: Value = (0..layers).map(kind).collect();
    fields.0.insert(LAYER_KINDS.to_owned(), kinds);
    let width = (fields.need(&["hidden_size"])? / 16).max(64);
    fields.0.insert(STEP_WIDTH.to_owned(), width.into());
    let head = fields.need(&[HEAD_WIDTH])?;
    fields.0.insert("head_dim".to_owned(), head.into());
    Ok(())
}

/// Names sizes as configs do, and finds the step of the kinds of layers.
fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    let head = config.remove("head_dim").unwrap_or_default();
    config.insert(HEAD_WIDTH.to_owned(), head);
    config.remove(LAYER_KINDS);
    let kinds: Vec<_> = dims
        .kinds()
        .into_iter()
        .flatten()
        .map(|kind| kind == "mamba")
        .collect();
    let first = kinds.iter().position(|is_mamba| !is_mamba).unwrap_or(0);
    let fits = |step: &usize| {
        let layers = kinds.iter().enumerate();
        let mut all = layers.map(|(layer, found)| is_mamba(layer, kinds.len(), *step) == *found);
        *step > 1 && all.all(|is_same| is_same)
    };
    let step = [2 * first, 2 * first + 1, 2 * kinds.len()]
        .into_iter()
        .find(fits);
    let what = "layers with attention do not come back every so often";
    let step = step.ok_or_else(|| wrong_key("attention.head_count_kv", what))?;
    config.insert(STEP.to_owned(), step.into());
    Ok(())
}

fn windows(model: &Model<'_>) -> Result<Option<String>> {
    Ok(lost_window(model)?.map(|window| {
        format!("llama.cpp's plamo2 has no windows: of texts longer than {window} tokens it computes something else")
    }))
}

/// Attention has a window in all layers but those that are listed.
fn lost_window(model: &Model<'_>) -> Result<Option<u32>> {
    let window = model.fields.count(&["attention_window_size"])?;
    let full = model
        .fields
        .0
        .get("full_attention_idx")
        .and_then(Value::as_array);
    let is_full = |layer: usize| full.is_some_and(|all| all.contains(&layer.into()));
    let mut kinds = model.dims.kinds().into_iter().flatten().enumerate();
    let has_window = kinds.any(|(layer, kind)| kind == FULL_ATTENTION && !is_full(layer));
    Ok(window.filter(|_| has_window))
}

/// INT32\[\]: heads of each layer. llama.cpp's converter writes 0 for those without attention, and
/// with 0 in the first one llama.cpp rotates nothing and does not end.
const HEADS_BY_LAYER: OwnSetting = required(own(
    |_, model| {
        let heads = i32::try_from(model.dims.heads).unwrap_or(i32::MAX);
        Ok(Some(array(GgufMetadataArray::I32(vec![heads; model.dims.layers]))))
    },
    |stated, _| Ok(Some(stated.numbers()?.iter().copied().max().unwrap_or(0).into())),
));
