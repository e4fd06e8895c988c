//! Models in Ollama's layers of tensors: the golden store, and layers that are incomplete or
//! contradictory.

use std::path::PathBuf;

use anamnesis::{AnamnesisError, ParsedModel, TargetDtype, parse};
use serde_json::{Value, json};

use crate::common::{Raw, TARGETS, assert_same, data, f32s, file, raw};

const MANIFEST: &str = "models/manifests/registry.ollama.ai/library/layers/latest";

#[test]
fn every_kind_of_layer() {
    let golden = data().join("ollama");
    let model = parse(golden.join(MANIFEST)).unwrap();
    for (target, name) in TARGETS {
        let expected =
            std::fs::read(golden.join(format!("mixed/expected-{name}.safetensors"))).unwrap();
        let bytes = model.remember_to_bytes(target).unwrap();
        assert_same(&expected, &bytes, name);
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().clone().unwrap_or_default();
        let is_of_codes =
            |key: &&String| key.ends_with("quant_type") || key.ends_with("group_size");
        assert_eq!(metadata.keys().find(is_of_codes), None);
    }
    let problems = model.inspect().problems;
    assert!(problems.is_empty(), "{problems:?}");
}

/// A store with the blobs `blobs`, each a layer.
struct Store(tempfile::TempDir);

impl Store {
    fn new(blobs: &[Vec<u8>]) -> Self {
        let store = Self(crate::common::tempdir().unwrap());
        let models = store.0.path().join("models");
        std::fs::create_dir_all(models.join("blobs")).unwrap();
        let layer = |(i, bytes): (usize, &Vec<u8>)| -> Value {
            let hex = format!("{i:064x}");
            std::fs::write(models.join("blobs").join(format!("sha256-{hex}")), bytes).unwrap();
            let kind = "application/vnd.ollama.image.tensor";
            let digest = format!("sha256:{hex}");
            json!({"mediaType": kind, "digest": digest, "size": bytes.len(), "name": format!("layer {i}")})
        };
        let layers: Vec<_> = blobs.iter().enumerate().map(layer).collect();
        let kind = "application/vnd.docker.distribution.manifest.v2+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": kind, "layers": layers});
        std::fs::create_dir_all(store.manifest().parent().unwrap()).unwrap();
        std::fs::write(store.manifest(), manifest.to_string()).unwrap();
        store
    }

    fn manifest(&self) -> PathBuf {
        self.0.path().join(MANIFEST)
    }

    fn error(&self) -> String {
        let decoded = parse(self.manifest()).and_then(|model| decode(&model));
        decoded.unwrap_err().to_string()
    }
}

fn decode(model: &ParsedModel) -> Result<Vec<u8>, AnamnesisError> {
    model.remember_to_bytes(TargetDtype::F32)
}

/// A weight of two rows of 64 values: words of `bits` bits a value, and the scales of groups of
/// `group`.
fn weight(name: &str, bits: usize, group: usize, scales: &'static str) -> Vec<Raw> {
    let groups = 64 / group;
    let bytes = match scales {
        "U8" => vec![0x38; 2 * groups],
        _ => f32s(&vec![1.0; 2 * groups]),
    };
    vec![
        raw(name, "U32", &[2, 2 * bits], vec![0x11; 16 * bits]),
        raw(&format!("{name}.scale"), scales, &[2, groups], bytes),
    ]
}

fn affine(bits: usize, group: usize) -> Vec<Raw> {
    let mut all = weight("a.weight", bits, group, "F32");
    let biases = f32s(&vec![0.0; 128 / group]);
    all.push(raw("a.weight.bias", "F32", &[2, 64 / group], biases));
    all
}

fn nvfp4(global: Option<Raw>) -> Vec<Raw> {
    let mut all = weight("a.weight", 4, 16, "U8");
    all.extend(global);
    all
}

#[test]
fn layers_without_metadata_are_read_if_the_shapes_decide() {
    let store = Store::new(&[file(&affine(4, 32), &[])]);
    assert!(parse(store.manifest()).and_then(|m| decode(&m)).is_ok());
    // 4 bits in groups of 64, or 8 in groups of 32.
    let store = Store::new(&[file(&affine(4, 64), &[])]);
    assert!(store.error().contains("(4, 64)"), "{}", store.error());
    let store = Store::new(&[file(&affine(4, 64), &[("quant_type", "int4")])]);
    assert!(parse(store.manifest()).and_then(|m| decode(&m)).is_ok());
}

#[test]
fn contradictions() {
    let global = |name: &str, n: usize| raw(name, "F32", &[n], f32s(&vec![1.0; n]));
    let int4 = &[("quant_type", "int4"), ("group_size", "64")][..];
    for (blob, expected) in [
        (file(&affine(4, 64), &[("quant_type", "int8")]), "int8 in groups of 64"),
        (file(&affine(4, 64), &[("quant_type", "int5")]), "`int5`, which is not known"),
        (
            file(&affine(4, 64), &[("quant_type", "int4"), ("group_size", "many")]),
            "`many`, which is no number",
        ),
        (
            file(&affine(4, 64), &[("quant_type", "int4"), ("group_size", "99999999999999999999")]),
            "which is no number",
        ),
        (
            file(&affine(4, 64), &[("quant_type", "int4"), ("group_size", "9223372036854775807")]),
            "a scale is for 256 bits",
        ),
        (
            file(&affine(4, 64), &[("quant_type", "int4"), ("a.weight.quant_type", "int8")]),
            "int8 in groups of 64",
        ),
        // Scales of floats under the name of a type with bytes, and the other way round.
        (file(&affine(4, 32), &[("quant_type", "mxfp4")]), "by its scales it is"),
        (
            file(&weight("a.weight", 4, 32, "U8"), &[("quant_type", "int4"), ("group_size", "32")]),
            "by its scales it is",
        ),
        (
            file(
                &weight("a.weight", 4, 32, "U8"),
                &[("quant_type", "nvfp4"), ("group_size", "32")],
            ),
            "by its scales it is",
        ),
        (file(&affine(4, 64)[..2], int4), "`a.weight.bias` is missing"),
        (file(&affine(4, 64)[..1], int4), "`a.weight.scale` is missing"),
        (file(&affine(4, 64)[1..], int4), "none goes with it"),
        (
            file(&nvfp4(Some(global("a.weight.global_scale", 2))), &[("quant_type", "nvfp4")]),
            "one global scale, not 2",
        ),
        (
            file(
                &[weight("a.weight", 4, 32, "U8"), vec![global("a.weight.global_scale", 1)]]
                    .concat(),
                &[("quant_type", "mxfp4")],
            ),
            "has none",
        ),
    ] {
        let error = Store::new(&[blob]).error();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn one_layer_does_not_describe_another() {
    let mut b = affine(8, 32);
    for t in &mut b {
        t.name = t.name.replace("a.weight", "b.weight");
    }
    let first = file(&affine(4, 64), &[("quant_type", "int4")]);
    // Without a type of its own, `b` could be of 4 or 8 bits.
    let store = Store::new(&[first.clone(), file(&b, &[])]);
    assert!(store.error().contains("b.weight"), "{}", store.error());
    let described = file(&b, &[("quant_type", "int8"), ("group_size", "32")]);
    let store = Store::new(&[first, described]);
    let model = parse(store.manifest()).unwrap();
    assert_eq!(model.inspect().problems.len(), 0);
    decode(&model).unwrap();
}

/// Ollama takes what metadata say of a weight from the weight's own blob alone.
#[test]
fn a_layer_that_names_a_weight_of_another() {
    let lie =
        [("quant_type", "int4"), ("b.weight.quant_type", "int4"), ("b.weight.group_size", "64")];
    let first = file(&affine(4, 64), &lie);
    let mut b = affine(8, 32);
    for t in &mut b {
        t.name = t.name.replace("a.weight", "b.weight");
    }
    let described = [("quant_type", "int8"), ("group_size", "32")];
    let of_itself = [("b.weight.quant_type", "int8"), ("b.weight.group_size", "32")];
    let honest = file(&affine(4, 64), &lie[..1]);
    for metadata in [described, of_itself] {
        let second = file(&b, &metadata);
        let expected = Store::new(&[honest.clone(), second.clone()]);
        let expected = decode(&parse(expected.manifest()).unwrap()).unwrap();
        for blobs in [[&first, &second], [&second, &first]] {
            let store = Store::new(&blobs.map(Vec::clone));
            let decoded = decode(&parse(store.manifest()).unwrap()).unwrap();
            assert_same(&expected, &decoded, "a weight of another layer");
        }
    }
    // A blank text says nothing, and what is said of all weights holds.
    let blank =
        [described[0], described[1], ("b.weight.quant_type", " "), ("b.weight.group_size", "")];
    let store = Store::new(&[file(&b, &blank)]);
    decode(&parse(store.manifest()).unwrap()).unwrap();
}

#[test]
fn malformed_layers() {
    let one = file(&affine(4, 32), &[]);
    let twice = Store::new(&[one.clone(), one.clone()]);
    assert!(twice.error().contains("`a.weight` is in two layers"), "{}", twice.error());
    let cut = Store::new(&[one[..one.len() - 1].to_vec()]);
    assert!(cut.error().contains("layer `layer 0`"), "{}", cut.error());
    let gguf = Store::new(&[b"GGUF\x03\0\0\0".to_vec()]);
    assert!(gguf.error().contains("layer `layer 0`"), "{}", gguf.error());

    let long = "x".repeat(65);
    let long = Store::new(&[file(&affine(4, 32), &[("group_size", &long)])]);
    assert!(long.error().contains("`group_size` has 65 bytes"), "{}", long.error());

    // A manifest that is in no store leads nowhere.
    let store = Store::new(&[one]);
    let copy = store.0.path().join("latest");
    std::fs::copy(store.manifest(), &copy).unwrap();
    let error = parse(&copy).unwrap_err().to_string();
    assert!(error.contains("in the store"), "{error}");
    let bytes = std::fs::read(&copy).unwrap();
    let error = anamnesis::parse_bytes(bytes).unwrap_err().to_string();
    assert!(error.contains("in the store"), "{error}");
}
