//! Drafts for speculative decoding, whose tokenizers are those of their targets.

use anamnesis::{ConvertTarget, ForgetScheme, parse};

use super::classes::{TARGET, converted, models, options, written};
use super::{tensors, to_hf};

const DRAFT: Option<&str> = Some("draft for speculative decoding");

#[test]
fn a_draft_needs_its_target() {
    for name in ["dflash", "eagle3"] {
        let directory = crate::common::tempdir().unwrap();
        let model = parse(written(&models()[name], directory.path())).unwrap();
        let output = directory.path().join("model.gguf");
        let error = model.convert(&output, ConvertTarget::Gguf).unwrap_err();
        assert!(error.to_string().contains("--base TARGET"), "{name}: {error}");
        let target = directory.path().join(TARGET);
        std::fs::remove_file(target.join("config.json")).unwrap();
        let error = model
            .convert(&output, options(directory.path()))
            .unwrap_err();
        assert!(error.to_string().contains("config.json"), "{name}: {error}");
        assert!(!output.exists());
    }
}

/// The embedding of a token that a file of its own has would be lost.
#[test]
fn masks_beside_a_draft_are_refused() {
    let directory = crate::common::tempdir().unwrap();
    let from = written(&models()["dflash"], directory.path());
    std::fs::write(from.join("mask_embedding.pt"), "").unwrap();
    let output = directory.path().join("model.gguf");
    let error = parse(from)
        .unwrap()
        .convert(output, options(directory.path()))
        .unwrap_err();
    assert!(error.to_string().contains("mask_embedding.pt"), "{error}");
}

#[test]
fn drafts_are_called_so() {
    for (name, model) in models() {
        if !model["target"].is_object() && name != "gemma4_assistant" {
            continue;
        }
        let directory = crate::common::tempdir().unwrap();
        let gguf = converted(&model, directory.path());
        let from = directory.path().join("model");
        let back = to_hf(&gguf, directory.path());
        // DSpark of DeepSeek V4 is in the checkpoint of its target.
        let is_apart = name != "deepseek_v4_dspark";
        for path in [&gguf, &from, &back]
            .into_iter()
            .take(if is_apart { 3 } else { 1 })
        {
            assert_eq!(parse(path).unwrap().describe().kind, DRAFT, "{name}: {}", path.display());
        }
    }
}

/// What says which tokens a draft has is no weight.
#[test]
fn encoded_drafts_keep_their_tables() {
    let directory = crate::common::tempdir().unwrap();
    let from = written(&models()["eagle3"], directory.path());
    let output = directory.path().join("model.gguf");
    let mut encoded = anamnesis::ConvertOptions::from("gguf:q8_0".parse::<ForgetScheme>().unwrap());
    encoded.base = options(directory.path()).base;
    parse(from).unwrap().convert(&output, encoded).unwrap();
    let found = tensors(&output);
    let (dtype, shape, bytes) = &found["d2t"];
    assert!(dtype == "I64" && shape == &[144] && bytes[8..16] == 2_u64.to_le_bytes());
}
