//! GGUF files that are malformed, contradictory or hostile: each must give the right kind of error, whose
//! message names the tensor or key; nothing may panic.
#![cfg(feature = "gguf")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use anamnesis::{
    AnamnesisError, RememberOptions, Result, inspect_gguf_from_reader as inspect, parse,
    parse_bytes,
};
use common::gguf::{Gguf, string};
use common::verdict::{Kind, Limit, Parse, Unsupported, recover, verdict, verdict_of};
use common::{Random, TARGETS, data};
use safetensors::SafeTensors;

/// What is wrong, the file, and what the error must be.
type Row<'a> = (&'a str, Vec<u8>, Kind, &'a [&'a str]);

/// Reports all rows that fail at once. The header must not panic as a stream either.
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

/// One key `k`.
fn key(kind: u32, value: &[u8]) -> Vec<u8> {
    empty().key("k", kind, value).file()
}

/// An array in one key `k`, `levels` deep, whose innermost is of this type, number and bytes.
fn array(levels: usize, kind: u32, n: u64, items: &[u8]) -> Vec<u8> {
    let mut value = [&kind.to_le_bytes(), &n.to_le_bytes()[..], items].concat();
    for _ in 1..levels {
        value = [&9u32.to_le_bytes(), &1u64.to_le_bytes()[..], &value].concat();
    }
    key(9, &value)
}

/// Counts that the builder did not count, and what follows them.
fn counts(tensors: u64, keys: u64, tail: &[u8]) -> Vec<u8> {
    let counts = [tensors.to_le_bytes(), keys.to_le_bytes()].concat();
    [&b"GGUF\x03\0\0\0"[..], &counts, tail].concat()
}

#[test]
fn counts_and_versions() {
    let version = |bytes: [u8; 4]| [&b"GGUF"[..], &bytes, &[0; 64]].concat();
    check(vec![
        ("version 0", version([0; 4]), Unsupported, &["version 0"]),
        (
            "version 4",
            version([4, 0, 0, 0]),
            Unsupported,
            &["version 4"],
        ),
        (
            "version 4, big-endian",
            version([0, 0, 0, 4]),
            Unsupported,
            &["version 4"],
        ),
        (
            "version 259",
            version([3, 1, 0, 0]),
            Unsupported,
            &["version 259"],
        ),
        (
            "version 3 in the middle",
            version([0, 0, 3, 0]),
            Unsupported,
            &["version 768"],
        ),
        (
            "all tensors",
            counts(u64::MAX, 0, &[]),
            Limit,
            &["18446744073709551615 tensors"],
        ),
        (
            "all keys",
            counts(0, u64::MAX, &[]),
            Limit,
            &["18446744073709551615", "keys"],
        ),
        (
            "too many tensors",
            counts(1_000_001, 0, &[]),
            Limit,
            &["1000001 tensors"],
        ),
        (
            "too many keys",
            counts(0, 1_000_001, &[]),
            Limit,
            &["1000001", "keys"],
        ),
        (
            "many tensors that are not there",
            counts(1_000_000, 0, &[0; 999]),
            Parse,
            &[],
        ),
        (
            "many keys that are not there",
            counts(0, 1_000_000, &string("k")),
            Parse,
            &["truncated"],
        ),
        (
            "as many in version 1",
            [&b"GGUF\x01\0\0\0"[..], &[255; 8]].concat(),
            Limit,
            &["4294967295 tensors"],
        ),
    ]);
}

#[test]
fn keys() {
    let twice = || empty().text("k", "a").key("k", 4, &[0; 4]).file();
    let name =
        |len: u64, bytes: &[u8]| counts(0, 1, &[&len.to_le_bytes(), bytes, &[0; 64]].concat());
    let text = |len: u64| key(8, &len.to_le_bytes());
    let strings = |len: u64| array(1, 8, 2, &[string("a"), len.to_le_bytes().to_vec()].concat());
    check(vec![
        ("twice", twice(), Parse, &["`k`", "twice"]),
        (
            "empty",
            empty().text("", "a").file(),
            Parse,
            &["key is empty"],
        ),
        (
            "not UTF-8",
            name(3, b"a\xffb"),
            Parse,
            &["a\u{fffd}b", "UTF-8"],
        ),
        (
            "control characters",
            empty().text("k\x1b", "a").text("k\x1b", "a").file(),
            Parse,
            &["`k\\u{1b}`"],
        ),
        (
            "name of any length",
            name(u64::MAX, &[]),
            Limit,
            &["18446744073709551615"],
        ),
        (
            "long name",
            name(65_536, &[b'k'; 65_536]),
            Limit,
            &["65536"],
        ),
        (
            "name behind the end",
            name(60_000, &[]),
            Parse,
            &["truncated"],
        ),
        (
            "text of any length",
            text(u64::MAX),
            Limit,
            &["`k`", "18446744073709551615"],
        ),
        (
            "long text",
            text((16 << 20) + 1),
            Limit,
            &["`k`", "16777217"],
        ),
        ("text behind the end", text(16 << 20), Parse, &["`k`"]),
        (
            "element of any length",
            strings(u64::MAX),
            Limit,
            &["`k`", "18446744073709551615"],
        ),
        ("element behind the end", strings(100), Parse, &["`k`"]),
        ("type 13", key(13, &[0; 64]), Parse, &["`k`", "type 13"]),
        (
            "type of any number",
            key(u32::MAX, &[0; 64]),
            Parse,
            &["`k`", "type 4294967295"],
        ),
        (
            "array of type 13",
            array(1, 13, 0, &[]),
            Parse,
            &["`k`", "type 13"],
        ),
        (
            "nested array of type 13",
            array(3, 13, 2, &[0; 64]),
            Parse,
            &["`k`", "type 13"],
        ),
        (
            "array of any length",
            array(1, 0, u64::MAX, &[0; 64]),
            Limit,
            &["`k`", "18446744073709551615"],
        ),
        (
            "array of any number of strings",
            array(1, 8, u64::MAX, &[0; 64]),
            Limit,
            &["`k`", "18446744073709551615"],
        ),
        (
            "array of any number of arrays",
            array(1, 9, u64::MAX, &[0; 64]),
            Limit,
            &["`k`", "18446744073709551615"],
        ),
        (
            "array whose size overflows",
            array(1, 10, 1 << 61, &[0; 64]),
            Limit,
            &["`k`"],
        ),
        (
            "nested array of any length",
            array(4, 12, u64::MAX, &[]),
            Limit,
            &["`k`"],
        ),
        (
            "array behind the end",
            array(1, 12, 16_000_000, &[0; 64]),
            Parse,
            &["`k`"],
        ),
        (
            "strings behind the end",
            array(1, 8, 16_000_000, &[0; 64]),
            Parse,
            &["`k`"],
        ),
        (
            "arrays behind the end",
            array(3, 9, 16_000_000, &[0; 64]),
            Parse,
            &["`k`"],
        ),
        (
            "five levels",
            array(5, 0, 1, &[0]),
            Limit,
            &["`k`", "5 levels"],
        ),
        (
            "a hundred levels",
            array(100, 0, 1, &[0]),
            Limit,
            &["`k`", "5 levels"],
        ),
    ]);
    parse_bytes(array(4, 0, 1, &[0])).unwrap();
    let text = parse_bytes(key(8, b"\x03\0\0\0\0\0\0\0a\xffb"))
        .unwrap()
        .gguf()
        .unwrap()
        .metadata()
        .get("k");
    assert_eq!(
        text.as_ref().and_then(|value| value.as_string()),
        Some("a\u{fffd}b")
    );
    parse_bytes(name(65_535, &[&[b'k'; 65_535][..], &[0; 5]].concat())).unwrap();
}

#[test]
fn alignments() {
    let with = |kind: u32, value: &[u8]| {
        empty()
            .key("general.alignment", kind, value)
            .tensor("X", 0, &[1], &[0; 4])
            .file()
    };
    let number = |n: u32| with(4, &n.to_le_bytes());
    check(vec![
        ("0", number(0), Parse, &["alignment", "0"]),
        ("3", number(3), Parse, &["alignment", "3"]),
        ("48", number(48), Parse, &["alignment", "48"]),
        (
            "the largest",
            number(u32::MAX),
            Parse,
            &["alignment", "4294967295"],
        ),
        ("more than is padded", number(1 << 21), Limit, &["2097152"]),
        ("larger than the file", number(1 << 20), Parse, &["`X`"]),
        (
            "u64",
            with(10, &32u64.to_le_bytes()),
            Parse,
            &["general.alignment", "u64"],
        ),
        (
            "i32",
            with(5, &32u32.to_le_bytes()),
            Parse,
            &["general.alignment", "i32"],
        ),
        (
            "text",
            with(8, &string("32")),
            Parse,
            &["general.alignment", "string"],
        ),
        (
            "array",
            with(9, &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Parse,
            &["general.alignment", "array"],
        ),
        (
            "between multiples",
            empty().tensor_at("X", 0, &[1], 36, &[0; 40]).file(),
            Parse,
            &["`X`", "36"],
        ),
    ]);
}

/// A tensor `X` of zeros, of ggml type `kind`.
fn one(kind: u32, shape: &[u64], bytes: usize) -> Vec<u8> {
    empty().tensor("X", kind, shape, &vec![0; bytes]).file()
}

#[test]
fn tensors() {
    const MAX: u64 = u64::MAX;
    let name = |bytes: &[u8]| {
        counts(
            1,
            0,
            &[&(bytes.len() as u64).to_le_bytes(), bytes, &[0; 64]].concat(),
        )
    };
    let rank = |n: u32| {
        counts(
            1,
            0,
            &[&string("X")[..], &n.to_le_bytes(), &[0; 200]].concat(),
        )
    };
    let long = [&65_536u64.to_le_bytes()[..], &[b'X'; 65_536], &[0; 64]].concat();
    check(vec![
        (
            "twice",
            empty()
                .tensor("X", 0, &[1], &[0; 4])
                .tensor("X", 0, &[1], &[0; 4])
                .file(),
            Parse,
            &["`X`", "twice"],
        ),
        (
            "name not UTF-8",
            name(b"X\xff"),
            Parse,
            &["X\u{fffd}", "UTF-8"],
        ),
        (
            "name of any length",
            counts(1, 0, &[255; 64]),
            Limit,
            &["18446744073709551615"],
        ),
        ("long name", counts(1, 0, &long), Limit, &["65536"]),
        ("nine dimensions", rank(9), Limit, &["`X`", "9 dimensions"]),
        (
            "dimensions of any number",
            rank(u32::MAX),
            Limit,
            &["`X`", "4294967295"],
        ),
        (
            "dimensions that overflow",
            one(0, &[1 << 63, 1 << 63], 32),
            Parse,
            &["`X`"],
        ),
        (
            "three that overflow",
            one(24, &[1 << 22, 1 << 22, 1 << 22], 32),
            Parse,
            &["`X`"],
        ),
        (
            "bytes that overflow",
            one(0, &[1 << 62], 32),
            Parse,
            &["`X`"],
        ),
        (
            "bits that overflow",
            one(8, &[1 << 60, 8], 32),
            Parse,
            &["`X`"],
        ),
        (
            "a dimension of any size",
            one(24, &[MAX], 32),
            Parse,
            &["`X`"],
        ),
        (
            "half a block",
            one(2, &[16], 18),
            Parse,
            &["`X`", "Q4_0", "32"],
        ),
        (
            "a block and a value",
            one(2, &[33], 36),
            Parse,
            &["`X`", "Q4_0"],
        ),
        (
            "a block in two rows",
            one(12, &[128, 2], 144),
            Parse,
            &["`X`", "Q4_K", "256"],
        ),
        (
            "a block as a scalar",
            one(8, &[], 34),
            Parse,
            &["`X`", "Q8_0"],
        ),
        ("cut short", one(0, &[100], 399), Parse, &["`X`", "end"]),
        ("a cut block", one(8, &[64], 67), Parse, &["`X`", "end"]),
        ("none of it", one(0, &[100], 0), Parse, &["`X`", "end"]),
        (
            "far more than there is",
            one(0, &[1 << 40], 32),
            Parse,
            &["`X`", "end"],
        ),
    ]);
    recover(one(0, &[1; 8], 4), "").unwrap();
    recover(one(8, &[32, 0, 1 << 50], 0), "").unwrap();
}

/// Nothing, in ways that multiply badly.
#[test]
fn empty_tensors() {
    const MAX: u64 = u64::MAX;
    let mut failures = String::new();
    for (kind, [big, huge]) in [
        (0, [3, MAX]),
        (0, [MAX, MAX]),
        (8, [32, MAX - 31]),
        (12, [1 << 63, 256]),
        (40, [64, 1 << 62]),
        (99, [MAX, 2]),
    ] {
        for shape in [
            [big, huge, 0],
            [big, 0, huge],
            [0, big, huge],
            [huge, big, 0],
            [huge, 0, big],
            [0, huge, big],
        ] {
            let file = one(kind, &shape, 0);
            let caught = std::panic::catch_unwind(|| {
                (
                    inspect(std::io::Cursor::new(&file)).is_ok(),
                    recover(file, "").is_ok(),
                )
            });
            failures.extend(
                caught
                    .err()
                    .map(|_| format!("\ntype {kind} {shape:?}: panic")),
            );
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn places() {
    let after = |offset: u64| {
        empty()
            .tensor("W", 0, &[16], &[0; 64])
            .tensor_at("X", 0, &[1], offset, &[0; 4])
            .file()
    };
    // The sizes that some fork gives to a number: here what it writes, `bytes` for each of two tensors.
    let fork = |kind: u32, values: u64, bytes: usize| {
        empty()
            .tensor("X", kind, &[values], &vec![0; bytes])
            .tensor("Y", kind, &[values], &vec![0; bytes])
            .file()
    };
    let last = |kind: u32, bytes: usize| {
        empty()
            .tensor("W", 0, &[1], &[0; 4])
            .tensor("X", kind, &[1280], &vec![0; bytes])
            .file()
    };
    check(vec![
        (
            "the first is not",
            empty().tensor_at("X", 0, &[1], 32, &[0; 64]).file(),
            Parse,
            &["`X`", "32 bytes"],
        ),
        ("one in another", after(32), Parse, &["`W`", "64", "32"]),
        ("two in one", after(0), Parse, &["`"]),
        ("a hole", after(96), Parse, &["`W`", "64", "96"]),
        ("behind the end", after(1 << 40), Parse, &["`"]),
        ("far behind", after(u64::MAX - 31), Parse, &["`X`"]),
        (
            "34 bytes for 128 values",
            fork(42, 1280, 340),
            Parse,
            &["`X`", "Q2_0", "360", "352"],
        ),
        (
            "34 bytes for 128 values, last",
            last(42, 340),
            Parse,
            &["`X`"],
        ),
        (
            "more than ggml",
            fork(41, 1280, 220),
            Parse,
            &["`X`", "Q1_0", "180", "224"],
        ),
        (
            "more than ggml, last",
            last(41, 225),
            Parse,
            &["`X`", "Q1_0", "180", "225"],
        ),
        (
            "as much more as a codebook",
            last(12, 720 + 1024),
            Parse,
            &["`X`", "Q4_K"],
        ),
    ]);
}

/// A small file with a bit of everything: values of all types, and several tensors.
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

/// Cut anywhere it is an error: of the reader's as a stream, and of the file's as a file.
#[test]
fn truncations() {
    let (whole, header) = (rich().file(), rich().header().len());
    recover(whole.clone(), "").unwrap();
    for end in 0..whole.len() {
        match inspect(std::io::Cursor::new(&whole[..end])) {
            // The padding is no part of what a stream has to have.
            Ok(_) => assert!(end > header - 32, "{end}"),
            Err(error) => assert!(
                end < header && matches!(error, AnamnesisError::Io(_)),
                "{end}: {error}"
            ),
        }
        assert_eq!(
            verdict_of(|| parse_bytes(whole[..end].to_vec()), Parse, &[]),
            None,
            "{end}"
        );
    }
}

/// What a type means, or a byte order, or a scale: found when the model is to be recovered.
#[test]
fn tensors_that_are_not_decoded() {
    let nvfp4 = |scales: &[(&str, u32, u64)]| {
        let file = empty().tensor("X.weight", 40, &[64, 2, 3], &[1; 216]);
        let add = |file: Gguf, &(name, kind, n): &(&str, u32, u64)| {
            file.tensor(name, kind, &[n], &vec![0; 4 * n as usize])
        };
        scales.iter().fold(file, add).file()
    };
    let both: &[_] = &[("X.scale", 0, 3), ("X.weight.scale", 0, 3)];
    let mut rows: Vec<Row<'_>> = vec![
        (
            "type 4",
            one(4, &[64], 34),
            Unsupported,
            &["`X`", "type 4", "Ollama"],
        ),
        (
            "type 36",
            one(36, &[64], 16),
            Unsupported,
            &["`X`", "type 36", "I2_S"],
        ),
        (
            "type 31",
            one(31, &[64], 36),
            Unsupported,
            &["`X`", "type 31", "removed"],
        ),
        (
            "type 139",
            one(139, &[256], 144),
            Unsupported,
            &["`X`", "type 139", "ik_llama"],
        ),
        (
            "type of any number",
            one(u32::MAX, &[256], 144),
            Unsupported,
            &["`X`", "type 4294967295"],
        ),
        (
            "two scales",
            nvfp4(both),
            Parse,
            &["`X.weight`", "`X.scale`", "`X.weight.scale`"],
        ),
        (
            "scale of integers",
            nvfp4(&[("X.scale", 26, 1)]),
            Parse,
            &["`X.scale`", "I32"],
        ),
    ];
    rows.extend([0, 2, 6, 64].map(|n| -> Row<'_> {
        (
            "scales",
            nvfp4(&[("X.scale", 0, n)]),
            Parse,
            &["`X.weight`", "`X.scale`"],
        )
    }));
    for (what, file, kind, words) in rows {
        assert_eq!(
            verdict_of(|| recover(file, ""), kind, words),
            None,
            "{what}"
        );
    }
}

/// A type that nobody here knows keeps the model from being recovered, and its other tensors from nothing.
#[test]
fn unknown_types() {
    let mut random = Random(4);
    let (known, odd) = (random.bytes(34), random.bytes(77));
    let file =
        Gguf::default()
            .tensor("a", 8, &[32], &known)
            .tensor("X.weight", 36, &[100, 2], &odd);
    let file = file.tensor("z", 0, &[2], &known[..8]).file();
    let model = parse_bytes(file.clone()).unwrap();
    let info = model.inspect();
    assert_eq!(
        (info.tensor_count, info.problems.len()),
        (3, 1),
        "{:?}",
        info.problems
    );
    assert_eq!(
        verdict(
            recover(file.clone(), ""),
            Unsupported,
            &["`X.weight`", "type 36"]
        ),
        None
    );
    assert!(model.tensor("a").unwrap().bytes().unwrap() == known);
    assert!(*model.tensor("z").unwrap().bytes().unwrap() == known[..8]);
    assert!(
        model
            .tensor("X.weight")
            .unwrap()
            .bytes()
            .unwrap()
            .starts_with(&odd)
    );
    let summary = anamnesis::GgufInspectInfo::of(&model).unwrap();
    assert_eq!(
        (summary.unknown_size_tensors, summary.total_bytes),
        (1, 34 + 8)
    );
    assert_eq!(inspect(std::io::Cursor::new(file)).unwrap(), summary);
}

/// Part `no` of a split model, with these tensors.
fn part(no: u16, count: u16, total: i32, tensors: &[&str]) -> Gguf {
    let file =
        empty()
            .key("split.no", 2, &no.to_le_bytes())
            .key("split.count", 2, &count.to_le_bytes());
    let file = file.key("split.tensors.count", 5, &total.to_le_bytes());
    tensors
        .iter()
        .fold(file, |file, name| file.tensor(name, 0, &[3], &[0; 12]))
}

/// Files of one directory.
type Files<'a> = &'a [(&'a str, &'a Gguf)];

/// Opens the first of `files`; the number of tensors.
fn open(files: Files<'_>) -> Result<usize> {
    let directory = tempfile::tempdir().unwrap();
    files
        .iter()
        .for_each(|(name, file)| std::fs::write(directory.path().join(name), file.file()).unwrap());
    parse(directory.path().join(files[0].0)).map(|model| model.tensors().len())
}

#[test]
fn splits() {
    const A: &str = "m-00001-of-00003.gguf";
    const B: &str = "m-00002-of-00003.gguf";
    const C: &str = "m-00003-of-00003.gguf";
    let [a, b, c] = [(0, "X"), (1, "Y"), (2, "Z")].map(|(no, name)| part(no, 3, 3, &[name]));
    let (four, unnumbered) = (
        part(1, 4, 3, &["Y"]),
        empty().tensor("Y", 0, &[3], &[0; 12]),
    );
    let (again, more) = (part(2, 3, 3, &["X"]), part(2, 3, 3, &["Z", "W"]));
    let odd =
        |key: &str, kind, value: &[u8]| empty().key(key, kind, value).tensor("X", 0, &[1], &[0; 4]);
    let (text, negative) = (
        odd("split.count", 8, &string("3")),
        odd("split.no", 5, &[255; 4]),
    );
    let (many, cut) = (odd("split.count", 4, &[0, 0, 1, 0]), odd("k", 8, &[255; 8]));
    let two = part(0, 2, 3, &["X"]);
    assert_eq!(open(&[(A, &a), (B, &b), (C, &c)]).unwrap(), 3);
    let rows: [(&str, Files<'_>, Kind, &[&str]); 15] = [
        (
            "a foreign part",
            &[(A, &a), (B, &c), (C, &c)],
            Parse,
            &[B, "split.no is 2"],
        ),
        (
            "a part of another set",
            &[(A, &a), (B, &four), (C, &c)],
            Parse,
            &[B, "split.count 4"],
        ),
        (
            "a part that is none",
            &[(A, &a), (B, &unnumbered), (C, &c)],
            Parse,
            &[B, "split.no"],
        ),
        (
            "a part twice",
            &[(A, &a), (B, &b), (C, &b)],
            Parse,
            &[C, "split.no is 1"],
        ),
        (
            "the first part twice",
            &[(A, &a), (B, &a), (C, &c)],
            Parse,
            &[B, "split.no is 0"],
        ),
        (
            "a tensor twice",
            &[(A, &a), (B, &b), (C, &again)],
            Parse,
            &["`X`", "two parts"],
        ),
        (
            "a tensor too many",
            &[(A, &a), (B, &b), (C, &more)],
            Parse,
            &["3 tensors", "have 4"],
        ),
        (
            "the first renamed",
            &[("model.gguf", &a), (B, &b), (C, &c)],
            Parse,
            &["model.gguf", "-00001-of-00003.gguf"],
        ),
        (
            "the first of two",
            &[("m-00001-of-00002.gguf", &a), (B, &b), (C, &c)],
            Parse,
            &["-00001-of-00003.gguf"],
        ),
        (
            "fewer than the name says",
            &[(A, &two), (B, &b), (C, &c)],
            Parse,
            &[A, "-00001-of-00002.gguf"],
        ),
        (
            "not the first",
            &[(B, &b), (A, &a), (C, &c)],
            Unsupported,
            &["part 2 of 3", A],
        ),
        ("a broken part", &[(A, &a), (B, &cut), (C, &c)], Limit, &[B]),
        (
            "count that is text",
            &[(A, &text)],
            Parse,
            &["split.count", "string"],
        ),
        ("negative number", &[(A, &negative)], Parse, &["split.no"]),
        (
            "more than anyone has",
            &[(A, &many)],
            Limit,
            &["65536 files"],
        ),
    ];
    let wrong = |(what, files, kind, words)| {
        verdict_of(|| open(files), kind, words).map(|w| format!("\n{what}: {w}"))
    };
    let failures: String = rows.into_iter().filter_map(wrong).collect();
    assert!(failures.is_empty(), "{failures}");
    assert_eq!(
        verdict(
            parse_bytes(a.file()),
            Unsupported,
            &["part 1 of 3", "memory"]
        ),
        None
    );
    let missing = open(&[(A, &a), (C, &c)]).unwrap_err();
    assert!(
        matches!(missing, AnamnesisError::Io(_)) && missing.to_string().contains(B),
        "{missing}"
    );
}

/// A number in the header becomes another, or bytes come and go.
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

/// Nothing that happens to a header makes anything panic, however it is spelt; what is recovered all the same is
/// a file that the `safetensors` crate accepts.
#[test]
fn mutations() {
    let [v1, big] = ["v1", "v3-big"]
        .map(|name| std::fs::read(data().join(format!("gguf-files/{name}.gguf"))).unwrap());
    let files = [
        (rich().file(), rich().header().len()),
        (v1, 1050),
        (big, 1270),
    ];
    let (mut random, mut parsed, mut recovered) = (Random(22), 0, 0);
    for i in 0..20_000 {
        let (mut bytes, header) = files[i / 3 % 3].clone();
        (0..1 + i % 3).for_each(|_| mutate(&mut bytes, header, &mut random));
        let _ = inspect(std::io::Cursor::new(&bytes));
        let Ok(model) = parse_bytes(bytes) else {
            continue;
        };
        parsed += 1;
        let info = model.inspect();
        let (_, _) = (
            info.to_string(),
            model.gguf().map(|gguf| gguf.metadata().iter().count()),
        );
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
    assert!(
        parsed > 1000 && recovered > 500 && parsed < 19_000,
        "{parsed} {recovered}"
    );
}
