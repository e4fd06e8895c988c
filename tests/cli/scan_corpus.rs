//! Pickles that run a command, in whatever they are wrapped: none is graded safe. That Python, torch,
//! NumPy or joblib run each is checked by `tests/data/generate/check_scan.py`, which has the same
//! tables and more.

use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use crate::amn;
use crate::common::data;
use crate::common::zip::{Member, Zip};

/// Pickles that call `os.system` or `posix.system`, by how they are written.
const PAYLOADS: &[(&str, &[u8])] = &[
    ("protocol 0", b"cos\nsystem\n(S'true'\ntR."),
    ("INST", b"(S'true'\nios\nsystem\n."),
    ("OBJ", b"(cos\nsystem\nU\x04trueo."),
    ("protocol 2", b"\x80\x02cposix\nsystem\nU\x04true\x85R."),
    ("protocol 4", b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."),
    ("escapes", b"S'o\\x73'\nS'syst\\145m'\n\x93(S'true'\ntR."),
    ("escapes of Unicode", b"V\\u006fs\nVsyste\\u006d\n\x93(Vtrue\ntR."),
    ("a number before", b"I0x10\n0cos\nsystem\n(S'true'\ntR."),
    ("a float before", b"F1_0.0\n0cos\nsystem\n(S'true'\ntR."),
    ("MZ before", b"MZ\x000cos\nsystem\n(S'true'\ntR."),
    ("GGUF before", b"GGUF\x03\0\0\0\x000cos\nsystem\n(S'true'\ntR."),
    ("U and bytes before", b"U\x07QNAT\0\0\x000cos\nsystem\n(S'true'\ntR."),
    (
        "an underscore in the memo",
        b"\x80\x02U\x02osU\x06systemU\x01aU\x01bp1_0\np1_0\n00\x93(U\x04truetR.",
    ),
    ("spaces in the memo", b"cos\nsystem\np 7\n0g+0_7\n(S'true'\ntR."),
    ("a large place in the memo", b"cos\nsystem\np99999999999\n0g99999999999\n(S'true'\ntR."),
    ("arguments in a list", b"cos\nsystem\n(lS'true'\naR."),
    ("a second pickle", b"\x80\x02}.\x80\x02cos\nsystem\n(S'true'\ntR."),
    ("a third pickle", b"N.N.cos\nsystem\n(S'true'\ntR."),
    ("a harmless call before", b"ccollections\nOrderedDict\n)R0cos\nsystem\n(S'true'\ntR."),
    ("protocol 2 of Python 2", b"c__builtin__\neval\n(S'1'\ntR."),
    ("a name with dots", b"\x80\x04\x8c\x0btorch.serial\x8c\x08os.execv\x93)R."),
];

type Wrapper = (&'static str, fn(&[u8]) -> Vec<u8>);

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zip(name: &str, bytes: &[u8]) -> Vec<u8> {
    Zip::of(&[Member::stored(name, bytes)]).file()
}

fn checkpoint(bytes: &[u8]) -> Vec<u8> {
    zip("archive/data.pkl", bytes)
}

/// A tar archive of one file of the type `kind`, with a header as the oldest programs wrote it.
fn tar(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    header[..6].copy_from_slice(b"pickle");
    header[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
    header[156] = kind;
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().copied().map(u32::from).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let padding = bytes.len().next_multiple_of(512) - bytes.len();
    [&header[..], bytes, &vec![0; padding + 1024]].concat()
}

/// An array of objects, which are `bytes`.
fn objects(bytes: &[u8]) -> Vec<u8> {
    let header =
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }                         \n";
    let len = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &len[..], header.as_bytes(), bytes].concat()
}

const WRAPPERS: &[Wrapper] = &[
    ("bare", <[u8]>::to_vec),
    ("gzip", gzip),
    ("zlib", zlib),
    ("gzip in gzip", |bytes| gzip(&gzip(bytes))),
    ("a member", |bytes| zip("model.pkl", bytes)),
    ("a member without ending", |bytes| zip("x", bytes)),
    ("archives in archives", |bytes| zip("a.zip", &gzip(&tar(b'0', &zip("x", bytes))))),
    ("a checkpoint", checkpoint),
    ("another member of a checkpoint", |bytes| {
        let main = Member::stored("a/data.pkl", b"\x80\x02}.");
        Zip::of(&[main, Member::stored("a/DATA.PKL", bytes)]).file()
    }),
    ("a storage of a checkpoint", |bytes| {
        let main = Member::stored("a/data.pkl", b"\x80\x02}.");
        Zip::of(&[main, Member::stored("a/data/0", bytes)]).file()
    }),
    ("a second archive", |bytes| {
        [checkpoint(b"\x80\x02}."), checkpoint(bytes), b"JUNK".to_vec()].concat()
    }),
    ("an archive behind other content", |bytes| {
        [b"GGUF\x03\0\0\0\0\0".to_vec(), checkpoint(bytes)].concat()
    }),
    ("an archive with bytes behind", |bytes| [&checkpoint(bytes)[..], b"JUNK"].concat()),
    ("an archive between other content", |bytes| {
        [&b"\x01\x02"[..], &checkpoint(bytes), &[0; 2000]].concat()
    }),
    ("tar", |bytes| tar(b'0', bytes)),
    ("tar, contiguous", |bytes| tar(b'7', bytes)),
    ("tar, unknown type", |bytes| tar(b'9', bytes)),
    ("an array of objects", objects),
    ("an array in NPZ", |bytes| zip("a.npy", &objects(bytes))),
];

#[test]
fn what_runs_is_dangerous() {
    let directory = crate::common::tempdir().unwrap();
    let mut count = 0;
    for (wrapper, wrap) in WRAPPERS {
        for (payload, bytes) in PAYLOADS {
            let name = format!("{wrapper}, {payload}");
            std::fs::write(directory.path().join(&name), wrap(bytes)).unwrap();
            count += 1;
        }
    }
    let output = amn(&["scan", directory.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(8));
    let text = String::from_utf8(output.stdout).unwrap();
    let dangerous = text
        .lines()
        .filter(|line| line.starts_with("dangerous"))
        .count();
    assert_eq!(dangerous, count, "{text}");
}

/// What is not looked into is suspicious, whatever it is called.
#[test]
fn what_is_not_looked_into_is_suspicious() {
    let directory = crate::common::tempdir().unwrap();
    let files: &[(&str, &[u8])] = &[
        ("a.bz2", b"BZh91AY&SY"),
        ("a.xz", b"\xfd7zXZ\0\0\x04"),
        ("a.lzma", b"\x5d\0\0\x80\0\xff"),
        ("a.zst", b"\x28\xb5\x2f\xfd\x04"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c\0\x04"),
        ("a.h5", b"\x89HDF\r\n\x1a\n\0"),
        ("unknown", b"\xff\xfe\xfd\xfc\0\0\0\0"),
        ("a.py", b"import os\nos.system('true')\n"),
        ("a.sh", b"true\n"),
        ("script", b"#!/bin/sh\ntrue\n"),
        ("a.exe", b"MZ\x90\0\x03"),
        ("elf", b"\x7fELF\x02\x01\x01"),
        ("a.ipynb", b"{\"cells\": [], \"nbformat\": 4}"),
        ("config.json", b"{\"auto_map\": {\"AutoModel\": \"x.Y\"}}"),
        ("escaped.json", b"{\"auto\\u005fmap\": {\"AutoModel\": \"x.Y\"}}"),
        ("args.pkl", b"cargparse\nNamespace\n)R."),
        ("text.pt", b"hello\n"),
        ("cut.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\x03k"),
        ("protocol9.pkl", b"\x80\x09N."),
    ];
    for (name, bytes) in files {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let output = amn(&["scan", path.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{name}: {text}");
    }
}

/// What holds nothing to run is safe, whatever it begins with.
#[test]
fn harmless_content_is_safe() {
    let directory = crate::common::tempdir().unwrap();
    let long = format!("In all of this text there is nothing. {}", "word ".repeat(40_000));
    let files: &[(&str, &[u8])] = &[
        ("empty", b""),
        ("README", long.as_bytes()),
        ("labels.txt", b"cat\ndog\nfish\n"),
        ("imports.txt", b"import numpy\nimport torch\n"),
        ("classes.txt", b"class\n(x\n"),
        ("requirements.txt", b"certifi==2024.1\ncharset-normalizer==3\n"),
        ("P.md", b"Please read\nthis.\n"),
        ("vocab.json", b"{\"a\": 1}"),
        ("list.json", b"[\"a\"]"),
        ("utf16.txt", b"\xff\xfea\0b\0"),
        ("image.png", b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"),
        ("tokenizer.model", b"\x0a\x0e\x0a\x05<unk>\x15\0\0\0\0\x18\x02"),
        ("model.onnx", b"\x08\x08\x12\x07pytorch"),
        ("values.pkl", b"\x80\x02}X\x01\0\0\0aK\x01s."),
        ("old.pkl", b"(dp0\nS'a'\np1\nI1\ns."),
        (
            "numbers.pkl",
            b"ccollections\ndefaultdict\n(c__builtin__\nlong\ntRcnumpy.core.multiarray\nscalar\n0.",
        ),
    ];
    let arrays = std::fs::read(data().join("scan/arrays.joblib")).unwrap();
    let arrays = [("arrays.joblib", arrays.as_slice())];
    for (name, bytes) in files.iter().chain(&arrays) {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        for packed in [false, true] {
            if packed {
                std::fs::write(&path, gzip(bytes)).unwrap();
            }
            let output = amn(&["scan", path.to_str().unwrap()]);
            let text = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(0), "{name}, packed: {packed}: {text}");
        }
    }
}

/// Compressed content that would become large is not unpacked as a whole.
#[test]
fn bombs_are_bounded() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("bomb.gz");
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let zeros = vec![b'N'; 1 << 20];
    for _ in 0..200 {
        encoder.write_all(&zeros).unwrap();
    }
    std::fs::write(&path, encoder.finish().unwrap()).unwrap();
    let output = amn(&["scan", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
}
