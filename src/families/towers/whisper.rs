//! Towers of sounds whose encoder is that of Whisper, with a projector behind it: Qwen 2-Audio,
//! Voxtral and Audio Flamingo 3.
//!
//! Source: `conversion/ultravox.py` and `tools/mtmd/models/whisper-enc.cpp` of llama.cpp.

use super::{
    AUDIO, EPSILON, PLAIN, PLAIN_TOWER, TEXT_HIDDEN, Tower, TowerType, Whole, WholeConfig, down,
    norm, projector, square, up, whole,
};
use crate::Result;
use crate::families::engine::fields::{HEADS, HIDDEN, INNER, LAYERS};
use crate::families::engine::rows::*;

/// Field of the number of bands of a sound.
pub(super) const BANDS: &str = "num_mel_bins";

/// Field of the number of positions.
pub(super) const POSITIONS: &str = "max_source_positions";

/// What is in front of the layers below `$prefix`: convolutions over three moments, and positions.
macro_rules! convolutions {
    ($prefix:literal) => {
        &[
            whole(
                "a.conv1d.1.weight",
                concat!($prefix, "conv1.weight"),
                &[Hidden, Field(BANDS), MOMENTS],
            ),
            bias("a.conv1d.1.bias", concat!($prefix, "conv1.bias")),
            whole(
                "a.conv1d.2.weight",
                concat!($prefix, "conv2.weight"),
                &[Hidden, Hidden, MOMENTS],
            ),
            bias("a.conv1d.2.bias", concat!($prefix, "conv2.bias")),
            same(
                "a.position_embd",
                concat!($prefix, "embed_positions"),
                &[Field(POSITIONS), Hidden],
            ),
        ]
    };
}
pub(super) use convolutions;

/// The layers below `$prefix`, and the norm behind them.
macro_rules! encoder {
    ($prefix:literal, $norm:literal) => {
        &[
            square("a.blk.{i}.attn_q", concat!($prefix, "layers.{i}.self_attn.q_proj")),
            square("a.blk.{i}.attn_k", concat!($prefix, "layers.{i}.self_attn.k_proj")),
            square("a.blk.{i}.attn_v", concat!($prefix, "layers.{i}.self_attn.v_proj")),
            square("a.blk.{i}.attn_out", concat!($prefix, "layers.{i}.self_attn.out_proj")),
            norm("a.blk.{i}.ln1", concat!($prefix, "layers.{i}.self_attn_layer_norm")),
            norm("a.blk.{i}.ln2", concat!($prefix, "layers.{i}.final_layer_norm")),
            up("a.blk.{i}.ffn_up", concat!($prefix, "layers.{i}.fc1")),
            down("a.blk.{i}.ffn_down", concat!($prefix, "layers.{i}.fc2")),
            norm("a.post_ln", concat!($prefix, $norm)),
        ]
    };
}
pub(super) use encoder;

const IN_FRONT: &[TensorRule] = convolutions!("audio_tower.");
const ENCODER: &[TensorRule] = encoder!("audio_tower.", "layer_norm");

pub(super) const MOMENTS: Dim = Sum(&[One, One, One]);

/// A bias that is a column in GGUF.
pub(super) const fn bias(gguf: &'static str, hf: &'static str) -> TensorRule {
    parameter(gguf, hf, (Transform::RESHAPED, &[Hidden], &[Hidden, One]))
}

/// Keys have no bias.
pub(super) const BIASES: &[&str] = &[
    "a.blk.{i}.attn_q",
    "a.blk.{i}.attn_v",
    "a.blk.{i}.attn_out",
    "a.blk.{i}.ln1",
    "a.blk.{i}.ln2",
    "a.blk.{i}.ffn_up",
    "a.blk.{i}.ffn_down",
    "a.post_ln",
];

const TEXT: Dim = Field(TEXT_HIDDEN);

/// The settings of all towers of sounds.
pub(super) const SETTINGS: &[Setting] = &[
    setting(Kind::FixedFlag(true), "has_audio_encoder", &[]),
    setting(Kind::Required, "audio.projection_dim", &[TEXT_HIDDEN]),
    setting(Kind::Required, "audio.embedding_length", HIDDEN),
    setting(Kind::Required, "audio.feed_forward_length", INNER),
    setting(Kind::Required, "audio.block_count", LAYERS),
    setting(Kind::Required, "audio.attention.head_count", HEADS),
    setting(Kind::Required, "audio.num_mel_bins", &[BANDS]),
    number("audio.attention.layer_norm_epsilon", &[EPSILON]),
];

const QWEN2_PROJECTOR: &[TensorRule] =
    &[same("mm.a.fc", "multi_modal_projector.linear", &[TEXT, Hidden])];

const QWEN2_OWN: &[Setting] = &[projector("qwen2a")];

/// What the graph takes for granted; layers norm with the epsilon that torch has by default.
pub(super) const IMPLIED: &[(&str, Default)] = &[
    ("activation_function", Text("gelu")),
    ("scale_embedding", Bool(false)),
    (EPSILON, Float(1e-5)),
];

const CONVOLUTIONS: [&str; 2] = ["a.conv1d.1.weight", "a.conv1d.2.weight"];

/// Convolutions of llama.cpp take F16.
pub(super) const TYPES: &[(&str, TowerType)] =
    &[(CONVOLUTIONS[0], TowerType::F16), (CONVOLUTIONS[1], TowerType::F16)];

const PROCESSOR: &[(&str, Default)] =
    &[("feature_extractor_type", Text("WhisperFeatureExtractor"))];

pub(super) const QWEN2_AUDIO: Tower = Tower {
    class: ModelClass {
        classes: &["Qwen2AudioForConditionalGeneration"],
        model_type: "qwen2_audio_encoder",
        defaults: &[
            ("d_model", Int(1280)),
            ("encoder_ffn_dim", Int(5120)),
            ("encoder_layers", Int(32)),
            ("encoder_attention_heads", Int(20)),
            (BANDS, Int(128)),
            (POSITIONS, Int(1500)),
        ],
        implied: IMPLIED,
        own_fields: &[
            ("hidden_size", "d_model"),
            ("intermediate_size", "encoder_ffn_dim"),
            ("num_hidden_layers", "encoder_layers"),
            ("num_attention_heads", "encoder_attention_heads"),
        ],
        biases: &[("", BIASES), ("", &["mm.a.fc"])],
        tensors: &[IN_FRONT, ENCODER, QWEN2_PROJECTOR],
        settings: &[SETTINGS, QWEN2_OWN],
        ..PLAIN
    },
    config: AUDIO,
    types: TYPES,
    wholes: &[Whole {
        text: "qwen2",
        class: "Qwen2AudioForConditionalGeneration",
        model_type: "qwen2_audio",
        text_type: None,
        inner: "language_model.model.",
        tokens: &[("audio_token_index", "<|AUDIO|>")],
        processor: &[PROCESSOR[0], ("processor_class", Text("Qwen2AudioProcessor"))],
    }],
    restore,
    ..PLAIN_TOWER
};

/// Sets the number of bands of a sound.
fn restore(config: &mut WholeConfig) -> Result<()> {
    let bands = config.fields.0.get(BANDS).cloned();
    config
        .processor
        .extend(bands.map(|bands| ("feature_size".to_owned(), bands)));
    Ok(())
}

/// The names that later encoders have for the sizes.
const SIZES: &[(&str, Default)] = &[
    ("hidden_size", Int(1280)),
    ("intermediate_size", Int(5120)),
    ("num_hidden_layers", Int(32)),
    ("num_attention_heads", Int(20)),
    (BANDS, Int(128)),
    (POSITIONS, Int(1500)),
];

/// Four moments in a row become one token.
const STACKED: Dim = Sum(&[Hidden, Hidden, Hidden, Hidden]);

const VOXTRAL_PROJECTOR: &[TensorRule] = &[
    same("mm.a.mlp.1", "multi_modal_projector.linear_1", &[TEXT, STACKED]),
    same("mm.a.mlp.2", "multi_modal_projector.linear_2", &[TEXT, TEXT]),
];

const VOXTRAL_OWN: &[Setting] =
    &[projector("voxtral"), setting(Kind::Fixed(4), "audio.projector.stack_factor", &[])];

pub(super) const VOXTRAL: Tower = Tower {
    class: ModelClass {
        classes: &["VoxtralForConditionalGeneration"],
        model_type: "voxtral_encoder",
        defaults: SIZES,
        own_fields: &[],
        biases: &[("", BIASES)],
        tensors: &[IN_FRONT, ENCODER, VOXTRAL_PROJECTOR],
        settings: &[SETTINGS, VOXTRAL_OWN],
        ..QWEN2_AUDIO.class
    },
    expected: &[GELU],
    wholes: &[Whole {
        text: "llama",
        class: "VoxtralForConditionalGeneration",
        model_type: "voxtral",
        text_type: None,
        inner: "language_model.model.",
        tokens: &[("audio_token_id", "[AUDIO]")],
        processor: &[PROCESSOR[0], ("processor_class", Text("VoxtralProcessor"))],
    }],
    note: Some("llama.cpp halves what the encoder of Voxtral returns, and aborts on every sound"),
    ..QWEN2_AUDIO
};

/// The function of the projector.
const GELU: (&str, Default, Default) = ("projector_hidden_act", Text("gelu"), Text("gelu"));

const FLAMINGO_PROJECTOR: &[TensorRule] =
    &[same("mm.a.mlp.1", "multi_modal_projector.linear_1", &[TEXT, Hidden]), VOXTRAL_PROJECTOR[1]];

const FLAMINGO_OWN: &[Setting] = &[projector("musicflamingo")];

pub(super) const AUDIO_FLAMINGO3: Tower = Tower {
    class: ModelClass {
        classes: &["AudioFlamingo3ForConditionalGeneration"],
        model_type: "audioflamingo3_encoder",
        defaults: SIZES,
        own_fields: &[],
        biases: &[("", BIASES), ("", &["mm.a.mlp.1", "mm.a.mlp.2"])],
        tensors: &[IN_FRONT, ENCODER, FLAMINGO_PROJECTOR],
        settings: &[SETTINGS, FLAMINGO_OWN],
        ..QWEN2_AUDIO.class
    },
    types: &[(CONVOLUTIONS[0], TowerType::F32), (CONVOLUTIONS[1], TowerType::F32)],
    expected: &[GELU, ("projector_bias", Bool(true), Bool(true))],
    wholes: &[Whole {
        text: "qwen2",
        class: "AudioFlamingo3ForConditionalGeneration",
        model_type: "audioflamingo3",
        text_type: None,
        inner: "language_model.model.",
        tokens: &[("audio_token_id", "<sound>")],
        processor: &[PROCESSOR[0], ("processor_class", Text("AudioFlamingo3Processor"))],
    }],
    ..QWEN2_AUDIO
};
