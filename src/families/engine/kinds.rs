//! Kinds of layers that a config names.

use serde_json::Value;

use super::dims::Need;
use super::fields::{FULL_ATTENTION, Fields, LAYER_KINDS, wrong};
use super::table::{Kind, ModelClass};
use crate::Result;

/// Kinds that classes without any of their own have, too: whether a window is lost is told elsewhere.
const ATTENTION: [&str; 3] = [FULL_ATTENTION, "sliding_attention", "attention"];

/// Fails if `layer_types` has a word that stands for no kind of layers of `class`: llama.cpp would take
/// such a layer for one of the usual ones.
///
/// # Errors
/// `Parse` that names the field.
pub(crate) fn check_kinds(class: &ModelClass, fields: &Fields) -> Result<()> {
    let kinds = fields.0.get(LAYER_KINDS).and_then(Value::as_array);
    let is_known = |kind: &&Value| kind.as_str().is_some_and(|kind| has_kind(class, kind));
    match kinds.into_iter().flatten().find(|kind| !is_known(kind)) {
        None => Ok(()),
        Some(kind) => {
            let what = format!("{kind} is no kind of layers that llama.cpp's {} has", class.gguf);
            Err(wrong(LAYER_KINDS, what))
        }
    }
}

/// Whether a layer of `class` can be of `kind`.
fn has_kind(class: &ModelClass, kind: &str) -> bool {
    let traits = &class.traits;
    let mut rules = class.tensors.iter().flat_map(|rules| rules.iter());
    let mut settings = class.settings();
    ATTENTION.contains(&kind)
        || traits.layer_kinds.is_some_and(|(usual, _)| usual == kind)
        || traits.layer_letters.iter().any(|(name, _)| *name == kind)
        || rules.any(|rule| matches!(rule.need, Need::Kind(name) if name == kind))
        || settings.any(|setting| match setting.kind {
            Kind::Layers(name) => name == kind,
            Kind::KvHeadsBut(without, with) => [without, with].contains(&kind),
            _ => false,
        })
}
