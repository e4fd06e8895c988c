//! The one model: a flat list of named tensors, where their bytes are, and what describes them.

mod array_files;
mod container;
#[cfg(feature = "gguf")]
pub(crate) mod gguf;
#[cfg(feature = "gguf")]
pub(crate) mod gguf_key_types;
pub(crate) mod gguf_keys;
mod graph;
pub(crate) mod kind;
mod names;
mod part;
mod role;
mod short_list;
pub(crate) mod strided;
mod tensor;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

#[cfg(feature = "npz")]
pub(crate) use self::array_files::array_file;
pub(crate) use self::array_files::tensor_of_file;
pub use self::container::Container;
pub(crate) use self::graph::{GraphCodes, GraphRole};
pub(crate) use self::names::NameIndex;
#[cfg(all(feature = "npz", feature = "pth"))]
pub(crate) use self::part::is_malformed;
pub(crate) use self::part::{Part, SharedBytes};
pub use self::role::TensorRole;
pub(crate) use self::short_list::ShortList;
pub use self::tensor::Tensor;
use crate::config::QuantConfig;
pub use crate::dtype::TargetDtype;
use crate::error::counted;
use crate::limits::ParseLimits;
#[doc(no_inline)]
pub use crate::parse::{
    parse, parse_bytes, parse_bytes_with_limits, parse_from_reader, parse_from_reader_with_limits,
    parse_with_limits,
};
use crate::source::{CompanionFile, Source};
use crate::{AnamnesisError, Dtype, Result};

/// A parsed file: every tensor's name, dtype, shape and place, without the data.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
/// for tensor in model.tensors() {
///     println!("{} {} {:?} {} bytes", tensor.name(), tensor.dtype(), tensor.shape(), tensor.bytes()?.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ParsedModel {
    pub(crate) container: Container,
    /// The file, or the files that hold parts of the model.
    pub(crate) sources: Vec<Source>,
    pub(crate) path: Option<PathBuf>,
    /// What making something of it may cost.
    pub(crate) limits: ParseLimits,
    /// The directory, if it was one.
    pub(crate) directory: Option<Directory>,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) metadata: HashMap<String, String>,
    /// Settings of quantization in a pickle, as text, by the path of their keys.
    pub(crate) facts: HashMap<String, String>,
    pub(crate) header_size: usize,
    pub(crate) config: QuantConfig,
    /// Arrays that no tensor type can hold.
    pub(crate) skipped: Vec<Skipped>,
    /// The layout of each tensor of a QNAT file, in the order of `tensors`.
    pub(crate) qnat: Vec<QnatTensor>,
    /// What the graph of a model says of each tensor, in the order of `tensors`.
    pub(crate) graph: Vec<GraphRole>,
    /// Files that belong beside the weights in a directory, and lie elsewhere.
    pub(crate) beside: Vec<FileBeside>,
    /// What a user should know.
    pub(crate) notes: Vec<String>,
    #[cfg(feature = "gguf")]
    pub(crate) gguf: Option<self::gguf::Gguf>,
    /// The tower of images of a GGUF model, of which the last sources are.
    #[cfg(feature = "gguf")]
    pub(crate) tower: Option<GgufTower>,
    /// The tensors by name.
    pub(crate) names: NameIndex,
    /// The role of each tensor. Schemes tell it, so they fill it in when somebody asks.
    pub(crate) roles: OnceLock<Vec<TensorRole>>,
}

/// Dimensions of a tensor, outermost first.
pub(crate) type Shape = ShortList;

/// One stored tensor: what the container's header says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub name: Box<str>,
    pub dtype: Dtype,
    pub shape: Shape,
    /// Which of the model's sources has the bytes.
    pub source: usize,
    /// Absolute position there of the first element, in bytes.
    pub offset: u64,
    /// Length in bytes, as the tensor's elements take them.
    pub len: u64,
    /// Elements between neighbours of each dimension, where that is not what follows from the
    /// shape.
    pub strides: Option<Box<ShortList>>,
    /// Whether numbers are stored with their most significant byte first.
    pub big_endian: bool,
    /// What the stored bytes are checked by.
    pub check: Option<Box<Check>>,
}

impl TensorInfo {
    /// A tensor whose elements lie in the order of its shape, little-endian, with nothing to check
    /// them by: its type and shape, and its source with the offset and the length there.
    pub(crate) fn plain(
        name: impl Into<Box<str>>,
        (dtype, shape): (Dtype, impl Into<Shape>),
        (source, offset, len): (usize, u64, u64),
    ) -> Self {
        let (name, shape) = (name.into(), shape.into());
        let (strides, big_endian, check) = (None, false, None);
        Self { name, dtype, shape, source, offset, len, strides, big_endian, check }
    }

    /// Whether the bytes lie in an order that is not defined for the type.
    pub(crate) fn has_unknown_order(&self) -> bool {
        self.big_endian && !self.dtype.can_swap()
    }
}

/// A directory with a model in one weight file or several.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    pub path: PathBuf,
    /// Names of the weight files.
    pub files: Vec<String>,
    /// Which of them each source is a part of.
    pub file_of: Vec<usize>,
    /// The index that lists them, if there is one.
    pub index: Option<CompanionFile>,
}

/// What the file of a tower says of itself.
#[cfg(feature = "gguf")]
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "models"), allow(dead_code))]
pub(crate) struct GgufTower {
    pub metadata: self::gguf::GgufMetadata,
    /// The first of the model's sources that is its file.
    pub first_source: usize,
}

/// The layout of a tensor of a QNAT file. Offsets count from its first byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QnatTensor {
    pub shape: Vec<usize>,
    /// Values of a block.
    pub block: usize,
    pub blocks: usize,
    /// Offset of the scales: F32, or codes of one byte with an F32 step behind them.
    pub scales_offset: u64,
    /// Whether scales are such codes.
    pub has_scale_codes: bool,
    pub zero_points_offset: Option<u64>,
}

/// A file that belongs beside the weights, such as a config, but lies under another name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileBeside {
    /// Its path in a directory of the model, which stays below it.
    pub name: String,
    pub path: PathBuf,
    /// The SHA-256 that its content is to have, in hexadecimal digits.
    pub sha256: String,
}

/// An array that no tensor can hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub name: String,
    /// What it is instead.
    pub what: String,
}

impl Skipped {
    /// Why a model with it cannot be converted as a whole.
    pub(crate) fn error(&self) -> AnamnesisError {
        AnamnesisError::unsupported(
            &self.what,
            format!("array `{}`: no tensor can hold it", self.name),
        )
    }
}

/// A checksum over the stored bytes that a tensor is made from, and some before them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Check {
    /// CRC-32 of all of them.
    pub crc: u32,
    /// Where the stored bytes begin in the source, and how many they are.
    pub start: u64,
    pub len: u64,
    /// Number and CRC-32 of those before them.
    pub before: (u64, u32),
}

impl ParsedModel {
    /// What a note says of arrays that no tensor can hold, and that are `done`: left out, say.
    pub(crate) fn note_on_skipped(&self, done: &str) -> Option<String> {
        let Skipped { name, what } = self.skipped.first()?;
        let n = counted(self.skipped.len(), "array");
        Some(format!("{n} {done} that no tensor can hold, e.g. `{name}` ({what})"))
    }

    /// An empty model of `container`, which a reader fills, behind a header of `header_size` bytes.
    pub(crate) fn new(container: Container, header_size: usize) -> Self {
        Self {
            container,
            sources: Vec::new(),
            path: None,
            limits: ParseLimits::default(),
            directory: None,
            tensors: Vec::new(),
            metadata: HashMap::new(),
            facts: HashMap::new(),
            header_size,
            config: QuantConfig::default(),
            skipped: Vec::new(),
            qnat: Vec::new(),
            graph: Vec::new(),
            beside: Vec::new(),
            notes: Vec::new(),
            #[cfg(feature = "gguf")]
            gguf: None,
            #[cfg(feature = "gguf")]
            tower: None,
            names: NameIndex::default(),
            roles: OnceLock::new(),
        }
    }

    /// Adds what a reader does not know: the config beside the file, its path, and the limits that
    /// hold for whatever is made of the model.
    pub(crate) fn complete(
        self,
        config: QuantConfig,
        path: Option<&Path>,
        limits: &ParseLimits,
    ) -> Self {
        let mut notes = self.notes;
        notes.extend(config.note_on_links());
        Self { config, path: path.map(Path::to_path_buf), limits: limits.clone(), notes, ..self }
    }

    /// The file format that the model was read from. Of a directory, that of its first weight file.
    #[must_use]
    pub fn container(&self) -> Container {
        self.container
    }

    /// Every tensor, in the order of the data.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> + Clone {
        (0..self.tensors.len()).map(|index| Tensor { model: self, index })
    }

    /// The tensor called `name`. Takes the same time for any number of tensors.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let name_at = |i: usize| &*self.tensors[i].name;
        let index = self.names.find(name, self.tensors.len(), name_at)?;
        Some(Tensor { model: self, index })
    }

    /// The part of the model below `root`, a way through a checkpoint such as `state_dict`: names
    /// lose it.
    ///
    /// # Errors
    /// `Parse` if there is no tensor below it; the error lists where there are some.
    pub fn with_root(mut self, root: &str) -> Result<Self> {
        let below = |name: &str| {
            name.strip_prefix(root)?
                .strip_prefix('.')
                .map(str::to_owned)
        };
        let mut found = Vec::new();
        for (i, t) in self.tensors.iter_mut().enumerate() {
            if let Some(name) = below(&t.name) {
                t.name = name.into();
                found.push(i);
            }
        }
        if found.is_empty() {
            let roots = self
                .tensors
                .iter()
                .filter_map(|t| Some(t.name.split_once('.')?.0));
            let roots: BTreeSet<&str> = roots.collect();
            let some: Vec<&str> = roots.into_iter().take(10).collect();
            let what = format!(
                "--root: no tensor is below `{root}`; there are some below {}",
                some.join(", ")
            );
            return Err(AnamnesisError::usage(what));
        }
        self.qnat = found
            .iter()
            .filter_map(|&i| self.qnat.get(i).cloned())
            .collect();
        let graph = found.iter().filter_map(|&i| self.graph.get(i).cloned());
        self.graph = graph.collect();
        self.tensors = found.into_iter().map(|i| self.tensors[i].clone()).collect();
        self.facts = self
            .facts
            .into_iter()
            .filter_map(|(name, fact)| Some((below(&name)?, fact)))
            .collect();
        self.skipped
            .retain_mut(|s| below(&s.name).map(|name| s.name = name).is_some());
        (self.names, self.roles) = (NameIndex::default(), OnceLock::new());
        Ok(self)
    }

    /// Compares all stored tensors with their checksums, where the container has some: CRC-32 in
    /// NPZ and PyTorch archives. Each member is read once, however many tensors are views of it.
    /// Parsing compares none, and views of checkpoints ([`Tensor::bytes`]) none of uncompressed
    /// storages; conversions do.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// let model = anamnesis::parse("tests/data/demo/checkpoint.pth")?;
    /// model.verify_checksums()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Parse` that names the first tensor of a member whose checksum is wrong; `Io`.
    pub fn verify_checksums(&self) -> Result<()> {
        let mut seen = HashSet::new();
        self.tensors()
            .map(|t| t.part())
            .filter(|part| seen.insert(part.checksum_key()))
            .try_for_each(|part| part.verify())
    }

    /// Name of every array that no tensor can hold, with what it is instead: text, objects and
    /// other elements in NPZ, sparse and other kinds of tensors in checkpoints. They are not among
    /// [`tensors`](Self::tensors).
    pub fn skipped_arrays(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.skipped.iter().map(|s| (&*s.name, &*s.what))
    }

    /// Free-form metadata of the container (`__metadata__` in safetensors).
    #[must_use]
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.metadata
    }

    /// What the files beside the model, and its metadata, say about its quantization.
    #[must_use]
    pub fn config(&self) -> &QuantConfig {
        &self.config
    }

    /// Length of the container's header, in bytes.
    #[must_use]
    pub fn header_size(&self) -> usize {
        self.header_size
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.len).sum()
    }

    /// Bytes of the whole container, in all its files; `None` if only its header was read.
    #[must_use]
    pub fn file_size(&self) -> Option<u64> {
        let files = self
            .sources
            .iter()
            .filter(|source| !source.is_made_of_others());
        files.map(Source::len).sum()
    }

    /// What a GGUF file says of itself.
    #[cfg(feature = "gguf")]
    #[must_use]
    pub fn gguf(&self) -> Option<&self::gguf::Gguf> {
        self.gguf.as_ref()
    }

    /// Whether a tower was added to a GGUF model.
    pub(crate) fn has_tower(&self) -> bool {
        #[cfg(feature = "gguf")]
        return self.tower.is_some();
        #[cfg(not(feature = "gguf"))]
        false
    }

    /// Whether the model was read from GGUF.
    #[cfg_attr(not(feature = "gguf"), allow(dead_code))]
    pub(crate) fn is_gguf(&self) -> bool {
        #[cfg(feature = "gguf")]
        return self.gguf.is_some();
        #[cfg(not(feature = "gguf"))]
        false
    }

    /// Whether tensors have types of ggml: a GGUF file, or one of those before.
    #[cfg(feature = "gguf")]
    pub(crate) fn is_ggml(&self) -> bool {
        self.is_gguf() || self.container == Container::Ggml
    }

    /// Files beside the weights that say what these are: configs and the index, whether they exist
    /// or not.
    pub(crate) fn companions(&self) -> impl Iterator<Item = &CompanionFile> {
        let index = self.directory.as_ref().and_then(|d| d.index.as_ref());
        self.config.companions().iter().chain(index)
    }

    /// Compares every file that the model was read from with its state when it was parsed.
    ///
    /// # Errors
    /// `Io` that names the first file that has changed.
    pub(crate) fn require_unchanged(&self) -> Result<()> {
        // The files that such a tensor is made of are sources by themselves.
        let mut files = self
            .sources
            .iter()
            .filter(|source| !source.is_made_of_others());
        files.try_for_each(Source::require_unchanged)?;
        self.companions()
            .try_for_each(CompanionFile::require_unchanged)
    }

    /// Gives `shape` back what it was before a GGUF writer changed it to have rows of whole blocks,
    /// or fewer dimensions.
    pub(crate) fn restore_shape(&self, name: &str, shape: &mut Shape) -> Result<()> {
        #[cfg(feature = "gguf")]
        if let Some(gguf) = &self.gguf {
            return gguf.restore_shape(name, shape);
        }
        let _ = (name, shape);
        Ok(())
    }

    /// Whether metadata has shapes of tensors by their names.
    pub(crate) fn has_original_shapes(&self) -> bool {
        #[cfg(feature = "gguf")]
        if let Some(gguf) = &self.gguf {
            return gguf.has_original_shapes();
        }
        false
    }

    /// The directory of the files beside the weights, if the model was parsed from a path.
    pub(crate) fn model_directory(&self) -> Option<PathBuf> {
        let path = self.path.as_deref()?;
        Some(match &self.directory {
            Some(directory) => directory.path.clone(),
            None => path.parent().unwrap_or(Path::new("")).to_path_buf(),
        })
    }

    /// The file or the directory that was parsed, if it was one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}
