//! Copies of the files beside the weights: contents, permissions, holes and names; and no file of
//! anybody else.

use std::ffi::OsStr;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use anamnesis::{TargetDtype, parse};

use super::model;
use crate::common::directory::{make, shards, write_files};

/// The permissions of a file, set-user-ID and similar bits included.
fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

#[test]
fn permissions_are_those_of_new_files() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = model(root.path(), 2);
    let new = root.path().join("new");
    std::fs::write(&new, "").unwrap();
    let new = mode(&new);
    let modes = [0o4755, 0o2755, 0o6777, 0o1777, 0o777, 0o666, 0o600, 0o400, 0o111];
    for given in modes {
        let path = input.join(format!("extra/{given:o}.sh"));
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(given)).unwrap();
    }
    let output = root.path().join("out");
    let parsed = parse(&input).unwrap();
    parsed.remember(&output, TargetDtype::BF16).unwrap();
    for given in modes {
        let copy = output.join(format!("extra/{given:o}.sh"));
        assert_eq!(std::fs::read(&copy).unwrap(), b"#!/bin/sh\n");
        let (mode, want) = (mode(&copy), new | given & 0o100);
        assert_eq!(mode, want, "of {given:o}: {mode:o} and not {want:o}");
    }
}

#[test]
fn holes_stay_holes() {
    const LEN: u64 = 10 << 30;
    let root = crate::common::tempdir().unwrap();
    let (input, _) = model(root.path(), 2);
    let mut sparse = std::fs::File::create(input.join("sparse.dat")).unwrap();
    sparse.set_len(LEN).unwrap();
    let pieces = [(0, 5000), (LEN / 2 - 77, 300), (LEN - 100, 100)];
    for (at, len) in pieces {
        sparse.seek(SeekFrom::Start(at)).unwrap();
        sparse.write_all(&vec![7; len]).unwrap();
    }
    std::fs::File::create(input.join("hole.dat"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let output = root.path().join("out");
    let parsed = parse(&input).unwrap();
    parsed.remember(&output, TargetDtype::BF16).unwrap();
    let copy = std::fs::File::open(output.join("sparse.dat")).unwrap();
    let meta = copy.metadata().unwrap();
    assert_eq!(meta.len(), LEN);
    assert!(meta.blocks() * 512 < 1 << 20, "{} blocks", meta.blocks());
    for (at, len) in pieces {
        let mut bytes = vec![0; len + 200];
        let start = at.saturating_sub(100);
        let n = copy.read_at(&mut bytes, start).unwrap();
        let want = |i: u64| u8::from((at..at + len as u64).contains(&(start + i))) * 7;
        assert!((0..n).all(|i| bytes[i] == want(i as u64)), "at {at}");
    }
    let hole = std::fs::read(output.join("hole.dat")).unwrap();
    assert!(hole.len() == 1 << 20 && hole.iter().all(|b| *b == 0));
}

/// Names on Linux are bytes.
#[cfg(target_os = "linux")]
#[test]
fn names_that_are_no_text() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = model(root.path(), 2);
    let names: [&[u8]; 3] = [b"token\xff.txt", b"\xfe\xfd/inner\xc3.json", b"\xf0/a\xff/b"];
    for name in names {
        let path = input.join(OsStr::from_bytes(name));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, name).unwrap();
    }
    let output = root.path().join("out");
    let parsed = parse(&input).unwrap();
    parsed.remember(&output, TargetDtype::BF16).unwrap();
    for name in names {
        let copy = std::fs::read(output.join(OsStr::from_bytes(name))).unwrap();
        assert_eq!(copy, name);
    }
}

/// Only the cache of Hugging Face's hub has a store of blobs: a directory that is called so may
/// hold anything.
#[test]
fn blobs_of_others_are_not_copied() {
    const HASH: &str = "0123456789abcdef0123456789abcdef01234567";
    // The snapshot, the blob, and whether it is copied.
    let cases = [
        ("models--org--Name/snapshots/main", HASH.to_owned(), true),
        ("models--org--Name/snapshots/main", HASH.repeat(2)[..64].to_owned(), true),
        ("work/snapshots/main", HASH.to_owned(), false),
        ("models--org--Name/versions/main", HASH.to_owned(), false),
        ("models--org--Name/snapshots/main", "id_rsa".to_owned(), false),
        ("models--org--Name/snapshots/main", HASH.replace('0', "g"), false),
        ("models--org--Name/snapshots/main", HASH.repeat(2), false),
        ("models--org--Name/snapshots/main", format!("deeper/{HASH}"), false),
    ];
    for (snapshot, blob, is_copied) in cases {
        let context = format!("{snapshot}, {blob}");
        let root = crate::common::tempdir().unwrap();
        let input = root.path().join(snapshot);
        make(&input, &shards(2, 128));
        let blobs = root.path().join(snapshot).join("../../blobs");
        std::fs::create_dir_all(blobs.join(&blob).parent().unwrap()).unwrap();
        std::fs::write(blobs.join(&blob), "contents").unwrap();
        symlink(format!("../../blobs/{blob}"), input.join("vocab.txt")).unwrap();
        let output = root.path().join("out");
        let parsed = parse(&input).unwrap();
        let report = parsed.remember(&output, TargetDtype::BF16).unwrap();
        assert_eq!(output.join("vocab.txt").exists(), is_copied, "{context}");
        let is_noted = report.notes.iter().any(|note| note.contains("`vocab.txt`"));
        assert_eq!(is_noted, !is_copied, "{context}: {:?}", report.notes);
    }
}

/// A store of blobs that is a link may lead anywhere.
#[test]
fn a_link_is_no_store_of_blobs() {
    let root = crate::common::tempdir().unwrap();
    let input = root.path().join("models--org--Name/snapshots/main");
    make(&input, &shards(2, 128));
    let hash = "0123456789".repeat(4);
    write_files(root.path(), &[(&format!("private/{hash}"), "secret")]);
    symlink("../private", root.path().join("models--org--Name/blobs")).unwrap();
    symlink(format!("../../blobs/{hash}"), input.join("vocab.txt")).unwrap();
    let output = root.path().join("out");
    let parsed = parse(&input).unwrap();
    parsed.remember(&output, TargetDtype::BF16).unwrap();
    assert!(!output.join("vocab.txt").exists());
}
