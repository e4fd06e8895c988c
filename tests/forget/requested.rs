//! Tensors that `include` names: they are encoded whatever they are called, and what cannot be is
//! named. What a scheme leaves out for its shape comes with the option that takes it.

use std::path::Path;

use anamnesis::{ConvertOptions, ForgetScheme, ModelScope, ParsedModel, Report, parse_bytes};

use super::schemes::each_scheme;
use crate::common::forget::{bf16s, decoded, options, options_for, values, weights};
use crate::common::{Random, file, raw};

/// Arrays as saved by a program that knows no modules: a matrix, a stack of three and a vector.
fn arrays() -> ParsedModel {
    let mut random = Random(31);
    let mut array = |name: &str, shape: &[usize]| {
        let floats = weights(&mut random, shape.iter().product());
        raw(name, "BF16", shape, bf16s(&floats))
    };
    let tensors = [
        array("W_enc", &[128, 256]),
        array("W_stack", &[3, 256, 256]),
        array("b_enc", &[128]),
        array("other", &[128, 256]),
    ];
    parse_bytes(file(&tensors, &[])).unwrap()
}

fn with_include(scheme: &str, model: &ParsedModel, directory: &Path, name: &str) -> ConvertOptions {
    let mut options = options_for(scheme, model, directory);
    (options.single_file, options.scope) = (true, ModelScope::Tensors);
    let forget = options.forget.as_mut().unwrap();
    forget.include = [name, "b_*"].map(str::to_owned).into();
    options
}

fn report(model: &ParsedModel, options: ConvertOptions) -> Report {
    model.plan(options).unwrap().report().clone()
}

#[test]
fn names_do_not_matter_to_what_is_asked_for() {
    let model = arrays();
    let directory = crate::common::tempdir().unwrap();
    each_scheme(4, |scheme| {
        // QNAT has room for nothing but encoded tensors, and these are BF16 already.
        if scheme.starts_with("qnat") || scheme == "gguf:bf16" {
            return;
        }
        // gpt-oss has stacks of experts alone.
        let asked = match scheme {
            "mxfp4-gpt-oss" => "W_stack",
            _ => "W_enc",
        };
        let options = with_include(scheme, &model, directory.path(), asked);
        let report = report(&model, options.clone());
        let stored = format!("{asked}.weight");
        let is_it = |name: &str| name == asked || name == stored;
        assert!(report.encoded.iter().any(|t| is_it(&t.name)), "{:?}", report.kept);
        assert!(!report.encoded.iter().any(|t| t.name.starts_with("other")));
        let notes = report.notes.join("\n");
        // One that cannot be encoded is named.
        for kept in report.kept.iter().filter(|t| t.name == "b_enc") {
            assert!(notes.contains(&format!("`{}`", kept.name)), "{}: {notes}", kept.name);
            assert!(notes.contains(&kept.reason), "{}: {notes}", kept.reason);
        }
        // Another name is noted.
        let is_renamed = report.encoded.iter().any(|t| t.name == stored);
        assert_eq!(is_renamed, notes.contains(&stored), "{notes}");
        let bytes = model.plan(options).unwrap().to_bytes().unwrap();
        let back = decoded(&parse_bytes(bytes).unwrap()).unwrap();
        let name = back
            .tensors()
            .map(|t| t.name())
            .find(|name| is_it(name))
            .unwrap();
        let decoded =
            |model: &ParsedModel, name: &str| values(&model.tensor(name).unwrap()).unwrap();
        let (want, got) = (decoded(&model, asked), decoded(&back, name));
        assert_eq!(want.len(), got.len());
        let norm = |values: &mut dyn Iterator<Item = f32>| -> f64 {
            values.map(|x| f64::from(x).powi(2)).sum()
        };
        let error = norm(&mut want.iter().zip(&got).map(|(a, b)| a - b));
        assert!(error < 0.7 * norm(&mut want.iter().copied()), "{error}");
    });
}

/// Without a pattern, names decide.
#[test]
fn nothing_is_asked_for_by_default() {
    let model = arrays();
    for scheme in ["nf4", "w4a16", "fp8-block", "mlx-4bit"] {
        let report = report(&model, options(scheme));
        assert!(report.encoded.is_empty(), "{scheme}");
        assert!(!report.notes.iter().any(|note| note.contains("asked for")), "{scheme}");
    }
}

/// What takes a matrix of this shape, as the reason says, takes it.
#[test]
fn reasons_name_the_way_out() {
    let mut named = 0;
    for (scheme, size, expected) in [
        ("w4a16", [64, 576], Some("--group-size 64")),
        ("w4a16-asym", [64, 576], Some("--group-size 64")),
        ("w8a16", [64, 576], Some("--group-size 64")),
        ("gptq", [64, 576], Some("--group-size 64")),
        ("gptq-int8", [64, 96], Some("--group-size 32")),
        ("gptq-asym", [64, 576], Some("--group-size 64")),
        ("awq", [64, 576], Some("--group-size 64")),
        ("w4a16", [64, 48], Some("--group-size 16")),
        ("mlx-4bit", [64, 96], Some("--group-size 32")),
        ("mlx-4bit", [64, 48], None),
        ("fp8-block", [576, 1536], Some("--to fp8-block-ragged")),
        ("fp8-block-ue8m0", [100, 100], Some("--to fp8-block-ragged")),
        ("mxfp4", [64, 48], Some("--to nvfp4-ct")),
        ("mxfp4-modelopt", [64, 48], Some("--to nvfp4")),
        ("mxfp8", [64, 48], Some("--to fp8-channel")),
        ("mxfp8-modelopt", [64, 48], Some("--to fp8-tensor")),
        ("nvfp4", [64, 40], Some("--to fp8-tensor")),
        ("nvfp4-ct", [64, 40], Some("--to fp8-channel")),
        ("mlx-mxfp4", [64, 48], Some("--to mlx-nvfp4")),
        ("mlx-mxfp8", [64, 48], Some("--to mlx-nvfp4")),
        ("comfy-w4a4", [64, 40], Some("--to comfy-int8-convrot")),
        ("w4a16", [64, 35], None),
    ] {
        let values = bf16s(&vec![0.5; size[0] * size[1]]);
        let name = "model.layers.0.mlp.up_proj.weight";
        let model = parse_bytes(file(&[raw(name, "BF16", &size, values)], &[])).unwrap();
        let kept = report(&model, options(scheme)).kept;
        let [kept] = kept.as_slice() else {
            panic!("{scheme} {size:?}: it is encoded");
        };
        let Some(expected) = expected else {
            assert!(!kept.reason.contains("fits"), "{scheme}: {}", kept.reason);
            continue;
        };
        assert!(kept.reason.contains(&format!("({expected} fits)")), "{scheme}: {}", kept.reason);
        let (option, value) = expected.split_once(' ').unwrap();
        let other = match option {
            "--to" => value.parse::<ForgetScheme>().unwrap(),
            _ => scheme
                .parse::<ForgetScheme>()
                .unwrap()
                .with_group_size(value.parse().unwrap()),
        };
        assert_eq!(report(&model, ConvertOptions::from(other)).encoded.len(), 1, "{scheme}");
        named += 1;
    }
    assert!(named > 15, "{named}");
}
