//! What becomes of the types of values: names of outputs tell the truth, casts, and notes on what
//! stays as it is.

use std::path::Path;

use anamnesis::{Dtype, parse};

use super::{DEMO, at, dtypes, plain_directory, refused, succeed, told};
use crate::amn;
use crate::common::directory::names_in;
use crate::common::{data, file, raw};

#[test]
fn names_have_the_types_that_are_there() {
    let root = crate::common::tempdir().unwrap();
    let input = plain_directory(root.path()).to_string_lossy().into_owned();
    let text = succeed(&["remember", &input, "--to", "bf16"]);
    assert!(root.path().join("plain-F32/model.safetensors").exists(), "{text}");
    assert!(!root.path().join("plain-BF16").exists());
    let note = "Note: not quantized, and of the same type as before: 2 tensors (1 F32, 1 F16); --cast converts them";
    assert!(text.contains(note), "{text}");
    let text = succeed(&["remember", &input, "--to", "bf16", "--cast"]);
    let output = root.path().join("plain-BF16");
    assert!(text.contains("Casting...   2 tensors") && !text.contains("Note:"), "{text}");
    assert_eq!(dtypes(&output), [Dtype::I64, Dtype::BF16, Dtype::BF16]);
    let config = std::fs::read_to_string(output.join("config.json")).unwrap();
    assert_eq!(config, r#"{"torch_dtype": "bfloat16"}"#);
    let plan = succeed(&["remember", &input, "--to", "bf16", "--cast", "--dry-run", "--force"]);
    assert!(plan.contains("Cast:        2 tensors\nAs they are: 1 tensor"), "{plan}");
    let json = succeed(&["remember", &input, "--cast", "--dry-run", "--json", "--force"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["cast"], &json["passthrough"]), (&2.into(), &1.into()));
    let json = succeed(&["remember", &input, "--dry-run", "--json", "--force"]);
    assert!(json.contains("as before: 2 tensors"), "{json}");
    // What is decoded has the type that was asked for.
    std::fs::copy(at(DEMO), root.path().join("m-fp8.safetensors")).unwrap();
    succeed(&["remember", root.path().join("m-fp8.safetensors").to_str().unwrap()]);
    assert!(root.path().join("m-bf16.safetensors").exists());
}

#[cfg(feature = "npz")]
#[test]
fn arrays_give_their_types_to_names_and_are_cast() {
    let root = crate::common::tempdir().unwrap();
    let tensors = |values: &[f64]| {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        file(&[raw("a", "F64", &[2, 2], bytes)], &[])
    };
    let path = |name: &str| root.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path("in.safetensors"), tensors(&[0.1, 1.0, 1e5, -2.0])).unwrap();
    succeed(&["convert", &path("in.safetensors"), "--to", "npz", "-o", &path("a.npz")]);
    succeed(&["convert", &path("a.npz"), "--to", "safetensors"]);
    assert_eq!(dtypes(Path::new(&path("a-f64.safetensors"))), [Dtype::F64]);
    let cast = ["convert", &path("a.npz"), "--to", "safetensors", "--cast", "--out-dtype"];
    succeed(&[&cast[..], &["f32"]].concat());
    assert_eq!(dtypes(Path::new(&path("a-f32.safetensors"))), [Dtype::F32]);
    // 1e5 is beyond F16.
    let f16 = [&cast[..], &["f16"]].concat();
    refused(&f16, 6, &["tensor `a`: 100000.0 at [1, 0]", "65504"], root.path());
    succeed(&[&f16[..], &["--saturate"]].concat());
    let model = parse(path("a-f16.safetensors")).unwrap();
    let bytes = model.tensor("a").unwrap().bytes().unwrap();
    assert_eq!(bytes[4..6], 0x7bffu16.to_le_bytes());
    // Casting needs a type, saturating a cast.
    refused(&cast[..cast.len() - 1], 2, &["--cast", "--out-dtype"], root.path());
    refused(&["remember", &path("a.npz"), "--saturate"], 2, &["--cast"], root.path());
}

#[cfg(feature = "npz")]
#[test]
fn arrays_that_numpy_does_not_know_are_noted() {
    let root = crate::common::tempdir().unwrap();
    let output = root.path().join("a.npz").to_string_lossy().into_owned();
    let run = |more: &[&str]| {
        let arguments = ["convert", &at(DEMO), "--to", "npz", "--force", "-o", &output];
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
    let directory = crate::common::tempdir().unwrap();
    let (source, model) = (data().join("whole/llama/hf"), directory.path().join("model"));
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
        told(&amn(&["convert", model, "--to", "gguf", "--out-dtype", to, "-o", output, "-f"]))
    };
    assert_eq!(to_gguf("f16").2, 0);
    // A million.
    bytes[at..at + 2].copy_from_slice(&[0x74, 0x49]);
    std::fs::write(&weights, &bytes).unwrap();
    let (_, error, code) = to_gguf("f16");
    assert_eq!(code, 6, "{error}");
    assert!(error.contains("[3, 5]") && error.contains("ffn_up"), "{error}");
    assert_eq!(to_gguf("bf16").2, 0);
    // What is infinite already stays so.
    bytes[at..at + 2].copy_from_slice(&[0x80, 0x7f]);
    std::fs::write(&weights, &bytes).unwrap();
    assert_eq!(to_gguf("f16").2, 0);
}
