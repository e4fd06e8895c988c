//! `--json` of every command, validated against the tables of `docs/json.md`.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::amn;
use crate::common::{data, f32s, file, raw};

/// The objects of the page, each as a JSON Schema: a table of fields under a heading is the object
/// of that name, and a table that begins with `object` has the fields of several.
fn schemas() -> HashMap<String, Value> {
    let text = include_str!("../../docs/json.md");
    let mut found: HashMap<String, Value> = HashMap::new();
    let (mut heading, mut columns) = ("", Vec::new());
    for line in text.lines() {
        if let Some(words) = line.strip_prefix('#') {
            heading = words.trim_start_matches('#').trim();
        }
        let Some(row) = line.strip_prefix('|') else {
            columns.clear();
            continue;
        };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if columns.is_empty() {
            columns = cells;
            continue;
        }
        let cell = |name| {
            let column = columns.iter().position(|column| *column == name)?;
            Some(cells[column])
        };
        let (Some(fields), Some(kind)) = (cell("field"), cell("type")) else {
            continue;
        };
        if fields.starts_with("---") {
            continue;
        }
        let empty = || json!({"type": "object", "required": [], "properties": {}});
        let object = found.entry(cell("object").unwrap_or(heading).to_owned());
        let object = object.or_insert_with(empty);
        let is_required = !kind.ends_with(", optional");
        let schema = schema_of(kind.trim_end_matches(", optional"));
        for name in fields.split(", ").map(|name| name.trim_matches('`')) {
            object["properties"][name] = schema.clone();
            if is_required {
                object["required"].as_array_mut().unwrap().push(name.into());
            }
        }
    }
    found
}

/// The schema of a type as the page writes it, such as `list of text` or `number or null`.
fn schema_of(kind: &str) -> Value {
    if let Some(items) = kind.strip_prefix("list of ") {
        return json!({"type": "array", "items": schema_of(items)});
    }
    if let Some(kind) = kind.strip_suffix(" or null") {
        let mut schema = schema_of(kind);
        schema["nullable"] = true.into();
        return schema;
    }
    if kind.starts_with("`\"") {
        let words = kind.split(", ").map(|word| word.trim_matches(['`', '"']));
        return json!({"enum": words.collect::<Vec<_>>()});
    }
    match kind {
        "any" => json!({}),
        "text" => json!({"type": "string"}),
        "integer" | "number" | "boolean" => json!({"type": kind}),
        "object" => json!({"type": "object", "additionalProperties": {}}),
        "number or text" => json!({"type": ["number", "string"]}),
        "text or object" => json!({"type": ["string", "object"], "additionalProperties": {}}),
        object => json!({"$ref": object}),
    }
}

/// What is wrong with `value`. A property that the schema does not have is wrong: every field is
/// documented.
fn wrong(value: &Value, schema: &Value, defs: &HashMap<String, Value>, at: &str) -> Option<String> {
    if value.is_null() && schema.get("nullable").is_some() {
        return None;
    }
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

pub fn assert_valid(text: &[u8], schema: &str, what: &str) -> Value {
    let all = schemas();
    let value: Value = serde_json::from_slice(text).unwrap_or_else(|e| panic!("{what}: {e}"));
    let found = wrong(&value, &all[schema], &all, "");
    assert_eq!(found, None, "{what}");
    value
}

/// The output of a command that must succeed.
fn valid(schema: &str, arguments: &[&str]) -> Value {
    valid_with_code(0, schema, arguments)
}

/// The output of a command that must end with this exit code.
fn valid_with_code(code: i32, schema: &str, arguments: &[&str]) -> Value {
    let output = amn(&[arguments, &["--json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
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
        valid("show", &["show", &path, "--bins", "3", "--slice", "[:1]", "re:.*[a-z].*"]);
        valid("scan", &["scan", &path]);
    }
    let globals = amn(&["inspect", &at("demo/checkpoint.pth"), "--globals", "--json"]);
    let globals: Value = serde_json::from_slice(&globals.stdout).unwrap();
    assert_eq!(globals["globals"][0]["module"], "collections");
    for global in globals["globals"].as_array().unwrap() {
        let all = schemas();
        assert_eq!(wrong(global, &all["global"], &all, ""), None);
    }
}

/// `parse` has the fields of `inspect`, and tensors.
fn valid_without_tensors(path: &str) -> Value {
    let output = amn(&["parse", path, "--json"]);
    let mut parsed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let tensors = parsed.as_object_mut().unwrap().remove("tensors").unwrap();
    let all = schemas();
    for tensor in tensors.as_array().unwrap() {
        assert_eq!(wrong(tensor, &all["tensor"], &all, ""), None);
    }
    assert_valid(&serde_json::to_vec(&parsed).unwrap(), "inspect", path)
}

/// A command that has `--json` and is not in this table fails.
#[test]
fn every_command() {
    let directory = crate::common::tempdir().unwrap();
    let out = directory.path().join("out").to_string_lossy().into_owned();
    let (fp8, gguf) = (at("demo/model-fp8.safetensors"), at("demo/model-q4_k.gguf"));
    let (base, adapter) = (at("adapters/base-q8_0.gguf"), at("adapters/plain.gguf"));
    let lines: &[(&str, &[&str])] = &[
        ("ls", &["ls", &fp8]),
        ("show", &["show", &fp8]),
        ("scan", &["scan", &fp8]),
        ("inspect", &["inspect", &fp8]),
        ("inspected", &["inspect", &fp8, &gguf]),
        ("conversion", &["remember", &fp8, "-o", &out]),
        ("conversion", &["forget", &fp8, "--to", "fp8", "-fo", &out]),
        ("conversion", &["convert", &fp8, "--to", "npz", "-fo", &out]),
        ("conversion", &["merge", &base, &adapter, "-o", &out, "--dry-run"]),
        ("edit", &["edit", &gguf, "--set", "general.name=Tiny", "--dry-run", "-o", &out]),
        ("diff", &["diff", &fp8, &fp8]),
        ("check", &["check", &fp8]),
    ];
    for (schema, line) in lines {
        valid(schema, line);
    }
    valid_without_tensors(&fp8);
    let help = String::from_utf8(amn(&["--help"]).stdout).unwrap();
    let commands = help.split("Commands:").nth(1).unwrap().lines();
    let commands = commands
        .filter_map(|line| line.strip_prefix("  ")?.split_once(' '))
        .map(|(name, _)| name)
        .filter(|name| name.starts_with(char::is_alphabetic) && *name != "amn");
    for command in commands {
        let help = String::from_utf8(amn(&["help", command]).stdout).unwrap();
        let has_json = help
            .lines()
            .any(|line| line.trim_start().starts_with("--json"));
        let is_tried = command == "parse" || lines.iter().any(|(_, line)| line[0] == command);
        assert_eq!(has_json, is_tried, "{command}");
    }
}

/// Of several inputs each has a line.
#[test]
fn a_line_for_each_input() {
    let directory = crate::common::tempdir().unwrap();
    let out = directory.path().to_string_lossy();
    let (a, b) = (at("demo/model-fp8.safetensors"), at("demo/checkpoint.pth"));
    for more in [&["--dry-run"][..], &[]] {
        let arguments = ["convert", &a, &b, "--to", "npz", "-o", &out, "--json"];
        let output = amn(&[&arguments, more].concat());
        assert_eq!(output.status.code(), Some(0));
        let lines: Vec<&[u8]> = output.stdout.trim_ascii().split(|b| *b == b'\n').collect();
        assert_eq!(lines.len(), 2);
        for (line, input) in lines.into_iter().zip([&a, &b]) {
            let found = assert_valid(line, "conversion", "a line");
            assert_eq!(found["input"], input.as_str());
        }
    }
}

#[test]
fn what_conversions_did() {
    let directory = crate::common::tempdir().unwrap();
    let out = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    let input = at("demo/model-fp8.safetensors");
    for arguments in [
        &["remember", &input, "-o", &out("a.safetensors")][..],
        &["convert", &input, "--to", "gguf", "-o", &out("b.gguf")],
        &["forget", &input, "--to", "nf4", "-o", &out("c.safetensors")],
        &["convert", &input, "--to", "bnb-nf4", "-o", &out("d.safetensors")],
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
fn what_models_differ_in() {
    for name in MODELS {
        let path = at(name);
        let equal = valid("diff", &["diff", &path, &path]);
        assert!(equal["equal"].as_u64().unwrap() > 0, "{equal}");
        assert_eq!(equal["changed"], json!([]));
    }
    let gptq = at("gptq/b4_v1_act_order/model.safetensors");
    let decoded = at("gptq/b4_v1_act_order/expected-bf16.safetensors");
    let found = valid_with_code(1, "diff", &["diff", &gptq, &decoded]);
    let tensor = &found["changed"][0];
    assert_eq!(
        (&tensor["a"]["scheme"], &tensor["b"]["scheme"]),
        (&json!("gptq"), &json!("unquantized"))
    );
    assert!(tensor["values"]["first"]["a"].is_number(), "{tensor}");
    let other = at("demo/model-q4_k.gguf");
    let found = valid_with_code(1, "diff", &["diff", &at(MODELS[0]), &other]);
    for side in ["only_in_a", "only_in_b", "metadata"] {
        assert!(found[side][0].is_object(), "{side}: {found}");
    }
    let found = valid_with_code(1, "diff", &["diff", &at("adapters/base"), &at(MODELS[5])]);
    assert!(found["config"][0].is_object(), "{found}");
}

/// Values that JSON has no numbers for, shapes that differ, and codes that are compared as bytes.
#[test]
fn values_that_are_no_numbers() {
    let directory = crate::common::tempdir().unwrap();
    let save = |name: &str, values: [f32; 2], shape: &[usize], code: u8| {
        let path = directory.path().join(name);
        let tensors = [
            raw("infinite", "F32", &[1], f32s(&values[..1])),
            raw("nan", "F32", &[1], f32s(&values[1..])),
            raw("code", "F8_E8M0", &[1], vec![code]),
            raw("shape", "F32", shape, f32s(&[1.0, 2.0])),
        ];
        std::fs::write(&path, file(&tensors, &[])).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let a = save("a.safetensors", [f32::INFINITY, f32::NAN], &[1, 2], 1);
    let b = save("b.safetensors", [f32::NEG_INFINITY, 1.0], &[2], 2);
    let found = valid_with_code(1, "diff", &["diff", &a, &b]);
    let values = |name: &str| {
        let mut changed = found["changed"].as_array().unwrap().iter();
        &changed.find(|t| t["name"] == name).unwrap()["values"]
    };
    let first = |a: Value, b: Value| json!({"index": [0], "a": a, "b": b});
    let infinite = first(json!("Infinity"), json!("-Infinity"));
    assert_eq!(values("infinite")["first"], infinite);
    assert_eq!(values("nan")["first"], first(json!("NaN"), json!(1.0)));
    assert_eq!(values("code")["first"], first(json!(1), json!(2)));
    assert_eq!(values("code")["max_abs"], Value::Null);
    assert_eq!(*values("shape"), Value::Null);
}

#[test]
fn what_is_wrong_with_models() {
    for name in MODELS {
        let found = valid("check", &["check", "--data", &at(name)]);
        assert_eq!(found["models"][0]["findings"], json!([]), "{name}");
    }
    let hostile = at("gptq/b4_v1_hostile_f16/model.safetensors");
    let found = valid_with_code(1, "check", &["check", "--data", &hostile]);
    let finding = &found["models"][0]["findings"][0];
    assert_eq!((&finding["severity"], &finding["file"]), (&json!("error"), &json!(hostile)));
    assert!(finding["tensor"].is_string(), "{finding}");
    // A model that cannot be parsed has an object as well.
    let text = at("README.md");
    let found = valid_with_code(6, "check", &["check", &at(MODELS[0]), &text]);
    let unreadable = &found["models"][1];
    assert_eq!((&unreadable["path"], &unreadable["container"]), (&json!(text), &Value::Null));
}

/// A path that is not UTF-8 has `U+FFFD` in place of what is not.
#[cfg(target_os = "linux")]
#[test]
fn paths_that_are_not_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let directory = crate::common::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"m\xff.safetensors");
    let path = directory.path().join(name);
    let tensors = [raw("x", "F32", &[1], f32s(&[f32::NAN]))];
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_amn"))
        .args(["check", "--data", "--json"])
        .arg(&path)
        .output()
        .unwrap();
    let found = assert_valid(&output.stdout, "check", "a path that is not UTF-8");
    let expected = json!(path.to_string_lossy());
    assert_eq!(
        (&found["models"][0]["path"], &found["models"][0]["findings"][0]["file"]),
        (&expected, &expected)
    );
}

/// Of two models, an error is about the one that cannot be parsed or decoded.
#[test]
fn errors_of_several_models() {
    let directory = crate::common::tempdir().unwrap();
    let orphan = directory.path().join("orphan.safetensors");
    let tensors = [raw("x.weight_scale", "F32", &[], f32s(&[1.0]))];
    std::fs::write(&orphan, file(&tensors, &[])).unwrap();
    let orphan = orphan.to_str().unwrap();
    let (good, text) = (at("demo/model-fp8.safetensors"), at("README.md"));
    for (command, a, b, file, code) in [
        ("diff", &*good, &*text, &*text, 6),
        ("diff", &*text, &*good, &*text, 6),
        ("diff", &*good, orphan, orphan, 3),
        ("diff", &*good, "missing", "missing", 7),
        ("check", &*good, &*text, &*text, 6),
        ("check", &*good, "missing", "missing", 7),
    ] {
        let output = amn(&[command, a, b, "--json"]);
        assert_eq!(output.status.code(), Some(code), "{command} {a} {b}");
        let error = assert_valid(&output.stderr, "error", command);
        assert_eq!(error["file"], file, "{command} {a} {b}");
        let output = amn(&[command, a, b]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            error.starts_with(&format!("error: {file}: ")) && error.matches(file).count() == 1,
            "{command} {a} {b}: {error}"
        );
    }
}

#[test]
fn errors() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.safetensors");
    std::fs::write(&path, file(&[raw("x.weight_scale", "F32", &[], f32s(&[1.0]))], &[])).unwrap();
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
        assert_eq!((&error["kind"], &error["file"]), (&"io".into(), &missing.as_str().into()));
        assert!(error["message"].as_str().unwrap().contains("No such file"));
    }
    // The file that the system refused is the output.
    let out = directory
        .path()
        .join("none/out.safetensors")
        .to_string_lossy()
        .into_owned();
    let error = failed(&["remember", &at("demo/model-fp8.safetensors"), "-o", &out], 7);
    assert!(error["file"].as_str().unwrap().contains("none"), "{error}");
    let error = failed(&["inspect", &at("pth/attack_eval.pt")], 5);
    assert_eq!(error["kind"], "disallowed_global");
}
