//! What has changed between an interrupted run and the one that resumes it.

use std::path::Path;

use anamnesis::{RememberOptions, TargetDtype, finish_parts, parse};

use super::{bf16, interrupt, refused};
#[cfg(unix)]
use crate::changes::overwrite_and_set_time;
use crate::changes::{Change, TICK, append, create, overwrite, remove};
use crate::common::directory::{INDEX, assert_same_tree, names_in, seven_layers, tree};

/// Whatever happened to a file of the input since the run was interrupted, the shards of that run
/// are not continued.
#[test]
fn each_file_of_the_input_counts() {
    let touch: Change = |path| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(5))
            .unwrap();
    };
    let cases: &[(&str, Change, &str)] = &[
        #[cfg(unix)]
        ("model-00004-of-00008.safetensors", overwrite_and_set_time, "change time"),
        #[cfg(unix)]
        ("tokenizer.json", overwrite_and_set_time, "change time"),
        ("config.json", touch, "modification time"),
        (INDEX, touch, "modification time"),
        ("tokenizer.json", append, "bytes and has"),
        ("extra/deeper/vocab.txt", overwrite, "modification time"),
        ("extra/added.txt", create, "was not there"),
        ("quant_config.json", create, "was not there"),
        ("README.md", remove, "no longer there"),
    ];
    for &(name, change, what) in cases {
        let root = crate::common::tempdir().unwrap();
        let (input, _) = seven_layers(root.path(), 256);
        let output = interrupt(root.path(), &input);
        std::thread::sleep(TICK);
        change(&input.join(name));
        let error = refused(&input, &output, bf16().with_resume(true));
        assert!(error.contains("the input has changed"), "{name}: {error}");
        assert!(error.contains(name) && error.contains(what), "{name}: {error}");
    }
}

/// Where times tell nothing, as on file systems without a change time, the content of small files
/// does.
#[test]
fn the_content_of_small_files_counts() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = seven_layers(root.path(), 256);
    let output = interrupt(root.path(), &input);
    let record = root.path().join(".out.partial/anamnesis-part-1-of-1.json");
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    let inputs = manifest["inputs"].as_array_mut().unwrap();
    let config = inputs.iter_mut().find(|i| i["name"] == "config.json");
    let sum = &mut config.unwrap()["crc"];
    *sum = (sum.as_u64().unwrap() ^ 1).into();
    std::fs::write(&record, manifest.to_string()).unwrap();
    let error = refused(&input, &output, bf16().with_resume(true));
    assert!(error.contains("config.json") && error.contains("its content differs"), "{error}");
}

/// A file that is copied and not read otherwise: the run must not mix two states of it with the
/// rest.
#[test]
fn a_copied_file_that_changes_ends_the_run() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = seven_layers(root.path(), 256);
    let output = root.path().join("out");
    let (path, once) = (input.join("tokenizer.json"), std::sync::Once::new());
    std::thread::sleep(TICK);
    let meddle = move |p: anamnesis::Progress| {
        if p.done_bytes * 2 >= p.total_bytes {
            once.call_once(|| append(&path));
        }
    };
    let run = RememberOptions::new(TargetDtype::BF16).with_progress(meddle);
    let error = parse(&input).unwrap().remember(&output, run).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("tokenizer.json"), "{error}");
    assert!(!output.exists());
}

/// Changes one byte in the middle of a file, and leaves its length and time.
fn damage(path: &Path) {
    let time = path.metadata().unwrap().modified().unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(time).unwrap();
}

#[test]
fn a_damaged_shard_is_made_again() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 256);
    let output = interrupt(root.path(), &input);
    let partial = root.path().join(".out.partial");
    let shard = names_in(&partial, ".safetensors")[0].clone();
    damage(&partial.join(&shard));
    let report = parse(&input)
        .unwrap()
        .convert(&output, bf16().with_resume(true))
        .unwrap();
    let is_noted = |note: &String| note.contains(&shard) && note.contains("made again");
    assert!(report.notes.iter().any(is_noted), "{:?}", report.notes);
    assert_same_tree(&want, &tree(&output), "resumed");
}

#[test]
fn a_damaged_shard_of_a_part_is_not_finished() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 256);
    let output = root.path().join("out");
    let model = parse(&input).unwrap();
    for part in [1, 2] {
        model.convert(&output, bf16().with_part(part, 2)).unwrap();
    }
    let partial = root.path().join(".out.partial");
    let shard = names_in(&partial, ".safetensors")[3].clone();
    damage(&partial.join(&shard));
    let error = finish_parts(&output, false).unwrap_err().to_string();
    assert!(error.contains(&shard) && error.contains("--resume"), "{error}");
    assert!(!output.exists());
    model
        .convert(&output, bf16().with_part(2, 2).with_resume(true))
        .unwrap();
    finish_parts(&output, false).unwrap();
    assert_same_tree(&want, &tree(&output), "two parts");
}
