//! Distributed checkpoints made by hand: what older versions of torch write, and what contradicts
//! itself.

mod checkpoint;

use anamnesis::{AnamnesisError, ErrorKind};
use safetensors::SafeTensors;

use crate::common::pickle::{int, storage, text, view};
use crate::common::verdict::{Kind, Parse, Unsupported};
use checkpoint::{Checkpoint, archive_of, good, piece};

#[test]
fn a_checkpoint_by_hand() {
    let made = good().decode().unwrap();
    let made = SafeTensors::deserialize(&made).unwrap();
    let expected: Vec<u8> = (0..12).flat_map(|i| (i as f32).to_le_bytes()).collect();
    assert_eq!(made.tensor("x").unwrap().data(), expected);
    // What older versions of torch write: no version, empty pieces without bytes, replicas.
    let mut old = good();
    old.more = vec![];
    old.chunks.push((vec![4, 0], vec![0, 3]));
    old.chunks.push((vec![0, 0], vec![2, 3]));
    let again = old.decode().unwrap();
    let again = SafeTensors::deserialize(&again).unwrap();
    assert_eq!(again.tensor("x").unwrap().data(), expected);
}

#[test]
fn wrong_metadata_are_errors() {
    type Row<'a> = (&'a str, &'a dyn Fn(&mut Checkpoint), Kind, &'a [&'a str]);
    const MAX: i64 = i64::MAX;
    let rows: &[Row<'_>] = &[
        ("a piece is not listed", &|c| drop(c.chunks.pop()), Parse, &["`x`", "[2, 0]"]),
        ("a piece has no bytes", &|c| drop(c.places.pop()), Parse, &["`x`", "[2, 0]", "missing"]),
        ("nothing is listed", &|c| (c.chunks.clear(), c.places.clear()).0, Parse, &["`x`"]),
        (
            "empty, and there are no files",
            &|c| {
                c.size = vec![0];
                c.chunks.clear();
                c.places.clear();
            },
            Parse,
            &["`x`", "no file has a piece"],
        ),
        ("rows are missing", &|c| c.size[0] = 5, Parse, &["`x`", "a piece is missing"]),
        ("rows are too many", &|c| c.size[0] = 3, Parse, &["`x`", "not within"]),
        ("huge", &|c| c.size = vec![MAX, MAX], Parse, &["`x`", "overflows"]),
        (
            "huge, and empty",
            &|c| {
                c.size = vec![0, 1 << 40, 1 << 40];
                c.chunks = vec![(vec![0; 3], vec![0, 1, 1])];
                c.places = vec![(vec![0; 3], "a.distcp".into(), 0, 0)];
            },
            Parse,
            &["`x`", "overflows"],
        ),
        ("another row", &|c| c.chunks[1].0[0] = 1, Parse, &["`x`", "[1, 0]"]),
        ("overlap", &|c| (c.chunks[1].0[0], c.places[1].0[0]) = (1, 1), Parse, &["`x`", "overlap"]),
        ("negative", &|c| c.chunks[1].1[0] = -2, Parse, &["`x`", "sizes"]),
        ("another shape", &|c| c.chunks[0].1 = vec![3, 2], Parse, &["`x`", "[2, 3]", "[3, 2]"]),
        ("fewer dimensions", &|c| c.chunks[0].1 = vec![6], Parse, &["`x`", "dimensions"]),
        ("65 dimensions", &|c| c.size = vec![1; 65], Parse, &["`x`", "sizes"]),
        ("another dtype", &|c| c.dtype = "int32", Parse, &["`x`", "F32", "I32"]),
        ("no dtype", &|c| c.dtype = "FloatStorage", Parse, &["`x`", "dtype"]),
        ("behind the end", &|c| c.places[1].3 += 1, Parse, &["`x`", "not within `a.distcp`"]),
        ("far behind", &|c| c.places[1].2 = MAX, Parse, &["`x`", "not within"]),
        ("shared bytes", &|c| c.places[1].2 -= 1, Parse, &["`x`", "overlaps"]),
        (
            "one archive twice",
            &|c| (c.places[1].2, c.places[1].3) = (0, c.places[0].3),
            Parse,
            &["`x`", "overlaps"],
        ),
        (
            "one archive twice, under two paths of its file",
            &|c| {
                (c.places[1].2, c.places[1].3) = (0, c.places[0].3);
                (c.places[0].1, c.places[1].1) = ("sub/./a.distcp".into(), "sub//a.distcp".into());
            },
            Parse,
            &["`x`", "overlaps", "`sub/a.distcp`"],
        ),
        ("truncated archive", &|c| c.places[1].3 -= 1, Parse, &["`x`", "ZIP"]),
        ("no archive", &|c| c.file.fill(0), Parse, &["`x`", "ZIP"]),
        ("outside", &|c| c.places[1].1 = "../a.distcp".into(), Parse, &["../a.distcp"]),
        ("absolute", &|c| c.places[1].1 = "/a.distcp".into(), Parse, &["/a.distcp"]),
        ("two places", &|c| c.places.push(c.places[0].clone()), Parse, &["`x`", "two places"]),
        (
            "a stray piece",
            &|c| {
                let mut stray = c.places[0].clone();
                stray.0[0] = 9;
                c.places.push(stray);
            },
            Parse,
            &["`x`", "[9, 0]"],
        ),
        ("newer", &|c| c.more[0].1 = text("2.0.0"), Unsupported, &["2.0.0"]),
        (
            "compressed on the way",
            &|c| {
                let list = [b"](", &text("zstd")[..], b"e"].concat();
                c.more_of_places = vec![("transform_descriptors", list)];
            },
            Unsupported,
            &["`x`", "zstd"],
        ),
        ("a field twice", &|c| c.more_of_places = vec![("offset", int(0))], Parse, &["offset"]),
        (
            "no tensor",
            &|c| {
                c.file = archive_of(b"}", &[0.; 6]);
                (c.size, c.chunks, c.places) =
                    (vec![2, 3], c.chunks[..1].into(), c.places[..1].into());
                c.places[0].3 = c.file.len() as i64;
            },
            Parse,
            &["`x`", "no tensor"],
        ),
        (
            "columns first",
            &|c| {
                let of = storage("FloatStorage", &text("0"), 6);
                let turned = archive_of(&view(&of, 0, &[2, 3], &[1, 2]), &[0.; 6]);
                c.places[1].2 = turned.len() as i64;
                c.places[0].3 = turned.len() as i64;
                let second = piece(&[2, 3], &[0.; 6]);
                c.file = [turned, second].concat();
            },
            Unsupported,
            &["`x`", "order of rows"],
        ),
    ];
    for (what, change, kind, words) in rows {
        let mut checkpoint = good();
        change(&mut checkpoint);
        let error = checkpoint.decode().expect_err(what);
        let expected = match kind {
            Kind::Parse => ErrorKind::Parse,
            Kind::Unsupported => ErrorKind::Unsupported,
            Kind::Limit => ErrorKind::LimitExceeded,
            Kind::Usage => ErrorKind::Usage,
        };
        assert_eq!(error.kind(), expected, "{what}: {error}");
        let message = error.to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{what}: {message}");
    }
}

#[test]
fn metadata_run_nothing() {
    let mut checkpoint = good();
    checkpoint
        .more
        .push(("planner_data", b"cos\nsystem\n".to_vec()));
    let error = checkpoint.decode().unwrap_err();
    assert!(matches!(error, AnamnesisError::DisallowedGlobal { .. }), "{error}");
    // Many tensors that refer to one list of pieces take no more time than the pieces that are
    // there.
    let mut checkpoint = good();
    checkpoint.chunks = vec![(vec![4, 0], vec![0, 3]); 20_000];
    // They are counted before the first is read, which has too few dimensions.
    checkpoint.chunks[0].0 = vec![4];
    let error = checkpoint.decode().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
}
