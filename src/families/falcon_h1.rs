//! Falcon H1: attention and a state space side by side in each layer. Outputs of projections are
//! multiplied by numbers of the config, with which GGUF has weights multiplied: coming back, the
//! numbers are 1.
//!
//! Source: `conversion/falcon_h1.py` of llama.cpp; defaults of transformers 5.24.

use serde_json::{Map, Value, json};

use super::mamba::{mamba2_mixer, no_time_limits};
use super::{MLP, NORMS, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::source::{Rearrangement, SourceRows, SourceTensor, unchanged};
use crate::families::engine::table::{Model, OwnTransform, TensorShapes};
use crate::remember::layout::assembled::{Change, RowOrder};

/// A tensor that is multiplied by one or two fields.
macro_rules! times {
    ($first:expr $(, $second:expr)?) => {
        Transform::Own(&OwnTransform {
            to_gguf: |sources, _, dims| {
                let shape = sources[0].shape.clone();
                let change = multiplied(dims, [$first, [$($second,)? ONE][0]])?;
                Ok((Rearrangement::changed(&shape, change), shape))
            },
            to_hf: |sources, _, _| Ok(unchanged(sources)),
        })
    };
}

/// No field: nothing is multiplied.
const ONE: &str = "";

fn multiplied(dims: &Dims, fields: [&str; 2]) -> Result<Change> {
    let [first, second] = fields.map(|field| dims.factor(field));
    Ok(Change::Times([first?.to_bits(), second?.to_bits()]))
}

const INTO: &str = "attention_in_multiplier";
const OUT_OF: &str = "attention_out_multiplier";
const KEYS: &str = "key_multiplier";
const STATES_INTO: &str = "ssm_in_multiplier";
const STATES_OUT_OF: &str = "ssm_out_multiplier";
const EMBEDDING: &str = "embedding_multiplier";
const OUTPUT: &str = "lm_head_multiplier";
const SINGLE: [&str; 7] = [INTO, OUT_OF, KEYS, STATES_INTO, STATES_OUT_OF, EMBEDDING, OUTPUT];
/// Fields that are made of lists: those of the feed-forward layer, and of the five parts of what goes
/// into a state space.
const GATE: &str = "gate_multiplier";
const DOWN: &str = "down_multiplier";
const PARTS: [&str; 5] =
    ["gate_states", "input_states", "keys_of_states", "queries_of_states", "steps_of_states"];
const OF_MLP: &str = "mlp_multipliers";
const OF_STATES: &str = "ssm_multipliers";

const INNER: Dim = Field("mamba_d_ssm");
const GROUP_STATES: Dim = Product(&[Field("mamba_n_groups"), Field("mamba_d_state")]);

/// The five parts, which are multiplied by a number each after one for all of them.
const STATE_PARTS: OwnTransform = OwnTransform {
    to_gguf: |sources, name, dims| {
        let shape = sources[0].shape.clone();
        let whole = sources.remove(0);
        let (inner, states) = (dims.need_size(INNER)?, dims.need_size(GROUP_STATES)?);
        let steps = dims.need("mamba_n_heads")?;
        let mut first = 0;
        for (rows, field) in [inner, inner, states, states, steps].into_iter().zip(PARTS) {
            let change = multiplied(dims, [STATES_INTO, field])?;
            sources.push(whole.changed_rows(name, (first, rows), change));
            first += rows;
        }
        let piece = |(source, part): (usize, &SourceTensor<'_>)| SourceRows {
            source,
            order: RowOrder::From(0),
            rows: part.shape[0],
            turn: 1,
        };
        let pieces = sources.iter().enumerate().map(piece).collect();
        let moved = Rearrangement { pieces, ..Rearrangement::changed(&shape, Change::None) };
        Ok((moved, shape))
    },
    to_hf: |sources, _, _| Ok(unchanged(sources)),
};

const fn by(transform: Transform, rule: TensorRule) -> TensorRule {
    TensorRule { transform, ..rule }
}

const ENDS: &[TensorRule] = &[
    by(times!(EMBEDDING), super::ENDS[0]),
    same("output_norm", "model.final_layernorm", &[Hidden]),
    by(times!(OUTPUT), super::ENDS[2]),
    NORMS[0],
    // Without an end there.
    parameter(
        "blk.{i}.ffn_norm",
        "model.layers.{i}.pre_ff_layernorm.weight",
        (Transform::None, &[Hidden], &[Hidden]),
    ),
];

const ATTENTION: &[TensorRule] = &[
    by(times!(INTO), QUERIES[0]),
    by(times!(KEYS, INTO), QUERIES[1]),
    by(times!(INTO), VALUES[0]),
    by(times!(OUT_OF), VALUES[1]),
];

const FEED_FORWARD: &[TensorRule] = &[
    by(times!(GATE), TensorRule { hf: "model.layers.{i}.feed_forward.gate_proj", ..MLP[0] }),
    TensorRule { hf: "model.layers.{i}.feed_forward.up_proj", ..MLP[1] },
    by(times!(DOWN), TensorRule { hf: "model.layers.{i}.feed_forward.down_proj", ..MLP[2] }),
];

const MIXER: &[TensorRule] = mamba2_mixer! {
    prefix: "model.layers.{i}.mamba",
    need: Need::All,
    state: Field("mamba_d_state"),
    filter: Field("mamba_d_conv"),
    heads: Field("mamba_n_heads"),
    groups: Field("mamba_n_groups"),
    inner: Field("mamba_d_ssm"),
    output: Field("mamba_d_ssm"),
};

const SCALED_MIXER: &[TensorRule] = &[
    by(Transform::Own(&STATE_PARTS), MIXER[0]),
    MIXER[1],
    MIXER[2],
    MIXER[3],
    MIXER[4],
    MIXER[5],
    in_layers(Need::With(NORMED), MIXER[6]),
    by(times!(STATES_OUT_OF), MIXER[7]),
];

/// Whether what leaves a state space is normed.
const NORMED: &str = "mamba_rms_norm";
const BEFORE: &str = "mamba_norm_before_gate";

pub(super) const FALCON_H1: ModelClass = ModelClass {
    gguf: "falcon-h1",
    classes: &["FalconH1ForCausalLM"],
    model_type: "falcon_h1",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("num_key_value_heads", Int(8)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("mamba_d_ssm", Int(1024)),
        ("mamba_n_heads", Int(128)),
        ("mamba_n_groups", Int(1)),
        ("mamba_d_state", Int(256)),
        ("mamba_d_conv", Int(4)),
        (NORMED, Bool(false)),
        (BEFORE, Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
        ("projectors_bias", Bool(false)),
        ("mamba_proj_bias", Bool(false)),
        ("mamba_conv_bias", Bool(true)),
    ],
    tensors: &[ENDS, ATTENTION, SCALED_MIXER, FEED_FORWARD],
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        setting(Kind::Required, "ssm.conv_kernel", &["mamba_d_conv"]),
        setting(Kind::Required, "ssm.inner_size", &["mamba_d_ssm"]),
        setting(Kind::Required, "ssm.state_size", &["mamba_d_state"]),
        setting(Kind::Required, "ssm.time_step_rank", &["mamba_n_heads"]),
        setting(Kind::Required, "ssm.group_count", &["mamba_n_groups"]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Stated,
        laws: &[no_time_limits, gate_first, one_embedding],
        completes: &[complete],
        from_tensors: &[normed],
        restores: &[restore],
        ..Traits::PLAIN
    },
    mlx: Some(&FALCON_H1_MLX),
    ..ModelClass::PLAIN
};

const FALCON_H1_MLX: MlxClass = MlxClass {
    laws: &[|_| Err(wrong(KEYS, "mlx-lm's falcon_h1 does not multiply keys by it"))],
    ..MlxClass::PLAIN
};

/// Takes lists apart.
fn complete(fields: &mut Fields) -> Result<()> {
    let lists: [(&str, &[&str]); 2] = [(OF_MLP, &[GATE, DOWN]), (OF_STATES, &PARTS)];
    for (name, parts) in lists {
        let list = fields.0.remove(name);
        let Some(list) = list else { continue };
        let all = list.as_array().filter(|all| all.len() == parts.len());
        let all = all.ok_or_else(|| wrong(name, format!("it is no list of {}", parts.len())))?;
        let each = parts
            .iter()
            .zip(all)
            .map(|(part, value)| ((*part).to_owned(), value.clone()));
        fields.0.extend(each);
    }
    if !fields.flag(NORMED) {
        fields.0.remove(NORMED);
    }
    Ok(())
}

/// llama.cpp norms what leaves a state space behind its gate.
fn gate_first(model: &Model<'_>) -> Result<Option<String>> {
    match model.fields.flag(NORMED) && model.fields.flag(BEFORE) {
        true => Err(wrong(BEFORE, "llama.cpp's falcon-h1 has norms behind gates alone")),
        false => Ok(None),
    }
}

/// The embedding that stands for the output as well has one number for both.
fn one_embedding(model: &Model<'_>) -> Result<Option<String>> {
    let [embedding, output] = [EMBEDDING, OUTPUT].map(|field| model.fields.number(&[field]));
    let (embedding, output) = (embedding?.unwrap_or(1.0), output?.unwrap_or(1.0));
    if model.fields.flag("tie_word_embeddings") && embedding != output {
        let what =
            format!("it is {output}, and {EMBEDDING} {embedding}: GGUF has one matrix for both");
        return Err(wrong(OUTPUT, what));
    }
    Ok(None)
}

fn normed(config: &mut Map<String, Value>, tensors: &TensorShapes<'_>) -> Result<()> {
    if tensors.contains_key("blk.0.ssm_norm.weight") {
        config.insert(NORMED.to_owned(), true.into());
    } else {
        config.remove(NORMED);
    }
    Ok(())
}

fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    config.extend(SINGLE.map(|field| (field.to_owned(), json!(1.0))));
    config.insert(OF_MLP.to_owned(), vec![1.0; 2].into());
    config.insert(OF_STATES.to_owned(), vec![1.0; 5].into());
    let heads = dims.need("mamba_n_heads")?.max(1);
    config.insert("mamba_d_head".to_owned(), (dims.need_size(INNER)? / heads).into());
    let is_normed = config.contains_key(NORMED);
    config.insert(NORMED.to_owned(), is_normed.into());
    config.insert(BEFORE.to_owned(), false.into());
    Ok(())
}
