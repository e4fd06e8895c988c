//! Every number of a config or of GGUF's metadata replaced by others: an error or a model, and
//! never a panic.

use std::path::Path;

use anamnesis::{ConvertOptions, ConvertTarget, GgufMetadataValue, ModelScope, TargetDtype, parse};
use serde_json::{Value, json};

use super::{models, named};
use crate::canonical::canonical_gguf;
use crate::common::effort;

/// One of so many edits is tried, another one of each model.
fn stride() -> usize {
    effort([48, 8, 1])
}

/// What the numbers, each under its name, become: the edits of the model `at` that are tried.
fn edits<K: Clone>(numbers: Vec<(K, u64)>, at: usize) -> impl Iterator<Item = (K, u64)> {
    let edits = |(name, number): (K, u64)| {
        let edits = [0, number + 1, u64::from(u32::MAX), 1 << 62];
        edits.map(|edit| (name.clone(), edit))
    };
    let all = numbers.into_iter().flat_map(edits);
    all.skip(at % stride()).step_by(stride())
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
    for (at, model) in models().into_iter().enumerate() {
        let directory = crate::common::tempdir().unwrap();
        let from = named(&model, directory.path());
        let (path, output) = (from.join("config.json"), directory.path().join("out.gguf"));
        let config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let mut all = Vec::new();
        integers(&config, "", &mut all);
        for (field, edit) in edits(all, at) {
            let mut config = config.clone();
            *config.pointer_mut(&field).unwrap() = json!(edit);
            std::fs::write(&path, config.to_string()).unwrap();
            match converts(&from, &output) {
                true => accepted += 1,
                false => refused += 1,
            }
        }
    }
    println!("{refused} edits of configs refused, {accepted} accepted");
    assert!(refused > 1000 / stride() && accepted > 100 / stride());
}

#[test]
fn numbers_of_metadata() {
    let (mut accepted, mut refused) = (0, 0);
    for (at, model) in models().into_iter().enumerate() {
        let directory = crate::common::tempdir().unwrap();
        let [edited, output] = ["edited.gguf", "out"].map(|name| directory.path().join(name));
        let path = canonical_gguf(&model);
        let canonical = parse(&path).unwrap();
        let metadata = canonical.gguf().unwrap().metadata();
        let numbers = metadata.iter().filter_map(|(key, value)| match value {
            GgufMetadataValue::U32(n) => Some((key.to_owned(), n.into())),
            _ => None,
        });
        for (key, edit) in edits(numbers.collect(), at) {
            let Ok(edit) = u32::try_from(edit) else {
                continue;
            };
            let value = GgufMetadataValue::U32(edit);
            let options = ConvertOptions::new(ConvertTarget::Gguf);
            let options = options
                .with_gguf_metadata(vec![(key, value)])
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
    println!("{refused} edits of metadata refused, {accepted} accepted");
    assert!(refused > 800 / stride() && accepted > 100 / stride());
}
