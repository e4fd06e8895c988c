//! Adapters that do not fit their base, that exclude each other, or whose settings are not known.

use super::*;

/// The error of merging an adapter of these tensors and settings into a base of one matrix; empty
/// if there is none.
fn refusal(tensors: &[Raw], settings: &serde_json::Value) -> String {
    let base =
        [raw("a.q.weight", "F32", &[3, 2], f32s(&[1.0; 6])), raw("n", "I64", &[1], vec![0; 8])];
    refusal_by(&base, tensors, settings)
}

/// The error of merging an adapter of these tensors and settings into `base`; empty if there is
/// none.
pub(super) fn refusal_by(base: &[Raw], tensors: &[Raw], settings: &serde_json::Value) -> String {
    let root = crate::common::tempdir().unwrap();
    let base_path = root.path().join("base.safetensors");
    std::fs::write(&base_path, file(base, &[])).unwrap();
    let mut config = json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1});
    config
        .as_object_mut()
        .unwrap()
        .extend(settings.as_object().unwrap().clone());
    std::fs::write(root.path().join("adapter_config.json"), config.to_string()).unwrap();
    std::fs::write(root.path().join("adapter_model.safetensors"), file(tensors, &[])).unwrap();
    let out = root.path().join("out.safetensors");
    let run = || {
        let adapter = Adapter::open(root.path())?;
        let options = options(TargetDtype::F32, vec![adapter]);
        parse(&base_path)?.convert(&out, options)
    };
    match run() {
        Ok(_) => String::new(),
        Err(error) => {
            assert!(!out.exists());
            error.to_string()
        }
    }
}

fn a(shape: &[usize]) -> Raw {
    let n = shape.iter().product();
    raw("base_model.model.a.q.lora_A.weight", "F32", shape, f32s(&vec![0.5; n]))
}

fn b(shape: &[usize]) -> Raw {
    let n = shape.iter().product();
    raw("base_model.model.a.q.lora_B.weight", "F32", shape, f32s(&vec![0.5; n]))
}

/// A tensor of an adapter.
pub(super) fn named(name: &str, shape: &[usize]) -> Raw {
    let n = shape.iter().product();
    raw(&format!("base_model.model.{name}"), "F32", shape, f32s(&vec![0.5; n]))
}

#[test]
fn what_does_not_fit_is_an_error() {
    let pair = || vec![a(&[1, 2]), b(&[3, 1])];
    let none = || json!({});
    assert_eq!(refusal(&pair(), &none()), "");
    // The shapes tell which of the two the weight is, whatever the settings say.
    assert_eq!(refusal(&pair(), &json!({"fan_in_fan_out": true})), "");
    assert_eq!(refusal(&[a(&[1, 3]), b(&[2, 1])], &none()), "");
    let with = |more: Raw| [pair(), vec![more]].concat();
    let half = |t: Raw| vec![t];
    let nan =
        raw("base_model.model.a.q.lora_B.weight", "F32", &[3, 1], f32s(&[1.0, f32::NAN, 1.0]));
    let integers = raw("base_model.model.a.q.lora_B.weight", "I32", &[3, 1], vec![0; 12]);
    for (tensors, settings, what) in [
        (half(a(&[1, 2])), none(), "one of the two factors"),
        (half(b(&[3, 1])), none(), "one of the two factors"),
        (vec![], none(), "no tensors"),
        (vec![a(&[2, 2]), b(&[3, 2])], none(), "rank is 2, and 1"),
        (vec![a(&[1, 2]), b(&[3, 2])], none(), "rank is 1, and that of"),
        (vec![a(&[1, 4]), b(&[2, 1])], none(), "`a.q.weight` is [3, 2]"),
        (vec![a(&[1, 2, 1, 2]), b(&[3, 1, 1, 1])], none(), "`a.q.weight` is [3, 2]"),
        (vec![a(&[1, 2]), nan], none(), "`a.q.weight`: what an adapter adds"),
        (vec![a(&[1, 2]), integers], none(), "F32, F16 or BF16"),
        (with(named("a.k.lora_A.weight", &[1, 2])), none(), "one of the two factors"),
        (
            [
                pair(),
                vec![named("a.k.lora_A.weight", &[1, 2]), named("a.k.lora_B.weight", &[3, 1])],
            ]
            .concat(),
            none(),
            "no `a.k.weight`",
        ),
        (with(named("a.q.bias", &[3])), none(), "no `a.q.bias`"),
        (with(named("a.q.lora_B.bias", &[3])), none(), "`lora_bias`"),
        (with(named("a.q.weight", &[2, 3])), none(), "of the model is [3, 2]"),
        (with(named("a.q.hada_w1_a", &[2, 3])), none(), "several kinds"),
        (
            with(raw("a.q.lora_A.weight", "F32", &[1, 2], f32s(&[1.0; 2]))),
            none(),
            "does not begin with",
        ),
        (with(named("n", &[1])), none(), "tensor `n`: it is I64"),
        (with(named("a.q.lora_magnitude_vector", &[3])), none(), "`use_dora`"),
        (pair(), json!({"use_dora": true}), "no `lora_magnitude_vector`"),
        (with(named("a.q.lora_magnitude_vector", &[2])), json!({"use_dora": true}), "has 3 rows"),
        (
            vec![a(&[1, 3]), b(&[2, 1]), named("a.q.lora_magnitude_vector", &[3])],
            json!({"use_dora": true}),
            "has 2 columns",
        ),
        (pair(), json!({"peft_type": "LOHA"}), "`lora_alpha` is 1"),
        (
            pair(),
            json!({"peft_type": "LOHA", "lora_alpha": null, "alpha": 1}),
            "another `peft_type`",
        ),
        (
            with(named("a.q.lokr_w1", &[3, 2])),
            json!({"peft_type": "LOKR", "lora_alpha": null, "alpha": 1}),
            "several kinds",
        ),
        (
            vec![named("a.q.lokr_w1", &[3, 1]), named("a.q.lokr_w2", &[1, 2])],
            none(),
            "another `peft_type`",
        ),
        (
            vec![named("a.q.lokr_w1", &[3, 1]), named("a.q.lokr_w2", &[1, 2, 1])],
            json!({"peft_type": "LOKR", "lora_alpha": null, "alpha": 1}),
            "Conv1d",
        ),
        (
            vec![
                named("a.q.hada_w1_a", &[3, 2]),
                named("a.q.hada_w1_b", &[2, 2]),
                named("a.q.hada_w2_a", &[3, 2]),
                named("a.q.hada_w2_b", &[2, 2]),
            ],
            json!({"peft_type": "LOHA", "lora_alpha": null, "alpha": 1}),
            "its rank is 2, and 1",
        ),
        (pair(), json!({"peft_type": "IA3"}), "IA3"),
        (pair(), json!({"bias": "some"}), "`bias` is \"some\""),
        (pair(), json!({"init_lora_weights": "pissa"}), "pissa"),
    ] {
        let error = refusal(&tensors, &settings);
        assert!(error.contains(what), "{what}: {settings}: `{error}`");
    }
}

#[test]
fn adapters_that_exclude_each_other() {
    let model = parse(base("base")).unwrap();
    for (adapters, what) in [
        (vec![open("dora"), open("plain")], "is DoRA"),
        (vec![open("dora").with_weight(0.5)], "with weight 1"),
        (vec![open("saved"), open("embedding")], "replaces it"),
        (vec![open("saved").with_weight(2.0)], "must be 1"),
        (vec![open("plain").with_weight(f64::NAN)], "weight is NaN"),
        (vec![open("gpt2")], "h.0.attn.c_attn.weight"),
    ] {
        let error = model
            .plan(options(TargetDtype::F32, adapters))
            .err()
            .unwrap();
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
    let error = Adapter::open(data().join("demo")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
}

/// Programs load one of two tied weights for both, so that the other's change would be lost.
#[test]
fn tied_weights_are_refused() {
    let root = crate::common::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(base("base").join(name), root.path().join(name)).unwrap();
    }
    let path = root.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let tied = text.replace("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    assert_ne!(text, tied);
    std::fs::write(&path, tied).unwrap();
    let model = parse(root.path()).unwrap();
    let run = |name: &str| model.plan(options(TargetDtype::F32, case(name))).err();
    assert!(run("plain").is_none());
    let error = run("saved").unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("lm_head.weight"), "{error}");
    // A file beside the config is the same model.
    let model = parse(root.path().join("model.safetensors")).unwrap();
    let error = model.plan(options(TargetDtype::F32, case("saved"))).err();
    assert!(error.unwrap().to_string().contains("lm_head.weight"));
}

/// PEFT trains a copy of the embedding, while the head stays the tensor that it was.
#[test]
fn replaced_embeddings_that_are_the_head_are_refused() {
    let root = crate::common::tempdir().unwrap();
    let weights = [
        raw("model.embed_tokens.weight", "F32", &[3, 2], f32s(&[1.0; 6])),
        raw("model.q.weight", "F32", &[2, 2], f32s(&[1.0; 4])),
    ];
    let write = |name: &str, bytes: &[u8]| std::fs::write(root.path().join(name), bytes).unwrap();
    write("model.safetensors", &file(&weights, &[]));
    let set = |modules: serde_json::Value| {
        let settings =
            json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "modules_to_save": modules});
        write("adapter_config.json", settings.to_string().as_bytes());
    };
    set(json!(["embed_tokens"]));
    let merged = |config: serde_json::Value, tensors: &[Raw]| {
        write("config.json", config.to_string().as_bytes());
        write("adapter_model.safetensors", &file(tensors, &[]));
        let adapters = vec![Adapter::open(root.path()).unwrap()];
        let model = parse(root.path().join("model.safetensors")).unwrap();
        let out = crate::common::tempdir().unwrap();
        let path = out.path().join("out.safetensors");
        let report = model.convert(path, options(TargetDtype::F32, adapters));
        report.map(|report| report.notes.join(" "))
    };
    let embedding = || named("model.embed_tokens.weight", &[3, 2]);
    let others = || {
        let factor = |end: &str, shape| named(&format!("model.q.lora_{end}.weight"), shape);
        vec![factor("A", &[1, 2]), factor("B", &[2, 1])]
    };
    let factors = || {
        let factor =
            |end: &str, shape| named(&format!("model.embed_tokens.lora_embedding_{end}"), shape);
        vec![factor("A", &[1, 3]), factor("B", &[2, 1])]
    };
    let tied = [
        json!({"tie_word_embeddings": true}),
        json!({"architectures": ["GemmaForCausalLM"]}),
        json!({"text_config": {"tie_word_embeddings": true}}),
    ];
    for config in tied {
        let error = merged(config.clone(), &[embedding()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("model.embed_tokens.weight"));
        // PEFT merges a product into both, and the report says so.
        let notes = merged(config.clone(), &factors()).unwrap();
        assert!(notes.contains("head"), "{config}: {notes}");
        let notes = merged(config.clone(), &others()).unwrap();
        assert!(!notes.contains("head"), "{config}: {notes}");
    }
    // PEFT saves the embedding beside its factors, and loads it into the tensor that is the head,
    // too.
    set(json!(null));
    let whole = named("model.embed_tokens.base_layer.weight", &[3, 2]);
    let notes = merged(json!({"tie_word_embeddings": true}), &[factors(), vec![whole]].concat());
    assert!(notes.unwrap().contains("head"));
    for config in [
        json!({"tie_word_embeddings": false, "architectures": ["LlamaForCausalLM"]}),
        json!({"architectures": ["BertModel"]}),
    ] {
        for tensors in [vec![embedding()], factors()] {
            let notes = merged(config.clone(), &tensors).unwrap();
            assert!(!notes.contains("head"), "{config}: {notes}");
        }
    }
}

/// DoRA of columns needs all rows of 32 of them at once, and a thread may take 16 Mi values.
#[test]
fn columns_that_take_much_memory_are_refused() {
    let root = crate::common::tempdir().unwrap();
    let config = json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "use_dora": true});
    std::fs::write(root.path().join("adapter_config.json"), config.to_string()).unwrap();
    let error = |rows: usize| {
        let zeros = |name: &str, dtype, shape: &[usize], size: usize| {
            raw(name, dtype, shape, vec![0; size * shape.iter().product::<usize>()])
        };
        let tensors = [
            zeros("base_model.model.a.q.lora_A.weight", "BF16", &[1, rows], 2),
            named("a.q.lora_B.weight", &[32, 1]),
            named("a.q.lora_magnitude_vector", &[32]),
        ];
        let path = root.path().join("adapter_model.safetensors");
        std::fs::write(path, file(&tensors, &[])).unwrap();
        let base = [
            zeros("a.q.weight", "F8_E4M3", &[rows, 32], 1),
            raw("a.q.weight_scale", "F32", &[], f32s(&[1.0])),
        ];
        let model = parse_bytes(file(&base, &[])).unwrap();
        let adapter = Adapter::open(root.path()).unwrap();
        let result = model.plan(options(TargetDtype::F32, vec![adapter]));
        result.err()
    };
    let most = (16 << 20) / 32;
    assert!(error(most).is_none());
    let error = error(most + 1).unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let words = ["tensor `a.q.weight`", "DoRA", "16 Mi values"];
    assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
}
