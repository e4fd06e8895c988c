//! A checkpoint whose metadata a test changes.

use anamnesis::{TargetDtype, parse};

use crate::common::pickle::{int, storage, text, tuple, view};
use crate::common::zip::{Member, Zip};

pub const METADATA: &str = "torch.distributed.checkpoint.metadata";

/// An object of a class with these fields.
pub fn object(module: &str, class: &str, fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut pickle = format!("c{module}\n{class}\n").into_bytes();
    pickle.extend(b")\x81}(");
    for (name, value) in fields {
        pickle.extend([text(name), value.clone()].concat());
    }
    pickle.extend(b"ub");
    pickle
}

/// A checkpoint of the tensor `x`, F32, as the metadata describe it.
#[derive(Clone)]
pub struct Checkpoint {
    pub size: Vec<i64>,
    /// First element and size of each piece.
    pub chunks: Vec<(Vec<i64>, Vec<i64>)>,
    /// First element, file, offset and length of the bytes of each piece.
    pub places: Vec<(Vec<i64>, String, i64, i64)>,
    /// More fields of each of these, and of the whole.
    pub more_of_places: Vec<(&'static str, Vec<u8>)>,
    pub more: Vec<(&'static str, Vec<u8>)>,
    pub dtype: &'static str,
    /// The file `a.distcp`.
    pub file: Vec<u8>,
}

/// An archive with a tensor of `shape`, of the floats `values`.
pub fn piece(shape: &[i64], values: &[f32]) -> Vec<u8> {
    let mut strides: Vec<i64> = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    let of = storage("FloatStorage", &text("0"), values.len() as i64);
    let tensor = view(&of, 0, shape, &strides);
    archive_of(&tensor, values)
}

pub fn archive_of(root: &[u8], values: &[f32]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let pickle = [b"\x80\x02", root, b"."].concat();
    let members = [Member::stored("m/data.pkl", &pickle), Member::stored("m/data/0", &bytes)];
    Zip::of(&members).file()
}

/// Two rows in one piece, and two more in another.
pub fn good() -> Checkpoint {
    let first = piece(&[2, 3], &[0., 1., 2., 3., 4., 5.]);
    let second = piece(&[2, 3], &[6., 7., 8., 9., 10., 11.]);
    let (a, b) = (first.len() as i64, second.len() as i64);
    let place = |start: i64, offset, len| (vec![start, 0], "a.distcp".to_owned(), offset, len);
    Checkpoint {
        size: vec![4, 3],
        chunks: vec![(vec![0, 0], vec![2, 3]), (vec![2, 0], vec![2, 3])],
        places: vec![place(0, 0, a), place(2, a, b)],
        more_of_places: vec![],
        more: vec![("version", text("1.0.0"))],
        dtype: "float32",
        file: [first, second].concat(),
    }
}

impl Checkpoint {
    pub fn metadata(&self) -> Vec<u8> {
        let chunk = |(start, sizes): &(Vec<i64>, Vec<i64>)| {
            let fields = [("offsets", tuple(start)), ("sizes", tuple(sizes))];
            object(METADATA, "ChunkStorageMetadata", &fields)
        };
        let chunks: Vec<u8> = self.chunks.iter().flat_map(chunk).collect();
        let class = format!("c{METADATA}\nTensorProperties\n");
        let dtype = format!("ctorch\n{}\n", self.dtype);
        let properties = [class.as_bytes(), b")\x81(", dtype.as_bytes(), b"N\x89N\x89Ntb"];
        let tensor = [
            ("properties", properties.concat()),
            ("size", tuple(&self.size)),
            ("chunks", [b"](", &chunks[..], b"e"].concat()),
        ];
        let tensor = object(METADATA, "TensorStorageMetadata", &tensor);
        let place = |(start, file, offset, len): &(Vec<i64>, String, i64, i64)| {
            let index = [("fqn", text("x")), ("offset", tuple(start)), ("index", b"N".to_vec())];
            let mut fields = vec![
                ("relative_path", text(file)),
                ("offset", int(*offset)),
                ("length", int(*len)),
            ];
            fields.extend(self.more_of_places.clone());
            let filesystem = "torch.distributed.checkpoint.filesystem";
            let place = object(filesystem, "_StorageInfo", &fields);
            [object(METADATA, "MetadataIndex", &index), place].concat()
        };
        let places: Vec<u8> = self.places.iter().flat_map(place).collect();
        let mut fields = vec![
            ("state_dict_metadata", [b"}", &text("x")[..], &tensor, b"s"].concat()),
            ("storage_data", [b"}(", &places[..], b"u"].concat()),
        ];
        fields.extend(self.more.clone());
        [b"\x80\x02", &object(METADATA, "Metadata", &fields)[..], b"."].concat()
    }

    /// Parses and decodes the checkpoint in a directory.
    pub fn decode(&self) -> anamnesis::Result<Vec<u8>> {
        let directory = crate::common::tempdir().unwrap();
        std::fs::write(directory.path().join(".metadata"), self.metadata()).unwrap();
        std::fs::create_dir(directory.path().join("sub")).unwrap();
        for name in ["a.distcp", "sub/a.distcp"] {
            std::fs::write(directory.path().join(name), &self.file).unwrap();
        }
        parse(directory.path())?.remember_to_bytes(TargetDtype::F32)
    }
}
