//! Models of OpenVINO, which are two files, and in directories.

use std::fs;
use std::path::{Path, PathBuf};

use anamnesis::{AnamnesisError, Container, Dtype, TargetDtype, parse, parse_bytes};

use crate::common::{assert_same, data, tempdir};

fn model(case: &str) -> PathBuf {
    data().join("openvino").join(case).join("model.xml")
}

/// A model with its data, as optimum-intel calls them.
fn copy(case: &Path, to: &Path) {
    fs::copy(case.join("model.xml"), to.join("openvino_model.xml")).unwrap();
    fs::copy(case.join("model.bin"), to.join("openvino_model.bin")).unwrap();
}

/// The model by itself, and the directory that it is in.
#[test]
fn constants() {
    for case in ["types", "bodies"] {
        let path = model(case);
        let expected = fs::read(path.with_file_name("expected.safetensors")).unwrap();
        let model = parse(&path).unwrap();
        assert_eq!(model.container(), Container::OpenVino);
        assert_same(&expected, &model.remember_to_bytes(TargetDtype::F32).unwrap(), case);
        let directory = tempdir().unwrap();
        copy(path.parent().unwrap(), directory.path());
        fs::write(directory.path().join("openvino_tokenizer.xml"), "<net ").unwrap();
        fs::write(directory.path().join("openvino_tokenizer.bin"), "").unwrap();
        let model = parse(directory.path()).unwrap();
        assert_same(&expected, &model.remember_to_bytes(TargetDtype::F32).unwrap(), case);
    }
    let alone = parse_bytes(fs::read(model("types")).unwrap()).unwrap_err();
    assert!(alone.to_string().contains("give the path of the model"), "{alone}");
    let model = parse(model("types")).unwrap();
    assert_eq!(model.metadata()["openvino.version"], "11");
}

/// Beside a checkpoint it is the same model for other programs, and its data is none by itself.
#[test]
fn which_file_of_a_directory() {
    let directory = tempdir().unwrap();
    copy(model("bodies").parent().unwrap(), directory.path());
    let other = data().join("demo/model-fp8.safetensors");
    fs::copy(other, directory.path().join("x.safetensors")).unwrap();
    assert_eq!(parse(directory.path()).unwrap().container(), Container::Safetensors);
    fs::remove_file(directory.path().join("x.safetensors")).unwrap();
    for end in ["xml", "bin"] {
        let name = |stem: &str| directory.path().join(format!("{stem}.{end}"));
        fs::rename(name("openvino_model"), name("a")).unwrap();
        fs::copy(name("a"), name("b")).unwrap();
    }
    let error = parse(directory.path()).unwrap_err();
    assert!(error.to_string().contains("which of 2 weight files"), "{error}");
}

/// What the directory of a model must not make of it.
#[test]
fn data_that_is_not_there() {
    let directory = tempdir().unwrap();
    copy(model("bodies").parent().unwrap(), directory.path());
    let at = |end: &str| directory.path().join(format!("openvino_model.{end}"));
    let refused = || parse(at("xml")).unwrap_err();
    fs::write(at("bin"), [0; 4]).unwrap();
    assert!(refused().to_string().contains("of a file of 4"), "{}", refused());
    fs::remove_file(at("bin")).unwrap();
    assert!(refused().to_string().contains("is missing"), "{}", refused());
    #[cfg(unix)]
    {
        let other = tempdir().unwrap();
        let secret = other.path().join("secret");
        fs::write(&secret, [0; 400]).unwrap();
        std::os::unix::fs::symlink(&secret, at("bin")).unwrap();
        assert!(refused().to_string().contains("leads out of"), "{}", refused());
    }
}

/// Codes whose scale the graph computes are listed, and never copied.
#[test]
fn scales_of_scales() {
    let model = parse(model("nncf_nvfp4")).unwrap();
    let codes = model.tensor("fc.weight").unwrap();
    assert_eq!((codes.dtype(), codes.shape()), (Dtype::F4, &[8, 4, 16][..]));
    let error = model.remember_to_bytes(TargetDtype::F32).unwrap_err();
    assert!(matches!(error, AnamnesisError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("another operator"), "{error}");
}
