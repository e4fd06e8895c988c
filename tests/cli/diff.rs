//! `amn diff`.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};

use crate::amn;
use crate::common::{Random, Raw, data, f32s, file, raw};

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Runs `amn diff a b` with `options`. Returns the exit code and stdout.
fn diff(a: &Path, b: &Path, options: &[&str]) -> (i32, String) {
    let paths = [a, b].map(|path| path.to_str().unwrap());
    let arguments = [&["diff"], &paths[..], options].concat();
    let run = amn(&arguments);
    (run.status.code().unwrap(), stdout(&run))
}

/// The report of `amn diff --json` with `options`, and the exit code.
fn report(a: &Path, b: &Path, options: &[&str]) -> (i32, Value) {
    let (code, text) = diff(a, b, &[&["--json"], options].concat());
    (code, serde_json::from_str(&text).unwrap())
}

fn save(path: PathBuf, tensors: &[Raw], metadata: &[(&str, &str)]) -> PathBuf {
    std::fs::write(&path, file(tensors, metadata)).unwrap();
    path
}

/// A quantized model equals itself, and its decoded output in all values. Decoded to F32 it differs
/// from BF16.
#[test]
fn a_model_and_its_decoded_output() {
    let directory = crate::common::tempdir().unwrap();
    for model in ["demo/model-fp8.safetensors", "demo/model-q4_k.gguf", "gptq/b2_v1_act_order"] {
        let input = data().join(model);
        let (code, text) = diff(&input, &input, &[]);
        assert_eq!(code, 0, "{model}: {text}");
        assert!(text.ends_with("The models are equal.\n"), "{text}");
        let output = directory.path().join("out.safetensors");
        let paths = [&input, &output].map(|path| path.to_str().unwrap());
        let run = amn(&["remember", paths[0], "-o", paths[1], "-f"]);
        assert!(run.status.success());
        let (code, found) = report(&input, &output, &["--to", "bf16", "--values-only"]);
        assert_eq!(code, 0, "{model}: {found}");
        for tensor in found["changed"].as_array().unwrap() {
            assert_eq!(tensor["values"]["unequal"], 0, "{tensor}");
        }
        let (code, _) = diff(&input, &output, &["--to", "bf16"]);
        assert_eq!(code, 1, "{model}: dtypes and schemes differ");
    }
}

/// Names, shapes, dtypes, values and metadata, as text and as JSON.
#[test]
fn every_kind_of_difference() {
    let directory = crate::common::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let two = |name: &str, shape: &[usize], values: &[f32]| raw(name, "F32", shape, f32s(values));
    let a = save(
        at("a.safetensors"),
        &[
            two("gone", &[1], &[1.0]),
            two("same", &[2], &[1.0, f32::NAN]),
            two("shape", &[2, 1], &[1.0, 2.0]),
            raw("type", "BF16", &[2], vec![0x80, 0x3f, 0, 0x40]),
            two("value", &[2, 2], &[1.0, 2.0, 3.0, -4.0]),
        ],
        &[("format", "pt"), ("step", "1")],
    );
    let b = save(
        at("b.safetensors"),
        &[
            two("new", &[1], &[1.0]),
            two("same", &[2], &[1.0, f32::NAN]),
            two("shape", &[1, 2], &[1.0, 2.0]),
            two("type", &[2], &[1.0, 2.0]),
            two("value", &[2, 2], &[1.0, 2.0, 3.25, -4.5]),
        ],
        &[("format", "pt"), ("step", "2")],
    );
    let (code, found) = report(&a, &b, &[]);
    assert_eq!(code, 1);
    assert_eq!(found["equal"], 1);
    assert_eq!(found["only_in_a"][0]["name"], "gone");
    assert_eq!(found["only_in_b"][0]["name"], "new");
    let metadata = json!([{"path": "step", "a": "1", "b": "2"}]);
    assert_eq!(found["metadata"], metadata);
    let changed = found["changed"].as_array().unwrap();
    let names: Vec<_> = changed.iter().map(|tensor| &tensor["name"]).collect();
    assert_eq!(names, ["shape", "type", "value"]);
    assert_eq!(changed[0]["values"], Value::Null);
    assert_eq!(
        (&changed[1]["a"]["dtype"], &changed[1]["b"]["dtype"]),
        (&json!("BF16"), &json!("F32"))
    );
    assert_eq!(changed[1]["values"]["unequal"], 0);
    let values = &changed[2]["values"];
    assert_eq!(values["unequal"], 2);
    assert_eq!(values["max_abs"], 0.5);
    assert_eq!(values["mean_abs"], 0.1875);
    assert_eq!(values["rmse"], 0.3125f64.sqrt() / 2.0);
    // numpy: a·b / (|a| |b|) of these four values.
    let cosine = values["cosine"].as_f64().unwrap();
    assert!((cosine - 0.999_156_130_271_2).abs() < 1e-9, "{cosine}");
    assert_eq!(values["first"], json!({"index": [1, 0], "a": 3.0, "b": 3.25}));

    let (_, text) = diff(&a, &b, &["--include", "value"]);
    let expected = [
        "Changed: 1 tensor",
        "NAME       RMSE       MAX      MEAN      COSINE  DIFFER  NOTE",
        "value  2.795e-1  5.000e-1  1.875e-1  0.99915613  2 of 4  first at [1, 0]: 3.0 and 3.25",
        "Metadata: 1 difference",
        "  step: \"1\" -> \"2\"",
        "Equal: 0 tensors",
        "The models are different.",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    let values_only = ["--include", "value", "--values-only", "--tolerance"];
    assert_eq!(diff(&a, &b, &[&values_only[..], &["0.5"]].concat()).0, 0);
    assert_eq!(diff(&a, &b, &[&values_only[..], &["0.4"]].concat()).0, 1);
    assert_eq!(diff(&a, &b, &["--include", "type", "--values-only"]).0, 0);
    assert_eq!(diff(&a, &b, &["--include", "shape", "--values-only"]).0, 1);
}

/// The tensors that differ are the rows of a table: worst first, by name, or by size; all or the
/// first of them.
#[test]
fn changed_tensors_are_sorted() {
    let directory = crate::common::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let side = |name: &str, x: f32, lost: f32, shape: &[usize]| {
        let plain = |name: &str, n: usize, x: f32| raw(name, "F32", &[n], f32s(&vec![x; n]));
        let tensors = [
            raw("shape", "F32", shape, f32s(&[1.0, 2.0])),
            plain("small", 2, 1.0 + x),
            plain("lost", 3, lost),
            plain("large", 8, 1.0 + x / 2.0),
            plain("middle", 4, 1.0 + x * 2.0),
            plain("same", 4, 1.0),
        ];
        save(at(name), &tensors, &[])
    };
    let a = side("a.safetensors", 0.0, 0.0, &[1, 2]);
    let b = side("b.safetensors", 1.0, f32::NAN, &[2]);
    let names = |options: &[&str]| {
        let (code, text) = diff(&a, &b, options);
        assert_eq!(code, 1, "{text}");
        let rows = text
            .lines()
            .skip_while(|line| !line.starts_with("NAME "))
            .skip(1);
        let rows = rows.take_while(|line| !line.starts_with("Equal: "));
        rows.map(|row| row.split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    // What has no error is the worst: shapes that differ, NaN.
    let worst = ["shape", "lost", "middle", "small", "large"];
    assert_eq!(names(&[]), worst);
    assert_eq!(names(&["--sort", "error"]), worst);
    assert_eq!(names(&["--sort", "name"]), ["large", "lost", "middle", "shape", "small"]);
    assert_eq!(names(&["--sort", "size"]), ["large", "middle", "lost", "shape", "small"]);
    assert_eq!(names(&["--top", "2"]), worst[..2]);
    assert_eq!(names(&["--top", "9", "--sort", "size"])[0], "large");
    assert_eq!(names(&["--top", "0"]), [""; 0]);
    let (_, text) = diff(&a, &b, &["--top", "2"]);
    assert!(text.contains("Changed: 5 tensors, of which these are the first 2\n"), "{text}");
    for part in ["[1, 2] -> [2]", "3 where a side is NaN or infinite; first at [0]: 0.0 and NaN"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // JSON has the order of A, and all; a scheme that differs is a note.
    let order = |options: &[&str]| {
        let (_, found) = report(&a, &b, options);
        let changed = found["changed"].as_array().unwrap().clone();
        changed
            .iter()
            .map(|t| t["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(order(&[]), ["shape", "small", "lost", "large", "middle"]);
    assert_eq!(order(&["--sort", "error"]), worst);
    assert_eq!(diff(&a, &b, &["--json", "--top", "2"]).0, 2);
    let gptq = data().join("gptq/b4_v1_act_order");
    let (_, text) =
        diff(&gptq.join("model.safetensors"), &gptq.join("expected-bf16.safetensors"), &[]);
    assert!(text.contains("  3536 of 4096  GPTQ -> BF16; first at [0, 0]: "), "{text}");
}

/// The sums are the same bits for any number of threads: tensors of several jobs, decoded and as
/// they are.
#[test]
fn threads_change_nothing() {
    let directory = crate::common::tempdir().unwrap();
    let mut random = Random(3);
    let mut side = |name: &str| {
        let (rows, cols) = (640, 4096);
        let scale = random.floats(1);
        let tensors = [
            raw("w.weight", "F8_E4M3", &[rows, cols], random.bytes(rows * cols)),
            raw("w.weight_scale", "F32", &[], f32s(&scale)),
            raw("x", "BF16", &[rows, cols], random.bytes(rows * cols * 2)),
        ];
        save(directory.path().join(name), &tensors, &[])
    };
    let (a, b) = (side("a.safetensors"), side("b.safetensors"));
    let reports = ["1", "2", "3"].map(|threads| diff(&a, &b, &["--json", "-j", threads]));
    assert_eq!(reports[0].0, 1);
    assert!(reports.iter().all(|report| *report == reports[0]));
    let found: Value = serde_json::from_str(&reports[0].1).unwrap();
    let changed = found["changed"].as_array().unwrap();
    assert_eq!(changed.len(), 2, "{found}");
    for tensor in changed {
        assert_eq!(tensor["values"]["values"], 640 * 4096);
        assert!(tensor["values"]["not_finite"].as_u64().unwrap() > 0, "random bits have NaN");
        assert!(tensor["values"]["rmse"].as_f64().unwrap() > 0.0);
    }
}

/// One byte of a quantized tensor, and the same bytes under another config.
#[test]
fn quantized_bytes_and_their_config() {
    let directory = crate::common::tempdir().unwrap();
    let (rows, cols) = (256, 512);
    let codes = Random(5)
        .bytes(rows * cols)
        .into_iter()
        .map(|b| b & 0x3f)
        .collect::<Vec<_>>();
    let save = |name: &str, codes: &[u8], config: &str| {
        let directory = directory.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        let tensors = [
            raw("w.weight", "F8_E4M3", &[rows, cols], codes.to_vec()),
            raw("w.weight_scale_inv", "F32", &[2, 4], f32s(&[0.5; 8])),
        ];
        std::fs::write(directory.join("model.safetensors"), file(&tensors, &[])).unwrap();
        std::fs::write(directory.join("config.json"), config).unwrap();
        directory
    };
    let config = |more: &str| {
        format!(
            r#"{{"quantization_config": {{"quant_method": "fp8", "weight_block_size": [128, 128]}}{more}}}"#
        )
    };
    let a = save("a", &codes, &config(""));
    let b = save("b", &codes, &config(r#", "vocab_size": 7"#));
    let (code, found) = report(&a, &b, &[]);
    let expected = json!([{"path": "config.json: vocab_size", "a": null, "b": 7}]);
    assert_eq!((code, &found["config"], &found["equal"]), (1, &expected, &json!(1)));
    assert_eq!(diff(&a, &b, &["--values-only"]).0, 0);
    let mut other = codes.clone();
    other[300 * 100] ^= 1;
    let c = save("c", &other, &config(""));
    let (code, found) = report(&a, &c, &[]);
    let values = &found["changed"][0]["values"];
    assert_eq!((code, &values["unequal"]), (1, &json!(1)));
    assert_eq!(values["first"]["index"], json!([300 * 100 / cols, 300 * 100 % cols]));
}

/// Typed metadata of GGUF, and different containers.
#[test]
fn metadata_of_gguf() {
    let directory = crate::common::tempdir().unwrap();
    let input = data().join("demo/model-q4_k.gguf");
    let output = directory.path().join("b.gguf");
    let paths = [&input, &output].map(|path| path.to_str().unwrap());
    let run = amn(&[
        "convert",
        paths[0],
        "--to",
        "gguf",
        "--gguf-kv",
        "general.name=other",
        "-o",
        paths[1],
    ]);
    assert!(run.status.success());
    let (code, found) = report(&input, &output, &[]);
    assert_eq!(code, 1, "{found}");
    let rows = found["metadata"].as_array().unwrap();
    let row = rows
        .iter()
        .find(|row| row["path"] == "general.name")
        .unwrap();
    assert_eq!(row["b"], "other");
    assert_eq!((&found["equal"], &found["changed"]), (&json!(1), &json!([])));
}

#[test]
fn errors() {
    let demo = data().join("demo/model-fp8.safetensors");
    let demo = demo.to_str().unwrap();
    assert_eq!(amn(&["diff", demo]).status.code(), Some(2));
    assert_eq!(
        amn(&["diff", demo, demo, "--tolerance", "-1"])
            .status
            .code(),
        Some(2)
    );
    assert_eq!(amn(&["diff", demo, "no such file"]).status.code(), Some(7));
    let text = data().join("README.md");
    assert_eq!(amn(&["diff", demo, text.to_str().unwrap()]).status.code(), Some(6));
}

/// The errors of two encodings beside each other are those of each by itself.
#[test]
fn two_encodings_against_what_they_were_made_of() {
    let (directory, model) = (crate::common::tempdir().unwrap(), data().join("guide/TinyLlama"));
    let made = |scheme: &str| {
        let output = directory.path().join(scheme.replace(':', "-"));
        let paths = [&model, &output].map(|path| path.to_str().unwrap());
        let run = amn(&["forget", paths[0], "--to", scheme, "-o", paths[1], "-q"]);
        assert!(run.status.success(), "{run:?}");
        output
    };
    let (a, b) = (made("nf4"), made("int8"));
    let against = ["--against", model.to_str().unwrap()];
    let (code, both) = report(&a, &b, &against);
    assert_eq!(code, 1);
    for (side, output) in [("a", &a), ("b", &b)] {
        assert_eq!(both[side], report(&model, output, &["--values-only"]).1, "{side}");
    }
    let (code, text) = diff(&a, &b, &[&against[..], &["--top", "2"]].concat());
    assert_eq!(code, 1);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[0].starts_with("NAME") && lines[1].contains("NF4") && lines[1].contains("INT8"));
    assert!(lines[4].ends_with("0 in A, 7 in B"), "{text}");
    // A model is as near to itself as can be.
    let (code, text) = diff(&model, &model, &against);
    assert!(code == 0 && text.starts_with("0 tensors"), "{text}");
}
