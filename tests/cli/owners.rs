//! Several processes at one output: who works on it owns it, also while it is stopped, and what has
//! a name in the end is the whole output of one of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::common::directory::{
    assert_same_tree, in_one_file, names_in, seven_layers, shards, tree,
};
use crate::common::effort;

fn command(arguments: &[&str], more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_amn"));
    command.args(arguments).args(more).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn send(child: &Child, signal: &str) {
    let id = child.id().to_string();
    let status = Command::new("kill").args(["-s", signal, &id]).status();
    assert!(status.unwrap().success());
}

/// Fails unless the process has ended well.
fn assert_success(output: &Output, context: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{context}: {text}");
}

/// Fails unless the process was refused because another works on its output.
fn assert_refused(output: &Output, what: &str, context: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{context}: {text}");
    assert!(text.contains("another process is "), "{context}: {text}");
    assert!(text.contains(what), "{context}: {text}");
}

/// A directory that becomes another.
struct Scene {
    root: tempfile::TempDir,
    input: PathBuf,
    output: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let root = crate::common::tempdir().unwrap();
        let (input, _) = seven_layers(root.path(), 4096);
        let output = root.path().join("out");
        Self { root, input, output }
    }

    fn arguments<'a>(&'a self, verb: &[&'a str]) -> Vec<&'a str> {
        let paths = [&self.input, &self.output].map(|path| path.to_str().unwrap());
        [verb, &[paths[0], "-o", paths[1], "--threads", "1"]].concat()
    }

    /// Starts a run and stops it in the middle: some shards have their names, another has not.
    fn stopped(&self, arguments: &[&str], more: &[&str]) -> Child {
        let mut child = command(arguments, more).spawn().unwrap();
        let partial = self.root.path().join(".out.partial");
        while names_in(&partial, ".safetensors").is_empty() {
            assert!(child.try_wait().unwrap().is_none(), "it ended too early");
            std::thread::yield_now();
        }
        send(&child, "STOP");
        assert!(!self.output.exists(), "it ended too early");
        child
    }

    /// Lets a stopped run go on to its end.
    fn go_on(child: Child) -> Output {
        send(&child, "CONT");
        child.wait_with_output().unwrap()
    }

    fn remove(&self) {
        std::fs::remove_dir_all(&self.output).unwrap();
    }
}

/// Whichever verb works on a directory, and whichever other one comes, with whatever options.
#[test]
fn a_run_that_is_stopped_owns_its_directory() {
    let scene = Scene::new();
    let adapter = scene.root.path().join("adapter");
    make_adapter(&adapter);
    let [input, adapter, output] =
        [&scene.input, &adapter, &scene.output].map(|path| path.to_str().unwrap());
    let verbs = [
        &["remember", input][..],
        &["forget", input, "--to", "nf4"],
        &["convert", input, "--to", "safetensors"],
        &["merge", input, adapter, "--to", "f32"],
    ];
    let verbs = verbs.map(|verb| [verb, &["-o", output, "--threads", "1"]].concat());
    let options = [&["--resume"][..], &["--force"], &[], &["--force", "--resume"]];
    // In the gate each pair of verbs with each options, otherwise each pair with some.
    let count = effort([1, 4, 4]);
    for (at, arguments) in verbs.iter().enumerate() {
        let verb = arguments[0];
        let want = command(arguments, &[]).output().unwrap();
        assert_success(&want, verb);
        let want = tree(&scene.output);
        scene.remove();

        let first = scene.stopped(arguments, &[]);
        for (no, other) in verbs.iter().enumerate() {
            for more in options.into_iter().cycle().skip(at + no).take(count) {
                let second = command(other, more).output().unwrap();
                let context = format!("{verb}, then {other:?} {more:?}");
                assert_refused(&second, "working on this output", &context);
            }
        }
        let finish = command(&["remember", output], &["--finish"]).output();
        assert_refused(&finish.unwrap(), "working on this output", "--finish");
        assert_success(&Scene::go_on(first), verb);
        assert_same_tree(&want, &tree(&scene.output), verb);
        scene.remove();
        assert!(names_in(scene.root.path(), ".partial").is_empty());
    }
}

/// An adapter of no rank to speak of for one layer.
fn make_adapter(directory: &Path) {
    use crate::common::{f32s, file, raw};
    let config = r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["proj"]}"#;
    let _ = std::fs::create_dir(directory);
    std::fs::write(directory.join("adapter_config.json"), config).unwrap();
    let prefix = "base_model.model.model.layers.0.proj";
    let tensors = [
        raw(&format!("{prefix}.lora_A.weight"), "F32", &[1, 384], f32s(&[0.5; 384])),
        raw(&format!("{prefix}.lora_B.weight"), "F32", &[4096, 1], f32s(&[0.5; 4096])),
    ];
    std::fs::write(directory.join("adapter_model.safetensors"), file(&tensors, &[])).unwrap();
}

/// A part that is stopped keeps out a second process for the same part, and what ends the whole
/// output. Other parts are made meanwhile.
#[test]
fn a_part_that_is_stopped_owns_its_files() {
    let scene = Scene::new();
    let arguments = scene.arguments(&["remember"]);
    let want = tree(&scene.root.path().join("want"));
    let first = scene.stopped(&arguments, &["--part", "1/2"]);
    for more in [&["--part", "1/2", "--resume"][..], &["--part", "1/2"]] {
        let again = command(&arguments, more).output().unwrap();
        assert_refused(&again, "making part 1 of 2", &format!("{more:?}"));
    }
    for more in [&["--force"][..], &["--resume"]] {
        let whole = command(&arguments, more).output().unwrap();
        assert_refused(&whole, "working on this output", &format!("{more:?}"));
    }
    let other = command(&arguments, &["--part", "2/2"]).output().unwrap();
    assert_success(&other, "another part");
    let finish = ["remember", scene.output.to_str().unwrap(), "--finish"];
    let early = command(&finish, &[]).output().unwrap();
    assert_refused(&early, "working on this output", "--finish");
    assert_success(&Scene::go_on(first), "part 1 of 2");
    let partial = scene.root.path().join(".out.partial");
    assert!(names_in(&partial, ".lock").is_empty());
    assert_success(&command(&finish, &[]).output().unwrap(), "--finish");
    assert_same_tree(&want, &tree(&scene.output), "two parts");
}

/// A part whose process was killed is made by another, and nothing of its lock is left.
#[test]
fn a_part_that_was_killed_is_free() {
    let scene = Scene::new();
    let arguments = scene.arguments(&["remember"]);
    let mut first = scene.stopped(&arguments, &["--part", "1/2"]);
    first.kill().unwrap();
    first.wait().unwrap();
    for part in ["1/2", "2/2"] {
        let made = command(&arguments, &["--part", part, "--resume"]).output();
        assert_success(&made.unwrap(), part);
    }
    let finish = ["remember", scene.output.to_str().unwrap(), "--finish"];
    assert_success(&command(&finish, &[]).output().unwrap(), "--finish");
    let want = tree(&scene.root.path().join("want"));
    assert_same_tree(&want, &tree(&scene.output), "two parts");
}

/// What is at `path` and beside it under a similar name.
fn outputs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    if path.is_dir() {
        return tree(path);
    }
    let stem = path.file_stem().unwrap().to_str().unwrap();
    let directory = path.parent().unwrap();
    let mut names = names_in(directory, "");
    names.retain(|name| name.starts_with(stem));
    let read = |name: String| {
        let bytes = std::fs::read(directory.join(&name)).unwrap();
        (name, bytes)
    };
    names.into_iter().map(read).collect()
}

/// Several runs that replace an output at once: one at least ends well, and its output is there,
/// all of it.
#[test]
fn runs_that_replace_one_output_at_once() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = seven_layers(root.path(), 256);
    let one = root.path().join("one");
    std::fs::create_dir(&one).unwrap();
    let file = in_one_file(&one, &shards(3, 256));
    let dtypes = ["bf16", "f16", "bf16"];
    for (verb, input, name, more) in [
        ("remember", &input, "out", &["--to"][..]),
        ("remember", &file, "out.safetensors", &["--to"]),
        (
            "convert",
            &file,
            "out.gguf",
            &["--to", "gguf", "--tensors-only", "--max-shard-size", "100KB", "--out-dtype"],
        ),
    ] {
        let directory = root.path().join("outputs");
        std::fs::create_dir(&directory).unwrap();
        let output = directory.join(name);
        let run = |dtype: &str| {
            let paths = [input.as_path(), &output].map(|path| path.to_str().unwrap());
            let arguments = [&[verb, paths[0], "-o", paths[1], "--force"], more].concat();
            command(&arguments, &[dtype])
        };
        let whole = dtypes.map(|dtype| {
            assert_success(&run(dtype).output().unwrap(), name);
            outputs(&output)
        });
        assert!(whole[0] != whole[1], "{name}");
        for round in 0..effort([3, 8, 8]) {
            let children = dtypes.map(|dtype| run(dtype).spawn().unwrap());
            let ends = children.map(|child| child.wait_with_output().unwrap());
            let errors = ends.iter().map(|end| String::from_utf8_lossy(&end.stderr));
            let errors: Vec<_> = errors.collect();
            let found = outputs(&output);
            let is_whole = |i: usize| ends[i].status.success() && found == whole[i];
            assert!((0..3).any(is_whole), "{name}, round {round}: {errors:?}");
            let known: Vec<String> = match output.is_dir() {
                true => vec![name.to_owned()],
                false => whole[0].keys().cloned().collect(),
            };
            assert_eq!(names_in(&directory, ""), known, "{name}, round {round}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
