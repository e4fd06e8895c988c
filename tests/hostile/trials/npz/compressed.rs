//! Compressed members whose data or sizes are wrong.

use anamnesis::parse_bytes;

use crate::common::Random;
use crate::common::verdict::{Parse, verdict};
use crate::common::zip::*;
use crate::trials::Trial;

/// An archive of one compressed array, changed by `change`.
fn deflated(content: &[u8], change: impl FnOnce(&mut Member)) -> Vec<u8> {
    let mut member = Member::deflated("a.npy", content);
    change(&mut member);
    member.local = Header { signature: 0x0403_4b50, ..member.central.clone() };
    Zip::of(&[member]).file()
}

/// Replaces the compressed bytes, and adapts the lengths in both headers.
fn instead(member: &mut Member, data: Vec<u8>) {
    (member.central.stored_len, member.data) = (data.len() as u32, data);
}

#[test]
fn compressed_data() {
    let mut trial = Trial::new();
    let (small, content) = (zeros(300), [zeros(0), vec![0; 300]].concat());
    let noise = npy(&dict("'|u1'", "False", "(3000,)"), &Random(31).bytes(3000));
    let more = |n: i64| move |m: &mut Member| m.central.len = (i64::from(m.central.len) + n) as u32;
    // Both headers declare many bytes, but the data is short.
    let lie = |n: u32| {
        let header = npy(&dict("'|u1'", "False", &format!("({n},)")), b"");
        deflated(&[&header[..], &[0; 9]].concat(), |m| {
            m.central.len = header.len() as u32 + n;
        })
    };
    let endless =
        || [&b"\x93NUMPY\x02\0\x10\x27\0\0{'descr': ("[..], &vec![b' '; 9 << 20]].concat();
    trial.fine(vec![
        ("as it is", deflated(&noise, |_| ())),
        ("10 MiB of zeros", deflated(&zeros(10 << 20), |_| ())),
        (
            "bytes behind the stream",
            deflated(&noise, |m| instead(m, [&m.data[..], &[7; 9]].concat())),
        ),
    ]);
    trial.refused(vec![
        ("garbage", deflated(&small, |m| instead(m, vec![0xff; 40])), Parse, &["`a`", "magic"]),
        ("no bytes", deflated(&small, |m| instead(m, vec![])), Parse, &["`a`", "magic"]),
        (
            "a stored block of another length",
            deflated(&small, |m| instead(m, vec![1, 9, 0, 9, 0])),
            Parse,
            &["`a`", "magic"],
        ),
        (
            "a distance behind the beginning",
            deflated(&small, |m| instead(m, vec![0x03, 0x02, 0])),
            Parse,
            &["`a`", "magic"],
        ),
        (
            "cut short",
            deflated(&noise, |m| instead(m, m.data[..m.data.len() - 9].to_vec())),
            Parse,
            &["`a`", "incomplete"],
        ),
        ("a byte changed", deflated(&noise, |m| m.data[2000] ^= 1), Parse, &["tensor `a`"]),
        ("a wrong checksum", deflated(&noise, |m| m.central.crc ^= 1), Parse, &["`a`", "checksum"]),
        ("no checksum", deflated(&noise, |m| m.central.crc = 0), Parse, &["`a`", "checksum"]),
        ("more than declared", deflated(&small, more(-1)), Parse, &["`a`", "299 bytes of data"]),
        ("less than declared", deflated(&small, more(1)), Parse, &["`a`", "301 bytes of data"]),
        (
            "a length of none",
            deflated(&small, |m| m.central.len = 0),
            Parse,
            &["`a`", "longer than it is"],
        ),
        (
            "a length of any number",
            deflated(&small, |m| m.central.len = u32::MAX - 1),
            Parse,
            &["`a.npy`", "cannot become"],
        ),
        (
            "10 MiB more than the header says",
            deflated(&[content, vec![0; 10 << 20]].concat(), |_| ()),
            Parse,
            &["`a`", "10486060 bytes"],
        ),
        (
            "10 MiB, and declared as 300",
            deflated(&zeros(10 << 20), |m| m.central.len = 300),
            Parse,
            &["`a`", "225 bytes of data"],
        ),
        ("a few bytes as 1 MiB", lie(1 << 20), Parse, &["`a.npy`", "cannot become"]),
        ("a few bytes as 256 MiB", lie(256 << 20), Parse, &["`a.npy`", "cannot become"]),
        (
            "a header without an end",
            deflated(&endless(), |_| ()),
            Parse,
            &["`a`", "no Python literal"],
        ),
    ]);
    for bytes in [deflated(&noise, |m| m.central.crc ^= 1), both(|h| h.crc ^= 1)] {
        let model = parse_bytes(bytes).unwrap();
        let result = model.tensor("a").unwrap().bytes();
        verdict(result, Parse, &["`a`", "checksum"])
            .into_iter()
            .for_each(|wrong| trial.fail("bytes()", wrong));
    }
    trial.end();
}
