//! Models that Keras has quantized, whose configs say something else.

use std::io::Read;

use anamnesis::{AnamnesisError, TargetDtype, parse_bytes};

use crate::common::data;
use crate::common::zip::{Member, Zip};

/// The model of a golden with another config, or without one.
fn model(case: &str, config: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let path = data()
        .join("keras_quantized")
        .join(case)
        .join("model.keras");
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut members = Vec::new();
    for i in 0..archive.len() {
        let mut member = archive.by_index(i).unwrap();
        let mut content = Vec::new();
        member.read_to_end(&mut content).unwrap();
        let name = member.name().unwrap().to_string();
        let content = match name.as_str() {
            "config.json" => config(std::str::from_utf8(&content).unwrap()).map(String::into_bytes),
            _ => Some(content),
        };
        members.extend(content.map(|content| Member::stored(&name, &content)));
    }
    Zip::of(&members).file()
}

fn decoded(bytes: Vec<u8>) -> anamnesis::Result<Vec<u8>> {
    parse_bytes(bytes)?.remember_to_bytes(TargetDtype::F32)
}

/// Codes that the config does not explain are never copied.
#[test]
fn other_configs() {
    let same = model("int8_odd", |json| Some(json.to_owned()));
    let expected = decoded(same).unwrap();
    let rows: [(&str, &str, &str); 5] = [
        ("\"Dense\"", "\"MyDense\"", "`MyDense` in mode int8"),
        ("\"mode\": \"int8\"", "\"mode\": \"gptq/4/128\"", "in mode gptq/4/128"),
        ("\"mode\": \"int8\"", "\"mode\": \"int4\"", "in mode int4"),
        ("\"name\": \"last\"", "\"name\": \"other\"", "that no config describes"),
        ("\"output_dim\": 7", "\"output_dim\": 8", ""),
    ];
    for (from, to, words) in rows {
        let changed = model("int8_odd", |json| {
            assert!(json.contains(from), "{from}");
            Some(json.replace(from, to))
        });
        match decoded(changed) {
            Err(AnamnesisError::Unsupported { .. }) if words.is_empty() => panic!("{to}"),
            // Columns of codes of eight bits are those of the dataset.
            Ok(got) => assert!(words.is_empty() && got == expected, "{to} is read"),
            Err(error) => assert!(error.to_string().contains(words), "{to}: {error}"),
        }
    }
    let none = decoded(model("int8_odd", |_| None))
        .unwrap_err()
        .to_string();
    assert!(none.contains("that no config describes"), "{none}");
    let broken = decoded(model("int8_odd", |_| Some("{".to_owned()))).unwrap_err();
    assert!(matches!(broken, AnamnesisError::Parse { .. }), "{broken}");
    // Columns of four bits are those of the config.
    let columns = |json: &str| Some(json.replace("\"output_dim\": 7", "\"output_dim\": 6"));
    let columns = decoded(model("int4_odd", columns)).unwrap_err().to_string();
    assert!(columns.contains("in mode int4"), "{columns}");
}
