//! What reads the tables of families, in every direction.
//!
//! From low to high; what is lower imports nothing of what is higher:
//!
//! - `fields`: `config.json`, and keys of GGUF; `dims`: sizes and shapes; `rope`: rotary positions as
//!   a config states them; `names`, `source`, `values`, `apart`: tensors of the input.
//! - `table`: what tables are made of, with `Model`, which their functions read; `rows`: all of it
//!   that a family imports.
//! - `class`, `rope_of_class`: what a class makes of a config.
//! - `mapping`: names and shapes; `transform`, `fused`: rows that move, both ways; `settings`,
//!   `kinds`, `keyed`: keys of the metadata; `fills`: vectors that GGUF alone has; `general`,
//!   `model_card`: name, licence, tags.
//! - `checks`: what llama.cpp computes otherwise; `graphs`: the tensors and keys that llama.cpp
//!   loads; `biases`, `tied`, `prediction`, `reranker`, `pooling`, `draft`: parts that not every model has.
//! - `to_gguf`, `to_hf`, `mlx`: the directions; `lora`: adapters.
//! - `pre_norms`: which projections read what a norm gives; `pruned`: a model without some of its layers.

pub(super) mod apart;
pub(super) mod biases;
pub(super) mod checks;
pub(super) mod class;
pub(super) mod dims;
pub(super) mod draft;
pub(super) mod fields;
pub(super) mod fills;
pub(super) mod fused;
pub(super) mod general;
pub(super) mod graphs;
pub(super) mod integers;
pub(super) mod keyed;
pub(super) mod kinds;
pub(super) mod lora;
pub(super) mod mapping;
pub(super) mod mlx;
pub(super) mod model_card;
pub(super) mod names;
pub(super) mod pooling;
#[cfg(feature = "lethe")]
pub(super) mod pre_norms;
pub(super) mod prediction;
pub(super) mod pruned;
pub(super) mod request;
pub(super) mod reranker;
pub(super) mod rope;
pub(super) mod rope_of_class;
pub(super) mod rows;
pub(super) mod settings;
pub(super) mod source;
pub(super) mod table;
#[cfg(test)]
mod tests;
pub(super) mod tied;
pub(super) mod to_gguf;
pub(super) mod to_hf;
pub(super) mod transform;
pub(super) mod values;
