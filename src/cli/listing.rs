//! What listings of tensors share, and the table that `amn parse` prints.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;

use super::table::{Column, Table};
use crate::error::{counted, printable};
use crate::{
    ComparedTensor, Container, Dtype, ListedTensor, ParsedModel, QuantScheme, Result, TensorDiff,
    format_bytes,
};

const COLUMNS: [Column; 4] = [
    Column { least: 40, ..Column::text("") },
    Column { least: 8, ..Column::text("") },
    Column { least: 15, ..Column::text("") },
    Column::text(""),
];

/// Prints a line for each tensor with name, dtype, shape and size, and a last line with their
/// number and bytes.
pub(super) fn print_tensors(model: &ParsedModel, out: &mut impl Write) -> Result<()> {
    let row = |t: crate::Tensor<'_>| {
        [
            printable(t.name()),
            t.dtype().to_string(),
            shape_text(model.container(), t.shape()),
            format_bytes(t.byte_len()),
        ]
    };
    let mut table = Table::new(COLUMNS, model.tensors().map(row));
    table.gap = " ";
    let mut total = Total::default();
    for t in model.tensors() {
        total.add(t.dtype(), t.byte_len());
        table.write_row("  ", &row(t), out)?;
    }
    writeln!(out, "{total}")?;
    Ok(())
}

/// A shape as the container's own tools print it: of GGUF, the innermost dimension first, as ggml
/// has it.
pub(super) fn shape_text(container: Container, shape: &[usize]) -> String {
    let mut shape = shape.to_vec();
    if container == Container::Gguf {
        shape.reverse();
    }
    format!("{shape:?}")
}

/// What a tensor is stored in: its scheme, or the element type of one that is not quantized.
pub(super) fn stored_in(t: &ListedTensor<'_>) -> String {
    let scheme = t
        .scheme
        .filter(|scheme| *scheme != QuantScheme::Unquantized);
    scheme.map_or_else(|| t.dtype.to_string(), |scheme| scheme.column())
}

/// What a tensor of a comparison is stored in, as [`stored_in`].
pub(super) fn compared_in(t: &ComparedTensor) -> String {
    match t.scheme == QuantScheme::Unquantized {
        true => t.dtype.to_string(),
        false => t.scheme.column(),
    }
}

/// The sums of bytes by name, most first.
pub(super) fn most_first(bytes: impl Iterator<Item = (String, u64)>) -> Vec<(String, u64)> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (name, bytes) in bytes {
        let sum = sums.entry(name).or_default();
        *sum = sum.saturating_add(bytes);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, bytes)| Reverse(*bytes));
    sums
}

/// How much a tensor differs, to find the worst: the RMSE of its values, infinite if they cannot be
/// compared or some are not finite.
pub(super) fn error_of(t: &TensorDiff) -> f64 {
    let values = t.values.as_ref().filter(|values| values.not_finite == 0);
    values.map_or(f64::INFINITY, |values| values.rmse.unwrap_or(0.0))
}

/// Number and bytes of listed tensors.
#[derive(Default)]
pub(super) struct Total {
    tensors: usize,
    bytes: u64,
    /// Tensors of types whose size is unknown.
    unknown: usize,
}

impl Total {
    pub(super) fn add(&mut self, dtype: Dtype, bytes: u64) {
        self.tensors += 1;
        match dtype {
            Dtype::UnknownGgml(_) => self.unknown += 1,
            _ => self.bytes = self.bytes.saturating_add(bytes),
        }
    }
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} bytes", counted(self.tensors, "tensor"), self.bytes)?;
        if self.bytes >= 1024 {
            write!(f, " ({})", format_bytes(self.bytes))?;
        }
        match self.unknown {
            0 => Ok(()),
            n => write!(f, ", and {} of unknown size", counted(n, "tensor")),
        }
    }
}
