//! Rotations of inputs that are not known, or that contradict the tensors.

use anamnesis::parse_bytes;

use crate::common::file;
use crate::common::verdict::{check_rows, recover, tensors};

const X: &str = "X.weight F8_E4M3 4,8; X.weight_scale F32 ()";

/// A config of AutoRound with MXFP4, and `rotation` in its `rotation_config`.
fn auto_round(rotation: &str) -> String {
    format!(
        r#"{{"quant_method":"auto-round","data_type":"mx_fp","rotation_config":{{{rotation}}}}}"#
    )
}

/// A config of Quark with `rotation` in its settings of rotations.
fn quark(rotation: &str) -> String {
    format!(
        r#"{{"quant_method":"quark","algo_config":[{{"name":"smooth"}},{{"name":"rotation",{rotation}}}]}}"#
    )
}

#[test]
fn refusals() {
    let with = |more: &str| format!("{X}; {more}");
    let spin = r#"{"quant_method":"auto-round","spinquant_config":{"r1":true,"r4":true}}"#;
    let qweight = |module: &str| {
        format!("{module}.qweight I32 12,8; {module}.qzeros I32 1,1; {module}.scales F16 1,8")
    };
    let gptq = r#"{"quant_method":"gptq","bits":4,"group_size":96,"sym":true,"rotation":"hadamard","meta":{"quantizer":["gptqmodel:7.3.4"]}}"#;
    let rows = [
        // What the libraries do not write, or do beyond single layers.
        (
            X.to_owned(),
            auto_round(r#""hadamard_type":"householder""#),
            "Unsupported: rotation_config & householder",
        ),
        (
            X.to_owned(),
            auto_round(r#""hadamard_type":"hadamard","backend":"inplace""#),
            "Unsupported: rotation_config & mx_fp",
        ),
        (
            X.to_owned(),
            auto_round(r#""hadamard_type":"hadamard","fuse_online_to_weight":true"#),
            "Unsupported: rotation_config & mx_fp",
        ),
        (
            X.to_owned(),
            auto_round(r#""hadamard_type":"hadamard""#).replace("mx_fp", "int"),
            "Unsupported: rotation_config & int",
        ),
        (
            X.to_owned(),
            auto_round(r#""hadamard_type":"hadamard","block_size":0"#),
            "Unsupported: rotation_config & block_size",
        ),
        (
            X.to_owned(),
            r#"{"quant_method":"auto-round","rotation_config":"hadamard"}"#.into(),
            "Unsupported: rotation_config",
        ),
        (
            X.to_owned(),
            auto_round(r#""hadamard_type":"hadamard""#).replace("rotation", "hadamard"),
            "Parse: `X.weight` & 32 & 8",
        ),
        (
            X.to_owned(),
            r#"{"data_type":"mx_fp","rotation_config":{"hadamard_type":"hadamard"},"hadamard_config":{"hadamard_type":"hadamard"}}"#
                .into(),
            "Unsupported: rotation_config & hadamard_config",
        ),
        (
            qweight("mlp.up_proj"),
            gptq.replace(r#""rotation":"hadamard""#, r#""rotation":"givens""#),
            "Unsupported: rotation & givens",
        ),
        (
            with("shared_input_rotation_8 F32 8,8"),
            quark(r#""r1":true,"online_r1_rotation":true"#),
            "Unsupported: `shared_input_rotation_8` & share",
        ),
        (
            with("X.input_rotation I8 8,8; X.input_prescale F32 8"),
            String::new(),
            "Unsupported: `X.weight` & input_prescale",
        ),
        // Rotations that are not there.
        (
            X.to_owned(),
            auto_round(r#""hadamard_type":"random_hadamard","block_size":8"#),
            "Unsupported: `X.weight` & hadamard_matrix",
        ),
        (
            X.replace('X', "lm_head"),
            auto_round(r#""hadamard_type":"hadamard","block_size":8"#),
            "Unsupported: `lm_head.weight` & output layer",
        ),
        (
            X.to_owned(),
            quark(r#""r1":true,"online_r1_rotation":true"#),
            "Unsupported: no layer",
        ),
        (
            "a.experts.down_proj F8_E4M3 2,4,32; a.experts.down_proj_scale F32 2,4,1".into(),
            auto_round(r#""hadamard_type":"hadamard""#),
            "Unsupported: `a.experts.down_proj` & linear layer",
        ),
        (
            X.replace('X', "a.down_proj"),
            quark(r#""r1":false,"r4":true"#).replace(r#""rotation""#, r#""quarot""#),
            "Unsupported: `a.down_proj.weight` & missing",
        ),
        (
            X.replace('X', "a.q_proj"),
            spin.into(),
            "Unsupported: `a.q_proj.weight` & missing",
        ),
        (
            X.replace('X', "a.down_proj"),
            spin.into(),
            "Unsupported: `a.down_proj.weight` & missing",
        ),
        (
            qweight("mlp.down_proj"),
            gptq.into(),
            "Unsupported: `mlp.down_proj.qweight` & 96 rows",
        ),
        (
            qweight("mlp.down_proj"),
            gptq.replace("gptqmodel:7.3.4", "gptqmodel:7.3.3"),
            "Unsupported: rotation & version",
        ),
        (
            qweight("mlp.down_proj"),
            gptq.replace("meta", "other"),
            "Unsupported: rotation & version",
        ),
        (
            format!("{}; mlp.down_proj.weight F16 8,8", qweight("mlp.up_proj")),
            gptq.into(),
            "Unsupported: `mlp.down_proj.weight` & not quantized",
        ),
        (
            with("X.input_rotation I8 8,8"),
            r#"{"quant_method":"compressed-tensors","transform_config":{"config_groups":{"v":{"type":"hadamard","head_dim":8,"apply":[{"targets":["X"],"location":"input"}]}}}}"#
                .into(),
            "Unsupported: `transform_config`",
        ),
        (
            with("X.spinquant_r1_type I32 1"),
            String::new(),
            "Parse: `X.weight` & size",
        ),
        // Tensors that do not fit.
        (
            with("X.input_rotation I8 3,3"),
            String::new(),
            "Parse: `X.weight` & 3 & 8",
        ),
        (
            with("X.input_rotation I8 4,2"),
            String::new(),
            "Parse: `X.input_rotation` & square",
        ),
        (
            with("X.input_rotation I32 4,4"),
            String::new(),
            "Parse: `X.input_rotation` & I8",
        ),
        (
            with("X.input_rotation I8 8,8; X.hadamard_matrix F32 8,8"),
            String::new(),
            "Unsupported: `X.weight` & twice",
        ),
        // Of size 0, and of a type that needs no matrix.
        (
            with("X.spinquant_r1_type I32 (); X.spinquant_r1_size I32 ()"),
            String::new(),
            "Unsupported: `X.weight` & 0 rows",
        ),
        (
            with(
                "X.spinquant_r4_type I32 (); X.spinquant_r4_size I32 (); X.spinquant_r4_matrix I8 8,8",
            ),
            String::new(),
            "Parse: `X.weight` & type",
        ),
        (
            with("X.spinquant_r1_type F32 (); X.spinquant_r1_size I32 ()"),
            String::new(),
            "Parse: `X.spinquant_r1_type` & I32",
        ),
    ];
    check_rows(&rows);
}

/// Rotations that are fused into the layer before need nothing, and tensors of those names beside
/// weights that are not quantized are ordinary ones.
#[test]
fn nothing_to_undo() {
    for config in [
        quark(r#""r1":true,"r2":true,"r4":false,"online_r1_rotation":false"#),
        auto_round(""),
        r#"{"quant_method":"auto-round","spinquant_config":{"online_r1_rotation":false,"r2":true,"r3":true}}"#
            .to_owned(),
    ] {
        recover(file(&tensors(&X.replace('X', "a.q_proj")), &[]), &config).unwrap();
    }
    // Versions of GPTQModel that fuse all of a rotation.
    for writer in [r#""gptqmodel:7.3.2""#, r#"["other:9.0.0","gptqmodel:5.6.0+cu130"]"#] {
        let layer = "mlp.down_proj.qweight I32 4,8; mlp.down_proj.qzeros I32 1,1; mlp.down_proj.scales F16 1,8";
        let config = r#"{"quant_method":"gptq","bits":4,"group_size":32,"sym":true,"rotation":"random","meta":{"quantizer":W}}"#;
        recover(file(&tensors(layer), &[]), &config.replace('W', writer)).unwrap();
    }
    let plain = file(&tensors("X.weight F32 4,8; X.hadamard_matrix F32 8,8"), &[]);
    let model = parse_bytes(recover(plain, "").unwrap()).unwrap();
    assert_eq!(model.tensors().count(), 2);
}
