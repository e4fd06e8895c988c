//! Directories as inputs: what the index says must be so, and what there is without one.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};

use anamnesis::{AnamnesisError, ConvertOptions, ConvertTarget, TargetDtype, parse};
use common::directory::{INDEX, in_one_file, make, shard_name, shards, write_index};
use common::{Raw, assert_same, file, raw};

/// What the model in one file decodes to.
fn decoded(path: &Path) -> Vec<u8> {
    parse(path)
        .unwrap()
        .remember_to_bytes(TargetDtype::BF16)
        .unwrap()
}

fn tensor(name: &str) -> Raw {
    raw(name, "BF16", &[1], vec![1, 2])
}

/// Two shards, `a` with `x` and `y` and `b` with `z`, under an index with these entries.
fn indexed(dir: &Path, map: &[(&str, &str)]) {
    std::fs::write(
        dir.join("a.safetensors"),
        file(&[tensor("x"), tensor("y")], &[]),
    )
    .unwrap();
    std::fs::write(dir.join("b.safetensors"), file(&[tensor("z")], &[])).unwrap();
    write_index(dir, INDEX, map);
}

/// The error that a directory with these contents is refused with.
fn refused(fill: impl FnOnce(&Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    let error = parse(dir.path()).unwrap_err();
    assert!(matches!(error, AnamnesisError::Parse { .. }), "{error}");
    error.to_string()
}

fn assert_names(error: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

/// The tensors of a directory, and the notes that its conversion makes.
fn read(dir: &Path) -> (Vec<String>, Vec<String>) {
    let model = parse(dir).unwrap();
    let names = model.tensors().map(|t| t.name().to_owned()).collect();
    (
        names,
        model
            .recovery(TargetDtype::BF16)
            .unwrap()
            .report()
            .notes
            .clone(),
    )
}

#[test]
fn shards_are_one_model() {
    let dir = tempfile::tempdir().unwrap();
    let shards = shards(4, 256);
    make(&dir.path().join("model"), &shards);
    let one = in_one_file(&dir.path().join("one"), &shards);
    let model = parse(dir.path().join("model")).unwrap();
    assert_eq!(model.tensors().len(), shards.concat().len());
    assert_eq!(
        model.file_size(),
        Some((0..5).map(|no| len(&dir.path().join("model"), no, 5)).sum())
    );
    assert!(
        model.inspect().problems.is_empty(),
        "{:?}",
        model.inspect().problems
    );
    assert_same(
        &decoded(&one),
        &model.remember_to_bytes(TargetDtype::BF16).unwrap(),
        "joined",
    );
    for (t, want) in model.tensors().zip(shards.concat()) {
        assert_eq!(
            (t.name(), &*t.bytes().unwrap()),
            (want.name.as_str(), want.bytes.as_slice())
        );
    }
}

fn len(dir: &Path, no: usize, count: usize) -> u64 {
    dir.join(shard_name(no, count)).metadata().unwrap().len()
}

#[test]
fn what_the_index_says_must_be_so() {
    let (a, b) = ("a.safetensors", "b.safetensors");
    let right = [("x", a), ("y", a), ("z", b)];
    let dir = tempfile::tempdir().unwrap();
    indexed(dir.path(), &right);
    assert_eq!(
        read(dir.path()),
        (vec!["x".into(), "y".into(), "z".into()], vec![])
    );

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
fn an_index_that_is_none() {
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
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(
        outside.path().join("x.safetensors"),
        file(&[tensor("x")], &[]),
    )
    .unwrap();
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
    std::fs::copy(
        outside.path().join("x.safetensors"),
        dir.join("sub/x.safetensors"),
    )
    .unwrap();
    write_index(&dir, INDEX, &[("x", "sub/x.safetensors")]);
    assert_eq!(read(&dir).0, ["x"]);
}

#[test]
fn stray_weights_are_noted() {
    let dir = tempfile::tempdir().unwrap();
    indexed(
        dir.path(),
        &[
            ("x", "a.safetensors"),
            ("y", "a.safetensors"),
            ("z", "b.safetensors"),
        ],
    );
    for name in [
        "c.safetensors",
        "training_args.bin",
        "tokenizer.json",
        "flax_model.msgpack",
    ] {
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

/// The tensors of a directory without an index, in which each of these files has the tensor that it is called after.
fn unindexed(files: &[&str]) -> Result<Vec<String>, String> {
    let dir = tempfile::tempdir().unwrap();
    for name in files {
        std::fs::write(dir.path().join(name), file(&[tensor(name)], &[])).unwrap();
    }
    parse(dir.path())
        .map(|_| read(dir.path()).0)
        .map_err(|e| e.to_string())
}

#[test]
fn without_an_index() {
    let found = |files: &[&str]| unindexed(files).unwrap();
    assert_eq!(
        found(&["model.safetensors", "other.safetensors"]),
        ["model.safetensors"]
    );
    assert_eq!(found(&["other.safetensors"]), ["other.safetensors"]);
    assert_eq!(
        found(&["pytorch_model.bin", "adapter_model.safetensors"]),
        ["adapter_model.safetensors"]
    );
    let set = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    assert_eq!(found(&set), set);
    let bins = [
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model-00002-of-00002.bin",
    ];
    assert_eq!(found(&bins), bins);
    assert_eq!(
        found(&["x-00001-of-00001.safetensors", "x.bin"]),
        ["x-00001-of-00001.safetensors"]
    );
    let two = unindexed(&["one.safetensors", "two.safetensors"]).unwrap_err();
    assert_names(&two, &["one.safetensors", "two.safetensors"]);
}

/// A model of which a part is missing is not a smaller model.
#[test]
fn an_incomplete_set_is_refused() {
    for ending in ["safetensors", "bin"] {
        let name = |no: usize| format!("model-{no:05}-of-00003.{ending}");
        for missing in 1..=3 {
            let there: Vec<String> = (1..=3).filter(|no| *no != missing).map(name).collect();
            let error =
                unindexed(&there.iter().map(String::as_str).collect::<Vec<_>>()).unwrap_err();
            assert_names(&error, &[&name(missing), "missing"]);
        }
    }
    let two = unindexed(&[
        "a-00001-of-00001.safetensors",
        "b-00001-of-00001.safetensors",
    ])
    .unwrap_err();
    assert_names(
        &two,
        &[
            "a-00001-of-00001.safetensors",
            "b-00001-of-00001.safetensors",
        ],
    );
    let absurd = unindexed(&[
        "model-00001-of-99999999999999999999.safetensors",
        "model-1-of-.bin",
    ]);
    assert!(absurd.is_err());
}

#[test]
fn no_weights_here() {
    let error = refused(|dir| {
        std::fs::write(dir.join("config.json"), "{}").unwrap();
        for below in ["text_encoder", "unet", "docs"] {
            std::fs::create_dir(dir.join(below)).unwrap();
        }
        std::fs::write(dir.join("docs/a.txt"), "").unwrap();
        std::fs::write(dir.join("text_encoder/model.safetensors"), "").unwrap();
        std::fs::write(
            dir.join("unet/diffusion_pytorch_model.safetensors.index.json"),
            "",
        )
        .unwrap();
    });
    assert_names(
        &error,
        &["no weights in this directory", "in text_encoder, unet"],
    );
    assert!(!error.contains("docs"), "{error}");
    assert!(refused(|_| ()).ends_with("no weights in this directory"));
}

#[cfg(feature = "gguf")]
#[test]
fn a_split_of_gguf_is_no_stray() {
    let dir = tempfile::tempdir().unwrap();
    let name = |no: usize| format!("split-0000{no}-of-00003.gguf");
    for no in 1..=3 {
        std::fs::copy(
            common::data().join("gguf-files").join(name(no)),
            dir.path().join(name(no)),
        )
        .unwrap();
    }
    let first = parse(dir.path().join(name(1))).unwrap();
    let (names, notes) = read(dir.path());
    assert_eq!(names, first.tensors().map(|t| t.name()).collect::<Vec<_>>());
    assert!(
        notes.iter().all(|note| !note.contains("left out")),
        "{notes:?}"
    );
}

/// A model as a hub's cache has it: blobs without endings, and a snapshot of links to them.
#[cfg(unix)]
fn cached(root: &Path) -> (PathBuf, PathBuf) {
    use std::os::unix::fs::symlink;
    let plain = root.join("plain");
    make(&plain, &shards(3, 256));
    let repository = root.join("models--org--Name");
    let snapshot = repository.join("snapshots/0123abcd");
    for dir in ["blobs", "refs", "snapshots/0123abcd", "snapshots/ffff"] {
        std::fs::create_dir_all(repository.join(dir)).unwrap();
    }
    std::fs::write(repository.join("refs/main"), "0123abcd").unwrap();
    for (i, (name, bytes)) in common::directory::tree(&plain).into_iter().enumerate() {
        std::fs::write(repository.join(format!("blobs/{i:040x}")), bytes).unwrap();
        let up = "../".repeat(2 + name.matches('/').count());
        std::fs::create_dir_all(snapshot.join(&name).parent().unwrap()).unwrap();
        symlink(format!("{up}blobs/{i:040x}"), snapshot.join(&name)).unwrap();
    }
    (repository, snapshot)
}

#[cfg(unix)]
#[test]
fn the_cache_of_a_hub() {
    use common::directory::{KEPT, assert_same_tree, tree};
    let root = tempfile::tempdir().unwrap();
    let (repository, snapshot) = cached(root.path());
    parse(root.path().join("plain"))
        .unwrap()
        .remember(root.path().join("want"), TargetDtype::BF16)
        .unwrap();
    let want = tree(&root.path().join("want"));
    assert!(KEPT.iter().all(|(name, _)| want.contains_key(*name)));
    for (input, output) in [(&snapshot, "of-snapshot"), (&repository, "of-repository")] {
        let output = root.path().join(output);
        let report = parse(input)
            .unwrap()
            .remember(&output, TargetDtype::BF16)
            .unwrap();
        assert!(
            report.notes.iter().all(|note| !note.contains("link")),
            "{:?}",
            report.notes
        );
        assert_same_tree(&want, &tree(&output), &input.display().to_string());
    }
    // Without a main branch the only snapshot will do, and of several one must be given.
    std::fs::remove_file(repository.join("refs/main")).unwrap();
    let error = parse(&repository).unwrap_err().to_string();
    assert_names(&error, &["2 snapshots"]);
    std::fs::remove_dir(repository.join("snapshots/ffff")).unwrap();
    assert!(parse(&repository).is_ok());
}

#[cfg(feature = "pth")]
#[test]
fn shards_of_pytorch() {
    let dir = tempfile::tempdir().unwrap();
    let sources = [
        common::data().join("demo/checkpoint.pth"),
        common::data().join("pth/layout_old.bin"),
    ];
    let bins = [
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model-00002-of-00002.bin",
    ];
    let mut map = Vec::new();
    for (source, bin) in sources.iter().zip(bins) {
        std::fs::copy(source, dir.path().join(bin)).unwrap();
        map.extend(
            parse(source)
                .unwrap()
                .tensors()
                .map(|t| (t.name().to_owned(), bin)),
        );
    }
    let map: Vec<(&str, &str)> = map
        .iter()
        .map(|(name, bin)| (name.as_str(), *bin))
        .collect();
    write_index(dir.path(), "pytorch_model.bin.index.json", &map);
    let output = tempfile::tempdir().unwrap();
    let output = output.path().join("out");
    parse(dir.path())
        .unwrap()
        .remember(&output, TargetDtype::BF16)
        .unwrap();
    for (no, source) in sources.iter().enumerate() {
        let actual = std::fs::read(output.join(shard_name(no, 2))).unwrap();
        assert_same(&decoded(source), &actual, bins[no]);
    }
    assert_eq!(
        common::directory::placement(&output).concat().len(),
        map.len()
    );
}

#[cfg(all(feature = "cli", unix))]
#[test]
fn more_shards_than_open_files() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("model");
    let shards: Vec<Vec<Raw>> = (0..150)
        .map(|i| vec![tensor(&format!("layer.{i:03}"))])
        .collect();
    common::directory::write_shards(&dir, &shards);
    let limited = |command: &str| {
        let program = env!("CARGO_BIN_EXE_amn");
        let script = format!("ulimit -n 100 && exec \"$0\" {command}");
        let out = std::process::Command::new("sh")
            .args(["-c", &script, program])
            .arg(&dir)
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        String::from_utf8(out.stdout).unwrap()
    };
    assert!(limited("inspect \"$1\"").contains("150 tensors"));
    limited("remember \"$1\" --max-shard-size 20 --threads 4");
    let output = root.path().join("model-BF16");
    assert_eq!(common::directory::placement(&output).len(), 15);
    let expected = parse(&dir)
        .unwrap()
        .remember_to_bytes(TargetDtype::BF16)
        .unwrap();
    assert_same(&expected, &common::directory::joined(&output), "150 shards");
    // Views map their files, and those are closed again as well.
    assert_eq!(
        parse(&dir)
            .unwrap()
            .tensors()
            .filter(|t| *t.bytes().unwrap() == [1, 2])
            .count(),
        150
    );
}

#[cfg(feature = "gguf")]
#[test]
fn a_model_of_its_own_is_no_shard() {
    let error = refused(|dir| {
        std::fs::write(dir.join("a.safetensors"), file(&[tensor("x")], &[])).unwrap();
        std::fs::copy(
            common::data().join("gguf-files/whole.gguf"),
            dir.join("b.gguf"),
        )
        .unwrap();
        write_index(dir, INDEX, &[("x", "a.safetensors"), ("y", "b.gguf")]);
    });
    assert_names(&error, &["`b.gguf`", "no shard"]);
}

#[test]
fn other_containers_are_one_file() {
    let root = tempfile::tempdir().unwrap();
    let shards = shards(2, 256);
    make(&root.path().join("model"), &shards);
    let want = decoded(&in_one_file(&root.path().join("one"), &shards));
    let model = parse(root.path().join("model")).unwrap();
    for (target, there) in [
        (ConvertTarget::Npz, cfg!(feature = "npz")),
        (ConvertTarget::Gguf, cfg!(feature = "gguf")),
    ] {
        if there {
            let path = root.path().join("out");
            let run = anamnesis::RememberOptions::new(TargetDtype::F32).with_force(true);
            model
                .convert(&path, ConvertOptions::new(target).with_run(run))
                .unwrap();
            assert_eq!(parse(&path).unwrap().tensors().len(), 6, "{target:?}");
        }
    }
    let mut options = ConvertOptions::from(TargetDtype::BF16);
    options.single_file = true;
    model
        .convert(root.path().join("x.safetensors"), options)
        .unwrap();
    assert_same(
        &want,
        &std::fs::read(root.path().join("x.safetensors")).unwrap(),
        "single file",
    );
}
