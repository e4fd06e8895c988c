//! The containers that models are written to: a table with one row each, and one file each below
//! this module.
//!
//! Everything that depends on the container is in its row and its file. The rest of the pipeline
//! asks the row, and never which container it is.

#[cfg(feature = "gguf")]
mod gguf;
#[cfg(feature = "npz")]
mod npy;
#[cfg(feature = "npz")]
mod npz;
#[cfg(feature = "lethe")]
mod qnat;
mod safetensors;
mod split;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::str::FromStr;

use super::options::ConvertOptions;
use super::output::BoxedOutput;
use super::report::Report;
use crate::config::why_unwritten;
use crate::error::InTensor;
use crate::features::{Gated, gated};
use crate::model::ParsedModel;
use crate::write::{OutputEntry, OutputLayout};
use crate::{AnamnesisError, ConvertTarget, Dtype, Result};

/// A container that models are written to: what is true of it in every build, and its writer.
pub(crate) struct OutputContainer {
    /// What messages call it.
    pub title: &'static str,
    /// Names that users type, in lower case; any case is accepted. Messages list the first.
    pub names: &'static [&'static str],
    /// Extension of the files' names, without a dot.
    pub extension: &'static str,
    /// End of the default name of an output; `None`: the element type that weights are decoded to.
    pub suffix: Option<&'static str>,
    /// Whether the metadata options of GGUF are for it.
    pub has_gguf_metadata: bool,
    /// The scheme that weights are encoded to if the caller names only the container. For one that
    /// holds nothing else.
    pub default_scheme: Option<&'static str>,
    /// How files are made, in the container's own file.
    pub(super) writer: Gated<ContainerWriter>,
}

/// How the files of a container are made.
pub(super) struct ContainerWriter {
    /// Whether tensors of a dtype can be written as they are.
    pub holds: fn(Dtype) -> bool,
    /// Whether the quantized blocks of a model are copied, unless the options ask for decoding.
    pub copies_blocks_of: fn(&ParsedModel) -> bool,
    /// Whether vectors beside encoded weights are stored in F32.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    pub widens_vectors: bool,
    /// Whether tensors get the shape that they had before a GGUF writer reshaped them to rows of
    /// whole blocks.
    pub restores_shapes: bool,
    /// Lays out the drafts, in their order, in one or several files.
    pub layout: fn(&mut LayoutRequest<'_, '_>) -> Result<Vec<OutputLayout>>,
    /// How an output becomes several files; `None`: it is always one, and `max_shard_size` is
    /// refused.
    pub sharding: Option<Sharding>,
}

/// What a container lays out.
pub(super) struct LayoutRequest<'a, 'm> {
    pub model: &'a ParsedModel,
    pub drafts: &'a [BoxedOutput<'m>],
    /// The quantization config of the output.
    pub quantization: Option<&'a serde_json::Value>,
    /// What the metadata of a GGUF output says of the encoding.
    #[cfg(feature = "gguf")]
    pub gguf_keys: &'a [(String, crate::GgufMetadataValue)],
    pub options: &'a ConvertOptions,
    /// All metadata of an output that is a whole model in GGUF.
    #[cfg(feature = "gguf")]
    pub whole_metadata: Option<&'a [(String, crate::GgufMetadataValue)]>,
    /// What the metadata of safetensors calls the framework of an output that is a whole model.
    pub framework: Option<&'static str>,
    /// For notes.
    #[cfg_attr(not(feature = "gguf"), allow(dead_code))]
    pub report: &'a mut Report,
}

/// How an output becomes several files.
pub(super) struct Sharding {
    /// Names of the files, in order. The stem begins a numbered name; the slices are the tensors of
    /// each file.
    pub file_names: fn(stem: &str, files: &[&[BoxedOutput<'_>]]) -> Vec<String>,
    /// The directory of the files; `None`: they lie beside each other, and the output's name is
    /// their stem.
    pub directory: Option<OutputDirectory>,
}

/// An output that is a directory. Beside the weights it gets the input's other files, and
/// `config.json`.
pub(super) struct OutputDirectory {
    /// Whether the output of a model is a directory.
    pub is_made: fn(&ConvertOptions, &ParsedModel) -> bool,
    /// Name of the index that is written for files of these names; `None` if they need none.
    pub index_name: fn(&[String]) -> Option<String>,
    /// Whether a file of this name, weights or index, shows that a directory holds such an output.
    /// Only then is it replaced.
    pub is_weights: fn(&str) -> bool,
}

/// Makes the table: the row of each variant of [`ConvertTarget`]. A variant without a row does not
/// compile.
macro_rules! containers {
    ($($variant:ident: $row:expr,)+) => {
        impl ConvertTarget {
            /// Every container, in the order in which messages list them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The row of the container.
            pub(crate) const fn container(self) -> &'static OutputContainer {
                match self {
                    $(Self::$variant => {
                        static ROW: OutputContainer = $row;
                        &ROW
                    })+
                }
            }
        }
    };
}

/// The writer of a container of plain tensors, which are all in one file. It is called as its module in `write` is.
#[cfg(any(feature = "burnpack", feature = "msgpack", feature = "pth"))]
macro_rules! one_file {
    ($container:ident) => {
        ContainerWriter {
            holds: crate::write::$container::holds,
            copies_blocks_of: |_| false,
            widens_vectors: false,
            restores_shapes: true,
            layout: |request| {
                let entries: Vec<_> = request.drafts.iter().map(entry).collect();
                Ok(vec![crate::write::$container::layout(&entries)?])
            },
            sharding: None,
        }
    };
}

containers! {
    Safetensors: OutputContainer {
        title: "safetensors",
        names: &["safetensors"],
        extension: "safetensors",
        suffix: None,
        has_gguf_metadata: false,
        default_scheme: None,
        writer: Gated::always(safetensors::WRITER),
    },
    Gguf: OutputContainer {
        title: "GGUF",
        names: &["gguf"],
        extension: "gguf",
        suffix: Some("gguf"),
        has_gguf_metadata: true,
        default_scheme: None,
        writer: gated!("gguf", gguf::WRITER),
    },
    Npz: OutputContainer {
        title: "NPZ",
        names: &["npz"],
        extension: "npz",
        suffix: None,
        has_gguf_metadata: false,
        default_scheme: None,
        writer: gated!("npz", npz::WRITER),
    },
    Npy: OutputContainer {
        title: "NPY",
        names: &["npy"],
        extension: "npy",
        suffix: None,
        has_gguf_metadata: false,
        default_scheme: None,
        writer: gated!("npz", npy::WRITER),
    },
    Pth: OutputContainer {
        title: "PyTorch",
        names: &["pth", "pytorch", "pt"],
        extension: "pth",
        suffix: None,
        has_gguf_metadata: false,
        default_scheme: None,
        writer: gated!("pth", one_file!(pth)),
    },
    Msgpack: OutputContainer {
        title: "MessagePack",
        names: &["msgpack", "messagepack", "flax"],
        extension: "msgpack",
        suffix: None,
        has_gguf_metadata: false,
        default_scheme: None,
        writer: gated!("msgpack", one_file!(msgpack)),
    },
    Burnpack: OutputContainer {
        title: "Burnpack",
        names: &["burnpack", "bpk"],
        extension: "bpk",
        suffix: None,
        has_gguf_metadata: false,
        default_scheme: None,
        writer: gated!("burnpack", one_file!(burnpack)),
    },
    Qnat: OutputContainer {
        title: "QNAT",
        names: &["qnat"],
        extension: "qnat",
        suffix: Some("nf4"),
        has_gguf_metadata: false,
        default_scheme: Some("qnat"),
        writer: gated!("lethe", qnat::WRITER),
    },
}

impl ConvertTarget {
    /// Extension of the files' names, without a dot.
    #[must_use]
    pub const fn extension(self) -> &'static str {
        self.container().extension
    }

    /// Name of the container in messages, e.g. `GGUF`.
    #[must_use]
    pub const fn title(self) -> &'static str {
        self.container().title
    }

    /// End of the default name of an output, e.g. `gguf`; `None`: the element type of its tensors.
    #[must_use]
    pub const fn suffix(self) -> Option<&'static str> {
        self.container().suffix
    }

    /// The scheme that weights are encoded to unless the options name one; `None` if the container
    /// holds plain tensors.
    #[must_use]
    pub const fn default_scheme(self) -> Option<&'static str> {
        self.container().default_scheme
    }

    /// The names of all containers as a list, for messages.
    #[must_use]
    pub fn listed() -> String {
        let names = Self::ALL.iter().map(|target| target.container().names[0]);
        names.collect::<Vec<_>>().join(", ")
    }
}

impl FromStr for ConvertTarget {
    type Err = AnamnesisError;

    fn from_str(text: &str) -> Result<Self> {
        let is_name = |name: &&str| name.eq_ignore_ascii_case(text);
        let found = Self::ALL
            .iter()
            .find(|target| target.container().names.iter().any(is_name));
        found.copied().ok_or_else(|| {
            let detail = format!("supported targets: {}", Self::listed());
            AnamnesisError::unsupported(text, detail)
        })
    }
}

impl OutputContainer {
    /// How files are made; `None` if this build cannot write the container.
    pub(super) fn writer(&self) -> Option<&ContainerWriter> {
        self.writer.built_in()
    }

    pub(super) fn sharding(&self) -> Option<&Sharding> {
        self.writer()?.sharding.as_ref()
    }

    pub(super) fn directory(&self) -> Option<&OutputDirectory> {
        self.sharding()?.directory.as_ref()
    }
}

/// What the options mean for their container.
impl ConvertOptions {
    /// Fills in the scheme of a container that holds nothing else, if the caller named only the
    /// container.
    pub(crate) fn with_default_encoding(self) -> Result<Self> {
        match self.target.container().default_scheme {
            Some(scheme) if !self.encodes() => self.with_scheme(scheme),
            _ => Ok(self),
        }
    }

    /// Whether the output of `model` is a directory.
    pub(crate) fn is_directory(&self, model: &ParsedModel) -> bool {
        let directory = self.target.container().directory();
        directory.is_some_and(|directory| (directory.is_made)(self, model))
    }

    /// Whether the GGUF blocks of `model` are copied to the output unchanged.
    #[must_use]
    pub fn carries_blocks(&self, model: &ParsedModel) -> bool {
        let writer = self.target.container().writer();
        let copies = writer.is_some_and(|writer| (writer.copies_blocks_of)(model));
        copies && !self.decode && !self.encodes() && self.adapters.is_empty()
    }
}

/// Titles of the containers that `is_one` selects, as a phrase: `safetensors and GGUF`.
pub(super) fn titles(is_one: impl Fn(&OutputContainer) -> bool) -> String {
    let all = ConvertTarget::ALL.iter().map(|target| target.container());
    let titles: Vec<&str> = all.filter(|c| is_one(c)).map(|c| c.title).collect();
    titles.join(" and ")
}

/// The containers whose outputs can be directories.
fn directories() -> impl Iterator<Item = &'static OutputDirectory> {
    let all = ConvertTarget::ALL.iter().map(|target| target.container());
    all.filter_map(OutputContainer::directory)
}

/// Whether a file of this name shows that a directory holds a model, as every output directory
/// does.
pub(super) fn is_weights_of_output(name: &str) -> bool {
    directories().any(|directory| (directory.is_weights)(name))
}

/// Name of the index of an output directory whose weights have these names; `None` if they need
/// none.
pub(super) fn index_name(names: &[String]) -> Option<String> {
    let of_names = |directory: &&OutputDirectory| names.iter().all(|n| (directory.is_weights)(n));
    (directories().find(of_names)?.index_name)(names)
}

/// Lays the drafts out in one or several files. Returns the layout of each file; files ascend with
/// the drafts.
///
/// # Errors
/// `Unsupported` if the container cannot hold a tensor, cannot be split, or is left out of this
/// build.
pub(super) fn layout(request: &mut LayoutRequest<'_, '_>) -> Result<Vec<OutputLayout>> {
    let container = request.options.target.container();
    let writing = format!("writing {}", container.title);
    let writer = container.writer.require(&writing)?;
    if writer.sharding.is_none() && request.options.max_shard_size.is_some() {
        let those = titles(|container| container.sharding().is_some());
        let what = format!("--max-shard-size: only {those} can be split");
        return Err(AnamnesisError::usage(what));
    }
    let layouts = (writer.layout)(request)?;
    let is_directory = request.options.is_directory(request.model);
    check_layouts(writer, is_directory, request.drafts, &layouts)
        .map_err(|what| AnamnesisError::unsupported(writing, what))?;
    Ok(layouts)
}

/// An output tensor as the layouts of most containers take it.
pub(super) fn entry<'a>(d: &'a BoxedOutput<'_>) -> OutputEntry<'a> {
    OutputEntry { name: &d.name, dtype: d.dtype, shape: &d.shape, len: d.len }
}

/// Checks what the pipeline takes for granted of layouts, and says what is wrong. Each of these
/// would lose a tensor's bytes, or write them over another's.
fn check_layouts(
    writer: &ContainerWriter,
    is_directory: bool,
    drafts: &[BoxedOutput<'_>],
    layouts: &[OutputLayout],
) -> std::result::Result<(), String> {
    let tensors: usize = layouts.iter().map(|layout| layout.offsets.len()).sum();
    if tensors != drafts.len() {
        return Err(format!("{tensors} of {} tensors laid out", drafts.len()));
    }
    if layouts.len() != 1 && writer.sharding.is_none() {
        return Err(format!("{} files instead of one", layouts.len()));
    }
    // Patches are given to tensors in their order. They are written when all files are made, and a
    // directory's are closed then.
    match layouts.iter().map(|layout| layout.patches.len()).sum() {
        0 => {}
        _ if is_directory => return Err("checksums in the files of a directory".to_owned()),
        n if n == tensors => {}
        n => return Err(format!("checksums of {n} of {tensors} tensors")),
    }
    let mut first = 0;
    for layout in layouts {
        // The sink of a directory is the shard that is being made: bytes of another shard would
        // have nowhere to go.
        if let Some(d) = drafts.get(first).filter(|_| !layout.offsets.is_empty())
            && d.body.is_written_with_another()
        {
            return Err(format!(
                "{} is written with the one before it, and is not in its file",
                InTensor(&d.name)
            ));
        }
        first += layout.offsets.len();
    }
    Ok(())
}

/// Checks the names of `count` files of an output: they are different, and each is the plain name
/// of a file. Some are made of tensor names, which the input chooses.
///
/// # Errors
/// `Unsupported` with the first name that is not.
pub(super) fn check_file_names(
    container: &OutputContainer,
    names: &[String],
    count: usize,
) -> Result<()> {
    let refuse = |what: String| {
        let writing = format!("writing {}", container.title);
        Err(AnamnesisError::unsupported(writing, what))
    };
    if names.len() != count {
        return refuse(format!("{} names for {count} files", names.len()));
    }
    let directory = container.directory();
    let mut seen = HashSet::with_capacity(names.len());
    for name in names {
        let is_plain = !name.is_empty()
            && why_unwritten(name, false).is_none()
            && !name.contains(['/', '\\', ':'])
            && !name.chars().any(char::is_control);
        if !is_plain {
            return refuse(format!("`{name}` cannot be the name of a file"));
        }
        // Some file systems know no case: the second file would replace the first.
        if !seen.insert(name.to_lowercase()) {
            return refuse(format!("`{name}` would be the name of two files"));
        }
        // Of a directory without a name of weights, nobody would know that `force` may replace it.
        if directory.is_some_and(|directory| !(directory.is_weights)(name)) {
            return refuse(format!("`{name}` is no name of weights"));
        }
    }
    Ok(())
}
