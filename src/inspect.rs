//! [`InspectInfo`], a summary of a model: its schemes, the roles of its tensors, and its size before and after recovery.

mod modules;

use std::collections::BTreeSet;
use std::fmt;

pub use self::modules::ModuleClass;
use crate::containers::model::Tensor;
use crate::error::printable;
use crate::scheme::{Resolution, ResolvedItem};
use crate::{Dtype, ParsedModel, QuantScheme, SchemeCount, TargetDtype, TensorRole};

/// Summary of a model: what it stores, and what [`remember`](ParsedModel::remember) would make of it.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct InspectInfo {
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
    /// Number of tensors with zero points.
    pub zeropoints: usize,
    /// Number of maps from columns to groups (`g_idx`).
    pub group_indices: usize,
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
    /// Bytes of all stored tensors.
    pub current_size: u64,
    /// Bytes of all tensors after recovery to `output_dtype`.
    pub dequantized_size: u64,
    /// Element type that `dequantized_size` assumes.
    #[serde(skip)]
    pub output_dtype: TargetDtype,
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
    /// Summarizes the model. Reads no tensor data except the small tensors in which some schemes describe themselves.
    #[must_use]
    pub fn inspect(&self) -> InspectInfo {
        self.inspect_roles().0
    }

    /// Returns the summary, and the role of each stored tensor in the order of the tensors.
    pub(crate) fn inspect_roles(&self) -> (InspectInfo, Vec<TensorRole>) {
        let resolution = self.resolve();
        let roles = roles_of(self, &resolution);
        let output_dtype = TargetDtype::BF16;
        let with_role = |role: TensorRole| {
            self.tensors()
                .zip(&roles)
                .filter(move |(_, r)| **r == role)
                .map(|(t, _)| t)
        };
        let dtypes = |role| {
            with_role(role)
                .map(|t| t.dtype())
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect()
        };
        let count = |role| with_role(role).count();
        let schemes = schemes(&resolution);
        // `max_by_key` returns the last of several maxima. Reversed, that is the scheme that appears first in the file.
        let most_used = schemes.iter().rev().max_by_key(|s| s.tensors);
        let info = InspectInfo {
            format: most_used.map_or(QuantScheme::Unquantized, |s| s.scheme),
            tensor_count: self.tensors.len(),
            quantized: count(TensorRole::Quantized),
            scales: count(TensorRole::Scale),
            passthrough: count(TensorRole::Passthrough),
            scale_dtypes: dtypes(TensorRole::Scale),
            passthrough_dtypes: dtypes(TensorRole::Passthrough),
            zeropoints: count(TensorRole::ZeroPoint),
            group_indices: count(TensorRole::GroupIndex),
            quant_maps: count(TensorRole::QuantMap),
            nested_scales: count(TensorRole::NestedScale),
            quant_states: count(TensorRole::QuantState),
            activations: count(TensorRole::Activation),
            optimizer: optimizer_tensors(self).count(),
            optimizer_size: optimizer_tensors(self).map(|t| t.info().len).sum(),
            current_size: self.tensor_bytes(),
            dequantized_size: dequantized_size(&resolution, output_dtype),
            output_dtype,
            modules: modules::classes(&resolution),
            notes: self.notes.clone(),
            problems: problems(self, &resolution),
            schemes,
        };
        (info, roles)
    }
}

fn roles_of(model: &ParsedModel, resolution: &Resolution<'_>) -> Vec<TensorRole> {
    let mut roles = vec![TensorRole::Passthrough; model.tensors.len()];
    for group in resolution.groups() {
        group
            .parts
            .iter()
            .for_each(|&(role, t)| roles[t.index] = role);
    }
    resolution
        .dropped
        .iter()
        .for_each(|t| roles[t.index] = crate::scheme::role_of_dropped(t.name()));
    resolution
        .problems
        .iter()
        .for_each(|p| roles[p.tensor.index] = p.role);
    roles
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
    model.tensors().filter(|t| {
        t.name()
            .split_once('.')
            .is_some_and(|(root, _)| OPTIMIZER_KEYS.contains(&root))
    })
}

fn problems(model: &ParsedModel, resolution: &Resolution<'_>) -> Vec<String> {
    let skipped = model.skipped.iter().map(|s| s.error().to_string());
    skipped
        .chain(resolution.problems.iter().map(|p| p.error.to_string()))
        .collect()
}

fn schemes(resolution: &Resolution<'_>) -> Vec<SchemeCount> {
    let mut schemes = Vec::new();
    let failed = resolution
        .problems
        .iter()
        .map(|p| p.scheme)
        .filter(|&scheme| scheme != QuantScheme::Unquantized);
    resolution
        .groups()
        .map(|group| group.scheme)
        .chain(failed)
        .for_each(|scheme| crate::scheme::count(&mut schemes, scheme));
    schemes
}

/// Bytes of all tensors after recovery to `to`. A tensor that cannot be recovered counts with its stored size. The sum saturates,
/// because a malformed file can claim any shape.
fn dequantized_size(resolution: &Resolution<'_>, to: TargetDtype) -> u64 {
    let plain = |t: &Tensor<'_>| t.info().len;
    let items = resolution.items.iter().map(|item| match item {
        ResolvedItem::Plain(t) => plain(t),
        ResolvedItem::Group(group) => group
            .shape
            .iter()
            .fold(to.byte_size() as u64, |n, &d| n.saturating_mul(d as u64)),
    });
    items
        .chain(resolution.problems.iter().map(|p| plain(&p.tensor)))
        .fold(0, u64::saturating_add)
}

impl fmt::Display for InspectInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.schemes.as_slice() {
            [] | [_] => writeln!(f, "Format:      {}", self.format)?,
            several => {
                for (i, s) in several.iter().enumerate() {
                    writeln!(
                        f,
                        "{}{} ({} tensors)",
                        if i == 0 {
                            "Format:      "
                        } else {
                            "             "
                        },
                        s.scheme,
                        s.tensors
                    )?;
                }
            }
        }
        write!(f, "Quantized:   {} tensors (weights)", self.quantized)?;
        if self.scales > 0 {
            write!(
                f,
                " + {} scale tensors ({})",
                self.scales,
                join_dtypes(&self.scale_dtypes)
            )?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "Passthrough: {} tensors (norms, embeddings)",
            self.passthrough
        )?;
        let optional = [
            ("Zero-points: ", self.zeropoints, ""),
            ("Group index: ", self.group_indices, " (activation-order)"),
            ("Quant maps:  ", self.quant_maps, " (lookup tables)"),
            (
                "Nested:      ",
                self.nested_scales,
                " (double-quant absmax)",
            ),
        ];
        for (label, n, what) in optional.into_iter().filter(|(_, n, _)| *n > 0) {
            writeln!(f, "{label}{n} tensors{what}")?;
        }
        if self.optimizer > 0 {
            let size = format_bytes(self.optimizer_size);
            writeln!(
                f,
                "Optimizer:   {} of these tensors are its state ({size})",
                self.optimizer
            )?;
        }
        let (now, then) = (
            format_bytes(self.current_size),
            format_bytes(self.dequantized_size),
        );
        write!(
            f,
            "Size:        {now} ({}) -> {then} ({})",
            self.family(),
            self.output_dtype
        )?;
        if self.quantized > 0 && self.problems.is_empty() {
            write!(
                f,
                "\nLethe took:  ~{} of precision",
                format_bytes(self.lethe_took())
            )?;
        }
        for note in self.notes.iter().take(MAX_PROBLEMS) {
            write!(f, "\nNote:        {}", printable(note))?;
        }
        for problem in self.problems.iter().take(MAX_PROBLEMS) {
            write!(f, "\nProblem:     {}", printable(problem))?;
        }
        match self.problems.len().saturating_sub(MAX_PROBLEMS) {
            0 => Ok(()),
            more => write!(f, "\nProblem:     {more} more"),
        }
    }
}

/// Number of problems, and of notes, that the text of a summary lists.
const MAX_PROBLEMS: usize = 5;

impl InspectInfo {
    /// Names of the schemes' families without repetition, joined by commas.
    fn family(&self) -> String {
        let mut families: Vec<&str> = Vec::new();
        for s in &self.schemes {
            if !families.contains(&s.scheme.family()) {
                families.push(s.scheme.family());
            }
        }
        if families.is_empty() {
            "unquantized".to_owned()
        } else {
            families.join(", ")
        }
    }
}

/// The names of `dtypes`, joined by commas.
pub(crate) fn join_dtypes(dtypes: &[Dtype]) -> String {
    dtypes
        .iter()
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
