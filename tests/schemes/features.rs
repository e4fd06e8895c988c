//! Schemes that this build does not decode: they are recognised and refused by name.

use crate::common::file;
use crate::common::verdict::{check, recover, tensors};

/// Schemes that this crate recognises and does not decode.
#[test]
fn foreign_schemes() {
    check(
        r#"
        X.qweight I8 8,4; X.wscales BF16 1,8 |  | Unsupported: `X.qweight` & Nunchaku
        X.qweight I32 64,4; X.theta F16 8; X.pairs I16 8; X.scales F16 2,32 |  | Unsupported: `X.qweight` & ParoQuant
        X.weight_packed I32 4,1; X.scale_packed F16 4,1; X.meta I16 4 |  | Unsupported: `X.weight_packed` & marlin-24
        X.weight I8 4,16; X.weight_scale_inv F32 1,1 |  | Unsupported: `X.weight` & blockwise int8
        X.weight U8 4,16; X.weight_scale U8 4,1 |  | Unsupported: `X.weight` & packed bytes
        X.weight U8 1,16; X.weight_scale BF16 1 |  | Unsupported: `X.weight` & packed bytes
        X.W_q U8 4,8; X.scale F16 4,1; X.zero F16 4,1 |  | Unsupported: `X.W_q` & HQQ
        X.W_q U8 4,8 |  | Unsupported: `X.W_q` & HQQ
        X.codes I8 1,4,1; X.codebooks F16 1,256,1,8; X.scales F16 1,1,1,1 |  | Unsupported: `X.codes` & AQLM
        X.q_weight I32 4,8; X.q_scale I32 1,1; X.q_groups I16 2 |  | Unsupported: `X.q_weight` & EXL2
        X.trellis I16 1,1,64; X.suh F16 16; X.svh F16 16 |  | Unsupported: `X.trellis` & EXL3
        X.Qidxs I64 4,1; X.SU F16 8; X.SV F16 8 |  | Unsupported: `X.Qidxs` & QuIP#
        X.indices I32 1,4,8; X.centroids F16 1,256 |  | Unsupported: `X.indices` & VPTQ
        X.indices I32 1,4,8; X.centroids.weight F16 1,256 |  | Unsupported: `X.indices` & VPTQ
        X._weight_qdata I8 4,8; X._weight_scale F32 4,1 |  | Unsupported: `X._weight_qdata` & torchao
        X.weight I8 8,4; X.weight_scales F16 4 |  | Unsupported: `X.weight` & EETQ
        X.weight U8 4,4; X.scale F16 4,1; X.zero_point F16 4,1 |  | Unsupported: `X.weight` & SDNQ
        X.B I32 4,8; X.s_channel F32 1,8; X.s_group F16 2,8 |  | Unsupported: `X.B` & QQQ
        X.embedding_quantized U8 8,4; X.embedding_scale F32 8,1 |  | Unsupported: `X.embedding_quantized` & Gemma
        X.weight F8_E4M3 4,8; X.weight_scale F32 () | {"transform_config":{"config_groups":{"u":{}}}} | Unsupported: transform_config
    "#,
    );
}

/// Packed codes without scales are refused.
#[test]
fn packed_codes_alone() {
    let mxfp4 = r#"{"quant_method":"mxfp4"}"#;
    for (text, config, name) in [
        ("X.weight_packed U8 4,16", "", "`X.weight_packed`"),
        ("X.weight_packed I32 4,2", "", "`X.weight_packed`"),
        ("X_blocks U8 2,4,1,16", mxfp4, "`X_blocks`"),
        ("X.weight F4 4,16", mxfp4, "`X.weight`"),
    ] {
        let said = recover(file(&tensors(text), &[]), config)
            .err()
            .map(|e| e.to_string());
        assert!(
            said.as_ref().is_some_and(|s| s.contains(name)),
            "{text}: {said:?}"
        );
    }
}

/// Without a feature, files that need it are refused by its name, and other files are read as
/// before.
#[test]
fn features_that_are_off() {
    let table = r#"
        X.qweight I32 12,32; X.scales F16 3,32; X.qzeros I32 3,4; X.g_idx I32 96 |  | Unsupported: `X.qweight` & `gptq`
        X.qweight I32 12,32; X.scales F16 3,32; X.qzeros I32 3,4 |  | Unsupported: `X.qweight` & `gptq`
        X.B I32 16,128; X.s F16 2,64 |  | Unsupported: `X.B` & `gptq`
        X.qweight I32 64,4; X.scales F16 2,32; X.qzeros I32 2,4 |  | Unsupported: `X.qweight` & `awq`
        X.qweight I32 64,5; X.scales F16 2,32; X.qzeros I32 2,5 |  | Unsupported: `X.qweight` & `awq`
        X.qweight I32 32,16; X.scales F16 32,8; X.qzeros I32 32,1 |  | Unsupported: `X.qweight` & `awq`
        X.qweight I16 8,128; X.scales F16 8,32; X.scaled_zeros F16 8,32 |  | Unsupported: `X.qweight` & `awq`
        X.qweight I32 16,128; X.scales F16 2,64 |  | Unsupported: `X.qweight` & `awq`
        X.weight {4bit}; X.weight.absmax F32 2; X.weight.quant_map F32 16 |  | Unsupported: `X.weight` & `bnb`
        X.w1 {4bit}; X.w1.absmax F32 2; X.w1.quant_map F32 16 |  | Unsupported: `X.w1` & `bnb`
        X.weight I8 8,16; X.SCB F32 8 |  | Unsupported: `X.weight` & `bnb`
        X.weight U8 4,16; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 F32 () |  | Unsupported: `X.weight` & `nvfp4`
        X.w1 U8 2,4,16; X.w1_weight_scale F8_E4M3 2,4,2; X.w1_weight_scale_2 F32 () |  | Unsupported: `X.w1` & `nvfp4`
        X.weight_packed U8 4,16; X.weight_scale F8_E4M3 4,2; X.weight_global_scale F32 1 |  | Unsupported: `X.weight_packed` & `nvfp4`
    "#;
    let features = [
        ("`gptq`", cfg!(feature = "gptq")),
        ("`awq`", cfg!(feature = "awq")),
        ("`bnb`", cfg!(feature = "bnb")),
    ];
    let mut on = features
        .into_iter()
        .chain([("`nvfp4`", cfg!(feature = "nvfp4"))])
        .filter(|f| f.1)
        .map(|f| f.0);
    let on: Vec<&str> = on.by_ref().collect();
    let off: Vec<&str> = table
        .lines()
        .filter(|line| !on.iter().any(|f| line.ends_with(f)))
        .collect();
    check(&off.join("\n").replace("{4bit}", "U8 64,1"));
    for plain in [
        "a BF16 4; b.weight U8 4; c.scales F16 4",
        "X.weight F8_E4M3 4,8; X.weight_scale F32 ()",
    ] {
        recover(file(&tensors(plain), &[]), "").unwrap();
    }
}
