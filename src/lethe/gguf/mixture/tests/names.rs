//! Translated names against gguf-py's, and names of llama.cpp's own.

use super::{goldens, tensors, text};
use crate::Dtype;
use crate::lethe::gguf::mixture::rules::Category;
use crate::lethe::gguf::mixture::{LlamaTensor, ModelFacts, keep_reason, layer};
use crate::lethe::llama_names::llama_name;

/// Every name that gguf-py knows gets the same treatment under the name that it is translated to
/// here.
#[test]
fn names_are_those_of_gguf_py() {
    let Some(names) = goldens("names") else {
        return;
    };
    let facts = ModelFacts::default();
    let treated = |name: &str| {
        let tensor = LlamaTensor {
            name: name.to_owned(),
            layer: layer(name),
            dims: vec![256, 256],
            dtype: Dtype::F32,
            is_multimodal: false,
            parts: vec![],
            shown: name,
        };
        keep_reason(&tensor, &facts).map_or_else(
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
        let ours = llama_name(&format!("{name}.weight")).name;
        // Vectors are kept under any name.
        let is_vector = ["norm", "ln", "router_bias"]
            .iter()
            .any(|part| name.contains(part))
            && treated(&ours) == "kept";
        if !is_vector && !theirs.contains(&treated(&ours)) {
            other.push(format!("{name}: {ours} {}, {theirs:?} {}", treated(&ours), line[1]));
        }
    }
    assert!(other.is_empty(), "{}\n{}", other.len(), other.join("\n"));
}

#[test]
fn names_of_llama_cpp_stay() {
    let Some(goldens) = goldens("models") else {
        return;
    };
    for model in goldens["models"].as_object().unwrap().values() {
        for (name, dims) in tensors(model) {
            let ours = llama_name(&name);
            assert!(ours.name == name || dims.len() == 1, "{name}: {ours:?}");
            assert_eq!(ours.expert, None, "{name}");
        }
    }
}
