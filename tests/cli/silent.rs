//! Nothing happens silently: names of outputs tell the truth, options that do not apply are refused, and what stays as it is is said.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anamnesis::{Dtype, parse};

use crate::amn;
use crate::common::directory::{names_in, write_files};
use crate::common::{assert_same, data, f32s, file, raw};

const DEMO: &str = "demo/model-fp8.safetensors";

fn at(name: &str) -> String {
    data().join(name).to_string_lossy().into_owned()
}

/// What a command printed, and its exit code.
fn told(output: &Output) -> (String, String, i32) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().unwrap();
    (text(&output.stdout), text(&output.stderr), code)
}

/// Runs a command that must succeed; what it printed to stdout.
fn succeed(arguments: &[&str]) -> String {
    let (out, err, code) = told(&amn(arguments));
    assert_eq!(code, 0, "{arguments:?}: {err}");
    out
}

/// Runs a command that must fail with `code` and name `words`, in `place`, where it must leave nothing new.
fn refused(arguments: &[&str], code: i32, words: &[&str], place: &Path) {
    let before = names_in(place, "");
    let (_, err, found) = told(&amn(arguments));
    assert_eq!(found, code, "{arguments:?}: {err}");
    for word in words {
        assert!(err.contains(word), "{arguments:?}: {err}");
    }
    assert_eq!(names_in(place, ""), before, "{arguments:?}");
}

/// A directory of one shard with F32 weights, an I64 and an F16 vector.
fn plain_directory(root: &Path) -> PathBuf {
    let path = root.join("plain");
    let tensors = [
        raw(
            "model.layers.0.mlp.up_proj.weight",
            "F32",
            &[2, 64],
            f32s(&[0.1; 128]),
        ),
        raw("model.norm.weight", "F16", &[2], vec![0, 0x3c, 0, 0x3c]),
        raw("model.ids", "I64", &[1], vec![7, 0, 0, 0, 0, 0, 0, 0]),
    ];
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("model.safetensors"), file(&tensors, &[])).unwrap();
    write_files(&path, &[("config.json", r#"{"torch_dtype": "float32"}"#)]);
    path
}

fn dtypes(path: &Path) -> Vec<Dtype> {
    let model = parse(path).unwrap();
    model.tensors().map(|t| t.dtype()).collect()
}

#[test]
fn names_have_the_types_that_are_there() {
    let root = tempfile::tempdir().unwrap();
    let input = plain_directory(root.path()).to_string_lossy().into_owned();
    let text = succeed(&["remember", &input, "--to", "bf16"]);
    assert!(
        root.path().join("plain-F32/model.safetensors").exists(),
        "{text}"
    );
    assert!(!root.path().join("plain-BF16").exists());
    let note = "Note: 2 tensors are not quantized and keep their type (1 F32, 1 F16); --cast converts them";
    assert!(text.contains(note), "{text}");
    let text = succeed(&["remember", &input, "--to", "bf16", "--cast"]);
    let output = root.path().join("plain-BF16");
    assert!(
        text.contains("Casting...   2 tensors") && !text.contains("Note:"),
        "{text}"
    );
    assert_eq!(dtypes(&output), [Dtype::I64, Dtype::BF16, Dtype::BF16]);
    let config = std::fs::read_to_string(output.join("config.json")).unwrap();
    assert_eq!(config, r#"{"torch_dtype": "bfloat16"}"#);
    let plan = succeed(&[
        "remember",
        &input,
        "--to",
        "bf16",
        "--cast",
        "--dry-run",
        "--force",
    ]);
    assert!(
        plan.contains("Cast:        2 tensors\nAs they are: 1 tensors"),
        "{plan}"
    );
    let json = succeed(&[
        "remember",
        &input,
        "--cast",
        "--dry-run",
        "--json",
        "--force",
    ]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["cast"], &json["passthrough"]),
        (&2.into(), &1.into())
    );
    let json = succeed(&["remember", &input, "--dry-run", "--json", "--force"]);
    assert!(json.contains("2 tensors are not quantized"), "{json}");
    // What is decoded has the type that was asked for.
    std::fs::copy(at(DEMO), root.path().join("m-fp8.safetensors")).unwrap();
    succeed(&[
        "remember",
        root.path().join("m-fp8.safetensors").to_str().unwrap(),
    ]);
    assert!(root.path().join("m-bf16.safetensors").exists());
}

#[cfg(feature = "npz")]
#[test]
fn arrays_give_their_types_to_names_and_are_cast() {
    let root = tempfile::tempdir().unwrap();
    let tensors = |values: &[f64]| {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        file(&[raw("a", "F64", &[2, 2], bytes)], &[])
    };
    let path = |name: &str| root.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path("in.safetensors"), tensors(&[0.1, 1.0, 1e5, -2.0])).unwrap();
    succeed(&[
        "convert",
        &path("in.safetensors"),
        "--to",
        "npz",
        "-o",
        &path("a.npz"),
    ]);
    succeed(&["convert", &path("a.npz"), "--to", "safetensors"]);
    assert_eq!(dtypes(Path::new(&path("a-f64.safetensors"))), [Dtype::F64]);
    let cast = [
        "convert",
        &path("a.npz"),
        "--to",
        "safetensors",
        "--cast",
        "--out-dtype",
    ];
    succeed(&[&cast[..], &["f32"]].concat());
    assert_eq!(dtypes(Path::new(&path("a-f32.safetensors"))), [Dtype::F32]);
    // 1e5 is beyond F16.
    let f16 = [&cast[..], &["f16"]].concat();
    refused(
        &f16,
        6,
        &["tensor `a`: 100000.0 at [1, 0]", "65504"],
        root.path(),
    );
    succeed(&[&f16[..], &["--saturate"]].concat());
    let model = parse(path("a-f16.safetensors")).unwrap();
    let bytes = model.tensor("a").unwrap().bytes().unwrap();
    assert_eq!(bytes[4..6], 0x7bffu16.to_le_bytes());
    // Casting needs a type, saturating a cast.
    refused(
        &cast[..cast.len() - 1],
        2,
        &["--cast", "--out-dtype"],
        root.path(),
    );
    refused(
        &["remember", &path("a.npz"), "--saturate"],
        2,
        &["--cast"],
        root.path(),
    );
}

#[test]
fn extensions_are_believed() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name).to_string_lossy().into_owned();
    let input = at(DEMO);
    #[cfg(all(feature = "gguf", feature = "npz"))]
    {
        succeed(&["remember", &input, "-o", &path("out.gguf")]);
        assert!(
            std::fs::read(path("out.gguf"))
                .unwrap()
                .starts_with(b"GGUF")
        );
        succeed(&["convert", &input, "--to", "gguf", "-o", &path("want.GGUF")]);
        assert!(
            std::fs::read(path("out.gguf")).unwrap() == std::fs::read(path("want.GGUF")).unwrap()
        );
        succeed(&["remember", &input, "-o", &path("out.npz")]);
        assert!(std::fs::read(path("out.npz")).unwrap().starts_with(b"PK"));
    }
    let directory = plain_directory(root.path()).to_string_lossy().into_owned();
    for (arguments, output, words) in [
        (
            &["forget", &directory, "--to", "nf4"][..],
            "x.gguf",
            ["GGUF", "safetensors"],
        ),
        (
            &["forget", &input, "--to", "gguf:q8_0"],
            "x.safetensors",
            ["safetensors", "GGUF"],
        ),
        (
            &["convert", &input, "--to", "npz"],
            "x.safetensors",
            ["safetensors", "NPZ"],
        ),
        (
            &["convert", &input, "--to", "gguf"],
            "x.safetensors",
            ["safetensors", "GGUF"],
        ),
        (
            &["convert", &input, "--to", "safetensors"],
            "x.qnat",
            ["QNAT", "safetensors"],
        ),
        (
            &["convert", &input, "--to", "nf4"],
            "x.npz",
            ["NPZ", "safetensors"],
        ),
        (&["remember", &input], "x.qnat", ["QNAT", "codes"]),
        (&["remember", &input], "x.pth", ["x.pth", "not written"]),
        (
            &["remember", &input, "--max-shard-size", "5KB"],
            "x.safetensors",
            ["--max-shard-size", "-o"],
        ),
    ] {
        let output = path(output);
        let arguments = [arguments, &["-o", &output]].concat();
        refused(&arguments, 2, &words, root.path());
    }
    // Any other ending is part of the name.
    succeed(&["remember", &input, "-o", &path("Llama-3.1")]);
    assert_eq!(dtypes(Path::new(&path("Llama-3.1"))), [Dtype::BF16]);
}

#[test]
fn stdout_takes_what_can_be_streamed() {
    let root = tempfile::tempdir().unwrap();
    let (input, want) = (at(DEMO), root.path().join("want.safetensors"));
    succeed(&["remember", &input, "-o", want.to_str().unwrap()]);
    let output = amn(&["remember", &input, "-o", "-"]);
    assert_eq!(output.status.code(), Some(0));
    assert_same(
        &std::fs::read(&want).unwrap(),
        &output.stdout,
        "safetensors",
    );
    let texts = String::from_utf8(output.stderr).unwrap();
    assert!(
        texts.contains("Parsing...   2 tensors") && texts.contains("Output: stdout (128.1 KB)"),
        "{texts}"
    );
    #[cfg(feature = "gguf")]
    {
        let output = amn(&["convert", &input, "--to", "gguf", "-o", "-"]);
        assert!(output.status.success() && output.stdout.starts_with(b"GGUF"));
    }
    // A directory is one file then.
    let directory = plain_directory(root.path()).to_string_lossy().into_owned();
    let output = amn(&["remember", &directory, "--cast", "-o", "-"]);
    assert_eq!(
        anamnesis::parse_bytes(output.stdout)
            .unwrap()
            .tensors()
            .len(),
        3
    );
    for (arguments, code, word) in [
        (
            &["convert", &input, "--to", "npz"][..],
            6,
            "checksums before the data",
        ),
        (
            &["forget", &input, "--to", "nf4"],
            6,
            "encoded only for a whole output",
        ),
        (
            &["remember", &input, "--json"],
            2,
            "stdout is for the output",
        ),
        (&["remember", &directory, "--part", "1/2"], 2, "--part"),
        (&["remember", &directory, "--resume"], 2, "--resume"),
        (
            &["remember", &directory, "--max-shard-size", "5KB"],
            2,
            "one file",
        ),
    ] {
        let output = amn(&[arguments, &["-o", "-"]].concat());
        let (out, err, found) = told(&output);
        assert!(
            out.is_empty() && found == code && err.contains(word),
            "{arguments:?}: {err}"
        );
    }
    assert!(!Path::new("-").exists());
}

/// A reader that goes away ends the program with an error, for the output is not complete.
#[cfg(unix)]
#[test]
fn a_closed_pipe_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let input = root.path().join("in.safetensors");
    let tensors = [raw("a", "F32", &[1 << 20], vec![0; 4 << 20])];
    std::fs::write(&input, file(&tensors, &[])).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_amn"))
        .args(["remember", input.to_str().unwrap(), "-o", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let (_, err, code) = told(&child.wait_with_output().unwrap());
    assert_eq!(code, 7, "{err}");
    assert!(
        err.contains("stdout was closed before the whole output") && !err.contains("panic"),
        "{err}"
    );
}

#[test]
fn a_terminal_gets_no_weights() {
    // Without `script` there is no terminal to try.
    let command = format!(
        "'{}' remember '{}' -o -",
        env!("CARGO_BIN_EXE_amn"),
        at(DEMO)
    );
    let Ok(output) = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .output()
    else {
        return;
    };
    let (out, err, code) = told(&output);
    assert!(
        code == 2 && out.contains("stdout is a terminal"),
        "{out}{err}"
    );
}

#[test]
fn options_that_do_not_apply_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let input = at(DEMO);
    let output = root.path().join("out").to_string_lossy().into_owned();
    let forget = |to: &'static str| vec!["forget", &input, "--to", to];
    let convert = |to: &'static str| vec!["convert", &input, "--to", to];
    let matrix = at("imatrix/matrix.gguf");
    for (mut arguments, option, reason) in [
        (forget("awq"), vec!["--imatrix", &matrix], "GGUF types"),
        (forget("nf4"), vec!["--pure"], "GGUF types"),
        (
            forget("nvfp4"),
            vec!["--group-size", "7"],
            "no choice of the group size",
        ),
        (forget("gguf:q4_k"), vec!["--group-size", "64"], "no choice"),
        (
            forget("w8a16-channel"),
            vec!["--group-size", "64"],
            "no choice",
        ),
        (forget("mlx-mxfp4"), vec!["--group-size", "64"], "no choice"),
        (
            forget("nvfp4"),
            vec!["--scale-rule", "floor"],
            "MXFP4 and MXFP8",
        ),
        (
            forget("nf4"),
            vec!["--tokenizer-pre", "llama-bpe"],
            "whole model",
        ),
        (convert("npz"), vec!["--gguf-kv", "a=b"], "--to gguf"),
        (
            convert("nf4"),
            vec!["--gguf-metadata", "missing.json"],
            "--to gguf",
        ),
        (convert("qnat"), vec!["--out-dtype", "f32"], "QNAT"),
        (
            convert("nf4"),
            vec!["--cast", "--out-dtype", "f32"],
            "encoded",
        ),
        (
            convert("gguf"),
            vec!["--tensors-only", "--tokenizer-pre", "x"],
            "whole model",
        ),
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
    let arguments = [
        "convert",
        &input,
        "--to",
        "gguf",
        "--tokenizer-pre",
        "llama-bpe",
        "-o",
        &output,
    ];
    refused(
        &arguments,
        6,
        &["--tokenizer-pre", "no whole model"],
        root.path(),
    );
    for option in ["--resume", "--part=1/2"] {
        let arguments = ["remember", &input, option, "-o", &output];
        refused(
            &arguments,
            6,
            &["only a directory of safetensors"],
            root.path(),
        );
    }
    for more in [
        &["--to", "f32"][..],
        &["--cast"],
        &["--include", "a"],
        &["--dry-run"],
        &["--root", "a"],
    ] {
        let arguments = [&["remember", &input, "--finish"], more].concat();
        refused(&arguments, 2, &["--finish", more[0]], root.path());
    }
}

/// A file that an option names is looked for before the input is parsed.
/// What clap says and what the program says of wrong arguments ends alike: with the usage of the command.
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

#[test]
fn missing_files_are_named() {
    let root = tempfile::tempdir().unwrap();
    let missing = root.path().join("gone.dat").to_string_lossy().into_owned();
    for (option, to) in [("--imatrix", "gguf:q4_k_m"), ("--like", "nf4")] {
        let arguments = ["forget", "no-such-input", "--to", to, option, &missing];
        refused(&arguments, 7, &["gone.dat"], root.path());
    }
}

#[test]
fn nothing_encoded_says_why() {
    let root = tempfile::tempdir().unwrap();
    let directory = plain_directory(root.path()).to_string_lossy().into_owned();
    for (more, words) in [
        (
            &["--to", "mxfp4-gpt-oss"][..],
            ["no tensor can be encoded", "1: "],
        ),
        (
            &["--to", "nf4", "--group-size", "48"],
            ["1: bitsandbytes has no blocks of 48 values", "1: a norm"],
        ),
    ] {
        let arguments = [&["forget", &directory], more].concat();
        refused(&arguments, 6, &words, root.path());
    }
}

/// Patterns select among blocks that are copied, too.
#[cfg(feature = "gguf")]
/// What was typed matches no tensor: an error if nothing is left then, else a note; both say what may have been meant.
#[test]
fn patterns_that_match_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (model, out) = (
        at("guide/TinyLlama/model.safetensors"),
        dir.path().join("o"),
    );
    let (model, out) = (model.as_str(), out.to_str().unwrap());
    let norm = "model.norm.weigh";
    let errors: [(&[&str], &str); 9] = [
        (
            &["ls", model, "q_proj"],
            "like `q_proj`; `*q_proj*` matches 1",
        ),
        (
            &["remember", model, "--include", norm],
            "near are model.norm.weight",
        ),
        (
            &["remember", model, "--include", "*.q_prj.*"],
            "like `*.q_prj.*`; `amn ls` lists",
        ),
        (
            &["remember", model, "--exclude", "*"],
            "all that are included are excluded",
        ),
        (
            &["remember", model, "--drop", norm],
            "would change; near are model.norm.weight",
        ),
        (
            &["remember", model, "--rename", "mlp=ffn"],
            "would change; `*mlp*` matches 3",
        ),
        (
            &[
                "forget",
                model,
                "--to",
                "nf4",
                "--include",
                "lm_haed.weight",
            ],
            "near are lm_head.weight",
        ),
        (
            &["diff", model, model, "--include", norm],
            "near are model.norm.weight",
        ),
        (&["show", model, norm], "near are model.norm.weight"),
    ];
    for (arguments, words) in errors {
        refused(arguments, 3, &[words], dir.path());
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

#[test]
fn patterns_apply_to_copied_blocks() {
    let root = tempfile::tempdir().unwrap();
    let (input, output) = (at("gguf-files/whole.gguf"), root.path().join("some.gguf"));
    let all = parse(&input).unwrap();
    let name = all.tensors().next().unwrap().name().to_owned();
    let path = output.to_string_lossy();
    succeed(&[
        "convert",
        &input,
        "--to",
        "gguf",
        "--include",
        &name,
        "-o",
        &path,
    ]);
    let some = parse(&output).unwrap();
    let names: Vec<_> = some.tensors().map(|t| t.name().to_owned()).collect();
    assert_eq!(names, [name]);
    let arguments = [
        "convert",
        &input,
        "--to",
        "gguf",
        "--include",
        "nothing",
        "-o",
        "none.gguf",
    ];
    refused(&arguments, 3, &["no tensor is left"], root.path());
}

#[cfg(feature = "npz")]
#[test]
fn arrays_that_numpy_does_not_know_are_noted() {
    let root = tempfile::tempdir().unwrap();
    let output = root.path().join("a.npz").to_string_lossy().into_owned();
    let run = |more: &[&str]| {
        let arguments = [
            "convert",
            &at(DEMO),
            "--to",
            "npz",
            "--force",
            "-o",
            &output,
        ];
        succeed(&[&arguments[..], more].concat())
    };
    let text = run(&[]);
    let note =
        "1 BF16: read as `V2`, `.view(ml_dtypes.bfloat16)` gives the values); `--out-dtype f32";
    assert!(text.contains(note), "{text}");
    assert!(!run(&["--out-dtype", "f32"]).contains("NumPy"));
}

/// A whole model as F16: what is beyond its range is an error, although no cast is asked for.
#[test]
fn whole_models_do_not_overflow() {
    let directory = tempfile::tempdir().unwrap();
    let (source, model) = (
        data().join("whole/llama/hf"),
        directory.path().join("model"),
    );
    std::fs::create_dir(&model).unwrap();
    for name in names_in(&source, "") {
        std::fs::copy(source.join(&name), model.join(&name)).unwrap();
    }
    let weights = model.join("model.safetensors");
    let name = "model.layers.1.mlp.up_proj.weight";
    let offset = parse(&weights).unwrap().tensor(name).unwrap().offset();
    let mut bytes = std::fs::read(&weights).unwrap();
    let at = offset.unwrap() as usize + 2 * (3 * 32 + 5);
    let to_gguf = |to: &str| {
        let output = directory.path().join("out.gguf");
        let (model, output) = (model.to_str().unwrap(), output.to_str().unwrap());
        told(&amn(&[
            "convert",
            model,
            "--to",
            "gguf",
            "--out-dtype",
            to,
            "-o",
            output,
            "-f",
        ]))
    };
    assert_eq!(to_gguf("f16").2, 0);
    // A million.
    bytes[at..at + 2].copy_from_slice(&[0x74, 0x49]);
    std::fs::write(&weights, &bytes).unwrap();
    let (_, error, code) = to_gguf("f16");
    assert_eq!(code, 6, "{error}");
    assert!(
        error.contains("[3, 5]") && error.contains("ffn_up"),
        "{error}"
    );
    assert_eq!(to_gguf("bf16").2, 0);
    // What is infinite already stays so.
    bytes[at..at + 2].copy_from_slice(&[0x80, 0x7f]);
    std::fs::write(&weights, &bytes).unwrap();
    assert_eq!(to_gguf("f16").2, 0);
}
