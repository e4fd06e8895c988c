//! A model in Ollama's layers of tensors: a manifest in a store, and one blob with a weight of four
//! bits.

use super::{FileOf, Part, bf16s, codes, cols, file_with, rows};

pub const NAME: &str = "ollama-int4";

/// Where the manifest lies in the directory of the model.
pub const MANIFEST: &str = "models/manifests/registry.ollama.ai/library/layers/latest";

/// The digest of the blob in hexadecimal. Nothing compares it.
fn digest() -> String {
    "0".repeat(64)
}

pub fn blob() -> String {
    format!("models/blobs/sha256-{}", digest())
}

pub fn manifest() -> String {
    let layer = serde_json::json!({
        "mediaType": "application/vnd.ollama.image.tensor", "digest": format!("sha256:{}", digest()), "name": "w.weight",
    });
    let kind = "application/vnd.docker.distribution.manifest.v2+json";
    serde_json::json!({"schemaVersion": 2, "mediaType": kind, "layers": [layer]}).to_string()
}

fn model() -> Vec<u8> {
    let n = rows() * cols();
    let groups = || vec![rows(), cols() / 64];
    let parts = [
        Part("w.weight", "U32", vec![rows(), cols() / 8], codes(n / 2)),
        Part("w.weight.scale", "BF16", groups(), bf16s(n / 64)),
        Part("w.weight.bias", "BF16", groups(), bf16s(n / 64)),
    ];
    let metadata = serde_json::json!({"quant_type": "int4", "group_size": "64"});
    let header = serde_json::Map::from_iter([("__metadata__".to_owned(), metadata)]);
    file_with(&parts, header)
}

pub const FILES: &[FileOf] = &[(NAME, model)];
