//! `write_gguf`: files written from tensors and metadata that the caller gives.

use std::collections::HashMap;
use std::io::Cursor;

use anamnesis::{
    GgufMetadataArray, GgufMetadataValue, GgufType, GgufWriteTensor, parse, write_gguf,
    write_gguf_to_writer,
};

use super::entries;
use crate::common::Random;
use crate::common::verdict::{Parse, verdict};

fn example() -> (Vec<u8>, HashMap<String, GgufMetadataValue>) {
    let bytes = Random(3).bytes(18 * 4);
    let tokens = GgufMetadataArray::String(vec!["a".into(), "é".into()]);
    let metadata = [
        ("general.architecture".to_owned(), GgufMetadataValue::String("llama".into())),
        ("general.alignment".to_owned(), GgufMetadataValue::U32(64)),
        ("tokens".to_owned(), GgufMetadataValue::Array(Box::new(tokens))),
    ];
    (bytes, metadata.into())
}

#[test]
fn written_from_parts() {
    let (bytes, metadata) = example();
    let tensors = [
        GgufWriteTensor { name: "q", shape: &[64, 2], dtype: GgufType::Q4_0, data: &bytes },
        GgufWriteTensor { name: "i", shape: &[], dtype: GgufType::I8, data: &[7] },
    ];
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("x.gguf");
    write_gguf(&path, &tensors, &metadata).unwrap();
    let mut memory = Cursor::new(Vec::new());
    write_gguf_to_writer(&mut memory, &tensors, &metadata).unwrap();
    assert!(std::fs::read(&path).unwrap() == *memory.get_ref());
    let model = parse(&path).unwrap();
    assert_eq!(entries(&model).into_iter().collect::<HashMap<_, _>>(), metadata);
    assert_eq!(model.tensor("q").unwrap().shape(), [2, 64]);
    assert_eq!(model.tensor("q").unwrap().bytes().unwrap(), bytes);
    assert_eq!(model.tensor("i").unwrap().bytes().unwrap(), [7u8].as_slice());
}

#[test]
fn wrong_parts_are_refused_before_anything_is_written() {
    let (bytes, metadata) = example();
    let good = GgufWriteTensor { name: "q", shape: &[64, 2], dtype: GgufType::Q4_0, data: &bytes };
    let cases: [(&[GgufWriteTensor<'_>], &str); 5] = [
        (&[GgufWriteTensor { data: &bytes[1..], ..good }], "`q`"),
        (&[GgufWriteTensor { shape: &[2, 64], ..good }], "`q`"),
        (&[good, good], "`q`: it is given twice"),
        (&[GgufWriteTensor { dtype: GgufType::U8, shape: &[72], ..good }], "no such type"),
        (&[GgufWriteTensor { shape: &[64, 2, 1, 1, 1, 1, 1, 1, 1], ..good }], "dimensions"),
    ];
    let directory = crate::common::tempdir().unwrap();
    for (tensors, word) in cases {
        let text = write_gguf(directory.path().join("x"), tensors, &metadata)
            .unwrap_err()
            .to_string();
        assert!(text.contains(word), "{text}");
    }
    let odd = HashMap::from([("general.alignment".to_owned(), GgufMetadataValue::U32(48))]);
    assert_eq!(
        verdict(write_gguf(directory.path().join("x"), &[good], &odd), Parse, &["power of two"]),
        None
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
