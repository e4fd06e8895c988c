//! GGUF files without `general.architecture`: refused where they are parts of models that programs
//! run, with a note otherwise.

use anamnesis::{
    ConvertOptions, ConvertTarget, ErrorKind, ForgetScheme, GgufMetadataValue, ModelScope, Report,
    parse, parse_bytes,
};

use crate::common::{Raw, data, f32s, file, raw};

const KEY: &str = "general.architecture";

fn tensors(names: &[&str]) -> Vec<u8> {
    let tensor = |name: &&str| raw(name, "F32", &[2, 32], f32s(&[1.0; 64]));
    let all: Vec<Raw> = names.iter().map(tensor).collect();
    file(&all, &[])
}

fn converted(bytes: &[u8], options: ConvertOptions) -> anamnesis::Result<Report> {
    let model = parse_bytes(bytes.to_vec()).unwrap();
    let conversion = model.plan(options)?;
    let report = conversion.report().clone();
    let has_key = conversion
        .to_bytes()?
        .windows(KEY.len())
        .any(|w| w == KEY.as_bytes());
    let is_noted = report.notes.iter().any(|note| note.contains(KEY));
    assert!(!(has_key && is_noted), "{:?}", report.notes);
    Ok(report)
}

fn is_noted(report: &Report) -> bool {
    report.notes.iter().any(|note| note.contains(KEY))
}

/// Copied, or encoded.
fn ways() -> [ConvertOptions; 2] {
    let scheme: ForgetScheme = "gguf:q8_0".parse().unwrap();
    [ConvertOptions::new(ConvertTarget::Gguf), ConvertOptions::from(scheme)]
}

/// Names of tensors by which programs save adapters, and models in the layout of their maker.
const REFUSED: &[(&str, &str)] = &[
    ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "adapter"),
    ("base_model.model.model.layers.0.self_attn.k_proj.ia3_l", "adapter"),
    ("transformer.single_transformer_blocks.0.attn.to_q.lora_B.weight", "adapter"),
    ("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight", "adapter"),
    ("lora_te_text_model_encoder_layers_0_mlp_fc1.lora_up.weight", "adapter"),
    ("unet.down_blocks.0.attentions.0.processor.to_q_lora.up.lora.up.weight", "adapter"),
    ("lora_unet_mid.hada_w1_a", "adapter"),
    ("lora_unet_mid.lokr_w1", "adapter"),
    ("model.layers.0.self_attn.q_proj.lora_a", "adapter"),
];

#[test]
fn parts_of_models_are_refused() {
    for (name, what) in REFUSED {
        for options in ways() {
            let bytes = tensors(&["other.weight", name]);
            let error = converted(&bytes, options.clone()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let text = error.to_string();
            for part in [*what, name, "--tensors-only", KEY] {
                assert!(text.contains(part), "{part}: {text}");
            }
            // The caller asks for tensors, or says what the model is, or takes some tensors.
            let alone = options.clone().with_scope(ModelScope::Tensors);
            assert!(!is_noted(&converted(&bytes, alone).unwrap()), "{name}");
            let architecture = GgufMetadataValue::String("own".to_owned());
            let named = options.clone();
            let named = named.with_gguf_metadata(vec![(KEY.to_owned(), architecture)]);
            assert!(!is_noted(&converted(&bytes, named).unwrap()), "{name}");
        }
    }
    let mut some = ConvertOptions::new(ConvertTarget::Gguf);
    some.include = vec!["model.*".to_owned()];
    let bytes = tensors(&["other.weight", "model.q_proj.lora_A.weight"]);
    assert!(is_noted(&converted(&bytes, some).unwrap()));
}

/// Language models without a config, modules, arrays, towers: a note.
#[test]
fn other_tensors_get_a_note() {
    for name in [
        "linear.weight",
        "layers.0.attention.wq.weight",
        "tok_embeddings.weight",
        "model.embed_tokens.weight",
        "transformer.wte.weight",
        "gpt_neox.embed_in.weight",
        "shared.weight",
        "text_model.embeddings.token_embedding.weight",
        "model.layers.7.self_attn.q_proj.weight",
        "bert.encoder.layer.0.attention.self.query.weight",
        "h.0.attn.c_attn.weight",
        "backbone.layers.0.mixer.in_proj.weight",
        "W_enc",
        "encoder.conv_in.weight",
        "transformer_blocks.0.attn.to_q.weight",
        "vision_tower.blocks.0.attn.qkv.weight",
        "state.0.exp_avg",
    ] {
        for options in ways() {
            let bytes = tensors(&[name, "b.weight"]);
            assert!(is_noted(&converted(&bytes, options.clone()).unwrap()), "{name}");
            let alone = options.with_scope(ModelScope::Tensors);
            assert!(!is_noted(&converted(&bytes, alone).unwrap()), "{name}");
        }
    }
    // ComfyUI-GGUF knows the model.
    let bytes = tensors(&["double_blocks.0.img_attn.proj.weight", "b.weight"]);
    assert!(!is_noted(&converted(&bytes, ConvertTarget::Gguf.into()).unwrap()));
}

/// Adapters of every kind that `adapter_config.json` describes, whatever their tensors are called.
#[test]
fn directories_of_adapters_are_refused() {
    let root = crate::common::tempdir().unwrap();
    let adapter = data().join("adapters/plain");
    let name = "adapter_config.json";
    std::fs::copy(adapter.join(name), root.path().join(name)).unwrap();
    let weights = root.path().join("adapter_model.safetensors");
    std::fs::write(weights, tensors(&["prompt_embeddings"])).unwrap();
    for path in [adapter.as_path(), root.path()] {
        let model = parse(path).unwrap();
        for options in ways() {
            let error = model.plan(options).err().unwrap().to_string();
            assert!(error.contains("adapter_config.json"), "{error}");
            assert!(error.contains("amn merge"), "{error}");
        }
    }
}

/// The layout of Mistral and Meta: a directory with `params.json` and no config of transformers.
#[test]
fn layouts_of_makers_are_refused() {
    for (weights, names) in [
        ("consolidated.safetensors", vec!["layers.0.attention.wq.weight"]),
        ("consolidated.safetensors", vec!["norm.weight", "tok_embeddings.weight"]),
        ("consolidated-00001-of-00001.safetensors", vec!["layers.0.attention.wq_a.weight"]),
    ] {
        let root = crate::common::tempdir().unwrap();
        let file = root.path().join(weights);
        std::fs::write(&file, tensors(&names)).unwrap();
        std::fs::write(root.path().join("params.json"), "{\"dim\": 32}").unwrap();
        for path in [root.path(), &file] {
            let Ok(model) = parse(path) else {
                continue;
            };
            for options in ways() {
                let error = model.plan(options.clone()).err().unwrap().to_string();
                assert!(error.contains("--tensors-only"), "{error}");
                let alone = options.with_scope(ModelScope::Tensors);
                assert!(model.plan(alone).is_ok());
            }
        }
    }
}
