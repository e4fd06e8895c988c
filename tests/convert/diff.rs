//! Comparisons of models that are stored in different ways.

use anamnesis::{
    ComparedTensor, ConvertOptions, ConvertTarget, DiffOptions, DiffReport, ModelScope,
    ParsedModel, RememberOptions, TargetDtype, TensorDiff, parse, parse_bytes,
};

use crate::common::{data, effort, some_case_directories};
use crate::whole::some_models;

fn decoding() -> ConvertOptions {
    let mut options = ConvertOptions::from(RememberOptions::new(TargetDtype::F32));
    options.skip_unsupported = true;
    options.single_file = true;
    options.scope = ModelScope::Tensors;
    options
}

/// The decoded tensors of `model`.
fn decoded(model: &ParsedModel) -> anamnesis::Result<ParsedModel> {
    parse_bytes(model.plan(decoding())?.to_bytes()?)
}

fn diff(a: &ParsedModel, b: &ParsedModel) -> DiffReport {
    a.diff(b, &DiffOptions::default().with_values_only(true))
        .unwrap()
}

/// Every model of the test data has the values that its recovery writes: quantized, sparse,
/// strided, compressed and big-endian ones. In the gate each is compared with its output, the other
/// way round and with itself, otherwise a fifth of them is, each in one of these ways.
#[test]
fn a_model_has_the_values_of_its_output() {
    let mut paths = some_case_directories(1);
    for container in ["npz", "pth", "gguf-files"] {
        let entries = std::fs::read_dir(data().join(container)).unwrap();
        paths.extend(
            entries
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.is_file()),
        );
    }
    let (mut models, mut values) = (0, 0);
    for path in paths {
        let Ok(model) = parse(&path) else {
            continue;
        };
        let Ok(output) = decoded(&model) else {
            continue;
        };
        // What cannot be decoded is in no output, and cannot be compared.
        let undecodable = model.list().iter().any(|t| t.parameters.is_none());
        if undecodable {
            continue;
        }
        let pairs = [(&model, &output), (&output, &model), (&model, &model)];
        for report in pairs
            .iter()
            .cycle()
            .skip(models % 3)
            .take(effort([1, 3, 3]))
            .map(|(a, b)| diff(a, b))
        {
            assert!(!report.is_different(), "{}: {report:#?}", path.display());
            let all = report
                .changed
                .iter()
                .filter_map(|tensor| tensor.values.as_ref());
            values += all.map(|found| found.values).sum::<u64>();
        }
        models += 1;
    }
    let (least, least_values) = effort([(45, 20_000), (250, 1_000_000), (250, 1_000_000)]);
    assert!(models > least && values > least_values, "{models} models, {values} values");
}

/// Two encodings of one model differ as their decoded values do. The sums are in another order
/// where tiles are.
#[test]
fn two_encodings() {
    use crate::common::{Random, f32s, file, raw};

    let directory = crate::common::tempdir().unwrap();
    let (n, k) = (128, effort([256, 1024, 1024]));
    let tensors = ["q_proj", "up_proj"].map(|name| {
        let values = f32s(&Random(name.len() as u64).floats(n * k));
        raw(&format!("model.layers.0.{name}.weight"), "F32", &[n, k], values)
    });
    let model = parse_bytes(file(&tensors, &[])).unwrap();
    let encoded = ["nf4", "gptq", "awq", "fp8-block", "gguf:q4_0", "mlx-4bit"].map(|scheme| {
        let path = directory
            .path()
            .join(scheme.replace(':', "-"))
            .join("model");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        let mut options = ConvertOptions::from(scheme.parse::<anamnesis::ForgetScheme>().unwrap());
        options.single_file = true;
        model.forget(&path, options).unwrap();
        let encoded = parse(&path).unwrap();
        let values = decoded(&encoded).unwrap();
        (scheme, encoded, values)
    });
    for (name_a, a, values_a) in &encoded {
        for (name_b, b, values_b) in &encoded {
            let (stored, plain) = (diff(a, b), diff(values_a, values_b));
            let context = format!("{name_a} {name_b}");
            assert_eq!(stored.only_in_a.len(), 0, "{context}");
            assert_eq!(stored.is_different(), name_a != name_b, "{context}");
            if name_a == name_b {
                continue;
            }
            assert_eq!(stored.changed.len(), 2, "{context}");
            for (found, expected) in stored.changed.iter().zip(&plain.changed) {
                let (found, expected) =
                    (found.values.as_ref().unwrap(), expected.values.as_ref().unwrap());
                assert_eq!(found.values, (n * k) as u64, "{context}");
                assert_eq!(found.unequal, expected.unequal, "{context}");
                assert_eq!(found.max_abs, expected.max_abs, "{context}");
                assert_eq!(found.first, expected.first, "{context}");
                for (x, y) in [
                    (found.mean_abs, expected.mean_abs),
                    (found.rmse, expected.rmse),
                    (found.cosine, expected.cosine),
                ] {
                    let (x, y) = (x.unwrap(), y.unwrap());
                    assert!((x - y).abs() <= 1e-12 * y, "{context}: {x} {y}");
                }
            }
        }
    }
}

/// A model as llama.cpp stores it is compared with the one of transformers that it was made of: no
/// value differs.
#[test]
fn a_model_of_llama_cpp_has_the_values_of_its_source() {
    let root = crate::common::tempdir().unwrap();
    let out = root.path().join("model.gguf");
    let mut compared = 0;
    // The class of InternLM 2 comes back as that of Llama, which computes the same.
    let models = some_models(3).into_iter();
    for model in models.filter(|model| !model.ends_with("internlm2")) {
        let a = parse(model.join("hf")).unwrap();
        // What is no class of llama.cpp is refused there.
        if a.convert(&out, ConvertOptions::new(ConvertTarget::Gguf))
            .is_err()
        {
            continue;
        }
        let b = parse(&out).unwrap();
        for (a, b) in [(&a, &b), (&b, &a)] {
            let report = a.diff(b, &DiffOptions::default()).unwrap();
            let context = format!("{}: {report:?}", model.display());
            // llama.cpp has no place for what pools.
            let is_left_out = |t: &ComparedTensor| t.name.contains("pooler.");
            let only = [&report.only_in_a, &report.only_in_b];
            assert!(only.into_iter().flatten().all(is_left_out), "{context}");
            let are_equal = |t: &TensorDiff| t.values.as_ref().is_some_and(|v| v.unequal == 0);
            assert!(report.changed.iter().all(are_equal), "{context}");
            compared += 1;
        }
        std::fs::remove_file(&out).unwrap();
    }
    assert!(compared > 10, "{compared}");
}

/// Tensors of GGUF without an architecture are compared as they are, with the reason.
#[test]
fn tensors_of_gguf_alone_are_compared_as_they_are() {
    let root = crate::common::tempdir().unwrap();
    let out = root.path().join("tensors.gguf");
    let a = parse(data().join("whole/llama/hf")).unwrap();
    let options = ConvertOptions::new(ConvertTarget::Gguf).with_scope(ModelScope::Tensors);
    a.convert(&out, options).unwrap();
    let report = a
        .diff(&parse(&out).unwrap(), &DiffOptions::default())
        .unwrap();
    assert!(report.only_in_a.is_empty() && !report.metadata.is_empty(), "{report:?}");
    let other = parse(data().join("demo/model-q4_k.gguf")).unwrap();
    let report = a.diff(&other, &DiffOptions::default()).unwrap();
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("as they are stored")),
        "{report:?}"
    );
}
