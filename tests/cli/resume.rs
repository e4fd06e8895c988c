//! Directories converted by processes that are killed and resumed, or that make a part each.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::directory::{assert_same_tree, make, names_in, seven_layers, shards, tree};
use crate::common::{Random, effort};

fn amn(input: &Path, output: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_amn"));
    command
        .arg("remember")
        .arg(input)
        .arg("-o")
        .arg(output)
        .args(more);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn finish(output: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_amn"))
        .args(["remember", "--finish"])
        .arg(output)
        .output()
        .unwrap()
}

/// Kills `child`, and returns whether it was still running.
fn kill(mut child: Child) -> bool {
    let ended = child.try_wait().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ended.is_none_or(|status| status.success()));
    ended.is_none()
}

/// Resumes a killed conversion, and compares the output with `want`.
fn resume(input: &Path, output: &Path, want: &BTreeMap<String, Vec<u8>>, context: &str) {
    let is_whole = output.exists();
    // One that is killed at its last steps leaves a marker, and the next one does these steps.
    if !is_whole || output.join(".anamnesis").exists() {
        let status = amn(input, output, &["--resume"]).status().unwrap();
        assert!(is_whole || status.success(), "{context}");
    }
    assert_same_tree(want, &tree(output), context);
    std::fs::remove_dir_all(output).unwrap();
}

#[test]
fn killed_at_any_moment() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 1024);
    let (output, partial) = (root.path().join("out"), root.path().join(".out.partial"));
    let mut early = 0;
    for k in 0..=7 {
        let mut child = amn(&input, &output, &["--threads", "1"]).spawn().unwrap();
        while names_in(&partial, ".safetensors").len() < k && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        // An output under the final name is complete.
        if kill(child) && !output.exists() {
            early += 1;
        }
        resume(&input, &output, &want, &format!("after {k} shards"));
    }
    assert!(early >= 4, "only {early} were killed in time");

    let started = Instant::now();
    assert!(amn(&input, &output, &[]).status().unwrap().success());
    let whole = started.elapsed();
    std::fs::remove_dir_all(&output).unwrap();
    let mut random = Random(11);
    for _ in 0..effort([4, 8, 8]) {
        let delay = whole.mul_f64((random.next() >> 40) as f64 / f64::from(1 << 24));
        let child = amn(&input, &output, &[]).spawn().unwrap();
        std::thread::sleep(delay);
        kill(child);
        resume(&input, &output, &want, &format!("after {delay:?}"));
    }
    assert_eq!(names_in(root.path(), ""), ["model", "want"]);
}

#[test]
fn killed_again_and_again() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 1024);
    let (output, partial) = (root.path().join("out"), root.path().join(".out.partial"));
    for k in 1..=3 {
        let mut child = amn(&input, &output, &["--threads", "1", "--resume"])
            .spawn()
            .unwrap();
        while names_in(&partial, ".safetensors").len() < 2 * k
            && child.try_wait().unwrap().is_none()
        {
            std::thread::sleep(Duration::from_micros(200));
        }
        kill(child);
    }
    resume(&input, &output, &want, "three times");
}

#[test]
fn four_processes_at_once() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 1024);
    let output = root.path().join("out");
    let start = |no: usize| {
        amn(&input, &output, &["--part", &format!("{no}/4")])
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (1..=4).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert!(!output.exists());
    let finished = finish(&output);
    assert!(finished.status.success(), "{}", String::from_utf8_lossy(&finished.stderr));
    assert_same_tree(&want, &tree(&output), "four parts");
    // A second time is a success that says so.
    let again = finish(&output);
    let text = String::from_utf8_lossy(&again.stdout);
    assert_eq!(again.status.code(), Some(0));
    assert!(text.starts_with("Note: it has its name already"), "{text}");
    assert_same_tree(&want, &tree(&output), "finished twice");
}

#[test]
fn a_dry_run_does_nothing() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 256);
    let before = tree(root.path());
    let out = amn(&input, &root.path().join("out"), &["--dry-run"])
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let bytes = want
        .iter()
        .filter(|(name, _)| name.ends_with(".safetensors"))
        .map(|(_, bytes)| bytes.len() as u64);
    let line = format!("out ({}, files of weights: 7)", anamnesis::format_bytes(bytes.sum()));
    assert!(text.contains(&line), "{text}");
    assert!(text.contains("Decoded:     7 tensors to BF16"), "{text}");
    assert!(
        text.lines()
            .any(|line| line.starts_with("Memory:") && line.ends_with(" MB")),
        "{text}"
    );
    assert_same_tree(&before, &tree(root.path()), "a dry run");
}

#[test]
fn default_output_names() {
    let root = crate::common::tempdir().unwrap();
    let dir = root.path().join("Name-1.5-8B");
    make(&dir, &shards(2, 256));
    let run = |arguments: &[&str]| {
        let command = Command::new(env!("CARGO_BIN_EXE_amn"))
            .current_dir(&dir)
            .args(arguments)
            .output()
            .unwrap();
        assert!(command.status.success(), "{}", String::from_utf8_lossy(&command.stderr));
        names_in(root.path(), "")
    };
    let path = dir.to_string_lossy().into_owned();
    assert_eq!(run(&["remember", &path]), ["Name-1.5-8B", "Name-1.5-8B-BF16"]);
    assert!(run(&["remember", ".", "--to", "f32"]).contains(&"Name-1.5-8B-F32".to_owned()));
    run(&["remember", ".", "-o", "../x.safetensors"]);
    assert!(root.path().join("x.safetensors").is_file());
    {
        assert!(
            run(&["convert", &path, "--to", "npz"]).contains(&"Name-1.5-8B-bf16.npz".to_owned())
        );
        assert!(
            run(&["convert", ".", "--to", "npz", "--out-dtype", "f32"])
                .contains(&"Name-1.5-8B-f32.npz".to_owned())
        );
    }
}
