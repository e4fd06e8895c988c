//! Rerankers of Qwen 3, which llama.cpp's converter knows by names and cards.

use std::path::{Path, PathBuf};

use anamnesis::{ConvertTarget, GgufMetadataValue, parse};
use serde_json::{Value, json};

use super::{Tensors, check_metadata, copy, json, metadata, tensors, to_gguf, to_hf, write};
use crate::common::data;

const EMBEDDING: &str = "model.embed_tokens.weight";

/// Changes `config.json` or another file of `directory`.
fn edit(directory: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let mut value = json(&directory.join(file));
    change(&mut value);
    std::fs::write(directory.join(file), value.to_string()).unwrap();
}

/// A directory called `name` with Qwen 3, whose tokenizer has the answers of a reranker.
fn model(name: &str, directory: &Path) -> PathBuf {
    let to = directory.join(name);
    copy(&data().join("whole/qwen3/hf"), &to);
    edit(&to, "tokenizer.json", |tokenizer| {
        tokenizer["model"]["vocab"]["yes"] = 284.into();
        tokenizer["model"]["vocab"]["no"] = 285.into();
    });
    to
}

/// Changes the tensors of `model`.
fn with(model: &Path, change: impl FnOnce(Tensors) -> Tensors) {
    write(&change(tensors(model)), model);
}

/// Gives `model` an output of its own: the embedding with its rows in reverse order.
fn with_output(model: &Path) {
    with(model, |mut all| {
        let (dtype, shape, bytes) = all[EMBEDDING].clone();
        let rows: Vec<_> = bytes.chunks(shape[1] * 2).rev().collect();
        all.insert("lm_head.weight".to_owned(), (dtype, shape, rows.concat()));
        all
    });
}

/// The model of a file of `whole_rerankers`, as the script that made it has it.
fn made(name: &str, directory: &Path) -> PathBuf {
    match name {
        "tied" => model("Qwen3-Reranker-tiny", directory),
        "untied" => {
            let made = model("other", directory);
            with_output(&made);
            edit(&made, "config.json", |config| {
                config["tie_word_embeddings"] = false.into();
            });
            std::fs::write(made.join("README.md"), "text\n# Qwen3-Reranker-4B\n").unwrap();
            made
        }
        "base" => {
            let made = model("qwen3-reranker-base", directory);
            let short = |name: String| name.replacen("model.", "", 1);
            with(&made, |all| all.into_iter().map(|(name, t)| (short(name), t)).collect());
            edit(&made, "config.json", |config| {
                config["architectures"] = json!(["Qwen3Model"]);
            });
            made
        }
        _ => {
            let made = model("Qwen3-VL-Reranker-tiny", directory);
            let long = |name: String| name.replacen("model.", "model.language_model.", 1);
            with(&made, |all| all.into_iter().map(|(name, t)| (long(name), t)).collect());
            let config = data().join("whole_nested/qwen3_vl.json");
            std::fs::copy(config, made.join("config.json")).unwrap();
            made
        }
    }
}

const CASES: [&str; 4] = ["tied", "untied", "base", "vl"];

#[test]
fn rerankers_are_those_of_llama_cpp() {
    for name in CASES {
        let directory = crate::common::tempdir().unwrap();
        let found = to_gguf(&made(name, directory.path()), directory.path());
        let expected = data().join(format!("whole_rerankers/{name}.gguf"));
        assert!(tensors(&found) == tensors(&expected), "{name}");
        check_metadata(metadata(&found), &expected);
    }
}

/// A file comes back as the class of transformers that gives scores of two classes, and that
/// becomes the same file again, whatever the directory is called.
#[test]
fn rerankers_come_back_as_classifiers() {
    for name in CASES {
        let directory = crate::common::tempdir().unwrap();
        let canonical = data().join(format!("whole_rerankers/{name}.gguf"));
        let back = to_hf(&canonical, directory.path());
        let config = json(&back.join("config.json"));
        let class = "Qwen3ForSequenceClassification";
        assert_eq!(config["architectures"], json!([class]));
        assert_eq!(config["id2label"], json!({"0": "yes", "1": "no"}));
        let (stored, first) = (tensors(&back), tensors(&canonical));
        assert!(stored["score.weight"] == first["cls.output.weight"]);
        assert!(!stored.contains_key("lm_head.weight"));
        let again = to_gguf(&back, directory.path());
        assert!(tensors(&again) == first, "{name}");
        let settings = |path: &Path| {
            let mut all = metadata(path);
            all.retain(|key, _| key.starts_with("qwen3") || key.contains("template"));
            all
        };
        if name != "vl" {
            assert_eq!(settings(&again), settings(&canonical), "{name}");
        }
    }
}

/// By whatever says that a model is a reranker.
#[test]
fn signs_of_rerankers() {
    let pooling = |made: &Path, directory: &Path| {
        let found = metadata(&to_gguf(made, directory));
        found.get("qwen3.pooling_type").cloned()
    };
    let ranks = Some(GgufMetadataValue::U32(4));
    let directory = crate::common::tempdir().unwrap();
    let plain = model("plain", directory.path());
    assert_eq!(pooling(&plain, directory.path()), None);
    edit(&plain, "config.json", |config| {
        config["_name_or_path"] = "Qwen/Qwen3-Reranker-8B".into();
    });
    assert_eq!(pooling(&plain, directory.path()), ranks);
    // Of another family the name says nothing.
    let other = directory.path().join("qwen3-reranker-not");
    copy(&data().join("whole/llama/hf"), &other);
    let found = metadata(&to_gguf(&other, directory.path()));
    assert_eq!(found.get("llama.pooling_type"), None);
}

fn refusal(made: &Path, directory: &Path) -> String {
    let output = directory.join("refused.gguf");
    let converted = parse(made).unwrap().convert(&output, ConvertTarget::Gguf);
    converted.unwrap_err().to_string()
}

#[test]
fn what_is_no_reranker_is_refused() {
    let directory = crate::common::tempdir().unwrap();
    let without_answers = directory.path().join("Qwen3-Reranker-x");
    copy(&data().join("whole/qwen3/hf"), &without_answers);
    let error = refusal(&without_answers, directory.path());
    assert!(error.contains("`yes` and `no`"), "{error}");
    // llama.cpp makes probabilities of the scores.
    let one = model("one", directory.path());
    edit(&one, "config.json", |config| {
        config["architectures"] = json!(["Qwen3ForSequenceClassification"]);
        config["id2label"] = json!({"0": "score"});
    });
    let error = refusal(&one, directory.path());
    assert!(error.contains("id2label"), "{error}");
    let untied = model("qwen3-reranker-untied", directory.path());
    edit(&untied, "config.json", |config| {
        config["tie_word_embeddings"] = false.into();
    });
    let error = refusal(&untied, directory.path());
    assert!(error.contains("lm_head.weight"), "{error}");
}

/// Of an added token that the vocabulary has, the library takes the number of the vocabulary.
#[test]
fn answers_that_are_added_tokens_as_well() {
    let directory = crate::common::tempdir().unwrap();
    let made = made("tied", directory.path());
    edit(&made, "tokenizer.json", |tokenizer| {
        let mut token = tokenizer["added_tokens"][0].clone();
        token["special"] = false.into();
        for (content, id) in [("yes", 286), ("no", 287)] {
            (token["content"], token["id"]) = (content.into(), id.into());
            tokenizer["added_tokens"]
                .as_array_mut()
                .unwrap()
                .push(token.clone());
        }
    });
    let found = tensors(&to_gguf(&made, directory.path()));
    let expected = tensors(&data().join("whole_rerankers/tied.gguf"));
    assert!(found["cls.output.weight"] == expected["cls.output.weight"]);
}
