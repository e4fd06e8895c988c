//! Files of ggml from before GGUF that are malformed, ambiguous or hostile.

use crate::common::data;
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::trials::Trial;

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

fn text(text: &[u8]) -> Vec<u8> {
    [&words(&[text.len() as u32]), text].concat()
}

/// A tensor of F32 by default; `sizes` are the innermost first.
fn tensor(kind: u32, name: &str, sizes: &[u32], bytes: usize) -> Vec<u8> {
    let head = words(&[sizes.len() as u32, name.len() as u32, kind]);
    [head, words(sizes), name.into(), vec![7; bytes]].concat()
}

const EMBEDDING: &str = "tok_embeddings.weight";

/// The numbers of llama.cpp, with `ftype`, and two tokens.
fn header(ftype: u32) -> Vec<u8> {
    [words(&[2, 32, 1, 1, 1, 8, ftype]), text(b"a"), text(b"")].concat()
}

/// A file of llama.cpp without a version.
fn llama(ftype: u32, tensors: &[Vec<u8>]) -> Vec<u8> {
    [&b"lmgg"[..], &header(ftype), &tensors.concat()].concat()
}

fn embedding(kind: u32, bytes: usize) -> Vec<u8> {
    tensor(kind, EMBEDDING, &[32, 2], bytes)
}

/// A file of whisper.cpp that detects voices.
fn voices(layers: u32) -> Vec<u8> {
    let layer = words(&[1, 1, 3].repeat(2));
    let numbers = [words(&[6, 2, 0, 512, 64, layers]), layer, words(&[2, 128, 2, 1])].concat();
    let gates = tensor(0, "_model.decoder.rnn.weight_ih", &[2, 512], 4096);
    [b"lmgg".to_vec(), text(b"silero-16k"), numbers, gates].concat()
}

#[test]
fn headers() {
    let mut trial = Trial::new();
    let with = |more: Vec<u8>| llama(0, &[embedding(0, 256), more]);
    trial.fine(vec![
        ("a file of llama.cpp", with(vec![])),
        ("a number", with(tensor(0, "n", &[], 4))),
        ("nothing", with(tensor(0, "n", &[0, 3], 0))),
        ("blocks of today", llama(2002, &[embedding(2, 36)])),
        ("blocks that stayed", llama(1008, &[embedding(6, 44)])),
        ("voices", voices(2)),
    ]);
    let scored = [&words(&[2, 32, 1, 1, 1, 8, 0])[..], &[0; 16]].concat();
    let versioned =
        |magic: &[u8], n: u32| [magic, &words(&[n]), &scored, &embedding(0, 256)].concat();
    trial.fine(vec![("GGMF", versioned(b"fmgg", 1))]);
    trial.refused(vec![
        ("another version", versioned(b"fmgg", 100), Unsupported, &["GGMF version 100"]),
        ("a later version", versioned(b"tjgg", 4), Unsupported, &["GGJT version 4"]),
        ("no tensors", llama(0, &[]), Parse, &["no tensors"]),
        ("no embedding", llama(0, &[tensor(0, "w", &[1], 4)]), Parse, &["not there"]),
        ("old blocks", llama(2, &[embedding(2, 40)]), Unsupported, &[EMBEDDING, "March 2023"]),
        ("others", llama(1003, &[embedding(3, 48)]), Unsupported, &[EMBEDDING, "March 2023"]),
        ("removed blocks", llama(5, &[embedding(4, 40)]), Unsupported, &[EMBEDDING, "removed"]),
        ("later blocks", llama(3002, &[embedding(2, 36)]), Unsupported, &["ftype 3002"]),
        ("an unknown type", with(tensor(20, "w", &[32], 18)), Unsupported, &["`w`", "type 20"]),
        ("part of a row", with(tensor(2, "w", &[33], 20)), Parse, &["`w`", "[33]"]),
        (
            "part of a block",
            llama(2002, &[embedding(0, 256), tensor(2, "w", &[33], 20)]),
            Parse,
            &["`w`"],
        ),
        ("two of a name", with(embedding(0, 256)), Parse, &["two tensors", EMBEDDING]),
        ("five sizes", with(tensor(0, "w", &[1; 5], 4)), Parse, &["5 sizes"]),
        ("sizes that overflow", with(tensor(0, "w", &[u32::MAX; 4], 4)), Parse, &["`w`"]),
        ("much data", with(tensor(0, "w", &[u32::MAX], 4)), Parse, &["`w`", "truncated"]),
        ("data behind it", with(vec![0; 3]), Parse, &["truncated"]),
        (
            "no text",
            with(
                tensor(0, "w", &[1], 4)
                    .iter()
                    .map(|b| if *b == b'w' { 0xff } else { *b })
                    .collect(),
            ),
            Parse,
            &["UTF-8"],
        ),
        (
            "another size",
            llama(0, &[tensor(0, EMBEDDING, &[33, 2], 264)]),
            Parse,
            &["[2, 33]", "[2, 32]"],
        ),
        (
            "a part of a model",
            llama(0, &[tensor(0, EMBEDDING, &[16, 2], 128)]),
            Unsupported,
            &["part of a model"],
        ),
        (
            "many tokens",
            [b"lmgg", &words(&[u32::MAX; 7])[..], &[1; 64]].concat(),
            Parse,
            &["truncated"],
        ),
        ("many layers", voices(u32::MAX), Parse, &["truncated"]),
    ]);
    let long = with(tensor(0, &"n".repeat(70_000), &[1], 4));
    trial.refused(vec![("a long name", long, Limit, &["bytes of a name"])]);
    trial.end();
}

#[test]
fn truncated_and_changed() {
    let mut trial = Trial::new();
    let cases = [
        "ggjt_f16",
        "ggml_f16",
        "ggjt3_q5_1",
        "whisper_q5_1",
        "parakeet",
        "ggjt1_q4_3",
        "ggjt2_q4_1",
    ];
    let files = cases
        .map(|case| std::fs::read(data().join("ggml_bin").join(case).join("model.bin")).unwrap());
    trial.mutations(&files, 31);
    // A file that is cut behind a tensor is one of fewer tensors.
    trial.truncations("one tensor", &llama(2002, &[embedding(2, 36)]));
    trial.end();
}
