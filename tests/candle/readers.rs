//! candle reads what this crate writes, and decodes what it encodes.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod encoded;
mod outputs;

/// Types of GGUF that candle decodes. It reads Q8_K, but has no decoder for it.
const GGUF_TYPES: [&str; 10] =
    ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"];
