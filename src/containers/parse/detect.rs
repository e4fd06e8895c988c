//! Detects the container of a file: one row for each format. The content decides, and never the file's name.

use std::path::Path;

use super::safetensors;
use crate::ParsedModel;
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// A container format.
pub(super) struct ContainerFormat {
    /// Whether a file with these first bytes is of the format. They are [`HEAD`] bytes, or the whole file if it is shorter.
    matches: fn(&[u8]) -> bool,
    /// Reads the header.
    pub read: fn(Source, Option<&Path>, &Budget) -> Result<ParsedModel>,
}

/// Bytes that the detection reads: a tar archive has its magic at offset 257.
const HEAD: usize = 512;

/// Every container that is recognised, in the order of the checks. safetensors comes first: it begins with a length, whose
/// bytes can be the magic of another format, but then with JSON, which no other format has there. It comes last once more,
/// so that its reader reports what is wrong with a file of no known format.
const FORMATS: &[ContainerFormat] = &[
    ContainerFormat {
        matches: |head| matches!(head, [_, _, _, _, 0, 0, 0, 0, b'{', ..]),
        read: safetensors::read,
    },
    ContainerFormat {
        matches: |head| head.starts_with(b"GGUF"),
        #[cfg(feature = "gguf")]
        read: super::gguf::read,
        #[cfg(not(feature = "gguf"))]
        read: |_, _, _| unreadable("GGUF", "gguf"),
    },
    ContainerFormat {
        matches: |head| {
            matches!(
                head,
                [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] | [b'P', b'K', 6, 6, ..]
            )
        },
        read: read_zip,
    },
    ContainerFormat {
        matches: |head| head.starts_with(b"QNAT"),
        read: super::qnat::read,
    },
    ContainerFormat {
        matches: |head| head.starts_with(b"\x93NUMPY"),
        #[cfg(feature = "npz")]
        read: super::npz::read_npy,
        #[cfg(not(feature = "npz"))]
        read: |_, _, _| unreadable("NumPy array (.npy)", "npz"),
    },
    ContainerFormat {
        matches: |head| matches!(head, [0x80, 2..=5, ..]),
        #[cfg(feature = "pth")]
        read: super::pth::read_pickles,
        #[cfg(not(feature = "pth"))]
        read: |_, _, _| unreadable("Python pickle", "pth"),
    },
    ContainerFormat {
        matches: |head| head.get(257..262) == Some(b"ustar"),
        #[cfg(feature = "pth")]
        read: super::pth::read_tar,
        #[cfg(not(feature = "pth"))]
        read: |_, _, _| unreadable("PyTorch checkpoint (tar)", "pth"),
    },
    ContainerFormat {
        matches: |_| true,
        read: safetensors::read,
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
    unreadable("NPZ or PyTorch ZIP archive", "npz` and `pth")
}

#[cfg(not(any(feature = "npz", feature = "pth")))]
fn read_zip(_source: Source, _path: Option<&Path>, _budget: &Budget) -> Result<ParsedModel> {
    unreadable("NPZ or PyTorch ZIP archive", "npz` and `pth")
}

/// The error for a container whose feature is left out of this build.
#[allow(dead_code)] // with every feature there is nothing that cannot be read
fn unreadable(name: &str, feature: &str) -> Result<ParsedModel> {
    let detail = format!("needs the feature `{feature}`, which this build leaves out");
    Err(AnamnesisError::unsupported(name, detail))
}
