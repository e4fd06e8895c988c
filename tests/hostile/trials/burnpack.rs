//! Burnpack files that are malformed or hostile.

use crate::common::data;
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::trials::Trial;

fn head(kind: u8, n: u64) -> Vec<u8> {
    [&[kind << 5 | 27][..], &n.to_be_bytes()].concat()
}

fn text(text: &str) -> Vec<u8> {
    [head(3, text.len() as u64), text.into()].concat()
}

fn list(items: &[u64]) -> Vec<u8> {
    let items_of: Vec<u8> = items.iter().flat_map(|&n| head(0, n)).collect();
    [head(4, items.len() as u64), items_of].concat()
}

fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let entries_of = entries
        .iter()
        .flat_map(|(key, value)| [text(key), value.clone()].concat());
    [head(5, entries.len() as u64), entries_of.collect()].concat()
}

/// A file of this description, with 512 bytes of data.
fn file(description: &[u8]) -> Vec<u8> {
    let len = (description.len() as u32).to_le_bytes();
    let mut file = [b"NRUB\x01\x00", &len[..], description].concat();
    file.resize(file.len().next_multiple_of(256) + 512, 7);
    file
}

fn tensor(dtype: Vec<u8>, shape: &[u64], place: [u64; 2]) -> Vec<u8> {
    map(&[("dtype", dtype), ("shape", list(shape)), ("data_offsets", list(&place))])
}

fn tensors(tensors: &[(&str, Vec<u8>)]) -> Vec<u8> {
    file(&map(&[("tensors", map(tensors))]))
}

fn one(tensor: Vec<u8>) -> Vec<u8> {
    tensors(&[("w", tensor)])
}

#[test]
fn descriptions() {
    let mut trial = Trial::new();
    let f32 = || text("F32");
    let w = || tensor(f32(), &[4], [0, 16]);
    let sized = |shape: &[u64], place| one(tensor(f32(), shape, place));
    trial.fine(vec![
        ("a tensor", one(w())),
        ("64 dimensions", one(tensor(text("I8"), &[1; 64], [0, 1]))),
        ("the last bytes", one(tensor(f32(), &[4], [496, 512]))),
        ("two in another order", tensors(&[("a", tensor(f32(), &[4], [16, 32])), ("b", w())])),
        (
            "others beside them",
            file(&map(&[("metadata", map(&[("a", text("b"))])), ("tensors", map(&[("w", w())]))])),
        ),
    ]);
    let more = |key: &str, value: Vec<u8>| {
        let entries = [
            ("dtype", f32()),
            ("shape", list(&[4])),
            ("data_offsets", list(&[0, 16])),
            (key, value),
        ];
        one(map(&entries))
    };
    let with = |version: u8| {
        let mut file = one(w());
        file[4] = version;
        file
    };
    trial.refused(vec![
        ("another version", with(2), Unsupported, &["version 2"]),
        ("no tensors", tensors(&[]), Parse, &["no tensors"]),
        ("65 dimensions", one(tensor(text("I8"), &[1; 65], [0, 1])), Limit, &["dimensions"]),
        ("sizes that overflow", sized(&[1 << 40, 1 << 40], [0, 16]), Parse, &["`w`", "0 to 16"]),
        ("zero and 2^120", sized(&[0, 1 << 60, 1 << 60], [0, 0]), Parse, &["`w`"]),
        ("five numbers", sized(&[5], [0, 16]), Parse, &["`w`", "0 to 16"]),
        ("an end before its beginning", sized(&[4], [32, 16]), Parse, &["`w`"]),
        ("data behind the end", sized(&[4], [500, 516]), Parse, &["`w`", "end of the file"]),
        ("an offset that overflows", sized(&[4], [u64::MAX - 16, u64::MAX]), Parse, &["`w`"]),
        ("data of two", tensors(&[("w", w()), ("v", w())]), Parse, &["also those of"]),
        ("two of a name", tensors(&[("w", w()), ("w", w())]), Parse, &["two tensors", "`w`"]),
        ("a dtype twice", more("dtype", f32()), Parse, &["`w`", "twice"]),
        ("something unknown", more("codes", list(&[1])), Parse, &["`w`", "codes"]),
        ("no shape", one(map(&[("dtype", f32())])), Parse, &["`w`", "missing"]),
        ("an unknown dtype", one(tensor(text("F7"), &[4], [0, 16])), Unsupported, &["`w`", "F7"]),
        (
            "tensors twice",
            file(&map(&[("tensors", map(&[])), ("tensors", map(&[]))])),
            Parse,
            &["twice"],
        ),
        (
            "data behind it",
            file(&[map(&[("tensors", map(&[("w", w())]))]), vec![0]].concat()),
            Parse,
            &["behind"],
        ),
        ("2^40 keys", file(&head(5, 1 << 40)), Parse, &["longer"]),
        ("a long text", file(&map(&[("tensors", head(3, 1 << 20))])), Parse, &["longer"]),
        ("no definite length", file(&[0xbf, 0xff]), Parse, &["definite"]),
        ("a tag", file(&[0xc1, 0]), Parse, &["tag"]),
        ("deep lists", file(&map(&[("metadata", [0x81; 100].to_vec())])), Limit, &["inside"]),
        ("no text", file(&[0xa1, 0x61, 0xff, 0]), Parse, &["UTF-8"]),
    ]);
    let long = tensors(&[(&"n".repeat(70_000), w())]);
    trial.refused(vec![("a long name", long, Limit, &["bytes of a text"])]);
    trial.end();
}

#[test]
fn truncated_and_changed() {
    let mut trial = Trial::new();
    let golden = |name: &str| std::fs::read(data().join("burnpack").join(name)).unwrap();
    let files = ["module.bpk", "types.bpk"].map(golden);
    trial.truncations("a module", &files[0]);
    trial.mutations(&files, 23);
    trial.end();
}
