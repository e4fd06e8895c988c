//! Checkpoints of MindSpore that are malformed or hostile.

use crate::common::data;
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::trials::Trial;
use crate::trials::message::{bytes, number};

fn tensor(sizes: &[u64], kind: &str, content: &[u8]) -> Vec<u8> {
    let sizes = sizes.iter().flat_map(|&n| number(1, n)).collect();
    [sizes, bytes(2, kind), bytes(3, content)].concat()
}

fn value(name: &str, tensor: Vec<u8>) -> Vec<u8> {
    bytes(1, [bytes(1, name), bytes(2, tensor)].concat())
}

fn w(sizes: &[u64], len: usize) -> Vec<u8> {
    value("w", tensor(sizes, "Float32", &vec![7; len]))
}

#[test]
fn values() {
    let mut trial = Trial::new();
    let with = |more: Vec<u8>| [w(&[2, 2], 16), more].concat();
    let of = |sizes: &[u64], kind: &str, len: usize| value("v", tensor(sizes, kind, &vec![1; len]));
    trial.fine(vec![
        ("a tensor", w(&[2, 2], 16)),
        ("a number", with(of(&[], "Int64", 8))),
        ("a number of one size", with(of(&[0], "Int64", 8))),
        ("nothing", with(of(&[0, 3], "Int8", 0))),
        ("a text", with(of(&[0], "str", 8))),
        ("two pieces", [w(&[2, 2], 4), w(&[2, 2], 12)].concat()),
    ]);
    let crc = |n: u8| [&w(&[4], 16)[..], b"crc_num\0\0\0\0\0\0", &[n; 4]].concat();
    trial.refused(vec![
        ("another checksum", crc(1), Parse, &["checksum"]),
        (
            "a long checksum",
            [&crc(1)[..w(&[4], 16).len() + 7], &[1; 10]].concat(),
            Parse,
            &["CRC-32"],
        ),
        (
            "two of a name",
            [w(&[4], 16), of(&[1], "Int8", 1), w(&[4], 16)].concat(),
            Parse,
            &["two tensors", "`w`"],
        ),
        ("pieces of two sizes", [w(&[4], 8), w(&[2, 2], 8)].concat(), Parse, &["`w`", "together"]),
        ("bytes too few", w(&[4], 15), Parse, &["`w`", "15 bytes"]),
        ("sizes that overflow", w(&[1 << 40, 1 << 40], 16), Parse, &["`w`"]),
        ("a size below zero", w(&[u64::MAX], 16), Parse, &["`w`", "size"]),
        ("packed integers", with(of(&[4], "Int4", 2)), Unsupported, &["`v`", "Int4"]),
        ("an unknown type", with(of(&[4], "Float7", 2)), Unsupported, &["`v`", "Float7"]),
        ("something else", with(bytes(2, "x")), Parse, &["no value"]),
        (
            "a table",
            with(bytes(1, [bytes(1, "t"), bytes(3, [])].concat())),
            Unsupported,
            &["MapParameter"],
        ),
        ("no tensor", with(bytes(1, bytes(1, "t"))), Parse, &["without"]),
        ("no bytes", with(value("v", bytes(2, "Int8"))), Parse, &["`v`", "missing"]),
        ("65 dimensions", with(of(&[1; 65], "Int8", 1)), Limit, &["dimensions"]),
    ]);
    trial.end();
}

#[test]
fn truncated_and_changed() {
    let mut trial = Trial::new();
    let golden = |name: &str| std::fs::read(data().join("mindspore").join(name)).unwrap();
    let files = ["types.ckpt", "crc.ckpt", "pieces.ckpt"].map(golden);
    trial.truncations("a tensor", &w(&[2, 2], 16));
    trial.mutations(&files, 37);
    trial.end();
}
