//! [`scan_pickles`]: everything in a file that Python's unpickler would be given, graded.

use std::path::Path;

use super::{PickleGlobal, PickleRisk, collect_globals, distributed};
use crate::containers::parse::detect_format;
#[cfg(feature = "npz")]
use crate::containers::parse::parse_with_limits;
use crate::containers::parse::zip::ZipArchive;
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, Container, ParseLimits, Result};

/// Endings of file names that programs unpickle without a look at the content.
const PICKLE_ENDINGS: &[&str] = &[
    "pkl", "pickle", "pt", "pth", "ckpt", "bin", "joblib", "dat", "data",
];

/// What a file holds for Python's unpickler.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PickleScan {
    /// The worst that was found.
    pub risk: PickleRisk,
    /// Every global that is named, once each, with its risk.
    pub globals: Vec<GradedGlobal>,
    /// What was found besides, and what could not be looked into. Any makes the file suspicious.
    pub remarks: Vec<String>,
}

/// A global that a pickle names, and what it could do.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct GradedGlobal {
    /// The global.
    #[serde(flatten)]
    pub global: PickleGlobal,
    /// What it could do to somebody who unpickles the file.
    pub risk: PickleRisk,
}

/// Grades what a file could do to somebody who opens it with Python: the globals of its pickles,
/// arrays of objects in NumPy files, code beside pickles in archives. A file of another kind, such
/// as safetensors, holds nothing to unpickle and is safe. Nothing is imported or called.
///
/// ```
/// use anamnesis::{PickleRisk, scan_pickles};
///
/// # fn main() -> anamnesis::Result<()> {
/// let limits = anamnesis::ParseLimits::default();
/// assert_eq!(scan_pickles("tests/data/demo/checkpoint.pth", &limits)?.risk, PickleRisk::Safe);
/// assert_eq!(scan_pickles("tests/data/demo/model-fp8.safetensors", &limits)?.risk, PickleRisk::Safe);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `LimitExceeded`, since globals behind a limit would stay hidden; `Io`.
pub fn scan_pickles(path: impl AsRef<Path>, limits: &ParseLimits) -> Result<PickleScan> {
    let path = path.as_ref();
    let (mut named, mut remarks) = (Vec::new(), Vec::new());
    let source = Source::open(path)?;
    // The content decides what is read. What torch and NumPy take for something else is not
    // unpickled by them.
    let format = detect_format(path);
    let is_distributed = path.extension().is_some_and(|ending| ending == "distcp");
    let begins_as_pickle = format.is_err() && begins_with(&source, &[0x80]);
    if is_distributed {
        match distributed::collect_globals(&source, &mut named, limits) {
            Err(e @ (AnamnesisError::LimitExceeded { .. } | AnamnesisError::Io(_))) => {
                return Err(e);
            }
            Err(e) => remarks.push(format!("what its archives hold is unknown: {e}")),
            Ok(()) => {}
        }
    } else if begins_as_pickle || matches!(format, Ok(Container::Pth)) {
        match collect_globals(&source, &mut named, limits) {
            Err(e @ (AnamnesisError::LimitExceeded { .. } | AnamnesisError::Io(_))) => {
                return Err(e);
            }
            Err(e) => remarks.push(format!("what follows in its pickle is unknown: {e}")),
            Ok(()) => {}
        }
        remarks.extend(other_members(&source, limits)?);
    } else {
        match format {
            Ok(Container::Npz | Container::Npy) => remarks.extend(object_arrays(path, limits)?),
            Ok(_) => {}
            Err(AnamnesisError::Io(e)) => return Err(AnamnesisError::Io(e)),
            Err(e) => remarks.extend(has_pickle_ending(path).then(|| {
                format!("a file of this name may be unpickled, and its content is unknown: {e}")
            })),
        }
    }
    let globals: Vec<_> = named
        .into_iter()
        .map(|global: PickleGlobal| {
            let risk = global.risk();
            GradedGlobal { global, risk }
        })
        .collect();
    let worst = globals.iter().map(|graded| graded.risk).max();
    let remarked = (!remarks.is_empty()).then_some(PickleRisk::Suspicious);
    Ok(PickleScan {
        risk: worst.max(remarked).unwrap_or(PickleRisk::Safe),
        globals,
        remarks,
    })
}

/// Whether the file begins with `bytes`, at most four.
fn begins_with(source: &Source, bytes: &[u8]) -> bool {
    let mut head = [0; 4];
    let head = &mut head[..bytes.len().min(4)];
    source.read_at(0, head).is_ok() && head == bytes
}

fn has_pickle_ending(path: &Path) -> bool {
    let ending = path.extension().map(|e| e.to_ascii_lowercase());
    ending.is_some_and(|ending| PICKLE_ENDINGS.iter().any(|known| ending == *known))
}

/// Members of a torch archive that hold code, or pickles that only some functions of torch open.
fn other_members(source: &Source, limits: &ParseLimits) -> Result<Option<String>> {
    if !begins_with(source, b"PK\x03\x04") {
        return Ok(None);
    }
    let archive = match ZipArchive::read(&mut &*source, &Budget::new(limits)) {
        Ok(archive) => archive,
        Err(e @ (AnamnesisError::LimitExceeded { .. } | AnamnesisError::Io(_))) => return Err(e),
        // The pickle's own error says the same.
        Err(_) => return Ok(None),
    };
    let main = archive.pickle().map(|member| member.name.as_str());
    let is_other = |name: &&str| {
        let ending = name.rsplit('.').next().unwrap_or_default();
        Some(*name) != main && matches!(ending, "pkl" | "pickle" | "py")
    };
    let names = archive.members.iter().map(|member| member.name.as_str());
    let others: Vec<_> = names.filter(is_other).take(3).collect();
    Ok((!others.is_empty()).then(|| {
        format!(
            "the archive has code or pickles that were not looked into, as TorchScript has: {}, …",
            others.join(", ")
        )
    }))
}

/// The arrays of objects, which NumPy unpickles with `allow_pickle=True`.
#[cfg(feature = "npz")]
fn object_arrays(path: &Path, limits: &ParseLimits) -> Result<Option<String>> {
    let model = match parse_with_limits(path, limits) {
        Ok(model) => model,
        Err(e @ (AnamnesisError::LimitExceeded { .. } | AnamnesisError::Io(_))) => return Err(e),
        Err(e) => return Ok(Some(format!("its content is unknown: {e}"))),
    };
    let objects = model
        .skipped_arrays()
        .filter(|(_, what)| what.contains("|O"));
    let names: Vec<_> = objects.map(|(name, _)| name).take(3).collect();
    Ok((!names.is_empty()).then(|| {
        format!(
            "arrays of pickled objects, which were not looked into: {}, …",
            names.join(", ")
        )
    }))
}

#[cfg(not(feature = "npz"))]
fn object_arrays(_: &Path, _: &ParseLimits) -> Result<Option<String>> {
    Ok(Some("this build cannot read arrays".to_owned()))
}
