//! ONNX models with data in other files, in directories, and what is listed of quantized ones. Single
//! files are in `archives`.

use std::fs;
use std::path::Path;

use anamnesis::{AnamnesisError, Container, Dtype, TargetDtype, parse, parse_bytes};

use crate::common::{assert_same, data, tempdir};

fn external(case: &str) -> std::path::PathBuf {
    data().join("onnx_external").join(case)
}

/// The model by itself, and the directory that it is in.
#[test]
fn data_in_other_files() {
    for case in ["one", "many", "tied"] {
        let directory = external(case);
        let expected = fs::read(directory.join("expected.safetensors")).unwrap();
        let model = parse(directory.join("model.onnx")).unwrap();
        assert_eq!(model.container(), Container::Onnx);
        assert_same(&expected, &model.remember_to_bytes(TargetDtype::F32).unwrap(), case);
        // The expected tensors are a model, too.
        let copy = tempdir().unwrap();
        copy_all(&directory, copy.path());
        fs::remove_file(copy.path().join("expected.safetensors")).unwrap();
        let model = parse(copy.path()).unwrap();
        assert_same(&expected, &model.remember_to_bytes(TargetDtype::F32).unwrap(), case);
        assert!(model.inspect().notes.is_empty(), "{case}: {:?}", model.inspect().notes);
    }
    let alone = parse_bytes(fs::read(external("one").join("model.onnx")).unwrap()).unwrap_err();
    assert!(alone.to_string().contains("give the path of the model"), "{alone}");
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

/// What the directory of a model must not make of it.
#[test]
fn data_that_is_not_there() {
    let directory = tempdir().unwrap();
    let model = directory.path().join("model.onnx");
    copy_all(&external("one"), directory.path());
    let data = directory.path().join("model.onnx_data");
    let refused = || parse(&model).unwrap_err();
    fs::write(&data, [0; 40]).unwrap();
    assert!(refused().to_string().contains("its type and shape need"), "{}", refused());
    fs::remove_file(&data).unwrap();
    assert!(refused().to_string().contains("is missing"), "{}", refused());
    #[cfg(unix)]
    {
        let other = tempdir().unwrap();
        let secret = other.path().join("secret");
        fs::write(&secret, [0; 68]).unwrap();
        std::os::unix::fs::symlink(&secret, &data).unwrap();
        assert!(
            refused()
                .to_string()
                .contains("not in the model's directory"),
            "{}",
            refused()
        );
    }
}

/// Beside weights of another format an ONNX model is the same model for other programs; of several,
/// one name is known.
#[test]
fn which_file_of_a_directory() {
    let directory = tempdir().unwrap();
    let onnx = data().join("onnx/shapes.onnx");
    for name in ["model.onnx", "model_fp16.onnx"] {
        fs::copy(&onnx, directory.path().join(name)).unwrap();
    }
    let model = parse(directory.path()).unwrap();
    assert_eq!(model.container(), Container::Onnx);
    assert!(
        model
            .inspect()
            .notes
            .iter()
            .any(|note| note.contains("model_fp16.onnx"))
    );
    fs::rename(directory.path().join("model.onnx"), directory.path().join("a.onnx")).unwrap();
    let error = parse(directory.path()).unwrap_err();
    assert!(error.to_string().contains("which of 2 weight files"), "{error}");
    let other = data().join("demo/model-fp8.safetensors");
    fs::copy(other, directory.path().join("x.safetensors")).unwrap();
    assert_eq!(parse(directory.path()).unwrap().container(), Container::Safetensors);
}

/// Codes of less than a byte are listed with their own shape; no container holds them as they are.
#[test]
fn integers_of_less_than_a_byte() {
    let model = parse(data().join("onnx_quantized/u4_odd/model.onnx")).unwrap();
    let codes = model.tensor("layer.weight_quantized").unwrap();
    assert_eq!((codes.dtype(), codes.shape(), codes.byte_len()), (Dtype::U4, &[3, 5][..], 8));
    assert_eq!(codes.bytes().unwrap().len(), 8);
    assert!(model.verify_checksums().is_ok());
    let error = Dtype::U4.to_safetensors_dtype().unwrap_err();
    assert!(matches!(error, AnamnesisError::Unsupported { .. }));
}

#[test]
fn what_a_model_says_of_itself() {
    let model = parse(data().join("onnx/names.onnx")).unwrap();
    assert_eq!(model.metadata()["onnx.producer_name"], "test");
    assert!(model.metadata().contains_key("onnx.opset.ai.onnx"));
    let notes = model.inspect().notes;
    assert!(notes.iter().any(|note| note.contains("names of 2 weights")), "{notes:?}");
}
