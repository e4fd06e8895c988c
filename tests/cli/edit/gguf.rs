//! GGUF: types, order and byte order of keys; where the data is; models that llama.cpp loads.

use std::path::Path;

use anamnesis::{GgufMetadataArray as A, GgufMetadataValue as V, parse};
use serde_json::json;

use super::{copy, edit, notes, place, refused};
use crate::amn;
use crate::common::data;
use crate::common::directory::names_in;

/// How a file stores numbers.
#[derive(Clone, Copy)]
struct Encoding {
    version: u32,
    is_big: bool,
}

impl Encoding {
    fn number(self, n: u64, bytes: usize) -> Vec<u8> {
        match self.is_big {
            true => n.to_be_bytes()[8 - bytes..].to_vec(),
            false => n.to_le_bytes()[..bytes].to_vec(),
        }
    }

    fn len(self, n: usize) -> Vec<u8> {
        self.number(n as u64, if self.version == 1 { 4 } else { 8 })
    }

    fn string(self, text: &str) -> Vec<u8> {
        [self.len(text.len()), text.as_bytes().to_vec()].concat()
    }

    /// A file with these keys, each with the number of its type and its bytes, and two tensors, of
    /// which one has a type that nobody knows.
    fn file(self, keys: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.number(self.version.into(), 4));
        out.extend([self.len(2), self.len(keys.len())].concat());
        for (key, kind, value) in keys {
            let kind = self.number((*kind).into(), 4);
            out.extend([self.string(key), kind, value.clone()].concat());
        }
        for (name, kind, offset) in [("a", 0, 0), ("b", 4000, 32)] {
            out.extend([self.string(name), self.number(1, 4), self.len(5)].concat());
            out.extend([self.number(kind, 4), self.number(offset, 8)].concat());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend((0..77).map(|i| i as u8 ^ 0x5a));
        out
    }
}

/// Every version and byte order, byte for byte as the format has it.
#[test]
fn encodings_are_kept() {
    let (_root, path) = place("m.gguf");
    for (version, is_big) in [(1, false), (2, false), (3, false), (2, true), (3, true)] {
        let e = Encoding { version, is_big };
        let list = [e.number(8, 4), e.len(2), e.string("x"), e.string("y")].concat();
        // Text that is no UTF-8 stays as it is.
        let broken = [e.len(2), vec![0xff, 0xfe]].concat();
        std::fs::write(
            &path,
            e.file(&[
                ("n", 2, e.number(7, 2)),
                ("broken", 8, broken.clone()),
                ("gone", 9, list.clone()),
                ("list", 9, list.clone()),
                ("x", 6, e.number(1.5f32.to_bits().into(), 4)),
            ]),
        )
        .unwrap();
        let report = edit(
            &path,
            &[
                "--set",
                "n=9",
                "--unset",
                "gone",
                "--rename",
                "list=texts",
                "--set",
                "x=2",
                "--set",
                "new:[i16]=[1, -2]",
                "--set",
                "deep:u64=18446744073709551615",
                "--set",
                "is=true",
            ],
        );
        let numbers = [e.number(3, 4), e.len(2), e.number(1, 2), e.number(0xfffe, 2)].concat();
        let expected = e.file(&[
            ("n", 2, e.number(9, 2)),
            ("broken", 8, broken),
            ("texts", 9, list),
            ("x", 6, e.number(2f32.to_bits().into(), 4)),
            ("new", 9, numbers),
            ("deep", 10, e.number(u64::MAX, 8)),
            ("is", 7, vec![1]),
        ]);
        assert!(std::fs::read(&path).unwrap() == expected, "version {version}, {is_big}");
        assert_eq!(report["changes"][0]["key"], "gone");
        assert_eq!(
            report["changes"][0]["before"],
            json!({"type": "[string]", "value": ["x", "y"]})
        );
        assert_eq!(report["changes"][0]["after"], json!(null));
        assert_eq!(report["changes"][2]["renamed_from"], "list");
    }
}

fn value(path: &str, key: &str) -> Option<V> {
    parse(path).unwrap().gguf().unwrap().metadata().get(key)
}

/// Types are those of `--gguf-kv`: the one that the key has, the one that llama.cpp reads, or the one
/// that is given.
#[test]
fn types_of_keys() {
    let root = crate::common::tempdir().unwrap();
    let path = copy("adapters/base-q8_0.gguf", root.path());
    let report = edit(
        &path,
        &[
            "--set",
            "llama.rope.freq_base=1000000",
            "--set",
            "general.url=7",
            "--set",
            "my.n=7",
            "--set",
            "my.list=[1, 2.5]",
            "--set",
            "my.small:u8=7",
            "--set",
            "general.author=x",
            "--set",
            "general.author=null",
            "--set",
            "general.author=me",
        ],
    );
    for (key, expected) in [
        ("llama.rope.freq_base", V::F32(1e6)),
        ("general.url", V::String("7".into())),
        ("my.n", V::U32(7)),
        ("my.list", V::Array(Box::new(A::F32(vec![1.0, 2.5])))),
        ("my.small", V::U8(7)),
        ("general.author", V::String("me".into())),
    ] {
        assert_eq!(value(&path, key), Some(expected), "{key}");
    }
    assert_eq!(notes(&report), "");
    let report = edit(&path, &["--set", "my.n:i64=-1", "--set", "general.url:u32=1"]);
    let notes = notes(&report);
    assert!(notes.contains("`my.n` was u32 and is i64 now"), "{notes}");
    assert!(
        notes.contains("llama.cpp reads `general.url` as string, and it is u32 now"),
        "{notes}"
    );
    let same = edit(&path, &["--set", "my.n=-1", "--set", "my.small=7"]);
    assert_eq!((&same["changes"], &same["written"]), (&json!([]), &json!("nothing")));
}

/// A change within a sector is written where it is; a longer one makes a new file, with the data at
/// another place if it must.
#[test]
fn room_in_the_header() {
    let root = crate::common::tempdir().unwrap();
    let path = copy("demo/model-q4_k.gguf", root.path());
    let tensors = |path: &str| {
        let model = parse(path).unwrap();
        let all = model
            .tensors()
            .map(|t| (t.name().to_owned(), t.bytes().unwrap().to_vec()));
        all.collect::<Vec<_>>()
    };
    let (before, len) = (tensors(&path), std::fs::metadata(&path).unwrap().len());
    let long = format!("general.name={}", "x".repeat(1000));
    for (set, written, grows) in [
        ("general.name=SmolLM3, a slice", "header", false),
        ("general.name=Tiny", "header", false),
        (&*long, "file", true),
        ("general.name=Tiny", "file", false),
        ("general.name=Tiny", "nothing", false),
    ] {
        let report = edit(&path, &["--set", set]);
        assert_eq!(report["written"], written, "{set}");
        assert_eq!(std::fs::metadata(&path).unwrap().len() > len, grows, "{set}");
        assert!(tensors(&path) == before);
    }
    assert_eq!(names_in(root.path(), ""), ["model-q4_k.gguf"]);
}

/// A file without tensors, and one whose data begin at multiples of another number.
#[test]
fn files_without_data_and_other_alignments() {
    let (_root, path) = place("m.gguf");
    let empty = crate::common::gguf::Gguf::default().text("general.name", "a");
    // Without the padding behind it, too.
    let header = empty.header();
    for len in [header.len(), header.len() - 5] {
        std::fs::write(&path, &header[..len]).unwrap();
        edit(&path, &["--set", "general.name=something longer than before"]);
        assert!(parse(&path).is_ok());
    }
    let mut aligned = crate::common::gguf::Gguf::default();
    aligned.alignment = 128;
    let aligned = aligned.key("general.alignment", 4, &128u32.to_le_bytes());
    let aligned = aligned
        .tensor("a", 0, &[4], &[7; 16])
        .tensor("b", 0, &[4], &[8; 16]);
    std::fs::write(&path, aligned.file()).unwrap();
    edit(&path, &["--set", "k=some text", "--set", "general.alignment=128"]);
    let model = parse(&path).unwrap();
    assert_eq!(*model.tensor("b").unwrap().bytes().unwrap(), [8; 16]);
    for change in [["--set", "general.alignment=64"], ["--unset", "general.alignment"]] {
        let change = [&change[..], &["-i", "-f"]].concat();
        refused(&path, &change, 2, "--gguf-kv general.alignment=N");
    }
}

/// The metadata of a split model is in its first file.
#[test]
fn split_models() {
    let root = crate::common::tempdir().unwrap();
    let base = data().join("adapters/base-q8_0.gguf");
    let out = root.path().join("s.gguf");
    let [base, out] = [&base, &out].map(|path| path.to_str().unwrap());
    let split = amn(&["convert", base, "-o", out, "--max-shard-size", "100"]);
    assert_eq!(split.status.code(), Some(0), "{}", String::from_utf8_lossy(&split.stderr));
    let names = names_in(root.path(), ".gguf");
    assert!(names.len() > 1, "{names:?}");
    let at = |name: &String| root.path().join(name).to_string_lossy().into_owned();
    let others: Vec<_> = names[1..]
        .iter()
        .map(|name| std::fs::read(at(name)).unwrap())
        .collect();
    let report = edit(&at(&names[0]), &["--set", "general.name=Tiny"]);
    assert!(notes(&report).contains("its metadata is in the first"), "{report}");
    assert_eq!(value(&at(&names[0]), "general.name"), Some(V::String("Tiny".into())));
    let now = names[1..]
        .iter()
        .map(|name| std::fs::read(at(name)).unwrap());
    assert!(now.eq(others));
    let change = ["--set", "general.name=x", "-i"];
    refused(&at(&names[1]), &change, 6, &format!("open the first, `{}`", names[0]));
    refused(&at(&names[0]), &["--set", "split.count=1", "-i"], 2, "`amn convert FILE");
}

/// Changes with which llama.cpp would not load a model that it loads.
#[test]
fn models_stay_loadable() {
    let root = crate::common::tempdir().unwrap();
    let path = copy("adapters/base-q8_0.gguf", root.path());
    let whole = "llama.cpp would not load the file";
    for (change, words) in [
        (["--set", "llama.block_count=7"], whole),
        (["--unset", "llama.block_count"], whole),
        (["--rename", "llama.block_count=llama.blocks"], whole),
        (["--set", "general.architecture=qwen2"], whole),
        (["--unset", "general.architecture"], "no file without it"),
        (["--set", "tokenizer.ggml.eos_token_id=999999"], "there is no token 999999 among"),
        (["--set", "tokenizer.ggml.eos_token_id=no token"], "`no token` is no token"),
        (["--tokenizer-pre", "no-such"], "it knows "),
    ] {
        refused(&path, &[&change[..], &["-i"]].concat(), 2, words);
    }
    let forced = amn(&["edit", &path, "--set", "llama.block_count=7", "-i", "--force"]);
    assert_eq!(forced.status.code(), Some(0));
    // It is not loaded now, so another change makes it no worse.
    edit(&path, &["--set", "llama.context_length=64"]);
}

/// A special token by its text, a template from a file, a pre-tokenizer by its name.
#[test]
fn tokenizers() {
    let root = crate::common::tempdir().unwrap();
    let path = copy("adapters/base-q8_0.gguf", root.path());
    let tokens = value(&path, "tokenizer.ggml.tokens").unwrap();
    let tokens = tokens
        .as_array()
        .unwrap()
        .as_string_slice()
        .unwrap()
        .to_vec();
    let file = |name: &str, text: &str| {
        let path = root.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let template = file("template.jinja", "{{ messages }}\n");
    let config = file("tokenizer_config.json", r#"{"chat_template": "{{ bos_token }}"}"#);
    let token = format!("tokenizer.ggml.unknown_token_id={}", tokens[5]);
    edit(&path, &["--set", &token, "--chat-template", &template, "--tokenizer-pre", "llama-bpe"]);
    assert_eq!(value(&path, "tokenizer.ggml.unknown_token_id"), Some(V::U32(5)));
    let key = "tokenizer.chat_template";
    assert_eq!(value(&path, key), Some(V::String("{{ messages }}\n".into())));
    assert_eq!(value(&path, "tokenizer.ggml.pre"), Some(V::String("llama-bpe".into())));
    edit(&path, &["--set", "tokenizer.chat_template.tool_use=x"]);
    let report = edit(&path, &["--chat-template", &config]);
    assert_eq!(value(&path, key), Some(V::String("{{ bos_token }}".into())));
    assert!(notes(&report).contains("`tokenizer.chat_template.tool_use`"), "{report}");
    assert!(Path::new(&template).exists());
}
