//! `amn forget`, run as a user runs it.
#![cfg(all(
    feature = "cli",
    feature = "lethe",
    feature = "gguf",
    feature = "bnb",
    feature = "gptq",
    feature = "awq",
    feature = "nvfp4"
))]
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::Path;
use std::process::{Command, Output};

use anamnesis::{ForgetScheme, parse};
use common::directory::{assert_same_tree, names_in, tree, write_files, write_shards};
use common::forget::{PLAIN, options, shards, whole};
use common::{data, f32s, file, raw};
use serde_json::Value;

fn amn(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_amn"))
        .args(arguments)
        .output()
        .unwrap()
}

/// What is said by a run that succeeds.
fn said(arguments: &[&str]) -> String {
    let output = amn(arguments);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The message and the exit code of one that fails.
fn failed(arguments: &[&str]) -> (String, i32) {
    let output = amn(arguments);
    assert!(
        output.stdout.is_empty() || !output.status.success(),
        "{arguments:?}"
    );
    (
        String::from_utf8(output.stderr).unwrap(),
        output.status.code().unwrap(),
    )
}

/// A small model in `directory`, and its path.
fn model(directory: &Path) -> String {
    let path = directory.join("model.safetensors");
    std::fs::write(&path, whole(1, 128, 128)).unwrap();
    path.to_string_lossy().into_owned()
}

#[test]
fn the_distance_is_said() {
    let root = tempfile::tempdir().unwrap();
    let input = model(root.path());
    let output = root.path().join("out.safetensors");
    let text = said(&[
        "forget",
        &input,
        "--to",
        "nf4",
        "-o",
        output.to_str().unwrap(),
    ]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "Parsing...   9 tensors, unquantized", "{text}");
    assert!(
        lines[1].starts_with("Forgetting.. 3 tensors [====================] "),
        "{text}"
    );
    let at = lines
        .iter()
        .position(|line| line.starts_with("Lethe distance: "))
        .unwrap();
    assert!(lines[at].ends_with(" mean absolute error"), "{text}");
    assert!(
        lines[at + 1].starts_with("  RMSE ") && lines[at + 1].contains(" %), maximum "),
        "{text}"
    );
    let worst = &lines[at + 2..at + 5];
    assert!(
        worst
            .iter()
            .all(|line| line.contains(" %  mean ") && line.ends_with("_proj.weight")),
        "{text}"
    );
    assert!(
        lines[at + 5].starts_with(&format!("Output: {} (", output.display())),
        "{text}"
    );
    let want = root.path().join("want.safetensors");
    parse(&input)
        .unwrap()
        .forget(&want, options("nf4"))
        .unwrap();
    assert!(std::fs::read(want).unwrap() == std::fs::read(output).unwrap());
}

#[test]
fn json_is_all_that_is_said() {
    let root = tempfile::tempdir().unwrap();
    let input = model(root.path());
    let output = root.path().join("out.safetensors");
    let arguments = [
        "forget",
        &input,
        "--to",
        "w4a16",
        "--json",
        "-o",
        output.to_str().unwrap(),
    ];
    let planned: Value =
        serde_json::from_str(&said(&[&arguments[..], &["--dry-run"]].concat())).unwrap();
    assert!(!output.exists() && planned["distance"].is_null());
    let done: Value = serde_json::from_str(&said(&arguments)).unwrap();
    for key in ["encoded", "kept", "output_bytes", "to", "dropped"] {
        assert_eq!(planned[key], done[key], "{key}");
    }
    assert_eq!(done["output_bytes"], output.metadata().unwrap().len());
    let report = parse(&input)
        .unwrap()
        .forget(root.path().join("again"), options("w4a16"))
        .unwrap();
    let (all, expected) = (&done["distance"]["all"], report.distance.unwrap().all);
    assert_eq!(all["mean_absolute"], expected.mean_absolute);
    assert_eq!(all["rmse"], expected.rmse);
    assert_eq!(all["maximum"], expected.maximum);
    assert_eq!(all["relative"], expected.relative);
    assert_eq!(all["values"], 3 * 128 * 128);
    let worst = done["distance"]["worst"].as_array().unwrap();
    assert_eq!(worst.len(), 3);
    assert!(
        worst
            .iter()
            .all(|t| t["name"].is_string() && t["rmse"].is_f64()),
        "{worst:?}"
    );
    let named = |key: &str| {
        done[key]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| t["name"].as_str().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(named("encoded").len() + named("kept").len(), 9);
    assert!(
        done["kept"]
            .as_array()
            .unwrap()
            .iter()
            .all(|t| !t["reason"].as_str().unwrap().is_empty())
    );
}

#[test]
fn a_dry_run_says_what_stays_and_why() {
    let root = tempfile::tempdir().unwrap();
    let input = model(root.path());
    let before = names_in(root.path(), "");
    let text = said(&[
        "forget",
        &input,
        "--to",
        "w4a16",
        "--exclude",
        "*mlp.up_proj*",
        "--dry-run",
    ]);
    for line in [
        "Encoded:     2 tensors",
        "  model.layers.0.self_attn.q_proj.weight  w4a16",
        "As they are: 7 tensors",
        "  model.embed_tokens.weight  an embedding",
        "  model.layers.0.input_layernorm.weight  a norm",
        "  model.layers.0.self_attn.q_proj.bias  no weight of a layer",
        "  model.layers.0.mlp.up_proj.weight  not among the tensors that were asked for",
        "  lm_head.weight  the last layer",
    ] {
        assert!(text.lines().any(|l| l == line), "no `{line}` in\n{text}");
    }
    let experts = text.lines().find(|line| line.contains("experts")).unwrap();
    assert!(experts.contains("3 dimensions"), "{experts}");
    let place = format!(
        "Output:      {}",
        root.path().join("model-w4a16.safetensors").display()
    );
    assert!(text.contains(&place), "{text}");
    assert_eq!(names_in(root.path(), ""), before);
}

#[test]
fn outputs_are_named_after_the_scheme() {
    let root = tempfile::tempdir().unwrap();
    let input = model(root.path());
    for (scheme, name) in [
        ("nf4", "model-nf4.safetensors"),
        ("gguf:q4_k_m", "model-q4_k_m.gguf"),
        ("qnat", "model-qnat.qnat"),
    ] {
        let text = String::from_utf8(amn(&["forget", &input, "--to", scheme, "--dry-run"]).stdout)
            .unwrap();
        assert!(
            text.contains(&format!("{} (", root.path().join(name).display())),
            "{scheme}: {text}"
        );
    }
    let directory = root.path().join("tiny");
    write_shards(&directory, &shards(2, 128, 128));
    write_files(&directory, &[("config.json", PLAIN)]);
    let text = said(&["forget", directory.to_str().unwrap(), "--to", "w4a16"]);
    assert!(
        root.path().join("tiny-W4A16").is_dir(),
        "{text} {:?}",
        names_in(root.path(), "")
    );
}

#[test]
fn every_scheme_is_listed() {
    let text = said(&["forget", "--list"]);
    for (name, about) in ForgetScheme::all() {
        assert!(text.contains(&format!("{name:<18} {about}\n")), "{name}");
        assert!(name.parse::<ForgetScheme>().is_ok(), "{name}");
    }
    let gguf = text.lines().last().unwrap();
    assert!(gguf.starts_with("gguf:TYPE "), "{gguf}");
    for name in ForgetScheme::all_gguf() {
        assert!(
            gguf.split(' ').any(|word| word == name.to_lowercase()),
            "{name}"
        );
        assert!(
            format!("gguf:{name}").parse::<ForgetScheme>().is_ok(),
            "{name}"
        );
    }
}

#[test]
fn quantize_is_another_name_for_it() {
    let root = tempfile::tempdir().unwrap();
    let input = model(root.path());
    let (one, other) = (
        root.path().join("one.safetensors"),
        root.path().join("other.safetensors"),
    );
    said(&["forget", &input, "--to", "nf4", "-o", one.to_str().unwrap()]);
    said(&[
        "quantize",
        &input,
        "--to",
        "BNB-NF4",
        "-o",
        other.to_str().unwrap(),
    ]);
    assert!(std::fs::read(one).unwrap() == std::fs::read(other).unwrap());
}

#[test]
fn options_reach_the_encoder() {
    let root = tempfile::tempdir().unwrap();
    let input = model(root.path());
    let path = |name: &str| root.path().join(name).to_string_lossy().into_owned();
    let run = |name: &str, more: &[&str]| {
        said(&[&["forget", &input, "--force", "-o", &path(name)], more].concat());
        parse(path(name)).unwrap()
    };
    let scales = run("a.safetensors", &["--to", "w4a16", "--group-size", "32"]);
    let shape =
        |model: &anamnesis::ParsedModel, name: &str| model.tensor(name).unwrap().shape().to_vec();
    assert_eq!(
        shape(&scales, "model.layers.0.self_attn.q_proj.weight_scale"),
        [128, 4]
    );
    let mut outputs = vec![];
    for rule in ["compressed-tensors", "floor", "rceil"] {
        run("b.safetensors", &["--to", "mxfp4", "--scale-rule", rule]);
        outputs.push(std::fs::read(path("b.safetensors")).unwrap());
    }
    assert!(outputs[0] != outputs[1] && outputs[1] != outputs[2]);
    let types = |model: &anamnesis::ParsedModel| {
        let mut types: Vec<String> = model
            .tensors()
            .filter(|t| t.shape().len() == 2)
            .map(|t| t.dtype().to_string())
            .collect();
        types.sort();
        types.dedup();
        types
    };
    assert_eq!(
        types(&run("c.gguf", &["--to", "gguf:q4_0", "--pure"])),
        ["Q4_0"]
    );
    assert_ne!(types(&run("c.gguf", &["--to", "gguf:q4_0"])), ["Q4_0"]);
    for (more, word) in [
        (["--to", "w4a16", "--scale-rule", "best"], "scale rules: "),
        (["--to", "w4a16", "--group-size", "0"], ""),
    ] {
        let (message, code) = failed(&[&["forget", &input][..], &more].concat());
        assert!(
            message.contains(word) && (code == 6 || code == 2),
            "{code}: {message}"
        );
    }
}

#[test]
fn exit_codes() {
    let root = tempfile::tempdir().unwrap();
    let input = model(root.path());
    for scheme in ["nf5", "", "gguf:", "gguf:q4_9", "w4a16 "] {
        let (message, code) = failed(&["forget", &input, "--to", scheme]);
        assert_eq!(code, 6, "{scheme}: {message}");
        assert!(
            message.starts_with("error: ")
                && message.contains("nf4-dq")
                && message.contains("gguf:q4_k_m"),
            "{message}"
        );
    }
    assert_eq!(failed(&["forget", &input]).1, 2);
    assert_eq!(
        failed(&[
            "forget",
            &root.path().join("missing").to_string_lossy(),
            "--to",
            "nf4"
        ])
        .1,
        7
    );
    // What exists is not replaced.
    said(&["forget", &input, "--to", "nf4"]);
    let (message, code) = failed(&["forget", &input, "--to", "nf4"]);
    assert!(code == 7 && message.contains("--force"), "{message}");
    let nan = root.path().join("nan.safetensors");
    std::fs::write(
        &nan,
        file(
            &[raw("a.weight", "F32", &[1, 64], f32s(&[f32::NAN; 64]))],
            &[],
        ),
    )
    .unwrap();
    let (message, code) = failed(&["forget", nan.to_str().unwrap(), "--to", "nf4"]);
    assert!(
        code == 6 && message.contains("`a.weight`, row 0, column 0"),
        "{code}: {message}"
    );
    assert_eq!(names_in(root.path(), "").len(), 3, "nothing is left behind");
}

/// Types of less than three bits are no good without an importance matrix; the message says what is missing.
#[test]
fn an_importance_matrix_is_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let input = root.path().join("in.safetensors");
    std::fs::write(&input, whole(1, 256, 256)).unwrap();
    let input = input.to_string_lossy().into_owned();
    for scheme in ["gguf:iq1_s", "gguf:iq2_xxs", "gguf:IQ2_XS", "gguf:q2_k_s"] {
        let (message, code) = failed(&["forget", &input, "--to", scheme]);
        assert!(
            code == 6 && message.contains("it takes an importance matrix (--imatrix)"),
            "{scheme}: {message}"
        );
        assert!(message.contains("tensor `"), "{message}");
    }
    let other = data()
        .join("imatrix/matrix.gguf")
        .to_string_lossy()
        .into_owned();
    let (message, code) = failed(&[
        "forget",
        &input,
        "--to",
        "gguf:iq2_xxs",
        "--imatrix",
        &other,
    ]);
    assert!(
        code == 3 && message.contains("_proj.weight`: the importance matrix has 32 values"),
        "{code}: {message}"
    );
    let (message, _) = failed(&[
        "forget",
        &input,
        "--to",
        "gguf:iq2_xxs",
        "--imatrix",
        &input,
    ]);
    assert!(
        message.contains("in.safetensors") || message.contains("importance"),
        "{message}"
    );
}

#[test]
fn directories_in_parts() {
    let root = tempfile::tempdir().unwrap();
    let input = root.path().join("model");
    write_shards(&input, &shards(3, 128, 128));
    write_files(&input, &[("config.json", PLAIN)]);
    let (input, path) = (input.to_string_lossy().into_owned(), |name: &str| {
        root.path().join(name)
    });
    said(&[
        "forget",
        &input,
        "--to",
        "gptq",
        "-o",
        path("want").to_str().unwrap(),
    ]);
    let out = path("out").to_string_lossy().into_owned();
    for part in ["1/2", "2/2"] {
        said(&["forget", &input, "--to", "gptq", "-o", &out, "--part", part]);
    }
    let (message, code) = failed(&["forget", &input, "--to", "awq", "-o", &out, "--part", "1/2"]);
    assert!(
        code == 7 && message.contains("other parameters"),
        "{message}"
    );
    said(&["remember", "--finish", &out]);
    assert_same_tree(&tree(&path("want")), &tree(&path("out")), "two parts");
}
