//! Importance matrices: whether one is that of the model, and what the metadata says of it.

use std::path::{Path, PathBuf};

use anamnesis::{AnamnesisError, Forget, ForgetScheme, GgufMetadataValue, Report, parse};

use crate::common::forget::{importance, whole};
use crate::common::{file, raw};

/// A matrix for all matrices of the model `input`, with 7 chunks of `dataset`.
fn matrix(input: &Path, dataset: &str) -> Vec<u8> {
    let mut bytes = importance(&parse(input).unwrap());
    bytes.extend(7i32.to_le_bytes());
    bytes.extend((dataset.len() as i32).to_le_bytes());
    bytes.extend(dataset.as_bytes());
    bytes
}

fn forget(
    input: &Path,
    scheme: &str,
    matrix: &Path,
    output: &Path,
) -> Result<Report, AnamnesisError> {
    let mut forget = Forget::from(scheme.parse::<ForgetScheme>().unwrap());
    forget.imatrix = Some(matrix.to_owned());
    parse(input)?.forget(output, forget)
}

fn model(root: &Path, layers: usize, width: usize) -> PathBuf {
    let input = root.join(format!("{layers}-{width}.safetensors"));
    std::fs::write(&input, whole(layers, width, width)).unwrap();
    input
}

/// The keys of `tools/quantize/quantize.cpp` of llama.cpp: texts of at most 127 bytes, and numbers
/// that it stores as UINT32.
#[test]
fn metadata_names_the_matrix_as_llama_quantize_does() {
    let root = crate::common::tempdir().unwrap();
    let input = model(root.path(), 1, 256);
    let dataset = "d".repeat(200);
    let path = root.path().join("importance.dat");
    std::fs::write(&path, matrix(&input, &dataset)).unwrap();
    let entries = parse(&input)
        .unwrap()
        .tensors()
        .filter(|t| t.shape().len() >= 2)
        .count();
    for scheme in ["gguf:q4_0", "gguf:iq2_xs", "gguf:q4_k_m"] {
        let output = root.path().join(format!("{}.gguf", &scheme[5..]));
        forget(&input, scheme, &path, &output).unwrap();
        let model = parse(&output).unwrap();
        let metadata = model.gguf().unwrap().metadata().clone();
        let key = |key: &str| metadata.get(&format!("quantize.imatrix.{key}"));
        let text = path.to_string_lossy().into_owned();
        assert_eq!(key("file"), Some(GgufMetadataValue::String(text)), "{scheme}");
        assert_eq!(key("dataset"), Some(GgufMetadataValue::String(dataset[..127].into())));
        assert_eq!(key("entries_count"), Some(GgufMetadataValue::U32(entries as u32)));
        assert_eq!(key("chunks_count"), Some(GgufMetadataValue::U32(7)));
    }
}

#[test]
fn a_matrix_that_fits_nothing_is_refused_and_one_that_fits_in_part_noted() {
    let root = crate::common::tempdir().unwrap();
    let [one, two] = [(1, 256), (2, 256)].map(|(n, width)| model(root.path(), n, width));
    let path = root.path().join("importance.dat");
    let output = root.path().join("out.gguf");
    let run = |input: &Path, of: &Path| {
        std::fs::write(&path, matrix(of, "text")).unwrap();
        let result = forget(input, "gguf:q4_0", &path, &output);
        let _ = std::fs::remove_file(&output);
        result
    };
    // All but that the file is no whole model.
    let notes = |result: Result<Report, _>| {
        result.map(|mut report| {
            report
                .notes
                .retain(|note| !note.contains("general.architecture"));
            report.notes.join("\n")
        })
    };
    assert_eq!(notes(run(&one, &one)).unwrap(), "");
    let more = notes(run(&one, &two)).unwrap();
    assert!(more.contains("entries fit no tensor") && more.contains("layers.1."), "{more}");
    let less = notes(run(&two, &one)).unwrap();
    assert!(less.contains("encoded tensors have no entry") && less.contains("layers.1."), "{less}");
    let other = root.path().join("other.safetensors");
    let tensor = raw("blk.77.attn_q.weight", "F32", &[2, 256], vec![0; 2048]);
    std::fs::write(&other, file(&[tensor], &[])).unwrap();
    let error = run(&one, &other).unwrap_err().to_string();
    assert!(error.contains("importance.dat") && error.contains("another model"), "{error}");
    // Files of no matrix are named, too.
    let error = forget(&one, "gguf:q4_0", &one, &output)
        .unwrap_err()
        .to_string();
    assert!(error.contains("importance matrix"), "{error}");
}
