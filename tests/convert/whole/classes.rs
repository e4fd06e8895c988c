//! Models of `tests/data/whole_classes.jsonl`: classes of which no weights are stored, against
//! llama.cpp's converter.

use std::collections::BTreeMap;
use std::path::Path;

use anamnesis::{ConvertOptions, ConvertTarget, GgufMetadataArray, GgufMetadataValue, parse};
use serde_json::{Value, json as value};

use super::refused::set;
use super::{OTHERWISE, Tensors, json, metadata, tensors, to_gguf, to_hf};
use crate::canonical::canonical_gguf;
use crate::common::{data, effort};
use crate::whole_mlx::{bytes_of, write_hf};

/// All models, by name.
pub(super) fn models() -> BTreeMap<String, Value> {
    let text = std::fs::read_to_string(data().join("whole_classes.jsonl")).unwrap();
    let model = |line| {
        let model: Value = serde_json::from_str(line).unwrap();
        (model["name"].as_str().unwrap().to_owned(), model)
    };
    let all: BTreeMap<_, _> = text.lines().map(model).collect();
    assert!(all.len() > 60, "{}", all.len());
    all
}

/// In the gate all models, otherwise a third of them, other ones for another `part`.
fn some_models(part: usize) -> impl Iterator<Item = (String, Value)> {
    let step = effort([3, 1, 1]);
    models().into_iter().skip(part % step).step_by(step)
}

/// The directory of the model `found` in `directory`, whose tokenizer is that of another one.
pub(super) fn written(found: &Value, directory: &Path) -> std::path::PathBuf {
    let to = directory.join("model");
    write_hf(found, &to);
    let like = data()
        .join("whole")
        .join(found["tokenizer"].as_str().unwrap());
    let mut owner = to.clone();
    if found["target"].is_object() {
        owner = directory.join(TARGET);
        std::fs::create_dir(&owner).unwrap();
        std::fs::write(owner.join("config.json"), found["target"].to_string()).unwrap();
    }
    copy_tokenizer(&like.join("hf"), &owner);
    let tokens = found.get("tokens").and_then(Value::as_object);
    for (old, new) in tokens.into_iter().flatten() {
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            let text = std::fs::read_to_string(owner.join(file)).unwrap();
            std::fs::write(owner.join(file), text.replace(old, new.as_str().unwrap())).unwrap();
        }
    }
    let files = found.get("files").and_then(Value::as_object);
    for (name, content) in files.into_iter().flatten() {
        let path = to.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = content
            .as_str()
            .map_or_else(|| content.to_string(), str::to_owned);
        std::fs::write(path, text).unwrap();
    }
    to
}

/// Directory of the target of a draft, beside that of the draft.
pub(super) const TARGET: &str = "target";

/// The options to convert a model that [`written`] has made in `directory`.
pub(super) fn options(directory: &Path) -> ConvertOptions {
    let mut options = ConvertOptions::new(ConvertTarget::Gguf);
    options.base = Some(directory.join(TARGET)).filter(|target| target.is_dir());
    options
}

/// Converts a model that [`written`] has made in `directory`.
pub(super) fn converted(found: &Value, directory: &Path) -> std::path::PathBuf {
    let output = directory.join("model.gguf");
    let model = parse(written(found, directory)).unwrap();
    model.convert(&output, options(directory)).unwrap();
    output
}

/// Copies what is neither weights nor a config of the model, with the directories below.
fn copy_tokenizer(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            std::fs::create_dir_all(to.join(&name)).unwrap();
            for below in std::fs::read_dir(entry.path()).unwrap() {
                let below = below.unwrap();
                std::fs::copy(below.path(), to.join(&name).join(below.file_name())).unwrap();
            }
        } else if !["config.json", "generation_config.json", "model.safetensors"]
            .contains(&name.as_str())
        {
            std::fs::copy(entry.path(), to.join(name)).unwrap();
        }
    }
}

/// A value of GGUF of a type that gguf-py names.
pub(super) fn value(stored: &Value) -> GgufMetadataValue {
    let [kind, value] = &stored.as_array().unwrap()[..] else {
        panic!("{stored}")
    };
    fn all<T>(list: &Value, one: impl Fn(&Value) -> Option<T>) -> Vec<T> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|x| one(x).unwrap())
            .collect()
    }
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let float = |value: &Value| value.as_f64().map(|x| x as f32);
    let int = |value: &Value| value.as_i64().and_then(|n| i32::try_from(n).ok());
    let array = match kind.as_str().unwrap() {
        "UINT32" => return GgufMetadataValue::U32(value.as_u64().unwrap() as u32),
        "FLOAT32" => return GgufMetadataValue::F32(float(value).unwrap()),
        "BOOL" => return GgufMetadataValue::Bool(value.as_bool().unwrap()),
        "STRING" => return GgufMetadataValue::String(text(value).unwrap()),
        "ARRAY INT32" => GgufMetadataArray::I32(all(value, int)),
        "ARRAY UINT64" => GgufMetadataArray::U64(all(value, Value::as_u64)),
        "ARRAY FLOAT32" => GgufMetadataArray::F32(all(value, float)),
        "ARRAY BOOL" => GgufMetadataArray::Bool(all(value, Value::as_bool)),
        "ARRAY STRING" => GgufMetadataArray::String(all(value, text)),
        kind => panic!("{kind}"),
    };
    GgufMetadataValue::Array(Box::new(array))
}

/// The metadata that the converter writes of the model `found`.
fn expected_keys(found: &Value) -> BTreeMap<String, GgufMetadataValue> {
    let like = data()
        .join("whole")
        .join(found["tokenizer"].as_str().unwrap());
    let mut keys = metadata(&canonical_gguf(like));
    keys.retain(|key, _| key.starts_with("tokenizer."));
    for (key, stored) in found["keys"].as_object().unwrap() {
        match stored {
            Value::Null => keys.remove(key),
            stored => keys.insert(key.clone(), value(stored)),
        };
    }
    keys
}

/// Dtype, shape and CRC-32 of each tensor, as they are stored.
pub(super) fn described(tensors: &Tensors) -> BTreeMap<String, String> {
    let one = |(name, (dtype, shape, bytes)): (&String, &super::Tensor)| {
        let shape: Vec<_> = shape.iter().map(ToString::to_string).collect();
        let sum = crc32fast::hash(bytes);
        (name.clone(), format!("{dtype} {} {sum:08x}", shape.join("x")))
    };
    tensors.iter().map(one).collect()
}

#[test]
fn classes_are_those_of_llama_cpp() {
    let mut wrong = Vec::new();
    for (name, found) in some_models(0) {
        let directory = crate::common::tempdir().unwrap();
        let output = directory.path().join("model.gguf");
        let model = parse(written(&found, directory.path())).unwrap();
        if let Err(error) = model.convert(&output, options(directory.path())) {
            wrong.push(format!("{name}: {error}"));
            continue;
        }
        let mut keys = metadata(&output);
        for key in OTHERWISE.iter().chain(&["general.size_label"]) {
            keys.remove(*key);
        }
        let mut expected = expected_keys(&found);
        // The converter takes tokens for normal ones that are special here (`metadata_is_that_of_llama_cpp`).
        if found["tokenizer"] == "gemma4" {
            keys.remove("tokenizer.ggml.token_type");
            expected.remove("tokenizer.ggml.token_type");
        }
        for (key, stored) in found["here"].as_object().into_iter().flatten() {
            expected.insert(key.clone(), value(stored));
        }
        for (key, value) in keys {
            match expected.remove(&key) {
                Some(other) if other == value => {}
                other => wrong.push(format!("{name} `{key}`: {value:?} for {other:?}")),
            }
        }
        wrong.extend(
            expected
                .into_iter()
                .map(|(key, value)| format!("{name} no `{key}`: {value:?}")),
        );
        let found_tensors = described(&tensors(&output));
        let stored = found["tensors"].as_object().unwrap();
        let is_other = |name: &String| {
            found["other_values"]
                .as_array()
                .is_some_and(|all| all.iter().any(|other| other == name))
        };
        for (tensor, stored) in stored.iter().filter(|(name, _)| !is_other(name)) {
            let here = found_tensors.get(tensor);
            if here.map(String::as_str) != stored.as_str() {
                wrong.push(format!("{name} `{tensor}`: {here:?} for {stored}"));
            }
        }
        let more = found_tensors
            .keys()
            .filter(|tensor| !stored.contains_key(*tensor));
        wrong.extend(more.map(|tensor| format!("{name} `{tensor}` more")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What comes back has the weights of the model, without its towers and under the names of a class
/// without them, and makes the same file.
#[test]
fn classes_come_back() {
    let mut wrong = Vec::new();
    for (name, found) in some_models(1) {
        let directory = crate::common::tempdir().unwrap();
        let gguf = converted(&found, directory.path());
        let back = to_hf(&gguf, directory.path());
        let config = json(&back.join("config.json"));
        let class = found["back"]
            .as_str()
            .unwrap_or(found["config"]["architectures"][0].as_str().unwrap());
        if config["architectures"][0] != class {
            wrong.push(format!("{name}: {}", config["architectures"]));
        }
        let all = tensors(&back);
        let exact = all
            .iter()
            .filter(|(name, _)| !is_listed(&found, "inexact", name));
        let mut bytes: Vec<_> = exact.map(|(_, (_, _, bytes))| bytes.clone()).collect();
        let mut expected: Vec<_> = found["hf"]
            .as_object()
            .unwrap()
            .iter()
            .filter_map(|(name, entry)| {
                let shape: Vec<_> = entry[1]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|n| n.as_u64().unwrap() as usize)
                    .collect();
                let is_tower = shape == [8] && is_listed(&found, "towers", name);
                let is_other = ["inexact", "joined"]
                    .iter()
                    .any(|list| is_listed(&found, list, name));
                (!is_tower && !is_other).then(|| bytes_of(name, entry))
            })
            .collect();
        // Those of them that come back as one.
        let joined = found["joined"].as_array().into_iter().flatten();
        let joined = joined.map(|name| name.as_str().unwrap());
        let joined: Vec<u8> = joined
            .flat_map(|name| bytes_of(name, &found["hf"][name]))
            .collect();
        expected.extend((!joined.is_empty()).then_some(joined));
        bytes.sort();
        expected.sort();
        let has_names =
            found["back"].is_string() || found["hf"].as_object().unwrap().keys().eq(all.keys());
        if bytes != expected || !has_names {
            let names: Vec<_> = all.keys().collect();
            wrong.push(format!("{name}: {} of {} tensors: {names:?}", bytes.len(), expected.len()));
        }
        let other = crate::common::tempdir().unwrap();
        let again = to_gguf(&back, other.path());
        let architecture = |path: &Path| metadata(path).remove("general.architecture");
        // A language model of another architecture without images has its own.
        let is_inexact = found["inexact"].is_array();
        if architecture(&again) == architecture(&gguf)
            && !is_inexact
            && tensors(&again) != tensors(&gguf)
        {
            wrong.push(format!("{name}: not the same again"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whether a tensor is in the list `field`: `towers` are not of the language model, and of `inexact` ones
/// GGUF has exponentials.
fn is_listed(found: &Value, field: &str, name: &str) -> bool {
    let list = found[field].as_array();
    list.is_some_and(|all| all.iter().any(|other| other == name))
}

/// What predicts tokens, or a further token, has no place: a note counts it, and the rest is as without it.
#[test]
fn what_has_no_place_is_counted() {
    let models = models();
    for (name, more, what) in [
        (
            "modern_bert_mlm",
            &["head.dense.weight", "head.norm.weight", "decoder.bias"][..],
            "without a place",
        ),
        (
            "exaone4_5",
            &["mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight"],
            "several tokens at once",
        ),
        ("janus", &["model.vqmodel.encoder.bias"], "other parts than the language model"),
    ] {
        let mut found = models[name].clone();
        let directory = crate::common::tempdir().unwrap();
        let plain = tensors(&to_gguf(&written(&found, directory.path()), directory.path()));
        for tensor in more {
            found["hf"][tensor] = serde_json::json!(["BF16", [8]]);
        }
        let directory = crate::common::tempdir().unwrap();
        let output = directory.path().join("model.gguf");
        let model = parse(written(&found, directory.path())).unwrap();
        let report = model
            .convert(&output, anamnesis::ConvertTarget::Gguf)
            .unwrap();
        assert!(report.notes.iter().any(|note| note.contains(what)), "{name}: {:?}", report.notes);
        assert!(tensors(&output) == plain, "{name}");
    }
}

/// Rows of (model, fields of its config, what the error names); null removes a field.
const REFUSED: &str = include_str!("refused/classes.jsonl");

#[test]
fn settings_that_llama_cpp_has_not() {
    let models = models();
    let mut wrong = Vec::new();
    for line in REFUSED.lines().step_by(effort([3, 1, 1])) {
        let (model, fields, named): (String, Value, String) = serde_json::from_str(line).unwrap();
        let directory = crate::common::tempdir().unwrap();
        let from = written(&models[&model], directory.path());
        set("config.json", fields)(&from);
        let output = directory.path().join("out.gguf");
        let converted = parse(&from)
            .unwrap()
            .convert(&output, options(directory.path()));
        match converted {
            Err(error) if error.to_string().contains(&named) => {}
            other => wrong.push(format!("{line}: {:?}", other.map(|_| ()))),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Numbers of hashes that are rows of no table, or that llama.cpp computes otherwise with.
#[test]
fn hashes_without_rows() {
    let start = "model.layers.1.ple.ple_embedding.";
    let counts = "ngram_heads_vocab_sizes";
    for (name, entry, what) in [
        ("layer_multipliers", value!(["I64", [3], [1, 3, 1_i64 << 60]]), "more than I64 holds"),
        ("layer_multipliers", value!(["I64", [2], [1, 3]]), "2 numbers"),
        ("layer_multipliers", value!(["I64", [3], [1, -3, 5]]), "numbers from 0 on"),
        ("layer_multipliers", value!(["F32", [3]]), "F32"),
        ("layer_multipliers", Value::Null, "there is none"),
        (counts, value!(["I64", [4], [11, 13, 17, 24]]), "the table has 64"),
        (counts, value!(["I64", [4], [0, 13, 17, 19]]), "0 rows"),
        ("ngram_heads_offsets", value!(["I64", [4], [0, 11, 24, i64::MAX]]), "the table has 64"),
        ("ngram_embedding.shard_1.weight", Value::Null, "there are 2 parts"),
        ("ngram_embedding.shard_1.weight", value!(["BF16", [22, 5]]), "its shape is [22, 5]"),
        ("ngram_embedding.shard_3.weight", value!(["BF16", [22, 4]]), "there are 4 parts"),
    ] {
        let directory = crate::common::tempdir().unwrap();
        let mut found = models()["qwen4_exp"].clone();
        let all = found["hf"].as_object_mut().unwrap();
        match entry {
            Value::Null => all.remove(&format!("{start}{name}")),
            entry => all.insert(format!("{start}{name}"), entry),
        };
        let from = written(&found, directory.path());
        let output = directory.path().join("out.gguf");
        let converted = parse(&from).and_then(|model| model.convert(&output, ConvertTarget::Gguf));
        let error = converted.unwrap_err().to_string();
        assert!(error.contains(what), "{name}: {error}");
    }
}

/// A matrix that is the embedding and the output cannot be multiplied by two numbers.
#[test]
fn one_matrix_has_one_multiplier() {
    let mut found = models()["falcon_h1"].clone();
    found["hf"]
        .as_object_mut()
        .unwrap()
        .remove("lm_head.weight");
    found["config"]["tie_word_embeddings"] = true.into();
    let directory = crate::common::tempdir().unwrap();
    let model = parse(written(&found, directory.path())).unwrap();
    let output = directory.path().join("model.gguf");
    let error = model
        .convert(output, anamnesis::ConvertTarget::Gguf)
        .unwrap_err()
        .to_string();
    assert!(error.contains("lm_head_multiplier"), "{error}");
}
