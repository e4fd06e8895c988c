//! MLX: rotations and second scales that contradict the weight or the config, and sizes that
//! nothing tells.

use std::collections::HashMap;

use anamnesis::{AnamnesisError, TargetDtype};

use crate::common::file;
use crate::common::verdict::{Kind, Parse, Unsupported, parse_beside, tensors, verdict};

/// Two bits in groups of 128, of 512 columns.
const AFFINE: &str = "m.X.weight U32 2,32; m.X.scales F16 2,4; m.X.biases F16 2,4";

const NVFP4: &str = "m.X.weight U32 2,4; m.X.scales U8 2,2";

/// `config.json` of a rotated model whose `modules` are `modules`.
fn pack(modules: &str) -> String {
    format!(
        r#"{{"model_type":"prism_hadamard_qwen35","quantization":{{"bits":2,"group_size":128}},"modules":{modules}}}"#
    )
}

fn plain(bits: usize, group: usize) -> String {
    format!(r#"{{"quantization":{{"bits":{bits},"group_size":{group}}}}}"#)
}

fn fails(list: &str, config: &str, metadata: &[(&str, &str)], kind: Kind, words: &[&str]) {
    let result = parse_beside(&file(&tensors(list), metadata), &[("config.json", config)])
        .and_then(|model| model.remember_to_bytes(TargetDtype::F32));
    assert_eq!(verdict(result, kind, words), None, "{list} {config}");
}

#[test]
fn rotations() {
    let signs = |count: usize| format!("{AFFINE}; m.X.signs F32 {count}");
    let one = |block: &str| pack(&format!(r#"[{{"path":"m.X","block":{block}}}]"#));
    let weight = "`m.X.weight`";
    fails(&signs(512), &plain(2, 128), &[], Unsupported, &[weight, "`m.X.signs`", "`modules`"]);
    for modules in
        ["{}", r#"[{"block":512}]"#, r#"[{"path":"m.X"}]"#, r#"[{"path":"m.X","block":-1}]"#]
    {
        fails(&signs(512), &pack(modules), &[], Unsupported, &[weight, "`modules`"]);
    }
    let twice = r#"[{"path":"m.X","block":512},{"path":"m.X","block":0}]"#;
    fails(&signs(512), &pack(twice), &[], Unsupported, &["`m.X` is in `modules` twice"]);
    fails(AFFINE, &one("512"), &[], Parse, &[weight, "`m.X.signs` is missing"]);
    fails(&signs(512), &one("0"), &[], Parse, &["`m.X.signs`", "not rotated"]);
    fails(&signs(512), &pack("[]"), &[], Parse, &["`m.X.signs`", "not rotated"]);
    fails(&signs(512), &one("384"), &[], Parse, &[weight, "384"]);
    fails(&signs(512), &one("1024"), &[], Parse, &[weight, "1024"]);
    fails(&signs(256), &one("512"), &[], Parse, &["`m.X.signs`", "512 inputs"]);
    // Tensors here are of zeros.
    fails(&signs(512), &one("512"), &[], Parse, &["`m.X.signs`", "neither 1 nor -1"]);
    let narrow = signs(512).replace("signs F32", "signs I8");
    fails(&narrow, &one("512"), &[], Parse, &["`m.X.signs`", "I8"]);
}

#[test]
fn second_scales() {
    let config = plain(4, 16);
    for name in ["weight_scale_2", "weight_global_scale"] {
        let full = format!("`m.X.{name}`");
        let with = |list: &str, shape: &str| format!("{list}; m.X.{name} F32 {shape}");
        fails(&with(AFFINE, "()"), &plain(2, 128), &[], Parse, &[&full, "`m.X.weight`"]);
        fails(&with(NVFP4, "2"), &config, &[], Parse, &[&full, "1 matrices"]);
        let global = format!("{NVFP4}; m.X.global_scale F32 ()");
        fails(&with(&global, "()"), &config, &[], Parse, &[&full]);
    }
    let both = format!("{NVFP4}; m.X.weight_scale_2 F32 (); m.X.weight_global_scale F32 ()");
    fails(&both, &config, &[], Parse, &["`m.X.weight_scale_2`", "another scale"]);
}

/// mflux has 5 bits in groups of 64 or of 32, or 8 in groups of 64.
#[test]
fn levels_of_mflux() {
    let list = "m.X.weight U32 2,16; m.X.scales F16 2,2; m.X.biases F16 2,2";
    for level in ["5", "None", "18446744073709551615"] {
        let metadata = [("quantization_level", level), ("mflux_version", "0.24.0")];
        fails(list, "{}", &metadata, Parse, &["`m.X.weight`"]);
    }
}

/// The level says nothing of a model that is decoded.
#[test]
fn levels_of_mflux_are_left_out() {
    let bytes = file(
        &tensors("m.X.weight U32 2,16; m.X.scales F16 2,2; m.X.biases F16 2,2"),
        &[("quantization_level", "4"), ("mflux_version", "0.24.0")],
    );
    let decoded = anamnesis::parse_bytes(bytes)
        .and_then(|model| model.remember_to_bytes(TargetDtype::F32))
        .unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&decoded).unwrap();
    let metadata: &HashMap<String, String> = header.metadata().as_ref().unwrap();
    assert!(metadata.contains_key("mflux_version") && !metadata.contains_key("quantization_level"));
}

/// Weights that ModelOpt has compressed in memory are no plain tensors, with and without a config.
#[test]
fn compressed_weights_of_modelopt() {
    for weight in ["F8_E4M3 4,8", "I8 4,8", "U8 4,4"] {
        for scale in ["BF16 ()", "BF16 4,1", "F8_E4M3 4,1", "U8 4,1"] {
            let list = format!("X.weight {weight}; X.weight_quantizer._scale {scale}");
            let result = anamnesis::parse_bytes(file(&tensors(&list), &[]))
                .and_then(|model| model.remember_to_bytes(TargetDtype::F32));
            let words = ["`X.weight`", "ModelOpt", "export_hf_checkpoint"];
            assert_eq!(verdict(result, Unsupported, &words), None, "{list}");
        }
    }
}

/// A config of MLX holds as long as nothing says that it is another's: both of its keys are there,
/// and say the same.
#[test]
fn other_places_beside_a_config_of_mlx() {
    let list = "m.X.weight U32 2,16; m.X.scales F16 2,2; m.X.biases F16 2,2";
    let quantization = r#"{"bits":4,"group_size":64}"#;
    let parsed = |second: &str| {
        let config = format!(r#"{{"quantization":{quantization},"quantization_config":{second}}}"#);
        let files = [
            ("config.json", config.as_str()),
            ("quantize_config.json", r#"{"bits":8,"group_size":32}"#),
        ];
        let model = parse_beside(&file(&tensors(list), &[]), &files)?;
        model.remember_to_bytes(TargetDtype::F32)
    };
    parsed(quantization).unwrap();
    let other: Result<_, AnamnesisError> = parsed(r#"{"bits":4,"group_size":64,"mode":"affine"}"#);
    assert_eq!(verdict(other, Parse, &["quantize_config.json", "bits"]), None);
}
