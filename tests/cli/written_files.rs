//! Every way in which the program writes a file: what is never replaced, and what a file that it
//! makes is like.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::data;
use crate::common::directory::tree;

/// A model in a directory, with an adapter and an imatrix beside it.
struct Scene {
    root: tempfile::TempDir,
}

/// What a writer is called in messages, its arguments, and the extension that its output has.
/// `IN` is the input and `OUT` the file that is written.
type Writer = (&'static str, &'static str, &'static str);

const WRITERS: &[Writer] = &[
    ("remember", "remember IN -o OUT", "safetensors"),
    ("forget", "forget IN --to nf4 -o OUT", "safetensors"),
    ("forget to GGUF", "forget IN --to gguf:q8_0 --tensors-only --pure -o OUT", "gguf"),
    ("convert to GGUF", "convert IN --to gguf --tensors-only -o OUT", "gguf"),
    ("convert to PyTorch", "convert IN --to pth -o OUT", "pth"),
    ("convert to MessagePack", "convert IN --to msgpack -o OUT", "msgpack"),
    ("convert to Burnpack", "convert IN --to burnpack -o OUT", "bpk"),
    ("convert to NPZ", "convert IN --to npz -o OUT", "npz"),
    ("merge", "merge IN adapter -o OUT", "safetensors"),
    ("a list of sums", "remember IN -o ok.safetensors --force --manifest OUT", "txt"),
    ("a list of sums of a directory", "remember DIR -o ok --force --manifest OUT", "txt"),
    ("an array", "show IN NAME --npy OUT", "npy"),
    ("a page", "report IN -o OUT", "html"),
    ("a page on two models", "report IN adapter/adapter_model.safetensors -o OUT", "html"),
    ("a page of diff", "diff IN IN --html OUT", "html"),
    ("a page of check", "check IN --html OUT", "html"),
    ("a page of forget", "forget IN --to nf4 -o ok.safetensors --force --html OUT", "html"),
];

const NAME: &str = "model.layers.0.self_attn.q_proj.weight";

impl Scene {
    fn new() -> Self {
        let root = crate::common::tempdir().unwrap();
        for (from, to) in [("adapters/base", "in"), ("adapters/plain", "adapter")] {
            copy(&data().join(from), &root.path().join(to));
        }
        std::fs::create_dir(root.path().join("in/sub")).unwrap();
        std::fs::write(root.path().join("in/sub/notes.txt"), "notes").unwrap();
        Self { root }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The arguments of a writer, with paths below the scene.
    fn arguments(&self, text: &str, input: &str, output: &Path) -> Vec<String> {
        let path = |name: &str| self.at(name).to_str().unwrap().to_owned();
        let words = text.split(' ').map(|word| match word {
            "IN" => path(input),
            "DIR" => path("in"),
            "OUT" => output.to_str().unwrap().to_owned(),
            "NAME" => NAME.to_owned(),
            "adapter"
            | "adapter/adapter_model.safetensors"
            | "ok"
            | "ok.safetensors"
            | "names"
            | "kv" => path(word),
            _ => word.to_owned(),
        });
        words.collect()
    }

    fn run(&self, text: &str, input: &str, output: &Path, more: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_amn"));
        command.args(self.arguments(text, input, output)).args(more);
        command.current_dir(self.root.path()).output().unwrap()
    }

    /// What is in the directory, but for the output that a list of sums is made of.
    fn content(&self) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        for name in ["in", "adapter", "elsewhere"] {
            let below = tree_of_regular_files(&self.at(name));
            found.extend(
                below
                    .into_iter()
                    .map(|(path, bytes)| (format!("{name}/{path}"), bytes)),
            );
        }
        found
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for (name, bytes) in tree(from) {
        std::fs::write(to.join(name), bytes).unwrap();
    }
}

/// As [`tree`], but for pipes and devices, which cannot be read to their ends.
fn tree_of_regular_files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            let below = tree_of_regular_files(&path).into_iter();
            found.extend(below.map(|(path, bytes)| (format!("{name}/{path}"), bytes)));
        } else if path.is_file() {
            found.insert(name, std::fs::read(&path).unwrap());
        }
    }
    found
}

/// Fails unless the run was refused as a matter of the file system, with a message.
fn assert_refused(end: &Output, context: &str) -> String {
    let text = String::from_utf8_lossy(&end.stderr).into_owned();
    assert_eq!(end.status.code(), Some(7), "{context}: {text}");
    assert!(text.starts_with("error: "), "{context}: {text}");
    text
}

/// With `--force`, too.
#[test]
fn nothing_of_the_input_is_replaced() {
    let scene = Scene::new();
    let elsewhere = scene.at("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    for name in ["card.txt", "linked.safetensors", "linked.gguf", "linked.npz", "linked.npy"] {
        std::fs::write(elsewhere.join(name), name).unwrap();
        symlink(elsewhere.join(name), scene.at("in").join(name)).unwrap();
    }
    symlink(scene.at("in/model.safetensors"), scene.at("soft.safetensors")).unwrap();
    std::fs::hard_link(scene.at("in/model.safetensors"), scene.at("hard.safetensors")).unwrap();
    std::fs::hard_link(scene.at("in/config.json"), scene.at("hard.json")).unwrap();
    let before = scene.content();
    for (writer, text, extension) in WRITERS {
        let mut refused = 0;
        // Of a single file what is read of its directory counts, and of a directory all of it.
        let of_file = ["in/model.safetensors", "soft.safetensors", "hard.safetensors"];
        let of_file = of_file.into_iter().chain(["in/config.json", "hard.json"]);
        let linked = format!("elsewhere/linked.{extension}");
        let link = format!("in/linked.{extension}");
        let of_directory = of_file.clone().chain([
            "in/tokenizer.json",
            "in/generation_config.json",
            "in/sub/notes.txt",
            "in/card.txt",
            "elsewhere/card.txt",
            linked.as_str(),
            link.as_str(),
        ]);
        let is_of_directory = text.contains("DIR");
        let cases = of_file.map(|output| ("in/model.safetensors", output));
        let cases = cases.chain(of_directory.map(|output| ("in", output)));
        for (input, output) in cases {
            let is_there = scene.at(output).exists();
            if !is_there || is_of_directory && input != "in" {
                continue;
            }
            for more in [&[][..], &["--force"]] {
                // `-f` may be given once alone.
                if text.contains("--force") && !more.is_empty() {
                    continue;
                }
                let context = format!("{writer} of {input} to {output} {more:?}");
                let end = scene.run(text, input, &scene.at(output), more);
                // Other names than the container's are refused as a matter of the options.
                if end.status.code() != Some(2) {
                    assert_refused(&end, &context);
                    refused += 1;
                }
                assert!(scene.content() == before, "{context}");
            }
        }
        assert!(refused >= 8, "{writer}: {refused}");
    }
}

/// Other files that are read are not replaced either.
#[test]
fn files_that_options_name_are_not_replaced() {
    let scene = Scene::new();
    std::fs::write(scene.at("names"), format!("{NAME}=other\n")).unwrap();
    std::fs::write(scene.at("kv"), r#"{"general.name": "x"}"#).unwrap();
    let before = ["names", "kv"].map(|name| std::fs::read(scene.at(name)).unwrap());
    let adapter = scene.content();
    let list = "--manifest OUT";
    for (text, output) in [
        ("remember IN -o ok.safetensors --rename-file names", "names"),
        ("convert IN --to gguf --tensors-only -o ok --gguf-metadata kv", "kv"),
        ("merge IN adapter -o ok.safetensors", "adapter/adapter_config.json"),
        ("merge IN adapter -o ok.safetensors", "adapter/adapter_model.safetensors"),
    ] {
        let to_output = text
            .replace("ok.safetensors", "OUT")
            .replace("-o ok ", "-o OUT ");
        for text in [to_output, format!("{text} {list}")] {
            let end = scene.run(&text, "in/model.safetensors", &scene.at(output), &["--force"]);
            assert_refused(&end, &text);
        }
    }
    let after = ["names", "kv"].map(|name| std::fs::read(scene.at(name)).unwrap());
    assert!(before == after && adapter == scene.content());
}

/// Pipes, devices and directories stay what they are, and files too without `--force`.
#[test]
fn what_is_no_regular_file_is_not_replaced() {
    let scene = Scene::new();
    for (writer, text, extension) in WRITERS {
        let at = |kind: &str| scene.at(&format!("{kind}.{extension}"));
        let (pipe, device, directory, file) =
            (at("pipe"), at("device"), at("directory"), at("file"));
        let _ = Command::new("mkfifo").arg(&pipe).output();
        let _ = symlink("/dev/null", &device);
        let _ = std::fs::create_dir(&directory);
        std::fs::write(&file, "precious").unwrap();
        for output in [&pipe, &device, &directory, &file] {
            let has_force = text.contains("--force");
            if has_force && *output == file {
                continue;
            }
            let more = match has_force || *output == file {
                true => &[][..],
                false => &["--force"],
            };
            let end = scene.run(text, "in/model.safetensors", output, more);
            assert_refused(&end, &format!("{writer} to {}", output.display()));
        }
        assert!(pipe.metadata().unwrap().file_type().is_fifo(), "{writer}");
        assert!(device.symlink_metadata().unwrap().is_symlink(), "{writer}");
        assert!(directory.is_dir(), "{writer}");
        assert_eq!(std::fs::read(&file).unwrap(), b"precious", "{writer}");
    }
}

/// A file has the permissions of any new file, and nothing else is left. A link to nothing, or to a
/// file that is not of the input, is itself replaced.
#[test]
fn files_are_made_like_any_other() {
    let scene = Scene::new();
    let elsewhere = scene.at("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    for (writer, text, extension) in WRITERS {
        let output = elsewhere.join(format!("out.{extension}"));
        for (umask, mode) in [("022", 0o644), ("027", 0o640), ("007", 0o660)] {
            let mut command = Command::new("sh");
            command.args(["-c", "umask $0; exec \"$@\"", umask, env!("CARGO_BIN_EXE_amn")]);
            command.args(scene.arguments(text, "in/model.safetensors", &output));
            let end = command.current_dir(scene.root.path()).output().unwrap();
            let error = String::from_utf8_lossy(&end.stderr);
            assert!(end.status.success(), "{writer}: {error}");
            let there = output.metadata().unwrap().mode() & 0o7777;
            assert_eq!(there, mode, "{writer}: {there:o}");
            std::fs::remove_file(&output).unwrap();
        }
        // Another file under the output's name: the name is replaced, and the file stays.
        let target = elsewhere.join("target");
        for is_hard in [false, true] {
            std::fs::write(&target, "precious").unwrap();
            match is_hard {
                true => std::fs::hard_link(&target, &output).unwrap(),
                false => symlink(&target, &output).unwrap(),
            }
            let more = match text.contains("--force") {
                true => &[][..],
                false => &["--force"],
            };
            let end = scene.run(text, "in/model.safetensors", &output, more);
            let error = String::from_utf8_lossy(&end.stderr);
            assert!(end.status.success(), "{writer}: {error}");
            let there = output.symlink_metadata().unwrap();
            assert!(there.is_file() && there.nlink() == 1, "{writer}");
            assert_eq!(std::fs::read(&target).unwrap(), b"precious", "{writer}");
            std::fs::remove_file(&output).unwrap();
            std::fs::remove_file(&target).unwrap();
        }
        assert_eq!(tree(&elsewhere).len(), 0, "{writer}");
    }
}

/// Files of a directory that is replaced may have other names, which keep their content.
#[test]
fn other_names_of_replaced_files_keep_their_content() {
    let scene = Scene::new();
    std::fs::create_dir(scene.at("elsewhere")).unwrap();
    for text in ["remember DIR -o OUT", "forget DIR --to nf4 -o OUT", "merge DIR adapter -o OUT"] {
        let output = scene.at("out");
        let run = |more: &[&str]| {
            let end = scene.run(text, "in", &output, more);
            let error = String::from_utf8_lossy(&end.stderr).into_owned();
            assert!(end.status.success(), "{text}: {error}");
        };
        run(&[]);
        for name in ["model.safetensors", "config.json"] {
            let other = scene.at("elsewhere").join(name);
            std::fs::write(output.join(name), "precious").unwrap();
            std::fs::hard_link(output.join(name), other).unwrap();
        }
        run(&["--force"]);
        for name in ["model.safetensors", "config.json"] {
            let other = scene.at("elsewhere").join(name);
            assert_eq!(std::fs::read(&other).unwrap(), b"precious", "{text}: {name}");
            assert_ne!(std::fs::read(output.join(name)).unwrap(), b"precious");
            std::fs::remove_file(other).unwrap();
        }
        std::fs::remove_dir_all(&output).unwrap();
    }
}

/// A list of sums is no file of the output, under whatever name.
#[test]
fn a_list_of_sums_is_no_file_of_the_output() {
    let scene = Scene::new();
    symlink(scene.at("ok.safetensors"), scene.at("link")).unwrap();
    for (text, output) in [
        ("remember IN -o ok.safetensors", "ok.safetensors"),
        ("remember IN -o ok.safetensors", "./ok.safetensors"),
        ("remember IN -o ok.safetensors", "in/../ok.safetensors"),
        ("remember IN -o ok.safetensors", "link"),
        ("remember DIR -o ok", "ok/model.safetensors"),
        ("remember DIR -o ok", "ok/config.json"),
    ] {
        let text = format!("{text} --force --manifest OUT");
        let end = scene.run(&text, "in/model.safetensors", &scene.at(output), &[]);
        let error = assert_refused(&end, output);
        assert!(error.contains("the manifest is a file of the output"), "{error}");
        let config = scene.at("ok/config.json");
        assert!(!config.exists() || std::fs::read(config).unwrap().starts_with(b"{"));
    }
}

/// What a directory that would be replaced holds for the input, by links of any kind.
#[test]
fn a_directory_is_not_replaced_if_the_input_links_to_it() {
    for (name, target) in [
        ("tokenizer.json", "tokenizer.json"),
        ("config.json", "config.json"),
        ("model.safetensors", "old.safetensors"),
        ("README.md", "README.md"),
        ("chat_template.jinja", "deep/er/template"),
        ("sub/vocab.txt", "vocab.txt"),
        ("of-nobody.bin", "of-nobody.bin"),
        ("directory", "deep"),
    ] {
        for is_hard in [false, true] {
            for verb in [
                "remember DIR -o ok",
                "forget DIR --to nf4 -o ok",
                "convert DIR --to safetensors -o ok",
                "merge DIR adapter -o ok",
            ] {
                let scene = Scene::new();
                let (out, link) = (scene.at("ok"), scene.at("in").join(name));
                std::fs::create_dir_all(out.join("deep/er")).unwrap();
                std::fs::write(out.join("old.safetensors"), "old").unwrap();
                let there = out.join(target);
                match std::fs::read(&link) {
                    Ok(bytes) => std::fs::write(&there, bytes).unwrap(),
                    Err(_) if there.is_dir() => {}
                    Err(_) => std::fs::write(&there, "the only copy").unwrap(),
                }
                let _ = std::fs::remove_file(&link);
                match is_hard {
                    true if there.is_dir() => continue,
                    true => std::fs::hard_link(&there, &link).unwrap(),
                    false => symlink(&there, &link).unwrap(),
                }
                let before = (tree(&out), tree_of_regular_files(&scene.at("in")));
                let context = format!("{verb}: {name} links to {target}, hard: {is_hard}");
                let end = scene.run(verb, "in", &out, &["--force"]);
                let error = assert_refused(&end, &context);
                assert!(error.contains("the output is"), "{context}: {error}");
                let after = (tree(&out), tree_of_regular_files(&scene.at("in")));
                assert!(before == after, "{context}");
            }
        }
    }
}

/// Outputs of before in the directory of the input are replaced as ever.
#[test]
fn an_output_in_the_directory_of_the_input_is_replaced() {
    let scene = Scene::new();
    for _ in 0..2 {
        let output = scene.at("in/out");
        let end = scene.run("remember DIR -o OUT", "in", &output, &["--force"]);
        let error = String::from_utf8_lossy(&end.stderr);
        assert!(end.status.success(), "{error}");
        let output = scene.at("in/out.safetensors");
        let end = scene.run("remember IN -o OUT", "in/model.safetensors", &output, &["--force"]);
        let error = String::from_utf8_lossy(&end.stderr);
        assert!(end.status.success(), "{error}");
        std::fs::remove_file(output).unwrap();
    }
}
