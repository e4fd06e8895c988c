//! The API that other crates compile against: every name with its path, signature, fields and
//! derives. Without an item, this program does not compile. The other tests check what the items
//! do.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(clippy::type_complexity)] // signatures are written in full

#[path = "../common/mod.rs"]
mod common;
#[cfg(any(feature = "gguf", feature = "npz", feature = "pth"))]
mod containers;
mod encoders;
mod models;
/// The program, compiled as a client of the library is: it names what the library exports, and the
/// hooks.
#[cfg(feature = "cli")]
#[allow(dead_code)]
#[path = "../../src"]
mod program {
    mod cli;
}
mod safetensors;
mod single_tensors;
mod structure;
#[cfg(all(feature = "gguf", feature = "npz", feature = "pth"))]
mod summaries;

use std::fmt::{Debug, Display};
use std::hash::Hash;

/// What `crate::` is to the program.
#[cfg(feature = "cli")]
#[allow(unused_imports)]
use anamnesis::*;

const SAFETENSORS: &str = "tests/data/demo/model-fp8.safetensors";

/// Compiles if `T` may move to another thread.
fn travels<T: Send + 'static>() {}

fn is_shared<T: Send + Sync + 'static>() {}

fn is_value<T: Debug + Clone + PartialEq>() {}

fn is_copy<T: Debug + Copy + Eq + Hash + Display>() {}
