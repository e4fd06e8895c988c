//! Models without their outputs, tensors without the first part of their names, and configs that
//! leave out what others state.

use std::path::{Path, PathBuf};

use anamnesis::GgufMetadataValue;
use serde_json::{Value, json};

use super::{Tensors, copy, json, metadata, models, some_models, tensors, to_gguf, to_hf, write};
use crate::canonical::canonical_gguf;
use crate::common::{data, effort};

/// First parts of names that files of the model without its output lack.
const PREFIXES: &[&str] = &["model.", "transformer.", "gpt_neox.", "backbone."];

/// Ends of names of classes with an output.
const ENDS: &[&str] = &["ForCausalLM", "LMHeadModel"];

/// Names of outputs.
const OUTPUTS: &[&str] = &["lm_head.weight", "lm_head.bias", "embed_out.weight", "output.weight"];

/// A copy of `model` in `directory` with the config and the tensors that `change` makes.
fn changed(
    model: &Path,
    directory: &Path,
    change: impl FnOnce(&mut Value, Tensors) -> Tensors,
) -> PathBuf {
    let to = directory.join("changed");
    copy(model, &to);
    let mut config = json(&to.join("config.json"));
    let all = change(&mut config, tensors(&to));
    write(&all, &to);
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    to
}

fn without_prefix(all: Tensors) -> Tensors {
    let short = |name: String| {
        let mut prefixes = PREFIXES.iter();
        let short = prefixes.find_map(|prefix| name.strip_prefix(prefix));
        short.map(str::to_owned).unwrap_or(name)
    };
    all.into_iter()
        .map(|(name, tensor)| (short(name), tensor))
        .collect()
}

/// Whether two files have the same tensors, but for decays of Mamba, which are rounded otherwise.
fn check(found: &Path, expected: &Tensors, what: &str) {
    let found = tensors(found);
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
    for (name, tensor) in expected {
        assert!(super::is_same(name, &found[name], tensor), "{what} `{name}`");
    }
}

#[test]
fn names_without_their_first_part() {
    let mut count = 0;
    for model in some_models(2) {
        let hf = model.join("hf");
        // What its names begin with is another part of the model.
        if model.ends_with("distilbert") {
            continue;
        }
        if !tensors(&hf)
            .keys()
            .any(|name| PREFIXES.iter().any(|p| name.starts_with(p)))
        {
            continue;
        }
        count += 1;
        let directory = crate::common::tempdir().unwrap();
        let bare = changed(&hf, directory.path(), |_, all| without_prefix(all));
        let found = to_gguf(&bare, directory.path());
        check(&found, &tensors(&canonical_gguf(&model)), &model.display().to_string());
    }
    assert!(count >= effort([15, 75, 75]), "{count}");
}

/// Whatever the config says of the output.
#[test]
fn classes_without_an_output() {
    let (mut count, mut refused) = (0, vec![]);
    let tried = effort([1, 2, 2]);
    for (number, model) in models().into_iter().enumerate() {
        let hf = model.join("hf");
        let class = json(&hf.join("config.json"))["architectures"][0]
            .as_str()
            .unwrap()
            .to_owned();
        let Some(stem) = ENDS.iter().find_map(|end| class.strip_suffix(end)) else {
            continue;
        };
        let all = [false, true].into_iter().cycle();
        for is_tied in all.skip(number).take(tried) {
            let directory = crate::common::tempdir().unwrap();
            let base = changed(&hf, directory.path(), |config, mut all| {
                config["architectures"] = json!([format!("{stem}Model")]);
                config["tie_word_embeddings"] = is_tied.into();
                all.retain(|name, _| !OUTPUTS.contains(&name.as_str()));
                without_prefix(all)
            });
            let output = directory.path().join("model.gguf");
            let converted = anamnesis::parse(&base)
                .unwrap()
                .convert(&output, anamnesis::ConvertTarget::Gguf);
            let name = model.file_name().unwrap().to_str().unwrap();
            if let Err(error) = converted {
                refused.push(format!("{name} {is_tied}: {error}"));
                continue;
            }
            count += 1;
            let mut expected = tensors(&canonical_gguf(&model));
            expected.retain(|name, _| !name.starts_with("output."));
            check(&output, &expected, name);
        }
    }
    // llama.cpp needs the output, or has the embedding for it whatever the config says.
    assert!(count >= effort([50, 110, 110]), "{count} {}", refused.join("\n"));
    let is_known = |error: &String| {
        error.contains("tie_word_embeddings")
            || error.contains("needs it")
            || error.contains("output")
    };
    assert!(refused.iter().all(is_known), "{}", refused.join("\n"));
}

/// transformers 5 writes the kinds of the layers of Nemotron in place of their number.
#[test]
fn layers_that_are_counted_by_their_kinds() {
    for name in ["nemotron_h", "nemotron_h_moe"] {
        let directory = crate::common::tempdir().unwrap();
        let model = data().join("whole").join(name);
        let counted = changed(&model.join("hf"), directory.path(), |config, all| {
            let fields = config.as_object_mut().unwrap();
            fields.remove("num_hidden_layers").unwrap();
            let letters = fields.remove("hybrid_override_pattern");
            let kind = |letter: char| match letter {
                'M' => "linear_attention",
                '*' => "full_attention",
                '-' => "mlp",
                _ => "moe",
            };
            if let Some(letters) = letters {
                let kinds: Value = letters.as_str().unwrap().chars().map(kind).collect();
                fields.insert("layers_block_type".to_owned(), kinds);
            }
            assert!(fields["layers_block_type"].is_array());
            all
        });
        let found = to_gguf(&counted, directory.path());
        check(&found, &tensors(&canonical_gguf(&model)), name);
        let settings = |path: &Path| {
            let mut all = metadata(path);
            all.retain(|key, _| key.starts_with("nemotron"));
            all
        };
        assert_eq!(settings(&found), settings(&canonical_gguf(&model)));
    }
}

#[test]
fn ernie_without_shared_experts() {
    let directory = crate::common::tempdir().unwrap();
    let model = data().join("whole/ernie4_5_moe");
    let without = changed(&model.join("hf"), directory.path(), |config, mut all| {
        config["moe_num_shared_experts"] = 0.into();
        all.retain(|name, _| !name.contains("shared_experts"));
        all
    });
    let found = to_gguf(&without, directory.path());
    let mut expected = tensors(&canonical_gguf(&model));
    expected.retain(|name, _| !name.contains("shexp"));
    check(&found, &expected, "ernie");
    let keys = metadata(&found);
    let count = keys.get("ernie4_5-moe.expert_shared_count");
    assert_eq!(count, Some(&GgufMetadataValue::U32(0)));
    assert!(!keys.contains_key("ernie4_5-moe.expert_shared_feed_forward_length"));
    let back = to_hf(&found, directory.path());
    assert!(tensors(&back) == tensors(&without));
    assert_eq!(json(&back.join("config.json"))["moe_num_shared_experts"], 0);
    check(&to_gguf(&back, directory.path()), &expected, "ernie");
}
