//! Small GGUF files against the tokenizer.json that llama.cpp's converter made them from, and
//! malformed metadata.

mod malformed;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::{HfTokenizer, from_gguf};
use crate::test_utils::test_data;

/// The converter takes tokens that look special for control tokens.
const LOOKS_SPECIAL: &str = "special: false → true";
/// A GGUF file does not say whether an added token is found in normalized text.
const NORMALIZED: &str = "normalized: true → false";

/// Cases of `tests/data/tokenizer_hf`, and what differs in the JSON from the original, with the
/// original's value first.
const CASES: &[(&str, &[(&str, &str)])] = &[
    ("bert", &[]),
    (
        "command_r",
        &[
            ("/added_tokens/6/", LOOKS_SPECIAL),
            ("/added_tokens/7/", LOOKS_SPECIAL),
            ("/added_tokens/8/", LOOKS_SPECIAL),
            ("/added_tokens/9/", LOOKS_SPECIAL),
            ("/added_tokens/10/", LOOKS_SPECIAL),
            ("/added_tokens/11/", LOOKS_SPECIAL),
            // Three tokens around a text are one too many for a GGUF file.
            ("/post_processor/", "pair"),
            ("/post_processor/", "single"),
            ("/post_processor/", "special_tokens/<|END_OF_TURN_TOKEN|>"),
        ],
    ),
    (
        "deepseek_v3",
        &[
            ("/added_tokens/4/", NORMALIZED),
            ("/added_tokens/4/", LOOKS_SPECIAL),
            ("/added_tokens/5/", NORMALIZED),
            ("/added_tokens/5/", LOOKS_SPECIAL),
            ("/added_tokens/6/", NORMALIZED),
            ("/added_tokens/6/", LOOKS_SPECIAL),
            ("/added_tokens/7/", NORMALIZED),
            ("/added_tokens/7/", LOOKS_SPECIAL),
            ("/added_tokens/8/", NORMALIZED),
            ("/added_tokens/8/", LOOKS_SPECIAL),
            ("/added_tokens/9/", NORMALIZED),
            ("/added_tokens/9/", LOOKS_SPECIAL),
        ],
    ),
    ("gemma2", &[("/added_tokens/4/", LOOKS_SPECIAL)]),
    ("gpt_oss", &[]),
    ("llama", &[]),
    ("llama3", &[]),
    ("llama_no_prefix", &[]),
    ("qwen3", &[("/added_tokens/6/", LOOKS_SPECIAL)]),
    (
        "t5",
        &[
            // T5 has one type of tokens.
            ("/post_processor/", "pair/2/Sequence/type_id: 0 → 1"),
            ("/post_processor/", "pair/3/SpecialToken/type_id: 0 → 1"),
        ],
    ),
    // The template's list has a token that the template does not use.
    ("tekken", &[("/post_processor/", "special_tokens/</s>")]),
    (
        "xlm_roberta",
        &[
            ("/added_tokens/4/", NORMALIZED),
            // The mask, which is found before the model looks at scores.
            ("/model/vocab/", "200/1: 0.0 → -10000.0"),
        ],
    ),
];

/// Takes away what has no effect on ids or texts: options of `ByteLevel` that concern offsets or a
/// step that is not there, and defaults.
fn simplify(tokenizer: &mut Value) {
    let model = tokenizer["model"].as_object_mut().unwrap();
    model.retain(|_, value| !matches!(value, Value::Null | Value::Bool(false)) && value != "");
    let drop = |part: &mut Value, keys: &[&str]| {
        let object = part.as_object_mut().unwrap();
        object.retain(|key, _| !keys.contains(&key.as_str()));
    };
    let offsets = ["trim_offsets", "add_prefix_space", "use_regex"];
    if tokenizer["decoder"]["type"] == "ByteLevel" {
        drop(&mut tokenizer["decoder"], &offsets);
    }
    let steps = tokenizer["pre_tokenizer"].pointer_mut("/pretokenizers");
    for step in steps.and_then(Value::as_array_mut).into_iter().flatten() {
        drop(step, &["trim_offsets"]);
        // Line ends in a regex are written in either way.
        if let Some(Value::String(regex)) = step.pointer_mut("/pattern/Regex") {
            *regex = regex.replace('\r', "\\r").replace('\n', "\\n");
        }
    }
    if tokenizer["normalizer"]["normalizers"] == Value::Array(vec![]) {
        tokenizer["normalizer"] = Value::Null;
    }
    // `ByteLevel` as a post-processor changes offsets alone.
    let post = tokenizer["post_processor"].take();
    let steps = post.get("processors").and_then(Value::as_array).cloned();
    let mut steps = steps.unwrap_or_else(|| vec![post]);
    steps.retain(|step| step["type"] != "ByteLevel");
    assert!(steps.len() < 2);
    let mut post = steps.pop().unwrap_or_default();
    if post.is_object() {
        drop(&mut post, &offsets);
    }
    tokenizer["post_processor"] = post;
}

/// Every difference between `theirs` and `ours`.
fn differences(theirs: &Value, ours: &Value, path: &str, out: &mut Vec<String>) {
    let member = |object: &Value, key: &str| object.get(key).cloned().unwrap_or(Value::Null);
    match (theirs, ours) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let path = format!("{path}/{key}");
                differences(&member(theirs, key), &member(ours, key), &path, out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                differences(a, b, &format!("{path}/{i}"), out);
            }
        }
        _ if theirs == ours => {}
        _ => out.push(format!("{path}: {theirs} → {ours}")),
    }
}

fn converted(gguf: &Path) -> HfTokenizer {
    let model = crate::parse(gguf).unwrap();
    from_gguf(model.gguf().unwrap().metadata(), Some(128)).unwrap()
}

fn file<'a>(tokenizer: &'a HfTokenizer, name: &str) -> Option<&'a str> {
    let mut files = tokenizer.files.iter();
    files
        .find(|(n, _)| *n == name)
        .map(|(_, text)| text.as_str())
}

/// Calls `check` for each case with the original files and ours.
fn for_each_case(mut check: impl FnMut(&str, Value, HfTokenizer)) {
    let Some(data) = test_data().map(|data| data.join("tokenizer_hf")) else {
        return;
    };
    let files = std::fs::read_dir(&data).unwrap();
    assert_eq!(files.count(), 2 * CASES.len());
    for (name, _) in CASES {
        let theirs = std::fs::read(data.join(format!("{name}.json"))).unwrap();
        let theirs = serde_json::from_slice(&theirs).unwrap();
        check(name, theirs, converted(&data.join(format!("{name}.gguf"))));
    }
}

#[test]
fn equal_to_the_original() {
    for_each_case(|name, mut theirs, ours| {
        let json = file(&ours, "tokenizer.json").unwrap();
        let mut json = serde_json::from_str(json).unwrap();
        let theirs = &mut theirs["tokenizer"];
        simplify(theirs);
        simplify(&mut json);
        let mut found = Vec::new();
        differences(theirs, &json, "", &mut found);
        let known = CASES.iter().find(|case| case.0 == name).unwrap().1;
        assert_eq!(found.len(), known.len(), "{name}: {found:#?}");
        for (found, (place, what)) in found.iter().zip(known) {
            assert!(found.starts_with(&format!("{place}{what}")), "{name}: {found}");
        }
        assert_eq!(ours.notes, Vec::<String>::new(), "{name}");
    });
}

#[test]
fn configs_name_the_tokens() {
    for_each_case(|name, theirs, ours| {
        let config = file(&ours, "tokenizer_config.json").unwrap();
        let config: Value = serde_json::from_str(config).unwrap();
        for (key, value) in theirs["config"].as_object().unwrap() {
            // The converter takes the last token of the template for EOS.
            if (name, key.as_str()) == ("command_r", "eos_token") {
                continue;
            }
            assert_eq!(config.get(key).unwrap_or(&Value::Null), value, "{name}: {key}");
        }
        let template = theirs["config"]["chat_template"].as_str();
        assert_eq!(file(&ours, "chat_template.jinja"), template, "{name}");
        assert_eq!(config["model_max_length"], 128);
        assert_eq!(config["tokenizer_class"], "PreTrainedTokenizerFast");
        // `generate(**tokenizer(text))` of a decoder refuses `token_type_ids`.
        let inputs = match name.starts_with("bert") {
            true => Value::Null,
            false => serde_json::json!(["input_ids", "attention_mask"]),
        };
        assert_eq!(config["model_input_names"], inputs, "{name}");
    });
}

/// The keys stand in the order of the `tokenizers` crate, so that the file can be compared with the
/// original by eye.
#[test]
fn keys_are_in_the_order_of_the_crate() {
    for_each_case(|name, _, ours| {
        let json = file(&ours, "tokenizer.json").unwrap();
        let keys = [
            "version",
            "truncation",
            "padding",
            "added_tokens",
            "normalizer",
            "pre_tokenizer",
            "post_processor",
            "decoder",
            "model",
        ];
        let at = keys.map(|key| json.find(&format!("\n  \"{key}\": ")).unwrap());
        assert!(at.is_sorted(), "{name}: {at:?}");
        let model = &json[at[8]..];
        let vocab = model.find("\"vocab\": ").unwrap();
        assert!(model.find("\"type\": ").unwrap() < vocab);
        assert!(
            model
                .find("\"merges\": ")
                .is_none_or(|merges| vocab < merges)
        );
    });
}
