//! What `config.json` says in MLX.

use super::{forget, json, model, tensors, write_hf};

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
