//! Models in Ollama's layers of tensors whose manifests or blobs lie.

use std::fmt::Write as _;
use std::path::PathBuf;

use anamnesis::{AnamnesisError, Result, TargetDtype, parse};
use serde_json::{Value, json};

use crate::common::verdict::{Kind, Parse, verdict};
use crate::common::{file, raw};

const TENSOR: &str = "application/vnd.ollama.image.tensor";

/// A store, and the layers of its model.
struct Store {
    root: tempfile::TempDir,
    layers: Vec<Value>,
}

impl Store {
    fn new() -> Self {
        let root = crate::common::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("models/blobs")).unwrap();
        let layers = vec![];
        Self { root, layers }
    }

    /// A store with a layer for each of `blobs`.
    fn of(blobs: &[Vec<u8>]) -> Self {
        let mut store = Self::new();
        blobs.iter().for_each(|bytes| store.add(bytes));
        store
    }

    /// Adds a layer with the name of its number, and a digest that is that number.
    fn add(&mut self, bytes: &[u8]) {
        let number = self.layers.len();
        let (blob, digest) = (format!("sha256-{number:064x}"), digest(number));
        std::fs::write(self.root.path().join("models/blobs").join(blob), bytes).unwrap();
        let name = format!("layer {number}");
        let len = bytes.len();
        let layer = json!({"mediaType": TENSOR, "digest": digest, "size": len, "name": name});
        self.layers.push(layer);
    }

    fn manifest(&self) -> PathBuf {
        self.manifest_of(&json!({"schemaVersion": 2, "layers": self.layers}).to_string())
    }

    fn manifest_of(&self, text: &str) -> PathBuf {
        let directory = "models/manifests/registry.ollama.ai/library/m";
        let directory = self.root.path().join(directory);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("latest"), text).unwrap();
        directory.join("latest")
    }

    fn decoded(&self) -> Result<Vec<u8>> {
        parse(self.manifest())?.remember_to_bytes(TargetDtype::F32)
    }
}

fn digest(number: usize) -> String {
    format!("sha256:{number:064x}")
}

/// A blob with the tensor `name`.
fn blob(name: &str) -> Vec<u8> {
    file(&[raw(name, "F16", &[2, 2], vec![0; 8])], &[])
}

/// A safetensors file with this header.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    let len = (header.len() as u64).to_le_bytes();
    [&len[..], header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn blobs_that_lie() {
    let good = blob("a");
    assert!(Store::of(std::slice::from_ref(&good)).decoded().is_ok());
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        let header =
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#);
        with_header(&header, 8)
    };
    let long = |len: u64| [&len.to_le_bytes()[..], &good[8..]].concat();
    let blobs = [
        ("no bytes", vec![]),
        ("seven bytes", good[..7].to_vec()),
        ("a cut header", good[..20].to_vec()),
        ("cut data", good[..good.len() - 1].to_vec()),
        ("bytes behind the data", [&good[..], &[0]].concat()),
        ("a header of no bytes", long(0)),
        ("a header longer than the file", long(good.len() as u64)),
        ("a header of 2^63 bytes", long(1 << 63)),
        ("a header of 2^64 - 1 bytes", long(u64::MAX)),
        ("offsets behind the end", entry("F16", "[2,2]", "[8,16]")),
        ("offsets in the wrong order", entry("F16", "[2,2]", "[8,0]")),
        ("offsets that are negative", entry("F16", "[2,2]", "[-8,0]")),
        ("another shape than bytes", entry("F16", "[2,3]", "[0,8]")),
        ("a shape that overflows", entry("F16", "[4294967296,4294967296]", "[0,8]")),
        ("a dtype that is not known", entry("F17", "[2,2]", "[0,8]")),
        ("no JSON", with_header("{\"a\":", 8)),
        ("a pickle", b"\x80\x02}.".to_vec()),
    ];
    for (what, bytes) in blobs {
        let second = Store::of(&[blob("b"), bytes]);
        let wrong = verdict(second.decoded(), Parse, &["layer `layer 1`"]);
        assert_eq!(wrong, None, "{what}");
    }
}

#[test]
fn manifests_that_lie() {
    let changed = |key: &str, value: Value| {
        let mut store = Store::of(&[blob("a"), blob("b")]);
        store.layers[1][key] = value;
        store
    };
    let len = blob("b").len();
    let cases: [(&str, Value, Kind, &str); 9] = [
        ("size", json!(len + 1), Parse, "truncated"),
        ("size", json!(len - 1), Parse, "bytes of"),
        ("size", json!(u64::MAX), Parse, "truncated"),
        ("size", json!(0), Parse, "bytes of 0"),
        ("size", json!(-1), Parse, "latest"),
        ("digest", json!("sha256:../../../../etc/passwd"), Parse, "digest"),
        ("digest", json!(format!("sha256:{}", "../".repeat(21) + "x")), Parse, "digest"),
        ("digest", json!(""), Parse, "digest"),
        ("digest", json!(7), Parse, "latest"),
    ];
    for (key, value, kind, word) in cases {
        let wrong = verdict(changed(key, value.clone()).decoded(), kind, &[word]);
        assert_eq!(wrong, None, "{key} {value}");
    }
    // A blob that is not there.
    let missing = changed("digest", json!(digest(7))).decoded();
    assert!(matches!(missing, Err(AnamnesisError::Io(_))));
    // A layer that is listed again is read once, but what is said of it must still be true.
    let mut store = Store::of(&[blob("a")]);
    store.layers.push(store.layers[0].clone());
    assert!(store.decoded().is_ok());
    store.layers[1]["size"] = json!(3);
    assert_eq!(verdict(store.decoded(), Parse, &["bytes of 3"]), None);
    // Two blobs with one tensor.
    let store = Store::of(&[blob("a"), blob("b"), blob("a")]);
    let wrong = verdict(store.decoded(), Parse, &["`a`", "two layers"]);
    assert_eq!(wrong, None);
}

/// Names of layers and tensors are no paths.
#[test]
fn names_that_would_lead_elsewhere() {
    let mut store = Store::of(&[blob("../../a"), blob("/b")]);
    store.layers[0]["name"] = json!("../../../a");
    let before = below(&store);
    let out = store.root.path().join("out");
    parse(store.manifest())
        .unwrap()
        .remember(&out, TargetDtype::F32)
        .unwrap();
    let mut after = below(&store);
    after.retain(|name| !before.contains(name));
    assert_eq!(after, ["out"]);
    let model = parse(&out).unwrap();
    let mut names: Vec<_> = model.tensors().map(|t| t.name().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["../../a", "/b"]);
}

/// What lies in the directory of a store, and in that above it.
fn below(store: &Store) -> Vec<String> {
    store.manifest();
    let entries = std::fs::read_dir(store.root.path()).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[cfg(feature = "check")]
#[test]
fn a_digest_that_is_not_that_of_its_bytes() {
    use sha2::{Digest, Sha256};
    let good = blob("a");
    let sum = Sha256::digest(&good);
    let hex: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    let findings = |digest: &str, bytes: &[u8]| {
        let mut store = Store::of(&[blob("b")]);
        std::fs::remove_file(
            store
                .root
                .path()
                .join(format!("models/blobs/sha256-{:064x}", 0)),
        )
        .unwrap();
        let place = format!("models/blobs/sha256-{digest}");
        std::fs::write(store.root.path().join(place), bytes).unwrap();
        store.layers[0]["digest"] = json!(format!("sha256:{digest}"));
        store.layers[0]["size"] = json!(bytes.len());
        let options = anamnesis::CheckOptions::default().with_data(true);
        let report = parse(store.manifest()).unwrap().check(&options).unwrap();
        let texts = report.findings.iter().map(|finding| &finding.message);
        texts.fold(String::new(), |all, text| all + text)
    };
    assert!(!findings(&hex, &good).contains("SHA-256"));
    let mut changed = good.clone();
    *changed.last_mut().unwrap() ^= 1;
    let found = findings(&hex, &changed);
    assert!(found.contains(&format!("has {hex}")), "{found}");
}

/// As many layers as a manifest has room for, and a blob of many weights with one description of
/// all.
#[test]
fn many_layers() {
    let mut monitor = crate::monitor::Monitor::new();
    let mut store = Store::new();
    (0..6000).for_each(|i| store.add(&blob(&format!("{i}"))));
    let text = |layers: &mut dyn Iterator<Item = String>| {
        let mut text = r#"{"layers":["#.to_owned();
        for (i, layer) in layers.enumerate() {
            write!(text, "{}{layer}", if i == 0 { "" } else { "," }).unwrap();
        }
        text + "]}"
    };
    let tensor = |number: usize| {
        let digest = digest(number);
        format!(r#"{{"mediaType":"{TENSOR}","digest":"{digest}"}}"#)
    };
    let all = text(&mut (0..6000).map(tensor));
    let again = text(&mut (0..6000).map(|_| tensor(5)));
    let empty = text(
        &mut [tensor(0)]
            .into_iter()
            .chain((0..300_000).map(|_| "{}".to_owned())),
    );
    let kinds = (0..40_000).map(|i| format!(r#"{{"mediaType":"{i}"}}"#));
    let kinds = text(&mut [tensor(0)].into_iter().chain(kinds));
    let json = (0..12_000)
        .map(|i| format!(r#"{{"mediaType":"application/vnd.ollama.image.json","name":"{i}"}}"#));
    let json = text(&mut [tensor(0)].into_iter().chain(json));
    for (what, text, tensors) in [
        ("layers", all, Some(6000)),
        ("one layer again and again", again, Some(1)),
        ("empty layers", empty, Some(1)),
        ("kinds of layers", kinds, Some(1)),
        ("files without digests", json, None),
    ] {
        let path = store.manifest_of(&text);
        let run = || parse(&path).map(|model| model.tensors().count());
        let (found, slow) = monitor.time(what, run);
        assert_eq!(slow, None, "{what}");
        let error = format!("{what}: {:?}", found.as_ref().err());
        assert_eq!(found.ok(), tensors, "{error}");
    }
    let header = (0..50_000)
        .fold(r#"{"__metadata__":{"quant_type":"int4"}"#.to_owned(), |text, i| {
            text + &format!(r#","{i}":{{"dtype":"U32","shape":[0],"data_offsets":[0,0]}}"#)
        });
    let store = Store::of(&[with_header(&(header + "}"), 0)]);
    let path = store.manifest();
    let (found, slow) = monitor
        .time("weights of a layer", || parse(&path).map(|model| model.inspect().to_string()));
    assert_eq!(found.err().map(|e| e.to_string()), None);
    assert_eq!(slow, None);
}
