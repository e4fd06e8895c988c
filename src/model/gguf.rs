//! [`Gguf`]: the properties of a GGUF file besides its tensors: version, byte order, alignment,
//! typed metadata.

mod metadata;
mod value;

pub use self::metadata::GgufMetadata;
pub(crate) use self::metadata::write_entry;
pub(crate) use self::value::{ARRAY, GgufEncoding, STRING, fixed_size};
pub use self::value::{GgufMetadataArray, GgufMetadataValue};
use super::Shape;
use super::gguf_keys::{ORIGINAL_SHAPE, is_rotation_key};
use crate::error::InTensor;
use crate::{AnamnesisError, Result};

/// Largest alignment that is read or written, in bytes. An output's header is padded to the
/// alignment in memory.
pub(crate) const MAX_ALIGNMENT: u32 = 1 << 20;

/// Alignment of a file without `general.alignment`, in bytes.
pub(crate) const DEFAULT_ALIGNMENT: u32 = 32;

/// Version of the layout of ggml's block types, as defined in ggml.h.
pub(crate) const GGML_QNT_VERSION: u32 = 2;

/// Properties of a GGUF file: version, byte order, alignment and metadata.
#[derive(Debug, Clone, serde::Serialize)]
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

    /// Whether the file stores numbers big-endian. Tensors read from it are converted to
    /// little-endian.
    #[must_use]
    pub fn is_big_endian(&self) -> bool {
        self.big_endian
    }

    /// Alignment of the tensors' offsets, in bytes.
    #[must_use]
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Whether weights are rotated.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    pub(crate) fn has_rotations(&self) -> bool {
        self.metadata.keys().any(is_rotation_key)
    }

    /// The metadata, typed and in the order of the file. Of a split model it is that of the first
    /// file.
    #[must_use]
    pub fn metadata(&self) -> &GgufMetadata {
        &self.metadata
    }

    /// Value of `general.architecture`, such as `llama`.
    #[must_use]
    pub fn architecture(&self) -> Option<String> {
        self.metadata
            .get("general.architecture")?
            .as_string()
            .map(str::to_owned)
    }
}

impl Gguf {
    /// Whether ComfyUI-GGUF has reshaped tensors of the file.
    pub(crate) fn has_original_shapes(&self) -> bool {
        self.metadata
            .keys()
            .any(|key| key.starts_with(ORIGINAL_SHAPE))
    }

    /// Replaces `shape` by the one that the tensor `name` had before ComfyUI-GGUF reshaped it.
    /// Tensors that it left alone keep theirs.
    ///
    /// # Errors
    /// `Parse` if the original shape is malformed, or has another number of elements.
    ///
    /// Source: ComfyUI-GGUF `loader.py`, `get_orig_shape`.
    pub(crate) fn restore_shape(&self, name: &str, shape: &mut Shape) -> Result<()> {
        let key = format!("{ORIGINAL_SHAPE}{name}");
        let Some(value) = self.metadata.get(&key) else {
            return Ok(());
        };
        let original: Option<Shape> = value.as_array().and_then(|array| match array {
            GgufMetadataArray::I32(dims) => dims.iter().map(|&d| usize::try_from(d).ok()).collect(),
            GgufMetadataArray::I64(dims) => dims.iter().map(|&d| usize::try_from(d).ok()).collect(),
            _ => None,
        });
        let elements = |shape: &[usize]| shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        match original {
            Some(original) if elements(&original) == elements(shape) => *shape = original,
            _ => {
                let what = format!("its shape {shape:?} has not as many values as `{key}`");
                return Err(AnamnesisError::parse(format!("{}: {what}", InTensor(&name))));
            }
        }
        Ok(())
    }
}
