//! RWKV 6 and 7: no attention, and states of a fixed size in all layers.
//!
//! Source: `conversion/rwkv.py` of llama.cpp; names of RWKV 7 are those of flash-linear-attention.

use super::ENDS;
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, HIDDEN, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::source::{Rearrangement, SourceTensor};
use crate::families::engine::table::{Model, OwnTransform};
use crate::remember::EncodedAs;
use crate::remember::layout::assembled::Change;

pub(super) const FIVE: Dim = Sum(&[One, One, One, One, One]);
pub(super) const SIX: Dim = Sum(&[FIVE, One]);

/// A parameter `[1, 1, n]`, which GGUF has as a vector.
pub(super) const fn flat(gguf: &'static str, hf: &'static str) -> TensorRule {
    parameter(gguf, hf, (Transform::RESHAPED, &[One, One, Hidden], &[Hidden]))
}

/// A parameter that is the same on both sides.
const fn vector(gguf: &'static str, hf: &'static str) -> TensorRule {
    parameter(gguf, hf, (Transform::None, &[Hidden], &[Hidden]))
}

/// A parameter `[in, out]`, which GGUF has as `[out, in]`.
pub(super) const fn turned(
    gguf: &'static str,
    hf: &'static str,
    shape: &'static [Dim],
    gguf_shape: &'static [Dim],
) -> TensorRule {
    parameter(gguf, hf, (Transform::Transposed, shape, gguf_shape))
}

/// The parts of a token and of the one before that each projection gets, in one tensor.
pub(super) const fn shifts(
    hf: &'static str,
    names: &'static [&'static str],
    gguf_shape: &'static [Dim],
) -> TensorRule {
    let shape = &[One, One, Hidden];
    parameter(
        "blk.{i}.time_mix_lerp_fused.weight",
        hf,
        (Transform::Joined(names), shape, gguf_shape),
    )
}

/// Keys of models without attention, whose fields mean something else in other classes.
pub(super) const STATES: &[Setting] = &[
    setting(Kind::Fixed(1 << 20), "context_length", &[]),
    setting(Kind::Fixed(0), "attention.head_count", &[]),
    setting(Kind::Omitted, "attention.key_length", &[]),
    setting(Kind::Omitted, "attention.value_length", &[]),
];
pub(super) const NO_KEY_HEADS: &[Setting] =
    &[setting(Kind::Omitted, "attention.head_count_kv", &[])];
pub(super) const ONE_SHIFT: &[Setting] = &[setting(Kind::Fixed(1), "token_shift_count", &[])];

/// A projection whose names begin alike.
macro_rules! square {
    ($gguf:literal, $hf:expr) => {
        same(concat!("blk.{i}.", $gguf), $hf, &[Hidden, Hidden])
    };
}

pub(super) use square;

macro_rules! layer7 {
    ($name:literal) => {
        concat!("model.layers.{i}.", $name)
    };
}

/// Two matrices of low rank, and a vector.
macro_rules! low_rank7 {
    ($need:expr, $is_copy:literal, $gguf:literal, $name:literal, $rank:expr) => {
        [
            some(
                $need,
                $is_copy,
                parameter(
                    concat!("blk.{i}.time_mix_", $gguf, "0.weight"),
                    concat!("model.layers.{i}.attn.", $name, "_lora.lora.2.bias"),
                    (Transform::None, &[Hidden], &[Hidden]),
                ),
            ),
            some(
                $need,
                $is_copy,
                same(
                    concat!("blk.{i}.time_mix_", $gguf, "1"),
                    concat!("model.layers.{i}.attn.", $name, "_lora.lora.0"),
                    &[$rank, Hidden],
                ),
            ),
            some(
                $need,
                $is_copy,
                parameter(
                    concat!("blk.{i}.time_mix_", $gguf, "2.weight"),
                    concat!("model.layers.{i}.attn.", $name, "_lora.lora.2.weight"),
                    (Transform::None, &[Hidden, $rank], &[Hidden, $rank]),
                ),
            ),
        ]
    };
}

/// A tensor of some layers. In the first layer llama.cpp needs some that the model does not have, and does
/// not read them: its converter writes copies of others.
pub(super) const fn some(need: Need, is_copy: bool, rule: TensorRule) -> TensorRule {
    TensorRule { need, is_copy, ..rule }
}

const DECAY: Dim = Field("decay_low_rank_dim");
const RATE: Dim = Field("a_low_rank_dim");
const VALUE: Dim = Field("v_low_rank_dim");
const GATE: Dim = Field("gate_low_rank_dim");

const RWKV7_LAYER: &[TensorRule] = &[
    same("token_embd", "model.embeddings", &[Vocab, Hidden]),
    same("token_embd_norm", "model.layers.0.pre_norm", &[Hidden]),
    ENDS[1],
    ENDS[2],
    same("blk.{i}.attn_norm", layer7!("attn_norm"), &[Hidden]),
    same("blk.{i}.attn_norm_2", layer7!("ffn_norm"), &[Hidden]),
    shifts(layer7!("attn.x_{e}"), &["r", "w", "k", "v", "a", "g"], &[SIX, One, One, Hidden]),
    vector("blk.{i}.time_mix_k_k.weight", layer7!("attn.k_k")),
    vector("blk.{i}.time_mix_k_a.weight", layer7!("attn.k_a")),
    parameter(
        "blk.{i}.time_mix_r_k.weight",
        layer7!("attn.r_k"),
        (Transform::RESHAPED, &[Quotient(&[Hidden, Head]), Head], &[Hidden]),
    ),
    square!("time_mix_receptance", layer7!("attn.r_proj")),
    square!("time_mix_key", layer7!("attn.k_proj")),
    square!("time_mix_value", layer7!("attn.v_proj")),
    square!("time_mix_output", layer7!("attn.o_proj")),
    same("blk.{i}.time_mix_ln", layer7!("attn.g_norm"), &[Hidden]),
    vector("blk.{i}.channel_mix_lerp_k.weight", layer7!("ffn.x_k")),
    same("blk.{i}.channel_mix_key", layer7!("ffn.key"), &[Inner, Hidden]),
    same("blk.{i}.channel_mix_value", layer7!("ffn.value"), &[Hidden, Inner]),
    same("blk.{i}.time_mix_g1", layer7!("attn.g_lora.lora.0"), &[GATE, Hidden]),
    same("blk.{i}.time_mix_g2", layer7!("attn.g_lora.lora.2"), &[Hidden, GATE]),
];

pub(super) const RWKV7: ModelClass = ModelClass {
    gguf: "rwkv7",
    classes: &["RWKV7ForCausalLM", "Rwkv7ForCausalLM"],
    model_type: "rwkv7",
    defaults: &[("norm_eps", Float(1e-5)), ("head_dim", Int(64))],
    implied: &[
        ("hidden_act", Text("sqrelu")),
        ("norm_first", Bool(true)),
        ("norm_bias", Bool(true)),
        ("attn", Absent),
    ],
    biases: &[("", NORMS7)],
    tensors: &[
        RWKV7_LAYER,
        &low_rank7!(Need::All, false, "w", "w", DECAY),
        &low_rank7!(Need::All, false, "a", "a", RATE),
        &low_rank7!(Need::AllButFirst, false, "v", "v", VALUE),
        &low_rank7!(Need::First, true, "v", "a", RATE),
    ],
    settings: &[
        STATES,
        NO_KEY_HEADS,
        &[
            setting(Kind::Omitted, "attention.layer_norm_rms_epsilon", &[]),
            number("attention.layer_norm_epsilon", &["norm_eps"]),
            setting(Kind::Required, "wkv.head_size", &["head_dim"]),
            setting(Kind::Required, "attention.decay_lora_rank", &["decay_low_rank_dim"]),
            setting(Kind::Required, "attention.iclr_lora_rank", &["a_low_rank_dim"]),
            setting(Kind::Required, "attention.value_residual_mix_lora_rank", &["v_low_rank_dim"]),
            setting(Kind::Required, "attention.gate_lora_rank", &["gate_low_rank_dim"]),
        ],
    ],
    traits: Traits {
        rope: RopeTraits::FIXED,
        is_recurrent: true,
        needs_output: true,
        completes: &[|fields| widen(fields, |hidden| hidden.saturating_mul(4))],
        left_out: &["model.layers.0.attn.v_lora."],
        laws: &[epsilon_of_heads],
        ..Traits::PLAIN
    },
    tokenizer: &WORLD,
    mlx: Some(&RWKV7_MLX),
    ..ModelClass::PLAIN
};

const RWKV7_MLX: MlxClass = MlxClass {
    modes: &[
        ("token_embd", EncodedAs::Bits(8)),
        ("blk.{i}.time_mix_w2.weight", EncodedAs::Bits(8)),
        ("blk.{i}.time_mix_a2.weight", EncodedAs::Bits(8)),
        ("blk.{i}.time_mix_v2.weight", EncodedAs::Bits(8)),
        ("blk.{i}.time_mix_g2", EncodedAs::Bits(8)),
    ],
    head_rows: &[
        "blk.{i}.time_mix_k_k.weight",
        "blk.{i}.time_mix_k_a.weight",
        "blk.{i}.time_mix_ln",
    ],
    implied: &[
        ("hidden_act", Text("sqrelu")),
        ("norm_first", Bool(true)),
        ("norm_bias", Bool(true)),
        ("attn", Absent),
    ],
    stated_fields: &[&["intermediate_size", "norm_eps", "head_dim"]],
    ..MlxClass::PLAIN
};

/// Norms of heads have the epsilon of heads of 64 values in llama.cpp.
fn epsilon_of_heads(model: &Model<'_>) -> Result<Option<String>> {
    let fields = &model.fields;
    let (size, epsilon) = (fields.need(&["head_dim"])?, fields.number(&["norm_eps"])?);
    let epsilon = f64::from(size) * epsilon.unwrap_or(1e-5);
    let is_other = (epsilon - 64e-5).abs() > 1e-9;
    Ok(is_other.then(|| {
        format!("llama.cpp's rwkv7 has 64e-5 as the epsilon of the norms of heads, and the model {epsilon:e}")
    }))
}

const NORMS7: &[&str] = &[
    "token_embd_norm",
    "output_norm",
    "blk.{i}.attn_norm",
    "blk.{i}.attn_norm_2",
    "blk.{i}.time_mix_ln",
];

const WORLD: TokenizerRules =
    TokenizerRules { own: Some(|files, keys| files.write_rwkv(keys)), ..TokenizerRules::PLAIN };

/// States the width of the feed-forward layer of a config that leaves it open.
fn widen(fields: &mut Fields, width: fn(u32) -> u32) -> Result<()> {
    if fields.count(&["intermediate_size"])?.is_none() {
        let width = width(fields.need(HIDDEN)?);
        fields
            .0
            .insert("intermediate_size".to_owned(), width.into());
    }
    Ok(())
}

macro_rules! block6 {
    ($name:literal) => {
        concat!("rwkv.blocks.{i}.", $name)
    };
}

const SHIFT: Dim = Field("time_mix_extra_dim");
const ALL_SHIFTS: Dim = Product(&[FIVE, SHIFT]);
const STEP: Dim = Field("time_decay_extra_dim");
pub(super) const HEAD_SIZE: Dim = Field("head_size");
pub(super) const NAMES6: &[&str] = &["w", "k", "v", "r", "g"];

const RWKV6_TENSORS: &[TensorRule] = &[
    same("token_embd", "rwkv.embeddings", &[Vocab, Hidden]),
    same("token_embd_norm", "rwkv.blocks.0.pre_ln", &[Hidden]),
    same("output_norm", "rwkv.ln_out", &[Hidden]),
    same("output", "head", &[Vocab, Hidden]),
    same("blk.{i}.attn_norm", block6!("ln1"), &[Hidden]),
    same("blk.{i}.attn_norm_2", block6!("ln2"), &[Hidden]),
    flat("blk.{i}.time_mix_lerp_x.weight", block6!("attention.time_maa_x")),
    shifts(block6!("attention.time_maa_{e}"), NAMES6, &[FIVE, One, One, Hidden]),
    turned(
        "blk.{i}.time_mix_w1.weight",
        block6!("attention.time_maa_w1"),
        &[Hidden, ALL_SHIFTS],
        &[ALL_SHIFTS, Hidden],
    ),
    turned(
        "blk.{i}.time_mix_w2.weight",
        block6!("attention.time_maa_w2"),
        &[FIVE, SHIFT, Hidden],
        &[FIVE, Hidden, SHIFT],
    ),
    flat("blk.{i}.time_mix_decay.weight", block6!("attention.time_decay")),
    turned(
        "blk.{i}.time_mix_decay_w1.weight",
        block6!("attention.time_decay_w1"),
        &[Hidden, STEP],
        &[STEP, Hidden],
    ),
    turned(
        "blk.{i}.time_mix_decay_w2.weight",
        block6!("attention.time_decay_w2"),
        &[STEP, Hidden],
        &[Hidden, STEP],
    ),
    parameter(
        "blk.{i}.time_mix_first.weight",
        block6!("attention.time_faaaa"),
        (
            Transform::None,
            &[Quotient(&[Hidden, HEAD_SIZE]), HEAD_SIZE],
            &[Quotient(&[Hidden, HEAD_SIZE]), HEAD_SIZE],
        ),
    ),
    square!("time_mix_receptance", block6!("attention.receptance")),
    square!("time_mix_key", block6!("attention.key")),
    square!("time_mix_value", block6!("attention.value")),
    square!("time_mix_gate", block6!("attention.gate")),
    rescaled(square!("time_mix_output", block6!("attention.output"))),
    same("blk.{i}.time_mix_ln", block6!("attention.ln_x"), &[Hidden]),
    flat("blk.{i}.channel_mix_lerp_k.weight", block6!("feed_forward.time_maa_k")),
    flat("blk.{i}.channel_mix_lerp_r.weight", block6!("feed_forward.time_maa_r")),
    same("blk.{i}.channel_mix_key", block6!("feed_forward.key"), &[Inner, Hidden]),
    square!("channel_mix_receptance", block6!("feed_forward.receptance")),
    rescaled(same("blk.{i}.channel_mix_value", block6!("feed_forward.value"), &[Hidden, Inner])),
];

const fn rescaled(rule: TensorRule) -> TensorRule {
    TensorRule { transform: Transform::Own(&RESCALED), ..rule }
}

/// Field of how many layers it takes until states are halved.
const EVERY: &str = "rescale_every";

/// Weights are divided by a power of two that grows with the layer: exact both ways.
const RESCALED: OwnTransform = OwnTransform {
    to_gguf: |sources, name, dims| halved(sources, name, dims, 0.5),
    to_hf: |sources, name, dims| halved(sources, name, dims, 2.0),
};

fn halved(
    sources: &[SourceTensor<'_>],
    name: &str,
    dims: &Dims,
    each: f32,
) -> Result<(Rearrangement, Vec<usize>)> {
    let shape = sources[0].shape.clone();
    let layer = name.split('.').find_map(|part| part.parse::<u32>().ok());
    let every = dims.size(Field(EVERY), None).unwrap_or(0) as u32;
    let times = layer
        .and_then(|layer| layer.checked_div(every))
        .unwrap_or(0);
    if times > 64 {
        return Err(wrong(EVERY, format!("weights of a layer would be halved {times} times")));
    }
    let factor = each.powi(times as i32);
    let change = Change::Times([factor.to_bits(), 1f32.to_bits()]);
    Ok((Rearrangement::changed(&shape, change), shape))
}

pub(super) const RWKV6: ModelClass = ModelClass {
    gguf: "rwkv6",
    classes: &["Rwkv6ForCausalLM"],
    model_type: "rwkv6",
    defaults: &[("layer_norm_epsilon", Float(1e-5)), ("head_size", Int(64)), (EVERY, Int(6))],
    biases: &[("", NORMS7)],
    tensors: &[RWKV6_TENSORS],
    settings: &[
        STATES,
        NO_KEY_HEADS,
        EXTRA,
        &[
            setting(Kind::Required, "rescale_every_n_layers", &[EVERY]),
            setting(Kind::Required, "wkv.head_size", &["head_size"]),
        ],
    ],
    traits: Traits {
        rope: RopeTraits::FIXED,
        is_recurrent: true,
        needs_output: true,
        completes: &[|fields| {
            widen(fields, |hidden| (u64::from(hidden) * 7 / 2 / 32 * 32) as u32)?;
            let hidden = fields.need(HIDDEN)?;
            let (shift, step) = if hidden == 4096 { (64, 128) } else { (32, 64) };
            fields
                .0
                .insert("time_mix_extra_dim".to_owned(), shift.into());
            fields
                .0
                .insert("time_decay_extra_dim".to_owned(), step.into());
            Ok(())
        }],
        ..Traits::PLAIN
    },
    tokenizer: &WORLD,
    ..ModelClass::PLAIN
};

const EXTRA: &[Setting] = &[
    setting(Kind::Required, "time_mix_extra_dim", &["time_mix_extra_dim"]),
    setting(Kind::Required, "time_decay_extra_dim", &["time_decay_extra_dim"]),
];
