//! Which tensors and keys llama.cpp needs of an image tower (`mmproj`). It compares no sizes, and leaves
//! out tensors that it does not know.
//!
//! Source: `load_hparams` and `load_tensors` in `tools/mtmd/clip.cpp` of llama.cpp
//! (<https://github.com/ggml-org/llama.cpp/blob/master/tools/mtmd/clip.cpp>), as of llama-cpp-python 0.3.36.

use super::problem::GraphProblem;
use super::sizes::{GgufFacts, KeyFacts, MOST_LAYERS, Size, name_in_layer};

/// `general.architecture` of towers.
pub(super) const CLIP: &str = "clip";

/// What llama.cpp needs of the towers with a projector.
struct TowerGraph {
    /// Value of `clip.projector_type`.
    projector: &'static str,
    keys: &'static [&'static str],
    tensors: &'static [&'static str],
}

const LAYERS: Size = Size::Key("vision.block_count");

/// Keys that all towers need.
const KEYS: &[&str] = &[
    "has_vision_encoder",
    "vision.attention.head_count",
    "vision.attention.layer_norm_epsilon",
    "vision.block_count",
    "vision.embedding_length",
    "vision.feed_forward_length",
    "vision.image_mean",
    "vision.image_size",
    "vision.image_std",
    "vision.patch_size",
    "vision.projection_dim",
];

/// Tensors of all layers.
const OF_LAYERS: &[&str] =
    &["v.blk.{i}.attn_out.weight", "v.blk.{i}.ffn_down.weight", "v.blk.{i}.ffn_up.weight"];

/// Queries, keys and values, which graphs read unless they are one tensor.
const APART: &[&str] =
    &["v.blk.{i}.attn_k.weight", "v.blk.{i}.attn_q.weight", "v.blk.{i}.attn_v.weight"];
const TOGETHER: &str = "v.blk.{i}.attn_qkv.weight";

/// What makes patches into vectors; all graphs read it.
const PATCHES: &str = "v.patch_embd.weight";

/// Ends of the names of what limits values.
const LIMITS: [&str; 4] = [".input_max", ".input_min", ".output_max", ".output_min"];

const QWEN: &[&str] = &["mm.0.bias", "mm.0.weight", "mm.2.bias", "mm.2.weight"];

const GRAPHS: &[TowerGraph] = &[
    tower("gemma3", &["mm.input_projection.weight", "mm.soft_emb_norm.weight"]),
    tower("gemma4v", &["mm.input_projection.weight"]),
    tower("idefics3", &["mm.model.fc.weight"]),
    tower(
        "internvl",
        &[
            "mm.model.mlp.0.bias",
            "mm.model.mlp.0.weight",
            "mm.model.mlp.1.bias",
            "mm.model.mlp.1.weight",
            "mm.model.mlp.3.bias",
            "mm.model.mlp.3.weight",
        ],
    ),
    tower("lfm2", &["mm.1.bias", "mm.1.weight", "mm.2.bias", "mm.2.weight"]),
    tower("llama4", &["mm.model.fc.weight", "mm.model.mlp.1.weight", "mm.model.mlp.2.weight"]),
    tower("pixtral", &["mm.1.weight", "mm.2.weight", "v.token_embd.img_break"]),
    tower("qwen2vl_merger", QWEN),
    TowerGraph { keys: &["vision.n_wa_pattern"], ..tower("qwen2.5vl_merger", QWEN) },
    tower("qwen3vl_merger", QWEN),
    tower(
        "glm4v",
        &[
            "mm.down.weight",
            "mm.gate.weight",
            "mm.model.fc.weight",
            "mm.patch_merger.bias",
            "mm.patch_merger.weight",
            "mm.post_norm.weight",
            "mm.up.weight",
        ],
    ),
];

const fn tower(projector: &'static str, tensors: &'static [&'static str]) -> TowerGraph {
    TowerGraph { projector, keys: &[], tensors }
}

/// Keys of the projectors of images, of sounds, and of both.
const PROJECTORS: [&str; 4] =
    ["projector_type", "vision.projector_type", "audio.projector_type", "gen.audio.projector_type"];

/// Why llama.cpp does not load the image tower `facts`. Empty if no table has its projector.
pub(super) fn problems(facts: &GgufFacts<'_>) -> Vec<GraphProblem> {
    let text = |key: &&str| match facts.key(key) {
        Some(KeyFacts::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    if PROJECTORS.iter().all(|key| text(key).is_none()) {
        return vec![GraphProblem::Key(format!("{CLIP}.{}", PROJECTORS[0]))];
    }
    let name = PROJECTORS[..2].iter().find_map(text);
    let Some(graph) = GRAPHS.iter().find(|graph| Some(graph.projector) == name) else {
        return vec![];
    };
    let keys = KEYS.iter().chain(graph.keys);
    let missing = keys.filter(|key| facts.key(key).is_none());
    let mut found: Vec<_> = missing
        .map(|key| GraphProblem::Key(format!("{CLIP}.{key}")))
        .collect();
    let is_set = |key| facts.size(Size::Key(key), 0) > 0;
    if is_set("use_gelu") && is_set("use_silu") {
        found.push(GraphProblem::Value {
            key: format!("{CLIP}.use_silu"),
            what: "it is true, and `clip.use_gelu` is, too".to_owned(),
        });
    }
    let layers = facts.size(LAYERS, 0);
    if layers > MOST_LAYERS {
        found.push(GraphProblem::Value {
            key: format!("{CLIP}.vision.block_count"),
            what: format!("{layers} layers, and llama.cpp has at most {MOST_LAYERS}"),
        });
    }
    if !found.is_empty() {
        return found;
    }
    let has = |name: &str, layer| {
        facts
            .tensors
            .contains_key(name_in_layer(name, layer).as_str())
    };
    let layers = 0..layers as usize;
    let of_layers = layers.flat_map(|layer| {
        let apart = APART.iter().filter(move |_| !has(TOGETHER, layer));
        let all = OF_LAYERS.iter().chain(apart);
        all.map(move |name| (*name, layer))
    });
    let ends = graph.tensors.iter().chain([&PATCHES]);
    let all = of_layers.chain(ends.map(|name| (*name, 0)));
    let missing = all.filter(|(name, layer)| !has(name, *layer));
    found.extend(missing.map(|(name, layer)| GraphProblem::Missing {
        tensor: name_in_layer(name, layer),
        architecture: graph.projector.to_owned(),
    }));
    if graph.projector == "gemma4v" {
        found.extend(wrong_limits(facts, graph.projector));
    }
    found
}

/// Limits of inputs and outputs that are not one number.
fn wrong_limits<'a>(
    facts: &'a GgufFacts<'_>,
    projector: &'a str,
) -> impl Iterator<Item = GraphProblem> + 'a {
    let is_limit = |name: &str| LIMITS.iter().any(|end| name.ends_with(end));
    let all = facts.tensors.iter();
    let wrong =
        all.filter(move |(name, shape)| is_limit(name) && shape.iter().product::<usize>() != 1);
    wrong.map(move |(name, shape)| GraphProblem::Shape {
        tensor: (*name).to_owned(),
        architecture: projector.to_owned(),
        found: shape.to_vec(),
        expected: vec![1],
        sizes: "one number".to_owned(),
    })
}
