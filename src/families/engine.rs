//! What reads the tables of families, in every direction.
//!
//! - `table`: what tables are made of, and `rows`: all of it that a family imports; `model`: what
//!   a config says; `dims`: sizes; `names`, `mapping`: names and shapes; `transform`, `fused`: rows
//!   that move, both ways; `source`, `values`, `apart`: tensors of the input.
//! - `fields`, `settings`, `rope`, `kinds`, `keyed`: fields
//!   of `config.json` and keys of the metadata.
//! - `checks`: what llama.cpp computes otherwise; `graphs`: the tensors and keys that llama.cpp
//!   loads; `biases`, `tied`, `prediction`, `reranker`, `pooling`: parts that not every model
//!   has.
//! - `general`, `model_card`: name, licence, tags.
//! - `to_gguf`, `to_mmproj`, `to_hf`, `mlx`: the four directions.

pub(super) mod apart;
pub(super) mod biases;
pub(super) mod checks;
pub(super) mod dims;
pub(super) mod fields;
pub(super) mod fused;
pub(super) mod general;
pub(super) mod graphs;
pub(super) mod keyed;
pub(super) mod kinds;
pub(super) mod mapping;
pub(super) mod mlx;
pub(super) mod model;
pub(super) mod model_card;
pub(super) mod names;
pub(super) mod pooling;
pub(super) mod prediction;
pub(super) mod request;
pub(super) mod reranker;
pub(super) mod rope;
pub(super) mod rows;
pub(super) mod settings;
pub(super) mod source;
pub(super) mod table;
#[cfg(test)]
mod tests;
pub(super) mod tied;
pub(super) mod to_gguf;
pub(super) mod to_hf;
pub(super) mod to_mmproj;
pub(super) mod transform;
pub(super) mod values;
