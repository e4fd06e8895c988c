//! What a GGUF file says of itself besides its tensors: version, byte order, alignment, typed metadata.

mod metadata;
mod value;

pub use self::metadata::GgufMetadata;
pub(crate) use self::metadata::write_entry;
pub(crate) use self::value::{ARRAY, Layout, STRING, fixed_size, write_str};
pub use self::value::{GgufMetadataArray, GgufMetadataValue};
use crate::{AnamnesisError, Result};

/// The largest alignment that is read or written, in bytes.
pub(crate) const MAX_ALIGNMENT: u32 = 1 << 20;

/// The alignment of a file whose metadata has no `general.alignment`, in bytes.
pub(crate) const DEFAULT_ALIGNMENT: u32 = 32;

/// Whether `key` describes a split, which another file of the same model would not repeat.
pub(crate) fn is_split_key(key: &str) -> bool {
    matches!(key, "split.no" | "split.count" | "split.tensors.count")
}

/// What a GGUF file says of itself, besides its tensors.
#[derive(Debug, Clone)]
pub struct Gguf {
    pub(crate) version: u32,
    pub(crate) big_endian: bool,
    pub(crate) alignment: u32,
    pub(crate) metadata: GgufMetadata,
}

impl Gguf {
    /// Version of the format, 1 to 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Whether numbers are stored with their most significant byte first. Tensors are given little-endian.
    #[must_use]
    pub fn is_big_endian(&self) -> bool {
        self.big_endian
    }

    /// What the tensors' offsets are multiples of, in bytes.
    #[must_use]
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// The metadata, typed and in order. Of a model in several files, the first file's.
    #[must_use]
    pub fn metadata(&self) -> &GgufMetadata {
        &self.metadata
    }

    /// `general.architecture`.
    #[must_use]
    pub fn architecture(&self) -> Option<String> {
        self.metadata
            .get("general.architecture")?
            .as_string()
            .map(str::to_owned)
    }
}

/// Keys under which ComfyUI-GGUF keeps the shapes that it changed to have rows of whole blocks, or few dimensions.
const ORIGINAL_SHAPE: &str = "comfy.gguf.orig_shape.";

impl Gguf {
    /// Gives `shape` back what it was before ComfyUI-GGUF changed it; most tensors are as they were.
    ///
    /// Source: ComfyUI-GGUF `loader.py`, `get_orig_shape`.
    pub(crate) fn restore_shape(&self, name: &str, shape: &mut Vec<usize>) -> Result<()> {
        let key = format!("{ORIGINAL_SHAPE}{name}");
        let Some(value) = self.metadata.get(&key) else {
            return Ok(());
        };
        let original: Option<Vec<usize>> = value.as_array().and_then(|array| match array {
            GgufMetadataArray::I32(dims) => dims.iter().map(|&d| usize::try_from(d).ok()).collect(),
            GgufMetadataArray::I64(dims) => dims.iter().map(|&d| usize::try_from(d).ok()).collect(),
            _ => None,
        });
        let elements = |shape: &[usize]| shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        match original {
            Some(original) if elements(&original) == elements(shape) => *shape = original,
            _ => {
                let what = format!("its shape {shape:?} has not as many values as `{key}`");
                return Err(AnamnesisError::parse(format!("tensor `{name}`: {what}")));
            }
        }
        Ok(())
    }
}
