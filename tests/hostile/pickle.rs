//! Pickles that are malformed or hostile, as the machine sees them that runs them: opcodes, values, globals, and a lot
//! of anything. Each must give the right kind of error. Nothing may run, panic, take long or take much.
#![cfg(all(feature = "npz", feature = "pth"))]
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use anamnesis::{AnamnesisError, parse_bytes, pickle_globals};
use common::Random;
use common::pickle::*;
use common::trial::{Trial, exhaust};
use common::verdict::{Limit, Parse, Unsupported, verdict};
use common::zip::{Member, Zip, tarred};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

#[test]
fn opcodes() {
    let mut trial = Trial::new();
    trial.fine(vec![
        ("as it is", one(&good())),
        (
            "frames that lie",
            one(&[b"\x95\xff\xff\xff\xff\xff\xff\xff\xff", &good()[..]].concat()),
        ),
        (
            "a place far off in the memo",
            one(&[&good()[..], b"r\xff\xff\xff\xff0j\xff\xff\xff\xff"].concat()),
        ),
    ]);
    // Every opcode that takes something from the stack, where nothing is, and where only a mark is.
    let taking = b"0|1|2|R|b|a|e|l|t|d|s|u|o|Q|.|q\0|r\0\0\0\0|p0\n|\x81|\x85|\x86|\x87|\x90|\x91|\x92|\x93|\x94|\
        itorch\nSize\n";
    check(&mut trial, "pickle", taking, &|opcode| {
        archive(&[opcode, b"0."].concat())
    });
    // Some of them take the mark and go on; what is left holds no tensors.
    let marks = b"0|1|l|t|d|\x90|\x91|itorch\nSize\n";
    let is_mark = |opcode: &[u8]| marks.split(|&b| b == b'|').any(|mark| mark == opcode);
    let others: Vec<_> = taking
        .split(|&b| b == b'|')
        .filter(|opcode| !is_mark(opcode))
        .collect();
    let above = |opcode: &[u8]| archive(&[b"NNN(", opcode, b"0."].concat());
    check(&mut trial, "no tensors", marks, &above);
    check(&mut trial, "pickle: ", &others.join(&b'|'), &above);
    let known = b"(012pqrghjcioRbPQ]lae)t}dsuNJKMILFGSVUTXCB.\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\
        \x91\x92\x93\x94\x95\x96";
    for opcode in (0..=255).filter(|opcode| !known.contains(opcode)) {
        let words = [&format!("opcode {opcode:#04x}")[..]];
        trial.refused(vec![(
            words[0],
            archive(&[opcode, 0, 0, 0, 0, b'.']),
            Parse,
            &words,
        )]);
    }
    for opcode in [0x8d, 0x8e, 0x96] {
        let with = |n: u64| archive(&[&[opcode][..], &n.to_le_bytes(), b"."].concat());
        let lengths = [u64::MAX, u64::MAX - 20, 1 << 63, 1 << 40, 101 << 20];
        trial.refused_numbers(&[(
            &format!("opcode {opcode}"),
            &with,
            &lengths,
            Parse,
            "truncated",
        )]);
    }
    let protocol = |n| archive(&[0x80, n as u8, b'N', b'.']);
    trial.refused_numbers(&[(
        "protocol",
        &protocol,
        &[6, 127, 255],
        Unsupported,
        "protocol",
    )]);
    let cut = b"|\x80|N|I123|S'a'|ctorch\n|ctorch\nSize|J\0\0\0|G\0|\x95\0|\x8b\xff\xff\xff\x7f.|T\xff\xff\xff\xff.|\x8c\x09a.";
    check(&mut trial, "truncated", cut, &archive);
    check(
        &mut trial,
        "refers",
        b"h\xff.|Nj\xff\xff\xff\xff.|Nq\0h\x01.|Np7\ng8\n.",
        &archive,
    );
    check(
        &mut trial,
        "number",
        b"g-1\n.|Np4294967296\n.|Ix\n.|L-x\n.|F1,5\n.|I1e3\n.",
        &archive,
    );
    check(&mut trial, "quotes", b"S\n.|S'\n.", &archive);
    check(&mut trial, "name", b"NN\x93.|K\0K\0\x93.|]]\x93.", &archive);
    check(
        &mut trial,
        "UTF-8",
        b"c\xff\n\xff\n.|V\xc3\nU\x01a\x93.|(i\xff\n\xff\n.",
        &archive,
    );
    check(&mut trial, "class", b"(o.|NN(o.", &archive);
    let after = |opcodes: &[u8]| one(&[&good()[..], opcodes].concat());
    check(&mut trial, "list", b"Na|(NNe|)Na|}Na", &after);
    check(&mut trial, "dict", b"NNs|(NNu|]NNs|)NNs", &after);
    check(&mut trial, "without a value", b"}(Nu|}(NNNu|(Nd", &after);
    let view_of = |id: &[u8]| one(&[b"ctorch._utils\n_rebuild_tensor\n(", id, b"K\0))tR"].concat());
    check(&mut trial, "storage", b"P0\n|NQ|)Q", &view_of);
    trial.end();
}

/// Values that are called, built or used as keys and should not be, and values in themselves.
#[test]
fn values() {
    let (mut trial, tensor) = (Trial::new(), good());
    let odd = [
        b"N|\x88|K\x07|G\0\0\0\0\0\0\0\0|U\x01a|C\x01a|]|)|}|\x8f|",
        &tensor[..],
        b"|",
        &floats(),
    ]
    .concat();
    for call in [&b")R"[..], b")\x81", b")}\x92"] {
        check(&mut trial, "call", &odd, &|value| {
            one(&[value, call].concat())
        });
    }
    check(&mut trial, "no function", b"Float|Byte|QInt8", &|x| {
        one(&[b"ctorch\n", x, b"Storage\n)R"].concat())
    });
    // The state of an object changes no tensor, whatever it is.
    for state in [&b"Nb"[..], b"}b", b"]b", b"(}}tb", b"2b"] {
        let built = |value: &[u8]| [&int(7), value, state, b"s"].concat();
        let all: Vec<u8> = odd.split(|&b| b == b'|').flat_map(built).collect();
        trial.fine(vec![(
            "built",
            archive(&[b"}", &text("x")[..], &tensor, b"s", &all, b"."].concat()),
        )]);
    }
    let keys = b"\x8f|}|]|]q\0h\0a|]q\0h\0\x85a\x85|)\x85\x85\x85\x85\x85\x85|ctorch\nSize\n|";
    let keys = [&keys[..], &tensor, b"|", &floats()].concat();
    check(&mut trial, "key", &keys, &|key| {
        archive(&[b"}", key, &tensor, b"s."].concat())
    });
    let cycles = b"]q\0h\0a|]q\0]q\x01h\0aa|}q\0K\0h\0sK\x01h\0s|]q\0h\0h\0\x86a|]q\0h\0\x85a"
        .split(|&b| b == b'|');
    cycles.for_each(|cycle| {
        trial.refused(vec![(
            "in itself",
            archive(&[cycle, b"."].concat()),
            Limit,
            &["levels"],
        )])
    });
    trial.end();
}

/// A lot of something, from a little of it.
#[test]
fn amounts() {
    let many = |n: usize, opcodes: &[u8]| opcodes.repeat(n);
    let with = |parts: &[&[u8]]| archive(&[&parts.concat()[..], b"."].concat());
    let mib = |opcode: &[u8]| with(&[&many((1 << 20) / opcode.len(), opcode)]);
    let (mut trial, tensor) = (Trial::new(), good());
    let wide = [&b"("[..], &many(30, b"h\x02"), b"tq\x020"].concat();
    let key = [
        text(&"k".repeat(4000)),
        b"q\x020".to_vec(),
        many(3, &wide),
        b"}h\x02".to_vec(),
    ]
    .concat();
    let deep = [
        text(&"k".repeat(4000)),
        b"q\x010".to_vec(),
        many(50, b"}h\x01"),
        b"](".to_vec(),
    ]
    .concat();
    let entries = [
        b"ccollections\nOrderedDict\nq\0}(",
        &many(100_000, b"NN")[..],
        b"u\x85q\x010",
    ]
    .concat();
    let data = |data: Member, pickle: &[u8]| {
        Zip::of(&[Member::deflated("m/data.pkl", pickle), data]).file()
    };
    let bytes = [
        &b"\x80\x02B\0\0\xa0\0"[..],
        &vec![0; 10 << 20],
        b"0",
        &dict(&tensor),
    ]
    .concat();
    trial.fine(vec![(
        "10 MiB of bytes that go",
        data(Member::stored("m/data/0", &[0; 24]), &bytes),
    )]);
    let places = |n: usize| [&tensor[..], b"q\x030](", &many(n, b"h\x03"), b"e"].concat();
    trial.fine(vec![(
        "a tensor in 10 000 places",
        with(&[&places(10_000)]),
    )]);
    let refused = &b"ctorch._utils\n_rebuild_sparse_tensor\n)R"[..];
    let packed = [b"\x80\x02", &many(15 << 19, b"N0")[..], b"."].concat();
    let packed = data(Member::stored("m/data/0", &[0; 24]), &packed);
    let half = [
        &b"\x80\x02B\0\0\0\x01"[..],
        &Random(5).bytes(16 << 20),
        b"0",
        &many(12 << 20, b"N0"),
    ]
    .concat();
    let half = data(Member::stored("m/data/0", &[0; 24]), &half);
    // A dict of many entries, made time and again as what a subclass of tensors would be made of.
    let pairs = [
        b"K\0K\0\x86q\x010(",
        &many(100_000, b"h\x01")[..],
        b"l\x85q\x020",
    ]
    .concat();
    let typed =
        b"ctorch._tensor\n_rebuild_from_type_v2\n(ccollections\nOrderedDict\nctorch\nFloatTensor\nh\x02Ntq\x030";
    let call = b"ctorch._tensor\n_rebuild_from_type_v2\nq\x040](";
    let typed = with(&[&pairs, typed, call, &many(30_000, b"h\x04h\x03R"), b"e"]);
    let lie = Member::deflated("m/data/0", &[0; 24]).both(|h| h.len = 256 << 20);
    let of_lie = view(
        &storage("FloatStorage", &text("0"), 64 << 20),
        0,
        &[64 << 20],
        &[1],
    );
    let lie = data(lie, &[b"\x80\x02", &dict(&of_lie)[..]].concat());
    let what = "40 MiB of it, of which half does not compress";
    let len = half.len();
    let result = trial.watch(what, len, || parse_bytes(half)).unwrap();
    verdict(result, Limit, &["memory"])
        .into_iter()
        .for_each(|wrong| trial.fail(what, wrong));
    trial.refused(vec![
        ("1 MiB of lists", mib(b"]"), Limit, &["memory"]),
        ("1 MiB of nothing", mib(b"N"), Limit, &["memory"]),
        ("1 MiB of marks", mib(b"("), Limit, &["marks"]),
        ("1 MiB of protocols", mib(b"\x80\x02"), Parse, &["stack"]),
        (
            "1 MiB of copies",
            with(&[b"N", &many(1 << 20, b"2")]),
            Parse,
            &["no tensors"],
        ),
        (
            "lists in lists",
            with(&[&many(100_000, b"]"), &many(99_999, b"a")]),
            Limit,
            &["levels"],
        ),
        (
            "tuples in tuples",
            with(&[b")", &many(100_000, b"\x85")]),
            Limit,
            &["levels"],
        ),
        (
            "dicts in dicts",
            with(&[&many(100_000, b"}N"), b"}", &many(100_000, b"s")]),
            Limit,
            &["levels"],
        ),
        (
            "2^40 times one",
            with(&[&tensor, &many(40, b"2\x86")]),
            Limit,
            &["far more than the file"],
        ),
        (
            "2^40 times nothing",
            with(&[b"}", &many(40, b"2\x86")]),
            Limit,
            &["too often"],
        ),
        (
            "a tensor in 20 000 places",
            with(&[&places(20_000)]),
            Limit,
            &["far more than the file"],
        ),
        (
            "as many of none that is read",
            with(&[refused, &places(20_000)[tensor.len()..]]),
            Limit,
            &["far more than"],
        ),
        ("15 MiB of nothing, compressed", packed, Limit, &["memory"]),
        (
            "much that is no tensor's",
            typed,
            Limit,
            &["far more than the file"],
        ),
        (
            "copies of a dict",
            with(&[&entries, &many(1000, b"h\0h\x01R")]),
            Limit,
            &["memory"],
        ),
        (
            "a key of tuples in tuples",
            with(&[&key, &tensor, b"s"]),
            Parse,
            &["key"],
        ),
        (
            "much below a long name",
            with(&[&deep, &many(1000, b"]"), b"e", &many(50, b"s")]),
            Limit,
            &["far more than the file"],
        ),
        (
            "data of any length",
            lie,
            Parse,
            &["data/0", "cannot become"],
        ),
    ]);
    let metadata = [
        &floats()[..],
        b"q\x010ctorch._utils\n_rebuild_tensor_v2\nq\0(h\x01K\0))\x89N}",
    ]
    .concat();
    for (what, before, after) in [
        ("many arguments", &b"ctorch\ndevice\nq\0"[..], &b"t"[..]),
        (
            "much that is no entry of a dict",
            b"ccollections\nOrderedDict\nq\0",
            b"l\x85",
        ),
        ("much metadata of a tensor", &metadata, b"ut"),
    ] {
        trial.time(what, || exhaust(calls(12_000, before, after)).unwrap_err());
    }
    trial.end();
}

/// Globals that are not allowed, near to allowed ones or far from them: `module name`, one a line.
const GLOBALS: &str = "builtins eval\nbuiltins getattr\nbuiltins Set\n__builtin__ apply\nos system\nposix system\n\
    nt system\nsubprocess Popen\nrunpy _run_code\ntorch load\ntorch.hub load\nnumpy load\npickle loads\n\
    copyreg _reconstructor\nfunctools partial\noperator attrgetter\nimportlib import_module\nwebbrowser open\n\
    pty spawn\nTorch FloatStorage\ntorch floatStorage\ntorch FloatStorage \ntorch FloatStorage\u{a0}\n\
    torch FloatStorage\0\ntorch._utils _rebuild_tensor_v2\0\ntorch._utils _rebuild_tensor_v4\ntorch.Tensor T\n\
    torch._utils _import_dotted_name\ntorch _utils._rebuild_tensor_v2\ntorch._utils. _rebuild_tensor_v2\n\
    t\u{43e}rch FloatStorage\ntorch \u{200b}Size\ntorch\u{200b} Size\ntorch.cuda float32\ntorch.cuda Size\n\
    torch XTensor\ntorch FloatTensorTensor\ntorch.storage _load_from_bytes\ntorch.storage TypedStorage\r\n\
    _codecs decode\ncollections defaultdict\ncollections OrderedDict.update\ntorch \n Size\n ";

/// An instance of a class is refused by its class, and an opcode that there is not by its number and place.
#[test]
fn named_at_once() {
    let mut trial = Trial::new();
    let result = trial.try_file("INST", &archive(b"ix\nx\n"));
    assert!(
        matches!(&result, Some(Err(AnamnesisError::DisallowedGlobal { module, name })) if (&module[..], &name[..]) == ("x", "x")),
        "{result:?}"
    );
    trial.refused(vec![(
        "opcode",
        archive(b"NNN|x\nx\n."),
        Parse,
        &["opcode 0x7c at 5"],
    )]);
    trial.end();
}

#[test]
fn globals() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model");
    let command = [
        &text(&format!("touch {}/executed", place.path().display()))[..],
        b"\x85",
    ]
    .concat();
    let names: Vec<(&str, &str)> = GLOBALS
        .split('\n')
        .map(|global| global.split_once(' ').unwrap())
        .collect();
    let (mut trial, mut all) = (Trial::new(), [const { Vec::new() }; 3]);
    for &(module, name) in &names {
        let lines = format!("{module}\n{name}\n").into_bytes();
        let global = [b"c", &lines[..], &command, b"R"].concat();
        let stacked = [&text(module)[..], &text(name), b"\x93", &command, b"R"].concat();
        let instance = [b"(", &command[..], b"i", &lines].concat();
        for (pickle, all) in [global, stacked, instance].into_iter().zip(&mut all) {
            let result = trial.try_file(name, &archive(&[&pickle[..], b"."].concat()));
            let Some(Err(AnamnesisError::DisallowedGlobal { module: m, name: n })) = result else {
                panic!("{module}.{name}: {result:?}")
            };
            assert_eq!((module, name), (&m[..], &n[..]));
            all.extend([&pickle[..], b"0"].concat());
        }
    }
    for all in all {
        std::fs::write(&path, archive(&[&all[..], &good(), b"."].concat())).unwrap();
        let list = pickle_globals(&path).unwrap();
        let (allowed, refused): (Vec<_>, Vec<_>) = list.iter().partition(|g| g.allowed);
        assert!(
            refused
                .iter()
                .map(|g| (&g.module[..], &g.name[..]))
                .eq(names.iter().copied()),
            "{refused:?}"
        );
        assert_eq!(
            allowed.iter().map(|g| &g.name[..]).collect::<Vec<_>>(),
            ["_rebuild_tensor_v2", "FloatStorage"]
        );
    }
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    trial.end();
}

/// What is named is listed, whatever else is wrong with the file.
#[test]
fn lists_of_globals() {
    let place = tempfile::NamedTempFile::new().unwrap();
    let mut trial = Trial::new();
    let mut list = |bytes: &[u8]| {
        std::fs::write(&place, bytes).unwrap();
        trial.time("list", || pickle_globals(&place)).unwrap()
    };
    let many = |n: usize| {
        archive(((0..n).map(|i| format!("cx\n{i}\n")).collect::<String>() + ".").as_bytes())
    };
    assert_eq!(list(&many(4000)).unwrap().len(), 4000);
    assert_eq!(verdict(list(&many(60_000)), Limit, &["globals"]), None);
    let view = [
        &floats()[..],
        b"q\x010ctorch._utils\n_rebuild_tensor_v2\nq\0(h\x01K\0",
    ]
    .concat();
    assert!(
        list(&calls(300, &view, b"l2t"))
            .unwrap()
            .iter()
            .all(|g| g.allowed)
    );
    // A long name that costs little to name again, with one that is the same and one that is not.
    let long = [&text(&"m".repeat(1 << 18))[..], b"q\0U\x01xq\x01\x930"].concat();
    let again = |opcodes: &[u8], n: usize| archive(&[&long[..], &opcodes.repeat(n), b"."].concat());
    assert_eq!(list(&again(b"h\0h\x01\x930", 200_000)).unwrap().len(), 1);
    assert_eq!(
        verdict(list(&again(b"h\0U\x01x\x930", 200_000)), Limit, &["memory"]),
        None
    );
    let names: String = (0..4000).map(|i| format!("cx\n{i}\n0")).collect();
    let repeated = [names.as_bytes(), &b"cx\n3999\n0".repeat(200_000), b"."].concat();
    assert_eq!(list(&archive(&repeated)).unwrap().len(), 4000);
    let [good, stream, tar] = files(["state_dict.pth", "attack_legacy.pt", "attack_tar.pth"]);
    assert!(list(&good).unwrap().iter().all(|g| g.allowed));
    let odd: [&[u8]; 4] = [
        &stream,
        &tar,
        b"\x80\x02}cos\nsystem\nNs.",
        b"\x80\x02]q\0cos\nsystem\nah\0a.",
    ];
    let all = odd
        .map(|bytes| list(bytes).map(|list| list.iter().any(|g| g.name == "system" && !g.allowed)));
    assert!(all.iter().all(|found| matches!(found, Ok(true))), "{all:?}");
    // Neither what is wrong before a global hides it, nor what is wrong behind it.
    let sys = b"cos\nsystem\n";
    let wrong: [&[u8]; 16] = [
        b"",
        b"R",
        b")R",
        b"N)R",
        b"a",
        b"]a",
        b"e",
        b"Ns",
        b"u",
        b"h\x07",
        b"g-1\n",
        b"Ix\n",
        b"F1,5\n",
        b"\x82\x01",
        b"\x84\x01\0\0\0",
        b"\x97\x98",
    ];
    for (i, wrong) in wrong.iter().enumerate() {
        for pickle in [
            [wrong, &sys[..], b"."],
            [&sys[..], wrong, b"."],
            [&sys[..], wrong, b"|"],
            [&sys[..], wrong, b"X"],
        ] {
            let named = list(&archive(&pickle.concat())).unwrap();
            assert!(
                named.iter().any(|g| g.name == "system" && !g.allowed),
                "{i} {named:?}"
            );
        }
    }
    let marks = [&b"(".repeat(1000)[..], sys, b"."].concat();
    assert!(
        list(&archive(&marks))
            .unwrap()
            .iter()
            .any(|g| g.name == "system")
    );
    // A name that would be computed is none that could be found in the list.
    let computed = archive(b"cbuiltins\nstr\n)RU\x04Size\x93.");
    assert_eq!(
        list(&computed)
            .unwrap()
            .iter()
            .map(|g| (&g.module[..], g.allowed))
            .collect::<Vec<_>>(),
        [("builtins", false), ("?", false)]
    );
    // The magic number in other words, and a tar file whose first file is none.
    let spelled = b"\x80\x02L119547037146038801333356L\n.I1001\n.}.cos\nsystem\n.].";
    assert!(list(spelled).unwrap().iter().any(|g| g.name == "system"));
    let parts = [
        ("storages", &b"ctorch\nSize\n."[..]),
        ("tensors", b"K\0."),
        ("pickle", b"cos\nsystem\n."),
    ];
    let parts = parts.map(|(name, content)| tarred(name, &format!("{:o}", content.len()), content));
    assert!(
        list(&[parts.concat(), vec![0; 512]].concat())
            .unwrap()
            .iter()
            .any(|g| g.name == "system")
    );
    // Where nothing was named, what is wrong is the answer.
    assert_eq!(
        verdict(list(&archive(b"|.")), Parse, &["opcode 0x7c at 2"]),
        None
    );
    assert_eq!(verdict(list(b"\x80\x02X"), Parse, &["truncated"]), None);
    assert_eq!(
        verdict(list(b"nothing of the kind"), Unsupported, &["not a pickle"]),
        None
    );
    trial.end();
}
