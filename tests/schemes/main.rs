//! Decoding: every scheme against its own library, and the errors for weights that cannot be
//! decoded.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod assumptions;
mod contradictions;
mod dfloat11;
mod errors;
mod exl2;
mod exl3;
mod experts;
mod features;
mod fp_quant;
mod goldens;
mod higgs;
#[cfg(feature = "gguf")]
mod ik_llama;
mod libraries;
mod marlin24;
mod methods;
mod mlx;
mod models;
mod modelslim;
mod names;
mod nunchaku;
#[cfg(feature = "ollama")]
mod ollama;
mod paroquant;
#[cfg(feature = "gguf")]
mod prism;
mod producers;
mod promised;
mod rotations;
mod sdnq;
mod sinq;
mod slices;
mod spqr;
mod transforms;
#[cfg(feature = "gguf")]
mod uqff;
