//! `--gguf-kv` and `--gguf-metadata`: values get the types of their keys, whatever command writes
//! them.

use std::path::Path;

use anamnesis::{GgufMetadataValue as V, parse};

use crate::amn;
use crate::common::data;

fn value(path: &Path, key: &str) -> Option<V> {
    parse(path).unwrap().gguf().unwrap().metadata().get(key)
}

/// The commands that write GGUF, with their arguments before the options.
fn commands() -> Vec<Vec<String>> {
    let file = |name: &str| data().join(name).to_string_lossy().into_owned();
    let base = file("adapters/base-q8_0.gguf");
    let adapter = file("adapters/plain.gguf");
    let all: [&[&str]; 5] = [
        &["remember", &base],
        &["convert", &base, "--to", "gguf"],
        &["convert", &base, "--to", "gguf", "--out-dtype", "f32"],
        &["forget", &base, "--to", "gguf:q4_0", "--allow-requantize"],
        &["merge", &base, &adapter, "--to", "gguf"],
    ];
    let owned = |words: &&[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    all.iter().map(owned).collect()
}

#[test]
fn keys_keep_their_types() {
    let root = crate::common::tempdir().unwrap();
    let json = root.path().join("kv.json");
    std::fs::write(&json, r#"{"llama.rope.freq_base": 1000000, "general.url": "7"}"#).unwrap();
    let json = json.to_string_lossy().into_owned();
    for (i, mut arguments) in commands().into_iter().enumerate() {
        let output = root.path().join(format!("{i}.gguf"));
        let more = [
            "--gguf-metadata",
            &json,
            "--gguf-kv",
            "tokenizer.ggml.eos_token_id=7",
            "--gguf-kv",
            "general.name=9",
            "--gguf-kv",
            "my.number=-3",
            "--gguf-kv",
            "my.small:u8=3",
            "-o",
        ];
        arguments.extend(more.map(str::to_owned));
        arguments.push(output.to_string_lossy().into_owned());
        let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let done = amn(&texts);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        for (key, expected) in [
            ("llama.rope.freq_base", V::F32(1e6)),
            ("general.url", V::String("7".into())),
            ("tokenizer.ggml.eos_token_id", V::U32(7)),
            ("general.name", V::String("9".into())),
            ("my.number", V::I64(-3)),
            ("my.small", V::U8(3)),
        ] {
            assert_eq!(value(&output, key), Some(expected), "{arguments:?}: {key}");
        }
    }
}

#[test]
fn keys_are_removed() {
    let root = crate::common::tempdir().unwrap();
    for (i, mut arguments) in commands().into_iter().enumerate() {
        let output = root.path().join(format!("{i}.gguf"));
        let more = [
            "--gguf-kv",
            "llama.rope.freq_base=null",
            "--gguf-kv",
            "a.b=1",
            "--gguf-kv",
            "a.b=null",
            "-o",
        ];
        arguments.extend(more.map(str::to_owned));
        arguments.push(output.to_string_lossy().into_owned());
        let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let done = amn(&texts);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(value(&output, "llama.rope.freq_base"), None, "{arguments:?}");
        assert_eq!(value(&output, "a.b"), None);
        assert!(value(&output, "general.architecture").is_some());
    }
}

/// A value for which llama.cpp would not load the output, from a file and from a directory.
#[test]
fn what_makes_a_model_unloadable_is_refused() {
    let root = crate::common::tempdir().unwrap();
    let output = root.path().join("out.gguf").to_string_lossy().into_owned();
    let json = root.path().join("kv.json");
    std::fs::write(&json, r#"{"llama.block_count": 7}"#).unwrap();
    let json = json.to_string_lossy().into_owned();
    let mut all = commands();
    let directory = data().join("whole/llama/hf").to_string_lossy().into_owned();
    for to in [
        &["convert", "--to", "gguf"][..],
        &["convert", "--to", "gguf", "--out-dtype", "f32"],
        &["forget", "--to", "gguf:q8_0"],
    ] {
        let words = to.iter().map(|word| (*word).to_owned());
        all.push(words.chain([directory.clone()]).collect());
    }
    for arguments in all {
        for option in [["--gguf-kv", "llama.block_count=7"], ["--gguf-metadata", &json]] {
            let mut texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
            texts.extend(option);
            texts.extend(["-o", &output]);
            let done = amn(&texts);
            let error = String::from_utf8_lossy(&done.stderr).into_owned();
            assert_eq!(done.status.code(), Some(2), "{texts:?}: {error}");
            assert!(
                error.contains("GGUF metadata `llama.block_count`: llama.cpp would not load"),
                "{error}"
            );
            texts.push("--tensors-only");
            let done = amn(&texts);
            assert!(done.status.success(), "{texts:?}");
            std::fs::remove_file(&output).unwrap();
        }
    }
}

/// A value of another type, and a key that is not for callers.
#[test]
fn what_does_not_fit_is_refused() {
    let root = crate::common::tempdir().unwrap();
    let output = root.path().join("out.gguf").to_string_lossy().into_owned();
    for wrong in [
        "llama.block_count=x",
        "llama.block_count=1.5",
        "llama.rope.freq_base=x",
        "split.no=1",
        "general.alignment=3",
        "no.such.key=null",
    ] {
        for mut arguments in commands() {
            arguments.extend(["--gguf-kv", wrong, "-o", &output].map(str::to_owned));
            let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let done = amn(&texts);
            let error = String::from_utf8_lossy(&done.stderr).into_owned();
            assert_eq!(done.status.code(), Some(2), "{arguments:?}: {error}");
        }
    }
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}
