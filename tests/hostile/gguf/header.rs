//! Headers of GGUF files that are malformed: counts, versions, keys and alignments.

use anamnesis::parse_bytes;

use super::{array, check, counts, empty, key};
use crate::common::gguf::string;
use crate::common::verdict::{Limit, Parse, Unsupported};

#[test]
fn counts_and_versions() {
    let version = |bytes: [u8; 4]| [&b"GGUF"[..], &bytes, &[0; 64]].concat();
    check(vec![
        ("version 0", version([0; 4]), Unsupported, &["version 0"]),
        ("version 4", version([4, 0, 0, 0]), Unsupported, &["version 4"]),
        ("version 4, big-endian", version([0, 0, 0, 4]), Unsupported, &["version 4"]),
        ("version 259", version([3, 1, 0, 0]), Unsupported, &["version 259"]),
        ("version 3 in the middle", version([0, 0, 3, 0]), Unsupported, &["version 768"]),
        ("all tensors", counts(u64::MAX, 0, &[]), Limit, &["18446744073709551615 tensors"]),
        ("all keys", counts(0, u64::MAX, &[]), Limit, &["18446744073709551615", "keys"]),
        ("too many tensors", counts(1_000_001, 0, &[]), Limit, &["1000001 tensors"]),
        ("too many keys", counts(0, 1_000_001, &[]), Limit, &["1000001", "keys"]),
        (
            "many tensors that are not there",
            counts(1_000_000, 0, &[0; 999]),
            Limit,
            &["MAX_TABLE_BYTES"],
        ),
        (
            "many keys that are not there",
            counts(0, 1_000_000, &string("k")),
            Limit,
            &["MAX_TABLE_BYTES"],
        ),
        (
            "as many in version 1",
            [&b"GGUF\x01\0\0\0"[..], &[255; 8]].concat(),
            Limit,
            &["4294967295 tensors"],
        ),
    ]);
}

#[test]
fn keys() {
    let twice = || empty().text("k", "a").key("k", 4, &[0; 4]).file();
    let name =
        |len: u64, bytes: &[u8]| counts(0, 1, &[&len.to_le_bytes(), bytes, &[0; 64]].concat());
    let text = |len: u64| key(8, &len.to_le_bytes());
    let strings = |len: u64| array(1, 8, 2, &[string("a"), len.to_le_bytes().to_vec()].concat());
    check(vec![
        ("twice", twice(), Parse, &["`k`", "twice"]),
        ("empty", empty().text("", "a").file(), Parse, &["key is empty"]),
        ("not UTF-8", name(3, b"a\xffb"), Parse, &["a\u{fffd}b", "UTF-8"]),
        (
            "control characters",
            empty().text("k\x1b", "a").text("k\x1b", "a").file(),
            Parse,
            &["`k\\u{1b}`"],
        ),
        ("name of any length", name(u64::MAX, &[]), Limit, &["18446744073709551615"]),
        ("long name", name(65_536, &[b'k'; 65_536]), Limit, &["65536"]),
        ("name behind the end", name(60_000, &[]), Parse, &["truncated"]),
        ("text of any length", text(u64::MAX), Limit, &["`k`", "18446744073709551615"]),
        ("long text", text((16 << 20) + 1), Limit, &["`k`", "16777217"]),
        ("text behind the end", text(16 << 20), Parse, &["`k`"]),
        ("element of any length", strings(u64::MAX), Limit, &["`k`", "18446744073709551615"]),
        ("element behind the end", strings(100), Parse, &["`k`"]),
        ("type 13", key(13, &[0; 64]), Parse, &["`k`", "type 13"]),
        ("type of any number", key(u32::MAX, &[0; 64]), Parse, &["`k`", "type 4294967295"]),
        ("array of type 13", array(1, 13, 0, &[]), Parse, &["`k`", "type 13"]),
        ("nested array of type 13", array(3, 13, 2, &[0; 64]), Parse, &["`k`", "type 13"]),
        (
            "array of any length",
            array(1, 0, u64::MAX, &[0; 64]),
            Limit,
            &["`k`", "18446744073709551615"],
        ),
        (
            "array of any number of strings",
            array(1, 8, u64::MAX, &[0; 64]),
            Limit,
            &["`k`", "18446744073709551615"],
        ),
        (
            "array of any number of arrays",
            array(1, 9, u64::MAX, &[0; 64]),
            Limit,
            &["`k`", "18446744073709551615"],
        ),
        ("array whose size overflows", array(1, 10, 1 << 61, &[0; 64]), Limit, &["`k`"]),
        ("nested array of any length", array(4, 12, u64::MAX, &[]), Limit, &["`k`"]),
        ("array behind the end", array(1, 12, 16_000_000, &[0; 64]), Parse, &["`k`"]),
        ("strings behind the end", array(1, 8, 16_000_000, &[0; 64]), Parse, &["`k`"]),
        ("arrays behind the end", array(3, 9, 16_000_000, &[0; 64]), Parse, &["`k`"]),
        ("five levels", array(5, 0, 1, &[0]), Limit, &["`k`", "5 levels"]),
        ("a hundred levels", array(100, 0, 1, &[0]), Limit, &["`k`", "5 levels"]),
    ]);
    parse_bytes(array(4, 0, 1, &[0])).unwrap();
    let text = parse_bytes(key(8, b"\x03\0\0\0\0\0\0\0a\xffb"))
        .unwrap()
        .gguf()
        .unwrap()
        .metadata()
        .get("k");
    assert_eq!(text.as_ref().and_then(|value| value.as_string()), Some("a\u{fffd}b"));
    parse_bytes(name(65_535, &[&[b'k'; 65_535][..], &[0; 5]].concat())).unwrap();
}

#[test]
fn alignments() {
    let with = |kind: u32, value: &[u8]| {
        empty()
            .key("general.alignment", kind, value)
            .tensor("X", 0, &[1], &[0; 4])
            .file()
    };
    let number = |n: u32| with(4, &n.to_le_bytes());
    check(vec![
        ("0", number(0), Parse, &["alignment", "0"]),
        ("3", number(3), Parse, &["alignment", "3"]),
        ("48", number(48), Parse, &["alignment", "48"]),
        ("the largest", number(u32::MAX), Parse, &["alignment", "4294967295"]),
        ("more than is padded", number(1 << 21), Limit, &["2097152"]),
        ("larger than the file", number(1 << 20), Parse, &["`X`"]),
        ("u64", with(10, &32u64.to_le_bytes()), Parse, &["general.alignment", "u64"]),
        ("i32", with(5, &32u32.to_le_bytes()), Parse, &["general.alignment", "i32"]),
        ("text", with(8, &string("32")), Parse, &["general.alignment", "string"]),
        (
            "array",
            with(9, &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Parse,
            &["general.alignment", "array"],
        ),
        (
            "between multiples",
            empty().tensor_at("X", 0, &[1], 36, &[0; 40]).file(),
            Parse,
            &["`X`", "36"],
        ),
    ]);
}
