//! Experts one by one where others have a stack: those of Gemma 4 in quantized checkpoints, and those
//! of early GGUF files.

use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, ConvertTarget, ForgetScheme, ModelScope, TargetDtype, parse};

use super::{Tensors, copy, json, metadata, tensors, to_gguf, to_hf, write};
use crate::common::data;

/// A copy of Gemma 4 in `directory` whose experts are stored one by one, below `prefix`.
fn gemma4_apart(directory: &Path) -> PathBuf {
    let to = directory.join("apart");
    copy(&data().join("whole/gemma4_moe/hf"), &to);
    let mut apart = Tensors::new();
    for (name, (dtype, shape, bytes)) in tensors(&to) {
        let Some((layer, part)) = name.split_once(".experts.") else {
            apart.insert(name, (dtype, shape, bytes));
            continue;
        };
        let parts: &[&str] = match part {
            "down_proj" => &["down_proj"],
            _ => &["gate_proj", "up_proj"],
        };
        let (rows, cols) = (shape[1] / parts.len(), shape[2]);
        for (i, matrix) in bytes.chunks(rows * cols * 2).enumerate() {
            let (expert, part) = (i / parts.len(), parts[i % parts.len()]);
            let name = format!("{layer}.experts.{expert}.{part}.weight");
            apart.insert(name, (dtype.clone(), vec![rows, cols], matrix.to_vec()));
        }
    }
    write(&apart, &to);
    to
}

fn remembered(from: &Path, to: PathBuf) -> PathBuf {
    let options = ConvertOptions::from(TargetDtype::BF16);
    parse(from).unwrap().convert(&to, options).unwrap();
    to
}

#[test]
fn experts_of_gemma4_are_stacked() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (apart, whole) = (
        gemma4_apart(directory.path()),
        data().join("whole/gemma4_moe"),
    );
    assert!(tensors(&to_gguf(&apart, directory.path())) == tensors(&whole.join("canonical.gguf")));
    let stacked = remembered(&apart, path("stacked"));
    assert!(tensors(&stacked) == tensors(&whole.join("hf")));
    let scheme = || {
        "mlx-4bit"
            .parse::<ForgetScheme>()
            .unwrap()
            .with_group_size(32)
    };
    for (from, to) in [(&apart, "mlx-apart"), (&whole.join("hf"), "mlx")] {
        parse(from).unwrap().forget(path(to), scheme()).unwrap();
    }
    assert!(tensors(&path("mlx-apart")) == tensors(&path("mlx")));
}

/// Matrices of 12 columns have no groups of 16, and stay as they are.
#[test]
fn experts_of_gemma4_in_nvfp4_are_stacked() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (apart, quantized) = (gemma4_apart(directory.path()), path("nvfp4"));
    let scheme = "nvfp4".parse::<ForgetScheme>().unwrap();
    parse(&apart).unwrap().forget(&quantized, scheme).unwrap();
    let gate = "model.layers.0.experts.1.gate_proj.weight";
    assert_ne!(tensors(&quantized)[gate].0, "BF16");
    let stacked = tensors(&remembered(&quantized, path("stacked")));
    // Tensors alone stay as they are stored.
    let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Tensors);
    parse(&quantized)
        .unwrap()
        .convert(path("single"), options)
        .unwrap();
    let single = tensors(&path("single"));
    let names = |all: &Tensors| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        names(&stacked),
        names(&tensors(&data().join("whole/gemma4_moe/hf")))
    );
    for layer in 0..3 {
        let prefix = format!("model.layers.{layer}.experts.");
        let one = |expert: usize, part: &str| {
            single[&format!("{prefix}{expert}.{part}.weight")].2.clone()
        };
        let both = |e| [one(e, "gate_proj"), one(e, "up_proj")].concat();
        let gates: Vec<u8> = (0..4).flat_map(both).collect();
        assert!(stacked[&format!("{prefix}gate_up_proj")].2 == gates);
        let down: Vec<u8> = (0..4).flat_map(|e| one(e, "down_proj")).collect();
        assert!(stacked[&format!("{prefix}down_proj")].2 == down);
    }
    let gguf = tensors(&to_gguf(&quantized, directory.path()));
    let again = tensors(&to_gguf(&path("stacked"), directory.path()));
    assert_eq!(names(&gguf), names(&again));
    for (name, tensor) in &gguf {
        // A product with the scales of the router, which a directory in BF16 has rounded before.
        if name.ends_with("ffn_gate_inp.weight") {
            continue;
        }
        assert!(
            again[name] == *tensor,
            "{name}: {:?} {:?}",
            &tensor.0,
            &again[name].0
        );
    }
}

#[test]
fn an_expert_that_is_missing_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let apart = gemma4_apart(directory.path());
    let mut all = tensors(&apart);
    all.remove("model.layers.1.experts.2.up_proj.weight")
        .unwrap();
    write(&all, &apart);
    let converted = parse(&apart)
        .unwrap()
        .convert(directory.path().join("x"), TargetDtype::BF16);
    let error = converted.unwrap_err().to_string();
    assert!(
        error.contains("layers.1.experts.2.up_proj.weight"),
        "{error}"
    );
}

/// Writes Mixtral as early versions of llama.cpp do: a tensor for each expert.
fn early_mixtral(directory: &Path, change: impl FnOnce(&mut Tensors)) -> PathBuf {
    let canonical = data().join("whole/mixtral/canonical.gguf");
    let mut apart = Tensors::new();
    for (name, (dtype, shape, bytes)) in tensors(&canonical) {
        let Some(stem) = name.strip_suffix("_exps.weight") else {
            apart.insert(name, (dtype, shape, bytes));
            continue;
        };
        for (expert, matrix) in bytes.chunks(bytes.len() / shape[0]).enumerate() {
            let tensor = (dtype.clone(), shape[1..].to_vec(), matrix.to_vec());
            apart.insert(format!("{stem}.{expert}.weight"), tensor);
        }
    }
    change(&mut apart);
    let at = directory.join("tensors");
    std::fs::create_dir(&at).unwrap();
    write(&apart, &at);
    let options = ConvertOptions::from(ConvertTarget::Gguf)
        .with_scope(ModelScope::Tensors)
        .with_gguf_metadata(metadata(&canonical).into_iter().collect());
    let output = directory.join("early.gguf");
    parse(at.join("model.safetensors"))
        .unwrap()
        .convert(&output, options)
        .unwrap();
    output
}

#[test]
fn experts_of_early_gguf_files() {
    let directory = tempfile::tempdir().unwrap();
    let early = early_mixtral(directory.path(), |_| {});
    assert!(tensors(&early).contains_key("blk.1.ffn_down.3.weight"));
    let back = to_hf(&early, directory.path());
    assert!(tensors(&back) == tensors(&data().join("whole/mixtral/hf")));
    assert_eq!(
        json(&back.join("config.json"))["architectures"][0],
        "MixtralForCausalLM"
    );
}

#[test]
fn early_files_without_an_expert_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let early = early_mixtral(directory.path(), |all| {
        drop(all.remove("blk.1.ffn_up.2.weight"));
    });
    let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
    let converted = parse(&early)
        .unwrap()
        .convert(directory.path().join("back"), options);
    let error = converted.unwrap_err().to_string();
    assert!(
        error.contains("ffn_up") && error.contains("experts"),
        "{error}"
    );
}
