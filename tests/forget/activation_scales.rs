//! Scales of FP8 activations (`Forget::activation_scales`), from JSON and from a model that has them.

use std::path::Path;

use anamnesis::{ConvertOptions, Forget, ForgetScheme, ParsedModel, parse_bytes};
use serde_json::{Value, json};

use crate::common::forget::{bf16s, decoded, encoded, values_of, weights};
use crate::common::{Random, f32s, file, raw};

const MODULES: [&str; 2] = ["model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"];

fn model() -> ParsedModel {
    let matrix = |module: &str| {
        let values = weights(&mut Random(3), 128 * 256);
        raw(&format!("{module}.weight"), "BF16", &[128, 256], bf16s(&values))
    };
    parse_bytes(file(&MODULES.map(matrix), &[])).unwrap()
}

fn options(scheme: &str, path: &Path) -> ConvertOptions {
    let mut forget = Forget::from(scheme.parse::<ForgetScheme>().unwrap());
    forget.activation_scales = Some(path.to_owned());
    forget.into()
}

#[test]
fn scales_are_stored_beside_the_weights() {
    let (model, directory) = (model(), crate::common::tempdir().unwrap());
    let [json, tensors] = ["scales.json", "scales.safetensors"].map(|n| directory.path().join(n));
    // One name is a module's, one that of its scale.
    let scales = json!({ MODULES[0]: 0.0125, format!("{}.input_scale", MODULES[1]): 2.5 });
    std::fs::write(&json, scales.to_string()).unwrap();
    let stored = [
        raw(&format!("{}.input_scale", MODULES[0]), "F32", &[], f32s(&[0.0125])),
        raw(&format!("{}.activation_scale", MODULES[1]), "BF16", &[1], bf16s(&[2.5])),
        raw("model.norm.weight", "BF16", &[4], bf16s(&[1.0; 4])),
    ];
    std::fs::write(&tensors, file(&stored, &[])).unwrap();
    for (scheme, end, shape) in [
        ("fp8", "input_scale", &[1][..]),
        ("fp8-channel", "input_scale", &[1]),
        ("fp8-tensor", "activation_scale", &[]),
        ("fp8-comfy", "input_scale", &[]),
        ("fp8-comfy-e5m2", "input_scale", &[]),
    ] {
        let plain = encoded(&model, scheme.parse::<ForgetScheme>().unwrap().into())
            .unwrap()
            .0;
        for path in [&json, &tensors] {
            let (output, report) = encoded(&model, options(scheme, path)).unwrap();
            assert_eq!(report.encoded.len(), 2, "{scheme}");
            for (module, scale) in MODULES.into_iter().zip([0.0125f32, 2.5]) {
                let stored = output.tensor(&format!("{module}.{end}")).unwrap();
                assert_eq!(stored.shape(), shape, "{scheme}");
                let bytes = match stored.dtype().to_string().as_str() {
                    "F32" => f32s(&[scale]),
                    _ => bf16s(&[scale]),
                };
                assert_eq!(*stored.bytes().unwrap(), bytes, "{scheme} {module}");
                let weight = format!("{module}.weight");
                let values = |model: &ParsedModel| values_of(&decoded(model).unwrap(), &weight);
                assert_eq!(values(&output), values(&plain), "{scheme} {module}");
            }
        }
    }
}

/// Modules that the file does not know stay, and the config says that activations have known scales.
#[test]
fn unknown_modules_stay() {
    let (model, directory) = (model(), crate::common::tempdir().unwrap());
    let path = directory.path().join("scales.json");
    std::fs::write(&path, json!({ MODULES[0]: 0.5 }).to_string()).unwrap();
    for (scheme, place, expected) in [
        ("fp8", "/config_groups/group_0/input_activations/dynamic", json!(false)),
        ("fp8-tensor", "/activation_scheme", json!("static")),
    ] {
        let output = directory.path().join(scheme);
        let report = model.forget(&output, options(scheme, &path)).unwrap();
        let reasons: Vec<&str> = report.kept.iter().map(|kept| &*kept.reason).collect();
        assert_eq!(reasons, ["the file has no scale of its activations"]);
        let config = anamnesis::parse(&output).unwrap();
        let config = config
            .metadata()
            .get("quantization_config")
            .cloned()
            .unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config.pointer(place), Some(&expected), "{scheme}");
    }
}

#[test]
fn wrong_files_are_refused() {
    let (model, directory) = (model(), crate::common::tempdir().unwrap());
    let path = directory.path().join("scales.json");
    for (text, words) in [
        ("[1]", "no JSON object"),
        ("{}", "has no scale of an input"),
        (r#"{"a": "x"}"#, "the value of `a` is no number"),
        (r#"{"a": 0}"#, "the scale of `a` is 0e0"),
        (r#"{"a": -1}"#, "the scale of `a` is -1e0"),
        (r#"{"a": 1e300}"#, "the scale of `a` is inf"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = encoded(&model, options("fp8", &path))
            .unwrap_err()
            .to_string();
        assert!(error.contains(words) && error.contains("scales.json"), "{error}");
    }
    let pairs = [raw("a.input_scale", "F32", &[2], f32s(&[1.0, 2.0]))];
    let path = directory.path().join("scales.safetensors");
    std::fs::write(&path, file(&pairs, &[])).unwrap();
    let error = encoded(&model, options("fp8", &path))
        .unwrap_err()
        .to_string();
    assert!(error.contains("is not one float"), "{error}");
    let error = encoded(&model, options("nf4", &path))
        .unwrap_err()
        .to_string();
    assert!(error.contains("--activation-scales: nf4 stores none"), "{error}");
}
