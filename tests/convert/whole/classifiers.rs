//! Encoders whose output is a classifier, which llama.cpp makes rerankers.

use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, ConvertTarget, ModelScope, TargetDtype, parse};
use serde_json::{Value, json};

use super::{Tensors, copy, json as read_json, models, tensors, to_gguf, write};
use crate::canonical::canonical_gguf;
use crate::common::data;

/// The directories of `tests/data/whole` whose class is one of classifiers.
fn classifiers() -> Vec<PathBuf> {
    let is_one = |model: &PathBuf| {
        let config = read_json(&model.join("hf/config.json"));
        let class = config["architectures"][0].as_str().unwrap_or_default();
        class.ends_with("ForSequenceClassification")
    };
    let all: Vec<_> = models().into_iter().filter(is_one).collect();
    assert!(all.len() >= 5);
    all
}

/// A copy of `model` with another config and other tensors.
fn changed(
    model: &Path,
    directory: &Path,
    change: impl FnOnce(&mut Value, Tensors) -> Tensors,
) -> PathBuf {
    let to = directory.join("changed");
    copy(&model.join("hf"), &to);
    let mut config = read_json(&to.join("config.json"));
    let all = change(&mut config, tensors(&to));
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    write(&all, &to);
    to
}

fn refusal(model: &Path, directory: &Path) -> String {
    let output = directory.join("refused.gguf");
    let converted = parse(model).unwrap().convert(&output, ConvertTarget::Gguf);
    assert!(!output.exists());
    converted.unwrap_err().to_string()
}

/// Published checkpoints have the names of the model without its classifier in front, or do not.
#[test]
fn names_without_their_first_part() {
    for model in classifiers() {
        let directory = crate::common::tempdir().unwrap();
        let short = changed(&model, directory.path(), |_, all| {
            let short = |name: &str| {
                let parts = ["bert.", "roberta.", "distilbert.", "model."];
                let short = parts.iter().find_map(|part| name.strip_prefix(part));
                short.unwrap_or(name).to_owned()
            };
            all.into_iter().map(|(name, t)| (short(&name), t)).collect()
        });
        let expected = tensors(&canonical_gguf(&model));
        let found = tensors(&to_gguf(&short, directory.path()));
        assert!(found == expected, "{}", model.display());
    }
}

/// llama.cpp takes the model for one of one class then, and does not load two rows.
#[test]
fn names_of_classes_are_needed() {
    for model in classifiers() {
        for labels in [None, Some(json!({"0": "LABEL_0", "1": "LABEL_1"}))] {
            let directory = crate::common::tempdir().unwrap();
            let unnamed = changed(&model, directory.path(), |config, all| {
                let fields = config.as_object_mut().unwrap();
                fields.remove("id2label");
                fields.extend(labels.map(|labels| ("id2label".to_owned(), labels)));
                all
            });
            let error = refusal(&unnamed, directory.path());
            assert!(error.contains("id2label"), "{}: {error}", model.display());
        }
    }
}

/// What is said where llama.cpp computes other scores, to GGUF and back.
#[test]
fn other_scores_are_noted() {
    let said = [("bert_rank", "pooler"), ("distilbert_rank", "ReLU")];
    for model in classifiers() {
        let directory = crate::common::tempdir().unwrap();
        let name = model.file_name().unwrap().to_str().unwrap();
        let gguf = directory.path().join("model.gguf");
        let there = parse(model.join("hf")).unwrap();
        let there = there.convert(&gguf, ConvertTarget::Gguf).unwrap();
        let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
        let back = parse(&gguf).unwrap();
        let back = back
            .convert(directory.path().join("back"), options)
            .unwrap();
        for notes in [there.notes, back.notes] {
            let has = |part: &str| notes.iter().any(|note| note.contains(part));
            let expected = said.iter().find(|(known, _)| *known == name);
            match expected {
                Some((_, part)) => assert!(has("scores") && has(part), "{name}: {notes:?}"),
                None => assert!(!has("scores"), "{name}: {notes:?}"),
            }
        }
    }
}

#[test]
fn what_llama_cpp_has_otherwise_is_refused() {
    let modern = data().join("whole/modern_bert_rank");
    let directory = crate::common::tempdir().unwrap();
    let other = changed(&modern, directory.path(), |config, all| {
        config["classifier_activation"] = "relu".into();
        all
    });
    let error = refusal(&other, directory.path());
    assert!(error.contains("classifier_activation"), "{error}");
    let directory = crate::common::tempdir().unwrap();
    let with_bias = changed(&modern, directory.path(), |config, mut all| {
        config["classifier_bias"] = true.into();
        let bias = all["head.norm.weight"].clone();
        all.insert("head.dense.bias".to_owned(), bias);
        all
    });
    let error = refusal(&with_bias, directory.path());
    assert!(error.contains("head.dense.bias"), "{error}");
    // Of a classifier that the checkpoint lacks nothing is made up.
    let directory = crate::common::tempdir().unwrap();
    let without = changed(&modern, directory.path(), |_, mut all| {
        all.retain(|name, _| !name.starts_with("classifier."));
        all
    });
    let error = refusal(&without, directory.path());
    assert!(error.contains("`classifier` or `cls.output`"), "{error}");
}
