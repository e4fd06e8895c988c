//! [`ConvertTarget`]: the containers that models are written to.

use std::str::FromStr;

use crate::{AnamnesisError, Dtype, Result};

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
    /// QNAT, the native format of qlora-rs. It holds NF4 tensors alone.
    Qnat,
}

impl ConvertTarget {
    /// Whether tensors of `dtype` can be written as they are.
    pub(crate) fn holds(self, dtype: Dtype) -> bool {
        match self {
            Self::Safetensors => dtype.in_safetensors(),
            Self::Gguf => dtype.ggml_id().is_some() || dtype == Dtype::Bool,
            #[cfg(feature = "npz")]
            Self::Npz => crate::containers::write::npz::descr(dtype).is_some(),
            #[cfg(not(feature = "npz"))]
            Self::Npz => false,
            Self::Qnat => false,
        }
    }

    /// Extension of the files' names, without a dot.
    #[must_use]
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
            Self::Npz => "npz",
            Self::Qnat => "qnat",
        }
    }
}

impl FromStr for ConvertTarget {
    type Err = AnamnesisError;

    fn from_str(text: &str) -> Result<Self> {
        let all = [Self::Safetensors, Self::Gguf, Self::Npz, Self::Qnat];
        let found = all
            .into_iter()
            .find(|target| target.extension().eq_ignore_ascii_case(text));
        found.ok_or_else(|| {
            AnamnesisError::unsupported(text, "supported targets: safetensors, gguf, npz, qnat")
        })
    }
}
