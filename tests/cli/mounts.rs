//! Outputs that are the input under a name that a bind mount gives.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::directory::{assert_same_tree, in_one_file, make, shards, tree};

/// Runs a script in a namespace of mounts of its own, where it may mount; `None` if the system does
/// not permit that.
fn with_mounts(script: &str, args: &[&Path]) -> Option<Output> {
    let unshared = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script]);
        command.arg(env!("CARGO_BIN_EXE_amn")).args(args);
        command
    };
    let is_permitted = unshared("mount --bind \"$1\" \"$2\"").output();
    if !is_permitted.is_ok_and(|out| out.status.success()) {
        eprintln!("bind mounts are not permitted here");
        return None;
    }
    Some(unshared(script).output().unwrap())
}

/// Fails unless a run was refused with a message that has all of `parts`.
fn assert_refused(out: &Output, parts: &[&str]) {
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(7), "{text}");
    for part in parts {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn an_output_is_not_the_input_by_another_mount() {
    let root = crate::common::tempdir().unwrap();
    let (a, b) = (root.path().join("a"), root.path().join("b"));
    make(&a.join("model"), &shards(3, 256));
    std::fs::create_dir(&b).unwrap();
    let before = tree(root.path());
    let script = "mount --bind \"$1\" \"$2\" && \
        exec \"$0\" remember \"$1/model\" -o \"$2/model\" --force";
    let Some(out) = with_mounts(script, &[&a, &b]) else {
        return;
    };
    assert_refused(&out, &["the output is the input", "a/model", "b/model"]);
    assert_same_tree(&before, &tree(root.path()), "a refusal changes nothing");
}

#[test]
fn an_input_that_is_mounted_in_the_output_is_not_removed() {
    let root = crate::common::tempdir().unwrap();
    let (input, output) = (root.path().join("model"), root.path().join("out"));
    make(&input, &shards(3, 256));
    make(&output, &shards(1, 256));
    std::fs::create_dir_all(output.join("deep/mnt")).unwrap();
    let before = tree(root.path());
    let script = "mount --bind \"$1\" \"$2/deep/mnt\" && \
        exec \"$0\" remember \"$1\" -o \"$2\" --force";
    let Some(out) = with_mounts(script, &[&input, &output]) else {
        return;
    };
    assert_refused(&out, &["is of the input", "deep/mnt", "model"]);
    assert_same_tree(&before, &tree(root.path()), "a refusal changes nothing");
}

#[test]
fn a_file_is_not_replaced_by_another_mount() {
    let root = crate::common::tempdir().unwrap();
    let (a, b) = (root.path().join("a"), root.path().join("b"));
    std::fs::create_dir(&a).unwrap();
    std::fs::create_dir(&b).unwrap();
    in_one_file(&a, &shards(3, 256));
    let before = tree(root.path());
    for name in ["model.safetensors", "config.json"] {
        let script = format!(
            "mount --bind \"$1\" \"$2\" && \
            exec \"$0\" remember \"$1/model.safetensors\" -o \"$2/{name}\" --force"
        );
        let Some(out) = with_mounts(&script, &[&a, &b]) else {
            return;
        };
        assert_refused(&out, &["the output is", &format!("a/{name}"), &format!("b/{name}")]);
        assert_same_tree(&before, &tree(root.path()), "a refusal changes nothing");
    }
}
