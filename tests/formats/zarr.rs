//! Zarr 2 and 3, in directories and in databases of OCDBT, as Orbax, TensorStore and Zarr write them.

use std::fs;
use std::path::PathBuf;

use anamnesis::{
    Container, ConvertOptions, ConvertTarget, ErrorKind, ParsedModel, parse, parse_bytes,
};

use crate::common::ocdbt::{TREE, leaf, manifest, node};
use crate::common::{assert_same, data, tempdir};

fn case(name: &str) -> PathBuf {
    data().join("zarr").join(name)
}

/// The tensors of a model as they are stored.
fn stored(model: &ParsedModel) -> anamnesis::Result<Vec<u8>> {
    let options = ConvertOptions::new(ConvertTarget::Safetensors);
    model.plan(options).and_then(|plan| plan.to_bytes())
}

/// Each case equals what the libraries read, or is refused.
#[test]
fn cases() {
    let index = fs::read(case("index.json")).unwrap();
    let index: Vec<serde_json::Value> = serde_json::from_slice(&index).unwrap();
    for row in &index {
        let name = row["case"].as_str().unwrap();
        let read = parse(case(name)).and_then(|model| stored(&model).map(|bytes| (model, bytes)));
        if let Some(words) = row["words"].as_str() {
            let error = read.map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(words), "{name}: {error}");
            continue;
        }
        let (model, bytes) = read.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(model.container(), Container::Zarr, "{name}");
        assert_eq!(model.tensors().len() as u64, row["tensors"].as_u64().unwrap(), "{name}");
        let want = fs::read(case(&format!("{name}.safetensors"))).unwrap();
        let want = stored(&parse_bytes(want).unwrap()).unwrap();
        assert_same(&want, &bytes, name);
    }
}

/// By its manifest, by the directory of an item, of a step and of all steps.
#[test]
fn ways_in() {
    let names = |path: PathBuf| -> Vec<String> {
        let model = parse(path).unwrap();
        model
            .tensors()
            .map(|tensor| tensor.name().to_owned())
            .collect()
    };
    for path in ["manager", "manager/10", "manager/10/default", "manager/9/default/manifest.ocdbt"]
    {
        assert_eq!(names(case(path)), ["w"], "{path}");
    }
    let notes = parse(case("manager")).unwrap().inspect().notes;
    assert!(notes.iter().any(|note| note.contains("2 steps")), "{notes:?}");
    assert_eq!(names(case("items/1/params")), ["w"]);
    let alone = parse_bytes(fs::read(case("manager/9/default/manifest.ocdbt")).unwrap());
    assert!(alone.unwrap_err().to_string().contains("give the path"));
}

/// Neither other steps nor the database go into an output, and missing chunks are told.
#[test]
fn outputs() {
    let place = tempdir().unwrap();
    let output = place.path().join("out");
    let model = parse(case("manager")).unwrap();
    model
        .convert(&output, ConvertOptions::new(ConvertTarget::Safetensors))
        .unwrap();
    let names = fs::read_dir(&output)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["model.safetensors"]);
    let notes = parse(case("zarr2")).unwrap().inspect().notes;
    let note = "2 arrays lack chunks, which are taken as the fill value: missing, ones";
    assert_eq!(notes, [note]);
}

/// A database of one leaf is a model.
fn database(values: &[(&str, &[u8])]) -> anamnesis::Result<ParsedModel> {
    let place = tempdir().unwrap();
    let root = node(TREE, &leaf(values));
    fs::write(place.path().join("manifest.ocdbt"), manifest("root", 0, 0, root.len() as u64))
        .unwrap();
    fs::write(place.path().join("root"), &root).unwrap();
    parse(place.path())
}

#[test]
fn names_are_paths() {
    let array = |shape: &str| {
        format!(
            r#"{{"zarr_format":2,"shape":[{shape}],"chunks":[{shape}],"dtype":"|u1","order":"C","compressor":null,"filters":null,"fill_value":0}}"#
        )
    };
    let one = array("1");
    let values: Vec<(&str, &[u8])> = vec![
        ("a.b/.zarray", one.as_bytes()),
        ("a.b/0", b"x"),
        ("a/c/.zarray", one.as_bytes()),
        ("a/c/0", b"y"),
    ];
    let model = database(&values).unwrap();
    let names: Vec<&str> = model.tensors().map(|tensor| tensor.name()).collect();
    assert_eq!(names, ["a.b", "a.c"]);
    // Arrays of text are no tensors.
    let text = one.replace("|u1", "|S4");
    let model = database(&[("t/.zarray", text.as_bytes()), ("t/0", b"abcd")]).unwrap();
    let skipped: Vec<_> = model
        .skipped_arrays()
        .map(|(name, what)| (name.to_owned(), what.to_owned()))
        .collect();
    assert_eq!(skipped, [("t".to_owned(), "array of |S4".to_owned())]);
    let error = stored(&model).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// A flipped bit of a database is found by its checksums, or in what it describes.
#[test]
fn damaged_nodes() {
    let place = tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("d")).unwrap();
    let source = case("plain_nodes");
    let file = fs::read_dir(source.join("d"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files: Vec<PathBuf> = file.collect();
    for path in &files {
        fs::copy(path, at("d").join(path.file_name().unwrap())).unwrap();
    }
    let manifest = fs::read(source.join("manifest.ocdbt")).unwrap();
    for i in 4..manifest.len() {
        let mut bytes = manifest.clone();
        bytes[i] ^= 1 << (i % 8);
        fs::write(at("manifest.ocdbt"), bytes).unwrap();
        let error = parse(place.path()).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Parse, "{i}: {error}");
    }
    fs::write(at("manifest.ocdbt"), &manifest[..manifest.len() - 1]).unwrap();
    assert!(parse(place.path()).is_err());
    fs::write(at("manifest.ocdbt"), &manifest).unwrap();
    parse(place.path()).unwrap();
    fs::remove_dir_all(at("d")).unwrap();
    let error = parse(place.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("is missing"), "{error}");
}
