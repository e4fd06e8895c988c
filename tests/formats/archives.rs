//! Files written by NumPy, PyTorch and ONNX (tests/data/README.md): each must give exactly the tensors
//! that the library reads, or the error that its index lists.

use std::collections::HashMap;

use anamnesis::{
    AnamnesisError, ConvertOptions, ConvertTarget, ParsedModel, Result, parse, parse_bytes,
};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::common::{assert_same, data};

fn convert(model: &ParsedModel, skip: bool) -> Result<Vec<u8>> {
    let options = ConvertOptions::new(ConvertTarget::Safetensors).with_skip_unsupported(skip);
    model.plan(options)?.to_bytes()
}

/// Cases in which this crate differs from the index or from the library on purpose.
const OURS: &[(&str, &str)] = &[
    // The data's length must match the header exactly.
    ("trailing_bytes.npy", "error"),
    // `V1` is read as the dtype that it usually stands for; a note says that this is a guess.
    ("v1_little.npy", "read"),
    ("v1_void.npy", "read"),
    ("ml_dtypes.npz", "read"),
    // Members that are no arrays are skipped, with a note.
    ("without_npy.npz", "ok"),
    // A checkpoint without tensors is an error.
    ("root_nothing.pt", "error"),
    ("root_number.pt", "error"),
    ("root_none.pt", "error"),
    ("root_empty_list.pt", "error"),
    ("legacy_root_number.pt", "error"),
    // Conjugation and negation bits, which torch applies when it loads, are refused by name.
    ("conj_neg.pt", "error"),
    ("legacy_conj_neg.pt", "error"),
    // Its global is not on torch's list of allowed ones.
    ("leaves_no_bytes.pt", "error"),
    // torch does not open these archives, but their contents are unambiguous.
    ("no_folder.pt", "ok"),
    ("no_version.pt", "ok"),
    // torch loads these only if it may run what they name.
    ("refused_module.pt", "ok"),
    ("legacy_refused_module.pt", "ok"),
    ("torchscript_script.pt", "ok"),
    ("torchscript_trace.pt", "ok"),
    // Arrays of NumPy are read where they are all that a pickle holds, and in archives.
    ("refused_numpy_array.pt", "ok"),
    ("refused_numpy_scalar.pt", "ok"),
    ("refused_numpy_dtype.pt", "ok"),
    ("plain_numpy_1.pkl", "ok"),
    ("plain_numpy_2.pkl", "ok"),
    ("plain_numpy_4.pkl", "ok"),
    ("plain_numpy_5.pkl", "ok"),
];

/// Of each file in a directory that is read, by its name without its ending, a file of the tensors
/// that are expected. They are in one, with names that begin with that of the file.
fn expected(directory: &str) -> HashMap<String, Vec<u8>> {
    let bytes = std::fs::read(data().join(directory).join("expected.safetensors")).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let files: Vec<String> =
        serde_json::from_str(&header.metadata().as_ref().unwrap()["files"]).unwrap();
    let all = SafeTensors::deserialize(&bytes).unwrap();
    let mut of_files: HashMap<String, Vec<_>> =
        files.into_iter().map(|file| (file, vec![])).collect();
    for (name, tensor) in all.iter() {
        let (file, name) = name.split_once('/').unwrap();
        of_files.get_mut(file).unwrap().push((name, tensor));
    }
    let made = of_files.into_iter();
    made.map(|(file, tensors)| (file, safetensors::serialize(tensors, None).unwrap()))
        .collect()
}

/// Describes how the tensors or the error of one file of an index differ from the expected ones.
fn check(directory: &str, expected: &HashMap<String, Vec<u8>>, case: &Value) -> Option<String> {
    let name = case["file"].as_str().unwrap();
    let path = data().join(directory).join(name);
    let bytes = std::fs::read(&path).unwrap();
    let results = [parse(&path).and_then(|m| Ok((convert(&m, false), convert(&m, true)?))), {
        parse_bytes(bytes).and_then(|m| Ok((convert(&m, false), convert(&m, true)?)))
    }];
    let stem = name.rsplit_once('.').unwrap().0;
    let expected = expected.get(stem);
    for result in &results {
        let ours = OURS
            .iter()
            .find(|(file, _)| *file == name)
            .map(|(_, expect)| *expect);
        let wrong = match (ours.unwrap_or(case["expect"].as_str().unwrap()), result) {
            ("read", Ok((_, all))) => (all.is_empty()).then(|| "nothing is read".to_owned()),
            ("error", Err(e)) => wrong_error(case, e),
            ("error", Ok((Err(e), _))) => wrong_error(case, e),
            ("error", Ok(_)) => Some("no error".to_owned()),
            ("skips", Ok((Ok(_), _))) => Some("nothing is refused".to_owned()),
            ("skips", Ok((Err(AnamnesisError::Unsupported { .. }), all))) => {
                wrong_tensors(expected?, all)
            }
            (_, Ok((Ok(all), _))) => wrong_tensors(expected.unwrap(), all),
            (_, Ok((Err(e), _)) | Err(e)) => Some(e.to_string()),
        };
        if let Some(wrong) = wrong {
            return Some(format!("\n{directory}/{name}: {wrong}  [{}]", case["detail"]));
        }
    }
    None
}

fn wrong_error(case: &Value, error: &AnamnesisError) -> Option<String> {
    let blocked = case["torch"]
        .as_str()
        .and_then(|said| said.strip_prefix("blocks the global "));
    match (blocked, error) {
        (Some(global), AnamnesisError::DisallowedGlobal { module, name }) => {
            let ours = format!("{module}.{name}");
            // The error names the module as the file does, in this case by its name in Python 2.
            let same = ours == global || ours.replace("__builtin__", "builtins") == global;
            (!same).then(|| format!("refused {ours}, where {global} is meant"))
        }
        (_, AnamnesisError::Io(e)) => Some(format!("I/O: {e}")),
        _ => None,
    }
}

fn wrong_tensors(expected: &[u8], got: &[u8]) -> Option<String> {
    let same = std::panic::catch_unwind(|| assert_same(expected, got, ""));
    same.err()
        .map(|e| e.downcast_ref::<String>().cloned().unwrap_or_default())
}

fn check_all(directory: &str, least: usize) {
    let index: Value =
        serde_json::from_slice(&std::fs::read(data().join(directory).join("index.json")).unwrap())
            .unwrap();
    let cases = index.as_array().unwrap();
    assert!(cases.len() >= least);
    let expected = expected(directory);
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|case| check(directory, &expected, case))
        .collect();
    assert!(failures.is_empty(), "{} of {}: {}", failures.len(), cases.len(), failures.join(""));
}

#[test]
fn numpy() {
    check_all("npz", 160);
}

#[test]
fn pytorch() {
    check_all("pth", 150);
}

#[test]
fn torch_export() {
    check_all("pt2", 5);
}

#[test]
fn torchscript() {
    check_all("torchscript", 5);
}

#[test]
fn modules() {
    check_all("modules", 5);
}

#[test]
fn paddle() {
    check_all("paddle", 9);
}

#[cfg(feature = "burnpack")]
#[test]
fn burnpack() {
    check_all("burnpack", 3);
}

#[test]
fn flax() {
    check_all("flax", 9);
}

#[test]
fn hdf5() {
    check_all("hdf5", 20);
}

#[test]
fn onnx() {
    check_all("onnx", 35);
}

#[cfg(feature = "tflite")]
#[test]
fn tflite() {
    check_all("tflite", 18);
}

#[cfg(feature = "mindspore")]
#[test]
fn mindspore() {
    check_all("mindspore", 7);
}

#[cfg(feature = "executorch")]
#[test]
fn executorch() {
    check_all("executorch", 11);
}

/// Every file, converted to NPZ and read again, gives the same tensors; the archive's checksums are
/// right.
#[test]
fn out_as_npz_and_back() {
    let (mut same, mut refused) = (0, 0);
    for directory in [
        "npz",
        "pth",
        "pt2",
        "torchscript",
        "modules",
        "paddle",
        "flax",
        "burnpack",
        "hdf5",
        "onnx",
        "tflite",
        "executorch",
        "mindspore",
    ] {
        for entry in std::fs::read_dir(data().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path
                .extension()
                .is_some_and(|e| e == "safetensors" || e == "json")
            {
                continue;
            }
            let Ok(model) = parse(&path) else { continue };
            let Ok(want) = convert(&model, true) else {
                continue;
            };
            let options = ConvertOptions::new(ConvertTarget::Npz).with_skip_unsupported(true);
            match model.plan(options).and_then(|r| r.to_bytes()) {
                Ok(npz) => {
                    let again = parse_bytes(npz).unwrap();
                    assert_same(
                        &want,
                        &convert(&again, false).unwrap(),
                        &path.display().to_string(),
                    );
                    same += 1;
                }
                Err(e) => {
                    assert!(
                        matches!(e, AnamnesisError::Unsupported { .. }),
                        "{}: {e}",
                        path.display()
                    );
                    refused += 1;
                }
            }
        }
    }
    assert!(same > 180 && refused < 20, "{same} {refused}");
}

#[test]
fn npz_and_pth_functions_agree_with_the_model() {
    let path = data().join("demo/arrays.npz");
    let arrays = anamnesis::parse_npz(&path).unwrap();
    let model = parse(&path).unwrap();
    assert_eq!(arrays.len(), model.tensors().len());
    let listed = anamnesis::inspect_npz(&path).unwrap();
    for t in &listed.tensors {
        let (array, tensor) = (&arrays[&t.name], model.tensor(&t.name).unwrap());
        assert_eq!((&t.shape, t.dtype, t.byte_len), (&array.shape, array.dtype, array.data.len()));
        assert_eq!(tensor.bytes().unwrap(), array.data);
    }
    assert_same(
        &convert(&model, false).unwrap(),
        &anamnesis::npz_to_safetensors_bytes(&arrays).unwrap(),
        "npz",
    );

    let path = data().join("demo/checkpoint.pth");
    let checkpoint = anamnesis::parse_pth(&path).unwrap();
    let front =
        anamnesis::parse_pth_front_matter_from_reader(std::fs::File::open(&path).unwrap()).unwrap();
    assert_eq!(front.tensors, checkpoint.tensor_info());
    let bytes = checkpoint.to_safetensors_bytes().unwrap();
    assert_same(&bytes, &convert(&parse(&path).unwrap(), false).unwrap(), "pth");
    let tensors = checkpoint.tensors().unwrap();
    assert_same(&bytes, &anamnesis::pth_to_safetensors_bytes(&tensors).unwrap(), "pth tensors");
    let directory = crate::common::tempdir().unwrap();
    checkpoint
        .to_safetensors(directory.path().join("a"))
        .unwrap();
    anamnesis::pth_to_safetensors(&tensors, directory.path().join("b")).unwrap();
    anamnesis::npz_to_safetensors(&arrays, directory.path().join("c")).unwrap();
    assert_eq!(std::fs::read(directory.path().join("a")).unwrap(), bytes);
}

/// A stream that counts its reads. It reads windows of a fixed size, as a client of a server does.
struct Counting<R>(R, std::rc::Rc<std::cell::Cell<usize>>);

impl<R: std::io::Read> std::io::Read for Counting<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.1.set(self.1.get() + 1);
        self.0.read(out)
    }
}

impl<R: std::io::Seek> std::io::Seek for Counting<R> {
    fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
        self.0.seek(to)
    }
}

#[test]
fn headers_take_few_reads() {
    let reads = std::rc::Rc::new(std::cell::Cell::new(0));
    let file =
        |name: &str| Counting(std::fs::File::open(data().join(name)).unwrap(), reads.clone());
    anamnesis::parse_pth_front_matter_from_reader(file("demo/checkpoint.pth")).unwrap();
    assert!(reads.get() <= 8, "{} reads", reads.get());
}
