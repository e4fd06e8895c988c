//! Files decoded by the canonical libraries (tests/data/README.md) against this crate. candle and
//! the `safetensors` crate must load every output.

use safetensors::SafeTensors;

use crate::common::{TARGETS, assert_same, each_case};

fn check(family: &str, least: usize) {
    each_case(family, "expected-f32.safetensors", least, check_case);
}

fn check_case(case: &std::path::Path) {
    let files = ["model.safetensors", "model.gguf"].map(|name| case.join(name));
    let model = anamnesis::parse(files.iter().find(|file| file.is_file()).unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for (target, name) in TARGETS {
        let expected = std::fs::read(case.join(format!("expected-{name}.safetensors"))).unwrap();
        let context = format!("{} {name}", case.display());
        let bytes = model
            .remember_to_bytes(target)
            .unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_same(&expected, &bytes, &context);
        let output = directory.path().join(name);
        model
            .remember(&output, target)
            .unwrap_or_else(|e| panic!("{context}: {e}"));
        assert!(
            std::fs::read(&output).unwrap() == bytes,
            "{context}: file and memory differ"
        );
        let expected = SafeTensors::deserialize(&expected).unwrap();
        if expected
            .tensors()
            .iter()
            .any(|(_, t)| t.dtype() == safetensors::Dtype::I8)
        {
            continue; // candle has no such type
        }
        let loaded = candle_core::safetensors::load(&output, &candle_core::Device::Cpu).unwrap();
        for (name, tensor) in expected.tensors() {
            assert_eq!(
                loaded[&name].dims(),
                tensor.shape(),
                "{context}: {name} in candle"
            );
        }
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
fn awq() {
    check("awq", 14);
}

#[cfg(feature = "gguf")]
#[test]
fn gguf() {
    check("gguf", 29);
}
