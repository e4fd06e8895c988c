//! Stacks of gpt-oss: the parameters are transposed against the stored blocks.

use std::path::{Path, PathBuf};

use anamnesis::{AnamnesisError, ModelScope, Report, TargetDtype, parse};

use super::{codes_moved, forget, options, scheme};
use crate::common::data;
use crate::common::forget::{stored_at, values_at};

#[test]
fn stacks_of_gpt_oss_stay_as_they_are() {
    let input = data().join("mxfp4/gpt_oss_exponents/model");
    let outputs = crate::common::tempdir().unwrap();
    let (output, report) =
        forget(&input, outputs.path(), scheme("mxfp4-gpt-oss", None), TargetDtype::BF16).unwrap();
    assert_eq!(codes_moved(&report).len(), 2);
    let (before, after) = (stored_at(&input), stored_at(&output));
    assert!(before == after, "{:?} {:?}", before.keys(), after.keys());
}

/// Encodes only the stacks of experts.
fn forget_experts(
    input: &Path,
    outputs: &Path,
    to: &str,
) -> Result<(PathBuf, Report), AnamnesisError> {
    let options = options(scheme(to, None), TargetDtype::BF16);
    let mut options = options.with_scope(ModelScope::Tensors);
    options.forget.as_mut().unwrap().include =
        vec!["re:.*experts\\..*_proj(\\.weight)?$".to_owned()];
    let ending = if to.starts_with("gguf") {
        "model.gguf"
    } else {
        "model"
    };
    let output = outputs.join(format!("{}-{ending}", to.replace(':', "-")));
    let report = parse(input)?.forget(&output, options)?;
    Ok((output, report))
}

/// Transposes each matrix of `stack`, from `rows` × `columns`.
fn transposed(stack: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let transpose = |matrix: &[f32]| -> Vec<f32> {
        (0..columns)
            .flat_map(|column| {
                matrix
                    .iter()
                    .skip(column)
                    .step_by(columns)
                    .copied()
                    .collect::<Vec<_>>()
            })
            .collect()
    };
    stack.chunks(rows * columns).flat_map(transpose).collect()
}

#[test]
fn stacks_of_gpt_oss_round_trip() {
    let all = ["mlx-mxfp4", "gguf:mxfp4", "mxfp4", "mxfp4-modelopt", "mxfp4-gpt-oss"];
    // Only these decode exponent 255 as a number; for the others it is NaN.
    let with_exponent_255 = ["gguf:mxfp4", "mxfp4-gpt-oss"];
    for (case, steps) in [("gpt_oss_exponents", &with_exponent_255[..]), ("tiny_gpt_oss", &all)] {
        let (input, outputs) =
            (data().join("mxfp4").join(case).join("model"), crate::common::tempdir().unwrap());
        let (before, first) = (values_at(&input), stored_at(&input));
        let stacks: Vec<&str> = first
            .keys()
            .filter_map(|name| name.strip_suffix("_blocks"))
            .collect();
        let mut path = input.clone();
        for step in steps {
            let (output, report) = forget_experts(&path, outputs.path(), step).unwrap();
            assert_eq!(
                codes_moved(&report).len(),
                stacks.len(),
                "{step}: {:?} {:?}",
                report.encoded,
                report.kept
            );
            path = output;
            let after = values_at(&path);
            for name in &stacks {
                let shape = &first[&format!("{name}_blocks")].1;
                let transposed = |stack| transposed(stack, shape[2] * 32, shape[1]);
                let new = match after.get(&format!("{name}.weight")) {
                    Some(new) if *step != "mxfp4-gpt-oss" => new.clone(),
                    None if *step == "mxfp4-gpt-oss" => transposed(&after[*name]),
                    _ => panic!("{step}: {:?}", after.keys()),
                };
                assert!(transposed(&before[*name]) == new, "{case}, {step}: {name}");
            }
        }
        let last = stored_at(&path);
        for name in first
            .keys()
            .filter(|name| name.ends_with("_blocks") || name.ends_with("_scales"))
        {
            assert!(first[name] == last[name], "{name}");
        }
    }
    let (input, outputs) =
        (data().join("mxfp4/gpt_oss_exponents/model"), crate::common::tempdir().unwrap());
    let error = forget_experts(&input, outputs.path(), "mlx-mxfp4")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("down_proj.weight`, row ") && error.contains("exponent is 255"),
        "{error}"
    );
}

#[test]
fn stacks_of_gpt_oss_become_weights_of_other_types() {
    let (input, outputs) =
        (data().join("mxfp4/tiny_gpt_oss/model"), crate::common::tempdir().unwrap());
    let before = values_at(&input);
    for (scheme, error) in [("gguf:q8_0", 0.01), ("mlx-mxfp8", 0.05), ("gguf:q4_0", 0.1)] {
        let (output, report) = forget_experts(&input, outputs.path(), scheme).unwrap();
        assert_eq!(
            (report.encoded.len(), codes_moved(&report).len()),
            (2, 0),
            "{scheme}: {:?}",
            report.kept
        );
        for (name, new) in values_at(&output)
            .iter()
            .filter(|(name, _)| name.ends_with("_proj.weight") && name.contains("experts."))
        {
            let [_, rows, columns] = stored_at(&input)[&name.replace(".weight", "_blocks")].1[..3]
            else {
                panic!("{name}")
            };
            let old =
                transposed(&before[name.strip_suffix(".weight").unwrap()], columns * 32, rows);
            let off = old.iter().zip(new).map(|(a, b)| (a - b).abs()).sum::<f32>()
                / old.iter().map(|a| a.abs()).sum::<f32>();
            assert!(off < error, "{scheme}: {name} is {off} off");
        }
    }
    // Patterns match the names that the model has.
    let options = options(scheme("mlx-mxfp4", None), TargetDtype::BF16);
    let mut options = options.with_scope(ModelScope::Tensors);
    options.forget.as_mut().unwrap().exclude = vec!["*gate_up_proj".to_owned()];
    let report = parse(&input)
        .unwrap()
        .forget(outputs.path().join("last"), options)
        .unwrap();
    assert!(codes_moved(&report) == ["model.layers.0.mlp.experts.down_proj.weight"]);
    assert!(
        report
            .kept
            .iter()
            .any(|kept| kept.name == "model.layers.0.mlp.experts.gate_up_proj")
    );
}
