//! Files that people have in place of a model: the error says what the file is and what to do,
//! instead of what safetensors has in its place.

use std::path::Path;

use super::safetensors;
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, ParsedModel, Result};

/// A kind of file that is no model, or none that is read.
struct OtherFile {
    /// Whether a file with these first bytes is one.
    matches: fn(&[u8]) -> bool,
    name: &'static str,
    /// What the user can do.
    advice: &'static str,
}

/// What tells JSON text that is an index of shards.
const INDEX_KEY: &[u8] = b"\"weight_map\"";

const BURN: &str = "models of Burn are not read; `SafetensorsStore` of burn-store saves a module as safetensors, which are";

const OTHER_FILES: &[OtherFile] = &[
    OtherFile {
        matches: |head| head.starts_with(b"version https://git-lfs"),
        name: "Git LFS pointer",
        advice: "it stands for the file, which `git lfs pull` fetches",
    },
    OtherFile {
        matches: |head| {
            let begins = |tag: &[u8]| {
                head.get(..tag.len())
                    .is_some_and(|b| b.eq_ignore_ascii_case(tag))
            };
            begins(b"<!doctype html") || begins(b"<html")
        },
        name: "HTML page",
        advice: "the server has sent a page in place of the file; download it again",
    },
    OtherFile {
        matches: |head| {
            head.starts_with(b"{") && head.windows(INDEX_KEY.len()).any(|at| at == INDEX_KEY)
        },
        name: "index of shards",
        advice: "give the directory that it is in",
    },
    OtherFile {
        matches: |head| head.starts_with(b"{"),
        name: "JSON text",
        advice: "give the file of weights, or the directory",
    },
    OtherFile {
        matches: |head| head.starts_with(&[0x1f, 0x8b]),
        name: "gzip archive",
        advice: "unpack it first",
    },
    OtherFile {
        matches: |head| head.starts_with(b"7z\xbc\xaf\x27\x1c"),
        name: "7-Zip archive",
        advice: "unpack it first",
    },
    OtherFile {
        matches: |head| head.starts_with(b"\xfd7zXZ\0") || head.starts_with(b"BZh"),
        name: "xz or bzip2 archive",
        advice: "unpack it first",
    },
    OtherFile {
        matches: |head| head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]),
        name: "Zstandard archive",
        advice: "unpack it first",
    },
    OtherFile {
        matches: |head| head.starts_with(b"\x89HDF\r\n\x1a\n"),
        name: "HDF5",
        advice: "Keras and TensorFlow models are not read",
    },
    OtherFile {
        matches: |head| head.get(4..8) == Some(b"TFL3"),
        name: "TensorFlow Lite",
        advice: "its models are not read",
    },
    OtherFile {
        // The version of the format and its description, which begins with an input: a message
        // whose first field is a name.
        matches: |head| {
            let input = message(head, [0x08, 0x12]).and_then(|inner| message(inner, []));
            input.is_some_and(|input| input.first() == Some(&NAME))
        },
        name: "Core ML",
        advice: "its models are not read",
    },
    OtherFile {
        // The version of the format and a graph, which begins with its description.
        matches: |head| {
            let info = message(head, [0x08, 0x12]).and_then(|inner| message(inner, []));
            info.is_some()
        },
        name: "TensorFlow SavedModel",
        advice: "its models are not read",
    },
    OtherFile {
        // A graph of nodes, each of which begins with its name and the name of its operation.
        matches: |head| {
            let name = message(head, []).filter(|node| node.first() == Some(&NAME));
            let after = name.and_then(|node| node.get(2 + usize::from(*node.get(1)?)..));
            after.is_some_and(|after| after.first() == Some(&0x12))
        },
        name: "TensorFlow graph",
        advice: "its models are not read",
    },
    OtherFile {
        // The magic of burn-pack as a little-endian number.
        matches: |head| head.starts_with(b"NRUB"),
        name: "Burnpack",
        advice: BURN,
    },
    OtherFile {
        // `BurnRecord`: a map of `metadata`, `item` and a mark of no size.
        matches: |head| head.starts_with(b"\x83\xa8metadata"),
        name: "MessagePack, as Burn's recorders write it",
        advice: BURN,
    },
    OtherFile {
        // A map whose first key is a word.
        matches: |head| match head {
            [0x81..=0x8f, 0xa1..=0xbf, rest @ ..] | [0x81..=0x8f, 0xd9, _, rest @ ..] => {
                rest.len() > 2 && rest[..2].iter().all(u8::is_ascii_alphabetic)
            }
            _ => false,
        },
        name: "MessagePack, as Flax writes it",
        advice: "its models are not read; transformers loads them with `from_flax=True` and saves safetensors",
    },
    OtherFile {
        // The version of the format, and then the name of the program that wrote the file.
        matches: |head| {
            matches!(
                head,
                [0x08, 1..=20, 0x12, 1..=64, b'a'..=b'z' | b'A'..=b'Z', ..]
            )
        },
        name: "ONNX",
        advice: "its models are not read",
    },
    OtherFile {
        // GGML, GGMF, GGJT and GGLA as little-endian numbers.
        matches: |head| {
            let magics = [b"lmgg", b"fmgg", b"tjgg", b"algg"];
            magics.iter().any(|&magic| head.starts_with(magic))
        },
        name: "GGML",
        advice: "this is a file of whisper.cpp, or one of llama.cpp from before GGUF, which a version of that time converts; the model that it was made from is read",
    },
];

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

/// What a table of TensorFlow's checkpoints ends in, `model.ckpt.index` (`kTableMagicNumber`).
const TABLE_END: &[u8] = &[0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb];

/// Whether a file ends as the index of a checkpoint of TensorFlow does.
fn is_tensorflow_index(source: &Source) -> bool {
    let mut end = [0; TABLE_END.len()];
    let at = source
        .len()
        .and_then(|len| len.checked_sub(end.len() as u64));
    at.is_some_and(|at| source.read_at(at, &mut end).is_ok() && end == TABLE_END)
}

/// Bytes that are looked at.
const HEAD: usize = 512;

/// Reads a file of no known container: as safetensors, so that the error says what is wrong with
/// it, unless it is known what the file is.
///
/// # Errors
/// `Unsupported` with what the file is; those of the safetensors reader.
pub(super) fn read(source: Source, path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let len = source.len().unwrap_or(HEAD as u64).min(HEAD as u64);
    let mut head = vec![0; len as usize];
    if source.read_at(0, &mut head).is_ok()
        && let Some(file) = OTHER_FILES.iter().find(|file| (file.matches)(&head))
    {
        return Err(AnamnesisError::unsupported(file.name, file.advice));
    }
    if is_tensorflow_index(&source) {
        let (what, advice) = ("TensorFlow checkpoint", "its models are not read");
        return Err(AnamnesisError::unsupported(what, advice));
    }
    safetensors::read(source, path, budget)
}

#[cfg(test)]
mod tests {
    /// What is said of the bytes.
    fn said(bytes: &[u8]) -> String {
        crate::parse_bytes(bytes.to_vec()).unwrap_err().to_string()
    }

    #[test]
    fn each_kind_is_named() {
        let rows: [(&[u8], &str); 23] = [
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
            (b"\x89HDF\r\n\x1a\naaaa", "HDF5"),
            (b"\x1c\0\0\0TFL3aaaa", "TensorFlow Lite"),
            (b"\x08\x08\x12\x07pytorchaaaa", "ONNX"),
            (b"tjggaaaa", "before GGUF"),
            (b"lmgg\xa8\xca\0\0", "whisper.cpp"),
            (b"alggaaaa", "GGML"),
            // By the definitions of the formats: Model.proto of Core ML, saved_model.proto,
            // graph.proto and table/format.h of TensorFlow, and MessagePack.
            (b"\x08\x04\x12\x5b\x0a\x15\x0a\x05input\x1a\x0c", "Core ML"),
            (
                b"\x08\x09\x12\xe4\x01\x0a\x15\x0a\x05image\x1a\x0c",
                "Core ML",
            ),
            (
                b"\x08\x01\x12\xa3\xe9\x02\x0a\xb4\x3c\x12\x90\x3c\x0a\x3c\x0a\x03Add",
                "TensorFlow SavedModel",
            ),
            (
                b"\x0a\x2a\x0a\x05input\x12\x0bPlaceholder",
                "TensorFlow graph",
            ),
            (b"\x81\xa6params\x82\xa5Dense", "Flax"),
            // `MAGIC_NUMBER` of burn-pack 0.22, and `BurnRecord` of burn-core, up to 0.20.
            (b"NRUB\x01\0\x10\0\0\0\xa1gtensors", "SafetensorsStore"),
            (b"\x83\xa8metadata\x85\xa5float", "Burn's recorders"),
            (
                b"\0\0\0\0\x01\0\0\0\0\0\0\x57\xfb\x80\x8b\x24\x75\x47\xdb",
                "TensorFlow checkpoint",
            ),
        ];
        for (bytes, expected) in rows {
            assert!(
                said(bytes).contains(expected),
                "{expected}: {}",
                said(bytes)
            );
        }
        assert!(said(b"aaaaaaaaaaaa").contains("not a safetensors file"));
        assert!(said(b"").contains("safetensors"));
    }
}
