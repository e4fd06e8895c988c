//! Detects the container of a file: one row for each format. The content decides, and never the
//! file's name.

use std::io::{Read, Seek};
use std::path::Path;

use super::magic::{self, read_head};
use super::read_at::ReadAt;
use super::{other_files, safetensors};
use crate::ParsedModel;
use crate::features::{Gated, gated};
use crate::limits::Budget;
use crate::source::{Seeking, Source};
use crate::{AnamnesisError, Container, Result};

/// Reads the header of a file.
type HeaderReader = fn(Source, Option<&Path>, &Budget) -> Result<ParsedModel>;

/// What the first bytes of a file say.
#[derive(Debug, Clone, Copy)]
enum Beginning {
    Of(Container),
    /// A ZIP archive, whose members tell whether it is NPZ or a checkpoint.
    Zip,
    Unknown,
}

/// A row of the detection.
pub(super) struct ContainerFormat {
    beginning: Beginning,
    /// What the error of a build without its reader calls it.
    title: &'static str,
    /// Whether a file with these first bytes is of the format. They are those of
    /// [`read_head`].
    matches: fn(&[u8]) -> bool,
    reader: Gated<HeaderReader>,
}

impl ContainerFormat {
    /// Reads the header of `source`, a file of this format.
    ///
    /// # Errors
    /// `Unsupported` if this build leaves the reader out; the errors of the reader.
    pub(super) fn read(
        &self,
        source: Source,
        path: Option<&Path>,
        budget: &Budget,
    ) -> Result<ParsedModel> {
        self.reader.require(self.title)?(source, path, budget)
    }

    /// Reads the header of a file that must be of the format `expected`.
    ///
    /// # Errors
    /// `Unsupported` if the file is of another format, `Parse` if it is of none; those of the
    /// reader.
    pub(super) fn read_only(
        &self,
        expected: Container,
        source: Source,
        path: Option<&Path>,
        budget: &Budget,
    ) -> Result<ParsedModel> {
        self.check(expected)?;
        match self.beginning {
            Beginning::Zip => read_zip(source, Some(expected), budget),
            _ => self.read(source, path, budget),
        }
    }

    /// Checks that a file with this beginning can be of the format `expected`.
    fn check(&self, expected: Container) -> Result<()> {
        match self.beginning {
            Beginning::Of(found) if found != expected => Err(found.refused_as(expected)),
            Beginning::Zip
                if !matches!(
                    expected,
                    Container::Npz | Container::Pth | Container::Hdf5 | Container::Tflite
                ) =>
            {
                Err(AnamnesisError::unsupported("ZIP archive", format!("this is no {expected}")))
            }
            Beginning::Unknown => Err(AnamnesisError::parse(format!("this is no {expected}"))),
            _ => Ok(()),
        }
    }
}

/// Every container that is recognised, in the order of the checks. safetensors comes first: it
/// begins with a length, whose bytes can be the magic of another format, but then with JSON, which
/// no other format has there. It comes last once more, so that its reader reports what is wrong
/// with a file that nothing is known of.
const FORMATS: &[ContainerFormat] = &[
    ContainerFormat {
        beginning: Beginning::Of(Container::Safetensors),
        title: "safetensors",
        matches: magic::is_safetensors,
        reader: Gated::always(safetensors::read),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Gguf),
        title: "GGUF",
        matches: magic::is_gguf,
        reader: gated!("gguf", super::gguf::read),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Ggml),
        title: "GGML",
        matches: magic::is_ggml,
        reader: gated!("gguf", |source, _, budget| super::ggml::read(&source, budget)),
    },
    ContainerFormat {
        beginning: Beginning::Zip,
        title: ZIP,
        matches: |head| {
            matches!(head, [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] | [b'P', b'K', 6, 6, ..])
        },
        reader: Gated::always(|source, _, budget| read_zip(source, None, budget)),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Qnat),
        title: "QNAT",
        matches: magic::is_qnat,
        reader: Gated::always(super::qnat::read),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Npy),
        title: "NumPy array (.npy)",
        matches: |head| head.starts_with(b"\x93NUMPY"),
        reader: gated!("npz", super::npz::read_npy),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Pth),
        title: "Python pickle",
        matches: |head| matches!(head, [0x80, 2..=5, ..]),
        reader: gated!("pth", super::pth::read_pickles),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Pth),
        title: "PyTorch checkpoint (tar)",
        matches: magic::is_tar,
        reader: gated!("pth", super::pth::read_tar),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Gguf),
        title: "llamafile",
        // Executables of Windows, which those of every system at once are too, and of Linux.
        matches: |head| head.starts_with(b"MZ") || head.starts_with(b"\x7fELF"),
        reader: gated!(
            all(feature = "gguf", any(feature = "npz", feature = "pth")),
            "gguf` and `npz",
            |source, _, budget| super::llamafile::read(source, budget)
        ),
    },
    ContainerFormat {
        // The layers that it names are safetensors files.
        beginning: Beginning::Of(Container::Safetensors),
        title: "a manifest of Ollama",
        matches: magic::is_ollama_manifest,
        reader: gated!("ollama", super::ollama::read),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Tflite),
        title: "LiteRT",
        matches: magic::is_tflite,
        reader: gated!("tflite", |source, _, budget| super::tflite::read(&source, budget)),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Tflite),
        title: "LiteRT-LM",
        matches: magic::is_litertlm,
        reader: gated!("tflite", |source, _, budget| super::tflite::read_litertlm(&source, budget)),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::ExecuTorch),
        title: "ExecuTorch",
        matches: magic::is_executorch,
        reader: gated!("executorch", |source, _, budget| {
            super::executorch::read_program(&source, budget)
        }),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::ExecuTorch),
        title: "ExecuTorch (.ptd)",
        matches: magic::is_flat_tensors,
        reader: gated!("executorch", |source, _, budget| {
            super::executorch::read_data(&source, budget)
        }),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::OpenVino),
        title: "OpenVINO",
        matches: magic::is_openvino,
        reader: gated!("openvino", |source, path, budget| {
            super::openvino::read(&source, path, budget)
        }),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Onnx),
        title: "ONNX",
        matches: magic::is_onnx,
        reader: gated!("onnx", |source, path, budget| super::onnx::read(&source, path, budget)),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::CoreMl),
        title: "Core ML",
        matches: magic::is_coreml,
        reader: gated!("coreml", |source, path, budget| super::coreml::read(&source, path, budget)),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Hdf5),
        title: "HDF5",
        matches: magic::is_hdf5,
        reader: gated!("hdf5", |source, path, budget| super::hdf5::read(&source, path, budget)),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::TensorFlow),
        title: "TensorFlow checkpoint",
        // This is at its end, where `detect` looks for it.
        matches: |head| head == magic::TABLE_END,
        reader: gated!("tensorflow", |source, path, budget| {
            super::tensorflow::read(&source, path, budget)
        }),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Msgpack),
        title: "Flax (MessagePack)",
        matches: magic::is_flax,
        reader: gated!("msgpack", |source, _, budget| super::msgpack::read(&source, budget)),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::MindSpore),
        title: "MindSpore checkpoint",
        matches: magic::is_mindspore,
        reader: gated!("mindspore", |source, _, budget| super::mindspore::read(&source, budget)),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Mlc),
        title: "MLC",
        matches: magic::is_mlc,
        reader: gated!("mlc", |source, path, budget| super::mlc::read(&source, path, budget)),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Paddle),
        title: "Paddle",
        matches: magic::is_paddle_program,
        reader: gated!("paddle", |source, path, budget| {
            super::paddle::read_program(&source, path, budget)
        }),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Paddle),
        title: "Paddle (.pdiparams)",
        matches: magic::is_paddle_params,
        reader: gated!("paddle", |source, path, budget| {
            super::paddle::read_params(&source, path, budget)
        }),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Burnpack),
        title: "Burnpack",
        matches: magic::is_burnpack,
        reader: gated!("burnpack", |source, _, budget| super::burnpack::read(&source, budget)),
    },
    ContainerFormat {
        beginning: Beginning::Of(Container::Zarr),
        title: "Zarr (Orbax)",
        matches: magic::is_ocdbt,
        reader: gated!("zarr", super::zarr::read),
    },
    ContainerFormat {
        beginning: Beginning::Unknown,
        title: "safetensors",
        matches: |_| true,
        reader: Gated::always(other_files::read),
    },
];

/// Reads the first bytes of `file` and returns its row.
pub(super) fn detect(file: &mut dyn ReadAt) -> Result<&'static ContainerFormat> {
    let head = read_head(file)?;
    let row = row_of(&head)?;
    if !matches!(row.beginning, Beginning::Unknown) {
        return Ok(row);
    }
    #[cfg(feature = "hdf5")]
    if super::hdf5::superblock_of(file)?.is_some() {
        return row_of(magic::HDF5);
    }
    // Of a safetensors file, which may be far away, nothing is read but its beginning.
    if !magic::is_safetensors(&head) && magic::ends_as_table(file)? {
        return row_of(magic::TABLE_END);
    }
    Ok(row)
}

/// Reads the first bytes of `file`, and checks that it can be of the format `expected`.
#[cfg(feature = "pth")]
pub(crate) fn read_head_of(file: &mut dyn ReadAt, expected: Container) -> Result<Vec<u8>> {
    let head = read_head(file)?;
    row_of(&head)?.check(expected).map(|()| head)
}

fn row_of(head: &[u8]) -> Result<&'static ContainerFormat> {
    let found = FORMATS.iter().find(|f| (f.matches)(head));
    found.ok_or_else(|| AnamnesisError::parse("not a model file"))
}

/// Tells the container format of a file by its content. The name does not count, and nothing else
/// is read than the first bytes and, of a ZIP archive, its directory. A format is told even if this
/// build leaves out its reader.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// use anamnesis::{Container, detect_format};
/// assert_eq!(detect_format("tests/data/demo/arrays.npz")?, Container::Npz);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Io` if `path` is no regular file, or cannot be read; `Parse` if the content is of no known
/// format; `Unsupported` if it is a ZIP archive of something else; `LimitExceeded`.
pub fn detect_format(path: impl AsRef<Path>) -> Result<Container> {
    format_of(&mut &Source::open(path.as_ref())?)
}

/// Tells the container format of a stream by its content, as [`detect_format`] does for a file.
///
/// # Errors
/// `Io` with the reader's own error; otherwise those of [`detect_format`].
pub fn detect_format_from_reader<R: Read + Seek>(reader: R) -> Result<Container> {
    format_of(&mut Seeking::new(reader)?)
}

/// The container format of a file.
///
/// # Errors
/// Those of [`detect_format`].
pub(crate) fn format_of(file: &mut dyn ReadAt) -> Result<Container> {
    match detect(file)?.beginning {
        Beginning::Of(format) => Ok(format),
        Beginning::Zip => zip_format(file),
        Beginning::Unknown => {
            Err(AnamnesisError::parse("not a model file: no known container begins like this"))
        }
    }
}

/// What errors call an archive that this build does not read.
const ZIP: &str = "NPZ or PyTorch ZIP archive";

type ArchiveReader = fn(Source, Option<Container>, &Budget) -> Result<ParsedModel>;

/// Reads a ZIP archive, of the format `expected` alone if there is one.
fn read_zip(source: Source, expected: Option<Container>, budget: &Budget) -> Result<ParsedModel> {
    const READER: Gated<ArchiveReader> =
        gated!(any(feature = "npz", feature = "pth"), "npz` and `pth", archive::read);
    READER.require(ZIP)?(source, expected, budget)
}

/// Tells the format of a ZIP archive.
fn zip_format(file: &mut dyn ReadAt) -> Result<Container> {
    const DETECTOR: Gated<fn(&mut dyn ReadAt) -> Result<Container>> =
        gated!(any(feature = "npz", feature = "pth"), "npz` and `pth", archive::format);
    DETECTOR.require(ZIP)?(file)
}

#[cfg(any(feature = "npz", feature = "pth"))]
mod archive {
    use super::*;
    use crate::parse::zip::ZipArchive;

    pub(super) fn format(file: &mut dyn ReadAt) -> Result<Container> {
        let archive = ZipArchive::read(file, &Budget::unbounded())?;
        archive.format().ok_or_else(|| archive.neither())
    }

    pub(super) fn read(
        source: Source,
        expected: Option<Container>,
        budget: &Budget,
    ) -> Result<ParsedModel> {
        let archive = ZipArchive::read(&mut &source, budget)?;
        let format = archive.format().ok_or_else(|| archive.neither())?;
        if let Some(expected) = expected.filter(|&expected| expected != format) {
            return Err(format.refused_as(expected));
        }
        match format {
            #[cfg(feature = "npz")]
            Container::Npz => {
                crate::parse::npz::read_archive(&source, &mut &source, &archive, budget)
            }
            #[cfg(feature = "pth")]
            Container::Pth => crate::parse::pth::read_archive(source, &archive, budget),
            #[cfg(feature = "hdf5")]
            Container::Hdf5 => crate::parse::hdf5::read_archive(&source, &archive, budget),
            #[cfg(feature = "tflite")]
            Container::Tflite => crate::parse::tflite::read_archive(&source, &archive, budget),
            #[cfg(not(feature = "tflite"))]
            Container::Tflite => Err(AnamnesisError::missing_feature("LiteRT", "tflite")),
            #[cfg(not(feature = "hdf5"))]
            Container::Hdf5 => Err(AnamnesisError::missing_feature("Keras", "hdf5")),
            _ => Err(AnamnesisError::missing_feature(ZIP, "npz` and `pth")),
        }
    }
}
