//! The API that other crates compile against: every name with its path, signature, fields and derives. What is missing
//! here does not compile, so that nothing is lost by accident. What items do is tested where they are.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(clippy::type_complexity)] // signatures are spelt out

#[path = "../common/mod.rs"]
mod common;
mod containers;
mod encoders;
mod models;
mod safetensors;
mod single_tensors;

use std::fmt::{Debug, Display};
use std::hash::Hash;

const SAFETENSORS: &str = "tests/data/demo/model-fp8.safetensors";

/// What results have to be, to go from one thread to another.
fn travels<T: Send + 'static>() {}

fn is_shared<T: Send + Sync + 'static>() {}

fn is_value<T: Debug + Clone + PartialEq>() {}

fn is_copy<T: Debug + Copy + Eq + Hash + Display>() {}
