//! Every number of a config or of GGUF's metadata replaced by others: an error or a model, and
//! never a panic.

use std::path::Path;

use anamnesis::{ConvertOptions, ConvertTarget, GgufMetadataValue, ModelScope, TargetDtype, parse};
use serde_json::{Value, json};

use super::{models, named};
use crate::canonical::canonical_gguf;

/// What a number becomes.
fn edits(number: u64) -> [u64; 4] {
    [0, number + 1, u64::from(u32::MAX), 1 << 62]
}

/// The paths of all integers below `value`.
fn integers(value: &Value, path: &str, out: &mut Vec<(String, u64)>) {
    match value {
        Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| integers(value, &format!("{path}/{key}"), out)),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .for_each(|(i, value)| integers(value, &format!("{path}/{i}"), out)),
        _ => out.extend(value.as_u64().map(|n| (path.to_owned(), n))),
    }
}

/// Whether `from` becomes GGUF.
fn converts(from: &Path, output: &Path) -> bool {
    let converted = parse(from).and_then(|model| model.convert(output, ConvertTarget::Gguf));
    let is_there = output.exists();
    assert_eq!(converted.is_ok(), is_there);
    if is_there {
        std::fs::remove_file(output).unwrap();
    }
    is_there
}

#[test]
fn numbers_of_configs() {
    let (mut accepted, mut refused) = (0, 0);
    for model in models() {
        let directory = tempfile::tempdir().unwrap();
        let from = named(&model, directory.path());
        let (path, output) = (from.join("config.json"), directory.path().join("out.gguf"));
        let config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let mut all = Vec::new();
        integers(&config, "", &mut all);
        for (field, number) in all {
            for edit in edits(number) {
                let mut config = config.clone();
                *config.pointer_mut(&field).unwrap() = json!(edit);
                std::fs::write(&path, config.to_string()).unwrap();
                match converts(&from, &output) {
                    true => accepted += 1,
                    false => refused += 1,
                }
            }
        }
    }
    println!("{refused} edits of configs refused, {accepted} accepted");
    assert!(refused > 1000 && accepted > 100);
}

#[test]
fn numbers_of_metadata() {
    let (mut accepted, mut refused) = (0, 0);
    for model in models() {
        let directory = tempfile::tempdir().unwrap();
        let [edited, output] = ["edited.gguf", "out"].map(|name| directory.path().join(name));
        let path = canonical_gguf(&model);
        let canonical = parse(&path).unwrap();
        let metadata = canonical.gguf().unwrap().metadata();
        let numbers = metadata.iter().filter_map(|(key, value)| match value {
            GgufMetadataValue::U32(n) => Some((key.to_owned(), n)),
            _ => None,
        });
        for (key, number) in numbers {
            for edit in edits(number.into()).into_iter().flat_map(u32::try_from) {
                let value = GgufMetadataValue::U32(edit);
                let options = ConvertOptions::new(ConvertTarget::Gguf);
                let options = options
                    .with_gguf_metadata(vec![(key.clone(), value)])
                    .with_scope(ModelScope::Tensors);
                if canonical.convert(&edited, options).is_err() {
                    continue;
                }
                let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
                match parse(&edited).and_then(|model| model.convert(&output, options)) {
                    Ok(_) => {
                        accepted += 1;
                        std::fs::remove_dir_all(&output).unwrap();
                    }
                    Err(_) => refused += 1,
                }
            }
        }
    }
    println!("{refused} edits of metadata refused, {accepted} accepted");
    assert!(refused > 800 && accepted > 100);
}
