//! Inference models of Paddle, which are two files, and in directories.

use std::fs;
use std::path::{Path, PathBuf};

use anamnesis::{
    AnamnesisError, Container, ConvertOptions, ConvertTarget, TargetDtype, parse, parse_bytes,
};

use crate::common::{assert_same, data, tempdir};

const CASES: [(&str, [&str; 2]); 3] = [
    ("json", ["inference.json", "inference.pdiparams"]),
    ("pdmodel", ["inference.pdmodel", "inference.pdiparams"]),
    ("types", ["__model__", "__params__"]),
];

fn case(name: &str) -> PathBuf {
    data().join("paddle_inference").join(name)
}

fn convert(path: &Path) -> Vec<u8> {
    let model = parse(path).unwrap();
    assert_eq!(model.container(), Container::Paddle);
    let options = ConvertOptions::new(ConvertTarget::Safetensors).with_skip_unsupported(true);
    model.plan(options).unwrap().to_bytes().unwrap()
}

/// Either file tells the model. Complex numbers of 16 bytes are left out.
#[test]
fn either_file() {
    for (name, files) in CASES {
        let expected = fs::read(case(name).join("expected.safetensors")).unwrap();
        for file in files {
            assert_same(&expected, &convert(&case(name).join(file)), file);
        }
    }
    let model = parse(case("types").join("__params__")).unwrap();
    let options = ConvertOptions::new(ConvertTarget::Safetensors);
    let error = model.plan(options).err().unwrap();
    assert!(error.to_string().contains("array of complex128"), "{error}");
}

#[test]
fn directories() {
    for (name, files) in &CASES[..2] {
        let directory = tempdir().unwrap();
        for file in files {
            fs::copy(case(name).join(file), directory.path().join(file)).unwrap();
        }
        fs::write(directory.path().join("inference.yml"), "Global:\n").unwrap();
        let expected = fs::read(case(name).join("expected.safetensors")).unwrap();
        let model = parse(directory.path()).unwrap();
        assert_same(&expected, &model.remember_to_bytes(TargetDtype::F32).unwrap(), name);
    }
}

/// Codes are stored as floats, and only operators tell that they are codes.
#[test]
fn codes_are_no_weights() {
    for name in ["quantized_json", "quantized_pdmodel"] {
        let model = parse(case(name).join("inference.pdiparams")).unwrap();
        let options = ConvertOptions::new(ConvertTarget::Safetensors);
        let errors = [
            model.remember_to_bytes(TargetDtype::F32).unwrap_err(),
            model.plan(options).err().unwrap(),
        ];
        for error in errors {
            assert!(matches!(error, AnamnesisError::Unsupported { .. }), "{error}");
            let words = ["conv2d_0.w_0", "its operator is dequantize_linear"];
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        }
    }
}

/// What the other file must be.
#[test]
fn the_other_file() {
    let directory = tempdir().unwrap();
    let at = |file: &str| directory.path().join(file);
    let put = |from: &str, file: &str| fs::copy(case(from).join(file), at(file)).unwrap();
    let refused = |file: &str, words: &[&str]| {
        let error = parse(at(file)).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    put("json", "inference.pdiparams");
    refused("inference.pdiparams", &["`inference.json` or `inference.pdmodel`", "missing"]);
    fs::write(at("inference.json"), "{\"a\": 1}").unwrap();
    refused("inference.pdiparams", &["`inference.json` or `inference.pdmodel`"]);
    // Of a text that is no program, the other form is taken.
    put("pdmodel", "inference.pdmodel");
    put("pdmodel", "inference.pdiparams");
    parse(at("inference.pdiparams")).unwrap();
    fs::remove_file(at("inference.pdiparams")).unwrap();
    refused("inference.pdmodel", &["`inference.pdiparams`", "missing"]);
    put("quantized_pdmodel", "inference.pdiparams");
    refused("inference.pdmodel", &["520 bytes are stored behind the 8 parameters"]);
    fs::copy(case("types").join("__params__"), at("inference.pdiparams")).unwrap();
    refused("inference.pdmodel", &["batch_norm2d_0.b_0", "[5, 2]", "[4]"]);
    let params = fs::read(case("pdmodel").join("inference.pdiparams")).unwrap();
    fs::write(at("inference.pdiparams"), [&params[..], &[0; 4]].concat()).unwrap();
    refused("inference.pdmodel", &["4 bytes are stored behind the 8 parameters"]);
    // The last one is F32 [16, 5].
    fs::write(at("inference.pdiparams"), &params[..params.len() - 346]).unwrap();
    refused("inference.pdmodel", &["7 parameters are stored", "has 8"]);
    #[cfg(unix)]
    {
        let other = tempdir().unwrap();
        fs::write(other.path().join("secret"), &params).unwrap();
        fs::remove_file(at("inference.pdiparams")).unwrap();
        std::os::unix::fs::symlink(other.path().join("secret"), at("inference.pdiparams")).unwrap();
        refused("inference.pdmodel", &["not in the model's directory"]);
    }
    for bytes in [params, fs::read(case("json").join("inference.json")).unwrap()] {
        let error = parse_bytes(bytes).unwrap_err();
        assert!(error.to_string().contains("give the path of one of them"), "{error}");
    }
}
