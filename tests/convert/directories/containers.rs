//! Directories of GGUF and PyTorch files, the cache of a hub, and directories that become one file.

use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, ConvertTarget, ModelScope, TargetDtype, parse};

use super::{assert_names, decoded, read, refused, tensor};
use crate::common::directory::{INDEX, in_one_file, make, shard_name, shards, write_index};
use crate::common::{assert_same, file};

#[test]
fn a_split_gguf_model_is_one_model() {
    let dir = crate::common::tempdir().unwrap();
    let name = |no: usize| format!("split-0000{no}-of-00003.gguf");
    for no in 1..=3 {
        std::fs::copy(
            crate::common::data().join("gguf-files").join(name(no)),
            dir.path().join(name(no)),
        )
        .unwrap();
    }
    let first = parse(dir.path().join(name(1))).unwrap();
    let (names, notes) = read(dir.path());
    assert_eq!(names, first.tensors().map(|t| t.name()).collect::<Vec<_>>());
    assert!(notes.iter().all(|note| !note.contains("left out")), "{notes:?}");
}

/// A model in the layout of Hugging Face's cache: blobs without file extensions, and a snapshot of
/// links to them. Returns the repository and the snapshot.
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
    for (i, (name, bytes)) in crate::common::directory::tree(&plain)
        .into_iter()
        .enumerate()
    {
        std::fs::write(repository.join(format!("blobs/{i:040x}")), bytes).unwrap();
        let up = "../".repeat(2 + name.matches('/').count());
        std::fs::create_dir_all(snapshot.join(&name).parent().unwrap()).unwrap();
        symlink(format!("{up}blobs/{i:040x}"), snapshot.join(&name)).unwrap();
    }
    (repository, snapshot)
}

#[cfg(unix)]
#[test]
fn hub_cache() {
    use crate::common::directory::{KEPT, assert_same_tree, tree};
    let root = crate::common::tempdir().unwrap();
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
        assert!(report.notes.iter().all(|note| !note.contains("link")), "{:?}", report.notes);
        assert_same_tree(&want, &tree(&output), &input.display().to_string());
    }
    // Without a main branch, a single snapshot is used; of several, the caller must name one.
    std::fs::remove_file(repository.join("refs/main")).unwrap();
    let error = parse(&repository).unwrap_err().to_string();
    assert_names(&error, &["2 snapshots"]);
    std::fs::remove_dir(repository.join("snapshots/ffff")).unwrap();
    assert!(parse(&repository).is_ok());
}

#[test]
fn shards_of_pytorch() {
    let dir = crate::common::tempdir().unwrap();
    let sources = [
        crate::common::data().join("demo/checkpoint.pth"),
        crate::common::data().join("pth/layout_old.bin"),
    ];
    let bins = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"];
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
    let output = crate::common::tempdir().unwrap();
    let output = output.path().join("out");
    parse(dir.path())
        .unwrap()
        .remember(&output, TargetDtype::BF16)
        .unwrap();
    for (no, source) in sources.iter().enumerate() {
        let actual = std::fs::read(output.join(shard_name(no, 2))).unwrap();
        assert_same(&decoded(source), &actual, bins[no]);
    }
    assert_eq!(crate::common::directory::placement(&output).concat().len(), map.len());
}

#[test]
fn a_gguf_model_is_no_shard() {
    let error = refused(|dir| {
        std::fs::write(dir.join("a.safetensors"), file(&[tensor("x")], &[])).unwrap();
        std::fs::copy(crate::common::data().join("gguf-files/whole.gguf"), dir.join("b.gguf"))
            .unwrap();
        write_index(dir, INDEX, &[("x", "a.safetensors"), ("y", "b.gguf")]);
    });
    assert_names(&error, &["`b.gguf`", "no shard"]);
}

#[test]
fn other_containers_are_one_file() {
    let root = crate::common::tempdir().unwrap();
    let shards = shards(2, 256);
    make(&root.path().join("model"), &shards);
    let want = decoded(&in_one_file(&root.path().join("one"), &shards));
    let model = parse(root.path().join("model")).unwrap();
    for (target, there) in
        [(ConvertTarget::Npz, cfg!(feature = "npz")), (ConvertTarget::Gguf, cfg!(feature = "gguf"))]
    {
        if there {
            let path = root.path().join("out");
            let run = anamnesis::RememberOptions::new(TargetDtype::F32).with_force(true);
            model
                .convert(
                    &path,
                    ConvertOptions::new(target)
                        .with_run(run)
                        .with_scope(ModelScope::Tensors),
                )
                .unwrap();
            assert_eq!(parse(&path).unwrap().tensors().len(), 6, "{target:?}");
        }
    }
    let mut options = ConvertOptions::from(TargetDtype::BF16);
    options.single_file = true;
    model
        .convert(root.path().join("x.safetensors"), options)
        .unwrap();
    assert_same(&want, &std::fs::read(root.path().join("x.safetensors")).unwrap(), "single file");
}
