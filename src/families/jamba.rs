//! Jamba: Mamba 1 in most layers, attention without positions in some, and experts in every second
//! one.
//!
//! Source: `JambaConfig` of transformers 4.57.6; `JambaModel` in `conversion/jamba.py` and `src/models/jamba.cpp` of llama.cpp; defaults
//! of transformers 4.57.6.

use serde_json::{Map, Value};

use super::mamba::{filters, vector};
use super::{QUERIES, VALUES, sparse};
use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS, NO_LAYER};
use crate::families::engine::fields::{
    EXPERTS, Fields, HIDDEN, LAYER_KINDS, LAYERS, wrong, wrong_key,
};
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

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
const RANK: Dim = Field(RANK_FIELD);
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
            (Transform::NEG_EXP, &[INNER, STATE], &[INNER, STATE]),
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
    setting(Kind::Required, "ssm.time_step_rank", &[RANK_FIELD]),
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
        (EXPERTS_PERIOD[0], Int(2)),
        (EXPERTS_PERIOD[1], Int(1)),
        (ATTENTION_PERIOD[0], Int(8)),
        (ATTENTION_PERIOD[1], Int(4)),
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
    tensors: &[ENDS, ATTENTION, MIXER, MLP],
    settings: &[SETTINGS],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits::FIXED,
        needs_kind: Some("attention"),
        experts_every: Some(experts_every),
        completes: &[complete],
        from_tensors: &[periods_of_tensors],
        restores: &[without_kinds],
        ..Traits::PLAIN
    },
    tokenizer: &TOKENIZER,
    mlx: Some(&JAMBA_MLX),
    ..ModelClass::PLAIN
};

const JAMBA_MLX: MlxClass = MlxClass {
    implied: &[SILU],
    stated_fields: &[&[
        "rms_norm_eps",
        "max_position_embeddings",
        "num_key_value_heads",
        "num_experts",
        "num_experts_per_tok",
        "mamba_d_state",
        "mamba_d_conv",
        "mamba_expand",
        "mamba_conv_bias",
        "mamba_proj_bias",
        ATTENTION_PERIOD[0],
        ATTENTION_PERIOD[1],
        EXPERTS_PERIOD[0],
        EXPERTS_PERIOD[1],
    ]],
    laws: &[dense_in_mlx],
    equal_sizes: HEADS_FILL_HIDDEN,
    ..MlxClass::PLAIN
};

/// mlx-lm needs both kinds of layers, and computes other weights of experts.
fn dense_in_mlx(model: &Model<'_>) -> Result<Option<String>> {
    if model.dims.experts != Some(1) {
        let what = "mlx-lm's jamba weighs experts by the scores of those chosen, and transformers by the scores of all";
        return Err(wrong("num_experts", what));
    }
    match model.dims.has_kind("attention") && model.dims.has_kind("mamba") {
        true => Ok(None),
        false => Err(wrong(
            ATTENTION_PERIOD[0],
            "mlx-lm's jamba needs layers with attention and without",
        )),
    }
}

/// Fields of how many layers there are from one with attention to the next, and of the first of
/// them.
const ATTENTION_PERIOD: [&str; 2] = ["attn_layer_period", "attn_layer_offset"];
/// The same of layers with experts.
const EXPERTS_PERIOD: [&str; 2] = ["expert_layer_period", "expert_layer_offset"];
/// Field of the rank of time steps.
const RANK_FIELD: &str = "mamba_dt_rank";

/// Period and first layer that the fields `[period, first]` say.
///
/// # Errors
/// `Parse` if one is missing, or the first layer is not in the first period.
fn period_of(fields: &Fields, [period, first]: [&str; 2]) -> Result<(usize, usize)> {
    let (every, at) = (fields.need(&[period])?, fields.need(&[first])?);
    match at < every {
        true => Ok((every as usize, at as usize)),
        false => Err(wrong(first, format_args!("it is {at}, and {period} is {every}"))),
    }
}

/// A single expert is a plain feed-forward layer.
fn experts_every(fields: &Fields) -> Result<(usize, usize)> {
    let period = period_of(fields, EXPERTS_PERIOD)?;
    match fields.count(EXPERTS)? {
        Some(1) => Ok(NO_LAYER),
        _ => Ok(period),
    }
}

/// Adds `layer_types`, and the rank of time steps if the config leaves it open.
fn complete(fields: &mut Fields) -> Result<()> {
    let (every, first) = period_of(fields, ATTENTION_PERIOD)?;
    let kind = |layer: usize| match layer % every == first {
        true => "attention",
        false => "mamba",
    };
    let layers = fields.need(LAYERS)? as usize;
    let kinds: Value = (0..layers.min(MOST_LAYERS as usize)).map(kind).collect();
    if let Some(stated) = fields.0.get(LAYER_KINDS).filter(|stated| **stated != kinds) {
        let what = format!("it is {stated}, and {} says otherwise", ATTENTION_PERIOD[0]);
        return Err(wrong(LAYER_KINDS, what));
    }
    fields.0.insert(LAYER_KINDS.to_owned(), kinds);
    if fields.0.get(RANK_FIELD).is_none_or(|rank| rank == "auto") {
        let rank = fields.need(HIDDEN)?.div_ceil(16);
        fields.0.insert(RANK_FIELD.to_owned(), rank.into());
    }
    Ok(())
}

/// Adds the fields of periods, which must be those of all layers.
fn periods_of_tensors(config: &mut Map<String, Value>, shapes: &TensorShapes<'_>) -> Result<()> {
    let kinds = config.get(LAYER_KINDS).and_then(Value::as_array);
    let kinds = kinds.map(Vec::as_slice).unwrap_or_default();
    let attending: Vec<_> = kinds.iter().map(|kind| kind == "attention").collect();
    let router = |layer| format!("blk.{layer}.ffn_gate_inp.weight");
    let has_experts = |layer| shapes.contains_key(router(layer).as_str());
    let sparse: Vec<_> = (0..kinds.len()).map(has_experts).collect();
    let found = [
        (attending, ATTENTION_PERIOD, "attention.head_count_kv"),
        (sparse, EXPERTS_PERIOD, EXPERTS[1]),
    ];
    for (layers, [period, first], what) in found {
        let irregular = || wrong_key(what, "its layers do not come back every so often");
        let (every, at) = regular(&layers).ok_or_else(irregular)?;
        config.insert(period.to_owned(), every.into());
        config.insert(first.to_owned(), at.into());
    }
    Ok(())
}

/// Periods say what `layer_types` would.
fn without_kinds(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    config.remove(LAYER_KINDS);
    Ok(())
}

/// Period and first of the layers that are marked. Of a single one, the period is the number of
/// layers; of none, the first one would be behind the last layer.
fn regular(layers: &[bool]) -> Option<(usize, usize)> {
    let mut marked = (0..layers.len()).filter(|layer| layers[*layer]);
    let Some(first) = marked.next() else {
        return Some((layers.len() + 1, layers.len()));
    };
    let every = marked.next().map_or(layers.len(), |second| second - first);
    let is_so = |(layer, is_marked): (usize, &bool)| (layer % every == first) == *is_marked;
    (first < every && layers.iter().enumerate().all(is_so)).then_some((every, first))
}

/// What tokenizer.model says of the blank in front of a text counts, and tokenizer.json cannot say
/// it.
const TOKENIZER: TokenizerRules = TokenizerRules {
    after: &[KeyRule::Own(|files, keys| {
        if keys.is_sentencepiece() && files.request.texts.read("tokenizer.model")?.is_none() {
            keys.ggml_flag("add_space_prefix", false);
        }
        Ok(())
    })],
    ..TokenizerRules::PLAIN
};

#[cfg(test)]
mod tests {
    use super::regular;

    #[test]
    fn periods() {
        let layers = |text: &str| text.chars().map(|c| c == 'x').collect::<Vec<_>>();
        let rows = [
            ("x--x", Some((3, 0))),
            ("-x-x-x", Some((2, 1))),
            ("--x-", Some((4, 2))),
            ("xxx", Some((1, 0))),
            ("---", Some((4, 3))),
            ("x-xx", None),
            ("---x-x-", None),
            ("xx--", None),
        ];
        for (text, expected) in rows {
            assert_eq!(regular(&layers(text)), expected, "{text}");
        }
    }
}
