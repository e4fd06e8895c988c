//! Layouts of one producer each (compressed-tensors, MLX, ModelOpt, ComfyUI, Quark, torchao, quanto, HQQ, …) that are incomplete or contradictory: the right kind of
//! error, naming the tensor and the reason. Codes never pass for weights.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::file;
use common::verdict::{Kind, Parse, Unsupported, check, recover, tensors, verdict};

#[test]
fn modelopt() {
    let table = r#"
        # AWQ: shapes, groups, zero points; without a config it could be anything.
        {a}; X.weight_scale F32 4,2 |  | Unsupported: `X.weight`
        {a}; X.weight_scale F32 4,2 | {"quant_algo":"W4A16_AWQ","group_size":16} | Parse: `X.weight` & groups of 16
        {a}; X.weight_scale F32 4,2 | {"quant_algo":"W4A16_AWQ","has_zero_point":true} | Unsupported: `X.weight` & zero
        {a}; X.weight_scale F32 3,2 | {awq} | Parse: `X.weight` & `X.weight_scale` & [3, 2]
        {a}; X.weight_scale F32 4 | {awq} | Parse: `X.weight` & [4]
        {a}; X.weight_scale F32 4,0 | {awq} | Parse: `X.weight` & [4, 0]
        {a}; X.weight_scale F32 4,3 | {awq} | Parse: `X.weight` & [4, 3]
        {a}; X.weight_scale F64 4,2 | {awq} | Parse: `X.weight_scale` & F64
        {a}; X.weight_scale I32 4,2 | {awq} | Unsupported: `X.weight`
        X.weight U8 9223372036854775808,0; X.weight_scale F32 0,2 | {awq} | Parse: `X.weight`
        # MXFP4.
        X.weight U8 4,16; X.weight_scale U8 4,2 | {"quant_algo":"mxfp4"} | Parse: `X.weight` & [4, 2]
        X.weight U8 4,24; X.weight_scale U8 4,1 | {"quant_algo":"mxfp4"} | Parse: `X.weight` & [4, 1]
        X.weight U8 4,16; X.weight_scale U8 3,1 | {"quant_algo":"mxfp4"} | Parse: `X.weight` & [3, 1]
        # FP8 in blocks.
        X.weight F8_E4M3 256,256; X.weight_scale F32 2,1,3,1 |  | Parse: `X.weight` & [2, 1, 3, 1]
        X.weight F8_E4M3 2,256,256; X.weight_scale F32 2,1,2,1 |  | Parse: `X.weight`
        # What multiplies columns.
        {a}; X.weight_scale F32 4,2; X.pre_quant_scale BF16 63 | {awq} | Parse: `X.pre_quant_scale` & 64
        {f}; X.weight_scale F32 (); X.pre_quant_scale BF16 4 |  | Parse: `X.pre_quant_scale` & 8
        {f}; X.weight_scale F32 (); X.pre_quant_scale I32 8 |  | Parse: `X.pre_quant_scale` & I32
        {f}; X.pre_quant_scale BF16 8 |  | Parse: `X.weight` & `X.pre_quant_scale`
        X.weight F8_E4M3FNUZ 4,8; X.weight_scale F32 (); X.pre_quant_scale BF16 8 |  | Parse: `X.pre_quant_scale`
        X.weight I8 4,8; X.weight_scale F32 4; X.pre_quant_scale BF16 7 |  | Parse: `X.pre_quant_scale` & 8
        X.pre_quant_scale BF16 8; X.weight BF16 4,8 |  | Parse: `X.pre_quant_scale`
        {f}; X.weight_scale F32 (); X.svdquant_lora_a BF16 2,8 |  | Parse: `X.svdquant_lora_a`
    "#;
    let names = [
        ("{a}", "X.weight U8 2,64"),
        ("{f}", "X.weight F8_E4M3 4,8"),
        ("{awq}", r#"{"quant_method":"modelopt"}"#),
    ];
    check(
        &names.iter().fold(table.to_owned(), |table, (short, long)| {
            table.replace(short, long)
        }),
    );
}

#[cfg(feature = "nvfp4")]
#[test]
fn modelopt_nvfp4() {
    let table = r#"
        {w}; X.pre_quant_scale BF16 31 |  | Parse: `X.pre_quant_scale` & 32
        {w}; X.svdquant_lora_a BF16 2,32 |  | Parse: `X.weight` & svdquant_lora_b
        {w}; X.weight_quantizer._svdquant_lora_b BF16 4,2 |  | Parse: `X.weight` & svdquant_lora_a
        {w}; X.svdquant_lora_a BF16 2,31; X.svdquant_lora_b BF16 4,2 |  | Parse: `X.weight` & [2, 31]
        {w}; X.svdquant_lora_a BF16 2,32; X.svdquant_lora_b BF16 4,3 |  | Parse: `X.weight` & [4, 3]
        {w}; X.svdquant_lora_a BF16 64; X.svdquant_lora_b BF16 4,2 |  | Parse: `X.weight` & [64]
        {w}; X.svdquant_lora_a I8 2,32; X.svdquant_lora_b BF16 4,2 |  | Parse: `X.svdquant_lora_a` & I8
        # Stacks, packed down the columns.
        X U8 2,8,32; X_weight_scale F8_E4M3 2,1,31; X_weight_scale_2 F32 () |  | Parse: `X` & [2, 1, 31]
        X U8 2,12,32; X_weight_scale F8_E4M3 2,1,32; X_weight_scale_2 F32 () |  | Parse: `X` & [2, 1, 32]
        X U8 2,8,32; X_weight_scale F8_E4M3 2,1,32; X_weight_scale_2 F32 3 |  | Parse: `X_weight_scale_2`
        X U8 8,32; X_weight_scale F8_E4M3 1,32; X_weight_scale_2 F32 () |  | Parse: `X`
        X_packed U8 4,16; X_scale F8_E4M3 4,1; X_global_scale F32 1 |  | Parse: `X_packed` & [4, 1]
        X.weight U8 0,9223372036854775808; X.weight_scale F8_E4M3 0,1152921504606846976; X.weight_scale_2 F32 () |  | Parse: X.weight
    "#;
    check(&table.replace(
        "{w}",
        "X.weight U8 4,16; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 F32 ()",
    ));
    // Nothing in it, and a product of rank nothing.
    let nothing = "X.svdquant_lora_a BF16 0,32; X.svdquant_lora_b F32 4,0";
    for text in [
        "X.weight U8 0,16; X.weight_scale F8_E4M3 0,2; X.weight_scale_2 F32 (); X.pre_quant_scale BF16 32",
        &format!(
            "X.weight U8 4,16; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 F32 (); {nothing}"
        ),
        "X U8 2,0,32; X_weight_scale F8_E4M3 2,0,32; X_weight_scale_2 F32 2",
    ] {
        recover(file(&tensors(text), &[]), "").unwrap();
    }
}

#[test]
fn comfyui() {
    let table = r#"
        {f}; X.comfy_quant TEXT {} |  | Parse: `X.comfy_quant`
        {f}; X.comfy_quant TEXT {"format":1} |  | Parse: `X.comfy_quant`
        {f}; X.comfy_quant TEXT nonsense |  | Parse: `X.comfy_quant`
        {f}; X.comfy_quant TEXT {long} |  | Parse: `X.comfy_quant`
        {f}; X.comfy_quant F32 4 |  | Parse: `X.comfy_quant`
        X.comfy_quant TEXT {"format":"nvfp4"} |  | Parse: `X.comfy_quant`
        X.weight F8_E4M3 4,8; X.comfy_quant TEXT {"format":"float8_e4m3fn"} |  | Parse: `X.weight` & X.weight_scale
        {f}; X.comfy_quant TEXT {"format":"float8_e5m2"} |  | Parse: `X.weight` & float8_e5m2
        {f}; X.comfy_quant TEXT {"format":"int8_tensorwise"} |  | Parse: `X.weight` & int8_tensorwise
        X.weight BF16 4,8; X.comfy_quant TEXT {"format":"nvfp4"} |  | Parse: `X.weight` & nvfp4
        {f}; X.comfy_quant TEXT {"format":"float8_e4m3fn","convrot":1} |  | Unsupported: `X.weight` & convrot
        {f}; X.comfy_quant TEXT {"format":"hybrid_mxfp8"} |  | Unsupported: `X.weight` & hybrid_mxfp8
        # A layer that is not described, in a file that describes layers.
        {f}; Y.comfy_quant TEXT {"format":"float8_e4m3fn"} |  | Unsupported: `X.weight`
        # Tiles.
        X.weight F8_E4M3 32,64; X.weight_scale F8_E8M0 32,2; {mxfp8} |  | Parse: `X.weight` & [32, 2]
        X.weight F8_E4M3 32,64; X.weight_scale F8_E8M0 128,8; {mxfp8} |  | Parse: `X.weight` & [128, 8]
        X.weight F8_E4M3 32,64; X.weight_scale BF16 128,4; {mxfp8} |  | Parse: `X.weight_scale` & BF16
        X.weight F8_E4M3 2,32,64; X.weight_scale F8_E8M0 128,4; {mxfp8} |  | Parse: `X.weight`
        X.weight F8_E4M3 0,9223372036854775808; X.weight_scale F8_E8M0 0,4; {mxfp8} |  | Parse: `X.weight`
        X.weight I8 4,8; X.weight_scale F8_E4M3 4; X.comfy_quant TEXT {"format":"int8_tensorwise"} |  | Parse: `X.weight`
        X.weight U8 16,8; X.weight_scale F8_E4M3 128,4; {nvfp4} |  | {P}: `X.weight` & {2}
        X.weight U8 16,8; X.weight_scale BF16 128,4; X.weight_scale_2 F32 (); {nvfp4} |  | {P}: `X.weight`
        X.weight U8 16,8; X.weight_scale F8_E4M3 16,1; X.weight_scale_2 F32 (); {nvfp4} |  | {P}: `X.weight`
    "#;
    let (is_on, long) = (
        cfg!(feature = "nvfp4"),
        format!(r#"{{"format":"{}"}}"#, "x".repeat(70_000)),
    );
    let names = [
        ("{f}", "X.weight F8_E4M3 4,8; X.weight_scale F32 ()"),
        ("{mxfp8}", r#"X.comfy_quant TEXT {"format":"mxfp8"}"#),
        ("{nvfp4}", r#"X.comfy_quant TEXT {"format":"nvfp4"}"#),
        ("{P}", if is_on { "Parse" } else { "Unsupported" }),
        ("{2}", if is_on { "X.weight_scale_2" } else { "`nvfp4`" }),
        ("{long}", &long),
    ];
    check(
        &names.iter().fold(table.to_owned(), |table, (short, long)| {
            table.replace(short, long)
        }),
    );
}

/// ComfyUI's NVFP4 has ModelOpt's names and, for most sizes, its shapes; only the file's metadata tells that
/// nibbles and scales lie otherwise.
#[test]
fn comfyui_metadata() {
    let fp8 = "X.weight F8_E4M3 4,8; X.weight_scale F32 ()";
    let layers = |text: &str| format!(r#"{{"format_version":"1.0","layers":{text}}}"#);
    let cases: [(&str, String, Kind, &[&str]); 6] = [
        (
            fp8,
            layers(r#"{"Y":{"format":"float8_e4m3fn"}}"#),
            Unsupported,
            &["`X.weight`"],
        ),
        (
            fp8,
            layers(r#"{"X":{"format":"float8_e5m2"}}"#),
            Parse,
            &["`X.weight`", "float8_e5m2"],
        ),
        (
            fp8,
            layers(r#"{"X":{"format":"svdquant_w4a4"}}"#),
            Unsupported,
            &["`X.weight`", "svdquant_w4a4"],
        ),
        (
            fp8,
            layers(r#"{"X":{}}"#),
            Parse,
            &["`X.weight`", "_quantization_metadata"],
        ),
        (
            fp8,
            layers("3"),
            Parse,
            &["`X.weight`", "_quantization_metadata"],
        ),
        (
            fp8,
            "{".to_owned(),
            Parse,
            &["`X.weight`", "_quantization_metadata"],
        ),
    ];
    for (text, metadata, kind, words) in cases {
        let bytes = file(&tensors(text), &[("_quantization_metadata", &metadata)]);
        assert_eq!(verdict(recover(bytes, ""), kind, words), None, "{metadata}");
    }
}

#[test]
fn quark() {
    let table = r#"
        {w}; X.weight_scale F32 2,16 | {"quant_method":"quark"} | Parse: `X.weight` & dtype
        {w}; X.weight_scale F32 2,16 | {int3} | Unsupported: `X.weight` & int3
        {w}; X.weight_scale F32 2,16 | {int8} | Parse: `X.weight` & int8
        {w}; X.weight_scale F32 2,16 | {levels} | Unsupported: `X.weight`
        {w}; X.weight_scale F32 2,16 | {per_block} | Unsupported: `X.weight` & per_block
        {w}; X.weight_scale F32 2,16 | {axis} | Unsupported: `X.weight`
        {w}; X.weight_scale F32 2,16 | {no size} | Parse: `X.weight`
        {w}; X.weight_scale F32 2,16 | {order} | Unsupported: `X.weight` & magic
        {w}; X.weight_scale F32 2,16 | {class} | Unsupported: `X.weight` & layer_type_quant_config
        {w}; X.weight_scale F32 2,16; X.weight_scale_2 F32 () | {G} | Unsupported: `X.weight` & X.weight_scale_2
        # Scales and zero points that do not fit.
        {w}; X.weight_scale F32 16,2 | {G} | Parse: `X.weight` & [16, 2]
        {w}; X.weight_scale F32 3,16 | {G} | Parse: `X.weight` & [3, 16]
        {w}; X.weight_scale F32 () | {G} | Parse: `X.weight` & []
        {w}; X.weight_scale U8 2,16 | {G} | Parse: `X.weight_scale` & U8
        {w}; X.weight_scale F32 2,16; X.weight_zero_point I32 2,16 | {G} | Parse: `X.weight` & `X.weight_zero_point`
        {w}; X.weight_scale F32 2,16; X.weight_zero_point F32 2,2 | {G} | Parse: `X.weight` & `X.weight_zero_point`
        {w}; X.weight_scale F32 2,16 | {asymmetric} | Parse: `X.weight` & weight_zero_point
        X.weight I32 32; X.weight_scale F32 2 | {G} | Parse: `X.weight`
        X.weight I32 0,2305843009213693952; X.weight_scale F32 0,1 | {G} | Parse: `X.weight`
        # One a row, or one.
        X.weight I32 12,2; X.weight_scale F32 12; X.weight_zero_point I32 1 | {channel} | Parse: `X.weight_zero_point`
        X.weight I32 16,2; X.weight_scale F32 16; X.weight_zero_point I32 16 | {channel} | Parse: `X.weight_zero_point`
        X.weight I32 16,2; X.weight_scale F32 16; X.weight_zero_point I32 () | {tensor} | Parse: `X.weight_zero_point`
        X.weight I32 16,2; X.weight_scale F32 (); X.weight_zero_point I32 2 | {tensor} | Parse: `X.weight_zero_point`
        X.weight I32 16,2; X.weight_scale F32 15 | {tensor} | Parse: `X.weight` & [15]
        # Narrow floats.
        X.weight U8 4,16; X.weight_scale U8 4,2 | {fp4} | Parse: `X.weight` & [4, 2]
        X.weight U8 4,16; X.weight_scale I32 4,1 | {fp4} | Parse: `X.weight_scale` & I32
        X.weight U8 16; X.weight_scale U8 1 | {fp4} | Parse: `X.weight`
        X.weight U8 4,25; X.weight_scale U8 4,1 | {fp6} | Parse: `X.weight`
        X.weight U8 0,4611686018427387904; X.weight_scale U8 0,1 | {fp4} | Parse: `X.weight`
    "#;
    let global = |weight: &str, more: &str| {
        format!(r#"{{"quant_method":"quark","global_quant_config":{{"weight":{weight}}}{more}}}"#)
    };
    let group =
        r#"{"dtype":"int4","qscheme":"per_group","ch_axis":-1,"group_size":16,"symmetric":true}"#;
    let with = |from: &str, to: &str| global(&group.replace(from, to), "");
    let names = [
        ("{w}", "X.weight I32 32,2".to_owned()),
        ("{G}", global(group, "")),
        ("{int3}", with("int4", "int3")),
        ("{int8}", with("int4", "int8")),
        ("{levels}", global(&format!("[{group},{group}]"), "")),
        ("{per_block}", with("per_group", "per_block")),
        ("{axis}", with("-1", "0")),
        ("{no size}", with("16", "null")),
        (
            "{order}",
            global(group, r#","export":{"pack_method":"magic"}"#),
        ),
        (
            "{class}",
            global(group, r#","layer_type_quant_config":{"Linear":{}}"#),
        ),
        ("{asymmetric}", with("true", "false")),
        (
            "{channel}",
            global(
                r#"{"dtype":"int4","qscheme":"per_channel","ch_axis":0}"#,
                "",
            ),
        ),
        (
            "{tensor}",
            global(r#"{"dtype":"int4","qscheme":"per_tensor"}"#, ""),
        ),
        (
            "{fp4}",
            global(
                r#"{"dtype":"fp4","qscheme":"per_group","group_size":32}"#,
                "",
            ),
        ),
        (
            "{fp6}",
            global(
                r#"{"dtype":"fp6_e2m3","qscheme":"per_group","group_size":32}"#,
                "",
            ),
        ),
    ];
    check(
        &names.iter().fold(table.to_owned(), |table, (short, long)| {
            table.replace(short, long)
        }),
    );
}

/// Layouts that contradict themselves, or their config.
#[test]
fn grouped_schemes() {
    check(
        r#"
        X.weight_packed I32 4,1; X.weight_scale BF16 4,1 |  | Parse: `X.weight_packed` & how many columns
        X.weight_packed I32 4,1; X.weight_scale BF16 4,3 | {"config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"group_size":4}}}} | Parse: `X.weight_packed` & groups of 4
        X.weight_packed I32 4,1; X.weight_scale BF16 4,1 | {"config_groups":{"g":{"targets":["re:X"],"weights":{"num_bits":4,"symmetric":false}}}} | Parse: `X.weight_zero_point` & missing
        X.weight_packed U8 4,16; X.weight_scale U8 4,2 |  | Parse: `X.weight_packed` & one for 32 values
        X.compressed F16 4; X.bitmask U8 4,1; X.shape I64 2 |  | Parse: `X.bitmask`
        X_blocks U8 2,4,1,16; X_scales U8 2,4,2 |  | Parse: `X_blocks` & one for each block
        X_blocks U8 2,4,16; X_scales U8 2,4 |  | Parse: `X_blocks`
        X.weight I8 4,16; X.scale F8_E8M0 4,2 |  | Parse: `X.weight` & one for 32 values
        X.weight I8 4,16; X.weight_scale BF16 3,1 |  | Parse: `X.weight` & does not fit
        X.weight I8 4,16; X.weight_scale BF16 4,1; X.weight_zero_point I8 3,1 |  | Parse: `X.weight_zero_point`
        X.weight U32 4,8; X.scales BF16 4,1; X.biases BF16 4,2 |  | Parse: `X.biases`
        X.weight U32 4,8; X.scales BF16 4,1 |  | Parse: `X.weight` & `X.biases` is missing
        X.weight U32 4,8; X.scales BF16 4,1; X.biases BF16 4,1 |  | Parse: `X.weight` & (bits, group)
        X.weight U32 4,8; X.scales U8 4,8 |  | Unsupported: `X.weight` & no mode
        "#,
    );
}

/// Schemes of PyTorch's libraries that are decoded, with parts that are missing or do not fit.
#[test]
fn pytorch_libraries() {
    let table = r#"
        X.weight._data I8 4,8 |  | Parse: `X.weight._data` & X.weight._scale
        X.weight._data I8 4,8; X.weight._scale F32 3,1 |  | Parse: `X.weight._data` & [3, 1]
        X.weight._data BF16 4,8; X.weight._scale F32 4,1 |  | Parse: `X.weight._data`
        X.weight._data._data U8 4,8; X.weight._scale F32 8,1 |  | Parse: `X.weight._data._data` & _shift
        X.weight._data._data U8 4,8; X.weight._scale F32 8,1; X.weight._shift F32 7,1 |  | Parse: _shift & [7, 1]
        X.weight._data._data U8 4,8; X.weight._scale F32 9,1; X.weight._shift F32 9,1 |  | Parse: `X.weight._data._data`
        X.weight._data._data U8 1,8; X.weight._scale F32 2,1; X.weight._shift F32 2,1 |  | Parse: [4, 2]
        X.weight._data._data U8 60,32; X.weight._scale F32 120,1; X.weight._shift F32 120,1 |  | Unsupported: `X.weight._data._data` & shape
        X.weight._data._data U8 60,32; X.weight._scale F32 120,1; X.weight._shift F32 120,1; X.bias F32 7 |  | Unsupported: `X.weight._data._data`
        X.weight._scale F32 4,1 |  | Parse: `X.weight._scale`
        X.weight U8 4,8; X.weight_scale BF16 2 | {bitnet} | Parse: `X.weight` & [2]
        X.weight U8 4,8; X.weight_scale I32 1 | {bitnet} | Parse: `X.weight_scale`
        X.weight BF16 4,8; X.weight_scale BF16 1 | {bitnet} | Parse: `X.weight`
        X.weight U8 4,8; X.weight_scale BF16 1 | {"quant_method":"bitnet","linear_class":"other"} | Unsupported: `X.weight` & other
        X.weight U8 4,8; X.weight_scale F32 4,2 | {gemma} | Parse: `X.weight` & [4, 2]
        X.weight U8 4,8; X.weight_scale F32 3,1 | {gemma} | Parse: `X.weight` & [3, 1]
        X.weight I8 4,8; X.weight_scale F32 4,1 | {gemma} | Parse: `X.weight` & 4 bits
        X.weight U8 4,8; X.weight_scale F32 4,1 | {"quant_method":"gemma","num_bits":3} | Parse: `X.weight` & bits
        X.weight U8 4,8; X.weight_scale F32 4,1 | {"quant_method":"gemma","module_quant_configs":{"(?=X)":{"num_bits":2}}} | Unsupported: (?=X)
        X.embedding_quantized U8 4,8 | {gemma} | Parse: embedding_scale
        X.W_q U8 4,8; X.packing U8 () |  | Unsupported: `X.W_q` & packing 0
        X.W_q U8 4,8; X.packing U8 7 |  | Unsupported: `X.W_q` & packing
    "#;
    let table = table.replace("{bitnet}", r#"{"quant_method":"bitnet"}"#);
    check(&table.replace("{gemma}", r#"{"quant_method":"gemma"}"#));
}

/// torchao describes its parts in the metadata, which need not be true.
#[test]
fn torchao_metadata() {
    let bytes = "X._weight_qdata I8 4,64; X._weight_scale F32 4,2";
    let nibbles =
        "X._weight_qdata I8 4,32; X._weight_scale BF16 2,4; X._weight_zero_point BF16 2,4";
    let nvfp4 = "X._weight_qdata U8 4,32; X._weight_scale F8_E4M3 4,4";
    let tiles = "X._weight_qdata I32 1,1,32,4; X._weight_scale_and_zero BF16 4,8,2";
    let (int8, int4, fp4) = ("Int8Tensor", "Int4Tensor", "NVFP4Tensor");
    let packed = "Int4TilePackedTo4dTensor";
    for (text, class, data, parts, kind, named) in [
        (
            bytes,
            "Other",
            "",
            r#""qdata","scale""#,
            Unsupported,
            "Other",
        ),
        (
            bytes,
            "Other",
            "",
            r#""scale""#,
            Unsupported,
            "_weight_qdata",
        ),
        (
            bytes,
            int8,
            "",
            r#""qdata","scale","extra""#,
            Unsupported,
            "extra",
        ),
        (
            bytes,
            int8,
            "",
            r#""qdata","scale","zero_point""#,
            Parse,
            "zero_point",
        ),
        (
            bytes,
            int8,
            r#""block_size":[1,64]"#,
            r#""qdata","scale""#,
            Parse,
            "scale",
        ),
        (
            bytes,
            int8,
            r#""block_size":[0,0]"#,
            r#""qdata","scale""#,
            Parse,
            "scale",
        ),
        (
            bytes,
            "Float8Tensor",
            "",
            r#""qdata","scale""#,
            Unsupported,
            "Float8Tensor",
        ),
        (
            "X._weight_scale F32 4,2",
            int8,
            "",
            r#""qdata","scale""#,
            Parse,
            "_weight_qdata",
        ),
        (nibbles, int4, "", r#""qdata""#, Parse, "groups"),
        (
            nibbles,
            int4,
            r#""block_size":[1,0]"#,
            r#""qdata""#,
            Parse,
            "groups",
        ),
        (
            nibbles,
            int4,
            r#""block_size":[1,16]"#,
            r#""qdata""#,
            Parse,
            "scale",
        ),
        (
            nibbles,
            int4,
            r#""block_size":[1,32],"shape":[4,63]"#,
            r#""qdata""#,
            Parse,
            "[4, 63]",
        ),
        (
            nvfp4,
            fp4,
            r#""block_size":16,"is_swizzled_scales":true"#,
            r#""qdata""#,
            Parse,
            "scale",
        ),
        (
            nvfp4,
            fp4,
            r#""block_size":32"#,
            r#""qdata""#,
            Parse,
            "scale",
        ),
        (
            tiles,
            packed,
            r#""block_size":[1,32],"shape":[9,128]"#,
            r#""qdata""#,
            Parse,
            "[9, 128]",
        ),
        (
            tiles,
            packed,
            r#""block_size":[1,64],"shape":[8,128]"#,
            r#""qdata""#,
            Parse,
            "scale_and_zero",
        ),
        (
            tiles,
            packed,
            r#""block_size":[1,32]"#,
            r#""qdata""#,
            Parse,
            "shape",
        ),
    ] {
        let json =
            format!(r#"{{"_type":"{class}","_data":{{{data}}},"_tensor_data_names":[{parts}]}}"#);
        let metadata = [("X.weight", json.as_str()), ("tensor_names", "[]")];
        assert_eq!(
            verdict(recover(file(&tensors(text), &metadata), ""), kind, &[named]),
            None,
            "{text} {json}"
        );
    }
}

/// Names that many use for weights and scales: under a method that is not known they may mean something else, and codes
/// under other names are codes all the same.
#[test]
fn generic_names() {
    check(
        r#"
        X.weight F8_E4M3 4,8; X.scale F32 4,1; X.svd_up F16 4,2; X.svd_down F16 2,8 | {"quant_method":"sdnq"} | Unsupported: sdnq & quant_method
        X.weight I8 4,8; X.weight_scale F32 4,1 | {"quant_method":"w4afp8"} | Unsupported: w4afp8
        X.weight I8 4,8; X.scale F32 4,1 |  | Unsupported: `X.weight` & SDNQ
        X.W_q U8 4,8; X.scale F16 4,1; X.zero F16 4,1; X.scale2 F16 8 |  | Unsupported: `X.W_q` & SINQ
        X.experts.gate_up_proj U8 2,4,8 | {"quant_method":"modelopt","quant_algo":"NVFP4"} | Parse: `X.experts.gate_up_proj`
        X.gate_up_proj_packed I32 2,4,8 | {"quant_method":"compressed-tensors"} | Parse: `X.gate_up_proj_packed`
        X.experts._gate_up_proj_qdata I8 2,4,8 |  | Unsupported: `X.experts._gate_up_proj_qdata`
        X.weight I8 2,64; X.weight_scale F32 2,2 | {"config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"group_size":64}}}} | Parse: `X.weight` & groups of 64
        X.weight I8 2,64; X.weight_scale F32 2,1 | {"config_groups":{"g":{"targets":["Linear"],"weights":{"symmetric":false}}}} | Parse: `X.weight_zero_point` & missing
        X.weight_packed I32 2,8; X.weight_shape I64 2; X.weight_scale F32 4,2 |  | Parse: `X.weight_packed`
        X.switch_mlp.up_proj.weight U32 1099511627776,0,3; X.switch_mlp.up_proj.scales F16 1099511627776,0,1 |  | Parse: `X.switch_mlp.up_proj.weight`
        "#,
    );
    // A scale for each head is no scale of activations, unless the config has a cache with such.
    let heads = "X.weight F8_E4M3 4,8; qk_norm_q_scale F32 2,1,3; X.k_scale F32 ()";
    let output = recover(file(&tensors(heads), &[]), "").unwrap();
    let output = anamnesis::parse_bytes(output).unwrap();
    assert_eq!(
        output
            .tensors()
            .map(|t| t.name().to_owned())
            .collect::<Vec<_>>(),
        ["X.weight", "qk_norm_q_scale"]
    );
}

/// One shard of several, whose index has a part of its weights elsewhere.
#[test]
fn a_shard_is_no_model() {
    let nvfp4 = "X.weight U32 8,8; X.scales U8 8,4";
    for (text, elsewhere) in [
        (
            "X.weight I8 4,8; X.weight_scale F32 4,1",
            "X.weight_zero_point",
        ),
        (
            "X.weight I8 4,8; X.weight_scale F32 4,1",
            "X.pre_quant_scale",
        ),
        (nvfp4, "X.global_scale"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let shard = dir.path().join("model-00001-of-00002.safetensors");
        std::fs::write(&shard, file(&tensors(text), &[])).unwrap();
        let index =
            format!(r#"{{"weight_map": {{"{elsewhere}": "model-00002-of-00002.safetensors"}}}}"#);
        std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
        let error = anamnesis::parse(&shard)
            .unwrap()
            .remember_to_bytes(anamnesis::TargetDtype::F32)
            .unwrap_err();
        assert!(
            error.to_string().contains("another shard"),
            "{text}: {error}"
        );
    }
}

/// Work on names and configs is linear in their length.
#[test]
fn long_names_and_lists() {
    let started = std::time::Instant::now();
    let name = format!("{}weight", "a.".repeat(20_000));
    let bytes = file(&[common::raw(&name, "F8_E4M3", &[1, 1], vec![0])], &[]);
    assert!(recover(bytes, r#"{"quant_method":"fp8","ignore":["lm_head"]}"#).is_err());
    let rules = vec![format!("\"re:.{{{}}}\"", 9000); 2_000].join(",");
    let bytes = file(&tensors("X.weight F8_E4M3 4,8"), &[]);
    assert!(
        recover(
            bytes,
            &format!(r#"{{"quant_method":"fp8","ignore":[{rules}]}}"#)
        )
        .is_err()
    );
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
}
