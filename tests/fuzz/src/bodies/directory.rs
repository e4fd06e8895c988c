//! A model directory as text: configs, an index, and weight files that are lists of tensors.
//!
//! A line `=== NAME` begins a file. The lines of a weight file are tensors, `NAME DTYPE 2,3`, and
//! its data is a pattern.

use std::path::{Component, Path};

use anamnesis::parse_with_limits;

use super::model::{check, limits};
use crate::common::{Raw, file, find_dtype};

/// At most this many bytes for a tensor.
const MOST: usize = 1 << 16;

/// A directory for one run, in memory if the system has such a place.
pub fn place() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        return tempfile::tempdir_in(memory).unwrap();
    }
    tempfile::tempdir().unwrap()
}

pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let place = place();
    for part in text.split("=== ").skip(1).take(12) {
        let (name, content) = part.split_once('\n').unwrap_or((part, ""));
        write(place.path(), name, content);
    }
    let salt = crc32fast::hash(bytes);
    if let Ok(model) = parse_with_limits(place.path(), &limits()) {
        check(&model, salt);
    }
    let one = place.path().join("model.safetensors");
    if let Ok(model) = parse_with_limits(one, &limits()) {
        check(&model, salt);
    }
}

/// Writes a file whose name is plain, below `directory`.
fn write(directory: &Path, name: &str, content: &str) {
    let path = Path::new(name);
    let is_plain = path.components().all(|c| matches!(c, Component::Normal(_)));
    if !is_plain || name.contains('\0') || name.len() > 100 || path.components().count() > 2 {
        return;
    }
    let path = directory.join(path);
    let _ = std::fs::create_dir_all(path.parent().unwrap());
    let content = match name.ends_with(".safetensors") {
        true => weights(content),
        false => content.as_bytes().to_vec(),
    };
    let _ = std::fs::write(path, content);
}

/// The file of the tensors that `text` lists; lines that are no tensors are left out.
fn weights(text: &str) -> Vec<u8> {
    let mut tensors: Vec<Raw> = Vec::new();
    for line in text.lines().take(200) {
        let found = tensor(line).filter(|t| tensors.iter().all(|other| other.name != t.name));
        tensors.extend(found);
    }
    file(&tensors, &[("format", "pt")])
}

fn tensor(line: &str) -> Option<Raw> {
    let mut words = line.split_whitespace();
    let (name, dtype, dims) = (words.next()?, words.next()?, words.next().unwrap_or(""));
    let (dtype, bits) = find_dtype(dtype)?;
    let dims = dims.split(',').filter(|d| !d.is_empty());
    let shape: Vec<usize> = dims.map(str::parse).collect::<Result<_, _>>().ok()?;
    let bits = shape.iter().try_fold(bits, |n, &d| n.checked_mul(d))?;
    if !bits.is_multiple_of(8) || bits / 8 > MOST {
        return None;
    }
    // Codes of every kind; as floats, ordinary numbers.
    let bytes = (0..bits / 8)
        .map(|i| [0x11, 0x3c, 0x27, 0x3d][i % 4])
        .collect();
    Some(Raw { name: name.to_owned(), dtype, shape, bytes })
}
