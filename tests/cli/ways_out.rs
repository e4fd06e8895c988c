//! A refusal names the options with which the command goes on, and with them it does.

use std::path::{Path, PathBuf};

use crate::amn;
use crate::common::{Raw, data, file, raw};

/// A copy of a small model, with its tensors changed by `edit`.
fn model(directory: &Path, edit: impl Fn(&mut Vec<Raw>)) -> PathBuf {
    let (from, to) = (data().join("whole/llama/hf"), directory.join("model"));
    std::fs::create_dir(&to).unwrap();
    for entry in std::fs::read_dir(&from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let path = to.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let stored = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensors = stored.iter().map(|(name, t)| {
        assert_eq!(t.dtype(), safetensors::Dtype::BF16);
        raw(name, "BF16", t.shape(), t.data().to_vec())
    });
    let mut tensors: Vec<Raw> = tensors.collect();
    edit(&mut tensors);
    std::fs::write(path, file(&tensors, &[("format", "pt")])).unwrap();
    to
}

/// The error of `amn` with these arguments.
fn refusal(arguments: &[&str]) -> String {
    let output = amn(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Runs the command again with each of the options that its refusal names.
fn assert_ways_out(arguments: &[&str], ways: &[(&str, &[&str])]) {
    let error = refusal(arguments);
    for (text, options) in ways {
        assert!(error.contains(text), "{text}: {error}");
        let again = amn(&[arguments, options, &["--dry-run"]].concat());
        let stderr = String::from_utf8_lossy(&again.stderr);
        assert_eq!(again.status.code(), Some(0), "{options:?}: {stderr}");
    }
    let named = ["--drop ", "--tensors-only", "--allow-opaque ", "--skip-unsupported"];
    let named = named
        .into_iter()
        .filter(|option| error.contains(option))
        .count();
    assert_eq!(named, ways.len(), "{error}");
}

#[test]
fn of_whole_models() {
    let extra = || raw("model.layers.0.extra.weight", "F32", &[2], vec![0; 8]);
    let orphan = || raw("model.layers.0.mlp.up_proj.weight_scale", "F32", &[2], vec![0; 8]);
    let nothing = |_: &mut Vec<Raw>| {};
    let drop_extra =
        ("--drop model.layers.0.extra.weight leaves", &["--drop", "*.extra.weight"][..]);
    let drop_orphan =
        ("--drop model.layers.0.mlp.up_proj.weight_scale leaves", &["--drop", "*_scale"][..]);
    let tensors = ("--tensors-only writes the tensors alone", &["--tensors-only"][..]);
    let tensors_of_mlx =
        ("its tensors alone are written with --tensors-only", &["--tensors-only"][..]);
    let run = |edit: &dyn Fn(&mut Vec<Raw>),
               without: &str,
               command: &[&str],
               ways: &[(&str, &[&str])]| {
        let directory = crate::common::tempdir().unwrap();
        let model = model(directory.path(), edit);
        if !without.is_empty() {
            std::fs::remove_file(model.join(without)).unwrap();
        }
        let out = directory.path().join(if command.contains(&"gguf") {
            "out.gguf"
        } else {
            "out"
        });
        let (model, out) = (model.to_str().unwrap(), out.to_str().unwrap());
        assert_ways_out(&[&[command[0], model, "-o", out], &command[1..]].concat(), ways);
    };
    let to_gguf = ["convert", "--to", "gguf"];
    run(&|all| all.push(extra()), "", &to_gguf, &[drop_extra, tensors]);
    run(
        &|all| all.push(extra()),
        "",
        &["forget", "--to", "mlx-4bit", "--group-size", "32"],
        &[drop_extra, tensors_of_mlx],
    );
    run(&|all| all.push(orphan()), "", &["remember"], &[drop_orphan]);
    run(&nothing, "tokenizer.json", &to_gguf, &[tensors]);
    // What is missing cannot be dropped.
    run(&|all| all.retain(|t| !t.name.ends_with("up_proj.weight")), "", &to_gguf, &[tensors]);
}

#[test]
fn of_pickles_and_arrays() {
    let directory = crate::common::tempdir().unwrap();
    let out = directory
        .path()
        .join("out.safetensors")
        .to_str()
        .unwrap()
        .to_owned();
    let at = |name: &str| data().join("pth").join(name).to_str().unwrap().to_owned();
    let harmless = at("refused_namespace.pt");
    let option = ["--allow-opaque", "argparse.Namespace"];
    let way = ("--allow-opaque argparse.Namespace reads the file", &option[..]);
    assert_ways_out(&["remember", &harmless, "-o", &out], &[way]);
    let error = refusal(&["inspect", &harmless, "--json"]);
    let error: serde_json::Value = serde_json::from_str(&error).unwrap();
    assert!(error["message"].as_str().unwrap().contains(way.0), "{error}");
    // What is dangerous is refused with the option, too.
    assert_ways_out(&["remember", &at("attack_eval.pt"), "-o", &out], &[]);
    assert!(refusal(&["remember", &at("attack_eval.pt"), "-o", &out]).contains("`amn scan`"));
    let archive = data().join("npz/no_tensors_among.npz");
    let way = ("--skip-unsupported leaves out", &["--skip-unsupported"][..]);
    assert_ways_out(&["convert", archive.to_str().unwrap(), "-o", &out], &[way]);
}

/// A key that a GGUF file lacks is added by a command that the error names.
#[test]
fn of_missing_keys() {
    let directory = crate::common::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let input = data().join("adapters/base-q8_0.gguf");
    let run = |arguments: &[&str]| {
        let output = amn(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    };
    let (bad, good, model) = (at("bad.gguf"), at("good.gguf"), at("model/"));
    for (key, value) in [("llama.context_length", "512"), ("tokenizer.ggml.pre", "llama-bpe")] {
        let without = format!("{key}=null");
        let input = input.to_str().unwrap();
        run(&[
            "convert",
            input,
            "--to",
            "gguf",
            "--tensors-only",
            "--gguf-kv",
            &without,
            "-f",
            "-o",
            &bad,
        ]);
        let error = refusal(&["remember", &bad, "-f", "-o", &model]);
        let command = format!("`amn convert FILE --to gguf --gguf-kv {key}=");
        assert!(error.contains(&command), "{error}");
        let with = format!("{key}={value}");
        run(&["convert", &bad, "--to", "gguf", "--gguf-kv", &with, "-f", "-o", &good]);
        run(&["remember", &good, "-f", "-o", &model]);
    }
}
