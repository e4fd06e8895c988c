//! A scheme by its name, with its parameters.

use std::fmt;
use std::sync::Arc;

use super::mx::ScaleRule;
use super::{Method, Scope};
use crate::lethe::gguf::mixture::FileType;
use crate::{AnamnesisError, ConvertTarget, Dtype, Result, TargetDtype};

/// The scheme that a model is encoded to. Every scheme is a constant, such as
/// [`ForgetScheme::FP8_BLOCK`] or [`ForgetScheme::Q4_K_M`], and can be parsed from its name:
/// `fp8-block`, `gguf:q4_k_m` and so on.
///
/// ```
/// use anamnesis::ForgetScheme;
///
/// let scheme = ForgetScheme::NF4.with_group_size(128);
/// assert_eq!(scheme.to_string(), "nf4");
/// assert_eq!("fp8-fine-grained".parse::<ForgetScheme>()?, ForgetScheme::FP8_BLOCK);
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
    /// Values that share a scale: the group size, or the side of a square block. None: the scheme's
    /// usual size.
    pub group: Option<usize>,
    /// How MXFP4 and MXFP8 choose the exponent of a block.
    pub rule: ScaleRule,
    /// Whether every tensor of a GGUF file gets the same type (`--pure` of `llama-quantize`).
    pub pure: bool,
    /// Type that quantized values are decoded to, which configs state as the type to compute in.
    pub dtype: TargetDtype,
}

/// A library that loads models of several of its schemes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Library {
    Mlx,
    CompressedTensors,
    ModelOpt,
}

/// A row of the table of schemes.
#[derive(Clone, Copy)]
pub(super) struct SchemeRow {
    pub name: &'static str,
    /// Other names, in this crate's documents and in other tools.
    pub aliases: &'static [&'static str],
    /// Description in `amn forget --list`.
    pub about: &'static str,
    pub container: ConvertTarget,
    /// The type that quantized values are decoded to before they are encoded.
    pub dtype: TargetDtype,
    /// Which tensors are encoded by default.
    pub scope: Scope,
    /// Keys in `config.json` under which the scheme's description is stored.
    pub config_keys: &'static [&'static str],
    /// Whether it quantizes scales, too.
    pub quantizes_scales: bool,
    /// Whose configs can describe it beside other schemes of the same library; `None`: a model has
    /// it alone.
    pub library: Option<Library>,
    /// The bits of MLX's recipe of two widths, the lower first.
    pub recipe: Option<[u8; 2]>,
    /// Whether it is for ComfyUI, which loads parts of a checkpoint quantized.
    pub is_comfy: bool,
    /// Whether [`ForgetScheme::with_group_size`] changes it.
    pub has_group_sizes: bool,
    /// Whether its scales can be searched.
    pub has_search: bool,
    /// Whether [`ForgetScheme::with_scale_rule`] changes it.
    pub has_scale_rules: bool,
    /// Names of the nearest schemes that take shapes which this one does not, such as columns that
    /// are no whole blocks.
    pub instead: &'static [&'static str],
    pub make: fn(&SchemeParameters) -> Arc<dyn Method>,
}

// Names are unique, and functions have no useful equality.
impl PartialEq for SchemeRow {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl std::fmt::Debug for SchemeRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl ForgetScheme {
    pub(super) const fn of_row(row: &'static SchemeRow) -> Self {
        Self::new(SchemeKind::Table(row))
    }

    pub(super) const fn of_file_type(file_type: FileType) -> Self {
        Self::new(SchemeKind::Gguf(file_type))
    }

    const fn new(kind: SchemeKind) -> Self {
        let parameters = SchemeParameters {
            group: None,
            rule: ScaleRule::LayoutDefault,
            pure: false,
            dtype: TargetDtype::BF16,
        };
        Self { kind, parameters }
    }

    /// Other names of the scheme, in this crate's documents and in other tools: `bnb-4bit` for
    /// `nf4`.
    #[must_use]
    pub fn aliases(&self) -> &'static [&'static str] {
        match self.kind {
            SchemeKind::Gguf(_) => &[],
            SchemeKind::Table(row) => row.aliases,
        }
    }

    /// Names of llama.cpp's file types, which follow `gguf:` in a scheme's name.
    pub fn all_gguf() -> impl Iterator<Item = &'static str> {
        FileType::all().iter().map(|file_type| file_type.name)
    }

    /// Sets the number of values that share a scale: the size of a group, or the side of a square
    /// block. Planning fails with `Unsupported` if the scheme leaves no choice of it.
    #[must_use]
    pub fn with_group_size(mut self, group: usize) -> Self {
        self.parameters.group = Some(group);
        self
    }

    /// Sets the library whose powers of two are the scales of MXFP4 and MXFP8:
    /// `compressed-tensors`, `modelopt`, `ggml`, or `floor`, `ceil`, `even`, `rceil` (the modes of
    /// torchao).
    ///
    /// # Errors
    /// `Usage` if no rule has this name.
    pub fn with_scale_rule(mut self, rule: &str) -> Result<Self> {
        let found = ScaleRule::ALL
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(rule));
        let names = || ScaleRule::ALL.map(|(name, _)| name).join(", ");
        let known = found.ok_or_else(|| {
            AnamnesisError::usage(format!(
                "--scale-rule: no rule is called `{rule}`; scale rules: {}",
                names()
            ))
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

    /// The scheme's name as a suffix for names of encoded models. It is without `gguf:`, for their
    /// extension says that, and the layouts of FP8 share `fp8`, as model names do.
    #[must_use]
    pub fn suffix(&self) -> String {
        let name = self.to_string();
        match name.split_once('-') {
            Some(("fp8", _)) => "fp8".to_owned(),
            _ => name.trim_start_matches("gguf:").to_owned(),
        }
    }

    /// The container that models of this scheme are stored in.
    #[must_use]
    pub fn container(&self) -> ConvertTarget {
        match self.kind {
            SchemeKind::Gguf(_) => ConvertTarget::Gguf,
            SchemeKind::Table(row) => row.container,
        }
    }

    /// The type that quantized values are decoded to before they are encoded, unless the caller
    /// sets another.
    ///
    /// It is BF16 in safetensors, because models there are stored in it and some schemes store
    /// scales in the type of the model. It is F32 for GGUF and QNAT, whose tools quantize from F32:
    /// rounding to BF16 between would change the result.
    #[must_use]
    pub fn dtype(&self) -> TargetDtype {
        match self.kind {
            SchemeKind::Gguf(_) => TargetDtype::F32,
            SchemeKind::Table(row) => row.dtype,
        }
    }

    /// Whether the scales are quantized, too.
    pub(crate) fn quantizes_scales(&self) -> bool {
        matches!(self.kind, SchemeKind::Table(row) if row.quantizes_scales)
    }

    /// Fails if a group size is set, and the scheme leaves no choice of it.
    pub(crate) fn check_group_size(&self) -> Result<()> {
        match self.parameters.group {
            Some(group) if !self.has_group_sizes() => Err(AnamnesisError::usage(format!(
                "--group-size: groups of {group}: {self} leaves no choice of the group size"
            ))),
            _ => Ok(()),
        }
    }

    /// Names of schemes that take shapes which this one does not.
    pub(crate) fn instead(&self) -> &'static [&'static str] {
        match self.kind {
            SchemeKind::Table(row) => row.instead,
            SchemeKind::Gguf(_) => &[],
        }
    }

    /// Whether it leaves a choice of the group size.
    #[must_use]
    pub fn has_group_sizes(&self) -> bool {
        matches!(self.kind, SchemeKind::Table(row) if row.has_group_sizes)
    }

    /// Whether a rule chooses its scales.
    #[must_use]
    pub fn has_scale_rules(&self) -> bool {
        matches!(self.kind, SchemeKind::Table(row) if row.has_scale_rules)
    }

    /// Whether its scales can be searched ([`Forget::search`](crate::Forget::search)). Those of GGUF
    /// types always are.
    #[must_use]
    pub fn has_search(&self) -> bool {
        matches!(self.kind, SchemeKind::Table(row) if row.has_search)
    }

    /// Whether it stores scales of activations
    /// ([`Forget::activation_scales`](crate::Forget::activation_scales)).
    #[must_use]
    pub fn has_activation_scales(&self) -> bool {
        let none = Arc::default();
        let method = self.method(self.dtype());
        method.is_some_and(|(method, _)| method.with_activation_scales(&none).is_some())
    }

    /// Whether it is a file type of GGUF.
    #[must_use]
    pub fn is_gguf(&self) -> bool {
        matches!(self.kind, SchemeKind::Gguf(_))
    }

    /// Whether models of the scheme are MLX's, which have names of their own.
    pub(crate) fn is_mlx(&self) -> bool {
        self.library() == Some(Library::Mlx)
    }

    /// The library whose schemes tensors of one model may have beside this one.
    pub(super) fn library(&self) -> Option<Library> {
        match self.kind {
            SchemeKind::Table(row) => row.library,
            SchemeKind::Gguf(_) => None,
        }
    }

    /// The bits of MLX's recipe of two widths.
    pub(super) fn recipe(&self) -> Option<[u8; 2]> {
        match self.kind {
            SchemeKind::Table(row) => row.recipe,
            SchemeKind::Gguf(_) => None,
        }
    }

    /// `self` with the parameters of `other`.
    pub(super) fn with_parameters_of(self, other: &Self) -> Self {
        Self { parameters: other.parameters, ..self }
    }

    /// Whether its tensors have the widths of a recipe.
    pub(crate) fn has_recipe(&self) -> bool {
        self.recipe().is_some()
    }

    /// Whether other schemes can be given to some tensors
    /// ([`Forget::schemes`](crate::Forget::schemes)).
    #[must_use]
    pub fn has_mixtures(&self) -> bool {
        self.library().is_some()
    }

    /// Whether models of the scheme are for ComfyUI.
    pub(super) fn is_comfy(&self) -> bool {
        matches!(self.kind, SchemeKind::Table(row) if row.is_comfy)
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

    /// The method of the scheme, and which tensors it encodes by default. None for GGUF, where each
    /// tensor has its own type. `dtype` is what quantized values are decoded to.
    pub(crate) fn method(&self, dtype: TargetDtype) -> Option<(Arc<dyn Method>, Scope)> {
        match self.kind {
            SchemeKind::Gguf(_) => None,
            SchemeKind::Table(row) => {
                Some(((row.make)(&SchemeParameters { dtype, ..self.parameters }), row.scope))
            }
        }
    }

    /// Keys in `config.json` under which the scheme's description is stored. Each gets the same
    /// value.
    pub(crate) fn config_keys(&self) -> Vec<&'static str> {
        match self.kind {
            SchemeKind::Gguf(_) => vec![],
            SchemeKind::Table(row) => row.config_keys.to_vec(),
        }
    }
}

/// The error if `name` is a type of a fork of llama.cpp, in any case.
pub(super) fn decoded_only(name: &str) -> Option<AnamnesisError> {
    let is_named = |dtype: &&Dtype| dtype.name().eq_ignore_ascii_case(name);
    let dtype = Dtype::ALL.iter().find(is_named)?;
    let what = format!("types of {} are decoded only", dtype.fork()?);
    Some(AnamnesisError::unsupported(dtype.name(), what))
}

impl fmt::Display for ForgetScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            SchemeKind::Gguf(file_type) => write!(f, "gguf:{}", file_type.name.to_lowercase()),
            SchemeKind::Table(row) => f.write_str(row.name),
        }
    }
}
