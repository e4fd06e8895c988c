//! Directories as Hugging Face has them, small and synthetic, and what an output directory must be.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use super::{Random, Raw, f32s, file, raw};

pub const INDEX: &str = "model.safetensors.index.json";

/// A config with a quantization at the top and one in `text_config`, and numbers that a JSON
/// library would rewrite.
pub const CONFIG: &str = r#"{
  "architectures": ["TestForCausalLM"],
  "rms_norm_eps": 1e-06,
  "quantization_config": {
    "quant_method": "fp8",
    "weight_block_size": [128, 128]
  },
  "rope_theta": 1.00E+4,
  "text_config": {
    "hidden_size":384,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "dtype": "float8_e4m3fn"
  },
  "torch_dtype": "float8_e4m3fn",
  "vocab_size": 8
}
"#;

/// What [`CONFIG`] becomes in BF16.
pub const PLAIN_CONFIG: &str = r#"{
  "architectures": ["TestForCausalLM"],
  "rms_norm_eps": 1e-06,
  "rope_theta": 1.00E+4,
  "text_config": {
    "hidden_size":384,
    "dtype": "bfloat16"
  },
  "torch_dtype": "bfloat16",
  "vocab_size": 8
}
"#;

/// Files beside the weights that are copied.
pub const KEPT: &[(&str, &str)] = &[
    ("README.md", "# Model\n"),
    ("coreml.mlmodel/notes.txt", "a directory, whatever its name"),
    ("extra/deeper/vocab.txt", "a\nb\n"),
    ("extra/notes.txt", "notes"),
    ("generation_config.json", "{\"do_sample\": false}"),
    ("tokenizer.json", "{\"version\": \"1.0\"}\n"),
];

/// Files beside the weights that are not: they describe the quantization, or are weights
/// themselves.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("extra/more.bin", "weights"),
    ("hf_quant_config.json", "{\"producer\": {\"name\": \"test\"}}"),
    ("model_qmap.json", "{}"),
    ("quantize_config.json", "{\"quant_method\": \"fp8\"}"),
    ("training_args.bin", "weights"),
];

/// The name of file `no`, from 0 on, of `count`.
pub fn shard_name(no: usize, count: usize) -> String {
    format!("model-{:05}-of-{count:05}.safetensors", no + 1)
}

/// The tensors of each shard: one layer per shard, except that the second has nothing but scales.
/// No weight has its scales in its own shard. Only the config has the block size of the last
/// weight.
pub fn shards(layers: usize, rows: usize) -> Vec<Vec<Raw>> {
    let mut random = Random(7 + rows as u64);
    let mut out = vec![Vec::new(); layers + 1];
    out[0].push(raw("model.embed_tokens.weight", "BF16", &[8, 384], random.bytes(8 * 384 * 2)));
    for i in 0..layers {
        let (n, k) = if i == layers - 1 {
            (192, 192)
        } else {
            (rows, 384)
        };
        let name = format!("model.layers.{i}.proj.weight");
        let codes = random.bytes(n * k).iter().map(|b| b & 0xf7).collect();
        let own = if i == 0 { 0 } else { i + 1 };
        out[own].push(raw(&name, "F8_E4M3", &[n, k], codes));
        out[own].push(raw(
            &format!("model.layers.{i}.norm.weight"),
            "BF16",
            &[k],
            random.bytes(2 * k),
        ));
        let grid = [n.div_ceil(128), k.div_ceil(128)];
        let scales = f32s(&random.floats(grid[0] * grid[1]));
        let apart = [1, (i + 2) % (layers + 1)][usize::from(i > 0)];
        out[apart].push(raw(&format!("{name}_scale_inv"), "F32", &grid, scales));
    }
    out[layers].push(raw("model.ids", "I64", &[5], random.bytes(40)));
    out
}

/// Writes an index that says where each tensor is.
pub fn write_index(dir: &Path, name: &str, map: &[(&str, &str)]) {
    let entries: Vec<String> = map
        .iter()
        .map(|(tensor, file)| format!("{tensor:?}: {file:?}"))
        .collect();
    let json = format!("{{\"metadata\": {{}}, \"weight_map\": {{{}}}}}", entries.join(", "));
    std::fs::write(dir.join(name), json).unwrap();
}

/// Writes shards and their index.
pub fn write_shards(dir: &Path, shards: &[Vec<Raw>]) {
    std::fs::create_dir_all(dir).unwrap();
    let names: Vec<String> = (0..shards.len())
        .map(|no| shard_name(no, shards.len()))
        .collect();
    for (name, tensors) in names.iter().zip(shards) {
        std::fs::write(dir.join(name), file(tensors, &[("format", "pt")])).unwrap();
    }
    let map = names.iter().zip(shards).flat_map(|(name, tensors)| {
        tensors
            .iter()
            .map(move |t| (t.name.as_str(), name.as_str()))
    });
    write_index(dir, INDEX, &map.collect::<Vec<_>>());
}

/// Writes small files, and the directories that they are in.
pub fn write_files(dir: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

/// A whole model in `dir`: shards, config, and everything beside them.
pub fn make(dir: &Path, shards: &[Vec<Raw>]) {
    write_shards(dir, shards);
    write_files(dir, &[("config.json", CONFIG)]);
    write_files(dir, KEPT);
    write_files(dir, LEFT_OUT);
}

/// Writes the model of `shards` as one file in the directory `dir`.
pub fn in_one_file(dir: &Path, shards: &[Vec<Raw>]) -> PathBuf {
    write_files(dir, &[("config.json", CONFIG)]);
    std::fs::write(dir.join("model.safetensors"), file(&shards.concat(), &[])).unwrap();
    dir.join("model.safetensors")
}

/// A model of seven layers, which becomes seven shards, and the files of its conversion to BF16.
pub fn seven_layers(root: &Path, rows: usize) -> (PathBuf, BTreeMap<String, Vec<u8>>) {
    let input = root.join("model");
    make(&input, &shards(7, rows));
    anamnesis::parse(&input)
        .unwrap()
        .remember(root.join("want"), anamnesis::TargetDtype::BF16)
        .unwrap();
    (input, tree(&root.join("want")))
}

/// Every file below `dir` with its bytes.
pub fn tree(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(
                tree(&entry.path())
                    .into_iter()
                    .map(|(below, bytes)| (format!("{name}/{below}"), bytes)),
            );
        } else {
            found.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
    found
}

/// Fails unless both directories have the same files with the same bytes.
pub fn assert_same_tree(
    expected: &BTreeMap<String, Vec<u8>>,
    actual: &BTreeMap<String, Vec<u8>>,
    context: &str,
) {
    assert_eq!(expected.keys().collect::<Vec<_>>(), actual.keys().collect::<Vec<_>>(), "{context}");
    for (name, bytes) in expected {
        assert!(*bytes == actual[name], "{context}: {name} differs");
    }
}

/// The names in `dir` that end in `ending`, sorted.
pub fn names_in(dir: &Path, ending: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| name.ends_with(ending));
    names.sort();
    names
}

/// The names of the tensors of each weight file of an output, in the order of their data. Fails
/// unless every file loads, and the index has every tensor once, in its file.
pub fn placement(dir: &Path) -> Vec<Vec<String>> {
    let names = names_in(dir, ".safetensors");
    let mut found = BTreeMap::new();
    let (mut out, mut total) = (Vec::new(), 0);
    for name in &names {
        let bytes = std::fs::read(dir.join(name)).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt", "{name}");
        for (tensor, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            total += view.data().len();
            assert!(found.insert(tensor, name.clone()).is_none(), "twice");
        }
        out.push(header.offset_keys());
    }
    if let [only] = names.as_slice() {
        assert_eq!(only, "model.safetensors");
        assert!(!dir.join(INDEX).exists());
        return out;
    }
    assert_eq!(
        names,
        (0..names.len())
            .map(|no| shard_name(no, names.len()))
            .collect::<Vec<_>>()
    );
    let index: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join(INDEX)).unwrap()).unwrap();
    assert_eq!(index["metadata"]["total_size"], total);
    let map: BTreeMap<String, String> =
        serde_json::from_value(index["weight_map"].clone()).unwrap();
    assert_eq!(map, found);
    out
}

/// All tensors of an output in one safetensors file.
pub fn joined(dir: &Path) -> Vec<u8> {
    let files: Vec<Vec<u8>> = names_in(dir, ".safetensors")
        .iter()
        .map(|name| std::fs::read(dir.join(name)).unwrap())
        .collect();
    let tensors: Vec<(String, TensorView<'_>)> = files
        .iter()
        .flat_map(|bytes| SafeTensors::deserialize(bytes).unwrap().tensors())
        .collect();
    safetensors::serialize(tensors, None).unwrap()
}
