//! Summaries of a model, for people.

mod modules;

use std::collections::BTreeSet;
use std::fmt;

pub use self::modules::ModuleClass;
use crate::containers::model::Tensor;
use crate::error::printable;
use crate::scheme::{Resolution, ResolvedItem};
use crate::{Dtype, ParsedModel, QuantScheme, SchemeCount, TargetDtype, TensorRole};

/// What a model holds, and what recovering it would give.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct InspectInfo {
    /// The scheme of most quantized tensors.
    pub format: QuantScheme,
    /// Every scheme with its count, in the order of the file.
    pub schemes: Vec<SchemeCount>,
    /// Stored tensors.
    pub tensor_count: usize,
    /// Quantized weights.
    pub quantized: usize,
    /// Scale tensors of weights.
    pub scales: usize,
    /// Tensors that are not quantized.
    pub passthrough: usize,
    /// Dtypes of the scales.
    pub scale_dtypes: Vec<Dtype>,
    /// Dtypes of the tensors that are not quantized.
    pub passthrough_dtypes: Vec<Dtype>,
    /// Tensors of zero points.
    pub zeropoints: usize,
    /// Column-to-group maps.
    pub group_indices: usize,
    /// Codebooks.
    pub quant_maps: usize,
    /// Scales of scales.
    pub nested_scales: usize,
    /// Descriptions of a quantization, and markers.
    pub quant_states: usize,
    /// Scales of activations and of the KV cache, which no recovery keeps.
    pub activations: usize,
    /// Tensors of an optimizer's state, as training checkpoints have them beside the model.
    pub optimizer: usize,
    /// Their bytes.
    pub optimizer_size: u64,
    /// Bytes of the stored tensors.
    pub current_size: u64,
    /// Bytes of the tensors after recovery.
    pub dequantized_size: u64,
    /// Element type of that recovery.
    #[serde(skip)]
    pub output_dtype: TargetDtype,
    /// The model by its module classes.
    pub modules: Vec<ModuleClass>,
    /// What a user should know of the file.
    pub notes: Vec<String>,
    /// Why the model cannot be recovered; empty if it can.
    pub problems: Vec<String>,
}

impl InspectInfo {
    /// Number of values in the recovered model.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.modules.iter().map(|m| m.parameters).sum()
    }

    /// Bytes that quantization took.
    #[must_use]
    pub const fn lethe_took(&self) -> u64 {
        self.dequantized_size.saturating_sub(self.current_size)
    }
}

impl ParsedModel {
    /// Summarises the model. Reads no tensor data but the small descriptions that some schemes keep.
    #[must_use]
    pub fn inspect(&self) -> InspectInfo {
        self.inspect_roles().0
    }

    /// The summary, and what each stored tensor is for, in the order of the tensors.
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
        let most = schemes.iter().rev().max_by_key(|s| s.tensors);
        let info = InspectInfo {
            format: most.map_or(QuantScheme::Unquantized, |s| s.scheme),
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
            optimizer: optimizer(self).count(),
            optimizer_size: optimizer(self).map(|t| t.info().len).sum(),
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

/// Keys under which training loops keep the state of their optimizers.
const OPTIMIZER: &[&str] = &[
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

fn optimizer(model: &ParsedModel) -> impl Iterator<Item = Tensor<'_>> {
    model.tensors().filter(|t| {
        t.name()
            .split_once('.')
            .is_some_and(|(root, _)| OPTIMIZER.contains(&root))
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

/// Bytes after recovery; what cannot be recovered counts as it is.
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
                names(&self.scale_dtypes)
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

/// Problems that a summary lists; the rest are counted.
const MAX_PROBLEMS: usize = 5;

impl InspectInfo {
    /// Families of the schemes, each once.
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

/// `dtypes` in one line.
pub(crate) fn names(dtypes: &[Dtype]) -> String {
    dtypes
        .iter()
        .map(Dtype::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// `bytes` for people: `1.22 GB`, `345 MB`, `1.5 KB`, `12 B`, in powers of 1024.
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
