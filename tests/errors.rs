//! Files that are malformed, incomplete, contradictory or of a kind that is not decoded: each must give the
//! right kind of error, and the message must name the tensor (or file) and the reason. Codes never pass for
//! weights, and an odd tensor never makes a file unreadable.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use anamnesis::{AnamnesisError, ParsedModel, Result, TargetDtype};
use common::{Raw, assert_same, file, raw};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Parse,
    Unsupported,
    Limit,
}
use Kind::{Limit, Parse, Unsupported};

const DTYPES: &str =
    "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64";

/// Tensors of zeros, from `name dtype dim,dim; …`, where `()` is a scalar; `name TEXT text` holds that text.
fn tensors(text: &str) -> Vec<Raw> {
    let one = |t: &str| {
        let [name, dtype, dims] = t.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
        if dtype == "TEXT" {
            return raw(name, "U8", &[dims.len()], dims.into());
        }
        let shape: Vec<usize> = dims.split(',').filter(|d| *d != "()").map(|d| d.parse().unwrap()).collect();
        let dtype = DTYPES.split(' ').find(|d| *d == dtype).unwrap();
        let digits = dtype.split('_').next().unwrap().trim_start_matches(char::is_alphabetic);
        let elements = if shape.contains(&0) { 0 } else { shape.iter().product::<usize>() };
        raw(name, dtype, &shape, vec![0; elements * digits.parse().unwrap_or(8) / 8])
    };
    text.split(';').filter(|t| !t.trim().is_empty()).map(one).collect()
}

/// Parses `bytes` with `configs` (file name, content) beside them.
fn parse_beside(bytes: &[u8], configs: &[(&str, &str)]) -> Result<ParsedModel> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
    configs.iter().for_each(|(name, text)| std::fs::write(directory.path().join(name), text).unwrap());
    anamnesis::parse(directory.path().join("model.safetensors"))
}

/// Recovers `bytes`, with a `quantization_config` beside them unless that is empty.
fn recover(bytes: Vec<u8>, config: &str) -> Result<Vec<u8>> {
    let model = match config {
        "" => anamnesis::parse_bytes(bytes)?,
        _ => parse_beside(&bytes, &[("config.json", &format!(r#"{{"quantization_config":{config}}}"#))])?,
    };
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

/// [`verdict`] on what `result` gives; a panic is wrong too.
fn verdict_of<T>(result: impl FnOnce() -> Result<T>, kind: Kind, words: &[&str]) -> Option<String> {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(result));
    caught.map_or_else(|_| Some("panic".to_owned()), |result| verdict(result, kind, words))
}

/// Checks every line of `table`, `tensors | quantization_config | kind: word & word`, and reports all that
/// fail at once.
fn check(table: &str) {
    let mut failures = String::new();
    for line in table.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let [list, config, expected] = line.split(" | ").map(str::trim).collect::<Vec<_>>().try_into().unwrap();
        let (kind, words) = expected.split_once(": ").unwrap();
        let kind = [Parse, Unsupported].into_iter().find(|k| format!("{k:?}") == kind).unwrap();
        let bytes = file(&tensors(list), &[]);
        let wrong = verdict_of(|| recover(bytes, config), kind, &words.split(" & ").collect::<Vec<_>>());
        failures.extend(wrong.map(|w| format!("\n{list:.300} | {config}\n    {w}")));
    }
    assert!(failures.is_empty(), "{failures}");
}

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
    let table = table.replace("{w}", "X.weight F8_E4M3 4,8").replace("{big}", "X.weight F8_E4M3 256,256");
    check(&table.replace("{blocks}", blocks));
}

/// Without a word about scales, FP8 is a plain cast, and the report says so.
#[test]
fn fp8_cast_is_reported() {
    let model = anamnesis::parse_bytes(file(&tensors("X.weight F8_E4M3 4,8; n F32 2"), &[])).unwrap();
    let recovery = model.recovery(TargetDtype::BF16).unwrap();
    assert!(recovery.report().notes.iter().any(|n| n.contains("plain cast")), "{:?}", recovery.report().notes);
    recovery.to_bytes().unwrap();
}

#[cfg(feature = "gptq")]
#[test]
fn gptq() {
    let table = r#"
        # The width: contradicted, unproved, not decoded.
        {q}; {z} | {"bits":8,"group_size":32} | Parse: `X.qweight` & config.json & 8 bits
        {q}; {z}; {g} | {"bits":2,"group_size":32} | Parse: `X.qweight` & config.json & 2 bits
        {q} |  | Parse: `X.qweight` & bits
        {q}; {z} | {"bits":5,"group_size":32} | Unsupported: `X.qweight` & 5 bits
        X.qweight I32 24,32; {s} | {"bits":4,"group_size":32,"sym":true,"dynamic":{"+:X":{"bits":8}}} | Parse: `X.qweight`
        # Zero points.
        {q} | {G} | Parse: `X.qweight` & X.qzeros & sym
        {q} | {"bits":4,"group_size":32} | Parse: `X.qweight` & X.qzeros & sym
        {q}; X.qzeros I32 3,5; {g} |  | Parse: `X.qweight` & qzeros
        {q}; X.qzeros I32 2,4 | {G} | Parse: `X.qweight` & qzeros
        {q}; X.qzeros F16 3,4 | {G} | Unsupported: `X.qzeros`
        {q}; {z} | {"bits":4,"checkpoint_format":"marlin"} | Unsupported: `X.qweight` & marlin
        {q}; {z} | {"bits":4,"format":"from_mars"} | Unsupported: `X.qweight` & from_mars
        # Shapes and dtypes.
        X.qweight I32 12,32; {z} |  | Parse: `X.qweight` & X.scales
        X.qweight I32 12,32; X.scales F16 3,31; {z} | {G} | Parse: `X.qweight` & [3, 31]
        X.qweight I32 12,32; X.scales F16 32; {z} | {G} | Parse: `X.scales`
        X.qweight I32 12,32; X.scales I32 3,32; {z} | {G} | Parse: `X.scales` & I32
        X.qweight I32 384; {s}; {z} | {G} | Parse: `X.qweight`
        X.qweight I16 12,32; {s}; {z} | {G} | Unsupported: `X.qweight`
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
    let table = table.replace("{q}", "X.qweight I32 12,32; {s}").replace("{s}", "X.scales F16 3,32");
    let table = table.replace("{z}", "X.qzeros I32 3,4").replace("{g}", "X.g_idx I32 96");
    check(&table.replace("{G}", r#"{"quant_method":"gptq","bits":4,"group_size":32,"sym":false}"#));
}

#[cfg(feature = "gptq")]
#[test]
fn gptq_zeros_that_only_a_config_explains() {
    let mut all = tensors("X.qweight I32 12,32; X.scales F16 3,32; X.qzeros I32 3,4");
    all[2].bytes = vec![0x88; 48];
    assert_eq!(verdict(recover(file(&all, &[]), ""), Parse, &["`X.qzeros`", "checkpoint_format"]), None);
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
            let options = anamnesis::RememberOptions::new(TargetDtype::BF16).with_threads(threads);
            let wrong = verdict(model.remember_to_bytes(options), Parse, &["`X.g_idx`", &bad.to_string(), "of 3"]);
            assert_eq!(wrong, None);
        }
    }
}

#[cfg(feature = "awq")]
#[test]
fn awq() {
    let table = r#"
        {a}; X.qzeros I32 2,4 | {"quant_method":"gptq","bits":4} | Parse: `X.qweight` & GPTQ
        {a}; X.qzeros I32 2,4 | {"quant_method":"awq","bits":8} | Parse: `X.qweight` & config.json & 8 bits
        {a}; X.qzeros I32 2,4 | {"bits":4,"version":"gemv"} | Unsupported: `X.qweight` & gemv
        {a}; X.qzeros I32 2,4 | {"bits":4,"group_size":16} | Parse: `X.qweight` & config.json & 16
        {a} |  | Parse: `X.qweight` & X.qzeros & zero_point
        {a}; X.qzeros I32 2,5 |  | Parse: `X.qzeros`
        {a}; X.qzeros I32 1,4 |  | Parse: `X.qzeros`
        X.qweight I32 64,4; X.scales F16 64; X.qzeros I32 2,4 |  | Parse: `X.scales`
        X.qweight I32 64,4; X.scales I32 2,32; X.qzeros I32 2,4 |  | Parse: `X.scales` & I32
        X.qweight I32 0,0; X.scales F16 0,0; X.qzeros I32 0,0 |  | Parse: `X.qweight`
        # GEMV and GEMV-fast.
        X.qweight I32 32,16; X.scales F16 32,8; X.qzeros I32 32,1 |  | Unsupported: `X.qweight`
        X.qweight I16 8,128; X.scales F16 8,32; X.qzeros F16 8,32 |  | Unsupported: `X.qweight`
    "#;
    // Without GPTQ, nobody looks into what has no AWQ shape.
    let usable = |line: &&str| cfg!(feature = "gptq") || !line.contains("0,0");
    let table: Vec<_> = table.lines().filter(usable).collect();
    check(&table.join("\n").replace("{a}", "X.qweight I32 64,4; X.scales F16 2,32"));
}

#[cfg(feature = "bnb")]
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
        {w}; {a}; {m}; {s} {"shape":[8,16]} |  | Parse: {state} & blocksize
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
        {w}; {m}; {d}; {na}; {nm}; {s} {nested:0} |  | Parse: {state}
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
        ("{ok}", r#"{"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[8,16]}"#),
        ("{nested:", r#"{"blocksize":64,"shape":[8,16],"nested_offset":0.5,"nested_blocksize":"#),
        ("{long}", &"x".repeat(70_000)),
        ("{bf16 storage}", r#"{"load_in_4bit":true,"bnb_4bit_quant_storage":"bfloat16"}"#),
        ("{state}", "`X.weight.quant_state.bitsandbytes__nf4`"),
    ];
    check(&names.iter().fold(table.to_owned(), |table, (short, long)| table.replace(short, long)));
}

#[cfg(feature = "nvfp4")]
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

/// ComfyUI's NVFP4 has ModelOpt's names and, for most sizes, its shapes; only the file's metadata tells that
/// nibbles and scales lie otherwise.
#[test]
fn comfyui_metadata() {
    let all = tensors("X.weight U8 128,32; X.weight_scale F8_E4M3 128,4; X.weight_scale_2 F32 ()");
    let metadata = [("_quantization_metadata", r#"{"format_version":"1.0","layers":{"X":{"format":"nvfp4"}}}"#)];
    assert_eq!(verdict(recover(file(&all, &metadata), ""), Unsupported, &[]), None);
}

/// Schemes that are recognised and not decoded.
#[test]
fn foreign_schemes() {
    check(
        r#"
        X.comfy_quant U8 20; X.weight F8_E4M3 4,8; X.weight_scale F32 () |  | Unsupported: `X.comfy_quant` & ComfyUI
        X.pre_quant_scale BF16 8; X.weight F8_E4M3 4,8; X.weight_scale F32 () |  | Unsupported: `X.pre_quant_scale`
        X.qweight I8 8,4; X.wscales BF16 1,8 |  | Unsupported: `X.qweight` & Nunchaku
        X.qweight I32 64,4; X.theta F16 8; X.pairs I16 8; X.scales F16 2,32 |  | Unsupported: `X.qweight` & ParoQuant
        X.weight_packed I32 4,1; X.weight_scale BF16 4,1 |  | Unsupported: `X.weight_packed` & pack-quantized
        X.weight_packed I32 4,1; X.scale_packed F16 4,1; X.meta I16 4 |  | Unsupported: `X.weight_packed` & marlin-24
        X.weight_packed U8 4,16; X.weight_scale U8 4,1 |  | Unsupported: `X.weight_packed` & MXFP4
        X.compressed F16 4; X.bitmask U8 4,1; X.shape I64 2 |  | Unsupported: `X.compressed` & sparse-bitmask
        X_blocks U8 2,4,1,16; X_scales U8 2,4,1 |  | Unsupported: `X_blocks` & gpt-oss MXFP4
        X.weight I8 4,16; X.scale F8_E8M0 4,1 |  | Unsupported: `X.weight` & DeepSeek FP4
        X.weight I8 4,16; X.weight_scale BF16 4,1 |  | Unsupported: `X.weight` & int8 with weight_scale
        X.weight I8 4,16; X.weight_scale_inv F32 1,1 |  | Unsupported: `X.weight` & blockwise int8
        X.weight U8 4,16; X.weight_scale U8 4,1 |  | Unsupported: `X.weight` & packed bytes
        X.weight U8 1,16; X.weight_scale BF16 1 |  | Unsupported: `X.weight` & packed bytes
        X.weight U32 4,8; X.scales BF16 4,1; X.biases BF16 4,1 |  | Unsupported: `X.weight` & MLX
        X.W_q U8 4,8; X.scale F16 4,1; X.zero F16 4,1 |  | Unsupported: `X.W_q` & HQQ
        X.W_q U8 4,8 |  | Unsupported: `X.W_q` & HQQ
        X.codes I8 1,4,1; X.codebooks F16 1,256,1,8; X.scales F16 1,1,1,1 |  | Unsupported: `X.codes` & AQLM
        X.q_weight I32 4,8; X.q_scale I32 1,1; X.q_groups I16 2 |  | Unsupported: `X.q_weight` & EXL2
        X.trellis I16 1,1,64; X.suh F16 16; X.svh F16 16 |  | Unsupported: `X.trellis` & EXL3
        X.B I32 4,8; X.s F16 1,4; X.workspace I32 4 |  | Unsupported: `X.B` & Marlin
        X.Qidxs I64 4,1; X.SU F16 8; X.SV F16 8 |  | Unsupported: `X.Qidxs` & QuIP#
        X.indices I32 1,4,8; X.centroids F16 1,256 |  | Unsupported: `X.indices` & VPTQ
        X.indices I32 1,4,8; X.centroids.weight F16 1,256 |  | Unsupported: `X.indices` & VPTQ
        X.weight._data I8 4,8; X.weight._scale F32 4,1 |  | Unsupported: `X.weight._data` & quanto
        X.weight._data._data U8 4,8; X.weight._shift F32 4,1 |  | Unsupported: `X.weight._data._data` & quanto
        X._weight_qdata I8 4,8; X._weight_scale F32 4,1 |  | Unsupported: `X._weight_qdata` & torchao
        X.weight I8 8,4; X.weight_scales F16 4 |  | Unsupported: `X.weight` & EETQ
        X.weight U8 4,4; X.scale F16 4,1; X.zero_point F16 4,1 |  | Unsupported: `X.weight` & SDNQ
        X.B I32 4,8; X.s_channel F32 1,8; X.s_group F16 2,8 |  | Unsupported: `X.B` & QQQ
        X.embedding_quantized U8 8,4; X.embedding_scale F32 8,1 |  | Unsupported: `X.embedding_quantized` & Gemma
        X.weight F8_E4M3 4,8; X.weight_scale F32 (); X.svdquant_lora_a BF16 2,8 |  | Unsupported: `X.svdquant_lora_a`
        X.weight F8_E4M3 4,8; X.weight_scale F32 () | {"transform_config":{"config_groups":{"u":{}}}} | Unsupported: transform_config
    "#,
    );
}

/// Codes whose scales are not in the file.
#[test]
fn packed_codes_alone() {
    let mxfp4 = r#"{"quant_method":"mxfp4"}"#;
    for (text, config, name) in [
        ("X.weight_packed U8 4,16", "", "`X.weight_packed`"),
        ("X.weight_packed I32 4,2", "", "`X.weight_packed`"),
        ("X_blocks U8 2,4,1,16", mxfp4, "`X_blocks`"),
        ("X.weight F4 4,16", mxfp4, "`X.weight`"),
    ] {
        let said = recover(file(&tensors(text), &[]), config).err().map(|e| e.to_string());
        assert!(said.as_ref().is_some_and(|s| s.contains(name)), "{text}: {said:?}");
    }
}

/// A feature that is off: what needs it is refused by its name, and no other file is affected.
#[test]
fn features_that_are_off() {
    let table = r#"
        X.qweight I32 12,32; X.scales F16 3,32; X.qzeros I32 3,4; X.g_idx I32 96 |  | Unsupported: `X.qweight` & `gptq`
        X.qweight I32 12,32; X.scales F16 3,32; X.qzeros I32 3,4 |  | Unsupported: `X.qweight` & `gptq`
        X.qweight I32 64,4; X.scales F16 2,32; X.qzeros I32 2,4 |  | Unsupported: `X.qweight` & `awq`
        X.weight {4bit}; X.weight.absmax F32 2; X.weight.quant_map F32 16 |  | Unsupported: `X.weight` & `bnb`
        X.w1 {4bit}; X.w1.absmax F32 2; X.w1.quant_map F32 16 |  | Unsupported: `X.w1` & `bnb`
        X.weight I8 8,16; X.SCB F32 8 |  | Unsupported: `X.weight` & `bnb`
        X.weight U8 4,16; X.weight_scale F8_E4M3 4,2; X.weight_scale_2 F32 () |  | Unsupported: `X.weight` & `nvfp4`
        X.w1 U8 2,4,16; X.w1_weight_scale F8_E4M3 2,4,2; X.w1_weight_scale_2 F32 () |  | Unsupported: `X.w1` & `nvfp4`
        X.weight_packed U8 4,16; X.weight_scale F8_E4M3 4,2; X.weight_global_scale F32 1 |  | Unsupported: `X.weight_packed` & `nvfp4`
    "#;
    let features =
        [("`gptq`", cfg!(feature = "gptq")), ("`awq`", cfg!(feature = "awq")), ("`bnb`", cfg!(feature = "bnb"))];
    let mut on = features.into_iter().chain([("`nvfp4`", cfg!(feature = "nvfp4"))]).filter(|f| f.1).map(|f| f.0);
    let on: Vec<&str> = on.by_ref().collect();
    let off: Vec<&str> = table.lines().filter(|line| !on.iter().any(|f| line.ends_with(f))).collect();
    check(&off.join("\n").replace("{4bit}", "U8 64,1"));
    for plain in ["a BF16 4; b.weight U8 4; c.scales F16 4", "X.weight F8_E4M3 4,8; X.weight_scale F32 ()"] {
        recover(file(&tensors(plain), &[]), "").unwrap();
    }
}

#[test]
fn configs() {
    let q = file(&tensors("X.weight BF16 4"), &[]);
    let config = |q: &str| format!(r#"{{"quantization_config":{q}}}"#);
    let mut failures = Vec::new();
    let pairs = [
        (r#"{"quant_method":"gptq","bits":4}"#, r#"{"bits":8}"#),
        (r#"{"quant_method":"gptq","bits":4,"group_size":64}"#, r#"{"bits":4,"group_size":128}"#),
        (r#"{"quant_method":"gptq"}"#, r#"{"quant_method":"awq"}"#),
        (r#"{"bits":4,"checkpoint_format":"gptq"}"#, r#"{"bits":4,"checkpoint_format":"gptq_v2"}"#),
        (r#"{"bits":4,"checkpoint_format":"gptq"}"#, r#"{"bits":4,"format":"gptq_v2"}"#),
        (r#"{"bits":4,"sym":true}"#, r#"{"bits":4,"sym":false}"#),
        (r#"{"weight_block_size":[128,128]}"#, r#"{"weight_block_size":[64,64]}"#),
    ];
    for (ours, theirs) in pairs {
        let result = parse_beside(&q, &[("config.json", &config(ours)), ("quantize_config.json", theirs)]);
        failures.extend(verdict(result, Parse, &["in config.json", "in quantize_config.json"]).map(|w| w + theirs));
    }
    let metadata = file(&tensors("X.weight BF16 4"), &[("gptq_bits", "8")]);
    let result = parse_beside(&metadata, &[("config.json", &config(r#"{"bits":4}"#))]);
    failures.extend(verdict(result, Parse, &["config.json", "__metadata__"]));
    for broken in ["", "{", "[1,2", "{\"quantization_config\": {}} trailing", "{'a':1}", "{\"a\":\"\u{1}\"}"] {
        let result = parse_beside(&q, &[("config.json", broken)]);
        failures.extend(verdict(result, Parse, &["config.json"]).map(|w| w + broken));
    }
    // What Python writes, and no JSON parser reads.
    let python = r#"{"time_step_limit": [0.0, Infinity, -Infinity], "x": NaN, "s": "Infinity \" NaN"}"#;
    for fine in ["{}", "null", r#"{"quantization_config":null}"#, python] {
        failures.extend(parse_beside(&q, &[("config.json", fine)]).err().map(|e| format!("{fine}: {e}")));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
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
    let one = |dtype: &str, shape: &str, start: u64, end: u64, data: usize| {
        with_header(&format!("{{{}}}", entry("X", dtype, shape, start, end)), data)
    };
    let two = |a: String, b: String| with_header(&format!("{{{a},{b}}}"), 16);
    let huge = |n: u64| [&n.to_le_bytes()[..], b"{}"].concat();
    let eighth = (1u64 << 61) - 1;
    let giant = |i: u64| entry(&format!("X{i}"), "U8", &format!("[{eighth}]"), i * eighth, (i + 1) * eighth) + ",";
    let giants: String = (0..8).map(giant).chain([entry("X8", "U8", "[7]", 8 * eighth, 8 * eighth + 7)]).collect();
    let files: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty", vec![], &["0 bytes"]),
        ("7 bytes", vec![1; 7], &["7 bytes"]),
        ("data cut off", good[..good.len() - 1].to_vec(), &["truncated"]),
        ("header cut off", good[..30].to_vec(), &["header"]),
        ("trailing byte", [&good[..], &[0]].concat(), &["no tensor owns"]),
        ("longer than the file", huge(1000), &["1000"]),
        ("huge", huge(u64::MAX), &["header"]),
        ("nearly huge", huge(u64::MAX - 7), &["header"]),
        ("not JSON", with_header("hello", 0), &["header"]),
        ("not UTF-8", [&4u64.to_le_bytes()[..], b"{\"\xff\""].concat(), &["header"]),
        ("not a map", with_header("[]", 0), &["header"]),
        ("deep", with_header(&"[".repeat(100_000), 0), &["header"]),
        ("twice", two(entry("X", "F32", "[2]", 0, 8), entry("X", "F32", "[2]", 8, 16)), &["`X`", "twice"]),
        ("overlap", two(entry("X", "F32", "[2]", 0, 8), entry("Y", "F32", "[3]", 4, 16)), &["`Y`"]),
        ("hole", two(entry("X", "F32", "[1]", 0, 4), entry("Y", "F32", "[2]", 8, 16)), &["`Y`"]),
        ("backwards", one("F32", "[2]", 8, 0, 8), &["`X`"]),
        ("shape and offsets", one("F32", "[3]", 0, 8, 8), &["`X`"]),
        ("shape that overflows", one("F32", "[4294967296,4294967296]", 0, 8, 8), &["`X`"]),
        ("half a byte", one("F4", "[3]", 0, 1, 1), &["`X`"]),
        ("negative dimension", one("F32", "[-2]", 0, 8, 8), &["header"]),
        ("unknown dtype", one("F7", "[1]", 0, 1, 1), &["F7"]),
        ("sizes that overflow together", with_header(&format!("{{{giants}}}"), 8), &[]),
    ];
    let mut failures = String::new();
    for (what, bytes, words) in files {
        let wrong = verdict_of(|| anamnesis::parse_bytes(bytes.clone()), Parse, words);
        failures.extend(wrong.map(|w| format!("\n{what}: {w}")));
        let stream = || anamnesis::parse_safetensors_header_from_reader(&bytes[..]).is_ok();
        failures.extend(std::panic::catch_unwind(stream).err().map(|_| format!("\n{what}: panic from a stream")));
    }
    assert!(failures.is_empty(), "{failures}");
}

/// A file that is as large as it says, so that only the limit stops it.
#[test]
fn header_limit() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), 150_000_000u64.to_le_bytes()).unwrap();
    file.as_file().set_len(200_000_000).unwrap();
    assert_eq!(verdict(anamnesis::parse(file.path()), Limit, &["150000000"]), None);
}

/// No metadata, in the two ways that the format has for it.
#[test]
fn null_metadata() {
    anamnesis::parse_bytes(with_header("{}", 0)).unwrap();
    anamnesis::parse_bytes(with_header(r#"{"__metadata__":null}"#, 0)).unwrap();
}

/// The first bytes of a safetensors file are a number, and some numbers look like other formats' marks.
#[test]
fn header_of_any_length() {
    let failures: Vec<usize> = (600..1500)
        .step_by(8)
        .filter(|&n| anamnesis::parse_bytes(with_header(&format!("{:n$}", "{}"), 0)).is_err())
        .collect();
    assert!(failures.is_empty(), "headers of {failures:?} bytes");
}

#[test]
fn other_containers() {
    let files: [(&str, &[u8]); 7] = [
        ("GGUF", b"GGUF\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
        ("ZIP", b"PK\x03\x04\x14\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
        ("ZIP", b"PK\x05\x06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
        ("NumPy", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n"),
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
