//! What is encoded, and how.

use std::path::PathBuf;

use super::ForgetScheme;
use super::scheme::decoded_only;
use crate::{AnamnesisError, Dtype, Result};

/// What is encoded, and how. Most callers need no more than a [`ForgetScheme`], which converts into
/// this.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Forget {
    /// The scheme.
    pub scheme: ForgetScheme,
    /// Names of tensors that are encoded: patterns with `*` and `?`, or `re:` with a regular
    /// expression. If empty, the scheme's default tensors are encoded.
    pub include: Vec<String>,
    /// Names of tensors that are not encoded: patterns as in `include`, which they override.
    pub exclude: Vec<String>,
    /// Path of a model with the same tensor names: exactly the tensors that are quantized there are
    /// encoded.
    pub like: Option<PathBuf>,
    /// Whether scales and zero points are searched that make the squared errors least, weighted by
    /// `imatrix` if there is one. Otherwise they are as the scheme's library has them.
    pub search: bool,
    /// Path of an importance matrix of llama.cpp, for GGUF and for `search`.
    pub imatrix: Option<PathBuf>,
    /// Path of the scales that FP8 activations are quantized with: a JSON object of numbers by module,
    /// or a model that has them (`P.input_scale`). Modules without one stay as they are.
    pub activation_scales: Option<PathBuf>,
    /// Whether columns whose inputs are large by `imatrix` are multiplied with what the norms that
    /// these come from are divided by (AWQ). The model computes what it did.
    pub scales_inputs: bool,
    /// Types of some tensors of a GGUF file.
    pub types: GgufTypes,
    /// Schemes of some tensors: patterns of names, each with a scheme of the same library as
    /// `scheme`, which is MLX, compressed-tensors or ModelOpt. The first that matches counts. One
    /// that matches no tensor is an error.
    pub schemes: Vec<(String, ForgetScheme)>,
    /// Bits a weight, on average of what is encoded: matrices get the types or schemes of which least
    /// is lost, by `imatrix` if there is one. What has no choice keeps that of `scheme`.
    pub bits: Option<f64>,
    /// As `bits`, by the bytes of all tensors.
    pub size: Option<u64>,
    /// Whether it is an error to encode blocks of a GGUF file to blocks of another type, as it is
    /// for `llama-quantize` without `--allow-requantize`. By default they are decoded and encoded.
    pub refuses_requantizing: bool,
}

/// Types that some tensors of a GGUF file get whatever the file type says, as by the options of
/// `llama-quantize`. Tensors that llama.cpp does not quantize stay as they are.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct GgufTypes {
    /// Patterns of names, as llama.cpp or the model has them, each with a type (`--tensor-type`).
    /// The first that matches counts. One that matches no tensor is an error.
    pub tensors: Vec<(String, Dtype)>,
    /// Type of the token embeddings (`--token-embedding-type`).
    pub token_embedding: Option<Dtype>,
    /// Type of the output layer (`--output-tensor-type`), and of token embeddings that are the
    /// output layer, too.
    pub output: Option<Dtype>,
}

impl Forget {
    /// Gives the type or scheme called `name` to tensors whose names match `pattern`: a type of ggml
    /// if the scheme is one of GGUF, else a scheme of the same library.
    ///
    /// # Errors
    /// `Unsupported` if there is none of this name, `Usage` if the scheme has no other beside it.
    pub fn give(&mut self, pattern: &str, name: &str) -> Result<()> {
        let pattern = pattern.to_owned();
        match self.scheme.is_gguf() {
            true => self
                .types
                .tensors
                .push((pattern, GgufTypes::parse_type(name)?)),
            false => self.schemes.push((pattern, self.scheme.beside(name)?)),
        }
        Ok(())
    }

    /// Whether types or schemes are chosen for a size.
    pub(crate) fn has_budget(&self) -> bool {
        self.bits.is_some() || self.size.is_some()
    }

    /// Whether importances weigh the search of scales, which every type of GGUF has.
    pub(crate) fn weighs_search(&self) -> bool {
        self.search || self.imatrix.is_some() && self.scheme.is_gguf()
    }
}

impl GgufTypes {
    /// Whether no type is given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let has_type = self.token_embedding.is_some() || self.output.is_some();
        self.tensors.is_empty() && !has_type
    }

    /// The type of this name that tensors of a GGUF file can be encoded to, in any case: a block
    /// type of ggml, F32, F16 or BF16.
    ///
    /// # Errors
    /// `Unsupported` that lists them.
    pub fn parse_type(name: &str) -> Result<Dtype> {
        let is_type = |dtype: &Dtype| {
            let is_float = matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
            is_float || dtype.is_ggml_block() && dtype.fork().is_none()
        };
        let types = || Dtype::ALL.iter().copied().filter(is_type);
        let found = types().find(|dtype| dtype.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            if let Some(refusal) = decoded_only(name) {
                return refusal;
            }
            let names: Vec<&str> = types().map(Dtype::name).collect();
            AnamnesisError::unsupported(name, format!("types of ggml: {}", names.join(", ")))
        })
    }
}

impl From<ForgetScheme> for Forget {
    fn from(scheme: ForgetScheme) -> Self {
        Self {
            scheme,
            include: vec![],
            exclude: vec![],
            like: None,
            search: false,
            imatrix: None,
            activation_scales: None,
            scales_inputs: false,
            types: GgufTypes::default(),
            schemes: vec![],
            bits: None,
            size: None,
            refuses_requantizing: false,
        }
    }
}
