//! `amn scan`, and `--allow-opaque`.

use crate::amn;
use crate::common::data;
use crate::common::pickle::{archive, good, int, text};

fn at(name: &str) -> String {
    data().join(name).to_string_lossy().into_owned()
}

fn scan(arguments: &[&str]) -> (Option<i32>, String) {
    let output = amn(&[&["scan"], arguments].concat());
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn files_are_graded() {
    for safe in [
        "demo/checkpoint.pth",
        "demo/model-fp8.safetensors",
        "demo/model-q4_k.gguf",
        "demo/arrays.npz",
        "npz/bf16_little.npy",
    ] {
        assert_eq!(scan(&[&at(safe)]), (Some(0), "1 file: safe\n".to_owned()), "{safe}");
    }
    let (code, text) = scan(&[&at("demo/checkpoint.pth"), &at("pth/attack_eval.pt")]);
    let path = at("pth/attack_eval.pt");
    let expected = format!("dangerous   {path}\n  dangerous   builtins.eval\n2 files: dangerous\n");
    assert_eq!((code, text), (Some(8), expected));
    let (code, text) = scan(&["-v", &at("demo/checkpoint.pth")]);
    assert_eq!(code, Some(0));
    assert!(text.contains("  safe        collections.OrderedDict\n"), "{text}");
}

/// No attack is safe, and what names a known function is dangerous.
#[test]
fn attacks_are_found() {
    let mut dangerous = 0;
    for entry in std::fs::read_dir(data().join("pth")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("attack_") {
            continue;
        }
        let (code, text) = scan(&[path.to_str().unwrap()]);
        assert!(matches!(code, Some(1 | 8)), "{name}: {text}");
        let listed = amn(&["inspect", path.to_str().unwrap(), "--globals"]);
        let listed = String::from_utf8(listed.stdout).unwrap();
        let known = [
            ".eval",
            ".exec",
            "os.system",
            "posix.system",
            "nt.system",
            "getattr",
            "__import__",
            "?",
        ];
        let refused = listed.lines().filter(|line| line.starts_with("refused"));
        if refused
            .into_iter()
            .any(|line| known.iter().any(|word| line.ends_with(word)))
        {
            assert_eq!(code, Some(8), "{name}: {text}{listed}");
            dangerous += 1;
        }
    }
    assert!(dangerous > 10, "{dangerous}");
}

#[test]
fn directories_and_what_cannot_be_read() {
    let directory = crate::common::tempdir().unwrap();
    let below = directory.path().join("a/b");
    std::fs::create_dir_all(&below).unwrap();
    std::fs::copy(at("demo/model-fp8.safetensors"), below.join("m.safetensors")).unwrap();
    std::fs::write(below.join("README.md"), "hello").unwrap();
    let path = directory.path().to_str().unwrap();
    assert_eq!(scan(&[path]), (Some(0), "2 files: safe\n".to_owned()));
    // Protocol 0 has no mark at its beginning.
    std::fs::write(below.join("old.pkl"), "cos\nsystem\n(S'ls'\ntR.").unwrap();
    let (code, text) = scan(&[path]);
    assert_eq!(code, Some(8), "{text}");
    assert!(text.contains("  dangerous   os.system\n"), "{text}");
    // What is no pickle is not known.
    std::fs::write(below.join("old.pkl"), [0xfe; 9]).unwrap();
    let (code, text) = scan(&[path]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("a file of this name may be unpickled"), "{text}");
    std::fs::copy(at("pth/attack_os.pt"), below.join("os.bin")).unwrap();
    assert_eq!(scan(&[path]).0, Some(8));
    // Objects of an array are unpickled, and these are numbers and text.
    assert_eq!(scan(&[&at("npz/no_tensors_among.npz")]).0, Some(0));
    assert_eq!(scan(&[&format!("{path}/none")]).0, Some(7));
    assert_eq!(scan(&[]).0, Some(2));
}

/// An opcode that ends behind its frame: Python's unpickler in C drops the rest of a frame that lies
/// in its buffer, so it runs other opcodes than those that stand in the file.
#[test]
fn opcodes_end_in_their_frames() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.pkl");
    let framed = |len: u64, body: &[u8]| {
        let len = len.to_le_bytes();
        [&b"\x80\x05\x95"[..], &len, body, b"."].concat()
    };
    let outer = |len: u64, inner: u64| {
        let inner = inner.to_le_bytes();
        framed(len, &[&b"N\x95"[..], &inner, b"0N"].concat())
    };
    let buried = [&b"NB\x20\0\0\0cos\nsystem\nV"[..], &[b' '; 18], b"\n\x85R0"].concat();
    for pickle in [
        framed(3, &buried),
        framed(1, b"K\x07"),
        framed(3, b"\x8c\x03abc"),
        framed(4, b"Vhello\n"),
        framed(5, b"ccollections\nOrderedDict\n"),
        outer(30, 2),
        outer(11, 3),
        // A pickle that ends before its frame: the next one begins behind the frame.
        [&framed(7, b"N")[..], b"B\xff\0\0\0\x80\x05cos\nsystem\nV\n\x85R."].concat(),
    ] {
        std::fs::write(&path, &pickle).unwrap();
        let (code, text) = scan(&[path.to_str().unwrap()]);
        assert_eq!(code, Some(1), "{pickle:?}: {text}");
        assert!(text.contains("end in its frame"), "{text}");
        // Behind other beginnings, too.
        std::fs::write(&path, [&b"GGUF\0\0\0\0\x000"[..], &pickle].concat()).unwrap();
        let (code, text) = scan(&[path.to_str().unwrap()]);
        assert_eq!(code, Some(1), "{pickle:?}: {text}");
    }
    for pickle in [
        framed(3, b"K\x07"),
        framed(1, b"N0K\x07"),
        framed(2, b"NN\x95\x02\0\0\0\0\0\0\x000\x94"),
        framed(99, b"N"),
    ] {
        std::fs::write(&path, &pickle).unwrap();
        let (code, text) = scan(&[path.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{pickle:?}: {text}");
    }
}

/// What is not followed in a directory is told.
#[cfg(unix)]
#[test]
fn links_are_told() {
    use std::os::unix::fs::symlink;
    let directory = crate::common::tempdir().unwrap();
    let [inner, other] = ["inner", "other"].map(|name| directory.path().join(name));
    std::fs::create_dir(&inner).unwrap();
    std::fs::create_dir(&other).unwrap();
    std::fs::copy(at("pth/attack_os.pt"), other.join("x.pt")).unwrap();
    let path = inner.to_str().unwrap();
    symlink(&other, inner.join("link")).unwrap();
    let (code, text) = scan(&[path]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("a link to a directory"), "{text}");
    std::fs::remove_file(inner.join("link")).unwrap();
    symlink("nowhere", inner.join("link")).unwrap();
    assert_eq!(scan(&[path]).0, Some(1));
    std::fs::remove_file(inner.join("link")).unwrap();
    symlink(other.join("x.pt"), inner.join("link")).unwrap();
    assert_eq!(scan(&[path]).0, Some(8));
}

/// `{"w": tensor, "args": OBJECT(a=1)}` in an archive of torch's.
fn checkpoint(module: &str, name: &str) -> Vec<u8> {
    let tensor = good();
    let object = format!("c{module}\n{name}\n)R}}(");
    let pickle = [
        &b"}("[..],
        &text("w"),
        &tensor,
        &text("args"),
        object.as_bytes(),
        &text("a"),
        &int(1),
        b"ubu.",
    ];
    archive(&pickle.concat())
}

#[test]
fn objects_may_be_opaque() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.pt");
    let out = directory.path().join("m.safetensors");
    let (input, output) = (path.to_str().unwrap(), out.to_str().unwrap());
    std::fs::write(&path, checkpoint("argparse", "Namespace")).unwrap();
    let (code, found) = scan(&[input]);
    assert_eq!(code, Some(1));
    assert!(found.contains("  suspicious  argparse.Namespace\n"), "{found}");
    let remember =
        |arguments: &[&str]| amn(&[&["remember", input, "-o", output], arguments].concat());
    assert_eq!(remember(&[]).status.code(), Some(5));
    assert_eq!(
        remember(&["--allow-opaque", "argparse.Other"])
            .status
            .code(),
        Some(5)
    );
    let run = remember(&["--allow-opaque", "argparse.Namespace"]);
    let told = String::from_utf8_lossy(&run.stdout);
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(
        told.contains(
            "Note: objects of argparse.Namespace are opaque: what they hold is not read\n"
        ),
        "{told}"
    );
    let written = anamnesis::parse(&out).unwrap();
    assert_eq!(written.tensors().map(|t| t.name()).collect::<Vec<_>>(), ["w"]);
    // What runs code is no opaque value, whatever the user says.
    std::fs::write(&path, checkpoint("os", "system")).unwrap();
    assert_eq!(scan(&[input]).0, Some(8));
    let run = remember(&["--allow-opaque", "os.system", "-f"]);
    assert_eq!(run.status.code(), Some(5));
}

/// A class as the key of a dict, as Lightning files the states of callbacks.
#[test]
fn classes_may_be_keys() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.ckpt");
    let out = directory.path().join("m.safetensors");
    let tensor = good();
    let callback = &b"clightning.callbacks\nCheckpoint\n"[..];
    let pickle = [
        &b"}("[..],
        &text("w"),
        &tensor,
        &text("callbacks"),
        b"}",
        callback,
        b"}",
        &text("best"),
        &tensor,
        b"ssu.",
    ];
    std::fs::write(&path, archive(&pickle.concat())).unwrap();
    let (input, output) = (path.to_str().unwrap(), out.to_str().unwrap());
    let remember = |more: &[&str]| amn(&[&["remember", input, "-o", output], more].concat());
    assert_eq!(remember(&[]).status.code(), Some(5));
    // What is under the class is a tensor, which is not lost without a word.
    let opaque = ["--allow-opaque", "lightning.callbacks.Checkpoint"];
    assert_eq!(remember(&opaque).status.code(), Some(6));
    let run = remember(&[opaque[0], opaque[1], "--skip-unsupported"]);
    let told = String::from_utf8_lossy(&run.stdout);
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(told.contains("class"), "{told}");
    let written = anamnesis::parse(&out).unwrap();
    assert_eq!(written.tensors().map(|t| t.name()).collect::<Vec<_>>(), ["w"]);
}
