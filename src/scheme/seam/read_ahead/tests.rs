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
    (stride, piece): (usize, usize),
    [rows, bytes]: [Range<usize>; 2],
) -> TiledRectangle<'m> {
    TiledRectangle {
        all: StoredRectangle {
            part: model.tensors().next().unwrap().part(),
            stride,
            rows,
            bytes,
        },
        piece,
    }
}

/// What `ahead` has of the pieces; `None` if some are not there.
fn taken(
    ahead: &ReadAhead,
    part: &Part<'_>,
    rows: Range<usize>,
    bytes: Range<usize>,
) -> Option<Vec<u8>> {
    let (mut out, mut first) = (Vec::new(), rows.start);
    while first < rows.end {
        let lines = ahead.take(part, first, &rows, &bytes)?;
        assert_eq!(lines.rows.start, first);
        let pieces = lines.bytes().chunks(lines.pitch).take(lines.rows.len());
        pieces.for_each(|line| out.extend(&line[..bytes.len()]));
        first = lines.rows.end;
    }
    Some(out)
}

#[test]
fn pieces_are_those_of_the_matrix() {
    let (mut ahead, pool) = (ReadAhead::default(), ChunkPool::new(usize::MAX));
    // One block, several, and fewer again; whole rows and pieces; narrow lines and wide ones.
    for (rows, stride, piece, all) in [
        (67, 12, 5, 0..12),
        (700, 1500, 250, 300..1499),
        (300, 4000, 700, 16..3990),
        (5, 200_000, 7000, 1..199_000),
        (3, 8, 1, 4..8),
    ] {
        let (model, bytes) = matrices(rows, stride);
        let wanted = [rectangle(&model, (stride, piece), [1..rows, all.clone()])];
        ahead.begin(&wanted, &[Arc::clone(&pool)]);
        let part = &wanted[0].all.part;
        let first = all.start..(all.start + piece).min(all.end);
        assert_eq!(taken(&ahead, part, 1..rows, first), None);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| ahead.fill(&wanted, Share::All, &mut Vec::new()));
            }
        });
        for left in all.clone().step_by(piece) {
            let tile = left..(left + piece).min(all.end);
            let expected = (1..rows).flat_map(|row| bytes[row * stride..][tile.clone()].to_vec());
            let expected: Vec<u8> = expected.collect();
            assert_eq!(taken(&ahead, part, 1..rows, tile.clone()), Some(expected));
            // It is taken away.
            assert_eq!(taken(&ahead, part, 1..rows, tile), None);
        }
        assert_eq!(pool.in_use.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn no_more_is_read_than_there_is_memory_for() {
    let (model, _) = matrices(1024, 1024);
    let wanted = [rectangle(&model, (1024, 512), [0..1024, 0..1024])];
    let chunk = LINES * 544 + LINE;
    let mut ahead = ReadAhead::default();
    // A block is two chunks.
    let pool = ChunkPool::new(chunk * 5);
    ahead.begin(&wanted, &[Arc::clone(&pool)]);
    let in_use = || pool.in_use.load(Ordering::Relaxed) / chunk;
    ahead.fill(&wanted, Share::Part(1, 8), &mut Vec::new());
    assert_eq!(in_use(), 2);
    ahead.fill(&wanted, Share::Part(8, 8), &mut Vec::new());
    assert_eq!(in_use(), 4);
    let part = &wanted[0].all.part;
    drop(ahead.take(part, 0, &(0..1024), &(0..512)).unwrap());
    ahead.fill(&wanted, Share::Part(8, 8), &mut Vec::new());
    assert_eq!(in_use(), 5);
    ahead.fill(&wanted, Share::All, &mut Vec::new());
    assert_eq!(in_use(), 15);
    ahead.begin(&[], &[]);
    assert_eq!(in_use(), 0);
}

#[test]
fn what_was_not_read_is_not_there() {
    let (model, _) = matrices(40, 20);
    let wanted = [rectangle(&model, (20, 4), [10..30, 4..12])];
    let (mut ahead, pools) = (ReadAhead::default(), [ChunkPool::new(usize::MAX)]);
    ahead.begin(&wanted, &pools);
    ahead.fill(&wanted, Share::All, &mut Vec::new());
    let (part, other) = (&wanted[0].all.part, model.tensors().nth(1).unwrap().part());
    for (rows, bytes) in [
        (9..30, 4..8),
        (10..31, 4..8),
        (10..29, 4..8),
        (10..30, 3..8),
        (10..30, 5..9),
        (10..30, 4..7),
        (10..30, 4..12),
        (10..30, 12..16),
    ] {
        assert_eq!(taken(&ahead, part, rows, bytes), None);
    }
    assert_eq!(taken(&ahead, &other, 10..30, 4..8), None);
    assert!(taken(&ahead, part, 10..30, 4..8).is_some());
    // Rows beyond the tensor cannot be read, and neither can their block.
    let beyond = [rectangle(&model, (20, 20), [30..50, 0..20])];
    ahead.begin(&beyond, &pools);
    ahead.fill(&beyond, Share::All, &mut Vec::new());
    assert_eq!(taken(&ahead, part, 30..50, 0..20), None);
    // Rows longer than a block are left to the tiles.
    let (model, _) = matrices(2, BLOCK_BYTES + 1);
    let all = 0..BLOCK_BYTES + 1;
    let long = [rectangle(&model, (BLOCK_BYTES + 1, 1 << 10), [0..2, all])];
    ahead.begin(&long, &pools);
    ahead.fill(&long, Share::All, &mut Vec::new());
    let part = &long[0].all.part;
    assert_eq!(taken(&ahead, part, 0..2, 0..1 << 10), None);
}
