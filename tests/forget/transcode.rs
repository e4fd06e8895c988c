//! `forget` between schemes with the same codes: the codes are moved without decoding.

mod goldens;
mod stacks;

use std::path::{Path, PathBuf};

use anamnesis::{
    AnamnesisError, ConvertOptions, Encoded, Forget, ForgetScheme, ModelScope, Report, TargetDtype,
    parse,
};
use serde_json::{Value, json};

use crate::common::forget::{bf16s, every_scheme, needs_importance, stored_at, values_at, weights};
use crate::common::{Random, Raw, data, effort, file, raw};

/// A scheme with groups of so many values.
fn scheme(name: &str, group: Option<usize>) -> ForgetScheme {
    let scheme: ForgetScheme = name.parse().unwrap();
    group.map_or(scheme.clone(), |group| scheme.with_group_size(group))
}

/// Encodes the model at `input` into `directory`, and returns the path of the output.
fn forget(
    input: &Path,
    directory: &Path,
    scheme: ForgetScheme,
    to: TargetDtype,
) -> Result<(PathBuf, Report), AnamnesisError> {
    let count = std::fs::read_dir(directory).unwrap().count();
    let options = options(scheme, to);
    let ending = match () {
        () if options.target.extension() == "gguf" => ".gguf",
        () if input.is_file() => ".safetensors",
        () => "",
    };
    let output = directory.join(format!("{count}{ending}"));
    let report = parse(input)?.forget(&output, options)?;
    Ok((output, report))
}

fn options(scheme: ForgetScheme, to: TargetDtype) -> ConvertOptions {
    let mut forget = Forget::from(scheme);
    if forget.scheme.container().extension() == "gguf" {
        forget.include = vec!["*.weight".to_owned()];
    }
    let mut options = ConvertOptions::from(forget);
    options.run.to = to;
    options
}

fn codes_moved(report: &Report) -> Vec<&str> {
    report
        .encoded
        .iter()
        .filter(|e| e.scheme.ends_with(" (codes moved)"))
        .map(|e| e.name.as_str())
        .collect()
}

/// Encodes `input` to each scheme of `steps` in turn. Each step must move the codes and keep every
/// value; the last output must equal the input.
fn cycle(input: &Path, to: TargetDtype, steps: &[ForgetScheme]) {
    let directory = crate::common::tempdir().unwrap();
    let before = values_at(input);
    let mut path = input.to_owned();
    for step in steps {
        let (output, report) = forget(&path, directory.path(), step.clone(), to).unwrap();
        assert_eq!(
            codes_moved(&report).len(),
            1,
            "{step}: {:?} {:?} {:?}",
            report.encoded,
            report.kept,
            report.notes
        );
        let distance = report.distance.unwrap().all;
        assert_eq!((distance.maximum, distance.relative), (0.0, 0.0));
        for (name, values) in values_at(&output) {
            // ggml has no negative zero.
            let differ = before[&name]
                .iter()
                .zip(&values)
                .position(|(a, b)| a != b && a.is_finite());
            assert_eq!(differ, None, "{step}: {name}");
        }
        path = output;
    }
    let (first, last) = (stored_at(input), stored_at(&path));
    assert!(first == last, "{:?} {:?}", first.keys(), last.keys());
}

/// A directory with one layer.
fn directory(tensors: &[Raw], quantization: &Value) -> tempfile::TempDir {
    let directory = crate::common::tempdir().unwrap();
    std::fs::write(directory.path().join("model.safetensors"), file(tensors, &[])).unwrap();
    let config = json!({"model_type": "llama", "quantization_config": quantization});
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    directory
}

const NAME: &str = "model.layers.0.mlp.up_proj";

fn named(end: &str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) -> Raw {
    raw(&format!("{NAME}.{end}"), dtype, shape, bytes)
}

/// Scales of many sizes and both signs: everything that F16 has but infinities and NaN.
fn halves(random: &mut Random, n: usize) -> Vec<u8> {
    let finite = |bits: u16| {
        if bits & 0x7c00 == 0x7c00 {
            bits & 0x83ff
        } else {
            bits
        }
    };
    (0..n)
        .flat_map(|_| finite((random.next() >> 32) as u16).to_le_bytes())
        .collect()
}

/// More than one tile in both dimensions.
const ROWS: usize = 544;

const COLS: usize = 1280;

/// A GPTQ layer with random codes, zero points unless `zeros` is given, and scales.
fn gptq(bits: usize, group: usize, zeros: Option<u8>, version_2: bool) -> tempfile::TempDir {
    let mut random = Random(5);
    let groups = COLS / group;
    let index = (0..COLS)
        .flat_map(|col| ((col / group) as u32).to_le_bytes())
        .collect();
    let words = ROWS * bits / 8 * groups;
    let zeros_bytes = zeros.map_or_else(|| random.bytes(words), |byte| vec![byte; words]);
    let tensors = [
        named("qweight", "I32", &[COLS * bits / 32, ROWS], random.bytes(COLS * bits / 8 * ROWS)),
        named("qzeros", "I32", &[groups, ROWS * bits / 32], zeros_bytes),
        named("scales", "F16", &[groups, ROWS], halves(&mut random, groups * ROWS)),
        named("g_idx", "I32", &[COLS], index),
    ];
    let format = if version_2 { "gptq_v2" } else { "gptq" };
    let config = json!({
        "quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": false, "sym": zeros.is_some(),
        "checkpoint_format": format,
    });
    directory(&tensors, &config)
}

#[test]
fn integers_with_zero_points_round_trip() {
    for &group in effort([&[128, 40][..], &[32, 128, 40], &[32, 128, 40]]) {
        let model = gptq(4, group, None, true);
        let steps = ["awq", "w4a16-asym", "awq", "gptq-asym"].map(|name| scheme(name, Some(group)));
        cycle(model.path(), TargetDtype::F16, &steps);
        let steps = ["w4a16-asym", "gptq-asym"].map(|name| scheme(name, Some(group)));
        cycle(model.path(), TargetDtype::F16, &steps);
    }
}

#[test]
fn symmetric_integers_round_trip() {
    for (bits, byte, names) in [(4, 0x77, ["w4a16", "gptq"]), (8, 0x7f, ["w8a16", "gptq-int8"])] {
        for group in [64, 1280] {
            let model = gptq(bits, group, Some(byte), false);
            cycle(model.path(), TargetDtype::F16, &names.map(|name| scheme(name, Some(group))));
        }
    }
    // `gptq-asym` writes version 2, so the zero points of a version 2 model stay as well.
    let (model, outputs) = (gptq(4, 64, Some(0x88), true), crate::common::tempdir().unwrap());
    let (first, report) =
        forget(model.path(), outputs.path(), scheme("gptq-asym", Some(64)), TargetDtype::F16)
            .unwrap();
    assert_eq!(codes_moved(&report).len(), 1);
    assert!(stored_at(&first) == stored_at(model.path()));
}

/// An MXFP4 layer of compressed-tensors with every code and every exponent; the last two exponents
/// only if `whole`.
fn mxfp4(whole: bool) -> tempfile::TempDir {
    let mut random = Random(9);
    let (rows, cols) = (96, 4096);
    let mut codes = random.bytes(rows * cols / 2);
    // All sixteen codes lie in each half of the first block of each row.
    for row in codes.chunks_exact_mut(cols / 2) {
        row[..16]
            .iter_mut()
            .enumerate()
            .for_each(|(i, byte)| *byte = (i | (15 - i) << 4) as u8);
    }
    let last = if whole { 256 } else { 254 };
    let exponents = (0..rows * cols / 32)
        .map(|i| (i * 5 % last) as u8)
        .collect();
    let tensors = [
        named("weight_packed", "U8", &[rows, cols / 2], codes),
        named("weight_scale", "U8", &[rows, cols / 32], exponents),
    ];
    directory(
        &tensors,
        &json!({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}),
    )
}

#[test]
fn mxfp4_round_trips() {
    let names = [
        "mlx-mxfp4",
        "mxfp4-modelopt",
        "mlx-mxfp4",
        "gguf:mxfp4",
        "mlx-mxfp4",
        "gguf:mxfp4",
        "mxfp4",
    ];
    cycle(mxfp4(false).path(), TargetDtype::BF16, &names.map(|name| scheme(name, None)));
    // NaN must stay NaN.
    let names = ["mlx-mxfp4", "mxfp4-modelopt", "mxfp4"];
    cycle(mxfp4(true).path(), TargetDtype::BF16, &names.map(|name| scheme(name, None)));
    let outputs = crate::common::tempdir().unwrap();
    let result =
        forget(mxfp4(true).path(), outputs.path(), scheme("gguf:mxfp4", None), TargetDtype::BF16);
    assert!(
        result
            .unwrap_err()
            .to_string()
            .contains("its exponent is 255")
    );
}

/// Exponent 255 is no number in F8_E8M0, and infinity where the exponent is computed from U8: a
/// code that moved would silently change its value.
#[test]
fn exponents_that_mean_another_value_do_not_move() {
    let mut random = Random(11);
    let (rows, cols) = (4, 64);
    let model = |last: u8| {
        let tensors = [
            named("weight", "I8", &[rows, cols / 2], random.bytes(rows * cols / 2)),
            named("scale", "F8_E8M0", &[rows, cols / 32], vec![120, 127, 3, 254, 1, 90, 127, last]),
        ];
        directory(&tensors, &json!({}))
    };
    let [sound, with_nan] = [254, 255].map(model);
    for name in ["mxfp4", "mlx-mxfp4", "gguf:mxfp4"] {
        let outputs = crate::common::tempdir().unwrap();
        let to = TargetDtype::F32;
        let (_, report) = forget(sound.path(), outputs.path(), scheme(name, None), to).unwrap();
        assert_eq!(codes_moved(&report).len(), 1, "{name}");
        let outputs = crate::common::tempdir().unwrap();
        let refused = forget(with_nan.path(), outputs.path(), scheme(name, None), to);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("its exponent is 255"), "{name}: {refused}");
    }
}

#[test]
fn codes_that_do_not_fit_are_encoded_again() {
    let outputs = crate::common::tempdir().unwrap();
    let says = |model: &Path, name: &str, group, to, reason: &str| {
        let (output, report) =
            forget(model, outputs.path(), scheme(name, Some(group)), to).unwrap();
        assert!(codes_moved(&report).is_empty() && report.encoded.len() == 1);
        assert!(report.notes.iter().any(|note| note.contains(reason)), "{:?}", report.notes);
        assert!(report.distance.unwrap().all.relative < 0.2);
        output
    };
    let (half, brain) = (TargetDtype::F16, TargetDtype::BF16);
    // Random F16 scales give values that are not finite, so this model is encoded from values.
    let floats = crate::common::f32s(&Random(3).floats(64 * 256));
    let model = directory(&[named("weight", "F32", &[64, 256], floats)], &json!(null));
    let make = |name: &str, to| {
        let mut options = ConvertOptions::from(scheme(name, Some(64)));
        options.run.to = to;
        let output = outputs.path().join(format!("{name}-{to}"));
        parse(model.path())
            .unwrap()
            .forget(&output, options)
            .unwrap();
        output
    };
    let (awq, gptq) = (make("awq", half), make("gptq", half));
    says(&awq, "w4a16-asym", 64, brain, "scales in F16 cannot all be had in BF16");
    says(&awq, "w4a16-asym", 128, half, "groups of 64 are no groups of 128");
    says(&awq, "w4a16", 64, half, "zero points");
    let singles =
        forget(&gptq, outputs.path(), scheme("w4a16", Some(64)), TargetDtype::F32).unwrap();
    assert_eq!(codes_moved(&singles.1).len(), 1); // F32 holds every F16
    assert_eq!(values_at(&singles.0), values_at(&gptq));
}

/// Scales in BF16 and F32 that F16 holds, larger groups, and blocks of ggml.
#[test]
fn integers_move_to_other_scales_and_smaller_groups() {
    let outputs = crate::common::tempdir().unwrap();
    let floats = Random(3).floats(64 * 256);
    let brains = floats
        .iter()
        .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes());
    let tensor = named("weight", "BF16", &[64, 256], brains.collect());
    let model = directory(&[tensor], &json!(null));
    let (half, brain) = (TargetDtype::F16, TargetDtype::BF16);
    let pairs = [
        ("w4a16", brain, "gptq"),
        ("w4a16-asym", brain, "awq"),
        ("w4a16", brain, "gguf:q4_0"),
        ("gptq", half, "gguf:q4_0"),
        ("w8a16", brain, "gguf:q8_0"),
        ("gptq-int8", half, "gguf:q8_0"),
    ];
    for (from, dtype, name) in pairs {
        let made = forget(model.path(), outputs.path(), scheme(from, Some(128)), dtype)
            .unwrap()
            .0;
        let group = (!name.starts_with("gguf")).then_some(32);
        let (output, report) = forget(&made, outputs.path(), scheme(name, group), half).unwrap();
        let is_moved = codes_moved(&report).len() == 1;
        assert!(is_moved, "{from} {dtype} {name}: {:?} {:?}", report.encoded, report.notes);
        let differ = |(name, values): (String, Vec<f32>)| {
            let after = values_at(&output);
            let after = &after[&name];
            values.iter().zip(after).any(|(a, b)| a != b)
        };
        assert!(!values_at(&made).into_iter().any(differ), "{from} {dtype} {name}");
    }
}

#[test]
fn a_config_that_is_wrong_about_symmetry_is_not_believed() {
    let model = gptq(4, 64, Some(0x76), true);
    let outputs = crate::common::tempdir().unwrap();
    let result =
        forget(model.path(), outputs.path(), scheme("w4a16-asym", Some(64)), TargetDtype::F16)
            .unwrap();
    assert_eq!((codes_moved(&result.1).len(), values_at(&result.0)), (1, values_at(model.path())));
    match forget(model.path(), outputs.path(), scheme("w4a16", Some(64)), TargetDtype::F32) {
        Ok((_, report)) => assert!(codes_moved(&report).is_empty()),
        Err(AnamnesisError::Unsupported { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

/// Schemes whose codes have a family.
const FAMILIES: [&str; 17] = [
    "w4a16",
    "w4a16-asym",
    "w8a16",
    "w8a16-channel",
    "w8a8",
    "gptq",
    "gptq-asym",
    "gptq-int8",
    "awq",
    "mxfp4",
    "mxfp4-modelopt",
    "mlx-mxfp4",
    "nvfp4",
    "nvfp4-ct",
    "gguf:q4_0",
    "gguf:q8_0",
    "gguf:mxfp4",
];

/// Whatever moves codes keeps all values, of all pairs.
#[test]
fn no_moved_code_changes_its_value() {
    let outputs = crate::common::tempdir().unwrap();
    let floats = Random(8).floats(32 * 256);
    let brains = floats
        .iter()
        .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes());
    let tensor = named("weight", "BF16", &[32, 256], brains.collect());
    let model = directory(&[tensor], &json!(null));
    let brain = TargetDtype::BF16;
    let of = |name: &str, group| {
        let scheme: ForgetScheme = name.parse().unwrap();
        match scheme.has_group_sizes() {
            true => scheme.with_group_size(group),
            false => scheme,
        }
    };
    let mut moved = 0;
    for from in FAMILIES {
        let made = forget(model.path(), outputs.path(), of(from, 64), brain)
            .unwrap()
            .0;
        let before = values_at(&made);
        for to in FAMILIES {
            let (output, report) = forget(&made, outputs.path(), of(to, 32), brain).unwrap();
            if !codes_moved(&report).is_empty() {
                moved += 1;
                for (name, after) in values_at(&output) {
                    assert!(before[&name] == after, "{from} {to}: {name}");
                }
            }
        }
    }
    assert!(moved > 40, "{moved}");
}

/// Rows of queries and keys change places in GGUF; their codes move all the same.
#[test]
fn codes_of_a_whole_model_move() {
    let outputs = crate::common::tempdir().unwrap();
    let model = crate::common::data().join("whole/llama/hf");
    for (name, moved) in [("w4a16", "gguf:q4_0"), ("w8a16", "gguf:q8_0")] {
        let [quantized, gguf, back] =
            ["hf", "gguf", "back"].map(|end| outputs.path().join(format!("{name}.{end}")));
        let brain = TargetDtype::BF16;
        parse(&model)
            .unwrap()
            .forget(&quantized, options(scheme(name, Some(32)), brain))
            .unwrap();
        let report = parse(&quantized)
            .unwrap()
            .forget(&gguf, options(scheme(moved, None), brain))
            .unwrap();
        // Rows of `down_proj` are no whole groups.
        assert_eq!(codes_moved(&report).len(), 12, "{:?}", report.encoded);
        let whole = ConvertOptions::from(TargetDtype::F32).with_scope(ModelScope::Model);
        parse(&gguf).unwrap().convert(&back, whole).unwrap();
        let (before, after) = (values_at(&quantized), values_at(&back));
        for (name, values) in before {
            if !name.contains("_proj.") || name.contains("down_proj") {
                continue;
            }
            assert!(after[&name] == values, "{name}");
        }
    }
}

/// What is encoded already keeps its bytes: it is copied, or its codes are moved. Of other schemes the
/// decoded values are rounded again.
#[test]
fn the_same_scheme_keeps_what_is_stored() {
    let scratch = crate::common::tempdir().unwrap();
    let input = scratch.path().join("model.safetensors");
    let matrix = |name: &str| {
        let name = format!("model.layers.0.{name}.weight");
        raw(&name, "BF16", &[128, 256], bf16s(&weights(&mut Random(5), 128 * 256)))
    };
    let tensors = ["self_attn.o_proj", "mlp.down_proj"].map(matrix);
    std::fs::write(&input, file(&tensors, &[])).unwrap();
    // gpt-oss has codes of stacks alone.
    let stacks = scratch.path().join("stacks.safetensors");
    let stack = |end: &str| {
        let name = format!("model.layers.0.mlp.experts.{end}");
        raw(&name, "BF16", &[2, 128, 256], bf16s(&weights(&mut Random(5), 2 * 128 * 256)))
    };
    let tensors = ["down_proj", "gate_up_proj"].map(stack);
    std::fs::write(&stacks, file(&tensors, &[])).unwrap();
    let mut others = vec![];
    for name in every_scheme() {
        let input = if name == "mxfp4-gpt-oss" {
            &stacks
        } else {
            &input
        };
        let container = name.parse::<ForgetScheme>().unwrap().container();
        if container.extension() != "safetensors" || needs_importance(&name) {
            continue;
        }
        let twice = || -> Result<_, AnamnesisError> {
            let scheme = || scheme(&name, None);
            let (once, _) = forget(input, scratch.path(), scheme(), TargetDtype::BF16)?;
            let (twice, report) = forget(&once, scratch.path(), scheme(), TargetDtype::BF16)?;
            let is_kept = |e: &Encoded| {
                e.scheme.ends_with(" (copied)") || e.scheme.ends_with(" (codes moved)")
            };
            let all_kept = !report.encoded.is_empty() && report.encoded.iter().all(is_kept);
            Ok((stored_at(&once) == stored_at(&twice), all_kept))
        };
        match twice() {
            Ok((is_equal, all_kept)) => {
                assert!(is_equal || !all_kept, "{name}");
                if !all_kept {
                    others.push(name);
                }
            }
            Err(error) => others.push(format!("{name}: {error}")),
        }
    }
    // DFloat11 loses nothing.
    assert_eq!(others, ["dfloat11"]);
}

/// Nothing in the stored tensors of SDNQ tells that codes are rotated, and the new config says that none
/// are.
#[test]
fn rotated_codes_are_encoded_anew() {
    for (case, is_copied) in [("uint4", true), ("hadamard", false), ("svd_uint4", false)] {
        let scratch = crate::common::tempdir().unwrap();
        let model = data().join("sdnq").join(case).join("model");
        let (out, report) =
            forget(&model, scratch.path(), scheme("sdnq-uint4", None), TargetDtype::F32).unwrap();
        assert!(!report.encoded.is_empty(), "{case}");
        for encoded in &report.encoded {
            let is_kept = encoded.scheme.ends_with(" (copied)");
            // Six columns are too few to be rotated.
            let is_plain = is_copied || encoded.name == "blocks.d.weight" && case == "hadamard";
            assert_eq!(is_kept, is_plain, "{case}: {} {}", encoded.name, encoded.scheme);
        }
        let (before, after) = (values_at(&model), values_at(&out));
        for encoded in &report.encoded {
            let (was, is) = (&before[&encoded.name], &after[&encoded.name]);
            let most = was.iter().fold(0f32, |most, x| most.max(x.abs()));
            let far = was.iter().zip(is).any(|(a, b)| (a - b).abs() > most / 14.9);
            assert!(!far && (!is_copied || was == is), "{case}: {}", encoded.name);
        }
    }
}
