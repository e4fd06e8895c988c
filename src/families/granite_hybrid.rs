//! Granite 4: state spaces in most layers, attention without positions in some.
//!
//! Source: `GraniteHybridModel` in `conversion/granite.py` of llama.cpp; defaults of transformers
//! 4.57.6.

use serde_json::Value;

use super::granite::{EXPERTS, GRANITE, GRANITE_FIELDS, SETTINGS, SHARED_EXPERTS, shared_half};
use super::llama::{MIXTRAL_STACKS, ROTATED};
use super::mamba::{ONE_GROUP, mamba2_mixer, no_time_limits};
use super::{ENDS, NORMS, VALUES, sparse};
use crate::Result;
use crate::families::engine::fields::Fields;
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataValue;

const ATTENDING: Need = Need::Kind("attention");

const ATTENTION: &[TensorRule] = &[
    in_layers(ATTENDING, ROTATED[0]),
    in_layers(ATTENDING, ROTATED[1]),
    in_layers(ATTENDING, VALUES[0]),
    in_layers(ATTENDING, VALUES[1]),
];

const MIXER: &[TensorRule] = mamba2_mixer! {
    prefix: "model.layers.{i}.mamba",
    need: Need::Kind("mamba"),
    state: Field("mamba_d_state"),
    filter: Field("mamba_d_conv"),
    heads: Field("mamba_n_heads"),
    groups: Field("mamba_n_groups"),
    inner: Product(&[Field("mamba_expand"), Hidden]),
    // The length of a head may be `auto`.
    output: Product(&[Field("mamba_n_heads"), Field("mamba_d_head")]),
};

/// That layer, which GGUF calls otherwise where there are experts beside it.
const SHARED_MLP: &[TensorRule] = &[
    shared_half(Need::Dense, 0, "blk.{i}.ffn_gate"),
    shared_half(Need::Dense, 1, "blk.{i}.ffn_up"),
    // Of a layer without experts llama.cpp takes the width from `intermediate_size`.
    only(
        Need::Dense,
        "blk.{i}.ffn_down",
        "model.layers.{i}.shared_mlp.output_linear",
        &[Hidden, Inner],
    ),
    in_layers(Need::Sparse, SHARED_EXPERTS[0]),
    in_layers(Need::Sparse, SHARED_EXPERTS[1]),
    in_layers(Need::Sparse, SHARED_EXPERTS[2]),
];

const SPARSE_EXPERTS: &[TensorRule] =
    &[sparse(EXPERTS[0]), sparse(EXPERTS[1]), sparse(EXPERTS[2]), sparse(EXPERTS[3])];

const STATE_SETTINGS: &[Setting] = &[
    setting(
        Kind::KvHeadsBut("mamba", "attention"),
        "attention.head_count_kv",
        &["num_key_value_heads"],
    ),
    count("expert_shared_feed_forward_length", &["shared_intermediate_size"]),
    count("ssm.conv_kernel", &["mamba_d_conv"]),
    count("ssm.state_size", &["mamba_d_state"]),
    count("ssm.group_count", &["mamba_n_groups"]),
    setting(Kind::Product, "ssm.inner_size", &["mamba_expand", "hidden_size"]),
    setting(Kind::Required, "ssm.time_step_rank", &["mamba_n_heads"]),
];

const DEFAULTS: &[(&str, Default)] = &[
    ("rms_norm_eps", Float(1e-6)),
    ("rope_theta", Float(10_000.0)),
    ("num_local_experts", Int(8)),
    ("num_experts_per_tok", Int(2)),
    ("shared_intermediate_size", Int(1024)),
    ("attention_multiplier", Float(1.0)),
    ("embedding_multiplier", Float(1.0)),
    ("residual_multiplier", Float(1.0)),
    ("logits_scaling", Float(1.0)),
    ("mamba_n_heads", Int(128)),
    ("mamba_n_groups", Int(1)),
    ("mamba_d_state", Int(256)),
    ("mamba_d_conv", Int(4)),
    ("mamba_expand", Int(2)),
];

const RECURRENT_SETTINGS: &[Setting] = &[
    // Attention has no positions, so nothing bounds a text.
    setting(Kind::Fixed(1 << 20), "context_length", &[]),
    setting(Kind::FixedFlag(false), "rope.scaling.finetuned", &[]),
];

/// As [`MIXTRAL_STACKS`], and the feed-forward layer of models without experts. Beside experts its
/// projections stay fused.
const GRANITE_HYBRID_NAMES: &[(&str, &str)] = &[
    MIXTRAL_STACKS[0],
    MIXTRAL_STACKS[1],
    MIXTRAL_STACKS[2],
    ("blk.{i}.ffn_gate", "model.layers.{i}.mlp.gate_proj"),
    ("blk.{i}.ffn_up", "model.layers.{i}.mlp.up_proj"),
    ("blk.{i}.ffn_down", "model.layers.{i}.mlp.down_proj"),
];

pub(super) const GRANITE_HYBRID: ModelClass = ModelClass {
    gguf: "granitehybrid",
    classes: &["GraniteMoeHybridForCausalLM"],
    model_type: "granitemoehybrid",
    defaults: DEFAULTS,
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        (POSITIONS, Absent),
        ("mamba_conv_bias", Bool(true)),
        ("mamba_proj_bias", Bool(false)),
        ("mamba_expand", Int(2)),
    ],
    biases: &[],
    tensors: &[ENDS, NORMS, ATTENTION, MIXER, SHARED_MLP, SPARSE_EXPERTS],
    settings: &[SETTINGS, STATE_SETTINGS, RECURRENT_SETTINGS],
    traits: Traits {
        head_dim: HeadDim::Derived,
        kind_names: &[("linear_attention", "mamba"), ("full_attention", "attention")],
        needs_kind: Some("mamba"),
        laws: &[no_time_limits],
        completes: &[no_rope],
        ..Traits::PLAIN
    },
    tokenizer: &TOKENIZER,
    mlx: Some(&GRANITE_HYBRID_MLX),
    ..GRANITE
};

const GRANITE_HYBRID_MLX: MlxClass = MlxClass {
    renamed: GRANITE_HYBRID_NAMES,
    modes: ROUTER_8_BITS,
    implied: &[SILU, NO_BIAS, NO_SCALING, ("mamba_n_groups", ONE_GROUP.1)],
    stated_fields: &[
        GRANITE_FIELDS,
        &[
            "num_local_experts",
            "num_experts_per_tok",
            "shared_intermediate_size",
            "mamba_n_heads",
            "mamba_n_groups",
            "mamba_d_state",
            "mamba_d_conv",
            "mamba_conv_bias",
            "mamba_proj_bias",
            "position_embedding_type",
            "time_step_limit",
        ],
    ],
    equal_sizes: HEADS_FILL_HIDDEN,
    rope: RopeFields::Nested,
    ..MlxClass::PLAIN
};

/// Granite 4 without state spaces. llama.cpp's converter writes it as one without these layers,
/// with the settings of both.
pub(super) const GRANITE_ATTENDING: ModelClass = ModelClass {
    gguf: "granite",
    defaults: DEFAULTS,
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mamba_expand", Int(2)),
        // With experts, which no published model of the kind has, it is another class of llama.cpp.
        ("num_local_experts", Int(0)),
        ("num_experts_per_tok", Int(0)),
    ],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, SHARED_MLP],
    settings: &[
        SETTINGS,
        STATE_SETTINGS,
        &[setting(Kind::Own(&HAS_ROPE), "rope.scaling.finetuned", &[POSITIONS])],
    ],
    traits: Traits {
        has_pre_norms: true,
        lacks_kind: Some("mamba"),
        needs_kind: None,
        rope: RopeTraits::LLAMA3,
        sign: Sign::Has("ssm.conv_kernel"),
        ..GRANITE_HYBRID.traits
    },
    tokenizer: &TokenizerRules::PLAIN,
    ..GRANITE_HYBRID
};

/// BOOL that is true: the field must be `rope`.
const HAS_ROPE: OwnSetting = required(own(
    |setting, model| match model.fields.get(setting.fields) {
        Some((_, found)) if found == ROPE => Ok(Some(GgufMetadataValue::Bool(true))),
        _ => Err(setting.wrong(format_args!("it is not {ROPE}, and {} has that", model.owner()))),
    },
    |stated, config| {
        config.require_fixed(stated.key, stated.value.as_bool() == Some(true), &true)?;
        Ok(Some(ROPE.into()))
    },
));

/// What the config calls positions by rotation.
const ROPE: &str = "rope";

/// Field of the kind of positions.
const POSITIONS: &str = "position_embedding_type";

/// Nothing but positions by rotation has a name.
fn no_rope(fields: &mut Fields) -> Result<()> {
    if fields.0.get(POSITIONS).is_some_and(|kind| kind == "nope") {
        fields.0.remove(POSITIONS);
    }
    Ok(())
}

/// The vocabulary of models with state spaces is padded.
const TOKENIZER: TokenizerRules = TokenizerRules {
    multiple: |config| {
        let layers = config.get("layer_types").and_then(Value::as_array);
        let is_mamba = |layer: &Value| layer == "mamba" || layer == "linear_attention";
        match layers.is_none_or(|layers| layers.iter().any(is_mamba)) {
            true => 8,
            false => 1,
        }
    },
    ..TokenizerRules::PLAIN
};
