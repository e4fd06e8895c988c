//! Image towers of multimodal models, against llama.cpp's converter.

use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, ConvertTarget, GgufMetadataValue, ModelScope, TargetDtype, parse};
use serde_json::Value;

use super::{Tensors, check_metadata, copy, json as read_json, metadata, tensors, write};
use crate::canonical::{canonical_gguf, restored};
use crate::common::{data, effort};

fn towers() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data().join("towers")).unwrap();
    let mut all: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    assert!(all.len() >= 16);
    all
}

fn options() -> ConvertOptions {
    ConvertOptions::new(ConvertTarget::Gguf).with_scope(ModelScope::ImageTower)
}

/// Writes the tower of the directory `from` to a file in `directory`.
fn to_mmproj(from: &Path, directory: &Path, options: ConvertOptions) -> PathBuf {
    let output = directory.join("mmproj.gguf");
    parse(from).unwrap().convert(&output, options).unwrap();
    output
}

#[test]
fn towers_are_those_of_llama_cpp() {
    let files =
        [("canonical", None), ("f16", Some(TargetDtype::F16)), ("f32", Some(TargetDtype::F32))];
    for (model, (file, dtype)) in towers().iter().flat_map(|m| files.map(|f| (m, f))) {
        let sums = model.join(file).with_extension("sums");
        if !sums.exists() {
            assert_ne!(file, "canonical", "{}", model.display());
            continue;
        }
        let canonical = restored(&sums);
        let mut options = options();
        if let Some(dtype) = dtype {
            options.decode = true;
            options.run.to = dtype;
        }
        let directory = crate::common::tempdir().unwrap();
        let output = to_mmproj(&model.join("hf"), directory.path(), options);
        let (found, expected) = (tensors(&output), tensors(&canonical));
        let names = |tensors: &Tensors| tensors.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&expected), "{}", canonical.display());
        for (name, tensor) in &expected {
            assert!(found[name] == *tensor, "{} `{name}`", canonical.display());
        }
        let mut metadata = metadata(&output);
        // The converter leaves it out, so that llama.cpp computes another function than
        // transformers.
        if file_name(model).starts_with("gemma4") {
            assert!(metadata.remove("clip.use_gelu") == Some(GgufMetadataValue::Bool(true)));
        }
        check_metadata(metadata, &canonical);
    }
}

fn file_name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// Edits that llama.cpp would compute otherwise, or could not load: the model, the place in
/// `config.json` (or the whole of `preprocessor_config.json`), its new value, and words of the
/// error.
const EDITS: &str = include_str!("towers.jsonl");

#[test]
fn what_llama_cpp_computes_otherwise_is_refused() {
    for line in EDITS.lines() {
        type Edit = (String, String, Value, Vec<String>);
        let (model, pointer, value, words): Edit = serde_json::from_str(line).unwrap();
        let directory = crate::common::tempdir().unwrap();
        let from = directory.path().join("hf");
        copy(&data().join("towers").join(&model).join("hf"), &from);
        let path = match pointer.as_str() {
            "/preprocessor" => from.join("preprocessor_config.json"),
            _ => from.join("config.json"),
        };
        let mut config = read_json(&path);
        match pointer.as_str() {
            "/preprocessor" => config = value,
            _ => set(&mut config, &pointer, value),
        }
        std::fs::write(&path, config.to_string()).unwrap();
        let what = format!("{model} {pointer}");
        let output = directory.path().join("mmproj.gguf");
        let result = parse(&from).unwrap().convert(&output, options());
        let error = result.map(|_| what.clone()).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(&word), "{what}: {error}");
        }
        assert!(!output.exists(), "{what}");
    }
}

/// Sets the value at `pointer`, whose last field may be new.
fn set(config: &mut Value, pointer: &str, value: Value) {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match config.pointer_mut(parent).unwrap() {
        Value::Array(all) => all[field.parse::<usize>().unwrap()] = value,
        parent => parent[field] = value,
    }
}

/// Every tensor of a tower is needed, and none may be more.
#[test]
fn missing_and_unknown_tensors_are_refused() {
    // Another one of so many tensors of each model.
    let step = effort([4, 1, 1]);
    for (number, model) in towers().into_iter().enumerate() {
        let all = tensors(&model.join("hf"));
        let directory = crate::common::tempdir().unwrap();
        let from = directory.path().join("hf");
        copy(&model.join("hf"), &from);
        let try_with = |tensors: &Tensors| {
            write(tensors, &from);
            let output = directory.path().join("mmproj.gguf");
            let result = parse(&from).unwrap().convert(&output, options());
            std::fs::remove_file(output).ok();
            result.map(drop)
        };
        let is_of_tower = |name: &&String| {
            !name.contains("language_model")
                && !name.contains("lm_head")
                && !name.contains("text_model")
        };
        let names = all.keys().filter(is_of_tower);
        for name in names.skip(number % step).step_by(step) {
            let mut some = all.clone();
            some.remove(name);
            assert!(try_with(&some).is_err(), "{} without `{name}`", model.display());
        }
        let mut more = all.clone();
        let (name, tensor) = all.iter().find(|(name, _)| name.contains("0.")).unwrap();
        more.insert(name.replace("0.", "0.other."), tensor.clone());
        assert!(try_with(&more).is_err(), "{} with one more", model.display());
        try_with(&all).unwrap();
    }
}

#[test]
fn towers_are_no_other_outputs() {
    let model = data().join("towers/gemma3");
    let directory = crate::common::tempdir().unwrap();
    let output = directory.path().join("out");
    let refused = |from: &Path, options: ConvertOptions| {
        let result = parse(from).unwrap().convert(&output, options);
        result.map(drop).unwrap_err().to_string()
    };
    let safetensors = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::ImageTower);
    assert!(refused(&model.join("hf"), safetensors).contains("image tower"));
    assert!(refused(&canonical_gguf(&model), options()).contains("image tower"));
}
