//! The tower of Hunyuan OCR, whose projector is convolutions, and ends each row of an image with a
//! vector of its own. GGUF does not get the position of the whole image, which nothing reads; it
//! comes back as zeros.
//!
//! Source: `HunyuanVLVisionModel` in `conversion/hunyuan.py` and `tools/mtmd/models/hunyuanvl.cpp`
//! of llama.cpp.

use super::gemma::{FILTER_BIAS, SIGLIP_BIASES};
use super::{
    CHANNELS, COLOURS, EPSILON, FILTERS, GELU, IMAGE_SIZE, MAX_PIXELS, MERGE_SIZE, MIN_PIXELS,
    NORM_EPSILON, PATCHES, PIXEL_FIELDS, PLAIN, PLAIN_TOWER, SETTINGS, TEXT_HIDDEN, Tower,
    TowerType, Whole, add_patches, add_text_size, down, norm, projector, restore_patch, square, up,
    whole,
};
use crate::families::engine::rows::*;
use crate::families::engine::source::{Rearrangement, SourceRows, SourceTensor, computed};
use crate::remember::ResolvedItem;
use crate::remember::layout::assembled::RowOrder;

const POSITIONS: &[Dim] = &[Sum(&[One, Field(PATCHES)]), Hidden];

/// Positions without the first, which is that of the whole image.
const WITHOUT_WHOLE: OwnTransform = OwnTransform {
    to_gguf: |sources, _, _| {
        let mut shape = sources[0].shape.clone();
        shape[0] = shape[0].saturating_sub(1);
        let size = (shape[0], shape[1..].iter().product());
        Ok((Rearrangement::of_each(1, RowOrder::From(1), size), shape))
    },
    to_hf: |sources, _, _| {
        let mut shape = sources[0].shape.clone();
        let cols = shape[1..].iter().product();
        sources.push(SourceTensor::new(ResolvedItem::from(computed(("", vec![0.0; cols]))))?);
        let piece = |source, rows| SourceRows { source, order: RowOrder::From(0), rows, turn: 1 };
        let moved = Rearrangement {
            pieces: vec![piece(1, 1), piece(0, shape[0])],
            ..Rearrangement::of_each(0, RowOrder::From(0), (0, cols))
        };
        shape[0] += 1;
        Ok((moved, shape))
    },
};

const TOWER: &[TensorRule] = &[
    same("v.patch_embd", "vit.embeddings.patch_embedding", FILTERS),
    TensorRule {
        transform: Transform::Own(&WITHOUT_WHOLE),
        gguf_shape: Some(&[Field(PATCHES), Hidden]),
        ..same("v.position_embd", "vit.embeddings.position_embedding", POSITIONS)
    },
    square("v.blk.{i}.attn_q", "vit.layers.{i}.self_attn.q_proj"),
    square("v.blk.{i}.attn_k", "vit.layers.{i}.self_attn.k_proj"),
    square("v.blk.{i}.attn_v", "vit.layers.{i}.self_attn.v_proj"),
    square("v.blk.{i}.attn_out", "vit.layers.{i}.self_attn.o_proj"),
    norm("v.blk.{i}.ln1", "vit.layers.{i}.input_layernorm"),
    norm("v.blk.{i}.ln2", "vit.layers.{i}.post_attention_layernorm"),
    up("v.blk.{i}.ffn_up", "vit.layers.{i}.mlp.dense_h_to_4h"),
    down("v.blk.{i}.ffn_down", "vit.layers.{i}.mlp.dense_4h_to_h"),
];

const TEXT: Dim = Field(TEXT_HIDDEN);
const TWICE: Dim = Sum(&[Hidden, Hidden]);
const FOUR_TIMES: Dim = Sum(&[TWICE, TWICE]);

const PROJECTOR: &[TensorRule] = &[
    norm("mm.pre_norm", "vit.perceive.before_rms"),
    same("mm.0", "vit.perceive.proj.0", &[TWICE, Hidden, Field(MERGE_SIZE), Field(MERGE_SIZE)]),
    same("mm.2", "vit.perceive.proj.2", &[FOUR_TIMES, TWICE, One, One]),
    whole("v.image_newline", "vit.perceive.image_newline", &[FOUR_TIMES]),
    same("mm.model.fc", "vit.perceive.mlp", &[TEXT, FOUR_TIMES]),
    whole("mm.image_begin", "vit.perceive.image_begin", &[TEXT]),
    whole("mm.image_end", "vit.perceive.image_end", &[TEXT]),
    whole("v.view_seperator", "vit.perceive.image_sep", &[TEXT]),
    same("mm.post_norm", "vit.perceive.after_rms", &[TEXT]),
];

const OWN: &[Setting] = &[
    projector("hunyuanvl"),
    GELU,
    NORM_EPSILON,
    count("vision.spatial_merge_size", &[MERGE_SIZE]),
    MIN_PIXELS,
    MAX_PIXELS,
];

pub(super) const HUNYUAN_VL: Tower = Tower {
    class: ModelClass {
        classes: &["HunYuanVLForConditionalGeneration"],
        model_type: "hunyuan_vl_vision",
        defaults: &[
            ("hidden_size", Int(1152)),
            ("intermediate_size", Int(4304)),
            ("num_hidden_layers", Int(27)),
            ("num_attention_heads", Int(16)),
            ("max_image_size", Int(2048)),
            ("patch_size", Int(16)),
            (MERGE_SIZE, Int(2)),
            ("rms_norm_eps", Float(1e-5)),
        ],
        implied: &[
            ("hidden_act", Text("gelu")),
            ("temporal_patch_size", Int(1)),
            (CHANNELS, COLOURS),
        ],
        own_fields: &[(EPSILON, "rms_norm_eps"), (IMAGE_SIZE, "max_image_size")],
        biases: &[("", FILTER_BIAS), ("", LAYER_BIASES), ("", &["mm.0", "mm.2", "mm.model.fc"])],
        tensors: &[TOWER, PROJECTOR],
        settings: &[SETTINGS, OWN],
        ..PLAIN
    },
    of_processor: PIXEL_FIELDS,
    complete: |fields, config| {
        add_text_size(fields, config)?;
        add_patches(fields)
    },
    wholes: &[Whole {
        text: "hunyuan_vl",
        class: "HunYuanVLForConditionalGeneration",
        model_type: "hunyuan_vl",
        text_type: Some("hunyuan_vl_text"),
        inner: "model.",
        tokens: &[
            ("image_token_id", "<\u{ff5c}hy_place\u{2581}holder\u{2581}no\u{2581}102\u{ff5c}>"),
            ("im_start_id", "<\u{ff5c}hy_place\u{2581}holder\u{2581}no\u{2581}100\u{ff5c}>"),
            ("im_end_id", "<\u{ff5c}hy_place\u{2581}holder\u{2581}no\u{2581}101\u{ff5c}>"),
        ],
        processor: &[
            ("image_processor_type", Text("HunYuanVLImageProcessor")),
            ("processor_class", Text("HunYuanVLProcessor")),
            ("temporal_patch_size", Int(1)),
        ],
    }],
    restore: |config| {
        restore_patch(config, "patch_size");
        let merge = config.fields.0.get(MERGE_SIZE).cloned();
        config
            .processor
            .extend(merge.map(|merge| ("merge_size".to_owned(), merge)));
        let size = config.fields.need(&[TEXT_HIDDEN])?;
        for name in ["out_hidden_size", "text_hidden_size"] {
            config.vision.insert(name.to_owned(), size.into());
        }
        Ok(())
    },
    types: &[("mm.0.weight", TowerType::Filter), ("mm.2.weight", TowerType::Filter)],
    note: Some(
        "llama.cpp has other positions of Hunyuan VL's patches, and of image tokens in the language model",
    ),
    ..PLAIN_TOWER
};

/// What layers of SigLIP have a bias of; there is no norm behind the last one.
const LAYER_BIASES: &[&str] = SIGLIP_BIASES.split_at(8).0;
