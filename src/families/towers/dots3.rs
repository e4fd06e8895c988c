//! The towers of dots 3: that of images is as of dots.ocr, with experts in later layers, of which each has another
//! number; that of sounds has three convolutions and gated feed-forward layers.
//!
//! Source: `Dots3NoteMmprojModel` in `conversion/dots3.py` and `tools/mtmd/models/dots3note.cpp` of
//! llama.cpp.

use serde_json::Value;

use super::whisper::{BANDS, MOMENTS};
use super::{
    AUDIO, CHANNELS, COLOURS, EPSILON, FILTERS, FUSED, IMAGE_SIZE, INDEXES, MAX_PIXELS, MERGE_SIZE,
    MERGED, MIN_PIXELS, NORM_EPSILON, PIXEL_FIELDS, PLAIN, PLAIN_TOWER, SETTINGS, SILU,
    TEXT_HIDDEN, Tower, TowerConfig, TowerType, add_text_size, down, norm, square, up, whole,
};
use crate::Result;
use crate::families::engine::dims::{EXPERTS_BY_LAYER, check_layers};
use crate::families::engine::fields::{Fields, HEADS, HIDDEN, INNER, LAYER_KINDS, LAYERS, wrong};
use crate::families::engine::rows::*;

const TEXT: Dim = Field(TEXT_HIDDEN);

const CLASSES: &[&str] = &["Dots3NoteForConditionalGeneration", "Dots3NoteForCausalLM"];

/// What `layer_types` calls layers with experts, and those without.
const SPARSE: &str = "sparse";
const DENSE: &str = "dense";

/// The name of a part of a layer.
macro_rules! layer {
    ($name:literal) => {
        concat!("vision_encoder.blocks.{i}.", $name)
    };
}

/// A weight of layers without experts.
const fn dense(rule: TensorRule) -> TensorRule {
    in_layers(Need::Kind(DENSE), rule)
}

/// A weight of layers with experts.
const fn sparse(rule: TensorRule) -> TensorRule {
    in_layers(Need::Kind(SPARSE), rule)
}

/// Width of an expert.
const WIDTH: Dim = Field("expert_width");

const TOWER: &[TensorRule] = &[
    same("v.patch_embd", "vision_encoder.patch_embed.proj", FILTERS),
    norm("v.pre_ln", "vision_encoder.patch_embed.norm"),
    same("v.blk.{i}.attn_qkv", layer!("attn.qkv"), FUSED),
    same("v.blk.{i}.attn_q_norm", layer!("attn.q_norm"), &[Head]),
    same("v.blk.{i}.attn_k_norm", layer!("attn.k_norm"), &[Head]),
    square("v.blk.{i}.attn_out", layer!("attn.proj")),
    norm("v.blk.{i}.ln1", layer!("norm_1")),
    norm("v.blk.{i}.ln2", layer!("norm_2")),
    dense(up("v.blk.{i}.ffn_gate", layer!("mlp.fc1"))),
    dense(down("v.blk.{i}.ffn_down", layer!("mlp.fc2"))),
    dense(up("v.blk.{i}.ffn_up", layer!("mlp.fc3"))),
    sparse(experts("v.blk.{i}.ffn_gate_exps", layer!("mlp.experts.{e}.fc1"), &[WIDTH, Hidden])),
    sparse(experts("v.blk.{i}.ffn_down_exps", layer!("mlp.experts.{e}.fc2"), &[Hidden, WIDTH])),
    sparse(experts("v.blk.{i}.ffn_up_exps", layer!("mlp.experts.{e}.fc3"), &[WIDTH, Hidden])),
    sparse(whole("v.blk.{i}.ffn_gate_inp.weight", layer!("mlp.gate_weight"), &[Experts, Hidden])),
    sparse(whole("v.blk.{i}.exp_probs_b.weight", layer!("mlp.router_bias"), &[Experts])),
];

const PROJECTOR: &[TensorRule] = &[
    norm("mm.post_norm", "vision_encoder.post_trunk_norm"),
    norm("mm.input_norm", "vision_encoder.adapter.ln_q"),
    same("mm.0", "vision_encoder.adapter.mlp.0", &[MERGED, MERGED]),
    same("mm.2", "vision_encoder.adapter.mlp.2", &[TEXT, MERGED]),
];

const OWN: &[Setting] = &[
    setting(Kind::Text("dots3note_v"), "vision.projector_type", &[]),
    SILU,
    NORM_EPSILON,
    count("vision.spatial_merge_size", &[MERGE_SIZE]),
    MIN_PIXELS,
    MAX_PIXELS,
    setting(Kind::Own(&INDEXES), "vision.expert_count_per_layer", &[EXPERTS_BY_LAYER]),
    setting(Kind::Required, "vision.expert_used_count", &["capacity_factor"]),
];

pub(super) const DOTS3_NOTE: Tower = Tower {
    class: ModelClass {
        classes: CLASSES,
        model_type: "dots3_note_vision_encoder",
        defaults: &[(CHANNELS, COLOURS)],
        implied: &[
            ("adapter_type", Text("patch_merger")),
            ("pre_pixel_shuffle", Bool(true)),
            ("router_scoring_func", Text("sigmoid")),
            ("router_scale", Float(1.0)),
            ("temporal_patch_size", Int(1)),
            ("use_bias", Bool(false)),
            ("use_qk_norm", Bool(true)),
        ],
        biases: &[("", &["v.patch_embd", "mm.input_norm", "mm.0", "mm.2"])],
        tensors: &[TOWER, PROJECTOR],
        settings: &[SETTINGS, OWN],
        ..PLAIN
    },
    of_processor: PIXEL_FIELDS,
    complete,
    sounds: Some(&SOUNDS),
    one_way: "its language model is no class of transformers here",
    ..PLAIN_TOWER
};

/// Field of how many experts layers have; below 1: none.
const PYRAMID: &str = "pyramid_num_routed";

fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    add_text_size(fields, config)?;
    check_layers(fields)?;
    let width = fields.need(&["embed_dim"])?;
    fields.0.insert(HIDDEN[0].to_owned(), width.into());
    // Images keep their shape.
    fields.0.insert(IMAGE_SIZE.to_owned(), 0.into());
    let used = fields.number(&["capacity_factor"])?.unwrap_or(1.0);
    if used.fract() != 0.0 || !(1.0..=1024.0).contains(&used) {
        return Err(wrong("capacity_factor", "it is no number of experts"));
    }
    fields
        .0
        .insert("capacity_factor".to_owned(), (used as u32).into());
    let epsilon = fields.0.get("rms_norm_eps").cloned();
    fields
        .0
        .extend(epsilon.map(|epsilon| (EPSILON.to_owned(), epsilon)));
    let all = fields.0.get(PYRAMID).and_then(Value::as_array);
    let all = all.and_then(|all| all.iter().map(Value::as_i64).collect::<Option<Vec<_>>>());
    let all = all.ok_or_else(|| wrong(PYRAMID, "it is no list of numbers"))?;
    if all.len() != fields.need(LAYERS)? as usize {
        return Err(wrong(PYRAMID, "it has not a number for each layer"));
    }
    let kinds: Value = all
        .iter()
        .map(|n| if *n > 0 { SPARSE } else { DENSE })
        .collect();
    let counts: Value = all.iter().map(|n| (*n).max(0)).collect();
    fields.0.insert(LAYER_KINDS.to_owned(), kinds);
    fields.0.insert(EXPERTS_BY_LAYER.to_owned(), counts);
    Ok(())
}

/// The name of a part of the encoder of sounds.
macro_rules! sound {
    ($name:literal) => {
        concat!("audio_encoder.dots_encoder.speech_encoder.", $name)
    };
}

/// Number of channels of convolutions.
const WAVES: Dim = Field("downsample_hidden_size");
const FILTER: &[Dim] = &[WAVES, WAVES, MOMENTS, MOMENTS];

/// Gates (0) or the rest (1) of a feed-forward layer.
const fn half(part: usize, gguf: &'static str) -> TensorRule {
    TensorRule {
        transform: Transform::Parts(Parts::one(Turn::Equal(2), part)),
        gguf_shape: Some(&[Inner, Hidden]),
        ..same(gguf, sound!("layers.{i}.fc1"), &[TwoInner, Hidden])
    }
}

const SOUND_TENSORS: &[TensorRule] = &[
    same("a.conv2d.1", sound!("conv2d1"), &[WAVES, One, MOMENTS, MOMENTS]),
    same("a.conv2d.2", sound!("conv2d2"), FILTER),
    same("a.conv2d.3", sound!("conv2d3"), FILTER),
    same("a.conv_out", sound!("conv_out"), &[Hidden, Product(&[WAVES, Field("left_bands")])]),
    square("a.blk.{i}.attn_q", sound!("layers.{i}.self_attn.q_proj")),
    square("a.blk.{i}.attn_k", sound!("layers.{i}.self_attn.k_proj")),
    square("a.blk.{i}.attn_v", sound!("layers.{i}.self_attn.v_proj")),
    square("a.blk.{i}.attn_out", sound!("layers.{i}.self_attn.out_proj")),
    norm("a.blk.{i}.ln1", sound!("layers.{i}.self_attn_layer_norm")),
    norm("a.blk.{i}.ln2", sound!("layers.{i}.final_layer_norm")),
    half(0, "a.blk.{i}.ffn_gate"),
    half(1, "a.blk.{i}.ffn_up"),
    down("a.blk.{i}.ffn_down", sound!("layers.{i}.fc2")),
    norm("a.post_ln", sound!("layer_norm")),
    norm("mm.a.norm_pre", "audio_encoder.audio_adapter.proj.0"),
    same("mm.a.mlp.1", "audio_encoder.audio_adapter.proj.1", &[Field("adapter_width"), Hidden]),
    same("mm.a.mlp.3", "audio_encoder.audio_adapter.proj.3", &[TEXT, Field("adapter_width")]),
];

const SOUND_BIASES: &[&str] = &[
    "a.conv2d.1",
    "a.conv2d.2",
    "a.conv2d.3",
    "a.blk.{i}.attn_q",
    "a.blk.{i}.attn_v",
    "a.blk.{i}.attn_out",
    "a.blk.{i}.ffn_gate",
    "a.blk.{i}.ffn_up",
    "a.blk.{i}.ffn_down",
    "mm.a.norm_pre",
    "mm.a.mlp.1",
    "mm.a.mlp.3",
];

const SOUND_OWN: &[Setting] = &[setting(Kind::Text("dots3note_a"), "audio.projector_type", &[])];

const SOUNDS: Tower = Tower {
    class: ModelClass {
        classes: CLASSES,
        model_type: "dots3_note_audio_encoder",
        implied: &[
            ("use_conv2d_stem", Bool(true)),
            ("use_rope", Bool(true)),
            ("use_rms_norm", Bool(true)),
            ("use_causal", Bool(false)),
            ("merge_factor", Int(1)),
            ("chunk_seconds", Int(60)),
            ("activation_function", Text("swiglu")),
            ("partial_rotary_factor", Float(0.5)),
            ("rope_theta", Float(10_000.0)),
        ],
        biases: &[("", SOUND_BIASES)],
        tensors: &[SOUND_TENSORS],
        settings: &[super::whisper::SETTINGS, SOUND_OWN],
        ..PLAIN
    },
    config: AUDIO,
    complete: |fields, config| {
        add_text_size(fields, config)?;
        let rope = fields.0.remove("rope_parameters");
        for nested in [rope, fields.0.remove("whisper_config")]
            .into_iter()
            .flatten()
        {
            if let Value::Object(nested) = nested {
                fields.0.extend(nested);
            }
        }
        for (name, field) in [
            (LAYERS[0], "encoder_layers"),
            (HIDDEN[0], "d_model"),
            (HEADS[0], "encoder_attention_heads"),
            (INNER[0], "encoder_ffn_dim"),
        ] {
            let value = fields.need(&[field])?;
            fields.0.insert(name.to_owned(), value.into());
        }
        fields.0.insert(EPSILON.to_owned(), 1e-6.into());
        let bands = fields.need(&[BANDS])?;
        fields
            .0
            .insert("left_bands".to_owned(), bands.div_ceil(8).into());
        Ok(())
    },
    types: &[
        ("a.conv2d.1.weight", TowerType::F32),
        ("a.conv2d.2.weight", TowerType::F32),
        ("a.conv2d.3.weight", TowerType::F32),
        ("a.conv_out.weight", TowerType::F32),
    ],
    ..PLAIN_TOWER
};
