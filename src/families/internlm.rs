//! InternLM 2, whose queries, keys and values are one projection, group by group of heads.
//!
//! Source: `InternLM2Model` in `conversion/internlm.py` of llama.cpp; defaults of the
//! `configuration_internlm2.py` that published models have beside them.

use super::lfm::INNER;
use crate::Result;
use crate::families::engine::rows::*;

/// Each head of keys has the queries of its group, its keys and its values side by side.
pub(super) const GROUP: Turn =
    Turn::Rows(&[Quotient(&[Queries, Quotient(&[Keys, Head])]), Head, Head]);

/// One of the three parts of the projection `hf`, which take turns.
pub(super) const fn part(
    (hf, turn): (&'static str, Turn),
    (part, then): (usize, Then),
    gguf: &'static str,
    gguf_shape: &'static [Dim],
) -> TensorRule {
    const FUSED: &[Dim] = &[Sum(&[Queries, Keys, Keys]), Hidden];
    TensorRule {
        transform: Transform::Parts(Parts { then, ..Parts::one(turn, part) }),
        gguf_shape: Some(gguf_shape),
        ..same(gguf, hf, FUSED)
    }
}

const FUSED: (&str, Turn) = ("model.layers.{i}.attention.wqkv", GROUP);

const TENSORS: &[TensorRule] = &[
    same("token_embd", "model.tok_embeddings", &[Vocab, Hidden]),
    same("output_norm", "model.norm", &[Hidden]),
    optional("output", "output", &[Vocab, Hidden]),
    same("blk.{i}.attn_norm", "model.layers.{i}.attention_norm", &[Hidden]),
    same("blk.{i}.ffn_norm", "model.layers.{i}.ffn_norm", &[Hidden]),
    part(FUSED, (0, Then::Heads), "blk.{i}.attn_q", &[Queries, Hidden]),
    part(FUSED, (1, Then::Heads), "blk.{i}.attn_k", &[Keys, Hidden]),
    part(FUSED, (2, Then::Nothing), "blk.{i}.attn_v", &[Keys, Hidden]),
    same("blk.{i}.attn_output", "model.layers.{i}.attention.wo", &[Hidden, Queries]),
];

pub(super) const INTERNLM2: ModelClass = ModelClass {
    gguf: "internlm2",
    classes: &["InternLM2ForCausalLM"],
    model_type: "internlm2",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[("hidden_act", Text("silu")), ("bias", Bool(false))],
    tensors: &[TENSORS, INNER],
    traits: Traits { head_dim: HeadDim::Derived, needs_output: true, ..Traits::PLAIN },
    tokenizer: &TOKENIZER,
    mlx: Some(&INTERNLM2_MLX),
    ..ModelClass::PLAIN
};

const INTERNLM2_MLX: MlxClass = MlxClass {
    implied: &[SILU, ("bias", Bool(false))],
    scalings: &["linear", "dynamic"],
    stated_fields: &[COMMON_FIELDS, &["max_position_embeddings", "num_key_value_heads", "bias"]],
    equal_sizes: HEADS_FILL_HIDDEN,
    rope: RopeFields::FlatTyped,
    ..MlxClass::PLAIN
};

const TOKENIZER: TokenizerRules = TokenizerRules {
    between: &[KeyRule::DummyPrefix],
    special: Some(end_of_chat),
    pieces: Some(replace_pieces),
    added: AddedStyle::AsFlagged,
    ..TokenizerRules::PLAIN
};

/// Pieces that C++ would take for something else.
fn replace_pieces(model: &SentencePieceModel, table: &mut TokenTable) {
    for (id, piece) in model.pieces.iter().enumerate() {
        // A text of one zero byte ends before it begins.
        if piece.text == "\0" {
            table.set(id, "🐉".to_owned(), piece.kind, piece.score);
        } else if piece.text.starts_with("[UNUSED") {
            table.set(id, piece.text.clone(), TokenType::Unused, piece.score);
        }
    }
}

/// Chat models end a turn with a token that the files do not name as EOS.
fn end_of_chat(files: &TokenizerFiles<'_>, special: &mut SpecialVocab) -> Result<()> {
    let listed = files.listed_tokens()?;
    let json = files.json.iter().flat_map(|json| &json.added_tokens);
    let mut all = listed.iter().chain(json);
    if let Some(end) = all.rfind(|token| token.content == "<|im_end|>") {
        special.replace_id("eos", end.id);
    }
    Ok(())
}
