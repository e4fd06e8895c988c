//! `amn forget`: what it prints.

mod options;
mod types;

use std::path::Path;

use anamnesis::{ForgetScheme, parse};
use serde_json::Value;

use crate::amn;
use crate::common::directory::{names_in, write_files, write_shards};
use crate::common::forget::{PLAIN, options, shards, whole};

/// The standard output of `amn` with these arguments, which must succeed without a warning.
fn stdout_of(arguments: &[&str]) -> String {
    let output = amn(arguments);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The standard error and the exit code of `amn` with these arguments, which must fail.
fn stderr_and_code_of(arguments: &[&str]) -> (String, i32) {
    let output = amn(arguments);
    assert!(output.stdout.is_empty() || !output.status.success(), "{arguments:?}");
    (String::from_utf8(output.stderr).unwrap(), output.status.code().unwrap())
}

/// Writes a small model into `directory`, and returns its path.
fn model(directory: &Path) -> String {
    let path = directory.join("model.safetensors");
    std::fs::write(&path, whole(1, 128, 128)).unwrap();
    path.to_string_lossy().into_owned()
}

#[test]
fn the_distance_is_printed() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    let output = root.path().join("out.safetensors");
    let text = stdout_of(&["forget", &input, "--to", "nf4", "-o", output.to_str().unwrap()]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "Parsing...   9 tensors, BF16, F32, F16", "{text}");
    assert!(lines[1].starts_with("Forgetting... 3 tensors [====================] "), "{text}");
    let at = lines
        .iter()
        .position(|line| line.starts_with("Lethe distance: "))
        .unwrap();
    assert!(lines[at].ends_with(" mean absolute error"), "{text}");
    assert!(
        lines[at + 1].starts_with("  RMSE ") && lines[at + 1].contains(" %), cosine 0.9"),
        "{text}"
    );
    let worst = &lines[at + 2..at + 5];
    assert!(
        worst
            .iter()
            .all(|line| line.contains(" %  mean ") && line.ends_with("_proj.weight")),
        "{text}"
    );
    assert!(lines[at + 5].starts_with(&format!("Output: {} (", output.display())), "{text}");
    let want = root.path().join("want.safetensors");
    parse(&input)
        .unwrap()
        .forget(&want, options("nf4"))
        .unwrap();
    assert!(std::fs::read(want).unwrap() == std::fs::read(output).unwrap());
}

/// The tensors that stay are counted by reason; `-v` names them.
#[test]
fn tensors_that_stay_are_reported_after_a_run() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    let output = root.path().join("out.safetensors");
    let arguments = ["forget", &input, "--to", "nf4", "-o"];
    let run = |more: &[&str]| {
        let output = [output.to_str().unwrap(), "--force"];
        stdout_of(&[&arguments[..], &output, more].concat())
    };
    let report = parse(&input)
        .unwrap()
        .forget(root.path().join("again"), options("nf4"))
        .unwrap();
    assert_eq!(report.kept.len(), 6);
    let text = run(&[]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[2], "As they are: 6 tensors", "{text}");
    let mut counted = 0;
    for kept in &report.kept {
        let same = report.kept.iter().filter(|k| k.reason == kept.reason);
        let line = format!("{:>7} {}", same.clone().count(), kept.reason);
        assert!(lines.contains(&line.as_str()), "no `{line}` in\n{text}");
        counted += usize::from(same.into_iter().next() == Some(kept));
        assert!(!text.contains(&format!("  {}\n", kept.name)), "{text}");
    }
    assert!(counted > 1 && lines[3 + counted].starts_with("Lethe distance"), "{text}");
    let output = output.to_str().unwrap();
    let verbose = amn(&[&arguments[..], &[output, "--force", "-v"]].concat());
    let text = String::from_utf8(verbose.stdout).unwrap();
    for kept in &report.kept {
        let reason = text.find(&format!(" {}\n", kept.reason)).unwrap();
        assert!(text[reason..].contains(&format!("          {}\n", kept.name)), "{text}");
    }
}

#[test]
fn json_output_is_all_that_is_printed() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    let output = root.path().join("out.safetensors");
    let arguments = ["forget", &input, "--to", "w4a16", "--json", "-o", output.to_str().unwrap()];
    let planned: Value =
        serde_json::from_str(&stdout_of(&[&arguments[..], &["--dry-run"]].concat())).unwrap();
    assert!(!output.exists() && planned["distance"].is_null());
    let done: Value = serde_json::from_str(&stdout_of(&arguments)).unwrap();
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

/// JSON and CSV have the error of every encoded tensor, of which the text names the worst.
#[test]
fn errors_of_all_tensors() {
    let root = crate::common::tempdir().unwrap();
    let directory = root.path().join("tiny");
    write_shards(&directory, &shards(3, 128, 128));
    write_files(&directory, &[("config.json", PLAIN)]);
    let output = root.path().join("out");
    let arguments = ["forget", directory.to_str().unwrap(), "--to", "w4a16", "-f"];
    let run = |more: &[&str]| {
        stdout_of(&[&arguments[..], &["-o", output.to_str().unwrap()], more].concat())
    };
    let done: Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let tensors = done["distance"]["tensors"].as_array().unwrap();
    let encoded = done["encoded"].as_array().unwrap();
    assert!(tensors.len() > 5 && tensors.len() == encoded.len(), "{done}");
    assert_eq!(done["distance"]["worst"].as_array().unwrap().len(), 5);
    let text = run(&["--csv"]);
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some("name,scheme,values,mean_absolute,rmse,maximum,relative,cosine,outputs")
    );
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), encoded.len(), "{text}");
    for tensor in tensors {
        let name = format!("\"{}\",", tensor["name"].as_str().unwrap());
        let line = lines.iter().find(|line| line.starts_with(&name)).unwrap();
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells[1..3], ["\"w4a16\"", &tensor["values"].to_string()], "{line}");
        for (cell, field) in
            cells[3..]
                .iter()
                .zip(["mean_absolute", "rmse", "maximum", "relative", "cosine"])
        {
            // The parser of JSON may be off by one bit.
            let (found, expected) = (cell.parse::<f64>().unwrap(), tensor[field].as_f64().unwrap());
            assert!((found - expected).abs() <= expected * 1e-15, "{line}");
        }
    }
    for more in [&["--csv", "--json"][..], &["--csv", "--dry-run"], &["--csv", "-o", "-"]] {
        let (_, code) = stderr_and_code_of(&[&arguments[..], more].concat());
        assert_eq!(code, 2, "{more:?}");
    }
}

#[test]
fn a_dry_run_lists_tensors_that_stay() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    let before = names_in(root.path(), "");
    let text =
        stdout_of(&["forget", &input, "--to", "w4a16", "--exclude", "*mlp.up_proj*", "--dry-run"]);
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
    let place = format!("Output:      {}", root.path().join("model-w4a16.safetensors").display());
    assert!(text.contains(&place), "{text}");
    assert_eq!(names_in(root.path(), ""), before);
}

#[test]
fn outputs_are_named_after_the_scheme() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    for (scheme, name) in [
        ("nf4", "model-nf4.safetensors"),
        ("gguf:q4_k_m", "model-q4_k_m.gguf"),
        ("q4_k_m", "model-q4_k_m.gguf"),
        ("fp8-fine-grained", "model-fp8.safetensors"),
        ("bnb_4bit", "model-nf4.safetensors"),
        ("int4", "model-w4a16.safetensors"),
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
    let text = stdout_of(&["forget", directory.to_str().unwrap(), "--to", "w4a16"]);
    assert!(root.path().join("tiny-W4A16").is_dir(), "{text} {:?}", names_in(root.path(), ""));
}

#[test]
fn every_scheme_is_listed() {
    let text = stdout_of(&["forget", "--list"]);
    assert!(text.contains("(also bnb-nf4, bnb-4bit, bitsandbytes-4bit)"));
    for (name, about) in ForgetScheme::all() {
        assert!(text.contains(&format!("{name:<18} {about}")), "{name}");
        assert!(name.parse::<ForgetScheme>().is_ok(), "{name}");
    }
    let gguf = text.lines().last().unwrap();
    assert!(gguf.starts_with("gguf:TYPE "), "{gguf}");
    for name in ForgetScheme::all_gguf() {
        assert!(gguf.split(' ').any(|word| word == name.to_lowercase()), "{name}");
        assert!(format!("gguf:{name}").parse::<ForgetScheme>().is_ok(), "{name}");
    }
}

#[test]
fn quantize_is_an_alias_of_forget() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    let (one, other) = (root.path().join("one.safetensors"), root.path().join("other.safetensors"));
    stdout_of(&["forget", &input, "--to", "nf4", "-o", one.to_str().unwrap()]);
    stdout_of(&["quantize", &input, "--to", "BNB-NF4", "-o", other.to_str().unwrap()]);
    assert!(std::fs::read(one).unwrap() == std::fs::read(other).unwrap());
}
