//! Metadata that is malformed, contradicts itself, or is made to take time.

use super::super::{HfTokenizer, from_gguf};
use crate::ErrorKind;
use crate::model::gguf::{
    GgufEncoding, GgufMetadata, GgufMetadataArray as Array, GgufMetadataValue as Value,
};
use crate::test_utils::cpu_time;

/// Metadata of a file, by key.
#[derive(Clone)]
struct Keys(Vec<(String, Value)>);

impl Keys {
    /// Five tokens of the kind `llama`, which have one merge.
    fn llama() -> Self {
        let tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab"];
        Self(Vec::new())
            .with("tokenizer.ggml.model", text("llama"))
            .with("tokenizer.ggml.tokens", texts(&tokens))
            .with("tokenizer.ggml.scores", floats(&[0.0, 0.0, 0.0, -1.0, -2.0, -0.5]))
            .with("tokenizer.ggml.token_type", ints(&[2, 3, 3, 1, 1, 1]))
    }

    /// Four tokens of the kind `gpt2`, which have one merge.
    fn gpt2() -> Self {
        Self(Vec::new())
            .with("tokenizer.ggml.model", text("gpt2"))
            .with("tokenizer.ggml.pre", text("gpt-2"))
            .with("tokenizer.ggml.tokens", texts(&["a", "b", "ab", "<|end|>"]))
            .with("tokenizer.ggml.token_type", ints(&[1, 1, 1, 3]))
            .with("tokenizer.ggml.merges", texts(&["a b"]))
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.0.retain(|(k, _)| k != key);
        self.0.push((key.to_owned(), value));
        self
    }

    fn without(mut self, key: &str) -> Self {
        self.0.retain(|(k, _)| k != key);
        self
    }

    fn convert(&self) -> crate::Result<HfTokenizer> {
        self.convert_edited(|_| {})
    }

    /// Converts the keys after `edit` of their bytes.
    fn convert_edited(&self, edit: impl FnOnce(&mut [u8])) -> crate::Result<HfTokenizer> {
        let mut metadata = GgufMetadata::new(GgufEncoding::WRITTEN);
        let mut bytes = Vec::new();
        for (key, value) in &self.0 {
            let start = bytes.len();
            value.write(GgufEncoding::WRITTEN, &mut bytes);
            metadata.add(key.clone(), value.type_id(), start, bytes.len());
        }
        edit(&mut bytes);
        metadata.set_bytes(bytes);
        from_gguf(&metadata, None)
    }

    /// The text of `tokenizer.json`, as JSON.
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.convert().unwrap().files[0].1).unwrap()
    }
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn array(array: Array) -> Value {
    Value::Array(Box::new(array))
}

fn texts(texts: &[&str]) -> Value {
    array(Array::String(texts.iter().map(|&t| t.to_owned()).collect()))
}

fn ints(ints: &[i32]) -> Value {
    array(Array::I32(ints.to_vec()))
}

fn floats(floats: &[f32]) -> Value {
    array(Array::F32(floats.to_vec()))
}

/// The conversion fails with an error of `kind` that names `key` and says `what`.
#[track_caller]
fn refused(keys: &Keys, kind: ErrorKind, key: &str, what: &str) {
    let error = keys.convert().err().unwrap();
    let message = error.to_string();
    assert_eq!(error.kind(), kind, "{message}");
    assert!(message.contains(&format!("`{key}`")), "{message}");
    assert!(message.contains(what), "{message}");
}

#[test]
fn the_samples_are_well_formed() {
    let llama = Keys::llama().json();
    assert_eq!(llama["model"]["merges"], serde_json::json!([["a", "b"]]));
    let gpt2 = Keys::gpt2().json();
    assert_eq!(gpt2["model"]["merges"], serde_json::json!([["a", "b"]]));
    assert_eq!(gpt2["added_tokens"][0]["id"], 3);
    assert!(gpt2["model"]["vocab"].get("<|end|>").is_none());
}

#[test]
fn missing_keys() {
    for key in ["model", "tokens", "scores"] {
        let key = format!("tokenizer.ggml.{key}");
        refused(&Keys::llama().without(&key), ErrorKind::Parse, &key, "it is missing");
    }
    let key = "tokenizer.ggml.merges";
    refused(&Keys::gpt2().without(key), ErrorKind::Parse, key, "it is missing");
    let key = "tokenizer.ggml.pre";
    refused(&Keys::gpt2().without(key), ErrorKind::Unsupported, key, "is missing");
}

#[test]
fn unknown_names() {
    for (key, name) in
        [("model", "wordpiece"), ("model", ""), ("pre", "no-such"), ("pre", "kimi-k3")]
    {
        let key = format!("tokenizer.ggml.{key}");
        let keys = Keys::gpt2().with(&key, text(name));
        refused(&keys, ErrorKind::Unsupported, &key, "");
    }
    // llama.cpp knows the name, and has code for it that no `tokenizer.json` says.
    let keys = Keys::gpt2().with("tokenizer.ggml.pre", text("default"));
    refused(&keys, ErrorKind::Unsupported, "tokenizer.ggml.pre", "no `tokenizer.json`");
}

#[test]
fn other_types() {
    for (key, value) in [
        ("model", ints(&[1])),
        ("tokens", ints(&[1, 2, 3, 4, 5, 6])),
        ("tokens", text("a")),
        ("scores", texts(&["1"; 6])),
        ("token_type", floats(&[1.0; 6])),
        ("add_bos_token", Value::U32(1)),
        ("add_space_prefix", text("true")),
        ("bos_token_id", Value::F32(1.0)),
        ("bos_token_id", Value::I32(-1)),
    ] {
        let key = format!("tokenizer.ggml.{key}");
        let keys = Keys::llama().with(&key, value);
        refused(&keys, ErrorKind::Parse, &key, "should be");
    }
    let keys = Keys::gpt2().with("tokenizer.ggml.merges", ints(&[1]));
    refused(&keys, ErrorKind::Parse, "tokenizer.ggml.merges", "should be");
    let keys = Keys::llama().with("tokenizer.chat_template", Value::Bool(true));
    refused(&keys, ErrorKind::Parse, "tokenizer.chat_template", "should be");
}

#[test]
fn other_lengths() {
    for n in [0, 5, 7] {
        let keys = Keys::llama().with("tokenizer.ggml.scores", floats(&vec![0.0; n]));
        refused(&keys, ErrorKind::Parse, "tokenizer.ggml.scores", "has 6");
        let keys = Keys::llama().with("tokenizer.ggml.token_type", ints(&vec![1; n]));
        refused(&keys, ErrorKind::Parse, "tokenizer.ggml.token_type", "has 6");
    }
    let keys = Keys::llama().with("tokenizer.ggml.tokens", texts(&[]));
    refused(&keys, ErrorKind::Parse, "tokenizer.ggml.tokens", "it has 0 tokens");
}

#[test]
fn values_out_of_range() {
    for kind in ["bos", "eos", "unknown", "seperator", "cls"] {
        let key = format!("tokenizer.ggml.{kind}_token_id");
        for id in [Value::U32(6), Value::U64(1 << 32), Value::U32(u32::MAX)] {
            let keys = Keys::llama().with(&key, id);
            refused(&keys, ErrorKind::Parse, &key, "there is no token");
        }
    }
    // llama.cpp's converter writes these of some configs, and llama.cpp goes on without them.
    for (kind, field) in [("padding", "pad_token"), ("mask", "mask_token")] {
        let keys = Keys::llama().with(&format!("tokenizer.ggml.{kind}_token_id"), Value::U32(6));
        let HfTokenizer { files, notes } = keys.convert().unwrap();
        assert!(files.iter().all(|(_, text)| !text.contains(field)), "{kind}");
        assert!(notes.iter().any(|note| note.contains("no token 6 among 6")), "{notes:?}");
    }
    for kind in [-1, 7, i32::MAX] {
        let keys = Keys::llama().with("tokenizer.ggml.token_type", ints(&[1, 1, kind, 1, 1, 1]));
        let what = format!("token 2 has the unknown type {kind}");
        refused(&keys, ErrorKind::Parse, "tokenizer.ggml.token_type", &what);
    }
    for score in [f32::NAN, f32::INFINITY] {
        let scores = floats(&[0.0, 0.0, 0.0, score, 0.0, 0.0]);
        let keys = Keys::llama().with("tokenizer.ggml.scores", scores);
        refused(&keys, ErrorKind::Parse, "tokenizer.ggml.scores", "score 3 is not finite");
    }
}

#[test]
fn repeated_tokens() {
    let tokens = texts(&["<unk>", "<s>", "</s>", "a", "b", "a"]);
    let keys = Keys::llama().with("tokenizer.ggml.tokens", tokens);
    refused(&keys, ErrorKind::Parse, "tokenizer.ggml.tokens", "tokens 3 and 5 are both `a`");
    // Tokens without a text get one each, as in llama.cpp.
    let tokens = texts(&["<unk>", "<s>", "</s>", "", "", "ab"]);
    let json = Keys::llama().with("tokenizer.ggml.tokens", tokens).json();
    assert_eq!(json["model"]["vocab"]["[EMPTY_4]"], 4);
}

#[test]
fn text_that_is_not_utf8() {
    for (keys, marker, key) in [
        (
            Keys::llama()
                .with("tokenizer.ggml.tokens", texts(&["<unk>", "<s>", "</s>", "a", "b", "~~"])),
            b"~~",
            "tokens",
        ),
        (Keys::gpt2().with("tokenizer.ggml.merges", texts(&["a b", "~~ b"])), b"~~", "merges"),
        (Keys::gpt2().with("tokenizer.ggml.pre", text("~~")), b"~~", "pre"),
    ] {
        let edit = |bytes: &mut [u8]| {
            let at = bytes.windows(2).position(|two| two == marker).unwrap();
            bytes[at] = 0xff;
        };
        let error = keys.convert_edited(edit).err().unwrap().to_string();
        let what = format!("`tokenizer.ggml.{key}`: its text is not UTF-8");
        assert!(error.contains(&what), "{error}");
    }
}

#[test]
fn malformed_merges() {
    for (merge, what) in [
        ("", "is not two tokens"),
        ("ab", "is not two tokens"),
        (" ab", "is not two tokens"),
        ("a ", "is not two tokens"),
        ("é ", "is not two tokens"),
        ("a c", "needs the token `c`"),
        ("b a", "needs the token `ba`"),
        ("a  b", "needs the token"),
    ] {
        let keys = Keys::gpt2().with("tokenizer.ggml.merges", texts(&["a b", merge]));
        refused(&keys, ErrorKind::Parse, "tokenizer.ggml.merges", what);
    }
    // The first of equal merges counts in llama.cpp, the last in the `tokenizers` crate.
    let merges = texts(&["a b", "ab ab", "a b"]);
    let tokens = texts(&["a", "b", "ab", "abab"]);
    let keys = Keys::gpt2().with("tokenizer.ggml.merges", merges);
    let json = keys.with("tokenizer.ggml.tokens", tokens).json();
    assert_eq!(json["model"]["merges"], serde_json::json!([["a", "b"], ["ab", "ab"]]));
}

#[test]
fn tokens_that_are_added_and_not_known() {
    let keys = Keys::gpt2().with("tokenizer.ggml.add_bos_token", Value::Bool(true));
    refused(&keys, ErrorKind::Parse, "tokenizer.ggml.add_bos_token", "there is no");
    let keys = Keys::gpt2().with("tokenizer.ggml.add_eos_token", Value::Bool(true));
    refused(&keys, ErrorKind::Parse, "tokenizer.ggml.add_eos_token", "there is no");
    let keys = Keys::llama().with("tokenizer.chat_templates", texts(&["rag"]));
    refused(&keys, ErrorKind::Parse, "tokenizer.chat_templates", "`tokenizer.chat_template.rag`");
}

/// Two tokens of a megabyte could be split in a million ways, each of which is a megabyte long.
#[test]
fn long_tokens() {
    let long = "a".repeat(1 << 20);
    let tokens = texts(&["<unk>", "<s>", "</s>", "a", &long, "ab"]);
    let keys = Keys::llama().with("tokenizer.ggml.tokens", tokens);
    let start = cpu_time();
    refused(&keys, ErrorKind::Parse, "tokenizer.ggml.tokens", "is too long");
    assert!((cpu_time() - start).as_secs() < 5);
}

/// The `tokenizers` crate numbers added tokens that the model lacks by counting on, whatever their
/// id.
#[test]
fn added_tokens_after_a_gap_are_in_the_model() {
    let tokens = texts(&["a", "b", "ab", "[PAD3]", "<|end|>"]);
    let keys = Keys::gpt2().with("tokenizer.ggml.tokens", tokens);
    let json = keys
        .with("tokenizer.ggml.token_type", ints(&[1, 1, 1, 5, 3]))
        .json();
    assert_eq!(json["model"]["vocab"]["<|end|>"], 4);
    assert!(json["model"]["vocab"].get("[PAD3]").is_none());
    assert_eq!(json["added_tokens"][0]["id"], 4);
}

/// Llama 2's `tokenizer.json` has its merges of blanks last, Yi's in the order of ids.
#[test]
fn equal_scores_are_noted() {
    let keys = Keys::llama().with("tokenizer.ggml.scores", floats(&[-1000.0; 6]));
    let tokens = texts(&["<unk>", "▁▁", "▁t", "▁", "t", "tt"]);
    let keys = keys
        .with("tokenizer.ggml.tokens", tokens)
        .with("tokenizer.ggml.token_type", ints(&[2, 1, 1, 1, 1, 1]));
    let notes = keys.convert().unwrap().notes;
    assert!(notes[0].contains("`tokenizer.ggml.scores`"), "{notes:?}");
    assert!(Keys::llama().convert().unwrap().notes.is_empty());
    let merges = serde_json::json!([["▁", "t"], ["t", "t"], ["▁", "▁"]]);
    assert_eq!(keys.json()["model"]["merges"], merges);
    let keys = keys.with("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    let merges = serde_json::json!([["▁", "▁"], ["▁", "t"], ["t", "t"]]);
    assert_eq!(keys.json()["model"]["merges"], merges);
}

#[test]
fn several_chat_templates_are_in_the_config_alone() {
    let keys = Keys::llama()
        .with("tokenizer.chat_template", text("main"))
        .with("tokenizer.chat_template.rag", text("other"))
        .with("tokenizer.chat_templates", texts(&["rag"]));
    let files = keys.convert().unwrap().files;
    assert_eq!(files.len(), 2);
    let config: serde_json::Value = serde_json::from_str(&files[1].1).unwrap();
    let templates = serde_json::json!([
        {"name": "default", "template": "main"},
        {"name": "rag", "template": "other"},
    ]);
    assert_eq!(config["chat_template"], templates);
}
