//! Directories as inputs: the index must match the shards; without an index the file names decide.

#[cfg_attr(not(all(feature = "gguf", feature = "pth")), allow(unused_imports))]
mod containers;
mod unindexed;

mod chosen;

use std::path::Path;

use anamnesis::{AnamnesisError, TargetDtype, parse};

use crate::common::directory::{INDEX, in_one_file, make, shard_name, shards, write_index};
use crate::common::{Raw, assert_same, file, raw};

/// The model in the file at `path`, decoded to BF16.
fn decoded(path: &Path) -> Vec<u8> {
    parse(path)
        .unwrap()
        .remember_to_bytes(TargetDtype::BF16)
        .unwrap()
}

fn tensor(name: &str) -> Raw {
    raw(name, "BF16", &[1], vec![1, 2])
}

/// Writes two shards and an index with the entries of `map`: `a.safetensors` has `x` and `y`,
/// `b.safetensors` has `z`.
fn indexed(dir: &Path, map: &[(&str, &str)]) {
    std::fs::write(dir.join("a.safetensors"), file(&[tensor("x"), tensor("y")], &[])).unwrap();
    std::fs::write(dir.join("b.safetensors"), file(&[tensor("z")], &[])).unwrap();
    write_index(dir, INDEX, map);
}

/// The error for a directory that `fill` fills.
fn refused(fill: impl FnOnce(&Path)) -> String {
    let dir = crate::common::tempdir().unwrap();
    fill(dir.path());
    let error = parse(dir.path()).unwrap_err();
    // A shard that is a text is called so.
    let is_named =
        matches!(error, AnamnesisError::Parse { .. } | AnamnesisError::Unsupported { .. });
    assert!(is_named, "{error}");
    error.to_string()
}

fn assert_names(error: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

/// The names of a directory's tensors, and the notes of its conversion.
fn read(dir: &Path) -> (Vec<String>, Vec<String>) {
    let model = parse(dir).unwrap();
    let names = model.tensors().map(|t| t.name().to_owned()).collect();
    (
        names,
        model
            .plan(TargetDtype::BF16)
            .unwrap()
            .report()
            .notes
            .clone(),
    )
}

#[test]
fn shards_are_one_model() {
    let dir = crate::common::tempdir().unwrap();
    let shards = shards(4, 256);
    make(&dir.path().join("model"), &shards);
    let one = in_one_file(&dir.path().join("one"), &shards);
    let model = parse(dir.path().join("model")).unwrap();
    assert_eq!(model.tensors().len(), shards.concat().len());
    assert_eq!(
        model.file_size(),
        Some((0..5).map(|no| len(&dir.path().join("model"), no, 5)).sum())
    );
    assert!(model.inspect().problems.is_empty(), "{:?}", model.inspect().problems);
    assert_same(&decoded(&one), &model.remember_to_bytes(TargetDtype::BF16).unwrap(), "joined");
    for (t, want) in model.tensors().zip(shards.concat()) {
        assert_eq!((t.name(), &*t.bytes().unwrap()), (want.name.as_str(), want.bytes.as_slice()));
    }
}

fn len(dir: &Path, no: usize, count: usize) -> u64 {
    dir.join(shard_name(no, count)).metadata().unwrap().len()
}

#[test]
fn the_index_must_match_the_shards() {
    let (a, b) = ("a.safetensors", "b.safetensors");
    let right = [("x", a), ("y", a), ("z", b)];
    let dir = crate::common::tempdir().unwrap();
    indexed(dir.path(), &right);
    assert_eq!(read(dir.path()), (vec!["x".into(), "y".into(), "z".into()], vec![]));

    let missing = refused(|dir| indexed(dir, &[right.as_slice(), &[("gone", b)]].concat()));
    assert_names(&missing, &["`gone`", "`b.safetensors`"]);
    let extra = refused(|dir| indexed(dir, &[("x", a), ("z", b)]));
    assert_names(&extra, &["`y`", "`a.safetensors`", "not in the index"]);
    let elsewhere = refused(|dir| indexed(dir, &[("x", a), ("y", b), ("z", b)]));
    assert_names(&elsewhere, &["`y`", "`a.safetensors`", "`b.safetensors`"]);
    let twice = refused(|dir| {
        indexed(dir, &right);
        std::fs::write(dir.join(b), file(&[tensor("z"), tensor("x")], &[])).unwrap();
    });
    assert_names(&twice, &["`x`", "`a.safetensors`", "`b.safetensors`"]);
    let listed_twice = refused(|dir| indexed(dir, &[("x", a), ("y", a), ("z", b), ("x", b)]));
    assert_names(&listed_twice, &["`x`", INDEX, "twice"]);
    let no_shard = refused(|dir| {
        indexed(dir, &right);
        std::fs::remove_file(dir.join(b)).unwrap();
    });
    assert_names(&no_shard, &["`b.safetensors`", "missing"]);
    let many = refused(|dir| {
        let all: Vec<String> = (0..9).map(|i| format!("gone.{i}")).collect();
        indexed(
            dir,
            &all.iter()
                .map(|name| (name.as_str(), a))
                .collect::<Vec<_>>(),
        );
    });
    assert_names(&many, &["`gone.0`", "and 6 more"]);
    assert!(!many.contains("gone.5"), "{many}");
}

#[test]
fn malformed_indices_are_refused() {
    for text in [
        "",
        "{}",
        "[]",
        "{\"weight_map\": {}}",
        "{\"weight_map\": []}",
        "{\"weight_map\": {\"x\": 1}}",
    ] {
        let error = refused(|dir| {
            indexed(dir, &[]);
            std::fs::write(dir.join(INDEX), text).unwrap();
        });
        assert_names(&error, &[INDEX]);
    }
    let broken = refused(|dir| {
        indexed(dir, &[("x", "a.safetensors"), ("y", "a.safetensors")]);
        std::fs::write(dir.join("a.safetensors"), "not a model").unwrap();
    });
    assert_names(&broken, &["`a.safetensors`"]);
    let two = refused(|dir| {
        std::fs::write(dir.join("one.index.json"), "{}").unwrap();
        std::fs::write(dir.join("two.index.json"), "{}").unwrap();
    });
    assert_names(&two, &["one.index.json", "two.index.json"]);
}

#[test]
fn shards_stay_in_the_directory() {
    let outside = crate::common::tempdir().unwrap();
    std::fs::write(outside.path().join("x.safetensors"), file(&[tensor("x")], &[])).unwrap();
    let absolute = outside
        .path()
        .join("x.safetensors")
        .to_string_lossy()
        .into_owned();
    let names = [
        "../x.safetensors",
        &absolute,
        "sub\\x.safetensors",
        "sub/../../x.safetensors",
        "./x",
        "",
        "C:x",
        "..",
    ];
    for name in names {
        let dir = outside.path().join("model");
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        write_index(&dir, INDEX, &[("x", name)]);
        let error = parse(&dir).unwrap_err().to_string();
        assert!(
            error.contains("is not in the directory") && error.contains(INDEX),
            "{name}: {error}"
        );
    }
    let dir = outside.path().join("model");
    std::fs::copy(outside.path().join("x.safetensors"), dir.join("sub/x.safetensors")).unwrap();
    write_index(&dir, INDEX, &[("x", "sub/x.safetensors")]);
    assert_eq!(read(&dir).0, ["x"]);
}

#[test]
fn stray_weights_are_noted() {
    let dir = crate::common::tempdir().unwrap();
    indexed(dir.path(), &[("x", "a.safetensors"), ("y", "a.safetensors"), ("z", "b.safetensors")]);
    for name in ["c.safetensors", "training_args.bin", "tokenizer.json", "flax_model.msgpack"] {
        std::fs::write(dir.path().join(name), "{}").unwrap();
    }
    let (names, notes) = read(dir.path());
    assert_eq!(names, ["x", "y", "z"]);
    assert_eq!(
        notes,
        [
            "not part of the model and left out: c.safetensors, flax_model.msgpack, training_args.bin"
        ]
    );
}
