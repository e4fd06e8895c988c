//! Nothing happens silently: names of outputs tell the truth, options that do not apply are
//! refused, and what stays as it is is said.

use std::path::{Path, PathBuf};
use std::process::Output;

use anamnesis::{Dtype, parse};

use crate::amn;
use crate::common::directory::{names_in, write_files};
use crate::common::{data, f32s, file, raw};

mod options;
mod outputs;
mod types;

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

/// Runs a command that must fail with `code` and name `words`, in `place`, where it must leave
/// nothing new.
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
        raw("model.layers.0.mlp.up_proj.weight", "F32", &[2, 64], f32s(&[0.1; 128])),
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
