//! Conversions into GGUF and back: this crate reads the output, and it equals the input.

mod without_architecture;
mod write;

use std::path::Path;

use anamnesis::{
    ConvertOptions, ConvertTarget, Dtype, GgufMetadataValue, ParsedModel, RememberOptions,
    TargetDtype, parse, parse_bytes,
};

use crate::common::verdict::{Parse, Unsupported, Usage, verdict};
use crate::common::{Random, data, f32s, file, raw};

fn to_gguf() -> ConvertOptions {
    ConvertOptions::new(ConvertTarget::Gguf)
}

fn to_bytes(model: &ParsedModel, options: ConvertOptions) -> Vec<u8> {
    model.plan(options).unwrap().to_bytes().unwrap()
}

/// Fails unless both models have the same tensors in the same order, bit for bit.
fn assert_same_tensors(want: &ParsedModel, got: &ParsedModel) {
    assert_eq!(want.tensors().len(), got.tensors().len());
    for (want, got) in want.tensors().zip(got.tensors()) {
        assert_eq!(
            (want.name(), want.dtype(), want.shape()),
            (got.name(), got.dtype(), got.shape())
        );
        assert!(want.bytes().unwrap() == got.bytes().unwrap(), "{}", want.name());
    }
}

/// Every metadata entry except those that describe a split.
fn entries(model: &ParsedModel) -> Vec<(String, GgufMetadataValue)> {
    let all = model.gguf().unwrap().metadata();
    all.iter()
        .filter(|(key, _)| !key.starts_with("split."))
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Every metadata entry as text, so that NaN equals NaN.
fn shown(model: &ParsedModel) -> Vec<String> {
    entries(model)
        .iter()
        .map(|entry| format!("{entry:?}"))
        .collect()
}

/// Every GGUF file among the goldens.
fn golden_files() -> Vec<std::path::PathBuf> {
    let cases = ["gguf", "ik_llama", "ik_interleaved", "prism"]
        .into_iter()
        .flat_map(|family| std::fs::read_dir(data().join(family)).unwrap())
        .map(|e| e.unwrap().path().join("model.gguf"));
    let files = std::fs::read_dir(data().join("gguf-files"))
        .unwrap()
        .map(|e| e.unwrap().path());
    let wanted = |p: &std::path::PathBuf| {
        let name = p.to_string_lossy();
        p.is_file()
            && name.ends_with(".gguf")
            && !name.contains("00002-of")
            && !name.contains("00003-of")
    };
    cases.chain(files).filter(wanted).collect()
}

#[test]
fn gguf_goes_through_untouched() {
    let files = golden_files();
    assert!(files.len() > 54, "{}", files.len());
    for path in files {
        let model = parse(&path).unwrap();
        let bytes = to_bytes(&model, to_gguf());
        let again = parse_bytes(bytes.clone()).unwrap();
        assert_same_tensors(&model, &again);
        assert_eq!(shown(&model), shown(&again), "{}", path.display());
        assert_eq!(again.gguf().unwrap().version(), 3);
        let same = to_bytes(&again, to_gguf());
        assert!(same == bytes, "{}: a second pass changes something", path.display());
    }
}

/// A safetensors file with a tensor of each dtype, and a quantized one.
fn mixed() -> Vec<u8> {
    let mut random = Random(5);
    let tensors = [
        raw("w.weight", "F8_E4M3", &[4, 64], random.bytes(256).iter().map(|b| b & 0xf7).collect()),
        raw("w.weight_scale", "F32", &[], f32s(&[0.5])),
        raw("norm.weight", "F32", &[64], f32s(&random.floats(64))),
        raw("half", "F16", &[2, 3, 4], random.bytes(48)),
        raw("brain", "BF16", &[5], random.bytes(10)),
        raw("scalar", "F32", &[], f32s(&[1.5])),
        raw("empty", "F32", &[0, 4], vec![]),
        raw("flags", "BOOL", &[3], vec![1, 0, 1]),
        raw("ids", "I64", &[9], random.bytes(72)),
        raw("shorts", "I16", &[9], random.bytes(18)),
    ];
    file(
        &tensors,
        &[
            ("author", "x"),
            ("gguf.general.architecture", "llama"),
            ("gguf.a.b", "{\"type\":\"i8\",\"value\":-3}"),
        ],
    )
}

#[test]
fn safetensors_into_gguf() {
    let model = parse_bytes(mixed()).unwrap();
    let options = to_gguf()
        .with_gguf_metadata(vec![("general.alignment".to_owned(), GgufMetadataValue::U32(128))]);
    let bytes = to_bytes(&model, options);
    let written = parse_bytes(bytes).unwrap();
    let listed: Vec<_> = written
        .tensors()
        .map(|t| (t.name(), t.dtype(), t.shape().to_vec()))
        .collect();
    let expected = [
        ("w.weight", Dtype::BF16, vec![4, 64]),
        ("norm.weight", Dtype::F32, vec![64]),
        ("half", Dtype::F16, vec![2, 3, 4]),
        ("brain", Dtype::BF16, vec![5]),
        ("scalar", Dtype::F32, vec![]),
        ("empty", Dtype::F32, vec![0, 4]),
        ("flags", Dtype::I8, vec![3]),
        ("ids", Dtype::I64, vec![9]),
        ("shorts", Dtype::I16, vec![9]),
    ];
    assert_eq!(listed, expected);
    for t in written.tensors().skip(1) {
        assert_eq!(
            t.bytes().unwrap(),
            model.tensor(t.name()).unwrap().bytes().unwrap(),
            "{}",
            t.name()
        );
    }
    let gguf = written.gguf().unwrap();
    assert_eq!(gguf.alignment(), 128);
    assert_eq!(
        gguf.metadata().keys().collect::<Vec<_>>(),
        ["a.b", "general.architecture", "general.alignment"]
    );
    assert_eq!(gguf.metadata().get("a.b"), Some(GgufMetadataValue::I8(-3)));
    let decoded = parse_bytes(model.remember_to_bytes(TargetDtype::BF16).unwrap()).unwrap();
    assert_eq!(
        written.tensor("w.weight").unwrap().bytes().unwrap(),
        decoded.tensor("w.weight").unwrap().bytes().unwrap()
    );
}

#[test]
fn what_ggml_cannot_hold_is_refused_by_name() {
    for (dtype, shape, size) in
        [("U8", vec![4usize], 4), ("U64", vec![1], 8), ("C64", vec![1], 8), ("F32", vec![1; 9], 4)]
    {
        let model = parse_bytes(file(
            &[raw("ok", "F32", &[1], vec![0; 4]), raw("bad.one", dtype, &shape, vec![0; size])],
            &[],
        ));
        let result = model.unwrap().plan(to_gguf()).map(|_| ());
        assert_eq!(verdict(result, Unsupported, &["bad.one"]), None, "{dtype} {shape:?}");
    }
}

#[test]
fn blocks_are_decoded_on_demand() {
    let model = parse(data().join("gguf/q4_k/model.gguf")).unwrap();
    let edits = vec![("general.file_type".to_owned(), GgufMetadataValue::U32(15))];
    let typed = parse_bytes(to_bytes(&model, to_gguf().with_gguf_metadata(edits))).unwrap();
    let options = to_gguf()
        .with_decode(true)
        .with_run(RememberOptions::new(TargetDtype::F16));
    let decoded = parse_bytes(to_bytes(&typed, options)).unwrap();
    let expected = parse_bytes(model.remember_to_bytes(TargetDtype::F16).unwrap()).unwrap();
    for t in decoded.tensors() {
        let want = expected.tensor(t.name()).unwrap();
        assert_eq!((t.dtype(), t.shape()), (want.dtype(), want.shape()));
        assert_eq!(t.bytes().unwrap(), want.bytes().unwrap(), "{}", t.name());
    }
    assert_eq!(
        decoded.gguf().unwrap().metadata().get("general.file_type"),
        Some(GgufMetadataValue::U32(1))
    );
}

#[test]
fn metadata_survives_safetensors_and_back() {
    let model = parse(data().join("gguf-files/all-kv.gguf")).unwrap();
    let detour = parse_bytes(model.remember_to_bytes(TargetDtype::BF16).unwrap()).unwrap();
    let back = parse_bytes(to_bytes(&detour, to_gguf())).unwrap();
    let (mut want, mut got) = (shown(&model), shown(&back));
    want.sort();
    got.sort();
    assert_eq!(want, got);
}

#[test]
fn shapes_that_comfyui_changed_come_back() {
    let dims = |dims: &[i32]| {
        let bytes: Vec<u8> = dims.iter().flat_map(|d| d.to_le_bytes()).collect();
        [&5u32.to_le_bytes()[..], &(dims.len() as u64).to_le_bytes(), &bytes].concat()
    };
    let file = |shape: &[i32]| {
        let file =
            crate::common::gguf::Gguf::default().key("comfy.gguf.orig_shape.conv", 9, &dims(shape));
        let blocks = Random(1).bytes(18 * 9);
        file.tensor("conv", 2, &[32, 9], &blocks)
            .tensor("plain", 0, &[2], &[0; 8])
            .file()
    };
    let model = parse_bytes(file(&[8, 4, 1, 3, 3])).unwrap();
    assert_eq!(model.tensor("conv").unwrap().shape(), [9, 32]);
    let recovered = parse_bytes(model.remember_to_bytes(TargetDtype::F32).unwrap()).unwrap();
    assert_eq!(recovered.tensor("conv").unwrap().shape(), [8, 4, 1, 3, 3]);
    assert!(
        recovered
            .metadata()
            .keys()
            .all(|key| !key.contains("orig_shape"))
    );
    // Shapes by names would be those of other tensors.
    let renamed = anamnesis::NameChanges::default().with_rename("conv", "other");
    let result = model.plan(to_gguf().with_names(renamed)).map(|_| ());
    assert_eq!(verdict(result, Usage, &["orig_shape"]), None);
    let result = parse_bytes(file(&[8, 4, 3]))
        .unwrap()
        .remember_to_bytes(TargetDtype::F32);
    assert_eq!(verdict(result, Parse, &["conv", "orig_shape"]), None);
}

#[test]
fn split_and_joined() {
    let directory = crate::common::tempdir().unwrap();
    let whole = parse(data().join("gguf/q4_0/model.gguf")).unwrap();
    let report = whole
        .convert(directory.path().join("m.gguf"), to_gguf().with_max_shard_size(200))
        .unwrap();
    let names = |directory: &Path| {
        let mut names: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let parts = names(directory.path());
    assert!(parts.len() > 2, "{parts:?}");
    assert_eq!(parts[0], format!("m-00001-of-{:05}.gguf", parts.len()));
    let size = |name: &String| directory.path().join(name).metadata().unwrap().len();
    assert_eq!(report.output_bytes, parts.iter().map(size).sum::<u64>());
    let joined = parse(directory.path().join(&parts[0])).unwrap();
    assert_same_tensors(&whole, &joined);
    assert!(to_bytes(&joined, to_gguf()) == to_bytes(&whole, to_gguf()));
    // The output must not replace any part of a split input.
    let over = joined.convert(
        directory.path().join(&parts[1]),
        to_gguf().with_run(RememberOptions::default().with_force(true)),
    );
    assert!(
        over.unwrap_err()
            .to_string()
            .contains("the output is the input")
    );
    assert_eq!(names(directory.path()), parts);
}
