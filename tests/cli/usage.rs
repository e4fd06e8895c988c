//! Wrong values of options end with exit code 2 and a message about the option, whatever the model.

use std::collections::BTreeSet;

use crate::amn;
use crate::common::data;

/// Wrong values of each option, for the verbs that have it.
const WRONG: &[(&str, &[&str])] = &[
    ("--allow-opaque", &["nothing", ".x", "a b.c"]),
    ("--bits", &["x", "0", "17", "nan"]),
    ("--bins", &["x", "-1", "99999"]),
    ("--depth", &["0", "x"]),
    ("--drop", &["nothing", "re:[", "re:("]),
    ("--exclude", &["re:[", "re:("]),
    (
        "--gguf-kv",
        &[
            "nothing",
            "=x",
            "general.alignment=3",
            "split.no=1",
            "a:u33=1",
            "llama.block_count=x",
            "gone=null",
        ],
    ),
    ("--group-size", &["0", "x", "-1"]),
    ("--include", &["nothing", "re:[", "re:("]),
    ("--max-decompressed-bytes", &["0", "x"]),
    ("--max-decompression-ratio", &["x", "-1"]),
    ("--max-item-count", &["x", "-1"]),
    ("--max-shard-size", &["0", "x"]),
    ("--max-single-alloc", &["0", "x"]),
    ("--max-total-bytes", &["0", "x"]),
    ("--out-dtype", &["x"]),
    ("--output-tensor-type", &["x"]),
    ("--part", &["0/2", "3/2", "x"]),
    ("--part-index", &["2/2", "x"]),
    ("--progress", &["x"]),
    ("--prune-layers", &["x", "-1", "3-2", "99999"]),
    ("--rename", &["nothing", "nothing=x", "re:[=x", "*=$2"]),
    ("--root", &["nothing"]),
    ("--scale-rule", &["x"]),
    ("--set", &["nothing", "=x"]),
    ("--size", &["0", "x", "-1"]),
    ("--slice", &["x", "[x]", "[0"]),
    ("--sort", &["x"]),
    ("--tensor-type", &["x", "=q8_0", "*=", "*=x", "nothing=q8_0", "re:[=q8_0"]),
    ("--threads", &["0", "x"]),
    ("--to", &["x"]),
    ("--token-embedding-type", &["x"]),
    ("--tokenizer-pre", &["x"]),
    ("--tolerance", &["-1", "nan", "x"]),
    ("--top", &["-1", "x"]),
    ("--unset", &["nothing"]),
];

/// Options that name files: those that are missing are errors of the system. `/dev/zero` is no file
/// that can be read to its end.
const FILES: &[&str] = &[
    "--activation-scales",
    "--against",
    "--base",
    "--chat-template",
    "--gguf-metadata",
    "--imatrix",
    "--like",
    "--manifest",
    "--plan",
    "--rename-file",
];

/// Options whose values are places of outputs.
const OUTPUTS: &[&str] = &["--backup", "--output", "--npy", "--html"];

const VERBS: &[&str] = &[
    "parse", "ls", "show", "scan", "inspect", "remember", "forget", "convert", "merge", "edit",
    "diff", "check", "report",
];

/// The options of a verb that take a value.
fn options(verb: &str) -> BTreeSet<String> {
    let help = String::from_utf8(amn(&[verb, "--help"]).stdout).unwrap();
    let words: Vec<&str> = help.split_whitespace().collect();
    let pairs = words.windows(2);
    let takes_value = |pair: &&[&str]| pair[0].starts_with("--") && pair[1].starts_with('<');
    pairs
        .filter(takes_value)
        .map(|pair| pair[0].to_owned())
        .collect()
}

/// The arguments of a verb that works, without its outputs.
fn arguments(verb: &str, model: &str) -> Vec<String> {
    let file = |name: &str| data().join(name).to_string_lossy().into_owned();
    let (base, adapter) = (file("adapters/base"), file("adapters/plain"));
    let all: Vec<&str> = match verb {
        "forget" => vec!["forget", model, "--to", "gguf:q8_0"],
        "convert" => vec!["convert", model, "--to", "gguf"],
        "merge" => vec!["merge", &base, &adapter, "--to", "gguf"],
        "diff" => vec!["diff", model, model],
        "report" => vec!["report", model, "-o", "-"],
        "ls" => vec!["ls", model, "--tree"],
        "edit" => vec!["edit", model, "--dry-run"],
        verb => vec![verb, model],
    };
    all.into_iter().map(str::to_owned).collect()
}

fn assert_usage(arguments: &[String], context: &str) {
    let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = amn(&texts);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{context}: {error}");
    let is_about_file = ["parse error", "unsupported format", "error: /"];
    for words in is_about_file {
        assert!(!error.contains(words), "{context}: {error}");
    }
}

#[test]
fn wrong_values() {
    let root = crate::common::tempdir().unwrap();
    let model = data().join("demo/model-fp8.safetensors");
    let model = model.to_string_lossy();
    let output = root.path().join("out.gguf").to_string_lossy().into_owned();
    for verb in VERBS {
        for option in options(verb) {
            let files = ["/dev/zero"];
            let values = match WRONG.iter().find(|(name, _)| *name == option) {
                Some((_, values)) => *values,
                None if FILES.contains(&&*option) => &files,
                None => {
                    assert!(OUTPUTS.contains(&&*option), "{verb} {option} is in no table");
                    continue;
                }
            };
            // What is written to is looked at when it is written.
            if option == "--manifest" && *verb != "check" {
                continue;
            }
            for value in values {
                let mut all = arguments(verb, &model);
                if option == "--to" {
                    all.truncate(match *verb {
                        "merge" | "diff" => 3,
                        "report" => 4,
                        _ => 2,
                    });
                }
                if option == "--group-size" || option == "--scale-rule" {
                    all = ["forget", &*model, "--to", "mxfp4"]
                        .map(str::to_owned)
                        .to_vec();
                }
                if option == "--activation-scales" {
                    all = ["forget", &*model, "--to", "fp8"]
                        .map(str::to_owned)
                        .to_vec();
                }
                all.push(format!("{option}={value}"));
                if ["remember", "forget", "convert", "merge"].contains(verb) {
                    let output = match option.as_str() {
                        "--group-size" | "--scale-rule" | "--activation-scales" => {
                            output.replace(".gguf", ".safetensors")
                        }
                        _ => output.clone(),
                    };
                    all.extend(["-o".to_owned(), output]);
                }
                assert_usage(&all, &format!("{all:?}"));
            }
        }
    }
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

/// Names of tensors are arguments of some verbs.
#[test]
fn names_that_no_tensor_has() {
    let model = data().join("demo/model-fp8.safetensors");
    let model = model.to_string_lossy();
    for arguments in [
        ["show", &model, "nothing"],
        ["show", &model, "no*thing"],
        ["show", &model, "re:["],
        ["show", &model, "nothing[0]"],
        ["ls", &model, "nothing"],
        ["ls", &model, "re:["],
        ["man", "nothing", "-q"],
    ] {
        let all: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        assert_usage(&all, &format!("{all:?}"));
    }
    let names = parse_names(&model);
    let slice = format!("{}[99999999]", names[0]);
    assert_usage(&["show".to_owned(), model.to_string(), slice.clone()], &slice);
}

fn parse_names(model: &str) -> Vec<String> {
    let model = anamnesis::parse(model).unwrap();
    let conversion = model.plan(anamnesis::TargetDtype::F32).unwrap();
    conversion.outputs().map(|t| t.name.to_owned()).collect()
}

/// A pipe that nobody writes to is no file of an option: reading it would wait forever.
#[cfg(target_os = "linux")]
#[test]
fn pipes_are_no_files() {
    let root = crate::common::tempdir().unwrap();
    let pipe = root.path().join("pipe").to_string_lossy().into_owned();
    let made = std::process::Command::new("mkfifo")
        .arg(&pipe)
        .status()
        .unwrap();
    assert!(made.success());
    let model = data().join("demo/model-fp8.safetensors");
    let model = model.to_string_lossy();
    let output = root.path().join("out.gguf").to_string_lossy().into_owned();
    for option in FILES {
        let verb = match *option {
            "--chat-template" => "edit",
            "--manifest" => "check",
            _ => "forget",
        };
        let mut all = arguments(verb, &model);
        all.push(format!("{option}={pipe}"));
        if verb == "forget" {
            all.extend(["-o".to_owned(), output.clone()]);
        }
        assert_usage(&all, &format!("{all:?}"));
    }
}
