//! `amn check` of GGUF models that llama.cpp does not load, and of chat templates that run code.

use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, ConvertTarget, GgufMetadataValue, parse};

use crate::canonical::canonical_gguf;
use crate::common::data;
use crate::{amn, check};

/// A copy of a model of `tests/data/whole` with other keys.
fn edited(name: &str, keys: Vec<(&str, GgufMetadataValue)>, directory: &Path) -> PathBuf {
    let model = parse(canonical_gguf(data().join("whole").join(name))).unwrap();
    let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value));
    let options = ConvertOptions::new(ConvertTarget::Gguf)
        .with_gguf_metadata(keys.collect())
        .with_scope(anamnesis::ModelScope::Tensors);
    let path = directory.join("edited.gguf");
    _ = std::fs::remove_file(&path);
    model.convert(&path, options).unwrap();
    path
}

/// What `amn check` says of `model`, and its exit code.
fn said(model: &Path) -> (i32, String) {
    let run = amn(&["check", model.to_str().unwrap()]);
    (run.status.code().unwrap(), check::stdout(&run))
}

#[test]
fn models_of_all_architectures_are_clean() {
    for entry in std::fs::read_dir(data().join("whole")).unwrap() {
        let (code, text) = said(&canonical_gguf(entry.unwrap().path()));
        assert_eq!(code, 0, "{text}");
    }
}

#[test]
fn keys_and_tensors() {
    let directory = crate::common::tempdir().unwrap();
    for (key, number, expected) in [
        ("llama.block_count", 3, "tensor `blk.2.attn_norm.weight` is missing"),
        ("llama.block_count", 1, "no place for the tensor `blk.1.attn_k.weight`"),
        ("llama.vocab_size", 300, "it is 300, and there are 288 tokens"),
        ("llama.feed_forward_length", 64, "`blk.0.ffn_gate.weight` has the shape [48, 32]"),
        ("llama.expert_used_count", 2, "a token gets 2 of 0 experts"),
    ] {
        let path = edited("llama", vec![(key, GgufMetadataValue::U32(number))], directory.path());
        let (code, text) = said(&path);
        assert!(code == 1 && text.contains(expected), "{text}");
    }
    let mut bytes = std::fs::read(canonical_gguf(data().join("whole/llama"))).unwrap();
    let key = b"llama.attention.layer_norm_rms_epsilon";
    let at = bytes.windows(key.len()).position(|at| at == key).unwrap();
    bytes[at + key.len() - 1] = b'_';
    let path = directory.path().join("without.gguf");
    std::fs::write(&path, bytes).unwrap();
    let (code, text) = said(&path);
    let expected = "the key `llama.attention.layer_norm_rms_epsilon` is missing";
    assert!(code == 1 && text.contains(expected), "{text}");
}

/// A key without which llama.cpp has no place for tensors that are there.
#[test]
fn keys_of_shared_experts() {
    let directory = crate::common::tempdir().unwrap();
    for (model, architecture) in
        [("ernie4_5_moe", "ernie4_5-moe"), ("granite_hybrid_moe", "granitehybrid")]
    {
        let key = format!("{architecture}.expert_shared_feed_forward_length");
        let mut bytes = std::fs::read(canonical_gguf(data().join("whole").join(model))).unwrap();
        let at = bytes
            .windows(key.len())
            .position(|at| at == key.as_bytes())
            .unwrap();
        bytes[at + key.len() - 1] = b'_';
        let path = directory.path().join("without.gguf");
        std::fs::write(&path, bytes).unwrap();
        let (code, text) = said(&path);
        let expected = format!("the key `{key}` is missing");
        assert!(code == 1 && text.contains(&expected), "{text}");
    }
}

#[test]
fn templates() {
    let directory = crate::common::tempdir().unwrap();
    let harmless = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let harmful = "{{ cycler.__init__.__globals__ }}";
    for (template, expected) in [(harmless, 0), (harmful, 1)] {
        let key = "tokenizer.chat_template";
        let value = GgufMetadataValue::String(template.to_owned());
        let path = edited("llama", vec![(key, value)], directory.path());
        let (code, text) = said(&path);
        assert_eq!(code, expected, "{text}");
        assert_eq!(text.contains("`__init__`"), expected == 1, "{text}");
        let hf = directory.path().join("hf");
        _ = std::fs::remove_dir_all(&hf);
        std::fs::create_dir(&hf).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(data().join("whole/llama/hf").join(file), hf.join(file)).unwrap();
        }
        for file in ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"] {
            let json = serde_json::json!({"chat_template": template}).to_string();
            let text = if file.ends_with("jinja") {
                template.to_owned()
            } else {
                json
            };
            std::fs::write(hf.join(file), text).unwrap();
            let (code, text) = said(&hf);
            assert_eq!(code, expected, "{text}");
            assert_eq!(text.contains(&format!("{file}: ")), expected == 1, "{text}");
            std::fs::remove_file(hf.join(file)).unwrap();
        }
    }
}
