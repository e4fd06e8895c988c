//! Every transcript of README, `docs` and `docs/guide`, run as it stands: it prints what the page
//! says.
//!
//! `UPDATE_DOCS=1` writes what the commands print into the pages.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex_lite::Regex;

/// Where a transcript begins and ends.
const FENCES: (&str, &str) = ("```text\n$ ", "\n```");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A directory with the repository's data and an Ollama store, where a guide's commands run.
struct Desk {
    directory: tempfile::TempDir,
    /// Exit code of the last command, which `echo $?` prints.
    code: Cell<i32>,
}

impl Desk {
    fn new() -> Self {
        let directory = crate::common::tempdir().unwrap();
        std::os::unix::fs::symlink(root().join("tests"), directory.path().join("tests")).unwrap();
        Self { directory, code: Cell::new(0) }
    }

    /// Pulls the demo model into the store, as Ollama would.
    fn pull(&self) {
        let model = "tests/data/guide/TinyLlama";
        self.run(&format!("amn convert {model} --to gguf -o .tinyllama.gguf"));
        let store = self.directory.path().join(".ollama/models");
        let manifest = store.join("manifests/registry.ollama.ai/library/tinyllama/latest");
        let digest = "0123456789abcdef".repeat(4);
        std::fs::create_dir_all(manifest.parent().unwrap()).unwrap();
        std::fs::create_dir_all(store.join("blobs")).unwrap();
        let blob = store.join("blobs").join(format!("sha256-{digest}"));
        std::fs::rename(self.directory.path().join(".tinyllama.gguf"), &blob).unwrap();
        let layer = serde_json::json!({
            "mediaType": "application/vnd.ollama.image.model",
            "digest": format!("sha256:{digest}"),
            "size": blob.metadata().unwrap().len(),
        });
        let text = serde_json::json!({"schemaVersion": 2, "layers": [layer]}).to_string();
        std::fs::write(manifest, text).unwrap();
    }

    /// What `line` prints in a shell where `amn` is the program. Times and the free space are
    /// always the same.
    fn run(&self, line: &str) -> String {
        if line == "echo $?" {
            return self.code.get().to_string();
        }
        let script = format!("amn() {{ '{}' \"$@\"; }}\n{line}", env!("CARGO_BIN_EXE_amn"));
        let output = Command::new("sh")
            .args(["-c", &format!("exec 2>&1\n{script}")])
            .current_dir(self.directory.path())
            .env("HOME", self.directory.path())
            .env("LC_ALL", "C")
            .env_remove("OLLAMA_MODELS")
            .output()
            .unwrap();
        self.code.set(output.status.code().unwrap());
        let text = String::from_utf8(output.stdout).unwrap();
        let text = text.replace(&*self.directory.path().to_string_lossy(), "/home/you");
        let time = Regex::new(r"\b\d+\.\d+s\b").unwrap();
        let free = Regex::new(r"(Free space: +).*").unwrap();
        // A run that takes longer than ten seconds, because the machine has other work.
        let progress = Regex::new(r"(?m)^\w+\.\.\. \d+ of \d+ tensors, .*\n").unwrap();
        let text = progress.replace_all(&text, "");
        let text = time.replace_all(&text, "0.0s");
        free.replace_all(&text, "${1}100 GB").trim_end().to_owned()
    }

    /// The page with the output of every command.
    fn follow(&self, page: &str) -> (String, usize) {
        let (mut followed, mut rest, mut commands) = (String::new(), page, 0);
        while let Some(at) = rest.find(FENCES.0) {
            let (before, transcript) = rest.split_at(at + FENCES.0.len());
            let (transcript, after) = transcript.split_once(FENCES.1).unwrap();
            followed += before.strip_suffix("$ ").unwrap();
            let lines: Vec<String> = transcript
                .split("\n$ ")
                .map(|command| {
                    commands += 1;
                    let command = command.lines().next().unwrap();
                    let printed = self.run(command);
                    let gap = if printed.is_empty() { "" } else { "\n" };
                    format!("$ {command}{gap}{printed}")
                })
                .collect();
            followed += &lines.join("\n");
            (followed, rest) = (followed + FENCES.1, after);
        }
        (followed + rest, commands)
    }
}

fn pages() -> Vec<PathBuf> {
    let entries = |directory: &str| std::fs::read_dir(root().join(directory)).unwrap();
    let paths = entries(".")
        .chain(entries("docs"))
        .chain(entries("docs/guide"));
    let mut pages: Vec<PathBuf> = paths.map(|entry| entry.unwrap().path()).collect();
    pages.retain(|page| page.extension().is_some_and(|ending| ending == "md"));
    pages.sort();
    pages
}

/// The picture of a terminal shows what the guides show.
#[test]
fn the_picture_shows_what_commands_print() {
    let texts: Vec<String> = pages()
        .iter()
        .map(|page| std::fs::read_to_string(page).unwrap())
        .collect();
    let picture = std::fs::read_to_string(root().join("docs/images/terminal.svg")).unwrap();
    let line = Regex::new("<text [^>]*>([^<]*)</text>").unwrap();
    let mut lines = 0;
    for (_, [text]) in line.captures_iter(&picture).map(|found| found.extract()) {
        let text = text
            .replace("&gt;", ">")
            .replace("&lt;", "<")
            .replace("&amp;", "&");
        let shown = texts
            .iter()
            .any(|page| page.lines().any(|line| line == text));
        assert!(shown, "{text:?}: run docs/images/terminal.py");
        lines += 1;
    }
    assert!(lines > 20, "{lines}");
}

#[test]
fn commands_print_what_the_documents_say() {
    let mut commands = 0;
    for path in pages() {
        let page = std::fs::read_to_string(&path).unwrap();
        let desk = Desk::new();
        if page.contains("ollama:") {
            desk.pull();
        }
        let (followed, n) = desk.follow(&page);
        commands += n;
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, followed).unwrap();
        } else {
            assert_eq!(page, followed, "{}", path.display());
        }
    }
    assert!(commands >= 80, "{commands}");
}
