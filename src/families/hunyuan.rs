//! Hunyuan, without and with experts.
//!
//! Source: `conversion/hunyuan.py` of llama.cpp; defaults of transformers 4.57.6.

use serde_json::{Map, Value};

use super::{ENDS, HEAD_NORMS, MLP, NORMS, QUERIES, SPARSE_MLP, VALUES};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, LAYERS, wrong};
use crate::families::engine::rows::*;

const NORMS_OF_HEADS: &[TensorRule] = &[
    same(HEAD_NORMS[0].gguf, "model.layers.{i}.self_attn.query_layernorm", &[Head]),
    same(HEAD_NORMS[1].gguf, "model.layers.{i}.self_attn.key_layernorm", &[Head]),
];

pub(super) const HUNYUAN: ModelClass = ModelClass {
    gguf: "hunyuan-dense",
    classes: &["HunYuanDenseV1ForCausalLM"],
    model_type: "hunyuan_v1_dense",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("tie_word_embeddings", Bool(false)),
    ],
    implied: &[("hidden_act", Text("silu")), ("attention_bias", Bool(false))],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, NORMS_OF_HEADS, MLP],
    traits: Traits {
        rope: RopeTraits { scalings: &[OwnScaling::Alpha], ..RopeTraits::PLAIN },
        ..Traits::PLAIN
    },
    tokenizer: &TOKENIZER,
    mlx: Some(&HUNYUAN_MLX),
    ..ModelClass::PLAIN
};

const HUNYUAN_MLX: MlxClass = MlxClass {
    implied: &[SILU, ("use_qk_norm", Bool(true))],
    scalings: &["dynamic"],
    bias_fields: &["attention_bias"],
    stated_fields: &[
        COMMON_FIELDS,
        &["max_position_embeddings", "num_key_value_heads", "head_dim", "attention_bias"],
    ],
    rope: RopeFields::FlatTyped,
    ..MlxClass::PLAIN
};

/// Experts in every layer, and one as wide that every token sees.
const EXPERTS: &[TensorRule] = &[
    // The router is F32 in models of every type.
    TensorRule {
        keeps_f32: true,
        ..same(SPARSE_MLP[0].gguf, "model.layers.{i}.mlp.gate.wg", &[Experts, Hidden])
    },
    in_layers(Need::All, SPARSE_MLP[1]),
    in_layers(Need::All, SPARSE_MLP[2]),
    in_layers(Need::All, SPARSE_MLP[3]),
    same(SPARSE_MLP[4].gguf, "model.layers.{i}.mlp.shared_mlp.gate_proj", &[Inner, Hidden]),
    same(SPARSE_MLP[5].gguf, "model.layers.{i}.mlp.shared_mlp.up_proj", &[Inner, Hidden]),
    same(SPARSE_MLP[6].gguf, "model.layers.{i}.mlp.shared_mlp.down_proj", &[Hidden, Inner]),
];

pub(super) const HUNYUAN_MOE: ModelClass = ModelClass {
    gguf: "hunyuan-moe",
    classes: &["HunYuanMoEV1ForCausalLM"],
    model_type: "hunyuan_v1_moe",
    own_fields: &[("num_local_experts", "num_experts"), ("num_experts_per_tok", "moe_topk")],
    // llama.cpp and transformers take the one for the other.
    equal_fields: &[("moe_intermediate_size", "intermediate_size")],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, NORMS_OF_HEADS, EXPERTS],
    settings: &[&[
        count("expert_shared_feed_forward_length", &["intermediate_size"]),
        setting(Kind::Required, "expert_feed_forward_length", &["moe_intermediate_size"]),
        setting(Kind::Required, "expert_used_count", &["moe_topk"]),
        setting(Kind::Required, "expert_shared_count", &["num_shared_expert"]),
    ]],
    traits: Traits {
        rope: RopeTraits { scalings: &[OwnScaling::Alpha], ..RopeTraits::PLAIN },
        completes: &[|fields| one_of_list(fields, LISTED)],
        restores: &[|config, dims| list_of_one(config, LISTED, dims)],
        also_implied: &[
            ("norm_topk_prob", Bool(true)),
            ("use_qk_norm", Bool(true)),
            ("use_rotary_pos_emb", Bool(true)),
            ("use_mixed_mlp_moe", Bool(true)),
            ("use_cla", Bool(false)),
            ("use_mla", Bool(false)),
            ("mlp_bias", Bool(false)),
            ("group_limited_greedy", Bool(false)),
            ("moe_layer_num_skipped", Int(0)),
        ],
        ..Traits::PLAIN
    },
    tokenizer: &TokenizerRules::PLAIN,
    mlx: Some(&HUNYUAN_MOE_MLX),
    ..HUNYUAN
};

const HUNYUAN_MOE_MLX: MlxClass = MlxClass {
    laws: &[|_| {
        Err(wrong(
            "moe_topk",
            "mlx-lm's hunyuan does not divide the weights of experts by their sum",
        ))
    }],
    ..MlxClass::PLAIN
};

/// Fields that configs have as a list of the same number for each layer. GGUF has the number.
const LISTED: &[&str] = &["moe_intermediate_size", "moe_topk", "num_shared_expert"];

/// Sets each of the fields `listed` that is such a list to the number.
///
/// # Errors
/// `Parse` that names a field whose numbers differ, or are not one for each layer.
pub(super) fn one_of_list(fields: &mut Fields, listed: &[&str]) -> Result<()> {
    for &field in listed {
        let layers = fields.need(LAYERS)? as usize;
        let Some(Value::Array(numbers)) = fields.0.get(field) else {
            continue;
        };
        let is_same = numbers.len() == layers && numbers.windows(2).all(|pair| pair[0] == pair[1]);
        let number = numbers.first().filter(|_| is_same).cloned();
        let number = number.ok_or_else(|| {
            let what = format!("it is no list of {layers} equal numbers, one for each layer");
            wrong(field, what)
        })?;
        fields.0.insert(field.to_owned(), number);
    }
    Ok(())
}

/// Sets each of the fields `listed` that is a number to such a list.
pub(super) fn list_of_one(
    config: &mut Map<String, Value>,
    listed: &[&str],
    dims: &Dims,
) -> Result<()> {
    for field in listed {
        if let Some(number) = config.get_mut(*field) {
            *number = vec![number.take(); dims.layers].into();
        }
    }
    Ok(())
}

const TOKENIZER: TokenizerRules =
    TokenizerRules { after: &[KeyRule::Own(ends)], ..TokenizerRules::PLAIN };

/// The end of a text, which the config states, and that of a turn: where the generation's config
/// lists several ends, it is the first.
fn ends(files: &TokenizerFiles<'_>, keys: &mut KeyList) -> Result<()> {
    let mut write = |key: &str, id: Option<&Value>| {
        let id = id.and_then(Value::as_u64);
        if let Some(id) = id.and_then(|id| u32::try_from(id).ok()) {
            keys.ggml_number(key, id);
        }
    };
    write("eos_token_id", files.request.config.get("eod_token_id"));
    let generation = files.request.texts.json("generation_config.json")?;
    let ends = generation
        .as_ref()
        .and_then(|config| config.get("eos_token_id")?.as_array());
    let several = ends.filter(|ends| ends.len() > 1);
    write("eot_token_id", several.and_then(|ends| ends.first()));
    Ok(())
}
