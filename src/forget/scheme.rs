//! What models are encoded to: schemes by name, with their parameters.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use super::mx::ScaleRule;
use super::schemes::{Row, SCHEMES};
use super::{Method, Scope};
#[cfg(feature = "gguf")]
use crate::forget::gguf::mixture::FileType;
use crate::{AnamnesisError, ConvertTarget, Result, TargetDtype};

/// What a model is encoded to: a scheme by its name, such as `nf4`, `fp8-block` or `gguf:q4_k_m`.
///
/// ```
/// let scheme: anamnesis::ForgetScheme = "nf4".parse()?;
/// let scheme = scheme.with_group_size(128);
/// assert_eq!(scheme.to_string(), "nf4");
/// # Ok::<(), anamnesis::AnamnesisError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ForgetScheme {
    kind: Kind,
    parameters: Parameters,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    #[cfg(feature = "gguf")]
    Gguf(FileType),
    Row(&'static Row),
}

/// What can be said of a scheme beside its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Values that share a scale: of a group, or of a block.
    pub group: Option<usize>,
    pub rule: ScaleRule,
    /// Whether every tensor of a GGUF file gets the same type.
    pub pure: bool,
    /// Type of the values.
    pub dtype: TargetDtype,
}

impl ForgetScheme {
    /// Every name but those of GGUF, with what it stands for.
    pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        SCHEMES.iter().map(|row| (row.name, row.about))
    }

    /// Names of the file types behind `gguf:`.
    #[cfg(feature = "gguf")]
    pub fn all_gguf() -> impl Iterator<Item = &'static str> {
        FileType::all().iter().map(|file_type| file_type.name)
    }

    /// With so many values in a group, or in a block.
    #[must_use]
    pub fn with_group_size(mut self, group: usize) -> Self {
        self.parameters.group = Some(group);
        self
    }

    /// With the powers of two that another library would choose as scales of MXFP4 and MXFP8: `compressed-tensors`,
    /// `modelopt`, `floor`, `ceil`, `even`, `rceil` (torchao's modes) or `ggml`.
    ///
    /// # Errors
    /// `Unsupported` for any other name.
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

    /// What names of encoded models end in: without the container, which their ending tells.
    #[must_use]
    pub fn suffix(&self) -> String {
        self.to_string().trim_start_matches("gguf:").to_owned()
    }

    /// The container that models of this scheme are stored in.
    #[must_use]
    pub fn container(&self) -> ConvertTarget {
        match self.kind {
            #[cfg(feature = "gguf")]
            Kind::Gguf(_) => ConvertTarget::Gguf,
            Kind::Row(row) => row.container,
        }
    }

    /// What quantized values are decoded to before they are encoded, unless something else is asked for.
    #[must_use]
    pub fn dtype(&self) -> TargetDtype {
        match self.container() {
            ConvertTarget::Safetensors => TargetDtype::BF16,
            _ => TargetDtype::F32,
        }
    }

    /// Whether it quantizes scales, too.
    #[cfg(feature = "qnat")]
    pub(crate) fn quantizes_scales(&self) -> bool {
        matches!(self.kind, Kind::Row(row) if row.quantizes_scales)
    }

    /// The number in llama.cpp's `enum llama_ftype`.
    pub(crate) fn file_type_number(&self) -> Option<u32> {
        match self.kind {
            #[cfg(feature = "gguf")]
            Kind::Gguf(file_type) => file_type.number,
            Kind::Row(_) => None,
        }
    }

    /// The file type, and whether all tensors get its type.
    #[cfg(feature = "gguf")]
    pub(super) fn file_type(&self) -> Option<(FileType, bool)> {
        match self.kind {
            Kind::Gguf(file_type) => Some((file_type, self.parameters.pure)),
            Kind::Row(_) => None,
        }
    }

    /// The one method of a scheme that has one, and the tensors that it is for.
    pub(super) fn method(&self, dtype: TargetDtype) -> Option<(Arc<dyn Method>, Scope)> {
        match self.kind {
            #[cfg(feature = "gguf")]
            Kind::Gguf(_) => None,
            Kind::Row(row) => Some((
                (row.make)(&Parameters {
                    dtype,
                    ..self.parameters
                }),
                row.scope,
            )),
        }
    }

    /// Keys of the scheme's description in `config.json`.
    pub(crate) fn config_keys(&self) -> Vec<&'static str> {
        match self.kind {
            #[cfg(feature = "gguf")]
            Kind::Gguf(_) => vec![],
            Kind::Row(row) => row.config_keys.to_vec(),
        }
    }
}

impl FromStr for ForgetScheme {
    type Err = AnamnesisError;

    fn from_str(text: &str) -> Result<Self> {
        let kind = match text.split_once(':') {
            #[cfg(feature = "gguf")]
            Some((container, name)) if container.eq_ignore_ascii_case("gguf") => {
                FileType::from_name(name).map(Kind::Gguf)
            }
            _ => {
                let fits = |row: &&Row| {
                    [row.name, row.alias]
                        .iter()
                        .any(|name| name.eq_ignore_ascii_case(text))
                };
                SCHEMES
                    .iter()
                    .find(fits)
                    .filter(|_| !text.is_empty())
                    .map(Kind::Row)
            }
        };
        let parameters = Parameters {
            group: None,
            rule: ScaleRule::Own,
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
            #[cfg(feature = "gguf")]
            Kind::Gguf(file_type) => write!(f, "gguf:{}", file_type.name.to_lowercase()),
            Kind::Row(row) => f.write_str(row.name),
        }
    }
}

/// What is to be encoded, and how. A [`ForgetScheme`] alone will do for most.
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
    /// An importance matrix of llama.cpp's, for GGUF.
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
