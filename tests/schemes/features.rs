//! Schemes that this crate does not decode: they are recognised and refused by name.

use crate::common::file;
use crate::common::verdict::{check, recover, tensors};

/// Schemes that this crate recognises and does not decode.
#[test]
fn foreign_schemes() {
    check(
        r#"
        X.qweight I8 8,4; X.wscales BF16 1,8 |  | Unsupported: `X.qweight` & Nunchaku
        X.weight U8 4,16; X.weight_sf I32 128,1; X.weight_sf_rowmajor U8 4,2; X.weight_global_scale F32 1 |  | Unsupported: `X.weight` & NVFP4 of transformers
        X.weight I16 4,16; X.scales F16 4,1; X.tables F16 16; X.tables2 F32 16,16,2 |  | Unsupported: `X.weight` & HIGGS
        X.weight U8 4,16; X.weight_scale U8 4,1 |  | Unsupported: `X.weight` & packed bytes
        X.weight U8 1,16; X.weight_scale BF16 1 |  | Unsupported: `X.weight` & packed bytes
        X.W_q U8 4,8; X.scale F16 4,1; X.zero F16 4,1 |  | Unsupported: `X.W_q` & HQQ
        X.W_q U8 4,8 |  | Unsupported: `X.W_q` & HQQ
        X.Qidxs I64 4,1; X.SU F16 8; X.SV F16 8 |  | Unsupported: `X.Qidxs` & QuIP#
        X.quantized_weight_values U8 4,8; X.quantized_weight_scale_factors F8_E4M3 4 |  | Unsupported: `X.quantized_weight_values` & Four Over Six
        X.trellis I16 4,32; X.SU F16 16; X.SV F32 16 |  | Unsupported: `X.trellis` & QTIP
        X.indices I32 1,4,8; X.centroids F16 1,256 |  | Unsupported: `X.indices` & VPTQ
        X._weight_qdata I8 4,8; X._weight_scale F32 4,1 |  | Unsupported: `X._weight_qdata` & torchao
        X.weight I8 8,4; X.weight_scales F16 4 |  | Unsupported: `X.weight` & EETQ
        X.weight U8 4,4; X.scale F16 4,1; X.zero_point F16 4,1 |  | Unsupported: `X.weight` & SDNQ
        X.weight U8 4,8; X.weight.scale U8 4,1 |  | Unsupported: `X.weight` & Ollama
        X.weight U8 4,34; X.weight.format U8 (); X.weight.dtype U32 (); X.weight.shape U32 2 |  | Unsupported: `X.weight` & UQFF
        X.weight BF16 4,8; X.weight.format U8 () |  | Unsupported: `X.weight` & UQFF
        X.weight F8_E4M3 4,8; X.weight.format U8 (); X.weight.dequant_w_scale F32 () |  | Unsupported: `X.weight` & UQFF
        X.weight U32 4,8; X.weight.format U8 (); X.weight.scales BF16 4,1; X.weight.biases BF16 4,1 |  | Unsupported: `X.weight` & UQFF
        X.weight U8 4,16; X.weight.format U8 (); X.weight.scales U8 4,1 |  | Unsupported: `X.weight` & UQFF
        l.0.X.weight I8 4,8; __nncf_hooks.post_hooks.l:0:X:weight__0.0._scale F16 4,1 |  | Unsupported: `l.0.X.weight` & NNCF
        X.weight U8 16,1; __nncf_hooks.post_hooks.X:weight__0.0._scale F16 4,2,1 |  | Unsupported: `X.weight` & NNCF
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
        assert!(said.as_ref().is_some_and(|s| s.contains(name)), "{text}: {said:?}");
    }
}

/// Files without any scheme, and of the scheme that no other scheme's sign precedes, are read.
#[test]
fn plain_files() {
    for plain in
        ["a BF16 4; b.weight U8 4; c.scales F16 4", "X.weight F8_E4M3 4,8; X.weight_scale F32 ()"]
    {
        recover(file(&tensors(plain), &[]), "").unwrap();
    }
}
