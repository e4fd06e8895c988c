//! `--json` of every command, validated against the schemas of `docs/json.md`.

use std::collections::HashMap;

use serde_json::Value;

use crate::amn;
use crate::common::{data, f32s, file, raw};

/// The schemas by the word behind "```json".
fn schemas() -> HashMap<String, Value> {
    let text = include_str!("../../docs/json.md");
    let mut found = HashMap::new();
    for block in text.split("\n```json ").skip(1) {
        let (name, rest) = block.split_once('\n').unwrap();
        let (schema, _) = rest.split_once("\n```").unwrap();
        found.insert(name.to_owned(), serde_json::from_str(schema).unwrap());
    }
    found
}

/// What is wrong with `value`. A property that the schema does not have is wrong: every field is documented.
fn wrong(value: &Value, schema: &Value, defs: &Value, at: &str) -> Option<String> {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let schema = defs.get(name).unwrap_or_else(|| panic!("{name}"));
        return wrong(value, schema, defs, at);
    }
    if let Some(all) = schema.get("enum").and_then(Value::as_array) {
        return (!all.contains(value)).then(|| format!("{at}: {value} is none of {all:?}"));
    }
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    };
    let is_one = match schema.get("type") {
        None => return None,
        Some(Value::String(kind)) => is(kind),
        Some(kinds) => kinds
            .as_array()
            .unwrap()
            .iter()
            .any(|kind| is(kind.as_str().unwrap())),
    };
    if !is_one {
        return Some(format!("{at}: {value} is no {}", schema["type"]));
    }
    if let Some(items) = value.as_array() {
        let mut items = items.iter().enumerate();
        return items
            .find_map(|(i, item)| wrong(item, &schema["items"], defs, &format!("{at}[{i}]")));
    }
    let object = value.as_object()?;
    let required = schema.get("required").and_then(Value::as_array);
    let missing = required
        .into_iter()
        .flatten()
        .find(|name| !object.contains_key(name.as_str().unwrap()));
    if let Some(name) = missing {
        return Some(format!("{at}: {name} is missing"));
    }
    object.iter().find_map(|(name, value)| {
        let at = format!("{at}.{name}");
        match schema
            .pointer(&format!("/properties/{name}"))
            .or(schema.get("additionalProperties"))
        {
            Some(schema) => wrong(value, schema, defs, &at),
            None => Some(format!("{at} is not documented")),
        }
    })
}

fn assert_valid(text: &[u8], schema: &str, what: &str) -> Value {
    let all = schemas();
    let value: Value = serde_json::from_slice(text).unwrap_or_else(|e| panic!("{what}: {e}"));
    let found = wrong(&value, &all[schema], &all["definitions"], "");
    assert_eq!(found, None, "{what}");
    value
}

/// The output of a command that must succeed.
fn valid(schema: &str, arguments: &[&str]) -> Value {
    let output = amn(&[arguments, &["--json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    assert_valid(&output.stdout, schema, &format!("{arguments:?}"))
}

fn at(name: &str) -> String {
    data().join(name).to_string_lossy().into_owned()
}

const MODELS: [&str; 8] = [
    "demo/model-fp8.safetensors",
    "demo/model-q4_k.gguf",
    "demo/checkpoint.pth",
    "demo/arrays.npz",
    "mlx/tiny_qwen3_moe/model",
    "whole/mixtral/hf",
    "nvfp4/modelopt/model.safetensors",
    "gptq/b4_v1_act_order/model.safetensors",
];

#[test]
fn what_models_hold() {
    for name in MODELS {
        let path = at(name);
        valid("ls", &["ls", &path, "--meta"]);
        valid("inspect", &["inspect", &path]);
        let mut parsed = valid_without_tensors(&path);
        assert_eq!(parsed["file"].take(), path);
        valid(
            "show",
            &[
                "show",
                &path,
                "--bins",
                "3",
                "--slice",
                "[:1]",
                "re:.*[a-z].*",
            ],
        );
        valid("scan", &["scan", &path]);
    }
    let globals = amn(&["inspect", &at("demo/checkpoint.pth"), "--globals", "--json"]);
    let globals: Value = serde_json::from_slice(&globals.stdout).unwrap();
    assert_eq!(globals["globals"][0]["module"], "collections");
}

/// `parse` has the fields of `inspect`, and tensors.
fn valid_without_tensors(path: &str) -> Value {
    let output = amn(&["parse", path, "--json"]);
    let mut parsed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let tensors = parsed.as_object_mut().unwrap().remove("tensors").unwrap();
    let all = schemas();
    for tensor in tensors.as_array().unwrap() {
        let tensor_schema = &all["definitions"]["tensor"];
        assert_eq!(wrong(tensor, tensor_schema, &all["definitions"], ""), None);
    }
    assert_valid(&serde_json::to_vec(&parsed).unwrap(), "inspect", path)
}

#[test]
fn what_conversions_did() {
    let directory = tempfile::tempdir().unwrap();
    let out = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    let input = at("demo/model-fp8.safetensors");
    for arguments in [
        &["remember", &input, "-o", &out("a.safetensors")][..],
        &["convert", &input, "--to", "gguf", "-o", &out("b.gguf")],
        &["forget", &input, "--to", "nf4", "-o", &out("c.safetensors")],
        &[
            "convert",
            &input,
            "--to",
            "bnb-nf4",
            "-o",
            &out("d.safetensors"),
        ],
    ] {
        let plan = valid("conversion", &[arguments, &["--dry-run"]].concat());
        assert!(plan["seconds"].is_null());
        let done = valid("conversion", arguments);
        assert_eq!(done["input"], input.as_str());
        assert_eq!(done["output"], *arguments.last().unwrap());
        assert_eq!(done["input_bytes"], 65538);
        let written = std::fs::metadata(arguments.last().unwrap()).unwrap().len();
        assert_eq!(done["output_bytes"], written);
        assert!(
            done["seconds"].as_f64().unwrap() > 0.0
                && done["gb_per_second"].as_f64().unwrap() > 0.0
        );
        let encodes =
            arguments.last().unwrap().ends_with("c.safetensors") || arguments.contains(&"bnb-nf4");
        assert_eq!(done["scheme"].is_string(), encodes, "{arguments:?}");
        assert_eq!(done["files"][0], done["output"]);
    }
}

#[test]
fn errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.safetensors");
    std::fs::write(
        &path,
        file(&[raw("x.weight_scale", "F32", &[], f32s(&[1.0]))], &[]),
    )
    .unwrap();
    let input = path.to_str().unwrap();
    let failed = |arguments: &[&str], code| {
        let output = amn(&[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(output.stdout.is_empty());
        assert_valid(&output.stderr, "error", &format!("{arguments:?}"))
    };
    for command in ["remember", "show"] {
        let error = failed(&[command, input], 3);
        assert_eq!(error["kind"], "parse");
        assert_eq!(error["tensor"], "x.weight_scale");
        assert_eq!(error["file"], input);
    }
    let missing = directory
        .path()
        .join("missing")
        .to_string_lossy()
        .into_owned();
    for command in ["parse", "ls", "show", "inspect", "scan", "remember"] {
        let error = failed(&[command, &missing], 7);
        assert_eq!(
            (&error["kind"], &error["file"]),
            (&"io".into(), &missing.as_str().into())
        );
        assert!(error["message"].as_str().unwrap().contains("No such file"));
    }
    // The file that the system refused is the output.
    let out = directory
        .path()
        .join("none/out.safetensors")
        .to_string_lossy()
        .into_owned();
    let error = failed(
        &["remember", &at("demo/model-fp8.safetensors"), "-o", &out],
        7,
    );
    assert!(error["file"].as_str().unwrap().contains("none"), "{error}");
    let error = failed(&["inspect", &at("pth/attack_eval.pt")], 5);
    assert_eq!(error["kind"], "disallowed_global");
}
