//! Rows in another order, whatever the tiles: against loops that say where each row comes from.

use std::ops::Range;
use std::sync::Arc;

use super::{Assembled, Change, Computed, Piece, RowOrder, Tiles};
use crate::element::Out;
use crate::remember::layout::transposed::TransposedStack;
use crate::remember::seam::{Buffers, Decode, Grid, Tile};
use crate::simd::Level;
use crate::{Result, TargetDtype};

/// A matrix of `rows` × `cols` whose value at (r, c) is `first + 100 r + c`. Its tiles begin and
/// end at multiples of `align`.
#[derive(Clone, Copy)]
struct Numbers {
    rows: usize,
    cols: usize,
    first: usize,
    align: usize,
}

impl Decode for Numbers {
    fn grid(&self) -> Grid {
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align: self.align,
            col_align: 1,
            load_bits: 0.0,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, _: &mut Buffers) -> Result<()> {
        assert!(tile.rows.start.is_multiple_of(self.align));
        assert!(tile.rows.end.is_multiple_of(self.align) || tile.rows.end == self.rows);
        Ok(())
    }

    fn decode(&self, tile: &Tile, rows: Range<usize>, _: &Buffers, _: Level, out: Out<'_>) {
        let Out::F32(out) = out else {
            panic!("it is asked for F32")
        };
        let values = rows.flat_map(|row| tile.cols.clone().map(move |col| (row, col)));
        for (out, (row, col)) in out.iter_mut().zip(values) {
            *out = (self.first + 100 * row + col) as f32;
        }
    }
}

/// Rows of `numbers` as a piece.
fn piece(numbers: Numbers, order: RowOrder, rows: usize, turn: usize) -> Piece<'static> {
    Piece { decoder: Arc::new(numbers), rows, order, turn }
}

fn assembled(pieces: Vec<Piece<'static>>, cols: usize) -> Assembled<'static> {
    Assembled {
        pieces,
        takes_turns: false,
        cols,
        dtype: TargetDtype::F32,
        change: Change::None,
        columns: None,
    }
}

/// All values of `decoder`, which is read in tiles of at most `rows` rows.
fn values(decoder: &dyn Decode, rows: usize) -> Vec<f32> {
    let (grid, mut all, mut buffers) = (decoder.grid(), Vec::new(), Buffers::default());
    let step = rows.next_multiple_of(grid.row_align);
    for first in (0..grid.rows).step_by(step) {
        let tile = Tile { rows: first..(first + step).min(grid.rows), cols: 0..grid.cols };
        let mut out = vec![0.0; tile.values()];
        decoder.load(&tile, &mut buffers).unwrap();
        decoder.decode(&tile, tile.rows.clone(), &buffers, Level::default(), Out::F32(&mut out));
        all.extend(out);
    }
    all
}

/// Fails unless the rows of `decoder` are the rows `expected` of `numbers`, in tiles of every size.
fn check(decoder: &Assembled<'_>, numbers: Numbers, expected: &[usize]) {
    let line = |row: &usize| {
        let first = numbers.first + 100 * row;
        (first..first + numbers.cols).map(|value| value as f32)
    };
    let expected: Vec<f32> = expected.iter().flat_map(line).collect();
    for rows in 1..=decoder.grid().rows {
        assert_eq!(values(decoder, rows), expected, "tiles of {rows} rows");
    }
}

const ALIGNMENTS: [usize; 4] = [1, 2, 3, 24];

fn numbers(align: usize) -> Numbers {
    Numbers { rows: 24, cols: 5, first: 0, align }
}

#[test]
fn halves_of_heads() {
    for align in ALIGNMENTS {
        let source = numbers(align);
        let mut expected = Vec::new();
        for head in 0..4 {
            for pair in 0..3 {
                expected.extend([head * 6 + pair, head * 6 + 3 + pair]);
            }
        }
        let order = RowOrder::interleaved(6);
        check(&assembled(vec![piece(source, order, 24, 1)], 5), source, &expected);
        // The inverse puts each row where it came from.
        let mut inverse = vec![0; 24];
        expected
            .iter()
            .enumerate()
            .for_each(|(to, from)| inverse[*from] = to);
        let order = RowOrder::split(6);
        check(&assembled(vec![piece(source, order, 24, 1)], 5), source, &inverse);
    }
}

/// Only the first rows of each head alternate.
#[test]
fn halves_of_parts_of_heads() {
    for align in ALIGNMENTS {
        let source = numbers(align);
        let head = |first: usize, order: [usize; 8]| order.map(|row| first + row);
        let (len, of) = (4, 8);
        for (order, rows) in [
            (RowOrder::Interleaved { len, of }, [0, 2, 1, 3, 4, 5, 6, 7]),
            (RowOrder::Split { len, of }, [0, 2, 1, 3, 4, 5, 6, 7]),
        ] {
            let expected = [0, 8, 16].map(|first| head(first, rows)).concat();
            let heads = assembled(vec![piece(source, order, 24, 1)], 5);
            check(&heads, source, &expected);
        }
        let (len, of) = (6, 8);
        for (order, rows) in [
            (RowOrder::Interleaved { len, of }, [0, 3, 1, 4, 2, 5, 6, 7]),
            (RowOrder::Split { len, of }, [0, 2, 4, 1, 3, 5, 6, 7]),
        ] {
            let expected = [0, 8, 16].map(|first| head(first, rows)).concat();
            let heads = assembled(vec![piece(source, order, 24, 1)], 5);
            check(&heads, source, &expected);
        }
    }
}

#[test]
fn slices_and_their_turns() {
    for align in ALIGNMENTS {
        let source = numbers(align);
        for (first, len, of) in [(0, 1, 2), (1, 1, 2), (0, 3, 8), (3, 5, 8), (2, 4, 12)] {
            let expected: Vec<usize> = (0..24 / of)
                .flat_map(|run| (0..len).map(move |row| run * of + first + row))
                .collect();
            let order = RowOrder::Slice { first, len, of };
            let slice = assembled(vec![piece(source, order, expected.len(), 1)], 5);
            check(&slice, source, &expected);
        }
        // Two sources, three rows of the one and five of the other in turns.
        let other = Numbers { first: 50, ..source };
        let pieces =
            vec![piece(source, RowOrder::From(0), 9, 3), piece(other, RowOrder::From(2), 15, 5)];
        let turns = Assembled { takes_turns: true, ..assembled(pieces, 5) };
        let mut expected = Vec::new();
        for turn in 0..3 {
            let lines = (0..3).map(|row| 100 * (turn * 3 + row));
            let others = (0..5).map(|row| 50 + 100 * (2 + turn * 5 + row));
            for first in lines.chain(others) {
                expected.extend((first..first + 5).map(|value| value as f32));
            }
        }
        for rows in 1..=24 {
            assert_eq!(values(&turns, rows), expected, "tiles of {rows} rows");
        }
    }
}

#[test]
fn tiles_of_groups() {
    let tiles = Tiles { groups: 2, parts: 3, len: 3 };
    // Rows 6 to 23 are two groups of three parts of three rows.
    let mut expected: Vec<usize> = (0..6).collect();
    for part in 0..3 {
        for group in 0..2 {
            expected.extend((0..3).map(|row| 6 + (group * 3 + part) * 3 + row));
        }
    }
    let mut inverse = vec![0; 24];
    expected
        .iter()
        .enumerate()
        .for_each(|(to, from)| inverse[*from] = to);
    for align in ALIGNMENTS {
        let source = numbers(align);
        for (tiles, expected) in [(tiles, &expected), (tiles.inverse(), &inverse)] {
            let order = RowOrder::Tiled { first: 6, tiles };
            check(&assembled(vec![piece(source, order, 24, 1)], 5), source, expected);
        }
    }
}

#[test]
fn tiles_of_columns() {
    let source = Numbers { rows: 7, cols: 12, first: 0, align: 1 };
    let tiles = Tiles { groups: 3, parts: 2, len: 2 };
    let order = [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11];
    let columns = |columns| Assembled {
        columns: Some(columns),
        ..assembled(vec![piece(source, RowOrder::From(0), 7, 1)], 12)
    };
    let found = values(&columns(tiles), 2);
    let expected = (0..7).flat_map(|row| order.map(|col| (100 * row + col) as f32));
    assert_eq!(found, expected.collect::<Vec<_>>());
    let back = values(&columns(tiles.inverse()), 3);
    let mut inverse = [0; 12];
    order
        .iter()
        .enumerate()
        .for_each(|(to, from)| inverse[*from] = to);
    let expected = (0..7).flat_map(|row| inverse.map(|col| (100 * row + col) as f32));
    assert_eq!(back, expected.collect::<Vec<_>>());
}

/// Keys of latent attention: some rows of each head, and each head's matrix transposed.
#[test]
fn slices_that_are_transposed() {
    let source = numbers(2);
    let order = RowOrder::Slice { first: 2, len: 3, of: 8 };
    let stack = TransposedStack {
        inner: Arc::new(assembled(vec![piece(source, order, 9, 1)], 5)),
        rows: 5,
        cols: 3,
        dtype: TargetDtype::F32,
    };
    let mut expected = Vec::new();
    for head in 0..3 {
        for col in 0..5 {
            expected.extend((0..3).map(|row| (100 * (head * 8 + 2 + row) + col) as f32));
        }
    }
    for rows in 1..=15 {
        assert_eq!(values(&stack, rows), expected, "tiles of {rows} rows");
    }
}

/// A decoder with one flat run of values has no rows that could be columns.
#[test]
fn flat_values_are_transposed() {
    let stack = TransposedStack {
        inner: Arc::new(Computed((0..30).map(|n| n as f32).collect())),
        rows: 5,
        cols: 3,
        dtype: TargetDtype::F32,
    };
    let expected = (0..2).flat_map(|matrix| {
        (0..5).flat_map(move |row| (0..3).map(move |col| (15 * matrix + 5 * col + row) as f32))
    });
    let expected: Vec<f32> = expected.collect();
    assert_eq!(stack.grid().rows, 10);
    for rows in 1..=10 {
        assert_eq!(values(&stack, rows), expected, "tiles of {rows} rows");
    }
}

/// What is added and what is exponentiated comes back.
#[test]
fn changes_and_their_inverses() {
    let stored = [-3.5f32, -0.25, 0.0, 0.5, 2.0];
    let mut changed = stored;
    Change::PlusOne.apply(&mut changed);
    assert_eq!(changed, [-2.5, 0.75, 1.0, 1.5, 3.0]);
    Change::MinusOne.apply(&mut changed);
    assert_eq!(changed, stored);
    Change::NegExp.apply(&mut changed);
    // torch 2.6: -torch.exp(torch.tensor([-3.5, -0.25, 0, 0.5, 2]))
    let bits = [0xbcf7_6081u32, 0xbf47_5f7d, 0xbf80_0000, 0xbfd3_094c, 0xc0ec_7326];
    for (found, expected) in changed.iter().zip(bits) {
        assert!(found.to_bits().abs_diff(expected) <= 1, "{found}");
    }
    Change::LnNeg.apply(&mut changed);
    for (found, expected) in changed.iter().zip(stored) {
        assert!((found - expected).abs() <= 1e-6, "{found}");
    }
}
