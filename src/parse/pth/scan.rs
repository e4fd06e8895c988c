//! [`scan_pickles`]: everything in a file that Python's unpickler would be given, graded.
//!
//! The content decides what is looked into, and a name only adds to it: whatever a file begins with,
//! `pickle.load` takes its first byte for an opcode. So a pickle is run at the beginning of every
//! file and of every member of an archive. Where it ends in an error of Python's before anything was
//! called, nothing happens. What a program might follow and this module does not is a remark, which
//! makes the file suspicious.

mod archives;
mod content;
mod kinds;
mod pickles;
mod tar_files;
mod unpack;

use std::collections::HashSet;
use std::path::Path;

use self::content::Item;
use super::{PickleGlobal, PickleRisk};
use crate::limits::{Budget, join_first};
use crate::source::Source;
use crate::{AnamnesisError, ParseLimits, Result};

/// Most names that a remark lists.
const MAX_LISTED: usize = 3;

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

impl PickleScan {
    /// The result for what was not looked into, with the reason.
    #[must_use]
    pub fn of_unread(reason: impl Into<String>) -> Self {
        Self { risk: PickleRisk::Suspicious, globals: vec![], remarks: vec![reason.into()] }
    }
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
/// wherever they lie (arrays of objects, members of archives, compressed streams), programs, and
/// content that cannot be looked into. A file of weights, such as safetensors, holds nothing to
/// unpickle and is safe. Nothing is imported or called.
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
/// `LimitExceeded` by a limit of the caller's, since globals behind it would stay hidden; `Io`.
pub fn scan_pickles(path: impl AsRef<Path>, limits: &ParseLimits) -> Result<PickleScan> {
    let path = path.as_ref();
    let source = Source::open(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let budget = Budget::new(limits);
    let mut scanner = Scanner {
        budget: &budget,
        globals: Vec::new(),
        seen: HashSet::new(),
        remarks: Vec::new(),
        unpacked: 0,
    };
    scanner.content(&mut &source, &Item::file(&name))?;
    Ok(scanner.finish())
}

/// Something that makes a file suspicious, and the members of which it is said.
struct Remark {
    what: String,
    members: Vec<String>,
}

/// What has been found so far.
struct Scanner<'a> {
    budget: &'a Budget,
    globals: Vec<GradedGlobal>,
    /// Modules and names of `globals`.
    seen: HashSet<(String, String)>,
    remarks: Vec<Remark>,
    /// Bytes that compressed content has become.
    unpacked: u64,
}

impl Scanner<'_> {
    /// Notes something that makes `item` suspicious.
    fn remark(&mut self, what: impl Into<String>, item: &Item<'_>) {
        let what = what.into();
        let known = self.remarks.iter().position(|remark| remark.what == what);
        let at = known.unwrap_or_else(|| {
            let members = Vec::new();
            self.remarks.push(Remark { what, members });
            self.remarks.len() - 1
        });
        if item.depth > 0 {
            self.remarks[at].members.push(item.label.clone());
        }
    }

    /// Turns an error of content into a remark, which begins with `what`.
    ///
    /// # Errors
    /// Those of the caller's limits and of the system.
    fn tolerate<T>(&mut self, result: Result<T>, what: &str, item: &Item<'_>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(AnamnesisError::Io(e)) => Err(AnamnesisError::Io(e)),
            Err(AnamnesisError::LimitExceeded { limit, message })
                if limit.starts_with(|c: char| c.is_ascii_lowercase()) =>
            {
                Err(AnamnesisError::LimitExceeded { limit, message })
            }
            Err(error) => {
                self.remark(format!("{what}: {error}"), item);
                Ok(None)
            }
        }
    }

    /// Adds a global, unless it is there.
    fn add(&mut self, global: PickleGlobal) {
        if self
            .seen
            .insert((global.module.clone(), global.name.clone()))
        {
            let risk = global.risk();
            self.globals.push(GradedGlobal { global, risk });
        }
    }

    fn finish(self) -> PickleScan {
        let remarks: Vec<String> = self
            .remarks
            .into_iter()
            .map(|remark| match remark.members {
                members if members.is_empty() => remark.what,
                members => format!("{}: {}", remark.what, join_first(&members, MAX_LISTED)),
            })
            .collect();
        let worst = self.globals.iter().map(|graded| graded.risk).max();
        let remarked = (!remarks.is_empty()).then_some(PickleRisk::Suspicious);
        PickleScan {
            risk: worst.max(remarked).unwrap_or(PickleRisk::Safe),
            globals: self.globals,
            remarks,
        }
    }
}
