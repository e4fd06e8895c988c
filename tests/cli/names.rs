//! `--rename`, `--rename-file` and `--drop`, and patterns of configs that Python alone understands.

use std::path::{Path, PathBuf};

use crate::amn;
use crate::common::data;

/// Names of the tensors of a model.
fn names(path: &Path) -> Vec<String> {
    let model = anamnesis::parse(path).unwrap();
    let mut names: Vec<String> = model.tensors().map(|t| t.name().to_owned()).collect();
    names.sort();
    names
}

fn demo() -> PathBuf {
    data().join("demo/model-fp8.safetensors")
}

/// Runs `amn COMMAND INPUT … -o OUTPUT`. Returns the exit code and stderr.
fn run(command: &str, input: &Path, output: &Path, options: &[&str]) -> (Option<i32>, String) {
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    let mut all = vec![command, input, "-o", output];
    all.extend(options);
    let run = amn(&all);
    let text = String::from_utf8(run.stderr).unwrap();
    (run.status.code(), text)
}

#[test]
fn tensors_get_other_names() {
    let dir = crate::common::tempdir().unwrap();
    let file = dir.path().join("names.txt");
    std::fs::write(&file, "# names\n\nlayers.*.wq.weight=$1.q\n").unwrap();
    let json = dir.path().join("names.json");
    std::fs::write(&json, r#"{"re:layers\\.(\\d+)\\.attention": "blk.$1"}"#).unwrap();
    let rows: [(&[&str], &str); 6] = [
        (&["--rename", "layers.*=model.$1"], "model.0.attention.wq.weight"),
        (&["--rename", "re:layers\\.(\\d+)\\.=x${1}$$"], "x0$attention.wq.weight"),
        (&["--rename", "re:layers\\.="], "0.attention.wq.weight"),
        (&["--rename", "{layers,blocks}.[0-3].*=$1"], "attention.wq.weight"),
        (&["--rename-file", file.to_str().unwrap()], "0.attention.q"),
        (&["--rename-file", json.to_str().unwrap()], "blk.0.wq.weight"),
    ];
    let expected = dir.path().join("expected.safetensors");
    assert_eq!(run("remember", &demo(), &expected, &[]).0, Some(0));
    let expected = anamnesis::parse(&expected).unwrap();
    let expected = expected
        .tensors()
        .next()
        .unwrap()
        .bytes()
        .unwrap()
        .into_owned();
    for (i, (options, name)) in rows.into_iter().enumerate() {
        let output = dir.path().join(format!("{i}.safetensors"));
        assert_eq!(run("remember", &demo(), &output, options), (Some(0), String::new()));
        assert_eq!(names(&output), [name]);
        let model = anamnesis::parse(&output).unwrap();
        assert_eq!(model.tensor(name).unwrap().bytes().unwrap(), expected);
    }
    // Codes and scales are called after the new name.
    let output = dir.path().join("q.safetensors");
    let options = ["--to", "fp8", "--rename", "layers.*=m.$1"];
    assert_eq!(run("forget", &demo(), &output, &options).0, Some(0));
    assert_eq!(names(&output), ["m.0.attention.wq.weight", "m.0.attention.wq.weight_scale"]);
    assert!(
        anamnesis::parse(&output)
            .unwrap()
            .remember_to_bytes(anamnesis::TargetDtype::BF16)
            .is_ok()
    );
}

#[test]
fn names_of_gguf_tensors() {
    let dir = crate::common::tempdir().unwrap();
    let input = data().join("demo/model-q4_k.gguf");
    let output = dir.path().join("out.gguf");
    let options = ["--to", "gguf", "--rename", "blk.0.*=blk.7.$1"];
    assert_eq!(run("convert", &input, &output, &options), (Some(0), String::new()));
    let (from, to) = (anamnesis::parse(&input).unwrap(), anamnesis::parse(&output).unwrap());
    let (from, to) = (from.tensors().next().unwrap(), to.tensors().next().unwrap());
    assert_eq!(to.name(), "blk.7.ffn_up.weight");
    assert_eq!((from.dtype(), from.bytes().unwrap()), (to.dtype(), to.bytes().unwrap()));
    // Blocks that are copied are selected, too.
    let none =
        run("convert", &input, &dir.path().join("no.gguf"), &["--to", "gguf", "--exclude", "*"]);
    assert_eq!(none.0, Some(2), "{}", none.1);
}

#[test]
fn what_is_wrong_with_names() {
    let dir = crate::common::tempdir().unwrap();
    let output = dir.path().join("out");
    let tiny = data().join("compressed_tensors/tiny_mixed/model");
    let rows: [(&[&str], i32, &[&str]); 10] = [
        (
            &["--rename", "model.layers.0.self_attn.*_proj.weight=same"],
            2,
            &["`same`", "k_proj.weight`:", "q_proj.weight`"],
        ),
        (&["--rename", "nothing.*=x"], 2, &["`nothing.*`"]),
        (
            &["--rename", "model.*=m.$1", "--include", "model.*"],
            2,
            &["--include: ", "`model.*` matches names of the input alone", "such as `"],
        ),
        (&["--rename", "*=a", "--rename", "*=b"], 2, &["`*`"]),
        (&["--rename", "model.*=$2"], 2, &["group 2"]),
        (&["--rename", "model.*=$x"], 2, &["`$1`"]),
        (&["--rename", "re:.*="], 2, &["no name"]),
        (&["--drop", "nothing.*"], 2, &["`nothing.*`"]),
        (&["--drop", "*.weight_scale"], 2, &["weight_scale", "is a part of"]),
        (&["--drop", "*"], 2, &["all are dropped"]),
    ];
    for (options, code, parts) in rows {
        let (found, text) = run("remember", &tiny, &output, options);
        assert_eq!(found, Some(code), "{options:?} {text}");
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    }
}

/// Patterns with old names, or with names that a whole model does not keep, choose nothing, and a note
/// says so.
#[test]
fn patterns_of_old_names_are_noted() {
    let dir = crate::common::tempdir().unwrap();
    let tiny = data().join("guide/TinyLlama");
    let output = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let rows: [(&str, &[&str], &str); 3] = [
        ("nf4", &["--rename", "model.*=m.$1", "--exclude", "model.*.mlp.*"], "such as `"),
        ("gguf:q8_0", &["--exclude", "*mlp.up_proj*"], "such as `"),
        ("gguf:q8_0", &["--exclude", "*ffn_up*"], ""),
    ];
    for (i, (scheme, options, expected)) in rows.into_iter().enumerate() {
        let arguments =
            ["forget", tiny.to_str().unwrap(), "--to", scheme, "-f", "-o", &output(&i.to_string())];
        let run = amn(&[&arguments[..], options].concat());
        assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
        let text = String::from_utf8(run.stdout).unwrap();
        let note = text
            .lines()
            .find(|line| line.contains("names of the input alone"));
        assert_eq!(note.is_none(), expected.is_empty(), "{text}");
        assert!(note.is_none_or(|note| note.contains(expected)), "{text}");
    }
}

#[test]
fn dropped_weights_go_with_their_scales() {
    let dir = crate::common::tempdir().unwrap();
    let output = dir.path().join("out");
    let tiny = data().join("compressed_tensors/tiny_mixed/model");
    // By the name of the weight, and by that of its codes.
    let options = [
        "--drop",
        "*.q_proj.weight",
        "--drop",
        "*.up_proj.weight_packed",
        "--rename",
        "lm_head.*=head.$1",
    ];
    assert_eq!(run("remember", &tiny, &output, &options).0, Some(0));
    let all = names(&output);
    assert!(all.contains(&"head.weight".to_owned()), "{all:?}");
    assert!(
        !all.iter()
            .any(|name| name.contains("q_proj") || name.contains("up_proj")),
        "{all:?}"
    );
    // The index has the new names, and nothing else.
    let index = std::fs::read(output.join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let mut listed: Vec<String> = index["weight_map"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    listed.sort();
    assert_eq!(listed, all);
    // The config that forget writes names modules as they are called now.
    let output = dir.path().join("q");
    let options = ["--to", "fp8", "--rename", "lm_head.*=head.$1"];
    assert_eq!(run("forget", &tiny, &output, &options).0, Some(0));
    let config = std::fs::read_to_string(output.join("config.json")).unwrap();
    assert!(config.contains("\"head\"") && !config.contains("\"lm_head\""), "{config}");
}

/// A run is continued with the same names only.
#[test]
fn names_are_parameters_of_a_run() {
    let dir = crate::common::tempdir().unwrap();
    let output = dir.path().join("out");
    let tiny = data().join("compressed_tensors/tiny_mixed/model");
    let first = ["--part", "1/2", "--drop", "lm_head.*"];
    assert_eq!(run("remember", &tiny, &output, &first).0, Some(0));
    let (code, text) = run("remember", &tiny, &output, &["--part", "2/2"]);
    assert_eq!(code, Some(7));
    assert!(text.contains("names"), "{text}");
}

/// A copy of a model with the targets of its config.
fn with_targets(dir: &Path, attention: &str, mlp: &str) -> PathBuf {
    let from = data().join("compressed_tensors/tiny_mixed/model");
    let to = dir.join("model");
    std::fs::create_dir_all(&to).unwrap();
    for entry in std::fs::read_dir(&from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let text = text
        .replace("re:.*self_attn.*_proj$", attention)
        .replace("re:.*mlp.*_proj$", mlp);
    std::fs::write(to.join("config.json"), text).unwrap();
    to
}

#[test]
fn expressions_of_python_in_configs() {
    let dir = crate::common::tempdir().unwrap();
    let tiny = data().join("compressed_tensors/tiny_mixed/model");
    let expected = dir.path().join("expected.safetensors");
    assert_eq!(run("remember", &tiny, &expected, &[]).0, Some(0));
    let model = with_targets(dir.path(), "re:(?!.*mlp).*_proj$", "re:.*(?<=mlp\\\\.)(?!x).*_proj$");
    let output = dir.path().join("out.safetensors");
    assert_eq!(run("remember", &model, &output, &[]), (Some(0), String::new()));
    assert_eq!(std::fs::read(expected).unwrap(), std::fs::read(output).unwrap());
    // What takes forever is refused.
    let model = with_targets(dir.path(), "re:(?=x|m)(.|.)*(?!p)(.|.)*!", "re:.*mlp.*_proj$");
    let (code, text) = run("remember", &model, &dir.path().join("no.safetensors"), &[]);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("steps"), "{text}");
}
