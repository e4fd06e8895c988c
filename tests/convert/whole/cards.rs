//! Licence, tags and languages of model cards, against llama.cpp's converter.

use anamnesis::{ConvertTarget, GgufMetadataArray, GgufMetadataValue, parse};
use serde_json::Value;

use super::named;
use crate::common::data;

const KEYS: [&str; 5] = [
    "general.license",
    "general.license.name",
    "general.license.link",
    "general.tags",
    "general.languages",
];

/// Keys with their values, in the order of the file.
type Keys = Vec<(String, Value)>;

/// The keys that a model gets from the card `card`, and the notes on the card.
fn with_card(card: &[u8]) -> (Keys, Vec<String>) {
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole/llama"), directory.path());
    std::fs::write(from.join("README.md"), card).unwrap();
    let output = directory.path().join("out.gguf");
    let model = parse(&from).unwrap();
    let report = model.convert(&output, ConvertTarget::Gguf).unwrap();
    let made = parse(&output).unwrap();
    let view = made.gguf().unwrap();
    let entries = view.metadata().iter();
    let entries = entries.filter(|(key, _)| KEYS.contains(key));
    let value = |value| match value {
        GgufMetadataValue::String(text) => Value::from(text),
        GgufMetadataValue::Array(array) => match *array {
            GgufMetadataArray::String(all) => Value::from(all),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let keys = entries.map(|(key, v)| (key.to_owned(), value(v))).collect();
    let mut notes = report.notes;
    notes.retain(|note| note.contains("README.md"));
    (keys, notes)
}

#[test]
fn cards() {
    let rows = std::fs::read(data().join("model_cards.json")).unwrap();
    let rows: Vec<(String, Option<Keys>)> = serde_json::from_slice(&rows).unwrap();
    assert_eq!(rows.len(), 45);
    for (card, expected) in rows {
        let (keys, notes) = with_card(card.as_bytes());
        assert_eq!(notes.len(), usize::from(expected.is_none()), "{card}");
        assert_eq!(keys, expected.unwrap_or_default(), "{card}");
    }
}

/// A card that is too long, is no text, or does not end is no reason to refuse a model.
#[test]
fn cards_that_are_none() {
    let long = "---\nlicense: mit\n---\n".to_owned() + &"x".repeat(1 << 20);
    for (card, why) in [
        (long.as_bytes(), "too long"),
        (b"---\nlicense: \xff\n---\n", "no UTF-8"),
        (b"---\nlicense: mit\n", "no end"),
        (b"---\nlicense: a\x00b\n---\n", "control characters"),
    ] {
        let (keys, notes) = with_card(card);
        assert!(keys.is_empty() && notes.len() == 1, "{notes:?}");
        assert!(notes[0].contains(why), "{notes:?}");
    }
}
