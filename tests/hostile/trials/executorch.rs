//! Programs of ExecuTorch that are malformed or hostile. `tests/data/executorch` has more that are refused.

use crate::common::data;
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::trials::Trial;
use crate::trials::flatbuffer::{Field, Table, byte, file, int, ints, numbers, tables, text};

const F32: u8 = 6;

/// A program with a header, a method of these values, and a segment with constants at these offsets.
fn program(values: Vec<(Table, usize)>, offsets: &[u64], data: &[u8]) -> Vec<u8> {
    with_segment(values, offsets, (0, data.len() as u64), data)
}

fn number(n: u64) -> Field {
    Field::Number(n.to_le_bytes().to_vec())
}

fn with_segment(
    values: Vec<(Table, usize)>,
    offsets: &[u64],
    (offset, size): (u64, u64),
    data: &[u8],
) -> Vec<u8> {
    let plan = vec![(0, text("forward")), (2, Field::Tables(values))];
    let segment = vec![(0, number(offset)), (1, number(size))];
    let root = vec![
        (1, tables(vec![plan])),
        (4, tables(vec![segment])),
        (5, Field::Table(vec![(0, int(0)), (1, numbers(offsets))])),
    ];
    let mut out = file(b"ET12", 32, &root);
    let end = out.len() as u64;
    let base = end.next_multiple_of(16);
    out.resize(base as usize, 0);
    let head = [&b"eh00\x20\0\0\0"[..], &end.to_le_bytes(), &base.to_le_bytes()].concat();
    out[8..8 + head.len()].copy_from_slice(&head);
    [&out, data].concat()
}

/// The value that is constant `number`.
fn constant(number: i32, kind: u8, sizes: &[i32], order: &[u8], rest: &[(u16, Field)]) -> Table {
    let order = Field::Vector(order.len() as u32, order.to_vec());
    let fields = vec![(0, byte(kind)), (2, ints(sizes)), (3, order), (5, int(number))];
    vec![(0, byte(5)), (1, Field::Table([fields, rest.to_vec()].concat()))]
}

/// A program of one constant.
fn one(kind: u8, sizes: &[i32], order: &[u8], data: &[u8]) -> Vec<u8> {
    program(vec![(constant(1, kind, sizes, order, &[]), 1)], &[0, 0], data)
}

#[test]
fn programs() {
    let mut trial = Trial::new();
    let whole = one(F32, &[2, 2], &[0, 1], &[7; 16]);
    trial.truncations("a program", &whole);
    let golden = |name: &str| std::fs::read(data().join("executorch").join(name)).unwrap();
    let files = ["types.pte", "state.pte", "data.ptd", "xnnpack_f32.pte"].map(golden);
    trial.mutations(&[&files[..], std::slice::from_ref(&whole)].concat(), 29);
    trial.fine(vec![
        ("columns first", one(F32, &[2, 2], &[1, 0], &[7; 16])),
        ("a table that has the length of another", {
            let mut bytes = whole.clone();
            let root = u32::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
            let back = i32::from_le_bytes(*bytes[root..].first_chunk().unwrap()) as usize;
            bytes[root - back + 2] = 4;
            bytes
        }),
        ("no order", one(F32, &[2, 2], &[], &[7; 16])),
        (
            "one constant twice",
            program(vec![(constant(1, F32, &[2], &[0], &[]), 2)], &[0, 0], &[7; 8]),
        ),
    ]);
    let state = constant(1, F32, &[2], &[0], &[(6, Field::Table(vec![]))]);
    let need: &[&str] = &["bytes of data"];
    trial.refused(vec![
        ("too few bytes", one(F32, &[2, 3], &[0, 1], &[7; 16]), Parse, need),
        ("a negative size", one(F32, &[-1], &[0], &[7; 16]), Parse, &["negative"]),
        ("a size that overflows", one(F32, &[i32::MAX; 3], &[], &[7; 16]), Parse, &["overflows"]),
        ("65 dimensions", one(F32, &[1; 65], &[], &[7; 16]), Limit, &["dimensions"]),
        ("an element type", one(99, &[1], &[0], &[7; 16]), Unsupported, &["type 99"]),
        ("an order of other dimensions", one(F32, &[2, 2], &[1, 1], &[7; 16]), Parse, &["order"]),
        ("an order too long", one(F32, &[2, 2], &[0, 1, 2], &[7; 16]), Parse, &["order"]),
        (
            "a constant that is not there",
            program(vec![(constant(7, F32, &[2], &[0], &[]), 1)], &[0, 0], &[7; 8]),
            Parse,
            &["constant 7"],
        ),
        (
            "a constant behind its segment",
            program(vec![(constant(1, F32, &[2], &[0], &[]), 1)], &[0, 9], &[7; 8]),
            Parse,
            &["constant 1"],
        ),
        (
            "an offset that overflows",
            program(vec![(constant(1, F32, &[2], &[0], &[]), 1)], &[0, u64::MAX], &[7; 8]),
            Parse,
            &["constant 1"],
        ),
        (
            "a state that is not there",
            program(vec![(state, 1)], &[0, 0], &[7; 8]),
            Parse,
            &["state is missing"],
        ),
        (
            "an offset in a storage",
            program(vec![(constant(1, F32, &[2], &[0], &[(1, int(1))]), 1)], &[0, 0], &[7; 12]),
            Unsupported,
            &["offset"],
        ),
        (
            "a segment behind the file",
            with_segment(vec![], &[0], (8, 16), &[7; 16]),
            Parse,
            &["segment 0"],
        ),
        (
            "a segment that overflows",
            with_segment(vec![], &[0], (u64::MAX, 16), &[7; 16]),
            Parse,
            &["segment 0"],
        ),
        ("no tensors", program(vec![], &[0], &[7; 16]), Parse, &["no tensors"]),
        (
            "a program that ends behind the file",
            {
                let mut bytes = whole.clone();
                bytes[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
                bytes
            },
            Parse,
            &["program ends"],
        ),
    ]);
    trial.end();
}

/// Short files that ask for much: tables that are shared.
#[test]
fn amplification() {
    let mut trial = Trial::new();
    let plan = vec![(2, Field::Tables(vec![(vec![(0, byte(2))], 1000)]))];
    let methods = file(b"ET12", 0, &[(1, Field::Tables(vec![(plan, 1000)]))]);
    let same = constant(1, F32, &[2], &[0], &[]);
    trial.refused(vec![
        ("methods that share values", methods, Limit, &["MAX_VALUES"]),
        (
            "a constant 100 000 times",
            program(vec![(same, 100_000)], &[0, 0], &[7; 8]),
            Limit,
            &["MAX_TABLE_BYTES"],
        ),
    ]);
    trial.end();
}

/// A file of tensors, whose first has these fields.
fn tensors(rest: &[(u16, Field)], segments: &[(u64, u64)], data: &[u8]) -> Vec<u8> {
    let segments = segments
        .iter()
        .map(|&(offset, size)| vec![(0, number(offset)), (1, number(size))]);
    let named = [vec![(0, text("w"))], rest.to_vec()].concat();
    let root = vec![(1, tables(segments.collect())), (2, tables(vec![named]))];
    let mut out = file(b"FT01", 48, &root);
    let size = out.len() as u64 - 48;
    let base = (out.len() as u64).next_multiple_of(16);
    out.resize(base as usize, 0);
    let fields = [48, size, base, data.len() as u64]
        .map(u64::to_le_bytes)
        .concat();
    let head = [&b"FH01\x28\0\0\0"[..], &fields].concat();
    out[8..48].copy_from_slice(&head);
    [&out, data].concat()
}

#[test]
fn files_of_tensors() {
    let mut trial = Trial::new();
    let layout =
        |kind: u8, sizes: &[i32]| (2, Field::Table(vec![(0, byte(kind)), (1, ints(sizes))]));
    let whole = tensors(&[layout(F32, &[2])], &[(0, 8)], &[7; 8]);
    trial.fine(vec![("a tensor", whole.clone())]);
    trial.truncations("a file of tensors", &whole);
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    trial.refused(vec![
        ("no header", with(8, b"FH02"), Parse, &["no header"]),
        ("tables behind the file", with(24, &[0xff; 8]), Parse, &["tables end"]),
        (
            "data too long",
            tensors(&[layout(F32, &[2])], &[(0, 12)], &[7; 12]),
            Parse,
            &["12 bytes"],
        ),
        ("no segment", tensors(&[layout(F32, &[2])], &[], &[7; 8]), Parse, &["segment 0"]),
        ("data without a type", tensors(&[], &[(0, 8)], &[7; 8]), Unsupported, &["without type"]),
    ]);
    trial.end();
}
