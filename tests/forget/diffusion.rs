//! Models of images and videos: what their programs load.

use std::collections::BTreeMap;

use anamnesis::{ConvertOptions, ConvertTarget, FloatCast, Forget, ForgetScheme, parse};
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
    let root = crate::common::tempdir().unwrap();
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
    let names = ["proj_out.weight", "blocks.0.proj_out.weight", "blocks.0.ff.weight"];
    let tensors = || names.map(|name| bf16(name, &[8, 8])).to_vec();
    let (encoded, _) = nf4("FluxTransformer2DModel", tensors(), &["proj_out.weight"]);
    assert_eq!(encoded, ["blocks.0.ff.weight"]);
    let (encoded, _) = nf4("FluxTransformer2DModel", tensors(), &["blocks.0.proj_out.weight"]);
    assert_eq!(encoded.len(), 2, "{encoded:?}");
}

/// Convolutions of videos have five dimensions, and parameters that are no weights are not decoded
/// by any program.
#[test]
fn gguf_of_an_image_model_is_as_comfyui_loads_it() {
    let root = crate::common::tempdir().unwrap();
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
    assert!(text.contains("general.architecture") && text.contains("wan"), "{text}");
}

/// ComfyUI takes FP8 of which it does not know the layout for weights without scales.
#[test]
fn a_note_says_what_comfyui_does_not_load() {
    let root = crate::common::tempdir().unwrap();
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

/// vLLM fuses queries with keys and values, and computes all experts of a layer at once.
#[test]
fn a_note_names_a_layer_that_is_computed_with_one_that_is_not_encoded() {
    let root = crate::common::tempdir().unwrap();
    let [input, output] = ["in.safetensors", "out.safetensors"].map(|n| root.path().join(n));
    let name = |layer: &str| format!("model.layers.0.{layer}.weight");
    let layers = [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.o_proj",
        "mlp.experts.0.up_proj",
        "mlp.experts.1.down_proj",
        "mlp.shared_experts.down_proj",
    ];
    let tensors = layers.map(|layer| bf16(&name(layer), &[128, 128]));
    std::fs::write(&input, file(&tensors, &[])).unwrap();
    let notes = |exclude: &str| {
        let mut forget = Forget::from("w4a16".parse::<ForgetScheme>().unwrap());
        forget.exclude = vec![name(exclude)];
        let report = parse(&input).unwrap().forget(&output, forget).unwrap();
        std::fs::remove_file(&output).unwrap();
        report.notes.join("\n")
    };
    for (at, layer) in layers.iter().enumerate() {
        let has_note = notes(layer).contains("vLLM");
        assert_eq!(has_note, [true, true, false, true, true, false][at], "{layer}");
    }
}

/// Names of the tensors of `names` that `scheme` encodes, and the notes. All are matrices.
fn encoded_of(names: &[&str], scheme: &str, include: &[&str]) -> (Vec<String>, String) {
    let root = crate::common::tempdir().unwrap();
    let [input, output] = ["in.safetensors", "out.safetensors"].map(|n| root.path().join(n));
    let tensors: Vec<Raw> = names.iter().map(|name| bf16(name, &[128, 128])).collect();
    std::fs::write(&input, file(&tensors, &[])).unwrap();
    let mut forget = Forget::from(scheme.parse::<ForgetScheme>().unwrap());
    forget.include = include.iter().map(|name| (*name).to_owned()).collect();
    let report = parse(&input).unwrap().forget(&output, forget).unwrap();
    let encoded = report.encoded.iter().map(|encoded| encoded.name.clone());
    (encoded.collect(), report.notes.join("\n"))
}

const COMFY: &[&str] = &[
    "fp8-comfy",
    "fp8-comfy-e5m2",
    "comfy-nvfp4",
    "comfy-mxfp8",
    "comfy-int8-convrot",
    "comfy-w4a4",
];

/// ComfyUI makes quantized layers of the diffusion model of a checkpoint, and takes codes elsewhere
/// for weights.
#[test]
fn of_a_checkpoint_comfyui_loads_the_diffusion_model_quantized() {
    let unet = "model.diffusion_model.input_blocks.4.1.transformer_blocks.0.attn1.to_q.weight";
    let clip = "conditioner.embedders.0.transformer.text_model.encoder.layers.0.mlp.fc1.weight";
    let names = [
        unet,
        "model.diffusion_model.input_blocks.0.0.weight",
        "model.diffusion_model.time_embed.0.weight",
        clip,
        "cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1.weight",
        "first_stage_model.decoder.mid.attn_1.q.weight",
        "text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q.weight",
        "vae.decoder.mid.attn_1.q.weight",
    ];
    for scheme in COMFY {
        let (encoded, notes) = encoded_of(&names, scheme, &[]);
        assert_eq!(encoded, [unet], "{scheme}");
        assert!(notes.contains(clip), "{scheme}: {notes}");
        // What the user asks for by name is encoded all the same.
        let (encoded, _) = encoded_of(&names, scheme, &["conditioner.*"]);
        assert_eq!(encoded, [clip], "{scheme}");
    }
    // Schemes of other programs encode every layer.
    assert!(encoded_of(&names, "w8a8", &[]).0.len() > 5);
}

/// Layers that convert_to_quant keeps by its filter of each model, and one beside them.
#[test]
fn layers_stay_that_tools_of_comfyui_leave() {
    let models: &[(&str, &[&str], &[&str])] = &[
        (
            "flux",
            &["img_in", "txt_in", "time_in.in_layer", "guidance_in.in_layer", "final_layer.linear"],
            &["double_blocks.0.img_attn.proj", "single_blocks.0.linear1"],
        ),
        (
            "flux2",
            &["img_in", "txt_in", "final_layer.linear", "double_stream_modulation_img.lin"],
            &["double_blocks.0.img_attn.proj"],
        ),
        (
            "chroma",
            &["img_in", "txt_in", "final_layer.linear", "distilled_guidance_layer.in_proj"],
            &["double_blocks.0.img_attn.proj"],
        ),
        (
            "qwen",
            &[
                "img_in",
                "proj_out",
                "txt_norm",
                "transformer_blocks.0.img_mod.1",
                "time_text_embed.timestep_embedder.linear_1",
            ],
            &[
                "transformer_blocks.0.attn.to_q",
                "transformer_blocks.1.img_mod.1",
                "transformer_blocks.10.img_mod.1",
            ],
        ),
        (
            "zimage",
            &["cap_embedder.1", "x_embedder", "final_layer.linear", "layers.0.adaLN_modulation.0"],
            &["context_refiner.0.attention.qkv", "layers.0.attention.qkv"],
        ),
        (
            "anima",
            &["llm_adapter.embed", "blocks.0.mlp.layer1", "blocks.1.adaln_modulation_mlp.1"],
            &["blocks.1.mlp.layer1", "blocks.10.mlp.layer1"],
        ),
    ];
    for (model, kept, quantized) in models {
        let weights = kept
            .iter()
            .chain(*quantized)
            .map(|name| format!("{name}.weight"));
        let weights: Vec<String> = weights.collect();
        for prefix in ["", "model.diffusion_model."] {
            let names: Vec<String> = weights
                .iter()
                .map(|name| format!("{prefix}{name}"))
                .collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let (encoded, _) = encoded_of(&names, "fp8-comfy", &[]);
            let expected: Vec<&str> = names[kept.len()..].to_vec();
            assert_eq!(encoded, expected, "{model}");
        }
    }
}

/// ComfyUI-GGUF decodes BF16 in weights of layers alone.
#[test]
fn plain_gguf_of_an_image_model_has_parameters_in_f32() {
    let root = crate::common::tempdir().unwrap();
    let [input, output] = ["z.safetensors", "z.gguf"].map(|name| root.path().join(name));
    let (parameters, weights) = (
        ["x_pad_token", "cap_pad_token", "layers.0.modulation"],
        ["cap_embedder.1.weight", "context_refiner.0.attention.qkv.weight"],
    );
    let mut tensors: Vec<Raw> = parameters.iter().map(|name| bf16(name, &[1, 64])).collect();
    tensors.extend(weights.map(|name| bf16(name, &[64, 64])));
    tensors.push(bf16("cap_embedder.0.weight", &[64]));
    tensors.push(bf16("cap_embedder.1.bias", &[64]));
    std::fs::write(&input, file(&tensors, &[])).unwrap();
    for cast in [FloatCast::Keep, FloatCast::Checked] {
        let mut options = ConvertOptions::from(ConvertTarget::Gguf);
        options.run.cast = cast;
        let model = parse(&input).unwrap();
        model.convert(&output, &options).unwrap();
        for (name, (dtype, ..)) in stored_at(&output) {
            let is_weight = weights.contains(&name.as_str());
            let expected = if is_weight { "BF16" } else { "F32" };
            assert_eq!(dtype, expected, "{name}");
        }
        std::fs::remove_file(&output).unwrap();
    }
}
