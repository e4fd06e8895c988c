//! DBRX, whose attention and experts have configs of their own inside the config.
//!
//! Source: `conversion/dbrx.py` of llama.cpp; defaults of transformers 5.24.

use serde_json::{Map, Value};

use super::mpt::flatten;
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, is_same, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

const QKV: &[Dim] = &[Sum(&[Queries, Keys, Keys]), Hidden];
/// The matrices of all experts below each other.
const ROWS: &[Dim] = &[Product(&[Experts, Inner]), Hidden];
const STACK: &[Dim] = &[Experts, Inner, Hidden];
/// That of each expert is the transposed one.
const TRANSPOSED: Transform =
    Transform::Parts(Parts { then: Then::Transposed, ..Parts::one(Turn::Rows(&[Inner]), 0) });

const TENSORS: &[TensorRule] = &[
    same("token_embd", "transformer.wte", &[Vocab, Hidden]),
    same("output_norm", "transformer.norm_f", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
    same("blk.{i}.attn_norm", "transformer.blocks.{i}.norm_attn_norm.norm_1", &[Hidden]),
    same("blk.{i}.attn_qkv", "transformer.blocks.{i}.norm_attn_norm.attn.Wqkv", QKV),
    same(
        "blk.{i}.attn_output",
        "transformer.blocks.{i}.norm_attn_norm.attn.out_proj",
        &[Hidden, Hidden],
    ),
    same("blk.{i}.attn_output_norm", "transformer.blocks.{i}.norm_attn_norm.norm_2", &[Hidden]),
    same("blk.{i}.ffn_gate_inp", "transformer.blocks.{i}.ffn.router.layer", &[Experts, Hidden]),
    parameter(
        "blk.{i}.ffn_gate_exps.weight",
        "transformer.blocks.{i}.ffn.experts.mlp.w1",
        (Transform::RESHAPED, ROWS, STACK),
    ),
    parameter(
        "blk.{i}.ffn_up_exps.weight",
        "transformer.blocks.{i}.ffn.experts.mlp.v1",
        (Transform::RESHAPED, ROWS, STACK),
    ),
    parameter(
        "blk.{i}.ffn_down_exps.weight",
        "transformer.blocks.{i}.ffn.experts.mlp.w2",
        (TRANSPOSED, ROWS, &[Experts, Hidden, Inner]),
    ),
];

pub(super) const DBRX: ModelClass = ModelClass {
    gguf: "dbrx",
    classes: &["DbrxForCausalLM"],
    model_type: "dbrx",
    // The class has no field for the epsilon, and this is its number.
    defaults: &[("max_seq_len", Int(2048)), ("layer_norm_eps", Float(1e-5))],
    implied: &[("layer_norm_eps", Float(1e-5))],
    own_fields: &[
        ("max_position_embeddings", "max_seq_len"),
        ("hidden_size", "d_model"),
        ("num_hidden_layers", "n_layers"),
        ("num_attention_heads", "n_heads"),
    ],
    tensors: &[TENSORS],
    settings: &[&[
        count("context_length", &["max_seq_len"]),
        number("attention.clamp_kqv", &[CLAMP]),
    ]],
    mlx: Some(&DBRX_MLX),
    traits: Traits {
        head_dim: HeadDim::Derived,
        needs_output: true,
        also_implied: &[("ffn_config.moe_normalize_expert_weights", Float(1.0))],
        laws: &[activation],
        completes: &[complete],
        restores: &[restore],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

const DBRX_MLX: MlxClass = MlxClass {
    renamed: &[
        ("blk.{i}.ffn_gate_exps.weight", "transformer.blocks.{i}.ffn.experts.{e}.w1.weight"),
        ("blk.{i}.ffn_up_exps.weight", "transformer.blocks.{i}.ffn.experts.{e}.v1.weight"),
        ("blk.{i}.ffn_down_exps.weight", "transformer.blocks.{i}.ffn.experts.{e}.w2.weight"),
    ],
    implied: &[NO_SCALING, ("ffn_config.moe_normalize_expert_weights", Float(1.0))],
    laws: &[states_attention, activation],
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};

const CLAMP: &str = "clip_qkv";
const ATTENTION: &str = "attn_config";
const FEED_FORWARD: &str = "ffn_config";

/// Fields of the configs inside: the config, the name there, the usual name, and what the class has
/// without it.
const NESTED: &[(&str, &str, &str, Default)] = &[
    (ATTENTION, "kv_n_heads", "num_key_value_heads", Int(1)),
    (ATTENTION, "clip_qkv", CLAMP, Absent),
    (ATTENTION, "rope_theta", BASE, Absent),
    (FEED_FORWARD, "ffn_hidden_size", "intermediate_size", Int(3584)),
    (FEED_FORWARD, "moe_num_experts", "num_local_experts", Int(4)),
    (FEED_FORWARD, "moe_top_k", "num_experts_per_tok", Int(1)),
];

const BASE: &str = "rope_theta";

fn complete(fields: &mut Fields) -> Result<()> {
    flatten(fields, &[ATTENTION, FEED_FORWARD])?;
    for (nested, name, usual, default) in NESTED {
        let stated = fields.0.get(&format!("{nested}.{name}")).cloned();
        let value = stated.unwrap_or_else(|| default.into());
        let found = fields.0.get(*usual).filter(|found| !is_same(found, &value));
        if let Some(found) = found.filter(|_| !value.is_null()) {
            let what = format!("it is {value} in {nested}, and {usual} is {found}");
            return Err(wrong(name, what));
        }
        if !value.is_null() {
            fields.0.insert((*usual).to_owned(), value);
        }
    }
    Ok(())
}

/// Moves fields into the configs inside. The base is said there and outside: transformers 5 reads
/// the one outside, and what is beside published models the other.
fn restore(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    for (nested, name, usual, _) in NESTED {
        let value = match *usual {
            BASE => config.get(BASE).cloned(),
            _ => config.remove(*usual),
        };
        let inner = config
            .entry(*nested)
            .or_insert_with(|| Value::Object(Map::new()));
        inner[*name] = value.unwrap_or_default();
    }
    Ok(())
}

/// mlx-lm needs all fields of attention and of experts in the configs inside.
fn states_attention(model: &Model<'_>) -> Result<Option<String>> {
    for (nested, name, ..) in NESTED {
        let field = format!("{nested}.{name}");
        if model.fields.0.get(&field).is_none_or(Value::is_null) {
            let what = "it is missing, and mlx-lm's dbrx has no default; state it in config.json";
            return Err(wrong(&field, what));
        }
    }
    Ok(None)
}

fn activation(model: &Model<'_>) -> Result<Option<String>> {
    const FIELD: &str = "ffn_config.ffn_act_fn";
    match model.fields.0.get(FIELD) {
        Some(found) if found["name"] != "silu" => {
            let what = format!("it is {found}, and {} has silu", model.owner());
            Err(wrong(FIELD, what))
        }
        _ => Ok(None),
    }
}
