//! Directories without an index, and directories without weights.

use anamnesis::parse;

use super::{assert_names, read, refused, tensor};
use crate::common::file;

/// The names of the tensors in a directory without an index. Each of `files` has one tensor, named
/// after the file.
fn unindexed(files: &[&str]) -> Result<Vec<String>, String> {
    let dir = crate::common::tempdir().unwrap();
    for name in files {
        std::fs::write(dir.path().join(name), file(&[tensor(name)], &[])).unwrap();
    }
    parse(dir.path())
        .map(|_| read(dir.path()).0)
        .map_err(|e| e.to_string())
}

#[test]
fn without_an_index() {
    let found = |files: &[&str]| unindexed(files).unwrap();
    assert_eq!(found(&["model.safetensors", "other.safetensors"]), ["model.safetensors"]);
    assert_eq!(found(&["other.safetensors"]), ["other.safetensors"]);
    assert_eq!(
        found(&["pytorch_model.bin", "adapter_model.safetensors"]),
        ["adapter_model.safetensors"]
    );
    let set = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    assert_eq!(found(&set), set);
    let bins = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"];
    assert_eq!(found(&bins), bins);
    assert_eq!(found(&["x-00001-of-00001.safetensors", "x.bin"]), ["x-00001-of-00001.safetensors"]);
    let two = unindexed(&["one.safetensors", "two.safetensors"]).unwrap_err();
    assert_names(&two, &["one.safetensors", "two.safetensors"]);
}

/// A set of shards that is not complete is an error, not a smaller model.
#[test]
fn an_incomplete_set_is_refused() {
    for ending in ["safetensors", "bin"] {
        let name = |no: usize| format!("model-{no:05}-of-00003.{ending}");
        for missing in 1..=3 {
            let there: Vec<String> = (1..=3).filter(|no| *no != missing).map(name).collect();
            let error =
                unindexed(&there.iter().map(String::as_str).collect::<Vec<_>>()).unwrap_err();
            assert_names(&error, &[&name(missing), "missing"]);
        }
    }
    let two =
        unindexed(&["a-00001-of-00001.safetensors", "b-00001-of-00001.safetensors"]).unwrap_err();
    assert_names(&two, &["a-00001-of-00001.safetensors", "b-00001-of-00001.safetensors"]);
    let twice =
        unindexed(&["m-00001-of-2.safetensors", "m-1-of-2.safetensors", "m-2-of-2.safetensors"])
            .unwrap_err();
    assert_names(&twice, &["m-00001-of-2", "m-1-of-2"]);
    let absurd = unindexed(&["model-00001-of-99999999999999999999.safetensors", "model-1-of-.bin"]);
    assert!(absurd.is_err());
}

#[test]
fn no_weights_here() {
    let error = refused(|dir| {
        std::fs::write(dir.join("config.json"), "{}").unwrap();
        for below in ["text_encoder", "unet", "docs"] {
            std::fs::create_dir(dir.join(below)).unwrap();
        }
        std::fs::write(dir.join("docs/a.txt"), "").unwrap();
        std::fs::write(dir.join("text_encoder/model.safetensors"), "").unwrap();
        std::fs::write(dir.join("unet/diffusion_pytorch_model.safetensors.index.json"), "")
            .unwrap();
    });
    assert_names(&error, &["no weights in this directory", "in text_encoder, unet"]);
    assert!(!error.contains("docs"), "{error}");
    let pipeline = refused(|dir| {
        std::fs::write(dir.join("model_index.json"), "{}").unwrap();
        for below in ["text_encoder", "transformer", "scheduler"] {
            std::fs::create_dir(dir.join(below)).unwrap();
        }
        for below in ["text_encoder", "transformer"] {
            std::fs::write(dir.join(below).join("model.safetensors"), "").unwrap();
        }
    });
    let words = ["pipeline of diffusers", "text_encoder, transformer;", "transformer`"];
    assert_names(&pipeline, &words);
    assert!(!pipeline.contains("scheduler"), "{pipeline}");
    assert!(refused(|_| ()).ends_with("no weights in this directory"));
}
