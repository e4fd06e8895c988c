//! Finds the weight files of a model directory, by an index or by their names.
//!
//! Index: `{"metadata": {…}, "weight_map": {tensor: file}}`, transformers
//! `modeling_utils.load_sharded_checkpoint`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::{Deserializer, Error, MapAccess, Visitor};

use crate::config::read_small;
use crate::error::InTensor;
use crate::limits::Budget;
use crate::parse::listing::is_inside;
use crate::source::CompanionFile;
use crate::{AnamnesisError, Result};

/// Names of indexes, in order of preference. An index of another name counts only if it is the only
/// one.
pub(super) const INDEXES: &[&str] = &[
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
    "consolidated.safetensors.index.json",
    "pytorch_model.bin.index.json",
];

/// Names of weight files that need no index, in order of preference. A file of another name counts
/// only if it is the only one.
pub(super) const SINGLE: &[&str] = &[
    "model.safetensors",
    "diffusion_pytorch_model.safetensors",
    "consolidated.safetensors",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "diffusion_pytorch_model.bin",
];

/// Name of the file that describes a distributed checkpoint of PyTorch, whose weights are in files
/// of [`DISTRIBUTED_ENDING`].
pub(super) const DISTRIBUTED: &str = ".metadata";

/// Names of lists of tensors of MLC, in order of preference.
pub(super) const MLC: &[&str] = &["tensor-cache.json", "ndarray-cache.json"];

pub(super) const DISTRIBUTED_ENDING: &str = ".distcp";

/// Endings of files of weights in formats that are read.
const WEIGHTS: &[&str] = &[
    "safetensors",
    "bin",
    "pt",
    "pth",
    "ckpt",
    "distcp",
    "pkl",
    "gguf",
    "npz",
    "npy",
    "qnat",
    "uqff",
    ONNX,
];

/// Ending of files of ONNX. They are mostly there for other programs, beside a file of another format.
pub(super) const ONNX: &str = "onnx";

/// Endings of files of weights that are mostly there for other programs: they are read where there is
/// nothing else.
const SECONDARY: &[&str] = &[
    "bpk",
    "h5",
    "hdf5",
    "keras",
    "litertlm",
    "mlmodel",
    "msgpack",
    "pdiparams",
    "pdparams",
    "ptd",
    "pte",
    "tflite",
];

/// Endings of files of weights that are not read by themselves.
const NOT_READ: &[&str] = &["onnx_data", "ot"];

/// Whether files of this ending are those of a directory only if it has no others.
pub(super) fn is_secondary(ending: &str) -> bool {
    ending == ONNX || SECONDARY.contains(&ending) || NOT_READ.contains(&ending)
}

/// Whether a file of this name is a model by itself. Many other files end in `.bin` and `.xml`.
pub(crate) fn is_model_file(name: &str) -> bool {
    match &*ending(name) {
        "bin" | "xml" => name.contains("model"),
        "index" => is_tensorflow(name),
        ending => WEIGHTS.contains(&ending) || SECONDARY.contains(&ending),
    }
}

/// Whether a file is called like the index of a checkpoint of TensorFlow.
pub(super) fn is_tensorflow(name: &str) -> bool {
    name == "variables.index" || name.contains("ckpt") && name.ends_with(".index")
}

/// Whether a file of this name holds weights, or is an index of them.
pub(crate) fn is_weights(name: &str) -> bool {
    let is_index = name == DISTRIBUTED || name.ends_with(".index.json");
    let ending = &*ending(name);
    is_index || WEIGHTS.contains(&ending) || is_secondary(ending)
}

/// What follows the last dot of `name`, in small letters; empty without one.
pub(super) fn ending(name: &str) -> String {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    ending.unwrap_or_default().to_ascii_lowercase()
}

/// What an index lists: the names of tensors, in order, each with the number of its file.
pub(super) type WeightMap = Vec<(Box<str>, u32)>;

/// How the weight files of a directory are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShardKind {
    /// Each by itself, by the container that it begins as.
    Single,
    /// As a model of MLC, by its list of tensors.
    Mlc,
    /// As arrays of Zarr, by a file of theirs.
    Zarr,
    /// As arrays of Zarr in directories, by a file of the first.
    ZarrArrays,
    /// Each as an array that is called as its file is.
    Arrays,
    /// As a checkpoint whose files a file [`DISTRIBUTED`] describes.
    Distributed,
    /// As a checkpoint of DeepSpeed's ZeRO, by the state of the model.
    Zero,
    /// As the files of the processes of FSDP, by that of the first.
    Ranks,
}

/// The weight files of a directory, in order.
pub(super) struct FoundShards {
    pub files: Vec<String>,
    pub kind: ShardKind,
    /// The index, and its map, if there is one.
    pub index: Option<CompanionFile>,
    pub map: Option<WeightMap>,
    /// What a user should know of the choice.
    pub note: Option<String>,
}

impl From<Vec<String>> for FoundShards {
    fn from(files: Vec<String>) -> Self {
        Self { files, kind: ShardKind::Single, index: None, map: None, note: None }
    }
}

/// The first of `list` that is among `names`.
pub(super) fn preferred(list: &[&'static str], names: &[String]) -> Option<&'static str> {
    let mut list = list.iter().copied();
    list.find(|file| names.iter().any(|name| name == file))
}

/// The files that the index `index` names.
///
/// # Errors
/// `Parse` if it is malformed, or names a file outside of the directory; `Io`; `LimitExceeded`.
pub(super) fn find_indexed(dir: &Path, index: &str, budget: &Budget) -> Result<FoundShards> {
    let companion = CompanionFile::new(dir.join(index));
    let (files, map) =
        read_weight_map(&companion.path, budget).map_err(|e| e.about(format_args!("`{index}`")))?;
    if let Some(file) = files.iter().find(|file| !is_inside(file)) {
        return Err(AnamnesisError::parse(format!(
            "`{index}`: shard `{file}` is not in the directory"
        )));
    }
    Ok(FoundShards { index: Some(companion), map: Some(map), ..files.into() })
}

/// Parses the name `NAME-00001-of-0000N.safetensors`: the set `(NAME, 0000N.safetensors)`, the
/// number, and the count.
pub(crate) fn numbering(name: &str) -> Option<((&str, &str), usize, usize)> {
    let (head, rest) = name.rsplit_once("-of-").filter(|_| is_weights(name))?;
    let (stem, no) = head.rsplit_once('-')?;
    let (no, count) = (no.parse().ok()?, rest.split_once('.')?.0.parse().ok()?);
    (1..=count)
        .contains(&no)
        .then_some(((stem, rest), no, count))
}

/// Reads the `weight_map` of an index: the files that it names, in order, and the map.
///
/// # Errors
/// `Parse` if it is malformed or empty, or lists a tensor twice: which file counts would depend on
/// the reader.
fn read_weight_map(path: &Path, budget: &Budget) -> Result<(Vec<String>, WeightMap)> {
    /// Files are numbered as they come.
    #[derive(Default)]
    struct WeightMapPairs {
        files: BTreeMap<String, u32>,
        pairs: WeightMap,
    }
    impl<'de> serde::Deserialize<'de> for WeightMapPairs {
        fn deserialize<D: Deserializer<'de>>(
            deserializer: D,
        ) -> std::result::Result<Self, D::Error> {
            struct WeightMapVisitor;
            impl<'de> Visitor<'de> for WeightMapVisitor {
                type Value = WeightMapPairs;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a map from tensors to files")
                }

                fn visit_map<A: MapAccess<'de>>(
                    self,
                    mut map: A,
                ) -> std::result::Result<WeightMapPairs, A::Error> {
                    let mut found = WeightMapPairs::default();
                    while let Some((name, file)) = map.next_entry::<Box<str>, String>()? {
                        let next = found.files.len() as u32;
                        let number = *found.files.entry(file).or_insert(next);
                        found.pairs.push((name, number));
                    }
                    found.pairs.sort_unstable();
                    let twice = found.pairs.windows(2).find(|pair| pair[0].0 == pair[1].0);
                    if let Some([(name, _), _]) = twice {
                        return Err(A::Error::custom(format!(
                            "{} is listed twice",
                            InTensor(&name)
                        )));
                    }
                    Ok(found)
                }
            }
            deserializer.deserialize_map(WeightMapVisitor)
        }
    }
    #[derive(serde::Deserialize)]
    struct ShardIndex {
        weight_map: WeightMapPairs,
    }
    let json = read_small(path, budget)?.unwrap_or_default();
    let index: ShardIndex =
        serde_json::from_slice(&json).map_err(|e| AnamnesisError::parse(e.to_string()))?;
    let WeightMapPairs { files, mut pairs } = index.weight_map;
    if pairs.is_empty() {
        return Err(AnamnesisError::parse("its weight_map is empty"));
    }
    let mut places = vec![0; files.len()];
    for (place, &number) in (0..).zip(files.values()) {
        places[number as usize] = place;
    }
    for (_, file) in &mut pairs {
        *file = places[*file as usize];
    }
    Ok((files.into_keys().collect(), pairs))
}
