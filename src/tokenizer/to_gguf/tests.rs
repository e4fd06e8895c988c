//! Tokenizer files against the keys that llama.cpp's converter writes for them
//! (`tests/data/generate/tokenizer_cases.py`).

mod hostile;
mod hostile_models;
mod hostile_ranks;
mod merges;
mod vocab_merges;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;
use crate::families::CLASSES;
use crate::model::gguf::GgufMetadataArray;
use crate::{ErrorKind, ParseLimits};

/// The rules of the class that `config` names, or else of the first one of `architecture`.
fn rules_of(architecture: &str, config: &Value) -> &'static TokenizerRules {
    let name = config.pointer("/architectures/0").and_then(Value::as_str);
    let mut all = CLASSES.iter().filter(|class| class.gguf == architecture);
    let mut named = all
        .clone()
        .filter(|class| name.is_some_and(|name| class.classes.contains(&name)));
    let found = named.next().or_else(|| all.next());
    found.map_or(&TokenizerRules::PLAIN, |class| class.tokenizer)
}

/// Reads the tokenizer in `dir`, whose config.json and expected.json say the rest.
fn convert(dir: &Path, expected: &Value) -> Result<TokenizerKeys> {
    let texts = Texts::new(dir, &ParseLimits::default());
    let config = texts.json("config.json")?.unwrap();
    to_gguf(&TokenizerRequest {
        texts: &texts,
        config: &config,
        vocab_size: expected["vocab_size"].as_u64().unwrap() as usize,
        pre: None,
        cuts_embedding: false,
        architecture: expected["architecture"].as_str().unwrap(),
        rules: rules_of(expected["architecture"].as_str().unwrap(), &config),
    })
}

/// A value with its type, as expected.json has it.
fn shown(key: &str, value: &GgufMetadataValue) -> Value {
    let kind = match value {
        GgufMetadataValue::Array(array) => format!("[{}]", array.item_name()),
        other => other.type_name().to_owned(),
    };
    let mut plain = match value {
        // The shortest number that is the F32.
        GgufMetadataValue::Array(array) => match &**array {
            GgufMetadataArray::F32(items) => items
                .iter()
                .map(|x| x.to_string().parse::<f64>().unwrap())
                .collect(),
            array => serde_json::to_value(array).unwrap(),
        },
        other => serde_json::to_value(other).unwrap(),
    };
    if key == "tokenizer.chat_templates" {
        plain.as_array_mut().unwrap().sort_by_key(Value::to_string);
    }
    json!([key, kind, plain])
}

/// What differs between the keys of `dir` and expected.json there.
fn differences(dir: &Path) -> Vec<String> {
    let expected = std::fs::read(dir.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let ours = match convert(dir, &expected) {
        Ok(ours) => ours,
        Err(error) => return vec![error.to_string()],
    };
    let theirs = expected["keys"].as_array().unwrap();
    let names = |keys: &mut dyn Iterator<Item = &str>| keys.collect::<Vec<_>>().join(" ");
    let our_names = names(&mut ours.keys.iter().map(|(key, _)| key.as_str()));
    let their_names = names(&mut theirs.iter().map(|entry| entry[0].as_str().unwrap()));
    let mut out = Vec::new();
    if our_names != their_names {
        out.push(format!("keys {our_names}, and expected are {their_names}"));
    }
    for (key, value) in &ours.keys {
        let Some(their) = theirs.iter().find(|entry| entry[0] == *key) else {
            continue;
        };
        let our = shown(key, value);
        if our == *their {
            continue;
        }
        let first = our[2]
            .as_array()
            .zip(their[2].as_array())
            .and_then(|(a, b)| {
                let i = (0..a.len().max(b.len())).find(|&i| a.get(i) != b.get(i))?;
                Some(format!(
                    "at {i} of {}/{}: {:?}, expected {:?}",
                    a.len(),
                    b.len(),
                    a.get(i),
                    b.get(i)
                ))
            });
        let whole = || format!("{} {}, expected {} {}", our[1], our[2], their[1], their[2]);
        out.push(format!("{key}: {}", first.unwrap_or_else(whole)));
    }
    if let Some(tokens) = ours
        .keys
        .iter()
        .find(|(key, _)| key == "tokenizer.ggml.tokens")
    {
        assert_eq!(tokens.1.as_array().unwrap().len(), ours.tokens);
    }
    out
}

/// The directories of `root`.
fn directories(root: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("expected.json").exists())
        .collect();
    all.sort();
    all
}

/// Real tokenizers of full size, of which the repository has none: directories as
/// `tokenizer_oracle.py` leaves them.
#[test]
#[ignore = "needs the environment variable TOKENIZERS: a directory of directories"]
fn every_tokenizer_of_full_size() {
    let mut failed = false;
    for dir in directories(Path::new(&std::env::var("TOKENIZERS").unwrap())) {
        let start = std::time::Instant::now();
        let differences = differences(&dir);
        failed |= !differences.is_empty();
        println!("{} {:?} {:.0?}", dir.display(), differences, start.elapsed());
    }
    assert!(!failed);
}

/// Tokenizers of SentencePiece's kind without tokenizer.model, and the keys that the converter has
/// otherwise: it gives each token one score and takes added tokens of the vocabulary for normal ones,
/// with which llama.cpp makes other tokens than the library (`merges` has the right ones). Of Yi,
/// which was cut down, no merges make some tokens.
#[rustfmt::skip]
const OTHERWISE: &[(&str, &[&str])] = &[
    ("gemma2", &["keys", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"]),
    ("gemma4", &["tokenizer.ggml.token_type"]),
    ("llama2", &["tokenizer.ggml.scores"]),
    ("yi", &["keys", "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.token_type"]),
];

#[test]
fn keys_are_those_of_the_converter() {
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    let all = directories(&data.join("models/tokenizers"));
    assert!(all.len() >= 42, "{}", all.len());
    let mut wrong = Vec::new();
    for dir in all {
        let known = OTHERWISE.iter().find(|(name, _)| dir.ends_with(name));
        let known = known.map_or(&[][..], |(_, keys)| keys);
        let differences = differences(&dir);
        assert_eq!(known.is_empty(), differences.is_empty(), "{}: {differences:?}", dir.display());
        for difference in differences {
            if known.iter().any(|key| difference.starts_with(key)) {
                continue;
            }
            wrong.push(format!("{}: {difference}", dir.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What classes of architectures add, as the converter does for files of these sizes.
#[test]
fn sizes_and_architectures_add_keys() {
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    let convert = |architecture: &str, vocab_size: usize, config: Value| {
        let dir = data.join("models/tokenizers/spm_llama");
        let texts = Texts::new(&dir, &ParseLimits::default());
        to_gguf(&TokenizerRequest {
            texts: &texts,
            config: &config,
            vocab_size,
            pre: None,
            cuts_embedding: false,
            architecture,
            rules: rules_of(architecture, &config),
        })
        .unwrap()
    };
    let value = |keys: &TokenizerKeys, name: &str| {
        let name = format!("tokenizer.ggml.{name}");
        let found = keys.keys.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.clone())
    };
    let llama = convert("llama", 32016, json!({}));
    assert_eq!(value(&llama, "eot_token_id"), Some(GgufMetadataValue::U32(32010)));
    assert_eq!(llama.keys.last().unwrap().0, "tokenizer.ggml.eot_token_id");
    assert_eq!(value(&llama, "add_bos_token"), Some(GgufMetadataValue::Bool(true)));
    let granite = convert("granite", 49152, json!({ "architectures": ["GraniteForCausalLM"] }));
    assert_eq!(value(&granite, "add_bos_token"), Some(GgufMetadataValue::Bool(false)));
    assert_eq!(value(&granite, "eot_token_id"), None);
    for (architecture, config, tokens) in [
        ("mamba", json!({}), 408),
        ("mamba2", json!({}), 416),
        ("mamba2", json!({ "pad_vocab_size_multiple": 1 }), 404),
        ("nemotron_h", json!({}), 408),
        ("granitehybrid", json!({ "layer_types": ["attention"] }), 404),
        ("granitehybrid", json!({ "layer_types": ["mamba", "attention"] }), 408),
        ("qwen2", json!({}), 404),
    ] {
        assert_eq!(convert(architecture, 404, config).tokens, tokens, "{architecture}");
    }
}
