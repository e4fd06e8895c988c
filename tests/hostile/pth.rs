//! PyTorch checkpoints that are malformed, contradictory or hostile, as archives, streams and tar files: each must
//! give the right kind of error. Nothing may run, panic, take long, take much, or leave a file behind.
#![cfg(all(feature = "npz", feature = "pth"))]
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::pickle::*;
use common::trial::{Trial, exhaust};
use common::verdict::{Limit, Parse, Unsupported};
use common::zip::{Header, Member, Zip, tarred};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Archives that lie about a pickle and a storage that are as they should be.
#[test]
fn archives() {
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
    let mut trial = Trial::new();
    trial.fine(vec![
        ("as it is", with(&|_| ())),
        (
            "a storage without checksum",
            storage_as(&|m| both(m, &|h| h.crc = 0)),
        ),
        ("compressed", deflated(0, &pickle, &|_| ())),
        ("a compressed storage", deflated(1, &[0; 24], &|_| ())),
    ]);
    // Only those who read a storage care for what is behind it.
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
            (
                all[i].data.truncate(n),
                both(&mut all[i], &|h| h.stored_len = n as u32),
            )
                .0
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
        (
            "a pickle twice",
            twice(0),
            Parse,
            &["`m/data.pkl` is in it twice"],
        ),
        (
            "a storage twice",
            twice(1),
            Parse,
            &["`m/data/0` is in it twice"],
        ),
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
        (
            "a pickle cut short",
            cut(0, 40),
            Parse,
            &["`m/data.pkl`", "two sizes"],
        ),
        (
            "a storage cut short",
            cut(1, 20),
            Parse,
            &["`m/data/0`", "two sizes"],
        ),
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
        (
            "an order that is none",
            record(2, b"middle"),
            Parse,
            &["byteorder is neither"],
        ),
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
        (
            "no pickle in it",
            record(0, b""),
            Parse,
            &["pickle: it is truncated"],
        ),
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

#[test]
fn views() {
    const MAX: i64 = i64::MAX;
    let typed = |class: &str, key: &str, len: i64| {
        one(&view(&storage(class, &text(key), len), 0, &[1], &[1]))
    };
    let untyped = |dtype: &str, shape: &[i64]| {
        let id = [
            b"(",
            &text("storage")[..],
            b"ctorch.storage\nUntypedStorage\n",
            &text("0"),
            b"N",
            &int(24),
            b"tQ",
        ];
        let dtype = format!("NNctorch\n{dtype}\n");
        one(&call(
            "_rebuild_tensor_v3",
            &id.concat(),
            0,
            shape,
            &vec![1; shape.len()],
            dtype.as_bytes(),
        ))
    };
    // A storage that is said to be a view itself.
    let nested = |before: i64, offset: i64| {
        let id = [
            &floats()[..floats().len() - 2],
            b"(U\x01k",
            &int(before),
            &int(1),
            b"ttQ",
        ]
        .concat();
        one(&view(&id, offset, &[1], &[1]))
    };
    let x =
        |offset: i64, shape: &[i64], strides: &[i64]| one(&view(&floats(), offset, shape, strides));
    let mut trial = Trial::new();
    trial.fine(vec![
        ("all of it", x(0, &[2, 2], &[3, 2])),
        ("64 dimensions", x(5, &[1; 64], &[MAX; 64])),
        ("nothing", x(0, &[0, MAX], &[MAX, MAX])),
        ("nothing, anywhere", x(MAX, &[0], &[1])),
        ("8 MiB of one", x(0, &[1 << 21], &[0])),
        (
            "nothing, of four-bit floats",
            untyped("float4_e2m1fn_x2", &[0, MAX]),
        ),
    ]);
    let out: &[&str] = &["`x`", "storage"];
    trial.refused(vec![
        ("an element more", x(0, &[2, 2], &[4, 2]), Parse, out),
        ("an element further", x(1, &[2, 3], &[3, 1]), Parse, out),
        ("an offset of any size", x(MAX, &[1], &[1]), Parse, out),
        (
            "strides of any size",
            x(0, &[2, 2, 2], &[MAX, MAX, MAX]),
            Parse,
            out,
        ),
        (
            "sizes that overflow",
            x(0, &[1 << 32, 1 << 32, 0], &[0, 0, 0]),
            Parse,
            &["`x`"],
        ),
        (
            "2^40 elements of one",
            x(0, &[1 << 40], &[0]),
            Limit,
            &["4398046511104"],
        ),
        (
            "2^25 elements of one",
            x(0, &[1 << 25], &[0]),
            Limit,
            &["134217728"],
        ),
        (
            "65 dimensions",
            x(0, &[1; 65], &[1; 65]),
            Parse,
            &["do not go together"],
        ),
        (
            "a storage that is elsewhere",
            typed("FloatStorage", "../data.pkl", 6),
            Parse,
            &["`x`", "not in"],
        ),
        (
            "a view in a view, an element further",
            nested(3, 3),
            Parse,
            out,
        ),
        ("a view in a view, anywhere", nested(MAX, MAX), Parse, out),
        (
            "a storage of negative length",
            typed("FloatStorage", "0", -6),
            Parse,
            &["persistent id"],
        ),
        (
            "a negative offset",
            x(-1, &[1], &[1]),
            Parse,
            &["offset, shape or strides"],
        ),
        (
            "a negative size",
            x(0, &[-1], &[1]),
            Parse,
            &["offset, shape or strides"],
        ),
        (
            "a negative stride",
            x(5, &[2], &[-1]),
            Parse,
            &["offset, shape or strides"],
        ),
        (
            "the smallest number there is",
            x(i64::MIN, &[i64::MIN], &[i64::MIN]),
            Parse,
            &["offset, shape or strides"],
        ),
        (
            "fewer strides than sizes",
            x(0, &[1, 1], &[1]),
            Parse,
            &["do not go together"],
        ),
        (
            "a dtype that is none",
            untyped("device", &[1]),
            Parse,
            &["dtype"],
        ),
    ]);
    trial.refused_numbers(&[
        (
            "floats",
            &|n| typed("FloatStorage", "0", n as i64),
            &[0, 5, 7, 1 << 62],
            Parse,
            "storage",
        ),
        (
            "doubles",
            &|n| typed("DoubleStorage", "0", n as i64),
            &[6, 1 << 61],
            Parse,
            "storage",
        ),
        (
            "bytes of no type",
            &|n| untyped("float64", &[n as i64]),
            &[4, 1 << 61],
            Parse,
            "`x`",
        ),
    ]);
    let function = [b"ctorch._utils\n_rebuild_tensor\n(", &floats()[..]].concat();
    let call = |arguments: &[u8]| one(&[&function, arguments, b"K\x01\x85tR"].concat());
    let shapes =
        b"N\x88\x85|NK\x01\x85|K\0\x88\x85|K\0U\x01a|K\0N|K\0}|K\0G\0\0\0\0\0\0\0\0\x85|K\0I18446744073709551616\n\x85";
    check(&mut trial, "sizes", shapes, &call);
    check(&mut trial, "few arguments", b"|K\0", &call);
    let slow = x(0, &[1 << 22, 2], &[0, 1]);
    trial.time("32 MiB of two", || exhaust(slow.clone()).unwrap());
    trial.end();
}

#[test]
fn streams() {
    let (root, keys) = (dict(&good()), [b"]", &text("0")[..], b"a"].concat());
    let with = |n: u64, bytes: usize| stream(&root, &keys, &[(n, bytes)]);
    let double = view(&storage("DoubleStorage", &text("0"), 6), 0, &[1], &[1]);
    let both = [b"](", &good()[..], &double, b"e."].concat();
    let mut trial = Trial::new();
    trial.fine(vec![("as it is", with(6, 24))]);
    trial.refused(vec![
        ("no keys", stream(&root, b"]", &[]), Parse, &["`0`"]),
        (
            "a key twice",
            stream(&root, b"](U\x010U\x010e", &[(6, 24), (6, 24)]),
            Parse,
            &["twice"],
        ),
        (
            "a key of another",
            stream(&root, b"]U\x011a", &[(6, 24)]),
            Parse,
            &["storage"],
        ),
        (
            "a storage of two types",
            stream(&both, &keys, &[(6, 24)]),
            Parse,
            &["types"],
        ),
        ("an element less", with(5, 20), Parse, &["`x`"]),
        ("a byte behind it", with(6, 25), Parse, &["behind"]),
    ]);
    trial.refused_numbers(&[(
        "elements",
        &|n| with(n, 24),
        &[7, (1 << 62) + 6, u64::MAX],
        Parse,
        "truncated",
    )]);
    check(
        &mut trial,
        "key",
        b"N|}|]]a|]Na|]G\0\0\0\0\0\0\0\0a",
        &|keys| stream(&root, keys, &[(6, 24)]),
    );
    // As many storages of nothing, behind a large pickle and before a lot of something.
    let ids = (0..800).flat_map(|i| [storage("FloatStorage", &int(i), 0), b"0".to_vec()].concat());
    let keys: Vec<u8> = b"]("
        .iter()
        .copied()
        .chain((0..800).flat_map(int))
        .chain(*b"e")
        .collect();
    let root: Vec<u8> = text(&"k".repeat(2 << 20))
        .into_iter()
        .chain(*b"0")
        .chain(ids)
        .chain(dict(b"N"))
        .collect();
    let many = [stream(&root, &keys, &[(0, 0); 800]), vec![0; 1 << 20]].concat();
    trial.time("many storages of nothing", || {
        exhaust(many.clone()).unwrap_err()
    });
    // A storage with a long name, of which there are many views.
    let (key, of_long) = (text(&"k".repeat(1 << 18)), view(b"h\0", 0, &[1], &[1]));
    let views = (0..800)
        .flat_map(|i| [&int(i)[..], &of_long, b"s"].concat())
        .collect::<Vec<u8>>();
    let root = [
        &storage("FloatStorage", &key, 6)[..],
        b"q\x000}",
        &views,
        b".",
    ]
    .concat();
    let views = stream(&root, &[b"]", &key[..], b"a"].concat(), &[(6, 24)]);
    trial.time("a long name of many views", || {
        exhaust(views.clone()).unwrap()
    });
    // Many small storages, each with a gap behind its length.
    let ids =
        (0..30_000).flat_map(|i| [storage("FloatStorage", &int(i), 1), b"0".to_vec()].concat());
    let root: Vec<u8> = ids.chain(dict(b"N")).collect();
    let keys: Vec<u8> = b"]("
        .iter()
        .copied()
        .chain((0..30_000).flat_map(int))
        .chain(*b"e")
        .collect();
    let many = stream(&root, &keys, &[(1, 4); 30_000]);
    trial.refused(vec![("many small storages", many, Parse, &["no tensors"])]);
    trial.end();
}

#[test]
fn tars() {
    let stored = |n: u64, views: &[u8]| {
        let id = b"K\x01.K\x01U\x03cpuctorch\nFloatStorage\n\x87.";
        [&id[..], &n.to_le_bytes(), &[0; 24], views, b"."].concat()
    };
    let six = stored(6, b"]");
    let tensor = |all: &[u64]| {
        let numbers: Vec<u8> = all.iter().flat_map(|n| n.to_le_bytes()).collect();
        [b"K\x01.K\x02K\x01N\x87.", &numbers[..]].concat()
    };
    let flat = tensor(&[1, 6, 1, 0]);
    let shaped = |all: &[u64]| tar(&six, &tensor(all));
    let end = vec![0; 512];
    let sized = |size: &str| [&tarred("storages", size, &six)[..], &end].concat();
    let file = |name: &str| tarred(name, "0", b"");
    let many: Vec<u8> = (0..65).flat_map(|i| file(&i.to_string())).collect();
    let mut trial = Trial::new();
    trial.fine(vec![
        ("as it is", tar(&six, &flat)),
        (
            "a rank of which half counts",
            shaped(&[(1 << 32) + 1, 6, 1, 0]),
        ),
        ("nothing, anywhere", shaped(&[1, 0, 1, u64::MAX])),
    ]);
    for size in ["", "9", "x", "-1", "0x10", "1 1", "\u{7f}", "\u{80}"] {
        trial.refused(vec![(size, sized(size), Parse, &["size"])]);
    }
    trial.refused(vec![
        (
            "a size of 8 GiB",
            sized("77777777777"),
            Parse,
            &["truncated"],
        ),
        (
            "no files",
            [file("x"), end.clone()].concat(),
            Parse,
            &["`storages`"],
        ),
        (
            "a file twice",
            [file("x"), file("x")].concat(),
            Parse,
            &["twice"],
        ),
        ("65 files", many, Parse, &["files"]),
        (
            "a header that is none",
            [file("x"), vec![1; 512]].concat(),
            Parse,
            &["mark"],
        ),
        ("65 dimensions", shaped(&[65]), Parse, &["64"]),
        (
            "dimensions that are missing",
            shaped(&[64, 1]),
            Parse,
            &["truncated"],
        ),
        (
            "sizes that overflow",
            shaped(&[2, 1 << 32, 1 << 32, 1, 1, 0]),
            Parse,
            &["overflows"],
        ),
        (
            "a stride that overflows",
            shaped(&[1, 2, u64::MAX, 0]),
            Parse,
            &["lead out"],
        ),
        (
            "2^40 elements of one",
            shaped(&[1, 1 << 40, 0, 0]),
            Limit,
            &["4398046511104"],
        ),
        (
            "an offset that overflows",
            shaped(&[1, 1, 1, u64::MAX]),
            Parse,
            &["lead out"],
        ),
    ]);
    let long = |n| tar(&stored(n, b"]"), &flat);
    trial.refused_numbers(&[(
        "elements",
        &long,
        &[7, 1 << 62, u64::MAX],
        Parse,
        "truncated",
    )]);
    let any = [
        &int(i64::MAX)[..],
        b".|K\x01.K\x01Nctorch\nByteStorage\n\x87.\x06\0\0",
    ]
    .concat();
    let storages = |storages: &[u8]| tar(storages, &flat);
    check(
        &mut trial,
        "number",
        b"N.|J\xff\xff\xff\xff.|].|L99999999999999999999\n.",
        &storages,
    );
    check(
        &mut trial,
        "storage",
        b"K\x01.K\x01.|K\x01.).|K\x01.NNN\x87.|K\x01.K\x01Nctorch\nSize\n\x87.",
        &storages,
    );
    check(&mut trial, "truncated", &any, &storages);
    let tensors = |tensors: &[u8]| tar(&six, tensors);
    check(&mut trial, "number", b"N.|J\xff\xff\xff\xff.", &tensors);
    check(
        &mut trial,
        "tensor",
        b"K\x01.K\x01.|K\x01.).|K\0.",
        &tensors,
    );
    check(
        &mut trial,
        "key",
        b"K\x01.NNN\x87.|K\x01.]NN\x87.",
        &tensors,
    );
    check(&mut trial, "truncated", &any[..11], &tensors);
    let views = |views: &[u8]| tar(&stored(6, &[b"((K\x03K\x01", views, b"tt"].concat()), &flat);
    check(&mut trial, "leads out", b"K\x06K\x01|K\x07K\0", &views);
    check(
        &mut trial,
        "leads out",
        &[int(1 << 62), int(1 << 62)].concat(),
        &views,
    );
    check(&mut trial, "view", b"NK\x01|K\0N|K\0|", &views);
    // A storage with a long name, of which there are many views.
    let (key, view) = (text(&"k".repeat(1 << 18)), |i: i64| {
        [b"(", &int(i)[..], b"h\0K\0K\x01t"].concat()
    });
    let views: Vec<u8> = (10..20_010).flat_map(view).collect();
    let id = [b"K\x01.", &key[..], b"U\x03cpuctorch\nFloatStorage\n\x87."].concat();
    let views = [
        &id[..],
        &6u64.to_le_bytes(),
        &[0; 24],
        &key,
        b"q\x000(",
        &views,
        b"t.",
    ]
    .concat();
    trial.refused(vec![(
        "a long name of many views",
        tar(&views, &flat),
        Parse,
        &["storage is missing"],
    )]);
    check(&mut trial, "twice", b"((K\x01K\x01K\0K\x01tt", &|views| {
        tar(&stored(6, views), &flat)
    });
    trial.end();
}

#[test]
fn truncations_and_mutations() {
    let mut trial = Trial::new();
    let [archive, stream, tar] = files(["layout_old.bin", "legacy_tied.pt", "tar.pth"]);
    // What comes behind the empty header that ends an archive is no part of it.
    let end = tar
        .iter()
        .rposition(|&b| b != 0)
        .unwrap()
        .next_multiple_of(512)
        + 512;
    trial.truncations("archive", &archive);
    trial.truncations("stream", &stream);
    trial.truncations("tar", &tar[..end]);
    let names = [
        "layout_old.bin",
        "deflated.pt",
        "protocol_4.pt",
        "views.pt",
        "legacy_views.pt",
        "tar.pth",
    ];
    let good = trial.mutations(&files(names), 33);
    assert!(good > 100 && good < 4900, "{good}");
    trial.end();
}
