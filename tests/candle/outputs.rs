//! Outputs of conversions.

use std::io::Cursor;

use anamnesis::{
    ConvertOptions, ConvertTarget, GgufMetadataValue, ParsedModel, parse, parse_bytes,
};
use candle_core::Device;
use candle_core::quantized::gguf_file;
use safetensors::SafeTensors;

use crate::GGUF_TYPES;
use crate::common::{TARGETS, case_directories, data};

/// Every golden, decoded to every type.
#[test]
fn safetensors_are_loaded() {
    let mut loaded = 0;
    for case in case_directories() {
        let files = ["model.safetensors", "model.gguf"].map(|name| case.join(name));
        let file = files.iter().find(|file| file.is_file());
        let Some(file) = file.filter(|_| case.join("expected-f32.safetensors").is_file()) else {
            continue;
        };
        let model = parse(file).unwrap();
        for (target, name) in TARGETS {
            let bytes = model.remember_to_bytes(target).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            let tensors = tensors.tensors();
            if tensors
                .iter()
                .any(|(_, tensor)| tensor.dtype() == safetensors::Dtype::I8)
            {
                continue; // candle has no such type
            }
            let theirs = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu).unwrap();
            for (tensor_name, tensor) in tensors {
                let context = format!("{} {name}: {tensor_name}", case.display());
                assert_eq!(theirs[&tensor_name].dims(), tensor.shape(), "{context}");
            }
            loaded += 1;
        }
    }
    assert!(loaded > 500, "{loaded}");
}

#[test]
fn gguf_is_read() {
    for name in GGUF_TYPES {
        let model = parse(data().join("gguf").join(name).join("model.gguf")).unwrap();
        let options = ConvertOptions::new(ConvertTarget::Gguf)
            .with_gguf_metadata(vec![("general.name".to_owned(), GgufMetadataValue::U32(7))]);
        let bytes = model.plan(options).unwrap().to_bytes().unwrap();
        check_gguf(&parse_bytes(bytes.clone()).unwrap(), &bytes);
    }
}

/// Fails unless candle reads the same tensors from `bytes` as this crate.
fn check_gguf(model: &ParsedModel, bytes: &[u8]) {
    let mut reader = Cursor::new(bytes);
    let content = gguf_file::Content::read(&mut reader).unwrap();
    let keys: Vec<_> = model
        .gguf()
        .unwrap()
        .metadata()
        .keys()
        .map(str::to_owned)
        .collect();
    assert_eq!(content.metadata.len(), keys.len());
    keys.iter()
        .for_each(|key| assert!(content.metadata.contains_key(key), "{key}"));
    for t in model.tensors() {
        let theirs = content.tensor(&mut reader, t.name(), &Device::Cpu).unwrap();
        assert_eq!(theirs.shape().dims(), t.shape(), "{}", t.name());
        assert!(theirs.data().unwrap() == t.bytes().unwrap(), "{}", t.name());
    }
}
