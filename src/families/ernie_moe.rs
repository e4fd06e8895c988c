//! ERNIE 4.5 with experts.
//!
//! Source: `conversion/ernie.py` of llama.cpp; defaults of transformers 4.57.6.

use super::exaone::ERNIE4_5;
use super::{DENSE_MLP, ENDS, NORMS, QUERIES, SPARSE_MLP, VALUES, sparse};
use crate::families::engine::fields::wrong;
use crate::families::engine::rows::*;

/// Width of all experts that every token sees.
const SHARED: Dim = Product(&[ExpertInner, Field("moe_num_shared_experts")]);

const EXPERTS: &[TensorRule] = &[
    // The router and its bias are F32 in models of every type.
    TensorRule { keeps_f32: true, ..SPARSE_MLP[0] },
    SPARSE_MLP[1],
    SPARSE_MLP[2],
    SPARSE_MLP[3],
    TensorRule {
        keeps_f32: true,
        ..sparse(parameter(
            "blk.{i}.exp_probs_b.bias",
            "model.layers.{i}.mlp.moe_statics.e_score_correction_bias",
            (Transform::None, &[One, Experts], &[One, Experts]),
        ))
    },
    only(
        Need::SparseIf("moe_num_shared_experts"),
        SPARSE_MLP[4].gguf,
        SPARSE_MLP[4].hf,
        &[SHARED, Hidden],
    ),
    only(
        Need::SparseIf("moe_num_shared_experts"),
        SPARSE_MLP[5].gguf,
        SPARSE_MLP[5].hf,
        &[SHARED, Hidden],
    ),
    only(
        Need::SparseIf("moe_num_shared_experts"),
        SPARSE_MLP[6].gguf,
        SPARSE_MLP[6].hf,
        &[Hidden, SHARED],
    ),
];

const SETTINGS: &[Setting] = &[
    count("interleave_moe_layer_step", &["moe_layer_interval"]),
    count("leading_dense_block_count", &["moe_layer_start_index"]),
    count("expert_feed_forward_length", &["moe_intermediate_size"]),
    count("expert_shared_count", &["moe_num_shared_experts"]),
    setting(
        Kind::Own(&SHARED_WIDTH),
        "expert_shared_feed_forward_length",
        &["intermediate_size", "moe_intermediate_size", "moe_num_shared_experts"],
    ),
    setting(Kind::Own(&LAST_LAYER), "moe_layer_end_index", &["moe_layer_end_index"]),
];

pub(super) const ERNIE4_5_MOE: ModelClass = ModelClass {
    gguf: "ernie4_5-moe",
    classes: &["Ernie4_5_MoeForCausalLM"],
    model_type: "ernie4_5_moe",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(4)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(500_000.0)),
        ("tie_word_embeddings", Bool(true)),
        ("moe_intermediate_size", Int(1536)),
        ("moe_num_experts", Int(64)),
        ("moe_k", Int(6)),
        ("moe_num_shared_experts", Int(2)),
        ("moe_layer_start_index", Int(1)),
        ("moe_layer_interval", Int(1)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("use_bias", Bool(false)),
        ("moe_layer_interval", Int(1)),
    ],
    own_fields: &[("num_local_experts", "moe_num_experts"), ("num_experts_per_tok", "moe_k")],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, DENSE_MLP, EXPERTS],
    settings: &[SETTINGS],
    traits: Traits {
        // Layers that predict further tokens.
        left_out: &["model.mtp_"],
        ..Traits::PLAIN
    },
    mlx: Some(&ERNIE4_5_MOE_MLX),
    ..ERNIE4_5
};

const ERNIE4_5_MOE_MLX: MlxClass = MlxClass {
    laws: &[|_| {
        Err(wrong(
            "moe_num_experts",
            "mlx-lm's ernie4_5_moe chooses experts without the bias of their scores",
        ))
    }],
    ..MlxClass::PLAIN
};

/// UINT32: the width of all experts that every token sees, if there are any. llama.cpp's converter
/// divides the first field by the number of heads of keys and values, which must be the same width.
/// Coming back, the other fields say it.
const SHARED_WIDTH: OwnSetting = own(
    |setting, model| {
        let (fields, dims) = (&model.fields, &model.dims);
        if fields.count(&setting.fields[2..])? == Some(0) {
            return Ok(None);
        }
        let quotient = fields.need(&setting.fields[..1])? as usize / dims.kv_heads;
        let width = dims.need(setting.fields[1])?;
        let shared = width.saturating_mul(dims.need(setting.fields[2])?);
        if quotient != shared {
            return Err(setting.wrong(format_args!(
                "divided by num_key_value_heads it is {quotient}, and shared experts are {shared} wide; llama.cpp takes the one for the other"
            )));
        }
        setting.count(shared).map(Some)
    },
    |_, _| Ok(None),
);

/// No key: the field is -1 or the last layer.
const LAST_LAYER: OwnSetting = own(
    |setting, model| match model.fields.get(setting.fields) {
        Some((_, last)) if *last != -1 && last.as_u64() != Some(model.dims.layers as u64 - 1) => {
            Err(setting.wrong("it is not the last layer"))
        }
        _ => Ok(None),
    },
    |_, _| Ok(None),
);
