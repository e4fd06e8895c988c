//! SmallThinker: experts in all layers, whose router reads what goes into the layer.
//!
//! Source: `conversion/smallthinker.py` of llama.cpp; defaults of the code beside published models.

use serde_json::{Map, Value};

use super::{ENDS, NORMS, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS};
use crate::families::engine::fields::{Fields, LAYERS, wrong};
use crate::families::engine::rows::*;

const EXPERTS: &[TensorRule] = &[
    same(
        "blk.{i}.ffn_gate_inp",
        "model.layers.{i}.block_sparse_moe.primary_router",
        &[Experts, Hidden],
    ),
    experts(
        "blk.{i}.ffn_gate_exps",
        "model.layers.{i}.block_sparse_moe.experts.{e}.gate",
        &[WIDTH, Hidden],
    ),
    experts(
        "blk.{i}.ffn_up_exps",
        "model.layers.{i}.block_sparse_moe.experts.{e}.up",
        &[WIDTH, Hidden],
    ),
    experts(
        "blk.{i}.ffn_down_exps",
        "model.layers.{i}.block_sparse_moe.experts.{e}.down",
        &[Hidden, WIDTH],
    ),
];

const WIDTH: Dim = Field(INNER);
const INNER: &str = "moe_ffn_hidden_size";

pub(super) const SMALLTHINKER: ModelClass = ModelClass {
    gguf: "smallthinker",
    classes: &["SmallThinkerForCausalLM"],
    model_type: "smallthinker",
    defaults: &[
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("norm_topk_prob", Bool(true)),
        (SOFTMAX, Bool(false)),
    ],
    implied: &[
        ("norm_topk_prob", Bool(true)),
        (SOFTMAX, Bool(false)),
        ("moe_enable_early_router", Bool(true)),
        ("moe_enable_secondary_experts", Bool(false)),
    ],
    own_fields: &[
        ("num_local_experts", "moe_num_primary_experts"),
        ("num_experts_per_tok", "moe_num_active_primary_experts"),
    ],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, EXPERTS],
    settings: &[&[
        count("expert_feed_forward_length", &[INNER]),
        count("feed_forward_length", &[INNER]),
        setting(Kind::Fixed(2), "expert_gating_func", &[]),
        setting(Kind::Count, "attention.sliding_window", &["sliding_window_size"]),
    ]],
    traits: Traits { completes: &[counted], restores: &[laid_out], ..Traits::PLAIN },
    ..ModelClass::PLAIN
};

const SOFTMAX: &str = "moe_primary_router_apply_softmax";
const WINDOW: &str = "sliding_window_size";
/// Lists of which layers have a window, which have positions, and which have experts.
const WINDOWED: &str = "sliding_window_layout";
const TURNING: &str = "rope_layout";
const SPARSE: &str = "moe_layer_layout";

/// With windows, the first of four layers has neither a window nor positions.
fn layout(layers: u32, has_windows: bool, otherwise: i32) -> Value {
    let one = |layer: u32| match has_windows {
        true => i32::from(!layer.is_multiple_of(4)),
        false => otherwise,
    };
    (0..layers.min(MOST_LAYERS)).map(one).collect()
}

/// Fails unless the lists are what llama.cpp has.
fn counted(fields: &mut Fields) -> Result<()> {
    let layers = fields.need(LAYERS)?;
    let windows = fields.0.get(WINDOWED).and_then(Value::as_array);
    let has_windows = windows.is_some_and(|all| all.iter().any(|one| *one != 0));
    let expected = [
        (WINDOWED, layout(layers, has_windows, 0)),
        (TURNING, layout(layers, has_windows, 1)),
        (SPARSE, layout(layers, false, 1)),
    ];
    for (name, list) in expected {
        if fields.0.get(name).is_some_and(|found| *found != list) {
            return Err(wrong(name, format!("it is not {list}, which llama.cpp has")));
        }
    }
    if !has_windows {
        fields.0.remove(WINDOW);
    }
    Ok(())
}

fn laid_out(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    let has_windows = config.get(WINDOW).is_some_and(|window| *window != 0);
    let layers = u32::try_from(dims.layers).unwrap_or(MOST_LAYERS);
    config.insert(WINDOWED.to_owned(), layout(layers, has_windows, 0));
    config.insert(TURNING.to_owned(), layout(layers, has_windows, 1));
    config.insert(SPARSE.to_owned(), layout(layers, false, 1));
    Ok(())
}
