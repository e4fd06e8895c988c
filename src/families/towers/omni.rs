//! The towers of Qwen's models that hear: images and sounds of Qwen 2.5-Omni and 3-Omni, each two towers in one
//! file, and sounds of Qwen 3-ASR. Positions of sounds are sines, which GGUF alone has.
//!
//! Source: `Qwen25AudioModel` in `conversion/qwenvl.py`, `Qwen3OmniMmprojModel` in
//! `conversion/qwen3vl.py`, and `tools/mtmd/models/qwen3a.cpp` of llama.cpp.

use super::qwen::{FILTER_BIAS, FILTERS, GATED_MLP, LAYERS, MERGER, QWEN2_5_VL, TO_TEXT, TRAITS};
use super::qwen3::{DEEP, DEEP_LAYERS, QWEN3_VL};
use super::whisper::{
    BANDS, BIASES, IMPLIED, MOMENTS, POSITIONS, QWEN2_AUDIO, SETTINGS as SOUNDS, TYPES, bias,
    convolutions, encoder,
};
use super::{
    AUDIO, FUSED, MERGED, PLAIN, PLAIN_TOWER, TEXT_HIDDEN, Tower, TowerConfig, TowerType, Whole,
    add_text_size, down, norm, projector, square, up, whole,
};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, HIDDEN, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::source::computed;
use crate::remember::Group;

const TEXT: Dim = Field(TEXT_HIDDEN);

/// What speaks, which llama.cpp does not have, and what nothing reads.
const LEFT_OUT: &[&str] =
    &["talker.", "token2wav.", "code2wav.", "audio_tower.audio_bos_eos_token."];

const OMNI_TRAITS: Traits = Traits { left_out: LEFT_OUT, ..TRAITS };

const SOUND_TRAITS: Traits = Traits { left_out: LEFT_OUT, ..PLAIN.traits };

const QKV: &[TensorRule] = &[
    square("v.blk.{i}.attn_q", "visual.blocks.{i}.attn.q"),
    square("v.blk.{i}.attn_k", "visual.blocks.{i}.attn.k"),
    square("v.blk.{i}.attn_v", "visual.blocks.{i}.attn.v"),
];

const OMNI2_5_OWN: &[Setting] = &[projector("qwen2.5o")];

const OMNI2_5: &[&str] = &["Qwen2_5OmniModel", "Qwen2_5OmniThinkerForConditionalGeneration"];

pub(super) const QWEN2_5_OMNI: Tower = Tower {
    class: ModelClass {
        classes: OMNI2_5,
        model_type: "qwen2_5_omni_vision_encoder",
        tensors: &[FILTERS, LAYERS, QKV, GATED_MLP, MERGER],
        settings: &[
            QWEN2_5_VL.class.settings[0],
            OMNI2_5_OWN,
            QWEN2_5_VL.class.settings[1].split_at(1).1,
        ],
        traits: OMNI_TRAITS,
        ..QWEN2_5_VL.class
    },
    sounds: Some(&QWEN2_5_SOUNDS),
    note: Some(
        "llama.cpp hears sounds of Qwen 2.5-Omni as those of Qwen 2-Audio: 30 seconds at once, where the model hears 2",
    ),
    wholes: &[Whole {
        text: "qwen2vl",
        class: OMNI2_5[1],
        model_type: "qwen2_5_omni_thinker",
        text_type: Some("qwen2_5_omni_text"),
        inner: "model.",
        tokens: &[
            ("audio_token_index", "<|AUDIO|>"),
            ("image_token_index", "<|IMAGE|>"),
            ("video_token_index", "<|VIDEO|>"),
            ("audio_start_token_id", "<|audio_bos|>"),
            ("audio_end_token_id", "<|audio_eos|>"),
        ],
        processor: &[
            ("image_processor_type", Text("Qwen2VLImageProcessor")),
            ("processor_class", Text("Qwen2_5OmniProcessor")),
        ],
    }],
    ..QWEN2_5_VL
};

const ENCODER: &[TensorRule] = encoder!("audio_tower.", "ln_post");

const CONVOLUTIONS: &[TensorRule] = convolutions!("audio_tower.");

const CONV1D: &[TensorRule] = &[
    CONVOLUTIONS[0],
    CONVOLUTIONS[1],
    CONVOLUTIONS[2],
    CONVOLUTIONS[3],
    same("mm.a.fc", "audio_tower.proj", &[TEXT, Hidden]),
];

/// The tower of sounds of Qwen 2.5-Omni.
const QWEN2_5_SOUNDS: Tower = Tower {
    class: ModelClass {
        classes: OMNI2_5,
        model_type: "qwen2_5_omni_audio_encoder",
        implied: &[IMPLIED[0], IMPLIED[1], IMPLIED[2], ("n_window", Int(100))],
        tensors: &[CONV1D, ENCODER],
        settings: &[SOUNDS],
        traits: SOUND_TRAITS,
        ..QWEN2_AUDIO.class
    },
    complete,
    added: Some((SINES, sines)),
    unread: &[("audio_tower.audio_bos_eos_token.weight", &[Sum(&[One, One]), TEXT])],
    types: TYPES,
    config: AUDIO,
    restore: |config| {
        let size = config.fields.need(&[TEXT_HIDDEN])?;
        config.vision.insert("output_dim".to_owned(), size.into());
        Ok(())
    },
    ..PLAIN_TOWER
};

/// Adds the length of a hidden state of the language model, which the projector has.
fn complete(fields: &mut Fields, config: &TowerConfig<'_>) -> Result<()> {
    add_text_size(fields, config)?;
    if fields.need(HIDDEN)? < 4 {
        return Err(wrong("d_model", "there are no sines of such a length"));
    }
    let text = fields.need(&[TEXT_HIDDEN])?;
    match fields.count(&["output_dim"])?.filter(|size| *size != text) {
        None => Ok(()),
        Some(size) => {
            let what = format!("it is {size}, and the language model's hidden_size {text}");
            Err(wrong("output_dim", what))
        }
    }
}

/// Number of positions, which llama.cpp's converter has for all of them.
const SINE_POSITIONS: usize = 1500;

const SINES: &str = "a.position_embd.weight";

/// Positions as sines and cosines of 10 000 to the part of a hidden state, as F32 at each step.
fn sines(dims: &Dims) -> Group<'static> {
    let half = dims.hidden / 2;
    let step = (10_000_f64.ln() / (half - 1) as f64) as f32;
    let speeds: Vec<f32> = (0..half)
        .map(|n| f64::from(-step * n as f32).exp() as f32)
        .collect();
    let row = |position: usize| {
        let angles = speeds
            .iter()
            .map(move |speed| f64::from(position as f32 * speed));
        let cosines = angles.clone().map(f64::cos);
        angles.map(f64::sin).chain(cosines).map(|x| x as f32)
    };
    let values = (0..SINE_POSITIONS).flat_map(row).collect();
    let mut group = computed((SINES, values));
    group.shape = vec![SINE_POSITIONS, 2 * half].into();
    group
}

/// Field of the number of channels of convolutions.
const CHANNELS: Dim = Field("downsample_hidden_size");

/// Field of the number of bands that three convolutions leave.
const LEFT_BANDS: &str = "left_bands";

const FILTER: &[Dim] = &[CHANNELS, CHANNELS, MOMENTS, MOMENTS];

const CONV2D: &[TensorRule] = &[
    whole("a.conv2d.1.weight", "audio_tower.conv2d1.weight", &[CHANNELS, One, MOMENTS, MOMENTS]),
    plane("a.conv2d.1.bias", "audio_tower.conv2d1.bias"),
    whole("a.conv2d.2.weight", "audio_tower.conv2d2.weight", FILTER),
    plane("a.conv2d.2.bias", "audio_tower.conv2d2.bias"),
    whole("a.conv2d.3.weight", "audio_tower.conv2d3.weight", FILTER),
    plane("a.conv2d.3.bias", "audio_tower.conv2d3.bias"),
    same("a.conv_out", "audio_tower.conv_out", &[Hidden, Product(&[CHANNELS, Field(LEFT_BANDS)])]),
];

/// The projector, which is a part of the encoder in published models.
const PROJECTOR: &[TensorRule] = &[
    same("mm.a.mlp.1", "audio_tower.proj1", &[Hidden, Hidden]),
    same("mm.a.mlp.2", "audio_tower.proj2", &[TEXT, Hidden]),
];

const ASR_PROJECTOR: &[TensorRule] = &[
    same("mm.a.mlp.1", "multi_modal_projector.linear_1", &[Hidden, Hidden]),
    same("mm.a.mlp.2", "multi_modal_projector.linear_2", &[TEXT, Hidden]),
];

/// A bias that is a plane in GGUF.
const fn plane(gguf: &'static str, hf: &'static str) -> TensorRule {
    parameter(gguf, hf, (Transform::RESHAPED, &[CHANNELS], &[CHANNELS, One, One]))
}

/// What has a bias beside [`BIASES`].
const MORE_BIASES: &[&str] = &["a.blk.{i}.attn_k", "mm.a.mlp.1", "mm.a.mlp.2"];

const QWEN3_SOUND_OWN: &[Setting] = &[setting(Kind::Text("qwen3a"), "audio.projector_type", &[])];

/// The tower of sounds of Qwen 3-Omni.
const QWEN3_SOUNDS: Tower = Tower {
    class: ModelClass {
        classes: OMNI3,
        model_type: "qwen3_omni_moe_audio_encoder",
        defaults: &[
            ("d_model", Int(1280)),
            ("encoder_ffn_dim", Int(5120)),
            ("encoder_layers", Int(32)),
            ("encoder_attention_heads", Int(20)),
            (BANDS, Int(128)),
            ("downsample_hidden_size", Int(480)),
        ],
        implied: &[IMPLIED[0], IMPLIED[1], IMPLIED[2], ("n_window", Int(50))],
        biases: &[("", BIASES), ("", MORE_BIASES)],
        tensors: &[CONV2D, ENCODER, PROJECTOR],
        settings: &[SOUNDS, QWEN3_SOUND_OWN],
        traits: SOUND_TRAITS,
        ..QWEN2_AUDIO.class
    },
    complete: |fields, config| {
        complete(fields, config)?;
        let bands = fields.need(&[BANDS])?;
        fields
            .0
            .insert(LEFT_BANDS.to_owned(), bands.div_ceil(8).into());
        Ok(())
    },
    types: &[
        ("a.conv2d.1.weight", TowerType::F16),
        ("a.conv2d.2.weight", TowerType::F16),
        ("a.conv2d.3.weight", TowerType::F16),
        ("a.conv_out.weight", TowerType::F16),
    ],
    unread: &[],
    ..QWEN2_5_SOUNDS
};

/// Qwen 3-ASR as transformers has it, and under the names of published models.
pub(super) const QWEN3_ASR: Tower = Tower {
    class: ModelClass {
        classes: &["Qwen3ASRForConditionalGeneration"],
        model_type: "qwen3_asr_encoder",
        tensors: &[CONV2D, ENCODER, ASR_PROJECTOR],
        other_tensors: PROJECTOR,
        ..QWEN3_SOUNDS.class
    },
    wholes: &[Whole {
        text: "qwen3vl",
        class: "Qwen3ASRForConditionalGeneration",
        model_type: "qwen3_asr",
        text_type: Some("qwen3"),
        inner: "model.language_model.",
        tokens: &[("audio_token_id", "<|audio_pad|>")],
        processor: &[
            ("feature_extractor_type", Text("Qwen3ASRFeatureExtractor")),
            ("processor_class", Text("Qwen3ASRProcessor")),
        ],
    }],
    ..QWEN3_SOUNDS
};

const OMNI3_TENSORS: &[TensorRule] = &[
    QWEN3_VL.class.tensors[3][0],
    same("v.blk.{i}.attn_qkv", "visual.blocks.{i}.attn.qkv", FUSED),
    QWEN3_VL.class.tensors[3][2],
    QWEN3_VL.class.tensors[3][3],
    norm("v.post_ln", "visual.merger.ln_q"),
    same("mm.0", "visual.merger.mlp.0", &[MERGED, MERGED]),
    same("mm.2", "visual.merger.mlp.2", TO_TEXT),
    only(DEEP, "v.deepstack.{i}.norm", "visual.merger_list.{i}.ln_q", &[MERGED]),
    only(DEEP, "v.deepstack.{i}.fc1", "visual.merger_list.{i}.mlp.0", &[MERGED, MERGED]),
    only(DEEP, "v.deepstack.{i}.fc2", "visual.merger_list.{i}.mlp.2", TO_TEXT),
];

const OMNI3_OWN: &[Setting] =
    &[setting(Kind::Text("qwen3vl_merger"), "vision.projector_type", &[])];

const OMNI3: &[&str] =
    &["Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"];

pub(super) const QWEN3_OMNI: Tower = Tower {
    class: ModelClass {
        classes: OMNI3,
        model_type: "qwen3_omni_moe_vision_encoder",
        tensors: &[FILTERS, FILTER_BIAS, LAYERS, OMNI3_TENSORS],
        settings: &[
            QWEN3_VL.class.settings[0],
            OMNI3_OWN,
            QWEN3_VL.class.settings[1].split_at(1).1,
        ],
        traits: Traits { sign: Sign::Tensor("mm.a.mlp.1.weight"), ..OMNI_TRAITS },
        ..QWEN3_VL.class
    },
    listed: Some(("merger_list.", DEEP_LAYERS)),
    note: Some(
        "llama.cpp loads images and sounds of Qwen 3-Omni together only if `deepstack_visual_indexes` is empty",
    ),
    sounds: Some(&QWEN3_SOUNDS),
    wholes: &[Whole {
        text: "qwen3vlmoe",
        class: OMNI3[1],
        model_type: "qwen3_omni_moe_thinker",
        text_type: Some("qwen3_omni_moe_text"),
        inner: "model.",
        tokens: &[
            ("audio_token_id", "<|audio_pad|>"),
            ("image_token_id", "<|image_pad|>"),
            ("video_token_id", "<|video_pad|>"),
            ("audio_start_token_id", "<|audio_start|>"),
        ],
        processor: &[
            ("image_processor_type", Text("Qwen2VLImageProcessor")),
            ("processor_class", Text("Qwen3OmniMoeProcessor")),
        ],
    }],
    ..QWEN3_VL
};
