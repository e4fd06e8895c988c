//! Weights that are incomplete or contradictory: each must give the right kind of error, whose
//! message names the tensor and the reason. Codes are never passed on as weights.

use crate::common::file;

use crate::common::verdict::recover;
use crate::common::verdict::{Parse, verdict};
use crate::common::verdict::{check, tensors};
use anamnesis::TargetDtype;

#[test]
fn fp8() {
    let blocks = r#"{"quant_method":"fp8","weight_block_size":[64,64]}"#;
    let table = r#"
        # A scale is missing, and something says that there should be one.
        {w}; Y.weight F8_E4M3 4,8; Y.weight_scale F32 () |  | Parse: `X.weight` & _scale
        X.weight F8_E5M2 4,8; Y.weight_scale_inv F32 1,1 |  | Parse: `X.weight`
        {w}; scaled_fp8 F8_E4M3 0 |  | Parse: `X.weight`
        {w} | {"quant_method":"fp8"} | Parse: `X.weight` & config
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
    let recovery = model.recovery(TargetDtype::BF16).unwrap();
    assert!(
        recovery
            .report()
            .notes
            .iter()
            .any(|n| n.contains("plain cast")),
        "{:?}",
        recovery.report().notes
    );
    recovery.to_bytes().unwrap();
}

#[test]
fn gptq() {
    let table = r#"
        # The width: contradicted, unproved, not decoded.
        {q}; {z} | {"bits":8,"group_size":32} | Parse: `X.qweight` & config.json & 8 bits
        {q}; {z}; {g} | {"bits":2,"group_size":32} | Parse: `X.qweight` & config.json & 2 bits
        {q} |  | Parse: `X.qweight` & bits
        {q}; {z} | {"bits":5,"group_size":32} | Parse: `X.qweight` & 5 bits
        X.qweight I32 24,32; {s} | {"bits":4,"group_size":32,"sym":true,"dynamic":{"+:Y":{"bits":8}}} | Parse: `X.qweight`
        X.qweight I32 24,32; {s} | {"bits":4,"group_size":32,"sym":true,"dynamic":{"+:(?=X":{"bits":8}}} | Parse: `X.qweight`
        X.qweight I32 12,32; {s} | {"bits":4,"group_size":32,"sym":true,"extra_config":{"X":{"bits":8}}} | Parse: `X.qweight` & 48
        X.qweight I32 12,32; {s} | {"bits":4,"group_size":32,"sym":true,"dynamic":{"+:X":{"group_size":64},"+:.*":{"bits":4}}} | Parse: `X.qweight` & 64
        # Planes, or a stream? And planes that do not fill their words.
        X.qweight I32 15,32; {s}; X.qzeros I32 3,5 |  | Parse: `X.qweight` & 5 bits & planes
        X.qweight I32 15,32; {s}; X.qzeros I32 3,5 | {"bits":5,"group_size":32} | Parse: `X.qweight` & planes
        X.qweight I32 15,40; X.scales F16 3,40; X.qzeros I32 3,7 | {"quant_method":"gptq","bits":5,"group_size":32} | Parse: `X.qweight` & planes
        X.qweight I16 9,32; {s}; X.qzeros I16 3,6 | {"quant_method":"gptq","bits":3,"group_size":16} | Parse: `X.qweight` & 3 bits
        # Zero points.
        {q} | {G} | Parse: `X.qweight` & X.qzeros & sym
        {q} | {"bits":4,"group_size":32} | Parse: `X.qweight` & X.qzeros & sym
        {q}; X.qzeros I32 3,5; {g} |  | Parse: `X.qweight` & qzeros
        {q}; X.qzeros I32 2,4 | {G} | Parse: `X.qweight` & qzeros
        {q}; X.qzeros F16 3,4 | {G} | Unsupported: `X.qzeros`
        {q}; {z} | {"bits":4,"checkpoint_format":"bitblas"} | Unsupported: `X.qweight` & bitblas
        {q}; {z} | {"bits":4,"format":"from_mars"} | Unsupported: `X.qweight` & from_mars
        # Shapes and dtypes.
        X.qweight I32 12,32; {z} |  | Parse: `X.qweight` & X.scales
        X.qweight I32 12,32; X.scales F16 3,31; {z} | {G} | Parse: `X.qweight` & [3, 31]
        X.qweight I32 12,32; X.scales F16 32; {z} | {G} | Parse: `X.scales`
        X.qweight I32 12,32; X.scales I32 3,32; {z} | {G} | Parse: `X.scales` & I32
        X.qweight I32 384; {s}; {z} | {G} | Parse: `X.qweight`
        X.qweight I16 12,32; {s}; {z} | {G} | Unsupported: `X.qzeros`
        X.qweight I64 12,32; {s}; {z} | {G} | Unsupported: `X.qweight`
        # Groups; without a config, two groups of 96 can be 48 and 48, or 64 and 32.
        {q}; {z} | {"bits":4,"group_size":64} | Parse: `X.qweight` & config.json & 64
        {q}; {z} | {"bits":4,"group_size":-2} | Parse: `X.qweight` & config.json
        {q}; {z}; X.g_idx I32 64 | {G} | Parse: `X.qweight` & g_idx
        {q}; {z}; X.g_idx I64 96 | {G} | Parse: `X.g_idx`
        {q}; {z}; X.g_idx I32 2,48 | {G} | Parse: `X.g_idx`
        X.qweight I32 12,32; X.scales F16 2,32; X.qzeros I32 2,4 |  | Parse: `X.qweight`
        # Act-order without the order.
        {q}; {z} | {"bits":4,"group_size":32,"desc_act":true} | Parse: X.g_idx & desc_act
        {q}; {z}; X.g_idx I32 0 | {"bits":4,"group_size":32,"desc_act":true} | Parse: X.g_idx & desc_act
        # Shapes say GPTQ.
        {q}; {z} | {"quant_method":"awq","bits":4} | Parse: `X.qweight` & AWQ
        # Left over, and in the way.
        {q}; {z}; Y.scales F16 3,32 | {G} | Parse: `Y.scales`
        X.qzeros I32 3,4 |  | Parse: `X.qzeros`
        X.g_idx I32 96 |  | Parse: `X.g_idx`
        {q}; {z}; X.weight F16 32,96 | {G} | Parse: `X.weight` & twice
        # Nothing in it, in ways that multiply badly.
        X.qweight I32 0,0; X.scales F16 0,0; X.qzeros I32 0,0 |  | Parse: `X.qweight`
        X.qweight I32 1152921504606846976,0; X.scales F16 1,0; X.qzeros I32 1,0 |  | Parse: `X.qweight`
        X.qweight I32 0,4611686018427387904; X.scales F16 0,4611686018427387904; {z} |  | Parse: `X.qweight`
    "#;
    let table = table
        .replace("{q}", "X.qweight I32 12,32; {s}")
        .replace("{s}", "X.scales F16 3,32");
    let table = table
        .replace("{z}", "X.qzeros I32 3,4")
        .replace("{g}", "X.g_idx I32 96");
    check(&table.replace(
        "{G}",
        r#"{"quant_method":"gptq","bits":4,"group_size":32,"sym":false}"#,
    ));
}

#[test]
fn marlin() {
    let table = r#"
        {b}; X.s F16 2,64 | {"bits":8} | Parse: `X.B` & 8 bits
        {b}; X.s F16 2,64 | {"bits":4,"group_size":64} | Parse: `X.B` & 64
        {b}; X.s F16 2,64 | {"bits":4,"sym":false} | Parse: `X.B` & sym
        {b}; X.s F16 2,64 | {"bits":4,"desc_act":true} | Parse: `X.B` & desc_act
        {b}; X.s F16 2,128 |  | Parse: `X.B` & [2, 128]
        {b}; X.s F16 64 |  | Parse: `X.B` & [64]
        {b}; X.s F16 0,64 |  | Parse: `X.B`
        {b}; X.s I32 2,64 |  | Parse: `X.s` & I32
        X.B I32 16,80; X.s F16 2,40 |  | Parse: `X.B`
        X.B F16 16,128; X.s F16 2,64 |  | Parse: `X.B`
        X.B I32 0,128; X.s F16 2,64 |  | Parse: `X.B`
    "#;
    check(&table.replace("{b}", "X.B I32 16,128"));
}

#[test]
fn qqq() {
    let table = r#"
        {b}; X.s_group F16 0 | {"bits":8} | Parse: `X.B` & 8 bits
        {b}; X.s_group F16 0 | {"wbits":8} | Parse: `X.B` & 8 bits
        {b}; X.s_group F16 0 | {"bits":4,"sym":false} | Parse: `X.B` & sym
        {b}; X.s_group F16 0 | {"bits":4,"group_size":128} | Parse: `X.B` & 128
        {b}; X.s_group F16 2,64 | {"bits":4,"group_size":64} | Parse: `X.B` & 64
        {b}; X.s_group F16 2,64 | {"bits":4,"group_size":-1} | Parse: `X.B` & 256
        {b}; X.s_group F16 2,64 | {"bits":4,"desc_act":true} | Parse: `X.B` & desc_act
        {b}; X.s_group F16 1,64 |  | Parse: `X.B` & single group
        {b}; X.s_group F16 2,128 |  | Parse: `X.B` & [2, 128]
        {b}; X.s_group F16 64 |  | Parse: `X.B` & [64]
        {b}; X.s_group F32 2,64 |  | Parse: `X.s_group` & F16
        {b}; X.s_group F16 3,64 |  | Parse: `X.B` & 3 groups
        {b} |  | Parse: `X.B` & s_group
        {b} | {"group_size":128} | Parse: `X.B` & s_group
        X.B I32 16,128; X.s_group F16 2,64 |  | Parse: `X.B` & X.s_channel
        X.B I32 16,128; X.s_channel F16 1,64; X.s_group F16 0 |  | Parse: `X.s_channel` & F32
        X.B I32 16,128; X.s_channel F32 1,128; X.s_group F16 0 |  | Parse: `X.B` & [1, 128]
        X.B I32 16,128; X.s_channel F32 64; X.s_group F16 0 |  | Parse: `X.B` & [64]
        X.B I32 16,80; X.s_channel F32 1,40; X.s_group F16 0 |  | Parse: `X.B`
        X.B F16 16,128; X.s_channel F32 1,64; X.s_group F16 0 |  | Parse: `X.B`
        X.B I32 0,128; X.s_channel F32 1,64; X.s_group F16 0 |  | Parse: `X.B`
        X.B I32 16,0; X.s_channel F32 1,0; X.s_group F16 0 |  | Parse: `X.B`
        X.s_channel F32 1,64 |  | Parse: `X.s_channel`
        X.s_group F16 2,64 |  | Parse: `X.s_group`
    "#;
    check(&table.replace("{b}", "X.B I32 16,128; X.s_channel F32 1,64"));
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
fn aqlm() {
    let table = r#"
        X.codes I8 4,3,2 | {G} | Parse: `X.codes` & X.codebooks
        X.codes I8 4,3,2; {b} | {G} | Parse: `X.codes` & X.scales
        X.codes I16 4,3,2; {b}; {s} | {"quant_method":"aqlm","nbits_per_codebook":16} | Parse: `X.codes` & nbits_per_codebook
        {q} | {"quant_method":"aqlm","num_codebooks":1} | Parse: `X.codes` & num_codebooks
        {q} | {"quant_method":"aqlm","in_group_size":16} | Parse: `X.codes` & in_group_size
        {q} | {"quant_method":"aqlm","out_group_size":2} | Parse: `X.codes` & out_group_size
        X.codes I32 4,3,2; {b}; {s} | {G} | Parse: `X.codes` & I16
        X.codes I8 4,3; {b}; {s} | {G} | Parse: `X.codes`
        X.codes I8 4,3,1; {b}; {s} | {G} | Parse: `X.codes` & codebooks
        # Transposed, as layers for CPUs leave them.
        X.codes I8 3,4,2; {b}; {s} | {G} | Parse: `X.codes` & [3, 1, 1, 1]
        X.codes I8 4,3,2; {b}; X.scales F16 4,3,1,1 | {G} | Parse: `X.codes` & [4, 3, 1, 1]
        X.codes I8 4,3,2; {b}; X.scales I32 4,1,1,1 | {G} | Parse: `X.scales`
        X.codes I8 4,3,2; X.codebooks I8 2,256,1,8; {s} | {G} | Parse: `X.codebooks`
        X.codes I8 4,3,2; X.codebooks F16 2,256,8; {s} | {G} | Parse: `X.codebooks`
        X.codes I8 4,3,2; X.codebooks F16 2,200,1,8; {s} | {G} | Parse: `X.codes` & 200
        X.codes I8 4,3,2; X.codebooks F16 2,512,1,8; {s} | {G} | Parse: `X.codes` & 512
        X.codes I8 4,3,2; X.codebooks F16 2,256,1,128; {s} | {G} | Unsupported: `X.codebooks` & 128
        X.codes I8 4,3,2; X.codebooks F16 2,256,1,0; {s} | {G} | Unsupported: `X.codebooks`
        X.codes I8 4,3,0; X.codebooks F16 0,256,1,8; {s} | {G} | Parse: `X.codes`
        X.codes I8 4,3,2 | {"quant_method":"gptq"} | Parse: `X.codes`
        {q} |  | Unsupported: `X.codes` & config
        {q} | {"quant_method":"gptq"} | Unsupported: `X.codes` & config
        X.codebooks F16 2,256,1,8 | {G} | Parse: `X.codebooks`
    "#;
    let table = table
        .replace("{q}", "X.codes I8 4,3,2; {b}; {s}")
        .replace("{b}", "X.codebooks F16 2,256,1,8");
    let table = table.replace("{s}", "X.scales F16 4,1,1,1");
    check(&table.replace("{G}", r#"{"quant_method":"aqlm"}"#));
}

#[test]
fn vptq() {
    let table = r#"
        X.indices I32 1,2,8 | {C} | Parse: `X.indices` & X.centroids.weight
        {q} |  | Parse: `X.indices` & vector_lens
        {q} | {"vector_lens":[-1,8]} | Parse: `X.indices` & num_centroids
        {q} | {"vector_lens":8,"num_centroids":[-1,256],"num_res_centroids":[-1,-1]} | Parse: `X.indices` & vector_lens
        {q} | {"vector_lens":[-1,-8],"num_centroids":[-1,256],"num_res_centroids":[-1,-1]} | Parse: `X.indices` & vector_lens
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,256],"num_res_centroids":[-1,-1]} | Parse: `X.indices` & inputs
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,200],"num_res_centroids":[-1,-1],"in_features":32} | Unsupported: `X.indices` & 200
        {q} | {"vector_lens":[-1,65],"num_centroids":[-1,256],"num_res_centroids":[-1,-1],"in_features":32} | Unsupported: `X.indices` & 65
        {q} | {"vector_lens":[-1,9223372036854775807],"num_centroids":[-1,256],"num_res_centroids":[-1,-1],"in_features":32} | Unsupported: `X.indices`
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,9223372036854775807],"num_res_centroids":[-1,-1],"in_features":32} | Unsupported: `X.indices`
        {q} | {"vector_lens":[-1,4],"num_centroids":[-1,256],"num_res_centroids":[-1,-1],"in_features":32,"out_features":8} | Parse: `X.indices` & [1, 1024]
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,256],"num_res_centroids":[16,-1],"in_features":32} | Unsupported: `X.indices` & outliers
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,256],"num_res_centroids":[-1,16],"in_features":32} | Parse: `X.indices` & 12 bits
        {q} | {C,"group_num":2} | Parse: `X.indices` & 2 groups
        {q} | {C,"group_size":30} | Parse: `X.indices` & 1 groups
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,256],"num_res_centroids":[-1,-1],"in_features":64} | Parse: `X.indices` & 64 codes
        {q} | {"vector_lens":[-1,8],"num_centroids":[-1,256],"num_res_centroids":[-1,-1],"in_features":70000} | Unsupported: `X.indices` & 70000
        {q} | {D,"out_features":0} | Parse: `X.indices` & outputs
        {q} | {D,"out_features":-2} | Parse: `X.indices` & -2
        {q} | {D,"out_features":17} | Parse: `X.indices` & 17
        {q} | {D,"out_features":8} | Parse: `X.indices` & 8 outputs
        {q} | {C,"is_indice_packed":false} | Unsupported: `X.indices` & packed
        {q} | {C,"indices_as_float":true} | Unsupported: `X.indices` & floats
        {q} | {C,"vector_quant_dim":"in"} | Unsupported: `X.indices` & inputs
        {q} | {C,"enable_perm":true} | Parse: `X.indices` & X.perm
        {q} | {C,"enable_norm":true} | Parse: `X.indices` & X.weight_scale
        {q}; X.weight_scale F16 32 | {C,"enable_norm":true} | Parse: `X.indices` & X.weight_bias
        {q}; {n} | {C,"enable_norm":true,"norm_dim":1} | Parse: `X.indices` & [16]
        {q}; {n} | {C,"enable_norm":true,"norm_dim":2} | Parse: `X.indices` & norm_dim
        {q}; {n} | {C} | Parse: `X.indices` & X.weight_scale
        {q}; X.perm I16 32 | {C} | Parse: `X.indices` & X.perm
        {q}; X.perm I16 16 | {C,"enable_perm":true} | Parse: `X.indices` & [32]
        {q}; X.perm F16 32 | {C,"enable_perm":true} | Parse: `X.perm` & I16
        # All columns are that of input 0.
        {q}; X.perm I16 32 | {C,"enable_perm":true} | Parse: `X.perm` & twice
        {q}; X.res_centroids.weight F16 1,128 | {C} | Parse: `X.indices` & X.res_centroids.weight
        {q}; X.res_indices I16 1,2,32 | {C} | Unsupported: `X.indices` & X.res_indices
        {q}; X.outlier_centroids.weight F16 1,128 | {C} | Parse: `X.indices` & X.outlier_centroids.weight
        {q} | {C,"npercent":0.5} | Parse: `X.indices` & X.outlier_indices
        {q} | {C,"outlier_size":4} | Parse: `X.indices` & X.outlier_indices
        {q}; X.outlier_indices I16 1,2,4 | {C,"outlier_size":5} | Parse: `X.indices` & 5 outliers
        {q}; X.outlier_indices I16 1,2,4 | {C} | Parse: `X.indices` & outliers
        {q}; X.outlier_indices I16 1,2,4 | {O} | Parse: `X.indices` & X.outlier_centroids.weight
        {q}; X.outlier_indices I16 2,2,4 | {O} | Parse: `X.outlier_indices`
        {q}; X.outlier_indices F16 1,2,4 | {O} | Parse: `X.outlier_indices`
        {q}; X.outlier_indices I16 1,3,4; X.outlier_centroids.weight F16 1,128 | {O} | Parse: `X.indices` & [1, 2, 4]
        {q}; X.outlier_indices I16 1,2,4; X.outlier_centroids.weight F16 1,128 | {"vector_lens":[4,8],"num_centroids":[16,256],"num_res_centroids":[-1,-1],"in_features":36,"out_features":16} | Unsupported: `X.indices` & length
        {q}; X.outlier_indices I16 1,2,4; X.outlier_centroids.weight F16 1,128 | {"vector_lens":[8,8],"num_centroids":[16,256],"num_res_centroids":[-1,-1],"in_features":4} | Parse: `X.indices` & outliers
        X.indices I16 1,2,32; X.centroids.weight F16 1,2048 | {C} | Parse: `X.indices` & I32
        X.indices I32 2,8; X.centroids.weight F16 1,2048 | {C} | Parse: `X.indices` & I32
        X.indices I32 1,0,8; X.centroids.weight F16 1,2048 | {C} | Parse: `X.indices`
        X.indices I32 0,2,8; X.centroids.weight F16 0,2048 | {C} | Parse: `X.indices`
        X.indices I32 1,2,8; X.centroids.weight I16 1,2048 | {C} | Parse: `X.centroids.weight`
        X.indices I32 1,2,8 | {"quant_method":"gptq"} | Parse: `X.indices`
        X.centroids.weight F16 1,2048 | {"quant_method":"vptq"} | Parse: `X.centroids.weight`
        X.res_centroids.weight F16 1,128 |  | Parse: `X.res_centroids.weight`
    "#;
    let sizes = r#""num_res_centroids":[-1,-1],"quant_method":"vptq""#;
    let main =
        format!(r#"{{{sizes},"vector_lens":[-1,8],"num_centroids":[-1,256],"in_features":32,"#);
    let outlier = format!(
        r#"{{{sizes},"vector_lens":[8,8],"num_centroids":[16,256],"in_features":36,"out_features":16}}"#
    );
    let table = table
        .replace("{q}", "X.indices I32 1,2,8; X.centroids.weight F16 1,2048")
        .replace("{n}", "X.weight_scale F16 32; X.weight_bias F16 32")
        .replace("{D,", &main)
        .replace("{C}", "{C,}")
        .replace("{C,", &format!(r#"{main}"out_features":16,"#))
        .replace("{O}", &outlier)
        .replace(",}", "}");
    check(&table);
}

#[test]
fn gptq_zeros_that_only_a_config_explains() {
    let mut all = tensors("X.qweight I32 12,32; X.scales F16 3,32; X.qzeros I32 3,4");
    all[2].bytes = vec![0x88; 48];
    assert_eq!(
        verdict(
            recover(file(&all, &[]), ""),
            Parse,
            &["`X.qzeros`", "checkpoint_format"]
        ),
        None
    );
    recover(
        file(&all, &[]),
        r#"{"bits":4,"sym":true,"checkpoint_format":"gptq_v2"}"#,
    )
    .unwrap();
}

/// An index out of range is found when its tile is decoded; the reported index does not depend on
/// the number of threads.
#[test]
fn gptq_group_index_out_of_range() {
    for bad in [3i32, -1, i32::MIN, i32::MAX] {
        let mut all =
            tensors("X.qweight I32 12,32; X.scales F16 3,32; X.qzeros I32 3,4; X.g_idx I32 96");
        all[3].bytes = (0..96)
            .flat_map(|k| if k == 90 { bad } else { k / 32 }.to_le_bytes())
            .collect();
        let model = anamnesis::parse_bytes(file(&all, &[])).unwrap();
        for threads in [1, 2, 5] {
            let options = anamnesis::RememberOptions::new(TargetDtype::BF16).with_threads(threads);
            let wrong = verdict(
                model.remember_to_bytes(options),
                Parse,
                &["`X.g_idx`", &bad.to_string(), "of 3"],
            );
            assert_eq!(wrong, None);
        }
    }
}

#[test]
fn awq() {
    let table = r#"
        {a}; X.qzeros I32 2,4 | {"quant_method":"gptq","bits":4} | Parse: `X.qweight` & GPTQ
        {a}; X.qzeros I32 2,4 | {"quant_method":"awq","bits":8} | Parse: `X.qweight` & config.json & 8 bits
        {a}; X.qzeros I32 2,4 | {"bits":4,"version":"gemv"} | Parse: `X.qweight` & gemv & GEMM
        {a}; X.qzeros I32 2,4 | {"bits":4,"version":"from_mars"} | Unsupported: `X.qweight` & from_mars
        {a}; X.qzeros I32 2,4 | {"quant_method":"auto-round","bits":4,"packing_format":"auto_round:auto_gptq"} | Parse: `X.qweight` & auto_gptq
        X.qweight I32 64,5; X.scales F16 2,32 | {"bits":5} | Parse: `X.qweight` & X.qzeros
        X.qweight I32 64,5; X.scales F16 2,32; X.qzeros I32 2,4 | {"bits":5} | Parse: `X.qzeros`
        X.qweight I32 64,5; X.scales F16 2,32; X.qzeros I32 2,5 | {"bits":4} | Parse: `X.qweight` & 4 bits
        {a}; X.qzeros I32 2,4 | {"bits":4,"group_size":16} | Parse: `X.qweight` & config.json & 16
        {a} |  | Parse: `X.qweight` & X.qzeros & zero_point
        {a}; X.qzeros I32 2,5 |  | Parse: `X.qzeros`
        {a}; X.qzeros I32 1,4 |  | Parse: `X.qzeros`
        X.qweight I32 64,4; X.scales F16 64; X.qzeros I32 2,4 |  | Parse: `X.scales`
        X.qweight I32 64,4; X.scales I32 2,32; X.qzeros I32 2,4 |  | Parse: `X.scales` & I32
        X.qweight I32 0,0; X.scales F16 0,0; X.qzeros I32 0,0 |  | Parse: `X.qweight`
        # GEMV: the group size, the width of the zero points; and what could be GEMM, too.
        X.qweight I32 32,16; X.scales F16 32,8; X.qzeros I32 32,1 | {"bits":4,"group_size":64} | Parse: `X.qweight` & 64
        X.qweight I32 32,16; X.scales F16 32,8; X.qzeros I32 32,1 | {"bits":4,"group_size":16} | Unsupported: `X.qweight` & 16
        X.qweight I32 32,32; X.scales F16 32,8; X.qzeros I32 32,1 |  | Parse: `X.qweight` & config
        X.qweight I32 32,16; X.scales F16 32,8; X.qzeros I32 32,2 |  | Parse: `X.qweight` & [32, 8]
        X.qweight I32 32,16; X.scales F16 32,8; X.qzeros I32 32,1 | {"bits":4,"version":"gemm"} | Parse: `X.qweight` & gemm
        X.qweight I32 32,4; X.scales F16 32,32; X.qzeros I32 32,4 |  | Parse: `X.qweight` & GEMM & GEMV
        # GEMV-fast.
        X.qweight I16 8,128; X.scales F16 8,32; X.qzeros F16 8,32 | {"bits":4,"group_size":64} | Parse: `X.qweight` & 64
        X.qweight I16 8,128; X.scales F16 8,32; X.qzeros F16 8,32 | {"bits":4,"version":"gemv"} | Parse: `X.qweight` & gemv
        X.qweight I16 8,128; X.scales F16 8,31; X.qzeros F16 8,31 |  | Parse: `X.qweight` & [8, 31]
        X.qweight I16 8,100; X.scales F16 8,32; X.qzeros F16 8,32 |  | Parse: `X.qweight`
        X.qweight I16 8,128; X.scales F16 8,32; X.scaled_zeros F16 7,32 |  | Parse: `X.scaled_zeros`
        X.qweight I16 8,128; X.scales F16 7,32; X.scaled_zeros F16 7,32 |  | Parse: `X.scaled_zeros`
        X.scaled_zeros F16 8,32 |  | Parse: `X.scaled_zeros`
        # Marlin.
        X.qweight I32 16,128; X.scales F16 2,64 | {"bits":4,"version":"gemv"} | Parse: `X.qweight` & Marlin
        X.qweight I32 16,128; X.scales F16 2,64 | {"bits":4,"zero_point":true} | Parse: `X.qweight` & zero_point
        X.qweight I32 16,80; X.scales F16 2,40 |  | Parse: `X.qweight` & Marlin
    "#;
    check(&table.replace("{a}", "X.qweight I32 64,4; X.scales F16 2,32"));
}

#[test]
fn bnb() {
    let table = r#"
        {w}; {a}; {m} |  | Parse: `X.weight` & quant_state
        {w}; {m}; {s} {ok} |  | Parse: `X.weight` & X.weight.absmax
        {w}; {a}; {s} {ok} |  | Parse: `X.weight` & X.weight.quant_map
        {w}; {s} {ok} |  | Parse: `X.weight`
        {a} |  | Parse: `X.weight.absmax`
        {s} {ok} |  | Parse: {state}
        # What the state says.
        {w}; {a}; {m}; {s} {"blocksize":64 |  | Parse: {state}
        {w}; {a}; {m}; {s} ? |  | Parse: {state}
        {w}; {m}; X.weight.absmax F32 1; {s} {"shape":[8,16]} |  | Parse: `X.weight.absmax` & blocks of 64
        {w}; {a}; {m}; {s} {"blocksize":2147483648,"shape":[8,16]} |  | Parse: {state} & 2147483648
        {w}; {m}; X.weight.absmax F32 1; {s} {"blocksize":8192,"shape":[8,16]} |  | Parse: {state} & 8192
        {w}; {m}; X.weight.absmax F32 8; {s} {"blocksize":16,"shape":[8,16]} |  | Parse: {state} & blocks of 16
        {w}; {a}; {m}; {s} {"blocksize":64,"shape":[8,16],"blocksize":128} |  | Parse: {state} & `blocksize` & twice
        {w}; {a}; {m}; {s} {"blocksize":64} |  | Parse: {state} & shape
        {w}; {a}; {m}; {s} {"blocksize":-64,"shape":[8,16]} |  | Parse: {state}
        {w}; {a}; {m}; {s} {"blocksize":0,"shape":[8,16]} |  | Parse: {state}
        {w}; {a}; {m}; {s} {"blocksize":63,"shape":[8,16]} |  | Parse: {state} & 63
        {w}; {a}; {m}; {s} {"blocksize":64,"shape":[8,17]} |  | Parse: `X.weight` & [8, 17]
        {w}; {a}; {m}; {s} {"blocksize":64,"shape":[9223372036854775808,4]} |  | Parse: `X.weight`
        {w}; {a}; {m}; {s} {"blocksize":64,"shape":[0,16]} |  | Parse: `X.weight`
        {w}; {a}; {m}; {s} {"blocksize":64,"shape":[8,16],"dtype":"{long}"} |  | Parse: {state}
        # Companions that do not fit.
        {w}; {m}; {s} {ok}; X.weight.absmax F32 3 |  | Parse: `X.weight.absmax`
        {w}; {m}; {s} {ok}; X.weight.absmax I32 2 |  | Parse: `X.weight.absmax` & I32
        {w}; {a}; {s} {ok}; X.weight.quant_map F32 15 |  | Parse: `X.weight.quant_map`
        {w}; {a}; {s} {ok}; X.weight.quant_map F16 16 |  | Parse: `X.weight.quant_map`
        # Double quantization.
        {w}; {m}; {d}; {nm}; {s} {nested:256} |  | Parse: `X.weight` & nested_absmax
        {w}; {m}; {d}; {na}; {s} {nested:256} |  | Parse: `X.weight` & nested_quant_map
        {w}; {m}; {d}; {na}; {nm}; {s} {ok} |  | Parse: `X.weight` & nested_offset
        {w}; {m}; {d}; {na}; {nm}; {s} {nested:0} |  | Parse: `X.weight` & blocks of 0
        {w}; {m}; {d}; {na}; {nm}; {s} {nested:4294967296} |  | Parse: `X.weight` & blocks of 4294967296
        {w}; {m}; {d}; X.weight.nested_absmax F32 2; {nm}; {s} {nested:256} |  | Parse: `X.weight.nested_absmax`
        {w}; {m}; {d}; {na}; X.weight.nested_quant_map F32 9; {s} {nested:256} |  | Parse: `X.weight.nested_quant_map`
        # LLM.int8().
        X.weight I8 8,16; X.SCB F32 7 |  | Parse: `X.SCB` & [8]
        X.weight I8 8,16; X.SCB F16 8 |  | Parse: `X.SCB` & F16
        X.weight I8 128; X.SCB F32 128 |  | Parse: `X.weight`
        X.SCB F32 8 |  | Parse: `X.SCB`
        X.weight I8 8,16; X.SCB F32 8; X.weight_format TEXT 2 |  | Unsupported: `X.weight` & weight_format
        # Codes under the dtype of weights, whose companions are elsewhere.
        X.weight BF16 64,1; n.weight BF16 8 | {bf16 storage} | Parse: `X.weight`
    "#;
    let names = [
        ("{w}", "X.weight U8 64,1"),
        ("{a}", "X.weight.absmax F32 2"),
        ("{d}", "X.weight.absmax U8 2"),
        ("{m}", "X.weight.quant_map F32 16"),
        ("{s}", "X.weight.quant_state.bitsandbytes__nf4 TEXT"),
        ("{na}", "X.weight.nested_absmax F32 1"),
        ("{nm}", "X.weight.nested_quant_map F32 256"),
        (
            "{ok}",
            r#"{"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[8,16]}"#,
        ),
        (
            "{nested:",
            r#"{"blocksize":64,"shape":[8,16],"nested_offset":0.5,"nested_blocksize":"#,
        ),
        ("{long}", &"x".repeat(70_000)),
        (
            "{bf16 storage}",
            r#"{"load_in_4bit":true,"bnb_4bit_quant_storage":"bfloat16"}"#,
        ),
        ("{state}", "`X.weight.quant_state.bitsandbytes__nf4`"),
    ];
    check(
        &names.iter().fold(table.to_owned(), |table, (short, long)| {
            table.replace(short, long)
        }),
    );
}

/// States that say less or more than bitsandbytes writes decode as those that it writes.
#[test]
fn bnb_states() {
    let with = |state: &str| {
        let mut all = tensors(
            "X.weight U8 64,1; X.weight.absmax F32 2; X.weight.quant_map F32 16; \
             X.weight.quant_state.bitsandbytes__nf4 U8 1",
        );
        for (t, fill) in all.iter_mut().zip([0x12, 0x3f, 0x3e]) {
            t.bytes.fill(fill);
        }
        all[3].shape = vec![state.len()];
        all[3].bytes = state.into();
        recover(file(&all, &[]), "").unwrap()
    };
    let whole = with(r#"{"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[8,16]}"#);
    for state in [
        r#"{"shape":[8,16]}"#,
        r#"{"blocksize":64,"shape":[8,16],"nested_blocksize":0}"#,
        r#"{"blocksize":64,"shape":[8,16],"nested_blocksize":null,"nested_offset":null}"#,
        r#"{"blocksize":64,"shape":[8,16],"quant_storage":"uint8","version":{"of":[1,2]}}"#,
        r#"{"blocksize":64,"shape":[8,16],"shape":[8,16]}"#,
    ] {
        assert!(with(state) == whole, "{state}");
    }
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
        X.weight_packed U8 4,16; X.weight_global_scale F32 1 |  | Parse: `X.weight_packed` & X.weight_scale
        X.weight_scale_2 F32 () |  | Parse: `X.weight_scale_2`
        X.weight_global_scale F32 1 |  | Parse: `X.weight_global_scale`
    "#;
    check(&table.replace("{w}", "X.weight U8 4,16"));
}
