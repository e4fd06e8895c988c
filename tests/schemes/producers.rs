//! Layouts of ModelOpt, ComfyUI and Quark that are incomplete or contradictory: each must give the
//! right kind of error, which names the tensor and the reason. Codes are never passed on as
//! weights.

mod comfyui;

use crate::common::file;
use crate::common::verdict::{check, recover, tensors};

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
        &names
            .iter()
            .fold(table.to_owned(), |table, (short, long)| table.replace(short, long)),
    );
}

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
    check(
        &table.replace(
            "{w}",
            "X.weight U8 4,16; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 F32 ()",
        ),
    );
    // An empty weight, and a low-rank product of rank zero.
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
fn quark() {
    let table = r#"
        {w}; X.weight_scale F32 2,16 | {"quant_method":"quark"} | Parse: `X.weight` & dtype
        {w}; X.weight_scale F32 2,16 | {no sign} | Unsupported: `X.weight` & fp8_e5m3
        {w}; X.weight_scale F32 2,16 | {int3} | Parse: `X.weight` & int3 & U8
        X.weight U8 16,25; X.weight_scale F32 2,16 | {int3} | Parse: `X.weight`
        X.weight I32 32,16; X.weight_scale F32 2,16; X.weight_zero_point F32 2,16 | {plain} | Parse: `X.weight` & `X.weight_zero_point`
        {w}; X.weight_scale F8_E4M3 2,16 | {fp8 scales} | Parse: `X.weight` & weight_scale_2
        {w}; X.weight_scale F8_E4M3 2,16; X.weight_scale_2 F32 2 | {fp8 scales} | Parse: `X.weight` & [2]
        {w}; X.weight_scale F32 2,16; X.weight_scale_2 F32 () | {fp8 scales} | Parse: `X.weight` & fp8_e4m3
        {w}; X.weight_scale F32 2,16 | {int8} | Parse: `X.weight` & int8
        {w}; X.weight_scale F32 2,16 | {levels} | Unsupported: `X.weight`
        X.weight U8 4,16; X.weight_scale F8_E4M3 4,2 | {nvfp4} | Parse: `X.weight` & `X.weight_scale_2`
        X.weight U8 4,16; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 F32 () | {levels} | Unsupported: `X.weight` & X.weight_scale_2
        {w}; X.weight_scale F32 2,16 | {per_block} | Unsupported: `X.weight` & per_block
        {w}; X.weight_scale F32 2,16 | {axis} | Unsupported: `X.weight`
        {w}; X.weight_scale F32 2,16 | {no size} | Parse: `X.weight`
        {w}; X.weight_scale F32 2,16 | {order} | Unsupported: `X.weight` & magic
        {w}; X.weight_scale F32 2,16 | {class} | Unsupported: `X.weight` & layer_type_quant_config
        {w}; X.weight_scale F32 2,16; X.weight_scale_2 F32 () | {G} | Unsupported: `X.weight` & X.weight_scale_2
        # Integers of a weight in FP8.
        {w}; X.weight_scale F32 (); X.weight_scale_2 F32 3,16 | {of fp8} | Parse: `X.weight` & [3, 16]
        {w}; X.weight_scale F32 2; X.weight_scale_2 F32 2,16 | {of fp8} | Parse: `X.weight` & `X.weight_scale`
        {w}; X.weight_scale F32 () | {of fp8} | Parse: `X.weight` & weight_scale_2
        {w}; X.weight_scale_2 F32 2,16 | {of fp8} | Parse: `X.weight
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
        X.weight U8 4,16; X.weight_scale U8 4,1 | {other scales} | Unsupported: `X.weight` & e4m3
        X.weight U8 4,16; X.weight_scale U8 4,1 | {other type} | Parse: `X.weight` & scale_type
        X.weight U8 4,16; X.weight_scale F32 4,1 | {e5m3} | Parse: `X.weight_scale` & E5M3
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
        ("{no sign}", with("int4", "fp8_e5m3")),
        ("{plain}", with(r#""int4""#, r#""int2","zero_point_type":"float32""#)),
        (
            "{fp8 scales}",
            global(
                &format!(
                    r#"[{group},{{"dtype":"fp8_e4m3","qscheme":"per_tensor","is_scale_quant":true}}]"#
                ),
                "",
            ),
        ),
        ("{int8}", with("int4", "int8")),
        (
            "{nvfp4}",
            global(
                r#"[{"dtype":"fp4","qscheme":"per_group","group_size":16},{"dtype":"fp8_e4m3","qscheme":"per_tensor"}]"#,
                "",
            ),
        ),
        ("{levels}", global(&format!("[{group},{group}]"), "")),
        (
            "{of fp8}",
            global(
                &format!(
                    r#"[{{"dtype":"fp8_e4m3","qscheme":"per_tensor"}},{}]"#,
                    group.replace("16", r#"16,"is_scale_quant":false"#)
                ),
                "",
            ),
        ),
        (
            "{e5m3}",
            global(
                r#"{"dtype":"fp4","qscheme":"per_group","group_size":32,"scale_format":"e5m3"}"#,
                "",
            ),
        ),
        (
            "{other type}",
            global(
                r#"{"dtype":"fp4","qscheme":"per_group","group_size":32,"scale_type":"float8_e5m3"}"#,
                "",
            ),
        ),
        (
            "{other scales}",
            global(
                r#"{"dtype":"fp4","qscheme":"per_group","group_size":32,"scale_format":"e4m3"}"#,
                "",
            ),
        ),
        ("{per_block}", with("per_group", "per_block")),
        ("{axis}", with("-1", "0")),
        ("{no size}", with("16", "null")),
        ("{order}", global(group, r#","export":{"pack_method":"magic"}"#)),
        ("{class}", global(group, r#","layer_type_quant_config":{"Linear":{}}"#)),
        ("{asymmetric}", with("true", "false")),
        ("{channel}", global(r#"{"dtype":"int4","qscheme":"per_channel","ch_axis":0}"#, "")),
        ("{tensor}", global(r#"{"dtype":"int4","qscheme":"per_tensor"}"#, "")),
        ("{fp4}", global(r#"{"dtype":"fp4","qscheme":"per_group","group_size":32}"#, "")),
        ("{fp6}", global(r#"{"dtype":"fp6_e2m3","qscheme":"per_group","group_size":32}"#, "")),
    ];
    check(
        &names
            .iter()
            .fold(table.to_owned(), |table, (short, long)| table.replace(short, long)),
    );
}
