//! Models for images, of which the language model is written: configs as published models have
//! them, around a model of `tests/data/whole`.

use std::collections::BTreeMap;
use std::path::Path;

use anamnesis::{ConvertTarget, parse};

use super::{
    Tensor, Tensors, check_metadata, json, metadata, named, tensors, to_gguf, to_hf, write,
};
use crate::canonical::canonical_gguf;
use crate::common::data;

/// Name of the model in `tests/data/whole_nested`, that of its language model in
/// `tests/data/whole`, what names of tensors begin with instead of what, and the class that comes
/// back.
const MODELS: [(&str, &str, [&str; 2], &str); 8] = [
    ("mistral3", "mistral", ["", "language_model."], "MistralForCausalLM"),
    ("qwen2_vl", "qwen2", ["", ""], "Qwen2ForCausalLM"),
    ("qwen3_vl", "qwen3", ["model.", "model.language_model."], "Qwen3ForCausalLM"),
    ("qwen3_vl_moe", "qwen3_moe", ["model.", "model.language_model."], "Qwen3MoeForCausalLM"),
    ("glm4v", "glm4", ["model.", "model.language_model."], "Glm4ForCausalLM"),
    ("glm_ocr", "glm4", ["model.", "model.language_model."], "Glm4ForCausalLM"),
    ("glm4v_moe", "glm4_moe_mtp", ["model.", "model.language_model."], "Glm4MoeForCausalLM"),
    ("smolvlm", "llama_bias", ["model.", "model.text_model."], "LlamaForCausalLM"),
];

/// Shape and bytes.
type Matrix = (Vec<usize>, Vec<u8>);

/// Transposes a matrix of values of two bytes.
fn transposed(shape: &[usize], bytes: &[u8]) -> Vec<u8> {
    let [rows, cols] = shape[..] else { panic!() };
    let at = |row: usize, col: usize| &bytes[(row * cols + col) * 2..][..2];
    let values = (0..cols).flat_map(|col| (0..rows).flat_map(move |row| at(row, col)));
    values.copied().collect()
}

/// Replaces the matrices of experts by one stack of a layer, `[in, out]`, with gates in front of
/// the other projection.
fn stack_experts(all: &mut Tensors) {
    let (experts, rest): (Tensors, Tensors) = std::mem::take(all)
        .into_iter()
        .partition(|(name, _)| name.contains(".experts."));
    *all = rest;
    let mut parts: BTreeMap<String, BTreeMap<usize, Matrix>> = BTreeMap::new();
    for (name, (_, shape, bytes)) in experts {
        let (layer, rest) = name.split_once(".experts.").unwrap();
        let (expert, part) = rest.split_once('.').unwrap();
        let part = part.strip_suffix(".weight").unwrap();
        let matrix = (vec![shape[1], shape[0]], transposed(&shape, &bytes));
        let stack = parts.entry(format!("{layer}.experts.{part}")).or_default();
        stack.insert(expert.parse().unwrap(), matrix);
    }
    for (name, stack) in &parts {
        let up = parts.get(&name.replace("gate_proj", "up_proj"));
        let [inner, outer] = stack[&0].0[..] else {
            panic!()
        };
        let mut bytes = Vec::new();
        let (name, width) = match name.as_str() {
            name if name.ends_with(".up_proj") => continue,
            name if name.ends_with(".gate_proj") => {
                for (expert, (_, gate)) in stack {
                    let up = &up.unwrap()[expert].1;
                    let rows = gate.chunks(outer * 2).zip(up.chunks(outer * 2));
                    rows.for_each(|(gate, up)| bytes.extend([gate, up].concat()));
                }
                (name.replace("gate_proj", "gate_up_proj"), 2 * outer)
            }
            name => {
                stack.values().for_each(|(_, matrix)| bytes.extend(matrix));
                (name.to_owned(), outer)
            }
        };
        all.insert(name, ("BF16".to_owned(), vec![stack.len(), inner, width], bytes));
    }
}

/// What names of the layer begin with that predicts a further token in a model of two layers.
const PREDICTING: &str = "model.layers.2.";

/// Adds a layer that predicts a further token: a copy of the second, with zeros for its own
/// tensors.
fn add_prediction(all: &mut Tensors) {
    let copy = |(name, tensor): (&String, &Tensor)| {
        let rest = name.strip_prefix("model.layers.1.")?;
        Some((format!("{PREDICTING}{rest}"), tensor.clone()))
    };
    let copies: Vec<_> = all.iter().filter_map(copy).collect();
    all.extend(copies);
    let hidden = all["model.norm.weight"].1[0];
    let own: [(&str, &[usize]); 4] = [
        ("eh_proj", &[hidden, 2 * hidden]),
        ("enorm", &[hidden]),
        ("hnorm", &[hidden]),
        ("shared_head.norm", &[hidden]),
    ];
    for (name, shape) in own {
        let zeros = vec![0; 2 * shape.iter().product::<usize>()];
        let tensor = ("BF16".to_owned(), shape.to_vec(), zeros);
        all.insert(format!("{PREDICTING}{name}.weight"), tensor);
    }
}

/// Makes the directory `from`, a model of `tests/data/whole`, the model `name`, with a tower.
fn nest(from: &Path, name: &str, [old, new]: [&str; 2]) {
    let config = data()
        .join("whole_nested")
        .join(name)
        .with_extension("json");
    std::fs::copy(config, from.join("config.json")).unwrap();
    let mut all = tensors(from);
    if name == "qwen3_vl_moe" {
        stack_experts(&mut all);
    }
    if name == "glm_ocr" {
        add_prediction(&mut all);
    }
    let tower = ("BF16".to_owned(), vec![1], vec![0, 0]);
    let renamed = |(name, tensor): (String, _)| match name.strip_prefix(old) {
        Some(rest) => (format!("{new}{rest}"), tensor),
        None => (name, tensor),
    };
    let mut all: Tensors = all.into_iter().map(renamed).collect();
    all.insert("model.visual.blocks.0.norm1.weight".to_owned(), tower);
    write(&all, from);
}

#[test]
fn language_models_are_those_of_llama_cpp() {
    for (name, like, prefixes, _) in MODELS {
        let directory = crate::common::tempdir().unwrap();
        let from = named(&data().join("whole").join(like), directory.path());
        nest(&from, name, prefixes);
        let output = to_gguf(&from, directory.path());
        let canonical = data()
            .join("whole_nested")
            .join(name)
            .with_extension("gguf");
        assert!(tensors(&output) == tensors(&canonical), "{name}");
        check_metadata(metadata(&output), &canonical);
    }
}

/// A window that is null in a nested config is none, and the classes of Qwen 3-VL have none.
#[test]
fn windows_that_are_not_there_have_no_note() {
    for (name, like, prefixes, _) in MODELS {
        let directory = crate::common::tempdir().unwrap();
        let from = named(&data().join("whole").join(like), directory.path());
        nest(&from, name, prefixes);
        let mut config = json(&from.join("config.json"));
        if let Some(text) = config["text_config"].as_object_mut() {
            text.remove("use_sliding_window");
            text.remove("sliding_window");
            if name == "mistral3" {
                text.insert("sliding_window".to_owned(), serde_json::Value::Null);
            }
        }
        config["max_position_embeddings"] = 100_000.into();
        if let Some(length) = config.pointer_mut("/text_config/max_position_embeddings") {
            *length = 100_000.into();
        }
        std::fs::write(from.join("config.json"), config.to_string()).unwrap();
        let output = directory.path().join("model.gguf");
        let report = parse(&from).unwrap().convert(&output, ConvertTarget::Gguf);
        let notes = report.unwrap().notes;
        let is_of_window = |note: &String| note.contains("sliding_window");
        assert!(!notes.iter().any(is_of_window), "{name}: {notes:?}");
    }
}

/// What is not the language model is counted, and a config without what the architecture needs is
/// refused.
#[test]
fn towers_are_left_out_with_a_note() {
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole/qwen3"), directory.path());
    let (name, _, prefixes, _) = MODELS[2];
    nest(&from, name, prefixes);
    let output = directory.path().join("model.gguf");
    let convert = || parse(&from).unwrap().convert(&output, ConvertTarget::Gguf);
    let notes = convert().unwrap().notes;
    let is_count =
        |note: &String| note == "1 tensor left out, of other parts than the language model";
    assert!(notes.iter().any(is_count), "{notes:?}");
    let mut config = json(&from.join("config.json"));
    config["text_config"]["rope_scaling"] = serde_json::json!({"rope_type": "default"});
    std::fs::write(from.join("config.json"), config.to_string()).unwrap();
    let error = convert().unwrap_err().to_string();
    assert!(error.contains("`mrope_section`: it is missing"), "{error}");
}

/// The class without images comes back, with the same weights, and computes the same of a text.
#[test]
fn language_models_come_back_without_images() {
    for (name, like, _, class) in MODELS {
        let directory = crate::common::tempdir().unwrap();
        let canonical = data()
            .join("whole_nested")
            .join(name)
            .with_extension("gguf");
        let back = to_hf(&canonical, directory.path());
        let found = tensors(&back);
        let expected = tensors(&data().join("whole").join(like).join("hf"));
        assert!(found == expected, "{name}");
        let [config, original] = [&back, &data().join("whole").join(like).join("hf")]
            .map(|directory| json(&directory.join("config.json")));
        assert_eq!(config["architectures"], serde_json::json!([class]), "{name}");
        for field in ["model_type", "rope_theta", "num_key_value_heads", "tie_word_embeddings"] {
            assert_eq!(config[field], original[field], "{name} {field}");
        }
        assert!(config.get("rope_scaling").is_none() && config.get("rope_parameters").is_none());
        // The class without images has no layer that predicts a further token, unless it has
        // experts.
        let predicts = config.get("num_nextn_predict_layers").is_some();
        assert_eq!(predicts, class == "Glm4MoeForCausalLM", "{name}");
        to_gguf(&back, directory.path());
    }
}

/// Ministral 3 scales queries by their positions, and has YaRN always.
#[test]
fn ministral_without_its_scaling_is_refused() {
    let directory = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole/ministral3"), directory.path());
    let config = json(&from.join("config.json"));
    for (field, value, expected) in [
        ("llama_4_scaling_beta", None, "`llama_4_scaling_beta`: it is missing"),
        ("rope_type", Some("linear"), "`rope_type`: it is `linear`"),
        ("mscale", None, "`mscale`: it is not `mscale_all_dim`"),
    ] {
        let mut config = config.clone();
        let rope = config["rope_parameters"].as_object_mut().unwrap();
        match value {
            Some(value) => drop(rope.insert(field.to_owned(), value.into())),
            None => drop(rope.remove(field)),
        }
        std::fs::write(from.join("config.json"), config.to_string()).unwrap();
        let output = directory.path().join("model.gguf");
        let result = parse(&from).unwrap().convert(&output, ConvertTarget::Gguf);
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Classes whose language model is the one that the nested config names.
#[test]
fn language_models_by_their_own_type() {
    for (like, class, is_known) in [
        ("llama", "LlavaForConditionalGeneration", true),
        ("mistral", "LlavaForConditionalGeneration", true),
        ("llama", "VoxtralForConditionalGeneration", true),
        ("qwen2", "LlavaForConditionalGeneration", false),
    ] {
        let directory = crate::common::tempdir().unwrap();
        let from = named(&data().join("whole").join(like), directory.path());
        let mut text = json(&from.join("config.json"));
        text.as_object_mut().unwrap().remove("architectures");
        let config = serde_json::json!({"architectures": [class], "text_config": text});
        std::fs::write(from.join("config.json"), config.to_string()).unwrap();
        let all = tensors(&from).into_iter();
        let nested = |(name, tensor)| (format!("language_model.{name}"), tensor);
        write(&all.map(nested).collect(), &from);
        let canonical = canonical_gguf(data().join("whole").join(like));
        let output = directory.path().join("model.gguf");
        let result = parse(&from).unwrap().convert(&output, ConvertTarget::Gguf);
        assert_eq!(result.is_ok(), is_known, "{like} {class}");
        if is_known {
            assert!(tensors(&output) == tensors(&canonical), "{like} {class}");
            check_metadata(metadata(&output), &canonical);
        }
    }
}

/// Fields of MiniMax M3 that `MiniMaxM3VLTextConfig` of transformers 5.24.0 saves in place of those that published
/// models have.
const FLAT_M3: &str = r#"{"hidden_act": "silu", "index_block_size": 128, "index_head_dim": 8,
    "index_local_blocks": 1, "index_n_heads": 1, "index_topk_blocks": 16,
    "layer_types": ["full_attention", "minimax_m3_sparse"], "mlp_layer_types": ["dense", "sparse"]}"#;

#[test]
fn minimax_m3_as_transformers_saves_it() {
    let directory = crate::common::tempdir().unwrap();
    let from = super::classes::written(&super::classes::models()["minimax_m3"], directory.path());
    let gguf = |name: &str| {
        let output = directory.path().join(name);
        parse(&from)
            .unwrap()
            .convert(&output, ConvertTarget::Gguf)
            .unwrap();
        output
    };
    let published = gguf("published.gguf");
    let path = from.join("config.json");
    let mut config = json(&path);
    let fields = config.as_object_mut().unwrap();
    let lost = ["sparse_attention_config", "moe_layer_freq", "scoring_func", "qk_norm_type"];
    fields.retain(|name, _| !lost.contains(&name.as_str()) && !name.starts_with("use_"));
    let flat: serde_json::Map<_, _> = serde_json::from_str(FLAT_M3).unwrap();
    fields.extend(flat);
    std::fs::write(&path, config.to_string()).unwrap();
    let saved = gguf("saved.gguf");
    assert_eq!(metadata(&saved), metadata(&published));
    assert_eq!(tensors(&saved), tensors(&published));
}
