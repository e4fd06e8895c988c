//! `amn ls`.

use serde_json::Value;

use crate::amn;
use crate::common::{data, f32s, file, raw};

fn ls(path: &str, arguments: &[&str]) -> String {
    let output = amn(&[&["ls", path], arguments].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{path}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn at(name: &str) -> String {
    data().join(name).to_string_lossy().into_owned()
}

/// First words of the rows.
fn names(text: &str) -> Vec<&str> {
    let rows = text.lines().skip(1).take(text.lines().count() - 2);
    rows.map(|row| row.split_whitespace().next().unwrap())
        .collect()
}

#[test]
fn a_row_says_everything_of_a_tensor() {
    let expected = "\
NAME                                DTYPE    SHAPE       PARAMETERS     SIZE  SCHEME                      FILE
layers.0.attention.wq.weight_scale  BF16     []                   0      2 B  FP8 E4M3, per-tensor scale  model-fp8.safetensors
layers.0.attention.wq.weight        F8_E4M3  [256, 256]       65536  64.0 KB  FP8 E4M3, per-tensor scale  model-fp8.safetensors
2 tensors, 65538 bytes (64.0 KB), 65536 parameters
";
    assert_eq!(ls(&at("demo/model-fp8.safetensors"), &[]), expected);
    // Shapes of GGUF as ggml prints them; packed codes count with the values that they stand for.
    let text = ls(&at("demo/model-q4_k.gguf"), &[]);
    let row = "blk.0.ffn_up.weight  Q4_K   [256, 32]        8192  4.5 KB  GGUF Q4_K, 256-value blocks  model-q4_k.gguf";
    assert_eq!(text.lines().nth(1), Some(row));
    let text = ls(&at("gptq/b4_v1_act_order/model.safetensors"), &[]);
    let last = text.lines().last().unwrap();
    let model = anamnesis::parse(at("gptq/b4_v1_act_order/model.safetensors")).unwrap();
    let parameters = model.inspect().parameters();
    assert!(last.ends_with(&format!(", {parameters} parameters")), "{last}");
}

/// Every container; the values of the tensors are those of the model, stacks of experts and shared
/// codebooks included.
#[test]
fn parameters_add_up_in_every_container() {
    let models = [
        "demo/arrays.npz",
        "demo/checkpoint.pth",
        "npz/bf16_little.npy",
        "gguf-files/whole.gguf",
        "mlx/tiny_qwen3_moe/model",
        "compressed_tensors/tiny_mixed/model",
        "nvfp4/modelopt/model.safetensors",
    ];
    for name in models {
        let path = at(name);
        let parsed: Value = serde_json::from_str(&ls(&path, &["--json"])).unwrap();
        let tensors = parsed["tensors"].as_array().unwrap();
        let sum: u64 = tensors
            .iter()
            .map(|t| t["parameters"].as_u64().unwrap())
            .sum();
        let model = anamnesis::parse(&path).unwrap();
        assert_eq!(sum, model.inspect().parameters(), "{name}");
        assert_eq!(parsed["parameters"], sum, "{name}");
        assert_eq!(tensors.len(), model.tensors().len(), "{name}");
        assert_eq!(parsed["bytes"], model.tensor_bytes(), "{name}");
    }
}

#[test]
fn order_and_selection() {
    let model = at("mlx/tiny_qwen3_moe/model");
    let sorted = ls(&model, &["*.self_attn.*", "--exclude", "*norm*", "--sort", "name"]);
    let found = names(&sorted);
    assert!(found.len() == 12 && found.is_sorted(), "{sorted}");
    let text = ls(&model, &["--sort", "size", "--include", "lm_head*"]);
    assert_eq!(names(&text), ["lm_head.weight", "lm_head.biases", "lm_head.scales"]);
    let text = ls(&model, &["--sort", "dtype", "lm_head*"]);
    assert_eq!(names(&text)[2], "lm_head.weight", "BF16 is before U32");
    let none = amn(&["ls", &model, "nothing"]);
    assert_eq!(none.status.code(), Some(2));
    let none = amn(&["ls", &model, "--sort", "colour"]);
    assert_eq!(none.status.code(), Some(2));
}

#[test]
fn trees_have_totals() {
    let text = ls(&at("mlx/tiny_qwen3_moe/model"), &["--tree", "--depth", "2"]);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(rows[1], ["model", "32", "27008", "16.9", "KB"]);
    // A part without a fork stands with the next one.
    assert_eq!(rows[2], ["layers.0", "28", "24896", "15.5", "KB"]);
    assert!(text.lines().nth(2).unwrap().starts_with("  layers.0 "));
    let norm = ["norm.weight", "1", "64", "128", "B", "BF16", "[64]"];
    assert!(rows.iter().any(|row| *row == norm), "{text}");
    assert_eq!(text.lines().last(), Some("35 tensors, 18568 bytes (18.1 KB), 29056 parameters"));
    // Names may have any number of parts, and hide nothing in a terminal.
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("deep.safetensors");
    let deep = "a.".repeat(100_000) + "\u{1b}[31m";
    let fork = "a.".repeat(50_000) + "b";
    let tensors = [deep, fork].map(|name| raw(&name, "F32", &[1], f32s(&[1.0])));
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    let text = ls(&path.to_string_lossy(), &["--tree"]);
    assert!(text.lines().count() <= 6 && !text.contains('\u{1b}'));
}

#[test]
fn metadata_and_config() {
    let text = ls(&at("gguf-files/whole.gguf"), &["--meta"]);
    assert!(text.starts_with("Metadata:\n  general.architecture = llama\n"), "{text}");
    let text = ls(&at("mlx/tiny_qwen3_moe/model"), &["--meta"]);
    assert!(text.contains("config.json:\n  {\n"), "{text}");
    assert!(text.contains("    \"model_type\": \"qwen3_moe\""), "{text}");
    let json = ls(&at("mlx/tiny_qwen3_moe/model"), &["--meta", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["config"]["model_type"], "qwen3_moe");
    let json = ls(&at("demo/model-fp8.safetensors"), &["--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json.get("config").is_none() && json.get("metadata").is_none());
}

/// A tensor that cannot be decoded is listed, and its values are not made up.
#[test]
fn what_cannot_be_decoded_is_listed() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.safetensors");
    let tensors =
        [raw("a.weight_scale", "F32", &[], f32s(&[1.0])), raw("b", "F32", &[2], f32s(&[1.0, 2.0]))];
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    let text = ls(&path.to_string_lossy(), &[]);
    let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..4], ["a.weight_scale", "F32", "[]", "?"]);
    assert!(text.ends_with(
        "2 tensors, 12 bytes, 2 parameters\n1 tensor cannot be decoded; `amn inspect` says why\n"
    ));
}

/// Arrays that no tensor can hold are not listed, and a note says so.
#[test]
fn what_is_not_listed_is_counted() {
    let text = ls(&at("npz/no_tensors_among.npz"), &[]);
    let note = "Note: 16 arrays not listed that no tensor can hold, e.g. `object` (objects (|O))\n";
    assert!(text.ends_with(note), "{text}");
}
