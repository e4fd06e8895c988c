//! Image towers of multimodal models, against llama.cpp's converter.

use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, ConvertTarget, GgufMetadataValue, ModelScope, TargetDtype, parse};
use serde_json::{Value, json};

use super::{Tensors, check_metadata, copy, json as read_json, metadata, tensors, write};
use crate::common::data;

fn towers() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data().join("towers")).unwrap();
    let mut all: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    assert!(all.len() >= 16);
    all
}

fn options() -> ConvertOptions {
    ConvertOptions::new(ConvertTarget::Gguf).with_scope(ModelScope::ImageTower)
}

/// Writes the tower of the directory `from` to a file in `directory`.
fn to_mmproj(from: &Path, directory: &Path, options: ConvertOptions) -> PathBuf {
    let output = directory.join("mmproj.gguf");
    parse(from).unwrap().convert(&output, options).unwrap();
    output
}

#[test]
fn towers_are_those_of_llama_cpp() {
    let files = [
        ("canonical", None),
        ("f16", Some(TargetDtype::F16)),
        ("f32", Some(TargetDtype::F32)),
    ];
    for (model, (file, dtype)) in towers().iter().flat_map(|m| files.map(|f| (m, f))) {
        let canonical = model.join(file).with_extension("gguf");
        if !canonical.exists() {
            assert_ne!(file, "canonical", "{}", model.display());
            continue;
        }
        let mut options = options();
        if let Some(dtype) = dtype {
            options.decode = true;
            options.run.to = dtype;
        }
        let directory = tempfile::tempdir().unwrap();
        let output = to_mmproj(&model.join("hf"), directory.path(), options);
        let (found, expected) = (tensors(&output), tensors(&canonical));
        let names = |tensors: &Tensors| tensors.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&expected), "{}", canonical.display());
        for (name, tensor) in &expected {
            assert!(found[name] == *tensor, "{} `{name}`", canonical.display());
        }
        let mut metadata = metadata(&output);
        // The converter leaves it out, so that llama.cpp computes another function than
        // transformers.
        if file_name(model).starts_with("gemma4") {
            assert!(metadata.remove("clip.use_gelu") == Some(GgufMetadataValue::Bool(true)));
        }
        check_metadata(metadata, &canonical);
    }
}

fn file_name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// An edit of a field of `config.json`, or of a file after a colon, and words of the error.
type Edit = (&'static str, &'static str, Value, &'static [&'static str]);

/// What llama.cpp would compute otherwise, or could not load.
fn edits() -> Vec<Edit> {
    let vision = "/vision_config";
    let processor = "/preprocessor";
    vec![
        (
            "gemma3",
            "/mm_tokens_per_image",
            json!(9),
            &["mm_tokens_per_image"],
        ),
        (
            "gemma3",
            "/mm_tokens_per_image",
            json!(16),
            &["image_seq_length", "16"],
        ),
        (
            "gemma3",
            "/vision_config/hidden_act",
            json!("gelu"),
            &["hidden_act", "gelu"],
        ),
        (
            "gemma3",
            "/vision_config/num_channels",
            json!(1),
            &["num_channels"],
        ),
        (
            "gemma3",
            "/vision_config/hidden_size",
            json!(64),
            &["hidden_size is 64"],
        ),
        (
            "gemma3",
            "/vision_config/image_size",
            json!(0),
            &["image of 0"],
        ),
        ("gemma3", "/vision_config/patch_size", json!(0), &["patch"]),
        (
            "gemma3",
            "/vision_config/num_hidden_layers",
            json!(3),
            &["3 layers"],
        ),
        ("gemma3", vision, Value::Null, &["vision_config", "missing"]),
        ("gemma3", "/text_config/hidden_size", json!(25), &["25"]),
        ("gemma3", processor, json!({}), &["image_mean"]),
        (
            "smolvlm",
            processor,
            json!({ "image_mean": [0.5, 0.5] }),
            &["image_mean"],
        ),
        ("smolvlm", "/scale_factor", json!(3), &["scale_factor"]),
        (
            "qwen2_vl",
            "/vision_config/spatial_merge_size",
            json!(1),
            &["spatial_merge_size"],
        ),
        (
            "qwen2_vl",
            "/vision_config/temporal_patch_size",
            json!(1),
            &["temporal_patch_size"],
        ),
        (
            "qwen2_vl",
            "/vision_config/hidden_act",
            json!("gelu"),
            &["quick_gelu"],
        ),
        (
            "qwen2_vl",
            "/vision_config/mlp_ratio",
            json!(3),
            &["mlp_width"],
        ),
        (
            "qwen2_5_vl",
            "/vision_config/window_size",
            json!(16),
            &["window_size", "112"],
        ),
        (
            "qwen2_5_vl",
            "/vision_config/fullatt_block_indexes",
            json!([1]),
            &["fullatt_block_indexes"],
        ),
        (
            "qwen2_5_vl",
            "/vision_config/fullatt_block_indexes",
            json!([0, 3]),
            &["fullatt_block_indexes"],
        ),
        (
            "qwen2_5_vl",
            "/vision_config/out_hidden_size",
            json!(32),
            &["out_hidden_size"],
        ),
        (
            "qwen3_vl",
            "/vision_config/deepstack_visual_indexes",
            json!([0]),
            &["deepstack_merger_list"],
        ),
        (
            "qwen3_vl",
            "/vision_config/deepstack_visual_indexes",
            json!([0, 400]),
            &["deepstack_visual_indexes", "400"],
        ),
        (
            "qwen3_vl",
            "/vision_config/num_position_embeddings",
            json!(5),
            &["no square"],
        ),
        (
            "pixtral",
            "/vision_feature_layer",
            json!(-2),
            &["vision_feature_layer"],
        ),
        (
            "pixtral",
            "/vision_config/model_type",
            json!("clip_vision_model"),
            &["clip_vision"],
        ),
        (
            "pixtral",
            "/vision_config/hidden_act",
            json!("relu"),
            &["silu"],
        ),
        (
            "pixtral",
            "/vision_config/rope_parameters",
            json!({ "rope_theta": 5.0 }),
            &["rope_theta"],
        ),
        (
            "pixtral",
            "/vision_feature_select_strategy",
            json!("default"),
            &["vision_feature_select_strategy", "full"],
        ),
        (
            "pixtral",
            "/vision_config/head_dim",
            json!(16),
            &["head_dim", "4 heads of 16"],
        ),
        (
            "gemma4",
            "/vision_config/num_key_value_heads",
            json!(2),
            &["num_key_value_heads"],
        ),
        (
            "gemma4",
            "/vision_config/pooling_kernel_size",
            json!(2),
            &["pooling_kernel_size"],
        ),
        (
            "gemma4",
            "/vision_config/use_clipped_linears",
            json!(false),
            &["input_m"],
        ),
        (
            "gemma4_large",
            "/vision_config/standardize",
            json!(false),
            &["std_"],
        ),
        (
            "qwen3_vl",
            "/vision_config/deepstack_visual_indexes",
            json!([2, 1]),
            &["deepstack_visual_indexes", "order"],
        ),
        (
            "smolvlm",
            "/vision_config/intermediate_size",
            json!(32),
            &["intermediate_size", "one projection for the other"],
        ),
        ("internvl", "/ps_version", json!("v1"), &["ps_version"]),
        (
            "internvl",
            "/downsample_ratio",
            json!(0.3),
            &["downsample_ratio"],
        ),
        (
            "internvl",
            "/vision_config/norm_type",
            json!("rms_norm"),
            &["norm_type"],
        ),
        (
            "lfm2_vl",
            "/vision_config/patch_size",
            json!(8),
            &["patch_size"],
        ),
        (
            "lfm2_vl",
            "/vision_feature_layer",
            json!(-2),
            &["vision_feature_layer"],
        ),
        (
            "llama4",
            "/vision_config/norm_eps",
            json!(1e-6),
            &["layer_norm_eps"],
        ),
        (
            "llama4",
            "/vision_config/pixel_shuffle_ratio",
            json!(0),
            &["pixel_shuffle_ratio"],
        ),
        (
            "mistral3",
            "/text_config/rms_norm_eps",
            json!(1e-6),
            &["rms_norm_eps"],
        ),
        (
            "mistral3",
            "/projector_hidden_act",
            json!("relu"),
            &["projector_hidden_act"],
        ),
        (
            "glm4v",
            "/vision_config/attention_bias",
            json!(true),
            &["attention_bias"],
        ),
        (
            "glm4v",
            "/architectures/0",
            json!("ChatGLMModel"),
            &["image tower", "ChatGLMModel"],
        ),
    ]
}

#[test]
fn what_llama_cpp_computes_otherwise_is_refused() {
    for (model, pointer, value, words) in edits() {
        let directory = tempfile::tempdir().unwrap();
        let from = directory.path().join("hf");
        copy(&data().join("towers").join(model).join("hf"), &from);
        let path = match pointer {
            "/preprocessor" => from.join("preprocessor_config.json"),
            _ => from.join("config.json"),
        };
        let mut config = read_json(&path);
        match pointer {
            "/preprocessor" => config = value,
            _ => set(&mut config, pointer, value),
        }
        std::fs::write(&path, config.to_string()).unwrap();
        let what = format!("{model} {pointer}");
        let output = directory.path().join("mmproj.gguf");
        let result = parse(&from).unwrap().convert(&output, options());
        let error = result.map(|_| what.clone()).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{what}: {error}");
        }
        assert!(!output.exists(), "{what}");
    }
}

/// Sets the value at `pointer`, whose last field may be new.
fn set(config: &mut Value, pointer: &str, value: Value) {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match config.pointer_mut(parent).unwrap() {
        Value::Array(all) => all[field.parse::<usize>().unwrap()] = value,
        parent => parent[field] = value,
    }
}

/// Every tensor of a tower is needed, and none may be more.
#[test]
fn missing_and_unknown_tensors_are_refused() {
    for model in towers() {
        let all = tensors(&model.join("hf"));
        let directory = tempfile::tempdir().unwrap();
        let from = directory.path().join("hf");
        copy(&model.join("hf"), &from);
        let try_with = |tensors: &Tensors| {
            write(tensors, &from);
            let output = directory.path().join("mmproj.gguf");
            let result = parse(&from).unwrap().convert(&output, options());
            std::fs::remove_file(output).ok();
            result.map(drop)
        };
        let is_of_tower = |name: &&String| {
            !name.contains("language_model")
                && !name.contains("lm_head")
                && !name.contains("text_model")
        };
        for name in all.keys().filter(is_of_tower) {
            let mut some = all.clone();
            some.remove(name);
            assert!(
                try_with(&some).is_err(),
                "{} without `{name}`",
                model.display()
            );
        }
        let mut more = all.clone();
        let (name, tensor) = all.iter().find(|(name, _)| name.contains("0.")).unwrap();
        more.insert(name.replace("0.", "0.other."), tensor.clone());
        assert!(
            try_with(&more).is_err(),
            "{} with one more",
            model.display()
        );
        try_with(&all).unwrap();
    }
}

#[test]
fn towers_are_no_other_outputs() {
    let model = data().join("towers/gemma3");
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("out");
    let refused = |from: &Path, options: ConvertOptions| {
        let result = parse(from).unwrap().convert(&output, options);
        result.map(drop).unwrap_err().to_string()
    };
    let safetensors = ConvertOptions::from(TargetDtype::BF16).with_scope(ModelScope::ImageTower);
    assert!(refused(&model.join("hf"), safetensors).contains("image tower"));
    assert!(refused(&model.join("canonical.gguf"), options()).contains("image tower"));
}
