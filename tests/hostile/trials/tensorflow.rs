//! Checkpoints of TensorFlow that are malformed or hostile.

use super::message::{bytes, number, varint};
use super::{edit_count, recover_everything};
use crate::common::ocdbt::crc32c;
use crate::common::{Random, data, tempdir};
use crate::trials::Trial;

/// CRC-32C as LevelDB stores it.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A block of entries, each with what it shares with the one before, its own part of the key, and its
/// value.
fn block(entries: &[(u64, Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let entries = entries.iter().flat_map(|(shared, key, value)| {
        let sizes = [*shared, key.len() as u64, value.len() as u64]
            .map(varint)
            .concat();
        [&sizes[..], key, value].concat()
    });
    let mut out: Vec<u8> = entries.collect();
    out.extend([0, 0, 0, 0, 1, 0, 0, 0, 0]);
    let sum = checksum(&out);
    out.extend(sum.to_le_bytes());
    out
}

/// An index with one block of entries.
fn table(entries: &[(u64, Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let place = |at: usize, block: &[u8]| [at, block.len() - 5].map(|n| varint(n as u64)).concat();
    let (mut out, empty) = (block(entries), block(&[]));
    let index = block(&[(0, b"~".to_vec(), place(0, &out))]);
    let places = [place(out.len(), &empty), place(out.len() + empty.len(), &index)];
    let mut footer = places.concat();
    out.extend([empty, index].concat());
    footer.resize(40, 0);
    out.extend(footer);
    out.extend(b"\x57\xfb\x80\x8b\x24\x75\x47\xdb");
    out
}

fn header(shards: u64) -> (u64, Vec<u8>, Vec<u8>) {
    (0, vec![], number(1, shards))
}

fn shape(dims: &[u64]) -> Vec<u8> {
    bytes(
        2,
        dims.iter()
            .flat_map(|&dim| bytes(2, number(1, dim)))
            .collect::<Vec<u8>>(),
    )
}

fn variable(dims: &[u64], offset: u64, size: u64) -> Vec<u8> {
    [number(1, 1), shape(dims), number(4, offset), number(5, size)].concat()
}

#[test]
fn indexes() {
    let mut trial = Trial::new();
    let place = tempdir().unwrap();
    let index = place.path().join("m.index");
    std::fs::write(place.path().join("m.data-00000-of-00001"), [7; 64]).unwrap();
    let mut read = |what: &str, bytes: &[u8]| {
        std::fs::write(&index, bytes).unwrap();
        let result = trial.measure(what, bytes.len(), || {
            anamnesis::parse(&index).and_then(|model| recover_everything(&model, None))
        });
        match result {
            Some(Ok(_)) => String::new(),
            Some(Err(error)) => error.to_string(),
            None => "panic".to_owned(),
        }
    };
    let one = |value: Vec<u8>| table(&[header(1), (0, b"w".to_vec(), value)]);
    let slice =
        |start: u64, len: u64| bytes(7, bytes(1, [number(1, start), number(2, len)].concat()));
    let sliced = |slices: &[Vec<u8>]| one([number(1, 1), shape(&[4]), slices.concat()].concat());
    let long = |n: usize| -> Vec<_> {
        let first = (0, vec![b'a'; 16_000], variable(&[0], 0, 0));
        let rest =
            (0..n).map(|i| (16_000, (i as u32).to_be_bytes().to_vec(), variable(&[0], 0, 0)));
        [header(1), first].into_iter().chain(rest).collect()
    };
    let rows: Vec<(&str, Vec<u8>, &str)> = vec![
        ("a variable", one(variable(&[4], 48, 16)), ""),
        ("no values", one(variable(&[0, 4], 1 << 40, 0)), ""),
        ("no variables", table(&[header(1)]), ""),
        ("no header", table(&[(0, b"w".to_vec(), variable(&[4], 0, 16))]), "no header"),
        ("data past the end", one(variable(&[4], 49, 16)), "of a file of 64"),
        ("an offset of 2^64", one(variable(&[4], u64::MAX, 16)), "of a file of 64"),
        ("a size too small", one(variable(&[4], 0, 8)), "type and shape need 16"),
        ("a dimension of -1", one(variable(&[u64::MAX], 0, 8)), "negative"),
        ("a size that overflows", one(variable(&[1 << 40, 1 << 40], 0, 8)), "overflow"),
        ("a file too many", table(&[header(2)]), "is missing"),
        ("2^40 files", table(&[header(1 << 40)]), "files of data"),
        (
            "big-endian",
            table(&[(0, vec![], [number(1, 1), number(2, 1)].concat())]),
            "most significant",
        ),
        (
            "a shard that is not there",
            one([variable(&[4], 0, 16), number(3, 1)].concat()),
            "not there",
        ),
        (
            "keys that descend",
            table(&[
                header(1),
                (0, b"b".to_vec(), variable(&[1], 0, 4)),
                (0, b"a".to_vec(), variable(&[1], 0, 4)),
            ]),
            "ascend",
        ),
        (
            "a key that shares too much",
            table(&[header(1), (5, b"b".to_vec(), vec![])]),
            "malformed",
        ),
        ("a part that is missing", sliced(&[slice(0, 4)]), "is missing"),
        ("a part twice", sliced(&[slice(0, 4), slice(0, 4)]), "twice"),
        (
            "a name that is no UTF-8",
            table(&[header(1), (0, vec![0xff], variable(&[1], 0, 4))]),
            "UTF-8",
        ),
        ("long names", table(&long(20_000)), "MAX_TABLE_BYTES"),
    ];
    let wrong: Vec<String> = rows
        .iter()
        .map(|(what, bytes, word)| (what, read(what, bytes), word))
        .filter(|(_, error, word)| !error.contains(*word) || error.is_empty() != word.is_empty())
        .map(|(what, error, _)| format!("{what}: {error}"))
        .collect();
    wrong.iter().for_each(|wrong| trial.fail("an index", wrong));
    trial.end();
}

/// Entries of real indexes with changed bytes, and with the checksums that these need.
#[test]
fn edits() {
    let mut trial = Trial::new();
    let files = ["parts/model.ckpt.index", "types/types.index", "shards/two.index"];
    let files = files.map(|file| data().join("tensorflow").join(file));
    let (mut random, mut good) = (Random(29), 0);
    let count = edit_count([150, 1000, 4000]);
    let places: Vec<_> = files
        .iter()
        .map(|file| {
            let place = tempdir().unwrap();
            for entry in std::fs::read_dir(file.parent().unwrap()).unwrap() {
                let path = entry.unwrap().path();
                std::fs::copy(&path, place.path().join(path.file_name().unwrap())).unwrap();
            }
            (std::fs::read(file).unwrap(), place.path().join(file.file_name().unwrap()), place)
        })
        .collect();
    for i in 0..count {
        let (bytes, index, _) = &places[i % places.len()];
        let mut bytes = bytes.clone();
        // The first block is all of these; behind it come its kind and checksum, and two short blocks.
        let end = bytes.len() - 48 - 13 - 5 - place_len(&bytes);
        for _ in 0..1 + i % 2 {
            let at = (random.next() >> 20) as usize % (end - 5);
            bytes[at] ^= 1 << ((random.next() >> 20) % 8);
        }
        let sum = checksum(&bytes[..end - 4]);
        bytes[end - 4..end].copy_from_slice(&sum.to_le_bytes());
        std::fs::write(index, &bytes).unwrap();
        let result = trial.measure("an edit", bytes.len(), || {
            anamnesis::parse(index).and_then(|model| recover_everything(&model, None))
        });
        let is_mended =
            !matches!(&result, Some(Err(error)) if error.to_string().contains("checksum"));
        if !is_mended {
            trial.fail("an edit", "its checksum is wrong");
        }
        good += usize::from(matches!(result, Some(Ok(_))));
    }
    trial.count_edits(count, good, 50);
    trial.end();
}

/// Bytes of the block that lists the blocks, and of the empty one before it but for its ends.
fn place_len(bytes: &[u8]) -> usize {
    let footer = &bytes[bytes.len() - 48..];
    let mut numbers = Vec::new();
    let mut n = 0u64;
    let mut shift = 0;
    for byte in footer {
        n |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            numbers.push(n as usize);
            (n, shift) = (0, 0);
        }
        if numbers.len() == 4 {
            break;
        }
    }
    // Of the empty block, its content is 8 bytes, which 13 counts with its end.
    assert_eq!(numbers[1], 8);
    numbers[3]
}
