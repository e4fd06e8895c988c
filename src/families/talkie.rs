//! Talkie: norms without weights, numbers for heads, outputs and the embedding, which each layer
//! sees. Heads turn the other way than in llama.cpp, whose queries and keys have the second half of each
//! head with the other sign.
//!
//! Source: `conversion/talkie.py` of llama.cpp; defaults of the code beside published models.

use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::rows::*;
use crate::families::engine::source::{Rearrangement, SourceRows, SourceTensor};
use crate::families::engine::table::OwnTransform;
use crate::remember::layout::assembled::{Change, RowOrder};

macro_rules! block {
    ($name:literal) => {
        concat!("model.blocks.{i}.", $name)
    };
}

/// The second half of the rows of each head with the other sign.
const MIRRORED: OwnTransform = OwnTransform { to_gguf: mirrored, to_hf: mirrored };

fn mirrored(
    sources: &mut Vec<SourceTensor<'_>>,
    name: &str,
    dims: &Dims,
) -> Result<(Rearrangement, Vec<usize>)> {
    let shape = sources[0].shape.clone();
    let (rows, half) = (shape[0], (dims.need_size(Head)? / 2).max(1));
    let sign = Change::Times([(-1f32).to_bits(), 1f32.to_bits()]);
    let negated = sources[0].changed_rows(name, (0, rows), sign);
    sources.push(negated);
    let piece = |run: usize| SourceRows {
        source: run % 2,
        order: RowOrder::From(run * half),
        rows: half.min(rows - run * half),
        turn: 1,
    };
    let whole = Rearrangement::changed(&shape, Change::None);
    let pieces = (0..rows.div_ceil(half)).map(piece).collect();
    Ok((Rearrangement { pieces, ..whole }, shape))
}

/// A number of each layer.
const fn gain(gguf: &'static str, hf: &'static str) -> TensorRule {
    parameter(gguf, hf, (Transform::None, &[One], &[One]))
}

const TENSORS: &[TensorRule] = &[
    same("token_embd", "model.embed", &[Vocab, Hidden]),
    parameter("output.weight", "lm_head", (Transform::None, &[Vocab, Hidden], &[Vocab, Hidden])),
    parameter("logit_scale", "lm_head_gain.w_g", (Transform::Key(SCALE), &[One], &[One])),
    TensorRule {
        transform: Transform::Own(&MIRRORED),
        ..same("blk.{i}.attn_q", block!("attn.attn_query"), &[Queries, Hidden])
    },
    TensorRule {
        transform: Transform::Own(&MIRRORED),
        ..same("blk.{i}.attn_k", block!("attn.attn_key"), &[Keys, Hidden])
    },
    same("blk.{i}.attn_v", block!("attn.attn_value"), &[Keys, Hidden]),
    same("blk.{i}.attn_output", block!("attn.attn_resid"), &[Hidden, Queries]),
    parameter(
        "blk.{i}.attn_q_norm.weight",
        block!("attn.head_gain.head_g"),
        (Transform::RESHAPED, &[Heads], &[Heads, One]),
    ),
    gain("blk.{i}.attn_output.scale", block!("attn_gain.a_g")),
    gain("blk.{i}.ffn_down.scale", block!("mlp_gain.a_g")),
    gain("blk.{i}.layer_output_scale.weight", block!("embed_skip.a_g")),
    same("blk.{i}.ffn_gate", block!("mlp.mlp_gate"), &[Inner, Hidden]),
    same("blk.{i}.ffn_up", block!("mlp.mlp_linear"), &[Inner, Hidden]),
    same("blk.{i}.ffn_down", block!("mlp.mlp_resid"), &[Hidden, Inner]),
];

/// What logits are multiplied by.
const SCALE: &str = "talkie.logit_scale";

pub(super) const TALKIE: ModelClass = ModelClass {
    gguf: "talkie",
    classes: &["TalkieForCausalLM"],
    model_type: "talkie",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("rope_theta", Float(1_000_000.0)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1.192_092_9e-7)),
    ],
    implied: &[("rms_norm_eps", Float(1.192_092_9e-7))],
    own_fields: &[
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("hidden_size", "n_embd"),
    ],
    tensors: &[TENSORS],
    settings: &[&[]],
    traits: Traits { head_dim: HeadDim::Stated, ..Traits::PLAIN },
    mlx: Some(&TALKIE_MLX),
    ..ModelClass::PLAIN
};

const TALKIE_MLX: MlxClass = MlxClass {
    implied: &[NO_SCALING],
    stated_fields: &[&[
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "head_dim",
        "vocab_size",
        "rope_theta",
    ]],
    output: OutputLayer::Stored,
    ..MlxClass::PLAIN
};
