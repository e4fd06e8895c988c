//! [`InspectInfo`], a summary of a model: its schemes, the roles of its tensors, and its size
//! before and after recovery. All summaries of single containers are views of it.

mod description;
mod display;
mod dtypes;
mod element_values;
mod listed;
mod modules;
mod roles;
mod statistics;

use std::collections::BTreeSet;

pub use self::description::{ModelDescription, ShardNumber};
#[cfg(any(feature = "gguf", feature = "npz", feature = "pth"))]
pub(crate) use self::display::write_dequantized;
pub use self::dtypes::DtypeCount;
pub(crate) use self::element_values::for_each_value;
pub use self::listed::ListedTensor;
pub use self::modules::ModuleClass;
#[cfg(feature = "cli")]
pub(crate) use self::modules::class_name;
#[cfg(feature = "check")]
pub(crate) use self::modules::without_numbers;
pub use self::statistics::{Histogram, TensorStatistics};
use crate::model::Tensor;
use crate::remember::{Resolution, module_names};
use crate::{
    AnamnesisError, Container, Dtype, ParsedModel, QuantScheme, SchemeCount, TargetDtype,
    TensorRole,
};

/// Summary of a model: what it stores, and what [`remember`](ParsedModel::remember) would make of
/// it.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct InspectInfo {
    /// File format that the model was read from.
    pub container: Container,
    /// The scheme of most quantized tensors.
    pub format: QuantScheme,
    /// Number of tensors of each scheme, in the order in which the schemes appear in the file.
    pub schemes: Vec<SchemeCount>,
    /// Number of stored tensors.
    pub tensor_count: usize,
    /// Number of quantized weights.
    pub quantized: usize,
    /// Number of tensors with scales of weights.
    pub scales: usize,
    /// Number of tensors that are not quantized.
    pub passthrough: usize,
    /// Dtypes of the scales.
    pub scale_dtypes: Vec<Dtype>,
    /// Dtypes of the tensors that are not quantized.
    pub passthrough_dtypes: Vec<Dtype>,
    /// What the tensors that are not quantized are by their names: `norms`, `embeddings`,
    /// `lm_head`, …, and `others` if some names tell and some do not. Empty if no name tells.
    pub passthrough_kinds: Vec<&'static str>,
    /// Number of tensors with zero points.
    pub zeropoints: usize,
    /// Number of tensors with offsets, which are added to scaled codes (`biases` of MLX).
    pub offsets: usize,
    /// Number of maps from columns to groups (`g_idx`).
    pub group_indices: usize,
    /// Whether columns of a weight are grouped in another order than they lie (GPTQ's activation
    /// order), by the data of the maps. `None` if there is no map, or only the header was read.
    pub activation_order: Option<bool>,
    /// Number of codebooks.
    pub quant_maps: usize,
    /// Number of tensors with scales of scales (double quantization).
    pub nested_scales: usize,
    /// Number of tensors that describe a quantization or mark a layer as quantized.
    pub quant_states: usize,
    /// Number of tensors with scales of activations or of the KV cache. Recovery leaves them out.
    pub activations: usize,
    /// Number of tensors with optimizer state, which training checkpoints store beside the model.
    pub optimizer: usize,
    /// Bytes of the tensors with optimizer state.
    pub optimizer_size: u64,
    /// Whether a tensor's numbers are stored with their most significant byte first.
    pub big_endian: bool,
    /// The stored tensors by dtype, sorted by dtype.
    pub dtypes: Vec<DtypeCount>,
    /// Bytes of all stored tensors.
    pub current_size: u64,
    /// Bytes of all tensors after recovery with quantized weights decoded to `output_dtype`.
    pub dequantized_size: u64,
    /// Element type that `dequantized_size` assumes for quantized weights.
    pub output_dtype: TargetDtype,
    /// The tensors after recovery by dtype, the dtype with the most bytes first: `dequantized_size`
    /// bytes in all. Tensors that are not quantized keep their dtype.
    pub output_dtypes: Vec<DtypeCount>,
    /// The tensors grouped by module class.
    pub modules: Vec<ModuleClass>,
    /// Remarks on the file for the user.
    pub notes: Vec<String>,
    /// The reasons why the model cannot be recovered; empty if it can.
    pub problems: Vec<String>,
}

impl InspectInfo {
    /// Number of values in the recovered model.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.modules.iter().map(|m| m.parameters).sum()
    }

    /// Bytes that quantization saved: the size after recovery less the stored size.
    #[must_use]
    pub const fn lethe_took(&self) -> u64 {
        self.dequantized_size.saturating_sub(self.current_size)
    }
}

impl ParsedModel {
    /// Summarizes the model. Reads no tensor data except maps from columns to groups (`g_idx`) and
    /// the small tensors in which some schemes describe themselves.
    #[must_use]
    pub fn inspect(&self) -> InspectInfo {
        let (info, roles) = self.inspect_roles();
        self.roles.get_or_init(|| roles);
        info
    }

    /// Why tensors of the model cannot be decoded: an error for each. Empty if all can be decoded.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// assert!(model.problems().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn problems(&self) -> Vec<AnamnesisError> {
        let resolution = self.resolve();
        let found = resolution.problems.into_iter().chain(resolution.suspects);
        found.map(|problem| problem.error).collect()
    }

    /// Returns the summary, and the role of each stored tensor in the order of the tensors.
    pub(crate) fn inspect_roles(&self) -> (InspectInfo, Vec<TensorRole>) {
        let resolution = self.resolve();
        let roles = roles::of(self, &resolution);
        let output_dtype = TargetDtype::BF16;
        let with_role = |role: TensorRole| {
            self.tensors()
                .zip(&roles)
                .filter(move |(_, r)| **r == role)
                .map(|(t, _)| t)
        };
        let dtypes_of = |role| {
            with_role(role)
                .map(|t| t.dtype())
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect()
        };
        let count = |role| with_role(role).count();
        let schemes = schemes(&resolution);
        let (stored, recovered) =
            (dtypes::stored(self), dtypes::recovered(&resolution, output_dtype));
        // `max_by_key` returns the last of several maxima. Reversed, that is the scheme that
        // appears first in the file.
        let most_used = schemes.iter().rev().max_by_key(|s| s.tensors);
        let assumed = resolution.assumptions.iter().map(ToString::to_string);
        let info = InspectInfo {
            container: self.container,
            format: most_used.map_or(QuantScheme::Unquantized, |s| s.scheme),
            tensor_count: self.tensors.len(),
            quantized: count(TensorRole::Quantized),
            scales: count(TensorRole::Scale),
            passthrough: count(TensorRole::Passthrough),
            scale_dtypes: dtypes_of(TensorRole::Scale),
            passthrough_dtypes: dtypes_of(TensorRole::Passthrough),
            passthrough_kinds: match self.container {
                // Arrays are parameters of anything: their names say nothing of layers of a
                // language model.
                Container::Npz | Container::Npy => Vec::new(),
                _ => kinds(with_role(TensorRole::Passthrough)),
            },
            zeropoints: count(TensorRole::ZeroPoint),
            offsets: count(TensorRole::Offset),
            group_indices: count(TensorRole::GroupIndex),
            activation_order: activation_order(with_role(TensorRole::GroupIndex)),
            quant_maps: count(TensorRole::QuantMap),
            nested_scales: count(TensorRole::NestedScale),
            quant_states: count(TensorRole::QuantState),
            activations: count(TensorRole::Activation),
            optimizer: optimizer_tensors(self).count(),
            optimizer_size: optimizer_tensors(self).map(|t| t.info().len).sum(),
            big_endian: self.tensors.iter().any(|t| t.big_endian),
            current_size: dtypes::total(&stored),
            dequantized_size: dtypes::total(&recovered),
            dtypes: stored,
            output_dtype,
            output_dtypes: recovered,
            modules: modules::classes(&resolution),
            notes: self.notes.iter().cloned().chain(assumed).collect(),
            problems: problems(self, &resolution),
            schemes,
        };
        (info, roles)
    }
}

/// Whether some of `maps` from columns to groups is not in ascending order; `None` if there are
/// none, or one cannot be read.
fn activation_order<'m>(maps: impl Iterator<Item = Tensor<'m>>) -> Option<bool> {
    let mut is_any = None;
    for map in maps {
        let bytes = map.bytes().ok().filter(|_| map.dtype() == Dtype::I32)?;
        let groups = bytes.as_chunks::<4>().0.iter();
        if !groups.map(|group| i32::from_le_bytes(*group)).is_sorted() {
            return Some(true);
        }
        is_any = Some(false);
    }
    is_any
}

/// What `tensors` are by their names, each word once.
fn kinds<'m>(tensors: impl Iterator<Item = Tensor<'m>>) -> Vec<&'static str> {
    let found: BTreeSet<_> = tensors.map(|t| module_names::kind_of(t.name())).collect();
    let known = module_names::KINDS.iter().copied();
    let mut kinds: Vec<_> = known.filter(|&kind| found.contains(&Some(kind))).collect();
    if !kinds.is_empty() && found.contains(&None) {
        kinds.push("others");
    }
    kinds
}

/// First components of tensor names under which training loops store the state of their optimizers.
const OPTIMIZER_KEYS: &[&str] = &[
    "optimizer",
    "optimizers",
    "optimizer_state",
    "optimizer_states",
    "optimizer_state_dict",
    "optim",
    "optim_state",
    "opt",
    "opt_state",
];

fn optimizer_tensors(model: &ParsedModel) -> impl Iterator<Item = Tensor<'_>> {
    model.tensors().filter(|t| is_optimizer(t.name()))
}

/// Whether the tensor called `name` is state of an optimizer.
fn is_optimizer(name: &str) -> bool {
    name.split_once('.')
        .is_some_and(|(root, _)| OPTIMIZER_KEYS.contains(&root))
}

/// Number of values of a tensor of `shape`. Saturating, because a malformed file can claim any
/// shape.
fn product(shape: &[usize]) -> u64 {
    shape.iter().fold(1, |n, &d| n.saturating_mul(d as u64))
}

fn problems(model: &ParsedModel, resolution: &Resolution<'_>) -> Vec<String> {
    let skipped = model.skipped.iter().map(|s| s.error().to_string());
    skipped
        .chain(resolution.problems.iter().map(|p| p.error.to_string()))
        .collect()
}

fn schemes(resolution: &Resolution<'_>) -> Vec<SchemeCount> {
    let mut schemes = Vec::new();
    let failed = resolution.problems.iter().map(|p| p.scheme);
    resolution
        .groups()
        .map(|group| group.scheme)
        .chain(failed)
        .filter(|&scheme| scheme != QuantScheme::Unquantized)
        .for_each(|scheme| crate::remember::count(&mut schemes, scheme));
    schemes
}

/// The names of `dtypes`, joined by commas.
pub(crate) fn join_dtypes<'a>(dtypes: impl IntoIterator<Item = &'a Dtype>) -> String {
    dtypes
        .into_iter()
        .map(Dtype::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Formats a number of bytes for display: `1.22 GB`, `345 MB`, `1.5 KB`, `12 B`, in powers of 1024.
///
/// ```
/// assert_eq!(anamnesis::format_bytes(3 << 19), "2 MB");
/// ```
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    let in_units = |unit: u64| bytes as f64 / unit as f64;
    match bytes {
        GIB.. => format!("{:.2} GB", in_units(GIB)),
        MIB.. => format!("{:.0} MB", in_units(MIB)),
        KIB.. => format!("{:.1} KB", in_units(KIB)),
        _ => format!("{bytes} B"),
    }
}
