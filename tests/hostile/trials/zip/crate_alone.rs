//! What the `zip` crate leaves open: archives that it opens, and that are errors here.
//! docs/architecture.md refers to these cases.

use std::io::Cursor;

use ::zip::ZipArchive;
use ::zip::read::{ArchiveOffset, Config};

use crate::common::verdict::{Kind, Parse, Unsupported};
use crate::common::zip::*;
use crate::trials::Trial;

/// How far the crate goes with an archive.
#[derive(Debug, PartialEq)]
enum Crate {
    /// It opens the archive. Its comparison of all local headers, which reads every member's, finds
    /// an error.
    Opens,
    /// That comparison finds no error either.
    FindsConsistent,
}

/// What is wrong, the file, the names that the crate lists, how far it goes, and the kind and a
/// word of our error.
type Case<'a> = (&'a str, Vec<u8>, &'a [&'a str], Crate, Kind, &'a str);

/// The names that the crate lists, and how far it goes.
fn crate_alone(file: &[u8]) -> (Vec<String>, Crate) {
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    let mut archive = ZipArchive::with_config(config, Cursor::new(file)).unwrap();
    let names = archive.file_names().map(|name| name.unwrap().into_owned());
    let names = names.collect();
    match archive.validate_header_consistency() {
        Ok(()) => (names, Crate::FindsConsistent),
        Err(_) => (names, Crate::Opens),
    }
}

#[test]
fn archives_that_the_crate_opens() {
    let mut trial = Trial::new();
    let whole = two().file();
    let one = Zip::of(&[Member::stored("c.npy", &zeros(9))]).file();
    // Its directory is said to be behind it, so that the crate goes on to the end record of the
    // first archive.
    let mut broken = one.clone();
    let offset = broken.len() - 6;
    broken[offset..offset + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let sizes = [&[1, 0, 16, 0], &[9; 16][..]].concat();
    let rows: Vec<Case<'_>> = vec![
        (
            "bytes behind the end",
            [&whole[..], b"!"].concat(),
            &["a.npy", "b.npy"],
            Crate::FindsConsistent,
            Parse,
            "does not end in a directory",
        ),
        (
            "an end record without a directory behind another",
            [&whole[..], &broken].concat(),
            &["a.npy", "b.npy"],
            Crate::FindsConsistent,
            Parse,
            "64-bit end record is missing",
        ),
        (
            "end records of two numbers of members",
            changed(|z| {
                (z.end.entries, z.end.len) = ([Some(1); 2], Some(u32::MAX));
                z.end64 = Some(End64::default());
            }),
            &["a.npy", "b.npy"],
            Crate::FindsConsistent,
            Parse,
            "contradict",
        ),
        (
            "more members than the end record says",
            changed(|z| z.end.entries = [Some(1); 2]),
            &["a.npy"],
            Crate::Opens,
            Parse,
            "more than the 1",
        ),
        (
            "two members of one name",
            changed(|z| z.members[1] = Member::stored("a.npy", &zeros(7))),
            &["a.npy"],
            Crate::Opens,
            Parse,
            "twice",
        ),
        (
            "other flags in the local header",
            local(|h| h.flags = 2),
            &["b.npy", "a.npy"],
            Crate::FindsConsistent,
            Parse,
            "not what the directory says",
        ),
        (
            "a member on another disk",
            central(|h| h.disk = 1),
            &["a.npy"],
            Crate::FindsConsistent,
            Parse,
            "another disk",
        ),
        (
            "masked values",
            both(|h| h.flags = 0x2000),
            &["a.npy"],
            Crate::FindsConsistent,
            Unsupported,
            "encrypted",
        ),
        (
            "64-bit sizes that are missing",
            central(|h| (h.len, h.stored_len) = (u32::MAX, u32::MAX)),
            &["a.npy"],
            Crate::Opens,
            Parse,
            "64-bit sizes are missing",
        ),
        (
            "64-bit sizes twice",
            both(|h| {
                h.extra = [&sizes[..], &sizes].concat();
                (h.len, h.stored_len) = (u32::MAX, u32::MAX);
            }),
            &["a.npy"],
            Crate::Opens,
            Parse,
            "64-bit sizes are there twice",
        ),
    ];
    for (what, file, names, crate_goes, kind, word) in rows {
        let (listed, went) = crate_alone(&file);
        if listed != names || went != crate_goes {
            trial.fail(what, format!("the crate lists {listed:?}, and {went:?}"));
        }
        trial.refused(vec![(what, file, kind, &[word])]);
    }
    trial.end();
}
