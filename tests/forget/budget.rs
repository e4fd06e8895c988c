//! Types of a GGUF file for a size (`GgufTypes::bits`).

use std::path::Path;

use anamnesis::{ConvertOptions, Dtype, Forget, ForgetScheme, ParsedModel, parse_bytes};

use crate::common::forget::{all_stored, encoded, importance, whole};

const TYPES: [&str; 2] = ["q3_k", "q5_k"];

fn options(scheme: &str, bits: Option<f64>, imatrix: Option<&Path>) -> ConvertOptions {
    let mut forget = Forget::from(scheme.parse::<ForgetScheme>().unwrap());
    forget.imatrix = imatrix.map(Path::to_owned);
    forget.types.bits = bits;
    forget.into()
}

/// Bits a weight of what is encoded.
fn bits(model: &ParsedModel) -> f64 {
    let blocks = model.tensors().filter(|t| t.dtype().is_ggml_block());
    let sums = blocks.fold((0, 0), |(bytes, weights), t| {
        (bytes + t.bytes().unwrap().len(), weights + t.elements())
    });
    sums.0 as f64 * 8.0 / sums.1 as f64
}

#[test]
fn types_fit_the_size_and_lose_less_than_one_type() {
    let model = parse_bytes(whole(1, 256, 512)).unwrap();
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("importance.dat");
    std::fs::write(&path, importance(&model)).unwrap();
    // Expected errors of all outputs, by what part of them is lost.
    let loss = |options: ConvertOptions| {
        let mut options = options;
        options.run = options.run.with_force(true);
        let output = directory.path().join("out.gguf");
        let report = model.forget(&output, options).unwrap();
        let tensors = report.distance.unwrap().tensors;
        let parts = tensors.iter().filter_map(|t| t.errors.outputs);
        parts.map(|part| part * part).sum::<f64>()
    };
    for scheme in TYPES {
        let scheme = format!("gguf:{scheme}");
        let uniform = encoded(&model, options(&scheme, None, Some(&path)))
            .unwrap()
            .0;
        let size = bits(&uniform);
        let (chosen, report) = encoded(&model, options(&scheme, Some(size), Some(&path))).unwrap();
        let notes = report.notes.join("\n");
        assert!(notes.contains("types for"), "{notes}");
        assert!(bits(&chosen) <= size + 1e-9 && bits(&chosen) > size - 1.0, "{scheme}");
        let [one, chosen_loss] =
            [None, Some(size)].map(|bits| loss(options(&scheme, bits, Some(&path))));
        assert!(chosen_loss <= one * 1.02, "{scheme}: {chosen_loss} {one}");
        let mut threads = options(&scheme, Some(size), Some(&path));
        threads.run = threads.run.with_threads(5);
        assert_eq!(all_stored(&encoded(&model, threads).unwrap().0), all_stored(&chosen));
    }
}

#[test]
fn what_the_caller_names_keeps_its_type() {
    let model = parse_bytes(whole(1, 256, 256)).unwrap();
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("importance.dat");
    std::fs::write(&path, importance(&model)).unwrap();
    let name = "model.layers.0.mlp.up_proj.weight";
    let mut options = options("gguf:q4_k", Some(5.0), Some(&path));
    let forget = options.forget.as_mut().unwrap();
    forget.types.tensors.push((name.to_owned(), Dtype::Q8_0));
    let output = encoded(&model, options).unwrap().0;
    assert_eq!(output.tensor(name).unwrap().dtype(), Dtype::Q8_0);
    assert!(bits(&output) <= 5.0);
}

#[test]
fn sizes_that_no_types_have_are_refused() {
    let model = parse_bytes(whole(1, 256, 256)).unwrap();
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("importance.dat");
    std::fs::write(&path, importance(&model)).unwrap();
    let refused = |scheme: &str, imatrix: Option<&Path>, what: &str| {
        let error = encoded(&model, options(scheme, Some(1.5), imatrix)).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    };
    refused("gguf:q4_k_m", Some(&path), "takes at least");
    refused("gguf:q4_k_m", None, "--imatrix");
    refused("w4a16", Some(&path), "--to gguf:TYPE");
}
