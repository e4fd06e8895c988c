//! Whole models of MLX, against mlx-lm.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, ForgetScheme, ModelScope, TargetDtype, parse};
use serde_json::{Value, json};

use crate::common::data;

/// The models of `tests/data/whole_mlx`, by name.
fn models() -> Vec<(String, Value)> {
    let entries = std::fs::read_dir(data().join("whole_mlx")).unwrap();
    let mut all: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    assert_eq!(all.len(), 45);
    let model = |path: &PathBuf| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        (name, json(path))
    };
    all.iter().map(model).collect()
}

fn model(name: &str) -> Value {
    json(&data().join("whole_mlx").join(format!("{name}.json")))
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Bytes of a tensor, as `values` in `generate/whole_mlx.py` has them.
fn values(name: &str, dtype: &str, count: usize) -> Vec<u8> {
    let mut state = crc32fast::hash(name.as_bytes());
    let mut bytes = Vec::new();
    for _ in 0..count {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let bits = (state >> 31 << 15) | (0x3d00 + ((state >> 16) & 0x1ff));
        match dtype {
            "U8" if name.ends_with("_scales") => bytes.push((120 + (state >> 28)) as u8),
            "U8" => bytes.push((state >> 24) as u8),
            "F32" => bytes.extend((bits << 16).to_le_bytes()),
            _ => bytes.extend((bits as u16).to_le_bytes()),
        }
    }
    bytes
}

fn shape(entry: &Value) -> Vec<usize> {
    let sizes = entry[1].as_array().unwrap().iter();
    sizes.map(|n| n.as_u64().unwrap() as usize).collect()
}

/// Writes the directory that the model `found` has in transformers.
fn write_hf(found: &Value, to: &Path) {
    std::fs::create_dir(to).unwrap();
    std::fs::write(to.join("config.json"), found["config"].to_string()).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, entry) in found["hf"].as_object().unwrap() {
        let dtype = entry[0].as_str().unwrap();
        let bytes = values(name, dtype, shape(entry).iter().product());
        let offsets = [data.len(), data.len() + bytes.len()];
        let place = json!({ "dtype": dtype, "shape": entry[1], "data_offsets": offsets });
        header.insert(name.clone(), place);
        data.extend(bytes);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    std::fs::write(to.join("model.safetensors"), file).unwrap();
}

/// Dtype, shape and bytes of every tensor.
type Tensors = BTreeMap<String, (String, Vec<usize>, Vec<u8>)>;

fn tensors(path: &Path) -> Tensors {
    let model = parse(path).unwrap();
    let tensor = |t: anamnesis::Tensor<'_>| {
        let bytes = t.bytes().unwrap().to_vec();
        let value = (t.dtype().to_string(), t.shape().to_vec(), bytes);
        (t.name().to_owned(), value)
    };
    model.tensors().map(tensor).collect()
}

fn forget(from: &Path, to: &Path, scheme: &str) -> anamnesis::Result<anamnesis::Report> {
    let scheme: ForgetScheme = scheme.parse().unwrap();
    parse(from).unwrap().forget(to, scheme)
}

#[test]
fn directories_are_those_of_mlx_lm() {
    for (name, found) in models() {
        let directory = tempfile::tempdir().unwrap();
        let from = directory.path().join("hf");
        write_hf(&found, &from);
        for (scheme, expected) in found["mlx"].as_object().unwrap() {
            let to = directory.path().join(scheme);
            forget(&from, &to, scheme).unwrap();
            let made = tensors(&to);
            let wanted = expected["tensors"].as_object().unwrap();
            let names: Vec<_> = made.keys().collect();
            let mut wanted_names: Vec<_> = wanted.keys().collect();
            wanted_names.sort();
            assert_eq!(names, wanted_names, "{name} {scheme}");
            for (tensor, entry) in wanted {
                let (dtype, found, bytes) = &made[tensor];
                let what = format!("{name} {scheme} `{tensor}`");
                assert_eq!(
                    (dtype.as_str(), found),
                    (entry[0].as_str().unwrap(), &shape(entry)),
                    "{what}"
                );
                assert_eq!(u64::from(crc32fast::hash(bytes)), entry[2], "{what}");
            }
            let config = json(&to.join("config.json"));
            for key in ["quantization", "quantization_config"] {
                assert_eq!(config[key], expected["quantization"], "{name} {scheme}");
            }
            // What was quantized has another type now, which mlx-lm does not write.
            let keys = config.as_object().unwrap().keys();
            let keys: Vec<_> = keys
                .filter(|key| name != "gpt_oss" || *key != "torch_dtype")
                .collect();
            assert_eq!(json!(keys), expected["keys"], "{name} {scheme}");
        }
    }
}

/// What the model `found` has in transformers when it comes back: names and shapes.
fn wanted_back(found: &Value) -> BTreeMap<String, Vec<usize>> {
    let is_tied = found["config"]["tie_word_embeddings"] == true;
    let mut wanted = BTreeMap::new();
    for (name, entry) in found["hf"].as_object().unwrap() {
        let mut shape = shape(entry);
        let is_left_out = name.ends_with("inv_freq")
            || name.contains("vision_tower")
            || name.contains("multi_modal_projector")
            || is_tied && name == "lm_head.weight";
        let mut name = name.trim_start_matches("language_model.").to_owned();
        if is_left_out || name.ends_with("_scales") {
            continue;
        }
        if let Some(parameter) = name.strip_suffix("_blocks") {
            // Experts of gpt-oss are stored as `[out, in]`, and are `[in, out]` in transformers.
            shape = vec![shape[0], shape[2] * 32, shape[1]];
            name = parameter.to_owned();
        }
        wanted.insert(name, shape);
    }
    wanted
}

#[test]
fn directories_come_back() {
    for (name, found) in models() {
        let directory = tempfile::tempdir().unwrap();
        let [from, to, back, alone] =
            ["hf", "mlx", "back", "alone"].map(|name| directory.path().join(name));
        write_hf(&found, &from);
        forget(&from, &to, "mlx-4bit").unwrap();
        let model = parse(&to).unwrap();
        model.remember(&back, TargetDtype::BF16).unwrap();
        let made = tensors(&back);
        let shapes: BTreeMap<_, _> = made
            .iter()
            .map(|(name, t)| (name.clone(), t.1.clone()))
            .collect();
        assert_eq!(shapes, wanted_back(&found), "{name}");
        // Values are those of the tensors alone, which other tests compare with MLX's.
        let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Tensors);
        model.convert(&alone, options).unwrap();
        for (tensor, value) in tensors(&alone) {
            let same = made.get(tensor.trim_start_matches("language_model."));
            let is_same =
                |made: &(String, Vec<usize>, Vec<u8>)| made.0 == value.0 && made.2 == value.2;
            assert!(same.is_none_or(is_same), "{name} `{tensor}`");
        }
        let config = json(&back.join("config.json"));
        assert!(config.get("quantization").is_none() && config.get("vision_config").is_none());
        let class = match name.as_str() {
            "gemma3_vision" => json!("Gemma3ForCausalLM"),
            _ => found["config"]["architectures"][0].clone(),
        };
        assert_eq!(config["architectures"][0], class, "{name}");
    }
}

/// Experts of gpt-oss are MXFP4 on both sides, and come back bit for bit.
#[test]
fn mxfp4_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let [from, to, back, decoded] =
        ["hf", "mlx", "back", "decoded"].map(|name| directory.path().join(name));
    write_hf(&model("gpt_oss"), &from);
    let report = forget(&from, &to, "mlx-8bit").unwrap();
    let moved = report
        .encoded
        .iter()
        .filter(|e| e.scheme == "mlx-mxfp4 (codes moved)");
    assert_eq!(moved.count(), 6);
    parse(&to)
        .unwrap()
        .remember(&back, TargetDtype::BF16)
        .unwrap();
    parse(&from)
        .unwrap()
        .remember(&decoded, TargetDtype::BF16)
        .unwrap();
    let (back, decoded) = (tensors(&back), tensors(&decoded));
    let experts = decoded
        .iter()
        .filter(|(name, _)| name.contains(".experts."));
    assert_eq!(experts.clone().count(), 8);
    for (name, tensor) in experts {
        assert!(back[name] == *tensor, "`{name}`");
    }
}

/// Stacks that mlx-lm has not quantized are taken apart as well.
#[test]
fn unquantized_stacks() {
    let directory = tempfile::tempdir().unwrap();
    let [from, to] = ["mlx", "hf"].map(|name| directory.path().join(name));
    let found = model("mixtral");
    let mut stacked = found.clone();
    let all = stacked["hf"].as_object_mut().unwrap();
    all.retain(|name, _| !name.contains(".experts."));
    for (module, size) in [
        ("gate_proj", [128, 64]),
        ("up_proj", [128, 64]),
        ("down_proj", [64, 128]),
    ] {
        let name = format!("model.layers.0.block_sparse_moe.switch_mlp.{module}.weight");
        all.insert(name, json!(["BF16", [2, size[0], size[1]]]));
    }
    write_hf(&stacked, &from);
    parse(&from)
        .unwrap()
        .convert(&to, ConvertOptions::from(TargetDtype::BF16))
        .unwrap();
    let made = tensors(&to);
    let names: Vec<_> = made.keys().cloned().collect();
    assert_eq!(names, wanted_back(&found).into_keys().collect::<Vec<_>>());
    let stack = values(
        "model.layers.0.block_sparse_moe.switch_mlp.up_proj.weight",
        "BF16",
        2 * 128 * 64,
    );
    let second = &made["model.layers.0.block_sparse_moe.experts.1.w3.weight"];
    assert!(second.1 == [128, 64] && second.2 == stack[stack.len() / 2..]);
}

/// From GGUF, the model is the one that the directory gives.
#[test]
fn from_gguf() {
    for name in [
        "llama", "mixtral", "gemma2", "gpt_oss", "lfm2", "granite", "olmo2",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let from = data().join("whole").join(name);
        let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
        let scheme = ForgetScheme::MLX_4BIT.with_group_size(32);
        let options = ConvertOptions::from(scheme.clone()).with_scope(ModelScope::Model);
        parse(from.join("canonical.gguf"))
            .unwrap()
            .forget(&a, options)
            .unwrap();
        parse(from.join("hf")).unwrap().forget(&b, scheme).unwrap();
        assert!(tensors(&a) == tensors(&b), "{name}");
        let [a, b] = [a, b].map(|path| json(&path.join("config.json")));
        assert_eq!(a["quantization"], b["quantization"], "{name}");
        assert_eq!(a["quantization"]["bits"], 4);
        // Gemma has no such field, and LFM 2 need not have it: their embedding always is the output layer.
        let is_tied = |config: &Value| config["tie_word_embeddings"] == true;
        assert!(is_tied(&a) == is_tied(&b) || ["gemma2", "lfm2"].contains(&name));
    }
}

/// To GGUF, the model is the one that the directory of transformers gives.
#[test]
fn to_gguf() {
    for name in ["qwen3_moe", "gpt_oss"] {
        let directory = tempfile::tempdir().unwrap();
        let [mlx, hf, a, b] =
            ["mlx", "hf", "a.gguf", "b.gguf"].map(|name| directory.path().join(name));
        let scheme = ForgetScheme::MLX_8BIT.with_group_size(32);
        parse(data().join("whole").join(name).join("hf"))
            .unwrap()
            .forget(&mlx, scheme)
            .unwrap();
        parse(&mlx)
            .unwrap()
            .remember(&hf, TargetDtype::BF16)
            .unwrap();
        parse(&mlx)
            .unwrap()
            .convert(&a, anamnesis::ConvertTarget::Gguf)
            .unwrap();
        parse(&hf)
            .unwrap()
            .convert(&b, anamnesis::ConvertTarget::Gguf)
            .unwrap();
        assert!(tensors(&a) == tensors(&b), "{name}");
    }
}

/// From one precision of MLX to another, tensors keep mlx-lm's names.
#[test]
fn from_mlx_to_mlx() {
    for name in ["qwen3_moe", "gpt_oss", "gemma3_vision"] {
        let directory = tempfile::tempdir().unwrap();
        let [from, first, again] = ["hf", "first", "again"].map(|name| directory.path().join(name));
        write_hf(&model(name), &from);
        forget(&from, &first, "mlx-8bit").unwrap();
        forget(&first, &again, "mlx-4bit").unwrap();
        let names = |path: &Path| {
            let all = tensors(path).into_keys();
            all.map(|name| name.trim_start_matches("language_model.").to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&first), names(&again), "{name}");
        let config = json(&again.join("config.json"));
        let has_prefix = tensors(&again)
            .keys()
            .any(|name| name.starts_with("language_model."));
        assert!(!has_prefix && config.get("text_config").is_none(), "{name}");
        let wanted = &model(name)["mlx"]["mlx-4bit"]["quantization"];
        assert_eq!(config["quantization"], *wanted, "{name}");
    }
}

/// Tensors alone keep their names, as far as a caller says so or the class is unknown.
#[test]
fn tensors_alone() {
    let directory = tempfile::tempdir().unwrap();
    let mut found = model("mixtral");
    let [from, unknown, to, other] =
        ["hf", "unknown", "to", "other"].map(|name| directory.path().join(name));
    write_hf(&found, &from);
    let options = ConvertOptions::from(ForgetScheme::MLX_4BIT).with_scope(ModelScope::Tensors);
    parse(&from).unwrap().forget(&to, options).unwrap();
    let name = "model.layers.0.block_sparse_moe.experts.1.w2.scales";
    assert!(tensors(&to).contains_key(name));
    found["config"]["architectures"] = json!(["OtherForCausalLM"]);
    write_hf(&found, &unknown);
    let report = forget(&unknown, &other, "mlx-4bit").unwrap();
    assert!(tensors(&other) == tensors(&to));
    let is_noted = |note: &String| note.contains("OtherForCausalLM");
    assert!(report.notes.iter().any(is_noted), "{:?}", report.notes);
    let options = ConvertOptions::from(ForgetScheme::MLX_4BIT).with_scope(ModelScope::Model);
    let error = parse(&unknown)
        .unwrap()
        .forget(&other, options)
        .unwrap_err();
    assert!(error.to_string().contains("--tensors-only"), "{error}");
}

/// A missing field is false to transformers and true to some classes of mlx-lm, so it is written.
#[test]
fn an_output_layer_without_a_field() {
    let directory = tempfile::tempdir().unwrap();
    let mut found = model("llama");
    let config = found["config"].as_object_mut().unwrap();
    config.remove("tie_word_embeddings");
    let [from, to] = ["hf", "to"].map(|name| directory.path().join(name));
    write_hf(&found, &from);
    forget(&from, &to, "mlx-4bit").unwrap();
    assert_eq!(json(&to.join("config.json"))["tie_word_embeddings"], false);
    assert!(tensors(&to).contains_key("lm_head.scales"));
}

/// What mlx-lm needs, or has another default for than transformers, is written.
#[test]
fn silent_configs() {
    for (name, fields) in [
        (
            "cohere",
            json!({ "rope_theta": 10_000.0, "num_key_value_heads": 2 }),
        ),
        ("cohere2", json!({ "rope_theta": 10_000.0, "head_dim": 16 })),
        ("ernie4_5", json!({ "tie_word_embeddings": true })),
        ("exaone4", json!({ "sliding_window_pattern": null })),
        ("glm4", json!({ "partial_rotary_factor": 0.5 })),
        ("lfm2", json!({ "block_dim": 64 })),
        ("starcoder2", json!({ "rope_theta": 10_000.0 })),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let [from, to] = ["hf", "to"].map(|name| directory.path().join(name));
        let mut found = model(name);
        let config = found["config"].as_object_mut().unwrap();
        for field in fields.as_object().unwrap().keys() {
            // Heads of keys have no default that these tensors fit.
            if field != "num_key_value_heads" {
                config.remove(field);
            }
        }
        write_hf(&found, &from);
        forget(&from, &to, "mlx-4bit").unwrap();
        let config = json(&to.join("config.json"));
        for (field, value) in fields.as_object().unwrap() {
            assert_eq!(config.get(field), Some(value), "{name} `{field}`");
        }
    }
}

/// Filters have another shape on the other sides, and the same bytes, also where their type stays.
#[test]
fn filters() {
    let directory = tempfile::tempdir().unwrap();
    let [from, mlx, back] = ["hf", "mlx", "back"].map(|name| directory.path().join(name));
    let mut found = model("lfm2");
    for (_, entry) in found["hf"].as_object_mut().unwrap() {
        entry[0] = json!("F32");
    }
    write_hf(&found, &from);
    forget(&from, &mlx, "mlx-4bit").unwrap();
    parse(&mlx)
        .unwrap()
        .remember(&back, TargetDtype::F32)
        .unwrap();
    let name = "model.layers.0.conv.conv.weight";
    let [from, mlx, back] = [from, mlx, back].map(|path| tensors(&path).remove(name).unwrap());
    assert!(back == from);
    assert!(mlx.0 == "F32" && mlx.1 == [64, 3, 1] && mlx.2 == from.2);
}

/// What is quantized is decoded on the way, and experts that lie in several files become one stack.
#[test]
fn quantized_shards() {
    for (name, scheme) in [
        ("mixtral", "fp8-tensor"),
        ("qwen3_moe", "nf4"),
        ("llama", "int8"),
        ("gpt_oss", "nf4"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let [from, quantized, decoded, a, b] =
            ["hf", "quantized", "decoded", "a", "b"].map(|name| directory.path().join(name));
        write_hf(&model(name), &from);
        let scheme: ForgetScheme = scheme.parse().unwrap();
        let options = ConvertOptions::from(scheme).with_max_shard_size(20_000);
        parse(&from).unwrap().forget(&quantized, options).unwrap();
        parse(&quantized)
            .unwrap()
            .remember(&decoded, TargetDtype::BF16)
            .unwrap();
        forget(&quantized, &a, "mlx-4bit").unwrap();
        forget(&decoded, &b, "mlx-4bit").unwrap();
        let (made, wanted) = (tensors(&a), tensors(&b));
        assert_eq!(made.len(), wanted.len(), "{name}");
        for (tensor, wanted) in wanted {
            assert!(made[&tensor] == wanted, "{name} `{tensor}`");
        }
        let shards = |path: &Path| {
            let names = std::fs::read_dir(path).unwrap();
            let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.ends_with(".safetensors")).count()
        };
        let counts = [shards(&quantized), shards(&a)];
        assert!(
            counts[0] > 1 && counts[1] > 1 && counts[1] <= counts[0],
            "{name}: {counts:?}"
        );
        let index = json(&a.join("model.safetensors.index.json"));
        assert_eq!(
            index["weight_map"].as_object().unwrap().len(),
            tensors(&a).len()
        );
    }
}

/// What contradicts itself, or what mlx-lm would not load, is refused before anything is written.
#[test]
fn contradictions_are_refused() {
    let field = |name: &'static str, key: &'static str, value: Value| {
        move || {
            let mut found = model(name);
            found["config"][key] = value;
            found
        }
    };
    let without = |name: &'static str, tensor: &'static str| {
        move || {
            let mut found = model(name);
            found["hf"].as_object_mut().unwrap().remove(tensor).unwrap();
            found
        }
    };
    type Case = (Box<dyn FnOnce() -> Value>, &'static str);
    let cases: Vec<Case> = vec![
        (
            Box::new(field("llama", "hidden_act", json!("gelu"))),
            "`hidden_act`",
        ),
        (
            Box::new(field("llama", "attention_bias", json!(true))),
            "`attention_bias`",
        ),
        (
            Box::new(field("llama_tied", "attention_bias", json!(false))),
            "`attention_bias`",
        ),
        (
            Box::new(field("qwen3", "attention_bias", json!(true))),
            "`attention_bias`",
        ),
        (
            Box::new(field("llama", "num_hidden_layers", json!(2))),
            "model.layers.1",
        ),
        (
            Box::new(field("llama", "vocab_size", json!(95))),
            "vocab_size is 95",
        ),
        (
            Box::new(field("mixtral", "num_local_experts", json!(3))),
            "num_experts is 3",
        ),
        (
            Box::new(field("qwen2_moe", "num_experts", json!(1))),
            "num_experts_per_tok",
        ),
        (
            Box::new(field("gpt_neox", "hidden_act", json!("relu"))),
            "`hidden_act`",
        ),
        (
            Box::new(|| {
                let mut found = model("gpt_neox");
                found["config"]["intermediate_size"] = json!(128);
                for (name, entry) in found["hf"].as_object_mut().unwrap() {
                    let at = usize::from(name.ends_with("4h_to_h.weight"));
                    if name.contains("_4h") && !name.ends_with("4h_to_h.bias") {
                        entry[1][at] = json!(128);
                    }
                }
                found
            }),
            "`intermediate_size`: it is 128, and mlx-lm's gpt_neox has 256",
        ),
        (
            Box::new(field(
                "cohere",
                "rope_scaling",
                json!({ "rope_type": "linear", "factor": 2.0 }),
            )),
            "`rope_scaling`",
        ),
        (
            Box::new(field(
                "cohere2",
                "layer_types",
                json!(vec!["full_attention"; 4]),
            )),
            "`layer_types`",
        ),
        (
            Box::new(field("exaone4", "sliding_window", json!(128))),
            "`sliding_window`",
        ),
        (
            Box::new(field("lfm2", "tie_word_embeddings", json!(false))),
            "`tie_word_embeddings`",
        ),
        (
            Box::new(field("lfm2", "block_dim", json!(32))),
            "`block_dim`: it is 32",
        ),
        (
            Box::new(field("deepseek_v3", "topk_method", json!("greedy"))),
            "`topk_method`",
        ),
        (
            Box::new(field("dots1", "mlp_bias", json!(true))),
            "`mlp_bias`",
        ),
        (
            Box::new(field("olmoe", "clip_qkv", json!(8.0))),
            "`clip_qkv`",
        ),
        (
            Box::new(field("starcoder2", "use_bias", json!(false))),
            "`use_bias`",
        ),
        (
            Box::new(without("glm4", "lm_head.weight")),
            "lm_head.weight",
        ),
        (
            Box::new(without("llama", "lm_head.weight")),
            "lm_head.weight",
        ),
        (
            Box::new(without("qwen2_moe", "lm_head.weight")),
            "lm_head.weight",
        ),
        (
            Box::new(without(
                "mixtral",
                "model.layers.0.block_sparse_moe.experts.0.w2.weight",
            )),
            "config.json says 2",
        ),
        (
            Box::new(without(
                "gpt_oss",
                "model.layers.1.mlp.experts.down_proj_bias",
            )),
            "down_proj_bias",
        ),
        (
            Box::new(|| {
                let mut found = model("llama");
                found["hf"]["model.layers.0.self_attn.q_norm.weight"] = json!(["BF16", [16]]);
                found
            }),
            "q_norm",
        ),
    ];
    for (found, what) in cases {
        let directory = tempfile::tempdir().unwrap();
        let [from, to] = ["hf", "to"].map(|name| directory.path().join(name));
        write_hf(&found(), &from);
        let error = forget(&from, &to, "mlx-4bit").unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 1, "{what}");
    }
}

/// One of two projections that transformers fuses is no model.
#[test]
fn half_of_a_projection() {
    let directory = tempfile::tempdir().unwrap();
    let [from, mlx, to] = ["hf", "mlx", "to"].map(|name| directory.path().join(name));
    write_hf(&model("gpt_oss"), &from);
    forget(&from, &mlx, "mlx-4bit").unwrap();
    let text = std::fs::read(mlx.join("model.safetensors")).unwrap();
    let (old, new) = (
        b"layers.1.mlp.experts.up_proj.bias\"",
        b"layers.1.mlp.experts.un_proj.bias\"",
    );
    let at = text
        .windows(old.len())
        .position(|part| part == old)
        .unwrap();
    let text = [&text[..at], new, &text[at + old.len()..]].concat();
    std::fs::write(mlx.join("model.safetensors"), text).unwrap();
    let error = parse(&mlx)
        .unwrap()
        .remember(&to, TargetDtype::BF16)
        .unwrap_err();
    assert!(error.to_string().contains("gate_proj.bias"), "{error}");
    assert!(!to.exists());
}

/// Codes of gpt-oss go to GGUF as they are, those of negative zeros, too, which encoding would not give.
#[test]
fn mxfp4_to_gguf() {
    let directory = tempfile::tempdir().unwrap();
    let [from, gguf, back, decoded] =
        ["hf", "model.gguf", "back", "decoded"].map(|name| directory.path().join(name));
    let mut found = model("gpt_oss");
    // As many tokens as the tokenizer has.
    found["config"]["vocab_size"] = json!(288);
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        found["hf"][name][1] = json!([288, 64]);
    }
    write_hf(&found, &from);
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let tokenizer = data().join("whole/gpt_oss/hf").join(file);
        std::fs::copy(tokenizer, from.join(file)).unwrap();
    }
    let report = forget(&from, &gguf, "gguf:mxfp4_moe").unwrap();
    let moved = report
        .encoded
        .iter()
        .filter(|e| e.scheme.ends_with("(codes moved)"));
    assert_eq!(moved.count(), 6);
    let options = ConvertOptions::from(TargetDtype::F32).with_scope(ModelScope::Model);
    parse(&gguf).unwrap().convert(&back, options).unwrap();
    parse(&from)
        .unwrap()
        .remember(&decoded, TargetDtype::F32)
        .unwrap();
    let (back, decoded) = (tensors(&back), tensors(&decoded));
    for layer in 0..2 {
        for name in ["gate_up_proj", "down_proj"] {
            let name = format!("model.layers.{layer}.mlp.experts.{name}");
            // ggml has one zero, whatever the code's sign.
            let numbers = |tensors: &Tensors| -> Vec<f32> {
                let bytes = tensors[&name].2.as_chunks().0;
                bytes.iter().copied().map(f32::from_le_bytes).collect()
            };
            assert!(numbers(&back) == numbers(&decoded), "`{name}`");
        }
        let blocks = &tensors(&gguf)[&format!("blk.{layer}.ffn_gate_exps.weight")].2;
        let mut codes = blocks.chunks(17).flat_map(|block| &block[1..]);
        assert!(codes.any(|codes| codes >> 4 == 8));
    }
}

/// What makes keys and values of the latent vector has the shapes of the config, and both parts are there.
#[test]
fn latent_parts() {
    let directory = tempfile::tempdir().unwrap();
    let [from, mlx, to] = ["hf", "mlx", "to"].map(|name| directory.path().join(name));
    write_hf(&model("deepseek_v3"), &from);
    forget(&from, &mlx, "mlx-8bit").unwrap();
    let path = mlx.join("config.json");
    let config = json(&path);
    for (field, what) in [
        ("v_head_dim", "unembed_out"),
        ("qk_nope_head_dim", "embed_q"),
        ("num_attention_heads", "embed_q"),
    ] {
        let mut wrong = config.clone();
        wrong[field] = json!(2);
        wrong["num_key_value_heads"] = json!(2);
        std::fs::write(&path, wrong.to_string()).unwrap();
        let model = parse(&mlx).unwrap();
        let error = model.remember(&to, TargetDtype::BF16).unwrap_err();
        assert!(error.to_string().contains(what), "{field}: {error}");
        assert!(!to.exists());
    }
}

/// A single file has the tensors under the names that they have, as before.
#[test]
fn one_file() {
    let directory = tempfile::tempdir().unwrap();
    let [from, mlx, to] = ["hf", "mlx", "one.safetensors"].map(|name| directory.path().join(name));
    write_hf(&model("gpt_oss"), &from);
    forget(&from, &mlx, "mlx-4bit").unwrap();
    let mut options = ConvertOptions::from(TargetDtype::BF16);
    options.single_file = true;
    parse(&mlx).unwrap().convert(&to, options).unwrap();
    assert!(tensors(&to).contains_key("model.layers.0.mlp.experts.gate_proj.weight"));
}

/// Small files cannot ask for many tensors, and stacks without values are none.
#[test]
fn stacks_that_ask_for_too_much() {
    let name = "model.layers.0.block_sparse_moe.switch_mlp.up_proj.weight";
    for (shape, what) in [
        (json!([5000, 1, 1]), "5000 experts"),
        (json!([4, 0, 64]), "its shape is"),
        (json!([4, 64]), "its shape is"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let [from, to] = ["hf", "to"].map(|name| directory.path().join(name));
        let mut found = model("mixtral");
        found["hf"] = json!({ name: ["BF16", shape] });
        write_hf(&found, &from);
        let options = ConvertOptions::from(TargetDtype::BF16);
        let error = parse(&from)
            .unwrap()
            .convert(&to, options)
            .unwrap_err()
            .to_string();
        assert!(error.contains(what) && error.contains(name), "{error}");
    }
    let directory = tempfile::tempdir().unwrap();
    let [from, to] = ["hf", "to"].map(|name| directory.path().join(name));
    let mut found = model("mixtral");
    found["hf"] = (0..20)
        .map(|i| {
            (
                name.replace("layers.0", &format!("layers.{i}")),
                json!(["BF16", [4096, 1, 1]]),
            )
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    write_hf(&found, &from);
    let options = ConvertOptions::from(TargetDtype::BF16);
    let error = parse(&from)
        .unwrap()
        .convert(&to, options)
        .unwrap_err()
        .to_string();
    assert!(error.contains("69632 in all"), "{error}");
}

/// Fused projections with an odd number of rows are none, also where no setting says how many there are.
#[test]
fn odd_projections() {
    let directory = tempfile::tempdir().unwrap();
    let [from, to] = ["hf", "to"].map(|name| directory.path().join(name));
    let mut found = model("gpt_oss");
    found["config"]
        .as_object_mut()
        .unwrap()
        .remove("intermediate_size");
    for (name, entry) in found["hf"].as_object_mut().unwrap() {
        if name.contains("gate_up_proj") {
            entry[1][1] = json!(255);
        }
    }
    write_hf(&found, &from);
    let error = forget(&from, &to, "mlx-4bit").unwrap_err().to_string();
    assert!(error.contains("255"), "{error}");
}
