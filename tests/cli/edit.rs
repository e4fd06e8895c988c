//! `amn edit`: keys change as they are told to, everything else keeps its bytes, and the file is there old
//! or new as a whole.

mod configs;
mod gguf;
mod places;
mod refused;
mod safetensors;

use std::path::Path;

use serde_json::Value;

use crate::amn;
use crate::common::data;

/// Copies a file of the test data into `root`; its new path.
fn copy(name: &str, root: &Path) -> String {
    let from = data().join(name);
    let to = root.join(from.file_name().unwrap());
    std::fs::copy(&from, &to).unwrap();
    to.to_string_lossy().into_owned()
}

/// A directory, and the path of a file `name` in it that is to be written.
fn place(name: &str) -> (tempfile::TempDir, String) {
    let root = crate::common::tempdir().unwrap();
    let path = root.path().join(name).to_string_lossy().into_owned();
    (root, path)
}

/// Edits `model` with `changes`, in place and as a copy, which are the same. What `--json` prints of the
/// former.
fn edit(model: &str, changes: &[&str]) -> Value {
    let copied = format!("{model}.copy");
    let run = |more: &[&str]| {
        let output = amn(&[&["edit", model, "--json"], changes, more].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{changes:?}: {error}");
        crate::json::assert_valid(&output.stdout, "edit", &format!("{changes:?}"))
    };
    let before = std::fs::read(model).unwrap();
    let planned = run(&["--dry-run"]);
    let made = run(&["-o", &copied]);
    assert!(std::fs::read(model).unwrap() == before, "the input has changed");
    let report = run(&["--in-place"]);
    assert!(std::fs::read(model).unwrap() == std::fs::read(&copied).unwrap(), "{changes:?}");
    std::fs::remove_file(copied).unwrap();
    assert_eq!((&planned["changes"], &planned["notes"]), (&report["changes"], &report["notes"]));
    assert_eq!((&planned["written"], &made["written"]), (&report["written"], &"file".into()));
    assert_eq!(report["output_bytes"], std::fs::metadata(model).unwrap().len());
    report
}

/// The notes of a report, in one text.
fn notes(report: &Value) -> String {
    let notes = report["notes"].as_array().unwrap().iter();
    notes
        .map(|note| note.as_str().unwrap())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Runs an edit that must end with `code` and say `words`, and leave `model` as it is.
fn refused(model: &str, arguments: &[&str], code: i32, words: &str) {
    let before = std::fs::read(model).ok();
    let output = amn(&[&["edit", model], arguments].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    assert!(error.contains(words), "{arguments:?}: {error}");
    assert_eq!(std::fs::read(model).ok(), before, "{arguments:?}");
}
