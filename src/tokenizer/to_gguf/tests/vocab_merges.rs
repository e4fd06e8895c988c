//! vocab.json and merges.txt that are malformed, contradict other files, or do not say enough.
//! `keys_are_those_of_the_converter` has those that are as they should be.

use super::hostile::message;
use super::*;

/// Converts vocab.json with `a`, `b` and `ab` beside `files`, which may replace it, as a model of
/// the type `model_type`.
fn convert(files: &[(&str, &str)], model_type: &str) -> Result<TokenizerKeys> {
    let dir = tempfile::tempdir().unwrap();
    let usual = [
        ("vocab.json", r#"{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}"#),
        ("merges.txt", "#version: 0.2\na b\n"),
    ];
    for (name, content) in usual.iter().chain(files) {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    let texts = Texts::new(dir.path(), &ParseLimits::default());
    to_gguf(&TokenizerRequest {
        texts: &texts,
        config: &json!({ "model_type": model_type }),
        vocab_size: 8,
        pre: None,
        cuts_embedding: false,
        architecture: model_type,
        rules: &TokenizerRules::PLAIN,
    })
}

/// Files by name, the model's type, and words of the error.
type Refusal<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str);

#[test]
fn what_the_files_do_not_say_is_refused_with_the_file() {
    assert_eq!(convert(&[], "gpt2").unwrap().tokens, 8);
    let class = "tokenizer_config.json";
    let rows: &[Refusal<'_>] = &[
        (&[], "llama", "`model_type` llama of config.json is none of GPT2Tokenizer"),
        (&[], "qwen3_5", "`model_type` qwen3_5 of config.json is none of"),
        (&[(class, r#"{"tokenizer_class": "Qwen2Tokenizer"}"#)], "qwen3_5", "save_pretrained"),
        (
            &[(class, r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#)],
            "gpt2",
            "`tokenizer_class` PreTrainedTokenizerFast of tokenizer_config.json is none of",
        ),
        (&[(class, r#"{"add_prefix_space": true}"#)], "gpt2", "ByteLevel(add_prefix_space true)"),
        (&[("vocab.json", "[]")], "gpt2", "vocab.json: it is no object of ids by token"),
        (&[("vocab.json", "{}")], "gpt2", "vocab.json: it is no object of ids by token"),
        (&[("vocab.json", r#"{"a": -1}"#)], "gpt2", "vocab.json: invalid value"),
        (&[("vocab.json", r#"{"a": 9}"#)], "gpt2", "vocab.json: the id of `a` is 9"),
        (
            &[("vocab.json", r#"{"a": 0, "b": 0}"#)],
            "gpt2",
            "vocab.json: `b` has the id 0, which another token has",
        ),
        (
            &[("vocab.json", r#"{"a": 0, "a": 1}"#)],
            "gpt2",
            "vocab.json: the vocabulary has `a` twice",
        ),
        (&[("merges.txt", "#version: 0.2\na c\n")], "gpt2", "merges.txt: line 0 joins `a` and `c`"),
        (&[("merges.txt", "a\n")], "gpt2", "merges.txt: line 1 is not two tokens"),
        (&[("merges.txt", "")], "gpt2", "there is no merges.txt"),
        (&[("added_tokens.json", "[1]")], "gpt2", "added_tokens.json: it is no object of ids"),
        (
            &[("added_tokens.json", r#"{"x": 6}"#)],
            "gpt2",
            "added_tokens.json: `x` has the id 6, and the `tokenizers` library gives it 4",
        ),
        (
            &[("added_tokens.json", r#"{"b": 4}"#)],
            "gpt2",
            "added_tokens.json: `b` has the id 4, and the `tokenizers` library gives it 1",
        ),
        (&[("special_tokens_map.json", "[]")], "gpt2", "special_tokens_map.json is no object"),
    ];
    for (files, model_type, part) in rows {
        let message = message(convert(files, model_type));
        assert!(message.contains(part), "{message}");
    }
}

/// A directory with one of the two is one without a tokenizer.
#[test]
fn one_of_the_two_files_is_none() {
    for name in ["vocab.json", "merges.txt"] {
        let message = message(super::hostile::of_files(&[(name, b"{}")], "gpt2", 8));
        assert!(message.contains("nor vocab.json with merges.txt"), "{message}");
    }
}
