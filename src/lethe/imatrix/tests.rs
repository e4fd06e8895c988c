use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::Value;

use super::*;
use crate::test_utils::{effort, packaged_data, tempdir};
use crate::{GgufMetadataArray, GgufMetadataValue, GgufWriteTensor};

fn data() -> PathBuf {
    packaged_data().join("imatrix")
}

fn open(bytes: &[u8]) -> Result<Imatrix> {
    let directory = tempdir().unwrap();
    let path = directory.path().join("imatrix");
    std::fs::write(&path, bytes).unwrap();
    Imatrix::open(&path)
}

fn message(bytes: &[u8]) -> String {
    match open(bytes) {
        Err(AnamnesisError::Parse { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn values_are_those_of_llama_cpp() {
    let expected: Value =
        serde_json::from_str(include_str!("../../../tests/data/imatrix/expected.json")).unwrap();
    for (file, expected) in expected.as_object().unwrap() {
        let matrix = Imatrix::open(&data().join(file)).unwrap();
        assert_eq!(matrix.chunks, expected["chunks"].as_i64().unwrap(), "{file}");
        let datasets: Vec<&str> = expected["datasets"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(matrix.datasets, datasets, "{file}");
        let entries = expected["entries"].as_object().unwrap();
        assert_eq!(matrix.entries.len(), entries.len(), "{file}");
        for (name, hex) in entries {
            let values = matrix.get(name).unwrap();
            let bytes = values.iter().flat_map(|value| value.to_le_bytes());
            let found: String = bytes.map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, hex.as_str().unwrap(), "{file} {name}");
        }
    }
}

#[test]
fn sizes_are_checked_against_tensors() {
    let matrix = Imatrix::open(&data().join("matrix.gguf")).unwrap();
    assert_eq!(
        matrix.of_tensor("blk.0.attn_q.weight", &[100, 32]).unwrap(),
        matrix.get("blk.0.attn_q.weight")
    );
    assert_eq!(matrix.of_tensor("blk.1.attn_q.weight", &[100, 32]).unwrap(), None);
    // An entry without sums of activations says nothing of their means.
    let means = |name, dims: &[usize]| matrix.means_of_tensor(name, dims).unwrap().unwrap();
    assert_eq!(means("blk.0.attn_q.weight", &[100, 32]), [0.0; 32]);
    let of_experts = means("blk.0.ffn_down_exps.weight", &[4, 9, 32]);
    assert_eq!((of_experts.len(), of_experts[3]), (128, 1.0 / 12.0));
    // No token came to the second expert.
    assert_eq!(of_experts[32..64], [0.0; 32]);
    let error = matrix
        .of_tensor("blk.0.attn_q.weight", &[100, 64])
        .unwrap_err()
        .to_string();
    assert!(error.contains("has 32 values, not 64 × 1"), "{error}");
    let experts = matrix.get("blk.0.ffn_down_exps.weight").unwrap();
    assert_eq!(
        matrix
            .of_tensor("blk.0.ffn_down_exps.weight", &[4, 9, 32])
            .unwrap(),
        Some(experts)
    );
    assert!(
        matrix
            .of_tensor("blk.0.ffn_down_exps.weight", &[3, 9, 32])
            .is_err()
    );
    // Under the names of Hugging Face, together and one by one.
    assert_eq!(
        matrix
            .of_tensor("model.layers.0.mlp.experts.down_proj", &[4, 9, 32])
            .unwrap(),
        Some(experts)
    );
    let third = matrix
        .of_tensor("model.layers.0.mlp.experts.2.down_proj.weight", &[9, 32])
        .unwrap();
    assert_eq!(third, Some(&experts[64..96]));
    assert!(
        matrix
            .of_tensor("model.layers.0.mlp.experts.4.down_proj.weight", &[9, 32])
            .is_err()
    );
    assert!(
        matrix
            .of_tensor("model.layers.0.mlp.experts.0.down_proj.weight", &[9, 48])
            .is_err()
    );
    assert!(
        matrix
            .of_tensor("lm_head.weight", &[9, 64])
            .unwrap()
            .is_some()
    );
    // A token embedding of another size has none.
    let matrix = Imatrix::open(&data().join("legacy.dat")).unwrap();
    assert!(
        matrix
            .of_tensor("token_embd.weight", &[100, 8])
            .unwrap()
            .is_some()
    );
    assert_eq!(matrix.of_tensor("token_embd.weight", &[100, 16]).unwrap(), None);
    assert_eq!(
        matrix
            .of_tensor("model.embed_tokens.weight", &[100, 16])
            .unwrap(),
        None
    );
}

#[test]
fn truncated_files_are_errors() {
    let whole = std::fs::read(data().join("legacy.dat")).unwrap();
    let bare = std::fs::read(data().join("legacy_bare.dat")).unwrap().len();
    for len in 0..whole.len() {
        assert_eq!(open(&whole[..len]).is_ok(), len >= bare, "{len}");
    }
    let whole = std::fs::read(data().join("matrix.gguf")).unwrap();
    for len in (0..whole.len() - 32).step_by(7) {
        assert!(open(&whole[..len]).is_err(), "{len}");
    }
}

/// Whatever a byte says, there is a result.
#[test]
fn mutated_files_do_not_panic() {
    for file in ["legacy.dat", "matrix.gguf"] {
        let whole = std::fs::read(data().join(file)).unwrap();
        // The numbers themselves are not what is of interest.
        for at in (0..700).chain(whole.len() - 40..whole.len()) {
            let all = [0xff, 0x7f, whole[at] ^ 1];
            for byte in all.into_iter().cycle().skip(at % 3).take(effort([1, 3, 3])) {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                if let Ok(matrix) = open(&bytes) {
                    assert!(
                        matrix
                            .entries
                            .values()
                            .flatten()
                            .all(|value| value.is_finite()),
                        "{file} {at}"
                    );
                }
            }
        }
    }
}

#[test]
fn hostile_files_of_the_older_format() {
    let file = |numbers: &[i32]| {
        numbers
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    assert!(message(&[]).contains("truncated"));
    assert!(message(&file(&[0])).contains("0 entries"));
    assert!(message(&file(&[-1])).contains("-1 entries"));
    assert!(message(&file(&[1, -5])).contains("entry 1 of 1: a name of -5 bytes"));
    assert!(
        message(&file(&[i32::MAX, i32::MAX, 0])).contains("truncated: 2147483647 bytes at 8 of 12")
    );
    let name = i32::from_le_bytes(*b"name");
    assert!(message(&file(&[1, 4, name, 1, 0])).contains("`name` has no values"));
    assert!(message(&file(&[1, 4, name, 1, -1])).contains("`name` has no values"));
    assert!(
        message(&file(&[1, 4, name, 1, i32::MAX, 0])).contains("`name`: the file is truncated")
    );
    assert!(message(&file(&[1, 4, -1, 1, 1, 0])).contains("not UTF-8"));
    for bits in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|value| value.to_bits() as i32) {
        assert!(message(&file(&[1, 4, name, 1, 1, bits])).contains("entry `name`: the value"));
    }
    assert_eq!(
        open(&file(&[1, 4, name, 1, 1, 0, 9, i32::MAX]))
            .unwrap()
            .chunks,
        9
    );
}

/// A GGUF file with all keys but `without`.
fn gguf(tensors: &[(&str, &[usize], Dtype, &[u8])], without: &str) -> Vec<u8> {
    let datasets = GgufMetadataArray::String(vec!["test".into()]);
    let entries = [
        ("imatrix.datasets", GgufMetadataValue::Array(Box::new(datasets))),
        ("imatrix.chunk_count", GgufMetadataValue::U32(1)),
        ("imatrix.chunk_size", GgufMetadataValue::U32(512)),
    ];
    let entries = entries
        .into_iter()
        .filter(|(key, _)| *key != without)
        .map(|(key, value)| (key.to_owned(), value));
    let tensors: Vec<GgufWriteTensor<'_>> = tensors
        .iter()
        .map(|&(name, shape, dtype, data)| GgufWriteTensor { name, shape, dtype, data })
        .collect();
    let mut file = std::io::Cursor::new(Vec::new());
    crate::write_gguf_to_writer(&mut file, &tensors, &entries.collect::<HashMap<_, _>>()).unwrap();
    file.into_inner()
}

#[test]
fn hostile_files_of_the_newer_format() {
    let floats = |values: &[f32]| {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let (sums, one, nan) = (floats(&[1.0; 6]), floats(&[4.0]), floats(&[f32::NAN]));
    let good: [(&str, &[usize], Dtype, &[u8]); 2] =
        [("a.in_sum2", &[6], Dtype::F32, &sums), ("a.counts", &[1], Dtype::F32, &one)];
    assert_eq!(open(&gguf(&good, "")).unwrap().get("a"), Some(&[0.25; 6][..]));
    for key in ["imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"] {
        assert!(message(&gguf(&good, key)).contains(key));
    }
    assert!(message(&gguf(&[], "")).contains("without entries"));
    assert!(message(&gguf(&good[..1], "")).contains("entry `a`: it has not both"));
    assert!(message(&gguf(&good[1..], "")).contains("entry `a`: it has not both"));
    let with = |other: (&'static str, &'static [usize], Dtype, &[u8])| {
        message(&gguf(&[good[0], good[1], other], "").clone())
    };
    assert!(with(("a.in_sum", &[1], Dtype::F32, &one)).contains("not as many values"));
    let halves: (&str, &[usize], Dtype, &[u8]) = ("a.counts", &[2], Dtype::F16, &one);
    assert!(message(&gguf(&[good[0], halves], "")).contains("have to be F32"));
    let four: (&str, &[usize], Dtype, &[u8]) = ("a.counts", &[4], Dtype::F32, &sums[..16]);
    assert!(message(&gguf(&[good[0], four], "")).contains("6 values of 4 counts"));
    let bad: (&str, &[usize], Dtype, &[u8]) = ("a.counts", &[1], Dtype::F32, &nan);
    assert!(message(&gguf(&[good[0], bad], "")).contains("the count NaN is not finite"));
    let bad: (&str, &[usize], Dtype, &[u8]) = ("a.in_sum2", &[1], Dtype::F32, &nan);
    assert!(message(&gguf(&[bad, good[1]], "")).contains("entry `a`: the value NaN is not finite"));
}
