//! GGUF headers read from streams: few reads, and none behind the header.

use std::io::{BufReader, Read, Seek, SeekFrom};

use anamnesis::{AnamnesisError, parse_gguf_front_matter_from_reader as front_matter};

use crate::common::gguf::{Gguf, string};
use crate::common::{Random, f32s};

/// A stream that counts its reads and cannot seek.
struct Stream<'a> {
    bytes: &'a [u8],
    reads: usize,
    /// The error for a read behind the last byte.
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

/// A header without padding: it ends with its last entry.
fn unpadded() -> Gguf {
    let mut file = Gguf::default();
    file.alignment = 1;
    file
}

/// The header of a model with a large vocabulary, without padding.
fn vocabulary() -> Vec<u8> {
    let array = |kind: u32, n: u64, items: Vec<u8>| {
        [&kind.to_le_bytes(), &n.to_le_bytes()[..], &items].concat()
    };
    let mut random = Random(3);
    let mut words = |n: u64| {
        let word =
            |_| string(&format!("{:01$x}", random.next() >> 32, 8 + random.next() as usize % 20));
        array(8, n, (0..n).flat_map(word).collect())
    };
    let (tokens, merges) = (words(200_000), words(280_000));
    let (scores, types) =
        (array(6, 200_000, f32s(&random.floats(200_000))), array(5, 200_000, vec![1; 800_000]));
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
        file.tensor_at(&format!("blk.{i}.weight"), 12, &[4096, 64], i * 147_456, &[])
    };
    (0..300).fold(file, add).header()
}

#[test]
fn large_headers_are_read_in_few_reads() {
    let header = vocabulary();
    assert!(header.len() > 12 << 20, "{}", header.len());
    let file = [&header[..], &[0; 1 << 20]].concat();
    let mut stream = Stream { bytes: &file, reads: 0, behind: None };
    let front = front_matter(BufReader::with_capacity(1 << 20, &mut stream)).unwrap();
    let tokens = front.metadata["tokenizer.ggml.tokens"]
        .as_array()
        .unwrap()
        .as_string_slice()
        .unwrap();
    assert_eq!((tokens.len(), front.tensor_infos.len(), front.metadata.len()), (200_000, 300, 6));
    assert!(stream.reads <= 25, "{}", stream.reads);
    let mut stream = Stream { bytes: &file, reads: 0, behind: None };
    front_matter(BufReader::with_capacity(64 << 10, &mut stream)).unwrap();
    assert!(stream.reads <= 29, "{}", stream.reads);
    assert_eq!(front.tensor_infos[299].data_offset, header.len() as u64 + 299 * 147_456);
}

/// No byte after the header is read, even if the header is empty.
#[test]
fn nothing_after_the_header_is_read() {
    let one = unpadded().key("general.alignment", 4, &[1, 0, 0, 0]);
    let nested =
        [9u32.to_le_bytes().to_vec(), 2u64.to_le_bytes().to_vec(), [[0; 12]; 2].concat()].concat();
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
        let mut stream = Stream { bytes: &header, reads: 0, behind: Some("behind the header") };
        failures.extend(
            front_matter(&mut stream)
                .err()
                .map(|e| format!("\n{what}: {e}")),
        );
        // An I/O error of the reader is quoted.
        for end in [0, 4, header.len() / 2, header.len() - 1] {
            let mut stream =
                Stream { bytes: &header[..end], reads: 0, behind: Some("budget exceeded") };
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
