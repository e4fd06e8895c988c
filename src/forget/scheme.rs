//! The public types of encoding: a scheme by its name with its parameters, and what is encoded with it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use super::mx::ScaleRule;
use super::schemes::{SCHEMES, SchemeRow};
use super::{Method, Scope};
use crate::forget::gguf::mixture::FileType;
use crate::{AnamnesisError, ConvertTarget, Result, TargetDtype};

/// The scheme that a model is encoded to, by its name: `nf4`, `fp8-block`, `gguf:q4_k_m` and so on.
///
/// ```
/// let scheme: anamnesis::ForgetScheme = "nf4".parse()?;
/// let scheme = scheme.with_group_size(128);
/// assert_eq!(scheme.to_string(), "nf4");
/// # Ok::<(), anamnesis::AnamnesisError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ForgetScheme {
    kind: SchemeKind,
    parameters: SchemeParameters,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum SchemeKind {
    Gguf(FileType),
    Table(&'static SchemeRow),
}

/// The options of a scheme. A scheme ignores those that it does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SchemeParameters {
    /// Values that share a scale: the group size, or the side of a square block. None: the scheme's usual size.
    pub group: Option<usize>,
    /// How MXFP4 and MXFP8 choose the exponent of a block.
    pub rule: ScaleRule,
    /// Whether every tensor of a GGUF file gets the same type (`--pure` of `llama-quantize`).
    pub pure: bool,
    /// Type that quantized values are decoded to, which configs state as the type to compute in.
    pub dtype: TargetDtype,
}

impl ForgetScheme {
    /// Name and description of every scheme, except the file types of GGUF.
    pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        SCHEMES.iter().map(|row| (row.name, row.about))
    }

    /// Names of llama.cpp's file types, which follow `gguf:` in a scheme's name.
    pub fn all_gguf() -> impl Iterator<Item = &'static str> {
        FileType::all().iter().map(|file_type| file_type.name)
    }

    /// Sets the number of values that share a scale: the size of a group, or the side of a square block.
    #[must_use]
    pub fn with_group_size(mut self, group: usize) -> Self {
        self.parameters.group = Some(group);
        self
    }

    /// Sets the library whose powers of two are the scales of MXFP4 and MXFP8: `compressed-tensors`, `modelopt`,
    /// `ggml`, or `floor`, `ceil`, `even`, `rceil` (the modes of torchao).
    ///
    /// # Errors
    /// `Unsupported` if no rule has this name.
    pub fn with_scale_rule(mut self, rule: &str) -> Result<Self> {
        let found = ScaleRule::ALL
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(rule));
        let names = || ScaleRule::ALL.map(|(name, _)| name).join(", ");
        let known = found.ok_or_else(|| {
            AnamnesisError::unsupported(rule, format!("scale rules: {}", names()))
        })?;
        self.parameters.rule = known.1;
        Ok(self)
    }

    /// Gives every tensor of a GGUF file the same type, where llama.cpp would mix several.
    #[must_use]
    pub fn pure(mut self) -> Self {
        self.parameters.pure = true;
        self
    }

    /// The scheme's name as a suffix for names of encoded models. It is without `gguf:`, for their extension says that.
    #[must_use]
    pub fn suffix(&self) -> String {
        self.to_string().trim_start_matches("gguf:").to_owned()
    }

    /// The container that models of this scheme are stored in.
    #[must_use]
    pub fn container(&self) -> ConvertTarget {
        match self.kind {
            SchemeKind::Gguf(_) => ConvertTarget::Gguf,
            SchemeKind::Table(row) => row.container,
        }
    }

    /// The type that quantized values are decoded to before they are encoded, unless the caller sets another.
    ///
    /// It is BF16 in safetensors, because models there are stored in it and some schemes store scales in the type of
    /// the model. It is F32 for GGUF and QNAT, whose tools quantize from F32: rounding to BF16 between would
    /// change the result.
    #[must_use]
    pub fn dtype(&self) -> TargetDtype {
        match self.container() {
            ConvertTarget::Safetensors => TargetDtype::BF16,
            _ => TargetDtype::F32,
        }
    }

    /// Whether the scales are quantized, too.
    pub(crate) fn quantizes_scales(&self) -> bool {
        matches!(self.kind, SchemeKind::Table(row) if row.quantizes_scales)
    }

    /// The number of the file type in llama.cpp's `enum llama_ftype`, for `general.file_type`.
    pub(crate) fn file_type_number(&self) -> Option<u32> {
        match self.kind {
            SchemeKind::Gguf(file_type) => file_type.number,
            SchemeKind::Table(_) => None,
        }
    }

    /// The GGUF file type, and whether all tensors get its main type.
    pub(super) fn file_type(&self) -> Option<(FileType, bool)> {
        match self.kind {
            SchemeKind::Gguf(file_type) => Some((file_type, self.parameters.pure)),
            SchemeKind::Table(_) => None,
        }
    }

    /// The method of the scheme, and which tensors it encodes by default. None for GGUF, where each tensor has its own
    /// type. `dtype` is what quantized values are decoded to.
    pub(super) fn method(&self, dtype: TargetDtype) -> Option<(Arc<dyn Method>, Scope)> {
        match self.kind {
            SchemeKind::Gguf(_) => None,
            SchemeKind::Table(row) => Some((
                (row.make)(&SchemeParameters {
                    dtype,
                    ..self.parameters
                }),
                row.scope,
            )),
        }
    }

    /// Keys in `config.json` under which the scheme's description is stored. Each gets the same value.
    pub(crate) fn config_keys(&self) -> Vec<&'static str> {
        match self.kind {
            SchemeKind::Gguf(_) => vec![],
            SchemeKind::Table(row) => row.config_keys.to_vec(),
        }
    }
}

impl FromStr for ForgetScheme {
    type Err = AnamnesisError;

    fn from_str(text: &str) -> Result<Self> {
        let kind = match text.split_once(':') {
            Some((container, name)) if container.eq_ignore_ascii_case("gguf") => {
                FileType::from_name(name).map(SchemeKind::Gguf)
            }
            _ => {
                let fits = |row: &&SchemeRow| {
                    [row.name, row.alias]
                        .iter()
                        .any(|name| name.eq_ignore_ascii_case(text))
                };
                SCHEMES
                    .iter()
                    .find(fits)
                    .filter(|_| !text.is_empty())
                    .map(SchemeKind::Table)
            }
        };
        let parameters = SchemeParameters {
            group: None,
            rule: ScaleRule::LayoutDefault,
            pure: false,
            dtype: TargetDtype::default(),
        };
        kind.map(|kind| Self { kind, parameters }).ok_or_else(|| {
            let names: Vec<&str> = SCHEMES.iter().map(|row| row.name).collect();
            let what = format!(
                "schemes: {}, and gguf: with a file type of llama.cpp's, e.g. gguf:q4_k_m",
                names.join(", ")
            );
            AnamnesisError::unsupported(text, what)
        })
    }
}

impl fmt::Display for ForgetScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            SchemeKind::Gguf(file_type) => write!(f, "gguf:{}", file_type.name.to_lowercase()),
            SchemeKind::Table(row) => f.write_str(row.name),
        }
    }
}

/// What is encoded, and how. Most callers need no more than a [`ForgetScheme`], which converts into this.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Forget {
    /// The scheme.
    pub scheme: ForgetScheme,
    /// Names of tensors that are encoded: patterns with `*` and `?`, or `re:` with a regular expression. If empty, the
    /// scheme's default tensors are encoded.
    pub include: Vec<String>,
    /// Names of tensors that are not encoded: patterns as in `include`, which they override.
    pub exclude: Vec<String>,
    /// Path of a model with the same tensor names: exactly the tensors that are quantized there are encoded.
    pub like: Option<PathBuf>,
    /// Path of an importance matrix of llama.cpp, for GGUF.
    pub imatrix: Option<PathBuf>,
}

impl From<ForgetScheme> for Forget {
    fn from(scheme: ForgetScheme) -> Self {
        Self {
            scheme,
            include: vec![],
            exclude: vec![],
            like: None,
            imatrix: None,
        }
    }
}
