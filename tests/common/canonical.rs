//! GGUF files of `tests/data` as llama.cpp's converter wrote them. What is stored of one is its
//! header and a SHA-256 of each tensor: the data are those that this crate makes of the same model,
//! if they have that sum (`tests/data/generate/sums.py`).
#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, ConvertTarget, ModelScope, TargetDtype, parse};
use sha2::{Digest, Sha256};

const ALIGNMENT: usize = 32;

/// What the first line of the stored file says.
#[derive(serde::Deserialize)]
struct Sums {
    /// Bytes of the GGUF file in front of its data.
    header: usize,
    /// Name, bytes and sum of each tensor, in the order of the data. Data without a sum are stored.
    tensors: Vec<(String, usize, Option<String>)>,
}

/// The file `canonical.gguf` of the model in the directory `model`.
pub fn canonical_gguf(model: impl AsRef<Path>) -> PathBuf {
    restored(&model.as_ref().join("canonical.sums"))
}

/// The GGUF file of which `sums` has the sums. It is made once, also by several programs: the sums say
/// all that is in it.
pub fn restored(sums: &Path) -> PathBuf {
    let stored = std::fs::read(sums).unwrap();
    let model = sums
        .parent()
        .unwrap()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap();
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("canonical");
    let made = all.join(format!("{model}-{}", &sum(&stored)[..16]));
    let name = Path::new(sums.file_stem().unwrap()).with_extension("gguf");
    let path = made.join(&name);
    if !path.exists() {
        std::fs::create_dir_all(&all).unwrap();
        let (new, other) = (tempfile::tempdir_in(&all).unwrap(), crate::common::tempdir().unwrap());
        let whole = fill(&stored, &converted(sums, other.path()), sums);
        std::fs::write(new.path().join(name), whole).unwrap();
        // A directory replaces none that has files: of several made at the same time the first
        // stays, which may be in use.
        _ = std::fs::rename(new.path(), &made);
        assert!(path.exists(), "{}", path.display());
    }
    path
}

/// The file that this crate makes of the model beside `sums` in `directory`.
fn converted(sums: &Path, directory: &Path) -> PathBuf {
    let mut options = ConvertOptions::new(ConvertTarget::Gguf);
    #[cfg(feature = "lethe")]
    if sums.file_stem() == Some("q8_0".as_ref()) {
        let scheme: anamnesis::ForgetScheme = "gguf:q8_0".parse().unwrap();
        options = ConvertOptions::from(scheme);
    }
    if sums.ancestors().any(|above| above.ends_with("data/towers")) {
        options = options.with_scope(ModelScope::ImageTower);
    }
    let types = [("f16", TargetDtype::F16), ("f32", TargetDtype::F32)];
    let is_named = |(name, _): &(&str, _)| sums.file_stem() == Some(name.as_ref());
    if let Some((_, dtype)) = types.into_iter().find(is_named) {
        options.decode = true;
        options.run.to = dtype;
    }
    let output = directory.join("converted.gguf");
    let model = parse(sums.with_file_name("hf")).unwrap();
    model.convert(&output, options).unwrap();
    output
}

/// The GGUF file of `stored` with the data of the file `converted`.
fn fill(stored: &[u8], converted: &Path, sums: &Path) -> Vec<u8> {
    let line = stored.iter().position(|byte| *byte == b'\n').unwrap();
    let described: Sums = serde_json::from_slice(&stored[..line]).unwrap();
    let (header, mut kept) = stored[line + 1..].split_at(described.header);
    let (model, mut whole, mut wrong) = (parse(converted).unwrap(), header.to_vec(), vec![]);
    for (name, bytes, expected) in &described.tensors {
        match (expected, model.tensor(name).map(|tensor| tensor.bytes().unwrap())) {
            (None, _) => whole.extend_from_slice(kept.split_off(..*bytes).unwrap()),
            (Some(expected), Some(data)) if sum(&data)[..expected.len()] == **expected => {
                whole.extend_from_slice(&data);
            }
            (_, Some(_)) => wrong.push(format!("`{name}` has other values")),
            (_, None) => wrong.push(format!("`{name}` is missing")),
        }
        whole.resize(whole.len().next_multiple_of(ALIGNMENT), 0);
    }
    assert!(
        wrong.is_empty(),
        "not as llama.cpp's converter writes {}: {}",
        sums.display(),
        wrong.join(", ")
    );
    assert!(kept.is_empty(), "{}", sums.display());
    whole
}

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
