//! Whole files decoded by the canonical libraries (tests/data/README.md), against ours; candle and the
//! `safetensors` crate must load every output.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::PathBuf;

use common::{TARGETS, assert_same, data};
use safetensors::SafeTensors;

/// Every directory below tests/data with a model and what it decodes to.
fn cases(family: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data().join(family)).unwrap();
    let mut cases: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    cases.retain(|c| c.join("expected-f32.safetensors").is_file());
    cases.sort();
    cases
}

fn check(family: &str, least: usize) {
    let cases = cases(family);
    assert!(cases.len() >= least, "{family}: only {} cases", cases.len());
    let mut failures = Vec::new();
    for case in cases {
        if let Err(e) = std::panic::catch_unwind(|| check_case(&case)) {
            let text = e.downcast_ref::<String>().cloned().unwrap_or_default();
            failures.push(format!("{}: {text}", case.display()));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn check_case(case: &std::path::Path) {
    let files = ["model.safetensors", "model.gguf"].map(|name| case.join(name));
    let model = anamnesis::parse(files.iter().find(|file| file.is_file()).unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for (target, name) in TARGETS {
        let expected = std::fs::read(case.join(format!("expected-{name}.safetensors"))).unwrap();
        let context = format!("{} {name}", case.display());
        let bytes = model.remember_to_bytes(target).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_same(&expected, &bytes, &context);
        let output = directory.path().join(name);
        model.remember(&output, target).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert!(std::fs::read(&output).unwrap() == bytes, "{context}: file and memory differ");
        let expected = SafeTensors::deserialize(&expected).unwrap();
        if expected.tensors().iter().any(|(_, t)| t.dtype() == safetensors::Dtype::I8) {
            continue; // candle has no such type
        }
        let loaded = candle_core::safetensors::load(&output, &candle_core::Device::Cpu).unwrap();
        for (name, tensor) in expected.tensors() {
            assert_eq!(loaded[&name].dims(), tensor.shape(), "{context}: {name} in candle");
        }
    }
    assert!(model.inspect().problems.is_empty(), "{}", case.display());
}

#[test]
fn fp8() {
    check("fp8", 28);
}

#[cfg(feature = "nvfp4")]
#[test]
fn nvfp4() {
    check("nvfp4", 8);
}

#[cfg(feature = "bnb")]
#[test]
fn bnb() {
    check("bnb", 25);
}

#[cfg(feature = "gptq")]
#[test]
fn gptq() {
    check("gptq", 62);
}

#[cfg(feature = "awq")]
#[test]
fn awq() {
    check("awq", 14);
}

#[cfg(feature = "gguf")]
#[test]
fn gguf() {
    check("gguf", 29);
}
