//! [`parse_npz`] and its companions: all arrays of an NPZ archive in memory.

mod front;

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::path::Path;

pub use self::front::{
    NpzInspectInfo, NpzTensorInfo, inspect_npz, inspect_npz_from_reader,
    inspect_npz_from_reader_with_limits, inspect_npz_with_limits,
};
use super::whole::{WholeTensor, to_bytes, to_file};
use crate::limits::Budget;
use crate::parse::{parse_bytes_only, parse_only};
use crate::sort::sort_by_key;
use crate::{Container, Dtype, ParseLimits, ParsedModel, Result};

/// Element type of an array: the crate's one [`Dtype`].
pub type NpzDtype = Dtype;

/// An array in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NpzTensor {
    /// Name, without `.npy`.
    pub name: String,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: NpzDtype,
    /// Elements, little-endian and row-major.
    pub data: Vec<u8>,
}

impl NpzTensor {
    /// Makes an array, to be written with [`npz_to_safetensors`].
    #[must_use]
    pub const fn new(name: String, shape: Vec<usize>, dtype: NpzDtype, data: Vec<u8>) -> Self {
        Self { name, shape, dtype, data }
    }
}

/// Reads every array of an NPZ archive into memory, by name. [`parse`](crate::parse()) reads their
/// headers alone, and other containers too.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// for (name, array) in anamnesis::parse_npz("tests/data/demo/arrays.npz")? {
///     println!("{name} {} {:?} {} bytes", array.dtype, array.shape, array.data.len());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errors of [`parse`](crate::parse()); `Unsupported` if the file is no NPZ archive, or if an
/// array has elements that no tensor can hold.
pub fn parse_npz(path: impl AsRef<Path>) -> Result<HashMap<String, NpzTensor>> {
    parse_npz_with_limits(path, &ParseLimits::default())
}

/// Reads every array of an NPZ archive as [`parse_npz`] does, within `limits`.
///
/// # Errors
/// The errors of [`parse_npz`]; `LimitExceeded` if the archive or its arrays exceed `limits`.
pub fn parse_npz_with_limits(
    path: impl AsRef<Path>,
    limits: &ParseLimits,
) -> Result<HashMap<String, NpzTensor>> {
    arrays(&parse_only(path.as_ref(), Container::Npz, limits)?)
}

/// Reads every array of an NPZ archive in memory.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let arrays = anamnesis::parse_npz_bytes(std::fs::read("tests/data/demo/arrays.npz")?)?;
/// assert!(!arrays.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errors of [`parse_npz`], without `Io`.
pub fn parse_npz_bytes(bytes: Vec<u8>) -> Result<HashMap<String, NpzTensor>> {
    parse_npz_bytes_with_limits(bytes, &ParseLimits::default())
}

/// Reads every array of an NPZ archive in memory as [`parse_npz_bytes`] does, within `limits`.
///
/// # Errors
/// The errors of [`parse_npz_bytes`]; `LimitExceeded` if the archive or its arrays exceed `limits`.
pub fn parse_npz_bytes_with_limits(
    bytes: Vec<u8>,
    limits: &ParseLimits,
) -> Result<HashMap<String, NpzTensor>> {
    arrays(&parse_bytes_only(bytes, Container::Npz, limits)?)
}

fn arrays(model: &ParsedModel) -> Result<HashMap<String, NpzTensor>> {
    if let Some(skipped) = model.skipped.first() {
        return Err(skipped.error());
    }
    let budget = Budget::new(&model.limits);
    model
        .tensors
        .iter()
        .try_for_each(|t| budget.alloc(t.len, format_args!("array `{}`", t.name)))?;
    let array = |t: crate::Tensor<'_>| {
        let (name, shape) = (t.name().to_owned(), t.shape().to_vec());
        Ok((
            name.clone(),
            NpzTensor { name, shape, dtype: t.dtype(), data: t.bytes()?.into_owned() },
        ))
    };
    model.tensors().map(array).collect()
}

/// Writes arrays as a safetensors file, sorted by name; an older file is replaced.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("arrays.safetensors");
/// let arrays = anamnesis::parse_npz("tests/data/demo/arrays.npz")?;
/// anamnesis::npz_to_safetensors(&arrays, &path)?;
/// assert_eq!(std::fs::read(&path)?, anamnesis::npz_to_safetensors_bytes(&arrays)?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` that names an array whose data does not fit its shape; `Io`.
pub fn npz_to_safetensors<S: BuildHasher>(
    arrays: &HashMap<String, NpzTensor, S>,
    path: impl AsRef<Path>,
) -> Result<()> {
    to_file(&tensors(arrays), path.as_ref())
}

/// Returns the bytes of the safetensors file that [`npz_to_safetensors`] writes.
///
/// # Errors
/// `Parse` that names an array whose data does not fit its shape; `LimitExceeded` if the output
/// does not fit.
pub fn npz_to_safetensors_bytes<S: BuildHasher>(
    arrays: &HashMap<String, NpzTensor, S>,
) -> Result<Vec<u8>> {
    to_bytes(&tensors(arrays))
}

fn tensors<S: BuildHasher>(arrays: &HashMap<String, NpzTensor, S>) -> Vec<WholeTensor<'_>> {
    let mut all: Vec<_> = arrays
        .iter()
        .map(|(name, t)| WholeTensor { name, shape: &t.shape, dtype: t.dtype, data: &t.data })
        .collect();
    sort_by_key(&mut all, |t| t.name);
    all
}
