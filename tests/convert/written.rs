//! Containers of other libraries as they are written: their own files come back byte for byte, readers find every tensor, and what a
//! container cannot hold is an error that names the tensor.

use anamnesis::{
    ConvertOptions, ConvertTarget, ErrorKind, ParsedModel, TargetDtype, parse, parse_bytes,
};

use crate::common::{Raw, assert_same, data, f32s, file, raw, tempdir};

/// The containers of one file, of which this build has all.
const FILES: [ConvertTarget; 3] =
    [ConvertTarget::Pth, ConvertTarget::Msgpack, ConvertTarget::Burnpack];

fn written(model: &ParsedModel, target: ConvertTarget) -> Vec<u8> {
    let plan = model.plan(ConvertOptions::new(target));
    plan.unwrap().to_bytes().unwrap()
}

/// A tensor of each dtype that is stored in whole bytes.
fn all_dtypes() -> Vec<Raw> {
    let bits = [
        ("BOOL", 8),
        ("U8", 8),
        ("I8", 8),
        ("U16", 16),
        ("I16", 16),
        ("F16", 16),
        ("BF16", 16),
        ("U32", 32),
        ("I32", 32),
        ("F32", 32),
        ("U64", 64),
        ("I64", 64),
        ("F64", 64),
        ("C64", 64),
        ("F8_E4M3", 8),
        ("F8_E5M2", 8),
        ("F8_E8M0", 8),
    ];
    let tensor = |(dtype, bits): (&'static str, usize)| {
        let bytes = (0..6 * bits / 8).map(|i| match dtype {
            "BOOL" => (i % 2) as u8,
            _ => (i * 37) as u8 & 0x3f,
        });
        raw(&format!("of.{dtype}"), dtype, &[2, 3], bytes.collect())
    };
    let mut all: Vec<Raw> = bits.into_iter().map(tensor).collect();
    all.push(raw("scalar", "F32", &[], f32s(&[2.5])));
    all.push(raw("empty", "F16", &[0, 3], vec![]));
    all.push(raw("deep.0.a/b.c", "F32", &[1, 2, 1], f32s(&[1.0, -1.0])));
    all
}

fn same_tensors(want: &ParsedModel, got: &ParsedModel) {
    assert_eq!(want.tensors().len(), got.tensors().len());
    for tensor in want.tensors() {
        let found = got.tensor(tensor.name()).unwrap();
        assert_eq!((found.dtype(), found.shape()), (tensor.dtype(), tensor.shape()));
        assert!(found.bytes().unwrap() == tensor.bytes().unwrap(), "{}", tensor.name());
    }
}

/// What Flax and Burn have written, in the order in which they write: the same bytes.
#[test]
fn files_of_the_libraries_come_back() {
    for name in ["module", "params", "bf16", "dtypes", "many"] {
        let path = data().join(format!("flax/{name}.msgpack"));
        let model = parse(&path).unwrap();
        assert!(written(&model, ConvertTarget::Msgpack) == std::fs::read(&path).unwrap(), "{name}");
    }
    // Its tensors are stored in this order, and listed in that of their names.
    let layer = |n: usize| {
        let len = 4 * (n % 4);
        let bytes = (0..len).map(|at| (at * 37 + len) as u8 & 0x3f).collect();
        raw(&format!("layers.{n}.weight"), "F16", &[2, n % 4], bytes)
    };
    let layers: Vec<Raw> = (0..60).map(layer).collect();
    let model = parse_bytes(file(&layers, &[])).unwrap();
    let want = std::fs::read(data().join("burnpack/many.bpk")).unwrap();
    assert!(written(&model, ConvertTarget::Burnpack) == want);
}

/// What NumPy has written: the same bytes.
#[test]
fn arrays_of_numpy_come_back() {
    let root = tempdir().unwrap();
    for (kind, code) in [("f4", "little"), ("f8", "little"), ("u8", "little"), ("c8", "little")] {
        let path = data().join(format!("npz/dtype_{kind}_{code}.npy"));
        let output = root.path().join(kind);
        let model = parse(&path).unwrap();
        model
            .convert(&output, ConvertOptions::new(ConvertTarget::Npy))
            .unwrap();
        let array = std::fs::read(output.join("tensor.npy")).unwrap();
        assert!(array == std::fs::read(&path).unwrap(), "{kind}");
    }
}

/// Of one file, as its readers find it; and of any number of threads.
#[test]
fn every_dtype_is_read_back() {
    let root = tempdir().unwrap();
    for target in FILES {
        let mut tensors = all_dtypes();
        if target == ConvertTarget::Burnpack {
            tensors.retain(|t| !(t.name.contains(".F8") || t.name.contains("C64")));
        }
        let model = parse_bytes(file(&tensors, &[])).unwrap();
        let bytes = written(&model, target);
        same_tensors(&model, &parse_bytes(bytes.clone()).unwrap());
        let path = root.path().join("out");
        let mut options = ConvertOptions::new(target);
        options.run = options.run.with_threads(3).with_force(true);
        model.convert(&path, options).unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes, "{target:?}");
    }
    let mut tensors = all_dtypes();
    tensors.retain(|t| !(t.name.contains(".F8") || t.name.contains(".BF16")));
    let model = parse_bytes(file(&tensors, &[])).unwrap();
    let output = root.path().join("arrays");
    model
        .convert(&output, ConvertOptions::new(ConvertTarget::Npy))
        .unwrap();
    assert!(output.join("deep.0.a%2fb.c.npy").is_file());
    same_tensors(&model, &parse(&output).unwrap());
}

/// Data of PyTorch's archives begins at multiples of 64, as torch writes it and maps it.
#[test]
fn checkpoints_are_aligned() {
    let model = parse_bytes(file(&all_dtypes(), &[])).unwrap();
    let plan = model.plan(ConvertOptions::new(ConvertTarget::Pth)).unwrap();
    let bytes = plan.to_bytes().unwrap();
    for output in model.tensors().filter(|t| t.byte_len() > 8) {
        let data = output.bytes().unwrap();
        let aligned = bytes
            .chunks(64)
            .any(|chunk| chunk.starts_with(&data[..data.len().min(16)]));
        assert!(aligned, "{}", output.name());
    }
}

/// A quantized model is decoded on its way.
#[test]
fn codes_are_decoded() {
    let model = parse(data().join("demo/model-fp8.safetensors")).unwrap();
    let want = std::fs::read(data().join("demo/expected-f32.safetensors")).unwrap();
    for target in FILES {
        let mut options = ConvertOptions::new(target);
        options.run.to = TargetDtype::F32;
        let bytes = model.plan(options).unwrap().to_bytes().unwrap();
        let again = parse_bytes(bytes).unwrap();
        let plain = again
            .plan(ConvertOptions::new(ConvertTarget::Safetensors))
            .unwrap();
        assert_same(&want, &plain.to_bytes().unwrap(), "decoded");
    }
}

#[test]
fn what_a_container_cannot_hold() {
    for (target, dtype, bits, words) in [
        (ConvertTarget::Npy, "BF16", 16, "NumPy has no type BF16; --out-dtype f32 --cast"),
        // It is decoded first, to BF16.
        (ConvertTarget::Npy, "F8_E4M3", 8, "NumPy has no type BF16"),
        (ConvertTarget::Burnpack, "F8_E8M0", 8, "Burn has no type F8_E8M0; --out-dtype f32 --cast"),
        (ConvertTarget::Burnpack, "C64", 64, "Burn has no type C64; --to safetensors may hold it"),
        (ConvertTarget::Msgpack, "F4", 4, "Flax has no type F4"),
        (ConvertTarget::Pth, "F6_E2M3", 6, "torch has no type F6_E2M3"),
    ] {
        let narrow = raw("narrow", dtype, &[2, 8], vec![0x11; 2 * bits]);
        let model = parse_bytes(file(&[raw("a", "F32", &[1], f32s(&[1.0])), narrow], &[])).unwrap();
        let error = model
            .plan(ConvertOptions::new(target))
            .map(|_| ())
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.tensor()),
            (ErrorKind::Unsupported, Some("narrow")),
            "{error}"
        );
        assert!(error.to_string().contains(words), "{error}");
    }
}
