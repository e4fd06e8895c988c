//! Archives that contradict a well-formed pickle and its storage.

use crate::common::pickle::*;
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::common::zip::{Header, Member, Zip};
use crate::trials::Trial;

#[test]
fn archives() {
    let mut trial = Trial::new();
    let pickle = [b"\x80\x02", &dict(&good())[..]].concat();
    let members = [
        Member::stored("m/data.pkl", &pickle),
        Member::stored("m/data/0", &[0; 24]),
        Member::stored("m/byteorder", b"little"),
        Member::stored("m/version", b"3\n"),
    ];
    let with = |change: &dyn Fn(&mut Vec<Member>)| {
        let mut members = members.to_vec();
        change(&mut members);
        Zip::of(&members).file()
    };
    let pickle_as = |change: &dyn Fn(&mut Member)| with(&|all| change(&mut all[0]));
    let storage_as = |change: &dyn Fn(&mut Member)| with(&|all| change(&mut all[1]));
    let both =
        |member: &mut Member, change: &dyn Fn(&mut Header)| *member = member.clone().both(change);
    let deflated = |i: usize, content: &[u8], change: &dyn Fn(&mut Header)| {
        let name = String::from_utf8(members[i].central.name.clone()).unwrap();
        with(&|all| all[i] = Member::deflated(&name, content).both(change))
    };
    let record = |i: usize, content: &[u8]| {
        let name = String::from_utf8(members[i].central.name.clone()).unwrap();
        with(&|all| all[i] = Member::stored(&name, content))
    };
    trial.fine(vec![
        ("as it is", with(&|_| ())),
        ("a storage without checksum", storage_as(&|m| both(m, &|h| h.crc = 0))),
        ("compressed", deflated(0, &pickle, &|_| ())),
        ("a compressed storage", deflated(1, &[0; 24], &|_| ())),
    ]);
    // Bytes behind a storage are an error only when the storage is read.
    let front = |data: &[u8]| {
        anamnesis::parse_pth_front_matter_from_reader(std::io::Cursor::new(record(1, data)))
    };
    assert_eq!(front(&[0; 600 << 10]).unwrap().tensors[0].name, "x");
    assert!(
        front(&[0; 20])
            .unwrap_err()
            .to_string()
            .contains("20 bytes, which are fewer than 6 elements")
    );
    let cut = |i: usize, n: usize| {
        with(&|all| {
            all[i].data.truncate(n);
            both(&mut all[i], &|h| h.stored_len = n as u32);
        })
    };
    let twice = |i: usize| with(&|all| all.push(all[i].clone()));
    trial.refused(vec![
        (
            "no pickle",
            with(&|all| drop(all.remove(0))),
            Unsupported,
            &["neither NPZ nor a PyTorch"],
        ),
        (
            "no storage",
            with(&|all| drop(all.remove(1))),
            Parse,
            &["`x`", "`m/data/0` is not in the archive"],
        ),
        ("a pickle twice", twice(0), Parse, &["`m/data.pkl` is in it twice"]),
        ("a storage twice", twice(1), Parse, &["`m/data/0` is in it twice"]),
        (
            "a storage that is the pickle",
            storage_as(&|m| m.central.offset = Some(0)),
            Parse,
            &["overlaps"],
        ),
        (
            "an encrypted pickle",
            pickle_as(&|m| both(m, &|h| h.flags = 1)),
            Unsupported,
            &["encrypted", "data.pkl"],
        ),
        (
            "an encrypted storage",
            storage_as(&|m| both(m, &|h| h.flags = 1)),
            Unsupported,
            &["encrypted", "data/0"],
        ),
        (
            "another method",
            storage_as(&|m| both(m, &|h| h.method = 12)),
            Unsupported,
            &["method 12"],
        ),
        ("a pickle cut short", cut(0, 40), Parse, &["`m/data.pkl`", "two sizes"]),
        ("a storage cut short", cut(1, 20), Parse, &["`m/data/0`", "two sizes"]),
        (
            "a storage of 28 bytes",
            record(1, &[0; 28]),
            Parse,
            &["`x`", "28 bytes, which are not 6 elements"],
        ),
        (
            "a storage of 20 bytes",
            record(1, &[0; 20]),
            Parse,
            &["`x`", "20 bytes, which are not 6 elements"],
        ),
        (
            "a pickle's checksum",
            pickle_as(&|m| both(m, &|h| h.crc ^= 1)),
            Parse,
            &["`m/data.pkl`", "checksum"],
        ),
        (
            "a storage's checksum",
            storage_as(&|m| both(m, &|h| h.crc ^= 1)),
            Parse,
            &["`x`", "checksum"],
        ),
        (
            "a local header",
            storage_as(&|m| m.local.name = b"m/data/1".to_vec()),
            Parse,
            &["`m/data/0` is not what"],
        ),
        (
            "a compressed pickle's length",
            deflated(0, &pickle, &|h| h.len += 1),
            Parse,
            &["`m/data.pkl`", "length"],
        ),
        (
            "a compressed pickle's checksum",
            deflated(0, &pickle, &|h| h.crc ^= 1),
            Parse,
            &["`m/data.pkl`", "checksum"],
        ),
        (
            "a compressed storage's checksum",
            deflated(1, &[0; 24], &|h| h.crc ^= 1),
            Parse,
            &["`x`", "checksum"],
        ),
        (
            "a compressed storage of 25 bytes",
            deflated(1, &[0; 25], &|h| h.len = 24),
            Parse,
            &["`x`", "longer"],
        ),
        (
            "a compressed storage of 23 bytes",
            deflated(1, &[0; 23], &|h| h.len = 24),
            Parse,
            &["`x`", "shorter"],
        ),
        (
            "20 MiB of a compressed pickle",
            deflated(0, &vec![0; 20 << 20], &|_| ()),
            Limit,
            &["MAX_MEMBER_BYTES", "20971520"],
        ),
        (
            "a pickle of 4 GiB",
            pickle_as(&|m| both(m, &|h| h.len = u32::MAX - 1)),
            Parse,
            &["`m/data.pkl`", "two sizes"],
        ),
        ("an order that is none", record(2, b"middle"), Parse, &["byteorder is neither"]),
        (
            "an order of 65 bytes",
            record(2, &[b' '; 65]),
            Limit,
            &["MAX_MEMBER_BYTES", "m/byteorder"],
        ),
        (
            "a version of 65 bytes",
            record(3, &[b' '; 65]),
            Limit,
            &["MAX_MEMBER_BYTES", "m/version"],
        ),
        ("no pickle in it", record(0, b""), Parse, &["pickle: it is truncated"]),
    ]);
    for version in ["0", "11", "-1", "x", "", "4294967297"] {
        let rows = vec![(
            version,
            record(3, version.as_bytes()),
            Unsupported,
            &["PyTorch archive version"][..],
        )];
        trial.refused(rows);
    }
    trial.end();
}
