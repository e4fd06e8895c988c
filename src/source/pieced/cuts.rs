//! [`Cuts`]: the tree by which the piece of an element is found. Each node cuts a rectangle
//! straight through, along one dimension, into two or more; each leaf is a piece that fills its
//! rectangle. So a tree proves that every element lies in exactly one piece.
//!
//! All splits over meshes of devices are of this kind. Pieces such as the four arms of a pinwheel
//! are not.

use std::ops::Range;

use super::TensorPiece;
use crate::sort::sort_by_key;
use crate::{AnamnesisError, Result};

/// Deepest nesting of cuts. A split over a mesh nests as deep as the tensor has dimensions.
const MAX_DEPTH: usize = 64;

/// Most pieces of which each is compared with each, to say which overlap.
const MAX_COMPARED: usize = 1000;

/// A rectangle of the tensor.
#[derive(Debug)]
pub(super) enum Cuts {
    /// Index of the piece that fills it.
    Piece(usize),
    /// Smaller rectangles side by side along `dim`, each with the index at which it begins.
    Parts { dim: usize, parts: Vec<(u64, Cuts)> },
}

/// Elements of a rectangle; `None` if the number overflows.
pub(super) fn volume(sizes: &[u64]) -> Option<u64> {
    sizes.iter().try_fold(1u64, |n, &len| n.checked_mul(len))
}

impl Cuts {
    /// Cuts a tensor of `shape` into `pieces`. Takes time for sorting them once for each level of
    /// the tree and each dimension.
    ///
    /// # Errors
    /// As [`Pieced::new`](super::Pieced::new).
    pub(super) fn new(shape: &[u64], pieces: &[TensorPiece]) -> Result<Self> {
        let is_inside = |piece: &TensorPiece| {
            let ends = piece.start.iter().zip(&piece.sizes);
            let same = piece.start.len() == shape.len() && piece.sizes.len() == shape.len();
            let mut within = ends.zip(shape).map(|((&start, &len), &all)| {
                len > 0 && start.checked_add(len).is_some_and(|end| end <= all)
            });
            same && within.all(|is_within| is_within)
        };
        if !pieces.iter().all(is_inside) {
            return Err(AnamnesisError::parse("a piece that is not within the tensor"));
        }
        let whole: Vec<Range<u64>> = shape.iter().map(|&len| 0..len).collect();
        cut((0..pieces.len()).collect(), &whole, pieces, 0)
    }

    /// Index of the piece with the element at `index`.
    pub(super) fn find(&self, index: &[u64]) -> usize {
        let mut here = self;
        loop {
            match here {
                Self::Piece(piece) => return *piece,
                Self::Parts { dim, parts } => {
                    // The first part begins where the whole does, so that there is one before the
                    // partition point.
                    let next = parts.partition_point(|(start, _)| *start <= index[*dim]);
                    here = &parts[next.saturating_sub(1)].1;
                }
            }
        }
    }
}

/// Cuts the rectangle `whole` into the pieces `mine`.
fn cut(
    mut mine: Vec<usize>,
    whole: &[Range<u64>],
    pieces: &[TensorPiece],
    depth: usize,
) -> Result<Cuts> {
    let range = |piece: usize, d: usize| {
        let TensorPiece { start, sizes, .. } = &pieces[piece];
        start[d]..start[d] + sizes[d]
    };
    if let &[only] = mine.as_slice() {
        return match (0..whole.len()).all(|d| range(only, d) == whole[d]) {
            true => Ok(Cuts::Piece(only)),
            false => Err(AnamnesisError::parse(missing(whole, &pieces[only]))),
        };
    }
    if depth == MAX_DEPTH {
        let what = format!("they are nested in more than {MAX_DEPTH} levels");
        return Err(AnamnesisError::unsupported("pieces of a tensor", what));
    }
    for dim in 0..whole.len() {
        sort_by_key(&mut mine, |&piece| range(piece, dim).start);
        let mut groups: Vec<Vec<usize>> = vec![];
        let mut end = 0;
        for &piece in &mine {
            let range = range(piece, dim);
            match groups.last_mut().filter(|_| range.start < end) {
                Some(group) => group.push(piece),
                None => groups.push(vec![piece]),
            }
            end = range.end.max(end);
        }
        if groups.len() < 2 {
            continue;
        }
        // A part ends where the next begins. A gap between them belongs to the part before it,
        // whose pieces do not fill it.
        let starts = groups.iter().map(|group| range(group[0], dim).start);
        let mut starts: Vec<u64> = starts.collect();
        starts[0] = whole[dim].start;
        let ends = starts.iter().skip(1).copied().chain([whole[dim].end]);
        let parts = groups.into_iter().zip(starts.iter().copied().zip(ends));
        let parts = parts.map(|(group, (start, end))| {
            let mut part = whole.to_vec();
            part[dim] = start..end;
            Ok((start, cut(group, &part, pieces, depth + 1)?))
        });
        let parts = parts.collect::<Result<_>>()?;
        return Ok(Cuts::Parts { dim, parts });
    }
    Err(uncut(&mine, whole, pieces))
}

/// Says that a piece alone does not fill its rectangle.
fn missing(whole: &[Range<u64>], piece: &TensorPiece) -> String {
    let TensorPiece { start, sizes, .. } = piece;
    let at: Vec<u64> = whole.iter().map(|range| range.start).collect();
    format!(
        "a piece is missing: at {at:?} there is only one at {start:?} of {sizes:?}, where the last number counts bytes"
    )
}

/// The error for several pieces that no straight cut parts, or for none at all.
fn uncut(mine: &[usize], whole: &[Range<u64>], pieces: &[TensorPiece]) -> AnamnesisError {
    let Some(&first) = mine.first() else {
        return AnamnesisError::parse("all its pieces are missing");
    };
    let overlap = |&(a, b): &(&TensorPiece, &TensorPiece)| {
        let mut dims = 0..whole.len();
        dims.all(|d| a.start[d] < b.start[d] + b.sizes[d] && b.start[d] < a.start[d] + a.sizes[d])
    };
    // Pairs are quadratically many. Of more pieces the first ones are as good an example.
    let some = || mine.iter().take(MAX_COMPARED).map(|&piece| &pieces[piece]);
    let mut pairs = some()
        .enumerate()
        .flat_map(|(i, a)| some().skip(i + 1).map(move |b| (a, b)));
    if let Some((a, b)) = pairs.find(overlap) {
        let what = format!("pieces overlap, those at {:?} and {:?}", a.start, b.start);
        return AnamnesisError::parse(what);
    }
    let sizes: Vec<u64> = whole.iter().map(|range| range.end - range.start).collect();
    let mut of_pieces = mine.iter().map(|&piece| volume(&pieces[piece].sizes));
    let filled = of_pieces.try_fold(0u64, |n, len| n.checked_add(len?));
    let at = &pieces[first].start;
    match filled < volume(&sizes) {
        true => AnamnesisError::parse(format!("a piece is missing beside the one at {at:?}")),
        false => AnamnesisError::unsupported(
            "pieces of a tensor",
            format!("no straight cut parts those around {at:?}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(shape: &[u64], rectangles: &[(&[u64], &[u64])]) -> Result<Cuts> {
        let piece = |&(start, sizes): &(&[u64], &[u64])| TensorPiece {
            start: start.to_vec(),
            sizes: sizes.to_vec(),
            source: 0,
            offset: 0,
            check: None,
        };
        let pieces: Vec<TensorPiece> = rectangles.iter().map(piece).collect();
        Cuts::new(shape, &pieces)
    }

    #[test]
    fn what_is_no_split_is_an_error() {
        type Case<'a> = (&'a [u64], &'a [(&'a [u64], &'a [u64])], &'a str);
        let cases: [Case<'_>; 11] = [
            (&[4], &[], "all its pieces are missing"),
            (&[4], &[(&[0], &[3])], "a piece is missing"),
            (&[4], &[(&[1], &[3])], "a piece is missing"),
            (&[4], &[(&[0], &[5])], "not within"),
            (&[4], &[(&[0], &[0])], "not within"),
            (&[4], &[(&[1], &[u64::MAX])], "not within"),
            (&[4], &[(&[0, 0], &[4, 1])], "not within"),
            (&[4], &[(&[0], &[1]), (&[2], &[2])], "a piece is missing"),
            (&[4], &[(&[0], &[3]), (&[2], &[2])], "overlap"),
            (&[2, 2], &[(&[0, 0], &[2, 2]), (&[0, 0], &[2, 2])], "overlap"),
            // The arms of a pinwheel around one element.
            (
                &[3, 3],
                &[
                    (&[0, 0], &[1, 2]),
                    (&[0, 2], &[2, 1]),
                    (&[2, 1], &[1, 2]),
                    (&[1, 0], &[2, 1]),
                    (&[1, 1], &[1, 1]),
                ],
                "no straight cut",
            ),
        ];
        for (shape, rectangles, expected) in cases {
            let error = cuts(shape, rectangles).unwrap_err().to_string();
            assert!(error.contains(expected), "{rectangles:?}: {error}");
        }
    }

    #[test]
    fn a_staircase_has_an_end() {
        // Each level cuts a row and then a column off a square: as many levels as pieces.
        let (n, mut rectangles) = (200u64, vec![]);
        for i in 0..n {
            rectangles.push((vec![i, i], vec![1, n - i]));
            rectangles.push((vec![i + 1, i], vec![n - i, 1]));
        }
        rectangles.push((vec![n, n], vec![1, 1]));
        rectangles.iter_mut().for_each(|(start, sizes)| {
            if start[0] == start[1] && start[0] < n {
                sizes[1] += 1;
            }
        });
        let borrowed: Vec<(&[u64], &[u64])> =
            rectangles.iter().map(|(a, b)| (&a[..], &b[..])).collect();
        let error = cuts(&[n + 1, n + 1], &borrowed).unwrap_err().to_string();
        assert!(error.contains("nested"), "{error}");
    }
}
