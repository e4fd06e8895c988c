//! Arrays of Zarr and databases of OCDBT that are malformed or hostile.

use std::fs;
use std::path::Path;

use super::{edit_count, recover_everything};
use crate::common::ocdbt::{MANIFEST, TREE, crc32c, leaf, manifest, node, varint, varints};
use crate::common::{Random, tempdir};
use crate::trials::Trial;

/// Reads everything of a directory; the error, or nothing.
fn read(trial: &mut Trial, what: &str, len: usize, path: &Path) -> String {
    let result = trial.measure(what, len, || {
        anamnesis::parse(path).and_then(|model| recover_everything(&model, None))
    });
    match result {
        Some(Ok(_)) => String::new(),
        Some(Err(error)) => error.to_string(),
        None => "panic".to_owned(),
    }
}

fn write(root: &Path, files: &[(&str, Vec<u8>)]) -> usize {
    for (name, bytes) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    files.iter().map(|(_, bytes)| bytes.len()).sum()
}

type Row<'a> = (&'a str, Vec<(&'a str, Vec<u8>)>, &'a str);

fn judge(rows: &[Row<'_>]) {
    let mut trial = Trial::new();
    let mut wrong = vec![];
    for (what, files, word) in rows {
        let place = tempdir().unwrap();
        let len = write(place.path(), files);
        let error = read(&mut trial, what, len, place.path());
        if !error.contains(word) || error.is_empty() != word.is_empty() {
            wrong.push(format!("{what}: {error}"));
        }
    }
    wrong
        .iter()
        .for_each(|wrong| trial.fail("a checkpoint", wrong));
    trial.end();
}

const ARRAY: &str = r#"{"zarr_format":2,"shape":[4],"chunks":[2],"dtype":"|u1","order":"C","compressor":null,"filters":null,"fill_value":0}"#;
const ARRAY3: &str = r#"{"zarr_format":3,"node_type":"array","shape":[4],"data_type":"uint8","fill_value":0,"chunk_grid":{"name":"regular","configuration":{"chunk_shape":[4]}},"chunk_key_encoding":{"name":"default"},"codecs":[{"name":"sharding_indexed","configuration":{"chunk_shape":[2],"codecs":[{"name":"bytes"}],"index_codecs":[{"name":"bytes","configuration":{"endian":"little"}},{"name":"crc32c"}]}}]}"#;

/// A shard of two chunks at these places, behind `data`.
fn shard(data: &[u8], places: &[[u64; 2]]) -> Vec<u8> {
    let index: Vec<u8> = places
        .iter()
        .flatten()
        .flat_map(|n| n.to_le_bytes())
        .collect();
    let sum = crc32c(&index).to_le_bytes();
    [data, &index, &sum].concat()
}

#[test]
fn arrays() {
    let two = |chunk: &[u8]| {
        vec![(".zarray", ARRAY.into()), ("0", chunk.to_vec()), ("1", chunk.to_vec())]
    };
    let of = |from: &str, to: &str| {
        let json = ARRAY.replace(from, to);
        assert_ne!(json, ARRAY, "{from}");
        vec![(".zarray", json.into_bytes()), ("0", b"ab".to_vec())]
    };
    let of3 = |from: &str, to: &str, chunk: Vec<u8>| {
        let json = ARRAY3.replace(from, to);
        vec![("zarr.json", json.into_bytes()), ("c/0", chunk)]
    };
    let whole = || shard(b"abcd", &[[0, 2], [2, 2]]);
    judge(&[
        ("two chunks", two(b"ab"), ""),
        ("no chunks", vec![(".zarray", ARRAY.into())], ""),
        ("a chunk that is short", two(b"a"), "chunk"),
        ("a chunk that is long", two(b"abc"), "more bytes"),
        (
            "a chunk outside",
            [two(b"ab"), vec![("2", b"ab".to_vec()), ("00", b"".to_vec())]].concat(),
            "",
        ),
        ("no JSON", vec![(".zarray", b"{".to_vec())], "EOF"),
        ("another version", of(":2,\"shape\"", ":1,\"shape\""), "zarr_format"),
        ("a chunk of nothing", of("[2]", "[0]"), "chunks of"),
        ("a negative size", of("[4]", "[-4]"), "no size"),
        ("chunks of other dimensions", of("[2]", "[2,2]"), "chunks of"),
        ("a size that overflows", of("[4]", "[18446744073709551615]"), "overflow"),
        ("2^40 elements of nothing", of("[4]", "[1099511627776]"), "max_decompressed_bytes"),
        ("chunks of 2^40", of("[2]", "[1099511627776]"), "max_decompressed_bytes"),
        ("65 dimensions", of("[4]", &format!("[{}1]", "1,".repeat(64))), "MAX_ZARR_DIMS"),
        (
            "an unknown codec",
            of("\"compressor\":null", "\"compressor\":{\"id\":\"lzma\"}"),
            "codec `lzma`",
        ),
        ("a filter", of("\"filters\":null", "\"filters\":[{\"id\":\"delta\"}]"), "filters"),
        ("an order", of("\"C\"", "\"A\""), "neither C nor F"),
        ("a fill value", of("\"fill_value\":0", "\"fill_value\":\"x\""), "fill value"),
        (
            "no zlib",
            of("\"compressor\":null", "\"compressor\":{\"id\":\"zlib\"}"),
            "compressed as it should be",
        ),
        (
            "no zstd",
            of("\"compressor\":null", "\"compressor\":{\"id\":\"zstd\"}"),
            "no frame of Zstandard",
        ),
        ("no blosc", of("\"compressor\":null", "\"compressor\":{\"id\":\"blosc\"}"), "Blosc"),
        (
            "an array in an array",
            vec![("zarr.json", ARRAY3.into()), ("a/zarr.json", ARRAY3.into())],
            "inside",
        ),
        (
            "two descriptions",
            vec![("zarr.json", ARRAY3.into()), (".zarray", ARRAY.into())],
            "twice",
        ),
        ("a shard", of3("", "", whole()), ""),
        ("an index that is cut", of3("", "", whole()[1..30].to_vec()), "shorter than its index"),
        (
            "an index with another sum",
            of3("", "", {
                let mut s = whole();
                s[5] ^= 1;
                s
            }),
            "checksum",
        ),
        ("a chunk behind its shard", of3("", "", shard(b"abcd", &[[0, 2], [2, 99]])), "not in it"),
        ("an offset of 2^64", of3("", "", shard(b"abcd", &[[0, 2], [u64::MAX, 2]])), "not in it"),
        ("chunks that share bytes", of3("", "", shard(b"abcd", &[[0, 2], [1, 2]])), "share bytes"),
        ("a shard with one chunk", of3("", "", shard(b"ab", &[[0, 2], [u64::MAX, u64::MAX]])), ""),
        (
            "an uneven shard",
            of3("\"chunk_shape\":[2]", "\"chunk_shape\":[3]", whole()),
            "shards of",
        ),
        (
            "a shard of 2^60 chunks",
            of3("\"chunk_shape\":[4]", "\"chunk_shape\":[1152921504606846976]", whole()),
            "shorter than its index",
        ),
    ]);
}

/// A database with a root of this body.
fn database(height: u8, body: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let root = node(TREE, body);
    vec![("manifest.ocdbt", manifest("root", height, 0, root.len() as u64)), ("root", root)]
}

/// The body of a node with one child, which is `len` bytes at `offset` of the file `root`.
fn inner(height: u8, key: &str, common: u64, offset: u64, len: u64) -> Vec<u8> {
    let mut body = vec![height];
    body.extend(varints(&[1, 4, 0]));
    body.extend(b"root");
    body.extend(varints(&[1, key.len() as u64, common]));
    body.extend(key.as_bytes());
    body.extend(varints(&[0, offset, len, 1, 1, 0]));
    body
}

#[test]
fn databases() {
    let array: &[u8] = ARRAY.as_bytes();
    let values: Vec<(&str, &[u8])> = vec![("w/.zarray", array), ("w/0", b"ab"), ("w/1", b"cd")];
    let named = |path: &str| {
        let root = node(TREE, &leaf(&values));
        vec![("manifest.ocdbt", manifest(path, 0, 0, root.len() as u64)), ("root", root)]
    };
    let cut = |from: usize, to: usize| {
        let mut files = database(0, &leaf(&values));
        files[1].1 = files[1].1[from..to].to_vec();
        files
    };
    // A node that is its own child, at a place that does not change with its length.
    let itself = |height: u8| {
        let len = 18 + inner(height, "", 0, 0, 40).len() as u64;
        database(height, &inner(height, "", 0, 0, len))
    };
    let long = "k".repeat(5000);
    let many: Vec<String> = (0..3000)
        .map(|i| format!("{}{i:04}/0", "k".repeat(4000)))
        .collect();
    let mut many_body = vec![0, 0];
    many_body.extend(varint(many.len() as u64));
    many_body.extend((1..many.len()).flat_map(|_| varint(4000)));
    many_body.extend(varint(many[0].len() as u64));
    many_body.extend((1..many.len()).flat_map(|_| varint(6)));
    many_body.extend(many[0].bytes());
    many[1..]
        .iter()
        .for_each(|key| many_body.extend(key[4000..].bytes()));
    many_body.extend(vec![0; 2 * many.len()]);
    let cyclic = varints(&[0, 100, 1 << 20]);
    judge(&[
        ("a database", database(0, &leaf(&values)), ""),
        ("no values", database(0, &[0, 0, 0]), "empty"),
        ("no arrays", database(0, &leaf(&[("a", b"b")])), "no arrays"),
        ("no file", vec![("manifest.ocdbt", manifest("root", 0, 0, 20))], "is missing"),
        ("a path above", named("../root"), "not in the directory"),
        ("an absolute path", named("/etc/passwd"), "not in the directory"),
        (
            "a node past the end",
            vec![("manifest.ocdbt", manifest("root", 0, 1, 1 << 40)), ("root", vec![0; 9])],
            "of a file of 9",
        ),
        ("a node that is cut", cut(0, 60), "of a file of"),
        ("another height", database(1, &leaf(&values)), "height"),
        ("a height of 255", database(255, &inner(255, "", 0, 0, 1)), "MAX_OCDBT_HEIGHT"),
        ("a node that is its own child", itself(9), "height"),
        ("keys that descend", database(0, &leaf(&[("b", b""), ("a", b"")])), "order"),
        ("a key twice", database(0, &leaf(&[("b", b""), ("b", b"")])), "order"),
        ("a key that is long", database(0, &leaf(&[(&long, b"")])), "MAX_OCDBT_KEY"),
        ("long keys", database(0, &many_body), "no arrays"),
        ("a prefix of no key", database(1, &inner(1, "a", 2, 0, 30)), "prefix"),
        ("2^40 entries", database(0, &[&[0, 0][..], &varint(1 << 40)].concat()), "more entries"),
        (
            "a file that no table has",
            database(0, &[&[0, 0, 1, 1][..], b"a", &[1, 1, 0, 0]].concat()),
            "no table",
        ),
        (
            "a value of an unknown kind",
            database(0, &[&[0, 0, 1, 1][..], b"a", &[1, 2]].concat()),
            "unknown kind",
        ),
        (
            "a value past the end",
            database(0, &[&[0, 0, 1, 1][..], b"a", &[9, 0]].concat()),
            "truncated",
        ),
        ("a manifest of nothing", vec![("manifest.ocdbt", node(MANIFEST, &[]))], "truncated"),
        (
            "manifests in several files",
            vec![("manifest.ocdbt", node(MANIFEST, &[&[0; 16][..], &[1]].concat()))],
            "several files",
        ),
        (
            "a manifest without versions",
            vec![(
                "manifest.ocdbt",
                node(MANIFEST, &[&[0; 16][..], &cyclic, &[4, 0, 0, 0, 0]].concat()),
            )],
            "no version",
        ),
    ]);
}

/// Leaves with changed bytes, and the checksums that these need.
#[test]
fn edits() {
    let mut trial = Trial::new();
    let place = tempdir().unwrap();
    let array = ARRAY.as_bytes();
    let good_body = leaf(&[
        ("a/.zarray", array),
        ("a/0", b"ab"),
        ("a/1", b"cd"),
        ("b/.zarray", array),
        ("b/0", b"ef"),
    ]);
    let (mut random, mut good, count) = (Random(5), 0, edit_count([150, 1000, 4000]));
    for i in 0..count {
        let mut body = good_body.clone();
        for _ in 0..1 + i % 2 {
            let at = (random.next() >> 20) as usize % body.len();
            body[at] ^= 1 << ((random.next() >> 20) % 8);
        }
        let len = write(place.path(), &database(0, &body));
        let error = read(&mut trial, "an edit", len, place.path());
        if error.contains("checksum") {
            trial.fail("an edit", "its checksum is wrong");
        }
        good += usize::from(error.is_empty());
    }
    trial.count_edits(count, good, 50);
    trial.end();
}
