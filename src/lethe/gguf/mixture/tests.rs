//! Types of tensors against those that llama.cpp gives to the same models (`tests/data/mixture`).

mod choices;
mod names;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use super::*;
use crate::test_utils::{effort, test_data};
use crate::{GgufMetadata, GgufMetadataArray, GgufMetadataValue};

/// What a file of `tests/data/mixture` has: `models`, the types that llama.cpp gives to the tensors of
/// each model, or `names`. `None` in the package.
fn goldens(file: &str) -> Option<Value> {
    let path = test_data()?.join(format!("mixture/{file}.json"));
    Some(serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
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

/// The metadata of the model's GGUF file.
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
        number => number
            .as_u64()
            .map_or(GgufMetadataValue::F32(0.0), |n| GgufMetadataValue::U32(n as u32)),
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
                (text(&line[0]).replace("{}", &layer.to_string()), shape(&line[2]))
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

fn shapes(tensors: &[(String, Vec<usize>)]) -> Vec<MixtureTensor<'_>> {
    tensors
        .iter()
        .map(|(name, dims)| MixtureTensor { name, dims, dtype: dtype(dims) })
        .collect()
}

/// The types that a run-length text stands for.
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

fn chosen(choice: &TypeChoice, dims: &[usize]) -> Dtype {
    match choice {
        TypeChoice::Keep(_) => dtype(dims),
        TypeChoice::Type { dtype, .. } => *dtype,
    }
}

/// Of so many file types one is compared, of each model other ones.
fn stride() -> usize {
    effort([3, 1, 1])
}

/// Calls `check` with each model's name, tensors, mixture and types, which are none where llama.cpp
/// gives up. `None` if there are no models.
fn each(
    mut check: impl FnMut(&str, &Value, &[(String, Vec<usize>)], &Mixture, Option<&[Dtype]>),
) -> Option<()> {
    let goldens = goldens("models")?;
    for (at, (name, model)) in goldens["models"].as_object().unwrap().iter().enumerate() {
        let tensors = tensors(model);
        let types = model["types"].as_object().unwrap().iter();
        for (number, ways) in types.skip(at % stride()).step_by(stride()) {
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
                let mixture = Mixture { overrides: None, file_type, has_imatrix, pure };
                check(name, model, &tensors, &mixture, types.as_deref());
            }
        }
    }
    Some(())
}

#[test]
fn types_are_those_of_llama_cpp() {
    let mut facts = BTreeMap::new();
    let mut compared = 0;
    let found = each(|name, model, tensors, mixture, types| {
        let facts = facts
            .entry(name.to_owned())
            .or_insert_with(|| ModelFacts::from_metadata(&metadata(&model["metadata"])));
        let choices = mixture.choose(facts, &shapes(tensors));
        let Some(types) = types else {
            // One bad layer is an error there and here; a row without a fallback is kept here.
            let is_short = |choice: &TypeChoice| matches!(choice, TypeChoice::Keep(reason) if reason.contains("no multiple of 128"));
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
    assert!(found.is_none() || compared > effort([70_000, 300_000, 300_000]));
}

#[test]
fn names_of_hugging_face_get_the_same_types() {
    let mut models = HashSet::new();
    let found = each(|name, model, tensors, mixture, types| {
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
        let shapes: Vec<MixtureTensor<'_>> = theirs
            .iter()
            .map(|(name, _, dims)| MixtureTensor { name, dims, dtype: dtype(dims) })
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
    assert!(found.is_none() || models.len() == 11);
}

#[test]
fn types_that_require_an_importance_matrix() {
    let Some(goldens) = goldens("models") else {
        return;
    };
    let mut found = 0;
    for (at, (name, model)) in goldens["models"].as_object().unwrap().iter().enumerate() {
        let tensors = tensors(model);
        let facts = ModelFacts::from_metadata(&metadata(&model["metadata"]));
        for file_type in FileType::all().iter().skip(at % stride()).step_by(stride()) {
            let mixture =
                Mixture { overrides: None, file_type: *file_type, has_imatrix: false, pure: false };
            let Ok(choices) = mixture.choose(&facts, &shapes(&tensors)) else {
                continue;
            };
            let mut wanting: Vec<(&str, Dtype)> = Vec::new();
            for ((tensor, _), choice) in tensors.iter().zip(&choices) {
                let TypeChoice::Type { dtype, .. } = choice else {
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
    assert!(found > effort([20, 100, 100]), "{found}");
}
