//! Files of `tests/data/demo`, and slices of GGUF, NPZ and PyTorch files.

use anamnesis::TargetDtype;
use safetensors::SafeTensors;

use super::{Slice, check_file, check_single};
use crate::common::{assert_same, data};

/// The tiny files whose header `expected.json` describes: the same header must be read, and they
/// decode.
#[test]
fn tiny_files() {
    for name in ["fp8", "gptq"] {
        let path = data().join(format!("slices/safetensors/{name}.safetensors"));
        let expected = std::fs::read(path.with_extension("expected.json")).unwrap();
        let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
        let header =
            anamnesis::parse_safetensors_header_from_reader(std::fs::File::open(&path).unwrap())
                .unwrap();
        assert_eq!(header.header_size as u64, expected["header_size"]);
        for want in expected["tensors"].as_array().unwrap() {
            let got = header
                .tensors
                .iter()
                .find(|t| want["name"] == t.name.as_str())
                .unwrap();
            assert_eq!(want["dtype"], got.dtype.name());
            assert_eq!(want["shape"], serde_json::json!(got.shape));
            assert_eq!(want["data_offsets"], serde_json::json!(got.data_offsets));
        }
        {
            let bytes = anamnesis::parse(&path)
                .unwrap()
                .remember_to_bytes(TargetDtype::F32)
                .unwrap();
            assert!(
                SafeTensors::deserialize(&bytes)
                    .unwrap()
                    .tensor("model.layers.0.weight")
                    .is_ok()
            );
            assert_same(&bytes, &bytes, name);
        }
    }
}

#[cfg(feature = "gguf")]
#[test]
fn gguf() {
    let directory = data().join("slices/gguf");
    let names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 11);
    for name in names.iter().map(|name| name.to_str().unwrap()) {
        let mut s = Slice::open(&format!("gguf/{name}"), b"AMNG");
        let [kind, n, raw, bf16, f32] = s.fields();
        let raw = s.blob(raw);
        let file = crate::common::gguf::Gguf::default()
            .tensor("X.weight", kind as u32, &[n as u64], &raw)
            .file();
        let (bf16, f32) = (s.blob(bf16), s.blob(f32));
        let header =
            anamnesis::parse_gguf_front_matter_from_reader(std::io::Cursor::new(&file)).unwrap();
        check_single(
            name,
            &bf16,
            anamnesis::dequantize_gguf_to_bf16(&raw, header.tensor_infos[0].dtype, n),
        );
        check_file(name, file, &[n], &bf16, &f32);
    }
}

#[cfg(feature = "npz")]
#[test]
fn npz() {
    const DTYPES: [&str; 13] =
        ["BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "BF16", "F32", "F64"];
    let model = anamnesis::parse(data().join("slices/npz/gemma_scope_small.npz")).unwrap();
    let bytes = std::fs::read(data().join("slices/npz/gemma_scope_reference.bin")).unwrap();
    let mut s = Slice { bytes, at: 0 };
    let arrays = s.field();
    assert_eq!(model.tensors().len(), arrays);
    for _ in 0..arrays {
        let name = s.field();
        let name = String::from_utf8(s.blob(name)).unwrap();
        // `shape` is the model's; the slice has the first values of each array.
        let rank = s.field();
        s.blob(8 * rank);
        let (dtype, len) = (s.field(), s.field());
        let tensor = model.tensor(&name).unwrap();
        assert_eq!(tensor.dtype().name(), DTYPES[dtype], "{name}");
        assert_eq!(tensor.bytes().unwrap(), s.blob(len), "{name}");
    }
}

#[cfg(feature = "pth")]
#[test]
fn pth() {
    for name in ["algzoo_rnn_small", "algzoo_transformer_small"] {
        let model = anamnesis::parse(data().join(format!("slices/pth/{name}.pth"))).unwrap();
        let text = std::fs::read(data().join(format!("slices/pth/{name}_reference.json"))).unwrap();
        let reference: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let tensors = reference["tensors"].as_array().unwrap();
        assert_eq!(model.tensors().len(), tensors.len());
        for want in tensors {
            let got = model.tensor(want["name"].as_str().unwrap()).unwrap();
            assert_eq!(serde_json::json!(got.shape()), want["shape"], "{name} {}", got.name());
            let hex: String = got
                .bytes()
                .unwrap()
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect();
            assert_eq!(Some(hex.as_str()), want["data_hex"].as_str(), "{name} {}", got.name());
        }
    }
}
