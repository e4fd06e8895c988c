//! [`ConvertTarget`]: the containers that models are written to.

/// A container that models are written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ConvertTarget {
    /// safetensors, for Hugging Face libraries.
    #[default]
    Safetensors,
    /// GGUF, version 3.
    Gguf,
    /// NumPy's NPZ, uncompressed.
    Npz,
    /// NumPy's NPY: a directory with a file for each tensor.
    Npy,
    /// PyTorch checkpoint: a ZIP archive with a dict of tensors.
    Pth,
    /// MessagePack, as Flax writes it.
    Msgpack,
    /// Burnpack, the container of Burn.
    Burnpack,
    /// QNAT, the native format of qlora-rs. It holds NF4 tensors alone.
    Qnat,
}
