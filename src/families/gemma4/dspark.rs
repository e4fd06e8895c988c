//! DSpark for Gemma 4: a draft with layers of Gemma 4 that all see the whole text, or all a window of
//! it.
//!
//! Source: `Gemma4DSparkModel` in `conversion/gemma.py` of llama.cpp.

use serde_json::{Map, Value, json};

use super::ATTENTION;
use super::sizes::{FULL_HEAD, FULL_KV_HEADS, KEYS_ARE_VALUES, WINDOWED, part_of};
use crate::Result;
use crate::families::dflash::{self, DSPARK, MARKOV, NESTED, ROOT, WINDOW};
use crate::families::engine::dims::{Dims, OwnSizes};
use crate::families::engine::fields::{
    FULL_ATTENTION, Fields, HIDDEN, LAYER_KINDS, wrong, wrong_key,
};
use crate::families::engine::rope::{PARAMETERS, ROPE_FACTORS};
use crate::families::engine::rows::*;
use crate::families::gemma::FOUR_NORMS;
use crate::families::{HEAD_NORMS, MLP, QUERIES, VALUES};

/// Fields that follow from the class, and that no config has.
const SCALE: &str = "scale of attention";
const EMBEDDING_SCALE: &str = "input_embedding_scale";

const CONFIDENCE: &[TensorRule] = &[
    TensorRule { hf: "model.confidence_proj.weight", ..MARKOV[2] },
    TensorRule { hf: "model.confidence_proj.bias", ..MARKOV[3] },
];

pub(in crate::families) const GEMMA4_DSPARK: ModelClass = ModelClass {
    classes: &["Gemma4DSparkModel"],
    model_type: "gemma4_text",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("rms_norm_eps", Float(1e-6)),
        ("block_size", Int(16)),
        (KEYS_ARE_VALUES, Bool(false)),
        ("hidden_activation", Text("gelu_pytorch_tanh")),
    ],
    implied: &[
        ("hidden_activation", Text("gelu_pytorch_tanh")),
        ("attention_bias", Bool(false)),
        ("enable_moe_block", Bool(false)),
        (KEYS_ARE_VALUES, Bool(true)),
        ("markov_head_type", Text("vanilla")),
    ],
    tensors: &[
        ROOT,
        FOUR_NORMS,
        QUERIES,
        &[VALUES[1], ATTENTION[6]],
        HEAD_NORMS,
        MLP,
        &[MARKOV[0], MARKOV[1]],
        CONFIDENCE,
    ],
    other_tensors: &[MARKOV[2], MARKOV[3]],
    settings: &[
        DSPARK.settings[0],
        DSPARK.settings[1],
        &[
            number("attention.scale", &[SCALE]),
            setting(Kind::Text("gelu_pytorch_tanh"), "hidden_activation", &[]),
            setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
        ],
    ],
    traits: Traits {
        rope: RopeTraits { by_kind: true, may_be_whole: true, ..RopeTraits::partial(1.0) },
        by_layer: Some(&ByLayer { sizes, restore_rope: Some(restore_rope) }),
        completes: &[complete],
        restores: &[restore],
        also_implied: &[("final_logit_softcapping", Absent)],
        sign: Sign::All(&[Sign::Tensor("markov_w1.weight"), Sign::Has("hidden_activation")]),
        ..DSPARK.traits
    },
    ..DSPARK
};

/// Sets sizes and rope to those of layers that see the whole text, which all layers are.
fn complete(fields: &mut Fields) -> Result<()> {
    let kinds = fields.0.remove(LAYER_KINDS);
    let kinds = kinds.as_ref().and_then(Value::as_array);
    if kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind != FULL_ATTENTION)) {
        return Err(wrong(LAYER_KINDS, "llama.cpp needs full_attention in all layers"));
    }
    for (own, usual) in [(FULL_HEAD, "head_dim"), (FULL_KV_HEADS, "num_key_value_heads")] {
        let size = fields.need(&[own])?;
        fields.0.insert(usual.to_owned(), size.into());
    }
    let rope = fields.0.remove(PARAMETERS);
    let rope = rope.map(|rope| rope.get(FULL_ATTENTION).cloned().unwrap_or(rope));
    let rope = rope.unwrap_or_else(|| proportional(&1e6.into(), 0.25));
    if rope["rope_type"] == "default"
        && rope["partial_rotary_factor"].as_f64().unwrap_or(1.0) != 1.0
    {
        return Err(wrong(
            "partial_rotary_factor",
            "it is not 1, and llama.cpp rotates whole heads",
        ));
    }
    fields.0.insert(PARAMETERS.to_owned(), rope);
    // The window of Gemma is none of the draft's, unless that says so.
    fields.0.remove(WINDOW);
    fields.0.remove("use_sliding_window");
    let scale = f64::from(fields.need(HIDDEN)?).sqrt();
    fields.0.insert(EMBEDDING_SCALE.to_owned(), scale.into());
    fields.0.insert(SCALE.to_owned(), 1.0.into());
    dflash::flatten(fields)?;
    fields.0.insert(EMBEDDING_SCALE.to_owned(), scale.into());
    if fields.0.get("draft_vocab_size") != fields.0.get("vocab_size") {
        return Err(wrong("draft_vocab_size", "llama.cpp needs all tokens"));
    }
    fields.need(&["mask_token_id"]).map(|_| ())
}

fn proportional(base: &Value, part: f64) -> Value {
    json!({"rope_type": "proportional", "rope_theta": base, "partial_rotary_factor": part})
}

fn sizes(_: &Fields, dims: &Dims) -> Result<Vec<OwnSizes>> {
    let of = OwnSizes {
        head: dims.head,
        heads: dims.heads,
        kv_heads: dims.kv_heads,
        inner: None,
        keys: None,
        values: None,
    };
    Ok(vec![of; dims.layers])
}

fn restore_rope(config: &mut Map<String, Value>, factors: &[(String, Vec<f32>)]) -> Result<()> {
    let base = config
        .remove("rope_theta")
        .unwrap_or_else(|| 10_000.0.into());
    let factors = factors.iter().find(|(name, _)| *name == ROPE_FACTORS);
    let head = config.get("head_dim").and_then(Value::as_u64).unwrap_or(0);
    let rope = match factors {
        Some((_, factors)) => proportional(&base, part_of(factors, head as usize)?),
        None => json!({"rope_type": "default", "rope_theta": base}),
    };
    config.insert(PARAMETERS.to_owned(), json!({ (FULL_ATTENTION): rope }));
    Ok(())
}

/// States the config as the class does.
fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    for (field, expected) in [(SCALE, 1.0), (EMBEDDING_SCALE, (dims.hidden as f64).sqrt())] {
        let found = config.remove(field).and_then(|found| found.as_f64());
        if found.is_none_or(|found| (found - expected).abs() > 1e-6 * expected) {
            let what = format!("{field} is {found:?}, and Gemma4DSparkModel has {expected}");
            return Err(wrong_key("dflash", what));
        }
    }
    dflash::nest(config, dims)?;
    let kinds = config.insert(LAYER_KINDS.to_owned(), vec![FULL_ATTENTION; dims.layers].into());
    let kinds = kinds
        .as_ref()
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    config.remove("use_sliding_window");
    let window = config.remove(WINDOW);
    if kinds.iter().any(|kind| kind == WINDOWED) {
        if kinds.iter().any(|kind| kind != WINDOWED) {
            return Err(wrong_key("dflash", "some layers have a window, and others none"));
        }
        if let Some(nested) = config.get_mut(NESTED).and_then(Value::as_object_mut) {
            nested.insert("use_swa".to_owned(), true.into());
            nested.insert("swa_window_size".to_owned(), window.into());
        }
    }
    for (own, usual) in [(FULL_HEAD, "head_dim"), (FULL_KV_HEADS, "num_key_value_heads")] {
        let size = config.get(usual).cloned();
        config.extend(size.map(|size| (own.to_owned(), size)));
    }
    Ok(())
}
