//! Arrays of an NPZ archive in memory, for callers who want them all.

mod front;

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::path::Path;

pub use self::front::{NpzInspectInfo, NpzTensorInfo, inspect_npz, inspect_npz_from_reader};
use super::whole::{WholeTensor, to_bytes, to_file};
use crate::limits::Budget;
use crate::{Dtype, ParseLimits, ParsedModel, Result, parse_bytes, parse_with_limits};

/// Element type of an array.
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
    /// An array of these parts.
    #[must_use]
    pub const fn new(name: String, shape: Vec<usize>, dtype: NpzDtype, data: Vec<u8>) -> Self {
        Self {
            name,
            shape,
            dtype,
            data,
        }
    }
}

/// Reads every array of an NPZ archive into memory. [`parse`](crate::parse()) leaves them where they are.
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
/// As [`parse`](crate::parse()); `Unsupported` if an array is one that no tensor can hold.
pub fn parse_npz(path: impl AsRef<Path>) -> Result<HashMap<String, NpzTensor>> {
    parse_npz_with_limits(path, &ParseLimits::default())
}

/// As [`parse_npz`], within `limits`.
///
/// # Errors
/// As there; `LimitExceeded`.
pub fn parse_npz_with_limits(
    path: impl AsRef<Path>,
    limits: &ParseLimits,
) -> Result<HashMap<String, NpzTensor>> {
    arrays(&parse_with_limits(path, limits)?)
}

/// As [`parse_npz`], of an archive in memory.
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
/// As there, without the I/O.
pub fn parse_npz_bytes(bytes: Vec<u8>) -> Result<HashMap<String, NpzTensor>> {
    arrays(&parse_bytes(bytes)?)
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
            NpzTensor {
                name,
                shape,
                dtype: t.dtype(),
                data: t.bytes()?.into_owned(),
            },
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
/// `Parse` that names an array whose data does not fit its shape; I/O.
pub fn npz_to_safetensors<S: BuildHasher>(
    arrays: &HashMap<String, NpzTensor, S>,
    path: impl AsRef<Path>,
) -> Result<()> {
    to_file(&tensors(arrays), path.as_ref())
}

/// As [`npz_to_safetensors`], into memory.
///
/// # Errors
/// As there, without the I/O.
pub fn npz_to_safetensors_bytes<S: BuildHasher>(
    arrays: &HashMap<String, NpzTensor, S>,
) -> Result<Vec<u8>> {
    to_bytes(&tensors(arrays))
}

fn tensors<S: BuildHasher>(arrays: &HashMap<String, NpzTensor, S>) -> Vec<WholeTensor<'_>> {
    let mut all: Vec<_> = arrays
        .iter()
        .map(|(name, t)| WholeTensor {
            name,
            shape: &t.shape,
            dtype: t.dtype,
            data: &t.data,
        })
        .collect();
    all.sort_by_key(|t| t.name);
    all
}
