use std::collections::HashSet;

use serde_json::json;

use super::*;

/// The name for a `pre_tokenizer`.
fn name_of(
    pre: &Value,
    ignore_merges: bool,
    architecture: &str,
    token: &str,
) -> Result<&'static str> {
    choose(&PreTokenizerFacts {
        steps: &steps(pre),
        ignore_merges,
        architecture,
        has_token: &|wanted| wanted == token,
    })
}

fn byte_level(use_regex: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex })
}

fn split(regex: &str) -> Value {
    json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false })
}

fn sequence(steps: &[Value]) -> Value {
    json!({ "type": "Sequence", "pretokenizers": steps })
}

/// From the models' own tokenizer.json.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const NEMO: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// With line ends as characters instead of escapes.
const DEEPSEEK_V3: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

#[test]
fn names_of_published_tokenizers() {
    let one = |regex: &str| sequence(&[split(regex), byte_level(false)]);
    let deepseek = sequence(&[
        split(r"\p{N}{1,3}"),
        split("[一-龥぀-ゟ゠-ヿ]+"),
        split(DEEPSEEK_V3),
        byte_level(false),
    ]);
    let digits = json!({ "type": "Digits", "individual_digits": true });
    for (pre, ignore_merges, architecture, token, name) in [
        (one(LLAMA3), true, "llama", "", "llama-bpe"),
        (one(LLAMA3), true, "lfm2", "", "lfm2"),
        (one(LLAMA3), true, "glm4moe", "", "glm4"),
        // GLM 4.7 Flash has the architecture of DeepSeek V2.
        (one(LLAMA3), true, "deepseek2", "[gMASK]", "glm4"),
        (one(LLAMA3), false, "phi3", "", "dbrx"),
        (one(QWEN2), false, "qwen2", "", "qwen2"),
        (one(QWEN2), false, "llama", "", "qwen2"),
        (one(QWEN2), false, "stablelm", "", "stablelm2"),
        (one(GPT4O), true, "gpt-oss", "", "gpt-4o"),
        (one(GPT4O), false, "phi3", "", "gpt-4o"),
        (one(GPT4O), true, "llama4", "", "llama4"),
        (one(NEMO), true, "llama", "", "tekken"),
        (deepseek.clone(), false, "deepseek2", "", "deepseek-v3"),
        (deepseek, false, "hunyuan-dense", "", "hunyuan-dense"),
        (sequence(&[digits.clone(), byte_level(true)]), false, "command-r", "", "command-r"),
        (sequence(&[digits, byte_level(true)]), false, "starcoder2", "", "starcoder"),
        (byte_level(true), false, "gpt2", "", "gpt-2"),
        // Files of before `use_regex` split.
        (json!({ "type": "ByteLevel", "add_prefix_space": false }), false, "mpt", "", "mpt"),
    ] {
        assert_eq!(name_of(&pre, ignore_merges, architecture, token).unwrap(), name);
    }
}

#[test]
fn a_split_that_removes_the_rest_stands_alone() {
    // Xenova's GPT-4o.
    let inverted = |regex: &str| json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Removed", "invert": true });
    let pre = sequence(&[inverted(GPT4O), byte_level(false)]);
    assert_eq!(name_of(&pre, false, "llama", "").unwrap(), "gpt-4o");
    // Of these the first would remove everything but digits.
    let pre = sequence(&[
        inverted(r"\p{N}{1,3}"),
        split("[一-龥぀-ゟ゠-ヿ]+"),
        split(DEEPSEEK_V3),
        byte_level(false),
    ]);
    assert!(name_of(&pre, false, "deepseek2", "").is_err());
}

#[test]
fn other_steps_are_refused_with_what_they_are() {
    let almost = LLAMA3.replace("{1,3}", "{1,2}");
    for (pre, ignore_merges, part) in [
        (sequence(&[split(&almost), byte_level(false)]), true, "{1,2}"),
        (sequence(&[split(LLAMA3)]), true, "[Split("),
        (sequence(&[split(QWEN2), byte_level(false)]), true, "`model.ignore_merges` is true"),
        (json!({ "type": "ByteLevel" }), false, "add_prefix_space true"),
        (json!({ "type": "Metaspace" }), false, "[Metaspace]"),
        (json!({ "type": "UnicodeScripts" }), false, "[UnicodeScripts]"),
        (Value::Null, false, "[]"),
        (json!(["a"]), false, "[without a type]"),
    ] {
        let error = name_of(&pre, ignore_merges, "llama", "").unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Unsupported);
        let error = error.to_string();
        assert!(error.contains(part), "{error}");
        assert!(error.contains("--tokenizer-pre NAME"), "{error}");
    }
}

#[test]
fn nested_sequences_are_bounded() {
    let many: Vec<_> = (0..10_000).map(|_| byte_level(false)).collect();
    assert_eq!(steps(&sequence(&many)).len(), MAX_STEPS);
}

#[test]
fn each_name_stands_once_and_no_steps_are_of_two_classes() {
    let mut names = HashSet::new();
    for class in CLASSES {
        for row in class.names {
            assert!(names.insert(row.name), "{}", row.name);
            assert!(std::ptr::eq(find(row.name).unwrap().1, row));
            assert_eq!(require(row.name).unwrap(), row.name);
        }
        for form in class.forms {
            let of = |other: &&PreTokenizerClass| other.forms.iter().any(|f| same_steps(f, form));
            assert_eq!(CLASSES.iter().filter(of).count(), 1, "{form:?}");
        }
    }
    assert!(find("llama-spm").is_none());
    let error = require("llama-spm").unwrap_err().to_string();
    assert!(error.contains("qwen2, "), "{error}");
}
