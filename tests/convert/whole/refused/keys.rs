//! Keys of GGUF that change what llama.cpp computes: those that a class of transformers cannot say
//! are refused, and what llama.cpp takes for a missing key is written where transformers would take
//! something else.

use anamnesis::GgufMetadataValue::{self, Bool, F32, U32};
use anamnesis::{ConvertOptions, ConvertTarget, ModelScope, TargetDtype, parse};
use serde_json::{Value, json};

use super::gguf_refusal;
use crate::canonical::canonical_gguf;
use crate::common::data;

#[test]
fn keys_that_the_class_does_not_have() {
    let rows: [(&str, &str, GgufMetadataValue); 27] = [
        ("mistral", "rope.scale_linear", F32(4.0)),
        ("llama", "rope.scaling.alpha", F32(50.0)),
        ("qwen2", "rope.scaling.attn_factor", F32(0.5)),
        ("phi3_long", "rope.scaling.attn_factor", F32(0.5)),
        ("qwen3_moe", "attention.causal", Bool(false)),
        ("lfm2", "attention.sliding_window", U32(64)),
        ("llama", "attention.clamp_kqv", F32(8.0)),
        ("qwen2", "attention.max_alibi_bias", F32(8.0)),
        ("deepseek_v3", "attention.temperature_scale", F32(0.1)),
        ("deepseek_v3", "attention.temperature_length", U32(8192)),
        ("qwen2", "attention.scale", F32(0.5)),
        ("qwen2_yarn", "rope.scaling.yarn_attn_factor", F32(1.5)),
        ("qwen2_yarn", "rope.scaling.yarn_beta_fast", F32(16.0)),
        ("qwen2", "rope.dimension_count", U32(4)),
        ("qwen2", "rope.freq_base_swa", F32(444.0)),
        ("granitemoe", "rope.scaling.finetuned", Bool(false)),
        ("llama", "attn_logit_softcapping", F32(50.0)),
        ("qwen3", "final_logit_softcapping", F32(30.0)),
        ("llama", "logit_scale", F32(0.5)),
        ("llama", "residual_scale", F32(0.5)),
        ("mistral", "embedding_scale", F32(12.0)),
        ("mixtral", "expert_weights_scale", F32(2.5)),
        ("mixtral", "expert_group_count", U32(2)),
        ("qwen3_moe", "expert_gating_func", U32(2)),
        ("dots1", "expert_gating_func", U32(1)),
        ("minimax_m2", "expert_gating_func", U32(1)),
        ("olmoe", "attention.layer_norm_rms_epsilon", F32(1e-6)),
    ];
    for (model, key, value) in rows {
        let canonical = parse(canonical_gguf(data().join("whole").join(model))).unwrap();
        let metadata = canonical.gguf().unwrap().metadata();
        let architecture = metadata.get("general.architecture").unwrap();
        let architecture = architecture.as_string().unwrap();
        let error = gguf_refusal(model, (&format!("{architecture}.{key}"), value));
        assert!(error.contains(architecture), "{model} {key}: {error}");
    }
}

/// Decoders whose tokens see those behind them, as of models that embed texts.
#[test]
fn attention_that_is_not_causal() {
    for (model, architecture) in [("qwen3", "qwen3"), ("qwen2", "qwen2"), ("llama", "llama")] {
        let directory = crate::common::tempdir().unwrap();
        let canonical = canonical_gguf(data().join("whole").join(model));
        let key = format!("{architecture}.attention.causal");
        for (flag, expected) in [(false, Some(json!(false))), (true, None)] {
            let place = |name: &str| directory.path().join(format!("{name}-{flag}"));
            let [edited, output, again] = ["edited.gguf", "out", "again.gguf"].map(place);
            let options = ConvertOptions::new(ConvertTarget::Gguf);
            let options = options
                .with_gguf_metadata(vec![(key.clone(), Bool(flag))])
                .with_scope(ModelScope::Tensors);
            parse(&canonical)
                .unwrap()
                .convert(&edited, options)
                .unwrap();
            let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
            let report = parse(&edited).unwrap().convert(&output, options).unwrap();
            let config = std::fs::read(output.join("config.json")).unwrap();
            let config: Value = serde_json::from_slice(&config).unwrap();
            assert_eq!(config.get("is_causal"), expected.as_ref(), "{model}");
            let has_note = report.notes.iter().any(|note| note.contains("is_causal"));
            assert_eq!(has_note, !flag, "{model}");
            let back = parse(&output).unwrap();
            back.convert(&again, ConvertTarget::Gguf).unwrap();
            let again = parse(&again).unwrap();
            let found = again.gguf().unwrap().metadata().get(&key);
            assert_eq!(found, (!flag).then_some(Bool(false)), "{model}");
        }
        let error = gguf_refusal(model, (&key, U32(0)));
        assert!(error.contains("attention.causal"), "{error}");
    }
}

/// The config that the GGUF file of `model` gives without the key `key`.
fn config_without(model: &str, key: &str) -> Value {
    let directory = crate::common::tempdir().unwrap();
    let [edited, output] = ["edited.gguf", "out"].map(|name| directory.path().join(name));
    let canonical = canonical_gguf(data().join("whole").join(model));
    let mut bytes = std::fs::read(canonical).unwrap();
    let at = bytes.windows(key.len()).position(|at| at == key.as_bytes());
    // Another name of the same length: nobody reads it.
    bytes[at.unwrap() + key.len() - 1] = b'_';
    std::fs::write(&edited, bytes).unwrap();
    let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
    parse(&edited).unwrap().convert(&output, options).unwrap();
    serde_json::from_slice(&std::fs::read(output.join("config.json")).unwrap()).unwrap()
}

#[test]
fn keys_that_are_missing() {
    let rows = [
        ("mixtral", "llama.rope.freq_base", "rope_theta", json!(10_000.0)),
        ("smollm3", "smollm3.rope.freq_base", "rope_theta", json!(10_000.0)),
        ("cohere", "command-r.logit_scale", "logit_scale", json!(1.0)),
        ("cohere", "command-r.rope.freq_base", "rope_theta", json!(10_000.0)),
        // Heads of eight dimensions, which rotate as a whole.
        ("granite", "granite.attention.scale", "attention_multiplier", json!(8f64.sqrt().recip())),
        ("phi2", "phi2.rope.dimension_count", "partial_rotary_factor", json!(1.0)),
        ("deepseek_v3", "deepseek2.expert_weights_scale", "routed_scaling_factor", json!(1.0)),
        (
            "modern_bert_rank",
            "modern-bert.classifier.pooling_type",
            "classifier_pooling",
            json!("mean"),
        ),
        (
            "modern_bert_rank",
            "modern-bert.classifier.output_labels",
            "id2label",
            json!({"0": "LABEL_0"}),
        ),
        // GGUF has no size of heads, and transformers has 128.
        ("glm", "chatglm.rope.freq_base", "head_dim", json!(8)),
        ("glm4", "glm4.rope.freq_base", "head_dim", json!(16)),
        ("xlm_roberta_rank", "bert.classifier.output_labels", "id2label", json!({"0": "LABEL_0"})),
    ];
    for (model, key, field, expected) in rows {
        assert_eq!(config_without(model, key)[field], expected, "{model} {key}");
    }
    // transformers 5 has 500000 in layers with a window unless it is stated for them.
    let config = config_without("olmo3", "olmo2.rope.freq_base");
    let plain = json!({"rope_type": "default", "rope_theta": 10_000.0});
    let kinds = json!({"full_attention": plain, "sliding_attention": plain});
    assert_eq!(config["rope_parameters"], kinds);
    let config = config_without("exaone4", "exaone4.vocab_size");
    assert_eq!(config.get("sliding_window"), Some(&Value::Null));
    // Without a type llama.cpp scales linearly.
    let config = config_without("gpt_oss", "gpt-oss.rope.scaling.type");
    assert_eq!(config["rope_scaling"]["rope_type"], "linear");
}

/// GPT-NeoX has a name of its own for the base of rope, which llama.cpp reads in its files as in
/// all others.
#[test]
fn base_of_gpt_neox() {
    let directory = crate::common::tempdir().unwrap();
    let [edited, output] = ["edited.gguf", "out"].map(|name| directory.path().join(name));
    let canonical = canonical_gguf(data().join("whole/gpt_neox"));
    let base = ("gptneox.rope.freq_base".to_owned(), F32(555.0));
    let options = ConvertOptions::new(ConvertTarget::Gguf)
        .with_gguf_metadata(vec![base])
        .with_scope(ModelScope::Tensors);
    parse(&canonical)
        .unwrap()
        .convert(&edited, options)
        .unwrap();
    let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
    parse(&edited).unwrap().convert(&output, options).unwrap();
    let config = std::fs::read(output.join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["rotary_emb_base"], json!(555.0));
    assert!(config.get("rope_theta").is_none());
}
