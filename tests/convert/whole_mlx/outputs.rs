//! What `forget` writes, against mlx-lm.

use std::path::Path;

use anamnesis::{ConvertOptions, ForgetScheme, ModelScope, TargetDtype, parse};
use serde_json::Value;

use super::{forget, json, model, models, models_of, shape, tensors, values, write_hf};
use crate::common::effort;

#[test]
fn directories_are_those_of_mlx_lm() {
    // In the gate each model takes all schemes, otherwise a third of them.
    let step = effort([3, 1, 1]);
    for (at, (name, found)) in models().into_iter().enumerate() {
        require_same(&name, &found, at, step);
    }
}

/// Widths that `--quant-predicate` of mlx-lm gives to modules, also where a class has others.
#[test]
fn recipes_are_those_of_mlx_lm() {
    for (name, found) in models_of("mlx_recipes") {
        require_same(&name, &found, 0, 1);
    }
}

/// Compares what is made of `found` in each `step`th scheme.
fn require_same(name: &str, found: &Value, at: usize, step: usize) {
    let directory = crate::common::tempdir().unwrap();
    let from = directory.path().join("hf");
    write_hf(found, &from);
    let schemes = found["mlx"].as_object().unwrap();
    let first = at % step.min(schemes.len());
    for (scheme, expected) in schemes.iter().skip(first).step_by(step) {
        let to = directory.path().join(scheme);
        forget(&from, &to, scheme).unwrap();
        let made = tensors(&to);
        let wanted = expected["tensors"].as_object().unwrap();
        let names: Vec<_> = made.keys().collect();
        let mut wanted_names: Vec<_> = wanted.keys().collect();
        wanted_names.sort();
        assert_eq!(names, wanted_names, "{name} {scheme}");
        for (tensor, entry) in wanted {
            let (dtype, found, bytes) = &made[tensor];
            let what = format!("{name} {scheme} `{tensor}`");
            let (wanted, sizes) = (entry[0].as_str().unwrap(), shape(entry));
            assert_eq!((dtype.as_str(), found), (wanted, &sizes), "{what}");
            assert_eq!(u64::from(crc32fast::hash(bytes)), entry[2], "{what}");
        }
        let config = json(&to.join("config.json"));
        for key in ["quantization", "quantization_config"] {
            assert_eq!(config[key], expected["quantization"], "{name} {scheme}");
        }
        // What was quantized has another type now, which mlx-lm does not write.
        let keys = config.as_object().unwrap().keys();
        let keys: Vec<_> = keys
            .filter(|key| name != "gpt_oss" || *key != "torch_dtype")
            .collect();
        assert_eq!(json!(keys), expected["keys"], "{name} {scheme}");
    }
}

/// Filters have another shape on the other sides, and the same bytes, also where their type stays.
#[test]
fn filters() {
    let directory = crate::common::tempdir().unwrap();
    let [from, mlx, back] = ["hf", "mlx", "back"].map(|name| directory.path().join(name));
    let mut found = model("lfm2");
    for (_, entry) in found["hf"].as_object_mut().unwrap() {
        entry[0] = json!("F32");
    }
    write_hf(&found, &from);
    forget(&from, &mlx, "mlx-4bit").unwrap();
    parse(&mlx)
        .unwrap()
        .remember(&back, TargetDtype::F32)
        .unwrap();
    let name = "model.layers.0.conv.conv.weight";
    let [from, mlx, back] = [from, mlx, back].map(|path| tensors(&path).remove(name).unwrap());
    assert!(back == from);
    assert!(mlx.0 == "F32" && mlx.1 == [64, 3, 1] && mlx.2 == from.2);
}

/// What is quantized is decoded on the way, and experts that lie in several files become one stack.
#[test]
fn quantized_shards() {
    for (name, scheme) in
        [("mixtral", "fp8-tensor"), ("qwen3_moe", "nf4"), ("llama", "int8"), ("gpt_oss", "nf4")]
    {
        let directory = crate::common::tempdir().unwrap();
        let [from, quantized, decoded, a, b] =
            ["hf", "quantized", "decoded", "a", "b"].map(|name| directory.path().join(name));
        write_hf(&model(name), &from);
        let scheme: ForgetScheme = scheme.parse().unwrap();
        let options = ConvertOptions::from(scheme).with_max_shard_size(20_000);
        parse(&from).unwrap().forget(&quantized, options).unwrap();
        parse(&quantized)
            .unwrap()
            .remember(&decoded, TargetDtype::BF16)
            .unwrap();
        forget(&quantized, &a, "mlx-4bit").unwrap();
        forget(&decoded, &b, "mlx-4bit").unwrap();
        let (made, wanted) = (tensors(&a), tensors(&b));
        assert_eq!(made.len(), wanted.len(), "{name}");
        for (tensor, wanted) in wanted {
            assert!(made[&tensor] == wanted, "{name} `{tensor}`");
        }
        let shards = |path: &Path| {
            let names = std::fs::read_dir(path).unwrap();
            let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.ends_with(".safetensors")).count()
        };
        let counts = [shards(&quantized), shards(&a)];
        assert!(counts[0] > 1 && counts[1] > 1 && counts[1] <= counts[0], "{name}: {counts:?}");
        let index = json(&a.join("model.safetensors.index.json"));
        assert_eq!(index["weight_map"].as_object().unwrap().len(), tensors(&a).len());
    }
}

/// Tensors alone keep their names, as far as a caller says so or the class is unknown.
#[test]
fn tensors_alone() {
    let directory = crate::common::tempdir().unwrap();
    let mut found = model("mixtral");
    let [from, unknown, to, other] =
        ["hf", "unknown", "to", "other"].map(|name| directory.path().join(name));
    write_hf(&found, &from);
    let options = ConvertOptions::from(ForgetScheme::MLX_4BIT).with_scope(ModelScope::Tensors);
    parse(&from).unwrap().forget(&to, options).unwrap();
    let name = "model.layers.0.block_sparse_moe.experts.1.w2.scales";
    assert!(tensors(&to).contains_key(name));
    found["config"]["architectures"] = json!(["OtherForCausalLM"]);
    write_hf(&found, &unknown);
    let report = forget(&unknown, &other, "mlx-4bit").unwrap();
    assert!(tensors(&other) == tensors(&to));
    let is_noted = |note: &String| note.contains("OtherForCausalLM");
    assert!(report.notes.iter().any(is_noted), "{:?}", report.notes);
    let options = ConvertOptions::from(ForgetScheme::MLX_4BIT).with_scope(ModelScope::Model);
    let error = parse(&unknown)
        .unwrap()
        .forget(&other, options)
        .unwrap_err();
    assert!(error.to_string().contains("--tensors-only"), "{error}");
}

/// Experts that some checkpoints have in one tensor become the stacks that single ones become.
#[test]
fn fused_experts() {
    let directory = crate::common::tempdir().unwrap();
    let [from, to] = ["hf", "to"].map(|name| directory.path().join(name));
    let mut found = model("qwen3_moe");
    let all = found["hf"].as_object_mut().unwrap();
    all.retain(|name, _| !name.contains(".experts."));
    let [fused, down] =
        ["gate_up_proj", "down_proj"].map(|name| format!("model.layers.0.mlp.experts.{name}"));
    all.insert(fused.clone(), json!(["BF16", [2, 128, 64]]));
    all.insert(down.clone(), json!(["BF16", [2, 64, 64]]));
    write_hf(&found, &from);
    let options = ConvertOptions::from(ForgetScheme::MLX_8BIT).with_scope(ModelScope::Model);
    parse(&from).unwrap().forget(&to, options).unwrap();
    let mut single = found.clone();
    let all = single["hf"].as_object_mut().unwrap();
    for part in ["gate_proj", "up_proj", "down_proj"] {
        for expert in 0..2 {
            let name = format!("model.layers.0.mlp.experts.{expert}.{part}.weight");
            all.insert(name, json!(["BF16", [64, 64]]));
        }
    }
    all.retain(|name, _| *name != fused && *name != down);
    let [from, wanted] = ["single", "wanted"].map(|name| directory.path().join(name));
    write_hf(&single, &from);
    // The same values under the names of single experts.
    let (path, rows) = (from.join("model.safetensors"), 64 * 64 * 2);
    let [fused, down] = [fused, down].map(|name| {
        let count = if name.ends_with("gate_up_proj") {
            2 * 128 * 64
        } else {
            2 * 64 * 64
        };
        values(&name, "BF16", count)
    });
    let mut bytes = std::fs::read(&path).unwrap();
    let parsed = parse(&path).unwrap();
    let places: Vec<_> = parsed
        .tensors()
        .filter(|t| t.name().contains(".experts."))
        .map(|t| (t.name().to_owned(), t.bytes().unwrap().to_vec()))
        .collect();
    assert_eq!(places.len(), 6);
    for (name, old) in places {
        let expert = usize::from(name.contains("experts.1."));
        let part = match () {
            () if name.contains("gate_proj") => &fused[2 * expert * rows..],
            () if name.contains("up_proj") => &fused[(2 * expert + 1) * rows..],
            () => &down[expert * rows..],
        };
        let at = bytes
            .windows(rows)
            .position(|window| window == old)
            .unwrap();
        bytes[at..at + rows].copy_from_slice(&part[..rows]);
    }
    std::fs::write(&path, bytes).unwrap();
    forget(&from, &wanted, "mlx-8bit").unwrap();
    assert!(tensors(&to) == tensors(&wanted));
}
