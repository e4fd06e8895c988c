//! `--sha256` and `--manifest`: sums of the output's files, which `amn check --manifest` and
//! `sha256sum -c` confirm.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::amn;
use crate::canonical::canonical_gguf;
use crate::common::directory::{names_in, seven_layers};
use crate::common::{Random, data, effort, file, raw};

fn succeeds(arguments: &[&str]) -> String {
    let output = amn(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Confirms a manifest of `model` by reading the files again.
fn confirm(model: &Path, manifest: &Path, files: usize, context: &str) {
    let arguments = ["check", model.to_str().unwrap(), "--manifest", manifest.to_str().unwrap()];
    let checked = succeeds(&[&arguments[..], &["--json"]].concat());
    let checked: Value = serde_json::from_str(&checked).unwrap();
    let found = &checked["models"][0];
    assert_eq!(found["findings"], serde_json::json!([]), "{context}");
    assert_eq!(found["hashed_files"], files, "{context}");
    let mut sha256sum = Command::new("sha256sum");
    sha256sum
        .args(["--strict", "--status", "-c"])
        .arg(manifest.file_name().unwrap());
    match sha256sum.current_dir(manifest.parent().unwrap()).status() {
        Ok(status) => assert!(status.success(), "{context}: sha256sum"),
        Err(e) => eprintln!("not confirmed by sha256sum: {e}"),
    }
}

/// A model whose data has gaps, several tiles, and a tensor in other order of the file.
fn model(directory: &Path) -> String {
    let mut random = Random(5);
    let mut bytes = |n: usize| -> Vec<u8> {
        let value = |_| (random.next() >> 40) as f32 / 16_777_216.0 - 0.5;
        (0..n).map(value).flat_map(f32::to_le_bytes).collect()
    };
    let tensors = [
        raw("model.layers.0.mlp.up_proj.weight", "F32", &[512, 1024], bytes(1 << 19)),
        raw("model.layers.0.input_layernorm.weight", "F32", &[7], bytes(7)),
        raw("model.layers.0.odd", "U8", &[3], vec![1, 2, 3]),
        raw("model.layers.0.mlp.down_proj.weight", "F32", &[256, 1024], bytes(1 << 18)),
        raw("model.layers.0.none", "F32", &[0], vec![]),
    ];
    let path = directory.join("m.safetensors");
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_container_and_layout() {
    let directory = crate::common::tempdir().unwrap();
    let input = model(directory.path());
    let out = directory.path().join("out dir").join("out");
    std::fs::create_dir(out.parent().unwrap()).unwrap();
    let manifest = out.with_file_name("SHA256SUMS");
    let (text, list) = (out.to_str().unwrap(), manifest.to_str().unwrap());
    // In the gate each with one thread and with three, otherwise with either.
    let count = effort([1, 2, 2]);
    let commands = [
        &["remember", &input][..],
        &["convert", &input, "--to", "gguf", "--exclude", "*odd", "--exclude", "*none"],
        &["convert", &input, "--to", "npz"],
        &["forget", &input, "--to", "nf4"],
        &["forget", &input, "--to", "int8"],
        &["forget", &input, "--to", "fp8-block"],
        &["forget", &input, "--to", "nvfp4"],
        &["forget", &input, "--to", "w4a16"],
        &["forget", &input, "--to", "gptq"],
        &["forget", &input, "--to", "awq"],
        &["forget", &input, "--to", "mlx-4bit"],
    ];
    for (at, command) in commands.into_iter().enumerate() {
        for threads in ["1", "3"].into_iter().cycle().skip(at).take(count) {
            let more = ["-f", "-o", text, "--manifest", list, "-j", threads, "-q"];
            assert_eq!(succeeds(&[command, &more].concat()), "");
            confirm(&out, &manifest, 1, &format!("{command:?} {threads}"));
        }
    }
}

#[test]
fn sums_are_printed_and_in_json() {
    let directory = crate::common::tempdir().unwrap();
    let input = canonical_gguf(data().join("whole/llama"));
    let out = directory.path().join("split.gguf");
    let command = [
        "convert",
        input.to_str().unwrap(),
        "--to",
        "gguf",
        "-o",
        out.to_str().unwrap(),
        "--max-shard-size",
        "40000",
        "-f",
        "--sha256",
    ];
    let lines = succeeds(&[&command[..], &["-q"]].concat());
    let said = succeeds(&command);
    assert!(said.contains("Output: ") && said.ends_with(&lines), "{said}");
    assert_eq!(lines.lines().count(), 2);
    let manifest = directory.path().join("sums");
    std::fs::write(&manifest, &lines).unwrap();
    confirm(&directory.path().join("split-00001-of-00002.gguf"), &manifest, 2, "split");
    let report: Value =
        serde_json::from_str(&succeeds(&[&command[..], &["--json"]].concat())).unwrap();
    let sums = report["sha256"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let sums = sums.map(|sum| format!("{}  {}\n", text(&sum["sha256"]), text(&sum["file"])));
    assert_eq!(sums.collect::<String>(), lines);
    assert!(
        !succeeds(&["remember", input.to_str().unwrap(), "--dry-run", "--json"])
            .contains("\"file\"")
    );
}

/// Every file of a directory: those that this run wrote, those of an interrupted run, and those
/// beside the weights.
#[test]
fn directories_also_resumed() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 1024);
    let (out, partial) = (root.path().join("out"), root.path().join(".out.partial"));
    let manifest = out.join("SHA256SUMS");
    let command = ["remember", input.to_str().unwrap(), "-o", out.to_str().unwrap(), "-j", "1"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_amn"));
    let mut child = child.args(command).stdout(Stdio::null()).spawn().unwrap();
    while names_in(&partial, ".safetensors").len() < 2 && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!out.exists(), "it was killed in time");
    let more = ["--resume", "--manifest", manifest.to_str().unwrap()];
    succeeds(&[&command[..], &more].concat());
    confirm(&out, &manifest, want.len(), "resumed");
    let listed = std::fs::read_to_string(&manifest).unwrap();
    assert!(
        listed.contains("  config.json\n")
            && listed.contains("  model-00001-of-00007.safetensors\n"),
        "{listed}"
    );
    // A changed byte is found.
    std::fs::write(out.join("config.json"), "{} ").unwrap();
    let checked = amn(&["check", out.to_str().unwrap(), "--manifest", manifest.to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(1));
}

#[test]
fn parts_have_theirs_when_they_are_finished() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 256);
    let out = root.path().join("out");
    let text = out.to_str().unwrap();
    let command = ["remember", input.to_str().unwrap(), "-o", text];
    let refused = amn(&[&command[..], &["--part", "1/2", "--sha256"]].concat());
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2));
    assert!(error.contains("--finish --sha256"), "{error}");
    for part in ["1/2", "2/2"] {
        succeeds(&[&command[..], &["--part", part]].concat());
    }
    let manifest = root.path().join("SHA256SUMS");
    let list = manifest.to_str().unwrap();
    let printed = succeeds(&["remember", text, "--finish", "--sha256", "--manifest", list]);
    assert_eq!(printed.lines().count(), 1 + want.len(), "{printed}");
    confirm(&out, &manifest, want.len(), "parts");
}

#[test]
fn places_and_names_of_manifests() {
    let directory = crate::common::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let input = data().join("demo/model-fp8.safetensors");
    let out = at("a\\b\nc.safetensors");
    let command = ["remember", input.to_str().unwrap(), "-o", &out];
    std::fs::write(at("there"), "x").unwrap();
    for manifest in [&*at("there"), &*at("none/sums"), &*out] {
        let refused = amn(&[&command[..], &["--manifest", manifest]].concat());
        assert_eq!(refused.status.code(), Some(7), "{manifest}");
        assert!(!Path::new(&out).exists(), "refused before the work");
    }
    assert_eq!(std::fs::read(at("there")).unwrap(), b"x");
    succeeds(&[&command[..], &["--manifest", &at("there"), "-f"]].concat());
    let listed = std::fs::read_to_string(at("there")).unwrap();
    assert!(listed.starts_with('\\') && listed.ends_with("  a\\\\b\\nc.safetensors\n"), "{listed}");
    confirm(Path::new(&out), Path::new(&at("there")), 1, "an escaped name");
}
