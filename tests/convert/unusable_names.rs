//! Names that a container or its readers cannot hold are refused before anything is written.

use anamnesis::{ConvertOptions, ConvertTarget, ErrorKind, NameChanges, parse_bytes};

use crate::common::{f32s, file, raw};

/// Names that the container has no place for, with words of the reason.
const REFUSED: &[(ConvertTarget, &[&str], &str)] = &[
    (ConvertTarget::Safetensors, &["__metadata__"], "metadata of the file"),
    (ConvertTarget::Gguf, &["a\0b"], "NUL"),
    (ConvertTarget::Npz, &["a\0b"], "NUL"),
    (ConvertTarget::Npz, &["a\\b"], "backslash"),
    (ConvertTarget::Npz, &["../a"], "outside"),
    (ConvertTarget::Npz, &["a/../../b"], "outside"),
    (ConvertTarget::Npz, &["/a"], "outside"),
    (ConvertTarget::Npz, &["C:a"], "outside"),
    (ConvertTarget::Npz, &["a", "a.npy"], "NumPy would find"),
    (ConvertTarget::Msgpack, &[".a"], "first key would be empty"),
    (ConvertTarget::Msgpack, &["b.a", "b"], "array and the dict"),
    (ConvertTarget::Msgpack, &["a.__msgpack_chunked_array__"], "array in pieces"),
    (ConvertTarget::Npy, &["a", "A"], "where case does not count"),
];

/// Names that it has a place for.
const WRITTEN: &[(ConvertTarget, &[&str])] = &[
    (
        ConvertTarget::Safetensors,
        &["__metadata", "__METADATA__", "a.__metadata__", "a\0b", "../a", "a.npy", ""],
    ),
    (ConvertTarget::Gguf, &["../a", "a.npy"]),
    (ConvertTarget::Npz, &["a.npy", "a..b", "..a/b", "a/b", "ab:c"]),
    (ConvertTarget::Pth, &["", "a.b", "a", "../a", "a\0b"]),
    (ConvertTarget::Msgpack, &["a..b", "a.c", "a/b", "a-b", "b."]),
    (ConvertTarget::Burnpack, &["", "a.b", "a"]),
];

fn plan(names: &[&str], target: ConvertTarget, changes: NameChanges) -> anamnesis::Result<Vec<u8>> {
    let tensors: Vec<_> = names
        .iter()
        .map(|name| raw(name, "F32", &[2], f32s(&[1.0, 2.0])))
        .collect();
    let model = parse_bytes(file(&tensors, &[])).unwrap();
    let options = ConvertOptions::new(target).with_names(changes);
    model.plan(options)?.to_bytes()
}

/// By whichever way the name comes: from the input, or by `--rename`.
#[test]
fn names_that_readers_do_not_find() {
    for (target, names, words) in REFUSED {
        let last = *names.last().unwrap();
        // A safetensors input cannot have the name `__metadata__` either.
        if last != "__metadata__" {
            let error = plan(names, *target, NameChanges::default()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{names:?}: {error}");
            assert!(error.to_string().contains(words), "{names:?}: {error}");
            assert_eq!(error.tensor(), Some(last), "{error}");
        }
        let mut others: Vec<&str> = names.to_vec();
        *others.last_mut().unwrap() = "other";
        let renamed = NameChanges::default().with_rename("other", last.replace('$', "$$"));
        let error = plan(&others, *target, renamed).unwrap_err();
        assert!(error.to_string().contains(words), "{names:?}: {error}");
        assert!(error.to_string().contains("--rename"), "{error}");
    }
    for (target, names) in WRITTEN {
        plan(names, *target, NameChanges::default()).unwrap_or_else(|e| panic!("{names:?}: {e}"));
    }
    let long = "x".repeat(5000);
    let error = plan(&[&long], ConvertTarget::Npz, NameChanges::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    plan(&[&long], ConvertTarget::Safetensors, NameChanges::default()).unwrap();
}

/// Of every container that has such a name.
#[cfg(all(feature = "npz", feature = "gguf"))]
#[test]
fn metadata_is_no_tensor() {
    for from in [ConvertTarget::Npz, ConvertTarget::Gguf] {
        let name = NameChanges::default().with_rename("a", "__metadata__");
        let bytes = plan(&["a", "b"], from, name).unwrap();
        let model = parse_bytes(bytes).unwrap();
        assert!(model.tensor("__metadata__").is_some());
        let options = ConvertOptions::new(ConvertTarget::Safetensors);
        let error = model.plan(options).map(|_| ()).unwrap_err();
        assert_eq!(error.tensor(), Some("__metadata__"), "{error}");
        let other = NameChanges::default().with_rename("__metadata__", "metadata");
        let options = ConvertOptions::new(ConvertTarget::Safetensors).with_names(other);
        let bytes = model.plan(options).unwrap().to_bytes().unwrap();
        let written = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert!(written.tensor("metadata").is_ok());
    }
}
