//! Checkpoints of Flax in MessagePack that are malformed or hostile.

use crate::common::data;
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::trials::Trial;

fn text(text: &str) -> Vec<u8> {
    [&[0xda][..], &(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
}

fn int(n: u64) -> Vec<u8> {
    [&[0xcf][..], &n.to_be_bytes()].concat()
}

fn ext(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[0xc9][..], &(content.len() as u32).to_be_bytes(), &[kind], content].concat()
}

fn array(dims: &[u64], dtype: &str, data: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|&n| int(n)).collect();
    let rank = [&[0xdc][..], &(dims.len() as u16 / 9).to_be_bytes()].concat();
    let bytes = [&[0xc6][..], &(data.len() as u32).to_be_bytes(), data].concat();
    ext(1, &[&[0x93][..], &rank, &dims, &text(dtype), &bytes].concat())
}

fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let entries_of = entries
        .iter()
        .flat_map(|(key, value)| [text(key), value.clone()].concat());
    [&[0xde][..], &(entries.len() as u16).to_be_bytes(), &entries_of.collect::<Vec<_>>()].concat()
}

fn one(value: Vec<u8>) -> Vec<u8> {
    map(&[("w", value)])
}

fn chunked(shape: Vec<u8>, chunks: Vec<u8>) -> Vec<u8> {
    one(map(&[("__msgpack_chunked_array__", vec![0xc3]), ("shape", shape), ("chunks", chunks)]))
}

#[test]
fn arrays() {
    let mut trial = Trial::new();
    let w = || array(&[3], "int8", &[1, 2, 3]);
    trial.fine(vec![
        ("an array", one(w())),
        ("64 dimensions", one(array(&[1; 64], "int8", &[1]))),
        ("chunks", chunked(map(&[("0", int(6))]), map(&[("0", w()), ("1", w())]))),
        ("other values beside it", map(&[("w", w()), ("a", vec![0xc0]), ("b", ext(9, b"xyz"))])),
    ]);
    let sized = |dims: &[u64]| one(array(dims, "float32", &[0; 12]));
    trial.refused(vec![
        ("65 dimensions", one(array(&[1; 65], "int8", &[1])), Limit, &["dimensions"]),
        ("sizes that overflow", sized(&[1 << 40, 1 << 40]), Parse, &["`w`", "12 bytes"]),
        ("zero and 2^120", sized(&[0, 1 << 60, 1 << 60]), Parse, &["`w`", "12 bytes"]),
        ("4 numbers", sized(&[4]), Parse, &["`w`", "12 bytes"]),
        ("an unknown dtype", one(array(&[3], "float7", &[0; 12])), Unsupported, &["float7"]),
        ("no shape", one(ext(1, &[0x93, 1, 1, 1])), Parse, &["Flax"]),
        ("data behind an array", one(ext(1, &[&w()[6..], &[0]].concat())), Parse, &["Flax"]),
        (
            "an array that is longer",
            one([&[0xc7, 255, 1][..], &w()[6..]].concat()),
            Parse,
            &["longer"],
        ),
        ("two of a name", map(&[("w", w()), ("w", w())]), Parse, &["two tensors", "`w`"]),
        (
            "two of a name by other ways",
            map(&[("a", map(&[("b", w())])), ("a.b", w())]),
            Parse,
            &["two tensors", "`a.b`"],
        ),
        ("no arrays", one(vec![1]), Parse, &["no arrays"]),
        ("data behind the tree", [one(w()), vec![0]].concat(), Parse, &["behind"]),
        ("a byte that begins no value", one(vec![0xc1]), Parse, &["0xc1"]),
        ("a text of 4 GiB", one(vec![0xdb, 255, 255, 255, 255]), Parse, &["longer"]),
        (
            "a key that is a list",
            [&[0x82][..], &text("a"), &w(), &[0x90, 1]].concat(),
            Parse,
            &["key"],
        ),
        ("a key of 60 KB", map(&[("w", w()), (&"x".repeat(60_000), w())]), Limit, &["key"]),
    ]);
    let (shape, two) = (map(&[("0", int(6))]), map(&[("0", w()), ("1", w())]));
    let flat = |len| array(&[len], "int8", &vec![1; len as usize]);
    trial.refused(vec![
        ("7 numbers of 6", chunked(map(&[("0", int(7))]), two.clone()), Parse, &["6 bytes"]),
        (
            "pieces in another order",
            chunked(shape.clone(), map(&[("1", w()), ("0", w())])),
            Parse,
            &["order"],
        ),
        (
            "pieces of two types",
            chunked(shape.clone(), map(&[("0", w()), ("1", array(&[3], "uint8", &[1; 3]))])),
            Parse,
            &["fit together"],
        ),
        ("no pieces", chunked(shape.clone(), map(&[])), Parse, &["`w`"]),
        (
            "pieces that are maps",
            chunked(shape.clone(), map(&[("0", shape.clone())])),
            Parse,
            &["Flax"],
        ),
        (
            "a piece of two dimensions",
            chunked(shape.clone(), map(&[("0", array(&[2, 3], "int8", &[1; 6]))])),
            Parse,
            &["fit together"],
        ),
        (
            "a mark behind the shape",
            one(map(&[
                ("shape", shape.clone()),
                ("__msgpack_chunked_array__", vec![0xc3]),
                ("chunks", two),
            ])),
            Parse,
            &["first key"],
        ),
        (
            "a shape of 2^60",
            chunked(map(&[("0", int(1 << 60))]), map(&[("0", flat(6))])),
            Parse,
            &["6 bytes"],
        ),
    ]);
    trial.end();
}

/// Short files that ask for much.
#[test]
fn amplification() {
    let mut trial = Trial::new();
    let deep = |n: usize| {
        [[&[0x81][..], &text("a")].concat().repeat(n), array(&[1], "int8", &[1])].concat()
    };
    trial.fine(vec![("64 maps", deep(64))]);
    let long = "n".repeat(4000);
    let empty: Vec<u8> = (0..60_000u32)
        .flat_map(|i| [text(&i.to_string()), array(&[0], "int8", &[])].concat())
        .collect();
    let short: Vec<u8> = (0..60_000u32)
        .flat_map(|i| [text(&i.to_string()), array(&[1], "int8", &[1])].concat())
        .collect();
    let short = [&[0xde][..], &60_000u16.to_be_bytes(), &short].concat();
    let pieces = &chunked(map(&[("0", int(60_000))]), short)[7..];
    let twice: Vec<(&str, Vec<u8>)> = vec![("a", pieces.to_vec()), ("b", pieces.to_vec())];
    let many = [&[0xde][..], &60_000u16.to_be_bytes(), &empty].concat();
    trial.refused(vec![
        ("100 000 maps", deep(100_000), Limit, &["MAX_MSGPACK_DEPTH"]),
        (
            "2^32 entries",
            [&[0xdf, 255, 255, 255, 255][..], &text("a"), &[1]].concat(),
            Parse,
            &["longer"],
        ),
        ("60 000 arrays below a long name", map(&[(&long, many)]), Limit, &["MAX_TABLE_BYTES"]),
        ("two arrays in 60 000 pieces", map(&twice), Limit, &["MAX_TABLE_BYTES"]),
        (
            "a megabyte of lists",
            one([&[0xdd, 0, 16, 0, 0][..], &[0x90; 1 << 20]].concat()),
            Parse,
            &["no arrays"],
        ),
    ]);
    trial.end();
}

#[test]
fn files() {
    let mut trial = Trial::new();
    let names = ["module", "chunks", "values", "many"];
    let files =
        names.map(|name| std::fs::read(data().join(format!("flax/{name}.msgpack"))).unwrap());
    trial.truncations("a module", &files[0]);
    trial.mutations(&files, 13);
    trial.end();
}
