//! Malformed models of SentencePiece and Mistral, and files that contradict one another.

use super::hostile::{byte_level, message, of_files};
use super::*;

/// A field of a protobuf message: `tag`, then its length, then `content`.
fn field(tag: u8, content: &[u8]) -> Vec<u8> {
    [&[tag, u8::try_from(content.len()).unwrap()], content].concat()
}

/// A SentencePiece model with normal pieces.
fn sentencepiece(pieces: &[&str]) -> Vec<u8> {
    let piece = |text: &&str| field(0x0a, &field(0x0a, text.as_bytes()));
    pieces.iter().flat_map(piece).collect()
}

#[test]
fn a_sentencepiece_model_that_is_wrong_is_refused() {
    let good = sentencepiece(&["a", "b", "▁ab"]);
    let keys = of_files(&[("tokenizer.model", &good)], "llama", 5).unwrap();
    assert_eq!(keys.tokens, 5);
    let mut not_utf8 = good.clone();
    not_utf8[4] = 0xff;
    let typed = |kind: u8| [&good[..], &field(0x0a, &[0x0a, 1, b'c', 0x18, kind])].concat();
    let scored = |score: f32| {
        let message = [&[0x0a, 1, b'c', 0x15], &score.to_le_bytes()[..]].concat();
        [&good[..], &field(0x0a, &message)].concat()
    };
    for (model, part) in [
        (sentencepiece(&["a", "b", "a"]), "the piece `a` twice"),
        (sentencepiece(&["a", ""]), "piece 1: it has no text"),
        (
            sentencepiece(&["a", "b", "c", "d", "e", "f"]),
            "6 pieces, and `vocab_size` of config.json is 5",
        ),
        (good[..good.len() - 1].to_vec(), "ends within a field"),
        (not_utf8, "piece 0: no UTF-8"),
        (typed(7), "piece 3: its type is 7"),
        (scored(f32::NAN), "piece 3: `c` has the score NaN"),
        (b"IQ== 0\nIg== 1\n".to_vec(), "tokenizer.model: "),
        (Vec::new(), "no pieces"),
        ([&good[..], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f]].concat(), "ends within a field"),
    ] {
        let error = message(of_files(&[("tokenizer.model", &model)], "llama", 5));
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn files_that_disagree_are_refused() {
    let model = sentencepiece(&["a", "b", "ab"]);
    let json = |vocab: Value| {
        json!({
            "added_tokens": [], "decoder": { "type": "Sequence", "decoders": [] },
            "model": { "type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": [] }
        })
        .to_string()
    };
    let both = |vocab: Value| {
        let json = json(vocab);
        of_files(&[("tokenizer.model", &model), ("tokenizer.json", json.as_bytes())], "llama", 3)
    };
    both(json!({ "a": 0, "b": 1, "ab": 2 })).unwrap();
    for (vocab, part) in [
        (
            json!({ "a": 0, "b": 2, "ab": 1 }),
            "the piece `b` has the id 1, and tokenizer.json gives it 2",
        ),
        (json!({ "a": 0, "ab": 2 }), "tokenizer.json does not have it"),
    ] {
        let error = message(both(vocab));
        assert!(error.contains(part), "{error}");
    }
    // A model of SentencePiece beside WordPiece.
    let pieces = json(json!({ "a": 0 })).replace("BPE", "WordPiece");
    let files = [("tokenizer.model", &model[..]), ("tokenizer.json", pieces.as_bytes())];
    let error = message(of_files(&files, "llama", 3));
    assert!(error.contains("of the kind WordPiece"), "{error}");
    // Ranks of tiktoken beside a tokenizer.json do not count.
    let json = byte_level().to_string();
    let files = [("tokenizer.model", &b"IQ== 0\n"[..]), ("tokenizer.json", json.as_bytes())];
    assert_eq!(of_files(&files, "gpt2", 4).unwrap().tokens, 4);
}

#[test]
fn a_tekken_json_that_is_wrong_is_refused_with_the_place() {
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    let path = data.join("models/tokenizers/tekken/tekken.json");
    let good: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let convert = |json: &Value, size| {
        of_files(&[("tekken.json", json.to_string().as_bytes())], "llama", size)
    };
    assert_eq!(convert(&good, 340).unwrap().tokens, 340);
    assert!(
        message(convert(&good, 339)).contains("340 tokens, and `vocab_size` of config.json is 339")
    );
    for (pointer, value, part) in [
        ("/vocab/300/rank", json!(301), "`vocab[300]` is no token of rank 300"),
        ("/vocab/300/token_bytes", json!("?"), "`vocab[300]` is no token"),
        ("/vocab/300/token_bytes", json!(""), "`vocab[300]` is no token"),
        ("/vocab/7/token_bytes", json!("AA=="), "`vocab[7]` is no token"),
        ("/vocab/300/token_bytes", json!("ICA="), "`vocab[300]` is there twice"),
        ("/vocab/300/token_bytes", json!("/v/9/A=="), "`vocab[300]` is not made of two tokens"),
        ("/vocab/300/token_bytes", json!("AAAA".repeat(400)), "1200 bytes of `vocab[300]`"),
        ("/vocab", json!([]), "`vocab` has 0 tokens, and `config` wants 316"),
        ("/config/default_vocab_size", json!(u64::MAX), "limit exceeded"),
        ("/config/default_num_special_tokens", json!(3), "20 special tokens"),
        ("/config/default_num_special_tokens", json!(341), "20 special tokens"),
        ("/config/pattern", json!("a"), "[Split(a), "),
        ("/config/version", json!("v13"), "it has no `special_tokens`"),
        ("/special_tokens", json!([{ "rank": 1, "token_str": "<s>" }]), "`special_tokens[0]`"),
        ("/special_tokens", json!([{ "rank": 0, "token_str": "<s>" }]), "no special token `</s>`"),
    ] {
        let mut changed = good.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        match changed.pointer_mut(parent).unwrap() {
            Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
            other => other[key] = value,
        }
        let error = message(convert(&changed, 340));
        assert!(error.contains(part), "{pointer}: {error}");
    }
}

/// Every file of every golden, with a byte changed or its end cut off: an error or keys, and no
/// panic.
#[test]
fn changed_bytes_do_not_panic() {
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    let mut state = 1u64;
    let mut random = |n: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n.max(1)
    };
    // The environment variable asks for more.
    let rounds = std::env::var("ROUNDS").map_or(3, |n| n.parse().unwrap());
    let (mut refused, mut accepted) = (0, 0);
    for dir in directories(&data.join("models/tokenizers")) {
        let expected = std::fs::read(dir.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let copy = tempfile::tempdir().unwrap();
        let names = [
            "tokenizer.json",
            "tokenizer.model",
            "spiece.model",
            "sentencepiece.bpe.model",
            "tekken.json",
            "tokenizer_config.json",
            "added_tokens.json",
            "config.json",
        ];
        let files: Vec<_> = names
            .iter()
            .filter_map(|name| Some((*name, std::fs::read(dir.join(name)).ok()?)))
            .collect();
        for (name, good) in &files {
            std::fs::write(copy.path().join(name), good).unwrap();
        }
        for (name, good) in files.iter().filter(|(name, _)| *name != "config.json") {
            for _ in 0..rounds {
                let mut bad = good.clone();
                let at = random(bad.len());
                match random(3) {
                    0 => bad.truncate(at),
                    1 => bad[at] = random(256) as u8,
                    _ => bad[at] ^= 1 << random(8),
                }
                std::fs::write(copy.path().join(name), &bad).unwrap();
                match convert(copy.path(), &expected) {
                    Ok(_) => accepted += 1,
                    Err(error) => {
                        assert_ne!(error.kind(), ErrorKind::Io, "{name}: {error}");
                        refused += 1;
                    }
                }
            }
            std::fs::write(copy.path().join(name), good).unwrap();
        }
    }
    assert!(refused > accepted / 4 && accepted > 0, "{refused} refused, {accepted} accepted");
}
