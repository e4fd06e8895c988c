//! Jamba: Mamba 1 in most layers, attention without positions in some, and experts in every second
//! one.
//!
//! Source: `JambaModel` in `conversion/jamba.py` and `src/models/jamba.cpp` of llama.cpp; defaults
//! of transformers 4.57.6.

use super::mamba::{filters, vector};
use super::{QUERIES, VALUES, sparse};
use crate::families::engine::dims::Dim;
use crate::families::engine::dims::Dim::{Experts, Field, Hidden, Inner, One, Product, Sum, Vocab};
use crate::families::engine::table::Default::{Absent, Bool, Float, Int, Text};
use crate::families::engine::table::{
    HeadDim, Kind, ModelClass, Need, Periods, Setting, TensorRule, Traits, Transform, count,
    experts, in_layers, only, optional, parameter, same, setting,
};

const ENDS: &[TensorRule] = &[
    super::ENDS[0],
    same("output_norm", "model.final_layernorm", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
    super::NORMS[0],
    same("blk.{i}.ffn_norm", "model.layers.{i}.pre_ff_layernorm", &[Hidden]),
];

const ATTENDING: Need = Need::Kind("attention");
const RECURRENT: Need = Need::Kind("mamba");

const ATTENTION: &[TensorRule] = &[
    in_layers(ATTENDING, QUERIES[0]),
    in_layers(ATTENDING, QUERIES[1]),
    in_layers(ATTENDING, VALUES[0]),
    in_layers(ATTENDING, VALUES[1]),
];

const STATE: Dim = Field("mamba_d_state");
const RANK: Dim = Field("mamba_dt_rank");
const FILTER: Dim = Field("mamba_d_conv");
const INNER: Dim = Product(&[Field("mamba_expand"), Hidden]);

const MIXER: &[TensorRule] = &[
    only(
        RECURRENT,
        "blk.{i}.ssm_in",
        "model.layers.{i}.mamba.in_proj",
        &[Sum(&[INNER, INNER]), Hidden],
    ),
    in_layers(
        RECURRENT,
        filters(
            "blk.{i}.ssm_conv1d.weight",
            "model.layers.{i}.mamba.conv1d.weight",
            &[INNER, One, FILTER],
            &[INNER, FILTER],
        ),
    ),
    in_layers(
        RECURRENT,
        vector("blk.{i}.ssm_conv1d.bias", "model.layers.{i}.mamba.conv1d.bias", &[INNER]),
    ),
    only(
        RECURRENT,
        "blk.{i}.ssm_x",
        "model.layers.{i}.mamba.x_proj",
        &[Sum(&[RANK, STATE, STATE]), INNER],
    ),
    in_layers(
        RECURRENT,
        vector("blk.{i}.ssm_dt.weight", "model.layers.{i}.mamba.dt_proj.weight", &[INNER, RANK]),
    ),
    in_layers(
        RECURRENT,
        vector("blk.{i}.ssm_dt.bias", "model.layers.{i}.mamba.dt_proj.bias", &[INNER]),
    ),
    only(RECURRENT, "blk.{i}.ssm_dt_norm", "model.layers.{i}.mamba.dt_layernorm", &[RANK]),
    only(RECURRENT, "blk.{i}.ssm_b_norm", "model.layers.{i}.mamba.b_layernorm", &[STATE]),
    only(RECURRENT, "blk.{i}.ssm_c_norm", "model.layers.{i}.mamba.c_layernorm", &[STATE]),
    in_layers(
        RECURRENT,
        parameter(
            "blk.{i}.ssm_a",
            "model.layers.{i}.mamba.A_log",
            (Transform::NegExp, &[INNER, STATE], &[INNER, STATE]),
        ),
    ),
    in_layers(RECURRENT, vector("blk.{i}.ssm_d", "model.layers.{i}.mamba.D", &[INNER])),
    only(RECURRENT, "blk.{i}.ssm_out", "model.layers.{i}.mamba.out_proj", &[Hidden, INNER]),
];

const MLP: &[TensorRule] = &[
    only(
        Need::Dense,
        "blk.{i}.ffn_gate",
        "model.layers.{i}.feed_forward.gate_proj",
        &[Inner, Hidden],
    ),
    only(Need::Dense, "blk.{i}.ffn_up", "model.layers.{i}.feed_forward.up_proj", &[Inner, Hidden]),
    only(
        Need::Dense,
        "blk.{i}.ffn_down",
        "model.layers.{i}.feed_forward.down_proj",
        &[Hidden, Inner],
    ),
    only(
        Need::Sparse,
        "blk.{i}.ffn_gate_inp",
        "model.layers.{i}.feed_forward.router",
        &[Experts, Hidden],
    ),
    sparse(experts(
        "blk.{i}.ffn_gate_exps",
        "model.layers.{i}.feed_forward.experts.{e}.gate_proj",
        &[Inner, Hidden],
    )),
    sparse(experts(
        "blk.{i}.ffn_up_exps",
        "model.layers.{i}.feed_forward.experts.{e}.up_proj",
        &[Inner, Hidden],
    )),
    sparse(experts(
        "blk.{i}.ffn_down_exps",
        "model.layers.{i}.feed_forward.experts.{e}.down_proj",
        &[Hidden, Inner],
    )),
];

const SETTINGS: &[Setting] = &[
    setting(
        Kind::KvHeadsBut("mamba", "attention"),
        "attention.head_count_kv",
        &["num_key_value_heads"],
    ),
    count("ssm.conv_kernel", &["mamba_d_conv"]),
    count("ssm.state_size", &["mamba_d_state"]),
    setting(Kind::Product, "ssm.inner_size", &["mamba_expand", "hidden_size"]),
    setting(Kind::Required, "ssm.time_step_rank", &["mamba_dt_rank"]),
];

pub(super) const JAMBA: ModelClass = ModelClass {
    gguf: "jamba",
    classes: &["JambaForCausalLM"],
    model_type: "jamba",
    defaults: &[
        ("max_position_embeddings", Int(262_144)),
        ("num_key_value_heads", Int(8)),
        ("rms_norm_eps", Float(1e-6)),
        ("num_experts", Int(16)),
        ("num_experts_per_tok", Int(2)),
        ("expert_layer_period", Int(2)),
        ("expert_layer_offset", Int(1)),
        ("attn_layer_period", Int(8)),
        ("attn_layer_offset", Int(4)),
        ("mamba_d_state", Int(16)),
        ("mamba_d_conv", Int(4)),
        ("mamba_expand", Int(2)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("mamba_conv_bias", Bool(true)),
        ("mamba_proj_bias", Bool(false)),
        ("mamba_expand", Int(2)),
        ("sliding_window", Absent),
    ],
    own_fields: &[("num_local_experts", "num_experts")],
    equal_fields: &[],
    biases: &[],
    tensors: &[ENDS, ATTENTION, MIXER, MLP],
    other_tensors: &[],
    settings: &[SETTINGS],
    traits: Traits {
        head_dim: HeadDim::Derived,
        has_fixed_rope: true,
        needs_kind: Some("attention"),
        periods: Some(&Periods {
            kinds: ["attention", "mamba"],
            attention: ["attn_layer_period", "attn_layer_offset"],
            experts: ["expert_layer_period", "expert_layer_offset"],
            rank: "mamba_dt_rank",
        }),
        ..Traits::PLAIN
    },
};
