//! Where in a tensor large values are: a map of a matrix, a table of a stack of matrices.

use std::io::Write;

use super::super::table::{Column, Table, line_width};
use super::elements::short;
use crate::hooks::for_each_value;
use crate::{Conversion, Result};

/// Most cells of a map.
const ROWS: usize = 16;
const COLS: usize = 60;

/// Characters of cells, from the smallest mean to the largest.
const LEVELS: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];

/// Least rows and columns of matrices in a stack: the kernels of convolutions have fewer.
const LEAST_SIDE: usize = 8;

/// Most matrices of a stack that have a line.
const MOST_MATRICES: usize = 512;

/// What is drawn of a tensor.
pub(super) enum Picture {
    Map(HeatMap),
    Stack(Stack),
}

impl Picture {
    /// A picture of a tensor of `shape`, without its values; `None` if there is none.
    pub(super) fn of(shape: &[usize]) -> Option<Self> {
        match *shape {
            [rows, cols] if rows > 0 && cols > 0 => {
                // Two characters of margin and two of frame.
                let most =
                    line_width().map_or(COLS, |width| width.saturating_sub(4).clamp(1, COLS));
                let (rows, cols) = (Axis::new(rows, ROWS), Axis::new(cols, most));
                let cells = vec![Cell::default(); rows.parts * cols.parts];
                Some(Self::Map(HeatMap { rows, cols, cells }))
            }
            [n, rows, cols] if n > 0 && rows >= LEAST_SIDE && cols >= LEAST_SIDE => {
                Some(Self::Stack(Stack { size: rows * cols, count: n, matrices: Vec::new() }))
            }
            _ => None,
        }
    }

    /// Reads the values of the output tensor called `name`.
    ///
    /// # Errors
    /// Those of [`Conversion::for_each_panel`].
    pub(super) fn read(mut self, conversion: &Conversion<'_>, name: &str) -> Result<Self> {
        conversion.for_each_panel(name, |panel| {
            for_each_value(name, panel.dtype, panel.bytes, |x| match &mut self {
                Self::Map(map) => map.add(x),
                Self::Stack(stack) => stack.add(x),
            })
        })?;
        Ok(self)
    }

    pub(super) fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out)?;
        match self {
            Self::Map(map) => map.print(out),
            Self::Stack(stack) => stack.print(out),
        }
    }
}

/// A dimension cut into parts, and a place in it.
struct Axis {
    len: usize,
    parts: usize,
    at: usize,
    part: usize,
    /// End of the part.
    end: usize,
}

impl Axis {
    fn new(len: usize, most: usize) -> Self {
        let mut axis = Self { len, parts: len.min(most), at: 0, part: 0, end: 0 };
        axis.end = axis.bound(1);
        axis
    }

    /// Where part `i` begins.
    fn bound(&self, i: usize) -> usize {
        (self.len as u128 * i as u128 / self.parts as u128) as usize
    }

    /// Goes to the next place. Returns whether that is the first one again.
    fn step(&mut self) -> bool {
        self.at += 1;
        if self.at == self.end {
            self.part += 1;
            self.end = self.bound(self.part + 1);
        }
        if self.at == self.len {
            *self = Self::new(self.len, self.parts);
            return true;
        }
        false
    }
}

/// Values of a block of a matrix.
#[derive(Clone, Default)]
struct Cell {
    values: u64,
    /// Sum of their sizes; not finite if one of them is not.
    sum: f64,
}

/// Means of the sizes of a matrix's values, block by block.
pub(super) struct HeatMap {
    rows: Axis,
    cols: Axis,
    cells: Vec<Cell>,
}

impl HeatMap {
    fn add(&mut self, x: f64) {
        let cell = &mut self.cells[self.rows.part * self.cols.parts + self.cols.part];
        cell.values += 1;
        cell.sum += x.abs();
        if self.cols.step() {
            self.rows.step();
        }
    }

    fn print(&self, out: &mut impl Write) -> Result<()> {
        let means: Vec<f64> = self
            .cells
            .iter()
            .map(|cell| cell.sum / cell.values as f64)
            .collect();
        let finite = || means.iter().copied().filter(|mean| mean.is_finite());
        let (least, most) = (finite().fold(f64::INFINITY, f64::min), finite().fold(0.0, f64::max));
        let (rows, cols) = (self.rows.parts, self.cols.parts);
        write!(out, "mean |x| of {rows} x {cols} blocks")?;
        let last = LEVELS.len() - 1;
        if least < most {
            let (low, high) = (LEVELS[0], LEVELS[last]);
            write!(out, ", from {} '{low}' to {} '{high}'", short(least), short(most))?;
        } else if least == most {
            write!(out, ", all {}", short(most))?;
        }
        if finite().count() < means.len() {
            write!(out, "; '!': not finite")?;
        }
        writeln!(out)?;
        let level = |mean: &f64| match mean.is_finite() {
            true if least < most => {
                LEVELS[((mean - least) / (most - least) * last as f64).round() as usize]
            }
            true => LEVELS[last / 2],
            false => '!',
        };
        for row in means.chunks(cols) {
            writeln!(out, "  |{}|", row.iter().map(level).collect::<String>())?;
        }
        Ok(())
    }
}

/// Sums over one matrix of a stack. Values that are not finite are counted alone.
struct MatrixSums {
    min: f64,
    max: f64,
    sum: f64,
    squares: f64,
    finite: u64,
    not_finite: u64,
}

/// Range, mean and root mean square of each matrix of a stack, such as that of experts.
pub(super) struct Stack {
    /// Values of a matrix.
    size: usize,
    /// Number of matrices.
    count: usize,
    /// Those that have been read.
    matrices: Vec<MatrixSums>,
}

impl Stack {
    fn add(&mut self, x: f64) {
        let is_full = |sums: &MatrixSums| sums.finite + sums.not_finite == self.size as u64;
        if self.matrices.last().is_none_or(is_full) {
            if self.matrices.len() == MOST_MATRICES {
                return;
            }
            let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
            let new = MatrixSums { min, max, sum: 0.0, squares: 0.0, finite: 0, not_finite: 0 };
            self.matrices.push(new);
        }
        let Some(sums) = self.matrices.last_mut() else {
            return;
        };
        if !x.is_finite() {
            sums.not_finite += 1;
            return;
        }
        (sums.min, sums.max) = (sums.min.min(x), sums.max.max(x));
        sums.sum += x;
        sums.squares += x * x;
        sums.finite += 1;
    }

    fn print(&self, out: &mut impl Write) -> Result<()> {
        const COLUMNS: [Column; 6] = [
            Column::number("INDEX"),
            Column::number("MIN"),
            Column::number("MAX"),
            Column::number("MEAN"),
            Column::number("RMS"),
            Column::number("NOT FINITE"),
        ];
        let row = |(i, sums): (usize, &MatrixSums)| {
            let n = sums.finite as f64;
            let known = |x: f64| match sums.finite {
                0 => "-".to_owned(),
                _ => short(x),
            };
            [
                i.to_string(),
                known(sums.min),
                known(sums.max),
                known(sums.sum / n),
                known((sums.squares / n).sqrt()),
                sums.not_finite.to_string(),
            ]
        };
        let table = Table::new(COLUMNS, self.matrices.iter().enumerate().map(row));
        table.write_titles(out)?;
        for matrix in self.matrices.iter().enumerate() {
            table.write_row("", &row(matrix), out)?;
        }
        match self.count - self.matrices.len() {
            0 => Ok(()),
            more => Ok(writeln!(out, "and {more} more")?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each place is in the part whose bounds it lies between, whatever does not divide.
    #[test]
    fn parts_of_an_axis() {
        for (len, most) in [(1, 16), (16, 16), (17, 16), (100, 7), (59, 60)] {
            let mut axis = Axis::new(len, most);
            assert_eq!(axis.parts, len.min(most));
            for at in 0..len {
                let bounds = axis.bound(axis.part)..axis.bound(axis.part + 1);
                assert!(bounds.contains(&at), "{len} {most} {at}");
                assert_eq!(axis.step(), at + 1 == len);
            }
            assert_eq!((axis.at, axis.part), (0, 0));
        }
    }
}
