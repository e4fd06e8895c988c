//! The language model of Llama 4: experts in every layer, or in every second one.
//!
//! Source: `Llama4Model` in `conversion/llama.py` and `src/models/llama4.cpp` of llama.cpp;
//! defaults of transformers 4.57.6.

use serde_json::{Map, Value};

use super::smollm::{no_rope_in_every_fourth, usual_rope};
use super::{CAUSAL, ENDS, NORMS, QUERIES, VALUES, sparse};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

/// `intermediate_size` is the width of an expert.
const INNER: Dim = Field("intermediate_size_mlp");

const DENSE: &[TensorRule] = &[
    only(
        Need::Dense,
        "blk.{i}.ffn_gate",
        "model.layers.{i}.feed_forward.gate_proj",
        &[INNER, Hidden],
    ),
    only(Need::Dense, "blk.{i}.ffn_up", "model.layers.{i}.feed_forward.up_proj", &[INNER, Hidden]),
    only(
        Need::Dense,
        "blk.{i}.ffn_down",
        "model.layers.{i}.feed_forward.down_proj",
        &[Hidden, INNER],
    ),
];

const FUSED: &[Dim] = &[Experts, Hidden, TwoInner];
const PROJECTION: &[Dim] = &[Experts, Inner, Hidden];

/// Experts, whose matrices are stored as `[in, out]`, and the one that every token sees.
const SPARSE: &[TensorRule] = &[
    only(
        Need::Sparse,
        "blk.{i}.ffn_gate_inp",
        "model.layers.{i}.feed_forward.router",
        &[Experts, Hidden],
    ),
    sparse(parameter(
        "blk.{i}.ffn_gate_exps.weight",
        "model.layers.{i}.feed_forward.experts.gate_up_proj",
        (
            Transform::Parts(Parts { is_transposed: true, ..Parts::one(Turn::Equal(2), 0) }),
            FUSED,
            PROJECTION,
        ),
    )),
    sparse(parameter(
        "blk.{i}.ffn_up_exps.weight",
        "model.layers.{i}.feed_forward.experts.gate_up_proj",
        (
            Transform::Parts(Parts { is_transposed: true, ..Parts::one(Turn::Equal(2), 1) }),
            FUSED,
            PROJECTION,
        ),
    )),
    sparse(parameter(
        "blk.{i}.ffn_down_exps.weight",
        "model.layers.{i}.feed_forward.experts.down_proj",
        (Transform::Transposed, PROJECTION, &[Experts, Hidden, Inner]),
    )),
    only(
        Need::Sparse,
        "blk.{i}.ffn_gate_shexp",
        "model.layers.{i}.feed_forward.shared_expert.gate_proj",
        &[Inner, Hidden],
    ),
    only(
        Need::Sparse,
        "blk.{i}.ffn_up_shexp",
        "model.layers.{i}.feed_forward.shared_expert.up_proj",
        &[Inner, Hidden],
    ),
    only(
        Need::Sparse,
        "blk.{i}.ffn_down_shexp",
        "model.layers.{i}.feed_forward.shared_expert.down_proj",
        &[Hidden, Inner],
    ),
];

const SETTINGS: &[Setting] = &[
    count("vocab_size", &["vocab_size"]),
    setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
    setting(Kind::Required, "feed_forward_length", &["intermediate_size_mlp"]),
    setting(Kind::Required, "interleave_moe_layer_step", &["interleave_moe_layer_step"]),
    setting(Kind::Required, "expert_feed_forward_length", &["intermediate_size"]),
];

pub(super) const LLAMA4: ModelClass = ModelClass {
    gguf: "llama4",
    classes: &["Llama4ForCausalLM", "Llama4ForConditionalGeneration"],
    model_type: "llama4_text",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(8)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(500_000.0)),
        ("intermediate_size", Int(8192)),
        ("intermediate_size_mlp", Int(16_384)),
        ("num_local_experts", Int(16)),
        ("num_experts_per_tok", Int(1)),
        ("interleave_moe_layer_step", Int(1)),
        ("use_qk_norm", Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("attention_chunk_size", Int(8192)),
        ("attn_temperature_tuning", Bool(true)),
        ("attn_scale", Float(0.1)),
        ("floor_scale", Int(8192)),
    ],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, DENSE, SPARSE],
    settings: &[SETTINGS],
    traits: Traits {
        rope: RopeTraits::LLAMA3,
        layer_kinds: Some(("chunked_attention", 4)),
        full_attention_every: Some(4),
        laws: &[no_rope_in_every_fourth, norms_by_experts, experts_by_layer],
        completes: &[usual_rope, temperature_flag],
        restores: &[restore_norms],
        also_implied: &[CAUSAL],
        experts_every: Some(experts_every),
        ..Traits::PLAIN
    },
    mlx: Some(&LLAMA4_MLX),
    ..ModelClass::PLAIN
};

const LLAMA4_MLX: MlxClass = MlxClass {
    renamed: &[
        ("blk.{i}.ffn_gate_exps.weight", "model.layers.{i}.feed_forward.experts.gate_proj.weight"),
        ("blk.{i}.ffn_up_exps.weight", "model.layers.{i}.feed_forward.experts.up_proj.weight"),
        ("blk.{i}.ffn_down_exps.weight", "model.layers.{i}.feed_forward.experts.down_proj.weight"),
    ],
    implied: &[SILU, ("num_experts_per_tok", Int(1))],
    scalings: &["linear", "llama3", "yarn"],
    bias_fields: &["attention_bias"],
    stated_fields: &[
        COMMON_FIELDS,
        &[
            "attention_bias",
            "attention_chunk_size",
            "head_dim",
            "interleave_moe_layer_step",
            "intermediate_size",
            "intermediate_size_mlp",
            "max_position_embeddings",
            "num_experts_per_tok",
            "num_key_value_heads",
            "num_local_experts",
            "rope_scaling",
            "use_qk_norm",
        ],
    ],
    laws: &[layers_in_mlx, norms_in_mlx],
    around: Some(("Llama4ForConditionalGeneration", "llama4")),
    // The class has no such field: it is every fourth.
    counted_kind: Some(("full_attention_every", "chunked_attention")),
    output: OutputLayer::Stored,
    prefix: Prefix::IfNested("language_model."),
    ..MlxClass::PLAIN
};

/// mlx-lm has positions in three of four layers, and experts at every step.
fn layers_in_mlx(model: &Model<'_>) -> Result<Option<String>> {
    let layers = 1..=model.dims.layers;
    if layers.end() < &4 {
        return Err(wrong("num_hidden_layers", "mlx-lm's llama4 needs four"));
    }
    let rotating: Value = layers
        .map(|layer| i32::from(!layer.is_multiple_of(4)))
        .collect();
    model
        .fields
        .expect("no_rope_layers", &rotating, "mlx-lm's llama4")?;
    experts_by_layer(model)
}

/// mlx-lm norms queries and keys with an epsilon of its own.
fn norms_in_mlx(model: &Model<'_>) -> Result<Option<String>> {
    const OWN: f64 = 1e-6;
    let found = model
        .fields
        .number(&["rms_norm_eps"])?
        .filter(|found| *found != OWN);
    let found = found.filter(|_| model.fields.flag(NORMS_HEADS));
    Ok(found.map(|found| {
        format!("`rms_norm_eps`: mlx-lm's llama4 has {OWN:e} in the norms of queries and keys, and transformers {found:e}, which is nearly the same")
    }))
}

/// Published configs have a number for a flag.
fn temperature_flag(fields: &mut Fields) -> Result<()> {
    if let Some(flag) = fields.0.get_mut("attn_temperature_tuning")
        && let Some(number) = flag.as_u64()
    {
        *flag = (number > 0).into();
    }
    Ok(())
}

/// Field of whether queries and keys are normed.
const NORMS_HEADS: &str = "use_qk_norm";

/// llama.cpp tells the larger model, which does not norm queries and keys, by its experts.
fn norms_heads(dims: &Dims) -> Value {
    (dims.experts != Some(128)).into()
}

fn norms_by_experts(model: &Model<'_>) -> Result<Option<String>> {
    let expected = norms_heads(&model.dims);
    model.expect(NORMS_HEADS, &expected)
}

fn restore_norms(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    config.insert(NORMS_HEADS.to_owned(), norms_heads(dims));
    Ok(())
}

/// Field of how many layers there are from one with experts to the next.
const EXPERTS_EVERY: &str = "interleave_moe_layer_step";

fn experts_every(fields: &Fields) -> Result<(usize, usize)> {
    match fields.need(&[EXPERTS_EVERY])? as usize {
        0 => Err(wrong(EXPERTS_EVERY, "it is 0")),
        every => Ok((every, every - 1)),
    }
}

/// `moe_layers` says the same as [`EXPERTS_EVERY`].
fn experts_by_layer(model: &Model<'_>) -> Result<Option<String>> {
    let every = model.dims.need(EXPERTS_EVERY)?;
    let with_experts = (1..=model.dims.layers).filter(|layer| layer.is_multiple_of(every));
    let numbers = with_experts.map(|layer| layer - 1).collect();
    model.expect("moe_layers", &numbers)
}
