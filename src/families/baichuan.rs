//! Baichuan 1 and 2, whose queries, keys and values are one matrix.
//!
//! Source: `conversion/baichuan.py` of llama.cpp; defaults of the code beside published models.

use super::internlm::part;
use super::{ENDS, MLP, NORMS, VALUES};
use crate::Result;
use crate::families::engine::fields::{CONTEXT, LAYERS, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

const PACKED: (&str, Turn) = ("model.layers.{i}.self_attn.W_pack", Turn::Equal(3));

const ATTENTION: &[TensorRule] = &[
    part(PACKED, (0, Then::Heads), "blk.{i}.attn_q", &[Queries, Hidden]),
    part(PACKED, (1, Then::Heads), "blk.{i}.attn_k", &[Keys, Hidden]),
    part(PACKED, (2, Then::Nothing), "blk.{i}.attn_v", &[Keys, Hidden]),
    VALUES[1],
];

pub(super) const BAICHUAN: ModelClass = ModelClass {
    gguf: "baichuan",
    classes: &["BaichuanForCausalLM", "BaiChuanForCausalLM"],
    model_type: "baichuan",
    defaults: &[("rms_norm_eps", Float(1e-6)), ("rope_theta", Float(10_000.0))],
    implied: &[("hidden_act", Text("silu"))],
    // All heads have keys of their own.
    equal_fields: &[("num_key_value_heads", "num_attention_heads")],
    tensors: &[ENDS, NORMS, ATTENTION, MLP],
    settings: &[&[
        setting(Kind::Text("Meta AI original pth"), "tensor_data_layout", &[]),
        count("context_length", CONTEXT),
        setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits::FIXED,
        needs_output: true,
        laws: &[known_sizes, normed_output],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

/// llama.cpp tells the kind of positions by the number of layers: those of 7B rotate, those of 13B
/// are slopes.
fn known_sizes(model: &Model<'_>) -> Result<Option<String>> {
    match model.dims.layers {
        32 | 40 => Ok(None),
        layers => {
            let what = format!("{} has 32 layers or 40, and not {layers}", model.owner());
            Err(wrong(LAYERS[0], what))
        }
    }
}

/// Tokens of Baichuan 2, of which the code beside it divides rows of the output by their lengths.
fn normed_output(model: &Model<'_>) -> Result<Option<String>> {
    const TOKENS: usize = 125_696;
    let what = "the code beside Baichuan 2 divides rows of the output by their lengths, which llama.cpp does not, as with the file that its own converter writes: divide them before";
    Ok((model.dims.vocab == TOKENS).then(|| what.to_owned()))
}
