//! SDNQ's layers that are incomplete or contradict their config.

use anamnesis::TargetDtype;

use crate::common::file;
use crate::common::verdict::{Unsupported, check, parse_beside, recover, tensors, verdict};

/// Replaces `{name}` by what it stands for.
fn table(text: &str, names: &[(&str, &str)]) -> String {
    let replace = |text: String, (name, value): &(&str, &str)| text.replace(name, value);
    names.iter().fold(text.to_owned(), replace)
}

/// The config of [`table`]: its version, and more keys behind it.
const NAMES: &[(&str, &str)] = &[
    ("{u4", r#"{"quant_method":"sdnq","sdnq_version":"0.1.8","weights_dtype":"uint4""#),
    ("{i8", r#"{"quant_method":"sdnq","sdnq_version":"0.1.8","weights_dtype":"int8""#),
    ("{w}", "X.weight U8 128"),
    ("{s}", "X.scale F32 4,2,1"),
    ("{z}", "X.zero_point F32 4,2,1"),
];

#[test]
fn sdnq() {
    let text = r#"
        # What a config would say is missing or unknown.
        {w}; {s}; {z} |  | Unsupported: `X.weight` & SDNQ & config
        {w}; {s}; {z} | {u4,"use_turbo":true} | Unsupported: `X.weight` & `use_turbo`
        {w}; {s}; {z} | {u4,"modules_quant_config":{"X":{"use_turbo":1}}} | Unsupported: `X.weight` & `use_turbo`
        {w}; {s}; {z} | {u4,"modules_quant_config":{"X":1}} | Unsupported: `X.weight` & `X`
        {w}; {s}; {z} | {u4,"modules_dtype_dict":{"nf4":["X"]}} | Unsupported: `X.weight` & nf4
        {w}; {s}; {z} | {u4,"modules_dtype_dict":{"nbit":["X"]}} | Unsupported: `X.weight` & nbit
        {w}; {s}; {z} | {u4,"modules_dtype_dict":{"uint4":["*("]}} | Unsupported: `X.weight` & *(
        {w}; {s}; {z} | {"quant_method":"sdnq","weights_dtype":"nf4"} | Unsupported: `X.weight` & nf4
        {w}; {s}; {z} | {u4,"use_svd":"yes"} | Unsupported: `X.weight` & use_svd
        {w}; {s}; {z} | {u4,"use_hadamard":true} | Unsupported: `X.weight` & hadamard_group_size
        {w}; {s}; {z} | {"quant_method":"sdnq"} | Unsupported: `X.weight` & weights_dtype
        {w}; {s}; {z} | {"quant_method":"sdnq","sdnq_version":"0.2.0","weights_dtype":"uint4"} | Unsupported: `X.weight` & use_hadamard
        {w}; {s}; {z} | {"quant_method":"sdnq_training","weights_dtype":"uint4"} | Unsupported: `X.weight`
        # Parts are missing, or there are too many.
        {w}; {z} | {u4} | Parse: `X.weight` & X.scale
        {s}; {z} | {u4} | Parse: `X.scale` & X.weight
        {w}; {s} | {u4} | Parse: `X.weight` & X.zero_point
        X.weight I8 4,8; X.scale F32 4,1; X.zero_point F32 4,1 | {i8} | Parse: `X.weight` & `X.zero_point`
        {w}; {s}; {z}; X.scale_2 F32 1 | {u4} | Parse: `X.weight` & `X.scale_2`
        {w}; {s}; {z}; X.zero_point_2 F32 1 | {u4} | Parse: `X.weight` & `X.zero_point_2`
        {w}; {s}; {z}; X.svd_up F32 4,2; X.svd_down F32 2,64 | {u4} | Parse: `X.weight` & `X.svd_up`
        {w}; {s}; {z}; X.svd_up F32 4,2 | {u4,"use_svd":true,"svd_rank":2} | Parse: `X.weight` & X.svd_down
        {w}; {s}; {z} | {u4,"use_svd":true,"svd_rank":2} | Parse: `X.weight` & X.svd_up
        {w}; {s}; {z}; X.scale_3 F32 1 | {u4} | Unsupported: `X.weight` & `X.scale_3`
        X.svd_up F32 4,2 |  | Parse: `X.svd_up`
        X.scale F32 16 | {u4,"use_codebook":true} | Parse: `X.scale` & X.weight
        X.weight BOOL 4,8; X.scale F32 16 | {u4,"use_codebook":true} | Parse: `X.weight` & U8
        # Whether a matrix is stored transposed.
        {w}; {s}; {z}; X.svd_up F32 4,4; X.svd_down F32 64,4 | {u4,"use_svd":true,"svd_rank":4} | Parse: `X.weight` & use_quantized_matmul
        X.weight I8 64,32; X.scale F32 1,1; X.bias F32 32 | {i8,"group_size":-2} | Parse: `X.weight` & outputs
        X.weight I8 32,32; X.scale F32 1,32 | {i8} | Unsupported: `X.weight` & contradict
        X.weight I8 32,32; X.scale F32 32,1 | {i8,"use_quantized_matmul":true} | Unsupported: `X.weight` & contradict
        # The codes are others than the config says.
        X.weight I8 4,8; X.scale F32 4,1 | {u4} | Parse: `X.weight` & U8
        X.weight F8_E4M3 4,8; X.scale F32 4,1 | {i8} | Parse: `X.weight` & I8
        X.weight BF16 4,8; X.scale F32 4,1 | {i8} | Parse: `X.weight` & I8
        X.weight U8 4,32; {s}; {z} | {u4} | Parse: `X.weight` & shape
        X.weight U8 16,5; X.scale F32 4,1; X.zero_point F32 4,1 | {u4,"modules_dtype_dict":{"uint6":["X"]}} | Parse: `X.weight` & shape
        X.weight U8 2,9; X.scale F32 4,1 | {u4,"modules_dtype_dict":{"int9":["X"]}} | Parse: `X.weight` & Int(9) & I16
        X.weight I16 2,10; X.scale F32 4,1 | {u4,"modules_dtype_dict":{"int9":["X"]}} | Parse: `X.weight` & shape
        X.weight I16 32; X.scale F32 4,1 | {u4,"modules_dtype_dict":{"int12":["X"]}} | Parse: `X.weight` & shape
        X.weight I16 8,3; X.scale F32 4,1 | {u4,"modules_dtype_dict":{"int14":["X"]}} | Parse: `X.weight` & shape
        X.weight U16 4,8; X.scale F32 4,1 | {u4,"modules_dtype_dict":{"int16":["X"]}} | Parse: `X.weight` & I16
        X.weight I16 4,8; X.scale F32 4,1 | {"quant_method":"sdnq","sdnq_version":"0.2.8","weights_dtype":"float16_e5m10fn","use_hadamard":false} | Parse: `X.weight` & U16
        X.weight U16 4,8; X.scale F32 4,1 | {u4,"modules_dtype_dict":{"float16_e5m10fn":["X"]}} | Unsupported: `X.weight` & 0.1.8
        X.weight BF16 4,8; X.scale F32 4,1 | {u4,"modules_dtype_dict":{"float16":["X"]}} | Parse: `X.weight` & F16
        # A weight of the dtype of its codes without a scale, or with that of a norm.
        X.weight F16 4,8 | {u4,"modules_dtype_dict":{"float16":["X"]}} | Parse: `X.weight` & X.scale
        X.weight F16 4,8; X.scale F32 4 | {u4,"modules_dtype_dict":{"float16":["X"]}} | Parse: `X.weight` & [4]
        X.weight BF16 4,2,4 | {u4,"modules_dtype_dict":{"bfloat16":["X"]}} | Parse: `X.weight` & X.scale
        X.weight I32 4,8; X.scale F32 4,1 | {u4,"modules_dtype_dict":{"int32":["X"]}} | Unsupported: `X.weight` & Int(32)
        X.weight F32 4,8; X.scale F32 4,1 | {u4,"modules_dtype_dict":{"float32":["X"]}} | Unsupported: `X.weight` & F32
        X.weight I16 2,9; X.scale F32 4,512 | {u4,"use_codebook":true,"modules_dtype_dict":{"uint9":["X"]}} | Unsupported: `X.weight` & use_codebook
        X.weight U8 128; X.scale I16 1,5; X.scale_2 F32 1024; X.zero_point I16 1,5; X.zero_point_scale F32 1024; X.bias F32 4 | {u4,"scale_dtype":"uint10","use_codebook_scale":true} | Unsupported: `X.weight` & use_codebook_scale
        # A least number of bits that is there already leaves the choice to the next rule.
        X.weight U8 2,9; X.scale F32 4,1 | {u4,"modules_dtype_dict":{"minimum_4bit":["X"],"int9":["X"]}} | Parse: `X.weight` & Int(9)
        X.weight U8 2,9; X.scale F32 4,1 | {u4,"modules_dtype_dict":{"minimum_9bit":["X"],"int7":["X"]}} | Parse: `X.weight` & Int(9)
        X.weight F8_E8M0 4,8; X.scale F32 4,1 | {u4,"modules_dtype_dict":{"float8_e8m0fnu":["X"]}} | Unsupported: `X.weight` & E8M0
        X.weight U8 64; X.scale F32 4,1 | {"quant_method":"sdnq","sdnq_version":"0.2.2","weights_dtype":"fp4","use_hadamard":false} | Unsupported: `X.weight` & 0.2.2
        X.weight U8 64; X.scale F32 4,1 | {"quant_method":"sdnq","weights_dtype":"fp4"} | Unsupported: `X.weight` & 0.0.0
        {w}; {s}; {z} | {"quant_method":"sdnq","sdnq_version":"0.2.0","weights_dtype":"uint4","use_hadamard":true,"hadamard_group_size":64} | Unsupported: `X.weight` & 0.2.0
        # Scales that do not fit.
        {w}; X.scale F32 4,3,1; X.zero_point F32 4,3,1 | {u4} | Parse: `X.weight` & [4, 3, 1]
        {w}; X.scale F32 3,1; X.zero_point F32 3,1 | {u4} | Parse: `X.weight` & [3, 1]
        {w}; X.scale F32 4,2,2; X.zero_point F32 4,2,2 | {u4} | Parse: `X.weight` & [4, 2, 2]
        {w}; X.scale F32 4,0,1; X.zero_point F32 4,0,1 | {u4} | Parse: `X.weight` & [4, 0, 1]
        {w}; X.scale F32 0,1; X.zero_point F32 0,1 | {u4} | Parse: `X.weight` & [0, 1]
        {w}; X.scale F32 1,4; X.zero_point F32 1,4 | {u4} | Parse: `X.weight` & [1, 4]
        {w}; {s}; X.zero_point F32 4,1 | {u4} | Parse: `X.weight` & `X.zero_point` & 4 numbers
        {w}; X.scale I32 4,2,1; {z} | {u4} | Parse: `X.scale` & I32
        X.weight I8 8,4; X.scale F32 4,1 | {i8} | Parse: `X.weight` & [4, 1]
        X.weight I8 4,8; X.scale F32 1,1,1 | {i8} | Parse: `X.weight` & [1, 1, 1]
        X.weight I8 4,2,3,3; X.scale F32 4,1,3,3 | {i8} | Parse: `X.weight` & [4, 1, 3, 3]
        X.weight I8 4,8,3; X.scale F32 1,8,3 | {i8,"quant_conv":true} | Parse: `X.weight` & [1, 8, 3]
        X.weight I8 32,64; X.scale F32 1,64 | {i8,"quant_conv":true,"use_quantized_matmul_conv":true} | Unsupported: `X.weight` & convolution
        {w}; X.scale F32 1,1; X.zero_point F32 1,1 | {u4,"group_size":-2} | Unsupported: `X.weight` & shape
        # A transposed convolution in groups has scales of the same shape.
        X.weight I8 8,4,2,3; X.scale F32 8,1,2,3 | {i8,"quant_conv":true,"group_size":4} | Unsupported: `X.weight` & transposed convolution
        X.weight I8 2,1,65537; X.scale F32 2,1,65537 | {i8,"quant_conv":true} | Unsupported: `X.weight` & 65536 places
        # Codebooks.
        {w}; X.scale F32 4,15 | {u4,"use_codebook":true} | Parse: `X.weight` & 16 entries
        {w}; X.scale F32 4,16; X.zero_point F32 4,16 | {u4,"use_codebook":true} | Parse: `X.weight` & `X.zero_point`
        X.weight I8 4,8; X.scale F32 4,256 | {i8,"use_codebook":true} | Unsupported: `X.weight` & `use_codebook`
        # Scales that are codes.
        {w}; X.scale U8 4,2,1; X.scale_2 F32 1; {z} | {u4,"scale_dtype":"uint8","zero_point_dtype":"none"} | Parse: `X.weight` & X.scale_zero_point
        {w}; X.scale U8 4,2,1; X.scale_2 F32 2; X.scale_zero_point F32 1; {z} | {u4,"scale_dtype":"uint8","zero_point_dtype":"none"} | Parse: `X.scale_2` & 1 numbers
        {w}; X.scale U8 4; X.scale_2 F32 1; X.scale_zero_point F32 1; X.zero_point U8 4; X.zero_point_scale F32 1; X.zero_point_2 F32 1 | {u4,"scale_dtype":"uint4"} | Unsupported: `X.weight` & packed scales
        {w}; X.scale U8 4,2; X.scale_2 F32 1; X.scale_zero_point F32 1; {z} | {u4,"scale_dtype":"uint4","zero_point_dtype":"none"} | Parse: `X.scale` & shape
        # Products.
        {w}; {s}; {z}; X.svd_up F32 4,2; X.svd_down F32 3,64 | {u4,"use_svd":true,"svd_rank":2} | Parse: `X.weight` & `X.svd_down`
        {w}; {s}; {z}; X.svd_up F32 8; X.svd_down F32 2,64 | {u4,"use_svd":true,"svd_rank":2} | Parse: `X.weight` & `X.svd_up`
        {w}; {s}; {z}; X.svd_up I32 4,2; X.svd_down F32 2,64 | {u4,"use_svd":true,"svd_rank":2} | Parse: `X.svd_up` & I32
    "#;
    check(&table(text, NAMES));
}

/// What cannot be a transposed convolution in groups is a convolution.
#[test]
fn convolutions_without_groups() {
    for (shape, scale, size) in [
        ("8,4,2,3", "8,1,2,3", -1),
        ("8,4,2,3", "8,1,2,3", 5),
        ("8,4,2,3", "8,1,2,3", 0),
        ("8,8,1,1", "8,1,1,1", 4),
        ("8,4,2", "8,1,2", 4),
    ] {
        let bytes = file(&tensors(&format!("X.weight I8 {shape}; X.scale F32 {scale}")), &[]);
        let config = format!(r#"{{i8,"quant_conv":true,"group_size":{size}}}"#);
        recover(bytes, &table(&config, NAMES)).unwrap();
    }
}

/// Two configs have to say the same.
#[test]
fn two_configs() {
    let bytes = file(&tensors(&table("{w}; {s}; {z}", NAMES)), &[]);
    let lists = r#","modules_dtype_dict":{"uint4":["a","b"],"int8":["c"]}"#;
    for (second, is_same) in [
        ("{u4}".to_owned(), false),
        (format!("{{u4{lists}}}"), true),
        (
            r#"{u4,"modules_dtype_dict":{"uint4":["b","a"],"int8":["c"]},"svd_steps":3}"#
                .to_owned(),
            true,
        ),
        (r#"{u4,"modules_dtype_dict":{"int8":["c"],"uint4":["a","b"]}}"#.to_owned(), false),
        (format!(r#"{{u4{lists},"use_svd":true}}"#), false),
        (format!(r#"{{u4{lists},"modules_to_not_use_matmul":["X"]}}"#), false),
        (format!(r#"{{u4{lists},"modules_quant_config":{{"Y":{{}}}}}}"#), false),
        (table(&format!("{{u4{lists}}}"), NAMES).replace("0.1.8", "0.1.7"), false),
    ] {
        let first = table(&format!(r#"{{"quantization_config":{{u4{lists}}}}}"#), NAMES);
        let second = table(&second, NAMES);
        let configs =
            [("config.json", first.as_str()), ("quantization_config.json", second.as_str())];
        let model = parse_beside(&bytes, &configs).unwrap();
        let result = model.remember_to_bytes(TargetDtype::F32);
        if is_same {
            result.unwrap();
        } else {
            let words = ["`X.weight`", "config.json", "contradict"];
            assert_eq!(verdict(result, Unsupported, &words), None, "{second}");
        }
    }
}

/// A factor of so many ranks is not kept by the workers, and its product is summed in another
/// place, in F64 for every type.
#[test]
fn ranks_of_zeros_change_no_bit() {
    let (rows, cols, rank) = (9, 40, 5);
    let decode = |ranks: usize, target: TargetDtype| {
        let text = format!(
            "X.weight I8 {rows},{cols}; X.scale F32 {rows},1; X.svd_up F32 {rows},{ranks}; X.svd_down F32 {ranks},{cols}"
        );
        let mut all = tensors(&text);
        let number = |i: usize| ((i * 7919 % 1013) as f32 / 1013.0 - 0.4).to_le_bytes();
        all[0].bytes = (0..rows * cols).map(|i| (i * 37) as u8).collect();
        all[1].bytes = (0..rows).flat_map(|i| number(i + 3)).collect();
        let up = |i: usize| match i % ranks < rank {
            true => number(i / ranks * rank + i % ranks),
            false => [0; 4],
        };
        let down = |i: usize| match i / cols < rank {
            true => number(i + 11),
            false => [0; 4],
        };
        all[2].bytes = (0..rows * ranks).flat_map(up).collect();
        all[3].bytes = (0..ranks * cols).flat_map(down).collect();
        let config = format!(
            r#"{{"quantization_config":{{"quant_method":"sdnq","sdnq_version":"0.1.8","weights_dtype":"int8","use_svd":true,"svd_rank":{ranks}}}}}"#
        );
        let model = parse_beside(&file(&all, &[]), &[("config.json", &config)]).unwrap();
        model.remember_to_bytes(target).unwrap()
    };
    for target in [TargetDtype::F32, TargetDtype::BF16, TargetDtype::F16] {
        let kept = decode(rank, target);
        for ranks in [rank + 1, 1024, 1025, 1500] {
            assert!(decode(ranks, target) == kept, "{ranks} in {target}");
        }
    }
}
