//! What an interrupt leaves, and what is said of it.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::directory::{assert_same_tree, names_in, seven_layers, tree};
use crate::common::{f32s, file, raw};

/// Starts `amn remember` on one thread.
fn start(input: &Path, output: &Path, more: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_amn"));
    command.arg("remember").arg(input).arg("-o").arg(output);
    command
        .args(["--threads", "1"])
        .args(more)
        .stdin(Stdio::null());
    command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn send(child: &Child, signals: &[&str]) {
    for signal in signals {
        let id = child.id().to_string();
        let status = Command::new("kill").args(["-s", signal, &id]).status();
        assert!(status.unwrap().success());
    }
}

/// The exit code of `child`, and what it printed on stderr.
fn end(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), text)
}

/// An input whose conversion takes a while.
fn large(directory: &Path) -> std::path::PathBuf {
    let (path, n) = (directory.join("in.safetensors"), 96 << 20);
    let tensors = [
        raw("a.weight", "F8_E4M3", &[n >> 12, 1 << 12], vec![1; n]),
        raw("a.weight_scale", "F32", &[], f32s(&[1.0])),
    ];
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    path
}

fn wait_until(child: &mut Child, is_so: impl Fn() -> bool) {
    while !is_so() {
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
        std::thread::yield_now();
    }
}

#[test]
fn of_a_file_nothing_is_left() {
    let directory = crate::common::tempdir().unwrap();
    let input = large(directory.path());
    let out = directory.path().join("out");
    let mut child = start(&input, &out, &["--to", "f32"]);
    wait_until(&mut child, || names_in(directory.path(), "").len() > 1);
    send(&child, &["INT"]);
    let (code, text) = end(child);
    assert_eq!(code, Some(130));
    let expected = "error: operation cancelled by the caller; nothing of the output is left\n";
    assert_eq!(text, expected);
    assert_eq!(names_in(directory.path(), ""), ["in.safetensors"]);
}

/// Two threads may handle two signals at the same time, and then neither is the second. That is
/// rare.
#[test]
fn a_second_one_ends_at_once() {
    let ends_at_once = || {
        let directory = crate::common::tempdir().unwrap();
        let input = large(directory.path());
        let mut child = start(&input, &directory.path().join("out"), &["--to", "f32"]);
        wait_until(&mut child, || names_in(directory.path(), "").len() > 1);
        // While it is stopped both signals arrive, so it does nothing between them.
        send(&child, &["STOP", "INT", "TERM", "CONT"]);
        let (code, text) = end(child);
        assert_eq!(code, Some(130));
        // It had no time to print anything, nor to remove the temporary file.
        text.is_empty() && names_in(directory.path(), ".tmp").len() == 1
    };
    assert!((0..10).any(|_| ends_at_once()));
}

#[test]
fn a_directory_can_be_resumed() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 4096);
    let (out, partial) = (root.path().join("out"), root.path().join(".out.partial"));
    let mut child = start(&input, &out, &["--json"]);
    wait_until(&mut child, || names_in(&partial, ".safetensors").len() >= 2);
    send(&child, &["INT"]);
    let (code, text) = end(child);
    assert_eq!(code, Some(130));
    let error = crate::json::assert_valid(text.as_bytes(), "error", "interrupted");
    let message = error["message"].as_str().unwrap();
    let finished = names_in(&partial, ".safetensors").len();
    let expected = format!(
        "operation cancelled by the caller; `{}` has {finished} of 7 files of weights; the same command with --resume \
         makes the others",
        partial.display()
    );
    assert_eq!(message, expected);
    assert_eq!(end(start(&input, &out, &["--resume"])), (Some(0), String::new()));
    assert_same_tree(&want, &tree(&out), "resumed");
}
