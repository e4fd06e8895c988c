//! Files that are malformed, contradictory or hostile: each gives the right kind of error, or is
//! read for what it is. Nothing may panic, take much time, or leave a file behind. The test program
//! `heap` runs the same [`trials`] and limits the memory that each of them takes.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

#[cfg(all(feature = "npz", feature = "pth", feature = "lethe"))]
mod corpus;
#[cfg(all(feature = "npz", feature = "pth", feature = "lethe"))]
mod differences;
mod edits;
#[cfg(all(feature = "npz", feature = "pth", feature = "lethe"))]
#[path = "../fuzz/src/bodies/mod.rs"]
mod fuzz;
#[cfg(feature = "gguf")]
mod gguf;
#[cfg(feature = "gguf")]
mod metadata_edits;
#[cfg(all(feature = "npz", feature = "pth"))]
mod monitor;
mod mutations;
#[cfg(all(feature = "npz", feature = "pth", feature = "ollama"))]
mod ollama;
#[cfg(all(feature = "npz", feature = "pth"))]
mod trials;
