//! Directories as Hugging Face has them: one weight file, or shards under an index, which is then the truth.
//!
//! Index: `{"metadata": {…}, "weight_map": {tensor: file}}`, transformers `modeling_utils.load_sharded_checkpoint`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::detect;
use crate::config::{QuantConfig, read_small};
use crate::containers::model::Directory;
use crate::limits::Budget;
use crate::source::{Pool, Source};
use crate::{AnamnesisError, ParsedModel, Result};

/// Indexes, in order of preference; of any others there may be one.
const INDEXES: &[&str] = &[
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
    "consolidated.safetensors.index.json",
    "pytorch_model.bin.index.json",
];

/// Weight files without an index, in order of preference; of any others there may be one.
const SINGLE: &[&str] = &[
    "model.safetensors",
    "diffusion_pytorch_model.safetensors",
    "consolidated.safetensors",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "diffusion_pytorch_model.bin",
];

/// Endings of files that hold weights.
const WEIGHTS: &[&str] = &[
    "safetensors",
    "bin",
    "pt",
    "pth",
    "ckpt",
    "pkl",
    "gguf",
    "npz",
    "npy",
    "qnat",
    "h5",
    "msgpack",
    "onnx",
    "onnx_data",
    "ot",
    "tflite",
    "mlmodel",
];

/// Things that one message names at most.
const NAMED: usize = 5;

/// Whether a file of this name holds weights, or says where they are.
pub(crate) fn is_weights(name: &str) -> bool {
    let ending = name
        .rsplit_once('.')
        .map(|(_, ending)| ending.to_ascii_lowercase());
    name.ends_with(".index.json") || ending.is_some_and(|ending| WEIGHTS.contains(&ending.as_str()))
}

/// Reads the headers of all shards.
pub(super) fn read(path: &Path, budget: &Budget) -> Result<ParsedModel> {
    let dir = snapshot(path, budget)?;
    let names = list(&dir)?;
    let (files, map) = shards(&dir, &names, budget)?;
    let pool = Arc::new(Pool::default());
    let mut contents = ParsedModel::new(0);
    let mut directory = Directory {
        path: dir.clone(),
        files: Vec::new(),
        file_of: Vec::new(),
    };
    let mut config = QuantConfig::of_directory(&dir, budget)?;
    for (number, file) in files.iter().enumerate() {
        let source = Source::open_pooled(&pool, number, &dir.join(file)).map_err(|e| match e {
            AnamnesisError::Io(e) if e.kind() == std::io::ErrorKind::NotFound => {
                AnamnesisError::parse(format!("shard `{file}` is missing: {e}"))
            }
            e => e,
        })?;
        let format = detect::detect(&source)?;
        let shard = (format.read)(source, Some(&dir.join(file)), budget)
            .map_err(|e| e.about(format_args!("`{file}`")))?;
        if files.len() > 1 && describes_itself(&shard) {
            return Err(AnamnesisError::parse(format!(
                "`{file}` is no shard, but a model of its own format"
            )));
        }
        directory
            .file_of
            .resize(directory.file_of.len() + shard.sources.len(), number);
        append(&mut contents, shard);
    }
    directory.files = files;
    check(&contents, &directory, map.as_deref())?;
    let strays: Vec<&String> = names
        .iter()
        .filter(|n| is_weights(n) && !n.ends_with(".json"))
        .collect();
    // Of a model in several GGUF files the first stands for all.
    let sets: Vec<_> = directory
        .files
        .iter()
        .filter_map(|file| Some(numbering(file)?.0))
        .collect();
    let is_ours = |name: &String| {
        directory.files.contains(name)
            || numbering(name).is_some_and(|(set, ..)| sets.contains(&set))
    };
    let strays: Vec<&str> = strays
        .into_iter()
        .filter(|name| !is_ours(name))
        .map(String::as_str)
        .collect();
    if !strays.is_empty() {
        contents.notes.push(format!(
            "not part of the model and left out: {}",
            some(&strays)
        ));
    }
    config.add_metadata(&contents.metadata);
    config.check()?;
    let mut model = contents.complete(config, Some(&dir), budget.limits());
    model.directory = Some(directory);
    Ok(model)
}

/// A model's folder in the cache of Hugging Face's hub leads to the snapshot of its main branch, or to the only one.
fn snapshot(path: &Path, budget: &Budget) -> Result<PathBuf> {
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

/// Names of everything in `dir`, sorted.
fn list(dir: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(dir).map_err(|e| AnamnesisError::io_at(dir, &e))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| AnamnesisError::io_at(dir, &e))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// Tensors and the files that they are in.
type WeightMap = Vec<(String, String)>;

/// The weight files, in order, and what an index says of them.
fn shards(
    dir: &Path,
    names: &[String],
    budget: &Budget,
) -> Result<(Vec<String>, Option<WeightMap>)> {
    let preferred = |list: &[&str]| {
        list.iter()
            .find(|name| names.iter().any(|n| n == *name))
            .map(|n| (*n).to_owned())
    };
    let only = |fits: &dyn Fn(&str) -> bool, what: &str| {
        let found: Vec<&str> = names
            .iter()
            .map(String::as_str)
            .filter(|name| fits(name))
            .collect();
        match found.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some((*one).to_owned())),
            several => Err(AnamnesisError::parse(format!(
                "which of {} {what}? {}",
                several.len(),
                some(several)
            ))),
        }
    };
    let index = match preferred(INDEXES) {
        Some(index) => Some(index),
        None => only(&|name| name.ends_with(".index.json"), "indexes")?,
    };
    if let Some(index) = index {
        let map = weight_map(&dir.join(&index), budget)
            .map_err(|e| e.about(format_args!("`{index}`")))?;
        let mut files: Vec<String> = map.iter().map(|(_, file)| file.clone()).collect();
        files.sort_unstable();
        files.dedup();
        if let Some(file) = files.iter().find(|file| !is_inside(file)) {
            return Err(AnamnesisError::parse(format!(
                "`{index}`: shard `{file}` is not in the directory"
            )));
        }
        return Ok((files, Some(map)));
    }
    if let Some(single) = preferred(SINGLE) {
        return Ok((vec![single], None));
    }
    if let Some(set) = numbered(names)? {
        return Ok((set, None));
    }
    let is_model =
        |name: &str| is_weights(name) && numbering(name).is_none_or(|(_, no, _)| no == 1);
    match only(&is_model, "weight files")? {
        Some(single) => Ok((vec![single], None)),
        None => Err(nothing(dir, names)),
    }
}

/// Shards that say how many they are: all of them must be there, for a part of a model is no model. Those of GGUF are
/// found from the first.
fn numbered(names: &[String]) -> Result<Option<Vec<String>>> {
    let parts = names
        .iter()
        .filter_map(|name| Some((numbering(name)?, name)));
    let parts: Vec<_> = parts
        .filter(|(((_, rest), ..), _)| !rest.ends_with(".gguf"))
        .collect();
    let Some(&((set, _, count), first)) = parts.first() else {
        return Ok(None);
    };
    if let Some((_, other)) = parts.iter().find(|((other, ..), _)| *other != set) {
        return Err(AnamnesisError::parse(format!(
            "which of several sets of shards? {first}, {other}"
        )));
    }
    let by_number: HashMap<usize, &String> =
        parts.iter().map(|&((_, no, _), name)| (no, name)).collect();
    let shard = |no: usize| {
        let missing = || {
            let ((stem, rest), width) = (set, set.1.find('.').unwrap_or(0));
            AnamnesisError::parse(format!("shard `{stem}-{no:0width$}-of-{rest}` is missing"))
        };
        by_number
            .get(&no)
            .map(|name| (*name).clone())
            .ok_or_else(missing)
    };
    (1..=count).map(shard).collect::<Result<_>>().map(Some)
}

/// What `NAME-00001-of-0000N.safetensors` says: the set `(NAME, 0000N.safetensors)`, and number and count.
fn numbering(name: &str) -> Option<((&str, &str), usize, usize)> {
    let (head, rest) = name.rsplit_once("-of-").filter(|_| is_weights(name))?;
    let (stem, no) = head.rsplit_once('-')?;
    let (no, count) = (no.parse().ok()?, rest.split_once('.')?.0.parse().ok()?);
    (1..=count)
        .contains(&no)
        .then_some(((stem, rest), no, count))
}

/// Says where weights might be instead.
fn nothing(dir: &Path, names: &[String]) -> AnamnesisError {
    let has_weights = |name: &&String| {
        list(&dir.join(name)).is_ok_and(|inner| inner.iter().any(|n| is_weights(n)))
    };
    let below: Vec<&str> = names
        .iter()
        .filter(has_weights)
        .map(String::as_str)
        .collect();
    let hint = if below.is_empty() {
        String::new()
    } else {
        format!("; there are some in {}", some(&below))
    };
    AnamnesisError::parse(format!(
        "{}: there are no weights in this directory{hint}",
        dir.display()
    ))
}

/// Whether `file` stays below the directory that it is relative to.
fn is_inside(file: &str) -> bool {
    !file.is_empty()
        && !file.contains(['\\', '\0', ':'])
        && Path::new(file)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

/// Whether the container says of all tensors how they are quantized: what it says holds for no other file.
fn describes_itself(shard: &ParsedModel) -> bool {
    #[cfg(feature = "gguf")]
    if shard.gguf.is_some() {
        return true;
    }
    !shard.qnat.is_empty()
}

/// Adds a shard's contents.
fn append(all: &mut ParsedModel, shard: ParsedModel) {
    let base = all.sources.len();
    let ParsedModel {
        sources,
        tensors,
        metadata,
        facts,
        header_size,
        skipped,
        qnat,
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
    all.notes.extend(notes);
    #[cfg(feature = "gguf")]
    {
        all.gguf = shard.gguf.or(all.gguf.take());
    }
}

/// Every tensor once, and where the index says.
fn check(
    contents: &ParsedModel,
    directory: &Directory,
    map: Option<&[(String, String)]>,
) -> Result<()> {
    let file = |t: &crate::containers::model::TensorInfo| {
        directory.files[directory.file_of[t.source]].as_str()
    };
    let mut found: HashMap<&str, &str> = HashMap::with_capacity(contents.tensors.len());
    let mut wrong = Vec::new();
    for t in &contents.tensors {
        if let Some(other) = found.insert(&t.name, file(t)) {
            wrong.push(format!("`{}` is in `{other}` and in `{}`", t.name, file(t)));
        }
    }
    if let Some(map) = map {
        let listed: HashMap<&str, &str> = map
            .iter()
            .map(|(name, file)| (name.as_str(), file.as_str()))
            .collect();
        for (name, file) in map {
            match found.get(name.as_str()) {
                None => wrong.push(format!(
                    "`{name}` is not in `{file}`, where the index says that it is"
                )),
                Some(other) if other != file => {
                    wrong.push(format!(
                        "`{name}` is in `{other}`, and the index says in `{file}`"
                    ));
                }
                Some(_) => {}
            }
        }
        let missing = contents
            .tensors
            .iter()
            .filter(|t| !listed.contains_key(t.name.as_str()));
        wrong.extend(missing.map(|t| format!("`{}` in `{}` is not in the index", t.name, file(t))));
    }
    let wrong: Vec<&str> = wrong.iter().map(String::as_str).collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(AnamnesisError::parse(format!("tensor {}", some(&wrong))))
    }
}

/// The first few of `things`, and how many more there are.
fn some(things: &[&str]) -> String {
    let more = things.len().saturating_sub(NAMED);
    let named = things[..things.len() - more].join(", ");
    if more == 0 {
        named
    } else {
        format!("{named} and {more} more")
    }
}

/// Tensors and the files that they are in, as an index has them; a tensor that is listed twice is an error.
fn weight_map(path: &Path, budget: &Budget) -> Result<WeightMap> {
    struct Pairs(Vec<(String, String)>);
    impl<'de> serde::Deserialize<'de> for Pairs {
        fn deserialize<D: Deserializer<'de>>(
            deserializer: D,
        ) -> std::result::Result<Self, D::Error> {
            struct Entries;
            impl<'de> Visitor<'de> for Entries {
                type Value = Pairs;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a map from tensors to files")
                }

                fn visit_map<A: MapAccess<'de>>(
                    self,
                    mut map: A,
                ) -> std::result::Result<Pairs, A::Error> {
                    let mut pairs = BTreeMap::new();
                    while let Some((name, file)) = map.next_entry::<String, String>()? {
                        if pairs.contains_key(&name) {
                            return Err(A::Error::custom(format!(
                                "tensor `{name}` is listed twice"
                            )));
                        }
                        pairs.insert(name, file);
                    }
                    Ok(Pairs(pairs.into_iter().collect()))
                }
            }
            deserializer.deserialize_map(Entries)
        }
    }
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: Pairs,
    }
    let json = read_small(path, budget)?.unwrap_or_default();
    let index: Index =
        serde_json::from_slice(&json).map_err(|e| AnamnesisError::parse(e.to_string()))?;
    if index.weight_map.0.is_empty() {
        return Err(AnamnesisError::parse("its weight_map is empty"));
    }
    Ok(index.weight_map.0)
}
