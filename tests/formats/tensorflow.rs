//! Checkpoints of TensorFlow, and the variables of a SavedModel.

use std::fs;
use std::path::{Path, PathBuf};

use anamnesis::{
    AnamnesisError, Container, ConvertOptions, ConvertTarget, ParsedModel, parse, parse_bytes,
};

use crate::common::{assert_same, data, tempdir};

fn case(name: &str) -> PathBuf {
    data().join("tensorflow").join(name)
}

/// The tensors of a model as they are stored.
fn stored(model: &ParsedModel) -> Vec<u8> {
    let options = ConvertOptions::new(ConvertTarget::Safetensors).with_skip_unsupported(true);
    model
        .plan(options)
        .and_then(|plan| plan.to_bytes())
        .unwrap()
}

/// Each checkpoint by its index, and by its directory.
#[test]
fn variables() {
    for (name, index) in [
        ("types", "types.index"),
        ("text", "ckpt-1.index"),
        ("many", "many.index"),
        ("parts", "model.ckpt.index"),
        ("shards", "two.index"),
        ("saved_model", "variables/variables.index"),
    ] {
        let expected = fs::read(case(name).join("expected.safetensors")).unwrap();
        let model = parse(case(name).join(index)).unwrap();
        assert_eq!(model.container(), Container::TensorFlow);
        assert_same(&expected, &stored(&model), name);
        // The expected tensors are a model, too.
        let directory = tempdir().unwrap();
        copy_all(&case(name), directory.path());
        fs::remove_file(directory.path().join("expected.safetensors")).unwrap();
        let model = parse(directory.path()).unwrap();
        assert_same(&expected, &stored(&model), name);
        let notes = model.inspect().notes;
        assert!(notes.is_empty() || name == "text", "{name}: {notes:?}");
    }
    let index = fs::read(case("types").join("types.index")).unwrap();
    let alone = parse_bytes(index).unwrap_err();
    assert!(alone.to_string().contains("give the path of the index"), "{alone}");
}

fn copy_all(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
        if path.is_dir() {
            fs::create_dir(to.join(&name)).unwrap();
            copy_all(&path, &to.join(&name));
        } else {
            fs::copy(&path, to.join(&name)).unwrap();
        }
    }
}

/// Text is no weight, but for the graph of objects.
#[test]
fn text() {
    let model = parse(case("text").join("ckpt-1.index")).unwrap();
    let skipped: Vec<_> = model
        .skipped_arrays()
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(skipped, ["word/.ATTRIBUTES/VARIABLE_VALUE"]);
    let options = ConvertOptions::new(ConvertTarget::Safetensors);
    let error = model
        .plan(options)
        .and_then(|plan| plan.to_bytes())
        .unwrap_err();
    assert!(matches!(error, AnamnesisError::Unsupported { .. }), "{error}");
}

/// What is wrong with an index or with the files of data.
#[test]
fn malformed() {
    let directory = tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    copy_all(&case("shards"), directory.path());
    let index = fs::read(at("two.index")).unwrap();
    let refused = |index: &[u8]| {
        fs::write(at("two.index"), index).unwrap();
        parse(at("two.index")).unwrap_err()
    };
    for i in 0..index.len() - 48 {
        let mut bytes = index.clone();
        bytes[i] ^= 1 << (i % 8);
        let error = refused(&bytes);
        assert!(
            error.to_string().contains("checksum") || error.to_string().contains("index"),
            "{i}: {error}"
        );
    }
    for end in 0..index.len() {
        refused(&index[..end]);
    }
    fs::write(at("two.index"), &index).unwrap();
    let data = at("two.data-00001-of-00002");
    let whole = fs::read(&data).unwrap();
    fs::write(&data, &whole[..whole.len() - 1]).unwrap();
    let error = parse(at("two.index")).unwrap_err();
    assert!(error.to_string().contains("of a file of"), "{error}");
    fs::remove_file(&data).unwrap();
    let error = parse(at("two.index")).unwrap_err();
    assert!(error.to_string().contains("is missing"), "{error}");
    let error = parse(at("two.data-00000-of-00002")).unwrap_err();
    assert!(error.to_string().contains("give the `.index`"), "{error}");
}
