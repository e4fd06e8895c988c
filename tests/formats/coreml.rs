//! Models of Core ML: packages, and files by themselves.

use std::fs;
use std::path::PathBuf;

use anamnesis::{AnamnesisError, Container, ConvertOptions, TargetDtype, parse, parse_bytes};

use crate::common::{assert_same, data, tempdir};

fn model(name: &str) -> PathBuf {
    data().join("coreml").join(name)
}

/// A copy of a package.
fn copy(name: &str) -> tempfile::TempDir {
    let directory = tempdir().unwrap();
    let inner = "Data/com.apple.CoreML/weights";
    fs::create_dir_all(directory.path().join(inner)).unwrap();
    let files = [
        "Manifest.json",
        "Data/com.apple.CoreML/model.mlmodel",
        "Data/com.apple.CoreML/weights/weight.bin",
    ];
    for file in files {
        fs::copy(model(name).join(file), directory.path().join(file)).unwrap();
    }
    directory
}

#[test]
fn constants() {
    let mut count = 0;
    for entry in fs::read_dir(data().join("coreml")).unwrap() {
        let path = entry.unwrap().path();
        let expected = path.with_extension("safetensors");
        if expected == path || !expected.is_file() {
            continue;
        }
        let expected = fs::read(expected).unwrap();
        let context = path.display().to_string();
        let model = parse(&path).unwrap();
        assert_eq!(model.container(), Container::CoreMl);
        let options = ConvertOptions::default();
        assert_same(&expected, &model.plan(options).unwrap().to_bytes().unwrap(), &context);
        assert!(model.inspect().problems.is_empty(), "{context}");
        if path.is_dir() {
            let inner = path.join("Data/com.apple.CoreML/model.mlmodel");
            let same = parse(&inner).unwrap();
            assert_eq!(same.tensors().count(), model.tensors().count());
        }
        count += 1;
    }
    assert_eq!(count, 7);
    let model = parse(model("types.mlpackage")).unwrap();
    assert_eq!(model.metadata()["coreml.specification_version"], "9");
    assert_eq!(model.metadata()["com.github.apple.coremltools.version"], "9.0");
}

/// What a package must not make of its files.
#[test]
fn packages() {
    let refused = |directory: &tempfile::TempDir| parse(directory.path()).unwrap_err().to_string();
    let package = copy("types.mlpackage");
    let manifest = package.path().join("Manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    for (path, part) in [
        ("../model.mlmodel", "not in the package"),
        ("/etc/passwd", "not in the package"),
        ("com.apple.CoreML/other.mlmodel", "is missing"),
    ] {
        fs::write(&manifest, text.replace("com.apple.CoreML/model.mlmodel", path)).unwrap();
        assert!(refused(&package).contains(part), "{}", refused(&package));
    }
    fs::write(&manifest, "{}").unwrap();
    assert!(refused(&package).contains("Manifest.json"), "{}", refused(&package));
    fs::write(&manifest, text).unwrap();
    let weights = package
        .path()
        .join("Data/com.apple.CoreML/weights/weight.bin");
    let whole = fs::read(&weights).unwrap();
    fs::write(&weights, &whole[..200]).unwrap();
    assert!(refused(&package).contains("which has 200 bytes"), "{}", refused(&package));
    let mut changed = whole.clone();
    changed[64] ^= 1;
    fs::write(&weights, &changed).unwrap();
    assert!(refused(&package).contains("no data begins at 64"), "{}", refused(&package));
    changed = whole;
    changed[68] = 2;
    fs::write(&weights, &changed).unwrap();
    assert!(refused(&package).contains("has type 2"), "{}", refused(&package));
    fs::remove_file(&weights).unwrap();
    assert!(refused(&package).contains("is missing"), "{}", refused(&package));
    #[cfg(unix)]
    {
        let other = tempdir().unwrap();
        let secret = other.path().join("secret");
        fs::write(&secret, [0; 400]).unwrap();
        std::os::unix::fs::symlink(&secret, &weights).unwrap();
        assert!(
            refused(&package).contains("not in the model's directory"),
            "{}",
            refused(&package)
        );
    }
    let alone = fs::read(model("types.mlpackage/Data/com.apple.CoreML/model.mlmodel")).unwrap();
    let alone = parse_bytes(alone).unwrap_err().to_string();
    assert!(alone.contains("give the path of the model"), "{alone}");
}

/// A directory around a package has no weights, and beside other files the model is one for other programs.
#[test]
fn directories() {
    let directory = tempdir().unwrap();
    fs::create_dir(directory.path().join("model.mlpackage")).unwrap();
    let error = parse(directory.path()).unwrap_err().to_string();
    assert!(error.contains("a package of Core ML; give that"), "{error}");
    fs::copy(model("matrices.mlmodel"), directory.path().join("a.mlmodel")).unwrap();
    assert_eq!(parse(directory.path()).unwrap().container(), Container::CoreMl);
    let other = data().join("demo/model-fp8.safetensors");
    fs::copy(other, directory.path().join("x.safetensors")).unwrap();
    assert_eq!(parse(directory.path()).unwrap().container(), Container::Safetensors);
}

/// Values that are not stored are zero, which no code of theirs tells.
#[test]
fn sparse_codes_with_zero_points() {
    let model = parse(model("refused.mlpackage")).unwrap();
    let error = model.remember_to_bytes(TargetDtype::F32).unwrap_err();
    assert!(matches!(error, AnamnesisError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("with an offset"), "{error}");
}
