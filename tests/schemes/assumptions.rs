//! What is taken for granted because nothing in a model says otherwise: a note in every report, and
//! an error on request.

use std::collections::HashMap;
use std::path::Path;

use anamnesis::{ConvertOptions, ConvertTarget, ParsedModel, TargetDtype, parse, parse_bytes};

use crate::common::verdict::tensors;
use crate::common::{Raw, effort, file, find_dtype, raw, some_case_directories};

/// Notes on assumptions have one of these phrases.
const PHRASES: &[&str] =
    &["nothing says", "not recognised", "says how long rows of an embedding are"];

/// Models that become others without their descriptions, and no note says so, with the reason.
const SILENT: &[(&str, &str)] = &[
    (
        "conv1d/",
        "the class of the model alone tells that weights are stored transposed; the values are the same",
    ),
    ("ar_nvfp4", "AutoRound multiplies by the global scale first, which rounds the last bit"),
    ("fbgemm_llama4", "a scale for each row or each column of a square stack has one shape"),
    (
        "nvfp4_global_scale",
        "the number of experts tells that a stack is taken apart; the values are the same",
    ),
    (
        "sdnq/wide_matmul_float8",
        "codes of F16 without SDNQ's config are floats, beside a parameter `scale`",
    ),
];

/// The assumptions that `notes` name.
fn assumptions(notes: &[String]) -> Vec<&String> {
    let is_assumption = |note: &&String| PHRASES.iter().any(|phrase| note.contains(phrase));
    notes.iter().filter(is_assumption).collect()
}

/// The tensors of `model` in F32, by name; `None` if it cannot be decoded.
fn decode(model: &ParsedModel) -> Option<HashMap<String, Vec<u8>>> {
    let model = parse_bytes(model.remember_to_bytes(TargetDtype::F32).ok()?).ok()?;
    let tensors = model.tensors();
    let decoded = tensors.map(|t| (t.name().to_owned(), t.bytes().unwrap().to_vec()));
    Some(decoded.collect())
}

/// The model of `dir`, if it is small and has one safetensors file, and its tensors without those
/// that describe others.
fn stripped(dir: &Path) -> Option<(ParsedModel, Vec<Raw>)> {
    let model = parse(dir).ok()?;
    let is_fit = model.container() == anamnesis::Container::Safetensors
        && model.inspect().problems.is_empty()
        && model.tensor_bytes() < 1 << 20
        && !dir.join("model.safetensors.index.json").exists();
    let described = |t: &anamnesis::Tensor<'_>| t.name().ends_with(".comfy_quant");
    let stored = |t: anamnesis::Tensor<'_>| {
        let (dtype, _) = find_dtype(&t.dtype().to_string())?;
        Some(raw(t.name(), dtype, t.shape(), t.bytes().unwrap().to_vec()))
    };
    let tensors = model.tensors().filter(|t| is_fit && !described(t));
    let tensors: Option<Vec<Raw>> = tensors.map(stored).collect();
    Some((model, tensors.filter(|tensors| !tensors.is_empty())?))
}

/// Every model of the test data without its config and descriptions: refused, decoded to the same
/// values, or with a note.
#[test]
fn lost_descriptions() {
    let (mut failures, mut others, mut unused) = (String::new(), 0, SILENT.to_vec());
    for dir in some_case_directories(0) {
        let Some((intact, tensors)) = stripped(&dir) else {
            continue;
        };
        let model = parse_bytes(file(&tensors, &[])).unwrap();
        let (Some(want), Some(got)) = (decode(&intact), decode(&model)) else {
            continue;
        };
        if got
            .iter()
            .all(|(name, values)| want.get(name) == Some(values))
        {
            continue;
        }
        others += 1;
        let path = dir.to_string_lossy().replace('\\', "/");
        if !assumptions(&model.inspect().notes).is_empty() {
            continue;
        }
        match SILENT.iter().find(|(part, _)| path.contains(part)) {
            Some(row) => unused.retain(|other| other != row),
            None => failures += &format!("{path}\n"),
        }
    }
    assert!(failures.is_empty(), "silently others:\n{failures}");
    assert!(unused.is_empty() || effort([true, false, false]), "{unused:?}");
    assert!(others > effort([5, 50, 50]), "{others}");
}

/// Integers that look like codes, in layouts of no scheme, and the name of the codes.
const UNKNOWN: &[(&str, &str)] = &[
    ("a.weight I8 8,16", "a.weight"),
    ("a.weight U8 8,16; a.weight_step F32 8", "a.weight"),
    ("a.packed I32 8,16; a.steps F16 8,4", "a.packed"),
    ("a.codes.data U8 8,16; a.scales.data F16 8,2", "a.codes.data"),
    ("a.w.q U8 128; a.w.absmax F32 4", "a.w.q"),
    ("experts.w1 U8 2,8,16; experts.w1_mult BF16 2,8", "experts.w1"),
    ("m.experts.w1 I16 2,8,16", "m.experts.w1"),
    ("Wc I8 8,16; Wc_scales F32 8", "Wc"),
];

/// Integers that are no codes.
const OTHER: &[&str] = &[
    "embeddings.position_ids I64 1,512; embeddings.word.weight F32 8,4",
    "bn.num_batches_tracked I64 (); bn.weight F32 8; bn.running_mean F32 8",
    "attn.relative_position_index I64 49,49; attn.relative_position_bias_table F32 169,3",
    "attn.mask U8 16,16; attn.bias F32 16",
    "images U8 10,8,8; labels F32 10",
    "tokens I32 64; lengths F32 8",
];

#[test]
fn unknown_codes() {
    for &(stored, codes) in UNKNOWN {
        let model = parse_bytes(file(&tensors(stored), &[])).unwrap();
        let name = format!("`{codes}`");
        let inspected = model.inspect().notes;
        let options = ConvertOptions::new(ConvertTarget::Safetensors);
        let conversion = model.plan(options.clone()).unwrap();
        let reported = &conversion.report().notes;
        for notes in [&inspected, reported] {
            let [note] = assumptions(notes)[..] else {
                panic!("{stored}: {notes:?}");
            };
            assert!(note.contains(&name), "{stored}: {note}");
        }
        #[cfg(feature = "check")]
        {
            let checked = model.check(&anamnesis::CheckOptions::default()).unwrap();
            let is_told = checked
                .findings
                .iter()
                .any(|f| f.tensor.as_deref() == Some(codes));
            assert!(is_told, "{stored}: {:?}", checked.findings);
        }
        let strict = options.with_strict(true);
        let error = model.plan(strict.clone()).err().unwrap().to_string();
        assert!(error.contains(&name) && error.contains("--strict"), "{error}");
        // What is not asked for does not count.
        let mut others = strict;
        others.exclude = vec![codes.to_owned()];
        if stored.contains(';') {
            assert!(model.plan(others).is_ok(), "{stored}");
        }
    }
    for stored in OTHER {
        let model = parse_bytes(file(&tensors(stored), &[])).unwrap();
        let notes = model.inspect().notes;
        assert!(assumptions(&notes).is_empty(), "{stored}: {notes:?}");
        let strict = ConvertOptions::new(ConvertTarget::Safetensors).with_strict(true);
        assert!(model.plan(strict).is_ok(), "{stored}");
    }
}
