//! Tables of text. Rows are made twice, once to measure the columns and once to print them, so that no text is kept: a table
//! crate would hold the cells of all rows, of which a model can have hundreds of thousands.

use std::io::Write;

use crate::Result;

/// Least and most characters of a column: most tables look alike, and one long text does not widen every line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub title: &'static str,
    pub least: usize,
    pub most: usize,
    /// Whether texts end at the same character, as numbers do.
    pub is_right: bool,
}

impl Column {
    /// A column of texts, as wide as its longest text but at most `most`.
    pub(super) const fn text(title: &'static str, most: usize) -> Self {
        Self {
            title,
            least: 0,
            most,
            is_right: false,
        }
    }

    /// A column of numbers.
    pub(super) const fn number(title: &'static str) -> Self {
        Self {
            is_right: true,
            ..Self::text(title, 40)
        }
    }
}

/// Widths of the columns of a table.
pub(super) struct Table<const N: usize> {
    columns: [Column; N],
    widths: [usize; N],
    /// What is between two columns.
    pub gap: &'static str,
}

impl<const N: usize> Table<N> {
    /// Measures the columns of a table with a line of titles and these rows.
    pub(super) fn new(columns: [Column; N], rows: impl Iterator<Item = [String; N]>) -> Self {
        let mut widths = columns.map(|column| column.least.max(column.title.chars().count()));
        for row in rows {
            for ((width, cell), column) in widths.iter_mut().zip(&row).zip(&columns) {
                *width = cell.chars().count().min(column.most).max(*width);
            }
        }
        Self {
            columns,
            widths,
            gap: "  ",
        }
    }

    /// Writes the line of titles.
    pub(super) fn write_titles(&self, out: &mut impl Write) -> Result<()> {
        self.write_row("", &self.columns.map(|column| column.title.to_owned()), out)
    }

    /// Writes a row behind `margin`. A text that is longer than its column moves what follows it in its line.
    pub(super) fn write_row(
        &self,
        margin: &str,
        row: &[String; N],
        out: &mut impl Write,
    ) -> Result<()> {
        let mut line = margin.to_owned();
        for (i, cell) in row.iter().enumerate() {
            let padding = self.widths[i].saturating_sub(cell.chars().count());
            let padding = " ".repeat(padding);
            let (before, after) = match self.columns[i].is_right {
                true => (padding.as_str(), ""),
                false => ("", padding.as_str()),
            };
            let gap = if i == 0 { "" } else { self.gap };
            line.extend([gap, before, cell, after]);
        }
        Ok(writeln!(out, "{}", line.trim_end())?)
    }
}
