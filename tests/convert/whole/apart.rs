//! Experts one by one where others have a stack: those of Gemma 4 in quantized checkpoints, and those
//! of early GGUF files.

use std::path::{Path, PathBuf};

use anamnesis::{
    ConvertOptions, ConvertTarget, FloatCast, ForgetScheme, ModelScope, RememberOptions,
    TargetDtype, parse,
};

use super::{Tensors, copy, json, metadata, tensors, to_gguf, to_hf, write};
use crate::canonical::canonical_gguf;
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
    let directory = crate::common::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (apart, whole) = (gemma4_apart(directory.path()), data().join("whole/gemma4_moe"));
    assert!(tensors(&to_gguf(&apart, directory.path())) == tensors(&canonical_gguf(&whole)));
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
    let directory = crate::common::tempdir().unwrap();
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
    assert_eq!(names(&stacked), names(&tensors(&data().join("whole/gemma4_moe/hf"))));
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
        assert!(again[name] == *tensor, "{name}: {:?} {:?}", &tensor.0, &again[name].0);
    }
}

#[test]
fn an_expert_that_is_missing_is_named() {
    let directory = crate::common::tempdir().unwrap();
    let apart = gemma4_apart(directory.path());
    let mut all = tensors(&apart);
    all.remove("model.layers.1.experts.2.up_proj.weight")
        .unwrap();
    write(&all, &apart);
    let converted = parse(&apart)
        .unwrap()
        .convert(directory.path().join("x"), TargetDtype::BF16);
    let error = converted.unwrap_err().to_string();
    assert!(error.contains("layers.1.experts.2.up_proj.weight"), "{error}");
}

/// Writes Mixtral as early versions of llama.cpp do: a tensor for each expert.
fn early_mixtral(directory: &Path, change: impl FnOnce(&mut Tensors)) -> PathBuf {
    let canonical = canonical_gguf(data().join("whole/mixtral"));
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
    let directory = crate::common::tempdir().unwrap();
    let early = early_mixtral(directory.path(), |_| {});
    assert!(tensors(&early).contains_key("blk.1.ffn_down.3.weight"));
    let back = to_hf(&early, directory.path());
    assert!(tensors(&back) == tensors(&data().join("whole/mixtral/hf")));
    assert_eq!(json(&back.join("config.json"))["architectures"][0], "MixtralForCausalLM");
}

#[test]
fn early_files_without_an_expert_are_refused() {
    let directory = crate::common::tempdir().unwrap();
    let early = early_mixtral(directory.path(), |all| {
        drop(all.remove("blk.1.ffn_up.2.weight"));
    });
    let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
    let converted = parse(&early)
        .unwrap()
        .convert(directory.path().join("back"), options);
    let error = converted.unwrap_err().to_string();
    assert!(error.contains("ffn_up") && error.contains("experts"), "{error}");
}

/// [`early_mixtral`] with another encoding.
fn early_mixtral_in(scheme: &str, directory: &Path) -> PathBuf {
    let options = ConvertOptions::from(scheme.parse::<ForgetScheme>().unwrap());
    let to = directory.join(format!("early-{scheme}.gguf").replace(':', "-"));
    let early = parse(early_mixtral(directory, |_| {})).unwrap();
    early
        .convert(&to, options.with_scope(ModelScope::Tensors))
        .unwrap();
    to
}

/// llama.cpp no longer loads a tensor for each expert: what becomes GGUF again has them in stacks, as
/// if the file had been made of the later one.
#[test]
fn experts_of_early_gguf_files_are_stacked() {
    let directory = crate::common::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let canonical = canonical_gguf(data().join("whole/mixtral"));
    let later = path("later-q8_0.gguf");
    let scheme = |name: &str| name.parse::<ForgetScheme>().unwrap();
    let model = parse(&canonical).unwrap();
    model.forget(&later, scheme("gguf:q8_0")).unwrap();
    let early = early_mixtral_in("gguf:q8_0", directory.path());
    assert_eq!(tensors(&early)["blk.1.ffn_up.3.weight"].0, "Q8_0");
    for (early, later) in [(path("early.gguf"), canonical), (early, later)] {
        let gguf = || ConvertOptions::from(ConvertTarget::Gguf);
        let run = |cast| RememberOptions::new(TargetDtype::F16).with_cast(cast);
        let decode = |cast| gguf().with_run(run(cast)).with_decode(true);
        let copy = gguf().with_run(run(FloatCast::Checked));
        let casts = [FloatCast::Keep, FloatCast::Checked].map(decode);
        let encodings = ["gguf:q8_0", "gguf:q4_0", "gguf:q4_k_m"];
        let encodings = encodings.map(|name| ConvertOptions::from(scheme(name)));
        let options = [gguf(), copy].into_iter().chain(casts).chain(encodings);
        for (i, options) in options.enumerate() {
            let outputs = ["a", "b"].map(|name| path(&format!("{name}{i}.gguf")));
            for (from, to) in [&early, &later].into_iter().zip(&outputs) {
                let _ = std::fs::remove_file(to);
                parse(from).unwrap().convert(to, options.clone()).unwrap();
            }
            let [found, expected] = outputs.map(|path| tensors(&path));
            assert!(found == expected, "{i} of {}", early.display());
        }
    }
}

/// Bytes of experts end within the pieces that are copied at once.
#[test]
fn experts_that_are_larger_than_a_piece() {
    let directory = crate::common::tempdir().unwrap();
    let (shape, count) = ([700, 333], 3);
    let len = shape[0] * shape[1] * 4;
    let bytes: Vec<u8> = (0..count * len).map(|i| (i % 251) as u8 & 0x3f).collect();
    let apart = bytes.chunks(len).enumerate().map(|(expert, matrix)| {
        let tensor = ("F32".to_owned(), shape.to_vec(), matrix.to_vec());
        (format!("blk.0.ffn_up.{expert}.weight"), tensor)
    });
    write(&apart.collect(), directory.path());
    let early = directory.path().join("early.gguf");
    let options = ConvertOptions::from(ConvertTarget::Gguf).with_scope(ModelScope::Tensors);
    let stored = parse(directory.path().join("model.safetensors")).unwrap();
    stored.convert(&early, options).unwrap();
    let found = tensors(&to_gguf(&early, directory.path()));
    let expected = ("F32".to_owned(), vec![count, 700, 333], bytes);
    assert!(found["blk.0.ffn_up_exps.weight"] == expected);
    assert_eq!(found.len(), 1);
}

#[test]
fn early_files_without_an_expert_are_not_stacked() {
    for expert in ["2", "3"] {
        let directory = crate::common::tempdir().unwrap();
        let early = early_mixtral(directory.path(), |all| {
            drop(all.remove(&format!("blk.1.ffn_up.{expert}.weight")));
        });
        let output = directory.path().join("stacked.gguf");
        let converted = parse(&early).unwrap().convert(&output, ConvertTarget::Gguf);
        let error = converted.unwrap_err().to_string();
        assert!(error.contains(&format!("ffn_up.{expert}")), "{error}");
        assert!(!output.exists());
    }
}
