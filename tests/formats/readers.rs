//! Containers in streams: limits, detection, and models whose data stays in the stream. And
//! functions for one container, which refuse the others.

use std::io::{Cursor, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anamnesis::{
    AnamnesisError, Container, ConvertOptions, ConvertTarget, ParseLimits, detect_format,
    detect_format_from_reader, parse_bytes, parse_from_reader, parse_from_reader_with_limits,
};

use crate::common::data;
use crate::requests::recorded;

/// A file of each format that this build reads.
fn one_of_each() -> Vec<(Container, Vec<u8>)> {
    let file = |name: &str| std::fs::read(data().join(name)).unwrap();
    let mut all = vec![(Container::Safetensors, file("demo/model-fp8.safetensors"))];
    if cfg!(feature = "gguf") {
        all.push((Container::Gguf, file("demo/model-q4_k.gguf")));
    }
    if cfg!(feature = "npz") {
        all.push((Container::Npz, file("demo/arrays.npz")));
        all.push((Container::Npz, file("npz/compressed.npz")));
        all.push((Container::Npy, file("npz/bf16_little.npy")));
    }
    if cfg!(feature = "pth") {
        all.push((Container::Pth, file("demo/checkpoint.pth")));
        all.push((Container::Pth, file("pth/legacy_checkpoint.ckpt")));
        all.push((Container::Pth, file("pth/tar.pth")));
    }
    all
}

#[test]
fn formats_are_told_by_content() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("model.bin");
    for (format, bytes) in one_of_each() {
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(detect_format(&path).unwrap(), format);
        let (stream, requests) = recorded(&bytes);
        assert_eq!(detect_format_from_reader(stream).unwrap(), format);
        assert!(requests.borrow().len() <= 3, "{format}");
    }
    let unknown: [&[u8]; 3] = [b"", b"hello", b"\0\0\0\0\0\0\0\0[]"];
    for bytes in unknown {
        let result = detect_format_from_reader(Cursor::new(bytes));
        assert!(matches!(result, Err(AnamnesisError::Parse { .. })), "{bytes:?}: {result:?}");
    }
    assert!(matches!(detect_format(directory.path()), Err(AnamnesisError::Io(_))));
}

/// The kind of the error of a file in the wrong format names that format.
#[cfg(all(feature = "gguf", feature = "npz", feature = "pth"))]
#[test]
fn one_container_alone() {
    let refused = |result: anamnesis::Result<()>, format: Container, expected: &str| match result {
        Err(AnamnesisError::Unsupported { format: named, detail }) => {
            assert!(named == format.to_string() && detail.contains(expected), "{named} {detail}");
        }
        other => panic!("{format} as {expected}: {other:?}"),
    };
    let directory = crate::common::tempdir().unwrap();
    for (format, bytes) in one_of_each() {
        let npz = directory.path().join("renamed.npz");
        let pth = directory.path().join("renamed.pth");
        std::fs::write(&npz, &bytes).unwrap();
        std::fs::write(&pth, &bytes).unwrap();
        let stream = || Cursor::new(&bytes);
        let as_npz = [
            anamnesis::parse_npz(&npz).map(drop),
            anamnesis::parse_npz_bytes(bytes.clone()).map(drop),
        ];
        let as_pth = [
            anamnesis::parse_pth(&pth).map(drop),
            anamnesis::parse_pth_bytes(bytes.clone()).map(drop),
            anamnesis::parse_pth_front_matter_from_reader(stream()).map(drop),
            anamnesis::inspect_pth_from_reader(stream()).map(drop),
        ];
        for result in as_npz {
            match format {
                Container::Npz => result.unwrap(),
                other => refused(result, other, "NPZ archive"),
            }
        }
        for result in as_pth {
            match format {
                Container::Pth => result.unwrap(),
                other => refused(result, other, "PyTorch checkpoint"),
            }
        }
        assert_eq!(anamnesis::inspect_npz(&npz).is_ok(), format == Container::Npz, "{format}");
        assert_eq!(
            anamnesis::inspect_npz_from_reader(stream()).is_ok(),
            format == Container::Npz,
            "{format}"
        );
        assert_eq!(
            anamnesis::parse_gguf_bytes(bytes.clone()).is_ok(),
            format == Container::Gguf,
            "{format}"
        );
    }
    for result in [
        anamnesis::parse_npz_bytes(b"hello".to_vec()).map(drop),
        anamnesis::parse_pth_bytes(b"hello".to_vec()).map(drop),
    ] {
        assert!(matches!(result, Err(AnamnesisError::Parse { .. })), "{result:?}");
    }
}

/// Whatever `parse_pth` reads, the front matter has as well, legacy and tar files included.
#[cfg(feature = "pth")]
#[test]
fn front_matter_of_every_checkpoint() {
    let (mut archives, mut others) = (0, 0);
    let directories = ["pth", "pt2", "torchscript", "modules"];
    let entries = directories.map(|name| std::fs::read_dir(data().join(name)).unwrap());
    for entry in entries.into_iter().flatten() {
        let path = entry.unwrap().path();
        let Ok(checkpoint) = anamnesis::parse_pth(&path) else {
            continue;
        };
        let file = std::fs::File::open(&path).unwrap();
        let front = anamnesis::parse_pth_front_matter_from_reader(&file).unwrap();
        assert_eq!(front.tensors, checkpoint.tensor_info(), "{path:?}");
        assert_eq!(front.inspect(), checkpoint.inspect(), "{path:?}");
        match std::fs::read(&path).unwrap().starts_with(b"PK") {
            true => archives += 1,
            false => others += 1,
        }
    }
    assert!(archives >= 65 && others >= 20, "{archives} {others}");
}

#[test]
#[cfg_attr(not(feature = "remember"), ignore = "it decodes")]
fn models_from_streams() {
    for (format, bytes) in one_of_each() {
        let whole = parse_bytes(bytes.clone()).unwrap();
        let model = parse_from_reader(Cursor::new(bytes.clone())).unwrap();
        assert_eq!(model.file_size(), whole.file_size());
        assert!(model.path().is_none());
        for (ours, theirs) in model.tensors().zip(whole.tensors()) {
            assert_eq!(ours.name(), theirs.name());
            assert_eq!(ours.bytes().unwrap(), theirs.bytes().unwrap(), "{format}");
        }
        for threads in [1, 3] {
            let mut options = ConvertOptions::new(ConvertTarget::Safetensors);
            options.run.threads = Some(threads);
            let made = |model: &anamnesis::ParsedModel| model.plan(options.clone())?.to_bytes();
            assert_eq!(made(&model).unwrap(), made(&whole).unwrap(), "{format}");
        }
        let none = ParseLimits::default().with_max_item_count(0);
        let result = parse_from_reader_with_limits(Cursor::new(bytes), &none);
        assert!(matches!(result, Err(AnamnesisError::LimitExceeded { .. })), "{format}");
    }
}

/// A view of a stream is a copy, which the limits count.
#[test]
fn views_of_streams_are_within_the_limits() {
    let bytes = std::fs::read(data().join("demo/model-fp8.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let limits = ParseLimits::default().with_max_total_bytes(header);
    let model = parse_from_reader_with_limits(Cursor::new(bytes), &limits).unwrap();
    let large = model.tensors().max_by_key(|t| t.elements()).unwrap();
    assert!(matches!(
        large.bytes(),
        Err(AnamnesisError::LimitExceeded { limit: "max_total_bytes", .. })
    ));
}

/// A stream of which one read fails after a byte, once that is asked for.
struct Failing(Cursor<Vec<u8>>, Arc<AtomicBool>);

impl Read for Failing {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.1.swap(false, Ordering::Relaxed) {
            let _ = self.0.read(&mut out[..1])?;
            return Err(std::io::Error::other("range transfer budget exceeded"));
        }
        self.0.read(out)
    }
}

impl Seek for Failing {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.0.seek(to)
    }
}

/// A read that failed leaves the stream anywhere. The next read is right nevertheless, also where
/// the one before ended.
#[test]
fn streams_recover_from_errors() {
    let bytes = std::fs::read(data().join("demo/model-fp8.safetensors")).unwrap();
    let whole = parse_bytes(bytes.clone()).unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let model = parse_from_reader(Failing(Cursor::new(bytes), fails.clone())).unwrap();
    for (ours, theirs) in model.tensors().zip(whole.tensors()) {
        fails.store(true, Ordering::Relaxed);
        match ours.bytes() {
            Err(AnamnesisError::Io(error)) => assert!(error.to_string().contains("budget")),
            other => panic!("{other:?}"),
        }
        assert_eq!(ours.bytes().unwrap(), theirs.bytes().unwrap());
    }
}

/// Every function for a stream or bytes has a twin that keeps to limits: one item is one too many.
#[cfg(all(feature = "gguf", feature = "npz", feature = "pth"))]
#[test]
fn limits_of_readers() {
    let none = &ParseLimits::default().with_max_item_count(0);
    let file = |name: &str| std::fs::read(data().join(name)).unwrap();
    let [gguf, npz, pth, old] = [
        "demo/model-q4_k.gguf",
        "demo/arrays.npz",
        "demo/checkpoint.pth",
        "pth/legacy_checkpoint.ckpt",
    ]
    .map(file);
    let attempts: [anamnesis::Result<()>; 11] = [
        anamnesis::parse_gguf_front_matter_from_reader_with_limits(Cursor::new(&gguf), none)
            .map(drop),
        anamnesis::inspect_gguf_from_reader_with_limits(Cursor::new(&gguf), none).map(drop),
        anamnesis::parse_gguf_bytes_with_limits(gguf.clone(), none).map(drop),
        anamnesis::inspect_npz_with_limits(data().join("demo/arrays.npz"), none).map(drop),
        anamnesis::inspect_npz_from_reader_with_limits(Cursor::new(&npz), none).map(drop),
        anamnesis::parse_npz_bytes_with_limits(npz.clone(), none).map(drop),
        anamnesis::parse_pth_front_matter_from_reader_with_limits(Cursor::new(&pth), none)
            .map(drop),
        anamnesis::inspect_pth_from_reader_with_limits(Cursor::new(&pth), none).map(drop),
        anamnesis::parse_pth_bytes_with_limits(pth.clone(), none).map(drop),
        anamnesis::parse_pth_front_matter_from_reader_with_limits(Cursor::new(&old), none)
            .map(drop),
        anamnesis::parse_pth_bytes_with_limits(old.clone(), none).map(drop),
    ];
    for (i, result) in attempts.into_iter().enumerate() {
        assert!(
            matches!(result, Err(AnamnesisError::LimitExceeded { limit: "max_item_count", .. })),
            "{i}: {result:?}"
        );
    }
}
