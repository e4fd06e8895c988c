//! The models that are decoded: one tensor of `rows()` × `cols()` in each scheme. The program says
//! how many these are.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{cols, rows};

mod comfy;
mod dfloat11;
mod exl;
mod floats;
mod ggml;
#[path = "../../tests/common/gguf.rs"]
mod gguf;
mod integers;
mod nunchaku;
mod ollama;
mod sdnq;
mod transforms;
mod vectors;
mod words;

struct Part(&'static str, &'static str, Vec<usize>, Vec<u8>);

fn codes(n: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..n).map(|_| next() & 0x77).collect()
}

fn f32s(n: usize) -> Vec<u8> {
    (0..n)
        .flat_map(|i| (0.001 + (i % 97) as f32 * 1e-4).to_le_bytes())
        .collect()
}

fn f16s(n: usize) -> Vec<u8> {
    (0..n)
        .flat_map(|i| half::f16::from_f32(0.001 + (i % 97) as f32 * 1e-4).to_le_bytes())
        .collect()
}

fn bf16s(n: usize) -> Vec<u8> {
    (0..n)
        .flat_map(|i| half::bf16::from_f32(0.001 + (i % 97) as f32 * 1e-4).to_le_bytes())
        .collect()
}

/// A safetensors file whose header begins as `header`.
fn file_with(parts: &[Part], mut header: serde_json::Map<String, serde_json::Value>) -> Vec<u8> {
    let mut at = 0;
    for Part(name, dtype, shape, bytes) in parts {
        let record = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes.len()]});
        header.insert((*name).to_owned(), record);
        at += bytes.len();
    }
    let json = serde_json::to_vec(&header).unwrap();
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend(json);
    parts.iter().for_each(|part| out.extend(&part.3));
    out
}

/// The name of a scheme, and what makes the tensors of its model.
type PartsOf = (&'static str, fn() -> Vec<Part>);

/// The name of a scheme, and what makes the file of its model.
type FileOf = (&'static str, fn() -> Vec<u8>);

/// Makes the file of a model. That takes long, so it is called for the models alone that are
/// measured.
pub type MakeFile = Box<dyn Fn() -> Vec<u8>>;

/// Every model, by the name of its scheme.
pub fn files() -> impl Iterator<Item = (&'static str, MakeFile)> {
    let of_parts = [
        words::SCHEMES,
        floats::SCHEMES,
        integers::SCHEMES,
        comfy::SCHEMES,
        exl::SCHEMES,
        dfloat11::SCHEMES,
    ];
    let of_parts = of_parts.into_iter().flatten().map(|&(name, parts)| {
        let make: MakeFile = Box::new(move || file_with(&parts(), serde_json::Map::new()));
        (name, make)
    });
    let of_bytes = [nunchaku::FILES, sdnq::FILES, transforms::FILES, ollama::FILES, vectors::FILES];
    let of_bytes = of_bytes.into_iter().flatten().map(|&(name, file)| {
        let make: MakeFile = Box::new(file);
        (name, make)
    });
    of_parts
        .chain(of_bytes)
        .chain(ggml::files())
        .chain(ggml::ik_files())
        .chain(ggml::interleaved_files())
}

/// The name and the text of the file that has to lie beside the model of a scheme, if there is one.
pub fn config(name: &str) -> Option<(&'static str, String)> {
    Some(match name {
        "sinq4" => ("model.safetensors.index.json.meta.json", integers::sinq_meta()),
        "dfloat11" => ("config.json", dfloat11::config()),
        ollama::NAME => (ollama::MANIFEST, ollama::manifest()),
        "sglang-w4" => {
            ("config.json", r#"{"quantization_config": {"quant_method": "w4afp8"}}"#.to_owned())
        }
        "modelslim-w4a8" => {
            let kind = "W4A8_DYNAMIC";
            let parts = serde_json::json!({"w.weight": kind, "w.weight_scale": kind, "w.weight_offset": kind});
            ("quant_model_description.json", parts.to_string())
        }
        _ => {
            let bits = name.strip_prefix("mlx").filter(|bits| bits.len() == 1)?;
            let text = format!(r#"{{"quantization": {{"group_size": 64, "bits": {bits}}}}}"#);
            ("config.json", text)
        }
    })
}

/// Writes the file of the scheme `name` with what belongs beside it into a directory of its own in
/// `scratch`. Returns the path to parse, and that of the file.
pub fn write(scratch: &Path, name: &str, file: &[u8]) -> [PathBuf; 2] {
    let dir = scratch.join(name);
    let write = |path: &str, bytes: &[u8]| {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    };
    let beside = config(name).map(|(path, text)| write(path, text.as_bytes()));
    match name {
        ollama::NAME => {
            let blob = write(&ollama::blob(), file);
            [beside.unwrap(), blob]
        }
        _ => {
            let path = write("model.safetensors", file);
            [path.clone(), path]
        }
    }
}
