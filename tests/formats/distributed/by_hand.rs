//! Distributed checkpoints made by hand: what older versions of torch write, and what contradicts itself.

use anamnesis::{AnamnesisError, ErrorKind, TargetDtype, parse};
use safetensors::SafeTensors;

use crate::common::pickle::{int, storage, text, tuple, view};
use crate::common::verdict::{Kind, Parse, Unsupported};
use crate::common::zip::{Member, Zip};

const METADATA: &str = "torch.distributed.checkpoint.metadata";

/// An object of a class with these fields.
fn object(module: &str, class: &str, fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
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
struct Checkpoint {
    size: Vec<i64>,
    /// First element and size of each piece.
    chunks: Vec<(Vec<i64>, Vec<i64>)>,
    /// First element, file, offset and length of the bytes of each piece.
    places: Vec<(Vec<i64>, String, i64, i64)>,
    /// More fields of each of these, and of the whole.
    more_of_places: Vec<(&'static str, Vec<u8>)>,
    more: Vec<(&'static str, Vec<u8>)>,
    dtype: &'static str,
    /// The file `a.distcp`.
    file: Vec<u8>,
}

/// An archive with a tensor of `shape`, of the floats `values`.
fn piece(shape: &[i64], values: &[f32]) -> Vec<u8> {
    let mut strides: Vec<i64> = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    let of = storage("FloatStorage", &text("0"), values.len() as i64);
    let tensor = view(&of, 0, shape, &strides);
    archive_of(&tensor, values)
}

fn archive_of(root: &[u8], values: &[f32]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let pickle = [b"\x80\x02", root, b"."].concat();
    let members = [
        Member::stored("m/data.pkl", &pickle),
        Member::stored("m/data/0", &bytes),
    ];
    Zip::of(&members).file()
}

/// Two rows in one piece, and two more in another.
fn good() -> Checkpoint {
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
    fn metadata(&self) -> Vec<u8> {
        let chunk = |(start, sizes): &(Vec<i64>, Vec<i64>)| {
            let fields = [("offsets", tuple(start)), ("sizes", tuple(sizes))];
            object(METADATA, "ChunkStorageMetadata", &fields)
        };
        let chunks: Vec<u8> = self.chunks.iter().flat_map(chunk).collect();
        let class = format!("c{METADATA}\nTensorProperties\n");
        let dtype = format!("ctorch\n{}\n", self.dtype);
        let properties = [
            class.as_bytes(),
            b")\x81(",
            dtype.as_bytes(),
            b"N\x89N\x89Ntb",
        ];
        let tensor = [
            ("properties", properties.concat()),
            ("size", tuple(&self.size)),
            ("chunks", [b"](", &chunks[..], b"e"].concat()),
        ];
        let tensor = object(METADATA, "TensorStorageMetadata", &tensor);
        let place = |(start, file, offset, len): &(Vec<i64>, String, i64, i64)| {
            let index = [
                ("fqn", text("x")),
                ("offset", tuple(start)),
                ("index", b"N".to_vec()),
            ];
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
            (
                "state_dict_metadata",
                [b"}", &text("x")[..], &tensor, b"s"].concat(),
            ),
            ("storage_data", [b"}(", &places[..], b"u"].concat()),
        ];
        fields.extend(self.more.clone());
        [
            b"\x80\x02",
            &object(METADATA, "Metadata", &fields)[..],
            b".",
        ]
        .concat()
    }

    /// Parses and decodes the checkpoint in a directory.
    fn decode(&self) -> anamnesis::Result<Vec<u8>> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(".metadata"), self.metadata()).unwrap();
        std::fs::create_dir(directory.path().join("sub")).unwrap();
        for name in ["a.distcp", "sub/a.distcp"] {
            std::fs::write(directory.path().join(name), &self.file).unwrap();
        }
        parse(directory.path())?.remember_to_bytes(TargetDtype::F32)
    }
}

#[test]
fn a_checkpoint_by_hand() {
    let made = good().decode().unwrap();
    let made = SafeTensors::deserialize(&made).unwrap();
    let expected: Vec<u8> = (0..12).flat_map(|i| (i as f32).to_le_bytes()).collect();
    assert_eq!(made.tensor("x").unwrap().data(), expected);
    // What older versions of torch write: no version, empty pieces without bytes, replicas.
    let mut old = good();
    old.more = vec![];
    old.chunks.push((vec![4, 0], vec![0, 3]));
    old.chunks.push((vec![0, 0], vec![2, 3]));
    let again = old.decode().unwrap();
    let again = SafeTensors::deserialize(&again).unwrap();
    assert_eq!(again.tensor("x").unwrap().data(), expected);
}

#[test]
fn wrong_metadata_are_errors() {
    type Row<'a> = (&'a str, &'a dyn Fn(&mut Checkpoint), Kind, &'a [&'a str]);
    const MAX: i64 = i64::MAX;
    let rows: &[Row<'_>] = &[
        (
            "a piece is not listed",
            &|c| drop(c.chunks.pop()),
            Parse,
            &["`x`", "[2, 0]"],
        ),
        (
            "a piece has no bytes",
            &|c| drop(c.places.pop()),
            Parse,
            &["`x`", "[2, 0]", "missing"],
        ),
        (
            "nothing is listed",
            &|c| (c.chunks.clear(), c.places.clear()).0,
            Parse,
            &["`x`"],
        ),
        (
            "empty, and there are no files",
            &|c| {
                c.size = vec![0];
                c.chunks.clear();
                c.places.clear();
            },
            Parse,
            &["`x`", "no file has a piece"],
        ),
        (
            "rows are missing",
            &|c| c.size[0] = 5,
            Parse,
            &["`x`", "a piece is missing"],
        ),
        (
            "rows are too many",
            &|c| c.size[0] = 3,
            Parse,
            &["`x`", "not within"],
        ),
        (
            "huge",
            &|c| c.size = vec![MAX, MAX],
            Parse,
            &["`x`", "overflows"],
        ),
        (
            "huge, and empty",
            &|c| {
                c.size = vec![0, 1 << 40, 1 << 40];
                c.chunks = vec![(vec![0; 3], vec![0, 1, 1])];
                c.places = vec![(vec![0; 3], "a.distcp".into(), 0, 0)];
            },
            Parse,
            &["`x`", "overflows"],
        ),
        (
            "another row",
            &|c| c.chunks[1].0[0] = 1,
            Parse,
            &["`x`", "[1, 0]"],
        ),
        (
            "overlap",
            &|c| (c.chunks[1].0[0], c.places[1].0[0]) = (1, 1),
            Parse,
            &["`x`", "overlap"],
        ),
        (
            "negative",
            &|c| c.chunks[1].1[0] = -2,
            Parse,
            &["`x`", "sizes"],
        ),
        (
            "another shape",
            &|c| c.chunks[0].1 = vec![3, 2],
            Parse,
            &["`x`", "[2, 3]", "[3, 2]"],
        ),
        (
            "fewer dimensions",
            &|c| c.chunks[0].1 = vec![6],
            Parse,
            &["`x`", "dimensions"],
        ),
        (
            "65 dimensions",
            &|c| c.size = vec![1; 65],
            Parse,
            &["`x`", "sizes"],
        ),
        (
            "another dtype",
            &|c| c.dtype = "int32",
            Parse,
            &["`x`", "F32", "I32"],
        ),
        (
            "no dtype",
            &|c| c.dtype = "FloatStorage",
            Parse,
            &["`x`", "dtype"],
        ),
        (
            "behind the end",
            &|c| c.places[1].3 += 1,
            Parse,
            &["`x`", "not within `a.distcp`"],
        ),
        (
            "far behind",
            &|c| c.places[1].2 = MAX,
            Parse,
            &["`x`", "not within"],
        ),
        (
            "shared bytes",
            &|c| c.places[1].2 -= 1,
            Parse,
            &["`x`", "overlaps"],
        ),
        (
            "one archive twice",
            &|c| (c.places[1].2, c.places[1].3) = (0, c.places[0].3),
            Parse,
            &["`x`", "overlaps"],
        ),
        (
            "one archive twice, under two paths of its file",
            &|c| {
                (c.places[1].2, c.places[1].3) = (0, c.places[0].3);
                (c.places[0].1, c.places[1].1) = ("sub/./a.distcp".into(), "sub//a.distcp".into());
            },
            Parse,
            &["`x`", "overlaps", "`sub/a.distcp`"],
        ),
        (
            "truncated archive",
            &|c| c.places[1].3 -= 1,
            Parse,
            &["`x`", "ZIP"],
        ),
        ("no archive", &|c| c.file.fill(0), Parse, &["`x`", "ZIP"]),
        (
            "outside",
            &|c| c.places[1].1 = "../a.distcp".into(),
            Parse,
            &["../a.distcp"],
        ),
        (
            "absolute",
            &|c| c.places[1].1 = "/a.distcp".into(),
            Parse,
            &["/a.distcp"],
        ),
        (
            "two places",
            &|c| c.places.push(c.places[0].clone()),
            Parse,
            &["`x`", "two places"],
        ),
        (
            "a stray piece",
            &|c| {
                let mut stray = c.places[0].clone();
                stray.0[0] = 9;
                c.places.push(stray);
            },
            Parse,
            &["`x`", "[9, 0]"],
        ),
        (
            "newer",
            &|c| c.more[0].1 = text("2.0.0"),
            Unsupported,
            &["2.0.0"],
        ),
        (
            "compressed on the way",
            &|c| {
                let list = [b"](", &text("zstd")[..], b"e"].concat();
                c.more_of_places = vec![("transform_descriptors", list)];
            },
            Unsupported,
            &["`x`", "zstd"],
        ),
        (
            "a field twice",
            &|c| c.more_of_places = vec![("offset", int(0))],
            Parse,
            &["offset"],
        ),
        (
            "no tensor",
            &|c| {
                c.file = archive_of(b"}", &[0.; 6]);
                (c.size, c.chunks, c.places) =
                    (vec![2, 3], c.chunks[..1].into(), c.places[..1].into());
                c.places[0].3 = c.file.len() as i64;
            },
            Parse,
            &["`x`", "no tensor"],
        ),
        (
            "columns first",
            &|c| {
                let of = storage("FloatStorage", &text("0"), 6);
                let turned = archive_of(&view(&of, 0, &[2, 3], &[1, 2]), &[0.; 6]);
                c.places[1].2 = turned.len() as i64;
                c.places[0].3 = turned.len() as i64;
                let second = piece(&[2, 3], &[0.; 6]);
                c.file = [turned, second].concat();
            },
            Unsupported,
            &["`x`", "order of rows"],
        ),
    ];
    for (what, change, kind, words) in rows {
        let mut checkpoint = good();
        change(&mut checkpoint);
        let error = checkpoint.decode().expect_err(what);
        let expected = match kind {
            Kind::Parse => ErrorKind::Parse,
            Kind::Unsupported => ErrorKind::Unsupported,
            Kind::Limit => ErrorKind::LimitExceeded,
        };
        assert_eq!(error.kind(), expected, "{what}: {error}");
        let message = error.to_string();
        assert!(
            words.iter().all(|word| message.contains(word)),
            "{what}: {message}"
        );
    }
}

#[test]
fn metadata_run_nothing() {
    let mut checkpoint = good();
    checkpoint
        .more
        .push(("planner_data", b"cos\nsystem\n".to_vec()));
    let error = checkpoint.decode().unwrap_err();
    assert!(
        matches!(error, AnamnesisError::DisallowedGlobal { .. }),
        "{error}"
    );
    // Many tensors that refer to one list of pieces take no more time than the pieces that are there.
    let mut checkpoint = good();
    checkpoint.chunks = vec![(vec![4, 0], vec![0, 3]); 20_000];
    // They are counted before the first is read, which has too few dimensions.
    checkpoint.chunks[0].0 = vec![4];
    let error = checkpoint.decode().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
}
