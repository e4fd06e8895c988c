//! Weights that are incomplete or contradictory: each must give the right kind of error, whose
//! message names the tensor and the reason. Codes are never passed on as weights.

mod codebooks;
mod integers;

use anamnesis::TargetDtype;

use crate::common::file;
use crate::common::verdict::{check, recover, tensors};

#[test]
fn fp8() {
    let blocks = r#"{"quant_method":"fp8","weight_block_size":[64,64]}"#;
    let table = r#"
        # A scale is missing, and something says that there should be one.
        {w}; Y.weight F8_E4M3 4,8; Y.weight_scale F32 () |  | Parse: `X.weight` & _scale
        X.weight F8_E5M2 4,8; Y.weight_scale_inv F32 1,1 |  | Parse: `X.weight`
        {w}; scaled_fp8 F8_E4M3 0 |  | Parse: `X.weight`
        {w} | {"quant_method":"fp8"} | Parse: `X.weight` & config
        {w}; X.weight_scale_inv F32 () | {"quant_method":"fp8","weight_scale_semantics":"direct"} | Unsupported: `X.weight` & direct
        # A scale has no weight, or none that it could scale.
        X.weight_scale F32 () |  | Parse: `X.weight_scale`
        X.weight_scale_inv BF16 2,2 |  | Parse: `X.weight_scale_inv`
        X.scale_weight F32 () |  | Parse: `X.scale_weight`
        X.qscale_weight F32 () |  | Parse: `X.qscale_weight`
        X.scale F8_E8M0 2,2 |  | Parse: `X.scale`
        X.weight BF16 4,8; X.weight_scale F32 () |  | Parse: `X.weight_scale`
        X.weight I32 4,8; X.weight_scale F32 4,1 |  | Parse: X.weight
        # Two scales for one weight.
        {w}; X.weight_scale F32 (); X.weight_scale_inv F32 () |  | Parse: `X.weight` & two
        {w}; X.weight_scale F32 (); X.scale F8_E8M0 1,1 |  | Parse: `X.weight` & `X.scale`
        # Scales that do not fit.
        {w}; X.weight_scale F32 3 |  | Parse: `X.weight` & `X.weight_scale` & [3]
        {w}; X.weight_scale F32 8 |  | Parse: `X.weight` & [8]
        {w}; X.weight_scale F32 0 |  | Parse: `X.weight` & [0]
        {w}; X.weight_scale F32 5,1 |  | Parse: `X.weight` & [5, 1]
        {w}; X.weight_scale F32 2,3 |  | Parse: `X.weight` & [2, 3]
        {w}; X.weight_scale F32 1,1,2 |  | Parse: `X.weight` & [1, 1, 2]
        X.weight F8_E4M3 8; X.weight_scale F32 8 |  | Parse: `X.weight` & [8]
        X F8_E4M3 2,4,8; X_scale F32 3,1,1 |  | Parse: `X` & `X_scale`
        {w}; X.weight_scale F64 () |  | Parse: `X.weight_scale` & F64
        {w}; X.weight_scale I32 () |  | Parse: `X.weight_scale` & I32
        # One for each expert, or blocks that the experts share? Ragged blocks of 128, or even ones of 96?
        X F8_E4M3 2,64,8; X_scale F32 2,1 |  | Parse: `X` & `X_scale`
        X.weight F8_E4M3 192,8; X.weight_scale F32 2,1 |  | Parse: `X.weight` & `X.weight_scale`
        # The config says otherwise.
        {big}; X.weight_scale_inv F32 2,2 | {blocks} | Parse: `X.weight` & `X.weight_scale_inv` & config.json & [64, 64]
        {big}; X.weight_scale F32 () | {blocks} | Parse: `X.weight` & config.json
        {big}; X.weight_scale F32 256,1 | {blocks} | Parse: `X.weight` & config.json
        # Integers that the config says are quantized.
        X.weight I8 4,8 | {"quant_method":"bitsandbytes","load_in_8bit":true} | Parse: `X.weight` & config
        X.weight U8 4,8 | {"quant_method":"mxfp4"} | Parse: `X.weight` & mxfp4
        X.weight I32 4,8 | {"quant_method":"quark"} | Parse: `X.weight` & quark
    "#;
    let table = table
        .replace("{w}", "X.weight F8_E4M3 4,8")
        .replace("{big}", "X.weight F8_E4M3 256,256");
    check(&table.replace("{blocks}", blocks));
}

/// A weight without rows or columns has no scales, or one.
#[test]
fn fp8_without_values() {
    let blocks = r#"{"quant_method":"fp8","weight_block_size":[64,64]}"#;
    for (text, config) in [
        ("X.weight F8_E4M3 0,8; X.weight_scale F32 0,1", ""),
        ("X.weight F8_E4M3 0,8; X.weight_scale F32 0", ""),
        ("X.weight F8_E4M3 0,8; X.weight_scale F32 ()", ""),
        ("X.weight F8_E4M3 0,128; X.weight_scale_inv F32 0,2", blocks),
        ("X.weight F8_E4M3 128,0; X.weight_scale_inv F32 2,0", blocks),
        ("X.weight F8_E4M3 8,0; X.weight_scale F32 8,1", ""),
        ("X F8_E4M3 2,0,8; X_scale F32 2,0,1", ""),
    ] {
        let bytes =
            recover(file(&tensors(text), &[]), config).unwrap_or_else(|e| panic!("{text}: {e}"));
        let model = anamnesis::parse_bytes(bytes).unwrap();
        let shapes: Vec<_> = model.tensors().map(|t| (t.dtype(), t.elements())).collect();
        assert_eq!(shapes, [(anamnesis::Dtype::F32, 0)], "{text}");
    }
}

/// FP8 without scales and without a config is a plain cast, and the report says so.
#[test]
fn fp8_cast_is_reported() {
    let model =
        anamnesis::parse_bytes(file(&tensors("X.weight F8_E4M3 4,8; n F32 2"), &[])).unwrap();
    let conversion = model.plan(TargetDtype::BF16).unwrap();
    assert!(
        conversion
            .report()
            .notes
            .iter()
            .any(|n| n.contains("plain cast")),
        "{:?}",
        conversion.report().notes
    );
    conversion.to_bytes().unwrap();
}

#[test]
fn eetq() {
    let table = r#"
        X.weight I8 64,64; {s} | {G} | Parse: `X.weight` & X.weight_scales
        X.qweight I8 64,64; {s} | {G} | Parse: `X.qweight` & X.weight_scales
        {q}; X.weight_scales F16 64,1 | {G} | Parse: `X.weight` & [64, 1]
        {q}; X.weight_scales F32 64 | {G} | Parse: `X.weight_scales` & F16
        X.weight I8 32,64; X.weight_scales F16 64 | {G} | Parse: `X.weight` & multiples
        X.weight I8 64,96; X.weight_scales F16 96 | {G} | Parse: `X.weight` & multiples
        X.weight I8 0,64; X.weight_scales F16 64 | {G} | Parse: `X.weight`
        X.weight I8 2,64,64; X.weight_scales F16 64 | {G} | Parse: `X.weight`
        {q}; X.weight_scales F16 64 | {"quant_method":"eetq","weights":"int4"} | Unsupported: `X.weight` & int4
        {q}; X.weight_scales F16 64 | {"quant_method":"eetq","w_bit":4} | Unsupported: `X.weight` & 4 bits
        {q}; X.weight_scales F16 64 | {"quant_method":"eetq","zero_point":true} | Parse: `X.weight` & zero_point
        {q}; X.weight_scales F16 64 |  | Unsupported: `X.weight` & EETQ
        X.weight_scales F16 64 |  | Parse: `X.weight_scales`
        # Columns of a matrix of several layers.
        a.q_proj.qweight I8 64,64; a.q_proj.weight_scales F16 64 | {G} | Unsupported: `a.q_proj.qweight` & whole
        up_proj.qweight I8 64,64; up_proj.weight_scales F16 64 | {G} | Unsupported: `up_proj.qweight` & whole
    "#;
    let table = table.replace("{q}", "X.weight I8 64,64");
    let table = table.replace("{s}", "X.other F16 64");
    check(&table.replace("{G}", r#"{"quant_method":"eetq","weights":"int8"}"#));
}

#[test]
fn compressed_tensors_without_compression() {
    let table = r#"
        {w} | {"quant_method":"compressed-tensors","format":"dense"} | Unsupported: `X.weight` & dense
        {w} | {"quant_method":"compressed-tensors","format":"mixed-precision","config_groups":{"g":{"format":"dense","targets":["Linear"],"weights":{"num_bits":4}}}} | Unsupported: `X.weight` & dense
        {w} | {"quant_method":"compressed-tensors","format":"int-quantized"} | Parse: `X.weight_scale`
    "#;
    check(&table.replace("{w}", "X.weight BF16 4,64; X.weight_scale BF16 4,1"));
}

#[test]
fn nvfp4() {
    let table = r#"
        {w}; X.weight_scale F8_E4M3 4,2 |  | Parse: `X.weight` & X.weight_scale_2
        {w}; X.weight_scale_2 F32 () |  | Parse: `X.weight` & X.weight_scale
        {w}; X.weight_scale BF16 4,2; X.weight_scale_2 F32 () |  | Parse: `X.weight`
        {w}; X.weight_scale F8_E4M3 4,3; X.weight_scale_2 F32 () |  | Parse: `X.weight` & [4, 3]
        {w}; X.weight_scale F8_E4M3 2,4; X.weight_scale_2 F32 () |  | Parse: `X.weight` & [2, 4]
        X.weight U8 64; X.weight_scale F8_E4M3 8; X.weight_scale_2 F32 () |  | Parse: `X.weight`
        {w}; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 F32 3 |  | Parse: `X.weight_scale_2`
        {w}; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 I32 1 |  | Parse: `X.weight_scale_2`
        {w}; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 F32 0 |  | Parse: `X.weight_scale_2`
        X.weight U8 0,4,16; X.weight_scale F8_E4M3 0,4,2; X.weight_scale_2 F32 0 |  | Parse: X.weight
        X.weight_packed U8 4,16; X.weight_scale F8_E4M3 4,2 |  | Parse: `X.weight_packed` & global_scale
        X.weight_packed U8 4,32; X.weight_scale U8 4,2 | {"quant_method":"auto-round","data_type":"nvfp4_v2"} | Parse: `X.weight_packed` & [4, 2] & 16
        X.weight_packed U8 32; X.weight_scale U8 4 | {"quant_method":"auto-round","data_type":"nvfp4_v2"} | Parse: `X.weight_packed`
        X.weight_packed U8 4,32; X.weight_scale U8 4,4 | {"quant_method":"compressed-tensors"} | Parse: `X.weight_packed` & 32
        X.weight_packed U8 4,16; X.weight_global_scale F32 1 |  | Parse: `X.weight_packed` & X.weight_scale
        X.weight_scale_2 F32 () |  | Parse: `X.weight_scale_2`
        X.weight_global_scale F32 1 |  | Parse: `X.weight_global_scale`
    "#;
    check(&table.replace("{w}", "X.weight U8 4,16"));
}
