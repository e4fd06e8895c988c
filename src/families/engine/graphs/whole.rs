//! Which GGUF files the tables are about.

use std::borrow::Borrow;

use super::towers::CLIP;
use crate::GgufMetadataValue;
use crate::model::gguf_keys::ARCHITECTURE;

/// Kinds of files (`general.type`) that are parts of models or changes of them.
const OTHER_KINDS: [&str; 2] = ["adapter", "mmproj"];

/// Tensors at the ends of every model, and of every tower.
const ENDS: [&str; 9] = [
    "token_embd.weight",
    "output_norm.weight",
    "output.weight",
    "enc.output_norm.weight",
    // Of drafts.
    "fc.weight",
    "v.patch_embd.weight",
    "v.sam.patch_embd.weight",
    "a.conv1d.1.weight",
    "a.blk.0.attn_out.weight",
];

/// Ends of keys of the number of layers that predict further tokens. A file of them alone has no first
/// layer.
const PREDICTING: &str = ".nextn_predict_layers";

/// Whether a file with the metadata `keys` and tensors of the names `names` is a whole model, or a
/// tower: files with tensors alone, other parts of models and adapters have no keys of an
/// architecture, or no ends.
pub(crate) fn is_whole_model<'a>(
    keys: impl Iterator<Item = (&'a str, impl Borrow<GgufMetadataValue>)>,
    names: impl Iterator<Item = &'a str>,
) -> bool {
    let (mut architecture, mut is_other, mut predicts) = (None, false, false);
    let mut namespaces = Vec::new();
    for (key, value) in keys {
        let text = value.borrow().as_string();
        match key {
            ARCHITECTURE => architecture = text.map(str::to_owned),
            "general.type" => is_other = text.is_some_and(|kind| OTHER_KINDS.contains(&kind)),
            _ if key.ends_with(PREDICTING) => predicts = true,
            _ => namespaces.extend(key.split_once('.').map(|(name, _)| name)),
        }
    }
    is_other &= architecture.as_deref() != Some(CLIP);
    let has_keys = architecture.is_some_and(|name| namespaces.contains(&name.as_str()));
    let (mut has_ends, mut has_first) = (false, false);
    for name in names {
        has_ends |= ENDS.contains(&name);
        has_first |= name.starts_with("blk.0.");
    }
    has_keys && !is_other && has_ends && (has_first || !predicts)
}
