//! MiniMax M2, and M3, of which an indexer chooses blocks of tokens that are seen.
//!
//! Source: `conversion/minimax.py` of llama.cpp, classes `MiniMaxM2Model` and `MiniMaxM3Model`; defaults of
//! transformers 5.23 and 5.24.

use serde_json::{Map, Value};

use super::llama::{MIXTRAL_EXPERTS, MIXTRAL_STACKS};
use super::olmo::WIDE_NORMS;
use super::{DENSE_MLP, ENDS, HEAD_NORMS, NORMS, QUERIES, SPARSE_MLP, VALUES, sparse};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, LAYER_KINDS, wrong};
use crate::families::engine::rows::*;

/// The bias that is added to scores only to choose experts.
const CHOICE_BIAS: &[TensorRule] = &[parameter(
    "blk.{i}.exp_probs_b.bias",
    "model.layers.{i}.block_sparse_moe.e_score_correction_bias",
    (Transform::None, &[Experts], &[Experts]),
)];

pub(super) const MINIMAX_M2: ModelClass = ModelClass {
    gguf: "minimax-m2",
    classes: &["MiniMaxM2ForCausalLM"],
    model_type: "minimax_m2",
    defaults: &[
        ("max_position_embeddings", Int(196_608)),
        ("num_key_value_heads", Int(8)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(5e6)),
        ("num_local_experts", Int(256)),
        ("num_experts_per_tok", Int(8)),
        ("scoring_func", Text("sigmoid")),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("scoring_func", Text("sigmoid")),
        ("use_qk_norm", Bool(true)),
    ],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, WIDE_NORMS, MIXTRAL_EXPERTS, CHOICE_BIAS],
    settings: &[&[
        count("expert_feed_forward_length", &["intermediate_size"]),
        setting(Kind::Required, "rope.dimension_count", &["rotary_dim"]),
    ]],
    traits: Traits { needs_output: true, rope: RopeTraits::partial(1.0), ..Traits::PLAIN },
    mlx: Some(&MINIMAX_M2_MLX),
    ..ModelClass::PLAIN
};

const MINIMAX_M2_MLX: MlxClass = MlxClass {
    renamed: MIXTRAL_STACKS,
    modes: ROUTER_8_BITS,
    kept_types: &["blk.{i}.exp_probs_b.bias"],
    implied: &[SILU, NO_SCALING, ("scoring_func", Text("sigmoid")), ("use_qk_norm", Bool(true))],
    stated_fields: &[&[
        "rope_theta",
        "rotary_dim",
        "rms_norm_eps",
        "max_position_embeddings",
        "num_key_value_heads",
        "head_dim",
        "num_local_experts",
        "num_experts_per_tok",
        "shared_intermediate_size",
    ]],
    ..MlxClass::PLAIN
};

const INDEX_HEAD: Dim = Field("sparse_index_dim");
const INDEX_QUERIES: Dim = Product(&[Field("sparse_num_index_heads"), INDEX_HEAD]);
const SHARED: Dim = Product(&[Inner, Field("n_shared_experts")]);

const INDEXER: &[TensorRule] = &[
    only(
        Need::Sparse,
        "blk.{i}.indexer.q_proj",
        "model.layers.{i}.self_attn.index_q_proj",
        &[INDEX_QUERIES, Hidden],
    ),
    only(
        Need::Sparse,
        "blk.{i}.indexer.k_proj",
        "model.layers.{i}.self_attn.index_k_proj",
        &[INDEX_HEAD, Hidden],
    ),
    only(
        Need::Sparse,
        "blk.{i}.indexer.q_norm",
        "model.layers.{i}.self_attn.index_q_norm",
        &[INDEX_HEAD],
    ),
    only(
        Need::Sparse,
        "blk.{i}.indexer.k_norm",
        "model.layers.{i}.self_attn.index_k_norm",
        &[INDEX_HEAD],
    ),
];

const DENSE_WIDTH: Dim = Field("dense_intermediate_size");

const M3_FEED_FORWARD: &[TensorRule] = &[
    TensorRule { shape: &[DENSE_WIDTH, Hidden], ..DENSE_MLP[0] },
    TensorRule { shape: &[DENSE_WIDTH, Hidden], ..DENSE_MLP[1] },
    TensorRule { shape: &[Hidden, DENSE_WIDTH], ..DENSE_MLP[2] },
    sparse(MIXTRAL_EXPERTS[0]),
    sparse(MIXTRAL_EXPERTS[1]),
    sparse(MIXTRAL_EXPERTS[2]),
    sparse(MIXTRAL_EXPERTS[3]),
    sparse(CHOICE_BIAS[0]),
    shared(4, "model.layers.{i}.block_sparse_moe.shared_experts.gate_proj", &[SHARED, Hidden]),
    shared(5, "model.layers.{i}.block_sparse_moe.shared_experts.up_proj", &[SHARED, Hidden]),
    shared(6, "model.layers.{i}.block_sparse_moe.shared_experts.down_proj", &[Hidden, SHARED]),
];

/// A projection of the experts that every token sees.
pub(super) const fn shared(at: usize, hf: &'static str, shape: &'static [Dim]) -> TensorRule {
    TensorRule { hf, shape, ..SPARSE_MLP[at] }
}

pub(super) const MINIMAX_M3: ModelClass = ModelClass {
    gguf: "minimax-m3",
    classes: &["MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"],
    model_type: "minimax_m3",
    defaults: &[
        ("max_position_embeddings", Int(1_048_576)),
        ("num_key_value_heads", Int(4)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(5e6)),
        ("rotary_dim", Int(64)),
        ("num_local_experts", Int(128)),
        ("num_experts_per_tok", Int(4)),
        ("n_shared_experts", Int(1)),
        ("dense_intermediate_size", Int(12_288)),
        ("routed_scaling_factor", Float(2.0)),
        ("scoring_func", Text("sigmoid")),
        ("norm_topk_prob", Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("swigluoai")),
        ("scoring_func", Text("sigmoid")),
        ("norm_topk_prob", Bool(true)),
        ("use_qk_norm", Bool(true)),
        ("qk_norm_type", Text("per_head")),
        ("use_gemma_norm", Bool(true)),
        ("use_routing_bias", Bool(true)),
        ("swiglu_alpha", Float(1.702)),
        ("swiglu_limit", Float(7.0)),
    ],
    equal_fields: &[("shared_intermediate_size", "intermediate_size")],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, INDEXER, M3_FEED_FORWARD],
    settings: &[&[
        count("feed_forward_length", &["dense_intermediate_size"]),
        count("expert_feed_forward_length", &["intermediate_size"]),
        setting(Kind::Required, "rope.dimension_count", &["rotary_dim"]),
        setting(Kind::Required, "expert_shared_count", &["n_shared_experts"]),
        number("expert_weights_scale", &["routed_scaling_factor"]),
        setting(Kind::Flag, "expert_weights_norm", &["norm_topk_prob"]),
        setting(Kind::Required, "leading_dense_block_count", &[DENSE]),
        setting(Kind::Required, "attention.indexer.head_count", &["sparse_num_index_heads"]),
        setting(Kind::Required, "attention.indexer.key_length", &["sparse_index_dim"]),
        setting(Kind::Required, "attention.indexer.top_k", &["sparse_topk_blocks"]),
        setting(Kind::Required, "attention.indexer.block_size", &["sparse_block_size"]),
        setting(Kind::Required, "attention.indexer.local_blocks", &["sparse_local_block"]),
    ]],
    traits: Traits {
        norms_plus_one: true,
        completes: &[indexed],
        restores: &[nested],
        ..MINIMAX_M2.traits
    },
    mlx: Some(&MINIMAX_M3_MLX),
    ..MINIMAX_M2
};

const MINIMAX_M3_MLX: MlxClass = MlxClass {
    renamed: MIXTRAL_STACKS,
    modes: ROUTER_8_BITS,
    kept_types: &["blk.{i}.exp_probs_b.bias"],
    implied: &[("scoring_func", Text("sigmoid")), ("norm_topk_prob", Bool(true))],
    stated_fields: &[&[
        "rope_theta",
        "rotary_dim",
        "rms_norm_eps",
        "max_position_embeddings",
        "num_key_value_heads",
        "head_dim",
        "num_local_experts",
        "num_experts_per_tok",
        "dense_intermediate_size",
        "shared_intermediate_size",
        "routed_scaling_factor",
        SPARSE,
        INDEX,
    ]],
    around: Some(("MiniMaxM3SparseForConditionalGeneration", "minimax_m3_vl")),
    rope: RopeFields::Nested,
    prefix: Prefix::IfNested("language_model."),
    ..MlxClass::PLAIN
};

const DENSE: &str = "first_k_dense_replace";
/// Fields of the indexer, in an object of their own.
const INDEX: &str = "sparse_attention_config";
const INDEX_FIELDS: &[&str] = &[
    "sparse_num_index_heads",
    "sparse_index_dim",
    "sparse_topk_blocks",
    "sparse_block_size",
    "sparse_local_block",
];
/// What transformers calls them, beside the other fields.
const FLAT_INDEX_FIELDS: &[&str] = &[
    "index_n_heads",
    "index_head_dim",
    "index_topk_blocks",
    "index_block_size",
    "index_local_blocks",
];
/// Lists of kinds of layers that transformers has in place of those of 0 and 1, each with the kind that is 1.
const FLAT_LISTS: [(&str, &str, &str); 2] =
    [("mlp_layer_types", "sparse", SPARSE), (LAYER_KINDS, "minimax_m3_sparse", INDEXED)];

/// Lists of which layers have experts, and which have an indexer.
const SPARSE: &str = "moe_layer_freq";
const INDEXED: &str = "sparse_attention_freq";

/// The list of which layers of `layers` come behind the first `dense` ones.
fn behind(dense: usize, layers: usize) -> Value {
    (0..layers).map(|layer| i32::from(layer >= dense)).collect()
}

/// Moves the fields of the indexer to an object of their own, as published models have them. transformers saves them
/// beside the others, and a function that it does not compute.
fn nest_flat(fields: &mut Fields) {
    if FLAT_INDEX_FIELDS
        .iter()
        .any(|name| !fields.0.contains_key(*name))
    {
        return;
    }
    let names = FLAT_INDEX_FIELDS.iter().zip(INDEX_FIELDS);
    let mut index: Map<_, _> = names
        .filter_map(|(flat, own)| Some(((*own).to_owned(), fields.0.remove(*flat)?)))
        .collect();
    for (flat, kind, own) in FLAT_LISTS {
        let list = fields.0.remove(flat);
        let list = list.as_ref().and_then(Value::as_array);
        let list = list
            .into_iter()
            .flatten()
            .map(|found| i32::from(found == kind));
        let list = list.collect();
        match own {
            INDEXED => index.insert(own.to_owned(), list),
            _ => fields.0.insert(own.to_owned(), list),
        };
    }
    fields.0.insert(INDEX.to_owned(), index.into());
    if fields
        .0
        .get("hidden_act")
        .is_some_and(|name| name == "silu")
    {
        fields.0.remove("hidden_act");
    }
}

/// Sets the fields of the indexer, and counts the layers without experts, which have none.
fn indexed(fields: &mut Fields) -> Result<()> {
    nest_flat(fields);
    let Some(Value::Object(index)) = fields.0.remove(INDEX) else {
        return match fields.0.contains_key(INDEX_FIELDS[0]) {
            true => Ok(()),
            false => Err(wrong(INDEX, "it is missing")),
        };
    };
    let list = fields
        .0
        .get(SPARSE)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let dense = list.iter().take_while(|is_sparse| **is_sparse == 0).count();
    let expected = behind(dense, list.len());
    for (name, found) in [(SPARSE, fields.0.get(SPARSE)), (INDEXED, index.get(INDEXED))] {
        if found != Some(&expected) {
            let what =
                "it is no list of 0 and then 1, which says the same of experts and of the indexer";
            return Err(wrong(name, what));
        }
    }
    fields.0.insert(DENSE.to_owned(), dense.into());
    let own = index
        .into_iter()
        .filter(|(name, _)| INDEX_FIELDS.contains(&name.as_str()));
    fields.0.extend(own);
    Ok(())
}

fn nested(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    let dense = config.remove(DENSE).and_then(|n| n.as_u64()).unwrap_or(0) as usize;
    let own = INDEX_FIELDS
        .iter()
        .filter_map(|name| config.remove_entry(*name));
    let mut index: Map<_, _> = own.collect();
    index.insert("use_sparse_attention".to_owned(), true.into());
    index.insert(INDEXED.to_owned(), behind(dense, dims.layers));
    config.insert(INDEX.to_owned(), index.into());
    config.insert(SPARSE.to_owned(), behind(dense, dims.layers));
    Ok(())
}
