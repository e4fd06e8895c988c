//! Nomic's BERT: positions by rotation, a gate in the feed-forward layer, and few biases.
//!
//! Source: `NomicBertModel` in `conversion/bert.py` of llama.cpp; defaults of the
//! `configuration_hf_nomic_bert.py` that published models have beside them.

use super::bert::{BERT, SETTINGS};
use super::gpt2::THREEFOLD;
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataValue;

const TENSORS: &[TensorRule] = &[
    same("token_embd", "embeddings.word_embeddings", &[Vocab, Hidden]),
    same("token_types", "embeddings.token_type_embeddings", &[Field("type_vocab_size"), Hidden]),
    same("token_embd_norm", "emb_ln", &[Hidden]),
    same("blk.{i}.attn_qkv", "encoder.layers.{i}.attn.Wqkv", &[THREEFOLD, Hidden]),
    same("blk.{i}.attn_output", "encoder.layers.{i}.attn.out_proj", &[Hidden, Hidden]),
    same("blk.{i}.attn_output_norm", "encoder.layers.{i}.norm1", &[Hidden]),
    same("blk.{i}.ffn_up", "encoder.layers.{i}.mlp.fc11", &[Inner, Hidden]),
    same("blk.{i}.ffn_gate", "encoder.layers.{i}.mlp.fc12", &[Inner, Hidden]),
    same("blk.{i}.ffn_down", "encoder.layers.{i}.mlp.fc2", &[Hidden, Inner]),
    same("blk.{i}.layer_output_norm", "encoder.layers.{i}.norm2", &[Hidden]),
];

/// The field of the longest text, and the length of the texts of the training, which GGUF has.
const LENGTHS: &[(u32, u32)] = &[(8192, 2048), (2048, 512)];

pub(super) const NOMIC_BERT: ModelClass = ModelClass {
    gguf: "nomic-bert",
    classes: &["NomicBertModel"],
    model_type: "nomic_bert",
    defaults: &[
        ("layer_norm_epsilon", Float(1e-5)),
        ("type_vocab_size", Int(2)),
        ("max_trained_positions", Int(2048)),
        ("rotary_emb_base", Float(10_000.0)),
    ],
    implied: &[
        ("activation_function", Text("swiglu")),
        ("causal", Bool(false)),
        ("max_trained_positions", Int(2048)),
        ("mlp_fc1_bias", Bool(false)),
        ("mlp_fc2_bias", Bool(false)),
        // With experts it is another class of llama.cpp.
        ("moe_every_n_layers", Absent),
        ("parallel_block", Bool(false)),
        ("prenorm", Bool(false)),
        ("qkv_proj_bias", Bool(false)),
        ("rotary_emb_fraction", Float(1.0)),
        ("rotary_emb_interleaved", Bool(false)),
        ("rotary_emb_scale_base", Absent),
        ("rotary_scaling_factor", Absent),
        ("scale_attn_by_inverse_layer_idx", Bool(false)),
        ("scale_attn_weights", Bool(true)),
        ("use_rms_norm", Bool(false)),
    ],
    own_fields: &[
        ("num_hidden_layers", "n_layer"),
        ("hidden_size", "n_embd"),
        ("num_attention_heads", "n_head"),
        ("intermediate_size", "n_inner"),
        ("layer_norm_eps", "layer_norm_epsilon"),
        ("rope_theta", "rotary_emb_base"),
    ],
    biases: &[("", &["token_embd_norm", "blk.{i}.attn_output_norm", "blk.{i}.layer_output_norm"])],
    tensors: &[TENSORS],
    settings: &[SETTINGS, &[setting(Kind::Own(&TRAINED), "context_length", &["n_positions"])]],
    traits: Traits { sign: Sign::Rest, ..BERT.traits },
    ..BERT
};

/// UINT32: the length of the training that belongs to the length that the field states.
const TRAINED: OwnSetting = required(own(
    |setting, model| {
        let stated = model.fields.need(setting.fields)?;
        let found = LENGTHS.iter().find(|(known, _)| *known == stated);
        let unknown = || {
            setting.wrong(format_args!(
                "it is {stated}, and nomic-bert has one of {LENGTHS:?}, each with that of its training"
            ))
        };
        Ok(Some(GgufMetadataValue::U32(found.ok_or_else(unknown)?.1)))
    },
    |stated, _| {
        let trained = stated.count()?;
        let found = LENGTHS
            .iter()
            .find(|(_, known)| u64::from(*known) == trained);
        Ok(Some(found.ok_or_else(|| stated.other_type())?.0.into()))
    },
));
