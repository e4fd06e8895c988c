use std::collections::HashMap;

use serde_json::Value;

use super::QuantConfig;
use super::place::{ConfigPlace, order};

#[test]
fn skip_patterns() {
    let skips = |pattern: &str, module: &str| {
        let values = serde_json::json!({"ignore": [pattern]})
            .as_object()
            .unwrap()
            .clone();
        let place = ConfigPlace { name: "test".into(), values, ..ConfigPlace::default() };
        QuantConfig { places: vec![place], ..QuantConfig::default() }.skips(module)
    };
    assert!(skips("lm_head", "lm_head"));
    assert!(skips("lm_head", "model.lm_head"));
    assert!(skips("mlp.gate", "model.layers.0.mlp.gate"));
    assert!(!skips("mlp.gate", "model.layers.0.mlp.gate_proj"));
    assert!(skips("re:.*lm_head", "model.lm_head"));
    assert!(skips("re:(?=look)look", "lookahead"));
    assert!(skips("model.layers.0*", "model.layers.0.mlp"));
    assert!(!skips("model.layers.1*", "model.layers.0.mlp"));
    assert!(!skips("*.gate", "mlp.gate_proj"));
}

/// The config of this text.
fn config_of(json: &[u8]) -> QuantConfig {
    let Value::Object(values) = serde_json::from_slice(json).unwrap() else {
        panic!("no object");
    };
    let place = ConfigPlace { name: "test".into(), order: order(json, &[], &values), values };
    QuantConfig { places: vec![place], ..QuantConfig::default() }
}

#[test]
fn versions_are_numbers_that_letters_may_follow() {
    for (text, expected) in [
        ("0.15.1", [0, 15, 1]),
        ("0.17rc1", [0, 17, 0]),
        ("1.2.3.dev4+cu128", [1, 2, 3]),
        ("0.16", [0, 16, 0]),
        ("int", [0, 0, 0]),
    ] {
        assert_eq!(super::version_numbers(text), expected, "{text}");
    }
}

#[test]
fn groups_of_a_module_are_no_blocks() {
    let json = br#"{"weight_block_size":[128,128],
        "extra_config":{"a":{"group_size":-1},"b":{"group_size":[64,64]},"c":{"bits":8}}}"#;
    let config = config_of(json);
    let block = |module| config.at(module).block().map(|(size, _)| size);
    assert_eq!(block("a"), None);
    assert_eq!(block("b"), Some([64, 64]));
    assert_eq!(block("c"), Some([128, 128]));
    assert_eq!(block("d"), Some([128, 128]));
}

#[test]
fn rules_for_modules() {
    let json = br#"{"bits":4,"sym":"False","dynamic":{"-:.*v_proj":{},"+:.*o_proj$":{"group_size":64},"+:.*_proj":{"bits":8}},
        "extra_config":{"a.up":{"bits":2},".*up":{"bits":3,"sym":true},"gate|out":{"bits":16}}}"#;
    let config = config_of(json);
    let bits = |module: &str| config.at(module).int(&["bits"]).map(|(bits, _)| bits);
    assert!(
        config.at("a.v_proj").skipped
            && config.at("a.gates").skipped
            && !config.at("a.q_proj").skipped
    );
    // The first that fits, matched from the name's beginning; what it does not say is said of all.
    assert_eq!((bits("a.o_proj"), bits("a.q_proj"), bits("a.norm")), (Some(4), Some(8), Some(4)));
    // A name before an expression, which is searched.
    assert_eq!((bits("a.up"), bits("b.a.up.c")), (Some(2), Some(3)));
    assert_eq!(
        (config.at("a.up").flag("sym"), config.at("b.up").flag("sym")),
        (Some(false), Some(true))
    );
}

#[test]
fn metadata_of_autogptq() {
    let mut config = QuantConfig::default();
    config
        .add_metadata(&HashMap::from([
            ("gptq_bits".into(), "8".into()),
            ("gptq_group_size".into(), "-1".into()),
        ]))
        .unwrap();
    assert_eq!(config.at("x").int(&["bits"]), Some((8, "__metadata__")));
    assert_eq!(config.at("x").int(&["group_size"]), Some((-1, "__metadata__")));
    assert_eq!(config.method().as_deref(), Some("gptq"));
}

/// Which of the groups that fit a module counts: by their targets' texts, expressions last, then
/// classes; of one target in two groups the last (compressed-tensors 0.20 `match_targets`,
/// `apply_quantization_config`).
#[test]
fn groups_of_compressed_tensors() {
    let bits = |groups: &str, module: &str| {
        let json = format!(r#"{{"config_groups":{groups}}}"#);
        config_of(json.as_bytes())
            .at(module)
            .int(&["num_bits"])
            .map(|(bits, _)| bits)
    };
    let group = |bits: u8, targets: &str| {
        format!(r#"{{"targets":[{targets}],"weights":{{"num_bits":{bits}}}}}"#)
    };
    let classes = [group(8, r#""Embedding""#), group(4, r#""Linear""#)];
    for [first, second] in [[0, 1], [1, 0]] {
        let groups = format!(r#"{{"a":{},"b":{}}}"#, classes[first], classes[second]);
        assert_eq!(bits(&groups, "model.embed_tokens"), Some(8));
        assert_eq!(bits(&groups, "transformer.wte"), Some(8));
        assert_eq!(bits(&groups, "model.layers.0.mlp.up_proj"), Some(4));
        assert_eq!(bits(&groups, "lm_head"), Some(4));
    }
    // An embedding that is quantized under the only group, as `forget` writes it, has the settings
    // of that group.
    let linear = format!(r#"{{"a":{}}}"#, classes[1]);
    assert_eq!(bits(&linear, "model.embed_tokens"), Some(4));
    assert_eq!(bits(&linear, "model.layers.0.mlp.up_proj"), Some(4));
    // The order of the groups does not count, but that of the texts.
    let overlap = format!(
        r#"{{"a":{},"b":{},"c":{}}}"#,
        group(2, r#""re:.*proj$""#),
        group(3, r#""re:.*down_proj$""#),
        group(5, r#""model.down_proj""#),
    );
    assert_eq!(bits(&overlap, "x.down_proj"), Some(3));
    assert_eq!(bits(&overlap, "x.up_proj"), Some(2));
    assert_eq!(bits(&overlap, "model.down_proj"), Some(5));
    // A module at the top of a model, which no class is called like.
    let top = format!(r#"{{"a":{},"b":{}}}"#, classes[1], group(8, r#""score""#));
    assert_eq!(bits(&top, "score"), Some(8));
    assert_eq!(bits(&top, "model.layers.0.mlp.up_proj"), Some(4));
    // In the order of the file, which is not that of the keys.
    let twice = format!(
        r#"{{"group_9":{},"group_10":{}}}"#,
        group(2, r#""Linear""#),
        group(3, r#""Linear""#),
    );
    assert_eq!(bits(&twice, "x.down_proj"), Some(3));
}

/// Heads of Gemma are as wide as in transformers where a config does not say how wide they are.
#[test]
fn heads_of_gemma() {
    let sizes = |config: Value| super::sizes::LayerSizes::new(&config).layer("l.q_proj");
    let of = |model_type: &str| serde_json::json!({"hidden_size": 3840, "num_attention_heads": 16, "model_type": model_type});
    assert_eq!(sizes(of("llama")), [Some(3840), Some(3840)]);
    assert_eq!(sizes(of("gemma3_text")), [Some(4096), Some(3840)]);
    let nested = serde_json::json!({"model_type": "gemma3", "text_config": of("gemma3_text")});
    assert_eq!(sizes(nested), [Some(4096), Some(3840)]);
    let stated =
        serde_json::json!({"model_type": "gemma3", "head_dim": 128, "num_attention_heads": 32});
    assert_eq!(sizes(stated), [Some(4096), None]);
}

/// Layers of diffusers' transformers without biases have a side as wide as the residual stream.
#[test]
fn layers_of_diffusion_models() {
    let layer = |config: &Value, name: &str| super::sizes::LayerSizes::new(config).layer(name);
    let image =
        serde_json::json!({"_class_name": "ZImageTransformer2DModel", "dim": 3840, "n_heads": 30});
    assert_eq!(layer(&image, "layers.0.attention.to_q"), [None, Some(3840)]);
    assert_eq!(layer(&image, "layers.0.feed_forward.w2"), [Some(3840), None]);
    assert_eq!(layer(&image, "layers.0.adaLN_modulation.0"), [None; 2]);
    let flux = serde_json::json!({"_class_name": "Flux2Transformer2DModel", "num_attention_heads": 48, "attention_head_dim": 128});
    assert_eq!(layer(&flux, "single_transformer_blocks.0.attn.to_out"), [Some(6144), None]);
    assert_eq!(layer(&flux, "transformer_blocks.0.ff.linear_in"), [None, Some(6144)]);
    assert_eq!(layer(&flux, "proj_out"), [None, Some(6144)]);
}
