//! T5, FLAN-T5, mT5 and UMT5: an encoder and a decoder, whose distances have a bias in place of
//! positions; and their encoders alone, which diffusion models have. T5 1.0 has no gates, and ties
//! the output to the embedding.
//!
//! Source: `conversion/t5.py`, `src/models/t5.cpp` and `src/models/t5encoder.cpp` of llama.cpp;
//! defaults of transformers 4.57.6.

use crate::Result;
use crate::families::engine::fields::Fields;
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

const BUCKETS: Dim = Field("relative_attention_num_buckets");

const ENCODER_ENDS: &[TensorRule] = &[
    same("token_embd", "shared", &[Vocab, Hidden]),
    same("enc.output_norm", "encoder.final_layer_norm", &[Hidden]),
];

const DECODER_ENDS: &[TensorRule] = &[
    same("dec.output_norm", "decoder.final_layer_norm", &[Hidden]),
    same("output", "lm_head", &[Vocab, Hidden]),
];

const ENCODER: &[TensorRule] = &[
    same("enc.blk.{i}.attn_norm", "encoder.block.{i}.layer.0.layer_norm", &[Hidden]),
    same("enc.blk.{i}.attn_q", "encoder.block.{i}.layer.0.SelfAttention.q", &[Queries, Hidden]),
    same("enc.blk.{i}.attn_k", "encoder.block.{i}.layer.0.SelfAttention.k", &[Queries, Hidden]),
    same("enc.blk.{i}.attn_v", "encoder.block.{i}.layer.0.SelfAttention.v", &[Queries, Hidden]),
    same("enc.blk.{i}.attn_o", "encoder.block.{i}.layer.0.SelfAttention.o", &[Hidden, Queries]),
    same("enc.blk.{i}.ffn_norm", "encoder.block.{i}.layer.1.layer_norm", &[Hidden]),
    same("enc.blk.{i}.ffn_down", "encoder.block.{i}.layer.1.DenseReluDense.wo", &[Hidden, Inner]),
];

const DECODER: &[TensorRule] = &[
    same("dec.blk.{i}.attn_norm", "decoder.block.{i}.layer.0.layer_norm", &[Hidden]),
    same("dec.blk.{i}.attn_q", "decoder.block.{i}.layer.0.SelfAttention.q", &[Queries, Hidden]),
    same("dec.blk.{i}.attn_k", "decoder.block.{i}.layer.0.SelfAttention.k", &[Queries, Hidden]),
    same("dec.blk.{i}.attn_v", "decoder.block.{i}.layer.0.SelfAttention.v", &[Queries, Hidden]),
    same("dec.blk.{i}.attn_o", "decoder.block.{i}.layer.0.SelfAttention.o", &[Hidden, Queries]),
    same("dec.blk.{i}.cross_attn_norm", "decoder.block.{i}.layer.1.layer_norm", &[Hidden]),
    same(
        "dec.blk.{i}.cross_attn_q",
        "decoder.block.{i}.layer.1.EncDecAttention.q",
        &[Queries, Hidden],
    ),
    same(
        "dec.blk.{i}.cross_attn_k",
        "decoder.block.{i}.layer.1.EncDecAttention.k",
        &[Queries, Hidden],
    ),
    same(
        "dec.blk.{i}.cross_attn_v",
        "decoder.block.{i}.layer.1.EncDecAttention.v",
        &[Queries, Hidden],
    ),
    same(
        "dec.blk.{i}.cross_attn_o",
        "decoder.block.{i}.layer.1.EncDecAttention.o",
        &[Hidden, Queries],
    ),
    same("dec.blk.{i}.ffn_norm", "decoder.block.{i}.layer.2.layer_norm", &[Hidden]),
    same("dec.blk.{i}.ffn_down", "decoder.block.{i}.layer.2.DenseReluDense.wo", &[Hidden, Inner]),
];

/// Projections into the feed-forward layers, and their gates.
const ENCODER_GATED: &[TensorRule] = &[
    same("enc.blk.{i}.ffn_gate", "encoder.block.{i}.layer.1.DenseReluDense.wi_0", &[Inner, Hidden]),
    same("enc.blk.{i}.ffn_up", "encoder.block.{i}.layer.1.DenseReluDense.wi_1", &[Inner, Hidden]),
];

const DECODER_GATED: &[TensorRule] = &[
    same("dec.blk.{i}.ffn_gate", "decoder.block.{i}.layer.2.DenseReluDense.wi_0", &[Inner, Hidden]),
    same("dec.blk.{i}.ffn_up", "decoder.block.{i}.layer.2.DenseReluDense.wi_1", &[Inner, Hidden]),
];

/// Projections into feed-forward layers without gates.
const ENCODER_UNGATED: &[TensorRule] =
    &[same("enc.blk.{i}.ffn_up", "encoder.block.{i}.layer.1.DenseReluDense.wi", &[Inner, Hidden])];

const DECODER_UNGATED: &[TensorRule] =
    &[same("dec.blk.{i}.ffn_up", "decoder.block.{i}.layer.2.DenseReluDense.wi", &[Inner, Hidden])];

/// The bias of distances, which the first layer has for all.
const ENCODER_BIAS: &[TensorRule] = &[only(
    Need::First,
    "enc.blk.{i}.attn_rel_b",
    "encoder.block.{i}.layer.0.SelfAttention.relative_attention_bias",
    &[BUCKETS, Heads],
)];

const DECODER_BIAS: &[TensorRule] = &[only(
    Need::First,
    "dec.blk.{i}.attn_rel_b",
    "decoder.block.{i}.layer.0.SelfAttention.relative_attention_bias",
    &[BUCKETS, Heads],
)];

/// As [`ENCODER_BIAS`], which every layer of UMT5 has.
const ENCODER_BIASES: &[TensorRule] = &[in_layers(Need::All, ENCODER_BIAS[0])];

/// As [`DECODER_BIAS`], which every layer of UMT5 has.
const DECODER_BIASES: &[TensorRule] = &[in_layers(Need::All, DECODER_BIAS[0])];

const SETTINGS: &[Setting] = &[
    count("attention.key_length", &["d_kv"]),
    count("attention.value_length", &["d_kv"]),
    number("attention.layer_norm_epsilon", &["layer_norm_epsilon"]),
    number("attention.layer_norm_rms_epsilon", &["layer_norm_epsilon"]),
    setting(
        Kind::Required,
        "attention.relative_buckets_count",
        &["relative_attention_num_buckets"],
    ),
];

const DECODER_SETTINGS: &[Setting] = &[
    setting(Kind::Required, "decoder_block_count", &["num_decoder_layers"]),
    setting(Kind::Required, "decoder_start_token_id", &["decoder_start_token_id"]),
];

pub(super) const T5: ModelClass = ModelClass {
    gguf: "t5",
    // The third is the name of the first versions of transformers.
    classes: &["T5ForConditionalGeneration", "MT5ForConditionalGeneration", "T5WithLMHeadModel"],
    model_type: "t5",
    defaults: &[
        ("n_positions", Int(512)),
        ("d_kv", Int(64)),
        ("layer_norm_epsilon", Float(1e-6)),
        ("relative_attention_num_buckets", Int(32)),
        ("feed_forward_proj", Text("relu")),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("feed_forward_proj", Text("gated-gelu")),
        ("relative_attention_max_distance", Int(128)),
        ("is_encoder_decoder", Bool(true)),
        ("tie_word_embeddings", Bool(false)),
    ],
    own_fields: &[
        ("num_hidden_layers", "num_layers"),
        ("hidden_size", "d_model"),
        ("num_attention_heads", "num_heads"),
        ("intermediate_size", "d_ff"),
        ("max_position_embeddings", "n_positions"),
    ],
    // Both have as many layers, and layers of the tables are those of both.
    equal_fields: &[("num_decoder_layers", "num_layers")],
    tensors: &[
        ENCODER_ENDS,
        DECODER_ENDS,
        ENCODER,
        ENCODER_GATED,
        ENCODER_BIAS,
        DECODER,
        DECODER_GATED,
        DECODER_BIAS,
    ],
    settings: &[DECODER_SETTINGS, SETTINGS],
    traits: Traits {
        config_value: GATED,
        sign: HAS_GATES,
        also_implied: WITH_GATES,
        completes: &[own_output],
        ..TRAITS
    },
    ..ModelClass::PLAIN
};

/// What `feed_forward_proj` says a second time, of layers with gates, and whether transformers
/// divides what goes into the output.
const WITH_GATES: &[(&str, Default)] =
    &[("dense_act_fn", Text("gelu_new")), ("is_gated_act", Bool(true)), (DIVIDES, Bool(false))];

/// As [`WITH_GATES`], of layers without gates.
const WITHOUT_GATES: &[(&str, Default)] =
    &[("dense_act_fn", Text("relu")), ("is_gated_act", Bool(false))];

/// What configs say of gates.
const GATED: Option<(&str, Default)> = Some(("feed_forward_proj", Text("gated-gelu")));

const HAS_GATES: Sign = Sign::Tensor("enc.blk.0.ffn_gate.weight");

pub(super) const T5_UNGATED: ModelClass = ModelClass {
    implied: &[
        ("feed_forward_proj", Text("relu")),
        ("relative_attention_max_distance", Int(128)),
        ("is_encoder_decoder", Bool(true)),
        ("tie_word_embeddings", Bool(true)),
    ],
    tensors: &[
        ENCODER_ENDS,
        TIED_DECODER_ENDS,
        ENCODER,
        ENCODER_UNGATED,
        ENCODER_BIAS,
        DECODER,
        DECODER_UNGATED,
        DECODER_BIAS,
    ],
    traits: Traits {
        ties_output: true,
        laws: &[undivided_output],
        also_implied: WITHOUT_GATES,
        ..TRAITS
    },
    ..T5
};

const TIED_DECODER_ENDS: &[TensorRule] = &[DECODER_ENDS[0]];

const TRAITS: Traits = Traits {
    rope: RopeTraits::FIXED,
    // Older checkpoints have the shared embedding three times.
    left_out: &["encoder.embed_tokens.", "decoder.embed_tokens."],
    ..Traits::PLAIN
};

pub(super) const UMT5: ModelClass = ModelClass {
    classes: &["UMT5ForConditionalGeneration", "UMT5Model"],
    model_type: "umt5",
    defaults: UMT5_DEFAULTS,
    tensors: &[
        ENCODER_ENDS,
        DECODER_ENDS,
        ENCODER,
        ENCODER_GATED,
        ENCODER_BIASES,
        DECODER,
        DECODER_GATED,
        DECODER_BIASES,
    ],
    traits: Traits {
        sign: EVERY_LAYER,
        also_implied: WITH_GATES,
        completes: &[own_output],
        ..TRAITS
    },
    ..T5
};

const UMT5_DEFAULTS: &[(&str, Default)] = &[
    ("n_positions", Int(512)),
    ("d_kv", Int(64)),
    ("layer_norm_epsilon", Float(1e-6)),
    ("relative_attention_num_buckets", Int(32)),
    ("feed_forward_proj", Text("gated-gelu")),
    ("tie_word_embeddings", Bool(true)),
];

/// Files of UMT5 have a bias in the second layer, too.
const EVERY_LAYER: Sign = Sign::Tensor("enc.blk.1.attn_rel_b.weight");

pub(super) const T5_ENCODER: ModelClass = ModelClass {
    gguf: "t5encoder",
    classes: &["T5EncoderModel", "MT5EncoderModel"],
    implied: &[
        ("feed_forward_proj", Text("gated-gelu")),
        ("relative_attention_max_distance", Int(128)),
    ],
    equal_fields: &[],
    tensors: &[ENCODER_ENDS, ENCODER, ENCODER_GATED, ENCODER_BIAS],
    settings: &[SETTINGS],
    traits: Traits {
        ties_output: true,
        config_value: GATED,
        sign: HAS_GATES,
        also_implied: &[WITH_GATES[0], WITH_GATES[1]],
        ..TRAITS
    },
    ..T5
};

pub(super) const T5_UNGATED_ENCODER: ModelClass = ModelClass {
    implied: &[("feed_forward_proj", Text("relu")), ("relative_attention_max_distance", Int(128))],
    tensors: &[ENCODER_ENDS, ENCODER, ENCODER_UNGATED, ENCODER_BIAS],
    traits: Traits { ties_output: true, also_implied: WITHOUT_GATES, ..TRAITS },
    ..T5_ENCODER
};

pub(super) const UMT5_ENCODER: ModelClass = ModelClass {
    classes: &["UMT5EncoderModel"],
    model_type: "umt5",
    defaults: UMT5_DEFAULTS,
    tensors: &[ENCODER_ENDS, ENCODER, ENCODER_GATED, ENCODER_BIASES],
    traits: Traits {
        ties_output: true,
        sign: EVERY_LAYER,
        also_implied: &[WITH_GATES[0], WITH_GATES[1]],
        ..TRAITS
    },
    ..T5_ENCODER
};

/// Field of whether the state in front of the output is divided, which is that of a tied output.
const DIVIDES: &str = "scale_decoder_outputs";

/// transformers 5 says of every T5 that its output is the embedding, and takes another one that is
/// stored all the same. Whether it divides tells what was said before.
fn own_output(fields: &mut Fields) -> Result<()> {
    if fields.boolean(DIVIDES)? == Some(false) {
        fields
            .0
            .insert("tie_word_embeddings".to_owned(), false.into());
    }
    Ok(())
}

/// llama.cpp does not divide the state in front of the tied output.
fn undivided_output(model: &Model<'_>) -> Result<Option<String>> {
    let divides = model.fields.boolean(DIVIDES)? != Some(false);
    let what = "transformers divides by the root of `d_model` what goes into the tied output, and llama.cpp does not: its logits are so many times larger, in the same order";
    Ok(divides.then(|| what.to_owned()))
}
