//! Files decoded by the canonical libraries (tests/data/README.md) against this crate.

use crate::common::{TARGETS, assert_same, each_case, rounded};

fn check(family: &str, least: usize) {
    each_case(family, "expected-f32.safetensors", least, check_case);
}

fn check_case(case: &std::path::Path) {
    let endings =
        ["safetensors", "gguf", "onnx", "tflite", "xml", "mlmodel", "pte", "keras", "bin"];
    let of_keras = ["weights.h5", "h5"];
    let files = endings
        .iter()
        .chain(&of_keras)
        .map(|ending| case.join(format!("model.{ending}")));
    let files: Vec<_> = files.collect();
    let file = files.iter().find(|file| file.is_file()).unwrap();
    let model = anamnesis::parse(file).unwrap();
    // A model in memory has no config beside it. Its codes are decoded where they are, and not
    // read.
    let is_json = |entry: std::io::Result<std::fs::DirEntry>| {
        entry
            .unwrap()
            .path()
            .extension()
            .is_some_and(|e| e == "json")
    };
    let has_config = std::fs::read_dir(case).unwrap().any(is_json);
    // Nor has it the data of a graph that is in another file.
    let is_alone = !has_config && !file.ends_with("model.xml") && !case.join("weights").is_dir();
    let in_memory = is_alone.then(|| anamnesis::parse_bytes(std::fs::read(file).unwrap()).unwrap());
    let directory = crate::common::tempdir().unwrap();
    for (target, name) in TARGETS {
        let own = case.join(format!("expected-{name}.safetensors"));
        let expected = match own.is_file() {
            true => std::fs::read(own).unwrap(),
            false => {
                let f32 = std::fs::read(case.join("expected-f32.safetensors")).unwrap();
                rounded(&f32, &model, target)
            }
        };
        let context = format!("{} {name}", case.display());
        let bytes = model
            .remember_to_bytes(target)
            .unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_same(&expected, &bytes, &context);
        if let Some(in_memory) = &in_memory {
            let same = in_memory.remember_to_bytes(target).unwrap() == bytes;
            assert!(same, "{context}: of a model in memory");
        }
        let output = directory.path().join(name);
        model
            .remember(&output, target)
            .unwrap_or_else(|e| panic!("{context}: {e}"));
        assert!(std::fs::read(&output).unwrap() == bytes, "{context}: file and memory differ");
    }
    assert!(model.inspect().problems.is_empty(), "{}", case.display());
}

#[test]
fn fp8() {
    check("fp8", 28);
}

#[test]
fn nvfp4() {
    check("nvfp4", 8);
}

#[test]
fn bnb() {
    check("bnb", 25);
}

#[test]
fn gptq() {
    check("gptq", 62);
}

#[test]
fn ollama() {
    check("ollama", 1);
}

#[test]
fn awq() {
    check("awq", 14);
}

#[cfg(feature = "onnx")]
#[test]
fn onnx() {
    check("onnx_quantized", 56);
}

#[cfg(feature = "tflite")]
#[test]
fn tflite() {
    check("tflite_quantized", 28);
}

#[cfg(feature = "executorch")]
#[test]
fn executorch() {
    check("executorch_quantized", 7);
}

#[cfg(feature = "hdf5")]
#[test]
fn keras() {
    check("keras_quantized", 41);
}

#[cfg(feature = "openvino")]
#[test]
fn openvino() {
    check("openvino_quantized", 28);
}

#[cfg(feature = "coreml")]
#[test]
fn coreml() {
    check("coreml_quantized", 21);
}

#[cfg(feature = "gguf")]
#[test]
fn gguf() {
    check("gguf", 29);
}

#[cfg(feature = "gguf")]
#[test]
fn before_gguf() {
    check("ggml_bin", 32);
}

#[cfg(feature = "gguf")]
#[test]
fn ik_llama() {
    check("ik_llama", 19);
}

#[cfg(feature = "gguf")]
#[test]
fn prism() {
    check("prism", 5);
}

#[cfg(feature = "gguf")]
#[test]
fn ik_interleaved() {
    check("ik_interleaved", 29);
}
