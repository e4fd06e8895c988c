//! Towers of sounds whose encoder is that of Whisper under other names: GLM-ASR, MERaLiON 2 and Ultravox. Their
//! language models are files of their own.
//!
//! Source: `conversion/ultravox.py` and `tools/mtmd/models/whisper-enc.cpp` of llama.cpp.

use super::whisper::{
    BANDS, BIASES, MOMENTS, POSITIONS, QWEN2_AUDIO, SETTINGS, bias, convolutions, encoder,
};
use super::{OfModel, TEXT_HIDDEN, Tower, down, norm, projector, square, up, whole};
use crate::families::engine::rows::*;

const TEXT: Dim = Field(TEXT_HIDDEN);

/// Field of how many moments in a row become one token.
const STACK: &str = "stack_factor";

/// That many hidden states.
const STACKED: Dim = Product(&[Field(STACK), Hidden]);

/// Field of the width of the projector.
const WIDTH: Dim = Field("projector_width");

const STACK_FACTOR: Setting = setting(Kind::Required, "audio.projector.stack_factor", &[STACK]);

const GLM_OWN: &[Setting] = &[projector("glma"), STACK_FACTOR];

const GLM_ENCODER: &[TensorRule] = encoder!("audio_encoder.whisper.", "layer_norm");

/// What stands around a sound: a row each.
const fn end(row: usize, gguf: &'static str) -> TensorRule {
    let part = Transform::Parts(Parts::one(Turn::Single(2, 0), row));
    let pair: (Transform, &[Dim], &[Dim]) = (part, &[Sum(&[One, One]), TEXT], &[TEXT]);
    parameter(gguf, "audio_encoder.audio_bos_eos_token.weight", pair)
}

const GLM_PROJECTOR: &[TensorRule] = &[
    norm("mm.a.norm_pre", "audio_encoder.layer_norm"),
    same("mm.a.mlp.1", "audio_encoder.adapting.0", &[WIDTH, STACKED]),
    same("mm.a.mlp.2", "audio_encoder.adapting.2", &[TEXT, WIDTH]),
    end(0, "v.boi"),
    end(1, "v.eoi"),
];

/// Why the sounds of these models do not come back.
const ALONE: &str = "transformers has no such class, and its language model is a file of another";

pub(super) const GLM_ASR: Tower = Tower {
    class: ModelClass {
        classes: &["GlmasrModel"],
        biases: &[("", BIASES.split_at(7).0), ("", &["mm.a.norm_pre", "mm.a.mlp.1", "mm.a.mlp.2"])],
        tensors: &[
            convolutions!("audio_encoder.whisper."),
            GLM_ENCODER.split_at(8).0,
            GLM_PROJECTOR,
        ],
        settings: &[SETTINGS, GLM_OWN],
        ..QWEN2_AUDIO.class
    },
    config: "whisper_config",
    of_model: &[OfModel { name: STACK, field: "merge_factor", default: Int(4) }],
    expected: &[("mlp_adapter_act", Text("gelu"), Text("gelu"))],
    note: Some("llama.cpp has learned positions of GLM-ASR, also where heads rotate (`use_rope`)"),
    one_way: ALONE,
    wholes: &[],
    ..QWEN2_AUDIO
};

const ULTRAVOX_OWN: &[Setting] = &[projector("ultravox"), STACK_FACTOR];

/// Half of the projector's width is gates.
const HALF: Dim = Quotient(&[WIDTH, Sum(&[One, One])]);

const ULTRAVOX_PROJECTOR: &[TensorRule] = &[
    same("mm.a.norm_pre", "multi_modal_projector.ln_pre", &[STACKED]),
    same("mm.a.mlp.1", "multi_modal_projector.linear_1", &[WIDTH, STACKED]),
    same("mm.a.norm_mid", "multi_modal_projector.ln_mid", &[HALF]),
    same("mm.a.mlp.2", "multi_modal_projector.linear_2", &[TEXT, HALF]),
];

pub(super) const ULTRAVOX: Tower = Tower {
    class: ModelClass {
        classes: &["UltravoxModel"],
        biases: &[("", BIASES)],
        tensors: &[
            convolutions!("audio_tower."),
            encoder!("audio_tower.", "layer_norm"),
            ULTRAVOX_PROJECTOR,
        ],
        settings: &[SETTINGS, ULTRAVOX_OWN],
        ..QWEN2_AUDIO.class
    },
    of_model: &[
        OfModel { name: STACK, field: STACK, default: Int(8) },
        OfModel { name: "projector_width", field: "hidden_size", default: Int(4096) },
    ],
    expected: &[
        ("projector_act", Text("swiglu"), Text("swiglu")),
        ("projector_ln_mid", Bool(false), Bool(true)),
    ],
    one_way: ALONE,
    wholes: &[],
    ..QWEN2_AUDIO
};

const MERALION_OWN: &[Setting] = &[projector("meralion"), STACK_FACTOR];

const MERALION_PROJECTOR: &[TensorRule] = &[
    norm("mm.a.norm_pre", "ln_speech"),
    same("mm.a.mlp.0", "speech_audio_adapter.mlp_adapter.0", &[WIDTH, STACKED]),
    same("mm.a.mlp.1", "speech_audio_adapter.gate_proj", &[WIDTH, WIDTH]),
    same("mm.a.mlp.2", "speech_audio_adapter.pool_proj", &[WIDTH, WIDTH]),
    same("mm.a.mlp.3", "speech_audio_adapter.out_proj", &[TEXT, WIDTH]),
];

pub(super) const MERALION2: Tower = Tower {
    class: ModelClass {
        classes: &["MERaLiON2ForConditionalGeneration"],
        biases: &[
            ("", BIASES),
            ("", &["mm.a.norm_pre", "mm.a.mlp.0", "mm.a.mlp.1", "mm.a.mlp.2", "mm.a.mlp.3"]),
        ],
        tensors: &[
            convolutions!("speech_encoder."),
            encoder!("speech_encoder.", "layer_norm"),
            MERALION_PROJECTOR,
        ],
        settings: &[SETTINGS, MERALION_OWN],
        ..QWEN2_AUDIO.class
    },
    config: "speech_config",
    of_model: &[OfModel { name: STACK, field: "speech_mlp_scale_factor", default: Int(15) }],
    one_way: ALONE,
    wholes: &[],
    ..QWEN2_AUDIO
};
