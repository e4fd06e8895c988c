//! Layers that predict further tokens.

use std::path::Path;

use anamnesis::{ConvertOptions, ConvertTarget, GgufMetadataValue, ModelScope, TargetDtype, parse};

use super::{Tensors, json, metadata, named, tensors, to_gguf, to_hf};
use crate::canonical::canonical_gguf;
use crate::common::data;

/// Layers that predict further tokens come back beside the tensors that transformers loads, and
/// nothing else changes by them.
#[test]
fn layers_of_predictions() {
    let directory = crate::common::tempdir().unwrap();
    let canonical = data().join("whole_mtp/qwen3_5.gguf");
    let back = to_hf(&canonical, directory.path());
    let (found, want) = (tensors(&back), data().join("whole/qwen3_5/hf"));
    let is_predicting = |name: &str| name.starts_with("mtp.");
    let (predicting, rest): (Tensors, Tensors) =
        found.into_iter().partition(|(name, _)| is_predicting(name));
    assert!(rest == tensors(&want) && predicting.len() == 15);
    let [config, want_config] = [&back, &want].map(|path| json(&path.join("config.json")));
    for field in ["num_hidden_layers", "layer_types"] {
        assert_eq!(config[field], want_config[field]);
    }
    assert_eq!(config["mtp_num_hidden_layers"], 1);
    assert!(tensors(&to_gguf(&back, directory.path())) == tensors(&canonical));
    // llama.cpp has one such layer.
    let options = ConvertOptions::new(ConvertTarget::Gguf).with_scope(ModelScope::Tensors);
    let all = ("qwen35.nextn_predict_layers".to_owned(), GgufMetadataValue::U32(5));
    let edited = directory.path().join("edited.gguf");
    let model = parse(canonical).unwrap();
    model
        .convert(&edited, options.with_gguf_metadata(vec![all]))
        .unwrap();
    let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
    let result = parse(&edited).and_then(|model| model.plan(options).map(drop));
    let error = result.unwrap_err().to_string();
    assert!(error.contains("nextn_predict_layers"), "{error}");
}

/// Configs of published models count a layer that predicts a further token, also where transformers
/// has not saved it. llama.cpp has at most one.
#[test]
fn counted_layers_of_predictions() {
    let directory = crate::common::tempdir().unwrap();
    let count = |from: &Path, count: u32| {
        let path = from.join("config.json");
        let mut config = json(&path);
        config["mtp_num_hidden_layers"] = count.into();
        std::fs::write(path, config.to_string()).unwrap();
    };
    let without = named(&data().join("whole/qwen3_5"), directory.path());
    count(&without, 1);
    let (found, want) =
        (to_gguf(&without, directory.path()), canonical_gguf(data().join("whole/qwen3_5")));
    let key = "qwen35.block_count";
    assert_eq!(metadata(&found)[key], metadata(&want)[key]);
    assert!(tensors(&found) == tensors(&want));
    std::fs::remove_dir_all(&without).unwrap();

    let with = named(&data().join("whole_prediction/qwen3_5"), directory.path());
    count(&with, 2);
    let options = ConvertOptions::new(ConvertTarget::Gguf);
    let result = parse(&with).and_then(|model| model.plan(options).map(drop));
    let error = result.unwrap_err().to_string();
    assert!(error.contains("`mtp_num_hidden_layers`: it is 2"), "{error}");
}

/// `--mtp` of llama.cpp's converter writes the layer that predicts a further token alone, with what
/// it shares with the model.
#[test]
fn a_layer_of_predictions_alone() {
    let directory = crate::common::tempdir().unwrap();
    let alone = directory.path().join("alone.gguf");
    let mut options = ConvertOptions::new(ConvertTarget::Gguf);
    options.exclude = vec!["blk.0.*".to_owned(), "blk.1.*".to_owned()];
    let model = parse(canonical_gguf(data().join("whole_prediction/qwen3_5"))).unwrap();
    model.convert(&alone, options).unwrap();
    let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
    let result = parse(&alone).and_then(|model| model.plan(options).map(drop));
    let error = result.unwrap_err().to_string();
    assert!(error.contains("alone"), "{error}");
}
