//! Checkpoints of the oldest formats: streams of pickles, and tar files.

use crate::common::pickle::*;
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::common::zip::tarred;
use crate::trials::{Trial, try_everything};

#[test]
fn streams() {
    let mut trial = Trial::new();
    let (root, keys) = (dict(&good()), [b"]", &text("0")[..], b"a"].concat());
    let with = |n: u64, bytes: usize| stream(&root, &keys, &[(n, bytes)]);
    let double = view(&storage("DoubleStorage", &text("0"), 6), 0, &[1], &[1]);
    let both = [b"](", &good()[..], &double, b"e."].concat();
    let longer = view(&storage("FloatStorage", &text("0"), 7), 0, &[1], &[1]);
    let lengths = [b"](", &good()[..], &longer, b"e."].concat();
    trial.fine(vec![("as it is", with(6, 24))]);
    trial.refused(vec![
        ("no keys", stream(&root, b"]", &[]), Parse, &["`0`"]),
        ("a key twice", stream(&root, b"](U\x010U\x010e", &[(6, 24), (6, 24)]), Parse, &["twice"]),
        ("a key of another", stream(&root, b"]U\x011a", &[(6, 24)]), Parse, &["storage"]),
        ("a storage of two types", stream(&both, &keys, &[(6, 24)]), Parse, &["types"]),
        ("an element less", with(5, 20), Parse, &["5 elements", "say 6"]),
        ("an element more", with(7, 28), Parse, &["7 elements", "say 6"]),
        ("a storage of two lengths", stream(&lengths, &keys, &[(6, 24)]), Parse, &["lengths"]),
        ("a byte behind it", with(6, 25), Parse, &["behind"]),
    ]);
    trial.refused_numbers(&[(
        "elements",
        &|n| with(n, 24),
        &[7, (1 << 62) + 6, u64::MAX],
        Parse,
        "truncated",
    )]);
    trial.refused_pickles("key", b"N|}|]]a|]Na|]G\0\0\0\0\0\0\0\0a", &|keys| {
        stream(&root, keys, &[(6, 24)])
    });
    // Many empty storages, behind a large pickle and before a large storage.
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
    trial.measure("many storages of nothing", many.len(), || {
        try_everything(many.clone()).unwrap_err()
    });
    // A storage with a long name and many views.
    let (key, of_long) = (text(&"k".repeat(1 << 18)), view(b"h\0", 0, &[1], &[1]));
    let views = (0..800)
        .flat_map(|i| [&int(i)[..], &of_long, b"s"].concat())
        .collect::<Vec<u8>>();
    let root = [&storage("FloatStorage", &key, 6)[..], b"q\x000}", &views, b"."].concat();
    let views = stream(&root, &[b"]", &key[..], b"a"].concat(), &[(6, 24)]);
    trial.measure("a long name of many views", views.len(), || {
        try_everything(views.clone()).unwrap()
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
    let mut trial = Trial::new();
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
    trial.fine(vec![
        ("as it is", tar(&six, &flat)),
        ("a rank of which half counts", shaped(&[(1 << 32) + 1, 6, 1, 0])),
        ("nothing, anywhere", shaped(&[1, 0, 1, u64::MAX])),
    ]);
    for size in ["", "9", "x", "-1", "0x10", "1 1", "\u{7f}", "\u{80}"] {
        trial.refused(vec![(size, sized(size), Parse, &["size"])]);
    }
    trial.refused(vec![
        ("a size of 8 GiB", sized("77777777777"), Parse, &["truncated"]),
        ("no files", [file("x"), end.clone()].concat(), Unsupported, &["tar archive", "holds x"]),
        ("a file twice", [file("x"), file("x")].concat(), Parse, &["twice"]),
        ("65 files", many, Parse, &["files"]),
        ("a header that is none", [file("x"), vec![1; 512]].concat(), Parse, &["checksum"]),
        ("65 dimensions", shaped(&[65]), Parse, &["64"]),
        ("dimensions that are missing", shaped(&[64, 1]), Parse, &["truncated"]),
        ("sizes that overflow", shaped(&[2, 1 << 32, 1 << 32, 1, 1, 0]), Parse, &["overflows"]),
        ("a stride that overflows", shaped(&[1, 2, u64::MAX, 0]), Parse, &["lead out"]),
        ("2^40 elements of one", shaped(&[1, 1 << 40, 0, 0]), Limit, &["4398046511104"]),
        ("an offset that overflows", shaped(&[1, 1, 1, u64::MAX]), Parse, &["lead out"]),
    ]);
    let long = |n| tar(&stored(n, b"]"), &flat);
    trial.refused_numbers(&[("elements", &long, &[7, 1 << 62, u64::MAX], Parse, "truncated")]);
    let any = [&int(i64::MAX)[..], b".|K\x01.K\x01Nctorch\nByteStorage\n\x87.\x06\0\0"].concat();
    let storages = |storages: &[u8]| tar(storages, &flat);
    trial.refused_pickles(
        "number",
        b"N.|J\xff\xff\xff\xff.|].|L99999999999999999999\n.",
        &storages,
    );
    trial.refused_pickles(
        "storage",
        b"K\x01.K\x01.|K\x01.).|K\x01.NNN\x87.|K\x01.K\x01Nctorch\nSize\n\x87.",
        &storages,
    );
    trial.refused_pickles("truncated", &any, &storages);
    let tensors = |tensors: &[u8]| tar(&six, tensors);
    trial.refused_pickles("number", b"N.|J\xff\xff\xff\xff.", &tensors);
    trial.refused_pickles("tensor", b"K\x01.K\x01.|K\x01.).|K\0.", &tensors);
    trial.refused_pickles("key", b"K\x01.NNN\x87.|K\x01.]NN\x87.", &tensors);
    trial.refused_pickles("truncated", &any[..11], &tensors);
    let views = |views: &[u8]| tar(&stored(6, &[b"((K\x03K\x01", views, b"tt"].concat()), &flat);
    trial.refused_pickles("leads out", b"K\x06K\x01|K\x07K\0", &views);
    trial.refused_pickles("leads out", &[int(1 << 62), int(1 << 62)].concat(), &views);
    trial.refused_pickles("view", b"NK\x01|K\0N|K\0|", &views);
    // A storage with a long name and many views.
    let (key, view) =
        (text(&"k".repeat(1 << 18)), |i: i64| [b"(", &int(i)[..], b"h\0K\0K\x01t"].concat());
    let views: Vec<u8> = (10..20_010).flat_map(view).collect();
    let id = [b"K\x01.", &key[..], b"U\x03cpuctorch\nFloatStorage\n\x87."].concat();
    let views = [&id[..], &6u64.to_le_bytes(), &[0; 24], &key, b"q\x000(", &views, b"t."].concat();
    trial.refused(vec![(
        "a long name of many views",
        tar(&views, &flat),
        Parse,
        &["storage is missing"],
    )]);
    trial.refused_pickles("twice", b"((K\x01K\x01K\0K\x01tt", &|views| {
        tar(&stored(6, views), &flat)
    });
    trial.end();
}
