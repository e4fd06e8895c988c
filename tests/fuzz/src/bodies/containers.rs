//! Containers from bytes: parsed, inspected and decoded. A target mends what a fuzzer cannot guess:
//! lengths and checksums.

use anamnesis::{ParsedModel, parse_bytes_with_limits, parse_with_limits};

use super::bytes::Bytes;
use super::model::{check, limits};
use crate::common::ocdbt::{TREE, manifest, node};
use crate::common::zip::{Member, Zip};

fn parse(bytes: &[u8]) -> Option<ParsedModel> {
    parse_bytes_with_limits(bytes.to_vec(), &limits()).ok()
}

/// A file as it is.
pub fn any(bytes: &[u8]) {
    if let Some(model) = parse(bytes) {
        check(&model, crc32fast::hash(bytes));
    }
}

/// A model of OpenVINO: its graph up to a byte of zero, and the data of its constants.
pub fn openvino(bytes: &[u8]) {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let directory = crate::common::tempdir().unwrap();
    let graph = directory.path().join("model.xml");
    std::fs::write(&graph, &bytes[..end]).unwrap();
    let data = bytes.get(end + 1..).unwrap_or_default();
    std::fs::write(graph.with_extension("bin"), data).unwrap();
    if let Ok(model) = parse_with_limits(&graph, &limits()) {
        check(&model, crc32fast::hash(bytes));
    }
}

/// A checkpoint of TensorFlow: an index, and the data of one file. The checksums of blocks are not mended.
pub fn tensorflow(bytes: &[u8]) {
    with_data(bytes, ["m.index", "m.data-00000-of-00001"]);
}

/// A model of Core ML, and its file of weights.
pub fn coreml(bytes: &[u8]) {
    with_data(bytes, ["model.mlmodel", "weights/weight.bin"]);
}

/// An inference model of Paddle: a program, and its parameters.
pub fn paddle(bytes: &[u8]) {
    with_data(bytes, ["model.pdmodel", "model.pdiparams"]);
}

/// A model of MLC: its kind of quantization, the list of its tensors, and their data.
pub fn mlc(bytes: &[u8]) {
    let kinds = ["q4f16_1", "q3f16_0", "q8f16_1", "e4m3_e4m3_f16"];
    let (kind, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let kind = kinds[usize::from(*kind) % kinds.len()];
    let config = format!(
        r#"{{"quantization":"{kind}","model_config":{{"hidden_size":48,"intermediate_size":24}}}}"#
    );
    let directory = crate::common::tempdir().unwrap();
    std::fs::write(directory.path().join("mlc-chat-config.json"), config).unwrap();
    in_directory(directory.path(), rest, ["tensor-cache.json", "params_shard_0.bin"]);
}

/// The length of a file, the file, and another that has its data.
fn with_data(bytes: &[u8], names: [&str; 2]) {
    in_directory(crate::common::tempdir().unwrap().path(), bytes, names);
}

fn in_directory(directory: &std::path::Path, bytes: &[u8], names: [&str; 2]) {
    let mut rest = Bytes(bytes);
    let n = rest.u16();
    let [file, data] = names.map(|name| directory.join(name));
    std::fs::create_dir_all(data.parent().unwrap()).unwrap();
    std::fs::write(&file, rest.take(n.into())).unwrap();
    std::fs::write(data, rest.0).unwrap();
    if let Ok(model) = parse_with_limits(&file, &limits()) {
        check(&model, crc32fast::hash(bytes));
    }
}

/// An array of Zarr or a database of OCDBT, by the first byte. 0, 1: the description of an array of version 2 or 3, with its length
/// before it, and the bytes of its first chunk. Others: the body of a node of that height and two more.
pub fn zarr(bytes: &[u8]) {
    let mut rest = Bytes(bytes);
    let kind = rest.u8();
    let directory = crate::common::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    match [".zarray", "zarr.json"].get(usize::from(kind)) {
        Some(name) => {
            let n = rest.u16();
            write(name, rest.take(n.into()));
            ["0", "0.0", "0.0.0", "c/0/0/0"]
                .iter()
                .for_each(|chunk| write(chunk, rest.0));
        }
        None => {
            let root = node(TREE, rest.0);
            write("manifest.ocdbt", &manifest("root", kind - 2, 0, root.len() as u64));
            write("root", &root);
        }
    }
    if let Ok(model) = parse_with_limits(directory.path(), &limits()) {
        check(&model, crc32fast::hash(bytes));
    }
}

/// A safetensors file. An input that begins with `{` is a header without its length, up to a byte
/// of zero; then data, which is repeated as far as the header's offsets go.
pub fn safetensors(bytes: &[u8]) {
    any(&with_length(bytes));
}

/// The file of [`safetensors`].
pub fn with_length(bytes: &[u8]) -> Vec<u8> {
    if bytes.first() != Some(&b'{') {
        return bytes.to_vec();
    }
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let (json, data) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend(json);
    let pattern = if data.is_empty() { &[0][..] } else { data };
    file.extend(pattern.iter().cycle().take(data_len(json)));
    file
}

/// How much data a header asks for: its largest offset, if that is small.
fn data_len(json: &[u8]) -> usize {
    let header: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
    let tensors = header.as_object().into_iter().flatten();
    let ends = tensors.filter_map(|(_, t)| t["data_offsets"][1].as_u64());
    ends.filter(|&end| end <= 1 << 18).max().unwrap_or(0) as usize
}

/// An archive as it is if the input begins with `PK`; else arrays: a byte (odd: compressed), a
/// length, the array's file.
pub fn npz(bytes: &[u8]) {
    if bytes.starts_with(b"PK") {
        return any(bytes);
    }
    let (mut rest, mut members) = (Bytes(bytes), Vec::new());
    while !rest.0.is_empty() && members.len() < 8 {
        let (flags, len) = (rest.u8(), rest.u16());
        members.push(member(&format!("a{}.npy", members.len()), flags, rest.take(len.into())));
    }
    any(&Zip::of(&members).file());
}

fn member(name: &str, flags: u8, content: &[u8]) -> Member {
    match flags & 1 {
        0 => Member::stored(name, content),
        _ => Member::deflated(name, content),
    }
}

/// One array: alone, and in an archive, which must say the same of it.
pub fn npy(bytes: &[u8]) {
    any(bytes);
    let salt = crc32fast::hash(bytes);
    let archived = parse(&Zip::of(&[member("a.npy", salt as u8, bytes)]).file());
    let alone = parse(bytes);
    if let (Some(alone), Some(archived)) = (&alone, &archived) {
        let facts = |m: &ParsedModel| {
            m.tensors()
                .map(|t| (t.dtype(), t.shape().to_vec()))
                .collect::<Vec<_>>()
        };
        assert_eq!(facts(alone), facts(archived));
    }
    if let Some(model) = archived {
        check(&model, salt);
    }
}

/// A pickle in an archive with two storages of 256 bytes. The first byte says where: as a
/// checkpoint, or as a plain pickle.
pub fn pickle(bytes: &[u8]) {
    let (mut rest, salt) = (Bytes(bytes), crc32fast::hash(bytes));
    let flags = rest.u8();
    let file = if flags & 1 == 0 {
        let storage: Vec<u8> = (0..=255).collect();
        let mut members = vec![Member::stored("m/data.pkl", rest.0)];
        if flags & 2 != 0 {
            members.push(Member::stored("m/byteorder", b"big"));
        }
        members.extend(["m/data/0", "m/data/1"].map(|name| member(name, flags >> 2, &storage)));
        Zip::of(&members).file()
    } else {
        rest.0.to_vec()
    };
    let Some(model) = parse(&file) else {
        return;
    };
    let front = anamnesis::parse_pth_front_matter_from_reader_with_limits(
        std::io::Cursor::new(&file),
        &limits(),
    );
    let front = front.unwrap();
    let names = front
        .tensors
        .iter()
        .map(|t| (&t.name[..], &t.shape[..], t.dtype));
    assert!(names.eq(model.tensors().map(|t| (t.name(), t.shape(), t.dtype()))));
    check(&model, salt);
}
