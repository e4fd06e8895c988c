//! MLX directories under the names of transformers.

use std::collections::BTreeMap;

use anamnesis::{ConvertOptions, DiffOptions, ModelScope, TargetDtype, parse};
use serde_json::{Value, json};

use super::{forget, model, models, shape, tensors, values, write_hf};
use crate::common::effort;

/// The fields of the language model.
fn text(found: &Value) -> &Value {
    let config = &found["config"];
    config.get("text_config").unwrap_or(config)
}

/// Whether mlx-lm has nothing of a tensor.
fn is_left_out(name: &str, found: &Value) -> bool {
    const PARTS: &[&str] = &[
        "inv_freq",
        "vision_tower",
        "vision_model",
        "multi_modal_projector",
        "visual.",
        "embed_vision",
        "mtp.",
        ".attn.bias",
    ];
    let fields = text(found);
    let names =
        ["n_layer", "n_layers", "num_layers", "num_transformer_layers", "num_hidden_layers"];
    let layers = names.iter().find_map(|name| fields.get(*name)?.as_u64());
    let layers = layers.unwrap();
    let layer = name.strip_prefix("model.layers.");
    let layer = layer.and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
    let is_unused = text(found)["num_kv_shared_layers"] == 2 && matches!(layer, Some(3 | 4));
    PARTS.iter().any(|part| name.contains(part))
        || is_unused
            && [".k_proj.", ".v_proj.", ".k_norm."]
                .iter()
                .any(|part| name.contains(part))
        || layer.is_some_and(|layer| layer >= layers)
        || text(found)["tie_word_embeddings"] == true && name == "lm_head.weight"
}

/// What the model `found` has in transformers when it comes back: names and shapes.
fn wanted_back(found: &Value) -> BTreeMap<String, Vec<usize>> {
    let mut wanted = BTreeMap::new();
    // Stacks of matrices `[in, out]`.
    let is_transposed = found["config"]["model_type"] == "qwen3_vl_moe";
    for (name, entry) in found["hf"].as_object().unwrap() {
        let mut shape = shape(entry);
        if is_left_out(name, found) || name.ends_with("_scales") {
            continue;
        }
        let mut name = name.replace("language_model.", "");
        if found["config"]["model_type"] == "gpt2" {
            // transformers has a prefix that published files do not have.
            name.insert_str(0, "transformer.");
        }
        if let Some(parameter) = name.strip_suffix("_blocks") {
            // Experts of gpt-oss are stored as `[out, in]`, and are `[in, out]` in transformers.
            shape = vec![shape[0], shape[2] * 32, shape[1]];
            name = parameter.to_owned();
        } else if let Some(prefix) = name.strip_suffix("mlp.experts.gate_up_proj") {
            for (expert, part) in (0..shape[0]).flat_map(|e| [(e, "gate_proj"), (e, "up_proj")]) {
                let name = format!("{prefix}mlp.experts.{expert}.{part}.weight");
                let part = match is_transposed {
                    true => vec![shape[2] / 2, shape[1]],
                    false => vec![shape[1] / 2, shape[2]],
                };
                wanted.insert(name, part);
            }
            continue;
        } else if let Some(prefix) = name.strip_suffix("mlp.experts.down_proj") {
            for expert in 0..shape[0] {
                let name = format!("{prefix}mlp.experts.{expert}.down_proj.weight");
                let mut part = shape[1..].to_vec();
                if is_transposed {
                    part.reverse();
                }
                wanted.insert(name, part);
            }
            continue;
        }
        wanted.insert(name, shape);
    }
    wanted
}

/// Whether `back` are the values `values` of BF16 without the 1 that mlx-lm adds.
fn is_one_less(back: &[u8], values: &[u8]) -> bool {
    let numbers = |bytes: &[u8]| -> Vec<half::bf16> {
        let bytes = bytes.as_chunks().0.iter().copied();
        bytes.map(half::bf16::from_le_bytes).collect()
    };
    let less = |x: half::bf16| half::bf16::from_f32(x.to_f32() - 1.0);
    numbers(back) == numbers(values).into_iter().map(less).collect::<Vec<_>>()
}

#[test]
fn directories_come_back() {
    for (name, found) in models().into_iter().step_by(effort([2, 1, 1])) {
        let directory = crate::common::tempdir().unwrap();
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
            let Some(made) = made.get(tensor.trim_start_matches("language_model.")) else {
                continue;
            };
            let is_same = made.0 == value.0 && made.2 == value.2;
            let is_norm = ["qwen3_next", "qwen3_5", "step3p5"];
            let is_norm = is_norm.iter().any(|with_one| name.starts_with(with_one));
            let is_norm = is_norm && tensor.ends_with("norm.weight");
            let is_other = is_norm && !tensor.contains("linear_attn");
            assert!(
                is_same != is_other && (is_same || is_one_less(&made.2, &value.2)),
                "{name} `{tensor}`"
            );
        }
        let config = super::json(&back.join("config.json"));
        assert!(config.get("quantization").is_none() && config.get("vision_config").is_none());
        let class = match name.as_str() {
            "gemma3_vision" => json!("Gemma3ForCausalLM"),
            "gemma4_moe" => json!("Gemma4ForCausalLM"),
            "mistral3" | "pixtral" => json!("MistralForCausalLM"),
            "llava" => json!("LlamaForCausalLM"),
            "ministral3" => json!("Ministral3ForCausalLM"),
            "qwen2_vl" => json!("Qwen2ForCausalLM"),
            "qwen3_vl" => json!("Qwen3ForCausalLM"),
            "qwen3_vl_moe" => json!("Qwen3MoeForCausalLM"),
            "qwen3_5" => json!("Qwen3_5ForCausalLM"),
            "qwen3_5_moe" => json!("Qwen3_5MoeForCausalLM"),
            "gemma3n" => json!("Gemma3nForCausalLM"),
            "gemma4_unified" => json!("Gemma4ForCausalLM"),
            "llama4" => json!("Llama4ForCausalLM"),
            "minimax_m3" => json!("MiniMaxM3SparseForCausalLM"),
            "kimi_k25" => json!("DeepseekV3ForCausalLM"),
            _ => found["config"]["architectures"][0].clone(),
        };
        assert_eq!(config["architectures"][0], class, "{name}");
        let model_type = match name.strip_suffix("_vl") {
            Some(name) => json!(name),
            None if name == "qwen3_vl_moe" => json!("qwen3_moe"),
            None if name == "youtu" => json!("youtu"),
            None => text(&found)["model_type"].clone(),
        };
        assert_eq!(config["model_type"], model_type, "{name}");
        let has_axes = config.to_string().contains("mrope");
        assert!(!has_axes || name.starts_with("qwen3_5"), "{name}");
    }
}

/// Experts that transformers has below each other are all there, and no others.
#[test]
fn joined_experts_are_complete() {
    let directory = crate::common::tempdir().unwrap();
    let [from, to, back] = ["hf", "mlx", "back"].map(|name| directory.path().join(name));
    write_hf(&model("dbrx"), &from);
    forget(&from, &to, "mlx-8bit").unwrap();
    let path = to.join("config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    for experts in [3, 5] {
        let mut other: Value = serde_json::from_str(&config).unwrap();
        other["ffn_config"]["moe_num_experts"] = json!(experts);
        std::fs::write(&path, other.to_string()).unwrap();
        let model = parse(&to).unwrap();
        let error = model.remember(&back, TargetDtype::BF16).unwrap_err();
        let what = format!("its experts are not those of config.json, which has {experts}");
        assert!(error.to_string().contains(&what), "{error}");
    }
}

/// A model of mlx-lm is compared with the one of transformers that it was made of, under the names
/// of the latter: only encoding makes a difference.
#[test]
fn is_compared_with_its_source() {
    // Stacks of experts in these classes with images stay stacks.
    let has_stacks = |name: &str| ["qwen3_5_moe", "qwen3_vl_moe"].contains(&name);
    let models = models().into_iter().filter(|(name, _)| !has_stacks(name));
    for (name, found) in models.step_by(effort([4, 1, 1])) {
        let directory = crate::common::tempdir().unwrap();
        let [from, to] = ["hf", "mlx"].map(|name| directory.path().join(name));
        write_hf(&found, &from);
        forget(&from, &to, "mlx-8bit").unwrap();
        let (a, b) = (parse(&from).unwrap(), parse(&to).unwrap());
        let report = a.diff(&b, &DiffOptions::default()).unwrap();
        assert!(report.only_in_b.is_empty(), "{name}: {report:?}");
        for t in &report.only_in_a {
            assert!(is_left_out(&t.name, &found), "{name}: {}", t.name);
        }
        for t in &report.changed {
            let cosine = t.values.as_ref().and_then(|values| values.cosine);
            assert!(cosine.is_some_and(|cosine| cosine > 0.99), "{name}: {t:?}");
        }
    }
}

/// Experts of gpt-oss are MXFP4 on both sides, and come back bit for bit.
#[test]
fn mxfp4_comes_back() {
    let directory = crate::common::tempdir().unwrap();
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
    let directory = crate::common::tempdir().unwrap();
    let [from, to] = ["mlx", "hf"].map(|name| directory.path().join(name));
    let found = model("mixtral");
    let mut stacked = found.clone();
    let all = stacked["hf"].as_object_mut().unwrap();
    all.retain(|name, _| !name.contains(".experts."));
    for (module, size) in
        [("gate_proj", [128, 64]), ("up_proj", [128, 64]), ("down_proj", [64, 128])]
    {
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
    let stack =
        values("model.layers.0.block_sparse_moe.switch_mlp.up_proj.weight", "BF16", 2 * 128 * 64);
    let second = &made["model.layers.0.block_sparse_moe.experts.1.w3.weight"];
    assert!(second.1 == [128, 64] && second.2 == stack[stack.len() / 2..]);
}

/// A single file has the tensors under the names that they have, as before.
#[test]
fn one_file() {
    let directory = crate::common::tempdir().unwrap();
    let [from, mlx, to] = ["hf", "mlx", "one.safetensors"].map(|name| directory.path().join(name));
    write_hf(&model("gpt_oss"), &from);
    forget(&from, &mlx, "mlx-4bit").unwrap();
    let mut options = ConvertOptions::from(TargetDtype::BF16);
    options.single_file = true;
    parse(&mlx).unwrap().convert(&to, options).unwrap();
    assert!(tensors(&to).contains_key("model.layers.0.mlp.experts.gate_proj.weight"));
}

/// A language model beside other towers is not what mlx-lm writes: all tensors keep their names and
/// values.
#[test]
fn beside_other_towers() {
    for name in ["qwen3_5", "gemma4_moe"] {
        let directory = crate::common::tempdir().unwrap();
        let [from, mlx, back] = ["hf", "mlx", "back"].map(|name| directory.path().join(name));
        let mut found = model(name);
        write_hf(&found, &from);
        forget(&from, &mlx, "mlx-8bit").unwrap();
        let made = tensors(&mlx);
        let plain = made.iter().filter(|(_, t)| t.0 == "BF16" && t.1.len() == 1);
        let mut all: serde_json::Map<_, _> = plain
            .map(|(name, t)| (name.clone(), json!([t.0, t.1])))
            .collect();
        all.insert("vision_tower.norm.weight".to_owned(), json!(["BF16", [8]]));
        let stack = "language_model.model.layers.0.experts.switch_glu.down_proj.weight";
        all.insert(stack.to_owned(), json!(["BF16", [2, 64, 64]]));
        let names: Vec<_> = all.keys().cloned().collect();
        found["hf"] = Value::Object(all);
        let path = directory.path().join("vision");
        write_hf(&found, &path);
        let model = parse(&path).unwrap();
        model
            .convert(&back, ConvertOptions::from(TargetDtype::BF16))
            .unwrap();
        assert!(tensors(&back) == tensors(&path), "{name}");
        assert!(tensors(&back).into_keys().eq(names), "{name}");
    }
}
