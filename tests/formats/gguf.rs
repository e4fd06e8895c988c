//! GGUF files: every file of tests/data/gguf-files against the description by gguf's Python reader
//! (the `.json` beside it).

mod streams;
mod synthetic;

use std::collections::HashMap;
use std::path::PathBuf;

use anamnesis::{
    GgufInspectInfo, GgufMetadataArray as A, GgufMetadataValue as V, ParsedModel, parse,
    parse_bytes, parse_gguf_front_matter_from_reader as front_matter,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::common::{TARGETS, data};

/// A file of tests/data/gguf-files and its description.
struct Case {
    name: String,
    path: PathBuf,
    bytes: Vec<u8>,
    described: Description,
}

#[derive(serde::Deserialize)]
struct Description {
    version: u32,
    byte_order: String,
    alignment: u32,
    metadata: Vec<(String, String, Value)>,
    tensors: Vec<DescribedTensor>,
}

#[derive(serde::Deserialize)]
struct DescribedTensor {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    offset: usize,
    len: usize,
    sha256: String,
}

fn case(name: &str) -> Case {
    let path = data().join("gguf-files").join(format!("{name}.gguf"));
    let described = std::fs::read(path.with_extension("json")).unwrap();
    let (bytes, described) =
        (std::fs::read(&path).unwrap(), serde_json::from_slice(&described).unwrap());
    Case { name: name.to_owned(), path, bytes, described }
}

fn cases() -> Vec<Case> {
    let paths = std::fs::read_dir(data().join("gguf-files"))
        .unwrap()
        .map(|e| e.unwrap().path());
    let files = paths.filter(|path| path.extension().is_some_and(|e| e == "gguf"));
    let cases: Vec<Case> = files
        .map(|path| case(path.file_stem().unwrap().to_str().unwrap()))
        .collect();
    assert!(cases.len() >= 15, "{}", cases.len());
    cases
}

/// A number as the JSON has it.
fn plain<T: serde::Serialize + ToString>(value: &T) -> Value {
    let number = json!(value);
    if number.is_null() {
        json!(value.to_string().to_lowercase())
    } else {
        number
    }
}

/// The name of a type as the JSON has it.
fn kind(name: &str) -> String {
    match name.split_at(1) {
        ("u", bits) => format!("UINT{bits}"),
        ("i", bits) => format!("INT{bits}"),
        ("f", bits) => format!("FLOAT{bits}"),
        _ => name.to_uppercase(),
    }
}

macro_rules! values {
    ($($variant:ident)*) => {
        /// The type and value as the JSON has them.
        fn shown(value: &V) -> (String, Value) {
            match value {
                $(V::$variant(x) => (kind(value.type_name()), plain(x)),)*
                V::Array(array) if value.type_name() == "array" => shown_array(array),
                other => panic!("{other:?}"),
            }
        }

        fn shown_array(array: &A) -> (String, Value) {
            let items: Vec<Value> = match array {
                $(A::$variant(items) => items.iter().map(plain).collect(),)*
                A::Array(items) => items.iter().map(|array| json!(shown_array(array))).collect(),
                other => panic!("{other:?}"),
            };
            assert_eq!((array.len(), array.is_empty()), (items.len(), items.is_empty()));
            (format!("ARRAY[{}]", kind(array.item_name())), items.into())
        }
    };
}

values! { U8 I8 U16 I16 U32 I32 F32 Bool String U64 I64 F64 }

impl Case {
    /// Fails unless the description has `value` for `key`. Numbers are compared as text, so that
    /// zeros keep their signs.
    fn check_value(&self, key: &str, value: &V) {
        let (_, kind, described) = self
            .described
            .metadata
            .iter()
            .find(|(k, ..)| k == key)
            .unwrap();
        let shown = shown(value);
        assert_eq!(
            (&shown.0, shown.1.to_string()),
            (kind, described.to_string()),
            "{}: {key}",
            self.name
        );
    }

    /// Fails unless `model` has the keys and tensors of this file and of the following files of its
    /// set.
    fn check_model(&self, model: &ParsedModel, others: &[Self]) {
        let (name, described, gguf) = (&self.name, &self.described, model.gguf().unwrap());
        let order = if gguf.is_big_endian() {
            "big"
        } else {
            "little"
        };
        let got = (gguf.version(), gguf.alignment(), order);
        assert_eq!(
            got,
            (described.version, described.alignment, &described.byte_order[..]),
            "{name}"
        );
        let (keys, metadata): (Vec<_>, _) =
            (described.metadata.iter().map(|(key, ..)| key).collect(), gguf.metadata());
        assert_eq!(metadata.keys().collect::<Vec<_>>(), keys, "{name}");
        let got = (metadata.len(), metadata.is_empty(), metadata.get("no such key"));
        assert_eq!(got, (keys.len(), keys.is_empty(), None), "{name}");
        for ((key, value), described) in metadata.iter().zip(keys) {
            self.check_value(described, &value);
            self.check_value(key, &metadata.get(key).unwrap());
        }
        let files = [self].into_iter().chain(others);
        let stored: Vec<_> = files
            .flat_map(|case| case.described.tensors.iter().map(move |t| (case, t)))
            .collect();
        assert_eq!(model.tensors().len(), stored.len(), "{name}");
        for (t, (case, stored)) in model.tensors().zip(stored) {
            let (got, bytes) = ((t.name(), t.dtype().to_string(), t.shape()), t.bytes().unwrap());
            assert_eq!(got, (&stored.name[..], stored.dtype.clone(), &stored.shape[..]), "{name}");
            assert_eq!(bytes.len(), stored.len, "{name}: {}", stored.name);
            assert!(order == "big" || bytes == case.raw(stored), "{name}: {}", stored.name);
        }
    }

    /// A tensor's bytes, as they lie in the file.
    fn raw(&self, t: &DescribedTensor) -> &[u8] {
        &self.bytes[t.offset..t.offset + t.len]
    }
}

/// A file gives the described keys and tensors, from disk and from memory; a set gives the tensors
/// of all its files.
#[test]
fn files_are_what_gguf_py_reads() {
    for case in cases() {
        if !case.name.contains("-of-") {
            for model in [parse(&case.path), parse_bytes(case.bytes.clone())] {
                case.check_model(&model.unwrap(), &[]);
            }
        } else if case.name.contains("-00001-") {
            let others =
                ["-00002-", "-00003-"].map(|n| self::case(&case.name.replace("-00001-", n)));
            case.check_model(&parse(&case.path).unwrap(), &others);
        }
    }
}

/// Tensors with the same digest have the same bytes, in whichever byte order they are stored.
#[test]
fn equal_digests_are_equal_bytes() {
    let (big, little): (Vec<_>, Vec<_>) = cases()
        .into_iter()
        .partition(|case| case.described.byte_order == "big");
    let tensors = little.iter().flat_map(|case| {
        case.described
            .tensors
            .iter()
            .map(|t| (&t.sha256, case.raw(t)))
    });
    let (known, mut swapped): (HashMap<_, _>, _) = (tensors.collect(), 0);
    for case in big {
        let model = parse(&case.path).unwrap();
        for stored in &case.described.tensors {
            let bytes = model.tensor(&stored.name).unwrap().bytes().unwrap();
            assert!(bytes == known[&stored.sha256], "{}: {}", case.name, stored.name);
            swapped += usize::from(bytes != case.raw(stored));
        }
    }
    assert!(swapped >= 10, "{swapped}");
}

/// The front matter of each file matches its description.
#[test]
fn front_matter_of_every_file() {
    for case in cases() {
        let front = front_matter(std::fs::File::open(&case.path).unwrap()).unwrap();
        let (name, described) = (&case.name, &case.described);
        assert_eq!(
            (front.version, front.alignment),
            (described.version, described.alignment),
            "{name}"
        );
        front
            .metadata
            .iter()
            .for_each(|(key, value)| case.check_value(key, value));
        assert_eq!(
            (front.metadata.len(), front.tensor_infos.len()),
            (described.metadata.len(), described.tensors.len())
        );
        for (info, stored) in front.tensor_infos.iter().zip(&described.tensors) {
            let shape: Vec<usize> = stored.shape.iter().rev().copied().collect();
            let got =
                (&info.name, info.dtype.to_string(), &info.shape, info.data_offset, info.byte_len);
            let want = (
                &stored.name,
                stored.dtype.clone(),
                &shape,
                stored.offset as u64,
                Some(stored.len as u64),
            );
            assert_eq!(got, want, "{name}");
        }
        let info =
            anamnesis::inspect_gguf_from_reader(&mut std::io::Cursor::new(&case.bytes)).unwrap();
        let bytes: usize = described.tensors.iter().map(|t| t.len).sum();
        assert_eq!(
            (info.tensor_count, info.total_bytes),
            (described.tensors.len(), bytes as u64),
            "{name}"
        );
        if !name.contains("-of-") {
            assert_eq!(Some(info), GgufInspectInfo::of(&parse(&case.path).unwrap()), "{name}");
        }
    }
}

#[test]
fn versions_decode_alike() {
    for (target, _) in TARGETS {
        let little = parse(case("v3-little").path)
            .unwrap()
            .remember_to_bytes(target)
            .unwrap();
        let little = SafeTensors::deserialize(&little).unwrap();
        for name in ["v1", "v2", "v3-little", "v3-big"] {
            let case = case(name);
            for model in [parse(&case.path), parse_bytes(case.bytes.clone())] {
                let bytes = model.unwrap().remember_to_bytes(target).unwrap();
                let ours = SafeTensors::deserialize(&bytes).unwrap().tensors();
                assert_eq!(ours.len(), case.described.tensors.len(), "{name}");
                for (tensor, view) in ours {
                    assert_eq!(
                        view,
                        little.tensor(&tensor).unwrap(),
                        "{name}: {tensor} as {target:?}"
                    );
                }
            }
        }
    }
}

/// gguf-py leaves BF16 and blocks of a big-endian file as the machine has them. What it swaps has
/// the same values.
#[test]
fn numbers_in_the_other_order() {
    let values = |name: &str| {
        let path = data().join(format!("gguf-big-endian/{name}.gguf"));
        let (target, _) = TARGETS[0];
        parse(path).unwrap().remember_to_bytes(target)
    };
    assert!(values("f32").is_ok() && values("f16").is_ok());
    for name in ["bf16", "q8_0", "q4_0"] {
        let error = values(name).unwrap_err().to_string();
        assert!(error.contains("little-endian order"), "{name}: {error}");
    }
}

/// A split model equals the model before the split.
#[test]
fn split_sets() {
    let whole = parse(case("whole").path).unwrap();
    let values = |model: &ParsedModel| {
        let all = model
            .gguf()
            .unwrap()
            .metadata()
            .iter()
            .filter(|(key, _)| !key.starts_with("split."));
        all.map(|(key, value)| (key.to_owned(), value))
            .collect::<Vec<_>>()
    };
    for set in ["split", "split-header"] {
        let parts = [1, 2, 3].map(|n| case(&format!("{set}-0000{n}-of-00003")));
        let model = parse(&parts[0].path).unwrap();
        assert_eq!(values(&model), values(&whole), "{set}");
        let size: usize = parts.iter().map(|part| part.bytes.len()).sum();
        assert_eq!(
            (model.tensor_bytes(), model.file_size()),
            (whole.tensor_bytes(), Some(size as u64)),
            "{set}"
        );
        for (target, _) in TARGETS {
            assert!(
                model.remember_to_bytes(target).unwrap()
                    == whole.remember_to_bytes(target).unwrap(),
                "{set}"
            );
        }
    }
}
