//! Adapters of PEFT as GGUF files. `tests/data/adapters/converted.json` has the sums of those that
//! llama.cpp's converter makes of an adapter for every matrix of each whole model, which is made here
//! as `generate/adapters_gguf.py` makes it.

use std::collections::BTreeMap;

use anamnesis::{AnamnesisError, ConvertTarget};
use sha2::{Digest, Sha256};

use super::*;
use crate::whole::some_models;

const RANK: usize = 2;

/// Eighths from -4 to 3.875.
fn factor(seed: usize, shape: &[usize]) -> Vec<u8> {
    let value = |at: usize| ((at * 37 + seed * 11) % 64) as f32 / 8.0 - 4.0;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    f32s(&values)
}

/// Writes an adapter for the matrices of the layers of `model` into `directory`.
fn write_adapter(model: &Path, directory: &Path) {
    let config = std::fs::read_to_string(model.join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let is_conv1d = config["model_type"] == "gpt2";
    let model = parse(model).unwrap();
    let shapes: BTreeMap<_, _> = model.tensors().map(|t| (t.name(), t.shape())).collect();
    let is_target = |name: &str, shape: &[usize]| {
        let is_matrix = shape.len() == 2 && name.ends_with(".weight");
        let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        is_matrix && !name.contains(".kv_b_proj.") && name.split('.').any(is_number)
    };
    let targets = shapes.iter().filter(|(name, shape)| is_target(name, shape));
    let mut tensors = vec![];
    for (seed, (name, shape)) in targets.enumerate() {
        let [rows, cols] = match is_conv1d {
            true => [shape[1], shape[0]],
            false => [shape[0], shape[1]],
        };
        let module = format!("base_model.model.{}", name.strip_suffix(".weight").unwrap());
        let mut add = |end: &str, seed: usize, shape: &[usize]| {
            tensors.push(raw(&format!("{module}.{end}"), "F32", shape, factor(seed, shape)));
        };
        add("lora_A.weight", seed, &[RANK, cols]);
        add("lora_B.weight", seed + 5, &[rows, RANK]);
    }
    std::fs::create_dir(directory).unwrap();
    std::fs::write(directory.join("adapter_model.safetensors"), file(&tensors, &[])).unwrap();
    let settings =
        json!({"peft_type": "LORA", "r": RANK, "lora_alpha": 3, "fan_in_fan_out": is_conv1d});
    std::fs::write(directory.join("adapter_config.json"), settings.to_string()).unwrap();
}

/// The adapter in `directory`, of the model in `base`, as the GGUF file `out`.
fn convert(directory: &Path, base: &Path, out: &Path) -> Result<(), AnamnesisError> {
    let mut options = options(TargetDtype::F32, vec![]);
    options.target = ConvertTarget::Gguf;
    options.base = Some(base.to_owned());
    parse(directory)?.convert(out, options).map(drop)
}

/// The whole model in `base`, with an adapter, as GGUF.
fn whole(base: &Path, adapter: &Path) -> Result<Vec<u8>, AnamnesisError> {
    let mut options = options(TargetDtype::F32, vec![Adapter::open(adapter)?]);
    options.target = ConvertTarget::Gguf;
    let root = crate::common::tempdir().unwrap();
    let file = root.path().join("whole.gguf");
    parse(base)?.convert(&file, options)?;
    Ok(std::fs::read(&file).unwrap())
}

/// The bytes are the converter's, and the file adds to the model in GGUF what the directory adds to
/// the model before it becomes one.
#[test]
fn every_class_gets_the_converters_file() {
    let text = std::fs::read_to_string(adapters().join("converted.json")).unwrap();
    let sums: BTreeMap<String, Option<String>> = serde_json::from_str(&text).unwrap();
    let mut compared = 0;
    let models = some_models(2).into_iter();
    for model in models.filter(|model| model.parent() == Some(&data().join("whole"))) {
        let name = model.file_name().unwrap().to_str().unwrap();
        let (base, root) = (model.join("hf"), crate::common::tempdir().unwrap());
        let (own, out) = (root.path().join("adapter"), root.path().join("adapter.gguf"));
        write_adapter(&base, &own);
        let wanted = sums[name].as_ref();
        match convert(&own, &base, &out) {
            Ok(()) => {}
            Err(error) if wanted.is_none() => {
                assert!(error.to_string().contains("tensor `base_model"), "{name}: {error}");
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        }
        if let Some(wanted) = wanted {
            let sum = Sha256::digest(std::fs::read(&out).unwrap());
            let hex: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, *wanted, "{name}");
            compared += 1;
        }
        // Stacks of experts take no factors in GGUF, and some weights change their rows.
        let (Ok(before), Ok(after)) = (whole(&base, &own), whole(&base, &out)) else {
            continue;
        };
        assert!(before == after, "{name}: a merged adapter differs");
    }
    assert!(compared > 10, "{compared}");
}

/// Adapters of mlx-lm become the adapters that add the same.
#[test]
fn adapters_of_mlx_add_the_same() {
    let root = crate::common::tempdir().unwrap();
    let (base, own) = (adapters().join("base"), adapters().join("mlx"));
    let out = root.path().join("mlx.gguf");
    convert(&own, &base, &out).unwrap();
    assert!(whole(&base, &own).unwrap() == whole(&base, &out).unwrap());
}

#[test]
fn what_llama_cpp_does_not_add_is_refused() {
    let root = crate::common::tempdir().unwrap();
    let out = root.path().join("out.gguf");
    for (name, expected) in [
        ("dora", "`use_dora` is on"),
        ("mlx-dora", "`fine_tune_type: dora` is on"),
        ("mlx-full", "llama.cpp adds products alone"),
        ("saved", "llama.cpp adds products alone"),
        ("bias-all", "`bias` is on"),
        ("lora-bias", "`lora_bias` is on"),
        ("experts", "`target_parameters` is on"),
        ("loha", "`peft_type: LOHA or LOKR` is on"),
        ("mlx-experts", "stacked experts are not converted"),
    ] {
        let error = convert(&adapters().join(name), &adapters().join("base"), &out).unwrap_err();
        assert!(error.to_string().contains(expected), "{name}: {error}");
        assert!(!out.exists());
    }
    let plain = adapters().join("plain");
    let error = convert(&plain, &data().join("whole/qwen3/hf"), &out).unwrap_err();
    assert!(error.to_string().contains("hidden_size"), "{error}");
    let error = convert(&plain, &adapters().join("plain"), &out).unwrap_err();
    assert!(error.to_string().contains("no config.json"), "{error}");
    let error =
        convert(&data().join("whole/qwen3/hf"), &adapters().join("base"), &out).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
}

/// Ranks and scales of single modules, of which GGUF has one alpha for all: what is added stays the
/// same.
#[test]
fn scales_of_modules_go_into_the_factors() {
    let root = crate::common::tempdir().unwrap();
    let [adapter, before, after, back] =
        ["adapter.gguf", "before.gguf", "after.gguf", "back"].map(|name| root.path().join(name));
    let base = adapters().join("base");
    convert(&adapters().join("patterns"), &base, &adapter).unwrap();
    let convert = |from: &Path, adapters, scope, target, to: &Path| {
        let mut options = options(TargetDtype::F32, adapters);
        (options.scope, options.target) = (scope, target);
        parse(from).unwrap().convert(to, options).unwrap();
    };
    let adapters = vec![Adapter::open(&adapter).unwrap()];
    convert(&base, vec![], ModelScope::Model, ConvertTarget::Gguf, &before);
    convert(&before, adapters, ModelScope::Auto, ConvertTarget::Gguf, &after);
    convert(&after, vec![], ModelScope::Model, ConvertTarget::Safetensors, &back);
    let (got, want) = (parse(&back).unwrap(), expected("base", "patterns"));
    for t in want.tensors() {
        let pairs = values(&want, t.name())
            .into_iter()
            .zip(values(&got, t.name()));
        for (want, got) in pairs {
            assert!((want - got).abs() <= 1e-6, "{}: {want} {got}", t.name());
        }
    }
}

/// An adapter that becomes GGUF comes back with the same values under the same names, unless GGUF has
/// rows of one weight in several.
#[test]
fn adapters_come_back() {
    let (mut whole, mut parted) = (0, 0);
    let models = some_models(3).into_iter();
    for model in models.filter(|model| model.parent() == Some(&data().join("whole"))) {
        let (base, root) = (model.join("hf"), crate::common::tempdir().unwrap());
        let [own, out, back] =
            ["adapter", "adapter.gguf", "back"].map(|name| root.path().join(name));
        write_adapter(&base, &own);
        if convert(&own, &base, &out).is_err() {
            continue;
        }
        let mut options = options(TargetDtype::F32, vec![]);
        options.base = Some(base);
        match parse(&out).unwrap().convert(&back, options) {
            Ok(_) => {}
            Err(error) => {
                assert!(error.to_string().contains("no whole one"), "{}: {error}", model.display());
                parted += 1;
                continue;
            }
        }
        let (before, after) = (parse(&own).unwrap(), parse(&back).unwrap());
        assert_eq!(before.tensors().len(), after.tensors().len(), "{}", model.display());
        for t in before.tensors() {
            let found = after
                .tensor(t.name())
                .unwrap_or_else(|| panic!("{}", t.name()));
            assert_eq!(found.bytes().unwrap(), t.bytes().unwrap(), "{}", t.name());
        }
        Adapter::open(&back).unwrap();
        whole += 1;
    }
    assert!(whole > 10 && parted > 0, "{whole} {parted}");
}
