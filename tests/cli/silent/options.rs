//! Options that do not apply are refused, and patterns that match nothing are named.

use anamnesis::parse;

use super::{DEMO, at, plain_directory, refused, succeed, told};
use crate::amn;

#[test]
fn options_that_do_not_apply_are_refused() {
    let root = crate::common::tempdir().unwrap();
    let input = at(DEMO);
    let output = root.path().join("out").to_string_lossy().into_owned();
    let forget = |to: &'static str| vec!["forget", &input, "--to", to];
    let convert = |to: &'static str| vec!["convert", &input, "--to", to];
    let matrix = at("imatrix/matrix.gguf");
    for (mut arguments, option, reason) in [
        (forget("awq"), vec!["--imatrix", &matrix], "GGUF types"),
        (forget("nf4"), vec!["--pure"], "GGUF types"),
        (forget("nvfp4"), vec!["--group-size", "7"], "no choice of the group size"),
        (forget("gguf:q4_k"), vec!["--group-size", "64"], "no choice"),
        (forget("w8a16-channel"), vec!["--group-size", "64"], "no choice"),
        (forget("mlx-mxfp4"), vec!["--group-size", "64"], "no choice"),
        (forget("nvfp4"), vec!["--scale-rule", "floor"], "MXFP4 and MXFP8"),
        (forget("nf4"), vec!["--tokenizer-pre", "llama-bpe"], "whole model"),
        (convert("npz"), vec!["--gguf-kv", "a=b"], "--to gguf"),
        (convert("nf4"), vec!["--gguf-metadata", "missing.json"], "--to gguf"),
        (convert("qnat"), vec!["--out-dtype", "f32"], "QNAT"),
        (convert("nf4"), vec!["--cast", "--out-dtype", "f32"], "encoded"),
        (convert("npz"), vec!["--mmproj"], "--to gguf"),
        (convert("gguf"), vec!["--tensors-only", "--tokenizer-pre", "x"], "whole model"),
    ] {
        let name = if option[0] == "--tensors-only" {
            option[1]
        } else {
            option[0]
        };
        arguments.extend(&option);
        arguments.extend(["-o", &output]);
        refused(&arguments, 2, &[name, reason], root.path());
    }
    // What only the model tells.
    let arguments =
        ["convert", &input, "--to", "gguf", "--tokenizer-pre", "llama-bpe", "-o", &output];
    refused(&arguments, 2, &["--tokenizer-pre", "no whole model"], root.path());
    for option in ["--resume", "--part=1/2"] {
        let arguments = ["remember", &input, option, "-o", &output];
        refused(&arguments, 2, &["only a directory of safetensors"], root.path());
    }
    for more in
        [&["--to", "f32"][..], &["--cast"], &["--include", "a"], &["--dry-run"], &["--root", "a"]]
    {
        let arguments = [&["remember", &input, "--finish"], more].concat();
        refused(&arguments, 2, &["--finish", more[0]], root.path());
    }
}

/// What clap says and what the program says of wrong arguments ends alike: with the usage of the
/// command.
#[test]
fn wrong_arguments_show_the_usage() {
    for arguments in [
        &["remember", "x", "--to", "f16", "--saturate"][..],
        &["convert", "x", "--to", "npz", "--gguf-kv", "a=b"],
    ] {
        let (_, err, code) = told(&amn(arguments));
        let usage = format!("Usage: amn {} ", arguments[0]);
        assert!(code == 2 && err.contains(&usage), "{code} {err}");
    }
}

/// A file that an option names is looked for before the input is parsed.
#[test]
fn missing_files_are_named() {
    let root = crate::common::tempdir().unwrap();
    let missing = root.path().join("gone.dat").to_string_lossy().into_owned();
    for (option, to) in [("--imatrix", "gguf:q4_k_m"), ("--like", "nf4")] {
        let arguments = ["forget", "no-such-input", "--to", to, option, &missing];
        refused(&arguments, 7, &["gone.dat"], root.path());
    }
}

#[test]
fn nothing_encoded_says_why() {
    let root = crate::common::tempdir().unwrap();
    let directory = plain_directory(root.path()).to_string_lossy().into_owned();
    for (more, words) in [
        (&["--to", "mxfp4-gpt-oss"][..], ["no tensor can be encoded", "1: "]),
        (
            &["--to", "nf4", "--group-size", "48"],
            ["1: bitsandbytes has no blocks of 48 values", "1: a norm"],
        ),
    ] {
        let arguments = [&["forget", &directory], more].concat();
        refused(&arguments, 6, &words, root.path());
    }
}

#[cfg(feature = "gguf")]
/// What was typed matches no tensor: an error if nothing is left then, else a note; both say what
/// may have been meant.
#[test]
fn patterns_that_match_nothing() {
    let dir = crate::common::tempdir().unwrap();
    let (model, out) = (at("guide/TinyLlama/model.safetensors"), dir.path().join("o"));
    let (model, out) = (model.as_str(), out.to_str().unwrap());
    let norm = "model.norm.weigh";
    let errors: [(&[&str], &str); 9] = [
        (&["ls", model, "q_proj"], "like `q_proj`; `*q_proj*` matches 1"),
        (&["remember", model, "--include", norm], "near are model.norm.weight"),
        (&["remember", model, "--include", "*.q_prj.*"], "like `*.q_prj.*`; `amn ls` lists"),
        (&["remember", model, "--exclude", "*"], "all that are included are excluded"),
        (&["remember", model, "--drop", norm], "would change; near are model.norm.weight"),
        (&["remember", model, "--rename", "mlp=ffn"], "would change; `*mlp*` matches 3"),
        (
            &["forget", model, "--to", "nf4", "--include", "lm_haed.weight"],
            "near are lm_head.weight",
        ),
        (&["diff", model, model, "--include", norm], "near are model.norm.weight"),
        (&["show", model, norm], "near are model.norm.weight"),
    ];
    for (arguments, words) in errors {
        refused(arguments, 2, &[words], dir.path());
    }
    let notes: [&[&str]; 3] = [
        &["convert", model, "--to", "gguf", "--tensors-only"],
        &["convert", model, "--to", "npz"],
        &["forget", model, "--to", "nf4"],
    ];
    for arguments in notes {
        for option in ["--exclude", "--include"] {
            let more = ["--include", "*", option, "lm_haed.weight", "-o", out, "-f"];
            let text = succeed(&[arguments, &more].concat());
            let note = "Note: no tensor has a name like `lm_haed.weight`; near are lm_head.weight";
            assert!(text.contains(note), "{arguments:?} {option}: {text}");
        }
    }
}

/// Patterns select among blocks that are copied, too.
#[test]
fn patterns_apply_to_copied_blocks() {
    let root = crate::common::tempdir().unwrap();
    let (input, output) = (at("gguf-files/whole.gguf"), root.path().join("some.gguf"));
    let all = parse(&input).unwrap();
    let name = all.tensors().next().unwrap().name().to_owned();
    let path = output.to_string_lossy();
    succeed(&["convert", &input, "--to", "gguf", "--include", &name, "-o", &path]);
    let some = parse(&output).unwrap();
    let names: Vec<_> = some.tensors().map(|t| t.name().to_owned()).collect();
    assert_eq!(names, [name]);
    let arguments = ["convert", &input, "--to", "gguf", "--include", "nothing", "-o", "none.gguf"];
    refused(&arguments, 2, &["no tensor is left"], root.path());
}
