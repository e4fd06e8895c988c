//! Whole models between Hugging Face and GGUF: what the tensors of an output are called and made from, and the metadata or
//! the files that go with them.

use std::path::Path;

use super::encode;
use super::options::{ConvertOptions, ModelScope};
use super::report::Report;
use crate::arch::{GgufRequest, to_gguf, to_hf};
use crate::containers::model::ParsedModel;
use crate::containers::model::gguf::GgufMetadataValue;
use crate::scheme::Resolution;
use crate::source::CompanionFile;
use crate::{AnamnesisError, ConvertTarget, Result};

/// What a whole model has beside its tensors.
#[derive(Default)]
pub(crate) struct WholeModel {
    metadata: Vec<(String, GgufMetadataValue)>,
    files: Vec<(String, String)>,
    companions: Vec<CompanionFile>,
}

impl WholeModel {
    /// Metadata of a GGUF output.
    pub(super) fn metadata(&self) -> &[(String, GgufMetadataValue)] {
        &self.metadata
    }

    /// Name and text of each file that a directory gets.
    pub(super) fn files(&self) -> &[(String, String)] {
        &self.files
    }

    /// The files of the input that all this was made of.
    pub(super) fn companions(&self) -> &[CompanionFile] {
        &self.companions
    }
}

/// Makes the items of `resolution` those of a whole model, if the options ask for one; `None`: they are as they were.
///
/// # Errors
/// The model cannot be one: its class is unknown, or its files contradict each other.
pub(super) fn map<'m>(
    model: &'m ParsedModel,
    resolution: &mut Resolution<'m>,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<Option<WholeModel>> {
    match options.target {
        ConvertTarget::Gguf if !model.is_gguf() => {
            from_directory(model, resolution, options, report)
        }
        ConvertTarget::Safetensors if options.scope == ModelScope::Model => {
            from_gguf(model, resolution, options, report).map(Some)
        }
        _ if options.scope == ModelScope::Model => Err(AnamnesisError::unsupported(
            "a whole model",
            "only a Hugging Face directory and GGUF become each other",
        )),
        _ => Ok(None),
    }
}

/// A Hugging Face model as GGUF.
fn from_directory<'m>(
    model: &'m ParsedModel,
    resolution: &mut Resolution<'m>,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<Option<WholeModel>> {
    // Some tensors of a model are no model.
    let is_whole = options.include.is_empty() && options.exclude.is_empty();
    if options.scope == ModelScope::Tensors || options.scope == ModelScope::Auto && !is_whole {
        return Ok(None);
    }
    let beside = || model.path.as_deref().and_then(Path::parent);
    let directory = model
        .directory
        .as_ref()
        .map(|directory| directory.path.as_path());
    let found = match directory.or_else(beside) {
        Some(directory) => {
            let directory = match directory.as_os_str().is_empty() {
                true => Path::new("."),
                false => directory,
            };
            let request = GgufRequest {
                directory,
                limits: &model.limits,
                to: options.decode.then_some(options.run.to),
                decoded: options.run.to,
                file_type: encode::file_type(options),
                encodes: options.encodes(),
                pre_tokenizer: options.pre_tokenizer.as_deref(),
            };
            to_gguf(&mut resolution.items, &request)?
        }
        None => None,
    };
    match found {
        Some(found) => {
            resolution.items = found.items;
            report.notes.extend(found.notes);
            Ok(Some(WholeModel {
                metadata: found.metadata,
                files: vec![],
                companions: found.companions,
            }))
        }
        None if options.scope == ModelScope::Model => Err(AnamnesisError::unsupported(
            "a whole model",
            "no config.json beside the weights names a class in `architectures`",
        )),
        None => Ok(None),
    }
}

/// A GGUF model as a Hugging Face directory.
fn from_gguf<'m>(
    model: &'m ParsedModel,
    resolution: &mut Resolution<'m>,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<WholeModel> {
    let Some(source) = model.gguf() else {
        let what = "only GGUF becomes a Hugging Face directory, which this is already";
        return Err(AnamnesisError::unsupported("a whole model", what));
    };
    if !(options.include.is_empty() && options.exclude.is_empty()) {
        let what = "some tensors of it are none; leave out --include and --exclude";
        return Err(AnamnesisError::unsupported("a whole model", what));
    }
    let items = std::mem::take(&mut resolution.items);
    let found = to_hf(items, &source.metadata, options.run.to)?;
    resolution.items = found.items;
    report.notes.extend(found.notes);
    Ok(WholeModel {
        files: found.files,
        ..WholeModel::default()
    })
}
