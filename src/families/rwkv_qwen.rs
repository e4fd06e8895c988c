//! Models of Qwen 2 whose attention is that of RWKV 6 or 7.
//!
//! Source: `conversion/rwkv.py` of llama.cpp.

use super::rwkv::{
    FIVE, HEAD_SIZE, NAMES6, NO_KEY_HEADS, ONE_SHIFT, SIX, STATES, flat, shifts, some, square,
    turned,
};
use super::{ENDS, MLP, NORMS};
use crate::families::engine::fields::HIDDEN;
use crate::families::engine::rows::*;
use crate::families::engine::source::{Rearrangement, SourceRows, SourceTensor, unchanged};
use crate::families::engine::table::{ConfigFields, OwnSetting, OwnTransform, own, required};
use crate::families::transposed;
use crate::remember::layout::assembled::RowOrder;
use crate::{GgufMetadataValue, TargetDtype};

macro_rules! attn {
    ($name:literal) => {
        concat!("model.layers.{i}.self_attn.", $name)
    };
}

const RANK: Dim = Field(SHIFT_RANK);
const ALL_RANKS: Dim = Product(&[FIVE, RANK]);
const STEP_RANK: Dim = Field("lora_rank_decay");
const SHIFT_RANK: &str = "lora_rank_tokenshift";
/// Of the five parts, llama.cpp has the first and the fourth in each other's place.
const ORDER: [usize; 5] = [3, 1, 2, 0, 4];

/// A parameter that is transposed, and whose parts have another order.
const SWAPPED: OwnTransform = OwnTransform {
    to_gguf: |sources, _, _| {
        let source = sources.remove(0);
        let dtype = source.stored.unwrap_or(TargetDtype::F32);
        sources.push(transposed(source, dtype));
        Ok(swapped(sources))
    },
    to_hf: |sources, name, _| {
        let source = sources.remove(0);
        let (moved, shape) = swapped(std::slice::from_ref(&source));
        let swapped = source.rearranged((name.to_owned(), shape), &moved);
        let dtype = swapped.stored.unwrap_or(TargetDtype::F32);
        sources.push(transposed(swapped, dtype));
        Ok(unchanged(sources))
    },
};

/// All rows, with the five parts in their order.
fn swapped(sources: &[SourceTensor<'_>]) -> (Rearrangement, Vec<usize>) {
    let shape = sources[0].shape.clone();
    let (cols, all) = match shape.split_last() {
        Some((cols, rows)) => (*cols, rows.iter().product::<usize>()),
        None => (0, 0),
    };
    let rows = all / ORDER.len();
    let piece =
        |part: usize| SourceRows { source: 0, order: RowOrder::From(part * rows), rows, turn: 1 };
    let whole = Rearrangement::of_each(1, RowOrder::From(0), (all, cols));
    (Rearrangement { pieces: ORDER.map(piece).into(), ..whole }, shape)
}

const QRWKV: &[TensorRule] = &[
    flat("blk.{i}.time_mix_lerp_x.weight", attn!("time_maa_x")),
    shifts(attn!("time_maa_{e}"), NAMES6, &[FIVE, One, One, Hidden]),
    parameter(
        "blk.{i}.time_mix_w1.weight",
        attn!("time_maa_w1"),
        (Transform::Own(&SWAPPED), &[Hidden, ALL_RANKS], &[ALL_RANKS, Hidden]),
    ),
    parameter(
        "blk.{i}.time_mix_w2.weight",
        attn!("time_maa_w2"),
        (Transform::Own(&SWAPPED), &[FIVE, RANK, Hidden], &[FIVE, Hidden, RANK]),
    ),
    flat("blk.{i}.time_mix_decay.weight", attn!("time_decay")),
    turned(
        "blk.{i}.time_mix_decay_w1.weight",
        attn!("time_decay_w1"),
        &[Hidden, STEP_RANK],
        &[STEP_RANK, Hidden],
    ),
    turned(
        "blk.{i}.time_mix_decay_w2.weight",
        attn!("time_decay_w2"),
        &[STEP_RANK, Hidden],
        &[Hidden, STEP_RANK],
    ),
    square!("time_mix_receptance", attn!("q_proj")),
    same("blk.{i}.time_mix_key", attn!("k_proj"), &[Keys, Hidden]),
    same("blk.{i}.time_mix_value", attn!("v_proj"), &[Keys, Hidden]),
    square!("time_mix_gate", attn!("gate")),
    square!("time_mix_output", attn!("o_proj")),
];

const QRWKV_BIASES: &[&str] =
    &["blk.{i}.time_mix_receptance", "blk.{i}.time_mix_key", "blk.{i}.time_mix_value"];

pub(super) const RWKV6_QWEN2: ModelClass = ModelClass {
    gguf: "rwkv6qwen2",
    classes: &["RWKV6Qwen2ForCausalLM"],
    model_type: "rwkv6qwen2",
    defaults: &[("rms_norm_eps", Float(1e-6))],
    implied: &[("hidden_act", Text("silu")), ("use_rope", Bool(false))],
    biases: &[("attention_bias", QRWKV_BIASES)],
    tensors: &[ENDS, NORMS, MLP, QRWKV],
    settings: &[
        STATES,
        ONE_SHIFT,
        &[
            setting(Kind::Own(&HEAD_OF_HEADS), "wkv.head_size", &["num_attention_heads"]),
            setting(Kind::Required, "time_mix_extra_dim", &[SHIFT_RANK]),
            setting(Kind::Required, "time_decay_extra_dim", &["lora_rank_decay"]),
        ],
    ],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits::FIXED,
        needs_output: true,
        completes: &[|fields| {
            let is_wide = fields.need(HIDDEN)? >= 4096;
            let (shift, step) = if is_wide { (64, 128) } else { (32, 64) };
            fields.0.entry(SHIFT_RANK).or_insert_with(|| shift.into());
            fields
                .0
                .entry("lora_rank_decay")
                .or_insert_with(|| step.into());
            Ok(())
        }],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

/// UINT32: the length of a head.
const HEAD_OF_HEADS: OwnSetting = required(own(
    |setting, model| Ok(Some(setting.count(model.dims.head)?)),
    |stated, config| {
        heads_of(stated.count()?, config)
            .map(Some)
            .ok_or_else(|| stated.other_type())
    },
));

/// The number of heads of so many values.
fn heads_of(size: u64, config: &ConfigFields<'_>) -> Option<serde_json::Value> {
    let hidden = config.fields.get("hidden_size")?.as_u64()?;
    Some(
        hidden
            .checked_div(size)
            .filter(|heads| heads * size == hidden)?
            .into(),
    )
}

macro_rules! mixer {
    ($name:expr) => {
        concat!("model.layers.{i}.self_attn.time_mixer.", $name)
    };
}

/// Two matrices of low rank as RWKV has them, and a vector.
macro_rules! low_rank {
    ($need:expr, $is_copy:literal, $gguf:literal, $name:literal, $rank:expr) => {
        [
            some(
                $need,
                $is_copy,
                flat(concat!("blk.{i}.time_mix_", $gguf, "0.weight"), mixer!(concat!($name, "0"))),
            ),
            some(
                $need,
                $is_copy,
                turned(
                    concat!("blk.{i}.time_mix_", $gguf, "1.weight"),
                    mixer!(concat!($name, "1")),
                    &[Hidden, $rank],
                    &[$rank, Hidden],
                ),
            ),
            some(
                $need,
                $is_copy,
                turned(
                    concat!("blk.{i}.time_mix_", $gguf, "2.weight"),
                    mixer!(concat!($name, "2")),
                    &[$rank, Hidden],
                    &[Hidden, $rank],
                ),
            ),
        ]
    };
}

const GATED: &str = "wkv_has_gate";
/// Ranks, which llama.cpp's converter knows by heart.
const RANKS: [(&str, u32); 4] =
    [("decay_rank", 64), ("rate_rank", 64), ("value_rank", 32), ("gate_rank", 128)];

const ARWKV: &[TensorRule] = &[
    in_layers(
        Need::Unless(GATED),
        shifts(mixer!("x_{e}"), &["r", "w", "k", "v", "a"], &[FIVE, One, One, Hidden]),
    ),
    in_layers(
        Need::If(GATED),
        shifts(mixer!("x_{e}"), &["r", "w", "k", "v", "a", "g"], &[SIX, One, One, Hidden]),
    ),
    // Behind the above: the flag is true if there are these.
    TensorRule {
        need: Need::If(GATED),
        ..low_rank!(Need::All, false, "g", "g", Field(RANKS[3].0))[1]
    },
    TensorRule {
        need: Need::If(GATED),
        ..low_rank!(Need::All, false, "g", "g", Field(RANKS[3].0))[2]
    },
    flat("blk.{i}.time_mix_k_k.weight", mixer!("k_k")),
    flat("blk.{i}.time_mix_k_a.weight", mixer!("k_a")),
    parameter(
        "blk.{i}.time_mix_r_k.weight",
        mixer!("r_k"),
        (Transform::RESHAPED, &[Quotient(&[Hidden, HEAD_SIZE]), HEAD_SIZE], &[Hidden]),
    ),
    square!("time_mix_receptance", mixer!("receptance")),
    square!("time_mix_key", mixer!("key")),
    square!("time_mix_value", mixer!("value")),
    square!("time_mix_output", mixer!("output")),
    optional("blk.{i}.time_mix_ln", mixer!("ln_x"), &[Hidden]),
];

pub(super) const ARWKV7: ModelClass = ModelClass {
    gguf: "arwkv7",
    classes: &["RwkvHybridForCausalLM"],
    model_type: "rwkv_hybrid",
    defaults: &[("rms_norm_eps", Float(1e-6)), ("head_size", Int(64)), (GATED, Bool(true))],
    implied: &[("hidden_act", Text("silu")), ("wkv_version", Int(7))],
    tensors: &[
        ENDS,
        NORMS,
        MLP,
        ARWKV,
        &low_rank!(Need::All, false, "w", "w", Field(RANKS[0].0)),
        &low_rank!(Need::All, false, "a", "a", Field(RANKS[1].0)),
        &low_rank!(Need::AllButFirst, false, "v", "v", Field(RANKS[2].0)),
        &low_rank!(Need::First, true, "v", "a", Field(RANKS[1].0)),
    ],
    settings: &[
        STATES,
        NO_KEY_HEADS,
        ONE_SHIFT,
        &[
            setting(Kind::Own(&OWN_HEAD_SIZE), "wkv.head_size", &["head_size"]),
            setting(Kind::Required, "attention.decay_lora_rank", &[RANKS[0].0]),
            setting(Kind::Required, "attention.iclr_lora_rank", &[RANKS[1].0]),
            setting(Kind::Required, "attention.value_residual_mix_lora_rank", &[RANKS[2].0]),
            setting(Kind::Own(&GATE_RANK), "attention.gate_lora_rank", &[RANKS[3].0]),
        ],
    ],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits::FIXED,
        needs_output: true,
        completes: &[|fields| {
            let ranks = RANKS.map(|(field, rank)| (field.to_owned(), rank.into()));
            fields.0.extend(ranks);
            Ok(())
        }],
        left_out: &[
            "model.layers.0.self_attn.time_mixer.v0",
            "model.layers.0.self_attn.time_mixer.v1",
            "model.layers.0.self_attn.time_mixer.v2",
        ],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

/// UINT32: the length of a head, of which there are as many as fit the hidden state.
const OWN_HEAD_SIZE: OwnSetting = required(own(
    |setting, model| Ok(Some(GgufMetadataValue::U32(model.fields.need(setting.fields)?))),
    |stated, config| {
        let heads = heads_of(stated.count()?, config).ok_or_else(|| stated.other_type())?;
        config.set("num_attention_heads", heads, stated.key)?;
        Ok(Some(stated.count()?.into()))
    },
));

/// UINT32: 0 without gates.
const GATE_RANK: OwnSetting = required(own(
    |_, model| {
        let rank = if model.fields.flag(GATED) {
            RANKS[3].1
        } else {
            0
        };
        Ok(Some(GgufMetadataValue::U32(rank)))
    },
    |stated, _| Ok(Some(stated.count()?.into())),
));
