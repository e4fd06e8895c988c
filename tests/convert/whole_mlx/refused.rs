//! What is refused.

use anamnesis::{ConvertOptions, TargetDtype, parse};
use serde_json::Value;

use super::configs::in_mlx;
use super::{forget, json, model, write_hf};

/// Rows of a model's name, fields of its config (null removes one), and a text in the error: what
/// contradicts itself, or what mlx-lm would not load or would compute otherwise than transformers.
const CONFIGS: &str = include_str!("refused.jsonl");

#[test]
fn configs() {
    let mut wrong = Vec::new();
    for line in CONFIGS.lines() {
        let (name, fields, what): (String, Value, String) = serde_json::from_str(line).unwrap();
        match in_mlx(model(&name), &fields) {
            Err(error) if error.contains(&what) => {}
            other => wrong.push(format!("{line}: {:?}", other.err())),
        }
    }
    assert_eq!(CONFIGS.lines().count(), 150);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Tensors that contradict the config, or that mlx-lm would miss, are refused before anything is
/// written.
#[test]
fn tensors_that_contradict() {
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
        (Box::new(without("nemotron_h", "lm_head.weight")), "lm_head.weight"),
        (Box::new(without("glm4", "lm_head.weight")), "lm_head.weight"),
        (Box::new(without("llama", "lm_head.weight")), "lm_head.weight"),
        (Box::new(without("qwen2_moe", "lm_head.weight")), "lm_head.weight"),
        (
            Box::new(without("mixtral", "model.layers.0.block_sparse_moe.experts.0.w2.weight")),
            "config.json says 2",
        ),
        (
            Box::new(without("gpt_oss", "model.layers.1.mlp.experts.down_proj_bias")),
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
        let directory = crate::common::tempdir().unwrap();
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
    let directory = crate::common::tempdir().unwrap();
    let [from, mlx, to] = ["hf", "mlx", "to"].map(|name| directory.path().join(name));
    write_hf(&model("gpt_oss"), &from);
    forget(&from, &mlx, "mlx-4bit").unwrap();
    let text = std::fs::read(mlx.join("model.safetensors")).unwrap();
    let (old, new) =
        (b"layers.1.mlp.experts.up_proj.bias\"", b"layers.1.mlp.experts.un_proj.bias\"");
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

/// What makes keys and values of the latent vector has the shapes of the config, and both parts are
/// there.
#[test]
fn latent_parts() {
    let directory = crate::common::tempdir().unwrap();
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

/// Small files cannot ask for many tensors, and stacks without values are none.
#[test]
fn stacks_that_ask_for_too_much() {
    let name = "model.layers.0.block_sparse_moe.switch_mlp.up_proj.weight";
    for (shape, what) in [
        (json!([5000, 1, 1]), "5000 experts"),
        (json!([4, 0, 64]), "its shape is"),
        (json!([4, 64]), "its shape is"),
    ] {
        let directory = crate::common::tempdir().unwrap();
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
    let directory = crate::common::tempdir().unwrap();
    let [from, to] = ["hf", "to"].map(|name| directory.path().join(name));
    let mut found = model("mixtral");
    found["hf"] = (0..20)
        .map(|i| (name.replace("layers.0", &format!("layers.{i}")), json!(["BF16", [4096, 1, 1]])))
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

/// Fused projections with an odd number of rows are none, and a setting must say how many there
/// are.
#[test]
fn odd_projections() {
    let directory = crate::common::tempdir().unwrap();
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
    assert!(error.contains("intermediate_size is not stated"), "{error}");
}

/// Filters of more channels than one are none of the class.
#[test]
fn filters_of_several_channels() {
    let directory = crate::common::tempdir().unwrap();
    let [from, to] = ["hf", "to"].map(|name| directory.path().join(name));
    let mut found = model("kimi_linear");
    let name = "model.layers.0.self_attn.q_conv.conv.weight";
    found["hf"] = json!({ name: ["BF16", [256, 4, 2]] });
    write_hf(&found, &from);
    let options = ConvertOptions::from(TargetDtype::BF16);
    let error = parse(&from).unwrap().convert(&to, options).unwrap_err();
    let error = error.to_string();
    assert!(error.contains(name) && error.contains("[n, k, 1]"), "{error}");
}
