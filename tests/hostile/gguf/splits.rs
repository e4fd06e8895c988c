//! Models in several GGUF files whose parts do not fit together.

use anamnesis::{AnamnesisError, Result, parse, parse_bytes};

use super::empty;
use crate::common::gguf::{Gguf, string};
use crate::common::verdict::{Kind, Limit, Parse, Unsupported, verdict, verdict_of};

/// Part `no` of `count` of a split model, with these tensors.
fn part(no: u16, count: u16, total: i32, tensors: &[&str]) -> Gguf {
    let file =
        empty()
            .key("split.no", 2, &no.to_le_bytes())
            .key("split.count", 2, &count.to_le_bytes());
    let file = file.key("split.tensors.count", 5, &total.to_le_bytes());
    tensors
        .iter()
        .fold(file, |file, name| file.tensor(name, 0, &[3], &[0; 12]))
}

/// Names and contents of the files of a directory.
type Files<'a> = &'a [(&'a str, &'a Gguf)];

/// Parses the first of `files`, with the others beside it, and returns the number of tensors.
fn open(files: Files<'_>) -> Result<usize> {
    let directory = crate::common::tempdir().unwrap();
    files
        .iter()
        .for_each(|(name, file)| std::fs::write(directory.path().join(name), file.file()).unwrap());
    parse(directory.path().join(files[0].0)).map(|model| model.tensors().len())
}

#[test]
fn splits() {
    const A: &str = "m-00001-of-00003.gguf";
    const B: &str = "m-00002-of-00003.gguf";
    const C: &str = "m-00003-of-00003.gguf";
    let [a, b, c] = [(0, "X"), (1, "Y"), (2, "Z")].map(|(no, name)| part(no, 3, 3, &[name]));
    let (four, unnumbered) = (part(1, 4, 3, &["Y"]), empty().tensor("Y", 0, &[3], &[0; 12]));
    let (again, more) = (part(2, 3, 3, &["X"]), part(2, 3, 3, &["Z", "W"]));
    let odd =
        |key: &str, kind, value: &[u8]| empty().key(key, kind, value).tensor("X", 0, &[1], &[0; 4]);
    let (text, negative) = (odd("split.count", 8, &string("3")), odd("split.no", 5, &[255; 4]));
    let (many, cut) = (odd("split.count", 4, &[0, 0, 1, 0]), odd("k", 8, &[255; 8]));
    let two = part(0, 2, 3, &["X"]);
    assert_eq!(open(&[(A, &a), (B, &b), (C, &c)]).unwrap(), 3);
    let rows: [(&str, Files<'_>, Kind, &[&str]); 15] = [
        ("a foreign part", &[(A, &a), (B, &c), (C, &c)], Parse, &[B, "split.no is 2"]),
        ("a part of another set", &[(A, &a), (B, &four), (C, &c)], Parse, &[B, "split.count 4"]),
        ("a part that is none", &[(A, &a), (B, &unnumbered), (C, &c)], Parse, &[B, "split.no"]),
        ("a part twice", &[(A, &a), (B, &b), (C, &b)], Parse, &[C, "split.no is 1"]),
        ("the first part twice", &[(A, &a), (B, &a), (C, &c)], Parse, &[B, "split.no is 0"]),
        ("a tensor twice", &[(A, &a), (B, &b), (C, &again)], Parse, &["`X`", "two parts"]),
        ("a tensor too many", &[(A, &a), (B, &b), (C, &more)], Parse, &["3 tensors", "have 4"]),
        (
            "the first renamed",
            &[("model.gguf", &a), (B, &b), (C, &c)],
            Parse,
            &["model.gguf", "-00001-of-00003.gguf"],
        ),
        (
            "the first of two",
            &[("m-00001-of-00002.gguf", &a), (B, &b), (C, &c)],
            Parse,
            &["-00001-of-00003.gguf"],
        ),
        (
            "fewer than the name says",
            &[(A, &two), (B, &b), (C, &c)],
            Parse,
            &[A, "-00001-of-00002.gguf"],
        ),
        ("not the first", &[(B, &b), (A, &a), (C, &c)], Unsupported, &["part 2 of 3", A]),
        ("a broken part", &[(A, &a), (B, &cut), (C, &c)], Limit, &[B]),
        ("count that is text", &[(A, &text)], Parse, &["split.count", "string"]),
        ("negative number", &[(A, &negative)], Parse, &["split.no"]),
        ("more than anyone has", &[(A, &many)], Limit, &["65536 files"]),
    ];
    let wrong = |(what, files, kind, words)| {
        verdict_of(|| open(files), kind, words).map(|w| format!("\n{what}: {w}"))
    };
    let failures: String = rows.into_iter().filter_map(wrong).collect();
    assert!(failures.is_empty(), "{failures}");
    assert_eq!(verdict(parse_bytes(a.file()), Unsupported, &["part 1 of 3", "memory"]), None);
    let missing = open(&[(A, &a), (C, &c)]).unwrap_err();
    assert!(
        matches!(missing, AnamnesisError::Io(_)) && missing.to_string().contains(B),
        "{missing}"
    );
}
