//! `ollama:<model>` as an input: `amn` runs on names in a store on disk.

mod manifests;
mod names;

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
        let store = Self(crate::common::tempdir().unwrap());
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
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
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
    layer(MODEL, &format!("sha256:{HEX}"), std::fs::metadata(demo()).unwrap().len())
}

/// A manifest as Ollama writes it, with the demo model's file for weights.
fn good() -> Value {
    let license =
        layer("application/vnd.ollama.image.license", &format!("sha256:{}", "e".repeat(64)), 12);
    manifest(&[license, model()])
}

#[test]
fn a_model_in_layers_of_tensors() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ollama");
    let directory = crate::common::tempdir().unwrap();
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
    store.fails("ollama:LLAMA3:9b", 7, &["no such manifest", "tags of this model: 70b, 8b\n"]);
    store.fails("ollama:mistral", 7, &["no such manifest", "mistral", "is the model pulled"]);
    store.fails(
        "ollama:hf.co/llama3/llama3",
        7,
        &["no such manifest", "hf.co", "is the model pulled"],
    );
    for tag in 10..30 {
        store.add(&format!("registry.ollama.ai/library/llama3/t{tag}"), &good());
    }
    let listed =
        "tags of this model: 70b, 8b, t10, t11, t12, t13, t14, t15, t16, t17 and 12 more\n";
    store.fails("ollama:llama3", 7, &[listed]);
    store.fails("ollama:", 2, &["wants the name of a model, `ollama:NAME`; pulled are llama3\n"]);
    // A name longer than file systems allow is missing as well.
    store.fails(&format!("ollama:{}/n/m", "h".repeat(350)), 7, &["no such manifest"]);
}

#[test]
fn a_missing_store_is_a_missing_manifest() {
    let directory = crate::common::tempdir().unwrap();
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
    shows_demo(&run(Some(&format!(" \"{root}\" "))), "the variable in quotes");
    std::fs::rename(store.root(), home.join(".ollama/models")).unwrap();
    for none in [None, Some(""), Some(" "), Some("\"\"")] {
        shows_demo(&run(none), "the store at home");
    }
    fails(&run(Some(&root)), "the variable goes before the home", 7, &["no such manifest"]);
}

/// What a user may miss in an output is noted with its place: adapters, projectors, drafts.
/// Licences are not.
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
    assert!(text.contains("settings and tokenizer") && text.contains("sha256:aaaa"), "{text}");
}
