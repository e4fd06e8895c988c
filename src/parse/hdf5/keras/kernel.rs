//! How the kernel of a layer lies.

use serde_json::Value;

/// How the kernel of a layer lies, whatever its codes are.
#[derive(Clone)]
pub(super) struct KerasKernel {
    /// Whether each row has scales of its own, and not each column.
    pub is_by_row: bool,
    /// Its shape, as far as the config tells.
    pub shape: Vec<Option<usize>>,
    /// Axes of the shape that are its rows.
    pub reduced: usize,
    /// Axes before these that are columns, as are those behind them.
    pub ahead: usize,
}

impl KerasKernel {
    /// The kernel of a `Dense`.
    pub(super) fn matrix(rows: Option<usize>, cols: Option<usize>) -> Self {
        Self { is_by_row: false, shape: vec![rows, cols], reduced: 1, ahead: 0 }
    }
}

/// The sizes in a list, of which some may not be known, or a size alone.
pub(super) fn sizes(value: Option<&Value>) -> Vec<Option<usize>> {
    let size = |n: &Value| n.as_u64().and_then(|n| usize::try_from(n).ok());
    match value {
        Some(Value::Array(items)) => items.iter().map(size).collect(),
        Some(n) => vec![size(n)],
        None => vec![],
    }
}
