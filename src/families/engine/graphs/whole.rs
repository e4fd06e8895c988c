//! Which GGUF files the tables are about.

use std::borrow::Borrow;

use super::towers::CLIP;
use crate::GgufMetadataValue;
use crate::model::gguf_keys::ARCHITECTURE;

/// Kinds of files (`general.type`) that are parts of models or changes of them.
const OTHER_KINDS: [&str; 2] = ["adapter", "mmproj"];

/// Tensors at the ends of every model, and of every tower.
const ENDS: [&str; 7] = [
    "token_embd.weight",
    "output_norm.weight",
    // Of drafts.
    "fc.weight",
    "v.patch_embd.weight",
    "v.sam.patch_embd.weight",
    "a.conv1d.1.weight",
    "a.blk.0.attn_out.weight",
];

/// Whether a file with the metadata `keys` and tensors of the names `names` is a whole model, or a
/// tower: files with tensors alone, other parts of models and adapters have no keys of an
/// architecture, or no ends.
pub(crate) fn is_whole_model<'a>(
    keys: impl Iterator<Item = (&'a str, impl Borrow<GgufMetadataValue>)>,
    mut names: impl Iterator<Item = &'a str>,
) -> bool {
    let (mut architecture, mut is_other) = (None, false);
    let mut namespaces = Vec::new();
    for (key, value) in keys {
        let text = value.borrow().as_string();
        match key {
            ARCHITECTURE => architecture = text.map(str::to_owned),
            "general.type" => is_other = text.is_some_and(|kind| OTHER_KINDS.contains(&kind)),
            _ => namespaces.extend(key.split_once('.').map(|(name, _)| name)),
        }
    }
    is_other &= architecture.as_deref() != Some(CLIP);
    let has_keys = architecture.is_some_and(|name| namespaces.contains(&name.as_str()));
    has_keys && !is_other && names.any(|name| ENDS.contains(&name))
}
