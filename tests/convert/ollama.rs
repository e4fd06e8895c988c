//! Models in Ollama's layers: the layers that are files of the model come into an output directory.

use std::path::PathBuf;

use anamnesis::{ConvertOptions, ConvertTarget, ErrorKind, TargetDtype, parse};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::common::{f32s, file, raw};

const JSON: &str = "application/vnd.ollama.image.json";
const CONFIG: &str = r#"{"model_type": "x", "quantization": {"bits": 4, "group_size": 64}, "torch_dtype": "float16"}"#;

/// A store with a model of one weight in F16 and of other layers.
struct Store {
    root: tempfile::TempDir,
    layers: Vec<Value>,
}

impl Store {
    fn new() -> Self {
        let root = crate::common::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("models/blobs")).unwrap();
        let layers = vec![];
        let mut store = Self { root, layers };
        let weight =
            file(&[raw("a.weight", "F16", &[2, 2], vec![0, 0x3c, 0, 0x40, 0, 0, 0, 0x44])], &[]);
        store.add("application/vnd.ollama.image.tensor", "a.weight", &weight);
        store
    }

    fn blob(&self, digest: &str) -> PathBuf {
        let name = digest.replace(':', "-");
        self.root.path().join("models/blobs").join(name)
    }

    /// Adds a layer, and returns its digest.
    fn add(&mut self, kind: &str, name: &str, content: &[u8]) -> String {
        let sum = Sha256::digest(content);
        let hex: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        let digest = format!("sha256:{hex}");
        std::fs::write(self.blob(&digest), content).unwrap();
        self.layers.push(
            json!({"mediaType": kind, "digest": digest, "size": content.len(), "name": name}),
        );
        digest
    }

    fn manifest(&self) -> PathBuf {
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "layers": self.layers,
        });
        let path = self
            .root
            .path()
            .join("models/manifests/registry.ollama.ai/library/m/latest");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, manifest.to_string()).unwrap();
        path
    }

    /// The error of parsing the model and converting it to a directory; empty if there is none.
    fn error(&self) -> String {
        let out = self.root.path().join("out");
        let run = || {
            let mut options = ConvertOptions::new(ConvertTarget::Safetensors);
            options.run.replace = anamnesis::Replace::Everything;
            parse(self.manifest())?.convert(&out, &options)
        };
        let result = run();
        match result {
            Ok(_) => String::new(),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Parse | ErrorKind::Io), "{error}");
                error.to_string()
            }
        }
    }
}

#[test]
fn files_come_along() {
    let mut store = Store::new();
    let tokenizer = br#"{"version": "1.0", "model": {}}"#;
    store.add(JSON, "config.json", CONFIG.as_bytes());
    store.add(JSON, "tokenizer.json", tokenizer);
    store.add(JSON, "draft/config.json", b"{}");
    // The index of the files that the model had before.
    store.add(JSON, "model.safetensors.index.json", b"{\"weight_map\": {}}");
    store.add("application/vnd.ollama.image.license", "LICENSE", b"free");
    let model = parse(store.manifest()).unwrap();
    assert!(model.inspect().notes.is_empty(), "{:?}", model.inspect().notes);
    let out = store.root.path().join("out");
    let mut options = ConvertOptions::new(ConvertTarget::Safetensors);
    options.run.to = TargetDtype::F32;
    options.run.cast = anamnesis::FloatCast::Checked;
    model.convert(&out, &options).unwrap();
    let read = |name: &str| std::fs::read(out.join(name)).unwrap();
    let config: Value = serde_json::from_slice(&read("config.json")).unwrap();
    assert_eq!(config, json!({"model_type": "x", "torch_dtype": "float32"}));
    assert_eq!(read("tokenizer.json"), tokenizer);
    assert_eq!(read("draft/config.json"), b"{}");
    let mut names: Vec<_> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["config.json", "draft", "model.safetensors", "tokenizer.json"]);
    let written = parse(&out).unwrap();
    let bytes = written
        .tensor("a.weight")
        .unwrap()
        .bytes()
        .unwrap()
        .into_owned();
    assert_eq!(bytes, f32s(&[1.0, 2.0, 0.0, 4.0]));
}

/// A single file has no place for them, and a model without such layers is written to one.
#[test]
fn a_single_file_has_none() {
    let mut store = Store::new();
    let out = store.root.path().join("out.safetensors");
    let options = ConvertOptions::new(ConvertTarget::Safetensors);
    parse(store.manifest())
        .unwrap()
        .convert(&out, &options)
        .unwrap();
    assert!(out.is_file());
    store.add(JSON, "config.json", CONFIG.as_bytes());
    let mut options = options;
    options.single_file = true;
    options.run.replace = anamnesis::Replace::Everything;
    let mut npz = ConvertOptions::new(ConvertTarget::Npz);
    npz.run.replace = anamnesis::Replace::Everything;
    for options in [options, npz] {
        let model = parse(store.manifest()).unwrap();
        let notes = model.convert(&out, &options).unwrap().notes.join("\n");
        assert!(out.is_file());
        assert!(notes.contains("files of the model are left out"), "{notes:?}");
        assert!(notes.contains("`config.json` is "), "{notes:?}");
    }
}

#[test]
fn weights_among_the_files_are_named() {
    let mut store = Store::new();
    store.add(JSON, "draft/model.safetensors", b"{}");
    let options = ConvertOptions::new(ConvertTarget::Safetensors);
    let model = parse(store.manifest()).unwrap();
    let out = store.root.path().join("out");
    let notes = model.convert(&out, &options).unwrap().notes.join("\n");
    assert!(notes.contains("`draft/model.safetensors` is not converted"), "{notes:?}");
}

#[test]
fn names_that_lead_elsewhere_are_errors() {
    for name in [
        "../config.json",
        "/etc/config.json",
        "a/../../config.json",
        "a//config.json",
        "./config.json",
        "a/./b.json",
        "a/",
        "a\\config.json",
        "C:config.json",
        "..",
        ".",
        "/",
        "a\nb.json",
        "a\0b",
    ] {
        let mut store = Store::new();
        store.add(JSON, name, b"{}");
        let error = store.error();
        assert!(error.contains("outside of the model's directory"), "{name}: `{error}`");
    }
    let mut store = Store::new();
    store.add(JSON, "a/b/tokenizer.json", b"{}");
    assert_eq!(store.error(), "");
}

#[test]
fn layers_that_contradict_each_other_are_errors() {
    for (first, second, words) in [
        ("config.json", "config.json", "is there twice"),
        ("config.json", "Config.JSON", "is there twice"),
        ("a", "a/config.json", "a file and a directory"),
        ("a/b/c.json", "a/b", "a file and a directory"),
    ] {
        let mut store = Store::new();
        store.add(JSON, first, b"{}");
        store.add(JSON, "a-file.json", b"{}");
        store.add(JSON, second, b"[]");
        let error = store.error();
        assert!(error.contains(words), "{first} {second}: `{error}`");
    }
}

#[test]
fn blobs_that_are_not_what_they_are_called_are_errors() {
    let changed = |change: &dyn Fn(&mut Store, &str)| {
        let mut store = Store::new();
        let digest = store.add(JSON, "config.json", b"{}");
        change(&mut store, &digest);
        store.error()
    };
    let content = |store: &mut Store, digest: &str, bytes: &[u8]| {
        std::fs::write(store.blob(digest), bytes).unwrap();
    };
    let error = changed(&|store, digest| content(store, digest, b"[]"));
    assert!(error.contains("it is to be `config.json`, and its SHA-256 is"), "{error}");
    let error = changed(&|store, digest| content(store, digest, b"{} "));
    assert!(error.contains("3 bytes of 2"), "{error}");
    let error = changed(&|store, digest| std::fs::remove_file(store.blob(digest)).unwrap());
    assert!(error.contains("sha256-"), "{error}");
    let error = changed(&|store, _| store.layers[1]["digest"] = json!("sha256:../../config.json"));
    assert!(error.contains("is not `sha256:` and 64"), "{error}");
    // A name that is that of weights is none of a file beside them.
    let mut store = Store::new();
    store.add(JSON, "model.safetensors", b"{}");
    store.add(JSON, "config.json", CONFIG.as_bytes());
    assert_eq!(store.error(), "");
    let written = parse(store.root.path().join("out")).unwrap();
    assert!(written.tensor("a.weight").is_some());
}

/// What programs obey where they find it is in no output, and a note names it.
#[test]
fn layers_that_programs_would_obey() {
    for name in crate::unwritten::OBEYED {
        // A colon or a backslash is refused before.
        let mut store = Store::new();
        store.add(JSON, name, b"[core]\n\tfsmonitor = echo\n");
        store.add(JSON, "tokenizer.json", b"{}");
        let out = store.root.path().join("out");
        let model = parse(store.manifest()).unwrap();
        let options = ConvertOptions::new(ConvertTarget::Safetensors);
        let report = model.convert(&out, &options).unwrap();
        let there = std::fs::read_dir(&out).unwrap().count();
        assert_eq!(there, 2, "{name}");
        let note = format!("`{name}` was left out: ");
        let is_noted = report.notes.iter().any(|n| n.starts_with(&note));
        assert!(is_noted, "{name}: {:?}", report.notes);
    }
}

#[test]
fn names_that_no_file_can_have_are_errors() {
    let long = "x".repeat(300);
    for (name, words) in [
        (long.clone(), "longer than file systems allow"),
        (format!("{long}/config.json"), "longer than file systems allow"),
        (".anamnesis".to_owned(), "this program names"),
        ("sub/.ANAMNESIS".to_owned(), "this program names"),
        ("anamnesis-part-1-of-1.json".to_owned(), "this program names"),
        ("model.safetensors.partial".to_owned(), "this program names"),
    ] {
        let mut store = Store::new();
        store.add(JSON, &name, b"{}");
        let error = parse(store.manifest()).unwrap_err().to_string();
        assert!(error.contains(words), "{name}: `{error}`");
    }
    let mut store = Store::new();
    store.add(JSON, "config.json", b"{}");
    store.add(JSON, "con\u{200c}fig.json", b"[]");
    assert!(store.error().contains("is there twice"));
}
