//! GGUF files of `tests/data` as llama.cpp's converter wrote them. What is stored of one is its
//! header and a SHA-256 of each tensor: the data are those that this crate makes of the same model,
//! if they have that sum (`tests/data/generate/sums.py`).

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

/// The GGUF file of which `sums` has the sums. Its weights are those of the directory `hf` beside.
pub fn restored(sums: &Path) -> PathBuf {
    restored_with(sums, |directory| {
        let output = directory.join("converted.gguf");
        let mut options = ConvertOptions::new(ConvertTarget::Gguf);
        if sums.ancestors().any(|above| above.ends_with("towers")) {
            options = options.with_scope(ModelScope::ImageTower);
        }
        let types = [("f16", TargetDtype::F16), ("f32", TargetDtype::F32)];
        if let Some((_, dtype)) = types
            .into_iter()
            .find(|(name, _)| sums.file_stem() == Some(name.as_ref()))
        {
            options.decode = true;
            options.run.to = dtype;
        }
        let model = parse(sums.with_file_name("hf")).unwrap();
        model.convert(&output, options).unwrap();
        output
    })
}

/// The same with the weights of the file that `convert` makes in a directory. A file is made once:
/// the sums say all that is in it.
pub fn restored_with(sums: &Path, convert: impl FnOnce(&Path) -> PathBuf) -> PathBuf {
    let stored = std::fs::read(sums).unwrap();
    let names: Vec<_> = sums
        .iter()
        .rev()
        .take(2)
        .map(|name| name.to_str().unwrap())
        .collect();
    let made = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("canonical")
        .join(format!("{}-{}", names[1], &sum(&stored)[..16]));
    let path = made.join(names[0]).with_extension("gguf");
    if !path.exists() {
        std::fs::create_dir_all(&made).unwrap();
        // Threads and programs that make it at the same time make the same.
        let directory = tempfile::tempdir_in(&made).unwrap();
        let whole = directory.path().join("whole");
        std::fs::write(&whole, fill(&stored, &convert(directory.path()), sums)).unwrap();
        std::fs::rename(&whole, &path).unwrap();
    }
    path
}

/// The GGUF file of `stored` with the data of the file `converted`.
fn fill(stored: &[u8], converted: &Path, sums: &Path) -> Vec<u8> {
    let line = stored.iter().position(|byte| *byte == b'\n').unwrap();
    let described: Sums = serde_json::from_slice(&stored[..line]).unwrap();
    let (header, mut kept) = stored[line + 1..].split_at(described.header);
    let (model, mut whole, mut wrong) = (parse(converted).unwrap(), header.to_vec(), vec![]);
    for (name, bytes, expected) in &described.tensors {
        let Some(expected) = expected else {
            let (data, rest) = kept.split_at(*bytes);
            whole.extend_from_slice(data);
            kept = rest;
            whole.resize(whole.len().next_multiple_of(ALIGNMENT), 0);
            continue;
        };
        match model.tensor(name).map(|tensor| tensor.bytes().unwrap()) {
            Some(data) if sum(&data)[..expected.len()] == **expected => {
                whole.extend_from_slice(&data)
            }
            Some(_) => wrong.push(format!("`{name}` has other values")),
            None => wrong.push(format!("`{name}` is missing")),
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
