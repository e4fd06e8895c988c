//! Files that people have in place of a model: the error says what the file is and what to do, instead of what safetensors
//! has in its place.

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
        // GGML, GGMF and GGJT as little-endian numbers.
        matches: |head| {
            matches!(
                head,
                [b'l' | b'f', b'm', b'g', b'g', ..] | [b't', b'j', b'g', b'g', ..]
            )
        },
        name: "GGML",
        advice: "this is a file of llama.cpp from before GGUF; convert it with a version of that time",
    },
];

/// Bytes that are looked at.
const HEAD: usize = 512;

/// Reads a file of no known container: as safetensors, so that the error says what is wrong with it, unless it is known what
/// the file is.
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
        let rows: [(&[u8], &str); 13] = [
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
