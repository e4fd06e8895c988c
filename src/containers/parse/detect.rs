//! Which container a file is: one row a format, decided by content and never by the file's name.

use std::path::Path;

use super::safetensors;
use crate::ParsedModel;
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// A container format.
pub(super) struct Format {
    /// Whether a file that begins like this is of the format. [`HEAD`] bytes, or all that there are.
    matches: fn(&[u8]) -> bool,
    /// Reads the header.
    pub read: fn(Source, Option<&Path>, &Budget) -> Result<ParsedModel>,
}

/// Bytes that tell the format.
const HEAD: usize = 512;

/// Every container that is recognised, in order of preference. A safetensors file begins with a length,
/// which can look like any of the others, and then with JSON, which cannot.
const FORMATS: &[Format] = &[
    Format {
        matches: |head| matches!(head, [_, _, _, _, 0, 0, 0, 0, b'{', ..]),
        read: safetensors::read,
    },
    Format {
        matches: |head| head.starts_with(b"GGUF"),
        #[cfg(feature = "gguf")]
        read: super::gguf::read,
        #[cfg(not(feature = "gguf"))]
        read: |_, _, _| unreadable("GGUF", "gguf"),
    },
    Format {
        matches: |head| {
            matches!(
                head,
                [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] | [b'P', b'K', 6, 6, ..]
            )
        },
        read: read_zip,
    },
    Format {
        matches: |head| head.starts_with(b"QNAT"),
        #[cfg(feature = "qnat")]
        read: super::qnat::read,
        #[cfg(not(feature = "qnat"))]
        read: |_, _, _| unreadable("QNAT", "qnat"),
    },
    Format {
        matches: |head| head.starts_with(b"\x93NUMPY"),
        #[cfg(feature = "npz")]
        read: super::npz::read_npy,
        #[cfg(not(feature = "npz"))]
        read: |_, _, _| unreadable("NumPy array (.npy)", "npz"),
    },
    Format {
        matches: |head| matches!(head, [0x80, 2..=5, ..]),
        #[cfg(feature = "pth")]
        read: super::pth::read_pickles,
        #[cfg(not(feature = "pth"))]
        read: |_, _, _| unreadable("Python pickle", "pth"),
    },
    Format {
        matches: |head| head.get(257..262) == Some(b"ustar"),
        #[cfg(feature = "pth")]
        read: super::pth::read_tar,
        #[cfg(not(feature = "pth"))]
        read: |_, _, _| unreadable("PyTorch checkpoint (tar)", "pth"),
    },
    Format {
        matches: |_| true,
        read: safetensors::read,
    },
];

/// The format of `source`.
pub(super) fn detect(source: &Source) -> Result<&'static Format> {
    let mut head = [0; HEAD];
    let n = source.len().unwrap_or(0).min(HEAD as u64) as usize;
    source.read_at(0, &mut head[..n])?;
    let found = FORMATS.iter().find(|f| (f.matches)(&head[..n]));
    found.ok_or_else(|| AnamnesisError::parse("not a model file"))
}

/// A ZIP archive is what its members make it.
#[cfg(any(feature = "npz", feature = "pth"))]
fn read_zip(source: Source, _path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let archive = super::zip::Archive::read(&mut &source, budget)?;
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

#[allow(dead_code)] // with every feature there is nothing that cannot be read
fn unreadable(name: &str, feature: &str) -> Result<ParsedModel> {
    let detail = format!("needs the feature `{feature}`, which this build leaves out");
    Err(AnamnesisError::unsupported(name, detail))
}
