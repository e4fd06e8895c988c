//! Options of `amn forget`, its exit codes, and directories made in parts.

use anamnesis::parse;

use super::{model, stderr_and_code_of, stdout_of};
use crate::common::directory::{assert_same_tree, names_in, tree, write_files, write_shards};
use crate::common::forget::{PLAIN, shards, whole};
use crate::common::{data, f32s, file, raw};

#[test]
fn options_reach_the_encoder() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    let path = |name: &str| root.path().join(name).to_string_lossy().into_owned();
    let run = |name: &str, more: &[&str]| {
        stdout_of(&[&["forget", &input, "--force", "-o", &path(name)], more].concat());
        parse(path(name)).unwrap()
    };
    let scales = run("a.safetensors", &["--to", "w4a16", "--group-size", "32"]);
    let shape =
        |model: &anamnesis::ParsedModel, name: &str| model.tensor(name).unwrap().shape().to_vec();
    assert_eq!(shape(&scales, "model.layers.0.self_attn.q_proj.weight_scale"), [128, 4]);
    let mut outputs = vec![];
    for rule in ["compressed-tensors", "floor", "rceil"] {
        run("b.safetensors", &["--to", "mxfp4", "--scale-rule", rule]);
        outputs.push(std::fs::read(path("b.safetensors")).unwrap());
    }
    assert!(outputs[0] != outputs[1] && outputs[1] != outputs[2]);
    let types = |model: &anamnesis::ParsedModel| {
        let mut types: Vec<String> = model
            .tensors()
            .filter(|t| t.shape().len() == 2)
            .map(|t| t.dtype().to_string())
            .collect();
        types.sort();
        types.dedup();
        types
    };
    assert_eq!(types(&run("c.gguf", &["--to", "gguf:q4_0", "--pure"])), ["Q4_0"]);
    assert_ne!(types(&run("c.gguf", &["--to", "gguf:q4_0"])), ["Q4_0"]);
    for (more, word) in [
        (["--to", "mxfp4", "--scale-rule", "best"], "scale rules: "),
        (["--to", "w4a16", "--group-size", "0"], ""),
    ] {
        let (message, code) = stderr_and_code_of(&[&["forget", &input][..], &more].concat());
        assert!(message.contains(word) && (code == 6 || code == 2), "{code}: {message}");
    }
}

#[test]
fn exit_codes() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    for scheme in ["nf5", "", "gguf:", "gguf:q4_9", "w4a16 "] {
        let (message, code) = stderr_and_code_of(&["forget", &input, "--to", scheme]);
        assert_eq!(code, 2, "{scheme}: {message}");
        assert!(message.starts_with("error: ") && message.contains("near are "), "{message}");
    }
    assert_eq!(stderr_and_code_of(&["forget", &input]).1, 2);
    assert_eq!(
        stderr_and_code_of(&[
            "forget",
            &root.path().join("missing").to_string_lossy(),
            "--to",
            "nf4"
        ])
        .1,
        7
    );
    // An existing output is not replaced.
    stdout_of(&["forget", &input, "--to", "nf4"]);
    let (message, code) = stderr_and_code_of(&["forget", &input, "--to", "nf4"]);
    assert!(code == 7 && message.contains("--force"), "{message}");
    let nan = root.path().join("nan.safetensors");
    std::fs::write(&nan, file(&[raw("a.weight", "F32", &[1, 64], f32s(&[f32::NAN; 64]))], &[]))
        .unwrap();
    let (message, code) = stderr_and_code_of(&["forget", nan.to_str().unwrap(), "--to", "nf4"]);
    assert!(code == 6 && message.contains("`a.weight`, row 0, column 0"), "{code}: {message}");
    assert_eq!(names_in(root.path(), "").len(), 3, "nothing is left behind");
}

/// Types of fewer than three bits need an importance matrix; the message says so.
#[test]
fn an_importance_matrix_is_asked_for() {
    let root = crate::common::tempdir().unwrap();
    let input = root.path().join("in.safetensors");
    std::fs::write(&input, whole(1, 256, 256)).unwrap();
    let input = input.to_string_lossy().into_owned();
    for scheme in ["gguf:iq1_s", "gguf:iq2_xxs", "gguf:IQ2_XS", "gguf:q2_k_s"] {
        let (message, code) = stderr_and_code_of(&["forget", &input, "--to", scheme]);
        assert!(
            code == 2 && message.contains("takes an importance matrix (--imatrix)"),
            "{scheme}: {message}"
        );
        assert!(message.contains("tensor `"), "{message}");
    }
    let other = data()
        .join("imatrix/matrix.gguf")
        .to_string_lossy()
        .into_owned();
    let (message, code) =
        stderr_and_code_of(&["forget", &input, "--to", "gguf:iq2_xxs", "--imatrix", &other]);
    assert!(
        code == 3 && message.contains("_proj.weight`: the importance matrix has 32 values"),
        "{code}: {message}"
    );
    let (message, _) =
        stderr_and_code_of(&["forget", &input, "--to", "gguf:iq2_xxs", "--imatrix", &input]);
    assert!(message.contains("in.safetensors") || message.contains("importance"), "{message}");
}

#[test]
fn directories_in_parts() {
    let root = crate::common::tempdir().unwrap();
    let input = root.path().join("model");
    write_shards(&input, &shards(3, 128, 128));
    write_files(&input, &[("config.json", PLAIN)]);
    let (input, path) = (input.to_string_lossy().into_owned(), |name: &str| root.path().join(name));
    stdout_of(&["forget", &input, "--to", "gptq", "-o", path("want").to_str().unwrap()]);
    let out = path("out").to_string_lossy().into_owned();
    for part in ["1/2", "2/2"] {
        stdout_of(&["forget", &input, "--to", "gptq", "-o", &out, "--part", part]);
    }
    let (message, code) =
        stderr_and_code_of(&["forget", &input, "--to", "awq", "-o", &out, "--part", "1/2"]);
    assert!(code == 7 && message.contains("other parameters"), "{message}");
    stdout_of(&["remember", "--finish", &out]);
    assert_same_tree(&tree(&path("want")), &tree(&path("out")), "two parts");
}
