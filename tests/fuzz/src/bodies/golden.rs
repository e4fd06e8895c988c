//! Quantized models of `tests/data` in memory, as the structured targets begin with.

use std::path::Path;
use std::sync::OnceLock;

use super::bytes::id;
use crate::common::data;

/// A model: its weight files, and the configs beside them.
pub struct Golden {
    /// The directory below `tests/data`.
    pub name: String,
    pub weights: Vec<File>,
    pub configs: Vec<File>,
    /// What is opened, below the directory, of a model whose files are a tree; they are all in
    /// `weights`.
    pub tree: Option<&'static str>,
}

/// Models that are a tree of files, below directories of the test data: distributed checkpoints,
/// those of DeepSpeed, and a store of Ollama, of which the manifest is opened.
const TREES: &[(&str, &str)] = &[
    ("dcp/files", ""),
    ("dcp/four", ""),
    ("dcp/one", ""),
    ("dcp/ragged", ""),
    ("dcp/two", ""),
    ("deepspeed/stage1", ""),
    ("deepspeed/stage1-frozen", ""),
    ("deepspeed/stage2", ""),
    ("deepspeed/stage2-one", ""),
    ("deepspeed/stage3", ""),
    ("deepspeed/stage3-frozen", ""),
    ("fsdp/four", ""),
    ("fsdp/replicas", ""),
    ("fsdp/torch_2_6", ""),
    ("uqff/isq", ""),
    ("uqff/random", ""),
    ("ollama/models", "manifests/registry.ollama.ai/library/layers/latest"),
];

/// The name of a file, and its content.
pub type File = (String, Vec<u8>);

/// Every model of safetensors and GGUF files, with its [`id`].
pub fn goldens() -> &'static [(u16, Golden)] {
    static GOLDENS: OnceLock<Vec<(u16, Golden)>> = OnceLock::new();
    GOLDENS.get_or_init(|| {
        let mut found: Vec<Golden> = TREES.iter().map(|(name, open)| tree(name, open)).collect();
        collect(&data(), &mut found);
        found.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(found.len() > 300, "{}", found.len());
        found
            .into_iter()
            .map(|golden| (id(&golden.name), golden))
            .collect()
    })
}

/// The model whose files are everything below directory `name`.
fn tree(name: &str, open: &'static str) -> Golden {
    let (root, mut weights) = (data().join(name), Vec::new());
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let below = path.strip_prefix(&root).unwrap().to_str().unwrap();
            weights.push((below.to_owned(), std::fs::read(&path).unwrap()));
        }
    }
    weights.sort();
    Golden { name: name.to_owned(), weights, configs: vec![], tree: Some(open) }
}

fn collect(directory: &Path, found: &mut Vec<Golden>) {
    let name = directory.strip_prefix(data()).unwrap().to_str().unwrap();
    let mut golden = Golden { name: name.to_owned(), weights: vec![], configs: vec![], tree: None };
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let files = match name.rsplit_once('.') {
            Some((stem, "safetensors")) if !stem.contains("expected") => &mut golden.weights,
            Some(("model", "gguf")) => &mut golden.weights,
            Some((_, "json")) => &mut golden.configs,
            _ => continue,
        };
        files.push((name, std::fs::read(&path).unwrap()));
    }
    golden.weights.sort();
    golden.configs.sort();
    let len: usize = golden.weights.iter().map(|(_, bytes)| bytes.len()).sum();
    if !golden.weights.is_empty() && len < 1 << 17 {
        found.push(golden);
    }
}
