//! `ollama:<model>` as an input: `amn` runs on names in a store on disk.

mod manifests;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

const MODEL: &str = "application/vnd.ollama.image.model";

const TENSOR: &str = "application/vnd.ollama.image.tensor";

const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

const LLAMA: &str = "registry.ollama.ai/library/llama3/latest";

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/demo/model-fp8.safetensors")
}

/// A store that holds the demo model's file, and no manifests yet.
struct Store(TempDir);

impl Store {
    fn new() -> Self {
        let store = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(store.root().join("manifests")).unwrap();
        std::fs::create_dir(store.root().join("blobs")).unwrap();
        std::fs::copy(demo(), store.blob()).unwrap();
        store
    }

    fn with(manifests: &[&str]) -> Self {
        let store = Self::new();
        manifests.iter().for_each(|path| store.add(path, &good()));
        store
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("models")
    }

    fn blob(&self) -> PathBuf {
        self.root().join("blobs").join(format!("sha256-{HEX}"))
    }

    fn manifest(&self, path: &str) -> PathBuf {
        self.root().join("manifests").join(path)
    }

    fn add(&self, path: &str, manifest: &Value) {
        self.add_text(path, &manifest.to_string());
    }

    fn add_text(&self, path: &str, text: &str) {
        let path = self.manifest(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// `amn inspect <spec>` with this store.
    fn inspect(&self, spec: &str) -> Output {
        amn(spec)
            .env("OLLAMA_MODELS", self.root())
            .output()
            .unwrap()
    }

    fn finds(&self, spec: &str) {
        shows_demo(&self.inspect(spec), spec);
    }

    /// Fails unless `amn` ends with `code` and a message that has all of `parts`.
    fn fails(&self, spec: &str, code: i32, parts: &[&str]) {
        fails(&self.inspect(spec), spec, code, parts);
    }
}

fn amn(spec: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_amn"));
    command.args(["inspect", spec]);
    command
}

fn shows_demo(output: &Output, what: &str) {
    let expected = amn(&demo().to_string_lossy()).output().unwrap();
    assert!(
        output.status.success(),
        "{what}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!output.stdout.is_empty());
    assert_eq!(output.stdout, expected.stdout, "{what}");
}

fn fails(output: &Output, what: &str, code: i32, parts: &[&str]) {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{what}: {text}");
    for part in parts {
        assert!(text.contains(part), "{what}: `{part}` is not in {text}");
    }
}

fn layer(kind: &str, digest: &str, size: u64) -> Value {
    json!({"mediaType": kind, "digest": digest, "size": size})
}

fn manifest(layers: &[Value]) -> Value {
    let config = layer(
        "application/vnd.docker.container.image.v1+json",
        &format!("sha256:{}", "f".repeat(64)),
        485,
    );
    let kind = "application/vnd.docker.distribution.manifest.v2+json";
    json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers})
}

fn model() -> Value {
    layer(
        MODEL,
        &format!("sha256:{HEX}"),
        std::fs::metadata(demo()).unwrap().len(),
    )
}

/// A manifest as Ollama writes it, with the demo model's file for weights.
fn good() -> Value {
    let license = layer(
        "application/vnd.ollama.image.license",
        &format!("sha256:{}", "e".repeat(64)),
        12,
    );
    manifest(&[license, model()])
}

#[test]
fn names_and_their_defaults() {
    for (path, specs) in [
        (
            LLAMA,
            &[
                "llama3",
                "llama3:latest",
                "library/llama3",
                "registry.ollama.ai/library/llama3:latest",
            ][..],
        ),
        (
            "registry.ollama.ai/library/llama3/8b-instruct-q4_0",
            &["llama3:8b-instruct-q4_0"],
        ),
        (
            "registry.ollama.ai/some_user/my.model-2/v1.0",
            &["some_user/my.model-2:v1.0"],
        ),
        (
            "hf.co/org/Repo-GGUF/Q4_K_M",
            &[
                "hf.co/org/Repo-GGUF:Q4_K_M",
                "https://hf.co/org/Repo-GGUF:Q4_K_M",
            ],
        ),
        (
            "hf.co/org/Repo-GGUF/latest",
            &["hf.co/org/Repo-GGUF", "http://hf.co/org/Repo-GGUF"],
        ),
    ] {
        let store = Store::with(&[path]);
        specs
            .iter()
            .for_each(|spec| store.finds(&format!("ollama:{spec}")));
    }
}

#[cfg(not(windows))]
#[test]
fn a_registry_with_a_port() {
    let store = Store::with(&[
        "localhost:5000/ns/model/tag",
        "localhost:5000/ns/model/latest",
    ]);
    store.finds("ollama:localhost:5000/ns/model:tag");
    store.finds("ollama:http://localhost:5000/ns/model");
}

#[test]
fn the_case_of_letters_does_not_matter() {
    let store = Store::with(&["hf.co/Bartowski/Some-Repo-GGUF/Q4_K_M"]);
    store.add_text("hf.co/Bartowski/Some-Repo-GGUF/Q8_0", "another tag");
    store.add_text("hf.co/Bartowski/Other/Q4_K_M", "another model");
    for spec in [
        "hf.co/bartowski/some-repo-gguf:q4_k_m",
        "HF.CO/BARTOWSKI/SOME-REPO-GGUF:Q4_K_M",
    ] {
        store.finds(&format!("ollama:{spec}"));
    }
}

/// Needs a case-sensitive file system.
#[cfg(target_os = "linux")]
#[test]
fn names_that_differ_only_in_case() {
    let store = Store::with(&["hf.co/org/repo/Q8_0"]);
    store.add_text("hf.co/org/repo/q8_0", "the other one");
    store.finds("ollama:hf.co/org/repo:Q8_0");
    store.fails("ollama:hf.co/org/repo:q8_0", 3, &["parse error", "line 1"]);
    store.fails(
        "ollama:hf.co/Org/repo:Q8_0",
        3,
        &["only in case", "repo/q8_0", "repo/Q8_0"],
    );
    // A directory of the exact name does not hide the model in the other one.
    store.add("hf.co/Org2/repo/latest", &good());
    std::fs::create_dir(store.manifest("hf.co/org2")).unwrap();
    store.finds("ollama:hf.co/org2/repo");
}

#[test]
fn malformed_names_are_refused_by_the_part() {
    let store = Store::with(&[LLAMA]);
    std::fs::write(store.root().join("secret"), good().to_string()).unwrap();
    let (n81, n351) = ("n".repeat(81), "h".repeat(351));
    for (spec, part) in [
        ("", "model `` is empty"),
        (":latest", "model `` is empty"),
        ("llama3:", "tag `` is empty"),
        ("/llama3", "namespace `` is empty"),
        ("llama3/", "model `` is empty"),
        ("/library/llama3", "host `` is empty"),
        ("registry.ollama.ai//llama3", "namespace `` is empty"),
        ("/etc/passwd", "host `` is empty"),
        ("//server/share", "host `/` contains '/'"),
        (
            "a/registry.ollama.ai/library/llama3",
            "host `a/registry.ollama.ai` contains '/'",
        ),
        ("..", "model `..` does not begin"),
        (".", "model `.` does not begin"),
        ("../llama3", "namespace `..` contains '.'"),
        ("../library/llama3", "host `..` does not begin"),
        ("library/..:x", "model `..` does not begin"),
        ("llama3:..", "tag `..` does not begin"),
        (
            "llama3:../../../../secret",
            "host `llama3:../../..` contains '/'",
        ),
        ("hf.co/llama3", "namespace `hf.co` contains '.'"),
        (
            "host/name:space/model:tag",
            "namespace `name:space` contains ':'",
        ),
        ("llama3:8b:local", "model `llama3:8b` contains ':'"),
        ("-llama3", "model `-llama3` does not begin"),
        ("llama3:-8b", "tag `-8b` does not begin"),
        ("lib\\llama3", "model `lib\\llama3` contains '\\\\'"),
        ("C:\\models\\x", "tag `\\models\\x` contains '\\\\'"),
        ("C:/ns/model", "host `C:` looks like a drive"),
        ("c:foo/ns/model", "host `c:foo` looks like a drive"),
        ("C:/model", "namespace `C:` contains ':'"),
        ("llama3\n", "model `llama3\\u{a}` contains '\\n'"),
        ("llama3\u{1b}[31m", "contains '\\u{1b}'"),
        ("llama3\u{202e}", "contains '\\u{202e}'"),
        ("\u{212a}imi", "model `\u{212a}imi` contains"),
        ("llama 3", "contains ' '"),
        (" llama3", "contains ' '"),
        ("llama3@tag", "contains '@'"),
        ("https://llama3", "namespace `` is empty"),
        ("https://library/llama3", "host `https:/` contains '/'"),
        ("ftp://hf.co/org/repo", "host `ftp://hf.co` contains '/'"),
        (n81.as_str(), "has 81 bytes, of at most 80"),
        (&format!("{n81}/m"), "has 81 bytes, of at most 80"),
        (&format!("m:{n81}"), "has 81 bytes, of at most 80"),
        (&format!("{n351}/n/m"), "has 351 bytes, of at most 350"),
    ] {
        store.fails(&format!("ollama:{spec}"), 3, &["model name", part]);
    }
    // No argument of a process can hold a NUL, so the function is called directly. It refuses names
    // before it looks for a store.
    let error = anamnesis::resolve_ollama_model("ollama:a\0b").unwrap_err();
    assert!(
        matches!(&error, anamnesis::AnamnesisError::Parse { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("contains '\\0'"), "{error}");
}

#[test]
fn digests_are_refused_by_name() {
    let store = Store::with(&[LLAMA]);
    for spec in [
        format!("ollama:llama3@sha256:{HEX}"),
        format!("ollama:llama3:latest@sha256-{HEX}"),
    ] {
        store.fails(&spec, 6, &["Ollama digest", "by tag, not by digest"]);
    }
}

#[test]
fn a_model_in_layers_of_tensors() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ollama");
    let directory = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_amn"));
        command.args(args).current_dir(directory.path());
        command
            .env("OLLAMA_MODELS", golden.join("models"))
            .output()
            .unwrap()
    };
    let output = run(&["remember", "ollama:layers"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    // A directory, for the model has a config.
    let written = directory.path().join("layers-BF16");
    assert!(written.join("config.json").is_file());
    let expected = golden.join("mixed/expected-bf16.safetensors");
    let [written, expected] = [written, expected].map(|path| path.display().to_string());
    assert!(
        run(&["diff", "--values-only", &written, &expected])
            .status
            .success()
    );
    // The names of blobs are their SHA-256.
    assert!(run(&["check", "--data", "ollama:layers"]).status.success());
}

#[test]
fn a_missing_manifest_lists_the_other_tags() {
    let store = Store::with(&[
        "registry.ollama.ai/library/llama3/8b",
        "registry.ollama.ai/library/llama3/70b",
    ]);
    store.add_text("registry.ollama.ai/library/llama3/.DS_Store", "no tag");
    let looked = LLAMA.replace('/', std::path::MAIN_SEPARATOR_STR);
    store.fails(
        "ollama:llama3",
        7,
        &["no such manifest", &looked, "tags of this model: 70b, 8b\n"],
    );
    store.fails(
        "ollama:LLAMA3:9b",
        7,
        &["no such manifest", "tags of this model: 70b, 8b\n"],
    );
    store.fails(
        "ollama:mistral",
        7,
        &["no such manifest", "mistral", "is the model pulled"],
    );
    store.fails(
        "ollama:hf.co/llama3/llama3",
        7,
        &["no such manifest", "hf.co", "is the model pulled"],
    );
    for tag in 10..30 {
        store.add(
            &format!("registry.ollama.ai/library/llama3/t{tag}"),
            &good(),
        );
    }
    let listed = "tags of this model: 70b, 8b, t10, t11, t12, t13, t14, t15, t16, t17, …\n";
    store.fails("ollama:llama3", 7, &[listed]);
    // A name longer than file systems allow is missing as well.
    store.fails(
        &format!("ollama:{}/n/m", "h".repeat(350)),
        7,
        &["no such manifest"],
    );
}

#[test]
fn a_missing_store_is_a_missing_manifest() {
    let directory = tempfile::tempdir().unwrap();
    let output = amn("ollama:llama3")
        .env("OLLAMA_MODELS", directory.path().join("none"))
        .output()
        .unwrap();
    fails(&output, "no store", 7, &["no such manifest", "none"]);
}

#[test]
fn a_large_store_is_not_searched_without_end() {
    let store = Store::with(&[LLAMA]);
    for i in 0..10_000 {
        std::fs::write(store.manifest(&format!("file{i}")), "").unwrap();
    }
    store.finds("ollama:llama3");
    store.fails("ollama:none", 4, &["OLLAMA_MAX_ENTRIES"]);
}

#[cfg(unix)]
#[test]
fn location_of_the_store() {
    let store = Store::with(&[LLAMA]);
    let home = store.0.path().join("home");
    std::fs::create_dir_all(home.join(".ollama")).unwrap();
    let run = |models: Option<&str>| {
        let mut command = amn("ollama:llama3");
        command.env("HOME", &home).env_remove("OLLAMA_MODELS");
        models.map(|models| command.env("OLLAMA_MODELS", models));
        command.output().unwrap()
    };
    let root = store.root().to_string_lossy().into_owned();
    shows_demo(&run(Some(&root)), "the variable");
    shows_demo(
        &run(Some(&format!(" \"{root}\" "))),
        "the variable in quotes",
    );
    std::fs::rename(store.root(), home.join(".ollama/models")).unwrap();
    for none in [None, Some(""), Some(" "), Some("\"\"")] {
        shows_demo(&run(none), "the store at home");
    }
    fails(
        &run(Some(&root)),
        "the variable goes before the home",
        7,
        &["no such manifest"],
    );
}

/// What a user may miss in an output is noted with its place: adapters, projectors, drafts. Licences are not.
#[test]
fn layers_beside_the_weights_are_noted() {
    let store = Store::new();
    let kind = |kind: &str| format!("application/vnd.ollama.image.{kind}");
    let digest = format!("sha256:{HEX}");
    let layers: Vec<Value> = ["adapter", "projector", "draft", "template"]
        .map(|name| layer(&kind(name), &digest, 0))
        .map(|mut layer| {
            layer["size"] = model()["size"].clone();
            layer
        })
        .into_iter()
        .chain([model()])
        .collect();
    store.add(LLAMA, &manifest(&layers));
    let output = store.inspect("ollama:llama3");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["adapters, which are not merged", "projector", "draft model"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(text.matches(&format!("sha256-{HEX}")).count(), 3, "{text}");
    // A layer whose file is missing is named by its digest.
    let missing = layer(&kind("json"), &format!("sha256:{}", "a".repeat(64)), 2);
    store.add(LLAMA, &manifest(&[missing, model()]));
    let output = store.inspect("ollama:llama3");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("settings and tokenizer") && text.contains("sha256:aaaa"),
        "{text}"
    );
}
