//! Parts of a whole GGUF model, and how it is stored: with which options and inputs they go together.

use super::options::{ConvertOptions, ModelScope};
use crate::{AnamnesisError, ConvertTarget, ParsedModel, Result};

/// The first option that only a whole GGUF model has, as the program calls it; `None`: there is none.
pub(super) fn option(options: &ConvertOptions) -> Option<&'static str> {
    let stored = [
        (options.fuse_qkv, "--fuse-qkv"),
        (options.fuse_gate_up_exps, "--fuse-gate-up-exps"),
        (options.fp8_as_q8, "--fp8-as-q8"),
    ];
    let mut stored = stored.into_iter().filter(|(is_asked, _)| *is_asked);
    let of_scope = options.scope.part_option();
    of_scope.or_else(|| stored.next().map(|(_, option)| option))
}

/// Checks that the part of a model that is asked for can be made of `model` with the other options:
/// none is without effect.
///
/// # Errors
/// `Usage` that names the option, and what helps.
pub(super) fn check(model: &ParsedModel, options: &ConvertOptions) -> Result<()> {
    let Some(option) = option(options) else {
        return Ok(());
    };
    let what = if options.fp8_as_q8 && !cfg!(feature = "lethe") {
        "this build lacks the feature `lethe`, which encodes"
    } else if options.fp8_as_q8 && options.encodes() {
        return Err(refused("--fp8-as-q8", "all matrices are encoded already; use --to gguf"));
    } else if options.fp8_as_q8 && !options.adapters.is_empty() {
        return Err(refused("--fp8-as-q8", "merge adapters first, and convert that"));
    } else if options.target != ConvertTarget::Gguf {
        "only a GGUF file is made so; use --to gguf"
    } else if !(options.include.is_empty() && options.exclude.is_empty()) {
        "some tensors of a model are none; leave out --include and --exclude"
    } else if matches!(options.scope, ModelScope::Tensors | ModelScope::ImageTower) {
        "it is for whole models; leave out --tensors-only and --mmproj"
    } else if options.scope == ModelScope::Vocabulary {
        return check_vocabulary(model, options);
    } else if model.is_gguf() {
        "tensors of a GGUF file stay what they are; convert the model's Hugging Face directory"
    } else if options.scope == ModelScope::Prediction && options.encodes() {
        "types of a mixture go by all layers; write the file without a scheme first, and encode that"
    } else {
        return Ok(());
    };
    Err(refused(option, what))
}

/// As [`check`], of a file without tensors.
fn check_vocabulary(model: &ParsedModel, options: &ConvertOptions) -> Result<()> {
    let what = if options.encodes() {
        "there are no tensors to encode; use --to gguf"
    } else if options.fuse_qkv || options.fuse_gate_up_exps || options.fp8_as_q8 {
        "there are no tensors to fuse or to encode; leave out --fuse-qkv, --fuse-gate-up-exps and --fp8-as-q8"
    } else if !options.names.is_empty() || !options.adapters.is_empty() {
        "there are no tensors to rename, to drop or to merge; leave these options out"
    } else if options.max_shard_size.is_some() {
        "a file without tensors is not split; leave out --max-shard-size"
    } else if model.is_gguf() && options.decode {
        "there are no tensors to decode; leave out --out-dtype"
    } else {
        return Ok(());
    };
    Err(refused("--vocab-only", what))
}

/// Fails if an option is set that only a whole GGUF model has: `what` says why it has no effect.
///
/// # Errors
/// `Usage` that names the option.
#[cfg(feature = "models")]
pub(super) fn require_none(options: &ConvertOptions, what: &str) -> Result<()> {
    match option(options) {
        Some(option) => Err(refused(option, what)),
        None => Ok(()),
    }
}

fn refused(option: &str, what: &str) -> AnamnesisError {
    AnamnesisError::usage(format!("{option}: {what}"))
}
