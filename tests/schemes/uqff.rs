//! UQFF models of mistral.rs against its own decoders (`generate/uqff.py`), and layers that are
//! refused.

use std::collections::HashMap;

use anamnesis::{AnamnesisError, Dtype, TargetDtype, parse, parse_bytes};
use safetensors::{Dtype as Stored, SafeTensors};

use crate::common::{TARGETS, data, file, first_difference, raw};

/// The output in each type, by the dtype of its decoded tensors.
fn outputs(model: &str) -> HashMap<&'static str, Vec<u8>> {
    let model = parse(data().join("uqff").join(model)).unwrap();
    let problems = model.inspect().problems;
    assert!(problems.is_empty(), "{problems:?}");
    let decode = |(target, name): (TargetDtype, &'static str)| {
        (name, model.remember_to_bytes(target).unwrap())
    };
    TARGETS.into_iter().map(decode).collect()
}

#[test]
fn layers_of_mistral_rs() {
    for (model, layers) in [("random", 43), ("isq", 20)] {
        let outputs = outputs(model);
        let expected = data()
            .join("uqff")
            .join(format!("{model}.expected.safetensors"));
        let expected = std::fs::read(expected).unwrap();
        let expected = SafeTensors::deserialize(&expected).unwrap();
        assert_eq!(expected.len(), layers, "{model}");
        for (name, want) in expected.tensors() {
            // The type in which the library gives the values; floats keep theirs in every output.
            let (output, dtype) = match want.dtype() {
                Stored::BF16 => ("bf16", Dtype::BF16),
                Stored::F16 => ("f16", Dtype::F16),
                _ => ("f32", Dtype::F32),
            };
            let output = SafeTensors::deserialize(&outputs[output]).unwrap();
            let got = output.tensor(&name).unwrap();
            assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{name}");
            let difference = first_difference(dtype, want.data(), got.data());
            assert_eq!(difference, None, "{model}: {name}");
        }
        // Other tensors are there as they are, and nothing else is.
        let output = SafeTensors::deserialize(&outputs["f32"]).unwrap();
        let mut others: Vec<_> = output.names().into_iter().map(String::from).collect();
        others.retain(|name| expected.tensor(name).is_err());
        others.sort();
        let expected: &[&str] = match model {
            "random" => {
                &["f8q8.bias", "model.layers.0.mlp.experts.gate_proj.bias", "model.norm.weight"]
            }
            _ => &["model.norm.weight"],
        };
        assert_eq!(others, expected, "{model}");
    }
}

#[test]
fn directories_of_files() {
    let copy = crate::common::tempdir().unwrap();
    let from = data().join("uqff/random");
    let put = |name: &str, as_name: &str| {
        std::fs::copy(from.join(name), copy.path().join(as_name)).unwrap();
    };
    let refused = |words: &str| {
        let error = parse(copy.path()).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    };
    put("m-0.uqff", "m-0.uqff");
    refused("`residual.safetensors` is missing");
    put("residual.safetensors", "residual.safetensors");
    assert!(parse(copy.path()).is_ok());
    put("m-1.uqff", "m-2.uqff");
    refused("`m-1.uqff` is missing");
    put("m-1.uqff", "m-1.uqff");
    std::fs::remove_file(copy.path().join("m-2.uqff")).unwrap();
    assert_eq!(parse(copy.path()).unwrap().inspect().problems, Vec::<String>::new());
    // A report lists the files, and they have the names that it says.
    let report = |outputs: &str| {
        let json = format!("{{\"outputs\": [{outputs}]}}");
        std::fs::write(copy.path().join("uqff_report.json"), json).unwrap();
    };
    report(r#"{"quant": "q4k", "shards": ["m-0.uqff", "m-1.uqff", "m-2.uqff"]}"#);
    refused("`m-2.uqff` is missing");
    report(r#"{"quant": "q4k", "shards": ["m-0.uqff", "../m-1.uqff"]}"#);
    refused("`../m-1.uqff` is missing");
    report(r#"{"quant": "q4k", "shards": ["m-0.uqff"]}"#);
    refused("does not list m-1.uqff");
    report(r#"{"quant": "q4k", "shards": ["m-0.uqff", "m-1.uqff", "m-0.uqff"]}"#);
    refused("lists `m-0.uqff` twice");
    assert!(parse(copy.path().join("m-0.uqff")).is_err());
    report(r#"{"quant": "q4k", "shards": []}"#);
    refused("q4k has no files");
    report("");
    refused("it lists no model");
    report(r#"{"quant": "a", "shards": ["m-0.uqff"]}, {"quant": "b", "shards": ["m-1.uqff"]}"#);
    refused("which of several models? a, b");
    let rename = |from: &str, to: &str| {
        std::fs::rename(copy.path().join(from), copy.path().join(to)).unwrap();
    };
    rename("m-1.uqff", "second.uqff");
    report(r#"{"quant": "q4k", "shards": ["m-0.uqff", "second.uqff"]}"#);
    assert_eq!(parse(copy.path()).unwrap().inspect().problems, Vec::<String>::new());
    rename("second.uqff", "m-1.uqff");
    std::fs::remove_file(copy.path().join("uqff_report.json")).unwrap();
    // Weights of another model beside it, and a file of UQFF beside another model.
    put("residual.safetensors", "model.safetensors");
    refused("which of two models? m-0.uqff");
    rename("residual.safetensors", "aside");
    let notes = parse(copy.path()).unwrap().inspect().notes;
    let left_out = "left out: m-0.uqff, m-1.uqff";
    assert!(notes.iter().any(|note| note.contains(left_out)), "{notes:?}");
    rename("aside", "residual.safetensors");
    std::fs::remove_file(copy.path().join("model.safetensors")).unwrap();
    put("m-0.uqff", "n-0.uqff");
    refused("which of several models?");
    // The first file of one of them stands for all files of its model.
    let read = |file: &str| parse(copy.path().join(file)).unwrap();
    let names = |model: &anamnesis::ParsedModel| {
        let mut names: Vec<String> = model.tensors().map(|t| t.name().to_owned()).collect();
        names.sort();
        names
    };
    let whole = parse(&from).unwrap();
    let both = r#"{"quant": "q4k", "shards": ["m-0.uqff", "m-1.uqff"]}, {"quant": "q8", "shards": ["n-0.uqff"]}"#;
    for outputs in [None, Some(both)] {
        if let Some(outputs) = outputs {
            report(outputs);
            refused("which of several models? q4k, q8; give the first file of one");
        }
        let model = read("m-0.uqff");
        assert_eq!(names(&model), names(&whole));
        let bytes = model.remember_to_bytes(TargetDtype::F32).unwrap();
        let want = whole.remember_to_bytes(TargetDtype::F32).unwrap();
        let (found, want) =
            (SafeTensors::deserialize(&bytes).unwrap(), SafeTensors::deserialize(&want).unwrap());
        assert_eq!(found.len(), want.len());
        for (name, t) in want.iter() {
            assert_eq!(found.tensor(name).unwrap().data(), t.data(), "{name}");
        }
        assert!(names(&read("n-0.uqff")).len() < names(&whole).len());
        let alone = read("m-1.uqff").inspect().notes;
        assert!(alone.iter().any(|note| note.contains("left out")), "{alone:?}");
    }
    std::fs::remove_file(copy.path().join("uqff_report.json")).unwrap();
    // The version is in the first file alone.
    let second = parse(from.join("m-1.uqff")).unwrap();
    let error = second
        .remember_to_bytes(TargetDtype::F32)
        .unwrap_err()
        .to_string();
    assert!(error.contains("its version is missing"), "{error}");
    // What releases before 1.0 wrote.
    let old = file(&[raw("0", "U8", &[8], vec![0; 8])], &[]);
    std::fs::write(copy.path().join("old.uqff"), old).unwrap();
    let error = parse(copy.path().join("old.uqff")).unwrap_err().to_string();
    assert!(error.contains("UQFF before version 1.0"), "{error}");
}

/// A model of version `version` with the tensors `layer`, as name, dtype, shape and bytes.
fn decode(
    version: [u8; 2],
    layer: &[(&str, &'static str, &[usize], Vec<u8>)],
) -> Result<(), AnamnesisError> {
    let number = |n: u8| vec![n, 0, 0, 0];
    let mut tensors = vec![
        raw("uqff.version.major", "U32", &[], number(version[0])),
        raw("uqff.version.minor", "U32", &[], number(version[1])),
    ];
    let layer = layer
        .iter()
        .map(|(name, dtype, shape, bytes)| raw(name, dtype, shape, bytes.clone()));
    tensors.extend(layer);
    parse_bytes(file(&tensors, &[]))?
        .remember_to_bytes(TargetDtype::F32)
        .map(drop)
}

#[test]
fn layers_that_do_not_fit() {
    let u32s = |list: &[u32]| {
        list.iter()
            .flat_map(|n| n.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let blocks = |id: u32, shape: &[u32], bytes: usize| {
        vec![
            ("k.weight", "U8", vec![bytes], vec![0; bytes]),
            ("k.weight.format", "U8", vec![], vec![0]),
            ("k.weight.dtype", "U32", vec![], u32s(&[id])),
            ("k.weight.shape", "U32", vec![shape.len()], u32s(shape)),
        ]
    };
    let good = || blocks(8, &[2, 32], 68);
    let afq = |bits: u8, group: u8, words: usize, groups: usize| {
        vec![
            ("k.weight", "U32", vec![2, words], vec![0; 8 * words]),
            ("k.weight.format", "U8", vec![], vec![4]),
            ("k.weight.scales", "F32", vec![2, groups], vec![0; 8 * groups]),
            ("k.weight.biases", "F32", vec![2, groups], vec![0; 8 * groups]),
            ("k.weight.bits", "U8", vec![], vec![bits]),
            ("k.weight.group_size", "U8", vec![], vec![group]),
        ]
    };
    let hqq = |bits: u8, axis: u8, group: u32, shape: &[u32]| {
        let mut layer = vec![
            ("k.weight", "U8", vec![8, 4], vec![0; 32]),
            ("k.weight.format", "U8", vec![], vec![2]),
            ("k.weight.scales", "F32", vec![1, 4], vec![0; 16]),
            ("k.weight.zeros", "F32", vec![1, 4], vec![0; 16]),
            ("k.weight.shape", "U32", vec![shape.len()], u32s(shape)),
            ("k.weight.bits", "U8", vec![], vec![bits]),
            ("k.weight.axis", "U8", vec![], vec![axis]),
            ("k.weight.group_size", "U32", vec![], u32s(&[group])),
        ];
        layer.push(("k.weight.optimization_steps", "U32", vec![], u32s(&[0])));
        layer.push(("k.weight.round_zeros", "U8", vec![], vec![1]));
        layer.push(("k.weight.channel_wise", "U8", vec![], vec![1]));
        layer
    };
    let f8q8 = |blocks: u32, shape: &[u32]| {
        vec![
            ("k.weight", "U8", vec![66], vec![0; 66]),
            ("k.weight.format", "U8", vec![], vec![5]),
            ("k.weight.num_blocks", "U32", vec![], u32s(&[blocks])),
            ("k.weight.shape", "U32", vec![shape.len()], u32s(shape)),
        ]
    };
    let mxfp4 = |scales: [usize; 2]| {
        vec![
            ("k.weight", "U8", vec![2, 32], vec![0; 64]),
            ("k.weight.format", "U8", vec![], vec![6]),
            ("k.weight.scales", "U8", scales.to_vec(), vec![0; scales[0] * scales[1]]),
        ]
    };
    let fp8 = |dtype: u32, scales: usize| {
        vec![
            ("k.weight", "F8_E4M3", vec![2, 32], vec![0; 64]),
            ("k.weight.format", "U8", vec![], vec![3]),
            ("k.weight.dequant_w_scale", "F32", vec![scales], vec![0; 4 * scales]),
            ("k.weight.dequant_x_scale", "F32", vec![], vec![0; 4]),
            ("k.weight.quant_scale", "F32", vec![], vec![0; 4]),
            ("k.weight.dtype", "U32", vec![], u32s(&[dtype])),
        ]
    };
    let with = |tag: u8| {
        let mut layer = good();
        layer[1].3 = vec![tag];
        layer
    };
    let without = |mut layer: Vec<_>, i: usize| {
        layer.remove(i);
        layer
    };
    type Layer = Vec<(&'static str, &'static str, Vec<usize>, Vec<u8>)>;
    let more = |name: &'static str| {
        let mut layer: Layer = good();
        layer.push((name, "U8", vec![1], vec![0]));
        layer
    };
    let fine = [
        good(),
        afq(3, 32, 3, 1),
        hqq(4, 0, 16, &[8, 8]),
        f8q8(2, &[2, 32]),
        mxfp4([2, 2]),
        fp8(9, 1),
    ];
    let borrowed = |layer: &Layer, version| {
        let layer: Vec<_> = layer
            .iter()
            .map(|(n, d, s, b)| (*n, *d, &s[..], b.clone()))
            .collect();
        decode(version, &layer)
    };
    for layer in fine {
        borrowed(&layer, [1, 2]).unwrap();
        borrowed(&layer, [1, 0]).unwrap();
        for version in [[0, 9], [1, 3], [2, 0]] {
            let error = borrowed(&layer, version).unwrap_err().to_string();
            assert!(error.contains("`k.weight`") && error.contains("its version is"), "{error}");
        }
        // Each tensor is needed.
        for i in 1..layer.len() {
            let error = borrowed(&without(layer.clone(), i), [1, 2])
                .unwrap_err()
                .to_string();
            assert!(error.contains("k.weight"), "{}: {error}", layer[i].0);
        }
    }
    let rows: Vec<(Layer, &str)> = vec![
        (with(7), "format 7 is not known"),
        (with(255), "format 255 is not known"),
        (with(1), "has floats"),
        (blocks(8, &[2, 32], 67), "does not hold"),
        (blocks(8, &[2, 31], 68), "does not hold"),
        (blocks(8, &[u32::MAX, u32::MAX, u32::MAX], 68), "no sizes"),
        (blocks(16, &[2, 256], 132), "mistral.rs does not read ggml type 16"),
        (blocks(0, &[2, 32], 68), "does not hold"),
        (more("k.weight.other"), "`k.weight.other` beside it is not known"),
        (more("k.weight.zeros"), "none goes with it"),
        (afq(5, 32, 5, 1), "do not go with"),
        (afq(4, 0, 4, 1), "do not go with"),
        (afq(4, 64, 4, 1), "do not go with"),
        (hqq(3, 0, 16, &[8, 8]), "not written by mistral.rs"),
        (hqq(4, 1, 16, &[8, 8]), "not written by mistral.rs"),
        (hqq(4, 0, 8, &[8, 8]), "does not hold"),
        (hqq(4, 0, 16, &[8, 9]), "does not hold"),
        (f8q8(3, &[2, 32]), "do not hold"),
        (f8q8(2, &[4, 16]), "do not hold"),
        (mxfp4([2, 1]), "not one for 32"),
        (mxfp4([4, 1]), "not one for 32"),
        (fp8(5, 1), "its type is 5"),
        (fp8(9, 2), "with 2 scales"),
    ];
    for (layer, words) in rows {
        let error = borrowed(&layer, [1, 2]).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("k.weight"), "{words}: {error}");
    }
}
