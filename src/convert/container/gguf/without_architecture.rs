//! GGUF files without `general.architecture`, which programs that run models do not load: the
//! tensors of an adapter, or of a model in the layout of its maker, are refused unless the caller asks
//! for tensors alone. All others get a note.

use std::path::PathBuf;

use crate::convert::options::{ConvertOptions, ModelScope};
use crate::error::InTensor;
use crate::model::gguf_keys::ARCHITECTURE;
use crate::model::kind::is_of_adapter;
use crate::{AnamnesisError, ParsedModel, Result};

/// A kind of tensors that a GGUF file with an architecture has to be made of in another way.
struct PartOfModel {
    title: &'static str,
    /// File beside the weights that shows it; it is enough where no tensor has to.
    file: &'static str,
    /// Whether a tensor's name shows it, if the file does not or is not enough.
    is_name: fn(&str) -> bool,
    /// Whether it takes both: the names alone are those of many models.
    takes_both: bool,
    way_out: &'static str,
}

/// The first that fits counts.
static PARTS: &[PartOfModel] = &[
    PartOfModel {
        title: "an adapter as a GGUF file",
        file: "adapter_config.json",
        is_name: is_of_adapter,
        takes_both: false,
        way_out: "with --base BASE, the model that it was trained for, it becomes an adapter of llama.cpp, and `amn merge BASE ADAPTER --to gguf` puts it into that model",
    },
    PartOfModel {
        title: "Mistral's or Meta's own layout as a GGUF file",
        file: "params.json",
        is_name: |name| {
            contains_any(name, &[".attention.wq.", ".attention.wq_a.", "tok_embeddings."])
        },
        takes_both: true,
        way_out: "give the directory of the same model as transformers has it, with config.json, or use llama.cpp's convert_hf_to_gguf.py with --mistral-format",
    },
];

fn contains_any(name: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| name.contains(part))
}

/// The note for a file with the tensors `names` of `model` and no architecture; `None` if the
/// caller has asked for tensors alone.
///
/// # Errors
/// `Unsupported` if they are an adapter, or a model in the layout of its maker.
pub(super) fn note<'n>(
    model: &ParsedModel,
    names: impl Iterator<Item = &'n str> + Clone,
    options: &ConvertOptions,
) -> Result<Option<String>> {
    if options.scope == ModelScope::Tensors {
        return Ok(None);
    }
    // Some tensors are chosen, so they are no model; GGUF files are as they were.
    let is_whole = options.include.is_empty() && options.exclude.is_empty() && !model.is_gguf();
    if is_whole && let Some((part, name)) = part_of(model, names) {
        let what = format!(
            "{name}: no program would load it, for it would have no `{ARCHITECTURE}`; {}; the tensors alone are written with --tensors-only",
            part.way_out
        );
        return Err(AnamnesisError::unsupported(part.title, what));
    }
    Ok(Some(format!(
        "the file has no `{ARCHITECTURE}`: it holds tensors alone, which llama.cpp and ComfyUI-GGUF do not load as a model; --gguf-kv {ARCHITECTURE}=NAME says which it is"
    )))
}

/// What the tensors are, with the tensor or the file that shows it.
// By value, as other iterators are passed.
#[allow(clippy::needless_pass_by_value)]
fn part_of<'n>(
    model: &ParsedModel,
    names: impl Iterator<Item = &'n str> + Clone,
) -> Option<(&'static PartOfModel, String)> {
    let directory = model.model_directory();
    PARTS.iter().find_map(|part| {
        let is_file = |directory: &PathBuf| directory.join(part.file).is_file();
        let has_file = directory.as_ref().is_some_and(is_file);
        if has_file && !part.takes_both {
            return Some((part, format!("`{}`", part.file)));
        }
        if !has_file && part.takes_both {
            return None;
        }
        let name = names.clone().find(|name| (part.is_name)(name))?;
        Some((part, format!("{}", InTensor(&name))))
    })
}
