//! Whole models of MLX, against mlx-lm.

mod back;
mod configs;
mod others;
mod outputs;
mod refused;
mod unread;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anamnesis::{ForgetScheme, parse};
use serde_json::{Value, json};

use crate::common::data;

/// The models of `tests/data/whole_mlx`, by name.
fn models() -> Vec<(String, Value)> {
    let all = models_of("whole_mlx");
    assert_eq!(all.len(), 104);
    all
}

fn models_of(directory: &str) -> Vec<(String, Value)> {
    let entries = std::fs::read_dir(data().join(directory)).unwrap();
    let mut all: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    let model = |path: &PathBuf| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        (name, json(path))
    };
    all.iter().map(model).collect()
}

fn model(name: &str) -> Value {
    json(&data().join("whole_mlx").join(format!("{name}.json")))
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Bytes of a tensor, as `values` in `generate/whole_mlx.py` has them.
pub fn values(name: &str, dtype: &str, count: usize) -> Vec<u8> {
    let mut state = crc32fast::hash(name.as_bytes());
    let mut bytes = Vec::new();
    match dtype {
        // Of tables, experts of tokens.
        "I64" if name.ends_with("tid2eid") => {
            return (0..count as u64)
                .flat_map(|n| (n % 4).to_le_bytes())
                .collect();
        }
        // Of drafts: every second token.
        "I64" => return (0..count as u64).flat_map(u64::to_le_bytes).collect(),
        "BOOL" => return (0..count).map(|n| u8::from(n % 2 == 0)).collect(),
        _ => {}
    }
    for _ in 0..count {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let bits = (state >> 31 << 15) | (0x3d00 + ((state >> 16) & 0x1ff));
        match dtype {
            "U8" if name.ends_with("_scales") => bytes.push((120 + (state >> 28)) as u8),
            "U8" => bytes.push((state >> 24) as u8),
            "F32" => bytes.extend((bits << 16).to_le_bytes()),
            _ => bytes.extend((bits as u16).to_le_bytes()),
        }
    }
    bytes
}

fn shape(entry: &Value) -> Vec<usize> {
    let sizes = entry[1].as_array().unwrap().iter();
    sizes.map(|n| n.as_u64().unwrap() as usize).collect()
}

/// Bytes of the tensor `name` of a model in transformers: the values that its entry has, or those that
/// follow from its name.
pub fn bytes_of(name: &str, entry: &Value) -> Vec<u8> {
    let stated = entry[2].as_array();
    let stated = stated.map(|all| all.iter().flat_map(|n| n.as_i64().unwrap().to_le_bytes()));
    match stated {
        Some(stated) => stated.collect(),
        None => values(name, entry[0].as_str().unwrap(), shape(entry).iter().product()),
    }
}

/// Writes the directory that the model `found` has in transformers.
pub fn write_hf(found: &Value, to: &Path) {
    std::fs::create_dir(to).unwrap();
    std::fs::write(to.join("config.json"), found["config"].to_string()).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, entry) in found["hf"].as_object().unwrap() {
        let dtype = entry[0].as_str().unwrap();
        // An output that is tied is the embedding.
        let is_tied = name == "lm_head.weight" && found["config"]["tie_word_embeddings"] == true;
        let like = if is_tied {
            "model.embed_tokens.weight"
        } else {
            name
        };
        let bytes = bytes_of(like, entry);
        let offsets = [data.len(), data.len() + bytes.len()];
        let place = json!({ "dtype": dtype, "shape": entry[1], "data_offsets": offsets });
        header.insert(name.clone(), place);
        data.extend(bytes);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    std::fs::write(to.join("model.safetensors"), file).unwrap();
}

/// Dtype, shape and bytes of every tensor.
type Tensors = BTreeMap<String, (String, Vec<usize>, Vec<u8>)>;

fn tensors(path: &Path) -> Tensors {
    let model = parse(path).unwrap();
    let tensor = |t: anamnesis::Tensor<'_>| {
        let bytes = t.bytes().unwrap().to_vec();
        let value = (t.dtype().to_string(), t.shape().to_vec(), bytes);
        (t.name().to_owned(), value)
    };
    model.tensors().map(tensor).collect()
}

fn forget(from: &Path, to: &Path, scheme: &str) -> anamnesis::Result<anamnesis::Report> {
    let scheme: ForgetScheme = scheme.parse().unwrap();
    parse(from).unwrap().forget(to, scheme)
}
