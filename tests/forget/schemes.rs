//! `forget` with every scheme: any number of threads, values that a scheme cannot represent,
//! and tensors of every kind.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anamnesis::{ConvertOptions, ConvertTarget, ForgetScheme, ParsedModel, parse_bytes};
use safetensors::SafeTensors;
use serde_json::{Map, Value};

use crate::common::forget::{
    bf16s, decoded, encoded, every_scheme, f16s, needs_importance, options, options_for, values,
    values_of, weights,
};
use crate::common::{Random, Raw, data, effort, f32s, file, raw};

/// Runs `check` for all `schemes`, and reports all failures.
fn each_of(schemes: impl IntoIterator<Item = String>, check: impl Fn(&str)) {
    let mut failures = Vec::new();
    for scheme in schemes {
        if let Err(e) = catch_unwind(AssertUnwindSafe(|| check(&scheme))) {
            failures.push(format!(
                "{scheme}: {}",
                e.downcast_ref::<String>().cloned().unwrap_or_default()
            ));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Runs `check`, which takes long, for every scheme in the gate, otherwise for each fifth from
/// `first` on: another fifth in another test.
pub(super) fn each_scheme(first: usize, check: impl Fn(&str)) {
    let (first, step) = effort([(first, 5), (0, 1), (0, 1)]);
    each_of(every_scheme().into_iter().skip(first).step_by(step), check);
}

fn bytes(model: &ParsedModel, mut options: ConvertOptions, threads: usize) -> Vec<u8> {
    options.single_file = true;
    options.run = options.run.with_threads(threads);
    model.plan(options).unwrap().to_bytes().unwrap()
}

/// Matrices in every float type, one of several tiles, and a stack. For slow schemes a single
/// matrix of two tiles, or outside the gate two of one each.
fn large(scheme: &str) -> ParsedModel {
    let mut random = Random(29);
    let mut floats = |n: usize| weights(&mut random, n);
    if scheme.starts_with("gguf:iq") && effort([true, false, false]) {
        let matrix = |name: &str, rows: usize, values: &[f32]| {
            let name = format!("model.layers.0.mlp.{name}_proj.weight");
            raw(&name, "BF16", &[rows, 768], bf16s(values))
        };
        let tensors =
            [("up", 17), ("down", 12)].map(|(name, rows)| matrix(name, rows, &floats(rows * 768)));
        return parse_bytes(file(&tensors, &[])).unwrap();
    }
    if scheme.starts_with("gguf:iq") {
        let matrix = raw(
            "model.layers.0.mlp.up_proj.weight",
            "BF16",
            &[176, 768],
            bf16s(&floats(176 * 768)),
        );
        return parse_bytes(file(&[matrix], &[])).unwrap();
    }
    let tensors = [
        raw("model.layers.0.mlp.up_proj.weight", "BF16", &[192, 768], bf16s(&floats(192 * 768))),
        raw("model.layers.0.mlp.down_proj.weight", "F32", &[128, 256], f32s(&floats(128 * 256))),
        raw("model.layers.0.self_attn.q_proj.weight", "F16", &[128, 256], f16s(&floats(128 * 256))),
        raw(
            "model.layers.0.mlp.experts.gate_up_proj",
            "BF16",
            &[3, 128, 256],
            bf16s(&floats(3 * 32768)),
        ),
    ];
    parse_bytes(file(&tensors, &[])).unwrap()
}

#[test]
fn bytes_do_not_depend_on_threads() {
    let directory = crate::common::tempdir().unwrap();
    each_scheme(0, |scheme| {
        let model = large(scheme);
        let options = || options_for(scheme, &model, directory.path());
        let one = bytes(&model, options(), 1);
        for threads in effort([2..=2, 2..=3, 2..=3]) {
            assert!(one == bytes(&model, options(), threads), "{threads} threads");
        }
        if options().target == ConvertTarget::Safetensors {
            let read = SafeTensors::deserialize(&one).unwrap_or_else(|e| panic!("{e}"));
            assert!(read.len() >= model.tensors().len());
        }
        let out = parse_bytes(one).unwrap();
        assert!(out.inspect().problems.is_empty(), "{:?}", out.inspect().problems);
        let back = decoded(&out).unwrap();
        for t in model.tensors() {
            // MLX has a module for stacks, so the name differs.
            let name = format!(
                "{}{}",
                t.name(),
                if back.tensor(t.name()).is_none() {
                    ".weight"
                } else {
                    ""
                }
            );
            let (was, is) = (values(&t).unwrap(), values_of(&back, &name));
            let (mut wrong, mut all) = (0.0, 0.0);
            for (a, b) in was.iter().zip(&is) {
                wrong += f64::from(a - b) * f64::from(a - b);
                all += f64::from(a * a);
            }
            let error = wrong / all;
            assert!(error < 0.9, "{}: {error}", t.name());
        }
    });
}

/// The name and the shape of the smallest matrix that the scheme encodes.
fn matrix(scheme: &str) -> (&'static str, Vec<usize>) {
    match scheme {
        "mxfp4-gpt-oss" => ("x.experts.up", vec![1, 128, 256]),
        _ if scheme.starts_with("gguf:") => ("x.weight", vec![4, 256]),
        _ => ("x.weight", vec![128, 256]),
    }
}

/// Ordinary values but for one, in row 2 and column 99.
fn with(scheme: &str, value: f32) -> Raw {
    let (name, shape) = matrix(scheme);
    let mut values = weights(&mut Random(5), shape.iter().product());
    values[256 * 2 + 99] = value;
    raw(name, "F32", &shape, f32s(&values))
}

/// A value that is not finite is refused, and the error names its place. A large finite value is
/// refused with the tensor's name, or decodes to a finite value whose error is in the report.
#[test]
fn hostile_values() {
    let directory = crate::common::tempdir().unwrap();
    // `gguf:f32` copies F32 tensors, and `dfloat11` takes BF16 alone.
    each_scheme(1, |scheme| {
        if ["gguf:f32", "dfloat11"].contains(&scheme) {
            return;
        }
        // In the gate each scheme takes all values, otherwise a third of them.
        let (first, step) = effort([(scheme.len() % 3, 3), (0, 1), (0, 1)]);
        let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        for value in values.into_iter().skip(first).step_by(step) {
            let model = parse_bytes(file(&[with(scheme, value)], &[])).unwrap();
            let error = encoded(&model, options_for(scheme, &model, directory.path()))
                .unwrap_err()
                .to_string();
            assert!(error.contains("tensor `x."), "{value}: {error}");
            assert!(error.contains(", row 2, column 99: "), "{value}: {error}");
        }
        let values = [f32::MAX, f32::MIN, 1e38, -3e37, 1e20, 1e6, 65520.0, 1e-30, 1e-45, -0.0];
        for value in values.into_iter().skip(first).step_by(step) {
            let model = parse_bytes(file(&[with(scheme, value)], &[])).unwrap();
            let (out, report) = match encoded(&model, options_for(scheme, &model, directory.path()))
            {
                Ok(both) => both,
                Err(error) => {
                    assert!(value.abs() > 1e4, "{value}: {error}");
                    assert!(error.to_string().contains("tensor `x."), "{value}: {error}");
                    continue;
                }
            };
            assert_eq!(report.encoded.len(), 1, "{value}");
            let back = decoded(&out).unwrap();
            let back = values_of(&back, &report.encoded[0].name);
            assert!(back.iter().all(|x| x.is_finite()), "{value}");
        }
    });
}

/// Stored values of two bytes are surveyed block by block, and then encoded in small parts; those
/// of four bytes are encoded in tiles of whole blocks. Codes and scales are the same.
#[test]
fn blocks_have_the_same_codes_however_values_are_stored() {
    let [ragged, whole] = effort([[3000, 4480], [9000, 8960], [9000, 8960]]);
    for (scheme, shape) in [
        ("fp8-block-ragged", [300, ragged]),
        ("fp8-block-ragged", [131, 65]),
        ("fp8-block", [256, whole]),
        ("fp8-block-ue8m0", [128, 4096]),
    ] {
        let mut floats = weights(&mut Random(5), shape[0] * shape[1]);
        for x in &mut floats {
            *x = f32::from_bits(x.to_bits() & 0xffff_0000);
        }
        let encode = |floats: &[f32], dtype: &'static str| {
            let stored = match dtype {
                "BF16" => bf16s(floats),
                _ => f32s(floats),
            };
            let tensor = raw("a.mlp.up_proj.weight", dtype, &shape, stored);
            encoded(&parse_bytes(file(&[tensor], &[])).unwrap(), options(scheme))
        };
        let contents = |model: &ParsedModel| {
            let bytes =
                |t: anamnesis::Tensor<'_>| (t.name().to_owned(), t.bytes().unwrap().to_vec());
            model.tensors().map(bytes).collect::<Vec<_>>()
        };
        let [a, b] = ["BF16", "F32"].map(|dtype| encode(&floats, dtype).unwrap());
        assert!(contents(&a.0) == contents(&b.0), "{scheme} {shape:?}");
        floats[shape[1] * 130 % (shape[0] * shape[1]) + 64] = f32::NAN;
        let [a, b] = ["BF16", "F32"].map(|dtype| encode(&floats, dtype).unwrap_err().to_string());
        assert!(a.contains("column 64: NaN cannot"), "{a}");
        assert_eq!(a, b);
    }
}

/// A group size that would have no effect, or make a layout that no library reads, is refused.
#[test]
fn group_sizes_are_refused_where_there_is_no_choice() {
    let floats = weights(&mut Random(3), 16 * 160);
    let tensor = raw("a.mlp.up_proj.weight", "BF16", &[16, 160], bf16s(&floats));
    let model = parse_bytes(file(&[tensor], &[])).unwrap();
    for name in ["w8a8", "w8a16-channel", "int8", "fp8", "gguf:q8_0"] {
        let scheme: ForgetScheme = name.parse().unwrap();
        let Err(error) = model.plan(scheme.with_group_size(32)) else {
            panic!("it is planned");
        };
        let text = error.to_string();
        assert!(text.contains("groups of 32: ") && text.contains(" leaves no choice"), "{text}");
    }
}

/// Tensors whose values are all equal: zeros, the smallest and the largest finite ones.
#[test]
fn constant_values() {
    let directory = crate::common::tempdir().unwrap();
    each_scheme(2, |scheme| {
        let values = [0.0, 1e-45, 1.0, -0.0, 1e-38, -1.0, f32::MAX, 1e-8, 65504.0];
        let (first, step) = effort([(scheme.len() % 3, 3), (0, 1), (0, 1)]);
        for value in values.into_iter().skip(first).step_by(step) {
            let (name, shape) = matrix(scheme);
            let values = vec![value; shape.iter().product()];
            let model = parse_bytes(file(&[raw(name, "F32", &shape, f32s(&values))], &[])).unwrap();
            match encoded(&model, options_for(scheme, &model, directory.path())) {
                Ok((out, _)) => {
                    let back = values_of(&decoded(&out).unwrap(), name);
                    assert!(back.iter().all(|x| x.is_finite()), "{value}");
                    assert!(
                        value != 0.0 || back.iter().all(|x| *x == 0.0),
                        "{value}: {:?}",
                        &back[..4]
                    );
                }
                Err(error) => {
                    // MLX's exponents wrap around below 2^-127.
                    let small = scheme.starts_with("mlx-mxfp") && value < 1e-37;
                    assert!(value > 1e4 || small, "{value}: {error}");
                    assert!(error.to_string().contains("tensor `x."), "{value}: {error}");
                }
            }
        }
    });
}

/// Tensors that no scheme encodes, beside one matrix that every scheme encodes.
fn odd(rows: usize) -> Vec<Raw> {
    let mut random = Random(31);
    let mut matrix =
        |name: &str| raw(name, "F32", &[rows, 256], f32s(&weights(&mut random, rows * 256)));
    vec![
        matrix("model.layers.0.up_proj.weight"),
        matrix("a b/c\\d\"e\u{7f}.weight"),
        matrix("模型.層.weight"),
        matrix("..weight"),
        matrix("weight"),
        matrix(".weight"),
        raw("empty.weight", "F32", &[0, 256], vec![]),
        raw("empty_rows.weight", "BF16", &[128, 0], vec![]),
        raw("vector.weight", "F32", &[256], f32s(&[0.5; 256])),
        raw("scalar.weight", "F32", &[], f32s(&[0.5])),
        raw("wide.weight", "F64", &[128, 256], vec![0; 8 * 128 * 256]),
        raw("long.table", "I64", &[128, 256], vec![1; 8 * 128 * 256]),
        raw("byte.table", "I8", &[128, 256], vec![1; 128 * 256]),
        raw("flag.weight", "BOOL", &[2, 256], vec![1; 512]),
        raw("cube.weight", "F32", &[2, 32, 256], f32s(&vec![0.25; 2 * 32 * 256])),
        raw("narrow.weight", "F32", &[128, 33], f32s(&vec![0.25; 128 * 33])),
        raw("low.weight", "F32", &[3, 256], f32s(&vec![0.25; 3 * 256])),
    ]
}

#[test]
fn tensors_that_no_scheme_encodes_stay() {
    let directory = crate::common::tempdir().unwrap();
    each_scheme(3, |scheme| {
        let tensors = odd(if scheme.starts_with("gguf:") { 4 } else { 128 });
        let model = parse_bytes(file(&tensors, &[])).unwrap();
        let options = options_for(scheme, &model, directory.path());
        if scheme.starts_with("qnat") {
            // QNAT files hold encoded tensors alone.
            let error = encoded(&model, options).unwrap_err().to_string();
            assert!(error.contains("tensor `"), "{error}");
            return;
        }
        let in_gguf = options.target == ConvertTarget::Gguf;
        let (out, report) = encoded(&model, options).unwrap_or_else(|e| panic!("{e}"));
        let back = decoded(&out).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(report.encoded.len() + report.kept.len(), tensors.len());
        assert!(report.kept.iter().all(|kept| !kept.reason.is_empty()));
        for kept in &report.kept {
            let (was, is) = (model.tensor(&kept.name).unwrap(), out.tensor(&kept.name).unwrap());
            assert_eq!(was.shape(), is.shape(), "{}", kept.name);
            let flag = in_gguf && kept.name == "flag.weight"; // GGUF stores BOOL as I8
            assert!(flag || was.dtype() == is.dtype(), "{}: {}", kept.name, is.dtype());
            assert!(was.bytes().unwrap() == is.bytes().unwrap(), "{}", kept.name);
        }
        for name in [
            "empty.weight",
            "empty_rows.weight",
            "vector.weight",
            "scalar.weight",
            "wide.weight",
            "long.table",
        ] {
            assert!(report.kept.iter().any(|kept| kept.name == name), "{name}");
        }
        for name in report.encoded.iter().map(|e| e.name.as_str()) {
            let mut shape = model.tensor(name).unwrap().shape().to_vec();
            // Stacks of gpt-oss are parameters, which are stored transposed.
            let transposed = name
                .strip_suffix(".weight")
                .filter(|_| scheme == "mxfp4-gpt-oss");
            if transposed.is_some() {
                shape.swap(1, 2);
            }
            assert_eq!(back.tensor(transposed.unwrap_or(name)).unwrap().shape(), shape, "{name}");
        }
        let odd = ["a b/c\\d\"e\u{7f}.weight", "模型.層.weight"];
        let is_encoded = |name: &&str| report.encoded.iter().any(|e| e.name == **name);
        // These encode stacks alone, copy F32, take BF16 alone.
        let is_other = ["mxfp4-gpt-oss", "gguf:f32", "dfloat11"].contains(&scheme);
        assert!(is_other || odd.iter().all(is_encoded), "{:?}", report.kept);
    });
}

/// Just the schemes that `needs_importance` lists ask for an importance matrix.
#[test]
fn schemes_that_need_importance_ask_for_it() {
    let model = large("");
    each_of(every_scheme(), |scheme| match model.plan(options(scheme)) {
        Ok(_) => assert!(!needs_importance(scheme)),
        Err(error) => {
            assert!(needs_importance(scheme), "{error}");
            assert!(
                error
                    .to_string()
                    .contains("takes an importance matrix (--imatrix)"),
                "{error}"
            );
        }
    });
}

/// ggml encodes IQ3_XXS without importance, and llama.cpp asks for it only in layers. The expected
/// blocks are ggml's.
#[test]
fn embeddings_in_iq3_xxs_need_no_importance() {
    let golden = |name| std::fs::read(data().join("ggml_encode").join(name)).unwrap();
    let mut values = golden("values.f32");
    // The row on which ggml aborts.
    values.drain(12 * 2048..13 * 2048);
    let embeddings = raw("token_embd.weight", "F32", &[15, 512], values);
    let model = parse_bytes(file(&[embeddings], &[])).unwrap();
    let scheme = "gguf:iq3_xxs".parse::<ForgetScheme>().unwrap().pure();
    let (out, _) = encoded(&model, scheme.into()).unwrap();
    let tensor = out.tensor("token_embd.weight").unwrap();
    assert_eq!(tensor.dtype().to_string(), "IQ3_XXS");
    assert!(*tensor.bytes().unwrap() == golden("iq3_xxs.bin"));
}

/// Schemes with the names of presets have the groups of those presets: `preset_name_to_scheme` of
/// compressed-tensors 0.20.
#[test]
fn presets_of_compressed_tensors() {
    let weight = raw("x.weight", "BF16", &[4, 256], bf16s(&[0.5; 1024]));
    let model = parse_bytes(file(&[weight], &[])).unwrap();
    for (scheme, groups) in
        [("w4a16", 2), ("w4a16-asym", 2), ("w8a16", 2), ("w8a8", 1), ("w8a16-channel", 1)]
    {
        let (out, _) = encoded(&model, options(scheme)).unwrap();
        let scales = out.tensor("x.weight_scale").unwrap();
        assert_eq!(scales.shape(), [4, groups], "{scheme}");
    }
}

/// Tensors that each scheme encodes are those that `tests/data/outputs.json` has the CRC-32 of: a
/// change of what users get is made on purpose, and CHANGELOG.md says why. `UPDATE_OUTPUTS=1` with
/// `ANAMNESIS_TESTS=all` writes the list.
#[test]
fn outputs_stay_as_they_are() {
    let directory = crate::common::tempdir().unwrap();
    let path = data().join("outputs.json");
    let listed: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let made = RefCell::new(Map::new());
    each_scheme(2, |scheme| {
        let (name, shape) = matrix(scheme);
        let values = weights(&mut Random(31), shape.iter().product());
        let tensor = raw(name, "BF16", &shape, bf16s(&values));
        let model = parse_bytes(file(&[tensor], &[])).unwrap();
        let (out, _) = encoded(&model, options_for(scheme, &model, directory.path())).unwrap();
        let mut sum = crc32fast::Hasher::new();
        for tensor in out.tensors() {
            sum.update(
                format!("{} {} {:?}", tensor.name(), tensor.dtype(), tensor.shape()).as_bytes(),
            );
            sum.update(&tensor.bytes().unwrap());
        }
        let sum = sum.finalize();
        made.borrow_mut().insert(scheme.to_owned(), sum.into());
        if std::env::var_os("UPDATE_OUTPUTS").is_none() {
            assert_eq!(listed[scheme], sum, "other bytes; does CHANGELOG.md say why?");
        }
    });
    if std::env::var_os("UPDATE_OUTPUTS").is_some() {
        let text = serde_json::to_string_pretty(&made.into_inner()).unwrap();
        std::fs::write(path, text + "\n").unwrap();
    }
}
