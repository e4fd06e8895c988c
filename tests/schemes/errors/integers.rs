//! Layers of GPTQ, AWQ, Marlin and QQQ that are incomplete or contradictory.

use anamnesis::TargetDtype;

use crate::common::file;
use crate::common::verdict::{Parse, check, recover, tensors, verdict};

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
        # Blocks of ggml.
        X.qweight U8 4,36 | {"quant_method":"gguf","bits":4} | Unsupported: `X.qweight` & `format`
        X.qweight U8 4,36 | {"quant_method":"gguf","bits":3,"format":"q_0"} | Unsupported: `X.qweight` & 3 bits
        X.qweight U8 4,36 | {"quant_method":"gguf","bits":4,"format":"iq_0"} | Unsupported: `X.qweight` & iq_0
        X.qweight U8 4,37 | {"quant_method":"gguf","bits":4,"format":"q_0"} | Parse: `X.qweight` & 18 bytes
        X.qweight U8 36 | {"quant_method":"gguf","bits":4,"format":"q_0"} | Parse: `X.qweight` & [out, bytes]
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
    check(&table.replace("{G}", r#"{"quant_method":"gptq","bits":4,"group_size":32,"sym":false}"#));
}

#[test]
fn gptq_zeros_that_only_a_config_explains() {
    let mut all = tensors("X.qweight I32 12,32; X.scales F16 3,32; X.qzeros I32 3,4");
    all[2].bytes = vec![0x88; 48];
    assert_eq!(
        verdict(recover(file(&all, &[]), ""), Parse, &["`X.qzeros`", "checkpoint_format"]),
        None
    );
    recover(file(&all, &[]), r#"{"bits":4,"sym":true,"checkpoint_format":"gptq_v2"}"#).unwrap();
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
