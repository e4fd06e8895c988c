//! GGUF read: every file of tests/data/gguf-files against what gguf's own Python reader says of it (the
//! `.json` beside it), headers read from streams, and files made here.
#![cfg(feature = "gguf")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::HashMap;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;

use anamnesis::{
    AnamnesisError, GgufInspectInfo, GgufMetadataArray as A, GgufMetadataValue as V, ParsedModel,
    parse, parse_bytes, parse_gguf_front_matter_from_reader as front_matter,
};
use common::gguf::{Gguf, string};
use common::verdict::{Unsupported, recover, verdict};
use common::{Random, TARGETS, data, f32s};
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
    let (bytes, said) = (
        std::fs::read(&path).unwrap(),
        serde_json::from_slice(&said).unwrap(),
    );
    Case {
        name: name.to_owned(),
        path,
        bytes,
        said,
    }
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
    /// Fails unless `value` is what the file has. Texts are compared, so that zeros keep their signs.
    fn check_value(&self, key: &str, value: &V) {
        let (_, kind, said) = self.said.metadata.iter().find(|(k, ..)| k == key).unwrap();
        let shown = shown(value);
        assert_eq!(
            (&shown.0, shown.1.to_string()),
            (kind, said.to_string()),
            "{}: {key}",
            self.name
        );
    }

    /// Fails unless `model` is what the file, and those that continue it, hold.
    fn check_model(&self, model: &ParsedModel, others: &[Self]) {
        let (name, said, gguf) = (&self.name, &self.said, model.gguf().unwrap());
        let order = if gguf.is_big_endian() {
            "big"
        } else {
            "little"
        };
        let got = (gguf.version(), gguf.alignment(), order);
        assert_eq!(
            got,
            (said.version, said.alignment, &said.byte_order[..]),
            "{name}"
        );
        let (keys, metadata): (Vec<_>, _) = (
            said.metadata.iter().map(|(key, ..)| key).collect(),
            gguf.metadata(),
        );
        assert_eq!(metadata.keys().collect::<Vec<_>>(), keys, "{name}");
        let got = (
            metadata.len(),
            metadata.is_empty(),
            metadata.get("no such key"),
        );
        assert_eq!(got, (keys.len(), keys.is_empty(), None), "{name}");
        for ((key, value), said) in metadata.iter().zip(keys) {
            self.check_value(said, &value);
            self.check_value(key, &metadata.get(key).unwrap());
        }
        let files = [self].into_iter().chain(others);
        let stored: Vec<_> = files
            .flat_map(|case| case.said.tensors.iter().map(move |t| (case, t)))
            .collect();
        assert_eq!(model.tensors().len(), stored.len(), "{name}");
        for (t, (case, stored)) in model.tensors().zip(stored) {
            let (got, bytes) = (
                (t.name(), t.dtype().to_string(), t.shape()),
                t.bytes().unwrap(),
            );
            assert_eq!(
                got,
                (&stored.name[..], stored.dtype.clone(), &stored.shape[..]),
                "{name}"
            );
            assert_eq!(bytes.len(), stored.len, "{name}: {}", stored.name);
            assert!(
                order == "big" || bytes == case.raw(stored),
                "{name}: {}",
                stored.name
            );
        }
    }

    /// A tensor's bytes, as they lie in the file.
    fn raw(&self, t: &Stored) -> &[u8] {
        &self.bytes[t.offset..t.offset + t.len]
    }
}

/// Every key and tensor, whether from a file or from memory, and of a set the tensors of all its files.
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

/// Tensors of one digest are the same bytes, whatever the byte order they are stored in.
#[test]
fn equal_digests_are_equal_bytes() {
    let (big, little): (Vec<_>, Vec<_>) = cases()
        .into_iter()
        .partition(|case| case.said.byte_order == "big");
    let tensors = little
        .iter()
        .flat_map(|case| case.said.tensors.iter().map(|t| (&t.sha256, case.raw(t))));
    let (known, mut turned): (HashMap<_, _>, _) = (tensors.collect(), 0);
    for case in big {
        let model = parse(&case.path).unwrap();
        for stored in &case.said.tensors {
            let bytes = model.tensor(&stored.name).unwrap().bytes().unwrap();
            assert!(
                bytes == known[&stored.sha256],
                "{}: {}",
                case.name,
                stored.name
            );
            turned += usize::from(bytes != case.raw(stored));
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
        assert_eq!(
            (front.version, front.alignment),
            (said.version, said.alignment),
            "{name}"
        );
        front
            .metadata
            .iter()
            .for_each(|(key, value)| case.check_value(key, value));
        assert_eq!(
            (front.metadata.len(), front.tensor_infos.len()),
            (said.metadata.len(), said.tensors.len())
        );
        for (info, stored) in front.tensor_infos.iter().zip(&said.tensors) {
            let shape: Vec<usize> = stored.shape.iter().rev().copied().collect();
            let got = (
                &info.name,
                info.dtype.to_string(),
                &info.shape,
                info.data_offset,
                info.byte_len,
            );
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
        let bytes: usize = said.tensors.iter().map(|t| t.len).sum();
        assert_eq!(
            (info.tensor_count, info.total_bytes),
            (said.tensors.len(), bytes as u64),
            "{name}"
        );
        if !name.contains("-of-") {
            assert_eq!(
                Some(info),
                GgufInspectInfo::of(&parse(&case.path).unwrap()),
                "{name}"
            );
        }
    }
}

/// All versions and byte orders decode to the same values.
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
                assert_eq!(ours.len(), case.said.tensors.len(), "{name}");
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

/// A big-endian file, for which the builder has no words.
fn big_endian(tensors: &[(&str, u32, u64, usize)]) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u64).to_be_bytes(), text.as_bytes()].concat();
    let (mut infos, mut data) = (Vec::new(), Vec::new());
    for &(name, kind, values, bytes) in tensors {
        infos.extend(
            [
                &string(name)[..],
                &1u32.to_be_bytes(),
                &values.to_be_bytes(),
                &kind.to_be_bytes(),
            ]
            .concat(),
        );
        infos.extend((data.len() as u64).to_be_bytes());
        data.extend(Random(9).bytes(bytes.next_multiple_of(32)));
    }
    let (counts, value) = (
        [tensors.len() as u64, 1].map(u64::to_be_bytes).concat(),
        (-2i32).to_be_bytes(),
    );
    let mut out = [
        &b"GGUF\0\0\0\x03"[..],
        &counts,
        &string("k"),
        &5u32.to_be_bytes(),
        &value,
        &infos,
    ]
    .concat();
    out.resize(out.len().next_multiple_of(32), 0);
    [out, data].concat()
}

/// Some types have no big-endian form that anyone has defined: a file with one is listed, and not decoded.
#[test]
fn big_endian_types_without_a_byte_order() {
    recover(big_endian(&[("a", 0, 4, 16), ("q", 8, 64, 68)]), "").unwrap();
    let odd = [
        ("Q4_1", 3, 160),
        ("Q5_K", 13, 176),
        ("Q8_K", 15, 292),
        ("IQ4_XS", 23, 136),
        ("TQ1_0", 34, 54),
    ];
    for (dtype, kind, bytes) in odd {
        let file = big_endian(&[
            ("a", 0, 4, 16),
            ("X.weight", kind, 256, bytes),
            ("z", 30, 3, 6),
        ]);
        let model = parse_bytes(file.clone()).unwrap();
        assert_eq!(model.gguf().unwrap().metadata().get("k"), Some(V::I32(-2)));
        let (info, words) = (model.inspect(), ["`X.weight`", dtype, "byte order"]);
        assert_eq!(
            (info.tensor_count, info.quantized, info.problems.len()),
            (3, 1, 1),
            "{dtype}"
        );
        assert!(
            words.iter().all(|w| info.problems[0].contains(w)),
            "{}",
            info.problems[0]
        );
        assert_eq!(verdict(recover(file, ""), Unsupported, &words), None);
        assert_eq!(
            verdict(
                model.tensor("X.weight").unwrap().bytes(),
                Unsupported,
                &words
            ),
            None
        );
        assert!(
            ["a", "z"]
                .iter()
                .all(|name| model.tensor(name).unwrap().bytes().is_ok())
        );
    }
}

/// A model in several files is the one that it was before it was split.
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

/// A stream that counts its reads and cannot seek.
struct Stream<'a> {
    bytes: &'a [u8],
    reads: usize,
    /// Makes it an error to ask for a byte behind the last one, which says this.
    behind: Option<&'a str>,
}

impl Read for &mut Stream<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.reads += 1;
        match self.behind {
            Some(text) if out.len() > self.bytes.len() => Err(std::io::Error::other(text)),
            _ => self.bytes.read(out),
        }
    }
}

impl Seek for &mut Stream<'_> {
    fn seek(&mut self, _: SeekFrom) -> std::io::Result<u64> {
        Err(std::io::Error::other("asked to seek"))
    }
}

/// A header that ends where its last entry does.
fn unpadded() -> Gguf {
    let mut file = Gguf::default();
    file.alignment = 1;
    file
}

/// The header of a model with a large vocabulary, not padded, so that it ends where the last tensor's entry does.
fn vocabulary() -> Vec<u8> {
    let array = |kind: u32, n: u64, items: Vec<u8>| {
        [&kind.to_le_bytes(), &n.to_le_bytes()[..], &items].concat()
    };
    let mut random = Random(3);
    let mut words = |n: u64| {
        let word = |_| {
            string(&format!(
                "{:01$x}",
                random.next() >> 32,
                8 + random.next() as usize % 20
            ))
        };
        array(8, n, (0..n).flat_map(word).collect())
    };
    let (tokens, merges) = (words(200_000), words(280_000));
    let (scores, types) = (
        array(6, 200_000, f32s(&random.floats(200_000))),
        array(5, 200_000, vec![1; 800_000]),
    );
    let file =
        unpadded()
            .text("general.architecture", "llama")
            .key("general.alignment", 4, &[1, 0, 0, 0]);
    let file =
        file.key("tokenizer.ggml.tokens", 9, &tokens)
            .key("tokenizer.ggml.merges", 9, &merges);
    let file =
        file.key("tokenizer.ggml.scores", 9, &scores)
            .key("tokenizer.ggml.token_type", 9, &types);
    let add = |file: Gguf, i: u64| {
        file.tensor_at(
            &format!("blk.{i}.weight"),
            12,
            &[4096, 64],
            i * 147_456,
            &[],
        )
    };
    (0..300).fold(file, add).header()
}

#[test]
fn large_headers_are_read_in_few_reads() {
    let header = vocabulary();
    assert!(header.len() > 12 << 20, "{}", header.len());
    let file = [&header[..], &[0; 1 << 20]].concat();
    let mut stream = Stream {
        bytes: &file,
        reads: 0,
        behind: None,
    };
    let front = front_matter(BufReader::with_capacity(1 << 20, &mut stream)).unwrap();
    let tokens = front.metadata["tokenizer.ggml.tokens"]
        .as_array()
        .unwrap()
        .as_string_slice()
        .unwrap();
    assert_eq!(
        (tokens.len(), front.tensor_infos.len(), front.metadata.len()),
        (200_000, 300, 6)
    );
    assert!(stream.reads <= 25, "{}", stream.reads);
    assert_eq!(
        front.tensor_infos[299].data_offset,
        header.len() as u64 + 299 * 147_456
    );
}

/// Not a byte behind the header is asked for, even where nothing is in it.
#[test]
fn nothing_behind_the_header_is_read() {
    let one = unpadded().key("general.alignment", 4, &[1, 0, 0, 0]);
    let nested = [
        9u32.to_le_bytes().to_vec(),
        2u64.to_le_bytes().to_vec(),
        [[0; 12]; 2].concat(),
    ]
    .concat();
    let headers = [
        ("no key", unpadded().header()),
        ("one key", one.header()),
        (
            "short keys",
            one.key("a", 0, &[1])
                .key("b", 7, &[1])
                .key("c", 8, &string(""))
                .header(),
        ),
        ("nested", unpadded().key("a", 9, &nested).header()),
        (
            "short tensors",
            unpadded()
                .tensor("a", 0, &[], &[])
                .tensor("", 0, &[], &[])
                .header(),
        ),
        ("large", vocabulary()),
        ("version 1", b"GGUF\x01\0\0\0\0\0\0\0\0\0\0\0".to_vec()),
    ];
    let mut failures = String::new();
    for (what, header) in headers {
        let mut stream = Stream {
            bytes: &header,
            reads: 0,
            behind: Some("behind the header"),
        };
        failures.extend(
            front_matter(&mut stream)
                .err()
                .map(|e| format!("\n{what}: {e}")),
        );
        // A reader that fails is quoted.
        for end in [0, 4, header.len() / 2, header.len() - 1] {
            let mut stream = Stream {
                bytes: &header[..end],
                reads: 0,
                behind: Some("budget exceeded"),
            };
            let error = anamnesis::inspect_gguf_from_reader(&mut stream).unwrap_err();
            assert!(
                matches!(error, AnamnesisError::Io(_))
                    && error.to_string().contains("budget exceeded"),
                "{error}"
            );
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// The scale beside an NVFP4 tensor: one, or one for each matrix of a stack.
#[test]
fn nvfp4_scales() {
    let (codes, scales) = (Random(5).bytes(3 * 2 * 36), [0.37f32, -3.0, 1e-3]);
    let values = |file: Gguf| {
        let bytes = recover(file.file(), "").unwrap();
        let all = SafeTensors::deserialize(&bytes).unwrap();
        let weight = all.tensor("X.weight").unwrap();
        assert_eq!((all.len(), weight.shape()), (1, &[3, 2, 64][..]));
        weight
            .data()
            .chunks(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect::<Vec<_>>()
    };
    let plain = values(Gguf::default().tensor("X.weight", 40, &[64, 2, 3], &codes));
    let names: [(&str, &[u64]); 5] = [
        ("X.scale", &[3]),
        ("X.weight.scale", &[3]),
        ("X.scale", &[1]),
        ("X.weight.scale", &[]),
        ("X.scale", &[1, 3]),
    ];
    for (name, shape) in names {
        let n = shape.iter().product::<u64>() as usize;
        let file = Gguf::default().tensor(name, 0, shape, &f32s(&scales[..n]));
        let file = file.tensor("X.weight", 40, &[64, 2, 3], &codes).tensor(
            "X.input_scale",
            0,
            &[1],
            &[1; 4],
        );
        let want: Vec<f32> = plain
            .iter()
            .enumerate()
            .map(|(i, x)| x * scales[i / 128 % n])
            .collect();
        assert_eq!(values(file), want, "{name} {shape:?}");
    }
}

/// Behind the last tensor there may be more, if its size is known for sure; and tensors may be listed in any order.
#[test]
fn odd_places() {
    let (block, more) = (Random(6).bytes(34), vec![7; 1000]);
    let (first, both) = (
        || Gguf::default().tensor("a", 8, &[32], &block),
        [&block[..], &more].concat(),
    );
    // As the first, or of a type that nobody writes otherwise.
    for file in [
        first().tensor("b", 8, &[32], &both).file(),
        first().tensor("b", 24, &[34], &both).file(),
    ] {
        assert!(
            parse_bytes(file.clone())
                .unwrap()
                .tensor("b")
                .unwrap()
                .bytes()
                .unwrap()
                == block
        );
        recover(file, "").unwrap();
    }
    let turned = Gguf::default()
        .tensor_at("b", 24, &[5], 64, &block)
        .tensor_at("a", 24, &[34], 0, &more[..5]);
    let model = parse_bytes(turned.file()).unwrap();
    assert_eq!(
        model.tensors().map(|t| t.name()).collect::<Vec<_>>(),
        ["a", "b"]
    );
    let bytes = |name| model.tensor(name).unwrap().bytes().unwrap();
    assert!(*bytes("a") == block && *bytes("b") == more[..5]);
}
