//! Nemotron H and Nemotron 3: each layer is a state space, attention without positions, or a
//! feed-forward layer, which has experts in Nemotron 3.
//!
//! Source: `NemotronHModel` in `conversion/nemotron.py` of llama.cpp; defaults of transformers
//! 5.23.

use serde_json::Value;

use crate::families::engine::rows::*;
use crate::families::engine::table::{ConfigFields, Model, StatedKey};
use crate::remember::EncodedAs;

use super::glm::PREDICTION_SETTINGS;
use super::granite::GRANITE;
use super::mamba::{ENDS, no_time_limits};
use crate::Result;
use crate::families::engine::fields::{LAYER_KINDS, wrong_key};
use crate::families::engine::settings::numbers_of_kind;
use crate::model::gguf::GgufMetadataValue;

const FORWARD: Need = Need::Kind("mlp");

/// Attention of layers whose names in transformers begin with a prefix.
macro_rules! attention {
    ($layer:literal) => {{
        use $crate::families::engine::rows::*;
        const NEED: Need = Need::Kind("attention");
        const fn heads_of(
            gguf: &'static str,
            hf: &'static str,
            rows: &'static [Dim],
        ) -> TensorRule {
            TensorRule { transform: Transform::Heads, ..only(NEED, gguf, hf, rows) }
        }
        &[
            heads_of("blk.{i}.attn_q", concat!($layer, ".mixer.q_proj"), &[Queries, Hidden]),
            heads_of("blk.{i}.attn_k", concat!($layer, ".mixer.k_proj"), &[Keys, Hidden]),
            only(NEED, "blk.{i}.attn_v", concat!($layer, ".mixer.v_proj"), &[Keys, Hidden]),
            only(NEED, "blk.{i}.attn_output", concat!($layer, ".mixer.o_proj"), &[Hidden, Queries]),
        ]
    }};
}
pub(super) use attention;

const ATTENTION: &[TensorRule] = attention!("backbone.layers.{i}");

const MLP: &[TensorRule] = &[
    only(FORWARD, "blk.{i}.ffn_up", "backbone.layers.{i}.mixer.up_proj", &[Inner, Hidden]),
    only(FORWARD, "blk.{i}.ffn_down", "backbone.layers.{i}.mixer.down_proj", &[Hidden, Inner]),
];

/// Experts without a gate, of a width, that see a state of a length; and one that every token sees.
macro_rules! experts_and_shared {
    ($layer:literal, $inner:expr, $seen:expr) => {{
        use $crate::families::engine::rows::*;
        use $crate::families::mamba::vector;
        const NEED: Need = Need::Kind("moe");
        const SHARED: Dim = Field("moe_shared_expert_intermediate_size");
        const fn own(gguf: &'static str, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
            in_layers(NEED, experts(gguf, hf, shape))
        }
        &[
            only(NEED, "blk.{i}.ffn_gate_inp", concat!($layer, ".mixer.gate"), &[Experts, Hidden]),
            in_layers(
                NEED,
                vector(
                    "blk.{i}.exp_probs_b.bias",
                    concat!($layer, ".mixer.gate.e_score_correction_bias"),
                    &[Experts],
                ),
            ),
            own(
                "blk.{i}.ffn_up_exps",
                concat!($layer, ".mixer.experts.{e}.up_proj"),
                &[$inner, $seen],
            ),
            own(
                "blk.{i}.ffn_down_exps",
                concat!($layer, ".mixer.experts.{e}.down_proj"),
                &[$seen, $inner],
            ),
            only(
                NEED,
                "blk.{i}.ffn_up_shexp",
                concat!($layer, ".mixer.shared_experts.up_proj"),
                &[SHARED, Hidden],
            ),
            only(
                NEED,
                "blk.{i}.ffn_down_shexp",
                concat!($layer, ".mixer.shared_experts.down_proj"),
                &[Hidden, SHARED],
            ),
        ]
    }};
}
pub(super) use experts_and_shared;

/// What makes the shorter state that experts see, and the state of what they make.
macro_rules! latent {
    ($layer:literal) => {{
        use $crate::families::engine::rows::*;
        const NEED: Need = Need::Kind("moe");
        const LATENT: Dim = Field("moe_latent_size");
        &[
            only(
                NEED,
                "blk.{i}.ffn_latent_down",
                concat!($layer, ".mixer.fc1_latent_proj"),
                &[LATENT, Hidden],
            ),
            only(
                NEED,
                "blk.{i}.ffn_latent_up",
                concat!($layer, ".mixer.fc2_latent_proj"),
                &[Hidden, LATENT],
            ),
        ]
    }};
}
pub(super) use latent;

const SPARSE_MLP: &[TensorRule] = experts_and_shared!("backbone.layers.{i}", ExpertInner, Hidden);

const LATENT_MLP: &[TensorRule] =
    experts_and_shared!("backbone.layers.{i}", ExpertInner, Field("moe_latent_size"));

const LATENT: &[TensorRule] = latent!("backbone.layers.{i}");

/// The layer that predicts a further token: attention, and experts behind a norm of their own.
const PREDICTION_NAMES: PredictionNames = PredictionNames {
    count: "num_nextn_predict_layers",
    kinds: &["attention", "moe"],
    layers: "backbone.layers.",
    names: &[
        ("mtp.layers.0.enorm.", "enorm."),
        ("mtp.layers.0.hnorm.", "hnorm."),
        ("mtp.layers.0.eh_proj.", "eh_proj."),
        ("mtp.layers.0.norm.", "norm."),
        ("mtp.layers.0.mixer.q_proj.", "mixer.q_proj."),
        ("mtp.layers.0.mixer.k_proj.", "mixer.k_proj."),
        ("mtp.layers.0.mixer.v_proj.", "mixer.v_proj."),
        ("mtp.layers.0.mixer.o_proj.", "mixer.o_proj."),
        ("mtp.layers.1.norm.", "post_attention_layernorm."),
        ("mtp.layers.1.final_layernorm.", "shared_head.norm."),
        ("mtp.layers.1.mixer.", "mixer."),
    ],
};

/// What that layer has beside the tensors of other layers.
const PREDICTION: &[TensorRule] = &[
    only(
        Need::Prediction,
        "blk.{i}.nextn.eh_proj",
        "backbone.layers.{i}.eh_proj",
        &[Hidden, Sum(&[Hidden, Hidden])],
    ),
    only(Need::Prediction, "blk.{i}.nextn.enorm", "backbone.layers.{i}.enorm", &[Hidden]),
    only(Need::Prediction, "blk.{i}.nextn.hnorm", "backbone.layers.{i}.hnorm", &[Hidden]),
    only(
        Need::Prediction,
        "blk.{i}.post_attention_norm",
        "backbone.layers.{i}.post_attention_layernorm",
        &[Hidden],
    ),
    only(
        Need::Prediction,
        "blk.{i}.nextn.shared_head_norm",
        "backbone.layers.{i}.shared_head.norm",
        &[Hidden],
    ),
];

/// A mixer of Mamba 2 of layers whose names in transformers begin with a prefix.
macro_rules! mixer {
    ($prefix:literal) => {
        $crate::families::mamba::mamba2_mixer! {
            prefix: $prefix,
            need: Need::Kind("mamba"),
            state: Field("ssm_state_size"),
            filter: Field("conv_kernel"),
            heads: Field("mamba_num_heads"),
            groups: Field("n_groups"),
            inner: Product(&[Field("mamba_num_heads"), Field("mamba_head_dim")]),
            output: Product(&[Field("mamba_num_heads"), Field("mamba_head_dim")]),
        }
    };
}
pub(super) use mixer;

const MIXER: &[TensorRule] = mixer!("backbone.layers.{i}.mixer");

pub(super) const SETTINGS: &[Setting] = &[
    setting(Kind::Fixed(1 << 20), "context_length", &[]),
    setting(Kind::FixedFlag(false), "rope.scaling.finetuned", &[]),
    count("vocab_size", &["vocab_size"]),
    setting(Kind::Own(&PLAIN_HEAD), "rope.dimension_count", &[]),
    setting(
        Kind::KvHeadsBut("mamba", "attention"),
        "attention.head_count_kv",
        &["num_key_value_heads"],
    ),
    count("ssm.conv_kernel", &["conv_kernel"]),
    count("ssm.state_size", &["ssm_state_size"]),
    count("ssm.group_count", &["n_groups"]),
    setting(Kind::Required, "ssm.time_step_rank", &["mamba_num_heads"]),
    setting(Kind::Product, "ssm.inner_size", &["mamba_head_dim", "mamba_num_heads"]),
];

/// Settings of models with experts.
pub(super) const EXPERT_SETTINGS: &[Setting] = &[
    setting(Kind::Own(&EXPERTS_INNER), "feed_forward_length", &["moe_intermediate_size"]),
    count("expert_feed_forward_length", &["moe_intermediate_size"]),
    setting(
        Kind::Required,
        "expert_shared_feed_forward_length",
        &["moe_shared_expert_intermediate_size"],
    ),
    setting(Kind::Required, "expert_shared_count", &["n_shared_experts"]),
    setting(Kind::Flag, "expert_weights_norm", &["norm_topk_prob"]),
    number("expert_weights_scale", &["routed_scaling_factor"]),
];

/// Defaults of both classes, and those of one.
macro_rules! defaults {
    ($($more:expr),* $(,)?) => {
        &[
            ("layer_norm_epsilon", Float(1e-5)),
            ("num_key_value_heads", Int(8)),
            ("head_dim", Int(128)),
            ("mamba_num_heads", Int(128)),
            ("mamba_head_dim", Int(64)),
            ("n_groups", Int(8)),
            ("ssm_state_size", Int(128)),
            ("conv_kernel", Int(4)),
            $($more),*
        ]
    };
}

/// What llama.cpp takes for granted of both classes, and of one.
macro_rules! implied {
    ($($more:expr),* $(,)?) => {
        &[
            ("mlp_hidden_act", Text("relu2")),
            ("mamba_hidden_act", Text("silu")),
            ("attention_bias", Bool(false)),
            ("mlp_bias", Bool(false)),
            ("mamba_proj_bias", Bool(false)),
            ("use_bias", Bool(false)),
            ("use_conv_bias", Bool(true)),
            $($more),*
        ]
    };
}

/// Stacks of Nemotron 3, whose experts have no gate.
const NEMOTRON_STACKS: &[(&str, &str)] = &[
    ("blk.{i}.ffn_up_exps", "backbone.layers.{i}.mixer.switch_mlp.fc1"),
    ("blk.{i}.ffn_down_exps", "backbone.layers.{i}.mixer.switch_mlp.fc2"),
];

pub(super) const NEMOTRON_H: ModelClass = ModelClass {
    gguf: "nemotron_h",
    classes: &["NemotronHForCausalLM"],
    model_type: "nemotron_h",
    defaults: defaults![],
    implied: implied![
        // With experts it is another class of llama.cpp.
        ("num_experts_per_tok", Absent),
    ],
    own_fields: &[("layer_norm_eps", "layer_norm_epsilon")],
    // llama.cpp has one for most norms, which is the other if there is none.
    equal_fields: &[("rms_norm_eps", "layer_norm_epsilon")],
    biases: &[],
    tensors: &[ENDS, ATTENTION, MLP, MIXER],
    settings: &[
        SETTINGS,
        &[setting(Kind::Own(&INNER), "feed_forward_length", &["intermediate_size"])],
    ],
    traits: Traits {
        layer_letters: &[("mamba", 'M'), ("attention", '*'), ("mlp", '-')],
        kind_names: &[("linear_attention", "mamba"), ("full_attention", "attention")],
        needs_kind: Some("mamba"),
        laws: &[no_time_limits],
        ..Traits::PLAIN
    },
    tokenizer: &TokenizerRules { multiple: |_| 8, ..TokenizerRules::PLAIN },
    mlx: Some(&NEMOTRON_H_MLX),
    ..GRANITE
};

const NEMOTRON_H_MLX: MlxClass = MlxClass {
    kept_types: &["blk.{i}.ssm_a"],
    implied: &[("mlp_hidden_act", Text("relu2")), ("mamba_hidden_act", Text("silu")), NO_BIAS],
    stated_fields: &[&[
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "layer_norm_epsilon",
        "mamba_num_heads",
        "mamba_head_dim",
        "n_groups",
        "ssm_state_size",
        "conv_kernel",
        "attention_bias",
        "mlp_bias",
        "mamba_proj_bias",
        "use_bias",
        "use_conv_bias",
    ]],
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};

/// Nemotron 3, whose name in transformers is the same.
pub(super) const NEMOTRON_H_MOE: ModelClass = ModelClass {
    gguf: "nemotron_h_moe",
    defaults: defaults![
        ("n_routed_experts", Int(8)),
        ("n_shared_experts", Int(1)),
        ("moe_intermediate_size", Int(7688)),
        ("moe_shared_expert_intermediate_size", Int(7688)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
        ("norm_topk_prob", Bool(true)),
        ("routed_scaling_factor", Float(1.0)),
    ],
    implied: implied![
        // Experts that work on a shorter state are another class here.
        ("moe_latent_size", Absent),
    ],
    own_fields: &[
        ("layer_norm_eps", "layer_norm_epsilon"),
        ("num_local_experts", "n_routed_experts"),
    ],
    tensors: &[ENDS, ATTENTION, SPARSE_MLP, MIXER, PREDICTION],
    settings: &[SETTINGS, EXPERT_SETTINGS, PREDICTION_SETTINGS],
    traits: Traits {
        has_expert_groups: true,
        layer_letters: &[("mamba", 'M'), ("attention", '*'), ("moe", 'E')],
        config_sign: Some("num_experts_per_tok"),
        prediction: Prediction::Apart(&PREDICTION_NAMES),
        ..NEMOTRON_H.traits
    },
    mlx: Some(&NEMOTRON_H_MOE_MLX),
    ..NEMOTRON_H
};

const NEMOTRON_H_MOE_MLX: MlxClass = MlxClass {
    implied: &[
        NEMOTRON_H_MLX.implied[0],
        NEMOTRON_H_MLX.implied[1],
        NEMOTRON_H_MLX.implied[2],
        ("moe_latent_size", Absent),
    ],
    renamed: NEMOTRON_STACKS,
    // A parameter of the router, and no linear module.
    modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
    kept_types: &["blk.{i}.ssm_a", "blk.{i}.exp_probs_b.bias"],
    stated_fields: &[
        NEMOTRON_H_MLX.stated_fields[0],
        &[
            "moe_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "n_group",
            "n_routed_experts",
            "n_shared_experts",
            "topk_group",
            "norm_topk_prob",
            "routed_scaling_factor",
        ],
    ],
    ..NEMOTRON_H_MLX
};

/// Nemotron 3 whose experts work on a shorter state (Super, Ultra).
pub(super) const NEMOTRON_H_LATENT: ModelClass = ModelClass {
    implied: implied![],
    tensors: &[ENDS, ATTENTION, LATENT_MLP, LATENT, MIXER, PREDICTION],
    settings: &[
        SETTINGS,
        EXPERT_SETTINGS,
        PREDICTION_SETTINGS,
        &[setting(Kind::Required, "moe_latent_size", &["moe_latent_size"])],
    ],
    traits: Traits {
        config_sign: Some("moe_latent_size"),
        sign: Sign::Has("moe_latent_size"),
        ..NEMOTRON_H_MOE.traits
    },
    ..NEMOTRON_H_MOE
};

/// UINT32: hidden size / heads, which nothing reads.
const PLAIN_HEAD: OwnSetting = own(
    |setting, model| {
        setting
            .count(model.dims.hidden / model.dims.heads)
            .map(Some)
    },
    |_, _| Ok(None),
);

/// INT32\[\]: the width of the feed-forward layers, 0 for other layers.
const INNER: OwnSetting = own(
    |setting, model| widths(setting, model, "mlp"),
    |stated, config| width_of(stated, config, "mlp"),
);

/// The same of layers with experts.
const EXPERTS_INNER: OwnSetting = own(
    |setting, model| widths(setting, model, "moe"),
    |stated, config| width_of(stated, config, "moe"),
);

fn widths(setting: &Setting, model: &Model<'_>, kind: &str) -> Result<Option<GgufMetadataValue>> {
    let inner = model.fields.count(setting.fields)?;
    let inner = inner.and_then(|n| i32::try_from(n).ok());
    let inner = inner.ok_or_else(|| setting.wrong("it is missing or too large"))?;
    Ok(numbers_of_kind(&model.dims, kind, inner))
}

/// The width of the layers that have one, which become of `kind`.
fn width_of(
    stated: &StatedKey<'_>,
    config: &mut ConfigFields<'_>,
    kind: &str,
) -> Result<Option<Value>> {
    let widths = config.last_left_out(stated.numbers()?);
    let inner = widths.iter().copied().find(|n| *n != 0).unwrap_or(0);
    let kinds = config.fields.get_mut(LAYER_KINDS);
    let kinds = kinds.and_then(Value::as_array_mut);
    let kinds = kinds.filter(|kinds| kinds.len() == widths.len());
    let other_len = || wrong_key(stated.key, "it has another number of layers");
    for (found, width) in kinds.ok_or_else(other_len)?.iter_mut().zip(widths) {
        match *width {
            0 => {}
            width if width == inner && *found != "attention" => *found = kind.into(),
            _ => {
                let what = "layers have several parts, or several widths";
                return Err(wrong_key(stated.key, what));
            }
        }
    }
    Ok(Some(inner.into()))
}
