//! Safetensors: texts of `__metadata__`, whatever the header looks like.

use std::collections::HashMap;

use safetensors::SafeTensors;
use serde_json::json;

use super::{edit, notes, place};
use crate::common::{f32s, file, raw};

/// A file with a header of this text.
fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// The metadata of a file, its header's length and its data, as the `safetensors` crate reads it.
fn read(path: &str) -> (HashMap<String, String>, usize, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let (len, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    SafeTensors::deserialize(&bytes).unwrap();
    let texts = metadata.metadata().clone().unwrap_or_default();
    (texts, len, bytes[8 + len..].to_vec())
}

/// With metadata or without, with padding or without, on one line or many.
#[test]
fn headers_of_all_kinds() {
    let (_root, path) = place("m.safetensors");
    let tensor = r#""a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}"#;
    for (header, data) in [
        (format!("{{{tensor}}}"), &b"xyz"[..]),
        (format!("{{{tensor}}}   "), b"xyz"),
        (format!("{{\n  {tensor}\n}}\n"), b"xyz"),
        (format!("{{{tensor},\"__metadata__\":null}}"), b"xyz"),
        (format!("{{{tensor}, \"__metadata__\": {{}} }}"), b"xyz"),
        (format!("{{\"__metadata__\":{{\"format\":\"pt\"}},{tensor}}} "), b"xyz"),
        ("{}".to_owned(), b""),
        ("{ \n}".to_owned(), b""),
    ] {
        std::fs::write(&path, with_header(&header, data)).unwrap();
        let len = header.len();
        let text = "\"quotes\", \\, ä and\na line";
        let report = edit(&path, &["--set", "format=pt", "--set", &format!("a.b={text}")]);
        let (texts, now, found) = read(&path);
        assert_eq!(texts["a.b"], text, "{header}");
        assert_eq!((texts["format"].as_str(), texts.len(), &*found), ("pt", 2, data), "{header}");
        // At the same place of a block, so that file systems can share the data.
        assert_eq!((now % 4096, notes(&report)), (len % 4096, String::new()), "{header}");
        let report = edit(&path, &["--rename", "a.b=c", "--set", "format=mlx"]);
        assert_eq!(report["changes"][0]["renamed_from"], "a.b");
    }
}

/// A shorter header keeps its length, and the data its place.
#[test]
fn shorter_headers() {
    let (_root, path) = place("m.safetensors");
    let long = "x".repeat(2000);
    let tensors = [raw("w", "F32", &[2], f32s(&[1.0, 2.0]))];
    std::fs::write(&path, file(&tensors, &[("long", &long), ("format", "pt")])).unwrap();
    let (_, len, data) = read(&path);
    let report = edit(&path, &["--unset", "long"]);
    assert_eq!(report["written"], "file");
    assert_eq!(read(&path), (HashMap::from([("format".into(), "pt".into())]), len, data));
    // What has been freed is room for others.
    let report = edit(&path, &["--set", "more=some text"]);
    assert_eq!((&report["written"], read(&path).1), (&json!("header"), len));
}

/// transformers refuses metadata without a framework under `format`.
#[test]
fn files_that_transformers_would_refuse() {
    let (_root, path) = place("m.safetensors");
    let tensors = [raw("w", "F32", &[2], f32s(&[1.0, 2.0]))];
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    let told = notes(&edit(&path, &["--set", "author=me"]));
    assert!(told.contains("--set format=pt"), "{told}");
    // It is refused already.
    assert_eq!(notes(&edit(&path, &["--set", "author=you"])), "");
    assert_eq!(notes(&edit(&path, &["--set", "format=pt"])), "");
    assert_ne!(notes(&edit(&path, &["--unset", "format"])), "");
    // Without any metadata it is loaded, and with those of no keys it would not be.
    assert_eq!(notes(&edit(&path, &["--unset", "author"])), "");
    let header = std::fs::read(&path).unwrap();
    assert!(!String::from_utf8_lossy(&header).contains("__metadata__"));
}
