//! Pickles that are malformed or hostile: opcodes, values, globals, and large amounts of each.
//! Nothing in them may run.

mod arrays;
mod globals;

use anamnesis::parse_bytes;

use crate::common::pickle::*;
use crate::common::verdict::{Limit, Parse, Unsupported, verdict};
use crate::common::zip::{Member, Zip};
use crate::common::{Random, effort};
use crate::monitor::Monitor;
use crate::trials::{Trial, try_everything};

/// Opcodes that end behind their frame, a frame in a frame, and a pickle that ends before its frame.
const FRAMES: &[u8] = b"\x95\x01\0\0\0\0\0\0\0K\x01|\x95\x03\0\0\0\0\0\0\0Vxxxx\n|\
    \x95\x0b\0\0\0\0\0\0\0N0\x95\x02\0\0\0\0\0\0\0NN0|\x95\x04\0\0\0\0\0\0\0N.NN";

#[test]
fn opcodes() {
    let mut trial = Trial::new();
    trial.fine(vec![
        ("as it is", one(&good())),
        ("frames that lie", one(&[b"\x95\xff\xff\xff\xff\xff\xff\xff\xff", &good()[..]].concat())),
        (
            "a place far off in the memo",
            one(&[&good()[..], b"r\xff\xff\xff\xff0j\xff\xff\xff\xff"].concat()),
        ),
    ]);
    // Every opcode that pops a value, on an empty stack and on a stack with only a mark.
    let taking = b"0|1|2|R|b|a|e|l|t|d|s|u|o|Q|.|q\0|r\0\0\0\0|p0\n|\x81|\x85|\x86|\x87|\x90|\x91|\x92|\x93|\x94|\
        itorch\nSize\n";
    trial.refused_pickles("pickle", taking, &|opcode| archive(&[opcode, b"0."].concat()));
    // Some of them pop the mark and continue; the result has no tensors.
    let marks = b"0|1|l|t|d|\x91|itorch\nSize\n";
    let is_mark = |opcode: &[u8]| marks.split(|&b| b == b'|').any(|mark| mark == opcode);
    let others: Vec<_> = taking
        .split(|&b| b == b'|')
        .filter(|opcode| !is_mark(opcode))
        .collect();
    let above = |opcode: &[u8]| archive(&[b"NNN(", opcode, b"0."].concat());
    trial.refused_pickles("no tensors", marks, &above);
    trial.refused_pickles("pickle: ", &others.join(&b'|'), &above);
    let known = b"(012pqrghjcioRbPQ]lae)t}dsuNJKMILFGSVUTXCB.\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\
        \x91\x92\x93\x94\x95\x96";
    for opcode in (0..=255).filter(|opcode| !known.contains(opcode)) {
        let words = [&format!("opcode {opcode:#04x}")[..]];
        trial.refused(vec![(words[0], archive(&[opcode, 0, 0, 0, 0, b'.']), Parse, &words)]);
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
    trial.refused_numbers(&[("protocol", &protocol, &[6, 127, 255], Unsupported, "protocol")]);
    trial.refused_pickles("frame", FRAMES, &|opcodes| archive(&[opcodes, b"0."].concat()));
    let cut = b"|\x80|N|I123|S'a'|ctorch\n|ctorch\nSize|J\0\0\0|G\0|\x95\0|\x8b\xff\xff\xff\x7f.|T\xff\xff\xff\xff.|\x8c\x09a.";
    trial.refused_pickles("truncated", cut, &archive);
    trial.refused_pickles("refers", b"h\xff.|Nj\xff\xff\xff\xff.|Nq\0h\x01.|Np7\ng8\n.", &archive);
    trial.refused_pickles("number", b"Ix\n.|L-x\n.|F1,5\n.|I1e3\n.", &archive);
    trial.refused_pickles("memo", b"g-1\n.", &archive);
    // Python takes any number for a place.
    trial.refused_pickles("no tensors", b"Np4294967296\n.", &archive);
    trial.refused_pickles("quotes", b"S\n.|S'\n.", &archive);
    trial.refused_pickles("name", b"NN\x93.|K\0K\0\x93.|]]\x93.", &archive);
    trial.refused_pickles("UTF-8", b"c\xff\n\xff\n.|(i\xff\n\xff\n.", &archive);
    trial.refused_pickles("class", b"(o.|NN(o.", &archive);
    let after = |opcodes: &[u8]| one(&[&good()[..], opcodes].concat());
    trial.refused_pickles("list", b"Na|(NNe|)Na|}Na", &after);
    trial.refused_pickles("dict", b"NNs|(NNu|]NNs|)NNs", &after);
    trial.refused_pickles("without a value", b"}(Nu|}(NNNu|(Nd", &after);
    let view_of = |id: &[u8]| one(&[b"ctorch._utils\n_rebuild_tensor\n(", id, b"K\0))tR"].concat());
    trial.refused_pickles("storage", b"P0\n|NQ|)Q", &view_of);
    trial.end();
}

/// Values that cannot be called, built or used as keys, and values that are invalid in themselves.
#[test]
fn values() {
    let mut trial = Trial::new();
    let tensor = good();
    let odd =
        [b"N|\x88|K\x07|G\0\0\0\0\0\0\0\0|U\x01a|C\x01a|]|)|}|\x8f|", &tensor[..], b"|", &floats()]
            .concat();
    for call in [&b")R"[..], b")\x81", b")}\x92"] {
        trial.refused_pickles("call", &odd, &|value| one(&[value, call].concat()));
    }
    trial.refused_pickles("no function", b"Float|Byte|QInt8", &|x| {
        one(&[b"ctorch\n", x, b"Storage\n)R"].concat())
    });
    // The state of an object of a class of tensors is a view of a storage of its type.
    let state = |storage: &[u8], rest: &[u8]| [b"(", storage, rest, b"t"].concat();
    let (whole, longs) = (b"K\0K\x06\x85K\x01\x85", storage("LongStorage", &text("0"), 3));
    for state in [
        b"N".to_vec(),
        b")".to_vec(),
        state(&floats(), b"K\0K\x06\x85"),
        state(&floats(), b"K\0K\x06\x85K\x01\x85N"),
        state(b"N", whole),
        state(&longs, whole),
        state(&floats(), b"J\xff\xff\xff\xffK\x06\x85K\x01\x85"),
    ] {
        for made in [&b")R"[..], b")\x81"] {
            let object = [&b"ctorch\nFloatTensor\n"[..], made, &state, b"b"].concat();
            trial.refused(vec![("a state", one(&object), Parse, &["a tensor"])]);
        }
    }
    // torch sets what a tensor is a view of to such a state.
    for state in [&b"N"[..], b"}", b"]", b"(}}t"] {
        let pickle = [b"}", &text("x")[..], &tensor, state, b"bs."].concat();
        trial.refused(vec![("a state", archive(&pickle), Parse, &["state"])]);
    }
    // The state of another object never changes a tensor.
    for state in [&b"Nb"[..], b"}b", b"]b", b"(}}tb", b"2b"] {
        let built = |(i, value): (usize, &[u8])| [&int(i as i64), value, state, b"s"].concat();
        let values = odd.split(|&b| b == b'|').enumerate();
        let values = values.filter(|(_, value)| *value != &tensor[..]);
        let all: Vec<u8> = values.flat_map(built).collect();
        trial.fine(vec![(
            "built",
            archive(&[b"}", &text("x")[..], &tensor, b"s", &all, b"."].concat()),
        )]);
    }
    let keys = b"\x8f|}|]|]q\0h\0a|]q\0h\0\x85a\x85|)\x85\x85\x85\x85\x85\x85|ctorch\nSize\n|";
    let keys = [&keys[..], &tensor, b"|", &floats()].concat();
    trial.refused_pickles("key", &keys, &|key| archive(&[b"}", key, &tensor, b"s."].concat()));
    let cycles = b"]q\0h\0a|]q\0]q\x01h\0aa|}q\0K\0h\0sK\x01h\0s|]q\0h\0h\0\x86a|]q\0h\0\x85a"
        .split(|&b| b == b'|');
    cycles.for_each(|cycle| {
        trial.refused(vec![("in itself", archive(&[cycle, b"."].concat()), Limit, &["levels"])]);
    });
    trial.end();
}

/// Small files that would become large values.
#[test]
fn large_amounts() {
    let mut trial = Trial::new();
    let many = |n: usize, opcodes: &[u8]| opcodes.repeat(n);
    let with = |parts: &[&[u8]]| archive(&[&parts.concat()[..], b"."].concat());
    let mib = |opcode: &[u8]| with(&[&many((1 << 20) / opcode.len(), opcode)]);
    let tensor = good();
    let wide = [&b"("[..], &many(30, b"h\x02"), b"tq\x020"].concat();
    let key =
        [text(&"k".repeat(4000)), b"q\x020".to_vec(), many(3, &wide), b"}h\x02".to_vec()].concat();
    let deep =
        [text(&"k".repeat(4000)), b"q\x010".to_vec(), many(50, b"}h\x01"), b"](".to_vec()].concat();
    let entries =
        [b"ccollections\nOrderedDict\nq\0}(", &many(100_000, b"NN")[..], b"u\x85q\x010"].concat();
    let data = |data: Member, pickle: &[u8]| {
        Zip::of(&[Member::deflated("m/data.pkl", pickle), data]).file()
    };
    let bytes = [&b"\x80\x02B\0\0\xa0\0"[..], &vec![0; 10 << 20], b"0", &dict(&tensor)].concat();
    trial.fine(vec![(
        "10 MiB of bytes that go",
        data(Member::stored("m/data/0", &[0; 24]), &bytes),
    )]);
    let places = |n: usize| [&tensor[..], b"q\x030](", &many(n, b"h\x03"), b"e"].concat();
    trial.fine(vec![("a tensor in 10 000 places", with(&[&places(10_000)]))]);
    let refused = &b"ctorch._utils\n_rebuild_sparse_tensor\n)R"[..];
    // A dict of many entries, passed again and again to the constructor of a tensor subclass.
    let pairs = [b"K\0K\0\x86q\x010(", &many(100_000, b"h\x01")[..], b"l\x85q\x020"].concat();
    let typed =
        b"ctorch._tensor\n_rebuild_from_type_v2\n(ccollections\nOrderedDict\nctorch\nFloatTensor\nh\x02Ntq\x030";
    let call = b"ctorch._tensor\n_rebuild_from_type_v2\nq\x040](";
    let typed = with(&[&pairs, typed, call, &many(30_000, b"h\x04h\x03R"), b"e"]);
    let lie = Member::deflated("m/data/0", &[0; 24]).both(|h| h.len = 256 << 20);
    let of_lie = view(&storage("FloatStorage", &text("0"), 64 << 20), 0, &[64 << 20], &[1]);
    let lie = data(lie, &[b"\x80\x02", &dict(&of_lie)[..]].concat());
    trial.refused(vec![
        ("1 MiB of lists", mib(b"]"), Limit, &["memory"]),
        ("1 MiB of nothing", mib(b"N"), Limit, &["memory"]),
        ("1 MiB of marks", mib(b"("), Limit, &["marks"]),
        ("1 MiB of protocols", mib(b"\x80\x02"), Parse, &["stack"]),
        ("1 MiB of copies", with(&[b"N", &many(1 << 20, b"2")]), Parse, &["no tensors"]),
        ("lists in lists", with(&[&many(100_000, b"]"), &many(99_999, b"a")]), Limit, &["levels"]),
        ("tuples in tuples", with(&[b")", &many(100_000, b"\x85")]), Limit, &["levels"]),
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
        ("2^40 times nothing", with(&[b"}", &many(40, b"2\x86")]), Limit, &["too often"]),
        ("a tensor in 20 000 places", with(&[&places(20_000)]), Limit, &["far more than the file"]),
        (
            "as many of none that is read",
            with(&[refused, &places(20_000)[tensor.len()..]]),
            Limit,
            &["far more than"],
        ),
        ("much that is no tensor's", typed, Limit, &["far more than the file"]),
        ("copies of a dict", with(&[&entries, &many(1000, b"h\0h\x01R")]), Limit, &["memory"]),
        ("a key of tuples in tuples", with(&[&key, &tensor, b"s"]), Parse, &["key"]),
        (
            "much below a long name",
            with(&[&deep, &many(1000, b"]"), b"e", &many(50, b"s")]),
            Limit,
            &["far more than the file"],
        ),
        ("data of any length", lie, Parse, &["data/0", "cannot become"]),
    ]);
    let metadata =
        [&floats()[..], b"q\x010ctorch._utils\n_rebuild_tensor_v2\nq\0(h\x01K\0))\x89N}"].concat();
    for (what, before, after) in [
        ("many arguments", &b"ctorch\ndevice\nq\0"[..], &b"t"[..]),
        ("much that is no entry of a dict", b"ccollections\nOrderedDict\nq\0", b"l\x85"),
        ("much metadata of a tensor", &metadata, b"ut"),
    ] {
        let calls = calls(12_000, before, after);
        trial.measure(what, calls.len(), || try_everything(calls.clone()).unwrap_err());
    }
    trial.end();
}

/// Millions of opcodes that are short once compressed. Where nothing is optimised they take seconds
/// of any time, so time is limited in the gate alone.
#[test]
fn millions_of_opcodes() {
    if Monitor::LIMITS_TIME && effort([true, false, false]) {
        return;
    }
    let mut trial = Trial::new();
    let file = |pickle: &[&[u8]]| {
        let data = Member::stored("m/data/0", &[0; 24]);
        Zip::of(&[Member::deflated("m/data.pkl", &pickle.concat()), data]).file()
    };
    let half =
        [&b"\x80\x02B\0\0\0\x01"[..], &Random(5).bytes(16 << 20), b"0", &b"N0".repeat(12 << 20)];
    let (what, half) = ("40 MiB of it, of which half does not compress", file(&half));
    let len = half.len();
    let result = trial.watch(what, len, || parse_bytes(half)).unwrap();
    verdict(result, Limit, &["memory"])
        .into_iter()
        .for_each(|wrong| trial.fail(what, wrong));
    let packed = file(&[b"\x80\x02", &b"N0".repeat(15 << 19), b"."]);
    trial.refused(vec![("15 MiB of nothing, compressed", packed, Limit, &["memory"])]);
    trial.end();
}
