//! Models of images and videos: what their programs load.

use std::collections::BTreeMap;

use anamnesis::{Forget, ForgetScheme, parse};
use serde_json::Value;

use crate::common::directory::{write_files, write_shards};
use crate::common::forget::{bf16s, stored_at};
use crate::common::{Raw, data, file, raw};

fn bf16(name: &str, shape: &[usize]) -> Raw {
    let n = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i % 7) as f32 - 3.0).collect();
    raw(name, "BF16", shape, bf16s(&values))
}

/// The names of `tensors` that are encoded to NF4 as a model of `class`, and the list of modules
/// that are not.
fn nf4(class: &str, tensors: Vec<Raw>, exclude: &[&str]) -> (Vec<String>, Value) {
    let root = tempfile::tempdir().unwrap();
    let [input, output] = ["model", "out"].map(|name| root.path().join(name));
    write_shards(&input, &[tensors]);
    let config = format!(r#"{{"_class_name": "{class}"}}"#);
    write_files(&input, &[("config.json", &config)]);
    let scheme: ForgetScheme = "nf4".parse().unwrap();
    let mut forget = Forget::from(scheme);
    forget.exclude = exclude.iter().map(|name| (*name).to_owned()).collect();
    let report = parse(&input).unwrap().forget(&output, forget).unwrap();
    let config = std::fs::read(output.join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let encoded = report.encoded.iter().map(|encoded| encoded.name.clone());
    let skipped = config["quantization_config"]["llm_int8_skip_modules"].clone();
    (encoded.collect(), skipped)
}

/// Loaders build a quantized layer for what is encoded, or fail.
#[test]
fn nothing_is_encoded_of_which_diffusers_makes_no_layer() {
    let golden = std::fs::read(data().join("diffusers_modules.json")).unwrap();
    let golden: BTreeMap<String, Vec<String>> = serde_json::from_slice(&golden).unwrap();
    assert!(golden.len() >= 15, "{}", golden.len());
    for (class, modules) in golden {
        let mut tensors = vec![bf16("blocks.0.layer.weight", &[8, 8])];
        tensors.extend(
            modules
                .iter()
                .map(|m| bf16(&format!("{m}.weight"), &[8, 8])),
        );
        let (encoded, skipped) = nf4(&class, tensors, &[]);
        assert_eq!(encoded, ["blocks.0.layer.weight"], "{class}");
        for module in &modules {
            let is_listed = skipped
                .as_array()
                .unwrap()
                .iter()
                .any(|name| name == module);
            assert!(is_listed, "{class}: {module}");
        }
    }
}

/// diffusers compares the names of modules that are not quantized with the last part of each name,
/// too.
#[test]
fn namesakes_of_a_module_at_the_top_stay_with_it() {
    let names = [
        "proj_out.weight",
        "blocks.0.proj_out.weight",
        "blocks.0.ff.weight",
    ];
    let tensors = || names.map(|name| bf16(name, &[8, 8])).to_vec();
    let (encoded, _) = nf4("FluxTransformer2DModel", tensors(), &["proj_out.weight"]);
    assert_eq!(encoded, ["blocks.0.ff.weight"]);
    let (encoded, _) = nf4(
        "FluxTransformer2DModel",
        tensors(),
        &["blocks.0.proj_out.weight"],
    );
    assert_eq!(encoded.len(), 2, "{encoded:?}");
}

/// Convolutions of videos have five dimensions, and parameters that are no weights are not decoded
/// by any program.
#[test]
fn gguf_of_an_image_model_is_as_comfyui_loads_it() {
    let root = tempfile::tempdir().unwrap();
    let [input, output] = ["wan.safetensors", "wan.gguf"].map(|name| root.path().join(name));
    let tensors = [
        bf16("blocks.0.self_attn.norm_q.weight", &[256]),
        bf16("blocks.0.self_attn.v.weight", &[256, 256]),
        bf16("blocks.0.ffn.2.weight", &[256, 256]),
        bf16("blocks.0.ffn.0.weight", &[256, 256]),
        bf16("blocks.0.modulation", &[1, 6, 256]),
        bf16("text_embedding.2.weight", &[256, 256]),
        bf16("head.modulation", &[1, 2, 256]),
        bf16("patch_embedding.weight", &[256, 4, 1, 2, 2]),
    ];
    std::fs::write(&input, file(&tensors, &[])).unwrap();
    let scheme: ForgetScheme = "gguf:q4_k_m".parse().unwrap();
    let report = parse(&input).unwrap().forget(&output, scheme).unwrap();
    let notes = report.notes.join("\n");
    assert!(notes.contains("more than 4 dimensions"), "{notes}");
    let dtypes = stored_at(&output);
    let dtype = |name: &str| dtypes[name].0.to_string();
    for (name, of) in [
        ("blocks.0.self_attn.norm_q.weight", "F32"),
        ("blocks.0.self_attn.v.weight", "Q6_K"),
        ("blocks.0.ffn.2.weight", "Q6_K"),
        ("blocks.0.ffn.0.weight", "Q4_K"),
        ("blocks.0.modulation", "F32"),
        ("text_embedding.2.weight", "BF16"),
        ("head.modulation", "F32"),
        ("patch_embedding.weight", "F16"),
    ] {
        assert_eq!(dtype(name), of, "{name}");
    }
    let bytes = std::fs::read(&output).unwrap();
    let text = String::from_utf8_lossy(&bytes[..200]);
    assert!(
        text.contains("general.architecture") && text.contains("wan"),
        "{text}"
    );
}

/// ComfyUI takes FP8 of which it does not know the layout for weights without scales.
#[test]
fn a_note_says_what_comfyui_does_not_load() {
    let root = tempfile::tempdir().unwrap();
    let [input, output] = ["flux.safetensors", "out.safetensors"].map(|n| root.path().join(n));
    let tensors = [bf16("double_blocks.0.img_attn.proj.weight", &[128, 128])];
    std::fs::write(&input, file(&tensors, &[])).unwrap();
    let notes = |scheme: &str| {
        let scheme: ForgetScheme = scheme.parse().unwrap();
        let report = parse(&input).unwrap().forget(&output, scheme).unwrap();
        std::fs::remove_file(&output).unwrap();
        report.notes.join("\n")
    };
    assert!(notes("fp8").contains("`fp8-comfy`"));
    assert!(!notes("fp8-comfy").contains("ComfyUI"));
}

/// vLLM fuses queries with keys and values.
#[test]
fn a_note_names_a_layer_that_is_fused_with_one_that_is_not_encoded() {
    let root = tempfile::tempdir().unwrap();
    let [input, output] = ["in.safetensors", "out.safetensors"].map(|n| root.path().join(n));
    let name = |layer: &str| format!("model.layers.0.self_attn.{layer}.weight");
    let tensors = ["q_proj", "k_proj", "o_proj"].map(|layer| bf16(&name(layer), &[128, 128]));
    std::fs::write(&input, file(&tensors, &[])).unwrap();
    let notes = |exclude: &str| {
        let mut forget = Forget::from("w4a16".parse::<ForgetScheme>().unwrap());
        forget.exclude = vec![name(exclude)];
        let report = parse(&input).unwrap().forget(&output, forget).unwrap();
        std::fs::remove_file(&output).unwrap();
        report.notes.join("\n")
    };
    assert!(notes("k_proj").contains("vLLM"));
    assert_eq!(notes("o_proj"), "");
}
