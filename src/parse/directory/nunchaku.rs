//! The older format of Nunchaku, which is refused.

use crate::{AnamnesisError, Result};

/// The two files of a model of Nunchaku before it had one. Neither has metadata, and which layers
/// are modulations depends on the class of the model, which is an argument of
/// `nunchaku.merge_safetensors`.
const NUNCHAKU_PAIR: [&str; 2] =
    ["transformer_blocks.safetensors", "unquantized_layers.safetensors"];

/// # Errors
/// `Unsupported` if the two files of [`NUNCHAKU_PAIR`] are there.
pub(super) fn refuse_nunchaku_pair(names: &[String]) -> Result<()> {
    let is_there = |file: &&str| names.iter().any(|name| name == file);
    if !NUNCHAKU_PAIR.iter().all(is_there) {
        return Ok(());
    }
    let [one, two] = NUNCHAKU_PAIR;
    Err(AnamnesisError::unsupported(
        format!("Nunchaku's older format ({one}, {two})"),
        "it does not name the class of the model; `python -m nunchaku.merge_safetensors` makes one file of it",
    ))
}
