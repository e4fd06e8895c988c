//! Tensors of GGUF files that are malformed: shapes, types and places.

use anamnesis::{inspect_gguf_from_reader as inspect, parse_bytes};

use super::{Row, check, counts, empty, one};
use crate::common::Random;
use crate::common::gguf::{Gguf, string};
use crate::common::verdict::{Limit, Parse, Unsupported, recover, verdict, verdict_of};

#[test]
fn tensors() {
    const MAX: u64 = u64::MAX;
    let name = |bytes: &[u8]| {
        counts(1, 0, &[&(bytes.len() as u64).to_le_bytes(), bytes, &[0; 64]].concat())
    };
    let rank = |n: u32| counts(1, 0, &[&string("X")[..], &n.to_le_bytes(), &[0; 200]].concat());
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
        ("name not UTF-8", name(b"X\xff"), Parse, &["X\u{fffd}", "UTF-8"]),
        ("name of any length", counts(1, 0, &[255; 64]), Limit, &["18446744073709551615"]),
        ("long name", counts(1, 0, &long), Limit, &["65536"]),
        ("nine dimensions", rank(9), Limit, &["`X`", "9 dimensions"]),
        ("dimensions of any number", rank(u32::MAX), Limit, &["`X`", "4294967295"]),
        ("dimensions that overflow", one(0, &[1 << 63, 1 << 63], 32), Parse, &["`X`"]),
        ("three that overflow", one(24, &[1 << 22, 1 << 22, 1 << 22], 32), Parse, &["`X`"]),
        ("bytes that overflow", one(0, &[1 << 62], 32), Parse, &["`X`"]),
        ("bits that overflow", one(8, &[1 << 60, 8], 32), Parse, &["`X`"]),
        ("a dimension of any size", one(24, &[MAX], 32), Parse, &["`X`"]),
        ("half a block", one(2, &[16], 18), Parse, &["`X`", "Q4_0", "32"]),
        ("a block and a value", one(2, &[33], 36), Parse, &["`X`", "Q4_0"]),
        ("a block in two rows", one(12, &[128, 2], 144), Parse, &["`X`", "Q4_K", "256"]),
        ("a block as a scalar", one(8, &[], 34), Parse, &["`X`", "Q8_0"]),
        (
            "a block in two rows with headers",
            one(144, &[128, 2], 144),
            Parse,
            &["`X`", "IQ4_KS", "256"],
        ),
        ("a block with a header as a scalar", one(151, &[], 40), Parse, &["`X`", "Q8_KV"]),
        ("rows without their headers", one(144, &[256, 3], 3 * 136), Parse, &["`X`", "end"]),
        ("headers that overflow", one(151, &[32, 1 << 57], 40), Parse, &["`X`"]),
        ("cut short", one(0, &[100], 399), Parse, &["`X`", "end"]),
        ("a cut block", one(8, &[64], 67), Parse, &["`X`", "end"]),
        ("none of it", one(0, &[100], 0), Parse, &["`X`", "end"]),
        ("far more than there is", one(0, &[1 << 40], 32), Parse, &["`X`", "end"]),
    ]);
    recover(one(0, &[1; 8], 4), "").unwrap();
    recover(one(8, &[32, 0, 1 << 50], 0), "").unwrap();
}

/// Tensors without elements whose other dimensions overflow when multiplied.
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
                (inspect(std::io::Cursor::new(&file)).is_ok(), recover(file, "").is_ok())
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
fn offsets() {
    let after = |offset: u64| {
        empty()
            .tensor("W", 0, &[16], &[0; 64])
            .tensor_at("X", 0, &[1], offset, &[0; 4])
            .file()
    };
    // A fork may give another size to a type's number: two tensors that take `bytes` each.
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
        ("the last as F16 that is F32", last(1, 1280 * 4), Parse, &["`X`", "F16"]),
        ("the last as BF16 that is F64", last(30, 1280 * 8), Parse, &["`X`", "BF16"]),
        ("one in another", after(32), Parse, &["`W`", "64", "32"]),
        ("two in one", after(0), Parse, &["`"]),
        ("a hole", after(96), Parse, &["`W`", "64", "96"]),
        ("behind the end", after(1 << 40), Parse, &["`"]),
        ("far behind", after(u64::MAX - 31), Parse, &["`X`"]),
        ("35 bytes for 128 values", fork(42, 1280, 390), Parse, &["`X`", "Q2_0", "360", "416"]),
        ("34 bytes for 128 values, last, and more", last(42, 340 + 64), Parse, &["`X`"]),
        ("more than ggml", fork(41, 1280, 220), Parse, &["`X`", "Q1_0", "180", "224"]),
        ("more than ggml, last", last(41, 225), Parse, &["`X`", "Q1_0", "180", "225"]),
        ("as much more as a codebook", last(12, 720 + 1024), Parse, &["`X`", "Q4_K"]),
    ]);
}

/// Types, byte orders and scales that are not supported give an error when the model is decoded.
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
        ("type 4", one(4, &[64], 34), Unsupported, &["`X`", "type 4", "Ollama"]),
        ("type 36", one(36, &[64], 16), Unsupported, &["`X`", "type 36", "I2_S"]),
        ("type 31", one(31, &[64], 36), Unsupported, &["`X`", "type 31", "removed"]),
        (
            "type 397",
            one(397, &[256, 16], 4128),
            Unsupported,
            &["`X`", "type 397", "Q8_K_R16", "ik_llama", "AVX-512"],
        ),
        (
            "type 150",
            one(150, &[256], 288),
            Unsupported,
            &["`X`", "type 150", "Q8_K128", "ik_llama"],
        ),
        ("type 159", one(159, &[256], 66), Unsupported, &["`X`", "type 159", "no type"]),
        (
            "type of any number",
            one(u32::MAX, &[256], 144),
            Unsupported,
            &["`X`", "type 4294967295"],
        ),
        ("two scales", nvfp4(both), Parse, &["`X.weight`", "`X.scale`", "`X.weight.scale`"]),
        ("scale of integers", nvfp4(&[("X.scale", 26, 1)]), Parse, &["`X.scale`", "I32"]),
    ];
    rows.extend([0, 2, 6, 64].map(|n| -> Row<'_> {
        ("scales", nvfp4(&[("X.scale", 0, n)]), Parse, &["`X.weight`", "`X.scale`"])
    }));
    let factor = |kind: u32, n: u64, bytes: usize| {
        let file = empty().tensor("blk.0.attn_q.weight", kind, &[64, 3], &vec![1; bytes]);
        let factor = vec![0; 4 * n as usize];
        file.tensor("blk.0.attn_q.scale", 0, &[n], &factor).file()
    };
    rows.extend([(8, 3, 204), (1, 64, 384)].map(|(kind, n, bytes)| -> Row<'_> {
        (
            "factors of other types",
            factor(kind, n, bytes),
            Parse,
            &["`blk.0.attn_q.weight`", "`blk.0.attn_q.scale`"],
        )
    }));
    let scaled = |kind: u32, n: u64, bytes: usize| {
        let file = empty().tensor("x.qkv.weight", kind, &[64, 3], &vec![1; bytes]);
        let scales = vec![0; 4 * n as usize];
        file.tensor("x.qkv.weight_scale", 0, &[n], &scales).file()
    };
    rows.extend([
        (
            "scales of INT8",
            scaled(24, 3, 192),
            Unsupported,
            &["`x.qkv.weight`", "`x.qkv.weight_scale`", "rotated"][..],
        ),
        (
            "scales of two of three rows",
            scaled(8, 2, 204),
            Parse,
            &["`x.qkv.weight`", "`x.qkv.weight_scale`", "3 rows"],
        ),
    ]);
    for (what, file, kind, words) in rows {
        assert_eq!(verdict_of(|| recover(file, ""), kind, words), None, "{what}");
    }
}

/// A tensor of an unknown type makes decoding fail, but the file's other tensors stay accessible.
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
    assert_eq!((info.tensor_count, info.problems.len()), (3, 1), "{:?}", info.problems);
    assert_eq!(verdict(recover(file.clone(), ""), Unsupported, &["`X.weight`", "type 36"]), None);
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
    assert_eq!((summary.unknown_size_tensors, summary.total_bytes), (1, 34 + 8));
    assert_eq!(inspect(std::io::Cursor::new(file)).unwrap(), summary);
}
