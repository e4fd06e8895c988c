//! GGUF files that are malformed or hostile: each must give the right kind of error, whose message
//! names the tensor or key.

mod header;
mod splits;
mod tensors;

use anamnesis::{
    AnamnesisError, RememberOptions, inspect_gguf_from_reader as inspect, parse_bytes,
};
use safetensors::SafeTensors;

use crate::common::gguf::{Gguf, string};
use crate::common::verdict::{Kind, Parse, recover, verdict_of};
use crate::common::{Random, TARGETS, data, effort};

/// What is wrong, the file, the kind of the error, and words of its message.
type Row<'a> = (&'a str, Vec<u8>, Kind, &'a [&'a str]);

/// Checks the error of every row, and reports all rows that fail. Reading the header from a stream
/// must not panic either.
fn check(rows: Vec<Row<'_>>) {
    let mut failures = String::new();
    for (what, bytes, kind, words) in rows {
        let wrong = verdict_of(|| parse_bytes(bytes.clone()), kind, words);
        failures.extend(wrong.map(|w| format!("\n{what}: {w}")));
        let stream = || inspect(std::io::Cursor::new(&bytes)).is_ok();
        failures.extend(
            std::panic::catch_unwind(stream)
                .err()
                .map(|_| format!("\n{what}: panic from a stream")),
        );
    }
    assert!(failures.is_empty(), "{failures}");
}

fn empty() -> Gguf {
    Gguf::default()
}

/// A file with one key `k`, of type `kind`.
fn key(kind: u32, value: &[u8]) -> Vec<u8> {
    empty().key("k", kind, value).file()
}

/// A file with one key `k`: an array `levels` deep, whose innermost array has `n` items of type
/// `kind` in the bytes `items`.
fn array(levels: usize, kind: u32, n: u64, items: &[u8]) -> Vec<u8> {
    let mut value = [&kind.to_le_bytes(), &n.to_le_bytes()[..], items].concat();
    for _ in 1..levels {
        value = [&9u32.to_le_bytes(), &1u64.to_le_bytes()[..], &value].concat();
    }
    key(9, &value)
}

/// A file that declares these counts, followed by `tail`.
fn counts(tensors: u64, keys: u64, tail: &[u8]) -> Vec<u8> {
    let counts = [tensors.to_le_bytes(), keys.to_le_bytes()].concat();
    [&b"GGUF\x03\0\0\0"[..], &counts, tail].concat()
}

/// A file with one tensor `X` of zeros, of ggml type `kind`.
fn one(kind: u32, shape: &[u64], bytes: usize) -> Vec<u8> {
    empty().tensor("X", kind, shape, &vec![0; bytes]).file()
}

/// A small file with metadata of all types and several tensors.
fn rich() -> Gguf {
    let mut file =
        empty()
            .text("general.architecture", "llama")
            .key("general.alignment", 4, &[32, 0, 0, 0]);
    for (kind, size) in [1usize, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8]
        .into_iter()
        .enumerate()
        .filter(|(_, n)| *n > 0)
    {
        file = file.key(&format!("k.{kind}"), kind as u32, &vec![1; size]);
    }
    let strings = [string("a"), string(""), string("ccc")].concat();
    let array = |kind: u32, n: u64, items: &[u8]| {
        [&kind.to_le_bytes(), &n.to_le_bytes()[..], items].concat()
    };
    let nested = [array(5, 2, &[0; 8]), array(8, 3, &strings)].concat();
    file = file
        .key("k.array", 9, &array(8, 3, &strings))
        .key("k.nested", 9, &array(9, 2, &nested));
    let mut random = Random(21);
    let shapes: [(&str, u32, &[u64], usize); 7] = [
        ("a.weight", 8, &[32, 4], 136),
        ("b.weight", 12, &[256, 2], 288),
        ("c.weight", 40, &[64, 2, 2], 144),
        ("c.scale", 0, &[2], 8),
        ("d.weight", 23, &[256], 136),
        ("e.weight", 30, &[5, 3, 2], 60),
        ("n", 27, &[], 8),
    ];
    shapes.iter().fold(file, |file, &(name, kind, shape, n)| {
        file.tensor(name, kind, shape, &random.bytes(n))
    })
}

/// A file cut anywhere is an error: an I/O error from a stream, a parse error from a file.
#[test]
fn truncations() {
    let (whole, header) = (rich().file(), rich().header().len());
    recover(whole.clone(), "").unwrap();
    for end in 0..whole.len() {
        match inspect(std::io::Cursor::new(&whole[..end])) {
            // A stream may end before the padding.
            Ok(_) => assert!(end > header - 32, "{end}"),
            Err(error) => {
                assert!(end < header && matches!(error, AnamnesisError::Io(_)), "{end}: {error}");
            }
        }
        assert_eq!(verdict_of(|| parse_bytes(whole[..end].to_vec()), Parse, &[]), None, "{end}");
    }
}

/// Changes a number in the header, or inserts or removes bytes.
fn mutate(bytes: &mut Vec<u8>, header: usize, random: &mut Random) {
    const NUMBERS: [u64; 16] = [
        0,
        1,
        2,
        8,
        31,
        32,
        33,
        255,
        256,
        1 << 16,
        1 << 31,
        1 << 32,
        1 << 59,
        1 << 62,
        u64::MAX - 31,
        u64::MAX,
    ];
    let mut pick = |n: usize| (random.next() >> 20) as usize % n;
    let (at, number) = (4 + pick(header - 12), NUMBERS[pick(16)].to_le_bytes());
    match pick(8) {
        0 => bytes.insert(at, number[0]),
        1 => drop(bytes.remove(at)),
        2 => bytes[at] = pick(256) as u8,
        3 => bytes[at..at + 8].copy_from_slice(&number),
        4 => bytes[at..at + 4].copy_from_slice(&number[..4]),
        5 => bytes[at] = pick(43) as u8,
        _ => bytes[at] ^= 1 << pick(8),
    }
}

/// No change of a header makes anything panic, from a file or a stream. If the file is still
/// decoded, the `safetensors` crate accepts the output.
#[test]
fn mutations() {
    let [v1, big] = ["v1", "v3-big"]
        .map(|name| std::fs::read(data().join(format!("gguf-files/{name}.gguf"))).unwrap());
    let files = [(rich().file(), rich().header().len()), (v1, 1050), (big, 1270)];
    let (mut random, mut parsed, mut recovered) = (Random(22), 0, 0);
    let tries = effort([2000, 8000, 20_000]);
    for i in 0..tries {
        let (mut bytes, header) = files[i / 3 % 3].clone();
        (0..1 + i % 3).for_each(|_| mutate(&mut bytes, header, &mut random));
        let _ = inspect(std::io::Cursor::new(&bytes));
        let Ok(model) = parse_bytes(bytes) else {
            continue;
        };
        parsed += 1;
        let info = model.inspect();
        let (_, _) = (info.to_string(), model.gguf().map(|gguf| gguf.metadata().iter().count()));
        let result =
            model.remember_to_bytes(RememberOptions::new(TARGETS[i % 3].0).with_threads(1));
        assert!(
            info.problems.is_empty() || result.is_err(),
            "recovered in spite of {:?}",
            info.problems
        );
        if let Ok(output) = result {
            recovered += 1;
            SafeTensors::deserialize(&output).unwrap();
        }
    }
    assert!(parsed * 20 > tries && recovered * 40 > tries, "{parsed} {recovered}");
    assert!(parsed * 20 < tries * 19, "{parsed}");
}
