//! Outputs that llama.cpp does not load: a caller's metadata for which it does not are an error, and
//! tensors for which it does not a note.

use std::path::Path;

use anamnesis::{
    ConvertOptions, ConvertTarget, ErrorKind, GgufEdit, GgufMetadataValue, ModelScope, NameChanges,
    Report, Result, parse,
};

use super::some_models;
use crate::canonical::canonical_gguf;
use crate::common::{data, effort};

const NOTE: &str = "llama.cpp does not load the output: ";

fn converted(from: &Path, to: &Path, options: ConvertOptions) -> Result<Report> {
    parse(from).unwrap().convert(to, options)
}

fn edits(all: &[(&str, &str)]) -> ConvertOptions {
    let edit = |(key, text): &(&str, &str)| match *text {
        "null" => GgufEdit::remove(*key),
        text => GgufEdit::text(*key, text),
    };
    ConvertOptions::new(ConvertTarget::Gguf).with_gguf_edits(all.iter().map(edit).collect())
}

fn notes(from: &Path, to: &Path, options: ConvertOptions) -> String {
    converted(from, to, options).unwrap().notes.join("\n")
}

fn architecture(model: &Path) -> String {
    let file = parse(canonical_gguf(model)).unwrap();
    file.gguf().unwrap().architecture().unwrap()
}

/// In the models of all families, from GGUF and from a directory.
#[test]
fn changed_keys() {
    for (number, model) in some_models(0).into_iter().enumerate() {
        let directory = crate::common::tempdir().unwrap();
        let output = directory.path().join("out.gguf");
        let architecture = architecture(&model);
        let key = |name: &str| format!("{architecture}.{name}");
        let layers = key("block_count");
        let other = if architecture == "mamba" {
            "llama"
        } else {
            "mamba"
        };
        let inputs = [canonical_gguf(&model), model.join("hf")]
            .into_iter()
            .cycle();
        for from in inputs.skip(number).take(effort([1, 2, 2])) {
            for (key, text) in [
                (&layers, "600"),
                (&layers, "null"),
                (&key("embedding_length"), "40"),
                (&key("context_length"), "null"),
                (&"general.architecture".to_owned(), other),
            ] {
                let options = edits(&[(key, text), ("general.name", "x")]);
                let error = converted(&from, &output, options.clone()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Usage, "{} {error}", from.display());
                let error = error.to_string();
                let begin = format!("GGUF metadata `{key}`: llama.cpp would not load the output: ");
                assert!(error.starts_with(&begin), "{} {error}", from.display());
                assert!(!output.exists());
            }
            let harmless = [("my.number", "77"), ("general.name", "x")];
            let found = notes(&from, &output, edits(&harmless));
            assert!(!found.contains(NOTE), "{} {found}", from.display());
            std::fs::remove_file(&output).unwrap();
        }
    }
}

/// The same metadata, given whole.
#[test]
fn changed_metadata() {
    let directory = crate::common::tempdir().unwrap();
    let output = directory.path().join("out.gguf");
    let value = GgufMetadataValue::U32(3);
    let metadata = vec![("qwen3.attention.head_count".to_owned(), value)];
    let options = ConvertOptions::new(ConvertTarget::Gguf).with_gguf_metadata(metadata);
    let model = data().join("whole/qwen3");
    for from in [canonical_gguf(&model), model.join("hf")] {
        let error = converted(&from, &output, options.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        let error = error.to_string();
        assert!(error.contains("`qwen3.attention.head_count`"), "{error}");
        assert!(error.contains("`blk.0.attn_q.weight`"), "{error}");
    }
}

/// What the models of all families need, left out or under another name.
#[test]
fn lost_tensors() {
    for model in some_models(1) {
        let directory = crate::common::tempdir().unwrap();
        let output = directory.path().join("out.gguf");
        let from = canonical_gguf(&model);
        let embedding = "token_embd.weight";
        let drop = NameChanges::default().with_drop(embedding);
        let rename = NameChanges::default().with_rename(embedding, "other.weight");
        let options = ConvertOptions::new(ConvertTarget::Gguf);
        let with_names = |names| options.clone().with_names(names);
        let mut include = options.clone();
        include.include = vec!["*blk*".to_owned()];
        for lossy in [with_names(drop), with_names(rename), include] {
            let found = notes(&from, &output, lossy.clone());
            let named = format!("{NOTE}tensor `{embedding}` is missing");
            assert!(found.contains(&named), "{} {found}", model.display());
            std::fs::remove_file(&output).unwrap();
            // Tensors alone are no model.
            let found = notes(&from, &output, lossy.with_scope(ModelScope::Tensors));
            assert!(!found.contains(NOTE), "{} {found}", model.display());
            std::fs::remove_file(&output).unwrap();
        }
        let found = notes(&from, &output, options);
        assert!(!found.contains(NOTE), "{} {found}", model.display());
    }
}

/// Changes of a file that llama.cpp does not load anyway are not refused, and those that mend it have
/// no note.
#[test]
fn changes_of_what_is_not_loaded() {
    let directory = crate::common::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (whole, half) = (canonical_gguf(data().join("whole/qwen3")), path("half.gguf"));
    let drop = NameChanges::default().with_drop("blk.1.*");
    let options = ConvertOptions::new(ConvertTarget::Gguf).with_names(drop);
    assert!(notes(&whole, &half, options.clone()).contains("`blk.1.attn_norm.weight`"));
    let wider = edits(&[("qwen3.attention.head_count", "3")]);
    assert!(notes(&half, &path("wider.gguf"), wider.clone()).contains(NOTE));
    let shorter = edits(&[("qwen3.block_count", "1")]);
    assert_eq!(notes(&half, &path("shorter.gguf"), shorter.clone()), "");
    // Both at once.
    let shorter = shorter.with_names(options.names);
    assert_eq!(notes(&whole, &path("at-once.gguf"), shorter), "");
    let copied = ConvertOptions::new(ConvertTarget::Gguf);
    assert_eq!(notes(&half, &path("copy.gguf"), copied), "");
    // A file with a tensor of a fork of llama.cpp is as good as it was.
    let (fork, copy) = (path("fork.gguf"), path("fork-copy.gguf"));
    let rename =
        NameChanges::default().with_rename("blk.0.attn_q_norm.weight", "blk.0.other.weight");
    let renamed = ConvertOptions::new(ConvertTarget::Gguf).with_names(rename);
    assert!(notes(&whole, &fork, renamed).contains("`blk.0.attn_q_norm.weight` is missing"));
    let found = notes(&fork, &copy, ConvertOptions::new(ConvertTarget::Gguf));
    assert_eq!(found, "");
    assert!(notes(&fork, &path("fork-wider.gguf"), wider).contains(NOTE));
}

/// Towers of images and sounds, from a directory and from GGUF.
#[test]
fn towers() {
    for entry in std::fs::read_dir(data().join("towers")).unwrap() {
        let tower = entry.unwrap().path();
        let config = std::fs::read_to_string(tower.join("hf/config.json")).unwrap();
        let [layers, size, has, up] = match config.contains("\"vision_") {
            true => ["vision.block_count", "vision.patch_size", "has_vision_encoder", "v.blk.0"],
            false => ["audio.block_count", "audio.num_mel_bins", "has_audio_encoder", "a.blk.0"],
        };
        let keys = [(layers, "77"), (size, "null"), (has, "null")];
        let directory = crate::common::tempdir().unwrap();
        let output = directory.path().join("out.gguf");
        let scopes = [
            (canonical_gguf(&tower), ModelScope::Auto),
            (tower.join("hf"), ModelScope::ImageTower),
        ];
        for (from, scope) in scopes {
            for (key, text) in keys {
                let key = &format!("clip.{key}");
                let options = edits(&[(key, text)]).with_scope(scope);
                let error = converted(&from, &output, options).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Usage, "{} {error}", from.display());
                let error = error.to_string();
                let begin = format!("GGUF metadata `{key}`: llama.cpp would not load the output: ");
                assert!(error.starts_with(&begin), "{} {error}", from.display());
            }
            let options = edits(&[("general.name", "x")]).with_scope(scope);
            let found = notes(&from, &output, options);
            assert!(!found.contains(NOTE), "{} {found}", from.display());
            std::fs::remove_file(&output).unwrap();
        }
        let up = match tower.ends_with("gemma4_unified") {
            true => "mm.input_projection.weight".to_owned(),
            false => format!("{up}.ffn_up.weight"),
        };
        let drop = NameChanges::default().with_drop(&up);
        let options = ConvertOptions::new(ConvertTarget::Gguf).with_names(drop);
        let found = notes(&canonical_gguf(&tower), &output, options);
        assert!(found.contains(&format!("`{up}` is missing")), "{found}");
    }
}
