//! Parts of models and fused tensors, against llama.cpp's converter with the same options
//! (`generate/whole_parts.py`): what each changes of the file without it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, ConvertTarget, GgufMetadataValue, ModelScope, TargetDtype, parse};
use serde_json::Value;

use super::classes::{described, models as classes, options as class_options, value, written};
use super::{OTHERWISE, Tensors, copy, json, metadata, models, named, tensors, to_gguf, to_hf};
use crate::common::{data, effort};

const OPTIONS: [&str; 5] = ["vocab-only", "mtp", "no-mtp", "fuse-qkv", "fuse-gate-up-exps"];

/// Options with which the program is asked for `option`.
fn with(mut options: ConvertOptions, option: &str) -> ConvertOptions {
    match option {
        "vocab-only" => options.scope = ModelScope::Vocabulary,
        "mtp" => options.scope = ModelScope::Prediction,
        "no-mtp" => options.scope = ModelScope::WithoutPrediction,
        "fuse-qkv" => options.fuse_qkv = true,
        "fuse-gate-up-exps" => options.fuse_gate_up_exps = true,
        _ => panic!("{option}"),
    }
    options
}

/// Name, directory and options of each model that [`OPTIONS`] are tried with, in `root`.
fn all(root: &Path) -> Vec<(String, PathBuf, ConvertOptions)> {
    let mut all = vec![];
    let step = effort([5, 2, 1]);
    for model in models().into_iter().step_by(step) {
        let kind = model.parent().unwrap().file_name().unwrap();
        let name =
            format!("{}/{}", kind.to_str().unwrap(), model.file_name().unwrap().to_str().unwrap());
        let place = root.join(kind);
        std::fs::create_dir_all(&place).unwrap();
        all.push((name, named(&model, &place), ConvertOptions::new(ConvertTarget::Gguf)));
    }
    for (name, model) in classes().into_iter().step_by(step) {
        let place = root.join("whole_classes").join(&name);
        std::fs::create_dir_all(&place).unwrap();
        let directory = written(&model, &place);
        all.push((format!("whole_classes/{name}"), directory, class_options(&place)));
    }
    all
}

/// What the converter changes, by option and model.
fn recorded() -> BTreeMap<(String, String), Value> {
    let text = std::fs::read_to_string(data().join("whole_parts.jsonl")).unwrap();
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let option = line["option"].as_str().unwrap();
        for name in line["names"].as_array().unwrap() {
            all.insert((option.to_owned(), name.as_str().unwrap().to_owned()), line.clone());
        }
    }
    all
}

type Keys = BTreeMap<String, GgufMetadataValue>;

fn keys(path: &Path) -> Keys {
    let mut keys = metadata(path);
    keys.retain(|key, _| !OTHERWISE.contains(&key.as_str()));
    keys
}

/// The differences between what `found` is and what `line` makes of `plain`.
fn differences(line: &Value, plain: (&Keys, &Tensors), found: (&Keys, &Tensors)) -> Vec<String> {
    let mut wrong = vec![];
    let mut expected = plain.0.clone();
    for (key, stored) in line["keys"].as_object().unwrap() {
        match stored {
            Value::Null => expected.remove(key),
            stored => expected.insert(key.clone(), value(stored)),
        };
    }
    let names: BTreeSet<_> = expected.keys().chain(found.0.keys()).collect();
    for key in names {
        if expected.get(key) != found.0.get(key) {
            wrong.push(format!("`{key}`: {:?} for {:?}", found.0.get(key), expected.get(key)));
        }
    }
    let mut expected = match line["option"] == "vocab-only" {
        true => BTreeMap::new(),
        false => described(plain.1),
    };
    let is_in = |list: &str, name: &String| {
        let list = line[list].as_array();
        list.is_some_and(|list| list.iter().any(|other| other == name))
    };
    expected.retain(|name, _| !is_in("lost", name));
    if line["kept"].is_array() {
        expected.retain(|name, _| is_in("kept", name));
    }
    for (name, stored) in line["tensors"].as_object().into_iter().flatten() {
        expected.insert(name.clone(), stored.as_str().unwrap().to_owned());
    }
    let found = described(found.1);
    let names: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    for name in names {
        if expected.get(name) != found.get(name) {
            wrong.push(format!("`{name}`: {:?} for {:?}", found.get(name), expected.get(name)));
        }
    }
    wrong
}

/// What the converter writes and this crate refuses by name: files of the ends of a model alone,
/// where it has no layer that predicts a further token, a layer of such that this crate leaves out,
/// `--no-mtp` of a class without such layers, and stacks without gates, which the converter loses.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "mtp",
        &[
            "whole/glm4_moe_lite",
            "whole/glm_moe_dsa",
            "whole_classes/dots3_text",
            "whole_classes/glm5_next",
            "whole_classes/glm_moe_dsa_shared",
            "whole_classes/hy_v3",
        ],
    ),
    ("no-mtp", &["whole/nemotron_h"]),
    (
        "fuse-gate-up-exps",
        &[
            "whole/nemotron_h_moe",
            "whole_prediction/nemotron_h_latent",
            "whole_prediction/nemotron_h_moe",
            "whole_classes/nemotron_h_puzzle",
            "whole_classes/nemotron_h_puzzle_first",
        ],
    ),
];

/// Each option makes of each model what llama.cpp's converter makes of it, or is refused by name.
#[test]
fn parts_are_those_of_llama_cpp() {
    let (root, recorded) = (crate::common::tempdir().unwrap(), recorded());
    let (mut wrong, mut equal) = (vec![], BTreeMap::new());
    for (name, from, options) in all(root.path()) {
        let (plain, output) = (root.path().join("plain.gguf"), root.path().join("part.gguf"));
        let write = |to: &Path, options: ConvertOptions| {
            _ = std::fs::remove_file(to);
            parse(&from).and_then(|model| model.convert(to, options))
        };
        write(&plain, options.clone()).unwrap();
        let plain = (keys(&plain), tensors(&plain));
        for option in OPTIONS {
            let line = recorded.get(&(option.to_owned(), name.clone()));
            let line = line.filter(|line| line["error"].is_null());
            match (write(&output, with(options.clone(), option)), line) {
                (Ok(_), Some(line)) => {
                    let found = (keys(&output), tensors(&output));
                    let mut found = differences(line, (&plain.0, &plain.1), (&found.0, &found.1));
                    // The converter says how many parameters a file without any has.
                    let has_size =
                        (option, &*name) == ("vocab-only", "whole_classes/granite_switch");
                    // Rows of queries and keys are others there.
                    let has_rows = (option, &*name) == ("fuse-qkv", "whole_classes/bamba");
                    found.retain(|what| {
                        let is_size = has_size && what.contains("general.size_label");
                        !(is_size || has_rows && what.contains("attn_qkv"))
                    });
                    *equal.entry(option).or_insert(0) += usize::from(found.is_empty());
                    wrong.extend(
                        found
                            .iter()
                            .map(|what| format!("{name} --{option}: {what}")),
                    );
                }
                (Ok(_), None) if option == "no-mtp" || option == "vocab-only" => {}
                (Ok(_), None) => wrong.push(format!("{name} --{option}: not refused")),
                (Err(error), line)
                    if error.to_string().contains(&format!("--{option}"))
                        && (line.is_none() || is_refused(option, &name)) => {}
                (Err(error), _) => wrong.push(format!("{name} --{option}: {error}")),
            }
        }
    }
    println!("{equal:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    let least = BTreeMap::from([
        ("fuse-gate-up-exps", 6),
        ("fuse-qkv", 120),
        ("mtp", 7),
        ("no-mtp", 22),
        ("vocab-only", 190),
    ]);
    let is_all = effort([5, 2, 1]) == 1;
    assert!(!is_all || least.iter().all(|(option, least)| equal[option] >= *least), "{equal:?}");
}

fn is_refused(option: &str, name: &str) -> bool {
    let mut refused = REFUSED.iter().filter(|(other, _)| *other == option);
    refused.any(|(_, names)| names.contains(&name))
}

/// Fused tensors come back as those that they are made of.
#[test]
fn fused_tensors_come_back() {
    let root = crate::common::tempdir().unwrap();
    let (mut count, mut others, mut wrong) = (0, vec![], vec![]);
    for (name, from, options) in all(root.path()) {
        for option in ["fuse-qkv", "fuse-gate-up-exps"] {
            let place = crate::common::tempdir().unwrap();
            let [plain, fused] = ["plain.gguf", "fused.gguf"].map(|file| place.path().join(file));
            let model = parse(&from).unwrap();
            if model
                .convert(&fused, with(options.clone(), option))
                .is_err()
            {
                continue;
            }
            model.convert(&plain, options.clone()).unwrap();
            let other = crate::common::tempdir().unwrap();
            let (back, expected) = (place.path().join("back"), to_hf(&plain, other.path()));
            let options = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
            if let Err(error) = parse(&fused).unwrap().convert(&back, options) {
                wrong.push(format!("{name} --{option}: {error}"));
                continue;
            }
            let class = |path: &Path| json(&path.join("config.json"))["architectures"].clone();
            if class(&back) == class(&expected) {
                wrong.extend((tensors(&back) != tensors(&expected)).then_some(name.clone()));
                count += 1;
                continue;
            }
            // Fused, it is what another class of the architecture becomes, and comes back as that.
            let again = to_gguf(&back, other.path());
            wrong.extend((tensors(&again) != tensors(&fused)).then(|| format!("{name} again")));
            others.push(name.clone());
        }
    }
    println!("{count} and {others:?}");
    assert!(wrong.is_empty() && count > 10 && others.len() < 4, "{wrong:?} {count} {others:?}");
}

/// Rows of a fused tensor are encoded as those of its parts.
#[cfg(feature = "lethe")]
#[test]
fn fused_tensors_are_encoded() {
    let root = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole/llama_bias"), root.path());
    let scheme: anamnesis::ForgetScheme = "gguf:q8_0".parse().unwrap();
    let [plain, fused] = [false, true].map(|fuse_qkv| {
        let output = root.path().join(format!("{fuse_qkv}.gguf"));
        let mut options = ConvertOptions::from(scheme.clone());
        options.fuse_qkv = fuse_qkv;
        parse(&from).unwrap().convert(&output, options).unwrap();
        tensors(&output)
    });
    for (suffix, dtype) in [("weight", "Q8_0"), ("bias", "F32")] {
        let part = |part: &str| plain[&format!("blk.1.{part}.{suffix}")].2.clone();
        let (name, parts) =
            (format!("blk.1.attn_qkv.{suffix}"), ["attn_q", "attn_k", "attn_v"].map(part));
        assert_eq!(fused[&name].0, dtype);
        assert!(fused[&name].2 == parts.concat(), "{suffix}");
    }
    assert_eq!(plain.len(), fused.len() + 2 * 4);
}

/// Settings and tokenizer are the converter's file, byte for byte, also without weights: there the
/// type of tensors is F16.
#[test]
fn vocabularies_are_files_of_llama_cpp() {
    let (root, mut count) = (crate::common::tempdir().unwrap(), 0);
    for ((option, name), line) in recorded() {
        if option != "vocab-only file" {
            continue;
        }
        let place = root.path().join(name.replace('/', "-"));
        std::fs::create_dir_all(&place).unwrap();
        let from = place.join("Tiny");
        copy(&data().join(&name).join("hf"), &from);
        let output = place.join("vocab.gguf");
        let options = ConvertOptions::new(ConvertTarget::Gguf).with_scope(ModelScope::Vocabulary);
        parse(&from).unwrap().convert(&output, options).unwrap();
        let sum = crc32fast::hash(&std::fs::read(&output).unwrap());
        assert_eq!(format!("{sum:08x}"), line["crc"].as_str().unwrap(), "{name}");
        count += 1;
    }
    assert_eq!(count, 6);
}

/// A GGUF file without its tensors is what the directory becomes without them.
#[test]
fn a_vocabulary_of_gguf() {
    let root = crate::common::tempdir().unwrap();
    for name in ["llama", "bert", "gemma3", "qwen3_moe", "nomic_bert"] {
        let from = named(&data().join("whole").join(name), root.path());
        let files = ["whole.gguf", "of_gguf.gguf", "of_model.gguf"];
        let [whole, of_gguf, of_model] =
            files.map(|file| root.path().join(format!("{name}-{file}")));
        let model = parse(&from).unwrap();
        model.convert(&whole, ConvertTarget::Gguf).unwrap();
        let options = ConvertOptions::new(ConvertTarget::Gguf).with_scope(ModelScope::Vocabulary);
        parse(&whole).unwrap().convert(&of_gguf, &options).unwrap();
        model.convert(&of_model, &options).unwrap();
        assert!(std::fs::read(&of_gguf).unwrap() == std::fs::read(&of_model).unwrap(), "{name}");
    }
}

/// Options that would be without effect are refused.
#[test]
fn parts_go_with_few_options() {
    let root = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole_prediction/qwen3_5"), root.path());
    let (gguf, output) = (root.path().join("whole.gguf"), root.path().join("out"));
    parse(&from)
        .unwrap()
        .convert(&gguf, ConvertTarget::Gguf)
        .unwrap();
    let plain = || ConvertOptions::new(ConvertTarget::Gguf);
    type Change = fn(&mut ConvertOptions);
    let changes: [(Change, &str); 6] = [
        (|options| options.target = ConvertTarget::Safetensors, "--to gguf"),
        (|options| options.include = vec!["*".to_owned()], "--include"),
        (|options| options.exclude = vec!["*.bias".to_owned()], "--exclude"),
        (|options| options.names.prune_layers = vec![0..=0], ""),
        (|options| options.names.drop = vec!["lm_head.weight".to_owned()], ""),
        (|options| options.max_shard_size = Some(1000), ""),
    ];
    for option in OPTIONS {
        for (change, named) in &changes {
            let mut options = with(plain(), option);
            change(&mut options);
            let is_fine = named.is_empty() && option != "vocab-only";
            match parse(&from).unwrap().convert(&output, options) {
                Err(error) if !is_fine => {
                    let error = error.to_string();
                    assert!(
                        error.contains(&format!("--{option}")) && error.contains(named),
                        "{error}"
                    );
                }
                // Layers are left out of a directory first; another error names what is at fault.
                _ if is_fine => {}
                _ => panic!("{option} {named}"),
            }
        }
        let of_gguf = parse(&gguf)
            .unwrap()
            .convert(root.path().join("part.gguf"), with(plain(), option));
        assert_eq!(of_gguf.is_ok(), option == "vocab-only", "{option}");
        for scope in [ModelScope::Tensors, ModelScope::ImageTower] {
            let mut options = with(plain(), option);
            if options.scope == ModelScope::Auto {
                options.scope = scope;
                let error = parse(&from).unwrap().convert(&output, options).unwrap_err();
                assert!(error.to_string().contains(&format!("--{option}")), "{error}");
            }
        }
        // A model without a config is no whole one.
        let alone = root.path().join("alone");
        std::fs::create_dir_all(&alone).unwrap();
        std::fs::copy(from.join("model.safetensors"), alone.join("model.safetensors")).unwrap();
        let error = parse(&alone)
            .unwrap()
            .convert(&output, with(plain(), option))
            .unwrap_err();
        assert!(error.to_string().contains(&format!("--{option}")), "{error}");
    }
}

/// The layers that predict tokens alone are not what comes back as a model, and no error of a file.
#[test]
fn a_prediction_is_no_model() {
    let root = crate::common::tempdir().unwrap();
    let from = named(&data().join("whole_prediction/qwen3_next"), root.path());
    let output = root.path().join("mtp.gguf");
    let options = with(ConvertOptions::new(ConvertTarget::Gguf), "mtp");
    let report = parse(&from).unwrap().convert(&output, options).unwrap();
    assert!(
        report
            .notes
            .iter()
            .all(|note| !note.contains("does not load")),
        "{:?}",
        report.notes
    );
    let back = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::Model);
    let error = parse(&output)
        .and_then(|model| model.plan(back).map(drop))
        .unwrap_err();
    assert!(error.to_string().contains("alone"), "{error}");
}

/// A model of `whole` whose matrices of layers are FP8, with codes and scales of
/// `generate/whole_parts.py`.
#[cfg(feature = "lethe")]
fn write_fp8(kind: &str, name: &str, root: &Path) -> PathBuf {
    use safetensors::Dtype;

    let place = root.join(kind);
    std::fs::create_dir_all(&place).unwrap();
    let to = named(&data().join("whole").join(name), &place);
    let is_block = kind == "fp8_block";
    let mut all = vec![];
    for (name, (_, shape, bytes)) in tensors(&to) {
        let Some(module) = name.strip_suffix("_proj.weight") else {
            all.push((name, Dtype::BF16, shape, bytes));
            continue;
        };
        let (rows, cols) = (shape[0], shape[1]);
        let code = |at: usize| ((at * 37 + rows * cols) % 127 + at % 2 * 128) as u8;
        let (suffix, scales) = match is_block {
            true => ("weight_scale_inv", vec![rows.div_ceil(16), cols.div_ceil(16)]),
            false => ("weight_scale", vec![rows, 1]),
        };
        let count: usize = scales.iter().product();
        let values = (0..count).flat_map(|at| ((at % 7 + 1) as f32 / 512.0).to_le_bytes());
        all.push((format!("{module}_proj.{suffix}"), Dtype::F32, scales, values.collect()));
        all.push((name, Dtype::F8_E4M3, shape, (0..rows * cols).map(code).collect()));
    }
    let views = all.iter().map(|(name, dtype, shape, bytes)| {
        let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes);
        (name.as_str(), view.unwrap())
    });
    let file = safetensors::serialize(views, None).unwrap();
    std::fs::write(to.join("model.safetensors"), file).unwrap();
    let path = to.join("config.json");
    let mut config = json(&path);
    config["quantization_config"] = match is_block {
        true => serde_json::json!({"quant_method": "fp8", "weight_block_size": [16, 16]}),
        false => {
            let weights = serde_json::json!({
                "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true, "dynamic": false
            });
            serde_json::json!({
                "quant_method": "compressed-tensors", "format": "float-quantized",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}
            })
        }
    };
    std::fs::write(path, config.to_string()).unwrap();
    to
}

/// FP8 with scales becomes Q8_0, and F16 where rows are no blocks of that, as in llama.cpp's
/// converter; of a model without FP8 that is refused.
#[cfg(feature = "lethe")]
#[test]
fn fp8_as_q8_0() {
    let (root, mut count) = (crate::common::tempdir().unwrap(), 0);
    for ((option, name), line) in recorded() {
        if !option.starts_with("fp8") {
            continue;
        }
        let (kind, model) = name.split_once('/').unwrap();
        let place = root.path().join(&option);
        std::fs::create_dir_all(&place).unwrap();
        let from = write_fp8(kind, model, &place);
        let [plain, output] = [false, true].map(|fp8_as_q8| {
            let output = place.join(format!("{kind}-{fp8_as_q8}.gguf"));
            _ = std::fs::remove_file(&output);
            let mut options = ConvertOptions::new(ConvertTarget::Gguf);
            options.fp8_as_q8 = fp8_as_q8;
            options.fuse_qkv = fp8_as_q8 && option.contains("fuse-qkv");
            parse(&from).unwrap().convert(&output, options).unwrap();
            (keys(&output), tensors(&output))
        });
        let wrong = differences(&line, (&plain.0, &plain.1), (&output.0, &output.1));
        assert!(wrong.is_empty(), "{option} {name}: {wrong:#?}");
        count += 1;
    }
    assert_eq!(count, 6);
    let mut options = ConvertOptions::new(ConvertTarget::Gguf);
    options.fp8_as_q8 = true;
    let from = named(&data().join("whole/qwen3"), root.path());
    let result = parse(&from).and_then(|model| model.plan(options).map(drop));
    let error = result.unwrap_err().to_string();
    assert!(error.contains("--fp8-as-q8") && error.contains("leave the option out"), "{error}");
}

/// A model is encoded as the GGUF file without its layers that predict tokens, or with fused tensors, is.
#[cfg(feature = "lethe")]
#[test]
fn parts_are_encoded_as_files_are() {
    let root = crate::common::tempdir().unwrap();
    for (name, option) in [
        ("whole_prediction/qwen3_5_moe", "no-mtp"),
        ("whole/glm4_moe_mtp", "no-mtp"),
        ("whole/glm4_moe_mtp", "fuse-qkv"),
        ("whole/qwen3_5_moe", "fuse-gate-up-exps"),
        ("whole/llama", "fuse-qkv"),
        ("whole/gemma4", "fuse-qkv"),
    ] {
        let place = root.path().join(option);
        std::fs::create_dir_all(&place).unwrap();
        let from = place.join(data().join(name).file_name().unwrap());
        if !from.is_dir() {
            named(&data().join(name), &place);
        }
        let files = ["plain.gguf", "once.gguf", "twice.gguf"];
        let [plain, once, twice] = files.map(|file| place.join(file));
        for path in [&plain, &once, &twice] {
            _ = std::fs::remove_file(path);
        }
        let model = parse(&from).unwrap();
        model
            .convert(&plain, with(ConvertOptions::new(ConvertTarget::Gguf), option))
            .unwrap();
        let scheme: anamnesis::ForgetScheme = "gguf:q4_k_m".parse().unwrap();
        let options = ConvertOptions::from(scheme);
        model.convert(&once, with(options.clone(), option)).unwrap();
        parse(&plain).unwrap().convert(&twice, options).unwrap();
        assert!(tensors(&once) == tensors(&twice), "{name} --{option}");
        assert!(keys(&once) == keys(&twice), "{name} --{option}");
    }
}
