//! Reasons and notes of choices, file types by name, and facts from configs.

use crate::Dtype;
use crate::lethe::gguf::mixture::{
    FileType, Mixture, MixtureTensor, ModelFacts, TypeChoice, stack,
};

#[test]
fn file_types_by_name() {
    let named = |name: &str| {
        FileType::from_name(name).map(|found| (found.name, found.number, found.dtype.name()))
    };
    assert_eq!(named("q4_k_m"), Some(("Q4_K_M", Some(15), "Q4_K")));
    assert_eq!(named("Q4_K"), named("q4_K_m"));
    assert_eq!((named("Q3_k"), named("q5_K")), (named("Q3_K_M"), named("Q5_K_M")));
    assert_eq!(named("iq2_m"), Some(("IQ2_M", Some(29), "IQ2_S")));
    assert_eq!(named("bf16"), Some(("BF16", Some(32), "BF16")));
    // Types that no file type is named after are for all tensors.
    assert_eq!(named("nvfp4"), Some(("NVFP4", Some(39), "NVFP4")));
    assert_eq!(named("mxfp4"), Some(("MXFP4", None, "MXFP4")));
    assert_eq!(named("q8_k"), Some(("Q8_K", None, "Q8_K")));
    assert_eq!((named("f64"), named("i8"), named("copy"), named("")), (None, None, None, None));
}

/// The choices of file type `name` for tensors of these names and shapes, all BF16.
fn choose(name: &str, tensors: &[(&str, &[usize])]) -> Vec<TypeChoice> {
    let mixture = Mixture {
        overrides: None,
        file_type: FileType::from_name(name).unwrap(),
        has_imatrix: false,
        pure: false,
    };
    let shapes: Vec<MixtureTensor<'_>> = tensors
        .iter()
        .map(|&(name, dims)| MixtureTensor { name, dims, dtype: Dtype::BF16 })
        .collect();
    mixture.choose(&ModelFacts::default(), &shapes).unwrap()
}

#[test]
fn reasons_and_notes() {
    let as_is = |dtype| TypeChoice::Type { dtype, note: None };
    let noted = |dtype, note: &str| TypeChoice::Type { dtype, note: Some(note.to_owned()) };
    let found = choose(
        "Q4_K_S",
        &[
            ("model.embed_tokens.weight", &[9, 256]),
            ("lm_head.weight", &[9, 256]),
            ("model.layers.5.self_attn.o_proj.weight", &[9, 256]),
            ("model.layers.5.self_attn.q_proj.weight", &[9, 160]),
            ("model.layers.5.self_attn.k_proj.weight", &[9, 100]),
            ("model.layers.5.input_layernorm.weight", &[256]),
            ("model.layers.5.mlp.gate.weight", &[9, 256]),
            ("model.visual.blocks.0.attn.qkv.weight", &[9, 256]),
        ],
    );
    let keep = |reason: &str| TypeChoice::Keep(reason.to_owned());
    assert_eq!(
        found,
        [
            as_is(Dtype::Q4_K),
            as_is(Dtype::Q6_K),
            as_is(Dtype::Q4_K),
            noted(Dtype::Q5_0, "its 160 columns are no multiple of 256: Q5_0 instead of Q4_K"),
            noted(Dtype::F16, "its 100 columns are no multiple of 256: F16 instead of Q4_K"),
            keep("it is a vector"),
            keep("llama.cpp does not quantize tensors of this name"),
            keep("it is no part of the language model"),
        ]
    );
    // By itself an encoder is a model.
    assert_eq!(
        choose("Q4_K_S", &[("vision_model.encoder.layers.0.mlp.fc1.weight", &[9, 256])]),
        [as_is(Dtype::Q4_K)]
    );
    // One type for all: no output layer is better than the rest.
    let found = choose("NVFP4", &[("output.weight", &[9, 128]), ("blk.0.attn_q.weight", &[9, 96])]);
    assert_eq!(found, [as_is(Dtype::NVFP4), keep("its 96 columns are no multiple of 64")]);
    assert_eq!(choose("MXFP4", &[("blk.0.attn_q.weight", &[9, 64])]), [as_is(Dtype::MXFP4)]);
    // Integers stay.
    let shape = MixtureTensor { name: "blk.0.table.weight", dims: &[4, 256], dtype: Dtype::I32 };
    let mixture = Mixture {
        overrides: None,
        file_type: FileType::from_name("Q8_0").unwrap(),
        has_imatrix: false,
        pure: false,
    };
    assert_eq!(
        mixture.choose(&ModelFacts::default(), &[shape]).unwrap(),
        [keep("its values are I32")]
    );
}

#[test]
fn facts_of_configs() {
    let facts = |json: &str| ModelFacts::from_config(&serde_json::from_str(json).unwrap());
    let found = facts(
        r#"{"model_type":"llava","num_hidden_layers":3,"text_config":{"model_type":"mistral","num_hidden_layers":80,
            "num_attention_heads":64,"num_key_value_heads":8,"num_experts":null}}"#,
    );
    assert_eq!(
        (found.architecture.as_str(), found.layers, found.experts, found.gqa_ratio()),
        ("llama", 80, 0, 8)
    );
    assert!(found.is_70b());
    // Latent attention has one key for all heads; what predicts further tokens is counted apart.
    let found = facts(
        r#"{"model_type":"deepseek_v3","num_hidden_layers":61,"num_attention_heads":128,"num_key_value_heads":128,
            "kv_lora_rank":512,"n_routed_experts":256}"#,
    );
    assert_eq!((found.layers, found.experts, found.gqa_ratio()), (61, 256, 128));
    let dims = [6, 256];
    let shapes = ["model.layers.0.mlp.down_proj.weight", "model.layers.61.eh_proj.weight"]
        .map(|name| MixtureTensor { name, dims: &dims, dtype: Dtype::BF16 });
    let found = found.completed(&stack(&shapes));
    assert_eq!((found.layers, found.nextn_layers), (62, 1));
    // Without a config, tensors tell.
    let names =
        ["model.layers.7.self_attn.q_proj.weight", "model.layers.7.self_attn.k_proj.weight"];
    let experts =
        [0, 1, 2].map(|expert| format!("model.layers.7.mlp.experts.{expert}.up_proj.weight"));
    let mut shapes: Vec<MixtureTensor<'_>> = experts
        .iter()
        .map(|name| MixtureTensor { name, dims: &dims, dtype: Dtype::BF16 })
        .collect();
    shapes.push(MixtureTensor { name: names[0], dims: &[12, 256], dtype: Dtype::BF16 });
    shapes.push(MixtureTensor { name: names[1], dims: &[3, 256], dtype: Dtype::BF16 });
    let found = ModelFacts::default().completed(&stack(&shapes));
    assert_eq!((found.layers, found.nextn_layers, found.experts, found.gqa_ratio()), (8, 0, 3, 4));
}
