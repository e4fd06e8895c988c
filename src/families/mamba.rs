//! Mamba 1 and 2: state spaces in all layers, and no attention.
//!
//! Source: `conversion/mamba.py` of llama.cpp; defaults of transformers 5.23.

use serde_json::{Map, Value};

use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, HIDDEN, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

/// Embedding, last norm, output, and the norm in front of each layer.
pub(super) const ENDS: &[TensorRule] = &[
    same("token_embd", "backbone.embeddings", &[Vocab, Hidden]),
    same("output_norm", "backbone.norm_f", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
    same("blk.{i}.attn_norm", "backbone.layers.{i}.norm", &[Hidden]),
];

/// A vector that GGUF has alike.
pub(super) const fn vector(
    gguf: &'static str,
    hf: &'static str,
    shape: &'static [Dim],
) -> TensorRule {
    parameter(gguf, hf, (Transform::None, shape, shape))
}

/// Filters, whose names are whole because their bias is needed as well.
pub(super) const fn filters(
    gguf: &'static str,
    hf: &'static str,
    shape: &'static [Dim; 3],
    gguf_shape: &'static [Dim; 2],
) -> TensorRule {
    parameter(gguf, hf, (Transform::RESHAPED, shape, gguf_shape))
}

const STATE: Dim = Field("state_size");
const RANK: Dim = Field("time_step_rank");
const FILTER: Dim = Field("conv_kernel");
/// llama.cpp knows no other width of Mamba 1.
const INNER: Dim = Sum(&[Hidden, Hidden]);

const MIXER: &[TensorRule] = &[
    same("blk.{i}.ssm_in", "backbone.layers.{i}.mixer.in_proj", &[Sum(&[INNER, INNER]), Hidden]),
    filters(
        "blk.{i}.ssm_conv1d.weight",
        "backbone.layers.{i}.mixer.conv1d.weight",
        &[INNER, One, FILTER],
        &[INNER, FILTER],
    ),
    vector("blk.{i}.ssm_conv1d.bias", "backbone.layers.{i}.mixer.conv1d.bias", &[INNER]),
    same("blk.{i}.ssm_x", "backbone.layers.{i}.mixer.x_proj", &[Sum(&[RANK, STATE, STATE]), INNER]),
    vector("blk.{i}.ssm_dt.weight", "backbone.layers.{i}.mixer.dt_proj.weight", &[INNER, RANK]),
    vector("blk.{i}.ssm_dt.bias", "backbone.layers.{i}.mixer.dt_proj.bias", &[INNER]),
    parameter(
        "blk.{i}.ssm_a",
        "backbone.layers.{i}.mixer.A_log",
        (Transform::NEG_EXP, &[INNER, STATE], &[INNER, STATE]),
    ),
    vector("blk.{i}.ssm_d", "backbone.layers.{i}.mixer.D", &[INNER]),
    same("blk.{i}.ssm_out", "backbone.layers.{i}.mixer.out_proj", &[Hidden, Inner]),
];

/// Settings of models without attention. The fields have names that mean something else in other
/// classes.
const SETTINGS: &[Setting] = &[
    setting(Kind::Fixed(1 << 20), "context_length", &[]),
    setting(Kind::Fixed(0), "feed_forward_length", &[]),
    setting(Kind::Fixed(0), "attention.head_count", &[]),
    number("attention.layer_norm_rms_epsilon", &["layer_norm_epsilon"]),
    setting(Kind::Omitted, "attention.layer_norm_epsilon", &[]),
    setting(Kind::Omitted, "attention.key_length", &[]),
    setting(Kind::Omitted, "attention.value_length", &[]),
    count("ssm.conv_kernel", &["conv_kernel"]),
    count("ssm.state_size", &["state_size"]),
];

const RANKS: &[Setting] = &[
    setting(Kind::Required, "ssm.inner_size", &["intermediate_size"]),
    setting(Kind::Required, "ssm.time_step_rank", &["time_step_rank"]),
];

/// mlx-lm has one norm for the whole width of a state space, and transformers one for each group.
pub(super) const ONE_GROUP: (&str, Default) = ("n_groups", Int(1));

pub(super) const MAMBA: ModelClass = ModelClass {
    gguf: "mamba",
    classes: &["MambaForCausalLM"],
    model_type: "mamba",
    defaults: &[
        ("layer_norm_epsilon", Float(1e-5)),
        ("conv_kernel", Int(4)),
        ("state_size", Int(16)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("use_bias", Bool(false)),
        ("use_conv_bias", Bool(true)),
        ("expand", Int(2)),
    ],
    tensors: &[ENDS, MIXER],
    settings: &[SETTINGS, RANKS, &[setting(Kind::FixedFlag(false), "ssm.dt_b_c_rms", &[])]],
    traits: Traits { rope: RopeTraits::FIXED, is_recurrent: true, ..Traits::PLAIN },
    tokenizer: &TokenizerRules { multiple: |config| padding(config, 8), ..TokenizerRules::PLAIN },
    mlx: Some(&MAMBA_MLX),
    ..ModelClass::PLAIN
};

/// Mamba as the authors' package names it, which comes back as [`MAMBA`].
pub(super) const MAMBA_LM_HEAD: ModelClass = ModelClass {
    classes: &["MambaLMHeadModel"],
    tensors: &[
        &[TensorRule { hf: "backbone.embedding", ..ENDS[0] }, ENDS[1], ENDS[2], ENDS[3]],
        MIXER,
    ],
    traits: Traits { completes: &[of_package], sign: Sign::Never, ..MAMBA.traits },
    mlx: None,
    ..MAMBA
};

/// Sets what the package takes where its config is silent.
///
/// Source: `MambaConfig` and `Mamba` of mamba_ssm.
fn of_package(fields: &mut Fields) -> Result<()> {
    const OWN: &str = "ssm_cfg";
    let is_plain = |own: &Value| own.as_object().is_some_and(|own| own.is_empty());
    if let Some(own) = fields.0.get(OWN).filter(|own| !is_plain(own)) {
        return Err(wrong(
            OWN,
            format!("it is {own}, and only Mamba 1 with its defaults is converted"),
        ));
    }
    let hidden = fields.need(HIDDEN)?;
    fields
        .0
        .entry("intermediate_size")
        .or_insert(hidden.saturating_mul(2).into());
    fields
        .0
        .entry("time_step_rank")
        .or_insert(hidden.div_ceil(16).into());
    let (vocab, multiple) =
        (fields.need(&["vocab_size"])?, fields.count(&["pad_vocab_size_multiple"])?);
    let padded = vocab.checked_next_multiple_of(multiple.unwrap_or(8).max(1));
    fields
        .0
        .insert("vocab_size".to_owned(), padded.unwrap_or(vocab).into());
    Ok(())
}

const MAMBA_MLX: MlxClass = MlxClass {
    implied: &[
        SILU,
        ("layer_norm_epsilon", Float(1e-5)),
        ("use_bias", Bool(false)),
        ("use_bcdt_rms", Bool(false)),
        ("use_conv_bias", Bool(true)),
    ],
    stated_fields: &[&[
        "state_size",
        "conv_kernel",
        "time_step_rank",
        "intermediate_size",
        "use_bias",
        "use_conv_bias",
    ]],
    ..MlxClass::PLAIN
};

/// Falcon Mamba, in which steps, inputs and outputs of states are normed without weights.
pub(super) const FALCON_MAMBA: ModelClass = ModelClass {
    classes: &["FalconMambaForCausalLM"],
    model_type: "falcon_mamba",
    defaults: &[
        ("layer_norm_epsilon", Float(1e-5)),
        ("mixer_rms_eps", Float(1e-6)),
        ("conv_kernel", Int(4)),
        ("state_size", Int(16)),
        ("tie_word_embeddings", Bool(true)),
    ],
    settings: &[SETTINGS, RANKS, &[setting(Kind::FixedFlag(true), "ssm.dt_b_c_rms", &[])]],
    traits: Traits {
        laws: &[one_epsilon],
        restores: &[restore_epsilon],
        sign: Sign::Key("ssm.dt_b_c_rms", 1),
        ..MAMBA.traits
    },
    mlx: Some(&FALCON_MAMBA_MLX),
    ..MAMBA
};

const FALCON_MAMBA_MLX: MlxClass = MlxClass { laws: &[one_epsilon_in_mlx], ..MAMBA_MLX };

/// mlx-lm has the epsilon of the class in the norms of layers, whatever the config says.
fn one_epsilon_in_mlx(model: &Model<'_>) -> Result<Option<String>> {
    model
        .fields
        .expect("layer_norm_epsilon", &1e-5.into(), "mlx-lm's mamba")?;
    Ok(None)
}

/// The mixer of Mamba 2 in the layers that `need` names. `prefix` is what its names in transformers
/// begin with; `output` is the width of what goes into the last projection.
macro_rules! mamba2_mixer {
    (
        prefix: $prefix:literal,
        need: $need:expr,
        state: $state:expr,
        filter: $filter:expr,
        heads: $heads:expr,
        groups: $groups:expr,
        inner: $inner:expr,
        output: $output:expr,
    ) => {{
        use $crate::families::engine::dims::Dim;
        use $crate::families::engine::rows::{Need, Transform, in_layers, only, parameter};
        use $crate::families::mamba::{filters, vector};
        const NEED: Need = $need;
        const FILTER: Dim = $filter;
        const HEADS: Dim = $heads;
        const GROUPS: Dim = $groups;
        const INNER: Dim = $inner;
        const GROUP_STATES: Dim = Product(&[GROUPS, $state]);
        const FILTERED: Dim = Sum(&[INNER, GROUP_STATES, GROUP_STATES]);
        &[
            only(
                NEED,
                "blk.{i}.ssm_in",
                concat!($prefix, ".in_proj"),
                &[Sum(&[INNER, FILTERED, HEADS]), Hidden],
            ),
            in_layers(
                NEED,
                filters(
                    "blk.{i}.ssm_conv1d.weight",
                    concat!($prefix, ".conv1d.weight"),
                    &[FILTERED, One, FILTER],
                    &[FILTERED, FILTER],
                ),
            ),
            in_layers(
                NEED,
                vector("blk.{i}.ssm_conv1d.bias", concat!($prefix, ".conv1d.bias"), &[FILTERED]),
            ),
            in_layers(NEED, vector("blk.{i}.ssm_dt.bias", concat!($prefix, ".dt_bias"), &[HEADS])),
            in_layers(
                NEED,
                parameter(
                    "blk.{i}.ssm_a",
                    concat!($prefix, ".A_log"),
                    (Transform::NEG_EXP, &[HEADS], &[HEADS, One]),
                ),
            ),
            in_layers(
                NEED,
                parameter(
                    "blk.{i}.ssm_d",
                    concat!($prefix, ".D"),
                    (Transform::RESHAPED, &[HEADS], &[HEADS, One]),
                ),
            ),
            in_layers(
                NEED,
                parameter(
                    "blk.{i}.ssm_norm.weight",
                    concat!($prefix, ".norm.weight"),
                    (Transform::RESHAPED, &[INNER], &[GROUPS, Quotient(&[INNER, GROUPS])]),
                ),
            ),
            only(NEED, "blk.{i}.ssm_out", concat!($prefix, ".out_proj"), &[Hidden, $output]),
        ]
    }};
}
pub(super) use mamba2_mixer;

const MIXER2: &[TensorRule] = mamba2_mixer! {
    prefix: "backbone.layers.{i}.mixer",
    need: Need::All,
    state: Field("state_size"),
    filter: Field("conv_kernel"),
    heads: Field("num_heads"),
    groups: Field("n_groups"),
    inner: Product(&[Field("num_heads"), Field("head_dim")]),
    output: Product(&[Field("expand"), Hidden]),
};

pub(super) const MAMBA2: ModelClass = ModelClass {
    gguf: "mamba2",
    classes: &["Mamba2ForCausalLM"],
    model_type: "mamba2",
    defaults: &[
        ("layer_norm_epsilon", Float(1e-5)),
        ("conv_kernel", Int(4)),
        ("state_size", Int(128)),
        ("num_heads", Int(128)),
        ("head_dim", Int(64)),
        ("n_groups", Int(8)),
        ("expand", Int(2)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("use_bias", Bool(false)),
        ("use_conv_bias", Bool(true)),
    ],
    tensors: &[ENDS, MIXER2],
    settings: &[
        SETTINGS,
        &[
            setting(Kind::Required, "ssm.time_step_rank", &["num_heads"]),
            setting(Kind::Required, "ssm.group_count", &["n_groups"]),
            setting(Kind::Product, "ssm.inner_size", &["head_dim", "num_heads"]),
            setting(Kind::ProductToo, "ssm.inner_size", &["expand", "hidden_size"]),
        ],
    ],
    traits: Traits { laws: &[no_time_limits], ..MAMBA.traits },
    tokenizer: &TokenizerRules { multiple: |config| padding(config, 16), ..TokenizerRules::PLAIN },
    mlx: Some(&MAMBA2_MLX),
    ..MAMBA
};

const MAMBA2_MLX: MlxClass = MlxClass {
    implied: &[SILU, ONE_GROUP, ("use_bias", Bool(false)), ("use_conv_bias", Bool(true))],
    stated_fields: &[&[
        "num_heads",
        "head_dim",
        "n_groups",
        "state_size",
        "conv_kernel",
        "layer_norm_epsilon",
        "intermediate_size",
        "time_step_rank",
        "time_step_limit",
        "use_bias",
        "use_conv_bias",
    ]],
    ..MlxClass::PLAIN
};

/// Steps of a state space have no limits in llama.cpp.
pub(super) fn no_time_limits(model: &Model<'_>) -> Result<Option<String>> {
    const FIELD: &str = "time_step_limit";
    let limits = model.fields.0.get(FIELD).and_then(Value::as_array);
    match limits.map(Vec::as_slice) {
        None => Ok(None),
        // Infinity is no number of JSON: files have a name, an object with the name, or what it is
        // read as.
        Some([least, most]) if least.as_f64() == Some(0.0) && !most.is_number() => Ok(None),
        Some(limits) => {
            Err(wrong(FIELD, format_args!("it is {limits:?}, and llama.cpp has no limits")))
        }
    }
}

/// Epsilons of the norms of mixers, and of all other norms. llama.cpp has one for both.
const EPSILONS: [&str; 2] = ["mixer_rms_eps", "layer_norm_epsilon"];

fn one_epsilon(model: &Model<'_>) -> Result<Option<String>> {
    let [mixer, other] = EPSILONS;
    let epsilon = |field| model.fields.number(&[field]);
    let (Some(own), Some(taken)) = (epsilon(mixer)?, epsilon(other)?) else {
        return Ok(None);
    };
    let note = || {
        format!(
            "`{mixer}`: {} has `{other}`, {taken:e}, in the norms of mixers, too, and transformers {own:e} there, which is nearly the same",
            model.owner()
        )
    };
    Ok((own != taken).then(note))
}

fn restore_epsilon(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    let [mixer, other] = EPSILONS;
    let epsilon = config.get(other).cloned();
    config.extend(epsilon.map(|epsilon| (mixer.to_owned(), epsilon)));
    Ok(())
}

/// The number whose multiple the size of the vocabulary is.
fn padding(config: &Value, default: usize) -> usize {
    let stated = config
        .get("pad_vocab_size_multiple")
        .and_then(Value::as_u64);
    stated
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(default)
}
