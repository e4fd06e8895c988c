//! Writes the first inputs of every target to `corpus/TARGET`, made from `tests/data`: `cargo run
//! --example seeds`.
#![allow(clippy::unwrap_used)]

use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use anamnesis::parse_bytes;
use anamnesis_fuzz::bodies::encode::schemes;
use anamnesis_fuzz::bodies::golden::{Golden, goldens};
use anamnesis_fuzz::common::ocdbt::leaf;
use anamnesis_fuzz::common::{Random, data};

/// A longer seed slows its target down, and says no more than a short one.
const LONGEST: usize = 24 << 10;

fn main() {
    let mut seeds = Seeds(Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus"));
    for (id, golden) in goldens() {
        seeds.golden(*id, golden);
    }
    for directory in ["npz", "pth", "paddle", "qnat", "onnx", "flax", "hdf5", "tflite", "executorch", "mindspore", "gguf-files", "llamafile", "demo"] {
        for entry in std::fs::read_dir(data().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                seeds.file(&path);
            }
        }
    }
    for entry in std::fs::read_dir(data().join("ggml_bin")).unwrap() {
        seeds.put("ggml", &std::fs::read(entry.unwrap().path().join("model.bin")).unwrap());
    }
    for entry in std::fs::read_dir(data().join("openvino_quantized")).unwrap() {
        let graph = entry.unwrap().path().join("model.xml");
        let files = [graph.clone(), graph.with_extension("bin")].map(|file| std::fs::read(file).unwrap());
        seeds.put("openvino", &files.join(&0));
    }
    for directory in ["coreml", "coreml_quantized"] {
        for entry in std::fs::read_dir(data().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            let package = path.join("Data/com.apple.CoreML");
            let place = if package.is_dir() { package } else { path };
            let spec = if place.is_dir() { place.join("model.mlmodel") } else { place.clone() };
            if spec.extension().is_some_and(|e| e == "mlmodel") {
                let weights = std::fs::read(place.join("weights/weight.bin")).unwrap_or_default();
                let spec = std::fs::read(spec).unwrap();
                seeds.put("coreml", &[&(spec.len() as u16).to_le_bytes()[..], &spec, &weights].concat());
            }
        }
    }
    for (kind, case) in [(0u8, "q4f16_1"), (0, "q4f16_0"), (0, "q0f32"), (0, "awq"), (1, "q3f16_1"), (1, "q3f16_0"), (3, "e4m3_e4m3_f16"), (3, "e5m2_e5m2_f16")] {
        let model = data().join("mlc").join(case).join("model");
        let [list, shard] = ["tensor-cache.json", "params_shard_0.bin"].map(|file| std::fs::read(model.join(file)).unwrap());
        seeds.put("mlc", &[&[kind][..], &(list.len() as u16).to_le_bytes(), &list, &shard].concat());
    }
    for (case, files) in [
        ("json", ["inference.json", "inference.pdiparams"]),
        ("pdmodel", ["inference.pdmodel", "inference.pdiparams"]),
        ("types", ["__model__", "__params__"]),
        ("quantized_json", ["inference.json", "inference.pdiparams"]),
        ("quantized_pdmodel", ["inference.pdmodel", "inference.pdiparams"]),
    ] {
        let [program, params] = files.map(|file| std::fs::read(data().join("paddle_inference").join(case).join(file)).unwrap());
        seeds.put("paddle", &[&(program.len() as u16).to_le_bytes()[..], &program, &params].concat());
    }
    for checkpoint in ["types/types", "many/many", "parts/model.ckpt", "text/ckpt-1"] {
        let at = |end: &str| std::fs::read(data().join(format!("tensorflow/{checkpoint}.{end}"))).unwrap();
        let index = at("index");
        let len = (index.len() as u16).to_le_bytes();
        seeds.put("tensorflow", &[&len[..], &index, &at("data-00000-of-00001")].concat());
    }
    for (kind, case, description) in [(0u8, "zarr2", ".zarray"), (1, "zarr3", "zarr.json")] {
        for entry in std::fs::read_dir(data().join("zarr").join(case)).unwrap() {
            let array = entry.unwrap().path();
            let Ok(json) = std::fs::read(array.join(description)) else {
                continue;
            };
            let chunks = ["0", "0.0", "0.0.0", "0/0", "c/0/0", "c/0/0/0"];
            let chunk = chunks.iter().find_map(|chunk| std::fs::read(array.join(chunk)).ok());
            let len = (json.len() as u16).to_le_bytes();
            seeds.put("zarr", &[&[kind][..], &len, &json, &chunk.unwrap_or_default()].concat());
            let values = [("w/.zarray", &json[..]), ("w/0", b"abcd"), ("w/zarr.json", &json)];
            seeds.put("zarr", &[&[2][..], &leaf(&values)].concat());
        }
    }
    seeds.encoders();
    // A door, a model, eight choices, and edits.
    for door in 0..9u8 {
        for no in 0..4u8 {
            let bytes = Random(u64::from(door) << 8 | u64::from(no) | 1 << 16).bytes(40);
            seeds.put("doors", &[&[door], &bytes[..11 + usize::from(no) * 7]].concat());
        }
    }
}

struct Seeds(PathBuf);

impl Seeds {
    fn put(&mut self, target: &str, bytes: &[u8]) {
        if bytes.len() > LONGEST {
            return;
        }
        let directory = self.0.join(target);
        std::fs::create_dir_all(&directory).unwrap();
        let name = format!("{:08x}", crc32fast::hash(bytes));
        std::fs::write(directory.join(name), bytes).unwrap();
    }

    /// Inputs of the targets for one container, by the file's extension.
    fn file(&mut self, path: &Path) {
        let bytes = std::fs::read(path).unwrap();
        match path.extension().and_then(|e| e.to_str()) {
            Some("npz") => {
                self.put("npz", &bytes);
                self.put("zip", &bytes);
            }
            Some("npy") => self.put("npy", &bytes),
            Some("ckpt") if bytes.first() == Some(&0x0a) => self.put("mindspore", &bytes),
            Some("pt" | "pth" | "pkl" | "bin" | "ckpt" | "pdparams" | "pdopt" | "pdtensor") => {
                self.put("pth", &bytes);
                if bytes.starts_with(b"PK") {
                    self.put("zip", &bytes);
                    self.pickle(&bytes);
                } else {
                    self.put("pickle", &[&[1], &bytes[..]].concat());
                }
            }
            Some("qnat") => self.put("qnat", &bytes),
            Some("onnx") => self.put("onnx", &bytes),
            Some("msgpack") => self.put("msgpack", &bytes),
            Some("bpk") => self.put("burnpack", &bytes),
            Some("h5" | "keras") => self.put("hdf5", &bytes),
            Some("pte" | "ptd") => self.put("executorch", &bytes),
            Some("tflite" | "litertlm") => self.put("tflite", &bytes),
            Some("gguf" | "llamafile") => {
                self.put("gguf", &bytes);
                self.put("gguf_header", &bytes[..bytes.len().min(4096)]);
            }
            _ => {}
        }
    }

    /// The pickle of an archive, and the arrays of an NPZ archive.
    fn pickle(&mut self, archive: &[u8]) {
        let Ok(mut archive) = zip::ZipArchive::new(Cursor::new(archive)) else {
            return;
        };
        for i in 0..archive.len() {
            let Ok(mut member) = archive.by_index(i) else {
                continue;
            };
            let is_pickle = member.name().is_ok_and(|name| name.ends_with("data.pkl"));
            let mut bytes = vec![0];
            if is_pickle && member.read_to_end(&mut bytes).is_ok() {
                self.put("pickle", &bytes);
            }
        }
    }

    fn golden(&mut self, id: u16, golden: &Golden) {
        let id = id.to_le_bytes();
        if golden.tree.is_some() {
            // As it is, and with one changed byte in each of its files.
            self.put("decode", &id);
            for no in 0..golden.weights.len() as u8 {
                self.put("decode", &[id[0], id[1], 0, no, no.wrapping_mul(101), no, 1]);
            }
            return;
        }
        for flags in [0, 7] {
            self.put("decode", &[id[0], id[1], flags]);
        }
        let mut text = String::new();
        for (name, content) in &golden.configs {
            text += &format!("=== {name}\n{}\n", String::from_utf8_lossy(content));
        }
        for (name, bytes) in &golden.weights {
            if name.ends_with("gguf") {
                self.put("gguf", bytes);
                self.put("gguf_header", &bytes[..bytes.len().min(2048)]);
                continue;
            }
            let end = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
            self.put("safetensors", &bytes[8..end]);
            self.put("safetensors_header", &bytes[8..end]);
            self.put("safetensors_header", &bytes[..end]);
            text += &format!("=== {name}\n");
            for t in parse_bytes(bytes.clone()).unwrap().tensors() {
                let dims: Vec<String> = t.shape().iter().map(usize::to_string).collect();
                text += &format!("{} {} {}\n", t.name(), t.dtype(), dims.join(","));
            }
        }
        self.put("directory", text.as_bytes());
    }

    /// Every scheme with a few shapes.
    fn encoders(&mut self) {
        for (id, _) in schemes() {
            let id = id.to_le_bytes();
            // Options, output type, number of tensors; rows, columns, dimensions, kind, values.
            for tail in [
                &[0, 0, 0, 0, 5, 3, 1, 1, 1, 0, 0][..],
                &[0, 2, 0, 1, 7, 4, 1, 6, 2, 0, 0, 5, 2, 1, 3, 9, 9, 0],
                &[3, 17, 1, 0, 4, 3, 0, 0, 3, 0, 0x31, 9, 0, 0, 0, 0, 0x42],
            ] {
                self.put("encode", &[&id[..], tail].concat());
            }
        }
        for no in 0..=20u8 {
            for kind in 0..2 {
                let tail = [
                    no.wrapping_mul(13),
                    no.wrapping_mul(101),
                    1,
                    5,
                    no,
                    1,
                    no,
                    3,
                    0,
                    no,
                ];
                self.put("round_trip", &[&[kind][..], &tail].concat());
            }
        }
    }
}
