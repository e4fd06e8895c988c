//! LiteRT models that are malformed or hostile. `tests/data/tflite` has more that are refused.

use crate::common::data;
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::trials::Trial;

/// A field of a table.
#[derive(Clone)]
enum Field {
    Number(Vec<u8>),
    /// The elements of a vector, and how many they are.
    Vector(u32, Vec<u8>),
    Table(Vec<(u16, Field)>),
    /// Tables of a vector, each so many times.
    Tables(Vec<(Table, usize)>),
}

type Table = Vec<(u16, Field)>;

fn byte(n: u8) -> Field {
    Field::Number(vec![n])
}

fn int(n: i32) -> Field {
    Field::Number(n.to_le_bytes().to_vec())
}

fn ints(numbers: &[i32]) -> Field {
    Field::Vector(numbers.len() as u32, numbers.iter().flat_map(|n| n.to_le_bytes()).collect())
}

fn floats(numbers: &[f32]) -> Field {
    Field::Vector(numbers.len() as u32, numbers.iter().flat_map(|n| n.to_le_bytes()).collect())
}

fn text(text: &str) -> Field {
    Field::Vector(text.len() as u32, text.as_bytes().to_vec())
}

fn tables(tables: Vec<Table>) -> Field {
    Field::Tables(tables.into_iter().map(|table| (table, 1)).collect())
}

/// Writes a table, and behind it what its fields lead to. Returns where it begins.
fn write(out: &mut Vec<u8>, table: &[(u16, Field)]) -> usize {
    let fields = table.iter().map(|(id, _)| id + 1).max().unwrap_or(0);
    let size = |field: &Field| match field {
        Field::Number(bytes) => bytes.len(),
        _ => 4,
    };
    let mut offsets = vec![0u16; fields.into()];
    let mut len = 4;
    for (id, field) in table {
        offsets[usize::from(*id)] = len as u16;
        len += size(field);
    }
    let offsets_at = out.len();
    out.extend((4 + 2 * fields).to_le_bytes());
    out.extend((len as u16).to_le_bytes());
    offsets
        .iter()
        .for_each(|offset| out.extend(offset.to_le_bytes()));
    let at = out.len();
    out.extend(((at - offsets_at) as i32).to_le_bytes());
    out.resize(at + len, 0);
    for (id, field) in table {
        let place = at + usize::from(offsets[usize::from(*id)]);
        let target = match field {
            Field::Number(bytes) => {
                out[place..place + bytes.len()].copy_from_slice(bytes);
                continue;
            }
            Field::Table(table) => write(out, table),
            Field::Vector(n, bytes) => {
                let target = out.len();
                out.extend(n.to_le_bytes());
                out.extend(bytes);
                target
            }
            Field::Tables(rows) => write_tables(out, rows),
        };
        let offset = (target - place) as u32;
        out[place..place + 4].copy_from_slice(&offset.to_le_bytes());
    }
    at
}

fn write_tables(out: &mut Vec<u8>, rows: &[(Table, usize)]) -> usize {
    let target = out.len();
    let n: usize = rows.iter().map(|(_, n)| n).sum();
    out.extend((n as u32).to_le_bytes());
    let mut place = out.len();
    out.resize(place + 4 * n, 0);
    for (row, times) in rows {
        let at = write(out, row);
        for _ in 0..*times {
            let offset = (at - place) as u32;
            out[place..place + 4].copy_from_slice(&offset.to_le_bytes());
            place += 4;
        }
    }
    target
}

/// A model of subgraphs and buffers, of which the last is at the end of the file.
fn model(subgraphs: Vec<Table>, buffers: &[&[u8]]) -> Vec<u8> {
    let mut out = b"\0\0\0\0TFL3".to_vec();
    let buffer = |data: &&[u8]| vec![(0, Field::Vector(data.len() as u32, data.to_vec()))];
    let buffers = [vec![]].into_iter().chain(buffers.iter().map(buffer));
    let root = write(&mut out, &[(2, tables(subgraphs)), (4, tables(buffers.collect()))]);
    out[..4].copy_from_slice(&(root as u32).to_le_bytes());
    out
}

fn graph(tensors: Vec<Table>) -> Table {
    vec![(0, tables(tensors))]
}

/// A tensor with the data of buffer 1.
fn tensor(name: &str, kind: u8, shape: &[i32], rest: &[(u16, Field)]) -> Table {
    let fields = vec![(0, ints(shape)), (1, byte(kind)), (2, int(1)), (3, text(name))];
    [fields, rest.to_vec()].concat()
}

const F32: u8 = 0;
const I8: u8 = 9;

fn one(tensor: Table, data: &[u8]) -> Vec<u8> {
    model(vec![graph(vec![tensor])], &[data])
}

fn zero_points(numbers: &[i64]) -> Field {
    Field::Vector(numbers.len() as u32, numbers.iter().flat_map(|n| n.to_le_bytes()).collect())
}

fn quantized(scales: &[f32], axis: i32) -> (u16, Field) {
    (4, Field::Table(vec![(2, floats(scales)), (6, int(axis))]))
}

#[test]
fn tables_and_vectors() {
    let mut trial = Trial::new();
    let whole = one(tensor("w", F32, &[2, 2], &[]), &[7; 16]);
    trial.truncations("a model", &whole);
    let golden = |name: &str| std::fs::read(data().join("tflite").join(name)).unwrap();
    let files = ["graphs.tflite", "sparse.tflite", "behind.tflite", "types.tflite"].map(golden);
    trial.mutations(&[&files[..], std::slice::from_ref(&whole)].concat(), 19);
    let with = |at: usize, n: u32| {
        let mut bytes = whole.clone();
        bytes[at..at + 4].copy_from_slice(&n.to_le_bytes());
        bytes
    };
    let root = u32::from_le_bytes(*whole.first_chunk().unwrap()) as usize;
    let truncated: &[&str] = &["leads out"];
    trial.refused(vec![
        ("a root behind the end", with(0, 1 << 30), Parse, truncated),
        ("a root at the end", with(0, whole.len() as u32), Parse, truncated),
        ("offsets before the file", with(root, 1 << 20), Parse, &["begins before"]),
        ("offsets behind the file", with(root, 1 << 31), Parse, truncated),
        (
            "a name that is no UTF-8",
            {
                let name = (3, Field::Vector(1, vec![0xff]));
                one([tensor("w", F32, &[2], &[])[..3].to_vec(), vec![name]].concat(), &[0; 8])
            },
            Parse,
            &["UTF-8"],
        ),
        (
            "a long name",
            one(tensor(&"x".repeat(70_000), F32, &[2], &[]), &[0; 8]),
            Limit,
            &["text"],
        ),
        ("65 dimensions", one(tensor("w", F32, &[1; 65], &[]), &[0; 4]), Limit, &["dimensions"]),
        (
            "a size that overflows",
            one(tensor("w", F32, &[i32::MAX; 3], &[]), &[0; 4]),
            Parse,
            &["overflows"],
        ),
        ("an element type", one(tensor("w", 99, &[1], &[]), &[0; 4]), Unsupported, &["type 99"]),
    ]);
    trial.end();
}

/// Short files that ask for much: tables and vectors that are shared.
#[test]
fn amplification() {
    let mut trial = Trial::new();
    let many = |tensor: Table, n: usize| -> Vec<Table> {
        vec![vec![(0, Field::Tables(vec![(tensor, n)]))]]
    };
    let same = many(tensor("w", F32, &[2], &[]), 100_000);
    let quantization = |numbers: usize| {
        let zeros = zero_points(&vec![1; numbers]);
        (4, Field::Table(vec![(2, floats(&vec![1.0; numbers])), (3, zeros)]))
    };
    let long = tensor("w", I8, &[10_000], &[quantization(10_000)]);
    trial.refused(vec![
        ("a tensor 100 000 times", model(same, &[&[0; 8]]), Limit, &["MAX_TABLE_BYTES"]),
        (
            "an activation 100 000 times",
            model(many(vec![], 100_000), &[]),
            Limit,
            &["MAX_TABLE_BYTES"],
        ),
        (
            "shared zero points",
            model(many(long, 2000), &[&[0; 10_000]]),
            Limit,
            &["MAX_VECTOR_BYTES"],
        ),
    ]);
    trial.end();
}

fn level(size: i32) -> Table {
    vec![(1, int(size))]
}

fn sparse_level(segments: &[u8], indices: &[u8]) -> Table {
    let vector =
        |bytes: &[u8]| Field::Table(vec![(0, Field::Vector(bytes.len() as u32, bytes.to_vec()))]);
    vec![(0, byte(1)), (2, byte(3)), (3, vector(segments)), (4, byte(3)), (5, vector(indices))]
}

#[test]
fn sparse_tensors() {
    let mut trial = Trial::new();
    let sparse = |shape: &[i32], order: &[i32], blocks: &[i32], levels: Vec<Table>, n: usize| {
        let sparsity = vec![(0, ints(order)), (1, ints(blocks)), (2, tables(levels))];
        one(tensor("w", I8, shape, &[(6, Field::Table(sparsity))]), &vec![1; n])
    };
    let rows = |segments: &[u8], indices: &[u8], n| {
        sparse(&[2, 8], &[0, 1], &[], vec![level(2), sparse_level(segments, indices)], n)
    };
    trial.fine(vec![
        ("rows", rows(&[0, 1, 3], &[7, 0, 1], 3)),
        ("all of it", sparse(&[2, 3], &[0, 1], &[], vec![level(2), level(3)], 6)),
        ("blocks", {
            let levels = vec![level(2), sparse_level(&[0, 1, 1], &[1]), level(4)];
            sparse(&[2, 8], &[0, 1, 2], &[1], levels, 4)
        }),
    ]);
    let dense = |size, n| sparse(&[2, 3], &[0, 1], &[], vec![level(2), level(size)], n);
    let fit: &[&str] = &["does not fit"];
    trial.refused(vec![
        ("values too few", rows(&[0, 1, 3], &[7, 0, 1], 2), Parse, &["fewer values"]),
        ("values too many", rows(&[0, 1, 3], &[7, 0, 1], 4), Parse, &["4 sparse values"]),
        ("an index past the end", rows(&[0, 1, 3], &[8, 0, 1], 3), Parse, &["past the end"]),
        ("indices that descend", rows(&[0, 1, 3], &[7, 1, 0], 3), Unsupported, &["rows"]),
        ("an index twice", rows(&[0, 1, 3], &[7, 1, 1], 3), Parse, &["ascend"]),
        ("a segment too few", rows(&[0, 1], &[7], 1), Parse, &["segment"]),
        ("segments that descend", rows(&[0, 3, 1], &[7, 0, 1], 3), Parse, &["segments"]),
        ("segments past the end", rows(&[0, 1, 9], &[7, 0, 1], 3), Parse, &["segments"]),
        ("a dimension of 2^31", dense(i32::MAX, 6), Parse, &["past the end"]),
        ("a dimension of 0", dense(0, 6), Parse, &["no size"]),
        (
            "a dimension twice",
            sparse(&[2, 3], &[1, 1], &[], vec![level(2), level(3)], 6),
            Parse,
            fit,
        ),
        ("a level too few", sparse(&[2, 3], &[0, 1], &[], vec![level(2)], 6), Parse, fit),
        (
            "a block of nothing",
            sparse(&[2, 3], &[0, 1, 2], &[9], vec![level(2), level(3), level(1)], 6),
            Parse,
            fit,
        ),
        (
            "200 levels",
            sparse(&[2; 20], &[0; 200], &[0; 180], vec![level(1); 200], 6),
            Limit,
            &["levels"],
        ),
        (
            "one value of 2^25",
            {
                let levels = vec![level(1), sparse_level(&[0, 1], &[3])];
                sparse(&[1 << 12, 1 << 13], &[0, 1], &[], levels, 1)
            },
            Limit,
            &["sparse"],
        ),
        (
            "a tensor of 2^40",
            {
                let levels = vec![level(1), sparse_level(&[0, 1], &[3])];
                sparse(&[1 << 20, 1 << 20], &[0, 1], &[], levels, 1)
            },
            Limit,
            &["sparse"],
        ),
    ]);
    trial.end();
}

#[test]
fn quantized_weights() {
    let mut trial = Trial::new();
    let w =
        |scales: &[f32], axis| one(tensor("w", I8, &[2, 3], &[quantized(scales, axis)]), &[1; 6]);
    trial.fine(vec![
        ("one scale", w(&[1.0], 7)),
        ("a scale a row", w(&[1.0, 2.0], 0)),
        ("a scale a column", w(&[1.0, 2.0, 3.0], -1)),
        ("no scale", w(&[], 0)),
    ]);
    let fit: &[&str] = &["does not fit"];
    let blocks = |size: i32, scales: i32| {
        let details = Field::Table(vec![(0, int(scales)), (2, int(size))]);
        let fields = vec![(4, byte(2)), (5, details)];
        one(tensor("w", I8, &[2, 4], &[(4, Field::Table(fields))]), &[1; 8])
    };
    trial.refused(vec![
        ("a scale too many", w(&[1.0; 3], 0), Parse, fit),
        ("more scales than elements", w(&[1.0; 4], 0), Parse, &["more scales"]),
        ("an axis that is not there", w(&[1.0, 2.0], 2), Parse, fit),
        ("an axis of -2^31", w(&[1.0, 2.0], i32::MIN), Parse, fit),
        ("blocks without scales", blocks(2, -1), Parse, &["missing"]),
        ("blocks with scales that are not there", blocks(2, 5), Parse, &["no data"]),
        ("blocks that are their own scales", blocks(2, 0), Parse, &["do not fit"]),
        ("blocks of 0", blocks(0, 0), Parse, &["no values"]),
        ("blocks of -1", blocks(-1, 0), Limit, &["block"]),
        (
            "two names of a scale",
            {
                let codes = tensor("w", I8, &[2], &[quantized(&[1.0], 0)]);
                model(vec![graph(vec![codes, tensor("w.scale", I8, &[2], &[])])], &[&[1; 2]])
            },
            Parse,
            &["two tensors", "`w.scale`"],
        ),
    ]);
    trial.end();
}
