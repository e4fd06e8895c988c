//! Edits of metadata in files with changed or missing bytes: an error that leaves the file as it is, or a
//! file with the wanted key and the same data.

use std::path::Path;

use anamnesis::edit::EditOptions;
use anamnesis::{ErrorKind, edit, parse};

use crate::common::{Random, data, effort, f32s, file, raw, tempdir};

fn pick(random: &mut Random, n: usize) -> usize {
    (random.next() >> 20) as usize % n
}

/// What is edited in files of each kind, and the key that is there afterwards.
const CHANGES: [&[&str]; 3] = [
    &["general.name=a name that is longer than the old one, so that the data may move"],
    &["a.b=c", "general.name=x"],
    &["k={\"x\": [1, 2]}"],
];

fn options(random: &mut Random, key: &mut String) -> EditOptions {
    let mut options = EditOptions::in_place();
    for change in CHANGES[pick(random, CHANGES.len())] {
        options = options.with_set(*change);
        change.split('=').next().unwrap().clone_into(key);
    }
    options
}

/// Edits the file at `path`; whether it could be edited.
fn is_edited(path: &Path, random: &mut Random) -> bool {
    let before = std::fs::read(path).unwrap();
    let was_read = parse(path).is_ok();
    let mut key = String::new();
    let options = options(random, &mut key);
    match edit(path, &options) {
        Err(error) => {
            assert_ne!(error.kind(), ErrorKind::Io, "{error}");
            assert_eq!(std::fs::read(path).unwrap(), before, "{error}");
            false
        }
        Ok(report) => {
            let after = std::fs::read(path).unwrap();
            assert_eq!(after.len() as u64, report.output_bytes);
            let is_key = |bytes: &[u8]| bytes.windows(key.len()).any(|at| at == key.as_bytes());
            assert!(is_key(&after));
            if was_read && path.extension().is_some_and(|ending| ending != "json") {
                let model = parse(path).unwrap();
                let tail = model
                    .tensors()
                    .map(|t| t.bytes().unwrap().len())
                    .sum::<usize>()
                    .min(16);
                assert_eq!(before[before.len() - tail..], after[after.len() - tail..]);
            }
            // What can be edited once can be edited again.
            let again = edit(path, &options).unwrap();
            assert!(again.changes.is_empty() && std::fs::read(path).unwrap() == after);
            true
        }
    }
}

#[test]
fn edits_of_changed_files() {
    let root = tempdir().unwrap();
    let mut models: Vec<(String, Vec<u8>)> = ["all-kv", "shapes", "no-tensors", "v3-big"]
        .map(|name| data().join(format!("gguf-files/{name}.gguf")))
        .map(|path| ("m.gguf".to_owned(), std::fs::read(path).unwrap()))
        .into();
    let tensors = [raw("w", "F32", &[2], f32s(&[1.0, 2.0])), raw("v", "U8", &[3], vec![1, 2, 3])];
    models.push(("m.safetensors".to_owned(), file(&tensors, &[])));
    models.push(("m.safetensors".to_owned(), file(&tensors, &[("format", "pt"), ("a", "\n")])));
    let config = std::fs::read(data().join("guide/TinyLlama/config.json")).unwrap();
    models.push(("config.json".to_owned(), config));
    let (mut random, mut edited, mut refused) = (Random(3), 0, 0);
    for (name, model) in models {
        let path = root.path().join(name);
        for no in 0..effort([40, 200, 2000]) {
            let mut bytes = model.clone();
            if no % 8 == 1 {
                bytes.truncate(pick(&mut random, model.len()));
            }
            for _ in 0..pick(&mut random, 3) {
                let at = pick(&mut random, bytes.len().clamp(1, 500));
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = match pick(&mut random, 3) {
                        0 => byte.wrapping_add(1),
                        1 => *byte ^ 0x20,
                        _ => random.next() as u8,
                    };
                }
            }
            std::fs::write(&path, &bytes).unwrap();
            match is_edited(&path, &mut random) {
                true => edited += 1,
                false => refused += 1,
            }
        }
        std::fs::remove_file(path).unwrap();
    }
    assert!(edited > 80 && refused > 80, "{edited} edited, {refused} refused");
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}
