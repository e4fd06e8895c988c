//! Types and schemes for a size (`Forget::bits`, `Forget::size`).

use std::path::Path;

use anamnesis::{
    ConvertOptions, Dtype, Forget, ForgetScheme, ModelScope, ParsedModel, Report, parse_bytes,
};

use crate::common::forget::{all_stored, encoded, importance, whole};
use crate::common::{effort, tempdir};

/// Pairs of a scheme that all matrices have, and one that other schemes stand beside.
const SCHEMES: [[&str; 2]; 5] = [
    ["gguf:q5_k", "gguf:q5_k"],
    ["mlx-4bit", "mlx-3bit"],
    ["w8a16", "w4a16"],
    ["mxfp8", "mxfp4"],
    ["mxfp8-modelopt", "nvfp4"],
];

fn options(scheme: &str, imatrix: Option<&Path>) -> ConvertOptions {
    let mut forget = Forget::from(scheme.parse::<ForgetScheme>().unwrap());
    forget.imatrix = imatrix.map(Path::to_owned);
    if imatrix.is_some() && !forget.scheme.is_gguf() {
        forget.search = true;
    }
    forget.into()
}

fn with_bits(mut options: ConvertOptions, bits: f64) -> ConvertOptions {
    options.forget.as_mut().unwrap().bits = Some(bits);
    options
}

/// What the options make of `model`, and the report on it.
fn made(model: &ParsedModel, mut options: ConvertOptions) -> (ParsedModel, Report) {
    let directory = tempdir().unwrap();
    let container = options.forget.as_ref().unwrap().scheme.container();
    let output = directory
        .path()
        .join("out")
        .with_extension(container.extension());
    (options.single_file, options.scope) = (true, ModelScope::Tensors);
    let report = model.forget(&output, options).unwrap();
    let bytes = std::fs::read(&output).unwrap();
    (parse_bytes(bytes).unwrap(), report)
}

/// Bytes of what is encoded, and those of all tensors.
fn bytes(model: &ParsedModel, report: &Report) -> [u64; 2] {
    let (mut of_encoded, mut all) = (0, 0);
    for t in model.tensors() {
        let len = t.bytes().unwrap().len() as u64;
        let is_part = |name: &str| {
            let module = name.trim_end_matches("weight");
            let is_of_module = module.ends_with('.') && !t.name().ends_with(".bias");
            t.name() == name || is_of_module && t.name().starts_with(module)
        };
        all += len;
        if report.encoded.iter().any(|encoded| is_part(&encoded.name)) {
            of_encoded += len;
        }
    }
    [of_encoded, all]
}

/// Bits a weight of what is encoded.
fn bits(model: &ParsedModel, report: &Report) -> f64 {
    let weights = report.distance.as_ref().unwrap().all.values;
    bytes(model, report)[0] as f64 * 8.0 / weights as f64
}

/// Expected errors of all outputs, by what part of them is lost.
fn loss(report: &Report) -> f64 {
    let tensors = &report.distance.as_ref().unwrap().tensors;
    let parts = tensors
        .iter()
        .map(|t| t.errors.outputs.unwrap_or(t.errors.relative));
    parts.map(|part| part * part).sum()
}

#[test]
fn types_fit_the_size_and_lose_less_than_one_type() {
    let model = parse_bytes(whole(1, 256, 256)).unwrap();
    let directory = tempdir().unwrap();
    let path = directory.path().join("importance.dat");
    std::fs::write(&path, importance(&model)).unwrap();
    for [uniform, scheme] in SCHEMES {
        // With a matrix, what is chosen by is more than the outputs, of which the report knows.
        let both = [Some(&*path), None];
        let ways = match scheme.starts_with("gguf") {
            true => &both[..effort([1, 2, 2])],
            false => &both[1..],
        };
        for &imatrix in ways {
            let (one, of_one) = made(&model, options(uniform, imatrix));
            let size = bits(&one, &of_one);
            let asked = with_bits(options(scheme, imatrix), size);
            let (chosen, report) = made(&model, asked.clone());
            let notes = report.notes.join("\n");
            assert!(notes.contains("types for it: "), "{notes}");
            let taken = bits(&chosen, &report);
            assert!(taken <= size + 1e-9 && taken > size - 1.0, "{scheme}: {taken} {size} {notes}");
            let [one, chosen_loss] = [loss(&of_one), loss(&report)];
            assert!(chosen_loss <= one * 1.02, "{scheme}: {chosen_loss} {one} {notes}");
            let mut threads = asked;
            threads.run = threads.run.with_threads(5);
            assert_eq!(all_stored(&encoded(&model, threads).unwrap().0), all_stored(&chosen));
        }
    }
}

#[test]
fn all_tensors_fit_the_size() {
    let model = parse_bytes(whole(1, 64, 256)).unwrap();
    for [_, scheme] in SCHEMES {
        let (one, of_one) = made(&model, options(scheme, None));
        let size = bytes(&one, &of_one)[1] * 5 / 4;
        let mut asked = options(scheme, None);
        asked.forget.as_mut().unwrap().size = Some(size);
        let (chosen, report) = made(&model, asked);
        let taken = bytes(&chosen, &report)[1];
        assert!(taken <= size && taken > size * 3 / 4, "{scheme}: {taken} of {size}");
    }
}

/// vLLM loads what it computes as one if it has one scheme.
#[test]
fn what_is_fused_has_one_scheme() {
    let model = parse_bytes(whole(2, 64, 256)).unwrap();
    for scheme in ["w4a16", "nvfp4-ct", "nvfp4"] {
        let asked = with_bits(options(scheme, None), 6.0);
        let report = encoded(&model, asked).unwrap().1;
        let mut schemes: Vec<_> = report.encoded.iter().map(|e| &e.scheme).collect();
        schemes.sort_unstable();
        schemes.dedup();
        assert!(schemes.len() > 1, "{scheme}");
        assert!(!report.notes.join("\n").contains("vLLM"), "{scheme}");
    }
}

#[test]
fn what_the_caller_names_keeps_its_type() {
    let model = parse_bytes(whole(1, 64, 256)).unwrap();
    let name = "model.layers.0.mlp.up_proj.weight";
    for (scheme, kind) in [("gguf:q4_k", "Q8_0"), ("mlx-4bit", "mlx-8bit")] {
        let mut options = with_bits(options(scheme, None), 5.5);
        let forget = options.forget.as_mut().unwrap();
        forget.give(name, kind).unwrap();
        let (output, report) = made(&model, options);
        let found = report.encoded.iter().find(|e| e.name == name).unwrap();
        assert_eq!(found.scheme, kind);
        let taken = bits(&output, &report);
        assert!(taken <= 5.5001, "{scheme}: {taken} {:?}", report.notes);
        if scheme == "gguf:q4_k" {
            assert_eq!(output.tensor(name).unwrap().dtype(), Dtype::Q8_0);
        }
    }
}

#[test]
fn sizes_that_no_types_have_are_refused() {
    let model = parse_bytes(whole(1, 64, 256)).unwrap();
    let refused = |options: ConvertOptions, what: &str| {
        let error = encoded(&model, options).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    };
    refused(with_bits(options("gguf:q4_k_m", None), 1.5), "with the smallest types");
    refused(with_bits(options("w4a16", None), 1.5), "with the smallest types");
    refused(with_bits(options("nf4", None), 4.5), "leaves no choice");
    let mut both = with_bits(options("w4a16", None), 5.0);
    both.forget.as_mut().unwrap().size = Some(1 << 20);
    refused(both, "leave one out");
    let mut small = options("w4a16", None);
    small.forget.as_mut().unwrap().size = Some(1000);
    refused(small, "all tensors take");
}
