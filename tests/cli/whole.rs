//! Whole models between Hugging Face directories and GGUF.

use anamnesis::parse;

use crate::amn;
use crate::canonical::canonical_gguf;
use crate::common::data;

fn path(path: &std::path::Path) -> String {
    path.to_string_lossy().into_owned()
}

fn stderr(arguments: &[&str]) -> String {
    let output = amn(arguments);
    assert_ne!(output.status.code(), Some(0), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn run(arguments: &[&str]) {
    let output = amn(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {text}");
}

#[test]
fn there_and_back() {
    let directory = crate::common::tempdir().unwrap();
    let from = path(&data().join("whole/llama/hf"));
    let [gguf, back, encoded] =
        ["a.gguf", "back", "b.gguf"].map(|name| path(&directory.path().join(name)));
    run(&["convert", &from, "--to", "gguf", "-o", &gguf]);
    run(&["remember", &gguf, "-o", &back]);
    let mut names: Vec<_> = std::fs::read_dir(&back)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "gguf_metadata.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
    );
    run(&["forget", &back, "--to", "gguf:q8_0", "-o", &encoded]);
    let encoded = parse(&encoded).unwrap();
    assert_eq!(
        encoded
            .tensor("blk.0.attn_q.weight")
            .unwrap()
            .dtype()
            .name(),
        "Q8_0"
    );
    // Any precision comes out, too.
    let fp8 = path(&directory.path().join("fp8"));
    run(&["forget", &gguf, "--to", "fp8-channel", "-o", &fp8]);
    let fp8 = parse(&fp8).unwrap();
    let weight = fp8
        .tensor("model.layers.0.self_attn.q_proj.weight")
        .unwrap();
    assert_eq!(weight.dtype().name(), "F8_E4M3");
    let config = std::fs::read_to_string(directory.path().join("fp8/config.json")).unwrap();
    assert!(config.contains("quantization_config") && config.contains("hidden_size"), "{config}");
}

/// A file has the tensors of a GGUF file under their own names, and so has a directory if it is
/// asked for.
#[test]
fn tensors_alone() {
    let directory = crate::common::tempdir().unwrap();
    let from = path(&canonical_gguf(data().join("whole/llama")));
    let [file, sharded] = ["out.safetensors", "out"].map(|name| path(&directory.path().join(name)));
    run(&["remember", &from, "-o", &file]);
    run(&["remember", &from, "-o", &sharded, "--tensors-only", "--max-shard-size", "20KB"]);
    for output in [file, sharded] {
        assert!(
            parse(output)
                .unwrap()
                .tensor("blk.0.attn_q.weight")
                .is_some()
        );
    }
}

/// The image tower has llama.cpp's name unless another is given, and the language model's note says
/// how it is written.
#[test]
fn image_towers() {
    let directory = crate::common::tempdir().unwrap();
    let from = path(&data().join("towers/qwen2_5_vl/hf"));
    let place = format!("{}/", path(directory.path()));
    run(&["convert", &from, "--to", "gguf", "--mmproj", "-o", &place]);
    let output = directory.path().join("mmproj-hf-gguf.gguf");
    assert!(
        parse(output)
            .unwrap()
            .tensor("v.patch_embd.weight.1")
            .is_some()
    );
}

#[test]
fn refusals() {
    let directory = crate::common::tempdir().unwrap();
    let out = path(&directory.path().join("out"));
    let demo = path(&data().join("demo/model-q4_k.gguf"));
    // One tensor is no model.
    let error = stderr(&["remember", &demo, "-o", &out]);
    assert!(error.contains("block_count"), "{error}");
    run(&["remember", &demo, "-o", &out, "--tensors-only"]);
    let from = path(&data().join("whole/qwen2/hf"));
    let error = stderr(&["convert", &from, "--to", "gguf", "-o", &out, "--tokenizer-pre", "morse"]);
    assert!(error.contains("morse"), "{error}");
}

/// As `llama-quantize` copies a file whose tensors have the type that is asked for.
#[test]
fn a_file_type_that_a_model_has_already_makes_a_copy() {
    let directory = crate::common::tempdir().unwrap();
    let at = |name: &str| path(&directory.path().join(name));
    let from = path(&data().join("whole/qwen2/hf"));
    let canonical = path(&canonical_gguf(data().join("whole/qwen2")));
    run(&["convert", &from, "--to", "gguf", "-o", &at("converted.gguf")]);
    run(&["forget", &from, "--to", "gguf:bf16", "-o", &at("copied.gguf")]);
    run(&["forget", &canonical, "--to", "gguf:bf16", "-o", &at("again.gguf")]);
    run(&["forget", &canonical, "--to", "gguf:f32", "-o", &at("wide.gguf")]);
    run(&["forget", &at("wide.gguf"), "--to", "gguf:f32", "-o", &at("wide-again.gguf")]);
    for (a, b) in [
        ("converted.gguf", "copied.gguf"),
        ("copied.gguf", "again.gguf"),
        ("wide.gguf", "wide-again.gguf"),
    ] {
        let [a, b] = [a, b].map(|name| parse(at(name)).unwrap());
        assert!(a.tensors().count() > 20 && a.tensors().count() == b.tensors().count());
        for t in a.tensors() {
            let other = b.tensor(t.name()).unwrap();
            assert_eq!(t.dtype(), other.dtype());
            assert!(t.bytes().unwrap() == other.bytes().unwrap(), "{}", t.name());
        }
    }
}

/// A vocabulary needs no weights; without them nothing says of which type they are, and the file says F16.
#[test]
fn a_vocabulary_without_weights() {
    let directory = crate::common::tempdir().unwrap();
    let (from, bare) = (data().join("whole/llama/hf"), directory.path().join("hf"));
    std::fs::create_dir(&bare).unwrap();
    for entry in std::fs::read_dir(&from).unwrap() {
        let entry = entry.unwrap();
        if entry
            .path()
            .extension()
            .is_none_or(|ending| ending != "safetensors")
        {
            std::fs::copy(entry.path(), bare.join(entry.file_name())).unwrap();
        }
    }
    let [with, without] =
        ["with.gguf", "without.gguf"].map(|name| path(&directory.path().join(name)));
    let (from, bare) = (path(&from), path(&bare));
    run(&["convert", &from, "--vocab-only", "--out-dtype", "f16", "-o", &with]);
    run(&["convert", &bare, "--vocab-only", "-o", &without]);
    assert!(std::fs::read(&with).unwrap() == std::fs::read(&without).unwrap());
    // Its name says what it is.
    run(&["convert", &bare, "--vocab-only", "--to", "gguf"]);
    assert!(directory.path().join("hf-vocab.gguf").is_file());
    for option in ["--mtp", "--no-mtp", "--fuse-qkv"] {
        let error = stderr(&["convert", &bare, option, "-o", &without, "-f"]);
        assert!(error.contains("there are no weights"), "{error}");
    }
    // What is no model stays none.
    std::fs::remove_file(directory.path().join("hf/config.json")).unwrap();
    let error = stderr(&["convert", &bare, "--vocab-only", "-o", &without, "-f"]);
    assert!(error.contains("there are no weights"), "{error}");
}

/// Options for parts of a model that do not go together, or not with the output.
#[test]
fn parts_that_do_not_apply() {
    let directory = crate::common::tempdir().unwrap();
    let from = path(&data().join("whole_prediction/qwen3_5/hf"));
    let output = path(&directory.path().join("out.gguf"));
    let parts = ["--vocab-only", "--mtp", "--no-mtp"];
    let ways = ["--fuse-qkv", "--fuse-gate-up-exps", "--fp8-as-q8"];
    for option in parts.into_iter().chain(ways) {
        let all = ["convert", &from, option];
        for more in [
            &["--to", "gguf", "--tensors-only"][..],
            &["--to", "gguf", "--mmproj"],
            &["--to", "gguf", "--include", "*"],
            &["--to", "safetensors"],
            &["--to", "mlx-4bit"],
        ] {
            let more = [&all[..], more, &["-f"]].concat();
            let found = amn(&more);
            assert_eq!(found.status.code(), Some(2), "{more:?}");
            let error = String::from_utf8(found.stderr).unwrap();
            assert!(error.contains(option), "{more:?}: {error}");
        }
        for other in parts
            .into_iter()
            .filter(|other| parts.contains(&option) && *other != option)
        {
            let error = stderr(&[&all[..], &[other, "--to", "gguf", "-o", &output]].concat());
            assert!(error.contains("cannot be used with"), "{error}");
        }
    }
    for option in ["--vocab-only", "--mtp", "--fp8-as-q8"] {
        let error = stderr(&["convert", &from, "--to", "gguf:q4_0", option, "-o", &output]);
        assert!(error.contains("does not apply"), "{error}");
    }
    for option in ["--no-mtp", "--fuse-qkv"] {
        let error = stderr(&["forget", &from, "--to", "nf4", option]);
        assert!(error.contains("does not apply"), "{error}");
        run(&["forget", &from, "--to", "gguf:q8_0", option, "-f", "-o", &output]);
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    run(&["convert", &from, "--mtp", "--fuse-qkv", "-f", "-o", &output]);
    let names: Vec<_> = parse(&output)
        .unwrap()
        .tensors()
        .map(|t| t.name().to_owned())
        .collect();
    assert!(names.contains(&"blk.2.attn_qkv.weight".to_owned()), "{names:?}");
    assert!(names.iter().all(|name| !name.starts_with("blk.0.")), "{names:?}");
}
