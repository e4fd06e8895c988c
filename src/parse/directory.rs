//! Hugging Face model directories: one weight file, or shards. If there is an index, it says which
//! files are shards, and every tensor must be where it says.

mod dfloat11;
mod find;
mod no_weights;
mod nunchaku;
mod package;
mod ranks;
mod shards;
mod uqff;
mod zarr;
mod zero;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::find::find_shards;
use self::shards::{FoundShards, ShardKind, WeightMap};
pub(crate) use self::shards::{is_model_file, is_weights, numbering};
pub(super) use self::uqff::read_other_files;
pub(crate) use self::zero::is_zero_state;
use super::detect;
use crate::config::{QuantConfig, read_small};
use crate::features::{Gated, gated};
use crate::limits::{Budget, join_first};
use crate::model::{Directory, TensorInfo, tensor_of_file};
use crate::parse::listing::{is_inside, list};
use crate::source::{FilePool, Source};
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Most files or tensors that one message names.
const MAX_NAMED: usize = 5;

/// Reads the model in the directory `path`: the headers of all its shards, and the configs beside
/// them.
///
/// # Errors
/// `Parse` if it is unclear which files are the model, if shards are missing, or if they contradict
/// the index; otherwise those of reading a file, with the shard's name.
pub(super) fn read(path: &Path, budget: &Budget) -> Result<ParsedModel> {
    let dir = resolve_snapshot(path, budget)?;
    let names = list(&dir)?;
    let mut config = QuantConfig::read(&dir, budget)?;
    let FoundShards { files, kind, map, index, note } = find_shards(&dir, &names, &config, budget)?;
    let pool = Arc::new(FilePool::default());
    let mut contents = ParsedModel::new(Container::Safetensors, 0);
    contents.notes.extend(note);
    // The index is in memory with longer entries, so it cannot ask for more than that.
    let listed = map.as_ref().map_or(0, Vec::len);
    contents.tensors.reserve_exact(listed);
    let mut directory =
        Directory { path: dir.clone(), files: Vec::new(), file_of: Vec::new(), index };
    for (number, file) in files.iter().enumerate() {
        let source = open_shard(&pool, number, &dir, file)?;
        let shard = read_shard(source, kind, &dir.join(file), budget);
        let shard = shard.map_err(|e| match e {
            // A file of another kind among the shards.
            AnamnesisError::Unsupported { format, detail } => {
                AnamnesisError::unsupported(format, format!("`{file}`: {detail}"))
            }
            e => e.about(format_args!("`{file}`")),
        })?;
        if files.len() > 1 && describes_itself(&shard) {
            return Err(AnamnesisError::parse(format!(
                "`{file}` is no shard, but a model of its own format"
            )));
        }
        directory
            .file_of
            .resize(directory.file_of.len() + shard.sources.len(), number);
        if number == 0 {
            contents.container = shard.container;
        }
        append(&mut contents, shard);
    }
    directory.files = files;
    check(&contents, &directory, map.as_ref())?;
    let strays = strays(&names, &directory, &contents);
    if !strays.is_empty() {
        contents.notes.push(format!(
            "not part of the model and left out: {}",
            join_first(&strays, MAX_NAMED)
        ));
    }
    config.add_metadata(&contents.metadata)?;
    config.check()?;
    let mut model = contents.complete(config, Some(&dir), budget.limits());
    model.directory = Some(directory);
    Ok(model)
}

/// The configs of the model in the directory `path`, without any tensor; `None` if it has weights.
///
/// # Errors
/// Those of reading the configs.
pub(crate) fn read_without_weights(path: &Path, budget: &Budget) -> Result<Option<ParsedModel>> {
    let dir = resolve_snapshot(path, budget)?;
    let names = list(&dir)?;
    let is_of_weights = |name: &String| is_weights(name) || name.ends_with(".index.json");
    if !names.iter().any(|name| name == "config.json") || names.iter().any(is_of_weights) {
        return Ok(None);
    }
    let config = QuantConfig::read(&dir, budget)?;
    config.check()?;
    let contents = ParsedModel::new(Container::Safetensors, 0);
    let mut model = contents.complete(config, Some(&dir), budget.limits());
    model.directory = Some(Directory { path: dir, files: vec![], file_of: vec![], index: None });
    Ok(Some(model))
}

/// Opens shard `file`, number `number` of its directory.
///
/// # Errors
/// `Parse` if it is missing; `Io`.
fn open_shard(pool: &Arc<FilePool>, number: usize, dir: &Path, file: &str) -> Result<Source> {
    Source::open_pooled(pool, number, &dir.join(file)).map_err(|e| match e {
        AnamnesisError::Io(e) if e.kind() == std::io::ErrorKind::NotFound => {
            AnamnesisError::parse(format!("shard `{file}` is missing: {e}"))
        }
        e => e,
    })
}

fn read_shard(
    source: Source,
    kind: ShardKind,
    path: &Path,
    budget: &Budget,
) -> Result<ParsedModel> {
    match kind {
        ShardKind::Distributed => {
            READ_DISTRIBUTED.require("distributed checkpoint")?(&source, path, budget)
        }
        ShardKind::Ranks => READ_RANK_FILES.require("files of FSDP")?(&source, path, budget),
        ShardKind::Zero => READ_ZERO.require("checkpoint of DeepSpeed")?(&source, path, budget),
        ShardKind::Mlc => READ_MLC.require("MLC")?(&source, path, budget),
        ShardKind::Zarr => READ_ZARR.require("Zarr (Orbax)")?(source, Some(path), budget),
        ShardKind::ZarrArrays => {
            let directory = path.parent().unwrap_or(path);
            READ_ZARR.require("Zarr (Orbax)")?(source, Some(directory), budget)
        }
        ShardKind::Arrays => read_array(source, path, budget),
        ShardKind::Single => detect::detect(&mut &source)?.read(source, Some(path), budget),
    }
}

/// Reads an array that is called as its file is.
fn read_array(source: Source, path: &Path, budget: &Budget) -> Result<ParsedModel> {
    let mut array = detect::detect(&mut &source)?.read(source, Some(path), budget)?;
    if array.container != Container::Npy {
        return Err(array.container.refused_as(Container::Npy));
    }
    let file = path.file_name().and_then(OsStr::to_str);
    if let Some(name) = file.and_then(tensor_of_file) {
        for tensor in &mut array.tensors {
            tensor.name = name.as_str().into();
        }
        for skipped in &mut array.skipped {
            skipped.name.clone_from(&name);
        }
    }
    Ok(array)
}

/// The files among `names` that hold weights and are no part of the model in `directory`.
fn strays<'n>(names: &'n [String], directory: &Directory, contents: &ParsedModel) -> Vec<&'n str> {
    // Of a split GGUF model only the first file is listed; its reader has opened the others.
    let files = directory.files.iter();
    let sets: Vec<_> = files.filter_map(|file| Some(numbering(file)?.0)).collect();
    // Of a checkpoint of many processes only one file is listed, whose reader has opened the
    // others.
    let read = contents.sources.iter();
    let read = read.filter_map(|source| source.path()?.file_name());
    let read: HashSet<&OsStr> = read.collect();
    let is_ours = |name: &str| {
        directory.files.iter().any(|file| file == name)
            || read.contains(OsStr::new(name))
            || numbering(name).is_some_and(|(set, ..)| sets.contains(&set))
    };
    let weights = names.iter().map(String::as_str);
    let weights = weights.filter(|name| is_weights(name) && !name.ends_with(".json"));
    weights.filter(|name| !is_ours(name)).collect()
}

/// Reads the distributed checkpoint that a file `.metadata` describes.
const READ_DISTRIBUTED: Gated<CheckpointReader> = gated!("pth", super::pth::read_distributed);

/// Reads the checkpoint of DeepSpeed with a file of the model's state.
const READ_ZERO: Gated<CheckpointReader> = gated!("pth", super::pth::read_zero);

/// Reads the files of the processes of FSDP.
const READ_RANK_FILES: Gated<CheckpointReader> = gated!("pth", super::pth::read_rank_files);

/// Reads a model of MLC, by its list of tensors.
const READ_MLC: Gated<CheckpointReader> =
    gated!("mlc", |source, path, budget| super::mlc::read(source, Some(path), budget));

/// Reads arrays of Zarr.
const READ_ZARR: Gated<HeaderReader> = gated!("zarr", super::zarr::read);

type HeaderReader = fn(Source, Option<&Path>, &Budget) -> Result<ParsedModel>;

type CheckpointReader = fn(&Source, &Path, &Budget) -> Result<ParsedModel>;

/// Resolves a model's folder in the cache of the Hugging Face hub: to the snapshot of the main
/// branch, or else to the only snapshot. Any other directory is returned as it is.
fn resolve_snapshot(path: &Path, budget: &Budget) -> Result<PathBuf> {
    let snapshots = path.join("snapshots");
    if !(snapshots.is_dir() && path.join("refs").is_dir()) {
        return Ok(path.to_path_buf());
    }
    let main =
        read_small(&path.join("refs/main"), budget)?.and_then(|text| String::from_utf8(text).ok());
    if let Some(main) = main
        .map(|text| text.trim().to_owned())
        .filter(|hash| is_inside(hash))
    {
        return Ok(snapshots.join(main));
    }
    match list(&snapshots)?.as_slice() {
        [only] => Ok(snapshots.join(only)),
        several => Err(AnamnesisError::parse(format!(
            "which of {} snapshots? Give one of them",
            several.len()
        ))),
    }
}

/// Whether the container describes the quantization of its tensors itself (GGUF, QNAT, graphs). Such a file
/// is a whole model and cannot be one shard of several.
fn describes_itself(shard: &ParsedModel) -> bool {
    #[cfg(feature = "gguf")]
    if shard.gguf.is_some() {
        return true;
    }
    !shard.qnat.is_empty()
        || matches!(
            shard.container,
            Container::Onnx
                | Container::Tflite
                | Container::OpenVino
                | Container::CoreMl
                | Container::ExecuTorch
        )
}

/// Adds a shard's tensors and sources to `all`. Of metadata keys in several shards, the first one's
/// value counts.
pub(super) fn append(all: &mut ParsedModel, shard: ParsedModel) {
    let base = all.sources.len();
    let ParsedModel {
        sources,
        tensors,
        metadata,
        facts,
        header_size,
        skipped,
        qnat,
        graph,
        notes,
        ..
    } = shard;
    all.sources.extend(sources);
    all.tensors.extend(tensors.into_iter().map(|mut t| {
        t.source += base;
        t
    }));
    metadata.into_iter().for_each(|(key, value)| {
        all.metadata.entry(key).or_insert(value);
    });
    all.facts.extend(facts);
    all.header_size = all.header_size.saturating_add(header_size);
    all.skipped.extend(skipped);
    all.qnat.extend(qnat);
    all.graph.extend(graph);
    all.notes.extend(notes);
    #[cfg(feature = "gguf")]
    {
        all.gguf = shard.gguf.or(all.gguf.take());
    }
}

/// Checks that each tensor is in one shard alone and, with an index, in the shard that the index
/// says.
///
/// # Errors
/// `Parse` that names the first few tensors that are not.
fn check(contents: &ParsedModel, directory: &Directory, map: Option<&WeightMap>) -> Result<()> {
    let number = |t: &TensorInfo| directory.file_of[t.source];
    let file = |number: usize| directory.files[number].as_str();
    let mut wrong = Vec::new();
    for (i, t) in contents.tensors.iter().enumerate() {
        if let Some(other) = contents.tensor(&t.name).filter(|other| other.index != i) {
            let (a, b) = (file(number(other.info())), file(number(t)));
            wrong.push(format!("`{}` is in `{a}` and in `{b}`", t.name));
        }
    }
    if let Some(map) = map {
        for (name, listed) in map {
            let listed = *listed as usize;
            match contents.tensor(name).map(|t| number(t.info())) {
                None => wrong.push(format!(
                    "`{name}` is not in `{}`, where the index says that it is",
                    file(listed)
                )),
                Some(other) if other != listed => wrong.push(format!(
                    "`{name}` is in `{}`, and the index says in `{}`",
                    file(other),
                    file(listed)
                )),
                Some(_) => {}
            }
        }
        let missing = contents.tensors.iter().filter(|t| {
            let place = map.binary_search_by(|(name, _)| (**name).cmp(&*t.name));
            place.is_err()
        });
        wrong.extend(
            missing.map(|t| format!("`{}` in `{}` is not in the index", t.name, file(number(t)))),
        );
    }
    let wrong: Vec<&str> = wrong.iter().map(String::as_str).collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(AnamnesisError::parse(format!("tensor {}", join_first(&wrong, MAX_NAMED))))
    }
}
