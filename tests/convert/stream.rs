//! Decoding in the order of the output (`remember_to_writer`, `for_each_tensor`): the same bytes as
//! in a file, at any number of threads.

use std::collections::HashMap;

use anamnesis::{
    AnamnesisError, ConvertOptions, Dtype, ParsedModel, RememberOptions, TargetDtype, parse,
    parse_bytes,
};
use safetensors::SafeTensors;

use crate::common::{Random, TARGETS, data, effort, f32s, file, raw};

/// Compares every kind of streamed output with `remember_to_bytes`.
fn check(model: &ParsedModel, context: &str) {
    for (target, _) in TARGETS {
        let expected = model.remember_to_bytes(target).unwrap();
        let read = SafeTensors::deserialize(&expected).unwrap();
        for threads in [1, 3] {
            let options = RememberOptions::new(target).with_threads(threads);
            let mut written = Vec::new();
            let report = model.remember_to_writer(&mut written, &options).unwrap();
            assert!(written == expected, "{context} {target}: the writer's bytes");
            assert_eq!(report.output_bytes, expected.len() as u64);

            let mut names = Vec::new();
            let tensor = |name: &str, shape: &[usize], dtype: Dtype, bytes: &[u8]| {
                let want = read.tensor(name).unwrap();
                assert_eq!(
                    (want.dtype().to_string(), want.shape()),
                    (dtype.to_string(), shape),
                    "{context}: {name}"
                );
                assert!(want.data() == bytes, "{context} {target}: {name}");
                names.push(name.to_owned());
                Ok(())
            };
            model.for_each_tensor(&options, tensor).unwrap();
            assert_eq!(names.len(), read.len(), "{context}");

            let mut panels: HashMap<String, Vec<u8>> = HashMap::new();
            let panel = |panel: anamnesis::Panel<'_>| {
                let have = panels.entry(panel.name.to_owned()).or_default();
                assert_eq!(have.len() as u64, panel.at, "{context}: {}", panel.name);
                have.extend(panel.bytes);
                Ok(())
            };
            model.for_each_panel(&options, panel).unwrap();
            for (name, want) in read.tensors() {
                assert!(
                    panels.remove(&name).unwrap_or_default() == want.data(),
                    "{context} {target}: {name} in panels"
                );
            }
            assert!(panels.is_empty());
        }
    }
}

#[test]
fn every_scheme() {
    let demo = ["model-fp8.safetensors", "model-q4_k.gguf", "arrays.npz", "checkpoint.pth"];
    let features = [true, cfg!(feature = "gguf"), cfg!(feature = "npz"), cfg!(feature = "pth")];
    for (name, _) in demo.iter().zip(features).filter(|(_, built)| *built) {
        check(&parse(data().join("demo").join(name)).unwrap(), name);
    }
    let directories = ["awq/n136_g32", "awq/k72_g24", "quark/tiny_llama_mixed/model"];
    for name in directories {
        let path = data().join(name);
        let single = path.join("model.safetensors");
        check(
            &parse(if name.starts_with("awq") {
                single
            } else {
                path
            })
            .unwrap(),
            name,
        );
    }
}

/// Tensors of many tiles, and an empty one.
#[test]
fn many_tiles() {
    let mut random = Random(3);
    let (n, k) = (effort([260usize, 420, 420]), 2048usize);
    let blocks = [n.div_ceil(128), k.div_ceil(128)];
    let tensors = [
        raw("a.weight", "F8_E4M3", &[n, k], random.bytes(n * k)),
        raw("a.weight_scale_inv", "F32", &blocks, f32s(&random.floats(blocks[0] * blocks[1]))),
        raw("b", "U8", &[3], vec![1, 2, 3]),
        raw("c.weight", "F8_E5M2", &[1, n * k], random.bytes(n * k)),
        raw("c.weight_scale", "F32", &[], f32s(&[0.5])),
        raw("empty", "F32", &[0, 7], vec![]),
        raw("plain", "F32", &[n, k], random.bytes(n * k * 4)),
    ];
    check(&parse_bytes(file(&tensors, &[("x", "y")])).unwrap(), "many tiles");
    {
        let tensors = [
            raw("X.qweight", "I32", &[k / 8, n / 32 * 32], random.bytes(k * (n / 32 * 32) / 2)),
            raw("X.qzeros", "I32", &[k / 64, n / 32 * 4], random.bytes(k / 64 * (n / 32 * 4) * 4)),
            raw(
                "X.scales",
                "F32",
                &[k / 64, n / 32 * 32],
                f32s(&random.floats(k / 64 * (n / 32 * 32))),
            ),
        ];
        check(&parse_bytes(file(&tensors, &[("gptq_bits", "4")])).unwrap(), "gptq");
    }
}

/// An error of the caller's function ends the work and is returned.
#[test]
fn callers_errors() {
    let model = parse(data().join("demo/model-fp8.safetensors")).unwrap();
    let mut calls = 0;
    let result = model.for_each_tensor(TargetDtype::BF16, |_, _, _, _| {
        calls += 1;
        Err(std::io::Error::other("enough").into())
    });
    assert_eq!((result.unwrap_err().to_string(), calls), ("enough".to_owned(), 1));
    let full = model.remember_to_writer(&mut [0; 100][..], TargetDtype::BF16);
    assert!(matches!(full, Err(AnamnesisError::Io(_))));
}

/// A tensor whose checksum is wrong is not passed on as a whole.
#[test]
fn checksums() {
    let path = data().join("demo/arrays.npz");
    let model = parse(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let tensor = model
        .tensors()
        .max_by_key(|t| t.bytes().unwrap().len())
        .unwrap();
    let data = tensor.bytes().unwrap();
    let at = bytes
        .windows(data.len())
        .position(|window| window == &*data)
        .unwrap();
    bytes[at] ^= 1;
    let mut seen = Vec::new();
    let result = parse_bytes(bytes)
        .unwrap()
        .for_each_tensor(TargetDtype::BF16, |name, _, _, _| {
            seen.push(name.to_owned());
            Ok(())
        });
    assert!(result.unwrap_err().to_string().contains("checksum"));
    assert!(!seen.contains(&tensor.name().to_owned()));
}

/// A plain cast to FP8, which safetensors can hold as it is, and a quantized weight.
fn cast_and_quantized() -> ParsedModel {
    let tensors = [
        raw("a.weight", "F8_E4M3", &[2, 2], vec![0x38; 4]),
        raw("a.weight_scale", "F32", &[], f32s(&[2.0])),
        raw("b.weight", "BF16", &[2], vec![1, 2, 3, 4]),
        raw("c.bias", "F32", &[1], f32s(&[1.0])),
    ];
    parse_bytes(file(&tensors, &[])).unwrap()
}

/// Patterns of names, and what else the options of a conversion choose.
#[test]
fn options_of_conversions() {
    let model = cast_and_quantized();
    let mut options = ConvertOptions::from(TargetDtype::F32);
    options.include = vec!["*.weight".to_owned()];
    options.exclude = vec!["b.*".to_owned()];
    let (mut whole, mut panels) = (Vec::new(), Vec::new());
    let report = model.for_each_tensor(&options, |name, _, dtype, bytes| {
        whole.push((name.to_owned(), dtype, bytes.to_vec()));
        Ok(())
    });
    assert_eq!(report.unwrap().recovered(), 1);
    let panel = |panel: anamnesis::Panel<'_>| {
        panels.push((panel.name.to_owned(), panel.dtype, panel.bytes.to_vec()));
        Ok(())
    };
    model.for_each_panel(&options, panel).unwrap();
    let want = ("a.weight".to_owned(), Dtype::F32, f32s(&[2.0; 4]));
    assert_eq!((&whole, &panels), (&vec![want], &whole));
    let mut written = Vec::new();
    model.remember_to_writer(&mut written, &options).unwrap();
    options.single_file = true;
    let bytes = model.plan(options).unwrap().to_bytes().unwrap();
    assert!(written == bytes && SafeTensors::deserialize(&bytes).unwrap().len() == 1);

    let mut none = ConvertOptions::from(TargetDtype::F32);
    none.include = vec!["no such name".to_owned()];
    let error = model
        .for_each_tensor(none, |_, _, _, _| Ok(()))
        .unwrap_err();
    assert!(error.to_string().contains("no tensor is left"), "{error}");
}

/// Whether GGUF blocks are decoded is up to the options, and so is the container that a writer
/// gets.
#[test]
fn other_containers() {
    let model = parse(data().join("demo/model-q4_k.gguf")).unwrap();
    let gguf = ConvertOptions::new(anamnesis::ConvertTarget::Gguf);
    for options in [gguf.clone(), gguf.with_decode(true)] {
        let decoded = options.decode;
        let mut written = Vec::new();
        model.remember_to_writer(&mut written, &options).unwrap();
        let conversion = model.plan(&options).unwrap();
        assert!(written == conversion.to_bytes().unwrap(), "decoded: {decoded}");
        let mut blocks = 0;
        let count = |_: &str, _: &[usize], dtype: Dtype, _: &[u8]| {
            blocks += usize::from(dtype.is_ggml_block());
            Ok(())
        };
        model.for_each_tensor(&options, count).unwrap();
        assert_eq!(blocks == 0, decoded);
    }
    {
        let npz = anamnesis::ConvertTarget::Npz;
        let model = cast_and_quantized();
        let error = model.remember_to_writer(Vec::new(), npz).unwrap_err();
        assert!(error.to_string().contains("NPZ"), "{error}");
    }
}

#[test]
fn encoding_is_refused() {
    let model = cast_and_quantized();
    let nf4 = ConvertOptions::from(anamnesis::ForgetScheme::NF4);
    for options in [nf4, anamnesis::ConvertTarget::Qnat.into()] {
        let calls = [
            model.for_each_tensor(&options, |_, _, _, _| Ok(())),
            model.for_each_panel(&options, |_| Ok(())),
            model.remember_to_writer(Vec::new(), &options),
        ];
        for result in calls {
            let error = result.unwrap_err();
            assert!(matches!(error, AnamnesisError::Unsupported { .. }), "{error}");
        }
    }
}
