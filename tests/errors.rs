//! Files that are malformed, incomplete, contradictory or of a kind that is not decoded: each must give the
//! right kind of error, and the message must name the tensor (or file) and the reason. Codes never pass for
//! weights, and an odd tensor never makes a file unreadable.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use anamnesis::{AnamnesisError, ParsedModel, RememberOptions, Result, TargetDtype};
use common::{Raw, assert_same, file, raw};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Parse,
    Unsupported,
    Limit,
}
use Kind::{Limit, Parse, Unsupported};

/// Tensors as `name dtype dim,dim; …` (`()` is a scalar), the `quantization_config` beside them or nothing,
/// the kind of error, and words of its message.
type Case<'a> = (&'a str, &'a str, Kind, &'a [&'a str]);

/// Tensors of zeros, as a [`Case`] writes them.
fn tensors(text: &str) -> Vec<Raw> {
    let one = |t: &str| {
        let [name, dtype, dims] = t.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
        let shape: Vec<usize> = dims.split(',').filter(|d| *d != "()").map(|d| d.parse().unwrap()).collect();
        let dtype: &'static str = DTYPES.iter().find(|d| **d == dtype).unwrap();
        let bits = match dtype {
            "BOOL" => 8,
            _ => dtype.split('_').next().unwrap().trim_start_matches(char::is_alphabetic).parse().unwrap(),
        };
        let elements = if shape.contains(&0) { 0 } else { shape.iter().product::<usize>() };
        raw(name, dtype, &shape, vec![0; elements * bits / 8])
    };
    text.split(';').filter(|t| !t.trim().is_empty()).map(one).collect()
}

const DTYPES: &[&str] = &[
    "BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "I16", "U16", "F16", "BF16",
    "I32", "U32", "F32", "C64", "F64", "I64", "U64",
];

/// Parses `bytes` with `configs` (file name, content) beside them.
fn parse_beside(bytes: &[u8], configs: &[(&str, &str)]) -> Result<ParsedModel> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
    configs.iter().for_each(|(name, text)| std::fs::write(directory.path().join(name), text).unwrap());
    anamnesis::parse(directory.path().join("model.safetensors"))
}

fn parse(bytes: Vec<u8>, config: &str) -> Result<ParsedModel> {
    match config {
        "" => anamnesis::parse_bytes(bytes),
        _ => parse_beside(&bytes, &[("config.json", &format!(r#"{{"quantization_config":{config}}}"#))]),
    }
}

fn recover(bytes: Vec<u8>, config: &str) -> Result<Vec<u8>> {
    let model = parse(bytes, config)?;
    let result = model.remember_to_bytes(TargetDtype::F32);
    let (info, said) = (model.inspect(), result.as_ref().err().map(ToString::to_string));
    assert!(info.problems.is_empty() || said == Some(info.problems[0].clone()), "{said:?} {:?}", info.problems);
    result
}

/// What is wrong with `result`, if it is not an error of `kind` whose message holds all of `words`.
fn verdict<T>(result: Result<T>, kind: Kind, words: &[&str]) -> Option<String> {
    let Err(error) = result else { return Some("no error".to_owned()) };
    let got = match error {
        AnamnesisError::Parse { .. } => Some(Parse),
        AnamnesisError::Unsupported { .. } => Some(Unsupported),
        AnamnesisError::LimitExceeded { .. } => Some(Limit),
        _ => None,
    };
    let text = error.to_string();
    let lacking: Vec<_> = words.iter().filter(|w| !text.contains(**w)).collect();
    (got != Some(kind) || !lacking.is_empty()).then(|| format!("wanted {kind:?} with {lacking:?}: {text}"))
}

/// Checks every case, and reports all that fail at once.
fn check_all<'a>(cases: impl IntoIterator<Item = (Vec<Raw>, &'a str, Kind, Vec<&'a str>)>) {
    let mut failures = String::new();
    for (tensors, config, kind, words) in cases {
        let list: Vec<_> = tensors.iter().map(|t| format!("{} {} {:?}", t.name, t.dtype, t.shape)).collect();
        let bytes = file(&tensors, &[]);
        let recovered = std::panic::catch_unwind(|| recover(bytes, config));
        let wrong = match recovered {
            Ok(result) => verdict(result, kind, &words),
            Err(_) => Some("panic".to_owned()),
        };
        failures.extend(wrong.map(|w| format!("\n{list:?} {config}: {w}")));
    }
    assert!(failures.is_empty(), "{failures}");
}

fn check(cases: &[Case<'_>]) {
    check_all(cases.iter().map(|&(text, config, kind, words)| (tensors(text), config, kind, words.to_vec())));
}

#[test]
fn fp8() {
    const BLOCKS: &str = r#"{"quant_method":"fp8","weight_block_size":[64,64]}"#;
    check(&[
        // A scale is missing, and something says that there should be one.
        ("X.weight F8_E4M3 4,8; Y.weight F8_E4M3 4,8; Y.weight_scale F32 ()", "", Parse, &["`X.weight`", "_scale"]),
        ("X.weight F8_E5M2 4,8; Y.weight_scale_inv F32 1,1", "", Parse, &["`X.weight`"]),
        ("X.weight F8_E4M3 4,8; scaled_fp8 F8_E4M3 0", "", Parse, &["`X.weight`"]),
        ("X.weight F8_E4M3 4,8", r#"{"quant_method":"fp8"}"#, Parse, &["`X.weight`", "config"]),
        // A scale has no weight, or none that it could scale.
        ("X.weight_scale F32 ()", "", Parse, &["`X.weight_scale`"]),
        ("X.weight_scale_inv BF16 2,2", "", Parse, &["`X.weight_scale_inv`"]),
        ("X.scale_weight F32 ()", "", Parse, &["`X.scale_weight`"]),
        ("X.qscale_weight F32 ()", "", Parse, &["`X.qscale_weight`"]),
        ("X.scale F8_E8M0 2,2", "", Parse, &["`X.scale`"]),
        ("X.weight BF16 4,8; X.weight_scale F32 ()", "", Parse, &["`X.weight_scale`"]),
        ("X.weight I32 4,8; X.weight_scale F32 4,1", "", Parse, &["X.weight"]),
        // Two scales for one weight.
        ("X.weight F8_E4M3 4,8; X.weight_scale F32 (); X.weight_scale_inv F32 ()", "", Parse, &["`X.weight`", "two"]),
        ("X.weight F8_E4M3 4,8; X.weight_scale F32 (); X.scale F8_E8M0 1,1", "", Parse, &["`X.weight`", "`X.scale`"]),
        // Scales that do not fit.
        ("X.weight F8_E4M3 4,8; X.weight_scale F32 3", "", Parse, &["`X.weight`", "`X.weight_scale`", "[3]"]),
        ("X.weight F8_E4M3 4,8; X.weight_scale F32 8", "", Parse, &["`X.weight`", "[8]"]),
        ("X.weight F8_E4M3 4,8; X.weight_scale F32 0", "", Parse, &["`X.weight`", "[0]"]),
        ("X.weight F8_E4M3 4,8; X.weight_scale F32 5,1", "", Parse, &["`X.weight`", "[5, 1]"]),
        ("X.weight F8_E4M3 4,8; X.weight_scale F32 2,3", "", Parse, &["`X.weight`", "[2, 3]"]),
        ("X.weight F8_E4M3 8; X.weight_scale F32 8", "", Parse, &["`X.weight`", "[8]"]),
        ("X F8_E4M3 2,4,8; X_scale F32 3,1,1", "", Parse, &["`X`", "`X_scale`"]),
        // One for each expert, or blocks that experts share? Rather ask than guess.
        ("X F8_E4M3 2,64,8; X_scale F32 2,1", "", Parse, &["`X`", "`X_scale`"]),
        // Ragged blocks of 128, or even ones of 96?
        ("X.weight F8_E4M3 192,8; X.weight_scale F32 2,1", "", Parse, &["`X.weight`", "`X.weight_scale`"]),
        ("X.weight F8_E4M3 4,8; X.weight_scale F64 ()", "", Parse, &["`X.weight_scale`", "F64"]),
        ("X.weight F8_E4M3 4,8; X.weight_scale I32 ()", "", Parse, &["`X.weight_scale`", "I32"]),
        // The config says otherwise.
        (
            "X.weight F8_E4M3 256,256; X.weight_scale_inv F32 2,2",
            BLOCKS,
            Parse,
            &["`X.weight`", "`X.weight_scale_inv`", "config.json", "[64, 64]"],
        ),
        ("X.weight F8_E4M3 256,256; X.weight_scale F32 ()", BLOCKS, Parse, &["`X.weight`", "config.json"]),
        ("X.weight F8_E4M3 256,256; X.weight_scale F32 256,1", BLOCKS, Parse, &["`X.weight`", "config.json"]),
        // Integers that the config says are quantized.
        ("X.weight I8 4,8", r#"{"quant_method":"bitsandbytes","load_in_8bit":true}"#, Parse, &["`X.weight`", "config"]),
        ("X.weight U8 4,8", r#"{"quant_method":"mxfp4"}"#, Parse, &["`X.weight`", "mxfp4"]),
        ("X.weight I32 4,8", r#"{"quant_method":"quark"}"#, Parse, &["`X.weight`", "quark"]),
    ]);
}

/// Without a word about scales, FP8 is a plain cast, and the report says so.
#[test]
fn fp8_cast_is_reported() {
    let model = anamnesis::parse_bytes(file(&tensors("X.weight F8_E4M3 4,8; n F32 2"), &[])).unwrap();
    let recovery = model.recovery(TargetDtype::BF16).unwrap();
    assert!(recovery.report().notes.iter().any(|n| n.contains("plain cast")), "{:?}", recovery.report().notes);
    recovery.to_bytes().unwrap();
}

const G4: &str = r#"{"quant_method":"gptq","bits":4,"group_size":32,"sym":false,"desc_act":false}"#;

#[cfg(feature = "gptq")]
#[test]
fn gptq() {
    let q = "X.qweight I32 12,32; X.scales F16 3,32";
    let (z, g) = ("X.qzeros I32 3,4", "X.g_idx I32 96");
    let is: &[&str] = &["`X.qweight`"];
    let cases: Vec<(String, &str, Kind, &[&str])> = vec![
        // The width: contradicted, unproved, not decoded.
        (format!("{q}; {z}"), r#"{"bits":8,"group_size":32}"#, Parse, &["`X.qweight`", "config.json", "8 bits"]),
        (format!("{q}; {z}; {g}"), r#"{"bits":2,"group_size":32}"#, Parse, &["`X.qweight`", "config.json", "2 bits"]),
        (q.into(), "", Parse, &["`X.qweight`", "bits"]),
        (format!("{q}; {z}"), r#"{"bits":5,"group_size":32}"#, Unsupported, &["`X.qweight`", "5 bits"]),
        (
            "X.qweight I32 24,32; X.scales F16 3,32".into(),
            r#"{"bits":4,"group_size":32,"sym":true,"dynamic":{"+:X":{"bits":8}}}"#,
            Parse,
            is,
        ),
        // Zero points.
        (q.into(), G4, Parse, &["`X.qweight`", "X.qzeros", "sym"]),
        (q.into(), r#"{"bits":4,"group_size":32}"#, Parse, &["`X.qweight`", "X.qzeros", "sym"]),
        (format!("{q}; X.qzeros I32 3,5; {g}"), "", Parse, &["`X.qweight`", "qzeros"]),
        (format!("{q}; X.qzeros I32 2,4"), G4, Parse, &["`X.qweight`", "qzeros"]),
        (format!("{q}; X.qzeros F16 3,4"), G4, Unsupported, &["`X.qzeros`"]),
        (format!("{q}; {z}"), r#"{"bits":4,"checkpoint_format":"marlin"}"#, Unsupported, &["`X.qweight`", "marlin"]),
        (format!("{q}; {z}"), r#"{"bits":4,"format":"from_mars"}"#, Unsupported, &["`X.qweight`", "from_mars"]),
        // Shapes and dtypes.
        ("X.qweight I32 12,32; X.qzeros I32 3,4".into(), "", Parse, &["`X.qweight`", "X.scales"]),
        ("X.qweight I32 12,32; X.scales F16 3,31; X.qzeros I32 3,4".into(), G4, Parse, &["`X.qweight`", "[3, 31]"]),
        ("X.qweight I32 12,32; X.scales F16 32; X.qzeros I32 3,4".into(), G4, Parse, &["`X.scales`"]),
        ("X.qweight I32 12,32; X.scales I32 3,32; X.qzeros I32 3,4".into(), G4, Parse, &["`X.scales`", "I32"]),
        ("X.qweight I32 384; X.scales F16 3,32; X.qzeros I32 3,4".into(), G4, Parse, is),
        ("X.qweight I16 12,32; X.scales F16 3,32; X.qzeros I32 3,4".into(), G4, Unsupported, is),
        // Groups.
        (format!("{q}; {z}"), r#"{"bits":4,"group_size":64}"#, Parse, &["`X.qweight`", "config.json", "64"]),
        (format!("{q}; {z}"), r#"{"bits":4,"group_size":-2}"#, Parse, &["`X.qweight`", "config.json"]),
        (format!("{q}; {z}; X.g_idx I32 64"), G4, Parse, &["`X.qweight`", "g_idx"]),
        (format!("{q}; {z}; X.g_idx I64 96"), G4, Parse, &["`X.g_idx`"]),
        (format!("{q}; {z}; X.g_idx I32 2,48"), G4, Parse, &["`X.g_idx`"]),
        // Act-order without the order.
        (format!("{q}; {z}"), r#"{"bits":4,"group_size":32,"desc_act":true}"#, Parse, &["X.g_idx", "desc_act"]),
        (format!("{q}; {z}; X.g_idx I32 0"), r#"{"bits":4,"group_size":32,"desc_act":true}"#, Parse, &["X.g_idx"]),
        // Two even groups of 48, or 64 and 32?
        ("X.qweight I32 12,32; X.scales F16 2,32; X.qzeros I32 2,4".into(), "", Parse, is),
        // Shapes say GPTQ.
        (format!("{q}; {z}"), r#"{"quant_method":"awq","bits":4}"#, Parse, &["`X.qweight`", "AWQ"]),
        // Left over.
        (format!("{q}; {z}; Y.scales F16 3,32"), G4, Parse, &["`Y.scales`"]),
        ("X.qzeros I32 3,4".into(), "", Parse, &["`X.qzeros`"]),
        ("X.g_idx I32 96".into(), "", Parse, &["`X.g_idx`"]),
        (format!("{q}; {z}; X.weight F16 32,96"), G4, Parse, &["`X.weight`", "twice"]),
        // Nothing in it, in ways that multiply badly.
        ("X.qweight I32 0,0; X.scales F16 0,0; X.qzeros I32 0,0".into(), "", Parse, is),
        ("X.qweight I32 1152921504606846976,0; X.scales F16 1,0; X.qzeros I32 1,0".into(), "", Parse, is),
        (
            "X.qweight I32 0,4611686018427387904; X.scales F16 0,4611686018427387904; X.qzeros I32 0,4".into(),
            "",
            Parse,
            is,
        ),
    ];
    check_all(cases.iter().map(|(text, config, kind, words)| (tensors(text), *config, *kind, words.to_vec())));
}

#[cfg(feature = "gptq")]
#[test]
fn gptq_zeros_that_only_a_config_explains() {
    let mut all = tensors("X.qweight I32 12,32; X.scales F16 3,32; X.qzeros I32 3,4");
    all[2].bytes = vec![0x88; 48];
    check_all([(all.clone(), "", Parse, vec!["`X.qzeros`", "checkpoint_format"])]);
    recover(file(&all, &[]), r#"{"bits":4,"sym":true,"checkpoint_format":"gptq_v2"}"#).unwrap();
}

/// An index out of range is found when its tile is decoded, and the same one at any thread count.
#[cfg(feature = "gptq")]
#[test]
fn gptq_group_index_out_of_range() {
    for bad in [3i32, -1, i32::MIN, i32::MAX] {
        let mut all = tensors("X.qweight I32 12,32; X.scales F16 3,32; X.qzeros I32 3,4; X.g_idx I32 96");
        all[3].bytes = (0..96).flat_map(|k| if k == 90 { bad } else { k / 32 }.to_le_bytes()).collect();
        let model = anamnesis::parse_bytes(file(&all, &[])).unwrap();
        for threads in [1, 2, 5] {
            let options = RememberOptions::new(TargetDtype::BF16).with_threads(threads);
            let wrong = verdict(model.remember_to_bytes(options), Parse, &["`X.g_idx`", &bad.to_string(), "of 3"]);
            assert_eq!(wrong, None);
        }
    }
}

#[cfg(feature = "awq")]
#[test]
fn awq() {
    let awq = "X.qweight I32 64,4; X.scales F16 2,32; X.qzeros I32 2,4";
    check(&[
        (awq, r#"{"quant_method":"gptq","bits":4}"#, Parse, &["`X.qweight`", "GPTQ"]),
        (awq, r#"{"quant_method":"awq","bits":8}"#, Parse, &["`X.qweight`", "config.json", "8 bits"]),
        (awq, r#"{"quant_method":"awq","bits":4,"version":"gemv"}"#, Unsupported, &["`X.qweight`", "gemv"]),
        (awq, r#"{"quant_method":"awq","bits":4,"group_size":16}"#, Parse, &["`X.qweight`", "config.json", "16"]),
        ("X.qweight I32 64,4; X.scales F16 2,32", "", Parse, &["`X.qweight`", "X.qzeros", "zero_point"]),
        ("X.qweight I32 64,4; X.scales F16 2,32; X.qzeros I32 2,5", "", Parse, &["`X.qzeros`"]),
        ("X.qweight I32 64,4; X.scales F16 2,32; X.qzeros I32 1,4", "", Parse, &["`X.qzeros`"]),
        ("X.qweight I32 64,4; X.scales F16 64; X.qzeros I32 2,4", "", Parse, &["`X.scales`"]),
        ("X.qweight I32 64,4; X.scales I32 2,32; X.qzeros I32 2,4", "", Parse, &["`X.scales`", "I32"]),
        ("X.qweight I32 0,0; X.scales F16 0,0; X.qzeros I32 0,0", "", Parse, &["`X.qweight`"]),
        // GEMV and GEMV-fast.
        ("X.qweight I32 32,16; X.scales F16 32,8; X.qzeros I32 32,1", "", Unsupported, &["`X.qweight`"]),
        ("X.qweight I16 8,128; X.scales F16 8,32; X.qzeros F16 8,32", "", Unsupported, &["`X.qweight`"]),
    ]);
}

#[cfg(feature = "bnb")]
#[test]
fn bnb() {
    const STATE: &str = "X.weight.quant_state.bitsandbytes__nf4";
    const OK: &str = r#"{"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[8,16]}"#;
    const NESTED: &str = r#"{"blocksize":64,"shape":[8,16],"nested_blocksize":256,"nested_offset":0.5}"#;
    let (w, absmax, map) = ("X.weight U8 64,1;", "X.weight.absmax F32 2;", "X.weight.quant_map F32 16;");
    let flat = format!("{w}{absmax}{map}");
    let nested = |rest: &str| format!("{w}{map}X.weight.absmax U8 2;{rest}");
    let (outer, codes) = ("X.weight.nested_absmax F32 1;", "X.weight.nested_quant_map F32 256;");
    let long = format!("{OK}{}", " ".repeat(70_000));
    let cases: Vec<(String, &str, &[&str])> = vec![
        (flat.clone(), "", &["`X.weight`", "quant_state"]),
        (format!("{w}{map}"), OK, &["`X.weight`", "X.weight.absmax"]),
        (format!("{w}{absmax}"), OK, &["`X.weight`", "X.weight.quant_map"]),
        (w.into(), OK, &["`X.weight`"]),
        (absmax.into(), "", &["`X.weight.absmax`"]),
        (String::new(), OK, &[STATE]),
        // What the state says.
        (flat.clone(), "{\"blocksize\":64", &[STATE]),
        (flat.clone(), "\u{0}\u{1}", &[STATE]),
        (flat.clone(), r#"{"shape":[8,16]}"#, &[STATE, "blocksize"]),
        (flat.clone(), r#"{"blocksize":64}"#, &[STATE, "shape"]),
        (flat.clone(), r#"{"blocksize":-64,"shape":[8,16]}"#, &[STATE]),
        (flat.clone(), r#"{"blocksize":0,"shape":[8,16]}"#, &[STATE]),
        (flat.clone(), r#"{"blocksize":63,"shape":[8,16]}"#, &[STATE, "63"]),
        (flat.clone(), r#"{"blocksize":64,"shape":[8,17]}"#, &["`X.weight`", "[8, 17]"]),
        (flat.clone(), r#"{"blocksize":64,"shape":[9223372036854775808,4]}"#, &["`X.weight`"]),
        (flat.clone(), r#"{"blocksize":64,"shape":[0,16]}"#, &["`X.weight`"]),
        (flat.clone(), &long, &[STATE]),
        // Companions that do not fit.
        (format!("{w}{map}X.weight.absmax F32 3"), OK, &["`X.weight.absmax`"]),
        (format!("{w}{map}X.weight.absmax I32 2"), OK, &["`X.weight.absmax`", "I32"]),
        (format!("{w}{absmax}X.weight.quant_map F32 15"), OK, &["`X.weight.quant_map`"]),
        (format!("{w}{absmax}X.weight.quant_map F16 16"), OK, &["`X.weight.quant_map`"]),
        // Double quantization.
        (nested(codes), NESTED, &["`X.weight`", "nested_absmax"]),
        (nested(outer), NESTED, &["`X.weight`", "nested_quant_map"]),
        (nested(&format!("{outer}{codes}")), OK, &["`X.weight`", "nested_offset"]),
        (
            nested(&format!("{outer}{codes}")),
            r#"{"blocksize":64,"shape":[8,16],"nested_blocksize":0,"nested_offset":0.5}"#,
            &[STATE],
        ),
        (nested(&format!("X.weight.nested_absmax F32 2;{codes}")), NESTED, &["`X.weight.nested_absmax`"]),
        (nested(&format!("{outer}X.weight.nested_quant_map F32 16;")), NESTED, &["`X.weight.nested_quant_map`"]),
    ];
    check_all(cases.iter().map(|(text, json, words)| {
        let mut all = tensors(text);
        all.extend((!json.is_empty()).then(|| raw(STATE, "U8", &[json.len()], json.as_bytes().to_vec())));
        (all, "", Parse, words.to_vec())
    }));
    check(&[
        ("X.weight I8 8,16; X.SCB F32 7", "", Parse, &["`X.SCB`", "[8]"]),
        ("X.weight I8 8,16; X.SCB F16 8", "", Parse, &["`X.SCB`", "F16"]),
        ("X.weight I8 128; X.SCB F32 128", "", Parse, &["`X.weight`"]),
        ("X.SCB F32 8", "", Parse, &["`X.SCB`"]),
        // Codes under the dtype of weights, whose companions are elsewhere.
        (
            "X.weight BF16 64,1; n.weight BF16 8",
            r#"{"quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_quant_storage":"bfloat16"}"#,
            Parse,
            &["`X.weight`"],
        ),
    ]);
    let mut tiled = tensors("X.weight I8 8,16; X.SCB F32 8; X.weight_format U8 ()");
    tiled[2].bytes = vec![2];
    check_all([(tiled, "", Unsupported, vec!["`X.weight`", "weight_format"])]);
}

#[cfg(feature = "nvfp4")]
#[test]
fn nvfp4() {
    let is: &[&str] = &["`X.weight`"];
    check(&[
        ("X.weight U8 4,16; X.weight_scale F8_E4M3 4,2", "", Parse, &["`X.weight`", "X.weight_scale_2"]),
        ("X.weight U8 4,16; X.weight_scale_2 F32 ()", "", Parse, &["`X.weight`", "X.weight_scale"]),
        ("X.weight U8 4,16; X.weight_scale BF16 4,2; X.weight_scale_2 F32 ()", "", Parse, is),
        ("X.weight U8 4,16; X.weight_scale F8_E4M3 4,3; X.weight_scale_2 F32 ()", "", Parse, is),
        ("X.weight U8 4,16; X.weight_scale F8_E4M3 2,4; X.weight_scale_2 F32 ()", "", Parse, is),
        ("X.weight U8 64; X.weight_scale F8_E4M3 8; X.weight_scale_2 F32 ()", "", Parse, is),
        ("X.weight U8 4,16; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 F32 3", "", Parse, &["`X.weight_scale_2`"]),
        ("X.weight U8 4,16; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 I32 1", "", Parse, &["`X.weight_scale_2`"]),
        ("X.weight U8 4,16; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 F32 0", "", Parse, &["`X.weight_scale_2`"]),
        ("X.weight U8 0,4,16; X.weight_scale F8_E4M3 0,4,2; X.weight_scale_2 F32 0", "", Parse, &["X.weight"]),
        ("X.weight_packed U8 4,16; X.weight_scale F8_E4M3 4,2", "", Parse, &["`X.weight_packed`", "global_scale"]),
        ("X.weight_packed U8 4,16; X.weight_global_scale F32 1", "", Parse, &["`X.weight_packed`", "X.weight_scale"]),
        ("X.weight_scale_2 F32 ()", "", Parse, &["`X.weight_scale_2`"]),
        ("X.weight_global_scale F32 1", "", Parse, &["`X.weight_global_scale`"]),
    ]);
}

/// ComfyUI's NVFP4 has ModelOpt's names and, for most sizes, its shapes; only the file's metadata tells that
/// nibbles and scales lie otherwise.
#[test]
fn comfyui_metadata() {
    let all = tensors("X.weight U8 128,32; X.weight_scale F8_E4M3 128,4; X.weight_scale_2 F32 ()");
    let metadata = [("_quantization_metadata", r#"{"format_version":"1.0","layers":{"X":{"format":"nvfp4"}}}"#)];
    assert_eq!(verdict(recover(file(&all, &metadata), ""), Unsupported, &[]), None);
}

/// Schemes that are recognised and not decoded. The first tensor has the codes.
#[test]
fn foreign_schemes() {
    const FOREIGN: &[(&str, &str)] = &[
        ("X.comfy_quant U8 20; X.weight F8_E4M3 4,8; X.weight_scale F32 ()", "ComfyUI"),
        ("X.pre_quant_scale BF16 8; X.weight F8_E4M3 4,8; X.weight_scale F32 ()", "pre_quant_scale"),
        ("X.qweight I8 8,4; X.wscales BF16 1,8", "Nunchaku"),
        ("X.qweight I32 64,4; X.theta F16 8; X.pairs I16 8; X.scales F16 2,32; X.qzeros I32 2,4", "ParoQuant"),
        ("X.weight_packed I32 4,1; X.weight_scale BF16 4,1; X.weight_shape I64 2", "pack-quantized"),
        ("X.weight_packed I32 4,1; X.scale_packed F16 4,1; X.meta I16 4", "marlin-24"),
        ("X.weight_packed U8 4,16; X.weight_scale U8 4,1", "MXFP4"),
        ("X.compressed F16 4; X.bitmask U8 4,1; X.row_offsets I64 4; X.shape I64 2", "sparse-bitmask"),
        ("X_blocks U8 2,4,1,16; X_scales U8 2,4,1", "gpt-oss MXFP4"),
        ("X.weight I8 4,16; X.scale F8_E8M0 4,1", "DeepSeek FP4"),
        ("X.weight I8 4,16; X.weight_scale BF16 4,1", "int8 with weight_scale"),
        ("X.weight I8 4,16; X.weight_scale_inv F32 1,1", "blockwise int8"),
        ("X.weight U8 4,16; X.weight_scale U8 4,1", "packed bytes"),
        ("X.weight U8 1,16; X.weight_scale BF16 1", "packed bytes"),
        ("X.weight U32 4,8; X.scales BF16 4,1; X.biases BF16 4,1", "MLX"),
        ("X.W_q U8 4,8; X.scale F16 4,1; X.zero F16 4,1", "HQQ"),
        ("X.W_q U8 4,8", "HQQ"),
        ("X.codes I8 1,4,1; X.codebooks F16 1,256,1,8; X.scales F16 1,1,1,1", "AQLM"),
        ("X.q_weight I32 4,8; X.q_scale I32 1,1; X.q_scale_max F16 1; X.q_groups I16 2", "EXL2"),
        ("X.trellis I16 1,1,64; X.suh F16 16; X.svh F16 16", "EXL3"),
        ("X.B I32 4,8; X.s F16 1,4; X.workspace I32 4", "Marlin"),
        ("X.Qidxs I64 4,1; X.SU F16 8; X.SV F16 8", "QuIP#"),
        ("X.indices I32 1,4,8; X.centroids F16 1,256", "VPTQ"),
        ("X.indices I32 1,4,8; X.centroids.weight F16 1,256", "VPTQ"),
        ("X.weight._data I8 4,8; X.weight._scale F32 4,1", "quanto"),
        ("X.weight._data._data U8 4,8; X.weight._scale F32 4,1; X.weight._shift F32 4,1", "quanto"),
        ("X._weight_qdata I8 4,8; X._weight_scale F32 4,1", "torchao"),
    ];
    let name = |text: &str| format!("`{}`", text.split(' ').next().unwrap());
    let cases: Vec<_> = FOREIGN.iter().map(|(text, scheme)| (tensors(text), *scheme, name(text))).collect();
    check_all(cases.iter().map(|(all, scheme, name)| (all.clone(), "", Unsupported, vec![*scheme, name])));
}

/// Codes whose scales are not in the file.
#[test]
fn packed_codes_alone() {
    for text in ["X.weight_packed U8 4,16", "X.weight_packed I32 4,2"] {
        let said = recover(file(&tensors(text), &[]), "").err().map(|e| e.to_string());
        assert!(said.as_ref().is_some_and(|s| s.contains("`X.weight_packed`")), "{text}: {said:?}");
    }
}

/// A feature that is off: what needs it is refused by its name, and no other file is affected.
#[test]
fn features_that_are_off() {
    let (gptq, awq, bnb, nvfp4) =
        (cfg!(feature = "gptq"), cfg!(feature = "awq"), cfg!(feature = "bnb"), cfg!(feature = "nvfp4"));
    const STATE: &str = "quant_state.bitsandbytes__nf4";
    let four_bit = |x: &str| format!("{x} U8 64,1; {x}.absmax F32 2; {x}.quant_map F32 16; {x}.{STATE} U8 4");
    let cases: Vec<(bool, &str, String)> = vec![
        (gptq, "`gptq`", "X.qweight I32 12,32; X.scales F16 3,32; X.qzeros I32 3,4; X.g_idx I32 96".into()),
        (gptq, "`gptq`", "X.qweight I32 12,32; X.scales F16 3,32; X.qzeros I32 3,4".into()),
        (awq, "`awq`", "X.qweight I32 64,4; X.scales F16 2,32; X.qzeros I32 2,4".into()),
        (bnb, "`bnb`", four_bit("X.weight")),
        (bnb, "`bnb`", four_bit("X.gate_up_proj")),
        (bnb, "`bnb`", "X.weight I8 8,16; X.SCB F32 8".into()),
        (nvfp4, "`nvfp4`", "X.weight U8 4,16; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 F32 ()".into()),
        (nvfp4, "`nvfp4`", "X.w1 U8 2,4,16; X.w1_weight_scale F8_E4M3 2,4,2; X.w1_weight_scale_2 F32 ()".into()),
        (nvfp4, "`nvfp4`", "X.weight_packed U8 4,16; X.weight_scale F8_E4M3 4,2; X.weight_global_scale F32 1".into()),
    ];
    let off = cases.iter().filter(|(on, ..)| !on);
    check_all(off.map(|(_, feature, text)| (tensors(text), "", Unsupported, vec!["`X.", *feature])));
    for plain in ["a BF16 4; b.weight U8 4; c.scales F16 4", "X.weight F8_E4M3 4,8; X.weight_scale F32 ()"] {
        recover(file(&tensors(plain), &[]), "").unwrap();
    }
}

#[test]
fn configs() {
    let q = file(&tensors("X.weight BF16 4"), &[]);
    let config = |q: &str| format!(r#"{{"quantization_config":{q}}}"#);
    let both: &[&str] = &["config.json", "quantize_config.json"];
    let pairs = [
        (r#"{"quant_method":"gptq","bits":4}"#, r#"{"bits":8}"#),
        (r#"{"quant_method":"gptq","bits":4,"group_size":64}"#, r#"{"bits":4,"group_size":128}"#),
        (r#"{"quant_method":"gptq"}"#, r#"{"quant_method":"awq"}"#),
        (r#"{"bits":4,"checkpoint_format":"gptq"}"#, r#"{"bits":4,"checkpoint_format":"gptq_v2"}"#),
        (r#"{"bits":4,"sym":true}"#, r#"{"bits":4,"sym":false}"#),
    ];
    for (ours, theirs) in pairs {
        let result = parse_beside(&q, &[("config.json", &config(ours)), ("quantize_config.json", theirs)]);
        assert_eq!(verdict(result, Parse, both), None, "{ours} {theirs}");
    }
    let metadata = file(&tensors("X.weight BF16 4"), &[("gptq_bits", "8")]);
    let result = parse_beside(&metadata, &[("config.json", &config(r#"{"bits":4}"#))]);
    assert_eq!(verdict(result, Parse, &["config.json", "__metadata__"]), None);
    for broken in ["", "{", "[1,2", "{\"quantization_config\": {}} trailing", "\u{feff}{}", "{'a':1}"] {
        let wrong = verdict(parse_beside(&q, &[("config.json", broken)]), Parse, &["config.json"]);
        assert_eq!(wrong, None, "{broken:?}");
    }
    // What Python writes, and nobody else reads.
    let python = r#"{"time_step_limit": [0.0, Infinity, -Infinity], "x": NaN, "s": "Infinity \" NaN"}"#;
    for fine in ["{}", "null", r#"{"quantization_config":null}"#, python] {
        assert!(parse_beside(&q, &[("config.json", fine)]).is_ok(), "{fine}");
    }
}

/// A safetensors file with `json` as its header, word for word.
fn with_header(json: &str, data: usize) -> Vec<u8> {
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend(json.as_bytes());
    out.resize(out.len() + data, 0);
    out
}

fn entry(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

#[test]
fn headers() {
    let good = file(&tensors("X F32 2; Y F32 2"), &[]);
    let x = |shape: &str, start: u64, end: u64| format!("{{{}}}", entry("X", "F32", shape, start, end));
    let two = |a: String, b: String| with_header(&format!("{{{a},{b}}}"), 16);
    let huge = |n: u64| [&n.to_le_bytes()[..], b"{}"].concat();
    let eighth = (1u64 << 61) - 1;
    let giants: String = (0..8)
        .map(|i| entry(&format!("X{i}"), "U8", &format!("[{eighth}]"), i * eighth, (i + 1) * eighth) + ",")
        .collect();
    let last = entry("X8", "U8", "[7]", 8 * eighth, 8 * eighth + 7);
    let files: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty", vec![], &["0 bytes"]),
        ("7 bytes", vec![1; 7], &["7 bytes"]),
        ("data cut off", good[..good.len() - 1].to_vec(), &["truncated"]),
        ("header cut off", good[..30].to_vec(), &["header"]),
        ("trailing byte", [&good[..], &[0]].concat(), &["no tensor owns"]),
        ("longer than the file", huge(1000), &["1000"]),
        ("100 MB and more", huge(100_000_001), &["100000001"]),
        ("huge", huge(u64::MAX), &["header"]),
        ("nearly huge", huge(u64::MAX - 7), &["header"]),
        ("not JSON", with_header("hello", 0), &["header"]),
        ("not UTF-8", [&4u64.to_le_bytes()[..], b"{\"\xff\""].concat(), &["header"]),
        ("not a map", with_header("[]", 0), &["header"]),
        ("deep", with_header(&"[".repeat(100_000), 0), &["header"]),
        ("twice", two(entry("X", "F32", "[2]", 0, 8), entry("X", "F32", "[2]", 8, 16)), &["`X`", "twice"]),
        ("overlap", two(entry("X", "F32", "[2]", 0, 8), entry("Y", "F32", "[3]", 4, 16)), &["`Y`"]),
        ("hole", two(entry("X", "F32", "[1]", 0, 4), entry("Y", "F32", "[2]", 8, 16)), &["`Y`"]),
        ("backwards", with_header(&x("[2]", 8, 0), 8), &["`X`"]),
        ("shape and offsets", with_header(&x("[3]", 0, 8), 8), &["`X`"]),
        ("shape that overflows", with_header(&x("[4294967296,4294967296]", 0, 8), 8), &["`X`"]),
        ("half a byte", with_header(&format!("{{{}}}", entry("X", "F4", "[3]", 0, 1)), 1), &["`X`"]),
        ("negative dimension", with_header(&x("[-2]", 0, 8), 8), &["header"]),
        ("unknown dtype", with_header(&format!("{{{}}}", entry("X", "F7", "[1]", 0, 1)), 1), &["F7"]),
        ("sizes that overflow together", with_header(&format!("{{{giants}{last}}}"), 8), &[]),
    ];
    let mut failures = String::new();
    for (what, bytes, words) in files {
        let parsed = std::panic::catch_unwind(|| anamnesis::parse_bytes(bytes.clone()));
        let wrong = parsed.map_or_else(|_| Some("panic".to_owned()), |result| verdict(result, Parse, words));
        failures.extend(wrong.map(|w| format!("\n{what}: {w}")));
        let header = std::panic::catch_unwind(|| anamnesis::parse_safetensors_header_from_reader(&bytes[..]).is_ok());
        failures.extend(header.is_err().then(|| format!("\n{what}: panic when read from a stream")));
    }
    assert!(failures.is_empty(), "{failures}");
}

/// Files that are as large as they say, so that only a limit stops them.
#[test]
fn header_limit() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), 150_000_000u64.to_le_bytes()).unwrap();
    file.as_file().set_len(200_000_000).unwrap();
    assert_eq!(verdict(anamnesis::parse(file.path()), Limit, &["150000000"]), None);
}

/// The first bytes of a safetensors file are a number, and some numbers look like other formats' marks.
#[test]
fn header_of_any_length() {
    for n in (600..1500).step_by(8) {
        let file = with_header(&format!("{:n$}", "{}"), 0);
        assert!(anamnesis::parse_bytes(file).is_ok(), "a header of {n} bytes");
    }
}

#[test]
fn other_containers() {
    let npy = [b"\x93NUMPY\x01\x00v\x00".as_slice(), &[b' '; 118]].concat();
    let files: [(&str, &[u8]); 7] = [
        ("GGUF", b"GGUF\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
        ("ZIP", b"PK\x03\x04\x14\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
        ("ZIP", b"PK\x05\x06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
        ("NumPy", &npy),
        ("pickle", b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x01s."),
        ("pickle", b"\x80\x04\x95\x0a\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s."),
        ("pickle", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."),
    ];
    for (format, bytes) in files {
        assert_eq!(verdict(anamnesis::parse_bytes(bytes.to_vec()), Unsupported, &[format]), None, "{bytes:?}");
    }
}

#[test]
fn odd_dtypes_pass_through() {
    let odd = "a F4 2,3; b F6_E2M3 4; c F6_E3M2 2,4; d C64 3; e F8_E8M0 5; f BOOL 3; g U16 3; h U64 2; i I64 ()";
    let mut all = tensors(&format!("{odd}; n.weight BF16 3; z F32 0,7"));
    let mut random = common::Random(7);
    all.iter_mut().for_each(|t| t.bytes = random.bytes(t.bytes.len()));
    let input = file(&all, &[]);
    assert_same(&input, &recover(input.clone(), "").unwrap(), "odd dtypes");
}
