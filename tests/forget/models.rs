//! `forget` of whole models, from any source.

use anamnesis::{
    AnamnesisError, ConvertOptions, Forget, ForgetScheme, ParsedModel, parse, parse_bytes,
};

use crate::common::forget::{Stored, encoded, options, stored};
use crate::common::{Random, data, each_case, f32s, file, raw};

/// The tensor called `name` as it is stored.
fn stored_as(model: &ParsedModel, name: &str) -> Stored {
    stored(&model.tensor(name).unwrap_or_else(|| panic!("no {name}")))
}

/// A model with a matrix of `rows` × `cols`, an embedding, a norm and a last layer.
fn model(rows: usize, cols: usize) -> Vec<u8> {
    let mut random = Random(11);
    let mut matrix = |name: &str, rows: usize| {
        raw(name, "F32", &[rows, cols], f32s(&random.floats(rows * cols)))
    };
    let tensors = [
        matrix("model.embed_tokens.weight", 40),
        matrix("model.layers.0.mlp.up_proj.weight", rows),
        matrix("model.layers.0.self_attn.q_proj.weight", 64),
        matrix("lm_head.weight", 40),
        raw("model.norm.weight", "BF16", &[cols], vec![0x3f; cols * 2]),
        raw("model.layers.0.self_attn.q_proj.bias", "F16", &[64], vec![0x33; 128]),
    ];
    file(&tensors, &[])
}

/// Encoding a quantized model gives the same as encoding its decoded values.
fn on_the_way(family: &str, sign: &str, scheme: &str) {
    each_case(family, sign, 1, |case| {
        let Ok(model) = parse(case.join(if sign == "model" {
            "model"
        } else {
            "model.safetensors"
        })) else {
            return;
        };
        let options = options(scheme);
        let Ok(recovered) = model.plan({
            let mut recovered = ConvertOptions::from(options.run.clone());
            recovered.single_file = true;
            recovered
        }) else {
            return; // cannot be decoded
        };
        let recovered = parse_bytes(recovered.to_bytes().unwrap()).unwrap();
        let direct = match encoded(&model, options.clone()) {
            Ok((direct, report)) => {
                let (twice, again) = encoded(&recovered, options).unwrap();
                assert_eq!(report.encoded.len(), again.encoded.len());
                (direct, twice, report)
            }
            Err(AnamnesisError::Unsupported { detail, .. }) => {
                assert!(detail.contains("tensor `"), "{detail}"); // e.g. infinite values
                assert!(encoded(&recovered, options).is_err());
                return;
            }
            Err(other) => panic!("{other}"),
        };
        let (direct, twice, report) = direct;
        // gpt-oss's stacks are encoded in the layout of modules, and decoded in the layout of
        // parameters.
        let is_turned = |name: &str| {
            family == "mxfp4" && name.contains(".experts.") && recovered.tensor(name).is_none()
        };
        // Codes that move keep their values (`transcode`), and those that are encoded again need not.
        let is_moved = |scheme: &str| scheme.ends_with(" (codes moved)");
        for tensor in report
            .encoded
            .iter()
            .filter(|tensor| !is_turned(&tensor.name) && !is_moved(&tensor.scheme))
        {
            assert_eq!(
                stored_as(&direct, &tensor.name),
                stored_as(&twice, &tensor.name),
                "{}",
                tensor.name
            );
        }
    });
}

#[test]
fn quantized_tensors_are_decoded_first() {
    for family in ["bnb", "fp8", "gptq", "awq", "nvfp4"] {
        on_the_way(family, "model.safetensors", "gguf:q8_0");
    }
    for family in ["compressed_tensors", "mlx", "gptq_more", "awq_more", "mxfp4", "hqq", "sdnq"] {
        on_the_way(family, "model", "gguf:q8_0");
    }
}

/// Projections that inference engines fuse share one per-tensor scale.
#[test]
fn fused_weights_share_per_tensor_scales() {
    let (mut random, rows) = (Random(17), 40);
    let mut floats = |factor: f32| -> Vec<f32> {
        random
            .floats(rows * 512)
            .iter()
            .map(|x| x * factor)
            .collect()
    };
    let parts = [("q_proj", floats(1.0)), ("k_proj", floats(7.0)), ("v_proj", floats(0.3))];
    let all: Vec<f32> = parts
        .iter()
        .flat_map(|(_, values)| values.clone())
        .collect();
    let matrix = |name: &str, values: &[f32]| {
        raw(&format!("layers.0.{name}.weight"), "F32", &[values.len() / 512, 512], f32s(values))
    };
    let apart = parts
        .iter()
        .map(|(name, values)| matrix(&format!("self_attn.{name}"), values));
    // Projections that are not fused, and one of another layer, have their own scales.
    let others = [matrix("self_attn.o_proj", &parts[0].1), matrix("self_attn.fused", &all)];
    let model = parse_bytes(file(&apart.chain(others).collect::<Vec<_>>(), &[])).unwrap();
    for (scheme, ends) in [
        ("nvfp4", ["", "_scale", "_scale_2"]),
        ("nvfp4-ct", ["_packed", "_scale", "_global_scale"]),
        ("fp8", ["", "_scale", "_scale"]),
    ] {
        for threads in [1, 3] {
            let mut options = options(scheme);
            options.run = options.run.with_threads(threads);
            let (out, _) = encoded(&model, options).unwrap();
            let bytes = |name: &str, end: &str| {
                stored_as(&out, &format!("layers.0.self_attn.{name}.weight{end}")).2
            };
            let global = |name: &str| bytes(name, ends[2]);
            let is_shared = parts
                .iter()
                .all(|(name, _)| global(name) == global("fused"));
            assert_eq!(is_shared, scheme != "fp8", "{scheme}");
            assert!(global("o_proj") != global("fused"));
            for end in ends[..2].iter().filter(|_| is_shared) {
                let apart: Vec<u8> = parts
                    .iter()
                    .flat_map(|(name, _)| bytes(name, end))
                    .collect();
                assert!(apart == bytes("fused", end), "{scheme}{end}, {threads} threads");
            }
        }
    }
}

#[test]
fn bytes_do_not_depend_on_threads() {
    let model = parse_bytes(model(1000, 1024)).unwrap();
    let bytes = |threads: usize| {
        let mut options = options("gguf:q8_0");
        options.run = options.run.with_threads(threads);
        let directory = crate::common::tempdir().unwrap();
        let path = directory.path().join("out.gguf");
        let report = model.forget(&path, options).unwrap();
        (std::fs::read(path).unwrap(), report.distance.unwrap())
    };
    let (one, distance) = bytes(1);
    for threads in [2, 3, 8] {
        let (many, again) = bytes(threads);
        assert!(one == many);
        assert_eq!(distance, again);
    }
    assert!(distance.all.mean_absolute > 0.0 && distance.all.rmse >= distance.all.mean_absolute);
    assert!(distance.all.maximum >= distance.all.rmse && distance.all.relative < 0.01);
    assert_eq!(distance.worst.len(), 4);
}

#[test]
fn vectors_are_widened_for_gguf() {
    let (out, report) =
        encoded(&parse_bytes(model(64, 64)).unwrap(), options("gguf:q8_0")).unwrap();
    assert_eq!(stored_as(&out, "model.norm.weight").0, "F32");
    assert_eq!(stored_as(&out, "model.layers.0.self_attn.q_proj.bias").0, "F32");
    let kept: Vec<&str> = report.kept.iter().map(|kept| kept.name.as_str()).collect();
    assert_eq!(kept, ["model.norm.weight", "model.layers.0.self_attn.q_proj.bias"]);
}

#[test]
fn names_select_tensors() {
    let model = parse_bytes(model(64, 64)).unwrap();
    let names = |include: &[&str], exclude: &[&str]| {
        let mut forget = Forget::from("gguf:q8_0".parse::<ForgetScheme>().unwrap());
        forget.include = include.iter().map(|s| (*s).to_owned()).collect();
        forget.exclude = exclude.iter().map(|s| (*s).to_owned()).collect();
        let (out, report) = encoded(&model, forget.into()).unwrap();
        assert_eq!(out.tensors().len(), 6);
        report
            .encoded
            .into_iter()
            .map(|e| e.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&["*up_proj*"], &[]), ["model.layers.0.mlp.up_proj.weight"]);
    assert_eq!(
        names(&[], &["lm_head*", "re:.*embed.*"]),
        ["model.layers.0.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight"]
    );
}

#[test]
fn like_another_model() {
    let directory = crate::common::tempdir().unwrap();
    let other = directory.path().join("other.safetensors");
    let mut random = Random(3);
    let tensors = [
        raw("model.layers.0.mlp.up_proj.weight", "F8_E4M3", &[64, 64], vec![0x30; 4096]),
        raw("model.layers.0.mlp.up_proj.weight_scale", "F32", &[], f32s(&[1.0])),
        raw("lm_head.weight", "F32", &[40, 64], f32s(&random.floats(2560))),
    ];
    std::fs::write(&other, file(&tensors, &[])).unwrap();
    let mut forget = Forget::from("gguf:q8_0".parse::<ForgetScheme>().unwrap());
    forget.like = Some(other);
    let (_, report) = encoded(&parse_bytes(model(64, 64)).unwrap(), forget.into()).unwrap();
    assert_eq!(report.encoded.len(), 1);
    assert_eq!(report.encoded[0].name, "model.layers.0.mlp.up_proj.weight");
}

#[test]
fn non_finite_values_are_refused() {
    for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (1e38, "would be")] {
        let mut values = vec![0.5f32; 64 * 96];
        values[64 * 70 + 5] = value;
        let model =
            parse_bytes(file(&[raw("x.weight", "F32", &[96, 64], f32s(&values))], &[])).unwrap();
        let error = encoded(&model, options("gguf:q8_0"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("`x.weight`, row 70, column") && error.contains(word), "{error}");
    }
}

#[test]
fn unknown_schemes_are_refused() {
    for text in ["", "gguf:", "gguf:f99", "q4_z", "f16", "gguf:i8"] {
        assert!(text.parse::<ForgetScheme>().is_err(), "{text}");
    }
    let shown = "gguf:q8_0".parse::<ForgetScheme>().unwrap().to_string();
    assert_eq!(shown, "gguf:q8_0");
}

#[test]
fn gguf_metadata_names_the_file_type() {
    let model = parse(data().join("demo/model-q4_k.gguf")).unwrap_or_else(|_| panic!("no golden"));
    let (out, _) = encoded(&model, options("gguf:q8_0")).unwrap();
    let gguf = out.gguf().unwrap();
    assert_eq!(
        gguf.metadata()
            .get("general.quantization_version")
            .unwrap()
            .as_u32(),
        Some(2)
    );
    assert_eq!(gguf.metadata().get("general.file_type").unwrap().as_u32(), Some(7));
}
