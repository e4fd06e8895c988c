//! The table of a model's tensors.

use std::io::Write;

use crate::error::printable;
use crate::inspect::format_bytes;
use crate::{Container, Dtype, ParsedModel, Result, Tensor};

/// Least and most characters of a column: most tables look alike, and one long text does not widen every line.
struct Column {
    least: usize,
    most: usize,
}

const NAME: Column = Column {
    least: 40,
    most: 120,
};
const DTYPE: Column = Column { least: 8, most: 16 };
const SHAPE: Column = Column {
    least: 15,
    most: 40,
};

impl Column {
    /// Width that fits texts of these numbers of characters.
    fn width(&self, lengths: impl Iterator<Item = usize>) -> usize {
        lengths.max().unwrap_or(0).clamp(self.least, self.most)
    }
}

/// Prints a line for each tensor with name, dtype, shape and size, and a last line with their number and bytes.
///
/// Of GGUF, shapes have the innermost dimension first, as ggml prints them. Lines are written one by one: the widths of the
/// columns are measured beforehand, and no text is kept.
pub(super) fn print_tensors(model: &ParsedModel, out: &mut impl Write) -> Result<()> {
    let chars = |text: String| text.chars().count();
    let name = NAME.width(model.tensors().map(|t| chars(printable(t.name()))));
    let dtype = DTYPE.width(model.tensors().map(|t| chars(t.dtype().to_string())));
    let shape = SHAPE.width(model.tensors().map(|t| chars(shape_of(&t))));
    let (mut bytes, mut unknown) = (0u64, 0);
    for t in model.tensors() {
        match t.dtype() {
            Dtype::UnknownGgml(_) => unknown += 1,
            _ => bytes = bytes.saturating_add(t.info().len),
        }
        writeln!(
            out,
            "  {:<name$} {:<dtype$} {:<shape$} {}",
            printable(t.name()),
            t.dtype(),
            shape_of(&t),
            format_bytes(t.info().len)
        )?;
    }
    let tensors = model.tensors().len();
    write!(out, "{tensors} tensors, {bytes} bytes")?;
    if bytes >= 1024 {
        write!(out, " ({})", format_bytes(bytes))?;
    }
    match unknown {
        0 => writeln!(out)?,
        n => writeln!(out, ", and {n} tensors of unknown size")?,
    }
    Ok(())
}

/// The shape as the container's own tools print it.
fn shape_of(t: &Tensor<'_>) -> String {
    let mut shape = t.shape().to_vec();
    if t.model.container() == Container::Gguf {
        shape.reverse();
    }
    format!("{shape:?}")
}
