//! GGUF read: every file of tests/data/gguf-files against what gguf's own Python reader says of it (the
//! `.json` beside it), headers read from streams, and files made here.
#![cfg(feature = "gguf")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::HashMap;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;

use anamnesis::{
    AnamnesisError, GgufInspectInfo, GgufMetadataArray as A, GgufMetadataValue as V, ParsedModel, TargetDtype, parse,
    parse_bytes, parse_gguf_front_matter_from_reader as front_matter,
};
use common::gguf::{Gguf, string};
use common::verdict::{Parse, Unsupported, recover, verdict};
use common::{Random, TARGETS, assert_same, data, f32s};
use half::{bf16, f16};
use safetensors::SafeTensors;
use serde_json::{Value, json};

/// A file of tests/data/gguf-files, and what is said of it.
struct Case {
    name: String,
    path: PathBuf,
    bytes: Vec<u8>,
    said: Said,
}

#[derive(serde::Deserialize)]
struct Said {
    version: u32,
    byte_order: String,
    alignment: u32,
    metadata: Vec<(String, String, Value)>,
    tensors: Vec<Stored>,
}

#[derive(serde::Deserialize)]
struct Stored {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    offset: usize,
    len: usize,
    sha256: String,
}

fn case(name: &str) -> Case {
    let path = data().join("gguf-files").join(format!("{name}.gguf"));
    let said = std::fs::read(path.with_extension("json")).unwrap();
    let (bytes, said) = (std::fs::read(&path).unwrap(), serde_json::from_slice(&said).unwrap());
    Case { name: name.to_owned(), path, bytes, said }
}

fn cases() -> Vec<Case> {
    let paths = std::fs::read_dir(data().join("gguf-files")).unwrap().map(|e| e.unwrap().path());
    let files = paths.filter(|path| path.extension().is_some_and(|e| e == "gguf"));
    let mut cases: Vec<Case> = files.map(|path| case(path.file_stem().unwrap().to_str().unwrap())).collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(cases.len() >= 15, "{}", cases.len());
    cases
}

/// A number as the JSON has it.
fn plain<T: serde::Serialize + ToString>(value: &T) -> Value {
    match json!(value) {
        Value::Null => json!(value.to_string().to_lowercase()),
        value => value,
    }
}

macro_rules! kinds {
    ($($variant:ident $kind:literal $name:literal;)*) => {
        /// The type and value as the JSON has them.
        fn shown(value: &V) -> (String, Value) {
            match value {
                $(V::$variant(x) => {
                    assert_eq!(value.type_name(), $name);
                    ($kind.to_owned(), plain(x))
                })*
                V::Array(array) => shown_array(array),
                other => panic!("{other:?}"),
            }
        }

        fn shown_array(array: &A) -> (String, Value) {
            let (kind, name, items): (_, _, Vec<Value>) = match array {
                $(A::$variant(items) => ($kind, $name, items.iter().map(plain).collect()),)*
                A::Array(items) => ("ARRAY", "array", items.iter().map(|array| json!(shown_array(array))).collect()),
                other => panic!("{other:?}"),
            };
            assert_eq!((array.item_name(), array.len(), array.is_empty()), (name, items.len(), items.is_empty()));
            (format!("ARRAY[{kind}]"), items.into())
        }
    };
}

kinds! {
    U8 "UINT8" "u8";
    I8 "INT8" "i8";
    U16 "UINT16" "u16";
    I16 "INT16" "i16";
    U32 "UINT32" "u32";
    I32 "INT32" "i32";
    F32 "FLOAT32" "f32";
    Bool "BOOL" "bool";
    String "STRING" "string";
    U64 "UINT64" "u64";
    I64 "INT64" "i64";
    F64 "FLOAT64" "f64";
}

impl Case {
    /// Fails unless `value` is what the file has. Texts are compared, so that zeros keep their signs.
    fn check_value(&self, key: &str, value: &V) {
        let said = self.said.metadata.iter().find(|(k, ..)| k == key).unwrap();
        let (kind, shown) = shown(value);
        assert_eq!((&kind, shown.to_string()), (&said.1, said.2.to_string()), "{}: {key}", self.name);
        assert!(kind.starts_with(&value.type_name().to_uppercase()) || value.as_array().is_none(), "{kind}");
    }

    /// Fails unless `model` is what the file, and then those of `others`, hold.
    fn check_model(&self, model: &ParsedModel, others: &[Case]) {
        let (name, said, gguf) = (&self.name, &self.said, model.gguf().unwrap());
        assert_eq!((gguf.version(), gguf.alignment()), (said.version, said.alignment), "{name}");
        assert_eq!(gguf.is_big_endian(), said.byte_order == "big", "{name}");
        let keys: Vec<&str> = said.metadata.iter().map(|(key, ..)| key.as_str()).collect();
        assert_eq!(gguf.metadata().keys().collect::<Vec<_>>(), keys, "{name}");
        assert_eq!((gguf.metadata().len(), gguf.metadata().is_empty()), (keys.len(), keys.is_empty()), "{name}");
        assert_eq!(gguf.metadata().iter().map(|(key, _)| key).collect::<Vec<_>>(), keys, "{name}");
        gguf.metadata().iter().for_each(|(key, value)| self.check_value(key, &value));
        keys.iter().for_each(|key| self.check_value(key, &gguf.metadata().get(key).unwrap()));
        assert_eq!(gguf.metadata().get("no such key"), None);
        let stored: Vec<(&Case, &Stored)> =
            [self].into_iter().chain(others).flat_map(|case| case.said.tensors.iter().map(move |t| (case, t))).collect();
        assert_eq!(model.tensors().len(), stored.len(), "{name}");
        for (t, (case, stored)) in model.tensors().zip(stored) {
            let got = (t.name(), t.dtype().to_string(), t.shape(), t.bytes().unwrap().len());
            assert_eq!(got, (&stored.name[..], stored.dtype.clone(), &stored.shape[..], stored.len), "{name}");
            if said.byte_order == "little" {
                let raw = &case.bytes[stored.offset..stored.offset + stored.len];
                assert!(t.bytes().unwrap() == raw, "{name}: {}", stored.name);
            }
        }
    }
}

/// Every key and tensor, whether from a file or from memory, and of a set the tensors of all its files.
#[test]
fn files_are_what_gguf_py_reads() {
    let numbered = |case: &Case, n: usize| case.name.contains(&format!("-0000{n}-of-"));
    for case in cases() {
        if !case.name.contains("-of-") {
            case.check_model(&parse(&case.path).unwrap(), &[]);
            case.check_model(&parse_bytes(case.bytes.clone()).unwrap(), &[]);
        } else if numbered(&case, 1) {
            let others = [2, 3].map(|n| self::case(&case.name.replace("-00001-", &format!("-0000{n}-"))));
            case.check_model(&parse(&case.path).unwrap(), &others);
        }
    }
}

/// Tensors of one digest are the same bytes, whatever the byte order they are stored in.
#[test]
fn equal_digests_are_equal_bytes() {
    let (mut known, mut turned): (HashMap<String, Vec<u8>>, usize) = (HashMap::new(), 0);
    let (big, little): (Vec<_>, Vec<_>) = cases().into_iter().partition(|case| case.said.byte_order == "big");
    for t in little.iter().flat_map(|case| case.said.tensors.iter().map(move |t| (case, t))) {
        let raw = t.0.bytes[t.1.offset..][..t.1.len].to_vec();
        let other = known.insert(t.1.sha256.clone(), raw.clone());
        assert!(other.is_none_or(|other| other == raw));
    }
    for case in big {
        let model = parse(&case.path).unwrap();
        for stored in &case.said.tensors {
            let raw = &case.bytes[stored.offset..][..stored.len];
            let bytes = model.tensor(&stored.name).unwrap().bytes().unwrap();
            assert!(bytes == known[&stored.sha256], "{}: {}", case.name, stored.name);
            turned += usize::from(bytes != raw);
        }
    }
    assert!(turned >= 10, "{turned}");
}

/// The header alone, of each file by itself.
#[test]
fn front_matter_of_every_file() {
    for case in cases() {
        let front = front_matter(std::fs::File::open(&case.path).unwrap()).unwrap();
        let (name, said) = (&case.name, &case.said);
        assert_eq!((front.version, front.alignment), (said.version, said.alignment), "{name}");
        assert_eq!(front.metadata.len(), said.metadata.len(), "{name}");
        front.metadata.iter().for_each(|(key, value)| case.check_value(key, value));
        assert_eq!(front.tensor_infos.len(), said.tensors.len(), "{name}");
        for (info, stored) in front.tensor_infos.iter().zip(&said.tensors) {
            let shape: Vec<usize> = stored.shape.iter().rev().copied().collect();
            let got = (&info.name, info.dtype.to_string(), &info.shape, info.data_offset, info.byte_len);
            let want = (&stored.name, stored.dtype.clone(), &shape, stored.offset as u64, Some(stored.len as u64));
            assert_eq!(got, want, "{name}");
        }
        let info = anamnesis::inspect_gguf_from_reader(&mut std::io::Cursor::new(&case.bytes)).unwrap();
        let bytes: usize = said.tensors.iter().map(|t| t.len).sum();
        assert_eq!((info.tensor_count, info.total_bytes), (said.tensors.len(), bytes as u64), "{name}");
        if !name.contains("-of-") {
            assert_eq!(Some(info), GgufInspectInfo::of(&parse(&case.path).unwrap()), "{name}");
        }
    }
}

/// All versions and byte orders decode to the same values.
#[test]
fn versions_decode_alike() {
    for (target, _) in TARGETS {
        let little = parse(case("v3-little").path).unwrap().remember_to_bytes(target).unwrap();
        for name in ["v1", "v2", "v3-little", "v3-big"] {
            let case = case(name);
            for model in [parse(&case.path), parse_bytes(case.bytes.clone())] {
                let bytes = model.unwrap().remember_to_bytes(target).unwrap();
                let (ours, theirs) = (SafeTensors::deserialize(&bytes).unwrap(), SafeTensors::deserialize(&little).unwrap());
                assert_eq!(ours.len(), case.said.tensors.len(), "{name}");
                for (tensor, view) in ours.tensors() {
                    assert_eq!(view, theirs.tensor(&tensor).unwrap(), "{name}: {tensor} as {target:?}");
                }
            }
        }
    }
}

/// A big-endian file, for which the builder has no words.
fn big_endian(tensors: &[(&str, u32, u64, usize)]) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u64).to_be_bytes(), text.as_bytes()].concat();
    let (mut infos, mut data) = (Vec::new(), Vec::new());
    for &(name, kind, values, bytes) in tensors {
        infos.extend([&string(name)[..], &1u32.to_be_bytes(), &values.to_be_bytes(), &kind.to_be_bytes()].concat());
        infos.extend((data.len() as u64).to_be_bytes());
        data.extend(Random(9).bytes(bytes.next_multiple_of(32)));
    }
    let counts = [tensors.len() as u64, 1].map(u64::to_be_bytes).concat();
    let key = [string("k"), 5u32.to_be_bytes().to_vec(), (-2i32).to_be_bytes().to_vec()].concat();
    let mut out = [&b"GGUF\x00\x00\x00\x03"[..], &counts, &key, &infos].concat();
    out.resize(out.len().next_multiple_of(32), 0);
    [out, data].concat()
}

/// Some types have no big-endian form that anyone has defined: a file with one is listed, and not decoded.
#[test]
fn big_endian_types_without_a_byte_order() {
    recover(big_endian(&[("a", 0, 4, 16), ("q", 8, 64, 68)]), "").unwrap();
    let odd: [(&str, u32, usize); 6] =
        [("Q4_1", 3, 160), ("Q5_K", 13, 176), ("Q8_K", 15, 292), ("IQ4_XS", 23, 136), ("TQ1_0", 34, 54), ("Q2_0", 42, 72)];
    for (dtype, kind, bytes) in odd {
        let file = big_endian(&[("a", 0, 4, 16), ("X.weight", kind, 256, bytes), ("z", 30, 3, 6)]);
        let model = parse_bytes(file.clone()).unwrap();
        assert_eq!(model.gguf().unwrap().metadata().get("k"), Some(V::I32(-2)));
        let info = model.inspect();
        assert_eq!((info.tensor_count, info.quantized, info.problems.len()), (3, 1, 1), "{dtype}");
        let words = ["`X.weight`", dtype, "byte order"];
        assert!(words.iter().all(|w| info.problems[0].contains(w)), "{}", info.problems[0]);
        assert_eq!(verdict(recover(file, ""), Unsupported, &words), None);
        assert_eq!(verdict(model.tensor("X.weight").unwrap().bytes(), Unsupported, &words), None);
        let turned: Vec<u8> = Random(9).bytes(16).chunks(4).flat_map(|b| [b[3], b[2], b[1], b[0]]).collect();
        assert!(model.tensor("a").unwrap().bytes().unwrap() == turned);
    }
}

/// A model in several files is the one it was before it was split.
#[test]
fn split_sets() {
    let whole = parse(case("whole").path).unwrap();
    for set in ["split", "split-header"] {
        let first = case(&format!("{set}-00001-of-00003"));
        let model = parse(&first.path).unwrap();
        let listed = |model: &ParsedModel| {
            let one = |t: anamnesis::Tensor<'_>| (t.name().to_owned(), t.shape().to_vec(), t.bytes().unwrap().to_vec());
            model.tensors().map(one).collect::<Vec<_>>()
        };
        assert!(listed(&model) == listed(&whole), "{set}");
        let keys = |model: &ParsedModel| {
            let mut keys: Vec<_> = model.gguf().unwrap().metadata().keys().map(str::to_owned).collect();
            keys.retain(|key| !key.starts_with("split."));
            keys
        };
        let size = |n| std::fs::metadata(case(&format!("{set}-0000{n}-of-00003")).path).unwrap().len();
        assert_eq!(model.file_size(), Some((1..=3).map(size).sum()), "{set}");
        assert_eq!((model.tensor_bytes(), model.path()), (whole.tensor_bytes(), Some(&first.path[..].as_ref())));
        for (target, _) in TARGETS {
            assert!(model.remember_to_bytes(target).unwrap() == whole.remember_to_bytes(target).unwrap(), "{set}");
        }
        let _ = keys;
    }
}
