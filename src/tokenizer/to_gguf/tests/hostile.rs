//! Tokenizer files that are malformed, contradict one another, or claim too much.

use super::*;
use crate::test_utils::cpu_time;

/// A byte-level tokenizer.json with the tokens `a`, `b`, `ab` and `<s>`, of the GPT-2 class.
pub(super) fn byte_level() -> Value {
    json!({
        "added_tokens": [{ "id": 3, "content": "<s>", "special": true, "normalized": false }],
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel" },
        "model": { "type": "BPE", "vocab": { "a": 0, "b": 1, "ab": 2 }, "merges": ["a b"] }
    })
}

/// Converts `files` (names with contents) as a model of `architecture` with room for `vocab_size`
/// tokens.
pub(super) fn of_files(
    files: &[(&str, &[u8])],
    architecture: &str,
    vocab_size: usize,
) -> Result<TokenizerKeys> {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    let texts = Texts::new(dir.path(), &ParseLimits::default());
    to_gguf(&TokenizerRequest {
        texts: &texts,
        config: &json!({}),
        vocab_size,
        pre: None,
        cuts_embedding: false,
        architecture,
        rules: rules_of(architecture, &json!({})),
    })
}

fn of_json(json: &Value) -> Result<TokenizerKeys> {
    of_files(&[("tokenizer.json", json.to_string().as_bytes())], "gpt2", 8)
}

pub(super) fn message(result: Result<TokenizerKeys>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_tokenizer_json_that_is_wrong_is_refused_with_the_place() {
    assert_eq!(of_json(&byte_level()).unwrap().tokens, 8);
    for (pointer, value, part) in [
        ("/model/vocab/b", json!(0), "`b` has the id 0, which another token has"),
        ("/model/vocab/b", json!(9), "the id of `b` is 9, and `vocab_size` of config.json is 8"),
        ("/model/vocab/b", json!(u64::MAX), "the id of `b` is 18446744073709551615"),
        ("/model/vocab/b", json!(-1), "tokenizer.json: invalid value"),
        ("/model/vocab/b", json!("1"), "tokenizer.json: invalid type"),
        ("/model/vocab", json!({}), "`model.vocab` is empty"),
        ("/model/merges", json!(["a b", "ab"]), "`model.merges[1]` is not two tokens"),
        ("/model/merges", json!(["a b", "a b c"]), "`model.merges[1]` is not two tokens"),
        ("/model/merges", json!(["a b", ["a", "b"]]), "`model.merges[1]` is not of the form"),
        ("/model/merges", json!([["a", ""]]), "`model.merges[0]` is not two tokens"),
        ("/model/merges", json!(["a b", "b a"]), "the vocabulary has no `ba`"),
        ("/model/merges", json!(["a x"]), "the vocabulary has no `x`"),
        ("/model/merges", json!([7]), "tokenizer.json: "),
        ("/model/merges", json!([]), "`model.merges` is empty"),
        ("/added_tokens/0/content", json!(""), "`added_tokens[0]` has no text"),
        ("/pre_tokenizer/use_regex", json!(false), "[ByteLevel(use_regex false)]"),
        ("/pre_tokenizer", json!({ "a": 1 }), "[without a type]"),
        ("/normalizer", json!({ "type": "NFKC" }), "normalizer NFKC"),
        ("/model/type", json!("WordLevel"), "tokenizer WordLevel"),
        ("/model/type", json!("Unigram"), "no list of tokens with scores"),
        ("/decoder", json!({ "type": "Fuse" }), "tokenizer BPE"),
        ("/model/end_of_word_suffix", json!("</w>"), "`model.end_of_word_suffix` is `</w>`"),
    ] {
        let mut changed = byte_level();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[key] = value;
        let text = message(of_json(&changed));
        assert!(text.contains(part), "{pointer}: {text}");
    }
}

#[test]
fn repeated_keys_and_cut_files_are_refused() {
    let text = byte_level().to_string();
    let twice = text.replace("\"ab\":2", "\"ab\":2,\"ab\":4");
    for (json, part) in [
        (twice.as_str(), "tokenizer.json: the vocabulary has `ab` twice"),
        (&text.replace("\"model\"", "\"model\":{},\"model\""), "duplicate field `model`"),
        (&text.replace("null", "{\"type\":1,\"type\":2}"), "`type` is there twice"),
        (&text[..text.len() / 2], "EOF"),
        ("", "EOF"),
        ("[]", "tokenizer.json: "),
        ("{}", "missing field `model`"),
        (&format!("{{\"model\":{}", "[".repeat(100_000)), "tokenizer.json: "),
    ] {
        let error = message(of_files(&[("tokenizer.json", json.as_bytes())], "gpt2", 8));
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn sizes_that_files_claim_are_bounded() {
    let json = byte_level().to_string();
    let files = [("tokenizer.json", json.as_bytes())];
    for size in [MAX_TOKENS + 1, usize::MAX] {
        let error = of_files(&files, "mamba", size).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    }
    let config = json!({ "chat_template": vec![json!({ "name": "a", "template": "b" }); 257] });
    let config = config.to_string();
    let with_templates = [files[0], ("tokenizer_config.json", config.as_bytes())];
    let error = of_files(&with_templates, "gpt2", 8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), &json).unwrap();
    let limits = ParseLimits::default().with_max_total_bytes(1 << 20);
    let error = to_gguf(&TokenizerRequest {
        texts: &Texts::new(dir.path(), &limits),
        config: &json!({}),
        vocab_size: 1 << 20,
        pre: None,
        cuts_embedding: false,
        architecture: "gpt2",
        rules: &TokenizerRules::PLAIN,
    });
    assert_eq!(error.unwrap_err().kind(), ErrorKind::LimitExceeded);
}

/// Work grows with the length of the files: with the square of it, these would take hours.
#[test]
fn many_tokens_take_linear_time() {
    const N: usize = 100_000;
    let mut json = byte_level();
    let token = |i: usize| json!({ "id": i + 3, "content": format!("<{i}>"), "special": i.is_multiple_of(2) });
    json["added_tokens"] = (0..N).map(token).collect();
    let names: Vec<_> = (0..N).map(|i| format!("<{i}>")).collect();
    let config = json!({ "additional_special_tokens": names }).to_string();
    let json = json.to_string();
    let files = [("tokenizer.json", json.as_bytes()), ("tokenizer_config.json", config.as_bytes())];
    let start = cpu_time();
    assert_eq!(of_files(&files, "gpt2", N + 3).unwrap().tokens, N + 3);
    let time = cpu_time() - start;
    assert!(time.as_secs() < 60, "{time:?}");
}

#[test]
fn configs_that_are_wrong_are_refused_with_the_place() {
    let json = byte_level().to_string();
    for (file, content, part) in [
        ("tokenizer_config.json", json!([]), "tokenizer_config.json is no object"),
        (
            "tokenizer_config.json",
            json!({ "added_tokens_decoder": { "x": { "content": "a" } } }),
            "`added_tokens_decoder.x`",
        ),
        (
            "tokenizer_config.json",
            json!({ "added_tokens_decoder": { "1": {} } }),
            "`added_tokens_decoder.1`",
        ),
        (
            "tokenizer_config.json",
            json!({ "chat_template": [{ "name": "a", "template": 1 }] }),
            "`chat_template[0].template`",
        ),
        // A special token that is in no vocabulary takes the next id.
        (
            "tokenizer_config.json",
            json!({ "additional_special_tokens": ["c", "d", "e", "f", "g"] }),
            "the id of `g` is 8",
        ),
        (
            "config.json",
            json!({ "eos_token_id": -1 }),
            "config.json: the id of the eos token is -1",
        ),
        ("config.json", json!({ "eos_token_id": 1u64 << 40 }), "has no 32 bits"),
    ] {
        let content = content.to_string();
        let files = [("tokenizer.json", json.as_bytes()), (file, content.as_bytes())];
        let error = message(of_files(&files, "gpt2", 8));
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn ids_without_tokens_are_filled_up_to_the_rows_of_the_embedding() {
    let json = |ids: [u64; 3]| {
        json!({
            "added_tokens": [], "decoder": { "type": "Sequence", "decoders": [] },
            "model": { "type": "BPE", "byte_fallback": true, "merges": [],
                       "vocab": { "a": ids[0], "b": ids[1], "<0x00>": ids[2] } }
        })
        .to_string()
    };
    let convert = |ids| of_files(&[("tokenizer.json", json(ids).as_bytes())], "llama", 4);
    // Ids without a token, also behind the last one, are as many as the embedding has rows.
    assert_eq!(convert([0, 1, 2]).unwrap().tokens, 4);
    assert_eq!(convert([0, 1, 3]).unwrap().tokens, 4);
    let error = message(convert([0, 1, 4]));
    assert!(error.contains("the last id of its tokens is 4, and `vocab_size` of config.json is 4"));
    assert!(message(convert([0, 1, 1])).contains("has the id 1, which another token has"));
    let error = message(of_files(&[("tokenizer.json", json([0, 1, 2]).as_bytes())], "llama", 2));
    assert!(
        error.contains("the last id of its tokens is 2, and `vocab_size` of config.json is 2"),
        "{error}"
    );
    assert!(
        message(of_files(&[], "llama", 2)).contains("neither tokenizer.json nor tokenizer.model")
    );
}

#[test]
fn a_chosen_pre_tokenizer_must_be_known() {
    let dir = tempfile::tempdir().unwrap();
    let mut json = byte_level();
    json["pre_tokenizer"] = json!({ "type": "UnicodeScripts" });
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    let convert = |pre| {
        to_gguf(&TokenizerRequest {
            texts: &Texts::new(dir.path(), &ParseLimits::default()),
            config: &json!({}),
            vocab_size: 4,
            pre,
            cuts_embedding: false,
            architecture: "gpt2",
            rules: &TokenizerRules::PLAIN,
        })
    };
    let keys = convert(Some("qwen2")).unwrap().keys;
    assert_eq!(keys[1].1.as_string(), Some("qwen2"));
    assert!(message(convert(Some("qwen9"))).contains("it knows "));
    let error = message(convert(None));
    assert!(
        error.contains("[UnicodeScripts]") && error.contains("--tokenizer-pre NAME"),
        "{error}"
    );
    // A tokenizer of SentencePiece has none.
    let json = json!({
        "added_tokens": [], "decoder": { "type": "Sequence", "decoders": [] },
        "model": { "type": "BPE", "byte_fallback": true, "vocab": { "a": 0 }, "merges": [] }
    });
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    assert_eq!(convert(None).unwrap().tokens, 4);
    assert_eq!(convert(Some("default")).unwrap().tokens, 4);
    assert!(message(convert(Some("qwen2"))).contains("no pre-tokenizer to choose"));
}
