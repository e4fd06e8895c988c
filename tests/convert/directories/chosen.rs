//! Which of several files is the model: transformers goes by names.

use std::path::Path;

use anamnesis::parse;

use super::{decoded, refused, tensor};
use crate::common::directory::{INDEX, write_index};
use crate::common::file;

const SINGLE: &str = "model.safetensors";

fn write(dir: &Path, name: &str) {
    std::fs::write(dir.join(name), file(&[tensor("x")], &[])).unwrap();
}

#[test]
fn a_whole_file_beside_an_index_of_another_model() {
    let dir = crate::common::tempdir().unwrap();
    write(dir.path(), SINGLE);
    let single = decoded(dir.path());
    let shards =
        [("x", "model-00001-of-00002.safetensors"), ("y", "model-00002-of-00002.safetensors")];
    write_index(dir.path(), INDEX, &shards);
    let other = crate::common::tempdir().unwrap();
    let to = other.path().join("out");
    let report = parse(dir.path())
        .unwrap()
        .convert(to, anamnesis::TargetDtype::BF16)
        .unwrap();
    let notes = report.notes.join("; ");
    assert!(
        notes.contains(INDEX) && notes.contains(shards[0].1) && notes.contains(SINGLE),
        "{notes}"
    );
    assert_eq!(decoded(dir.path()), single);
    // Some shards are no model.
    write(dir.path(), shards[0].1);
    assert_eq!(decoded(dir.path()), single);
}

#[test]
fn an_index_without_its_shards_and_without_a_whole_file() {
    let error = refused(|dir| {
        write(dir, "other.safetensors");
        write_index(dir, INDEX, &[("x", "model-00001-of-00002.safetensors")]);
    });
    assert!(error.contains("model-00001-of-00002.safetensors"), "{error}");
}

#[test]
fn one_file_beside_those_of_formats_that_are_not_read() {
    let dir = crate::common::tempdir().unwrap();
    write(dir.path(), "weights.safetensors");
    let alone = decoded(dir.path());
    for name in
        ["model.onnx", "model.onnx_data", "tf_model.h5", "flax_model.msgpack", "rust_model.ot"]
    {
        std::fs::write(dir.path().join(name), b"x").unwrap();
    }
    assert_eq!(decoded(dir.path()), alone);
    write(dir.path(), "more.safetensors");
    let error = parse(dir.path()).unwrap_err().to_string();
    assert!(error.contains("which of 2 weight files?"), "{error}");
}

#[test]
fn directories_of_programs_that_are_not_read() {
    let error = refused(|dir| {
        write(dir, "rank0.safetensors");
        write(dir, "rank1.safetensors");
    });
    assert!(error.contains("TensorRT-LLM") && error.contains("along which axis"), "{error}");
    let error = refused(|dir| {
        std::fs::write(dir.join("ndarray-cache.json"), "{}").unwrap();
        std::fs::write(dir.join("params_shard_0.bin"), b"x").unwrap();
    });
    assert!(error.contains("model of MLC"), "{error}");
}
