use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use super::*;
use crate::{GgufMetadata, GgufMetadataArray, GgufMetadataValue};

/// What llama.cpp gives each model.
fn goldens() -> Value {
    serde_json::from_str(include_str!("../../../../tests/data/mixture/models.json")).unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn shape(value: &Value) -> Vec<usize> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|dim| dim.as_u64().unwrap() as usize)
        .collect()
}

/// Metadata as the model's GGUF file has it.
fn metadata(facts: &Value) -> GgufMetadata {
    let value = |value: &Value| match value {
        Value::String(text) => GgufMetadataValue::String(text.clone()),
        Value::Array(items) => {
            let items = items
                .iter()
                .map(|item| item.as_i64().unwrap() as i32)
                .collect();
            GgufMetadataValue::Array(Box::new(GgufMetadataArray::I32(items)))
        }
        number => number.as_u64().map_or(GgufMetadataValue::F32(0.0), |n| {
            GgufMetadataValue::U32(n as u32)
        }),
    };
    let entries: HashMap<String, GgufMetadataValue> = facts
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, v)| (key.clone(), value(v)))
        .collect();
    let mut file = std::io::Cursor::new(Vec::new());
    crate::write_gguf_to_writer(&mut file, &[], &entries).unwrap();
    let model = crate::parse_bytes(file.into_inner()).unwrap();
    model.gguf().unwrap().metadata().clone()
}

/// Tensors by name, in the order of the goldens.
fn tensors(model: &Value) -> Vec<(String, Vec<usize>)> {
    let expanded = model["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|line| {
            let layers = line[1].as_u64().unwrap().max(1);
            (0..layers).map(move |layer| {
                (
                    text(&line[0]).replace("{}", &layer.to_string()),
                    shape(&line[2]),
                )
            })
        });
    expanded.collect()
}

fn dtype(dims: &[usize]) -> Dtype {
    if dims.len() == 1 {
        Dtype::F32
    } else {
        Dtype::BF16
    }
}

fn shapes(tensors: &[(String, Vec<usize>)]) -> Vec<Shape<'_>> {
    tensors
        .iter()
        .map(|(name, dims)| Shape {
            name,
            dims,
            dtype: dtype(dims),
        })
        .collect()
}

/// The types of one way, run by run.
fn expand(letters: &Value, runs: &str) -> Vec<Dtype> {
    let mut types = Vec::new();
    let mut count = 0;
    for c in runs.chars() {
        match c.to_digit(10) {
            Some(digit) => count = 10 * count + digit as usize,
            None => {
                let name = text(&letters[c.to_string()]);
                let dtype = Dtype::ALL
                    .iter()
                    .find(|dtype| dtype.name() == name)
                    .unwrap();
                types.extend(std::iter::repeat_n(*dtype, std::mem::take(&mut count)));
            }
        }
    }
    types
}

fn chosen(choice: &Choice, dims: &[usize]) -> Dtype {
    match choice {
        Choice::Keep(_) => dtype(dims),
        Choice::Type { dtype, .. } => *dtype,
    }
}

/// Calls `check` with each model's name, tensors, mixture and types, which are none where llama.cpp gives up.
fn each(mut check: impl FnMut(&str, &Value, &[(String, Vec<usize>)], &Mixture, Option<&[Dtype]>)) {
    let goldens = goldens();
    for (name, model) in goldens["models"].as_object().unwrap() {
        let tensors = tensors(model);
        for (number, ways) in model["types"].as_object().unwrap() {
            let number = number.parse().ok();
            let file_type = *FileType::all()
                .iter()
                .find(|file_type| file_type.number == number)
                .unwrap();
            let mut types = None;
            for (way, (has_imatrix, pure)) in [(false, false), (true, false), (false, true)]
                .into_iter()
                .enumerate()
            {
                match &ways[way] {
                    Value::Null => {}
                    Value::Bool(_) => types = None,
                    runs => types = Some(expand(&goldens["letters"], text(runs))),
                }
                let mixture = Mixture {
                    file_type,
                    has_imatrix,
                    pure,
                };
                check(name, model, &tensors, &mixture, types.as_deref());
            }
        }
    }
}

#[test]
fn types_are_those_of_llama_cpp() {
    let mut facts = BTreeMap::new();
    let mut compared = 0;
    each(|name, model, tensors, mixture, types| {
        let facts = facts
            .entry(name.to_owned())
            .or_insert_with(|| ModelFacts::from_metadata(&metadata(&model["metadata"])));
        let choices = mixture.choose(facts, &shapes(tensors));
        let Some(types) = types else {
            // One bad layer is an error there and here; a row without a fallback is kept here.
            let is_short = |choice: &Choice| matches!(choice, Choice::Keep(reason) if reason.contains("no multiple of 128"));
            let gives_up = choices.map_or(true, |choices| choices.iter().any(is_short));
            assert!(gives_up, "{name} {mixture:?}");
            return;
        };
        let choices = choices.unwrap_or_else(|error| panic!("{name} {mixture:?}: {error}"));
        for (((tensor, dims), choice), theirs) in tensors.iter().zip(&choices).zip(types) {
            assert_eq!(
                chosen(choice, dims),
                *theirs,
                "{name} {mixture:?} {tensor} {dims:?} {choice:?}"
            );
            compared += 1;
        }
    });
    println!("{compared} types");
    assert!(compared > 300_000);
}

#[test]
fn names_of_hugging_face_get_the_same_types() {
    let mut models = HashSet::new();
    each(|name, model, tensors, mixture, types| {
        let (Some(lines), Some(types), false) = (model["hf"].as_array(), types, mixture.pure)
        else {
            return;
        };
        let by_name: HashMap<&str, Dtype> = tensors
            .iter()
            .map(|(name, _)| name.as_str())
            .zip(types.iter().copied())
            .collect();
        let facts = ModelFacts::from_config(&model["config"]);
        let layers = model["config"]["num_hidden_layers"].as_u64().unwrap();
        let lengths: HashMap<&str, u64> = model["tensors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|line| (text(&line[0]), line[1].as_u64().unwrap()))
            .collect();
        let mut theirs: Vec<(String, String, Vec<usize>)> = Vec::new();
        for line in lines {
            let ours = text(&line[1]);
            for layer in 0..lengths[ours].max(1).min(layers) {
                for expert in 0..line[3].as_u64().unwrap().max(1) {
                    let layer = layer.to_string();
                    let hf = text(&line[0])
                        .replace("{}", &layer)
                        .replace("{e}", &expert.to_string());
                    theirs.push((hf, ours.replace("{}", &layer), shape(&line[2])));
                }
            }
        }
        let shapes: Vec<Shape<'_>> = theirs
            .iter()
            .map(|(name, _, dims)| Shape {
                name,
                dims,
                dtype: dtype(dims),
            })
            .collect();
        let choices = mixture.choose(&facts, &shapes).unwrap();
        for ((hf, ours, dims), choice) in theirs.iter().zip(&choices) {
            assert_eq!(
                chosen(choice, dims),
                by_name[ours.as_str()],
                "{name} {mixture:?} {hf} {choice:?}"
            );
        }
        models.insert(name.to_owned());
    });
    assert_eq!(models.len(), 11);
}

#[test]
fn what_wants_an_importance_matrix() {
    let goldens = goldens();
    let mut found = 0;
    for (name, model) in goldens["models"].as_object().unwrap() {
        let tensors = tensors(model);
        let facts = ModelFacts::from_metadata(&metadata(&model["metadata"]));
        for file_type in FileType::all() {
            let mixture = Mixture {
                file_type: *file_type,
                has_imatrix: false,
                pure: false,
            };
            let Ok(choices) = mixture.choose(&facts, &shapes(&tensors)) else {
                continue;
            };
            let mut wanting: Vec<(&str, Dtype)> = Vec::new();
            for ((tensor, _), choice) in tensors.iter().zip(&choices) {
                let Choice::Type { dtype, .. } = choice else {
                    continue;
                };
                if mixture.requires_imatrix(tensor, *dtype) {
                    wanting.push((tensor, *dtype));
                }
            }
            // The first in llama.cpp's order is the one that it names.
            wanting.sort_by_key(|(name, _)| (layer(name), *name));
            let theirs = &model["needs"][file_type.number.unwrap().to_string()];
            if let Some([tensor, dtype]) = theirs.as_array().map(Vec::as_slice) {
                assert_eq!(
                    wanting.first().map(|(name, dtype)| (*name, dtype.name())),
                    Some((text(tensor), text(dtype)))
                );
                found += 1;
            } else if !model["needs"].as_object().unwrap().is_empty() {
                assert!(wanting.is_empty(), "{name} {}", file_type.name);
            }
        }
    }
    assert!(found > 100, "{found}");
}

/// What gguf-py calls every tensor that it knows, and what that makes of it here.
#[test]
fn names_are_those_of_gguf_py() {
    let names: Value =
        serde_json::from_str(include_str!("../../../../tests/data/mixture/names.json")).unwrap();
    let facts = ModelFacts::default();
    let treated = |name: &str| {
        let tensor = Stacked {
            name: name.to_owned(),
            layer: layer(name),
            dims: vec![256, 256],
            dtype: Dtype::F32,
            foreign: false,
            parts: vec![],
            shown: name,
        };
        kept(&tensor, &facts).map_or_else(
            || match Category::of(name) {
                Category::Other => "other".to_owned(),
                category => format!("{category:?} {}", layer(name)),
            },
            |_| "kept".to_owned(),
        )
    };
    let mut other = Vec::new();
    for line in names.as_array().unwrap() {
        let theirs: Vec<String> = line[1]
            .as_array()
            .unwrap()
            .iter()
            .map(|ours| treated(&format!("{}.weight", text(ours))))
            .collect();
        let name = text(&line[0]).trim_end_matches(".weight");
        let ours = canonical(&format!("{name}.weight")).name;
        // Vectors are kept under any name.
        let is_vector = ["norm", "ln", "router_bias"]
            .iter()
            .any(|part| name.contains(part))
            && treated(&ours) == "kept";
        if !is_vector && !theirs.contains(&treated(&ours)) {
            other.push(format!(
                "{name}: {ours} {}, {theirs:?} {}",
                treated(&ours),
                line[1]
            ));
        }
    }
    assert!(other.is_empty(), "{}\n{}", other.len(), other.join("\n"));
}

#[test]
fn names_of_llama_cpp_stay() {
    let goldens = goldens();
    for model in goldens["models"].as_object().unwrap().values() {
        for (name, dims) in tensors(model) {
            let ours = canonical(&name);
            assert!(ours.name == name || dims.len() == 1, "{name}: {ours:?}");
            assert_eq!(ours.expert, None, "{name}");
        }
    }
}

#[test]
fn file_types_by_name() {
    let named = |name: &str| {
        FileType::from_name(name).map(|found| (found.name, found.number, found.dtype.name()))
    };
    assert_eq!(named("q4_k_m"), Some(("Q4_K_M", Some(15), "Q4_K")));
    assert_eq!(named("Q4_K"), named("q4_K_m"));
    assert_eq!(
        (named("Q3_k"), named("q5_K")),
        (named("Q3_K_M"), named("Q5_K_M"))
    );
    assert_eq!(named("iq2_m"), Some(("IQ2_M", Some(29), "IQ2_S")));
    assert_eq!(named("bf16"), Some(("BF16", Some(32), "BF16")));
    // Types that no file type is named after are for all tensors.
    assert_eq!(named("nvfp4"), Some(("NVFP4", Some(39), "NVFP4")));
    assert_eq!(named("mxfp4"), Some(("MXFP4", None, "MXFP4")));
    assert_eq!(named("q8_k"), Some(("Q8_K", None, "Q8_K")));
    assert_eq!(
        (named("f64"), named("i8"), named("copy"), named("")),
        (None, None, None, None)
    );
}

/// The choice for tensors of these shapes, all BF16.
fn choose(name: &str, tensors: &[(&str, &[usize])]) -> Vec<Choice> {
    let mixture = Mixture {
        file_type: FileType::from_name(name).unwrap(),
        has_imatrix: false,
        pure: false,
    };
    let shapes: Vec<Shape<'_>> = tensors
        .iter()
        .map(|&(name, dims)| Shape {
            name,
            dims,
            dtype: Dtype::BF16,
        })
        .collect();
    mixture.choose(&ModelFacts::default(), &shapes).unwrap()
}

#[test]
fn reasons_and_notes() {
    let as_is = |dtype| Choice::Type { dtype, note: None };
    let noted = |dtype, note: &str| Choice::Type {
        dtype,
        note: Some(note.to_owned()),
    };
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
    let keep = |reason: &str| Choice::Keep(reason.to_owned());
    assert_eq!(
        found,
        [
            as_is(Dtype::Q4_K),
            as_is(Dtype::Q6_K),
            as_is(Dtype::Q4_K),
            noted(
                Dtype::Q5_0,
                "its 160 columns are no multiple of 256: Q5_0 instead of Q4_K"
            ),
            noted(
                Dtype::F16,
                "its 100 columns are no multiple of 256: F16 instead of Q4_K"
            ),
            keep("it is a vector"),
            keep("llama.cpp does not quantize tensors of this name"),
            keep("it is no part of the language model"),
        ]
    );
    // By itself an encoder is a model.
    assert_eq!(
        choose(
            "Q4_K_S",
            &[("vision_model.encoder.layers.0.mlp.fc1.weight", &[9, 256])]
        ),
        [as_is(Dtype::Q4_K)]
    );
    // One type for all: no output layer is better than the rest.
    let found = choose(
        "NVFP4",
        &[
            ("output.weight", &[9, 128]),
            ("blk.0.attn_q.weight", &[9, 96]),
        ],
    );
    assert_eq!(
        found,
        [
            as_is(Dtype::NVFP4),
            keep("its 96 columns are no multiple of 64")
        ]
    );
    assert_eq!(
        choose("MXFP4", &[("blk.0.attn_q.weight", &[9, 64])]),
        [as_is(Dtype::MXFP4)]
    );
    // Integers stay.
    let shape = Shape {
        name: "blk.0.table.weight",
        dims: &[4, 256],
        dtype: Dtype::I32,
    };
    let mixture = Mixture {
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
        (
            found.architecture.as_str(),
            found.layers,
            found.experts,
            found.group()
        ),
        ("llama", 80, 0, 8)
    );
    assert!(found.is_70b());
    // Latent attention has one key for all heads; what predicts further tokens is counted apart.
    let found = facts(
        r#"{"model_type":"deepseek_v3","num_hidden_layers":61,"num_attention_heads":128,"num_key_value_heads":128,
            "kv_lora_rank":512,"n_routed_experts":256}"#,
    );
    assert_eq!((found.layers, found.experts, found.group()), (61, 256, 128));
    let dims = [6, 256];
    let shapes = [
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.61.eh_proj.weight",
    ]
    .map(|name| Shape {
        name,
        dims: &dims,
        dtype: Dtype::BF16,
    });
    let found = found.completed(&stack(&shapes));
    assert_eq!((found.layers, found.next_layers), (62, 1));
    // Without a config, tensors tell.
    let names = [
        "model.layers.7.self_attn.q_proj.weight",
        "model.layers.7.self_attn.k_proj.weight",
    ];
    let experts =
        [0, 1, 2].map(|expert| format!("model.layers.7.mlp.experts.{expert}.up_proj.weight"));
    let mut shapes: Vec<Shape<'_>> = experts
        .iter()
        .map(|name| Shape {
            name,
            dims: &dims,
            dtype: Dtype::BF16,
        })
        .collect();
    shapes.push(Shape {
        name: names[0],
        dims: &[12, 256],
        dtype: Dtype::BF16,
    });
    shapes.push(Shape {
        name: names[1],
        dims: &[3, 256],
        dtype: Dtype::BF16,
    });
    let found = ModelFacts::default().completed(&stack(&shapes));
    assert_eq!(
        (
            found.layers,
            found.next_layers,
            found.experts,
            found.group()
        ),
        (8, 0, 3, 4)
    );
}
