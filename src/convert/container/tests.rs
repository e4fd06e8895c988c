//! What must hold of every row of the table, so that no piece of a new container can be left out.

use std::collections::HashSet;
use std::path::Path;

use super::*;
use crate::convert::output::Output;
use crate::convert::{Replace, finish_parts};

/// A model of three matrices, which every container can hold.
fn model() -> ParsedModel {
    let data = vec![0x3c; 64 * 32 * 4];
    let view = || {
        ::safetensors::tensor::TensorView::new(::safetensors::Dtype::F32, vec![64, 32], &data)
            .unwrap()
    };
    let names = ["a.weight", "b.weight", "c.weight"];
    let tensors = names.map(|name| (name, view()));
    let bytes = ::safetensors::serialize(tensors, None).unwrap();
    crate::parse_bytes(bytes).unwrap()
}

fn rows() -> impl Iterator<Item = (ConvertTarget, &'static OutputContainer)> {
    ConvertTarget::ALL.iter().map(|&t| (t, t.container()))
}

/// The containers that this build writes.
fn built_in() -> impl Iterator<Item = (ConvertTarget, &'static OutputContainer)> {
    rows().filter(|(_, container)| container.writer().is_some())
}

fn names_in(directory: &Path) -> HashSet<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect()
}

/// Sum of the lengths of the files `names` in `directory`.
fn len_of<'a>(directory: &Path, names: impl IntoIterator<Item = &'a String>) -> u64 {
    let len = |name: &String| directory.join(name).metadata().unwrap().len();
    names.into_iter().map(len).sum()
}

/// Names and titles belong to one container, and are what users type and read.
#[test]
fn names() {
    let mut seen = HashSet::new();
    for (target, container) in rows() {
        assert!(!container.names.is_empty(), "{target:?}");
        for name in container.names {
            assert!(seen.insert(*name), "`{name}` names two containers");
            for typed in [(*name).to_owned(), name.to_uppercase()] {
                assert_eq!(typed.parse::<ConvertTarget>().unwrap(), target);
            }
        }
        let title = container.title.to_lowercase();
        assert!(container.names.contains(&title.as_str()), "{title}");
        let extension = target.extension();
        assert!(!extension.is_empty() && !extension.contains('.') && extension.is_ascii());
    }
    let error = "hdf5".parse::<ConvertTarget>().unwrap_err().to_string();
    let listed = "unsupported format `hdf5`: supported targets: safetensors, gguf, npz, npy, pth, msgpack, burnpack, qnat";
    assert!(error.starts_with(listed), "{error}");
}

/// A container of this build is written, whole; any other is refused with its name and the feature.
#[test]
fn outputs() {
    let model = model();
    for (target, container) in rows() {
        let options = ConvertOptions::new(target);
        let place = tempfile::tempdir().unwrap();
        let output = place.path().join("out");
        let report = model.convert(&output, options);
        if container.writer().is_none() {
            let (error, title) = (report.unwrap_err().to_string(), container.title);
            let begin = format!("unsupported format `writing {title}`: needs the feature `");
            assert!(error.starts_with(&begin), "{error}");
            continue;
        }
        let written = match output.is_dir() {
            true => (output.clone(), names_in(&output)),
            false => (place.path().to_owned(), names_in(place.path())),
        };
        assert_eq!(len_of(&written.0, &written.1), report.unwrap().output_bytes, "{target:?}");
    }
}

/// With `max_shard_size`, an output is several files with names of their own, or it is refused.
#[test]
fn shards() {
    let model = model();
    for (target, container) in built_in() {
        let options = ConvertOptions::new(target).with_max_shard_size(1);
        let conversion = match (model.plan(options), container.sharding()) {
            (Ok(conversion), Some(_)) => conversion,
            (Err(e), None) => {
                let (e, title) = (e.to_string(), container.title);
                assert!(e.starts_with("--max-shard-size: only "), "{e}");
                assert!(!e.contains(title), "{e}");
                continue;
            }
            (Ok(_), None) => panic!("{target:?} has no sharding, and is split"),
            (Err(e), Some(_)) => panic!("{target:?}: {e}"),
        };
        let place = tempfile::tempdir().unwrap();
        let output = place.path().join(format!("out.{}", container.extension));
        let paths = conversion.paths(&output);
        let report = conversion.write(&output).unwrap();
        assert!(paths.len() > 1, "{target:?} is not split");
        let unique: HashSet<_> = paths.iter().collect();
        assert_eq!(unique.len(), paths.len(), "{paths:?}");
        let lens = paths.iter().map(|path| path.metadata().unwrap().len());
        assert_eq!(lens.sum::<u64>(), report.output_bytes, "{target:?}");
        for path in &paths {
            assert_eq!(path.extension().unwrap(), container.extension, "{path:?}");
        }
    }
}

/// A directory has the files of its row and no others, is made in parts, and may replace what it
/// wrote itself and nothing else.
#[test]
fn output_directories() {
    let model = model();
    for (target, container) in built_in() {
        let Some(directory) = container.directory() else {
            continue;
        };
        let options = ConvertOptions::new(target).with_max_shard_size(1);
        let place = tempfile::tempdir().unwrap();
        let output = place.path().join("out");
        let write = |options: ConvertOptions| {
            let conversion = model.plan(options).unwrap();
            assert!(conversion.is_directory(), "{target:?}");
            let shards = conversion.plan.shard_names.clone().unwrap();
            conversion.write(&output).map(|_| shards)
        };
        let shards = write(options.clone()).unwrap();
        let index = (directory.index_name)(&shards);
        let expected: HashSet<String> = shards.iter().cloned().chain(index).collect();
        assert_eq!(names_in(&output), expected, "{target:?}");
        for name in &expected {
            assert!((directory.is_weights)(name), "{target:?}: {name}");
            let others = built_in().filter(|(other, _)| *other != target);
            let mut others = others.filter_map(|(_, c)| c.directory());
            assert!(others.all(|other| !(other.is_weights)(name)), "`{name}` is of two containers");
        }
        for other in ["config.json", "model.bin", "notes", ".git"] {
            assert!(!(directory.is_weights)(other), "{target:?}: {other}");
        }
        // Not with `no_replace`; and nothing of the old output is left.
        assert!(write(options.clone().no_replace()).is_err());
        std::fs::write(output.join("old"), "").unwrap();
        let mut replacing = options.clone();
        replacing.run.replace = Replace::Everything;
        write(replacing.clone()).unwrap();
        assert_eq!(names_in(&output), expected, "{target:?}");
        for part in 1..=2 {
            write(replacing.clone().with_part(part, 2)).unwrap();
        }
        // A crash can leave weights of an earlier output, which are not of this one.
        let partial = place.path().join(".out.partial");
        let left = format!("left-over.{}", container.extension);
        std::fs::write(partial.join(&left), "").unwrap();
        finish_parts(&output, true).unwrap();
        assert_eq!(names_in(&output), expected, "{target:?}");
        // A directory without weights is not replaced.
        expected
            .iter()
            .for_each(|name| std::fs::remove_file(output.join(name)).unwrap());
        std::fs::write(output.join("config.json"), "{}").unwrap();
        let refused = write(replacing).unwrap_err().to_string();
        assert!(refused.contains("a directory without weights"), "{refused}");
    }
}

/// A layout that would lose bytes is refused before anything is written.
#[test]
fn layouts_are_checked() {
    let one_file = ContainerWriter { sharding: None, ..safetensors::WRITER };
    let file = |tensors: u64| OutputLayout::of_header(vec![], (0..tensors).collect(), tensors);
    let model = model();
    let tensors = model.tensors();
    let drafts: Vec<_> = tensors
        .map(|t| Box::new(Output::copy(&t).unwrap()))
        .collect();
    let check = |writer: &ContainerWriter, layouts: &[OutputLayout]| {
        check_layouts(writer, false, &drafts, layouts).err()
    };
    assert_eq!(check(&one_file, &[file(3)]), None);
    assert_eq!(check(&safetensors::WRITER, &[file(1), file(2)]), None);
    let said = check(&one_file, &[file(2)]).unwrap();
    assert_eq!(said, "2 of 3 tensors laid out");
    let said = check(&one_file, &[file(1), file(2)]).unwrap();
    assert_eq!(said, "2 files instead of one");
    let mut patched = file(3);
    patched
        .patches
        .push(crate::write::ChecksumPatch { places: [0, 0], before: (0, 0) });
    let said = check_layouts(&one_file, true, &drafts, std::slice::from_ref(&patched)).unwrap_err();
    assert_eq!(said, "checksums in the files of a directory");
    let said = check(&one_file, &[patched]).unwrap();
    assert_eq!(said, "checksums of 1 of 3 tensors");
}

/// Names of files that are made of tensor names are hostile.
#[test]
fn file_names_are_plain() {
    let container = ConvertTarget::Safetensors.container();
    let check = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        check_file_names(container, &names, 2).map_err(|e| e.to_string())
    };
    assert_eq!(check(&["a.safetensors", "b.c.safetensors"]), Ok(()));
    let long = "x".repeat(256);
    for name in ["../a", "a/b", "a\\b", "c:a", ".git", "..", "", "a\0b", "a\nb", &long] {
        let said = check(&["a.safetensors", name]).unwrap_err();
        let is_refused = ["cannot be the name of a file", "is no name of weights"];
        assert!(is_refused.iter().any(|what| said.contains(what)), "{said}");
    }
    let said = check(&["a.safetensors", "A.safetensors"]).unwrap_err();
    assert!(said.contains("would be the name of two files"), "{said}");
    let said = check(&["a.safetensors", "config.json"]).unwrap_err();
    assert!(said.contains("is no name of weights"), "{said}");
    let said = check(&["a.safetensors"]).unwrap_err();
    assert!(said.contains("1 names for 2 files"), "{said}");
}
