//! [`Derived`]: a tensor whose bytes no file has as they are, and that are made of a file's while they
//! are read. Reading takes constant memory, at any place.

mod repeated;
mod sparse;

pub(crate) use self::repeated::{FieldPlace, NumberKind, RepeatedField};
pub(crate) use self::sparse::SparseValues;
use super::Source;
use crate::Result;

/// A tensor that is made of what a file has.
#[derive(Debug)]
pub(crate) enum Derived {
    /// The numbers of a repeated field of a message.
    Repeated(RepeatedField),
    /// The values of a sparse tensor, with zeros between them.
    Sparse(SparseValues),
}

impl Derived {
    /// Bytes of the tensor.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Repeated(field) => field.len(),
            Self::Sparse(values) => values.len(),
        }
    }

    /// The source that the bytes are made of.
    pub(super) fn base(&self) -> &Source {
        match self {
            Self::Repeated(field) => field.base(),
            Self::Sparse(values) => values.base(),
        }
    }

    /// Fills `out` with the tensor's bytes from `offset` on.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self {
            Self::Repeated(field) => field.read_at(offset, out),
            Self::Sparse(values) => values.read_at(offset, out),
        }
    }
}
