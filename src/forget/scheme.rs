//! The schemes that models are encoded to, by name.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use super::Method;
use super::ggml::Ggml;
use crate::{AnamnesisError, ConvertTarget, Dtype, Result, TargetDtype};

/// What a model is encoded to: a scheme by its name, such as `nf4`, `fp8-block` or `gguf:q8_0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgetScheme {
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Gguf(Dtype),
}

impl ForgetScheme {
    /// The container that models of this scheme are stored in.
    #[must_use]
    pub fn container(&self) -> ConvertTarget {
        match self.kind {
            Kind::Gguf(_) => ConvertTarget::Gguf,
        }
    }

    /// What quantized values are decoded to, before they are encoded.
    #[must_use]
    pub fn dtype(&self) -> TargetDtype {
        match self.kind {
            Kind::Gguf(_) => TargetDtype::F32,
        }
    }

    /// The number of the mixture in llama.cpp's `enum llama_ftype`.
    pub(crate) fn file_type(&self) -> Option<u32> {
        match self.kind {
            Kind::Gguf(_) => Some(7),
        }
    }

    pub(crate) fn method(&self) -> Result<Arc<dyn Method>> {
        match self.kind {
            Kind::Gguf(dtype) => Ok(Arc::new(Ggml { dtype })),
        }
    }
}

impl FromStr for ForgetScheme {
    type Err = AnamnesisError;

    fn from_str(text: &str) -> Result<Self> {
        let unknown = || AnamnesisError::unsupported(text, "no such scheme");
        let name = text.strip_prefix("gguf:").ok_or_else(unknown)?;
        let dtype = Dtype::ALL.iter().find(|d| d.block_size() > 1 && d.ggml_id().is_some() && d.name().eq_ignore_ascii_case(name));
        Ok(Self { kind: Kind::Gguf(*dtype.ok_or_else(unknown)?) })
    }
}

impl fmt::Display for ForgetScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Gguf(dtype) => write!(f, "gguf:{}", dtype.name().to_lowercase()),
        }
    }
}

/// What is to be encoded, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Forget {
    /// The scheme.
    pub scheme: ForgetScheme,
    /// Tensors that are encoded: patterns with `*` and `?`, or `re:` and an expression. None: those that are as a rule.
    pub include: Vec<String>,
    /// Tensors that are not, likewise.
    pub exclude: Vec<String>,
    /// A model of the same tensors: those that are quantized there are encoded, and no others.
    pub like: Option<PathBuf>,
    /// An importance matrix of llama.cpp's.
    pub imatrix: Option<PathBuf>,
}

impl From<ForgetScheme> for Forget {
    fn from(scheme: ForgetScheme) -> Self {
        Self { scheme, include: vec![], exclude: vec![], like: None, imatrix: None }
    }
}
