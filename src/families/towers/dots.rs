//! The tower of dots.ocr, whose heads rotate by rows and columns, and of whose patches squares
//! become one token.
//!
//! Source: `conversion/dotsocr.py` and `tools/mtmd/models/dotsocr.cpp` of llama.cpp.

use super::{
    CHANNELS, COLOURS, EPSILON, FILTERS, FLAT, FUSED, IMAGE_SIZE, MAX_PIXELS, MERGE_SIZE, MERGED,
    MIN_PIXELS, NORM_EPSILON, PIXEL_FIELDS, PLAIN, PLAIN_TOWER, SCALE_FACTOR, SETTINGS, SILU,
    TEXT_FIELD, TEXT_HIDDEN, Tower, Whole, add_text_size, down, norm, note_code, projector,
    restore_patch, square, up,
};
use crate::families::engine::fields::{HIDDEN, is_same, wrong};
use crate::families::engine::rows::*;

const TOWER: &[TensorRule] = &[
    same("v.patch_embd", "vision_tower.patch_embed.patchifier.proj", FILTERS),
    norm("v.pre_ln", "vision_tower.patch_embed.patchifier.norm"),
    same("v.blk.{i}.attn_qkv", "vision_tower.blocks.{i}.attn.qkv", FUSED),
    square("v.blk.{i}.attn_out", "vision_tower.blocks.{i}.attn.proj"),
    norm("v.blk.{i}.ln1", "vision_tower.blocks.{i}.norm1"),
    norm("v.blk.{i}.ln2", "vision_tower.blocks.{i}.norm2"),
    up("v.blk.{i}.ffn_gate", "vision_tower.blocks.{i}.mlp.fc1"),
    down("v.blk.{i}.ffn_down", "vision_tower.blocks.{i}.mlp.fc2"),
    up("v.blk.{i}.ffn_up", "vision_tower.blocks.{i}.mlp.fc3"),
];

const PROJECTOR: &[TensorRule] = &[
    norm("mm.post_norm", "vision_tower.post_trunk_norm"),
    norm("mm.input_norm", "vision_tower.merger.ln_q"),
    same("mm.0", "vision_tower.merger.mlp.0", &[MERGED, MERGED]),
    same("mm.2", "vision_tower.merger.mlp.2", &[Field(TEXT_HIDDEN), MERGED]),
];

const OWN: &[Setting] =
    &[projector("dots_ocr"), MIN_PIXELS, MAX_PIXELS, NORM_EPSILON, SCALE_FACTOR, SILU];

/// Field of the width of the tower, which its config has twice.
const WIDTH: &str = "embed_dim";

pub(super) const DOTS_OCR: Tower = Tower {
    class: ModelClass {
        classes: &["DotsOCRForCausalLM"],
        model_type: "dots_vit",
        defaults: &[
            ("hidden_size", Int(1536)),
            ("intermediate_size", Int(4224)),
            ("num_hidden_layers", Int(42)),
            ("num_attention_heads", Int(12)),
            ("patch_size", Int(14)),
            (MERGE_SIZE, Int(2)),
            ("rms_norm_eps", Float(1e-5)),
        ],
        implied: &[
            ("temporal_patch_size", Int(1)),
            ("use_bias", Bool(false)),
            ("post_norm", Bool(true)),
            (CHANNELS, COLOURS),
        ],
        own_fields: &[(EPSILON, "rms_norm_eps")],
        biases: &[("", &["v.patch_embd", "mm.input_norm", "mm.0", "mm.2"])],
        tensors: &[TOWER, PROJECTOR],
        settings: &[SETTINGS, OWN],
        ..PLAIN
    },
    of_processor: PIXEL_FIELDS,
    complete: |fields, config| {
        add_text_size(fields, config)?;
        let width = fields.0.remove(WIDTH);
        let hidden = fields.need(HIDDEN)?;
        if let Some(width) = width.filter(|width| !is_same(width, &hidden.into())) {
            return Err(wrong(WIDTH, format_args!("it is {width}, and hidden_size {hidden}")));
        }
        // Images have any length.
        fields.0.insert(IMAGE_SIZE.to_owned(), 0.into());
        Ok(())
    },
    wholes: &[Whole {
        text: "qwen2",
        class: "DotsOCRForCausalLM",
        model_type: "dots_ocr",
        text_type: None,
        inner: "model.",
        tokens: &[("image_token_id", "<|imgpad|>")],
        processor: &[
            ("image_processor_type", Text("Qwen2VLImageProcessor")),
            ("processor_class", Text("DotsVLProcessor")),
            ("temporal_patch_size", Int(1)),
        ],
    }],
    restore: |config| {
        let hidden = config.fields.need(HIDDEN)?;
        config.vision.insert(WIDTH.to_owned(), hidden.into());
        restore_patch(config, "patch_size");
        let merge = config.fields.0.get(MERGE_SIZE).cloned();
        config
            .processor
            .extend(merge.map(|merge| ("merge_size".to_owned(), merge)));
        config.root.insert(TEXT_FIELD.to_owned(), FLAT.into());
        note_code(config);
        Ok(())
    },
    ..PLAIN_TOWER
};
