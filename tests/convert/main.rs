//! Conversions of files and directories: what they write, where, and how they are interrupted and
//! resumed.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/canonical.rs"]
mod canonical;
#[path = "../common/mod.rs"]
mod common;

mod adapters;
mod asked;
mod cast;
mod changes;
mod diff;
mod directories;
mod empty;
mod gguf;
#[cfg(all(unix, feature = "models"))]
mod links;
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
#[cfg(all(feature = "npz", feature = "gguf"))]
mod unusable_names;
mod unwritten;
mod whole;
mod whole_mlx;
mod written;
