//! [`ParsedPth`]: a PyTorch checkpoint, for callers who expect no other container. It wraps a
//! [`ParsedModel`].

mod front;

use std::borrow::Cow;
use std::path::Path;

pub use self::front::{
    PthFrontMatter, PthInspectInfo, PthTensorInfo, inspect_pth_from_reader,
    inspect_pth_from_reader_with_limits, parse_pth_front_matter_from_reader,
    parse_pth_front_matter_from_reader_with_limits,
};
use super::whole::{WholeTensor, to_bytes, to_file};
use crate::limits::Budget;
use crate::parse::{parse_bytes_only, parse_only};
use crate::{Container, ConvertOptions, ConvertTarget, Dtype, ParseLimits, ParsedModel, Result};

/// Element type of a tensor: the crate's one [`Dtype`].
pub type PthDtype = Dtype;

/// A tensor of a checkpoint.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PthTensor<'a> {
    /// Path in the checkpoint's dicts and lists, joined with dots.
    pub name: String,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: PthDtype,
    /// Elements, little-endian and row-major; borrowed if the file stores them like this.
    pub data: Cow<'a, [u8]>,
}

impl<'a> PthTensor<'a> {
    /// Makes a tensor, to be written with [`pth_to_safetensors`].
    #[must_use]
    pub const fn new(
        name: String,
        shape: Vec<usize>,
        dtype: PthDtype,
        data: Cow<'a, [u8]>,
    ) -> Self {
        Self { name, shape, dtype, data }
    }
}

/// A PyTorch checkpoint.
#[derive(Debug)]
pub struct ParsedPth {
    model: ParsedModel,
}

/// Parses a PyTorch checkpoint: a ZIP archive, a legacy file or a tar file. No tensor data is read.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let checkpoint = anamnesis::parse_pth("tests/data/demo/checkpoint.pth")?;
/// for tensor in checkpoint.tensors()? {
///     println!("{} {} {:?} {} bytes", tensor.name, tensor.dtype, tensor.shape, tensor.data.len());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errors of [`parse`](crate::parse()); `Unsupported` if the file is of another container, or
/// if a tensor is of a kind that is not read.
pub fn parse_pth(path: impl AsRef<Path>) -> Result<ParsedPth> {
    parse_pth_with_limits(path, &ParseLimits::default())
}

/// Parses a PyTorch checkpoint as [`parse_pth`] does, within `limits`.
///
/// # Errors
/// The errors of [`parse_pth`]; `LimitExceeded` if the checkpoint exceeds `limits`.
pub fn parse_pth_with_limits(path: impl AsRef<Path>, limits: &ParseLimits) -> Result<ParsedPth> {
    ParsedPth::new(parse_only(path.as_ref(), Container::Pth, limits)?)
}

/// Parses a PyTorch checkpoint in memory.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let pth = anamnesis::parse_pth_bytes(std::fs::read("tests/data/demo/checkpoint.pth")?)?;
/// assert!(!pth.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errors of [`parse_pth`], without `Io`.
pub fn parse_pth_bytes(bytes: Vec<u8>) -> Result<ParsedPth> {
    parse_pth_bytes_with_limits(bytes, &ParseLimits::default())
}

/// Parses a PyTorch checkpoint in memory as [`parse_pth_bytes`] does, within `limits`.
///
/// # Errors
/// The errors of [`parse_pth_bytes`]; `LimitExceeded` if the checkpoint exceeds `limits`.
pub fn parse_pth_bytes_with_limits(bytes: Vec<u8>, limits: &ParseLimits) -> Result<ParsedPth> {
    ParsedPth::new(parse_bytes_only(bytes, Container::Pth, limits)?)
}

impl ParsedPth {
    fn new(model: ParsedModel) -> Result<Self> {
        match model.skipped.first() {
            Some(skipped) => Err(skipped.error()),
            None => Ok(Self { model }),
        }
    }

    /// Number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.model.tensors.len()
    }

    /// Whether the checkpoint has no tensors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.model.tensors.is_empty()
    }

    /// The wrapped model.
    #[must_use]
    pub fn model(&self) -> &ParsedModel {
        &self.model
    }

    /// Summarises the checkpoint.
    #[must_use]
    pub fn inspect(&self) -> PthInspectInfo {
        let info = self.model.inspect();
        PthInspectInfo::new(&info, info.big_endian)
    }

    /// Name, shape, dtype and length of every tensor, in the order of the checkpoint.
    #[must_use]
    pub fn tensor_info(&self) -> Vec<PthTensorInfo> {
        self.model.tensors.iter().map(PthTensorInfo::of).collect()
    }

    /// Every tensor with its data, in the order of the checkpoint. Storages that tensors view are
    /// not read here, and not compared with their checksums:
    /// [`verify_checksums`](Self::verify_checksums) does that, and so do
    /// [`to_safetensors`](Self::to_safetensors) and all conversions.
    ///
    /// # Errors
    /// `Io` if the file cannot be read; `Parse` if compressed data is malformed; `LimitExceeded` if
    /// the tensors take more memory than the limits allow.
    pub fn tensors(&self) -> Result<Vec<PthTensor<'_>>> {
        fn tensor(t: crate::Tensor<'_>) -> Result<PthTensor<'_>> {
            let (name, shape, dtype) = (t.name().to_owned(), t.shape().to_vec(), t.dtype());
            Ok(PthTensor { name, shape, dtype, data: t.bytes()? })
        }
        Budget::new(&self.model.limits).grow(self.model.tensor_bytes(), "the tensors")?;
        self.model.tensors().map(tensor).collect()
    }

    /// Compares every storage with its checksum, once however many tensors share it; see
    /// [`ParsedModel::verify_checksums`].
    ///
    /// # Errors
    /// `Parse` that names the first tensor of a storage whose checksum is wrong; `Io`.
    pub fn verify_checksums(&self) -> Result<()> {
        self.model.verify_checksums()
    }

    /// Writes the tensors as a safetensors file, in constant memory; an older file is replaced.
    /// Every tensor is copied as it is stored: nothing is decoded, left out or refused because of a
    /// quantization scheme, for which there are [`ParsedModel::remember`] and
    /// [`ParsedModel::convert`]. Checksums are compared.
    ///
    /// # Errors
    /// `Unsupported` if safetensors has no such element type; `Parse` if a checksum is wrong;
    /// `LimitExceeded`; `Io`.
    pub fn to_safetensors(&self, path: impl AsRef<Path>) -> Result<()> {
        self.model
            .convert(path, ConvertOptions::copying(ConvertTarget::Safetensors))
            .map(drop)
    }

    /// Returns the bytes of the safetensors file that [`to_safetensors`](Self::to_safetensors)
    /// writes.
    ///
    /// # Errors
    /// The errors of reading the checkpoint; `LimitExceeded` if the output does not fit.
    pub fn to_safetensors_bytes(&self) -> Result<Vec<u8>> {
        let options = ConvertOptions::copying(ConvertTarget::Safetensors);
        self.model.plan(options)?.to_bytes()
    }
}

/// Writes tensors in memory as a safetensors file; an older file is replaced.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("checkpoint.safetensors");
/// let checkpoint = anamnesis::parse_pth("tests/data/demo/checkpoint.pth")?;
/// anamnesis::pth_to_safetensors(&checkpoint.tensors()?, &path)?;
/// assert_eq!(anamnesis::parse(&path)?.tensors().len(), checkpoint.len());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` that names a tensor whose data does not fit its shape; `Io`.
pub fn pth_to_safetensors(tensors: &[PthTensor<'_>], path: impl AsRef<Path>) -> Result<()> {
    to_file(&whole(tensors), path.as_ref())
}

/// Returns the bytes of the safetensors file that [`pth_to_safetensors`] writes.
///
/// # Errors
/// `Parse` that names a tensor whose data does not fit its shape; `LimitExceeded` if the output
/// does not fit.
pub fn pth_to_safetensors_bytes(tensors: &[PthTensor<'_>]) -> Result<Vec<u8>> {
    to_bytes(&whole(tensors))
}

fn whole<'a>(tensors: &'a [PthTensor<'_>]) -> Vec<WholeTensor<'a>> {
    let tensor = |t: &'a PthTensor<'_>| WholeTensor {
        name: &t.name,
        shape: &t.shape,
        dtype: t.dtype,
        data: &t.data,
    };
    tensors.iter().map(tensor).collect()
}
