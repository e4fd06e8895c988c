//! Files that people have in place of a model: the error says what the file is and what to do,
//! instead of what safetensors has in its place.

use std::path::Path;

use super::{magic, safetensors};
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, ParsedModel, Result};

/// A kind of file that is no model, or none that is read.
pub(super) struct OtherFile {
    /// Whether a file with these first bytes is one.
    matches: fn(&[u8]) -> bool,
    pub name: &'static str,
    /// What the user can do.
    advice: &'static str,
    /// What a program may find in it that `scan_pickles` does not look into.
    #[cfg_attr(not(feature = "pth"), allow(dead_code))]
    pub hides: Option<&'static str>,
}

const MODELS_NOT_READ: &str = "its models are not read";
const UNPACK: &str = "unpack it first";
const PACKED: Option<&str> = Some("compressed content, which was not looked into");

/// What tells JSON text that is an index of shards.
const INDEX_KEY: &[u8] = b"\"weight_map\"";

const BURN: &str = "models of Burn are not read; `SafetensorsStore` of burn-store saves a module as safetensors, which are";

const OTHER_FILES: &[OtherFile] = &[
    OtherFile {
        matches: |head| head.starts_with(b"version https://git-lfs"),
        name: "Git LFS pointer",
        advice: "it stands for the file, which `git lfs pull` fetches",
        hides: None,
    },
    OtherFile {
        matches: |head| {
            let head = behind_spaces(head);
            let begins = |tag: &[u8]| {
                head.get(..tag.len())
                    .is_some_and(|b| b.eq_ignore_ascii_case(tag))
            };
            begins(b"<!doctype html") || begins(b"<html") || begins(b"<head")
        },
        name: "HTML page",
        advice: "the server has sent a page in place of the file; download it again",
        hides: None,
    },
    OtherFile {
        // S3 and others tell in XML why they do not send a file.
        matches: |head| {
            let head = behind_spaces(head);
            head.starts_with(b"<?xml") || head.starts_with(b"<Error>")
        },
        name: "XML text",
        advice: "the server may have sent an error in place of the file; download it again",
        hides: None,
    },
    OtherFile {
        matches: |head| {
            behind_spaces(head).starts_with(b"{")
                && head.windows(INDEX_KEY.len()).any(|at| at == INDEX_KEY)
        },
        name: "index of shards",
        advice: "give the directory that it is in",
        hides: None,
    },
    OtherFile {
        matches: |head| behind_spaces(head).starts_with(b"{") && is_text(head),
        name: "JSON text",
        advice: "give the file of weights, or the directory",
        hides: None,
    },
    OtherFile {
        matches: |head| head.starts_with(&[0x1f, 0x8b]),
        name: "gzip archive",
        advice: "unpack it first, with `gunzip`, or with `tar -xzf` if it is a tar archive, as `.tar.gz` and some `.nemo` are",
        hides: PACKED,
    },
    OtherFile {
        matches: |head| head.starts_with(b"7z\xbc\xaf\x27\x1c"),
        name: "7-Zip archive",
        advice: UNPACK,
        hides: PACKED,
    },
    OtherFile {
        matches: |head| head.starts_with(b"Rar!\x1a\x07"),
        name: "RAR archive",
        advice: UNPACK,
        hides: PACKED,
    },
    OtherFile {
        // xz, bzip2, and the older format of xz with its usual properties.
        matches: |head| {
            head.starts_with(b"\xfd7zXZ\0")
                || head.starts_with(b"BZh")
                || head.starts_with(b"\x5d\0\0")
        },
        name: "xz or bzip2 archive",
        advice: UNPACK,
        hides: PACKED,
    },
    OtherFile {
        matches: |head| head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]),
        name: "Zstandard archive",
        advice: UNPACK,
        hides: PACKED,
    },
    OtherFile {
        matches: |head| head.starts_with(&[0x04, 0x22, 0x4d, 0x18]),
        name: "LZ4 archive",
        advice: UNPACK,
        hides: PACKED,
    },
    OtherFile {
        // A version, and the name of the model's class with its length and a zero.
        matches: |head| match head {
            [1..=20, 0, 0, 0, n @ 2..=64, 0, name @ ..] => {
                let name = name
                    .get(..usize::from(*n))
                    .and_then(|name| name.split_last());
                name.is_some_and(|(end, name)| {
                    *end == 0 && name.iter().all(u8::is_ascii_alphanumeric)
                })
            }
            _ => false,
        },
        name: "CTranslate2",
        advice: "its models are not read; give the model that it was made from",
        hides: None,
    },
    OtherFile {
        // The number of blobs and a version, and the mark of the first blob.
        matches: |head| {
            matches!(head.get(4..8), Some([1 | 2, 0, 0, 0]))
                && head.get(64..68) == Some(&[0xef, 0xbe, 0xad, 0xde])
        },
        name: "Core ML (weight.bin)",
        advice: "give the package that it is in, or the model beside its directory",
        hides: None,
    },
    OtherFile {
        // The version of the format and a graph, which begins with its description.
        matches: |head| {
            let info = message(head, [0x08, 0x12]).and_then(|inner| message(inner, []));
            info.is_some()
        },
        name: "TensorFlow SavedModel",
        advice: "give the directory that it is in, for its variables",
        hides: Some(GRAPH),
    },
    OtherFile {
        // A graph of nodes, each of which begins with its name and the name of its operation.
        matches: |head| after_first_name(head).is_some_and(|after| after.first() == Some(&0x12)),
        name: "TensorFlow graph",
        advice: MODELS_NOT_READ,
        hides: Some(GRAPH),
    },
    OtherFile {
        // Pieces, each of which begins with its text and its score.
        matches: |head| after_first_name(head).is_some_and(|after| after.first() == Some(&0x15)),
        name: "SentencePiece vocabulary",
        advice: "it is the tokenizer's; give the file of weights, or the directory",
        hides: None,
    },
    OtherFile {
        // A FlatBuffer: where its root is, and the mark.
        matches: |head| head.get(4..8) == Some(b"ORTM"),
        name: "ONNX Runtime (.ort)",
        advice: "give the `.onnx` that it was made from",
        hides: Some(GRAPH),
    },
    OtherFile {
        // `BurnRecord`: a map of `metadata`, `item` and a mark of no size.
        matches: |head| head.starts_with(b"\x83\xa8metadata"),
        name: "MessagePack, as Burn's recorders write it",
        advice: BURN,
        hides: None,
    },
    OtherFile {
        // GGLA as a little-endian number.
        matches: |head| head.starts_with(b"algg"),
        name: "GGML (adapter)",
        advice: "it is a LoRA adapter of llama.cpp from before GGUF; the adapter of PEFT that it was made from is read",
        hides: None,
    },
    OtherFile {
        matches: |head| head.starts_with(&[0xd8, 0x5e, 0x3a, 0x7f]),
        name: "encrypted checkpoint of MindSpore",
        advice: "load it in MindSpore with its key, and save it without",
        hides: None,
    },
    OtherFile {
        matches: |head| head.starts_with(&[0xba, 0x16, 0x4f, 0x2f]),
        name: "fastText",
        advice: MODELS_NOT_READ,
        hides: None,
    },
    OtherFile {
        matches: |head| {
            head.starts_with(b"\x89PNG\r\n\x1a\n")
                || head.starts_with(&[0xff, 0xd8, 0xff])
                || head.starts_with(b"GIF8")
                || (head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP"))
        },
        name: "image",
        advice: "give the file of weights",
        hides: None,
    },
    OtherFile {
        matches: |head| {
            (head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WAVE"))
                || head.starts_with(b"fLaC")
                || head.starts_with(b"OggS")
                || head.starts_with(b"ID3")
                || head.get(4..8) == Some(b"ftyp")
        },
        name: "sound or video",
        advice: "give the file of weights",
        hides: None,
    },
    OtherFile {
        matches: |head| head.starts_with(b"PAR1") || head.starts_with(b"ARROW1"),
        name: "table of Apache Arrow or Parquet",
        advice: "give the file of weights",
        hides: None,
    },
    OtherFile {
        matches: |head| head.starts_with(b"%PDF-"),
        name: "PDF",
        advice: "give the file of weights",
        hides: Some("PDF, which was not looked into"),
    },
    OtherFile {
        matches: |head| head.len() >= MIN_TEXT && is_text(head),
        name: "text",
        advice: "give the file of weights, or the directory",
        hides: None,
    },
];

const GRAPH: &str =
    "a graph of TensorFlow, which was not looked into: its operations can read and write files";

/// What begins behind a mark of UTF-8, and spaces and ends of lines.
fn behind_spaces(head: &[u8]) -> &[u8] {
    head.strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(head)
        .trim_ascii_start()
}

/// Shortest file that is called text, in bytes: the first letters of a kind of file are text, too.
const MIN_TEXT: usize = 8;

/// Whether the beginning of a file is text: UTF-8, perhaps cut off, or UTF-16 with its mark,
/// without control characters other than spaces, ends of lines and escapes of terminals.
pub(super) fn is_text(head: &[u8]) -> bool {
    if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        let is_printable = |pair: &[u8; 2]| *pair != [0, 0];
        return head.as_chunks::<2>().0.iter().all(is_printable);
    }
    let is_plain = |&b: &u8| b >= 0x20 || matches!(b, b'\t'..=b'\r' | 0x1b);
    let is_whole = match std::str::from_utf8(head) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    };
    is_whole && head.iter().all(is_plain)
}

/// What follows the name of the first item of a list of Protocol Buffers, if the item begins with a
/// name.
fn after_first_name(head: &[u8]) -> Option<&[u8]> {
    let item = message(head, []).filter(|item| item.first() == Some(&NAME))?;
    item.get(2 + usize::from(*item.get(1)?)..)
}

/// The kind of a file that is no model, or none that is read, by its first bytes.
pub(super) fn known(head: &[u8]) -> Option<&'static OtherFile> {
    OTHER_FILES.iter().find(|file| (file.matches)(head))
}

/// First byte of a field of Protocol Buffers that is a text or a message and has the number 1.
const NAME: u8 = 0x0a;

/// The content of a message of Protocol Buffers at the beginning of `head`, behind a number and a
/// length if `fields` has their first bytes. At most what is in `head`.
fn message<const N: usize>(head: &[u8], fields: [u8; N]) -> Option<&[u8]> {
    let mut rest = head;
    let last = fields.last().copied().unwrap_or(NAME);
    for field in fields.iter().copied().take(N.saturating_sub(1)) {
        // Versions are small numbers, of one byte.
        rest = match rest {
            [first, 1..=20, rest @ ..] if *first == field => rest,
            _ => return None,
        };
    }
    rest = rest.strip_prefix(&[last])?;
    // A length ends with the first byte below 128, and has at most five.
    let end = rest.iter().take(5).position(|byte| *byte < 0x80)?;
    rest.get(end + 1..)
}

/// Names of files that have no mark in their content.
struct OtherName {
    matches: fn(&str) -> bool,
    name: &'static str,
    advice: &'static str,
}

const OTHER_NAMES: &[OtherName] = &[
    OtherName {
        matches: |name| {
            let shard = name.rsplit_once(".data-").map(|(_, shard)| shard);
            shard.is_some_and(|shard| shard.split("-of-").all(is_number))
        },
        name: "TensorFlow checkpoint (variables)",
        advice: "give the `.index` beside it, or the directory",
    },
    OtherName {
        matches: is_part,
        name: "part of a split file",
        advice: "join the parts in their order first, with `cat` or the program that split them",
    },
    OtherName {
        matches: |name| {
            let endings =
                [".incomplete", ".crdownload", ".aria2", ".download", ".partial", ".part"];
            endings.iter().any(|ending| name.ends_with(ending))
        },
        name: "download that has not ended",
        advice: "download the file again",
    },
];

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Whether a name is that of a part of a split file: `.part1`, `.part-ab`, `.part1of2`,
/// `.gguf-split-a`, `.001`, `.aa`.
fn is_part(name: &str) -> bool {
    let Some((rest, last)) = name.rsplit_once('.') else {
        return false;
    };
    let number = |text: &str| {
        text.trim_start_matches(['-', '_'])
            .split("of")
            .all(is_number)
    };
    let letters = |text: &str| {
        let letters = text.trim_start_matches(['-', '_']);
        matches!(letters.len(), 1..=3) && letters.bytes().all(|b| b.is_ascii_lowercase())
    };
    let is_counted = |text: &str| number(text) || letters(text);
    let behind = |word: &str| {
        last.split_once(word)
            .is_some_and(|(_, count)| is_counted(count))
    };
    // Letters alone may be an ending of any kind, `split` of coreutils begins with `aa`.
    let is_suffix = || {
        let is_model = rest.rsplit_once('.').is_some_and(|(_, ending)| {
            ["safetensors", "gguf", "bin", "pt", "pth", "ckpt", "npz"].contains(&ending)
        });
        is_model && (is_number(last) || last.len() == 2 && last.starts_with('a'))
    };
    behind("part") || behind("split") || is_suffix()
}

/// Adds to an error what the name says: the first part of a split file begins as the whole does.
pub(super) fn of_part(error: AnamnesisError, path: &Path) -> AnamnesisError {
    let is_part = path
        .file_name()
        .is_some_and(|name| is_part(&name.to_string_lossy()));
    match error {
        AnamnesisError::Parse { .. } if is_part => {
            error.about("part of a split file; join the parts in their order first")
        }
        error => error,
    }
}

/// Reads a file of no known container: as safetensors if it may be a broken one, so that the error
/// says what is wrong with it; otherwise the error says what the file is, if that is known.
///
/// # Errors
/// `Unsupported` with what the file is; `Parse` if it is unknown; those of the safetensors reader.
pub(super) fn read(source: Source, path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let head = magic::read_head(&mut &source)?;
    if let Some(file) = known(&head) {
        return Err(AnamnesisError::unsupported(file.name, file.advice));
    }
    let name = path
        .and_then(Path::file_name)
        .unwrap_or_default()
        .to_string_lossy();
    if let Some(file) = OTHER_NAMES.iter().find(|file| (file.matches)(&name)) {
        return Err(AnamnesisError::unsupported(file.name, file.advice));
    }
    match name.ends_with(".safetensors") || may_be_safetensors(&head) {
        true => safetensors::read(source, path, budget),
        false => Err(AnamnesisError::parse(match head.is_empty() {
            true => "the file is empty (0 bytes)",
            false => "not a model file: it begins like no container that is known",
        })),
    }
}

/// Whether a file may be safetensors that ends in the length of its header, or of which that length
/// is damaged, or what follows it.
fn may_be_safetensors(head: &[u8]) -> bool {
    let is_length = |n: &[u8; 8]| matches!(u64::from_le_bytes(*n), 1..=MAX_HEADER);
    matches!(head.len(), 1..8)
        || head.get(8) == Some(&b'{')
        || head.first_chunk().is_some_and(is_length)
}

/// Length of a header up to which its number is believed to be one: ten times what safetensors
/// allows.
const MAX_HEADER: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    /// What is said of the bytes.
    fn said(bytes: &[u8]) -> String {
        crate::parse_bytes(bytes.to_vec()).unwrap_err().to_string()
    }

    #[test]
    fn each_kind_is_named() {
        let rows: [(&[u8], &str); 24] = [
            (
                b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
                "git lfs pull",
            ),
            (b"<!DOCTYPE html><html>", "HTML page"),
            (b"<HTML><body>", "HTML page"),
            (b"{\"metadata\": {}, \"weight_map\": {}}", "index of shards"),
            (b"{\"a\": 1}", "JSON text"),
            (b"\x1f\x8b\x08\0aaaa", "gzip"),
            (b"7z\xbc\xaf\x27\x1c\0\x04", "7-Zip"),
            (b"\xfd7zXZ\0aaaa", "xz"),
            (b"\x28\xb5\x2f\xfdaaaa", "Zstandard"),
            (b"\xef\xbb\xbf <?xml version='1.0'?><Error>", "XML"),
            (b"\n {\"a\": 1}", "JSON text"),
            (b"tokens and more\n", "text"),
            (b"Rar!\x1a\x07\x01\0", "RAR"),
            (b"\x89PNG\r\n\x1a\n\0", "image"),
            // `Model.save` of ctranslate2's `specs/model_spec.py`, MILBlob of coremltools, and
            // `sentencepiece_model.proto`.
            (b"\x06\0\0\0\x10\0TransformerSpec\0\x07\0\0\0", "CTranslate2"),
            (&CORE_ML_WEIGHTS, "Core ML"),
            (b"\x0a\x0e\x0a\x05<unk>\x15\0\0\0\0\x18\x02", "SentencePiece"),
            (b"\x80\x81\x82\x83\x84\x85\x86\x87\x88", "begins like no container"),
            (b"alggaaaa", "GGML"),
            // By the definitions of the formats: saved_model.proto, graph.proto and
            // table/format.h of TensorFlow, and MessagePack.
            (
                b"\x08\x01\x12\xa3\xe9\x02\x0a\xb4\x3c\x12\x90\x3c\x0a\x3c\x0a\x03Add",
                "TensorFlow SavedModel",
            ),
            (b"\x0a\x2a\x0a\x05input\x12\x0bPlaceholder", "TensorFlow graph"),
            (b"\x18\0\0\0ORTM\0\0\0\0\x0c\0\x10\0", "`.onnx`"),
            // `BurnRecord` of burn-core, up to 0.20.
            (b"\x83\xa8metadata\x85\xa5float", "Burn's recorders"),
            (b"\0\0\0\0\x01\0\0\0\0\0\0\x57\xfb\x80\x8b\x24\x75\x47\xdb", "TensorFlow checkpoint"),
        ];
        for (bytes, expected) in rows {
            assert!(said(bytes).contains(expected), "{expected}: {}", said(bytes));
        }
        assert!(said(b"").contains("empty"));
        // What may be a broken safetensors file is called that.
        for broken in [
            &b"\x08\0\0\0\xff\0\0\0{\"a\": 1}"[..],
            b"\x40\0\0\0\0\0\0\0\0\x01\x02",
            b"\x40\0\0\0\0\0\0\0{\"a\":",
        ] {
            assert!(said(broken).contains("safetensors"), "{}", said(broken));
        }
    }

    const CORE_ML_WEIGHTS: [u8; 72] = {
        let mut head = [0; 72];
        (head[0], head[4], head[64], head[65], head[66], head[67]) = (2, 2, 0xef, 0xbe, 0xad, 0xde);
        head
    };

    #[test]
    fn names_tell_parts() {
        for part in [
            "model.safetensors.part-ab",
            "m.gguf.part1of2",
            "m.part1",
            "m.gguf-split-a",
            "m.gguf.split_02",
            "m.safetensors.001",
            "m.bin.aa",
        ] {
            assert!(super::is_part(part), "{part}");
        }
        for whole in
            ["m.safetensors", "partial.bin", "m.001", "model-00001-of-00002.bin", "m.apart"]
        {
            assert!(!super::is_part(whole), "{whole}");
        }
    }
}
