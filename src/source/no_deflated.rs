//! Stands in for `deflated` in a build without ZIP archives: a type without values.

use std::io::Empty;
use std::path::Path;

use crate::Result;

/// A deflated range of another source. It has no values in this build.
#[derive(Debug)]
pub(crate) enum Deflated {}

impl Deflated {
    pub(crate) fn len(&self) -> u64 {
        match *self {}
    }

    pub(super) fn path(&self) -> Option<&Path> {
        match *self {}
    }

    pub(super) fn require_unchanged(&self) -> Result<()> {
        match *self {}
    }

    pub(crate) fn stream(&self) -> Empty {
        match *self {}
    }

    pub(super) fn read_at(&self, _offset: u64, _out: &mut [u8]) -> Result<()> {
        match *self {}
    }
}
