//! Decoding: every scheme against its own library, and the errors for weights that cannot be decoded.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod contradictions;
mod dfloat11;
mod errors;
mod exl2;
mod exl3;
mod experts;
mod features;
mod goldens;
mod libraries;
mod models;
mod names;
#[cfg(feature = "ollama")]
mod ollama;
mod paroquant;
mod producers;
mod slices;
