//! Adapters between PEFT, or mlx-lm, and llama.cpp, and LoRA of image models under other names, those
//! of PEFT as well.

use std::path::Path;

use super::{WholeModel, gguf_request, take_gguf};
use crate::config::Texts;
use crate::convert::adapters::{
    LoraNames, RenamedLora, gguf_alpha, is_adapter, lora_pairs, renamed_lora,
};
use crate::convert::options::ConvertOptions;
use crate::convert::report::Report;
use crate::families::{LoraRequest, lora_to_gguf, lora_to_hf};
use crate::model::ParsedModel;
use crate::remember::Resolution;
use crate::{AnamnesisError, ConvertTarget, Result};

/// An adapter of the model in the directory `base`: one of PEFT as GGUF, one of GGUF as PEFT has it.
pub(super) fn convert<'m>(
    base: &Path,
    model: &'m ParsedModel,
    resolution: &mut Resolution<'m>,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<WholeModel> {
    let is_all = options.include.is_empty() && options.exclude.is_empty() && !options.encodes();
    match (model.gguf(), options.target) {
        _ if options.kohya_names && !is_renamed(model, options) => Err(no_other_names()),
        (None, ConvertTarget::Gguf) if is_all => {
            from_peft(base, model, resolution, options, report)
        }
        (Some(source), ConvertTarget::Safetensors) if is_all && options.is_directory(model) => {
            let items = std::mem::take(&mut resolution.items);
            let base = gguf_request(base, model, options);
            let alpha = gguf_alpha(model)?;
            let found = lora_to_hf(items, (&source.metadata, alpha), &base, options.run.to)?;
            resolution.items = found.items;
            report.notes.extend(found.notes);
            Ok(WholeModel { files: found.files, ..WholeModel::default() })
        }
        (None, ConvertTarget::Safetensors) if is_all && options.max_shard_size.is_none() => {
            let names = match (options.is_directory(model), options.kohya_names) {
                (true, _) => LoraNames::Peft,
                (false, true) => LoraNames::Kohya,
                (false, false) => LoraNames::Pipeline,
            };
            let items = std::mem::take(&mut resolution.items);
            let to = options.decode.then_some(options.run.to);
            let RenamedLora { items, files, notes } =
                renamed_lora((base, names), model, items, to)?;
            resolution.items = items;
            report.notes.extend(notes);
            Ok(WholeModel { files, ..WholeModel::default() })
        }
        _ => {
            let what = "a base is that of an adapter, all of which becomes a GGUF file of floats or one directory or file of safetensors without --max-shard-size, or of a draft for speculative decoding, which becomes a GGUF file";
            Err(AnamnesisError::usage(what))
        }
    }
}

/// Whether the output is a LoRA of an image model under other names: one file.
fn is_renamed(model: &ParsedModel, options: &ConvertOptions) -> bool {
    let is_safetensors = options.target == ConvertTarget::Safetensors && !model.is_gguf();
    is_safetensors && !options.is_directory(model)
}

/// The error that an output has no names of kohya's scripts.
pub(super) fn no_other_names() -> AnamnesisError {
    let what = "--kohya-names (`kohya_names`): an adapter of an image or video model in one file has them, beside its --base (-o NAME.safetensors)";
    AnamnesisError::usage(what)
}

/// An adapter of PEFT of the model in the directory `base` as GGUF.
fn from_peft<'m>(
    base: &Path,
    model: &'m ParsedModel,
    resolution: &mut Resolution<'m>,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<WholeModel> {
    let directory = model.model_directory();
    let directory = directory.filter(|directory| is_adapter(directory));
    let Some(directory) = directory else {
        let what = "a base is that of an adapter, and there is no adapter_config.json";
        return Err(AnamnesisError::usage(what));
    };
    let items = std::mem::take(&mut resolution.items);
    let texts = Texts::new(&directory, &model.limits);
    let (pairs, alpha) = lora_pairs(&texts, model, items)?;
    let request = LoraRequest {
        base: gguf_request(base, model, options),
        own: gguf_request(&directory, model, options),
        texts: &texts,
        alpha,
    };
    let found = lora_to_gguf(&pairs, &request)?;
    Ok(take_gguf(found, resolution, report))
}
