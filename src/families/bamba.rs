//! Bamba: state spaces in most layers, attention in which half of each head rotates in some.
//!
//! Source: `GraniteHybridModel` in `conversion/granite.py` of llama.cpp; defaults of transformers
//! 5.24.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::granite_hybrid::GRANITE_HYBRID;
use super::mamba::{mamba2_mixer, no_time_limits};
use super::{ENDS, MLP, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, LAYER_KINDS, LAYERS, wrong};
use crate::families::engine::rows::*;

/// Field of the numbers of layers with attention.
const ATTENDING: &str = "attn_layer_indices";
/// Field of how many dimensions of a head rotate, which transformers has as half.
const ROTATING: &str = "attn_rotary_emb";

const fn attending(rule: TensorRule) -> TensorRule {
    in_layers(Need::Kind("attention"), rule)
}

const TENSORS: &[TensorRule] = &[
    ENDS[0],
    same("output_norm", "model.final_layernorm", &[Hidden]),
    ENDS[2],
    same("blk.{i}.attn_norm", "model.layers.{i}.input_layernorm", &[Hidden]),
    same("blk.{i}.ffn_norm", "model.layers.{i}.pre_ff_layernorm", &[Hidden]),
    attending(TensorRule { transform: Transform::Halves, ..QUERIES[0] }),
    attending(TensorRule { transform: Transform::Halves, ..QUERIES[1] }),
    attending(VALUES[0]),
    attending(VALUES[1]),
    TensorRule { hf: "model.layers.{i}.feed_forward.gate_proj", ..MLP[0] },
    TensorRule { hf: "model.layers.{i}.feed_forward.up_proj", ..MLP[1] },
    TensorRule { hf: "model.layers.{i}.feed_forward.down_proj", ..MLP[2] },
];

const MIXER: &[TensorRule] = mamba2_mixer! {
    prefix: "model.layers.{i}.mamba",
    need: Need::Kind("mamba"),
    state: Field("mamba_d_state"),
    filter: Field("mamba_d_conv"),
    heads: Field("mamba_n_heads"),
    groups: Field("mamba_n_groups"),
    inner: Product(&[Field("mamba_expand"), Hidden]),
    output: Product(&[Field("mamba_expand"), Hidden]),
};

pub(super) const BAMBA: ModelClass = ModelClass {
    classes: &["BambaForCausalLM"],
    model_type: "bamba",
    defaults: &[
        ("max_position_embeddings", Int(262_144)),
        ("num_key_value_heads", Int(8)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("mamba_n_heads", Int(128)),
        ("mamba_n_groups", Int(1)),
        ("mamba_d_state", Int(256)),
        ("mamba_d_conv", Int(4)),
        ("mamba_expand", Int(2)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
        ("mamba_conv_bias", Bool(true)),
        ("mamba_proj_bias", Bool(false)),
        ("mamba_expand", Int(2)),
        // transformers has no other.
        ("partial_rotary_factor", Float(0.5)),
    ],
    tensors: &[TENSORS, MIXER],
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
        setting(
            Kind::KvHeadsBut("mamba", "attention"),
            "attention.head_count_kv",
            &["num_key_value_heads"],
        ),
        count("ssm.conv_kernel", &["mamba_d_conv"]),
        count("ssm.state_size", &["mamba_d_state"]),
        count("ssm.group_count", &["mamba_n_groups"]),
        setting(Kind::Product, "ssm.inner_size", &["mamba_expand", "hidden_size"]),
        setting(Kind::Required, "ssm.time_step_rank", &["mamba_n_heads"]),
        setting(Kind::FixedFlag(true), "rope.scaling.finetuned", &[]),
    ]],
    traits: Traits {
        rope: RopeTraits::partial(0.5),
        laws: &[no_time_limits, half_rotates],
        completes: &[kinds_by_number],
        restores: &[numbers_of_kinds],
        sign: Sign::Key("rope.scaling.finetuned", 1),
        ..GRANITE_HYBRID.traits
    },
    mlx: None,
    ..GRANITE_HYBRID
};

/// Sets what each layer is.
fn kinds_by_number(fields: &mut Fields) -> Result<()> {
    let layers = fields.need(LAYERS)?;
    let all = fields.0.get(ATTENDING).and_then(Value::as_array);
    let all = all.into_iter().flatten();
    let attending: HashSet<u64> = all.filter_map(Value::as_u64).collect();
    let kind = |layer| {
        if attending.contains(&u64::from(layer)) {
            "attention"
        } else {
            "mamba"
        }
    };
    let kinds: Value = (0..layers).map(kind).collect();
    fields.0.insert(LAYER_KINDS.to_owned(), kinds);
    Ok(())
}

/// States which layers attend, as configs of the class do.
fn numbers_of_kinds(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    let kinds = config.remove(LAYER_KINDS);
    let kinds = kinds.as_ref().and_then(Value::as_array);
    let layers = kinds.into_iter().flatten().zip(0..);
    let attending = layers.filter_map(|(kind, n): (_, u64)| (kind == "attention").then_some(n));
    config.insert(ATTENDING.to_owned(), attending.collect());
    config.insert(ROTATING.to_owned(), (dims.head / 2).into());
    Ok(())
}

fn half_rotates(model: &Model<'_>) -> Result<Option<String>> {
    let half = model.dims.head / 2;
    let rotating = model.rope.rotating(model.class, &model.dims);
    if rotating != half {
        let what = format!("{rotating} dimensions rotate, and transformers rotates {half}");
        return Err(wrong("partial_rotary_factor", what));
    }
    match model.fields.count(&[ROTATING])? {
        Some(found) if found as usize != half => {
            let what = format!("it is {found}, and transformers rotates half of a head, {half}");
            Err(wrong(ROTATING, what))
        }
        _ => Ok(None),
    }
}
