//! Models in the layout of Hugging Face, decoded by the canonical libraries (tests/data/README.md),
//! against this crate: directories of a few shards, and single layers in every variant of a scheme.

use std::path::Path;

use anamnesis::{AnamnesisError, ParsedModel, parse};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::common::{TARGETS, assert_same, data, each_case, rounded};

fn check(family: &str, least: usize) {
    each_case(family, "model", least, check_case);
}

/// Whether this build has every feature that a case can need.
const WHOLE: bool = cfg!(feature = "pth");

/// Whether a case needs a feature that this build leaves out.
fn is_left_out(case: &Path) -> bool {
    let result = parse(case.join("model")).and_then(|model| model.remember_to_bytes(TARGETS[0].0));
    result.is_err_and(|e| e.to_string().contains("which this build leaves out"))
}

fn check_case(case: &Path) {
    if !WHOLE && is_left_out(case) {
        return;
    }
    let model = parse(case.join("model")).unwrap_or_else(|e| panic!("{e}"));
    let refused = case.join("unsupported.json");
    if refused.is_file() {
        return check_refusal(&model, &refused);
    }
    let f32 = std::fs::read(case.join("expected-f32.safetensors")).unwrap();
    for (target, name) in TARGETS {
        let own = case.join(format!("expected-{name}.safetensors"));
        let expected = if own.is_file() {
            std::fs::read(own).unwrap()
        } else {
            rounded(&f32, &model, target)
        };
        let bytes = model
            .remember_to_bytes(target)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_same(&expected, &bytes, name);
    }
    let library = case.join("library-f32.safetensors");
    if library.is_file() {
        assert_near(&std::fs::read(library).unwrap(), &f32);
    }
    let problems = model.inspect().problems;
    assert!(problems.is_empty(), "{problems:?}");
}

/// Checks that `exact`, which the output equals, is what a library gives that sums in another
/// order: within 1e-5 of the largest value of a row. A row of NaN is one of which the library's own
/// value says nothing.
fn assert_near(library: &[u8], exact: &[u8]) {
    let [library, exact] = [library, exact].map(|file| SafeTensors::deserialize(file).unwrap());
    for (name, want) in library.tensors() {
        let got = exact.tensor(&name).unwrap();
        assert_eq!(want.shape(), got.shape(), "{name}");
        let floats = |t: &TensorView<'_>| -> Vec<f32> {
            let words = t.data().as_chunks().0;
            words.iter().map(|&b| f32::from_le_bytes(b)).collect()
        };
        let (want, got, width) = (floats(&want), floats(&got), got.shape()[1]);
        for (row, (want, got)) in want.chunks(width).zip(got.chunks(width)).enumerate() {
            let bound = 1e-5 * got.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            let is_far = |(want, got): (&f32, &f32)| (want - got).abs() > bound;
            assert!(!want.iter().zip(got).any(is_far), "{name}: row {row}");
        }
    }
}

/// A case that cannot be decoded is refused, and the message names the tensor.
fn check_refusal(model: &ParsedModel, refused: &Path) {
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(refused).unwrap()).unwrap();
    let error = model.remember_to_bytes(TARGETS[0].0).err();
    let Some(AnamnesisError::Unsupported { detail, .. }) = &error else {
        panic!("not refused: {error:?}")
    };
    assert!(detail.contains(json["tensor"].as_str().unwrap()), "{detail}");
}

#[test]
fn compressed_tensors() {
    check("compressed_tensors", 21);
}

#[test]
fn transforms() {
    check("transforms", 7);
}

#[test]
fn rotations() {
    check("rotations", 6);
}

#[test]
fn mxfp4() {
    check("mxfp4", 4);
}

#[test]
fn fp8() {
    check("fp8_dirs", 16);
}

#[test]
fn mlx() {
    check("mlx", 45);
}

#[test]
fn mlx_more() {
    check("mlx_more", 13);
}

#[test]
fn mlx_towers() {
    check("mlx_towers", 3);
}

#[test]
fn modelopt() {
    check("modelopt", 33);
}

#[test]
fn comfy() {
    check("comfy", 18);
}

#[test]
fn comfy_more() {
    check("comfy_more", 18);
}

#[test]
fn comfy_squares() {
    check("comfy_squares", 3);
}

#[test]
fn comfy_banks() {
    check("comfy_banks", 3);
}

#[test]
fn quark() {
    check("quark", 44);
}

#[test]
fn gptq_more() {
    check("gptq_more", 85);
}

#[test]
fn conv1d() {
    check("conv1d", 3);
}

#[test]
fn awq_more() {
    check("awq_more", 17);
}

#[test]
fn marlin() {
    check("marlin", 9);
}

#[test]
fn qqq() {
    check("qqq", 3);
}

#[test]
fn eetq() {
    check("eetq", 3);
}

#[test]
fn higgs() {
    check("higgs", 6);
}

#[test]
fn aqlm() {
    check("aqlm", 7);
}

#[test]
fn vptq() {
    check("vptq", 5);
}

#[test]
fn torchao() {
    check("torchao", 30);
}

#[test]
fn bitnet() {
    check("bitnet", 8);
}

#[test]
fn gemma_qat() {
    check("gemma_qat", 7);
}

#[test]
fn quanto() {
    check("quanto", 26);
}

#[test]
fn paroquant() {
    check("paroquant", 7);
}

#[test]
fn fp_quant() {
    check("fp_quant", 10);
}

#[test]
fn mlc() {
    check("mlc", 16);
}

#[test]
fn sinq() {
    check("sinq", 19);
}

#[test]
fn modelslim() {
    check("modelslim", 4);
}

#[test]
fn marlin24() {
    check("marlin24", 4);
}

#[test]
fn exl2() {
    check("exl2", 3);
}

#[test]
fn exl3() {
    check("exl3", 9);
}

#[test]
fn dfloat11() {
    check("dfloat11", 6);
}

#[test]
fn sglang() {
    check("sglang", 6);
}

/// Layouts that only vLLM, sglang and TensorRT-LLM load.
#[test]
fn vllm() {
    check("vllm", 15);
}

#[test]
fn sdnq() {
    check("sdnq", 41);
}

#[test]
fn spqr() {
    check("spqr", 4);
}

#[test]
fn nunchaku() {
    check("nunchaku", 7);
}

#[test]
fn hqq() {
    check("hqq", 15);
}

#[cfg(feature = "pth")]
#[test]
fn torchao_checkpoints() {
    check("torchao_checkpoints", 6);
}

/// torchao's metadata describes the quantized tensors, so the output must not have it.
#[test]
fn torchao_metadata_is_gone() {
    let model = parse(data().join("torchao/intx_bits/model")).unwrap();
    let output = anamnesis::parse_bytes(model.remember_to_bytes(TARGETS[0].0).unwrap()).unwrap();
    let mut keys: Vec<&str> = output.metadata().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["format"]);
}
