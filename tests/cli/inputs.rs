//! Several inputs, models in the cache of Hugging Face, and names of files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::amn;
use crate::common::{data, f32s, file, raw};

fn demo() -> PathBuf {
    data().join("demo/model-fp8.safetensors")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A directory with the copies `a.safetensors` and `b-fp8.safetensors` of a model.
fn two_models() -> tempfile::TempDir {
    let dir = crate::common::tempdir().unwrap();
    for name in ["a.safetensors", "b-fp8.safetensors"] {
        fs::copy(demo(), dir.path().join(name)).unwrap();
    }
    dir
}

/// Runs the program in `directory`.
fn amn_in(directory: &Path, arguments: &[&str], variables: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_amn"));
    command
        .current_dir(directory)
        .args(arguments)
        .env("HOME", directory);
    for name in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.output().unwrap()
}

#[test]
fn each_of_several_inputs_has_an_output() {
    let dir = two_models();
    let inputs = ["a.safetensors", "b-fp8.safetensors"];
    let run = amn_in(dir.path(), &["remember", inputs[0], inputs[1], "-o", "out/"], &[]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let shown = text(&run.stdout);
    assert!(
        shown.contains("Input:  a.safetensors") && shown.contains("Output: out/b-bf16.safetensors"),
        "{shown}"
    );
    let expected = fs::read(dir.path().join("out/a-bf16.safetensors")).unwrap();
    assert_eq!(fs::read(dir.path().join("out/b-bf16.safetensors")).unwrap(), expected);
    // Beside the inputs, and of the other commands.
    let run = amn_in(dir.path(), &["forget", inputs[0], inputs[1], "--to", "q8_0"], &[]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    assert!(dir.path().join("a-q8_0.gguf").is_file() && dir.path().join("b-q8_0.gguf").is_file());
    let run = amn_in(
        dir.path(),
        &["convert", inputs[0], inputs[1], "--to", "npz", "-o", "out", "--json"],
        &[],
    );
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let lines = text(&run.stdout);
    let lines: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1]["output"], "out/b-bf16.npz");
    // One input can go to a directory as well.
    let run = amn_in(dir.path(), &["remember", inputs[0], "-o", "one/"], &[]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    assert!(dir.path().join("one/a-bf16.safetensors").is_file());
}

#[test]
fn several_inputs_that_cannot_be() {
    let dir = two_models();
    fs::copy(demo(), dir.path().join("a-fp8.safetensors")).unwrap();
    fs::write(dir.path().join("c.safetensors"), b"no model").unwrap();
    let rows: [(&[&str], i32, &str); 3] = [
        (&["a.safetensors", "b-fp8.safetensors", "-o", "out.safetensors"], 2, "directory"),
        (
            &["a.safetensors", "b-fp8.safetensors", "a-fp8.safetensors"],
            2,
            "so is that of `a.safetensors`",
        ),
        (&["a.safetensors", "c.safetensors", "-o", "out/"], 6, "c.safetensors"),
    ];
    for (arguments, code, part) in rows {
        let all: Vec<&str> = ["remember"].iter().chain(arguments).copied().collect();
        let run = amn_in(dir.path(), &all, &[]);
        assert_eq!(run.status.code(), Some(code), "{}", text(&run.stderr));
        assert!(text(&run.stderr).contains(part), "{}", text(&run.stderr));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4, "something was written");
    }
    // What is wrong with data shows at work: the first stays.
    let nan = file(&[raw("layers.0.q_proj.weight", "F32", &[4, 64], f32s(&[f32::NAN; 256]))], &[]);
    fs::write(dir.path().join("d.safetensors"), nan).unwrap();
    let run = amn_in(
        dir.path(),
        &["forget", "a.safetensors", "d.safetensors", "--to", "q8_0", "-o", "out/"],
        &[],
    );
    assert_eq!(run.status.code(), Some(6));
    let shown = text(&run.stderr);
    assert!(
        shown.contains("1 of 2 inputs are converted") && shown.contains("d.safetensors"),
        "{shown}"
    );
    assert!(dir.path().join("out/a-q8_0.gguf").is_file());
    assert!(!dir.path().join("out/d-q8_0.gguf").exists());
}

/// A cache with the snapshots `hashes` of `org/tiny`.
#[cfg(unix)]
fn cache_with(dir: &Path, hashes: &[&str]) -> PathBuf {
    let folder = dir.join("hub/models--org--tiny");
    fs::create_dir_all(folder.join("blobs")).unwrap();
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::copy(demo(), folder.join("blobs/0123")).unwrap();
    for hash in hashes {
        let snapshot = folder.join("snapshots").join(hash);
        fs::create_dir_all(&snapshot).unwrap();
        std::os::unix::fs::symlink("../../blobs/0123", snapshot.join("model.safetensors")).unwrap();
    }
    folder
}

#[test]
#[cfg(unix)]
fn models_in_the_cache_of_hugging_face() {
    let dir = crate::common::tempdir().unwrap();
    let folder = cache_with(dir.path(), &["aaaa", "bbbb"]);
    let hub = dir.path().join("hub");
    let variables: [(&str, &Path); 1] = [("HF_HUB_CACHE", &hub)];
    let run = |arguments: &[&str]| amn_in(dir.path(), arguments, &variables);
    // Without a branch it is unclear which one is meant.
    let which = run(&["parse", "org/tiny"]);
    assert_eq!(which.status.code(), Some(3));
    assert!(text(&which.stderr).contains("aaaa, bbbb"), "{}", text(&which.stderr));
    fs::write(folder.join("refs/main"), "bbbb").unwrap();
    for arguments in [
        &["parse", "org/tiny"][..],
        &["ls", "org/tiny"],
        &["show", "org/tiny"],
        &["inspect", "org/tiny@aaaa"],
        &["scan", "org/tiny"],
        &["check", "org/tiny"],
        &["check", "-r", "org/tiny"],
        &["diff", "org/tiny", "org/tiny@aaaa"],
        &["remember", "org/tiny", "--dry-run"],
    ] {
        let found = run(arguments);
        assert_eq!(found.status.code(), Some(0), "{arguments:?} {}", text(&found.stderr));
    }
    // The output is in the current directory, under the model's name.
    let found = run(&["remember", "org/tiny"]);
    assert_eq!(found.status.code(), Some(0), "{}", text(&found.stderr));
    assert!(dir.path().join("tiny-BF16").is_dir());
    let file = folder.join("snapshots/bbbb/model.safetensors");
    let found = run(&["convert", file.to_str().unwrap(), "--to", "npz"]);
    assert_eq!(found.status.code(), Some(0), "{}", text(&found.stderr));
    assert!(dir.path().join("model-bf16.npz").is_file());
    // And never in the cache.
    let output = folder.join("snapshots/bbbb/out.safetensors");
    let refused =
        run(&["remember", file.to_str().unwrap(), "--force", "-o", output.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(7));
    assert!(text(&refused.stderr).contains("cache of Hugging Face"), "{}", text(&refused.stderr));
    // A path of that name comes first.
    fs::create_dir(dir.path().join("org")).unwrap();
    fs::write(dir.path().join("org/tiny"), b"no model").unwrap();
    assert_eq!(run(&["parse", "org/tiny"]).status.code(), Some(6));
    fs::remove_dir_all(dir.path().join("org")).unwrap();
    // What is not fetched to its end, is refused.
    fs::write(folder.join("blobs/4567.incomplete"), b"").unwrap();
    let unfinished = run(&["parse", "org/tiny"]);
    assert_eq!(unfinished.status.code(), Some(3));
    assert!(text(&unfinished.stderr).contains("incomplete"), "{}", text(&unfinished.stderr));
    fs::remove_file(folder.join("blobs/4567.incomplete")).unwrap();
    std::os::unix::fs::symlink("../../blobs/89", folder.join("snapshots/bbbb/tokenizer.json"))
        .unwrap();
    let dangling = run(&["parse", "org/tiny"]);
    assert_eq!(dangling.status.code(), Some(3));
    assert!(text(&dangling.stderr).contains("tokenizer.json"), "{}", text(&dangling.stderr));
    // A pipeline has models in folders.
    let snapshot = folder.join("snapshots/bbbb");
    fs::remove_file(snapshot.join("tokenizer.json")).unwrap();
    assert_eq!(run(&["parse", "org/tiny"]).status.code(), Some(0));
    fs::create_dir(snapshot.join("text_encoder")).unwrap();
    std::os::unix::fs::symlink("../../89", snapshot.join("text_encoder/config.json")).unwrap();
    let dangling = run(&["parse", "org/tiny"]);
    assert_eq!(dangling.status.code(), Some(3));
    assert!(text(&dangling.stderr).contains("text_encoder"), "{}", text(&dangling.stderr));
    let missing = run(&["parse", "org/other"]);
    assert_eq!(missing.status.code(), Some(7));
    assert!(text(&missing.stderr).contains("hf download org/other"), "{}", text(&missing.stderr));
}

/// The caches of the other variables are found, too.
#[test]
#[cfg(unix)]
fn places_of_the_cache() {
    let dir = crate::common::tempdir().unwrap();
    cache_with(dir.path(), &["aaaa"]);
    let hub = dir.path().join("hub");
    for name in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"] {
        assert_eq!(
            amn_in(dir.path(), &["parse", "org/tiny"], &[(name, &hub)])
                .status
                .code(),
            Some(0)
        );
    }
    let home = [("HF_HOME", dir.path())];
    assert_eq!(
        amn_in(dir.path(), &["parse", "org/tiny"], &home)
            .status
            .code(),
        Some(0)
    );
    for (below, variables) in
        [(".cache/huggingface", &[][..]), ("x/huggingface", &[("XDG_CACHE_HOME", "x")])]
    {
        let cache = dir.path().join(below);
        fs::create_dir_all(&cache).unwrap();
        fs::rename(&hub, cache.join("hub")).unwrap();
        let variables: Vec<(&str, &Path)> =
            variables.iter().map(|(n, v)| (*n, Path::new(*v))).collect();
        assert_eq!(
            amn_in(dir.path(), &["parse", "org/tiny"], &variables)
                .status
                .code(),
            Some(0),
            "{below}"
        );
        fs::rename(cache.join("hub"), &hub).unwrap();
    }
}

/// Names of files need not be Unicode.
#[test]
#[cfg(target_os = "linux")]
fn bytes_of_names_stay() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::OsStrExt;
    let dir = crate::common::tempdir().unwrap();
    let name = |bytes: &[u8]| dir.path().join(OsStr::from_bytes(bytes));
    let input = name(b"m\xff-fp8.safetensors");
    fs::copy(demo(), &input).unwrap();
    let run = |arguments: &[&OsStr]| {
        let output = Command::new(env!("CARGO_BIN_EXE_amn"))
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    };
    run(&["remember".as_ref(), input.as_os_str()]);
    assert!(name(b"m\xff-bf16.safetensors").is_file());
    run(&["remember".as_ref(), input.as_os_str(), "--max-shard-size".as_ref(), "1KB".as_ref()]);
    assert!(name(b"m\xff-BF16").is_dir());
    // The files of a split output, too.
    let output: OsString = name(b"s\xff.gguf").into();
    let whole = data().join("gguf-files/whole.gguf");
    run(&[
        "convert".as_ref(),
        whole.as_os_str(),
        "--to".as_ref(),
        "gguf".as_ref(),
        "-o".as_ref(),
        &output,
        "--max-shard-size".as_ref(),
        "1KB".as_ref(),
    ]);
    assert!(name(b"s\xff-00001-of-00002.gguf").is_file());
}

/// What is no model is named, alone and in a directory.
#[test]
fn other_models_are_named() {
    let dir = crate::common::tempdir().unwrap();
    let rows: [(&str, &[u8], &str); 2] = [
        (
            "saved_model.pb",
            b"\x08\x01\x12\xa3\xe9\x02\x0a\xb4\x3c\x12\x90\x3c\x0a\x3c",
            "TensorFlow",
        ),
        ("model.safetensors.index.json", b"{\"weight_map\": {}}", "give the directory"),
    ];
    for (name, bytes, part) in rows {
        let below = dir.path().join(name.replace('.', "_"));
        fs::create_dir(&below).unwrap();
        let path = below.join(name);
        fs::write(&path, bytes).unwrap();
        let run = amn(&["parse", path.to_str().unwrap()]);
        assert_eq!(run.status.code(), Some(6), "{name}");
        assert!(text(&run.stderr).contains(part), "{}", text(&run.stderr));
        if !name.ends_with("json") {
            let run = amn(&["parse", below.to_str().unwrap()]);
            assert!(matches!(run.status.code(), Some(3 | 6)), "{name}");
            assert!(text(&run.stderr).contains(part), "{}", text(&run.stderr));
        }
    }
}
