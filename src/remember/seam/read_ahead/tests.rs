//! What a rectangle in memory holds, and when it holds nothing.

use super::*;
use crate::ParsedModel;

/// A model with the tensors `a` and `b` of `rows` × `stride` bytes, and the bytes of `a`.
fn matrices(rows: usize, stride: usize) -> (ParsedModel, Vec<u8>) {
    let len = rows * stride;
    let bytes: Vec<u8> = (0..2 * len).map(|i| (i * 7 + i / 251) as u8).collect();
    let tensor = |name: &str, from: usize| {
        format!(
            r#""{name}":{{"dtype":"U8","shape":[{rows},{stride}],"data_offsets":[{from},{}]}}"#,
            from + len
        )
    };
    let header = format!("{{{},{}}}", tensor("a", 0), tensor("b", len));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes().chain(bytes.iter().copied()));
    (crate::parse_bytes(file).unwrap(), bytes[..len].to_vec())
}

fn rectangle<'m>(
    model: &'m ParsedModel,
    stride: usize,
    [rows, bytes]: [Range<usize>; 2],
) -> StoredRectangle<'m> {
    let part = model.tensors().next().unwrap().part();
    StoredRectangle { rows, codes: StoredPiece { part, stride, bytes }, scales: None }
}

/// What tiles want of `wanted` whose pieces begin at all of `bounds` but the last, where the last
/// one ends.
fn tiles<'m>(wanted: &StoredRectangle<'m>, bounds: &[usize]) -> Vec<StoredRectangle<'m>> {
    let tile = |bounds: &[usize]| {
        let mut tile = wanted.clone();
        tile.codes.bytes = bounds[0]..bounds[1];
        tile
    };
    bounds.windows(2).map(tile).collect()
}

/// What `ahead` has of the pieces; `None` if some are not there.
fn taken(
    ahead: &ReadAhead,
    part: &Part<'_>,
    rows: Range<usize>,
    bytes: Range<usize>,
) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let take = |row: usize, piece: &[u8]| {
        assert_eq!(out.len(), row * piece.len());
        out.extend_from_slice(piece);
    };
    ahead.take(part, rows, &bytes, take).then_some(out)
}

/// Where the pieces of `tiles` tiles begin, which share the bytes `bytes` of a row, and where the
/// last ends.
fn bounds(bytes: &Range<usize>, tiles: usize) -> Vec<usize> {
    // Of different widths, so that a block of one has room for more rows than that of another.
    let bound = |tile| bytes.start + tile * tile * bytes.len() / (tiles * tiles);
    (0..=tiles).map(bound).collect()
}

#[test]
fn pieces_are_those_of_the_matrix() {
    let mut ahead = ReadAhead::default();
    // One block, several, and fewer again; whole rows and pieces; one tile and several of different
    // widths.
    for (rows, stride, all, count) in [
        (67, 12, 0..12, 1),
        (700, 1500, 300..1499, 4),
        (5, 200_000, 1..12_000, 3),
        (3, 16, 4..16, 2),
    ] {
        let (model, bytes) = matrices(rows, stride);
        let wanted = rectangle(&model, stride, [1..rows, all.clone()]);
        let bounds = bounds(&all, count);
        ahead.begin(&tiles(&wanted, &bounds));
        let pieces = bounds.windows(2).map(|bounds| bounds[0]..bounds[1]);
        let pieces: Vec<Range<usize>> = pieces.collect();
        assert_eq!(taken(&ahead, &wanted.codes.part, 1..2, pieces[0].clone()), None);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| ahead.fill(&wanted, (1, 1), &mut vec![]));
            }
        });
        for piece in pieces {
            let narrow = piece.start + 1..piece.end - 1;
            for (some, piece) in [(1..rows, piece.clone()), (rows / 2..rows - 1, narrow)] {
                let expected = some
                    .clone()
                    .flat_map(|row| &bytes[row * stride..][piece.clone()]);
                let expected: Vec<u8> = expected.copied().collect();
                assert_eq!(taken(&ahead, &wanted.codes.part, some, piece), Some(expected));
            }
        }
    }
}

#[test]
fn pieces_of_scales_are_those_of_their_matrix() {
    // Short rows, of which all is read, and long ones.
    for (rows, stride) in [(67, 40), (1000, 1600)] {
        let (model, bytes) = matrices(rows, stride);
        let [codes, scales] = [0, 1].map(|i| model.tensors().nth(i).unwrap().part());
        let tile = |from: usize, end: usize| {
            let piece = |part, bytes| StoredPiece { part, stride, bytes };
            StoredRectangle {
                rows: 1..rows,
                codes: piece(codes, from..end),
                scales: Some(piece(scales, from / 4..end / 4)),
            }
        };
        let mut ahead = ReadAhead::default();
        ahead.begin(&[tile(8, 12), tile(12, 32)]);
        ahead.fill(&tile(8, 32), (1, 1), &mut vec![]);
        let len = bytes.len();
        for (part, from, piece) in
            [(&codes, 0, 8..12), (&codes, 0, 12..32), (&scales, len, 2..3), (&scales, len, 3..8)]
        {
            let byte = |i: usize| (i * 7 + i / 251) as u8;
            let all = (1..rows).flat_map(|row| piece.clone().map(move |b| row * stride + b));
            let expected: Vec<u8> = all.map(|i| byte(from + i)).collect();
            assert_eq!(taken(&ahead, part, 1..rows, piece), Some(expected));
        }
        assert_eq!(taken(&ahead, &scales, 1..rows, 8..12), None);
    }
}

#[test]
fn what_was_not_read_is_not_there() {
    let (model, _) = matrices(40, 20);
    let wanted = rectangle(&model, 20, [10..30, 4..12]);
    let mut ahead = ReadAhead::default();
    let staging = &mut vec![];
    ahead.begin(&tiles(&wanted, &[4, 8, 12]));
    ahead.fill(&wanted, (1, 1), staging);
    let (part, other) = (wanted.codes.part, model.tensors().nth(1).unwrap().part());
    assert!(taken(&ahead, &part, 10..30, 4..8).is_some());
    assert!(taken(&ahead, &part, 10..30, 8..12).is_some());
    // Rows and bytes outside, and pieces of two tiles.
    for (rows, bytes) in [
        (9..30, 4..8),
        (10..31, 4..8),
        (10..30, 3..8),
        (10..30, 0..2),
        (10..30, 8..13),
        (10..30, 7..9),
    ] {
        assert_eq!(taken(&ahead, &part, rows, bytes), None);
    }
    assert_eq!(taken(&ahead, &other, 10..30, 4..8), None);
    // Rows beyond the tensor cannot be read, and neither can their strip.
    let beyond = rectangle(&model, 20, [30..50, 0..20]);
    ahead.begin(&tiles(&beyond, &[0, 20]));
    ahead.fill(&beyond, (1, 1), staging);
    assert_eq!(taken(&ahead, &part, 30..31, 0..20), None);
    // Pieces longer than a block are left to the tiles.
    let (model, _) = matrices(2, BLOCK_BYTES + 1);
    let long = rectangle(&model, BLOCK_BYTES + 1, [0..2, 0..BLOCK_BYTES + 1]);
    ahead.begin(&tiles(&long, &[0, BLOCK_BYTES + 1]));
    ahead.fill(&long, (1, 1), staging);
    assert_eq!(taken(&ahead, &long.codes.part, 0..1, 0..1), None);
}

#[test]
fn rectangles_share_the_memory_of_tiles_that_are_loaded() {
    let (rows, stride) = (4 * BLOCK_BYTES / 10, 20);
    let (model, _) = matrices(rows, stride);
    let wanted = rectangle(&model, stride, [0..rows, 0..stride]);
    let pool = Arc::<BlockPool>::default();
    let [mut first, mut next] = [(); 2].map(|()| ReadAhead::new(Arc::clone(&pool)));
    let staging = &mut vec![];
    for ahead in [&mut first, &mut next] {
        ahead.begin(&tiles(&wanted, &[0, 10, 20]));
    }
    first.fill(&wanted, (1, 1), staging);
    first.release(0);
    let free = pool.free().len();
    assert_eq!(free, first.strips());
    // Half of the next rectangle has as many blocks as one of two tiles.
    next.fill(&wanted, (1, 2), staging);
    assert!(pool.free().len() <= 1, "of {free}");
    assert_eq!(taken(&first, &wanted.codes.part, 0..1, 0..10), None);
    assert!(taken(&first, &wanted.codes.part, 0..rows, 10..20).is_some());
    assert!(taken(&next, &wanted.codes.part, 0..rows / 2, 0..10).is_some());
    // A later rectangle gives back what was not released.
    first.begin(&tiles(&wanted, &[0, 20]));
    assert!(pool.free().len() >= free);
}
