//! Gemma 3n: several copies of the hidden state, of which one is active, and inputs of each layer
//! beside it.
//!
//! Source: `Gemma3NModel` in `conversion/gemma.py` and `src/models/gemma3n.cpp` of llama.cpp;
//! defaults of transformers 4.57.6.

use serde_json::Value;

use super::gemma::{FOUR_NORMS, GEMMA2_TOKENIZER, LOGIT_CAP, not_null};
use super::gemma4::sizes::{INPUT_TOKENS, SHARED};
use super::gemma4::{ALL_INPUTS, INPUTS};
use super::hunyuan::{list_of_one, one_of_list};
use super::{CAUSAL, ENDS, HEAD_NORMS, MLP, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::fields::{FULL_ATTENTION, LAYER_KINDS, array, wrong};
use crate::families::engine::rope::WINDOWED;
use crate::families::engine::rows::*;
use crate::families::engine::source::{
    Rearrangement, SourceRows, SourceTensor, computed, unchanged,
};
use crate::families::engine::table::Model;
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};
use crate::remember::ResolvedItem;
use crate::remember::layout::assembled::RowOrder;

/// Copies of the hidden state that are not active.
const OTHERS: usize = 3;
const COPIES: Dim = Field("altup_num_inputs");
const RANK: Dim = Field("laurel_rank");

const PROJECTIONS: &[TensorRule] = &[
    stack("altup_proj", "model.altup_projections.{e}"),
    stack("altup_unembd_proj", "model.altup_unembed_projections.{e}"),
];

const fn stack(gguf: &'static str, hf: &'static str) -> TensorRule {
    TensorRule { transform: Transform::Stack(OTHERS), ..same(gguf, hf, &[Hidden, Hidden]) }
}

/// Rows of zeros behind those of a matrix, for tokens that have none in transformers.
const PADDED: OwnTransform = OwnTransform {
    to_gguf: |sources, _, dims| {
        let (rows, cols) = (sources[0].shape[0], sources[0].shape[1]);
        let missing = dims.vocab.saturating_sub(rows);
        sources.push(SourceTensor::new(ResolvedItem::from(computed(("", vec![0.0; cols]))))?);
        let piece = |source, order, rows| SourceRows { source, order, rows, turn: 1 };
        let moved = Rearrangement {
            pieces: vec![piece(0, RowOrder::From(0), rows), piece(1, RowOrder::Same(0), missing)],
            ..Rearrangement::of_each(0, RowOrder::From(0), (0, cols))
        };
        Ok((moved, vec![rows + missing, cols]))
    },
    to_hf: |sources, _, _| Ok(unchanged(sources)),
};

/// Tokens of images and of sound have no input of their own, and rows of zeros in GGUF.
const TOKEN_INPUTS: &[TensorRule] = &[
    TensorRule {
        transform: Transform::Own(&PADDED),
        gguf_shape: Some(&[Vocab, ALL_INPUTS]),
        ..INPUTS[0]
    },
    INPUTS[1],
    INPUTS[2],
    INPUTS[3],
    INPUTS[4],
    INPUTS[5],
];

const COPIED: &[TensorRule] = &[
    same(
        "blk.{i}.altup_correct_coef",
        "model.layers.{i}.altup.correction_coefs",
        &[COPIES, COPIES],
    ),
    same(
        "blk.{i}.altup_predict_coef",
        "model.layers.{i}.altup.prediction_coefs",
        &[Product(&[COPIES, COPIES]), COPIES],
    ),
    same("blk.{i}.altup_router", "model.layers.{i}.altup.modality_router", &[COPIES, Hidden]),
    same("blk.{i}.altup_router_norm", "model.layers.{i}.altup.router_norm", &[Hidden]),
    parameter(
        "blk.{i}.altup_correct_scale.weight",
        "model.layers.{i}.altup.correct_output_scale",
        (Transform::None, &[Hidden], &[Hidden]),
    ),
    same("blk.{i}.laurel_l", "model.layers.{i}.laurel.linear_left", &[RANK, Hidden]),
    same("blk.{i}.laurel_r", "model.layers.{i}.laurel.linear_right", &[Hidden, RANK]),
    same("blk.{i}.laurel_post_norm", "model.layers.{i}.laurel.post_laurel_norm", &[Hidden]),
];

pub(super) const GEMMA3N: ModelClass = ModelClass {
    gguf: "gemma3n",
    classes: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
    model_type: "gemma3n_text",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_attention_heads", Int(8)),
        ("num_key_value_heads", Int(2)),
        ("head_dim", Int(256)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(1e6)),
        ("rope_local_base_freq", Float(10_000.0)),
        ("sliding_window", Int(512)),
        (LOGIT_CAP, Float(30.0)),
        ("vocab_size", Int(262_400)),
        (INPUT_TOKENS, Int(262_144)),
        ("hidden_size_per_layer_input", Int(256)),
        ("altup_active_idx", Int(0)),
        ("altup_num_inputs", Int(4)),
        ("laurel_rank", Int(64)),
        (SHARED, Int(15)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("hidden_activation", Text("gelu_pytorch_tanh")),
        ("attention_bias", Bool(false)),
        ("altup_active_idx", Int(0)),
        ("altup_num_inputs", Int(OTHERS as u64 + 1)),
        ("altup_correct_scale", Bool(true)),
        ("rope_scaling", Absent),
        // llama.cpp does not read the key.
        (LOGIT_CAP, Float(30.0)),
    ],
    tensors: &[
        ENDS,
        PROJECTIONS,
        TOKEN_INPUTS,
        FOUR_NORMS,
        QUERIES,
        VALUES,
        HEAD_NORMS,
        COPIED,
        MLP,
    ],
    settings: &[&[
        setting(Kind::Own(&INNER), "feed_forward_length", &["intermediate_size"]),
        number(LOGIT_CAP, &[LOGIT_CAP]),
        count("attention.sliding_window", &["sliding_window"]),
        count("altup.active_idx", &["altup_active_idx"]),
        count("altup.num_inputs", &["altup_num_inputs"]),
        count("embedding_length_per_layer_input", &["hidden_size_per_layer_input"]),
        setting(Kind::Own(&SHARED_LAYERS), "attention.shared_kv_layers", &[SHARED]),
        setting(
            Kind::Own(&SPARSE_LAYERS),
            "activation_sparsity_scale",
            &["activation_sparsity_pattern"],
        ),
        setting(Kind::Layers("sliding_attention"), "attention.sliding_window_pattern", &[]),
    ]],
    traits: Traits {
        rope: RopeTraits::BY_KIND,
        ties_output: true,
        layer_kinds: Some(("sliding_attention", 5)),
        full_attention_every: Some(5),
        laws: &[|model| not_null(model, &[LOGIT_CAP])],
        completes: &[|fields| one_of_list(fields, LISTED)],
        restores: &[|config, dims| list_of_one(config, LISTED, dims)],
        also_implied: &[CAUSAL],
        ..Traits::PLAIN
    },
    tokenizer: &GEMMA2_TOKENIZER,
    mlx: Some(&GEMMA3N_MLX),
    ..ModelClass::PLAIN
};

const GEMMA3N_MLX: MlxClass = MlxClass {
    implied: &[("hidden_activation", Text("gelu_pytorch_tanh")), NO_BIAS, NO_SCALING],
    stated_fields: &[
        COMMON_FIELDS,
        &[
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            SHARED,
            INPUT_TOKENS,
            "hidden_size_per_layer_input",
            "sliding_window",
            "max_position_embeddings",
            "rope_local_base_freq",
            LOGIT_CAP,
            "layer_types",
            "activation_sparsity_pattern",
            "altup_num_inputs",
            "altup_coef_clip",
            "altup_correct_scale",
            "altup_active_idx",
            "laurel_rank",
        ],
    ],
    laws: &[both_kinds],
    around: Some(("Gemma3nForConditionalGeneration", "gemma3n")),
    output: OutputLayer::Tied,
    prefix: Prefix::Within("model.language_model."),
    ..MlxClass::PLAIN
};

/// mlx-lm needs layers of both kinds in front of those that share keys.
fn both_kinds(model: &Model<'_>) -> Result<Option<String>> {
    let shared = model.fields.count(&[SHARED])?.unwrap_or(0) as usize;
    let own = model.dims.layers.saturating_sub(shared);
    let has = |kind| {
        model
            .dims
            .layers_of(kind)
            .is_some_and(|all| all.take(own).any(|is_so| is_so))
    };
    match has(WINDOWED) && has(FULL_ATTENTION) {
        true => Ok(None),
        false => Err(wrong(
            LAYER_KINDS,
            "mlx-lm's gemma3n needs layers with a window and without in front of those that share keys",
        )),
    }
}

/// Fields that configs have as a list of the same number for each layer.
const LISTED: &[&str] = &["intermediate_size"];

/// INT32\[\]: the width of the feed-forward layer, once for each layer.
const INNER: OwnSetting = own(
    |setting, model| {
        let inner = i32::try_from(model.fields.need(setting.fields)?);
        let inner = inner.map_err(|_| setting.wrong("it is too large"))?;
        Ok(Some(array(GgufMetadataArray::I32(vec![inner; model.dims.layers]))))
    },
    |stated, _| match stated.numbers()? {
        [first, rest @ ..] if rest.iter().all(|width| width == first) => Ok(Some((*first).into())),
        _ => Err(stated.other_type()),
    },
);

/// Layers that have keys and values of their own.
const OWN_KEYS: usize = 20;

/// UINT32: how many layers there are behind those with keys of their own.
const SHARED_LAYERS: OwnSetting = own(
    |setting, model| {
        let (found, layers) = (model.fields.need(setting.fields)?, model.dims.layers);
        if found as usize + OWN_KEYS != layers {
            return Err(setting.wrong(format_args!(
                "it is {found} of {layers} layers, and gemma3n has {OWN_KEYS} in front of them"
            )));
        }
        Ok(Some(GgufMetadataValue::U32(found)))
    },
    |stated, _| Ok(Some(stated.count()?.into())),
);

/// FLOAT32\[\]: how far the activations of each layer are cut.
const SPARSE_LAYERS: OwnSetting = own(
    |setting, model| {
        let layers = model.dims.layers;
        let stated = model.fields.get(setting.fields);
        if stated.is_some_and(|(_, stated)| numbers(stated) != numbers(&parts(layers))) {
            return Err(setting.wrong(format_args!(
                "gemma3n cuts activations of the first {CUT} layers alone, to {PART}"
            )));
        }
        Ok(Some(array(GgufMetadataArray::F32(deviations(layers)))))
    },
    |stated, config| {
        let Some(GgufMetadataArray::F32(found)) = stated.value.as_array() else {
            return Err(stated.other_type());
        };
        let is_same = *found == deviations(found.len());
        config.require_fixed(stated.key, is_same, &"other layers that cut activations")?;
        Ok(Some(parts(found.len())))
    },
);

/// The layers that cut activations are the first ones.
const CUT: usize = 10;
/// The part of activations that they cut.
const PART: f64 = 0.95;
/// How many standard deviations are below that part of a normal distribution.
const DEVIATIONS: f32 = 1.644_853_6;

/// By how many standard deviations each of `layers` layers cuts.
fn deviations(layers: usize) -> Vec<f32> {
    let cut = |layer| match layer < CUT {
        true => DEVIATIONS,
        false => f32::NEG_INFINITY,
    };
    (0..layers).map(cut).collect()
}

/// The parts that each of `layers` layers cuts.
fn parts(layers: usize) -> Value {
    let part = |layer| if layer < CUT { PART } else { 0.0 };
    (0..layers).map(part).collect()
}

/// The numbers of a list; `None` if it is another value.
fn numbers(list: &Value) -> Option<Vec<f64>> {
    list.as_array()?.iter().map(Value::as_f64).collect()
}
