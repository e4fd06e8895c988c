//! Models of MLX from GGUF, to GGUF, and from one precision to another.

use std::path::Path;

use anamnesis::{ConvertOptions, ForgetScheme, ModelScope, TargetDtype, parse};
use serde_json::Value;

use super::{Tensors, forget, json, model, tensors, write_hf};
use crate::canonical::canonical_gguf;
use crate::common::data;

/// From GGUF, the model is the one that the directory gives.
#[test]
fn from_gguf() {
    for name in [
        "llama",
        "mixtral",
        "gemma2",
        "gpt_oss",
        "lfm2",
        "granite",
        "olmo2",
        "qwen3_next",
        "qwen3_5",
        "qwen3_5_moe",
        "granite_hybrid",
        "granite_hybrid_moe",
        "lfm2_moe",
        "nemotron_h",
        "nemotron_h_moe",
        "minimax_m2",
        "mamba",
        "gpt2",
        "phi2",
        "hunyuan",
        "internlm2",
        "llama4",
    ] {
        let directory = crate::common::tempdir().unwrap();
        let from = data().join("whole").join(name);
        let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
        let scheme = ForgetScheme::MLX_4BIT.with_group_size(32);
        let options = ConvertOptions::from(scheme.clone()).with_scope(ModelScope::Model);
        parse(canonical_gguf(&from))
            .unwrap()
            .forget(&a, options)
            .unwrap();
        parse(from.join("hf")).unwrap().forget(&b, scheme).unwrap();
        assert!(tensors(&a) == tensors(&b), "{name}");
        let [a, b] = [a, b].map(|path| json(&path.join("config.json")));
        assert_eq!(a["quantization"], b["quantization"], "{name}");
        assert_eq!(a["quantization"]["bits"], 4);
        // Gemma and GPT-2 have no such field, and LFM 2 need not have it: their embedding always is
        // the output layer.
        const TIED: &[&str] = &["gemma2", "gpt2", "lfm2", "lfm2_moe"];
        let is_tied = |config: &Value| config["tie_word_embeddings"] == true;
        assert!(is_tied(&a) == is_tied(&b) || TIED.contains(&name), "{name}");
    }
}

/// To GGUF, the model is the one that the directory of transformers gives.
#[test]
fn to_gguf() {
    for name in ["qwen3_moe", "gpt_oss", "qwen3_next", "qwen3_5", "lfm2_moe", "granite_hybrid_moe"]
    {
        let directory = crate::common::tempdir().unwrap();
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
    for name in
        ["qwen3_moe", "gpt_oss", "gemma3_vision", "deepseek_v2", "granite_hybrid", "lfm2_moe"]
    {
        let directory = crate::common::tempdir().unwrap();
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

/// Codes of gpt-oss go to GGUF as they are, those of negative zeros, too, which encoding would not
/// give.
#[test]
fn mxfp4_to_gguf() {
    let directory = crate::common::tempdir().unwrap();
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

/// Classes with the fields of one that mlx-lm has keep their names, and are not taken for that one.
#[test]
fn classes_of_others_fields_keep_their_names() {
    for (model, class, kept) in [
        ("qwen2", "Qwen2AudioForConditionalGeneration", "lm_head.weight"),
        ("gemma_embedding", "Gemma3TextModel", "norm.weight"),
    ] {
        let directory = crate::common::tempdir().unwrap();
        let [from, to] = ["hf", "mlx"].map(|name| directory.path().join(name));
        std::fs::create_dir(&from).unwrap();
        for file in ["config.json", "model.safetensors"] {
            let source = data().join("whole").join(model).join("hf").join(file);
            std::fs::copy(source, from.join(file)).unwrap();
        }
        let mut config = json(&from.join("config.json"));
        config["architectures"] = json!([class]);
        std::fs::write(from.join("config.json"), config.to_string()).unwrap();
        let scheme = ForgetScheme::MLX_4BIT.with_group_size(32);
        let report = parse(&from).unwrap().forget(&to, scheme).unwrap();
        let note = format!("`{class}` has no names of mlx-lm here");
        let notes = report.notes;
        assert!(notes.iter().any(|found| found.contains(&note)), "{notes:?}");
        assert!(tensors(&to).contains_key(kept), "{class}");
    }
}
