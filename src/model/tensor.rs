//! [`Tensor`], one stored tensor of a model.

use std::borrow::Cow;
use std::path::Path;

use super::{Container, ParsedModel, Part, TensorInfo};
use crate::error::InTensor;
use crate::limits::{Budget, zeroed};
use crate::source::Source;
use crate::{AnamnesisError, Dtype, Result};

/// A stored tensor, as it lies in the container.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'m> {
    pub(crate) model: &'m ParsedModel,
    pub(crate) index: usize,
}

impl<'m> Tensor<'m> {
    pub(crate) fn info(&self) -> &'m TensorInfo {
        &self.model.tensors[self.index]
    }

    /// Name, as stored.
    #[must_use]
    pub fn name(&self) -> &'m str {
        &self.info().name
    }

    /// Element type, as stored.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.info().dtype
    }

    /// Shape, outermost dimension first (GGUF files have it the other way round).
    #[must_use]
    pub fn shape(&self) -> &'m [usize] {
        &self.info().shape
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        // The container's validation proved that the product times the width fits.
        self.shape().iter().product()
    }

    /// Length of the bytes.
    #[must_use]
    pub fn byte_len(&self) -> u64 {
        self.info().len
    }

    /// The bytes, little-endian and row-major, without a copy where they are stored like this.
    ///
    /// A storage of a checkpoint is not compared with its checksum, for that reads all of it: see
    /// [`verify_checksum`](Self::verify_checksum). Conversions compare it. Arrays of NPZ archives
    /// are compared here.
    ///
    /// # Errors
    /// If only the header was read, the file cannot be mapped, compressed data is malformed, or an
    /// array's checksum is wrong.
    pub fn bytes(&self) -> Result<Cow<'m, [u8]>> {
        let (info, part) = (self.info(), self.part());
        if info.has_unknown_order() {
            let what =
                format!("{}: no byte order is defined for {}", InTensor(&info.name), info.dtype);
            return Err(AnamnesisError::unsupported("big-endian GGUF", what));
        }
        // A storage may be far larger than a view of it, and shared by many. An NPZ member is one
        // array; a compressed one is compared when it is decompressed.
        if self.model.container != Container::Pth && !part.is_deflated() {
            part.verify()?;
        }
        if part.is_verbatim() && !self.source().is_copied_to_be_viewed() {
            let range = info.offset..info.offset + info.len;
            return self.source().view(range).map_err(|error| part.named(error));
        }
        Budget::new(&self.model.limits).alloc(info.len, InTensor(&info.name))?;
        let mut bytes = zeroed(info.len, "a tensor")?;
        part.read_at(0, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    /// Compares the tensor's stored bytes with their checksum, if the container has one: CRC-32 in
    /// NPZ and PyTorch archives. Reads the whole member, which is a storage in a checkpoint and may
    /// be longer than the tensor. For all tensors, [`ParsedModel::verify_checksums`] reads each
    /// storage once.
    ///
    /// # Errors
    /// `Parse` that names the tensor, if the checksum is wrong; `Io`.
    pub fn verify_checksum(&self) -> Result<()> {
        self.part().verify()
    }

    /// Path of the file that holds the tensor, as it was opened: of a model in several files, one
    /// of these. `None` if the model was parsed from memory or a reader, or the tensor is in
    /// several pieces.
    #[must_use]
    pub fn file(&self) -> Option<&'m Path> {
        self.source().path()
    }

    /// Offset in its file, or in the parsed bytes, of the tensor's first element. `None` if it is
    /// nowhere in the file as it is: in a compressed member of an archive, in several pieces, or as
    /// numbers of variable length.
    ///
    /// The elements follow as [`bytes`](Self::bytes) gives them, unless the file is big-endian or
    /// stores a view with strides.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        let part = self.part();
        (!part.is_deflated() && !part.has_no_place()).then_some(self.info().offset)
    }

    /// Where the bytes are, for positional reads.
    pub(crate) fn part(&self) -> Part<'m> {
        Part { source: self.source(), info: self.info() }
    }

    fn source(&self) -> &'m Source {
        &self.model.sources[self.info().source]
    }
}
