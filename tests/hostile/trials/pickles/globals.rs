//! Globals that are not allowed, and the list of globals that a file names.

use anamnesis::{AnamnesisError, pickle_globals};

use crate::common::pickle::*;
use crate::common::verdict::{Limit, Parse, Unsupported, verdict};
use crate::common::zip::tarred;
use crate::trials::Trial;

/// Globals that are not allowed, some of them similar to allowed ones: `module name`, one per line.
const GLOBALS: &str = "builtins eval\nbuiltins getattr\nbuiltins Set\n__builtin__ apply\nos system\nposix system\n\
    nt system\nsubprocess Popen\nrunpy _run_code\ntorch load\ntorch.hub load\nnumpy load\npickle loads\n\
    copyreg _reconstructor\nfunctools partial\noperator attrgetter\nimportlib import_module\nwebbrowser open\n\
    pty spawn\nTorch FloatStorage\ntorch floatStorage\ntorch FloatStorage \ntorch FloatStorage\u{a0}\n\
    torch FloatStorage\0\ntorch._utils _rebuild_tensor_v2\0\ntorch._utils _rebuild_tensor_v4\ntorch.Tensor T\n\
    torch._utils _import_dotted_name\ntorch _utils._rebuild_tensor_v2\ntorch._utils. _rebuild_tensor_v2\n\
    t\u{43e}rch FloatStorage\ntorch \u{200b}Size\ntorch\u{200b} Size\ntorch.cuda float32\ntorch.cuda Size\n\
    torch XTensor\ntorch FloatTensorTensor\ntorch.storage _load_from_bytes\ntorch.storage TypedStorage\r\n\
    _codecs decode\ncollections defaultdict\ncollections OrderedDict.update\ntorch \n Size\n ";

/// The error for an instance names its class; the error for an unknown opcode names its number and
/// place.
#[test]
fn classes_and_opcodes_are_named() {
    let mut trial = Trial::new();
    let result = trial.try_file("INST", &archive(b"ix\nx\n"));
    assert!(
        matches!(&result, Some(Err(AnamnesisError::DisallowedGlobal { module, name })) if (&module[..], &name[..]) == ("x", "x")),
        "{result:?}"
    );
    trial.refused(vec![("opcode", archive(b"NNN|x\nx\n."), Parse, &["opcode 0x7c at 5"])]);
    trial.end();
}

#[test]
fn globals() {
    let mut trial = Trial::new();
    let place = crate::common::tempdir().unwrap();
    let path = place.path().join("model");
    let command =
        [&text(&format!("touch {}/executed", place.path().display()))[..], b"\x85"].concat();
    let names: Vec<(&str, &str)> = GLOBALS
        .split('\n')
        .map(|global| global.split_once(' ').unwrap())
        .collect();
    let mut all = [const { Vec::new() }; 3];
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

/// `pickle_globals` lists every global that is named, whatever else is wrong with the file.
#[test]
fn lists_of_globals() {
    let mut trial = Trial::new();
    let place = tempfile::NamedTempFile::new().unwrap();
    let mut list = |bytes: &[u8]| {
        std::fs::write(&place, bytes).unwrap();
        trial
            .measure("list", bytes.len(), || pickle_globals(&place))
            .unwrap()
    };
    let many = |n: usize| {
        archive(((0..n).map(|i| format!("cx\n{i}\n")).collect::<String>() + ".").as_bytes())
    };
    assert_eq!(list(&many(4000)).unwrap().len(), 4000);
    assert_eq!(verdict(list(&many(60_000)), Limit, &["globals"]), None);
    let view = [&floats()[..], b"q\x010ctorch._utils\n_rebuild_tensor_v2\nq\0(h\x01K\0"].concat();
    assert!(
        list(&calls(300, &view, b"l2t"))
            .unwrap()
            .iter()
            .all(|g| g.allowed)
    );
    // A long name that is memoised and named again, beside the same name spelt out and a different
    // one.
    let long = [&text(&"m".repeat(1 << 18))[..], b"q\0U\x01xq\x01\x930"].concat();
    let again = |opcodes: &[u8], n: usize| archive(&[&long[..], &opcodes.repeat(n), b"."].concat());
    assert_eq!(list(&again(b"h\0h\x01\x930", 200_000)).unwrap().len(), 1);
    assert_eq!(verdict(list(&again(b"h\0U\x01x\x930", 200_000)), Limit, &["memory"]), None);
    let names: String = (0..4000).map(|i| format!("cx\n{i}\n0")).collect();
    let repeated = [names.as_bytes(), &b"cx\n3999\n0".repeat(200_000), b"."].concat();
    assert_eq!(list(&archive(&repeated)).unwrap().len(), 4000);
    let [good, stream, tar] = files(["state_dict.pth", "attack_legacy.pt", "attack_tar.pth"]);
    assert!(list(&good).unwrap().iter().all(|g| g.allowed));
    let odd: [&[u8]; 4] =
        [&stream, &tar, b"\x80\x02}cos\nsystem\nNs.", b"\x80\x02]q\0cos\nsystem\nah\0a."];
    let all = odd
        .map(|bytes| list(bytes).map(|list| list.iter().any(|g| g.name == "system" && !g.allowed)));
    assert!(all.iter().all(|found| matches!(found, Ok(true))), "{all:?}");
    // An error before or after a global does not hide it.
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
            assert!(named.iter().any(|g| g.name == "system" && !g.allowed), "{i} {named:?}");
        }
    }
    let marks = [&b"(".repeat(1000)[..], sys, b"."].concat();
    assert!(
        list(&archive(&marks))
            .unwrap()
            .iter()
            .any(|g| g.name == "system")
    );
    // A name that the pickle computes is not on the list of allowed ones.
    let computed = archive(b"cbuiltins\nstr\n)RU\x04Size\x93.");
    assert_eq!(
        list(&computed)
            .unwrap()
            .iter()
            .map(|g| (&g.module[..], g.allowed))
            .collect::<Vec<_>>(),
        [("builtins", false), ("?", false)]
    );
    // The magic number spelt with other opcodes, and a tar file whose first member is not expected.
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
    // If no global is named, the error is returned.
    assert_eq!(verdict(list(&archive(b"|.")), Parse, &["opcode 0x7c at 2"]), None);
    assert_eq!(verdict(list(b"\x80\x02X"), Parse, &["truncated"]), None);
    assert_eq!(verdict(list(b"nothing of the kind"), Unsupported, &["not a pickle"]), None);
    trial.end();
}
