//! What a GGUF file says of its model and its tokenizer comes back from a directory of Hugging Face.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, ConvertTarget, GgufMetadataArray, GgufMetadataValue, parse};

use super::{some_models, to_gguf, to_hf};
use crate::canonical::canonical_gguf;
use crate::common::data;

/// Keys that are not compared, with the reason.
const OTHERWISE: &[(&str, &str)] = &[
    ("general.file_type", "it follows from the types of the tensors"),
    ("general.quantization_version", "it is that of the program that writes"),
];

/// What the GGUF file at `path` says of its model and its tokenizer.
fn said(path: &Path) -> BTreeMap<String, GgufMetadataValue> {
    let model = parse(path).unwrap();
    let metadata = model.gguf().unwrap().metadata();
    let all = metadata.iter().map(|(key, value)| (key.to_owned(), value));
    let is_compared = |key: &str| {
        let is_said = key.starts_with("general.") || key.starts_with("tokenizer.");
        is_said && OTHERWISE.iter().all(|(other, _)| *other != key)
    };
    all.filter(|(key, _)| is_compared(key)).collect()
}

/// Checks that two files say the same of their model and their tokenizer.
pub fn require_same(first: &Path, second: &Path) {
    require_same_but(first, second, "");
}

/// Checks that two files say the same of their model and their tokenizer, but for the key `key`.
pub fn require_same_but(first: &Path, second: &Path, key: &str) {
    let (mut found, mut expected) = (said(second), said(first));
    found.remove(key);
    expected.remove(key);
    let keys = |map: &BTreeMap<String, _>| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&found), keys(&expected), "{}", first.display());
    for (key, value) in &expected {
        assert!(found[key] == *value, "{}: {key}", first.display());
    }
}

#[test]
fn every_key_comes_back() {
    for model in some_models(2) {
        let directory = crate::common::tempdir().unwrap();
        let canonical = canonical_gguf(&model);
        let again = to_gguf(&to_hf(&canonical, directory.path()), directory.path());
        require_same(&canonical, &again);
    }
}

/// Merges, which only `tokenizer.json` keeps, stand where they stood.
#[test]
fn keys_of_a_tokenizer_keep_their_order() {
    let directory = crate::common::tempdir().unwrap();
    let canonical = canonical_gguf(data().join("whole/llama"));
    let again = to_gguf(&to_hf(&canonical, directory.path()), directory.path());
    let order = |path: &Path| {
        let model = parse(path).unwrap();
        let keys = model.gguf().unwrap().metadata().keys();
        let own = keys.filter(|key| key.starts_with("tokenizer."));
        own.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(order(&again), order(&canonical));
}

fn text(text: &str) -> GgufMetadataValue {
    GgufMetadataValue::String(text.to_owned())
}

/// A file with what the tokenizer's files cannot say: scores of its own, a blank in front of texts,
/// tokens for the middle of a text, a template, and what it says of itself.
fn unusual(directory: &Path) -> PathBuf {
    let canonical = parse(canonical_gguf(data().join("whole/gemma3"))).unwrap();
    let scores = (0..320u16).map(|i| -7.25 - f32::from(i) / 3.0).collect();
    let array = |array| GgufMetadataValue::Array(Box::new(array));
    let tags = vec!["text-generation".to_owned(), "gemma".to_owned()];
    let metadata = [
        ("tokenizer.ggml.scores", array(GgufMetadataArray::F32(scores))),
        ("tokenizer.ggml.add_space_prefix", GgufMetadataValue::Bool(true)),
        ("tokenizer.ggml.fim_pre_token_id", GgufMetadataValue::U32(9)),
        ("tokenizer.ggml.suppress_tokens", array(GgufMetadataArray::I32(vec![3, 5]))),
        ("tokenizer.chat_template", text("{{ messages }}")),
        ("general.name", text("A Name")),
        ("general.license", text("gemma")),
        ("general.organization", text("Somebody")),
        ("general.tags", array(GgufMetadataArray::String(tags))),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value));
    let output = directory.join("first.gguf");
    let options = ConvertOptions::from(ConvertTarget::Gguf).with_gguf_metadata(metadata.into());
    canonical.convert(&output, options).unwrap();
    output
}

#[test]
fn what_no_file_of_a_tokenizer_can_say_comes_back() {
    let directory = crate::common::tempdir().unwrap();
    let first = unusual(directory.path());
    let back = to_hf(&first, directory.path());
    require_same(&first, &to_gguf(&back, directory.path()));
    // A template that was edited counts, and the vocabulary is still that of the file.
    std::fs::write(back.join("chat_template.jinja"), "{{ edited }}").unwrap();
    let config = back.join("tokenizer_config.json");
    let edited = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, edited.replace("{{ messages }}", "{{ edited }}")).unwrap();
    let (second, expected) = (to_gguf(&back, directory.path()), said(&first));
    let found = said(&second);
    assert_eq!(found["tokenizer.chat_template"], text("{{ edited }}"));
    for key in ["scores", "tokens", "token_type", "add_space_prefix"] {
        let key = format!("tokenizer.ggml.{key}");
        assert!(found[&key] == expected[&key], "{key}");
    }
    assert!(!found.contains_key("tokenizer.ggml.fim_pre_token_id"));
    assert_eq!(found["general.license"], text("gemma"));
}

#[test]
fn a_vocabulary_that_has_changed_is_converted_anew() {
    let directory = crate::common::tempdir().unwrap();
    let first = unusual(directory.path());
    let back = to_hf(&first, directory.path());
    let json = back.join("tokenizer.json");
    let edited = std::fs::read_to_string(&json).unwrap();
    std::fs::write(&json, edited + "\n").unwrap();
    let output = directory.path().join("second.gguf");
    let report = parse(&back)
        .unwrap()
        .convert(&output, ConvertTarget::Gguf)
        .unwrap();
    let notes = report.notes.join("\n");
    assert!(notes.contains("gguf_metadata.json: tokenizer.json has changed since"), "{notes}");
    let (found, expected) = (said(&output), said(&first));
    assert!(found["tokenizer.ggml.scores"] != expected["tokenizer.ggml.scores"]);
    assert_eq!(found["general.license"], text("gemma"));
}

#[test]
fn a_file_that_is_malformed_is_refused() {
    let directory = crate::common::tempdir().unwrap();
    let back = to_hf(&unusual(directory.path()), directory.path());
    let kept = back.join("gguf_metadata.json");
    let whole = std::fs::read_to_string(&kept).unwrap();
    let output = directory.path().join("second.gguf");
    for text in [
        whole[..whole.len() / 2].to_owned(),
        "{}".to_owned(),
        whole.replace("\"tokenizer.ggml.tokens\"", "\"tokenizer.ggml.words\""),
        whole.replace("\"f32\"", "\"f33\""),
    ] {
        std::fs::write(&kept, text).unwrap();
        let error = parse(&back)
            .unwrap()
            .convert(&output, ConvertTarget::Gguf)
            .unwrap_err();
        assert!(error.to_string().contains("gguf_metadata.json: "), "{error}");
        assert!(error.to_string().contains("delete it"), "{error}");
    }
    // Of another architecture it says nothing of this model.
    std::fs::write(&kept, whole.replace("\"gemma3\"", "\"gemma2\"")).unwrap();
    assert!(said(&to_gguf(&back, directory.path()))["general.name"] != text("A Name"));
}
