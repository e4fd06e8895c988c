//! Detects the container of a file: one row for each format. The content decides, and never the file's name.

use std::path::Path;

use super::safetensors;
use crate::ParsedModel;
use crate::features::{Gated, gated};
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Reads the header of a file.
type HeaderReader = fn(Source, Option<&Path>, &Budget) -> Result<ParsedModel>;

/// A container format.
pub(super) struct ContainerFormat {
    /// What the error of a build without its reader calls it.
    title: &'static str,
    /// Whether a file with these first bytes is of the format. They are [`HEAD`] bytes, or the whole file if it is shorter.
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
}

/// Bytes that the detection reads: a tar archive has its magic at offset 257.
const HEAD: usize = 512;

/// Every container that is recognised, in the order of the checks. safetensors comes first: it begins with a length, whose
/// bytes can be the magic of another format, but then with JSON, which no other format has there. It comes last once more,
/// so that its reader reports what is wrong with a file of no known format.
const FORMATS: &[ContainerFormat] = &[
    ContainerFormat {
        title: "safetensors",
        matches: |head| matches!(head, [_, _, _, _, 0, 0, 0, 0, b'{', ..]),
        reader: Gated::always(safetensors::read),
    },
    ContainerFormat {
        title: "GGUF",
        matches: |head| head.starts_with(b"GGUF"),
        reader: gated!("gguf", super::gguf::read),
    },
    ContainerFormat {
        title: "NPZ or PyTorch ZIP archive",
        matches: |head| {
            matches!(
                head,
                [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] | [b'P', b'K', 6, 6, ..]
            )
        },
        reader: gated!(
            any(feature = "npz", feature = "pth"),
            "npz` and `pth",
            read_zip
        ),
    },
    ContainerFormat {
        title: "QNAT",
        matches: |head| head.starts_with(b"QNAT"),
        reader: Gated::always(super::qnat::read),
    },
    ContainerFormat {
        title: "NumPy array (.npy)",
        matches: |head| head.starts_with(b"\x93NUMPY"),
        reader: gated!("npz", super::npz::read_npy),
    },
    ContainerFormat {
        title: "Python pickle",
        matches: |head| matches!(head, [0x80, 2..=5, ..]),
        reader: gated!("pth", super::pth::read_pickles),
    },
    ContainerFormat {
        title: "PyTorch checkpoint (tar)",
        matches: |head| head.get(257..262) == Some(b"ustar"),
        reader: gated!("pth", super::pth::read_tar),
    },
    ContainerFormat {
        title: "safetensors",
        matches: |_| true,
        reader: Gated::always(safetensors::read),
    },
];

/// Reads the first bytes of `source` and returns its format.
pub(super) fn detect(source: &Source) -> Result<&'static ContainerFormat> {
    let mut head = [0; HEAD];
    let n = source.len().unwrap_or(0).min(HEAD as u64) as usize;
    source.read_at(0, &mut head[..n])?;
    let found = FORMATS.iter().find(|f| (f.matches)(&head[..n]));
    found.ok_or_else(|| AnamnesisError::parse("not a model file"))
}

/// Reads a ZIP archive: an NPZ file if a member is named like an array (or if it is empty), else a checkpoint.
#[cfg(any(feature = "npz", feature = "pth"))]
fn read_zip(source: Source, _path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let archive = super::zip::ZipArchive::read(&mut &source, budget)?;
    #[cfg(feature = "npz")]
    if super::npz::is_npz(&archive) || archive.members.is_empty() {
        return super::npz::read_archive(&source, &mut &source, &archive, budget);
    }
    #[cfg(feature = "pth")]
    if super::pth::is_checkpoint(&archive) {
        return super::pth::read_archive(source, &archive, budget);
    }
    if cfg!(all(feature = "npz", feature = "pth")) {
        return Err(AnamnesisError::unsupported(
            "ZIP archive",
            "neither NPZ nor a PyTorch checkpoint",
        ));
    }
    Err(AnamnesisError::missing_feature(
        "NPZ or PyTorch ZIP archive",
        "npz` and `pth",
    ))
}
