//! Matrices of an adapter whose rows and columns each stand for several of a larger matrix.

use std::ops::Range;

use crate::Result;
use crate::remember::layout::adapted::AddedMatrix;
use crate::remember::seam::scale_matrix::ScaleMatrix;

/// Which row or column of the larger matrix is which of the smaller one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spread {
    Same,
    /// Each is so many that follow each other.
    Repeated(usize),
    /// After so many the first one follows again.
    Cycled(usize),
}

impl Spread {
    /// What follows each other in the smaller matrix of the larger one's range `at..end`, from its
    /// beginning on: the first there, how many, and how often each is repeated.
    fn piece(self, at: usize, end: usize) -> (usize, usize, usize) {
        match self {
            Self::Same => (at, end - at, 1),
            Self::Repeated(n) => (at / n, 1, (n - at % n).min(end - at)),
            Self::Cycled(n) => (at % n, (n - at % n).min(end - at), 1),
        }
    }

    /// What is read of the smaller matrix for a range of the larger one.
    fn sources(self, range: &Range<usize>) -> Range<usize> {
        match self {
            Self::Same => range.clone(),
            Self::Repeated(n) => range.start / n..range.end.div_ceil(n),
            Self::Cycled(n) => match range.start % n {
                first if first + range.len() <= n => first..first + range.len(),
                _ => 0..n,
            },
        }
    }
}

/// A matrix that is larger than the one that is stored.
pub(super) struct SpreadMatrix {
    inner: Box<dyn ScaleMatrix>,
    rows: Spread,
    cols: Spread,
}

impl SpreadMatrix {
    pub(super) fn boxed(
        inner: Box<dyn ScaleMatrix>,
        rows: Spread,
        cols: Spread,
    ) -> Box<dyn ScaleMatrix> {
        Box::new(Self { inner, rows, cols })
    }
}

/// `matrix`, whose rows and columns are spread.
pub(super) fn spread(matrix: AddedMatrix, rows: Spread, cols: Spread) -> AddedMatrix {
    matrix.map(&|inner| SpreadMatrix::boxed(inner, rows, Spread::Same), &|inner| {
        SpreadMatrix::boxed(inner, Spread::Same, cols)
    })
}

impl ScaleMatrix for SpreadMatrix {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        if cols.is_empty() {
            return Ok(());
        }
        let sources = self.cols.sources(&cols);
        let (mut values, mut at) = (vec![], rows.start);
        while at < rows.end {
            let (first, count, times) = self.rows.piece(at, rows.end);
            values.clear();
            self.inner
                .extend(first..first + count, sources.clone(), staging, &mut values)?;
            for row in values.chunks_exact(sources.len()) {
                (0..times).for_each(|_| self.extend_row(row, sources.start, &cols, out));
            }
            at += count * times;
        }
        Ok(())
    }
}

impl SpreadMatrix {
    /// Appends the columns `cols` of a row, whose stored values from column `first` on are `row`.
    fn extend_row(&self, row: &[f32], first: usize, cols: &Range<usize>, out: &mut Vec<f32>) {
        let mut at = cols.start;
        while at < cols.end {
            let (source, count, times) = self.cols.piece(at, cols.end);
            let values = &row[source - first..][..count];
            match times {
                1 => out.extend_from_slice(values),
                _ => values
                    .iter()
                    .for_each(|&value| out.resize(out.len() + times, value)),
            }
            at += count * times;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of numbers that say where they are.
    struct Numbered;

    impl ScaleMatrix for Numbered {
        fn extend(
            &self,
            rows: Range<usize>,
            cols: Range<usize>,
            _staging: &mut Vec<u8>,
            out: &mut Vec<f32>,
        ) -> Result<()> {
            for row in rows {
                out.extend(cols.clone().map(|col| (10 * row + col) as f32));
            }
            Ok(())
        }
    }

    #[test]
    fn every_rectangle_is_read() {
        let ways = [Spread::Same, Spread::Repeated(3), Spread::Cycled(4), Spread::Cycled(1)];
        let source = |way, at| match way {
            Spread::Same => at,
            Spread::Repeated(n) => at / n,
            Spread::Cycled(n) => at % n,
        };
        let ranges = (0..9).flat_map(|start| (start..=9).map(move |end| start..end));
        let ranges: Vec<Range<usize>> = ranges.collect();
        for (rows_way, cols_way) in ways.iter().flat_map(|&r| ways.iter().map(move |&c| (r, c))) {
            let matrix = SpreadMatrix::boxed(Box::new(Numbered), rows_way, cols_way);
            for (rows, cols) in ranges
                .iter()
                .flat_map(|r| ranges.iter().map(move |c| (r, c)))
            {
                let mut got = vec![];
                matrix
                    .extend(rows.clone(), cols.clone(), &mut vec![], &mut got)
                    .unwrap();
                let all = rows.clone().flat_map(|r| cols.clone().map(move |c| (r, c)));
                let want =
                    all.map(|(r, c)| (10 * source(rows_way, r) + source(cols_way, c)) as f32);
                assert_eq!(got, want.collect::<Vec<_>>(), "{rows_way:?} {cols_way:?}");
            }
        }
    }
}
