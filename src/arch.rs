//! Whole models between a Hugging Face directory and GGUF: what an architecture's tensors and
//! settings are called on either side, and how their rows lie.
//!
//! An architecture is a row of a table ([`table::ModelClass`]): classes of transformers,
//! llama.cpp's name, tensors with their transforms, and keys with the fields of `config.json` that
//! they come from. Both directions read the same rows.

mod apart;
mod biases;
mod checks;
mod dims;
mod families;
mod fields;
mod fused;
mod general;
mod graphs;
mod keyed;
mod kinds;
mod layer_sizes;
mod lists;
mod mapping;
mod mlx;
mod model_card;
mod names;
mod periods;
mod pooling;
mod prediction;
mod reranker;
mod rope;
mod settings;
mod source;
mod table;
#[cfg(test)]
mod tests;
mod tied;
mod to_gguf;
mod to_hf;
mod to_mmproj;
mod towers;
mod transform;
mod values;

pub(crate) use self::apart::{is_early_expert, stack_early_experts, stack_experts};
pub(crate) use self::graphs::{GraphProblem, is_whole_model, problems};
pub(crate) use self::mlx::{MlxModel, from_mlx, to_mlx, unknown_class};
pub(crate) use self::tied::{is_tied, other_output};
pub(crate) use self::to_gguf::{GgufRequest, to_gguf};
pub(crate) use self::to_hf::to_hf;
pub(crate) use self::to_mmproj::to_mmproj;
