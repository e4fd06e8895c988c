//! MiMo V2: values with heads of another length, windows with sinks and heads of keys of their own
//! in most layers, experts behind the dense layers.
//!
//! Source: `conversion/mimo.py` of llama.cpp; configs of the published models and defaults of
//! transformers 5.24.

use serde_json::{Map, Value};

use super::dense_first::{DENSE, SPARSE_KINDS, named, of_tensors};
use super::{DENSE_MLP, ENDS, F32_CHOICE_BIAS, NORMS, QUERIES, SPARSE_MLP};
use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS, OwnSizes};
use crate::families::engine::fields::{
    FULL_ATTENTION, Fields, LAYER_KINDS, LAYERS, array, wrong, wrong_key,
};
use crate::families::engine::rows::*;
use crate::families::engine::table::{Model, TensorShapes};
use crate::model::gguf::GgufMetadataArray;
use crate::remember::EncodedAs;

const VALUE: Dim = Field("v_head_dim");
const VALUES: Dim = Product(&[Quotient(&[Keys, Head]), VALUE]);
const FUSED: &str = "has_one_projection";

const ATTENTION: &[TensorRule] = &[
    in_layers(Need::Unless(FUSED), QUERIES[0]),
    in_layers(Need::Unless(FUSED), QUERIES[1]),
    only(
        Need::Unless(FUSED),
        "blk.{i}.attn_v",
        "model.layers.{i}.self_attn.v_proj",
        &[VALUES, Hidden],
    ),
    only(
        Need::If(FUSED),
        "blk.{i}.attn_qkv",
        "model.layers.{i}.self_attn.qkv_proj",
        &[Sum(&[Queries, Keys, VALUES]), Hidden],
    ),
    same(
        "blk.{i}.attn_output",
        "model.layers.{i}.self_attn.o_proj",
        &[Hidden, Product(&[Heads, VALUE])],
    ),
    TensorRule {
        need: Need::KindIn(SINKS, WINDOWED),
        ..parameter(
            "blk.{i}.attn_sinks.weight",
            "model.layers.{i}.self_attn.attention_sink_bias",
            (Transform::None, &[Heads], &[Heads]),
        )
    },
];

const EXPERTS: &[TensorRule] =
    &[SPARSE_MLP[0], SPARSE_MLP[1], SPARSE_MLP[2], SPARSE_MLP[3], F32_CHOICE_BIAS[0]];

const WINDOWED: &str = "sliding_attention";
/// List of which layers have sinks.
const SINKS: &str = "sink_kinds";
const WINDOW_SINKS: &str = "add_swa_attention_sink_bias";
const FULL_SINKS: &str = "add_full_attention_sink_bias";
const WINDOW_KV_HEADS: &str = "swa_num_key_value_heads";
/// Lists of which layers have a window, and which have experts.
const PATTERN: &str = "hybrid_layer_pattern";
const SPARSE: &str = "moe_layer_freq";

/// Queries, keys and values of a layer are three matrices.
pub(super) const MIMO_V2_FLASH: ModelClass = ModelClass {
    gguf: "mimo2",
    classes: &["MiMoV2FlashForCausalLM"],
    model_type: "mimo_v2_flash",
    defaults: &[
        ("num_key_value_heads", Int(4)),
        ("head_dim", Int(192)),
        ("v_head_dim", Int(128)),
        ("rope_theta", Float(5e6)),
        ("layernorm_epsilon", Float(1e-5)),
        ("num_experts_per_tok", Int(8)),
        ("scoring_func", Text("sigmoid")),
        (WINDOW_SINKS, Bool(true)),
        (FULL_SINKS, Bool(false)),
        (FUSED, Bool(false)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("scoring_func", Text("sigmoid")),
        ("topk_method", Text("noaux_tc")),
        ("norm_topk_prob", Bool(true)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
    ],
    own_fields: &[
        ("num_local_experts", "n_routed_experts"),
        ("rope_local_base_freq", "swa_rope_theta"),
    ],
    equal_fields: &[
        ("swa_head_dim", "head_dim"),
        ("swa_v_head_dim", "v_head_dim"),
        ("swa_num_attention_heads", "num_attention_heads"),
    ],
    tensors: &[ENDS, NORMS, ATTENTION, DENSE_MLP, EXPERTS],
    settings: &[&[
        setting(Kind::Own(&KV_HEADS), "attention.head_count_kv", &["num_key_value_heads"]),
        number("attention.layer_norm_rms_epsilon", &["layernorm_epsilon"]),
        count("attention.value_length", &["v_head_dim"]),
        setting(Kind::Required, "attention.sliding_window", &["sliding_window"]),
        setting(Kind::Own(&WINDOWS), "attention.sliding_window_pattern", &[LAYER_KINDS]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
        number("attention.value_scale", &["attention_value_scale"]),
    ]],
    traits: Traits {
        needs_output: true,
        rope: RopeTraits { partial: Some(1.0), by_kind: true, ..RopeTraits::PLAIN },
        has_expert_groups: true,
        by_layer: Some(&ByLayer { sizes, restore_rope: None }),
        left_out: &["model.mtp."],
        also_implied: &[("routed_scaling_factor", Float(1.0)), ("n_shared_experts", Absent)],
        laws: &[narrower_windows],
        completes: &[complete],
        from_tensors: &[of_tensors, sinks, one_projection],
        restores: &[restore],
        sign: Sign::Tensor("blk.0.attn_q.weight"),
        ..Traits::PLAIN
    },
    mlx: Some(&MIMO_V2_FLASH_MLX),
    ..ModelClass::PLAIN
};

const MIMO_V2_FLASH_MLX: MlxClass = MlxClass {
    renamed: STACKS,
    modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
    kept_types: &[F32_CHOICE_BIAS[0].gguf],
    implied: &[
        SILU,
        NO_BIAS,
        NO_SCALING,
        ("scoring_func", Text("sigmoid")),
        ("topk_method", Text("noaux_tc")),
    ],
    stated_fields: &[&[
        "rope_theta",
        "swa_rope_theta",
        "partial_rotary_factor",
        "layernorm_epsilon",
        "max_position_embeddings",
        "num_key_value_heads",
        "head_dim",
        "v_head_dim",
        "swa_num_attention_heads",
        WINDOW_KV_HEADS,
        "swa_head_dim",
        "swa_v_head_dim",
        "sliding_window_size",
        "attention_value_scale",
        WINDOW_SINKS,
        FULL_SINKS,
        PATTERN,
        SPARSE,
        "moe_intermediate_size",
        "n_routed_experts",
        "num_experts_per_tok",
        "n_shared_experts",
        "routed_scaling_factor",
        "norm_topk_prob",
        "n_group",
        "topk_group",
        "scoring_func",
        "topk_method",
    ]],
    laws: &[windows_in_mlx],
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};

/// mlx-lm needs layers of both kinds, and lets those with a window see a token less than transformers.
fn windows_in_mlx(model: &Model<'_>) -> Result<Option<String>> {
    let owner = "mlx-lm's mimo_v2_flash";
    if !model.dims.has_kind(WINDOWED) || !model.dims.has_kind(FULL_ATTENTION) {
        return Err(wrong(PATTERN, format!("{owner} needs layers with a window and without")));
    }
    Ok(model.fields.count(&["sliding_window_size"])?.map(|size| {
        format!("`sliding_window_size`: {owner} sees {size} tokens in layers with a window, and transformers {}", size.saturating_add(1))
    }))
}

/// MiMo V2.5, of which they are one, and which has towers.
pub(super) const MIMO_V2: ModelClass = ModelClass {
    classes: &["MiMoV2ForCausalLM"],
    model_type: "mimo_v2",
    defaults: &[
        MIMO_V2_FLASH.defaults[0],
        MIMO_V2_FLASH.defaults[1],
        MIMO_V2_FLASH.defaults[2],
        MIMO_V2_FLASH.defaults[3],
        MIMO_V2_FLASH.defaults[4],
        MIMO_V2_FLASH.defaults[5],
        MIMO_V2_FLASH.defaults[6],
        MIMO_V2_FLASH.defaults[7],
        MIMO_V2_FLASH.defaults[8],
        (FUSED, Bool(true)),
    ],
    traits: Traits { sign: Sign::Rest, ..MIMO_V2_FLASH.traits },
    // mlx-lm does not have it.
    mlx: None,
    ..MIMO_V2_FLASH
};

fn sizes(fields: &Fields, dims: &Dims) -> Result<Vec<OwnSizes>> {
    let windowed = fields.count(&[WINDOW_KV_HEADS])?;
    let windowed = windowed.map_or(dims.kv_heads, |n| n as usize);
    if windowed == 0 || !dims.heads.is_multiple_of(windowed) {
        let what = format!("{windowed} does not divide num_attention_heads, {}", dims.heads);
        return Err(wrong(WINDOW_KV_HEADS, what));
    }
    let kinds = dims.kinds().into_iter().flatten();
    let of = |kind: &str| OwnSizes {
        head: dims.head,
        heads: dims.heads,
        kv_heads: if kind == WINDOWED {
            windowed
        } else {
            dims.kv_heads
        },
        inner: None,
        keys: None,
        values: None,
    };
    Ok(kinds.map(of).collect())
}

/// Makes lists of kinds of those of numbers, and counts the layers without experts.
fn complete(fields: &mut Fields) -> Result<()> {
    let layers = fields.need(LAYERS)?.min(MOST_LAYERS) as usize;
    if let Some(list) = fields.0.remove(PATTERN) {
        let kind = |n: &Value| match n.as_u64() {
            Some(0) => Some(FULL_ATTENTION),
            Some(1) => Some(WINDOWED),
            _ => None,
        };
        let kinds = list.as_array().into_iter().flatten().map(kind);
        let kinds: Option<Value> = kinds.collect::<Option<Vec<_>>>().map(Value::from);
        let kinds = kinds.ok_or_else(|| wrong(PATTERN, "it is no list of 0 and 1"))?;
        fields.0.insert(LAYER_KINDS.to_owned(), kinds);
    }
    let is_sparse = |of: &Value| *of == 1 || *of == "sparse";
    for name in [SPARSE, SPARSE_KINDS] {
        let Some(Value::Array(list)) = fields.0.remove(name) else {
            continue;
        };
        let dense = list.iter().take_while(|of| !is_sparse(of)).count();
        if list.len() != layers || !list[dense..].iter().all(is_sparse) {
            let what = "it is no list of layers without and then with experts";
            return Err(wrong(name, what));
        }
        fields.0.insert(DENSE.to_owned(), dense.into());
    }
    if let Some(epsilon) = fields.0.remove("rms_norm_eps") {
        fields.0.insert("layernorm_epsilon".to_owned(), epsilon);
    }
    if !fields.0.contains_key(WINDOW_KV_HEADS) {
        let heads = fields.need(&["num_key_value_heads"])?.saturating_mul(2);
        fields.0.insert(WINDOW_KV_HEADS.to_owned(), heads.into());
    }
    match fields.0.contains_key(LAYER_KINDS) {
        true => list_sinks(&mut fields.0),
        false => return Err(wrong(PATTERN, "it is missing")),
    }
    Ok(())
}

/// Makes a list of the layers with sinks.
fn list_sinks(config: &mut Map<String, Value>) {
    let is_true = |field: &str| config.get(field) == Some(&true.into());
    let (windowed, full) = (is_true(WINDOW_SINKS), is_true(FULL_SINKS));
    let has = |kind: &Value| if *kind == WINDOWED { windowed } else { full };
    let kinds = config.get(LAYER_KINDS).and_then(Value::as_array);
    let sinks = kinds.into_iter().flatten();
    let sinks = sinks.map(|kind| if has(kind) { WINDOWED } else { FULL_ATTENTION });
    let sinks: Value = sinks.collect();
    config.insert(SINKS.to_owned(), sinks);
}

/// Published models count a token less than transformers and SGLang let layers see.
fn narrower_windows(model: &Model<'_>) -> Result<Option<String>> {
    let count = |field: &str| model.fields.count(&[field]);
    Ok(match (count("sliding_window_size")?, count("sliding_window")?) {
        (Some(size), Some(window)) if size >= window => Some(format!(
            "`sliding_window`: {} sees {window} tokens in layers with a window, and transformers {}, as with the file that llama.cpp's own converter writes",
            model.owner(),
            size.saturating_add(1)
        )),
        _ => None,
    })
}

fn sinks(config: &mut Map<String, Value>, tensors: &TensorShapes<'_>) -> Result<()> {
    let kinds = config.get(LAYER_KINDS).and_then(Value::as_array);
    let kinds = kinds.cloned().unwrap_or_default();
    let has = |layer: usize| tensors.contains_key(&*format!("blk.{layer}.attn_sinks.weight"));
    for (field, of) in [(WINDOW_SINKS, WINDOWED), (FULL_SINKS, FULL_ATTENTION)] {
        let first = kinds.iter().position(|kind| kind == of);
        config.insert(field.to_owned(), first.is_some_and(has).into());
    }
    list_sinks(config);
    Ok(())
}

fn one_projection(config: &mut Map<String, Value>, tensors: &TensorShapes<'_>) -> Result<()> {
    config.insert(FUSED.to_owned(), tensors.contains_key("blk.0.attn_qkv.weight").into());
    Ok(())
}

/// Adds the lists of numbers.
fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    for field in [SINKS, FUSED] {
        config.remove(field);
    }
    let kinds = config.get(LAYER_KINDS).and_then(Value::as_array);
    let windows: Value = kinds
        .into_iter()
        .flatten()
        .map(|kind| i32::from(kind == WINDOWED))
        .collect();
    config.insert(PATTERN.to_owned(), windows);
    let dense = config.get(DENSE).and_then(Value::as_u64).unwrap_or(0) as usize;
    let sparse: Value = (0..dims.layers).map(|n| i32::from(n >= dense)).collect();
    config.insert(SPARSE.to_owned(), sparse);
    named(config, dims)
}

/// INT32\[\]: heads of keys and values of each layer.
const KV_HEADS: OwnSetting = required(own(
    |_, model| {
        let layers = model.dims.layer_sizes.iter();
        let all = layers.map(|sizes| i32::try_from(sizes.kv_heads).unwrap_or(i32::MAX));
        Ok(Some(array(GgufMetadataArray::I32(all.collect()))))
    },
    |stated, config| {
        let all = stated.numbers()?;
        let windows = config
            .metadata
            .get("mimo2.attention.sliding_window_pattern");
        let windows = windows.as_ref().and_then(|value| value.as_array());
        let Some(GgufMetadataArray::I32(windows)) = windows else {
            let what = "the file does not say which layers have windows";
            return Err(wrong_key(stated.key, what));
        };
        let of = |is_windowed: bool| -> Result<i32> {
            let pairs = all.iter().zip(windows);
            let mut own = pairs.filter(|(_, window)| (**window == 1) == is_windowed);
            let first = own.next().map(|(heads, _)| *heads);
            match own.all(|(heads, _)| Some(*heads) == first) {
                true => Ok(first.unwrap_or(1)),
                false => Err(wrong_key(stated.key, "layers of one kind have other heads")),
            }
        };
        config.set(WINDOW_KV_HEADS, of(true)?.into(), stated.key)?;
        Ok(Some(of(false)?.into()))
    },
));

/// INT32\[\]: 1 for layers with a window.
const WINDOWS: OwnSetting = required(own(
    |_, model| {
        let windows = model.dims.layers_of(WINDOWED);
        let windows = windows.map(|all| all.map(i32::from).collect());
        Ok(windows.map(|all| array(GgufMetadataArray::I32(all))))
    },
    |stated, _| {
        let kind = |n: &i32| if *n == 1 { WINDOWED } else { FULL_ATTENTION };
        Ok(Some(stated.numbers()?.iter().map(kind).collect()))
    },
));
