//! From GGUF to a directory and back, and from a directory to GGUF and back, whatever rope is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anamnesis::{
    ConvertOptions, ConvertTarget, GgufMetadataValue, ModelScope, Result, TargetDtype, parse,
};
use serde_json::{Value, json};

use super::{copy, is_same, json, kept, metadata, models, some_models, tensors, write};
use crate::canonical::canonical_gguf;
use crate::common::{data, effort};

type Settings = BTreeMap<String, GgufMetadataValue>;

/// The settings of a GGUF file: its metadata without names, licences and the tokenizer.
fn settings(path: &Path) -> Settings {
    let mut all = metadata(path);
    all.retain(|key, _| !key.starts_with("tokenizer.") && !key.starts_with("general."));
    all
}

fn number(value: &GgufMetadataValue) -> Option<u32> {
    match value {
        GgufMetadataValue::U32(number) => Some(*number),
        _ => None,
    }
}

/// Whether the key `key` says what llama.cpp takes for granted in a file with the settings `first`,
/// which does not have it.
fn says_nothing_new(key: &str, value: &GgufMetadataValue, first: &Settings) -> bool {
    let (architecture, key) = key.split_once('.').unwrap();
    let get = |key: &str| first.get(&format!("{architecture}.{key}"));
    let count = |key: &str| get(key).and_then(number);
    match key {
        // Classes of transformers state the size of a head, which old configs do not.
        "attention.key_length" | "attention.value_length" => {
            let head = count("embedding_length").unwrap() / count("attention.head_count").unwrap();
            number(value) == Some(head)
        }
        // The softmax.
        "expert_gating_func" => number(value) == Some(1),
        // llama.cpp has one epsilon for both kinds of norms of Nemotron H.
        "attention.layer_norm_rms_epsilon" => Some(value) == get("attention.layer_norm_epsilon"),
        // transformers 5 has a base of its own for layers with a window, unless it is stated.
        "rope.freq_base_swa" => Some(value) == get("rope.freq_base"),
        // No cap. llama.cpp has one of 30 in models whose files do not say it.
        "final_logit_softcapping" => *value == GgufMetadataValue::F32(0.0),
        _ => false,
    }
}

/// What the settings `found` have otherwise than those that are `expected`.
fn difference_of(found: &Settings, expected: &Settings) -> Option<String> {
    for key in found.keys().chain(expected.keys()) {
        let (value, other) = (found.get(key), expected.get(key));
        let is_same = match (value, other) {
            (Some(value), None) => says_nothing_new(key, value, expected),
            _ => value == other,
        };
        if !is_same {
            return Some(format!("`{key}`: {value:?}, {other:?}"));
        }
    }
    None
}

/// What the GGUF file `second` has otherwise than `first`.
fn difference(second: &Path, first: &Path) -> Option<String> {
    let of_settings = difference_of(&settings(second), &settings(first));
    if of_settings.is_some() {
        return of_settings;
    }
    let (found, expected) = (tensors(second), tensors(first));
    let mut names = found.keys().chain(expected.keys());
    let differs = names.find(|name| match (found.get(*name), expected.get(*name)) {
        // Rows that stand for no token are gone.
        (Some(found), Some(expected)) if *name == "token_embd.weight" => {
            !expected.2.starts_with(&found.2) || found.2.len() * 2 < expected.2.len()
        }
        (Some(found), Some(expected)) => !is_same(name, found, expected),
        _ => true,
    });
    differs.map(|name| format!("tensor `{name}`"))
}

fn to_gguf(from: &Path, to: &Path) -> Result<()> {
    parse(from)?.convert(to, ConvertTarget::Gguf).map(drop)
}

/// Makes a directory of the GGUF file `first`, and a GGUF file of that.
fn there_and_back(first: &Path, directory: &Path) -> Result<PathBuf> {
    let (back, second) = (directory.join("back"), directory.join("second.gguf"));
    let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
    parse(first)?.convert(&back, options)?;
    to_gguf(&back, &second)?;
    Ok(second)
}

/// What is different in a GGUF file that is made of a directory that is made of `first`.
fn around(first: &Path, directory: &Path) -> Result<Option<String>> {
    let second = there_and_back(first, directory)?;
    Ok(difference(&second, first))
}

/// The GGUF files in a directory of `tests/data`, `count` of them.
fn ggufs(directory: &str, count: usize) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data().join(directory)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_gguf = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "gguf");
    let mut all: Vec<_> = paths.filter(is_gguf).collect();
    assert_eq!(all.len(), count);
    all.sort();
    all
}

/// Adds what is wrong on the way around from `first` to `wrong`.
fn check(name: &str, first: &Path, directory: &Path, wrong: &mut Vec<String>) {
    match around(first, directory) {
        Ok(None) => {}
        Ok(Some(difference)) => wrong.push(format!("{name}: {difference}")),
        Err(error) => wrong.push(format!("{name}: {error}")),
    }
}

#[test]
fn files_of_llama_cpp_come_back() {
    let mut wrong = vec![];
    let mut files: Vec<_> = some_models(0).iter().map(canonical_gguf).collect();
    files.push(data().join("whole_mtp/qwen3_5.gguf"));
    for file in files {
        let directory = crate::common::tempdir().unwrap();
        check(&file.display().to_string(), &file, directory.path(), &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What models for images have and the classes without images, as which they come back, do not.
const OF_IMAGES: [&str; 3] =
    ["rope.dimension_sections", "n_deepstack_layers", "nextn_predict_layers"];

/// The settings of the file at `path` that are not of images, with keys as of any architecture.
fn settings_of_text(path: &Path) -> Settings {
    let all = metadata(path);
    let architecture = all["general.architecture"].as_string().unwrap();
    let count = |name: &str| number(all.get(&format!("{architecture}.{name}"))?);
    let layers = count("block_count").unwrap() - count("nextn_predict_layers").unwrap_or(0);
    let settings = settings(path).into_iter().map(|(key, value)| {
        let rest = key.strip_prefix(architecture).map(str::to_owned);
        (rest.map_or(key, |rest| format!("text{rest}")), value)
    });
    let is_of_images = |key: &str| OF_IMAGES.iter().any(|of| key.ends_with(of));
    let mut settings: Settings = settings.filter(|(key, _)| !is_of_images(key)).collect();
    settings.insert("text.block_count".to_owned(), GgufMetadataValue::U32(layers));
    settings
}

/// Language models for images come back as the class without them, and say the same of text, of
/// themselves and of the tokenizer. Rows of queries and keys may be in another order, for the other
/// rope.
#[test]
fn models_for_images_come_back() {
    for first in ggufs("whole_nested", 8) {
        let (one, two) = (crate::common::tempdir().unwrap(), crate::common::tempdir().unwrap());
        let second = there_and_back(&first, one.path()).unwrap();
        there_and_back(&second, two.path()).unwrap();
        let [found, expected] = [&second, &first].map(|path| settings_of_text(path));
        let name = first.display();
        assert_eq!(difference_of(&found, &expected), None, "{name}");
        let [found, expected] =
            [&two, &one].map(|directory| tensors(&directory.path().join("back")));
        assert!(found == expected, "{name}");
        kept::require_same_but(&first, &second, "general.architecture");
    }
}

/// Models of `tests/data/whole` that get a tokenizer of `tests/data/tokenizer_hf`.
const WITH_TOKENIZER: [(&str, &str); 12] = [
    ("bert", "bert"),
    ("command_r", "cohere"),
    ("deepseek_v3", "llama"),
    ("gemma2", "gemma2"),
    ("gpt_oss", "gpt_oss"),
    ("llama", "llama"),
    ("llama3", "llama"),
    ("llama_no_prefix", "llama"),
    ("qwen3", "qwen3"),
    ("t5", "t5"),
    ("tekken", "llama"),
    ("xlm_roberta", "xlm_roberta"),
];

/// The model `like` of `tests/data/whole` with the tokenizer of the file `tokenizer`.
fn with_tokenizer(like: &str, tokenizer: &Path, directory: &Path) -> PathBuf {
    let canonical = canonical_gguf(data().join("whole").join(like));
    let is_of_tokenizer = |key: &str| key.starts_with("tokenizer.");
    let mut all = metadata(&canonical);
    let count = |all: &Settings| match &all["tokenizer.ggml.tokens"] {
        GgufMetadataValue::Array(tokens) => tokens.len(),
        _ => panic!(),
    };
    let old = count(&all);
    all.retain(|key, _| !is_of_tokenizer(key));
    all.extend(
        metadata(tokenizer)
            .into_iter()
            .filter(|(key, _)| is_of_tokenizer(key)),
    );
    let new = count(&all);
    for (_, value) in all
        .iter_mut()
        .filter(|(key, _)| key.ends_with(".vocab_size"))
    {
        *value = GgufMetadataValue::U32(new as u32);
    }
    let mut resized = tensors(&canonical);
    for (_, shape, bytes) in resized.values_mut().filter(|(_, shape, _)| shape[0] == old) {
        let len = bytes.len() / old * new;
        *bytes = bytes.iter().copied().cycle().take(len).collect();
        shape[0] = new;
    }
    let tensors_alone = directory.join("tensors");
    std::fs::create_dir(&tensors_alone).unwrap();
    write(&resized, &tensors_alone);
    let output = directory.join("first.gguf");
    let options =
        ConvertOptions::from(ConvertTarget::Gguf).with_gguf_metadata(all.into_iter().collect());
    parse(tensors_alone.join("model.safetensors"))
        .unwrap()
        .convert(&output, options)
        .unwrap();
    output
}

#[test]
fn tokenizers_come_back() {
    let files = ggufs("tokenizer_hf", WITH_TOKENIZER.len());
    for (file, (name, like)) in files.iter().zip(WITH_TOKENIZER) {
        assert_eq!(file.file_stem().unwrap(), name);
        let directory = crate::common::tempdir().unwrap();
        let first = with_tokenizer(like, file, directory.path());
        let second = there_and_back(&first, directory.path()).unwrap();
        assert_eq!(difference(&second, &first), None, "{name}");
        kept::require_same(&first, &second);
    }
}

/// What configs say of rope, of a head of which `pairs` of dimensions rotate.
fn ropes(pairs: usize) -> Vec<Value> {
    let yarn = |field: &str, value: Value| {
        let mut yarn = json!({
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16
        });
        yarn[field] = value;
        yarn
    };
    let mut scaled = yarn("mscale", 1.0.into());
    scaled["mscale_all_dim"] = 1.0.into();
    let dynamic = |original: u32| {
        json!({
            "rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": original
        })
    };
    vec![
        json!({"rope_type": "default"}),
        json!({"rope_type": "linear", "factor": 4.0}),
        json!({"rope_type": "dynamic", "factor": 4.0}),
        dynamic(1 << 20),
        dynamic(16),
        json!({"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0}),
        yarn("factor", 2.0.into()),
        yarn("truncate", false.into()),
        yarn("truncate", true.into()),
        yarn("beta_fast", 32.0.into()),
        yarn("beta_slow", 2.0.into()),
        yarn("attention_factor", 1.138_629_4.into()),
        scaled,
        json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64
        }),
        json!({
            "rope_type": "longrope", "short_factor": vec![1.5; pairs],
            "long_factor": vec![3.0; pairs], "original_max_position_embeddings": 16
        }),
        json!({"rope_type": "proportional", "partial_rotary_factor": 0.5}),
        json!({"rope_type": "mrope", "mrope_section": [1, 1, 0, 0]}),
    ]
}

/// Fields of rope that are none of a scaling.
const KEPT: &[&str] =
    &["rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"];

/// A copy of the directory `from` in `directory` whose config has the rope `rope`, where it has its
/// rope.
fn with_rope(from: &Path, rope: &Value, directory: &Path) -> PathBuf {
    let to = directory.join("edited");
    copy(from, &to);
    let path = to.join("config.json");
    let mut config = json(&path);
    let fields = config.as_object_mut().unwrap();
    let object = match fields.contains_key("rope_parameters") {
        true => "rope_parameters",
        false => "rope_scaling",
    };
    let mut stated = fields.entry(object).or_insert(Value::Null);
    if stated.get("full_attention").is_some() {
        stated = &mut stated["full_attention"];
    }
    let mut new = rope.as_object().unwrap().clone();
    for field in KEPT {
        if let Some(value) = stated.get(*field) {
            new.entry(*field).or_insert(value.clone());
        }
    }
    *stated = Value::Object(new);
    std::fs::write(&path, config.to_string()).unwrap();
    to
}

/// Whatever a config says of rope, either it is refused, or what GGUF says of it comes back, and
/// GGUF says the same then.
#[test]
fn all_kinds_of_rope_come_back() {
    let (mut wrong, mut taken) = (vec![], BTreeMap::new());
    let step = effort([16, 1, 1]);
    for (at, model) in models().into_iter().enumerate() {
        let all = ropes(2).into_iter();
        let all = all.chain(ropes(4).into_iter().filter(is_long));
        for rope in all.skip(at % step).step_by(step) {
            let directory = crate::common::tempdir().unwrap();
            let edited = with_rope(&model.join("hf"), &rope, directory.path());
            let first = directory.path().join("first.gguf");
            if to_gguf(&edited, &first).is_err() {
                continue;
            }
            *taken
                .entry(rope["rope_type"].as_str().unwrap().to_owned())
                .or_insert(0) += 1;
            let name = format!("{} {rope}", model.display());
            check(&name, &first, directory.path(), &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let least = [
        ("default", 84),
        ("linear", 56),
        ("dynamic", 120),
        ("yarn", 60),
        // Those that llama.cpp gives a table of frequencies (SmolLM3 has no place for one).
        ("llama3", 11),
    ];
    for (kind, count) in least
        .into_iter()
        .chain([("longrope", 1), ("proportional", 2)])
    {
        let found = taken.get(kind).copied().unwrap_or(0);
        assert!(found >= count / effort([32, 1, 1]), "{kind}: {found}");
    }
}

fn is_long(rope: &Value) -> bool {
    rope["rope_type"] == "longrope"
}

/// transformers 5 drops `rope_parameters` where there is `rope_scaling` as well.
#[test]
fn one_object_says_all_of_rope() {
    for model in ["qwen3_5", "qwen3_5_moe"] {
        let directory = crate::common::tempdir().unwrap();
        let rope = json!({
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16
        });
        let from = data().join("whole").join(model).join("hf");
        let stated = json(&from.join("config.json"))["rope_parameters"].clone();
        let edited = with_rope(&from, &rope, directory.path());
        let first = directory.path().join("first.gguf");
        to_gguf(&edited, &first).unwrap();
        assert_eq!(around(&first, directory.path()).unwrap(), None);
        let config = json(&directory.path().join("back/config.json"));
        assert_eq!(config.get("rope_scaling"), None);
        let found = &config["rope_parameters"];
        for field in ["rope_theta", "mrope_section", "partial_rotary_factor"] {
            let is_near = found[field].as_f64() == stated[field].as_f64();
            assert!(is_near || found[field] == stated[field], "{field}");
        }
        for (field, value) in rope.as_object().unwrap() {
            assert_eq!(found[field], *value, "{field}");
        }
    }
}

/// A config without a scaling has that of published models of gpt-oss.
#[test]
fn gpt_oss_says_that_rope_is_not_scaled() {
    let directory = crate::common::tempdir().unwrap();
    let from = data().join("whole/gpt_oss/hf");
    let edited = with_rope(&from, &json!({"rope_type": "default"}), directory.path());
    let first = directory.path().join("first.gguf");
    to_gguf(&edited, &first).unwrap();
    assert_eq!(around(&first, directory.path()).unwrap(), None);
    let config = json(&directory.path().join("back/config.json"));
    assert_eq!(config["rope_scaling"]["rope_type"], "default");
}
