//! ZIP archives whose directory or headers are wrong.

mod crate_alone;
mod end_records;

use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::common::zip::*;
use crate::trials::Trial;

#[test]
fn directories() {
    let mut trial = Trial::new();
    const MAX: u64 = u64::MAX;
    let name = |bytes: &[u8]| both(|h| h.name = bytes.to_vec());
    // Sizes in a ZIP64 extra field.
    let wide = |extra: &[u8]| {
        central(|h| (h.extra, h.len, h.stored_len) = (extra.to_vec(), u32::MAX, u32::MAX))
    };
    let sizes = |n: u64| {
        wide(&[&[9, 9, 1, 0, 7, 1, 0, 16, 0], &n.to_le_bytes()[..], &n.to_le_bytes()].concat())
    };
    let place = |n: u64| {
        let extra = [&[1, 0, 8, 0], &n.to_le_bytes()[..]].concat();
        central(move |h| (h.extra, h.offset) = (extra.clone(), Some(u32::MAX)))
    };
    let second = |n| changed(|z| z.members[1].central.offset = Some(n as u32));
    let (len, all) = (zeros(9).len() as u64, two().file().len() as u64);
    let resized = |n: u64| both(move |h| (h.len, h.stored_len) = (n as u32, n as u32));
    let field = |n: u64| [&[1, 0, 16, 0], &n.to_le_bytes()[..], &n.to_le_bytes()].concat();
    // Info-ZIP's field with a name in Unicode and the CRC of the one in the header.
    let unicode = |name: &[u8], text: &[u8]| {
        let crc = crc32fast::hash(name).to_le_bytes();
        [&[0x75, 0x70, 5 + text.len() as u8, 0, 1], &crc[..], text].concat()
    };
    trial.fine(vec![
        ("64-bit sizes that would fit", sizes(len)),
        ("the same name in Unicode", both(|h| h.extra = unicode(b"a.npy", b"a.npy"))),
        // The crate looks for the end record from behind, and must not find this one.
        (
            "an entry that holds an end record",
            both(|h| h.extra = [&[9, 9, 22, 0], &b"PK\x05\x06"[..], &[0; 18]].concat()),
        ),
    ]);
    let twice = Zip::of(&[
        two().members[1].clone(),
        two().members[1].clone().central(|h| h.offset = Some(0)),
    ])
    .file();
    trial.refused(vec![
        (
            "another signature",
            central(|h| h.signature = 0x0403_4b50),
            Parse,
            &["0 members where 1"],
        ),
        ("a name of 5000 bytes", name(&[b'x'; 5000]), Limit, &["5000"]),
        ("a name that is not UTF-8", name(b"a\xff.npy"), Parse, &["UTF-8"]),
        ("a name cut in a character", name(b"a.npy\xc3"), Parse, &["UTF-8"]),
        ("a name with a NUL", name(b"a.npy\0x"), Parse, &["NUL"]),
        ("a member twice", twice, Parse, &["`b.npy`", "twice"]),
        ("64-bit sizes that are missing", wide(b""), Parse, &["`a.npy`", "64-bit"]),
        (
            "another field",
            wide(&[&[2, 0, 16, 0], &[0; 16][..]].concat()),
            Parse,
            &["`a.npy`", "64-bit"],
        ),
        (
            "one size of two",
            wide(&[&[1, 0, 8, 0], &[0; 8][..]].concat()),
            Parse,
            &["`a.npy`", "ZIP64"],
        ),
        ("half a size", wide(&[1, 0, 4, 0, 0, 0, 0, 0]), Parse, &["`a.npy`", "ZIP64"]),
        ("less than the field says", wide(&[1, 0, 16, 0, 0, 0]), Parse, &["`a.npy`", "ZIP64"]),
        ("half a field", wide(&[1, 0, 16]), Parse, &["`a.npy`", "truncated"]),
        // Python takes the first of two fields, and the `zip` crate the last.
        (
            "64-bit sizes twice",
            wide(&[field(len), field(len)].concat()),
            Parse,
            &["`a.npy`", "twice"],
        ),
        // Python up to 3.11 goes by the header, later versions by the field.
        (
            "another name in Unicode",
            both(|h| h.extra = unicode(b"a.npy", b"b.npy")),
            Parse,
            &["`a.npy`", "another name"],
        ),
        (
            "a name that is UTF-8 in its field alone",
            both(|h| {
                (h.name, h.extra) = (b"\xe4.npy".to_vec(), unicode(b"\xe4.npy", b"\xc3\xa4.npy"));
            }),
            Parse,
            &["UTF-8"],
        ),
    ]);
    trial.refused_numbers(&[
        (
            "bytes of name",
            &|n| central(|h| h.name_len = Some(n as u16)),
            &[6, 4000, 0xffff],
            Parse,
            "truncated",
        ),
        (
            "bytes of extra fields",
            &|n| central(|h| h.extra_len = Some(n as u16)),
            &[1, 0xffff],
            Parse,
            "truncated",
        ),
        (
            "bytes of comment",
            &|n| central(|h| h.comment_len = n as u16),
            &[1, 0xffff],
            Parse,
            "truncated",
        ),
        ("the second at", &second, &[0, 1, 40, 34 + len, all - 60, 1 << 31], Parse, "overlaps"),
        ("the second at", &second, &[0xffff_ffff], Parse, "64-bit"),
        ("64-bit sizes", &sizes, &[len + 1, 1 << 40, MAX - 35, MAX], Parse, "overlaps"),
        ("a 64-bit place", &place, &[1 << 40, MAX - 34, MAX], Parse, "overlaps"),
        ("sizes", &resized, &[len + 1, 1 << 31], Parse, "overlaps"),
        ("a stored size", &|n| both(|h| h.stored_len = n as u32), &[0, len - 1], Parse, "stored"),
        (
            "a size",
            &|n| both(|h| h.len = n as u32),
            &[0, len - 1, len + 1, 1 << 31],
            Parse,
            "stored",
        ),
        ("a disk", &|n| central(|h| h.disk = n as u16), &[1], Parse, "disk"),
        ("flags", &|n| both(|h| h.flags = n as u16), &[1, 0x40, 0x2000], Unsupported, "encrypted"),
        ("flags", &|n| both(|h| h.flags = n as u16), &[0x20, 0x28], Unsupported, "a patch"),
        (
            "method",
            &|n| both(|h| h.method = n as u16),
            &[1, 9, 93, 95, 98, 99, 0xffff],
            Unsupported,
            "method",
        ),
    ]);
    trial.end();
}

#[test]
fn local_headers() {
    let mut trial = Trial::new();
    trial.fine(vec![
        ("sizes behind the data", local(|h| (h.crc, h.len, h.stored_len) = (0, 0, 0))),
        ("extra fields that the directory has not", local(|h| h.extra = vec![0; 40])),
    ]);
    let shared = changed(|z| {
        z.members = vec![Member::stored("a.npy", &zeros(9)), Member::stored("b.npy", &zeros(9))];
        z.members[0].local.extra_len = Some(35 + zeros(9).len() as u16);
    });
    let other = "`a.npy` is not what the directory says";
    trial.refused(vec![
        ("another name", local(|h| h.name = b"c.npy".to_vec()), Parse, &[other]),
        (
            "extra fields that lead to the bytes of another",
            shared,
            Parse,
            &["`a.npy`", "reaches into"],
        ),
    ]);
    trial.refused_numbers(&[
        ("a signature", &|n| local(|h| h.signature = n as u32), &[0, 0x0201_4b50], Parse, other),
        (
            "bytes of name",
            &|n| local(|h| h.name_len = Some(n as u16)),
            &[0, 4, 6, 0xffff],
            Parse,
            other,
        ),
        ("flags", &|n| local(|h| h.flags = n as u16), &[1, 8, 1 << 11], Parse, other),
        ("a method", &|n| local(|h| h.method = n as u16), &[8, 99], Parse, other),
        (
            "bytes of extra fields",
            &|n| local(|h| h.extra_len = Some(n as u16)),
            &[1, 500, 0xffff],
            Parse,
            "reaches into",
        ),
    ]);
    trial.end();
}
