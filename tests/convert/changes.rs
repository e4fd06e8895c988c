//! Inputs that change after they are parsed: nothing that was made of two states of a file gets a
//! name.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use anamnesis::{
    AnamnesisError, ConvertOptions, ParsedModel, Progress, RememberOptions, TargetDtype, parse,
};

use crate::common::directory::{INDEX, in_one_file, make, names_in, shards, tree};

const TO: TargetDtype = TargetDtype::BF16;

/// Longer than the steps in which file systems count time.
pub const TICK: Duration = Duration::from_millis(30);

/// What somebody else does to the file at a path.
pub type Change = fn(&Path);

/// Writes other bytes over the end of a file.
pub fn overwrite(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let half = bytes.len() / 2;
    bytes[half..].iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(path, bytes).unwrap();
}

/// Overwrites a file, and gives it back the time that it had, as `cp -p` and `rsync -t` do.
pub fn overwrite_and_set_time(path: &Path) {
    let time = path.metadata().unwrap().modified().unwrap();
    overwrite(path);
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(time).unwrap();
}

/// Puts another file with the same length and time in the place of a file.
fn replace(path: &Path) {
    let other = path.with_extension("new");
    std::fs::copy(path, &other).unwrap();
    let time = path.metadata().unwrap().modified().unwrap();
    overwrite(&other);
    let file = File::options().write(true).open(&other).unwrap();
    file.set_modified(time).unwrap();
    std::fs::rename(other, path).unwrap();
}

pub fn append(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes.push(b'\n');
    std::fs::write(path, bytes).unwrap();
}

pub fn remove(path: &Path) {
    std::fs::remove_file(path).unwrap();
}

pub fn create(path: &Path) {
    std::fs::write(path, "{}").unwrap();
}

/// Each change of a file of the model with what the error says of it.
const CHANGES: &[(Change, &str)] = &[
    (overwrite, "modification time"),
    (append, "bytes and has"),
    #[cfg(unix)]
    (overwrite_and_set_time, "change time"),
    #[cfg(unix)]
    (replace, "another file is in its place"),
];

/// Options with which `change` happens to `path` once, when half of the output is written.
fn changing(path: &Path, change: Change) -> ConvertOptions {
    let (path, once) = (path.to_path_buf(), Once::new());
    let meddle = move |progress: Progress| {
        if progress.done_bytes * 2 >= progress.total_bytes {
            once.call_once(|| change(&path));
        }
    };
    RememberOptions::new(TO)
        .with_threads(1)
        .with_progress(meddle)
        .into()
}

/// A model in one file.
fn one_file(root: &Path) -> PathBuf {
    let input = in_one_file(root, &shards(7, 256));
    std::thread::sleep(TICK);
    input
}

/// A model in eight shards.
fn eight_shards(root: &Path) -> PathBuf {
    let input = root.join("model");
    make(&input, &shards(7, 256));
    std::thread::sleep(TICK);
    input
}

/// Fails unless `error` names the file and what changed.
fn assert_names(error: &AnamnesisError, path: &Path, what: &str) {
    let text = error.to_string();
    assert!(matches!(error, AnamnesisError::Io(_)), "{text}");
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(text.contains(name), "{text}");
    assert!(text.contains("has changed since it was parsed"), "{text}");
    assert!(text.contains(what), "{text}");
}

#[test]
fn a_file_that_changes_is_no_input() {
    for &(change, what) in CHANGES {
        let root = crate::common::tempdir().unwrap();
        let input = one_file(root.path());
        let output = root.path().join("out.safetensors");
        let model = parse(&input).unwrap();
        let error = model
            .convert(&output, changing(&input, change))
            .unwrap_err();
        assert_names(&error, &input, what);
        let names = names_in(root.path(), "");
        assert_eq!(names, ["config.json", "model.safetensors"], "{what}");
    }
}

#[test]
fn nothing_is_given_out_of_a_file_that_changes() {
    type Make = fn(&ParsedModel, ConvertOptions) -> anamnesis::Result<()>;
    let ways: &[Make] = &[
        |model, options| model.plan(options)?.to_bytes().map(drop),
        |model, options| model.remember_to_writer(Vec::new(), options).map(drop),
        |model, options| model.for_each_panel(options, |_| Ok(())).map(drop),
        |model, options| {
            let ignore = |_: &str, _: &[usize], _, _: &[u8]| Ok(());
            model.for_each_tensor(options, ignore).map(drop)
        },
    ];
    for make in ways {
        let root = crate::common::tempdir().unwrap();
        let input = one_file(root.path());
        let model = parse(&input).unwrap();
        let error = make(&model, changing(&input, overwrite)).unwrap_err();
        assert_names(&error, &input, "modification time");
    }
}

#[test]
fn a_tensor_by_name_is_of_the_file_that_was_parsed() {
    let root = crate::common::tempdir().unwrap();
    let input = one_file(root.path());
    let model = parse(&input).unwrap();
    let conversion = model.plan(TO).unwrap();
    conversion.tensor("model.ids").unwrap();
    overwrite(&input);
    let error = conversion.tensor("model.ids").unwrap_err();
    assert_names(&error, &input, "modification time");
    let error = conversion.rows("model.ids", 0..1).unwrap_err();
    assert_names(&error, &input, "modification time");
}

#[test]
fn a_shard_that_changes_ends_the_run() {
    for &(change, what) in CHANGES {
        let root = crate::common::tempdir().unwrap();
        let input = eight_shards(root.path());
        let shard = input.join(&names_in(&input, ".safetensors")[3]);
        let output = root.path().join("out");
        let model = parse(&input).unwrap();
        let error = model
            .convert(&output, changing(&shard, change))
            .unwrap_err();
        assert_names(&error, &shard, what);
        assert!(!output.exists(), "{what}");
        // What was made before the change was noticed may not become a part of a later output.
        if let Ok(model) = parse(&input) {
            let resumed = ConvertOptions::from(TO).with_resume(true);
            let error = model.convert(&output, resumed).unwrap_err().to_string();
            assert!(error.contains("the input has changed"), "{error}");
        }
        assert!(!output.exists(), "{what}");
    }
}

#[test]
fn configs_and_the_index_are_part_of_the_input() {
    let cases: [(&str, Change, &str); 4] = [
        ("config.json", append, "bytes and has"),
        (INDEX, overwrite, "modification time"),
        ("quant_config.json", create, "it was not there"),
        ("quantize_config.json", append, "bytes and has"),
    ];
    for (name, change, what) in cases {
        let root = crate::common::tempdir().unwrap();
        let input = eight_shards(root.path());
        let (path, output) = (input.join(name), root.path().join("out"));
        let model = parse(&input).unwrap();
        let error = model.convert(&output, changing(&path, change)).unwrap_err();
        assert_names(&error, &path, what);
        assert!(!output.exists(), "{name}");
    }
}

/// What was read of a config holds when it is gone, but a directory needs the file for its copy.
#[test]
fn a_config_that_is_gone_cannot_be_copied() {
    let root = crate::common::tempdir().unwrap();
    let input = eight_shards(root.path());
    let (path, output) = (input.join("config.json"), root.path().join("out"));
    let model = parse(&input).unwrap();
    let error = model.convert(&output, changing(&path, remove)).unwrap_err();
    assert!(error.to_string().contains("config.json"), "{error}");
    assert!(!output.exists());
}

#[test]
fn a_file_that_is_opened_again_is_the_same() {
    let root = crate::common::tempdir().unwrap();
    let input = root.path().join("model");
    let tensor = |i: usize| {
        let name = format!("layer.{i:03}");
        vec![crate::common::raw(&name, "BF16", &[1], vec![1, 2])]
    };
    let shards: Vec<_> = (0..100).map(tensor).collect();
    crate::common::directory::write_shards(&input, &shards);
    std::thread::sleep(TICK);
    let model = parse(&input).unwrap();
    // The first of 100 files was closed when the last was opened.
    let first = input.join(&names_in(&input, ".safetensors")[0]);
    let change = if cfg!(unix) { replace } else { append };
    change(&first);
    let before = tree(root.path());
    let error = model.remember_to_bytes(TO).unwrap_err().to_string();
    assert!(error.contains("has changed since it was parsed"), "{error}");
    assert_eq!(before, tree(root.path()));
}

/// A file whose name was removed cannot be changed by anybody who does not have it open already.
#[cfg(unix)]
#[test]
fn a_file_without_a_name_is_read_to_its_end() {
    let root = crate::common::tempdir().unwrap();
    let input = one_file(root.path());
    let expected = parse(&input).unwrap().remember_to_bytes(TO).unwrap();
    let model = parse(&input).unwrap();
    remove(&input);
    assert!(model.remember_to_bytes(TO).unwrap() == expected);
}
