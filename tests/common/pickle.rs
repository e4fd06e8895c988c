//! PyTorch checkpoints made in memory, valid or not.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use super::data;
use super::zip::{Member, Zip, tarred};

/// An archive with `pickle`, which lacks the protocol opcode, and a storage `0` of six floats.
pub fn archive(pickle: &[u8]) -> Vec<u8> {
    let pickle = Member::stored("m/data.pkl", &[b"\x80\x02", pickle].concat());
    Zip::of(&[pickle, Member::stored("m/data/0", &[0; 24])]).file()
}

pub fn text(text: &str) -> Vec<u8> {
    [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

pub fn int(n: i64) -> Vec<u8> {
    [&b"\x8a\x08"[..], &n.to_le_bytes()].concat()
}

pub fn tuple(items: &[i64]) -> Vec<u8> {
    [b"(".to_vec(), items.iter().flat_map(|&n| int(n)).collect(), b"t".to_vec()].concat()
}

/// A persistent id that names a storage.
pub fn storage(class: &str, key: &[u8], len: i64) -> Vec<u8> {
    [
        b"(",
        &text("storage")[..],
        format!("ctorch\n{class}\n").as_bytes(),
        key,
        b"N",
        &int(len),
        b"tQ",
    ]
    .concat()
}

pub fn floats() -> Vec<u8> {
    storage("FloatStorage", &text("0"), 6)
}

/// A call of a function of `torch._utils` that makes a view of a storage; `more` are further
/// arguments.
pub fn call(
    function: &str,
    storage: &[u8],
    offset: i64,
    shape: &[i64],
    strides: &[i64],
    more: &[u8],
) -> Vec<u8> {
    let function = format!("ctorch._utils\n{function}\n(");
    [function.as_bytes(), storage, &int(offset), &tuple(shape), &tuple(strides), more, b"tR"]
        .concat()
}

pub fn view(storage: &[u8], offset: i64, shape: &[i64], strides: &[i64]) -> Vec<u8> {
    call("_rebuild_tensor_v2", storage, offset, shape, strides, b"\x89}")
}

pub fn good() -> Vec<u8> {
    view(&floats(), 0, &[2, 3], &[3, 1])
}

/// A pickle of `{'x': value}`.
pub fn dict(value: &[u8]) -> Vec<u8> {
    [b"}", &text("x")[..], value, b"s."].concat()
}

pub fn one(tensor: &[u8]) -> Vec<u8> {
    archive(&dict(tensor))
}

/// `n` calls of the function that `before` pushes, with one large value as arguments: its items,
/// ended by `after`.
pub fn calls(n: usize, before: &[u8], after: &[u8]) -> Vec<u8> {
    let items = b"K\0".repeat(200_000);
    archive(&[before, b"(", &items, after, b"q\x020", &b"h\0h\x02R0".repeat(n), b"N."].concat())
}

/// A checkpoint in the stream format: the pickled object `root`, the pickled `keys` of the
/// storages, and `storages` as (declared elements, bytes).
pub fn stream(root: &[u8], keys: &[u8], storages: &[(u64, usize)]) -> Vec<u8> {
    let magic = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.\x80\x02";
    let storages = storages
        .iter()
        .flat_map(|&(n, bytes)| [&n.to_le_bytes()[..], &vec![0; bytes]].concat());
    [&magic[..], root, b"\x80\x02", keys, b"."]
        .concat()
        .into_iter()
        .chain(storages)
        .collect()
}

/// A checkpoint in the tar format, with a pickle of `{'x': tensor 2}`.
pub fn tar(storages: &[u8], tensors: &[u8]) -> Vec<u8> {
    let files = [("storages", storages), ("tensors", tensors), ("pickle", &dict(b"K\x02Q"))];
    let files = files.map(|(name, content)| tarred(name, &format!("{:o}", content.len()), content));
    [files.concat(), vec![0; 512]].concat()
}

/// The files of tests/data/pth with these names.
pub fn files<const N: usize>(names: [&str; N]) -> [Vec<u8>; N] {
    names.map(|name| std::fs::read(data().join("pth").join(name)).unwrap())
}
