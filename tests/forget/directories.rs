//! `forget` of directories: shards, the files beside them, interrupted runs, and a single file as
//! the output.

mod interrupted;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anamnesis::{ConvertTarget, ForgetScheme, ParsedModel, TargetDtype, parse, parse_bytes};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::common::directory::{
    self, KEPT, LEFT_OUT, assert_same_tree, joined, names_in, placement, tree, write_files,
    write_shards,
};
use crate::common::forget::{
    PLAIN, Stored, all_stored, decoded, every_scheme, options, shards, values_of,
};
use crate::common::{Raw, effort, f32s, file, raw};

/// Schemes of several layouts, with and without a survey pass, and where each lists the modules
/// that it leaves as they are.
const SCHEMES: &[(&str, &str)] = &[
    ("w4a16", "/quantization_config/ignore"),
    ("gptq", "/quantization_config/dynamic"),
    ("awq", "/quantization_config/modules_to_not_convert"),
    ("fp8-block", "/quantization_config/modules_to_not_convert"),
    ("fp8", "/quantization_config/ignore"),
    ("mlx-4bit", ""),
    ("nvfp4", "/quantization_config/ignore"),
    ("nf4", "/quantization_config/llm_int8_skip_modules"),
    ("nf4-dq", "/quantization_config/llm_int8_skip_modules"),
    ("int8", "/quantization_config/llm_int8_skip_modules"),
    ("mxfp4", "/quantization_config/ignore"),
];

/// The tensors of a small model of three shards.
fn tensors() -> Vec<Vec<Raw>> {
    shards(3, 128, 256)
}

/// A model of three shards, with files beside them.
fn model(root: &Path) -> PathBuf {
    let input = root.join("model");
    write_shards(&input, &tensors());
    write_files(&input, &[("config.json", PLAIN)]);
    write_files(&input, KEPT);
    write_files(&input, LEFT_OUT);
    // This config would say that the model is quantized.
    for name in ["hf_quant_config.json", "quantize_config.json"] {
        std::fs::remove_file(input.join(name)).unwrap();
    }
    input
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The name in `encoded` of the tensor that `stored` belongs to.
fn owner<'a>(stored: &str, encoded: &'a [String]) -> Option<&'a str> {
    let base = |name: &'a str| name.strip_suffix("weight").unwrap_or(name);
    let fits = encoded
        .iter()
        .filter(|name| stored.starts_with(base(name)) && !stored.ends_with("bias"));
    fits.max_by_key(|name| name.len()).map(String::as_str)
}

/// Fails if an encoded tensor and its companions are in different shards.
fn assert_together(output: &Path, encoded: &[String], context: &str) {
    let mut files: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (no, names) in placement(output).iter().enumerate() {
        names
            .iter()
            .filter_map(|name| owner(name, encoded))
            .for_each(|name| {
                files.entry(name).or_default().insert(no);
            });
    }
    assert_eq!(files.len(), encoded.len(), "{context}");
    for (name, files) in files {
        assert_eq!(files.len(), 1, "{context}: `{name}` is in {files:?}");
    }
}

#[test]
fn a_directory_becomes_a_directory() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    let before = tree(&input);
    for (scheme, skipped) in SCHEMES {
        let output = root.path().join(scheme);
        let report = parse(&input)
            .unwrap()
            .forget(&output, options(scheme))
            .unwrap();
        let encoded: Vec<String> = report.encoded.iter().map(|e| e.name.clone()).collect();
        assert!(encoded.len() >= 9, "{scheme}: {encoded:?}");
        assert_eq!(names_in(&output, ".safetensors").len(), 3, "{scheme}");
        assert_together(&output, &encoded, scheme);
        let found = tree(&output);
        assert!(
            KEPT.iter()
                .all(|(name, text)| found[*name] == text.as_bytes()),
            "{scheme}"
        );
        assert!(!LEFT_OUT.iter().any(|(name, _)| found.contains_key(*name)), "{scheme}");
        assert_eq!(found.len(), 3 + 2 + KEPT.len(), "{scheme}: {:?}", found.keys());
        let config = json_of(&output.join("config.json"));
        for (key, value) in serde_json::from_str::<Value>(PLAIN)
            .unwrap()
            .as_object()
            .unwrap()
        {
            assert_eq!(&config[key], value, "{scheme}: {key}");
        }
        if skipped.is_empty() {
            assert_eq!(
                config["quantization"],
                json!({"group_size": 64, "bits": 4, "mode": "affine"})
            );
            assert_eq!(config["quantization"], config["quantization_config"]);
            assert!(encoded.contains(&"lm_head.weight".to_owned()));
        } else {
            let skipped = config
                .pointer(skipped)
                .unwrap_or_else(|| panic!("{scheme}: {config:#}"))
                .to_string();
            assert!(
                skipped.contains("embed_tokens") && !skipped.contains("q_proj"),
                "{scheme}: {skipped}"
            );
            assert!(
                skipped.contains("lm_head")
                    || *scheme == "gptq" && config["quantization_config"]["lm_head"] == false
            );
        }
        check_values(&input, &output, &report, scheme);
        let again = parse(&output).unwrap();
        assert!(again.config().is_quantized() && again.inspect().problems.is_empty(), "{scheme}");
        std::fs::remove_dir_all(output).unwrap();
    }
    assert_same_tree(&before, &tree(&input), "the input is as it was");
}

/// Fails unless tensors that are not encoded keep their bytes, and the others differ from the input
/// by just what the report says.
fn check_values(input: &Path, output: &Path, report: &anamnesis::Report, context: &str) {
    let (was, is) =
        (decoded(&parse(input).unwrap()).unwrap(), decoded(&parse(output).unwrap()).unwrap());
    assert_eq!(was.tensors().len(), is.tensors().len(), "{context}");
    let mut largest = 0f32;
    for t in was.tensors() {
        let there = is
            .tensor(t.name())
            .unwrap_or_else(|| panic!("{context}: no {}", t.name()));
        assert_eq!(t.shape(), there.shape(), "{context}: {}", t.name());
        if report.encoded.iter().any(|e| e.name == t.name()) {
            let pairs = values_of(&was, t.name())
                .into_iter()
                .zip(values_of(&is, t.name()));
            largest = pairs.fold(largest, |max, (a, b)| max.max((a - b).abs()));
        } else {
            assert_eq!(t.dtype(), there.dtype(), "{context}: {}", t.name());
            assert!(t.bytes().unwrap() == there.bytes().unwrap(), "{context}: {}", t.name());
        }
    }
    let said = report.distance.as_ref().unwrap().all.maximum;
    assert_eq!(f64::from(largest), said, "{context}");
}

#[test]
fn companions_stay_with_their_tensors() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    let one = root.path().join("one.safetensors");
    std::fs::write(&one, file(&tensors().concat(), &[])).unwrap();
    // In the gate each scheme is cut in three ways, otherwise in another one of them.
    let ways = effort([1, 3, 3]);
    for (at, (scheme, _)) in SCHEMES.iter().enumerate() {
        let all = [(1, &one), (20_000, &input), (50_000, &one)];
        for (size, input) in all.into_iter().cycle().skip(at % 3).take(ways) {
            let output = root.path().join("out");
            let options = options(scheme).with_max_shard_size(size);
            let report = parse(input).unwrap().forget(&output, options).unwrap();
            let encoded: Vec<String> = report.encoded.into_iter().map(|e| e.name).collect();
            let context = format!("{scheme}, shards of {size}");
            assert_together(&output, &encoded, &context);
            let many = names_in(&output, ".safetensors").len();
            assert!(many > 3, "{context}: {many} shards");
            assert!(
                size > 1 || many == report.kept.len() + encoded.len(),
                "{context}: {many} shards"
            );
            std::fs::remove_dir_all(output).unwrap();
        }
    }
}

/// Every tensor of a file in memory as it is stored, by name.
fn stored_in(bytes: &[u8]) -> BTreeMap<String, Stored> {
    all_stored(&parse_bytes(bytes.to_vec()).unwrap())
}

/// A single output file has the quantization config in its metadata.
#[test]
fn a_single_file_describes_its_quantization() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    for (scheme, _) in SCHEMES {
        let output = root.path().join("out");
        parse(&input)
            .unwrap()
            .forget(&output, options(scheme))
            .unwrap();
        let mut single = options(scheme);
        single.single_file = true;
        let alone = root.path().join("alone").join("one.safetensors");
        std::fs::create_dir_all(alone.parent().unwrap()).unwrap();
        parse(&input).unwrap().forget(&alone, single).unwrap();
        let bytes = std::fs::read(&alone).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().as_ref().unwrap();
        let said: Value = serde_json::from_str(&metadata["quantization_config"]).unwrap();
        assert_eq!(said, json_of(&output.join("config.json"))["quantization_config"], "{scheme}");
        assert_eq!(stored_in(&bytes), stored_in(&joined(&output)), "{scheme}");
        let from_directory = decoded(&parse(&output).unwrap()).unwrap();
        for model in [parse(&alone).unwrap(), parse_bytes(bytes).unwrap()] {
            assert!(model.inspect().problems.is_empty(), "{scheme}");
            assert_same_values(&from_directory, &decoded(&model).unwrap(), scheme);
        }
        std::fs::remove_dir_all(output).unwrap();
        std::fs::remove_dir_all(alone.parent().unwrap()).unwrap();
    }
}

fn assert_same_values(expected: &ParsedModel, actual: &ParsedModel, context: &str) {
    assert_eq!(expected.tensors().len(), actual.tensors().len(), "{context}");
    for t in expected.tensors() {
        let other = actual
            .tensor(t.name())
            .unwrap_or_else(|| panic!("{context}: no {}", t.name()));
        assert_eq!(
            (t.dtype(), t.shape()),
            (other.dtype(), other.shape()),
            "{context}: {}",
            t.name()
        );
        assert!(t.bytes().unwrap() == other.bytes().unwrap(), "{context}: {}", t.name());
    }
}

/// Encoding a quantized directory leaves nothing of the old quantization, neither in the tensors
/// nor in the config.
#[test]
fn a_quantized_directory_is_encoded_again() {
    let root = crate::common::tempdir().unwrap();
    let input = root.path().join("model");
    directory::make(&input, &directory::shards(3, 256));
    let plain = root.path().join("plain");
    parse(&input)
        .unwrap()
        .remember(&plain, TargetDtype::BF16)
        .unwrap();
    // MLX's schemes are left out: they encode embeddings, and this one has NaN.
    for scheme in ["w4a16", "gptq", "nf4", "int8", "nvfp4", "fp8-channel"] {
        let (direct, twice) = (root.path().join("direct"), root.path().join("twice"));
        let report = parse(&input)
            .unwrap()
            .forget(&direct, options(scheme))
            .unwrap();
        assert_eq!(report.dropped, [""; 0], "{scheme}");
        parse(&plain)
            .unwrap()
            .forget(&twice, options(scheme))
            .unwrap();
        assert_eq!(stored_in(&joined(&direct)), stored_in(&joined(&twice)), "{scheme}");
        let config = std::fs::read_to_string(direct.join("config.json")).unwrap();
        assert!(
            !config.contains("weight_block_size") && !config.contains("float8"),
            "{scheme}: {config}"
        );
        let config: Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config, json_of(&twice.join("config.json")), "{scheme}");
        assert_eq!(
            config["text_config"],
            json!({"hidden_size": 384, "dtype": "bfloat16"}),
            "{scheme}"
        );
        std::fs::remove_dir_all(direct).unwrap();
        std::fs::remove_dir_all(twice).unwrap();
    }
}

/// An error in a later shard leaves no output, and names the tensor.
#[test]
fn a_shard_that_cannot_be_encoded() {
    let root = crate::common::tempdir().unwrap();
    let input = root.path().join("model");
    let weight = |no: usize, last: f32| -> Vec<Raw> {
        let mut values = vec![0.25f32; 128 * 128];
        values[128 * 128 - 1] = last;
        vec![raw(&format!("model.layers.{no}.proj.weight"), "F32", &[128, 128], f32s(&values))]
    };
    write_shards(&input, &[weight(0, 0.5), weight(1, f32::NAN), weight(2, 0.5)]);
    for (scheme, _) in SCHEMES {
        let output = root.path().join("out");
        let error = parse(&input)
            .unwrap()
            .forget(&output, options(scheme))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`model.layers.1.proj.weight`, row 127, column 127"),
            "{scheme}: {error}"
        );
        assert!(!output.exists(), "{scheme}");
        std::fs::remove_dir_all(root.path().join(".out.partial")).unwrap();
    }
}

/// Keys beside the quantization config, in nested configs, too.
const STORED: &str = r#"{"model_type": "x", "expert_dtype": "fp4", "quantize": "w8a8", "text_config": {"expert_dtype": "fp4"}}"#;

/// Loaders choose the layout of weights by such keys.
#[test]
fn no_key_says_how_weights_were_stored() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path());
    write_files(&input, &[("config.json", STORED)]);
    let directories = every_scheme()
        .into_iter()
        .filter(|name| options(name).target == ConvertTarget::Safetensors);
    for scheme in directories {
        let output = root.path().join(format!("out-{scheme}"));
        let report = parse(&input)
            .unwrap()
            .forget(&output, scheme.parse::<ForgetScheme>().unwrap());
        if report.is_err() {
            continue;
        }
        let config = json_of(&output.join("config.json"));
        let experts = config.get("expert_dtype").and_then(Value::as_str);
        let method = config
            .pointer("/quantization_config/quant_method")
            .and_then(Value::as_str);
        assert_eq!(experts, method.filter(|method| *method == "fp8"), "{scheme}");
        assert_eq!(
            config.pointer("/text_config/expert_dtype"),
            config.get("expert_dtype"),
            "{scheme}"
        );
        assert!(config.get("quantize").is_none(), "{scheme}");
    }
    let output = root.path().join("decoded");
    parse(&input)
        .unwrap()
        .remember(&output, TargetDtype::F32)
        .unwrap();
    let config = json_of(&output.join("config.json"));
    assert_eq!(config["text_config"], json!({}));
    assert!(config.get("expert_dtype").is_none() && config.get("quantize").is_none());
}
