//! Encoding: `forget` with every scheme, of files and of directories.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod activation_scales;
mod budget;
mod dfloat11;
mod diffusion;
mod directories;
mod importance;
mod input_scales;
mod mixed;
mod models;
mod module_forms;
mod requested;
mod round_trip;
mod schemes;
mod searches;
mod transcode;
mod trips;
