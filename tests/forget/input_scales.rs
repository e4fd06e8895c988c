//! Scaled inputs (`Forget::scales_inputs`): norms are divided by what columns of all that reads them
//! are multiplied with, in each class that is known, under the names of both sides.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anamnesis::{
    AnamnesisError, ConvertOptions, ConvertTarget, Forget, ForgetScheme, Report, parse,
};

use crate::common::data;
use crate::common::forget::{stored_at, values_at};

/// Models of `tests/data/whole`, and what is added to their norms under Hugging Face's names.
const MODELS: &[(&str, f32)] = &[
    ("llama", 0.0),
    ("mistral", 0.0),
    ("mixtral", 0.0),
    ("qwen2", 0.0),
    ("qwen2_moe", 0.0),
    ("qwen3", 0.0),
    ("qwen3_moe", 0.0),
    ("gemma", 1.0),
    ("gemma2", 1.0),
    ("gemma3", 1.0),
    ("phi3", 0.0),
    ("smollm3", 0.0),
    ("arcee", 0.0),
    ("granite", 0.0),
];

/// Ends of the names of what norms of layers feed, without those of which a part is not encoded:
/// routers of experts read the second norm.
const READERS: [&[&str]; 2] = [
    &["q_proj", "k_proj", "v_proj", "qkv_proj", "attn_q", "attn_k", "attn_v", "attn_qkv"],
    &["mlp.gate_proj", "mlp.up_proj", "mlp.gate_up_proj", "ffn_gate", "ffn_up"],
];

/// An importance matrix in which some columns are far more active than others, in llama.cpp's older
/// format.
fn uneven(path: &Path) -> Vec<u8> {
    let model = parse(path).unwrap();
    // Those of experts are of a whole stack there.
    let is_known = |name: &str| !name.contains("exps") && !name.contains("experts.");
    let matrices = model
        .tensors()
        .filter(|t| t.shape().len() >= 2 && is_known(t.name()));
    let matrices: Vec<_> = matrices.collect();
    let mut out = (matrices.len() as i32).to_le_bytes().to_vec();
    for t in matrices {
        let n = t.elements() / t.shape()[t.shape().len() - 2];
        let square = |i: usize| if i % 11 == 3 { 900.0f32 } else { 1.0 };
        out.extend((t.name().len() as i32).to_le_bytes());
        out.extend(t.name().as_bytes());
        out.extend([1i32, n as i32].map(i32::to_le_bytes).as_flattened());
        out.extend((0..n).flat_map(|i| square(i).to_le_bytes()));
    }
    out
}

fn forget(
    input: &Path,
    directory: &Path,
    scheme: &str,
    (is_scaled, threads): (bool, usize),
) -> Result<(PathBuf, Report), AnamnesisError> {
    let matrix = directory.join("uneven.dat");
    std::fs::write(&matrix, uneven(input)).unwrap();
    let scheme: ForgetScheme = scheme.parse().unwrap();
    let mut forget = Forget::from(match scheme.has_group_sizes() {
        true => scheme.with_group_size(32),
        false => scheme,
    });
    forget.search = forget.scheme.has_search();
    forget.imatrix = Some(matrix);
    forget.scales_inputs = is_scaled;
    let output = directory.join(format!("{}-{is_scaled}-{threads}", forget.scheme));
    let mut options = ConvertOptions::from(forget);
    options.run = options.run.with_threads(threads);
    let report = parse(input)?.forget(&output, options)?;
    Ok((output, report))
}

/// The values of rows of `cols` multiplied with `factors`.
fn multiplied(values: &[f32], factors: &[f32]) -> Vec<f32> {
    let row = factors.iter().cycle();
    values
        .iter()
        .zip(row)
        .map(|(x, factor)| x * factor)
        .collect()
}

fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (error / b.iter().map(|&b| square(b)).sum::<f64>()).sqrt()
}

/// Norms of layers of which an output has others than the model, with what they are multiplied with.
fn changed_norms(
    before: &BTreeMap<String, Vec<f32>>,
    after: &BTreeMap<String, Vec<f32>>,
    offset: f32,
) -> Vec<(String, Vec<f32>)> {
    let norms = after
        .iter()
        .filter(|(name, _)| name.ends_with("norm.weight"));
    let changed = norms.filter(|(name, values)| before[*name] != **values);
    let factors = changed.map(|(name, values)| {
        let pairs = before[name].iter().zip(values);
        (name.clone(), pairs.map(|(a, b)| (b + offset) / (a + offset)).collect())
    });
    factors.collect()
}

/// Checks that each norm which is another has all its readers, and nothing else is scaled.
fn check(input: &Path, output: &Path, offset: f32, what: &str) {
    let (before, after) = (values_at(input), values_at(output));
    let norms = changed_norms(&before, &after, offset);
    assert!(!norms.is_empty(), "{what}: no norm is another");
    let mut scaled = 0;
    for (name, values) in &before {
        let Some((layer, end)) = name
            .rsplit_once(".weight")
            .map(|(name, _)| name)
            .and_then(layer)
        else {
            continue;
        };
        let kind = READERS
            .iter()
            .position(|ends| ends.iter().any(|e| end.ends_with(e)));
        let is_norm = |(norm, _): &&(String, Vec<f32>)| {
            self::layer(norm).is_some_and(|(of, norm)| {
                let is_first = norm.contains("input_layernorm") || norm.contains("attn_norm");
                of == layer && kind == Some(usize::from(!is_first))
            })
        };
        let wanted = match norms.iter().find(is_norm) {
            Some((_, factors)) => {
                scaled += 1;
                multiplied(&after[name], factors)
            }
            None => after[name].clone(),
        };
        if !name.ends_with("norm.weight") {
            let error = relative_error(&wanted, values);
            assert!(error < 0.25, "{what} {name}: {error}");
        }
    }
    assert!(scaled >= norms.len(), "{what}");
}

/// The layer of a tensor, and what its name ends with.
fn layer(name: &str) -> Option<(usize, &str)> {
    let (_, rest) = name
        .split_once("layers.")
        .or_else(|| name.split_once("blk."))?;
    let (number, end) = rest.split_once('.')?;
    Some((number.parse().ok()?, end))
}

#[test]
fn all_that_reads_a_norm_is_multiplied() {
    let scratch = crate::common::tempdir().unwrap();
    for &(name, offset) in MODELS {
        let (model, directory) =
            (data().join("whole").join(name).join("hf"), scratch.path().join(name));
        std::fs::create_dir(&directory).unwrap();
        let (output, _) = forget(&model, &directory, "w4a16", (true, 1)).unwrap();
        check(&model, &output, offset, name);
        // As GGUF, whose norms have what is added.
        let gguf = directory.join("model.gguf");
        parse(&model)
            .unwrap()
            .convert(&gguf, ConvertTarget::Gguf)
            .unwrap();
        let (output, _) = forget(&gguf, &directory, "gguf:q4_0", (true, 1)).unwrap();
        check(&gguf, &output, 0.0, name);
    }
}

#[test]
fn threads_change_nothing() {
    let scratch = crate::common::tempdir().unwrap();
    let model = data().join("whole/gemma3/hf");
    let outputs = [1, 5].map(|threads| {
        let (output, _) = forget(&model, scratch.path(), "mlx-4bit", (true, threads)).unwrap();
        stored_at(&output)
    });
    assert_eq!(outputs[0], outputs[1]);
}

#[test]
fn outputs_lose_less() {
    let scratch = crate::common::tempdir().unwrap();
    let model = data().join("whole/llama/hf");
    let [plain, scaled] = [false, true].map(|is_scaled| {
        let (_, report) = forget(&model, scratch.path(), "w4a16", (is_scaled, 1)).unwrap();
        report.distance.unwrap().all.outputs.unwrap()
    });
    assert!(scaled < 0.97 * plain, "{scaled} {plain}");
}

/// Codes that move lose nothing: what reads them stays as it is.
#[test]
fn codes_that_move_are_not_scaled() {
    let scratch = crate::common::tempdir().unwrap();
    let model = data().join("whole/llama/hf");
    let (source, _) = forget(&model, scratch.path(), "w4a16", (false, 1)).unwrap();
    for scheme in ["gptq", "w4a16"] {
        let directory = scratch.path().join(scheme);
        std::fs::create_dir(&directory).unwrap();
        let matrix = directory.join("uneven.dat");
        std::fs::write(&matrix, uneven(&model)).unwrap();
        let mut forget = Forget::from(scheme.parse::<ForgetScheme>().unwrap().with_group_size(32));
        (forget.search, forget.imatrix, forget.scales_inputs) = (true, Some(matrix), true);
        let output = directory.join("output");
        let report = parse(&source).unwrap().forget(&output, forget).unwrap();
        assert_eq!(values_at(&output), values_at(&source), "{:?}", report.notes);
    }
}

#[test]
fn classes_with_other_norms_are_refused() {
    let scratch = crate::common::tempdir().unwrap();
    for (name, message) in [
        ("cohere", "`CohereForCausalLM` it is not known what reads the outputs of its norms"),
        ("olmo2", "`Olmo2ForCausalLM` it is not known"),
    ] {
        let model = data().join("whole").join(name).join("hf");
        let error = forget(&model, scratch.path(), "w4a16", (true, 1)).unwrap_err();
        assert!(matches!(error, AnamnesisError::Usage { .. }), "{error:?}");
        assert!(error.to_string().contains(message), "{error}");
    }
}
