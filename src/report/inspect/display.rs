//! The text of a summary, as `amn inspect` prints it.

use std::fmt;

use super::{InspectInfo, ModuleClass, format_bytes, join_dtypes};
use crate::error::{counted, printable};
use crate::{Container, QuantScheme};

/// Writes the line of a container's summary on its `size` after recovery to `dtypes`, unless that
/// is the stored `total`.
#[cfg(any(feature = "gguf", feature = "npz", feature = "pth"))]
pub(crate) fn write_dequantized(
    f: &mut fmt::Formatter<'_>,
    total: u64,
    size: u64,
    dtypes: &[crate::Dtype],
) -> fmt::Result {
    if size == total {
        return Ok(());
    }
    let (size, dtypes) = (format_bytes(size), join_dtypes(dtypes));
    writeln!(f, "Dequantized: {size} ({dtypes})")
}

impl fmt::Display for InspectInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_schemes(f)?;
        write!(f, "Quantized:   {} (weights)", counted(self.quantized, "tensor"))?;
        if self.scales > 0 {
            let scales = counted(self.scales, "scale tensor");
            write!(f, " + {scales} ({})", join_dtypes(&self.scale_dtypes))?;
        }
        writeln!(f)?;
        write!(f, "Passthrough: {}", counted(self.passthrough, "tensor"))?;
        if !self.passthrough_kinds.is_empty() {
            write!(f, " ({})", self.passthrough_kinds.join(", "))?;
        }
        writeln!(f)?;
        let order = self.order_of_columns();
        let order = order.map_or(String::new(), |order| format!(" ({order})"));
        let optional = [
            ("Zero-points: ", self.zeropoints, ""),
            ("Offsets:     ", self.offsets, ""),
            ("Group index: ", self.group_indices, &*order),
            ("Quant maps:  ", self.quant_maps, " (lookup tables)"),
            ("Nested:      ", self.nested_scales, " (double-quant absmax)"),
        ];
        for (label, n, what) in optional.into_iter().filter(|(_, n, _)| *n > 0) {
            writeln!(f, "{label}{}{what}", counted(n, "tensor"))?;
        }
        if self.optimizer > 0 {
            let size = format_bytes(self.optimizer_size);
            writeln!(f, "Optimizer:   {} of these tensors are its state ({size})", self.optimizer)?;
        }
        let (now, then) = (format_bytes(self.current_size), format_bytes(self.dequantized_size));
        write!(f, "Size:        {now} ({}) -> {then} ({})", self.family(), self.recovered_to())?;
        // DFloat11 is smaller without having lost anything.
        let has_lost =
            |m: &ModuleClass| !matches!(m.scheme, QuantScheme::Unquantized | QuantScheme::DFloat11);
        if self.quantized > 0 && self.problems.is_empty() && self.modules.iter().any(has_lost) {
            write!(f, "\nLethe took:  ~{} of precision", format_bytes(self.lethe_took()))?;
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
    /// Writes the container, then the schemes, one a line. safetensors is not named: a summary
    /// without a container is of it.
    fn write_schemes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut label = "Format:      ";
        if self.container != Container::Safetensors {
            writeln!(f, "{label}{}", self.container)?;
            label = "Scheme:      ";
        }
        match self.schemes.as_slice() {
            [] | [_] => writeln!(f, "{label}{}", described(&self.format)),
            several => several.iter().try_for_each(|s| {
                let label = std::mem::replace(&mut label, "             ");
                writeln!(f, "{label}{} ({})", described(&s.scheme), counted(s.tensors, "tensor"))
            }),
        }
    }

    /// What the maps from columns to groups say of the order of columns, in words; `None` if there is no
    /// map, or only the header was read.
    #[must_use]
    pub fn order_of_columns(&self) -> Option<&'static str> {
        Some(match self.activation_order? {
            true => "activation-order",
            false => "groups in the order of columns",
        })
    }

    /// Names of the dtypes that recovery gives, the one with the most bytes first.
    fn recovered_to(&self) -> String {
        match self.output_dtypes.as_slice() {
            [] => self.output_dtype.to_string(),
            dtypes => join_dtypes(dtypes.iter().map(|c| &c.dtype)),
        }
    }

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

/// The name of `scheme`. For FP8 it says which values share a scale.
fn described(scheme: &QuantScheme) -> String {
    match scheme {
        QuantScheme::PerTensorFp8 { .. } => format!("{scheme}, single scale factor per tensor"),
        // `Per-channel FP8 (E4M3), one scale per row` says so itself.
        _ => scheme.to_string(),
    }
}
