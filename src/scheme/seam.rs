//! The seam between stored tensors and the pipeline: what every scheme implements and what they share.

pub(crate) mod codes;
mod count;
pub(crate) mod decode;
pub(crate) mod fit;
pub(crate) mod grouped;
mod kind;
pub(crate) mod load;
pub(crate) mod numbers;
#[cfg(feature = "lethe")]
mod plain;
mod resolve;
pub(crate) mod roles;

use std::collections::HashMap;
use std::sync::Arc;

pub(crate) use self::codes::{Family, GroupCodes};
pub use self::count::SchemeCount;
pub(crate) use self::count::count;
use self::decode::Window;
#[cfg(feature = "lethe")]
pub(crate) use self::decode::lcm;
pub(crate) use self::decode::{Buffers, Decode, Grid, Tile};
pub use self::kind::{Fp8Format, Granularity, QuantScheme};
pub(crate) use self::load::{Floats, read};
#[cfg(feature = "lethe")]
pub(crate) use self::plain::Plain;
pub(crate) use self::resolve::{Item, Resolution};
pub(crate) use self::roles::role_of_dropped;
use crate::config::QuantConfig;
use crate::containers::model::Tensor;
use crate::scheme::{SCHEMES, comfy, fp8, torchao};
use crate::{AnamnesisError, ParsedModel, Result, TargetDtype};

/// What a stored tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[non_exhaustive]
pub enum TensorRole {
    /// Codes of a quantized weight.
    Quantized,
    /// Scales, of any level.
    Scale,
    /// Not quantized; copied as it is.
    Passthrough,
    /// Zero points.
    ZeroPoint,
    /// Column-to-group map.
    GroupIndex,
    /// Codebook of the codes or of the scales.
    QuantMap,
    /// Scale of double-quantized scales.
    NestedScale,
    /// Description of the quantization, and markers.
    QuantState,
    /// Factor of a product of low rank that is part of the weight.
    LowRank,
    /// Scale of activations or of the KV cache; no part of any weight.
    Activation,
}

/// One logical tensor: its scheme, the stored tensors that make it up, and its decoder.
pub(crate) struct Group<'m> {
    /// Name in the output.
    pub name: String,
    /// Logical shape, outermost dimension first.
    pub shape: Vec<usize>,
    pub scheme: QuantScheme,
    /// Stored tensors, by role; the weight's codes come first.
    pub parts: Vec<(TensorRole, Tensor<'m>)>,
    /// Names of the matrices of a stack, if each is a tensor of its own in the output.
    pub split: Vec<String>,
    /// The type that it has in every output: that of values which are not quantized.
    pub keeps: Option<TargetDtype>,
    /// The same as modules have it, `[…, out, in]`, if it is a parameter `[…, in, out]` whose groups run along `in`.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    pub module: Option<Box<Self>>,
    pub decoder: Box<dyn Decode + 'm>,
}

impl<'m> Group<'m> {
    pub(crate) fn new(
        name: String,
        shape: Vec<usize>,
        scheme: QuantScheme,
        parts: Vec<(TensorRole, Tensor<'m>)>,
        decoder: Box<dyn Decode + 'm>,
    ) -> Self {
        Self {
            name,
            shape,
            scheme,
            parts,
            split: Vec::new(),
            keeps: None,
            module: None,
            decoder,
        }
    }

    /// The group, or one for each matrix of a stack that the output has apart.
    fn taken_apart(self) -> Vec<Self> {
        if self.split.is_empty() {
            return vec![self];
        }
        let decoder: Arc<dyn Decode + 'm> = Arc::from(self.decoder);
        let rows = decoder.grid().rows / self.split.len();
        let matrix = |(i, name)| {
            let window = Window {
                inner: decoder.clone(),
                first: i * rows,
                rows,
            };
            let (shape, parts) = (self.shape[1..].to_vec(), self.parts.clone());
            Self {
                name,
                shape,
                scheme: self.scheme,
                parts,
                split: vec![],
                keeps: self.keeps,
                module: None,
                decoder: Box::new(window),
            }
        };
        self.split.into_iter().enumerate().map(matrix).collect()
    }
}

/// How a group of stored tensors becomes one logical tensor.
pub(crate) trait Scheme: Sync {
    /// What `t` is reported as when claiming it failed.
    fn kind(&self, t: &Tensor<'_>, all: &Index<'_>) -> QuantScheme;

    /// Claims `t` with its companions, or leaves it. Errors name the tensor and what is missing.
    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>>;
}

/// A model's tensors by name, with its config.
pub(crate) struct Index<'m> {
    by_name: HashMap<&'m str, Tensor<'m>>,
    pub config: &'m QuantConfig,
    /// What a pickle says beside tensors.
    pub facts: &'m HashMap<String, String>,
    /// What the metadata say of parts of parameters, if torchao wrote them.
    pub torchao: torchao::Parts<'m>,
    /// Whether the tensors come from GGUF, where types say all and no other scheme is meant by a name.
    pub is_gguf: bool,
    /// Whether all shards of the model are there.
    pub is_whole: bool,
    /// What the file says of layers in ComfyUI's own formats, if they are in it.
    pub comfyui: Option<comfy::Layers>,
    /// Whether some tensor belongs to a 4-bit weight of BitsAndBytes.
    #[cfg(feature = "bnb")]
    pub has_absmax: bool,
    /// Whether some tensor of the file is a scale of an FP8 weight, or a marker that there are such.
    pub has_fp8_scales: bool,
}

impl<'m> Index<'m> {
    fn new(model: &'m ParsedModel) -> Self {
        let by_name: HashMap<_, _> = model.tensors().map(|t| (t.name(), t)).collect();
        let scaled = |t: &Tensor<'m>| {
            let fp8 = Fp8Format::of(t.dtype()).is_some();
            fp8::is_scale_name(t.name())
                || fp8 && !fp8::scales_of(t, |name| by_name.get(name).copied()).is_empty()
        };
        let has_fp8_scales = model.tensors().any(|t| scaled(&t));
        #[cfg(feature = "bnb")]
        let has_absmax = {
            let parts = [".absmax", ".quant_map", ".quant_state.bitsandbytes__"];
            model
                .tensors()
                .any(|t| parts.iter().any(|part| t.name().contains(part)))
        };
        let is_gguf = model.is_gguf();
        let comfyui = comfy::Layers::of(model);
        let facts = &model.facts;
        let torchao = torchao::Parts::new(&model.metadata);
        Self {
            by_name,
            config: &model.config,
            facts,
            torchao,
            is_gguf,
            is_whole: model.directory.is_some(),
            comfyui,
            #[cfg(feature = "bnb")]
            has_absmax,
            has_fp8_scales,
        }
    }

    /// The tensor called `name`.
    pub(crate) fn get(&self, name: &str) -> Option<Tensor<'m>> {
        self.by_name.get(name).copied()
    }

    /// The tensor called `base` + `suffix`.
    pub(crate) fn at(&self, base: &str, suffix: &str) -> Option<Tensor<'m>> {
        // By far the most frequent question: `format!` would take twice as long.
        let mut name = String::with_capacity(base.len() + suffix.len());
        name.push_str(base);
        name.push_str(suffix);
        self.get(&name)
    }

    /// [`at`](Self::at), or an error that says what `t` lacks.
    pub(crate) fn need(&self, t: &Tensor<'_>, base: &str, suffix: &str) -> Result<Tensor<'m>> {
        self.at(base, suffix)
            .ok_or_else(|| wrong(t, format!("its `{base}{suffix}` is missing")))
    }
}

/// A `Parse` error about `t`, with its dtype and shape.
pub(crate) fn wrong(t: &Tensor<'_>, what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!(
        "tensor `{}` ({} {:?}): {what}",
        t.name(),
        t.dtype(),
        t.shape()
    ))
}

/// An `Unsupported` error about `t`.
pub(crate) fn refused(
    t: &Tensor<'_>,
    scheme: &str,
    what: impl std::fmt::Display,
) -> AnamnesisError {
    AnamnesisError::unsupported(
        scheme,
        format!(
            "tensor `{}` ({} {:?}): {what}",
            t.name(),
            t.dtype(),
            t.shape()
        ),
    )
}

/// `name` without its last part, if that is `part`: empty, or up to and with the last dot.
pub(crate) fn base_of<'a>(name: &'a str, part: &str) -> Option<&'a str> {
    name.strip_suffix(part)
        .filter(|base| base.is_empty() || base.ends_with('.'))
}

/// The module that a weight belongs to: its name without the last part.
pub(crate) fn module_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}
