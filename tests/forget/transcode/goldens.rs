//! Golden models whose codes can be moved: every value stays.

use std::path::{Path, PathBuf};

use anamnesis::{ForgetScheme, TargetDtype, parse};

use super::{codes_moved, forget, options, scheme};
use crate::common::forget::{
    decoded, encoded, options as options_of, stored, values_at, values_of,
};
use crate::common::{data, effort};

/// The path of a case's model; a model in a single file is copied with its configs alone.
fn copied(case: &Path, outputs: &Path) -> Option<PathBuf> {
    if case.join("model").is_dir() {
        return Some(case.join("model"));
    }
    if case.join("model.gguf").exists() {
        return Some(case.join("model.gguf"));
    }
    let directory = outputs.join(format!("{}-in", case.file_name()?.to_str()?));
    std::fs::create_dir(&directory).unwrap();
    for entry in std::fs::read_dir(case).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name()?.to_str()?.to_owned();
        if name == "model.safetensors" || name.ends_with(".json") {
            std::fs::copy(&path, directory.join(name)).unwrap();
        }
    }
    Some(directory)
}

/// Encodes every case of `family` to `schemes`; tensors whose codes move keep every value. In the gate
/// each scheme has both types of scales, otherwise every second case another one of them.
fn goldens(family: &str, schemes: &[ForgetScheme], least: usize) {
    let mut count = 0;
    let cases = std::fs::read_dir(data().join(family)).unwrap();
    let mut cases: Vec<_> = cases.map(|case| case.unwrap().path()).collect();
    cases.sort();
    for (at, case) in cases.iter().enumerate() {
        let outputs = crate::common::tempdir().unwrap();
        let Some(input) = copied(case, outputs.path()) else {
            continue;
        };
        let Ok(model) = parse(&input) else { continue };
        // Outside the gate a third of the schemes, in the next case another one.
        let step = effort([3, 1, 1]);
        for scheme in schemes.iter().skip(at % step).step_by(step) {
            let types = effort([at % 2..at % 2 + 1, 0..2, 0..2]);
            for &to in &[TargetDtype::F16, TargetDtype::BF16][types] {
                let planned = model.plan(options(scheme.clone(), to));
                if planned.is_ok_and(|planned| codes_moved(planned.report()).is_empty()) {
                    continue;
                }
                // Values that are not finite elsewhere in the model are refused.
                let Ok((output, report)) = forget(&input, outputs.path(), scheme.clone(), to)
                else {
                    continue;
                };
                let names = codes_moved(&report);
                if names.is_empty() {
                    continue;
                }
                count += names.len();
                let (before, after) = (values_at(&input), values_at(&output));
                // Stacks of gpt-oss have another name and form.
                let same_form = names
                    .into_iter()
                    .filter(|name| before.contains_key(*name) && after.contains_key(*name));
                for name in same_form {
                    let mut pairs = before[name].iter().zip(&after[name]);
                    let differ = pairs.position(|(a, b)| a != b && a.is_finite() && b.is_finite());
                    assert_eq!(differ, None, "{}: {name}, {scheme}", input.display());
                }
            }
        }
    }
    assert!(count >= effort([1, least, least]), "{family}: only {count} tensors");
}

#[test]
fn goldens_of_mxfp4_keep_their_values() {
    let schemes = ["mxfp4", "mxfp4-modelopt", "mlx-mxfp4", "mxfp4-gpt-oss", "gguf:mxfp4"]
        .map(|name| scheme(name, None));
    for (family, least) in
        [("mxfp4", 10), ("mlx", 10), ("compressed_tensors", 10), ("modelopt", 10), ("gguf", 2)]
    {
        goldens(family, &schemes, least);
    }
}

#[test]
fn goldens_of_integers_keep_their_values() {
    let names = ["w4a16-asym", "gptq", "awq"];
    let groups = [32, 128];
    let schemes: Vec<_> = names
        .iter()
        .flat_map(|name| groups.map(|group| scheme(name, Some(group))))
        .collect();
    for (family, least) in [("compressed_tensors", 10), ("gptq", 10), ("gptq_more", 5), ("awq", 10)]
    {
        goldens(family, &schemes, least);
    }
}

/// Codes of MXFP4 under scales of NVFP4, which are powers of two, as ModelOpt casts them.
#[test]
fn mxfp4_becomes_nvfp4_without_loss() {
    let case = data().join("mx_to_nvfp4");
    let golden = parse(case.join("expected.safetensors")).unwrap();
    let model = parse(case.join("model")).unwrap();
    let (made, report) = encoded(&model, options_of("nvfp4")).unwrap();
    assert!(golden.tensors().len() >= 12);
    for expected in golden.tensors() {
        let name = expected.name();
        assert_eq!(stored(&made.tensor(name).unwrap()), stored(&expected), "{name}");
    }
    // Exponents that lie further apart than E4M3 reaches are encoded by the library's rounding.
    let values = decoded(&model).unwrap();
    for scheme in ["nvfp4", "nvfp4-ct"] {
        let (made, _) = encoded(&model, options_of(scheme)).unwrap();
        let made = decoded(&made).unwrap();
        for t in values.tensors() {
            let is_exact = values_of(&values, t.name()) == values_of(&made, t.name());
            assert_eq!(is_exact, !t.name().contains("layers.1."), "{scheme}: {}", t.name());
        }
    }
    assert_eq!(report.notes.join("\n"), "");
}
