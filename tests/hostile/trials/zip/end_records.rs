//! End records, of 32 and of 64 bits, that are wrong.

use crate::common::verdict::{Limit, Parse};
use crate::common::zip::*;
use crate::trials::Trial;

#[test]
fn end_records() {
    let mut trial = Trial::new();
    let whole = two().file();
    let at = whole.windows(4).position(|w| w == b"PK\x01\x02").unwrap() as u64;
    let real = whole.len() as u64 - 22 - at;
    trial.fine(vec![
        ("as it is", whole.clone()),
        ("64-bit", wide(End64::default())),
        ("a comment like an entry", changed(|z| z.end.comment = b"PK\x01\x02".to_vec())),
    ]);
    // Readers that search from the end take the second for the end.
    let two_ends = changed(|z| z.end.comment = b"PK\x01\x02PK\x05\x06".to_vec());
    trial.refused(vec![("a comment like an end", two_ends, Parse, &["two end records"])]);
    let end = [&b"PK\x05\x06"[..], &[0; 18]].concat();
    let comment =
        |n| changed(|z| (z.end.comment, z.end.comment_len) = (b"abc".to_vec(), Some(n as u16)));
    let gap = |n| changed(|z| (z.gap, z.end.offset) = (vec![0; n as usize], Some(at as u32)));
    let entries = |n| changed(|z| z.end.entries = [Some(n as u16); 2]);
    let offset = |n| changed(|z| z.end.offset = Some(n as u32));
    let len = |n| changed(|z| z.end.len = Some(n as u32));
    trial.refused_numbers(&[
        (
            "bytes of an end",
            &|n| whole[whole.len() - 22..][..n as usize].to_vec(),
            &[4, 21],
            Parse,
            "too short",
        ),
        ("a comment", &comment, &[0, 2, 4, 0xffff], Parse, "end"),
        (
            "an end in the comment",
            &|_| changed(|z| z.end.comment = end.clone()),
            &[22],
            Parse,
            "directory",
        ),
        ("entries", &entries, &[0, 1], Parse, "more than the"),
        ("entries", &entries, &[3, 0xfffe], Parse, "2 members where"),
        ("entries", &entries, &[0xffff], Parse, "64-bit end record is missing"),
        (
            "entries here",
            &|n| changed(|z| z.end.entries = [Some(n as u16), None]),
            &[0, 1, 3],
            Parse,
            "parts",
        ),
        ("this disk", &|n| changed(|z| z.end.disks[0] = n as u16), &[1, 0xffff], Parse, "parts"),
        ("the directory's disk", &|n| changed(|z| z.end.disks[1] = n as u16), &[1], Parse, "parts"),
        ("both disks", &|n| changed(|z| z.end.disks = [n as u16; 2]), &[1, 0xfffe], Parse, "parts"),
        ("a directory at", &offset, &[0, at - 1, at + 1, 1 << 31], Parse, "directory"),
        ("a directory at", &offset, &[0xffff_ffff], Parse, "64-bit end record is missing"),
        ("bytes of directory", &len, &[0, real - 1, real + 1, 1 << 31], Parse, "directory"),
        ("bytes of directory", &len, &[0xffff_ffff], Parse, "64-bit end record is missing"),
        ("bytes before the directory", &gap, &[1, 20], Parse, "directory"),
    ]);
    trial.end();
}

#[test]
fn zip64_end_records() {
    let mut trial = Trial::new();
    const MAX: u64 = u64::MAX;
    let with = |change: &dyn Fn(&mut End64)| {
        let mut end = End64::default();
        change(&mut end);
        wide(end)
    };
    let entries = |n| with(&|end| end.entries = [Some(n); 2]);
    let place = |n| with(&|end| end.place = Some(n));
    let size = |n| with(&|end| end.size = Some(n));
    trial.refused_numbers(&[
        ("entries", &entries, &[0, 1], Parse, "more than the"),
        ("entries", &entries, &[3, 1 << 20], Parse, "2 members where"),
        ("entries", &entries, &[(1 << 20) + 1, MAX], Limit, "a ZIP directory of"),
        ("bytes of the record", &size, &[0, 43, 45, MAX - 11, MAX], Parse, "malformed"),
        ("a record at", &place, &[0], Parse, "malformed"),
        ("a record at", &place, &[1 << 20, MAX - 55, MAX], Parse, "out of place"),
        ("a signature", &|n| with(&|end| end.signature = Some(n as u32)), &[0], Parse, "malformed"),
        ("a locator alone", &|_| with(&|end| end.missing = true), &[0], Parse, "64-bit"),
        (
            "a directory at",
            &|n| with(&|end| end.offset = Some(n)),
            &[0, MAX - 90, MAX],
            Parse,
            "directory",
        ),
        (
            "bytes of directory",
            &|n| with(&|end| end.len = Some(n)),
            &[0, 1, MAX],
            Parse,
            "directory",
        ),
        (
            "disks",
            &|n| with(&|end| end.all_disks = Some(n as u32)),
            &[2, 0xffff_ffff],
            Parse,
            "parts",
        ),
        (
            "the record's disk",
            &|n| with(&|end| end.record_disk = n as u32),
            &[1, 0xffff_ffff],
            Parse,
            "parts",
        ),
        ("this disk", &|n| with(&|end| end.disks[0] = n as u32), &[1], Parse, "parts"),
        ("both disks", &|n| with(&|end| end.disks = [n as u32; 2]), &[1], Parse, "parts"),
        ("entries here", &|n| with(&|end| end.entries[0] = Some(n)), &[0, 1], Parse, "parts"),
    ]);
    // Both end records must agree, because readers differ in which of them they use.
    let both = |change: &dyn Fn(&mut End)| {
        changed(|zip| {
            zip.end64 = Some(End64::default());
            change(&mut zip.end);
        })
    };
    trial.fine(vec![("both end records", both(&|_| ()))]);
    let word = "contradict";
    trial.refused_numbers(&[
        (
            "entries too",
            &|n| both(&|end| end.entries = [Some(n as u16); 2]),
            &[0, 1, 3],
            Parse,
            word,
        ),
        (
            "bytes of directory too",
            &|n| both(&|end| end.len = Some(n as u32)),
            &[0, 46],
            Parse,
            word,
        ),
        (
            "a directory too at",
            &|n| both(&|end| end.offset = Some(n as u32)),
            &[0, 40],
            Parse,
            word,
        ),
    ]);
    trial.end();
}
