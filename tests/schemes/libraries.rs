//! Layouts of PyTorch libraries (compressed-tensors, MLX, torchao, quanto, HQQ) that are incomplete
//! or contradictory: each gives the right kind of error, which names the tensor and the reason.

use crate::common::verdict::{Parse, Unsupported, check, recover, tensors, verdict};
use crate::common::{file, raw};

/// Layouts that contradict themselves, or their config.
#[test]
fn grouped_schemes() {
    check(
        r#"
        X.weight_packed I32 4,1; X.weight_scale BF16 4,1 |  | Parse: `X.weight_packed` & how many columns
        X.weight_packed I32 4,1; X.weight_scale BF16 4,3 | {"config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"group_size":4}}}} | Parse: `X.weight_packed` & prove its columns
        X.weight_packed I32 4,1; X.weight_scale BF16 4,1 | {"config_groups":{"g":{"targets":["re:X"],"weights":{"num_bits":4,"group_size":8,"symmetric":false}}}} | Parse: `X.weight_zero_point` & missing
        X.weight_packed U8 4,16; X.weight_scale U8 4,2 |  | Parse: `X.weight_packed` & one for 32 values
        X.compressed F16 4; X.bitmask U8 4,1; X.shape I64 2 |  | Parse: `X.bitmask`
        X_blocks U8 2,4,1,16; X_scales U8 2,4,2 |  | Parse: `X_blocks` & one for each block
        X_blocks U8 2,4,16; X_scales U8 2,4 |  | Parse: `X_blocks`
        X.weight I8 4,16; X.scale F8_E8M0 4,2 |  | Parse: `X.weight` & one for 32 values
        X_blocks U8 0,1,288230376151711744,16; X_scales U8 0,1,288230376151711744 |  | Parse: `X` & overflows
        X.weight I8 4,16; X.weight_scale BF16 3,1 |  | Parse: `X.weight` & does not fit
        X.weight I8 4,16; X.weight_scale BF16 4,1; X.weight_zero_point I8 3,1 |  | Parse: `X.weight_zero_point`
        X.weight U32 4,8; X.scales BF16 4,1; X.biases BF16 4,2 |  | Parse: `X.biases`
        X.weight U32 4,8; X.scales BF16 4,1 |  | Parse: `X.weight` & `X.biases` is missing
        X.weight U32 4,8; X.scales BF16 4,1; X.biases BF16 4,1 |  | Parse: `X.weight` & (bits, group)
        X.weight U32 4,8; X.scales U8 4,8 |  | Unsupported: `X.weight` & no mode
        "#,
    );
}

/// sglang's integers: scales that do not fit, of another library, or that two layouts have.
#[test]
fn sglang() {
    let table = r#"
        X.weight I8 4,16; X.weight_scale_inv F32 4,1 |  | Parse: `X.weight` & w4afp8 & blockwise_int8
        X.weight I8 256,256; X.weight_scale_inv F32 2,3 | {int8} | Parse: `X.weight` & [2, 3]
        X.weight I8 256,256; X.weight_scale_inv F32 2,2 | {"quant_method":"blockwise_int8","weight_block_size":[64,64]} | Parse: `X.weight` & [64, 64]
        X.weight I8 256,256; X.weight_scale_inv F8_E8M0 2,2 | {int8} | Parse: `X.weight_scale_inv`
        X.weight I8 256,256; X.weight_scale F32 256,1 | {int8} | Parse: `X.weight` & `X.weight_scale_inv`
        X.weight I8 256,256 | {int8} | Parse: `X.weight` & blockwise_int8
        X.weight BF16 256,256; X.weight_scale_inv F32 2,2 | {int8} | Parse: `X.weight_scale_inv`
        X.weight F8_E4M3 256,256; X.weight_scale_inv F32 2,2 | {int8} | Parse: `X.weight`
        X.weight_scale_inv F32 2,2 | {int8} | Parse: `X.weight_scale_inv`
        X.weight I8 4,128; X.weight_scale_inv F32 4,1 | {int4} | Parse: `X.weight` & [4, 1] & 128
        X.weight I8 4,128; X.weight_scale_inv F32 1,2 | {int4} | Parse: `X.weight` & [1, 2]
        X.weight I8 128; X.weight_scale_inv F32 2 | {int4} | Parse: `X.weight` & [2]
        X.weight I8 2,4,128; X.weight_scale_inv F32 8,2 | {int4} | Parse: `X.weight` & [8, 2]
        X.weight I8 4,128; X.weight_scale_inv I32 4,2 | {int4} | Parse: `X.weight_scale_inv` & I32
        X.weight I8 4,128; X.weight_scale F32 4,1 | {int4} | Parse: `X.weight` & `X.weight_scale_inv`
        X.weight F8_E4M3 256,256; X.weight_scale_inv F32 256,1 | {int4} | Parse: `X.weight` & [128, 128]
        X.weight F8_E5M2 256,256; X.weight_scale_inv F32 2,2 | {int4} | Parse: `X.weight` & W4aFp8
        X I8 2,4,16; X_scale_inv F32 2,4,2 | {"quant_method":"fp8","expert_dtype":"fp4"} | Parse: `X` & 32 inputs
        X I8 2,4,16; X_scale_inv F32 2,1,1 | {"quant_method":"fp8","expert_dtype":"fp4"} | Parse: `X` & 32 inputs
        X.weight I8 4,128 | {int4} | Parse: `X.weight` & w4afp8
        X.weight I8 0,4611686018427387904; X.weight_scale_inv F32 0,1 | {int4} | Parse: `X.weight`
        X.weight I8 2,9223372036854775808,0; X.weight_scale_inv F32 2,9223372036854775808,0 | {int4} | Parse: X.weight
    "#;
    let table = table
        .replace("{int8}", r#"{"quant_method":"blockwise_int8","weight_block_size":[128,128]}"#);
    check(&table.replace("{int4}", r#"{"quant_method":"w4afp8"}"#));
}

/// Layouts of vLLM and sglang that no config tells apart, and blocks of ggml in bytes.
#[test]
fn vllm() {
    let table = r#"
        # MXFP4 under the names of FP8's scales.
        X.weight U8 4,16; X.weight_scale_inv U8 4,1 | {"quant_method":"fp8"} | Parse: `X.weight` & fp8
        X.weight U8 4,16; X.weight_scale_inv U8 4,2 | {mxfp4} | Parse: `X.weight` & `X.weight_scale_inv` [4, 2] & 32 values
        X.weight I8 4,16; X.weight_scale U8 3,1 | {mxfp4} | Parse: `X.weight` & `X.weight_scale` [3, 1]
        X.weight I8 4,16; X.weight_scale_inv F32 4,1 | {mxfp4} | Parse: `X.weight` & blockwise_int8
        X.weight I8 4,16; X.weight_scale_inv F8_E8M0 4,1 |  | Parse: `X.weight_scale_inv`
        X.weight F4 4,33; X.scale F8_E8M0 4,1 |  | Parse: `X.weight` & 32 values
        X.weight F4 4,16; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 F32 () |  | Parse: `X.weight` & 16 values
        # NVFP4 of Inkling.
        X.w13_weight U8 3,4,16; X.w13_weight.scale F8_E4M3 3,4,2; X.w13_weight.scale2 F32 3,2 |  | Parse: `X.w13_weight.scale2` & 3 matrices
        X.w13_weight U8 3,4,16; X.w13_weight.scale2 F32 3 |  | Parse: `X.w13_weight` & `X.w13_weight.scale`
        X.w13_weight.scale2 F32 3 |  | Parse: `X.w13_weight.scale2`
        # Blocks of ggml.
        X.weight U8 8,2,74 |  | Unsupported: `X.weight` & IQ2_XS & quant_algo
        X.weight U8 3,8,2,66 |  | Unsupported: `X.weight` & IQ2_XXS
        X.weight U8 8,2,34 | {"quant_method":"modelopt","quant_algo":"MIXED_PRECISION"} | Unsupported: `X.weight` & Q8_0
        X.weight U8 8,2,34 | {q8:"group_size":64} | Parse: `X.weight` & Q8_0 & group_size & 64
        X.weight U8 8,2,34 | {q8:"block_payload_bytes":36} | Parse: `X.weight` & block_payload_bytes & 36
        X.weight U8 8,2,34 | {q8:"packing":"b12x"} | Unsupported: `X.weight` & Q8_0 & b12x
        X.weight U8 8,2,36 | {q8:"packing":"ggml"} | Parse: `X.weight` & 34 bytes
        X.weight U8 8,34 | {q8:"packing":"ggml"} | Parse: `X.weight` & [out, blocks, bytes]
        X.weight U8 0,4611686018427387904,34 | {q8:"packing":"ggml"} | Parse: `X.weight`
        # Stacks in vLLM's memory.
        X.w13_qweight U8 2,8,4; X.w13_scales F16 2,8,1 |  | Unsupported: `X.w13_qweight` & vLLM
        X.w2_weight I8 2,8,4; X.w2_scale F32 2,8 |  | Unsupported: `X.w2_weight` & vLLM
        # Two scales for each expert: of halves, or of blocks?
        X F8_E4M3 3,48,64; X_scale_inv F32 3,2,1 |  | Parse: `X` & `X_scale_inv`
        X F8_E4M3 3,2816,2048; X_scale_inv F32 3,2,1 | {"quant_method":"fp8"} | Parse: `X` & `X_scale_inv`
        X F8_E4M3 3,47,64; X_scale_inv F32 3,2,1 | {"quant_method":"fp8","weight_block_size":null} | Parse: `X` & `X_scale_inv`
        # The algorithm has other blocks, or no codes of bytes.
        X.weight F8_E4M3 256,256; X.weight_scale F32 4,4 | {"quant_method":"modelopt","quant_algo":"FP8_BLOCK_SCALES"} | Parse: `X.weight` & FP8_BLOCK_SCALES & 64x64
        X.weight I8 256,64; X.weight_scale_inv F32 2,1 | {"quant_method":"modelopt","quant_algo":"MIXED_PRECISION"} | Parse: `X.weight` & [2, 1]
    "#;
    let table =
        table.replace("{mxfp4}", r#"{"quant_method":"fp8","routed_experts_quant_method":"mxfp4"}"#);
    let start = r#"{"quant_method":"modelopt","quantized_layers":{"X":{"quant_algo":"Q8_0","#;
    let table = table.lines().map(|line| match line.split_once("{q8:") {
        Some((tensors, rest)) => format!("{tensors}{start}{}\n", rest.replacen('}', "}}}", 1)),
        None => format!("{line}\n"),
    });
    check(&table.collect::<String>());
}

/// Schemes of PyTorch libraries with parts that are missing or do not fit.
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
        X.weight U8 4,8; X.weight_scale F32 4,1 | {"quant_method":"gemma","module_quant_configs":{"(?=X":{"num_bits":2}}} | Unsupported: (?=X
        X.weight U8 4,8; X.weight_scale F32 4,1 | {"quant_method":"gemma","module_quant_configs":{"X":{"num_bits":"2"}}} | Parse: `X` & no integer
        X.weight U8 4,8; X.weight_scale F32 4,1 | {"quant_method":"gemma","module_quant_configs":{"X":{"num_bits":null}}} | Parse: `X` & no integer
        X.embedding_quantized U8 4,8 | {gemma} | Parse: embedding_scale
        X.W_q U8 4,8; X.packing U8 () |  | Unsupported: `X.W_q` & packing 0
        X.W_q U8 4,8; X.packing U8 7 |  | Unsupported: `X.W_q` & packing
    "#;
    let table = table.replace("{bitnet}", r#"{"quant_method":"bitnet"}"#);
    check(&table.replace("{gemma}", r#"{"quant_method":"gemma"}"#));
}

/// A config leaves weights alone; codes are none, wherever they lie. Without a config, other codes
/// say what the model is.
#[test]
fn codes_without_scales() {
    let sound = "A.weight F8_E4M3 4,8; A.weight_scale F32 ()";
    let skipped = r#"{"quant_method":"compressed-tensors","ignore":["re:.*router.*"]}"#;
    for codes in [
        "router.up_proj_packed I32 2,9,4",
        "router.up_proj_blocks U8 2,4,1,16",
        "router._weight_qdata F8_E4M3 4,8",
        "router.weight._data I8 4,8",
        "router.W_q U8 4,8",
        "router.B I32 4,8",
        "router.down_proj U8 4,8,8",
    ] {
        // Without a config nothing says whether a `down_proj` of bytes is a weight.
        let configs = [skipped, ""];
        for config in &configs[..if codes.contains("_proj ") { 1 } else { 2 }] {
            let bytes = file(&tensors(&format!("{sound}; {codes}")), &[]);
            let name = codes.split(' ').next().unwrap();
            let found = recover(bytes, config).expect_err(codes).to_string();
            assert!(found.contains(&format!("`{name}`")), "{config}: {found}");
        }
    }
    // Numbers of blocks, and what the config leaves alone.
    let sound = format!("{sound}; router.num_blocks I64 (); router.weight BF16 4,8");
    recover(file(&tensors(&sound), &[]), skipped).unwrap();
    // A model that is not quantized may call its tensors anything.
    recover(file(&tensors("x.down_proj_packed I32 2,9,4"), &[]), "").unwrap();
}

/// Mask, offsets and values of a sparse weight say the same of each row, or it is refused.
#[test]
fn sparse_masks() {
    let halves = |n: usize| {
        (0..n)
            .flat_map(|i| [0, 0x3c + i as u8])
            .collect::<Vec<u8>>()
    };
    let numbers = |all: &[i64]| {
        all.iter()
            .flat_map(|n| n.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let decoded = |mask: [u8; 2], offsets: [i64; 2], values: usize| {
        let tensors = [
            raw("X.compressed", "F16", &[values], halves(values)),
            raw("X.bitmask", "U8", &[2, 1], mask.to_vec()),
            raw("X.shape", "I64", &[2], numbers(&[2, 5])),
            raw("X.row_offsets", "I64", &[2], numbers(&offsets)),
        ];
        recover(file(&tensors, &[]), "")
    };
    let bytes = decoded([0b0_0011, 0b1_0110], [0, 2], 5).unwrap();
    let (v, o) = (|i: u8| [0, 0x3c + i], [0, 0]);
    let want = [v(0), v(1), o, o, o, o, v(2), v(3), o, v(4)].concat();
    assert!(bytes.ends_with(&want));
    for (mask, offsets, values, what) in [
        ([0b0_0011, 0b1_0110], [0, 3], 5, "row 0"),
        ([0b0_0011, 0b1_0110], [1, 3], 6, "row 0"),
        ([0b0_0011, 0b1_0110], [0, 2], 6, "row 1"),
        ([0b0_0111, 0b1_0110], [0, 2], 5, "row 0"),
        ([0b0_0011, 0b1_0110], [3, 2], 5, "row 0"),
        ([0b0_0011, 0b1_0110], [0, -1], 5, "row 1"),
        // Bits behind the last column.
        ([0b10_0011, 0b1_0110], [0, 2], 5, "row 0"),
        ([0b10_0001, 0b1_0110], [0, 2], 5, "row 0"),
        ([0b0_0011, 0b1001_0010], [0, 2], 5, "row 1"),
    ] {
        let found = verdict(decoded(mask, offsets, values), Parse, &["`X.compressed`", what]);
        assert_eq!(found, None, "{mask:?} {offsets:?} {values}");
    }
}

/// torchao describes its tensors in the metadata, which may be wrong.
#[test]
fn torchao_metadata() {
    let bytes = "X._weight_qdata I8 4,64; X._weight_scale F32 4,2";
    let nibbles =
        "X._weight_qdata I8 4,32; X._weight_scale BF16 2,4; X._weight_zero_point BF16 2,4";
    let nvfp4 = "X._weight_qdata U8 4,32; X._weight_scale F8_E4M3 4,4";
    let tiles = "X._weight_qdata I32 1,1,32,4; X._weight_scale_and_zero BF16 4,8,2";
    let shifted = "X._weight_qdata I8 4,64; X._weight_scale F32 4,2; X._weight_zero_point I8 4,1";
    let (int8, int4, fp4) = ("Int8Tensor", "Int4Tensor", "NVFP4Tensor");
    let packed = "Int4TilePackedTo4dTensor";
    for (text, class, data, parts, kind, named) in [
        (bytes, "Other", "", r#""qdata","scale""#, Unsupported, "Other"),
        (bytes, "Other", "", r#""scale""#, Unsupported, "_weight_qdata"),
        (bytes, int8, "", r#""qdata","scale","extra""#, Unsupported, "extra"),
        (bytes, int8, "", r#""qdata","scale","zero_point""#, Parse, "zero_point"),
        (shifted, int8, "", r#""qdata","scale","zero_point""#, Parse, "zero_point"),
        (bytes, int8, r#""block_size":[1,64]"#, r#""qdata","scale""#, Parse, "scale"),
        (bytes, int8, r#""block_size":[0,0]"#, r#""qdata","scale""#, Parse, "scale"),
        (bytes, "Float8Tensor", "", r#""qdata","scale""#, Unsupported, "Float8Tensor"),
        ("X._weight_scale F32 4,2", int8, "", r#""qdata","scale""#, Parse, "_weight_qdata"),
        (nibbles, int4, "", r#""qdata""#, Parse, "groups"),
        (nibbles, int4, r#""block_size":[1,0]"#, r#""qdata""#, Parse, "groups"),
        (nibbles, int4, r#""block_size":[1,16]"#, r#""qdata""#, Parse, "scale"),
        (nibbles, int4, r#""block_size":[1,32],"shape":[4,63]"#, r#""qdata""#, Parse, "[4, 63]"),
        (nvfp4, fp4, r#""block_size":16,"is_swizzled_scales":true"#, r#""qdata""#, Parse, "scale"),
        (nvfp4, fp4, r#""block_size":32"#, r#""qdata""#, Parse, "blocks of 32"),
        (tiles, packed, r#""block_size":[1,32],"shape":[9,128]"#, r#""qdata""#, Parse, "[9, 128]"),
        (
            tiles,
            packed,
            r#""block_size":[1,64],"shape":[8,128]"#,
            r#""qdata""#,
            Parse,
            "scale_and_zero",
        ),
        (tiles, packed, r#""block_size":[1,32]"#, r#""qdata""#, Parse, "shape"),
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
