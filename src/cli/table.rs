//! Tables of text. Rows are made twice, once to measure the columns and once to print them, so that
//! no text is kept: a table crate would hold the cells of all rows, of which a model can have
//! hundreds of thousands.

use std::io::{IsTerminal, Write};

use terminal_size::terminal_size_of;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::Result;

/// Most character cells of a column. It holds the names of all common models; one longer text does
/// not widen every line.
const WIDEST: usize = 120;

/// A column, as wide as its longest text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub title: &'static str,
    /// Least character cells: short tables look alike.
    pub least: usize,
    /// Whether texts end at the same place, as numbers do.
    pub is_right: bool,
}

impl Column {
    /// A column of texts.
    pub(super) const fn text(title: &'static str) -> Self {
        Self { title, least: 0, is_right: false }
    }

    /// A column of numbers.
    pub(super) const fn number(title: &'static str) -> Self {
        Self { is_right: true, ..Self::text(title) }
    }
}

/// Widths of the columns of a table.
pub(super) struct Table<const N: usize> {
    columns: [Column; N],
    widths: [usize; N],
    /// What is between two columns.
    pub gap: &'static str,
    /// Width of the terminal that lines are cut at. A file or a pipe gets whole lines.
    line_width: Option<usize>,
}

impl<const N: usize> Table<N> {
    /// Measures the columns of a table with a line of titles and these rows, which goes to stdout.
    pub(super) fn new(columns: [Column; N], rows: impl Iterator<Item = [String; N]>) -> Self {
        let mut widths = columns.map(|column| column.least.max(column.title.width()));
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(&row) {
                *width = cell.width().min(WIDEST).max(*width);
            }
        }
        Self { columns, widths, gap: "  ", line_width: line_width() }
    }

    /// Writes the line of titles.
    pub(super) fn write_titles(&self, out: &mut impl Write) -> Result<()> {
        self.write_row("", &self.columns.map(|column| column.title.to_owned()), out)
    }

    /// Writes a row behind `margin`. A text that is longer than its column moves what follows it in
    /// its line.
    pub(super) fn write_row(
        &self,
        margin: &str,
        row: &[String; N],
        out: &mut impl Write,
    ) -> Result<()> {
        let mut line = margin.to_owned();
        for (i, cell) in row.iter().enumerate() {
            let padding = " ".repeat(self.widths[i].saturating_sub(cell.width()));
            let (before, after) = match self.columns[i].is_right {
                true => (padding.as_str(), ""),
                false => ("", padding.as_str()),
            };
            let gap = if i == 0 { "" } else { self.gap };
            line.extend([gap, before, cell, after]);
        }
        let line = line.trim_end();
        match self.line_width {
            Some(width) => writeln!(out, "{}", cut(line, width))?,
            None => writeln!(out, "{line}")?,
        }
        Ok(())
    }
}

/// Width of the terminal that lines are cut at; `None` if stdout is a file or a pipe.
pub(super) fn line_width() -> Option<usize> {
    let stdout = std::io::stdout();
    let size = stdout.is_terminal().then(|| terminal_size_of(&stdout));
    size.flatten().map(|(width, _)| width.0.into())
}

/// `text` in at most `width` character cells, with a mark where it is cut.
pub(super) fn cut(text: &str, width: usize) -> String {
    match text.width() > width {
        true => format!("{}…", beginning(text, width.saturating_sub(1))),
        false => text.to_owned(),
    }
}

/// A bar as long as the share of `part` in `whole`, which has `width` characters. What is there has
/// one at least.
pub(super) fn bar(part: u64, whole: u64, width: u64) -> String {
    // In wider numbers: a count times the width may not fit.
    let length = u128::from(part) * u128::from(width) / u128::from(whole.max(1));
    "█".repeat((length as usize).max(usize::from(part > 0)))
}

/// A number of values in short: `1.54 B`, `135 M`.
pub(super) fn brief_count(n: u64) -> String {
    let x = n as f64;
    match n {
        1_000_000_000.. => format!("{:.2} B", x / 1e9),
        1_000_000.. => format!("{:.1} M", x / 1e6),
        10_000.. => format!("{:.1} K", x / 1e3),
        _ => n.to_string(),
    }
}

/// As much of `text` as takes at most `width` character cells.
fn beginning(text: &str, width: usize) -> &str {
    let mut taken = 0;
    let end = text.char_indices().find(|(_, c)| {
        taken += c.width().unwrap_or(0);
        taken > width
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(line_width: Option<usize>, rows: &[[String; 3]]) -> Vec<String> {
        let columns = [Column::text("NAME"), Column::text("DTYPE"), Column::number("SIZE")];
        let mut table = Table::new(columns, rows.iter().cloned());
        table.line_width = line_width;
        let mut out = Vec::new();
        for row in rows {
            table.write_row("", row, &mut out).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn rows() -> Vec<[String; 3]> {
        let row = |name: &str, dtype: &str| [name, dtype, "1 KB"].map(str::to_owned);
        vec![
            row("a", "F32"),
            row(&"x".repeat(100), "a dtype of more than sixteen characters"),
            row("層.重み", "U8"),
        ]
    }

    #[test]
    fn counts_are_brief() {
        assert_eq!([5, 12_345, 134_515_008].map(brief_count), ["5", "12.3 K", "134.5 M"]);
    }

    #[test]
    fn columns_line_up() {
        let lines = lines(None, &rows());
        let end = lines[0].width();
        assert_eq!(end, 100 + 2 + 39 + 2 + 4);
        assert!(lines.iter().all(|line| line.width() == end), "{lines:#?}");
    }

    #[test]
    fn lines_end_at_the_terminal() {
        let lines = lines(Some(20), &rows());
        assert_eq!(lines[1], format!("{}…", "x".repeat(19)));
        assert!(lines.iter().all(|line| line.width() == 20), "{lines:#?}");
        // A character of two cells that does not fit is left out.
        assert_eq!(beginning("層層", 3), "層");
    }
}
