//! LiteRT models that are malformed or hostile. `tests/data/tflite` has more that are refused.

use crate::common::data;
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::trials::Trial;
use crate::trials::flatbuffer::{
    Field, Table, byte, file, floats, int, ints, numbers, tables, text,
};

/// A model of subgraphs and buffers, of which the last is at the end of the file.
fn model(subgraphs: Vec<Table>, buffers: &[&[u8]]) -> Vec<u8> {
    let buffer = |data: &&[u8]| vec![(0, Field::Vector(data.len() as u32, data.to_vec()))];
    let buffers = [vec![]].into_iter().chain(buffers.iter().map(buffer));
    file(b"TFL3", 0, &[(2, tables(subgraphs)), (4, tables(buffers.collect()))])
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
    let quantization = |count: usize| {
        let zeros = numbers(&vec![1; count]);
        (4, Field::Table(vec![(2, floats(&vec![1.0; count])), (3, zeros)]))
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

/// A bundle of LiteRT-LM with sections of a kind, a beginning and an end, and behind the header `rest`.
fn bundle(sections: &[(u8, u64, u64)], rest: &[u8]) -> Vec<u8> {
    let section = |&(kind, start, end): &(u8, u64, u64)| -> Table {
        let number = |n: u64| Field::Number(n.to_le_bytes().to_vec());
        vec![(1, number(start)), (2, number(end)), (3, byte(kind))]
    };
    let objects = vec![(0, tables(sections.iter().map(section).collect()))];
    let mut header = file(b"\0\0\0\0", 0, &[(1, Field::Table(objects))]);
    header.resize(512, 0);
    let end = 32 + header.len() as u64;
    let head = [&b"LITERTLM\x01\0\0\0"[..], &[0; 12], &end.to_le_bytes()].concat();
    [&head, &header[..], rest].concat()
}

/// Where sections begin behind the header of such a bundle.
const SECTIONS: u64 = 544;

#[test]
fn bundles() {
    let mut trial = Trial::new();
    let inner = one(tensor("w", F32, &[2, 2], &[]), &[7; 16]);
    let end = SECTIONS + inner.len() as u64;
    let whole = bundle(&[(3, SECTIONS, end), (4, end, end)], &inner);
    trial.fine(vec![("a model and a tokenizer", whole.clone())]);
    let golden = |name: &str| std::fs::read(data().join("tflite").join(name)).unwrap();
    trial.mutations(&[whole.clone(), golden("lm_several.litertlm")], 23);
    trial.truncations("a bundle", &whole);
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let sections = |sections: &[(u8, u64, u64)]| bundle(sections, &inner);
    trial.refused(vec![
        ("version 2", with(8, &[2]), Unsupported, &["version 2"]),
        ("a header behind the file", with(24, &[0xff; 8]), Parse, &["header ends"]),
        ("a header before its beginning", with(24, &7u64.to_le_bytes()), Parse, &["header ends"]),
        ("a section behind the file", sections(&[(3, SECTIONS, end + 1)]), Parse, &["section 0"]),
        ("a section in the header", sections(&[(3, 40, end)]), Parse, &["section 0"]),
        ("a section that ends first", sections(&[(3, end, SECTIONS)]), Parse, &["section 0"]),
        (
            "a section twice",
            sections(&[(3, SECTIONS, end), (3, SECTIONS, end)]),
            Parse,
            &["overlap"],
        ),
        ("no model", sections(&[(4, SECTIONS, end)]), Parse, &["no section"]),
        ("no sections", sections(&[]), Parse, &["no section"]),
        ("an empty model", sections(&[(3, end, end)]), Parse, &["leads out"]),
    ]);
    trial.end();
}
