//! The element types that weights are decoded to.

use std::fmt;
use std::str::FromStr;

use crate::{AnamnesisError, Dtype, Result};

/// Element type of recovered weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TargetDtype {
    /// bfloat16, round to nearest even.
    #[default]
    BF16,
    /// IEEE single precision, exact.
    F32,
    /// IEEE half precision, round to nearest even, overflow to infinity.
    F16,
}

impl TargetDtype {
    /// Bytes of one element.
    #[must_use]
    pub const fn byte_size(self) -> usize {
        match self {
            Self::BF16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// The same type as a stored dtype.
    #[must_use]
    pub const fn dtype(self) -> Dtype {
        match self {
            Self::BF16 => Dtype::BF16,
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
        }
    }
}

impl TargetDtype {
    /// The target that is `dtype`.
    pub(crate) fn of(dtype: Dtype) -> Option<Self> {
        [Self::BF16, Self::F32, Self::F16]
            .into_iter()
            .find(|target| target.dtype() == dtype)
    }

    /// Its number among the file types of llama.cpp (`enum llama_ftype`).
    #[cfg(feature = "gguf")]
    pub(crate) const fn gguf_file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::BF16 => 32,
        }
    }

    /// What torch calls it.
    pub(crate) const fn torch_name(self) -> &'static str {
        match self {
            Self::BF16 => "bfloat16",
            Self::F32 => "float32",
            Self::F16 => "float16",
        }
    }
}

impl fmt::Display for TargetDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dtype().fmt(f)
    }
}

impl serde::Serialize for TargetDtype {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for TargetDtype {
    type Err = AnamnesisError;

    /// The type's name here, or in torch or numpy (`bfloat16`, `half`, `fp32`). Case does not
    /// count.
    fn from_str(text: &str) -> Result<Self> {
        const NAMES: [(TargetDtype, &[&str]); 3] = [
            (TargetDtype::BF16, &["bf16", "bfloat16"]),
            (TargetDtype::F32, &["f32", "fp32", "float32", "float"]),
            (TargetDtype::F16, &["f16", "fp16", "float16", "half"]),
        ];
        let is_one = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(text));
        let found = NAMES.into_iter().find(|(_, names)| is_one(names));
        found.map(|(dtype, _)| dtype).ok_or_else(|| {
            AnamnesisError::unsupported(text, "supported target dtypes: bf16, f32, f16")
        })
    }
}
