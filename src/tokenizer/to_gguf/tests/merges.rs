//! Tokenizers of SentencePiece's kind that tokenizer.json alone has: llama.cpp's tokens, by the keys
//! that are written, are those of the `tokenizers` library (`tests/data/generate/tokenizer_merges.py`).

use std::collections::HashMap;

use super::hostile::{message, of_files};
use super::*;

/// The vocabulary of written keys, as llama.cpp takes it.
struct LlamaVocabulary {
    ids: HashMap<String, u32>,
    types: Vec<i32>,
    scores: Option<Vec<f32>>,
    ranks: HashMap<String, usize>,
    has_prefix: bool,
}

impl LlamaVocabulary {
    fn new(keys: &TokenizerKeys) -> Self {
        let get = |name: &str| {
            let name = format!("tokenizer.ggml.{name}");
            let found = keys.keys.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.clone())
        };
        let array = |name: &str| match get(name) {
            Some(GgufMetadataValue::Array(array)) => Some(*array),
            _ => None,
        };
        let texts = |name: &str| match array(name) {
            Some(GgufMetadataArray::String(texts)) => texts,
            _ => vec![],
        };
        let Some(GgufMetadataArray::I32(types)) = array("token_type") else {
            panic!("no types");
        };
        let is_spm = get("model").unwrap().as_string() == Some("llama");
        let scores = array("scores").map(|scores| match scores {
            GgufMetadataArray::F32(scores) => scores,
            _ => panic!("scores of another type"),
        });
        assert_eq!(scores.is_some(), is_spm);
        let by_text = |texts: Vec<String>| texts.into_iter().zip(0..);
        let prefix = get("add_space_prefix").and_then(|flag| flag.as_bool());
        Self {
            ids: by_text(texts("tokens")).collect(),
            types,
            scores,
            ranks: by_text(texts("merges"))
                .map(|(m, i)| (m, i as usize))
                .collect(),
            has_prefix: is_spm && prefix.unwrap_or(true),
        }
    }

    /// Texts between tokens that are found first, and these (`tokenizer_st_partition`).
    fn fragments(&self, text: &str) -> Vec<std::result::Result<u32, String>> {
        let mut first: Vec<_> = self.ids.iter().collect();
        first.retain(|(_, id)| matches!(self.types[**id as usize], 2..=4));
        first.sort_by_key(|(text, id)| (std::cmp::Reverse(text.len()), **id));
        let mut out = vec![Err(text.to_owned())];
        for (token, id) in first {
            let split = |fragment: std::result::Result<u32, String>| match fragment {
                Ok(id) => vec![Ok(id)],
                Err(text) => {
                    let mut parts: Vec<_> = text
                        .split(token.as_str())
                        .flat_map(|part| [Ok(*id), Err(part.to_owned())])
                        .skip(1)
                        .collect();
                    parts.retain(|part| *part != Err(String::new()));
                    parts
                }
            };
            out = out.into_iter().flat_map(split).collect();
        }
        out
    }

    /// What comes first of two neighbours: their score, or minus the rank of their merge.
    fn priority(&self, left: &str, right: &str) -> Option<f32> {
        match &self.scores {
            Some(scores) => {
                let id = self.ids.get(&format!("{left}{right}"))?;
                Some(scores[*id as usize])
            }
            None => Some(-(*self.ranks.get(&format!("{left} {right}"))? as f32)),
        }
    }

    fn joined(&self, text: &str, out: &mut Vec<u32>) {
        let mut symbols: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let mut best: Option<(f32, usize)> = None;
            for (i, pair) in symbols.windows(2).enumerate() {
                let found = self.priority(&pair[0], &pair[1]);
                if let Some(found) = found.filter(|p| best.is_none_or(|(most, _)| *p > most)) {
                    best = Some((found, i));
                }
            }
            let Some((_, i)) = best else {
                break;
            };
            let right = symbols.remove(i + 1);
            symbols[i].push_str(&right);
        }
        for symbol in symbols {
            match self.ids.get(&symbol) {
                Some(id) => out.push(*id),
                None => {
                    let bytes = symbol.bytes().map(|byte| format!("<0x{byte:02X}>"));
                    out.extend(bytes.map(|byte| self.ids[&byte]));
                }
            }
        }
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        let mut is_behind_token = true;
        for fragment in self.fragments(text) {
            let text = match fragment {
                Ok(id) => {
                    out.push(id);
                    is_behind_token = true;
                    continue;
                }
                Err(text) => text,
            };
            let prefix = if self.has_prefix && is_behind_token {
                "▁"
            } else {
                ""
            };
            is_behind_token = false;
            let text = format!("{prefix}{}", text.replace(' ', "▁"));
            // Pre-tokenizers of text cut at the ends of lines.
            let mut parts = vec![text.as_str()];
            if self.scores.is_none() {
                parts = text
                    .split_inclusive('\n')
                    .flat_map(|line| match line.strip_suffix('\n') {
                        Some("") => vec!["\n"],
                        Some(line) => vec![line, "\n"],
                        None => vec![line],
                    })
                    .collect();
            }
            let mut ends = String::new();
            for part in parts {
                if part == "\n" {
                    ends.push('\n');
                    continue;
                }
                self.joined(&std::mem::take(&mut ends), &mut out);
                self.joined(part, &mut out);
            }
            self.joined(&ends, &mut out);
        }
        out
    }
}

/// A directory, the kind of tokenizer, types of tokens, and parts of notes.
type Case = (&'static str, &'static str, &'static [(&'static str, i32)], &'static [&'static str]);

/// Cases with the tokenizer that llama.cpp gets, the types of some tokens, and a part of each note.
#[rustfmt::skip]
const CASES: &[Case] = &[
    ("gemma3", "llama", &[("<start_of_turn>", 3), ("<unused0>", 3), ("\n\n", 4), ("▁▁", 1), ("<0x0A>", 6), ("[multimodal]", 4)], &[]),
    ("llama2", "llama", &[("<s>", 3), ("<unk>", 3), ("▁▁", 1), ("<0x0A>", 6)], &[]),
    ("llama2_transformers5", "llama", &[("<s>", 3), ("<0x0A>", 6)], &["Metaspace puts no blank in front of a text that begins with one"]),
    ("mmbert", "gpt2", &[("<bos>", 3), ("\n\n", 4), ("▁▁", 1)], &[]),
    ("trained", "llama", &[("<|user|>", 3), ("the", 4), ("<tool>", 4)], &[]),
    ("trained_metaspace", "llama", &[("<|end|>", 3), ("<tool>", 4)], &["Metaspace puts no blank"]),
    ("trained_prefix", "llama", &[("<|end|>", 3), ("<tool>", 4)], &[]),
    ("without_way", "gpt2", &[("<|end|>", 3)], &["the merges are written, for a llama.cpp that has the pre-tokenizer `sarvam-moe`"]),
];

#[test]
fn tokens_are_those_of_the_library() {
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    let data = data.join("tokenizer_merges");
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), CASES.len());
    for (name, model, types, notes) in CASES {
        let case = std::fs::read(data.join(format!("{name}.json"))).unwrap();
        let case: Value = serde_json::from_slice(&case).unwrap();
        let (json, config) = (case["tokenizer"].to_string(), case["config"].to_string());
        let files =
            [("tokenizer.json", json.as_bytes()), ("tokenizer_config.json", config.as_bytes())];
        let architecture = case["architecture"].as_str().unwrap();
        let keys = of_files(&files, architecture, 512).unwrap();
        assert_eq!(keys.tokens, 512, "{name}");
        assert_eq!(keys.notes.len(), notes.len(), "{name}: {:?}", keys.notes);
        for (note, part) in keys.notes.iter().zip(*notes) {
            assert!(note.contains(part), "{name}: {note}");
        }
        let get = |key: &str| keys.keys.iter().find(|(known, _)| known == key);
        let kind = get("tokenizer.ggml.model").unwrap().1.as_string();
        assert_eq!(kind, Some(*model), "{name}");
        let vocabulary = LlamaVocabulary::new(&keys);
        for (token, kind) in *types {
            let id = vocabulary.ids[*token] as usize;
            assert_eq!(vocabulary.types[id], *kind, "{name}: {token}");
        }
        for line in case["lines"].as_array().unwrap() {
            let text = line[0].as_str().unwrap();
            let right: Vec<u32> = serde_json::from_value(line[1].clone()).unwrap();
            assert_eq!(vocabulary.encode(text), right, "{name}: {text:?}");
        }
    }
}

/// A tokenizer.json of `vocab` with `merges` and steps that llama.cpp has.
fn merged(vocab: &[&str], merges: &[(&str, &str)]) -> Value {
    let vocab: HashMap<_, _> = vocab.iter().zip(0..).collect();
    json!({
        "added_tokens": [], "decoder": { "type": "Sequence", "decoders": [] },
        "normalizer": { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
        "model": { "type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": merges }
    })
}

fn converted(json: &Value) -> Result<TokenizerKeys> {
    of_files(&[("tokenizer.json", json.to_string().as_bytes())], "llama", 16)
}

#[test]
fn scores_are_ranks_of_the_merges_that_make_the_tokens() {
    // `abc` is never made of `a` and `bc`; the first `ab` counts for nothing, for the last does.
    let json = merged(
        &["a", "b", "c", "ab", "bc", "abc", "x"],
        &[("a", "b"), ("a", "bc"), ("b", "c"), ("a", "b"), ("ab", "c")],
    );
    let vocabulary = LlamaVocabulary::new(&converted(&json).unwrap());
    let scores = vocabulary.scores.as_ref().unwrap();
    let score = |token: &str| scores[vocabulary.ids[token] as usize];
    assert_eq!([score("ab"), score("bc"), score("abc")], [-3.0, -2.0, -1.0]);
    // What no merge makes is last.
    assert_eq!(score("x"), -5.0);
}

#[test]
fn what_scores_cannot_say_is_written_as_merges_or_noted() {
    let notes = |json: &Value| converted(json).unwrap().notes.join("\n");
    let model = |json: &Value| converted(json).unwrap().keys[0].1.clone();
    let text = |text: &str| GgufMetadataValue::String(text.to_owned());
    let mut json = merged(&["a", "b", "\n", "ab"], &[]);
    assert!(notes(&json).contains("no merge joins `a` and `b`"));
    assert!(converted(&json).is_ok_and(|keys| keys.keys[0].1 == text("llama")));
    json = merged(&["a", "b", "c", "ab", "bc"], &[("a", "b")]);
    assert_eq!(model(&json), text("gpt2"));
    json["normalizer"] = json!({ "type": "Sequence", "normalizers": [
        { "type": "Prepend", "prepend": "▁" }, json["normalizer"],
    ] });
    assert_eq!(model(&json), text("llama"));
    assert!(notes(&json).contains("llama.cpp joins them"));
    // Steps that llama.cpp does not have.
    let mut json = merged(&["a", "b", "ab"], &[("a", "b")]);
    assert_eq!(notes(&json), "");
    json["pre_tokenizer"] = json!({ "type": "Digits", "individual_digits": true });
    assert!(notes(&json).contains("llama.cpp has no pre-tokenizer Digits"));
    json["normalizer"] = json!({ "type": "Lowercase" });
    assert!(
        notes(&json).contains("no normalizer Lowercase, pre-tokenizer Digits, tokens with blanks")
    );
}

#[test]
fn merges_that_make_no_token_and_tokens_that_are_too_long_are_refused() {
    let error = message(converted(&merged(&["a", "b"], &[("a", "b")])));
    assert!(
        error.contains("`model.merges` number 0 joins `a` and `b`, and the vocabulary has no `ab`")
    );
    let long = "a".repeat(100_000);
    let error = message(converted(&merged(&["a", &long], &[])));
    assert!(error.contains("a token of 100000 bytes is too long"), "{error}");
}
