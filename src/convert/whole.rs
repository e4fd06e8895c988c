//! Whole models of Hugging Face, GGUF and MLX: what the tensors of an output are called and made
//! from, and the metadata or the files that go with them.

mod adapter;
mod pruned;

use std::path::Path;

use serde_json::Value;

pub(super) use self::pruned::Pruned;
use super::options::{ConvertOptions, ModelScope};
use super::parts;
use super::report::Report;
use crate::config::Texts;
use crate::families::{
    FusedTensors, GgufModel, GgufRequest, MlxModel, ModelPart, from_mlx, is_draft_class,
    is_early_expert, join_tower, other_output, stack_early_experts, stack_experts, to_gguf, to_hf,
    to_mlx, to_mmproj, unknown_class,
};
use crate::model::ParsedModel;
use crate::model::gguf::GgufMetadataValue;
use crate::remember::{QuantScheme, Resolution, ResolvedItem};
use crate::sort::sort_by_key;
use crate::source::CompanionFile;
use crate::{AnamnesisError, ConvertTarget, Result, TargetDtype};

/// What a whole model has beside its tensors.
#[derive(Default)]
pub(crate) struct WholeModel {
    metadata: Vec<(String, GgufMetadataValue)>,
    files: Vec<(String, String)>,
    companions: Vec<CompanionFile>,
    is_mlx: bool,
}

impl WholeModel {
    /// What the metadata of safetensors calls the framework.
    pub(super) fn format(&self) -> &'static str {
        if self.is_mlx { "mlx" } else { "pt" }
    }

    /// The architecture that a GGUF output has.
    pub(super) fn architecture(&self) -> Option<&str> {
        let mut keys = self.metadata.iter();
        let (_, value) = keys.find(|(key, _)| key == "general.architecture")?;
        value.as_string()
    }

    /// The text of the config that a directory gets.
    pub(super) fn config(&self) -> Option<&str> {
        let mut files = self.files.iter();
        let (_, text) = files.find(|(name, _)| name == "config.json")?;
        Some(text)
    }

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

/// Makes the items of `resolution` those of a whole model, if the options ask for one; `None`: they
/// are as they were.
///
/// # Errors
/// The model cannot be one: its class is unknown, or its files contradict each other.
pub(super) fn map<'m>(
    model: &'m ParsedModel,
    resolution: &mut Resolution<'m>,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<Option<WholeModel>> {
    if let Some(base) = options.base.as_ref().filter(|_| !is_draft(model, options)) {
        parts::require_none(options, "adapters have no such parts; leave the option out")?;
        return adapter::convert(base, model, resolution, options, report).map(Some);
    }
    if options.kohya_names {
        return Err(adapter::no_other_names());
    }
    check_output(model, resolution, options, report)?;
    // Quantized checkpoints in layouts of transformers keep experts apart, as they were.
    let encodes = options.target == ConvertTarget::Safetensors && options.encodes();
    if !model.is_gguf()
        && (!encodes || options.makes_mlx())
        && let Some((config, _)) = config_of(model, options)?
    {
        stack_experts(&mut resolution.items, &config)?;
    }
    stack_copies(model, resolution, options)?;
    match options.target {
        ConvertTarget::Gguf if !model.is_gguf() => {
            // Towers of mlx-lm have the names of transformers already.
            if options.scope == ModelScope::ImageTower {
                return from_directory(model, resolution, options, report);
            }
            renamed(model, resolution, options, report)?;
            from_directory(model, resolution, options, report)
        }
        ConvertTarget::Safetensors if model.is_gguf() && options.scope == ModelScope::Model => {
            let whole = from_gguf(model, resolution, options, report)?;
            match options.makes_mlx() {
                true => gguf_to_mlx(whole, resolution, options, report).map(Some),
                false => Ok(Some(whole)),
            }
        }
        // One file has tensors alone.
        ConvertTarget::Safetensors if options.is_directory(model) => {
            let renamed = renamed(model, resolution, options, report)?;
            match options.makes_mlx() {
                true => directory_to_mlx(model, renamed, resolution, options, report),
                false => required(renamed, options),
            }
        }
        _ => required(None, options),
    }
}

/// Whether the model is a draft for speculative decoding, which becomes GGUF: its base is the target.
fn is_draft(model: &ParsedModel, options: &ConvertOptions) -> bool {
    let directory = model.model_directory().filter(|_| !model.is_gguf());
    let config = directory.map(|at| Texts::new(&at, &model.limits).json("config.json"));
    let makes_gguf = options.target == ConvertTarget::Gguf;
    makes_gguf && matches!(config, Some(Ok(Some(config))) if is_draft_class(&config))
}

/// The items of the whole model that a conversion by `options` makes of `model`.
///
/// # Errors
/// The first tensor that cannot be decoded; those of [`map`].
pub(crate) fn items_of_whole<'m>(
    model: &'m ParsedModel,
    options: &ConvertOptions,
) -> Result<Vec<ResolvedItem<'m>>> {
    let (mut resolution, _) = model.resolve().of_asked(|_| true)?;
    map(model, &mut resolution, options, &mut Report::new(options.run.to))?;
    Ok(resolution.items)
}

/// Whether the options ask for all tensors, as those of a model.
fn is_whole(options: &ConvertOptions) -> bool {
    let is_all = options.include.is_empty() && options.exclude.is_empty();
    is_all && options.scope != ModelScope::Tensors
}

/// Whether a GGUF file whose blocks are copied has experts one by one, as early versions of llama.cpp
/// have them, and its copy gets them as later ones load them.
pub(super) fn stacks_copies(model: &ParsedModel, options: &ConvertOptions) -> bool {
    let is_asked = options.target == ConvertTarget::Gguf && model.is_gguf() && is_whole(options);
    is_asked && model.tensors().any(|t| is_early_expert(t.name()))
}

/// Stacks the experts of a GGUF file of which [`stacks_copies`] is true.
///
/// # Errors
/// An expert is missing, or its shape is not that of the others.
pub(super) fn stack_copies<'m>(
    model: &'m ParsedModel,
    resolution: &mut Resolution<'m>,
    options: &ConvertOptions,
) -> Result<()> {
    match model.gguf() {
        Some(source) if stacks_copies(model, options) => {
            stack_early_experts(&mut resolution.items, &source.metadata)?;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Compares an output that is stored with the embedding that it is by the config: a directory that
/// is copied keeps both, and a note says so.
///
/// # Errors
/// `Parse` if they differ, and the output of the conversion has one of the two; those of reading.
fn check_output(
    model: &ParsedModel,
    resolution: &Resolution<'_>,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<()> {
    let keeps_files = options.target == ConvertTarget::Safetensors && options.is_directory(model);
    let is_whole = options.include.is_empty() && options.exclude.is_empty();
    let is_other = [ModelScope::Tensors, ModelScope::ImageTower, ModelScope::Vocabulary];
    let is_model = !is_other.contains(&options.scope);
    let makes_gguf = options.target == ConvertTarget::Gguf;
    if model.is_gguf() || !is_whole || !is_model || !(keeps_files || makes_gguf) {
        return Ok(());
    }
    let Some(directory) = model.model_directory() else {
        return Ok(());
    };
    // What is wrong with the config itself is found elsewhere.
    let config = Texts::new(&directory, &model.limits).json("config.json");
    let Ok(Some(config)) = config else {
        return Ok(());
    };
    let Some(what) = other_output(&resolution.items, &config)? else {
        return Ok(());
    };
    if keeps_files && !options.makes_mlx() {
        report.notes.push(format!("{what}; both are written"));
        return Ok(());
    }
    Err(AnamnesisError::parse(format!(
        "{what}; set `tie_word_embeddings` to false to keep it, or leave it out with --drop"
    )))
}

/// Fails if a whole model is asked for, and there is none.
fn required(whole: Option<WholeModel>, options: &ConvertOptions) -> Result<Option<WholeModel>> {
    match whole {
        None if options.scope == ModelScope::Model => Err(AnamnesisError::unsupported(
            "a whole model",
            "only Hugging Face directories, GGUF and MLX become each other",
        )),
        whole => Ok(whole),
    }
}

/// The config of a directory that is converted as a whole model, with the files that were read for
/// it; `None` if only tensors are asked for, or there is no config.
fn config_of(
    model: &ParsedModel,
    options: &ConvertOptions,
) -> Result<Option<(Value, Vec<CompanionFile>)>> {
    // Some tensors of a model are no model.
    let is_whole = options.include.is_empty() && options.exclude.is_empty();
    let Some(directory) = &model.directory else {
        return Ok(None);
    };
    if options.scope == ModelScope::Tensors || !is_whole {
        return Ok(None);
    }
    let texts = Texts::following(&directory.path, &model.limits);
    match texts.json("config.json") {
        Ok(config) => Ok(config.map(|config| (config, texts.companions()))),
        // Tensors can be converted beside a config that is none.
        Err(_) if options.scope == ModelScope::Auto => Ok(None),
        Err(error) => Err(error),
    }
}

/// Fails if `config.json` is a link out of the model's directory: the output gets one with its fields.
fn require_own_config(model: &ParsedModel) -> Result<()> {
    match &model.directory {
        Some(directory) => Texts::new(&directory.path, &model.limits).require_inside("config.json"),
        None => Ok(()),
    }
}

/// Gives the tensors of a directory that mlx-lm wrote the names of transformers; `None` if they
/// have these.
fn renamed<'m>(
    model: &'m ParsedModel,
    resolution: &mut Resolution<'m>,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<Option<WholeModel>> {
    let Some((config, companions)) = config_of(model, options)? else {
        return Ok(None);
    };
    let found = from_mlx(&mut resolution.items, &config, options.run.to)?;
    if found.is_some() {
        require_own_config(model)?;
    }
    Ok(found.map(|found| take(found, companions, false, resolution, report)))
}

/// The number of the source of the first tensor that `item` is made of.
fn source_of(item: &ResolvedItem<'_>) -> Option<usize> {
    match item {
        ResolvedItem::Group(group) => group.parts.first().map(|(_, t)| t.info().source),
        ResolvedItem::Plain(t) => Some(t.stored.info().source),
    }
}

/// Puts the items of `found` into `resolution`.
fn take<'m>(
    found: MlxModel<'m>,
    companions: Vec<CompanionFile>,
    is_mlx: bool,
    resolution: &mut Resolution<'m>,
    report: &mut Report,
) -> WholeModel {
    resolution.items = found.items;
    // Shards have what their counterparts have, so a stack is where its first expert is.
    sort_by_key(&mut resolution.items, source_of);
    report.notes.extend(found.notes);
    let file = |config: Value| ("config.json".to_owned(), format!("{config:#}\n"));
    WholeModel {
        files: found.config.map(file).into_iter().collect(),
        companions,
        is_mlx,
        ..WholeModel::default()
    }
}

/// A Hugging Face model as mlx-lm has it. Of a model of MLX, `renamed` has the names of
/// transformers.
fn directory_to_mlx<'m>(
    model: &'m ParsedModel,
    renamed: Option<WholeModel>,
    resolution: &mut Resolution<'m>,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<Option<WholeModel>> {
    let Some((mut config, companions)) = config_of(model, options)? else {
        return required(renamed, options);
    };
    require_own_config(model)?;
    if let Some(text) = renamed.as_ref().and_then(|renamed| renamed.files.first()) {
        config = serde_json::from_str(&text.1).map_err(|e| AnamnesisError::parse(e.to_string()))?;
    }
    let found = to_mlx(&mut resolution.items, &config, options.run.to);
    if let Some(mut found) = found.map_err(|error| with_hint(error, options))? {
        // A language model that was nested has another config than the input, whether mlx-lm
        // changes that or not.
        let is_other = renamed.is_some_and(|renamed| !renamed.files.is_empty());
        found.config = found.config.or_else(|| is_other.then_some(config));
        return Ok(Some(take(found, companions, true, resolution, report)));
    }
    let class = config.pointer("/architectures/0").and_then(Value::as_str);
    let Some(class) = class else {
        return required(renamed, options);
    };
    if options.scope == ModelScope::Model {
        return Err(unknown_class(class));
    }
    report.notes.push(format!(
        "`{class}` has no names of mlx-lm here: tensors keep the names that they have"
    ));
    Ok(renamed)
}

/// `error` with what can be done about it, if the caller has not asked for a whole model.
fn with_hint(error: AnamnesisError, options: &ConvertOptions) -> AnamnesisError {
    match error {
        AnamnesisError::Parse { reason } if options.scope == ModelScope::Auto => {
            AnamnesisError::parse(format!(
                "{reason}; mlx-lm would not load it, or compute something else; its tensors alone are written with --tensors-only"
            ))
        }
        error => error,
    }
}

/// The model `whole` that a GGUF file became, as mlx-lm has it.
fn gguf_to_mlx<'m>(
    mut whole: WholeModel,
    resolution: &mut Resolution<'m>,
    options: &ConvertOptions,
    report: &mut Report,
) -> Result<WholeModel> {
    let file = whole
        .files
        .iter_mut()
        .find(|(name, _)| name == "config.json");
    let Some((_, text)) = file else {
        return Ok(whole);
    };
    let config: Value =
        serde_json::from_str(text).map_err(|e| AnamnesisError::parse(e.to_string()))?;
    let Some(mut found) = to_mlx(&mut resolution.items, &config, options.run.to)? else {
        let class = config.pointer("/architectures/0").and_then(Value::as_str);
        return Err(unknown_class(class.unwrap_or_default()));
    };
    if let Some(config) = found.config.take() {
        *text = format!("{config:#}\n");
    }
    let made = take(found, vec![], true, resolution, report);
    Ok(WholeModel { is_mlx: made.is_mlx, ..whole })
}

/// What is asked of the GGUF file of the model in `directory`.
fn gguf_request<'a>(
    directory: &'a Path,
    model: &'a ParsedModel,
    options: &'a ConvertOptions,
) -> GgufRequest<'a> {
    GgufRequest {
        directory,
        target: options.base.as_deref(),
        limits: &model.limits,
        to: options.decode.then_some(options.run.to),
        decoded: options.run.to,
        file_type: options.gguf_file_type(),
        encodes: options.encodes(),
        pre_tokenizer: options.pre_tokenizer.as_deref(),
        fp8_as_q8: options.fp8_as_q8,
        part: match options.scope {
            ModelScope::Vocabulary => ModelPart::Vocabulary,
            ModelScope::Prediction => ModelPart::Prediction,
            ModelScope::WithoutPrediction => ModelPart::WithoutPrediction,
            _ => ModelPart::Whole,
        },
        fused: FusedTensors { qkv: options.fuse_qkv, gate_up_experts: options.fuse_gate_up_exps },
    }
}

/// Puts the items of `found` into `resolution`.
fn take_gguf<'m>(
    found: GgufModel<'m>,
    resolution: &mut Resolution<'m>,
    report: &mut Report,
) -> WholeModel {
    resolution.items = found.items;
    report.notes.extend(found.notes);
    WholeModel {
        metadata: found.metadata,
        files: vec![],
        companions: found.companions,
        is_mlx: false,
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
            let request = gguf_request(directory, model, options);
            match options.scope {
                ModelScope::ImageTower => Some(to_mmproj(&mut resolution.items, &request)?),
                _ => to_gguf(&mut resolution.items, &request)?,
            }
        }
        None => None,
    };
    match found {
        Some(found) => Ok(Some(take_gguf(found, resolution, report))),
        None if options.scope == ModelScope::Model || parts::option(options).is_some() => {
            Err(AnamnesisError::unsupported(
                parts::option(options).unwrap_or("a whole model"),
                "no config.json beside the weights names a class in `architectures`",
            ))
        }
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
    // What adapters change is rounded after that, and not before as well.
    let decoded = match options.adapters.is_empty() {
        true => options.run.to,
        false => TargetDtype::F32,
    };
    let types = (options.run.to, decoded);
    let mut found = match &model.tower {
        None => to_hf(items, &source.metadata, types)?,
        Some(tower) => {
            let of_tower = |item: &ResolvedItem<'_>| source_of(item) >= Some(tower.first_source);
            let (of_tower, items) = items.into_iter().partition(of_tower);
            join_tower((items, &source.metadata), (of_tower, &tower.metadata), types)?
        }
    };
    for item in &mut found.items {
        if let ResolvedItem::Group(group) = item
            && group.scheme != QuantScheme::Unquantized
        {
            group.keeps = Some(options.run.to);
        }
    }
    resolution.items = found.items;
    report.notes.extend(found.notes);
    Ok(WholeModel { files: found.files, ..WholeModel::default() })
}
