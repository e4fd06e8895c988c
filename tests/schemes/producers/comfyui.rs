//! Files of ComfyUI whose descriptions of layers are incomplete or contradict the tensors.

use anamnesis::{TensorRole, parse_safetensors_header};

use crate::common::verdict::{Kind, Parse, Unsupported, check, recover, tensors, verdict};
use crate::common::{data, f32s, file, raw};

#[test]
fn descriptions() {
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
        {r}; X.weight_scale F32 4,1; X.comfy_quant TEXT {"format":"int8_tensorwise","per_row":true,"quarot":true,"group_size":64} |  | Unsupported: `X.weight` & quarot
        {r}; X.weight_scale F32 4,1; X.comfy_quant TEXT {"convrot":false,"quarot":true,"group_size":64} |  | Unsupported: `X.weight` & quarot
        {f}; X.comfy_quant TEXT {"format":"float8_e4m3fn_blockwise"} |  | Parse: `X.weight` & square of 64
        {f}; X.comfy_quant TEXT {"format":"float8_e4m3fn_blockwise","group_size":0} |  | Parse: `X.weight` & no positive integer
        X.weight F8_E4M3 4,8; X.weight_scale F32 1,1; X.comfy_quant TEXT {"format":"float8_e4m3fn_blockwise","group_size":4} |  | Parse: `X.weight` & square of 4
        X.weight F8_E4M3 4,8; X.weight_scale F32 2,1; X.comfy_quant TEXT {"format":"float8_e4m3fn_rowwise"} |  | Parse: `X.weight` & one for each row
        {r}; X.weight_scale F32 4,1; X.comfy_quant TEXT {"format":"int8_blockwise"} |  | Parse: `X.weight` & square of 128
        {f}; X.comfy_quant TEXT {"format":"float8_e4m3fn_block3d"} |  | Unsupported: `X.weight` & float8_e4m3fn_block3d
        # Rotated weights.
        {r}; X.weight_scale F32 4,1; X.comfy_quant TEXT {"format":"int8_tensorwise","convrot":true} |  | Parse: `X.weight` & 64 columns & 256
        {r}; X.weight_scale F32 4,1; X.comfy_quant TEXT {"format":"int8_tensorwise","convrot":true,"convrot_groupsize":32} |  | Parse: `X.weight` & power of 4
        {r}; X.weight_scale F32 4,1; X.comfy_quant TEXT {"format":"int8_tensorwise","convrot":true,"convrot_groupsize":1} |  | Parse: `X.weight` & power of 4
        {r}; X.weight_scale F32 4,1; X.comfy_quant TEXT {"format":"int8_tensorwise","convrot":true,"convrot_groupsize":262144} |  | Parse: `X.weight` & power of 4
        {r}; X.weight_scale F32 4,1; X.comfy_quant TEXT {"format":"int8_tensorwise","convrot":true,"convrot_groupsize":0} |  | Parse: `X.weight` & no positive integer
        {r}; X.weight_scale F32 4,1; X.comfy_quant TEXT {"format":"int8_tensorwise","convrot":true,"convrot_groupsize":"64"} |  | Parse: `X.weight` & no positive integer
        {r}; X.weight_scale F32 4,2; {rot} |  | Parse: `X.weight` & [4, 2]
        {r}; X.weight_scale F8_E8M0 4,1; {rot} |  | Parse: `X.weight_scale` & F8_E8M0
        {r}; {rot} |  | Parse: `X.weight` & X.weight_scale
        X.weight I8 2,4,64; X.weight_scale F32 2; {rot} |  | Parse: `X.weight` & one for each row
        X.weight I8 2,2,4,64; X.weight_scale F32 2; {rot} |  | Parse: `X.weight` & two dimensions
        X.weight F8_E4M3 4,64; X.weight_scale F32 4,1; X.comfy_quant TEXT {"convrot":true,"per_row":true} |  | Parse: `X.comfy_quant`
        {r}; X.weight_scale F32 4,1; X.comfy_quant TEXT {"per_row":true} |  | Parse: `X.comfy_quant`
        {r}; X.weight_scale F32 4; X.comfy_quant TEXT {"format":"convrot_w4a4"} |  | Parse: `X.weight` & 128 columns & 256
        {r}; X.weight_scale F32 4,2; X.comfy_quant TEXT {"format":"convrot_w4a4","convrot_groupsize":64} |  | Parse: `X.weight` & [4, 2]
        {r}; X.weight_scale F32 (); X.comfy_quant TEXT {"format":"convrot_w4a4","convrot_groupsize":64} |  | Parse: `X.weight` & one for each row
        X.weight U8 4,64; X.weight_scale F32 4; X.comfy_quant TEXT {"format":"convrot_w4a4"} |  | Parse: `X.weight` & convrot_w4a4
        X.weight I8 0,9223372036854775808; X.weight_scale F32 0; X.comfy_quant TEXT {"format":"convrot_w4a4"} |  | Parse: `X.weight`
        {r}; {w4a8}; X.weight_s_channel F32 4 |  | Parse: `X.weight` & X.weight_s_rel
        {r}; {w4a8}; X.weight_s_rel F8_E4M3 4,8 |  | Parse: `X.weight` & X.weight_s_channel
        {r}; {w4a8}; X.weight_s_rel F8_E4M3 4,7; X.weight_s_channel F32 4 |  | Parse: `X.weight` & [4, 7]
        {r}; {w4a8}; X.weight_s_rel F8_E4M3 3,8; X.weight_s_channel F32 4 |  | Parse: `X.weight` & [3, 8]
        {r}; {w4a8}; X.weight_s_rel F8_E4M3 4,8; X.weight_s_channel F32 4,2 |  | Parse: `X.weight` & [4, 2]
        {r}; {w4a8}; X.weight_s_rel F8_E5M2 4,8; X.weight_s_channel F32 4 |  | Parse: `X.weight_s_rel`
        {s}; X.weight_codebook F32 15 |  | Parse: `X.weight_codebook` & [16]
        {s}; X.weight_correction F32 4,8 |  | Parse: `X.weight_correction` & [8, 4]
        {s}; X.weight_codebook I8 16 |  | Parse: `X.weight_codebook` & I8
        {r}; X.weight_s_rel F32 4,8; X.weight_s_channel F32 4; X.comfy_quant TEXT {"format":"asym_w4a8_int8","group_size":2} |  | Parse: `X.weight` & groups of 2
        {r}; X.weight_s_rel F32 4,8; X.weight_s_channel F32 4; X.comfy_quant TEXT {"format":"asym_w4a8_int8","group_size":24} |  | Parse: `X.weight` & groups of 24
        {r}; X.weight_s_rel F32 4,8; X.weight_s_channel F32 4; X.comfy_quant TEXT {"format":"asym_w4a8_int8"} |  | Parse: `X.weight` & 128 columns & 256
        X.weight I8 4,48; X.weight_s_rel F32 4,4; X.weight_s_channel F32 4; X.weight_codebook F32 16; {w4a8} |  | Parse: `X.weight_codebook` & 6 bits
        X.weight I8 4,12; X.weight_s_rel F32 4,4; X.weight_s_channel F32 4; X.comfy_quant TEXT {"format":"asym_w4a8_int8","group_size":4,"convrot_groupsize":16} |  | Parse: `X.weight` & 6 bits
        # Four bits.
        {r}; X.weight_scale BF16 2,4; {awq} |  | Parse: `X.weight` & `X.weight_zeros` or `X.weight_zero`
        {r}; X.weight_scale BF16 2,4; X.weight_zero BF16 2,4; X.weight_zeros BF16 2,4; {awq} |  | Parse: `X.weight` & both
        {r}; X.weight_scale BF16 4,2; X.weight_zero BF16 2,4; {awq} |  | Parse: `X.weight` & [4, 2]
        {r}; X.weight_scale BF16 2,4; X.weight_zero BF16 4; {awq} |  | Parse: `X.weight` & [4]
        {r}; X.weight_scale I8 2,4; X.weight_zero BF16 2,4; {awq} |  | Parse: `X.weight_scale` & I8
        X.weight I8 4,40; X.weight_scale BF16 2,4; X.weight_zero BF16 2,4; {awq} |  | Parse: `X.weight` & groups of 64
        {r}; X.weight_zero BF16 2,4; {awq} |  | Parse: `X.weight` & X.weight_scale
        {r}; X.weight_scale BF16 2,4; X.weight_zero BF16 2,4; X.comfy_quant TEXT {"format":"awq_w4a16","convrot":true} |  | Unsupported: `X.weight` & convrot
        {svd}; X.comfy_quant TEXT {"format":"svdquant_w4a4","act_unsigned":true} |  | Unsupported: `X.weight` & act_unsigned
        {svd}; X.bias BF16 4; X.comfy_quant TEXT {"format":"svdquant_w4a4","act_unsigned":"False"} |  | Parse: `X.weight` & act_unsigned
        {svd}; X.bias BF16 4; X.comfy_quant TEXT {"format":"svdquant_w4a4","act_unsigned":0} |  | Parse: `X.weight` & act_unsigned
        {svd}; X.bias BF16 3; X.comfy_quant TEXT {"format":"svdquant_w4a4","act_unsigned":true} |  | Parse: `X.weight` & `X.bias` & [3]
        {svd}; X.bias I32 4; X.comfy_quant TEXT {"format":"svdquant_w4a4","act_unsigned":true} |  | Parse: `X.bias` & I32
        {svd}; X.comfy_quant TEXT {"format":"svdquant_w4a4","lowrank_branch_input_basis":"post_smoothing"} |  | Unsupported: `X.weight` & lowrank_branch_input_basis
        {svd}; X.comfy_quant TEXT {"format":"svdquant_w4a4","layout":"kitchen_tile_packed_w4a4"} |  | Parse: `X.weight` & layout
        {svd}; X.weight_proj_up BF16 4,3; X.comfy_quant TEXT {"format":"svdquant_w4a4"} |  | Parse: `X.weight` & both
        {r}; X.weight_scale BF16 2,4; X.smooth_factor BF16 128; X.proj_up BF16 4,3; X.comfy_quant TEXT {"format":"svdquant_w4a4"} |  | Parse: `X.weight` & `X.proj_down`
        {r}; X.weight_scale BF16 2,4; X.smooth_factor BF16 64; X.proj_down BF16 128,3; X.proj_up BF16 4,3; X.comfy_quant TEXT {"format":"svdquant_w4a4"} |  | Parse: `X.weight` & [64]
        {r}; X.weight_scale BF16 2,4; X.smooth_factor BF16 128; X.proj_down BF16 128,3; X.proj_up BF16 3,4; X.comfy_quant TEXT {"format":"svdquant_w4a4"} |  | Parse: `X.weight` & [3, 4]
        {r}; X.weight_scale BF16 2,4; X.smooth_factor BF16 128; X.proj_down BF16 128; X.proj_up BF16 4,3; X.comfy_quant TEXT {"format":"svdquant_w4a4"} |  | Parse: `X.weight` & [128]
        X.weight I8 1,1,32,127; X.weight_scale BF16 1,1,128; X.comfy_quant TEXT {"format":"svdquant_w4a4"} |  | Parse: `X.weight` & [out / 128
        X.weight I8 0,9223372036854775808,32,128; X.weight_scale BF16 1,1,128; X.comfy_quant TEXT {"format":"svdquant_w4a4"} |  | Parse: `X.weight`
        # A layer that is not described, in a file that describes layers.
        {f}; Y.comfy_quant TEXT {"format":"float8_e4m3fn"} |  | Unsupported: `X.weight`
        # Tiles.
        X.weight F8_E4M3 32,64; X.weight_scale F8_E8M0 32,2; {mxfp8} |  | Parse: `X.weight` & [32, 2]
        X.weight F8_E4M3 32,64; X.weight_scale F8_E8M0 128,8; {mxfp8} |  | Parse: `X.weight` & [128, 8]
        X.weight F8_E4M3 32,64; X.weight_scale BF16 128,4; {mxfp8} |  | Parse: `X.weight_scale` & BF16
        X.weight F8_E4M3 2,32,64; X.weight_scale F8_E8M0 128,4; {mxfp8} |  | Unsupported: `X.weight` & 32 rows
        X.weight F8_E4M3 0,9223372036854775808; X.weight_scale F8_E8M0 0,4; {mxfp8} |  | Parse: `X.weight`
        X.weight I8 4,8; X.weight_scale F8_E4M3 4; X.comfy_quant TEXT {"format":"int8_tensorwise"} |  | Parse: `X.weight`
        X.weight U8 16,8; X.weight_scale F8_E4M3 128,4; {nvfp4} |  | Parse: `X.weight` & X.weight_scale_2
        X.weight U8 16,8; X.weight_scale BF16 128,4; X.weight_scale_2 F32 (); {nvfp4} |  | Parse: `X.weight`
        X.weight U8 16,8; X.weight_scale F8_E4M3 16,1; X.weight_scale_2 F32 (); {nvfp4} |  | Parse: `X.weight`
        X.weight U8 16,8; X.weight_scale F8_E4M3 128,4; X.weight_scale_2 F32 (); X.pre_quant_scale F32 8; {nvfp4} |  | Parse: `X.pre_quant_scale` & 16 columns
        # Experts.
        X.weight F8_E4M3 2,128,64; X.weight_scale F8_E8M0 256,4; {mxfp8} |  | Parse: `X.weight` & [256, 4]
        X.weight F8_E4M3 2,128,64; X.weight_scale F8_E8M0 1,128,4; {mxfp8} |  | Parse: `X.weight` & [1, 128, 4]
        X.weight F8_E4M3 256,64; X.weight_scale F8_E8M0 2,128,4; {mxfp8} |  | Parse: `X.weight` & [2, 128, 4]
        X.weight F8_E4M3 0,128,9223372036854775808; X.weight_scale F8_E8M0 0,128,4; {mxfp8} |  | Parse: `X.weight`
        X.weight U8 2,128,8; X.weight_scale F8_E4M3 2,128,4; X.weight_scale_2 F32 3; {nvfp4} |  | Parse: `X.weight` & X.weight_scale_2
        X.weight U8 2,128,8; X.weight_scale F8_E4M3 2,128,4; X.weight_scale_2 F32 2,1; {nvfp4} |  | Parse: `X.weight` & X.weight_scale_2
        X.weight U8 0,128,8; X.weight_scale F8_E4M3 0,128,4; X.weight_scale_2 F32 0; {nvfp4} |  | Parse: `X.weight` & X.weight_scale_2
        X.weight I8 4,64; X.weight_scale F32 4,1; X.comfy_quant TEXT {"format":"int8_tensorwise","num_experts":3} |  | Parse: `X.weight` & 3 experts
        X.weight I8 4,64; X.weight_scale F32 4,1; X.comfy_quant TEXT {"format":"int8_tensorwise","num_experts":0} |  | Parse: `X.weight` & no positive integer
        X.weight I8 4,64; X.weight_scale F32 4,1; X.comfy_quant TEXT {"format":"int8_tensorwise","convrot":true,"convrot_groupsize":64,"num_experts":3} |  | Parse: `X.weight` & 3 experts
        X.weight I8 4,64; X.weight_scale F32 4,1; X.bias F32 4,1; X.comfy_quant TEXT {"format":"int8_tensorwise","num_experts":2} |  | Parse: `X.weight` & `X.bias` & [4, 1]
        X.weight I8 4,64; X.weight_scale F32 4,1; X.bias F32 2,2; {rot} |  | Parse: `X.weight` & `X.bias` & [2, 2]
        X.weight I8 2,4,64; X.weight_scale F32 4,2,1; X.comfy_quant TEXT {"format":"int8_tensorwise"} |  | Parse: `X.weight` & [4, 2, 1]
        X.weight I8 2,4,64; X.weight_scale F32 4,2; X.comfy_quant TEXT {"format":"convrot_w4a4","convrot_groupsize":64} |  | Parse: `X.weight` & [4, 2]
        X.weight I8 2,4,64; {w4a8}; X.weight_s_rel F8_E4M3 4,2,8; X.weight_s_channel F32 2,4 |  | Parse: `X.weight` & [4, 2, 8]
        X.weight I8 2,4,64; {w4a8}; X.weight_s_rel F8_E4M3 2,4,8; X.weight_s_channel F32 4,2 |  | Parse: `X.weight` & [4, 2]
        X.weight I8 9223372036854775808,4,0; X.weight_scale F32 1; X.comfy_quant TEXT {"format":"convrot_w4a4","convrot_groupsize":64} |  | Parse: `X.weight`
    "#;
    let long = format!(r#"{{"format":"{}"}}"#, "x".repeat(70_000));
    let names = [
        ("{f}", "X.weight F8_E4M3 4,8; X.weight_scale F32 ()"),
        ("{s}", "{r}; {w4a8}; X.weight_s_rel F8_E4M3 4,8; X.weight_s_channel F32 4"),
        (
            "{svd}",
            "{r}; X.weight_scale BF16 2,4; X.smooth_factor BF16 128; X.proj_down BF16 128,3; X.proj_up BF16 4,3",
        ),
        ("{r}", "X.weight I8 4,64"),
        (
            "{rot}",
            r#"X.comfy_quant TEXT {"format":"int8_tensorwise","convrot":true,"convrot_groupsize":64}"#,
        ),
        ("{w4a8}", r#"X.comfy_quant TEXT {"format":"asym_w4a8_int8","convrot_groupsize":64}"#),
        ("{awq}", r#"X.comfy_quant TEXT {"format":"awq_w4a16"}"#),
        ("{mxfp8}", r#"X.comfy_quant TEXT {"format":"mxfp8"}"#),
        ("{nvfp4}", r#"X.comfy_quant TEXT {"format":"nvfp4"}"#),
        ("{long}", &long),
    ];
    check(
        &names
            .iter()
            .fold(table.to_owned(), |table, (short, long)| table.replace(short, long)),
    );
}

/// Scales and codebooks of W4A8 that give no integers.
#[test]
fn levels() {
    let marker = br#"{"format":"asym_w4a8_int8","convrot_groupsize":16}"#;
    let decoded = |relative: [u8; 2], value: f32| {
        let mut codebook = [0.5f32; 16];
        codebook[7] = value;
        let tensors = [
            raw("X.weight", "I8", &[1, 16], vec![0x77; 16]),
            raw("X.weight_s_rel", "F8_E4M3", &[1, 2], relative.to_vec()),
            raw("X.weight_s_channel", "F32", &[1], 1f32.to_le_bytes().to_vec()),
            raw("X.weight_codebook", "F32", &[16], codebook.map(f32::to_le_bytes).concat()),
            raw("X.comfy_quant", "U8", &[marker.len()], marker.to_vec()),
        ];
        recover(file(&tensors, &[]), "")
    };
    decoded([0x38, 0x7e], 0.25).unwrap();
    for (relative, value, what) in [
        ([0x38, 0x7f], 0.25, "X.weight_s_rel"),
        ([0xff, 0x38], 0.25, "X.weight_s_rel"),
        ([0x38, 0x38], f32::NAN, "codebook"),
        ([0x38, 0x38], f32::INFINITY, "codebook"),
    ] {
        assert_eq!(verdict(decoded(relative, value), Parse, &["`X.weight`", what]), None);
    }
}

/// Programs in Python ask `if conf.get("convrot")`, so that 0, null and empty values mean no
/// rotation. Rotated in place of plain, or plain in place of rotated, would be other values without
/// an error.
#[test]
fn convrot_is_what_python_takes_it_for() {
    let decoded = |format: &str, convrot: &str| {
        let marker =
            format!(r#"{{{format}"convrot":{convrot},"convrot_groupsize":16,"per_row":true}}"#);
        let codes = (0..64u8).map(|i| i.wrapping_mul(37)).collect();
        let tensors = [
            raw("X.weight", "I8", &[2, 32], codes),
            raw("X.weight_scale", "F32", &[2, 1], f32s(&[0.5, -3.0])),
            raw("X.comfy_quant", "U8", &[marker.len()], marker.into()),
        ];
        recover(file(&tensors, &[]), "").unwrap()
    };
    // ComfyUI-INT8-Fast states no format.
    for format in [r#""format":"int8_tensorwise","#, ""] {
        let [plain, rotated] = ["false", "true"].map(|convrot| decoded(format, convrot));
        assert_ne!(plain, rotated, "{format}");
        for no in ["null", "0", "0.0", "-0.0", r#""""#, "[]", "{}"] {
            assert_eq!(decoded(format, no), plain, "{format}{no}");
        }
        for yes in ["1", "-1", "0.5", r#""x""#, r#""false""#, "[0]", r#"{"a":0}"#] {
            assert_eq!(decoded(format, yes), rotated, "{format}{yes}");
        }
    }
}

/// The header alone has no descriptions, and the formats are guessed.
#[test]
fn headers() {
    for (case, codes) in [
        ("int8_convrot", "INT8"),
        ("convrot_w4a4", "INT4"),
        ("awq_bf16", "UINT4"),
        ("svdquant", "INT4"),
        ("svdquant_tiles", "INT4"),
    ] {
        let file = data().join(format!("comfy_more/{case}/model/model.safetensors"));
        let header = parse_safetensors_header(&std::fs::read(file).unwrap()).unwrap();
        let scheme = header.scheme.to_string();
        assert!(scheme.starts_with(&format!("ComfyUI {codes},")), "{case}: {scheme}");
        let factors = header.tensors.iter().filter(|t| t.name.contains("proj_"));
        assert!(factors.clone().all(|t| t.role == TensorRole::LowRank), "{case}");
        assert_eq!(factors.count() > 0, case.starts_with("svdquant"), "{case}");
    }
    let file = data().join("comfy_squares/markers/model/model.safetensors");
    let header = parse_safetensors_header(&std::fs::read(file).unwrap()).unwrap();
    let codes = header
        .tensors
        .iter()
        .filter(|t| t.role == TensorRole::Quantized);
    assert_eq!(codes.count(), 6);
}

/// ComfyUI's NVFP4 has ModelOpt's names and, for most sizes, its shapes. Only the file's metadata
/// shows that nibbles and scales have another order.
#[test]
fn metadata() {
    let fp8 = "X.weight F8_E4M3 4,8; X.weight_scale F32 ()";
    let layers = |text: &str| format!(r#"{{"format_version":"1.0","layers":{text}}}"#);
    let cases: [(&str, String, Kind, &[&str]); 6] = [
        (fp8, layers(r#"{"Y":{"format":"float8_e4m3fn"}}"#), Unsupported, &["`X.weight`"]),
        (fp8, layers(r#"{"X":{"format":"float8_e5m2"}}"#), Parse, &["`X.weight`", "float8_e5m2"]),
        (
            fp8,
            layers(r#"{"X":{"format":"svdquant_w4a4"}}"#),
            Parse,
            &["`X.weight`", "svdquant_w4a4"],
        ),
        (fp8, layers(r#"{"X":{}}"#), Parse, &["`X.weight`", "_quantization_metadata"]),
        (fp8, layers("3"), Parse, &["`X.weight`", "_quantization_metadata"]),
        (fp8, "{".to_owned(), Parse, &["`X.weight`", "_quantization_metadata"]),
    ];
    for (text, metadata, kind, words) in cases {
        let bytes = file(&tensors(text), &[("_quantization_metadata", &metadata)]);
        assert_eq!(verdict(recover(bytes, ""), kind, words), None, "{metadata}");
    }
}
