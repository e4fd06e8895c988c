//! A config that names the method of one scheme over the tensors of another one: each model of the
//! test data under every other method.

use std::path::Path;

use anamnesis::{TargetDtype, parse};
use serde_json::Value;

use crate::common::{effort, some_case_directories};

/// Methods as configs spell them, one for each scheme.
const METHODS: &[&str] = &[
    "aqlm",
    "auto-round",
    "awq",
    "bitnet",
    "bitsandbytes",
    "blockwise_int8",
    "compressed-tensors",
    "eetq",
    "exl2",
    "exl3",
    "fbgemm_fp8",
    "fp8",
    "fp_quant",
    "gemma",
    "gptq",
    "higgs",
    "hqq",
    "metal",
    "minimax_m3_nvfp4",
    "modelopt",
    "mxfp4",
    "mxfp8",
    "nunchaku_lite",
    "paroquant",
    "qqq",
    "quanto",
    "quark",
    "sdnq",
    "spqr",
    "svdquant",
    "sinq",
    "torchao",
    "vptq",
    "w4afp8",
    "w8a8_fp8",
    "w8a8_int8",
];

/// Methods whose models may have the same tensors, with the reason.
const ALIASES: &[(&str, &[&str])] = &[
    (
        "eight-bit floats, NVFP4 and the MX formats have one layout, which each of them writes",
        &[
            "auto-round",
            "compressed-tensors",
            "fbgemm_fp8",
            "fp8",
            "inc",
            "minimax_m3_nvfp4",
            "modelopt",
            "mxfp4",
            "mxfp8",
            "quark",
            "w4afp8",
            "w8a8_fp8",
        ],
    ),
    (
        "integers of a byte with a scale have one layout",
        &["auto-round", "compressed-tensors", "modelopt", "quark", "w8a8_int8"],
    ),
    ("AutoRound writes the layouts of GPTQ and of AWQ", &["auto-round", "gptq"]),
    ("AutoRound writes the layouts of GPTQ and of AWQ", &["auto-round", "awq"]),
];

/// Models that are accepted under any method, with the reason.
const UNTOUCHED: &[(&str, &str)] = &[
    ("ngram_modelopt", "what a method leaves out may be quantized in another way"),
    ("bitnet/online", "floats are not quantized yet: a program does it when it loads them"),
    (
        "sdnq/wide_matmul_float8",
        "codes of F16 without SDNQ's config are floats, beside a parameter `scale`",
    ),
];

/// Models whose values are others under another of these methods, which nothing but the method
/// tells.
const OTHER_VALUES: &[(&str, &[&str], &str)] = &[
    ("compressed-tensors", &["auto-round"], GLOBAL_FIRST),
    ("minimax_m3_nvfp4", &["auto-round"], GLOBAL_FIRST),
    ("modelopt", &["quark"], SIGN_OF_ZERO),
    ("quark", &["modelopt"], SIGN_OF_ZERO),
    (
        "fbgemm_fp8",
        &[
            "auto-round",
            "compressed-tensors",
            "fp8",
            "minimax_m3_nvfp4",
            "modelopt",
            "mxfp8",
            "quark",
            "w8a8_fp8",
        ],
        "a scale for each row or each column of a square stack has one shape",
    ),
    (
        "w4afp8",
        &["blockwise_int8"],
        "the method alone says whether a byte is a code of 8 bits or two of 4, if no config states the blocks",
    ),
    (
        "gptq",
        &["auto-round"],
        "the method alone says how codes of odd widths are packed, and whether inputs are rotated",
    ),
];

const GLOBAL_FIRST: &str =
    "AutoRound multiplies the codes by the global scale first, which rounds the last bit";
const SIGN_OF_ZERO: &str = "ModelOpt looks code 8 up as 0, and Quark keeps its sign";

/// The method that `config` names.
fn method(config: &mut Value) -> Option<&mut Value> {
    config.pointer_mut("/quantization_config/quant_method")
}

/// Decodes the model of `dir` with `config` in place of its own; `None` if it is refused.
fn decode(dir: &Path, config: &Value) -> Option<Vec<u8>> {
    let place = crate::common::tempdir().unwrap();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && path.file_name().is_some_and(|name| name != "config.json") {
            let copy = place.path().join(path.file_name().unwrap());
            std::fs::copy(&path, &copy).unwrap();
        }
    }
    std::fs::write(place.path().join("config.json"), config.to_string()).unwrap();
    let model = parse(place.path()).ok()?;
    let options = anamnesis::RememberOptions::new(TargetDtype::F32).with_threads(1);
    model.remember_to_bytes(options).ok()
}

fn is_alias(a: &str, b: &str) -> bool {
    ALIASES
        .iter()
        .any(|(_, methods)| methods.contains(&a) && methods.contains(&b))
}

#[test]
fn methods_of_other_schemes() {
    let mut failures = Vec::new();
    let mut tried = 0;
    // One of so many methods is tried, another one of each model.
    let stride = effort([13, 5, 1]);
    for (i, dir) in some_case_directories(0).into_iter().enumerate() {
        let Ok(text) = std::fs::read(dir.join("config.json")) else {
            continue;
        };
        let name = dir.to_string_lossy().into_owned();
        let mut config: Value = serde_json::from_slice(&text).unwrap();
        let own = method(&mut config).and_then(|m| m.as_str().map(str::to_lowercase));
        let Some((own, expected)) = own.and_then(|own| Some((own, decode(&dir, &config)?))) else {
            continue;
        };
        for other in METHODS
            .iter()
            .filter(|other| **other != own)
            .skip(i % stride)
            .step_by(stride)
        {
            tried += 1;
            *method(&mut config).unwrap() = (*other).into();
            let is_untouched = UNTOUCHED.iter().any(|(model, _)| name.contains(model));
            let is_other = |row: &(&str, &[&str], &str)| row.0 == own && row.1.contains(other);
            match decode(&dir, &config) {
                None => {}
                Some(_) if is_untouched || OTHER_VALUES.iter().any(is_other) => {}
                Some(values) if values != expected => {
                    failures.push(format!("{own} as {other}, other values: {name}"));
                }
                Some(_) if is_alias(&own, other) => {}
                Some(_) => failures.push(format!("{own} as {other}: {name}")),
            }
        }
    }
    failures.sort();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(tried > effort([500, 5_000, 5_000]) / stride, "{tried}");
}
