//! Conversions of files and directories: what they write, where, and how they are interrupted and
//! resumed.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod adapters;
mod cast;
mod changes;
mod diff;
mod directories;
mod empty;
mod gguf;
#[cfg(all(feature = "ollama", feature = "check"))]
mod ollama;
mod pipeline;
#[cfg(unix)]
mod planted;
mod read_ahead;
#[cfg(feature = "lethe")]
mod reads;
mod resume;
mod sharded;
mod stream;
mod tensors;
mod whole;
mod whole_mlx;
