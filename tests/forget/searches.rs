//! Searched scales (`Forget::search`): no larger errors than those of rounding and of libraries that
//! search, weighted as an importance matrix says; the same bytes with any number of threads; what has no
//! entry in the matrix stays as the library rounds it.

use std::path::Path;

use anamnesis::{
    ConvertOptions, Forget, ForgetScheme, ModelScope, ParsedModel, parse, parse_bytes,
};

use crate::common::forget::{
    all_stored, decoded, encoded, every_scheme, importance, values_of, weights, whole,
};
use crate::common::{Random, f32s, file, raw};

/// Every scheme whose scales can be searched, and which encodes weights of layers.
fn searched_schemes() -> Vec<ForgetScheme> {
    let all = every_scheme().into_iter();
    let all = all.map(|name| name.parse::<ForgetScheme>().unwrap());
    all.filter(|scheme| scheme.has_search() && *scheme != ForgetScheme::MXFP4_GPT_OSS)
        .collect()
}

/// A model whose rows are groups of 32.
fn model(layers: usize) -> ParsedModel {
    parse_bytes(whole(layers, 32, 64)).unwrap()
}

/// Options for groups of 32.
fn options(scheme: &ForgetScheme, search: bool, imatrix: Option<&Path>) -> ConvertOptions {
    options_of_groups(scheme, 32, search, imatrix)
}

fn options_of_groups(
    scheme: &ForgetScheme,
    group: usize,
    search: bool,
    imatrix: Option<&Path>,
) -> ConvertOptions {
    let scheme = match scheme.has_group_sizes() {
        true => scheme.clone().with_group_size(group),
        false => scheme.clone(),
    };
    let mut forget = Forget::from(scheme);
    (forget.search, forget.imatrix) = (search, imatrix.map(Path::to_owned));
    forget.into()
}

/// Sums of squared errors of the tensor `name`, of each `group` values of a row, each column with what
/// the matrix of [`importance`] says, if `weighted`.
fn errors(
    model: &ParsedModel,
    output: &ParsedModel,
    name: &str,
    group: usize,
    weighted: bool,
) -> Vec<f64> {
    let [before, after] = [model, &decoded(output).unwrap()].map(|model| values_of(model, name));
    let cols = *model.tensor(name).unwrap().shape().last().unwrap();
    let weight = |i: usize| match weighted {
        true => 0.5 + f64::from((i % cols * 37 % 101) as u16) / 16.0,
        false => 1.0,
    };
    let pairs = before.iter().zip(&after).enumerate();
    let errors: Vec<f64> = pairs
        .map(|(i, (a, b))| weight(i) * (f64::from(*a) - f64::from(*b)).powi(2))
        .collect();
    errors
        .chunks(group)
        .map(|group| group.iter().sum())
        .collect()
}

/// The same of a whole tensor.
fn error(model: &ParsedModel, output: &ParsedModel, name: &str, weighted: bool) -> f64 {
    errors(model, output, name, usize::MAX, weighted)[0]
}

const MATRICES: [&str; 3] = [
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
];

#[test]
fn errors_are_smaller() {
    let (model, directory) = (model(1), crate::common::tempdir().unwrap());
    let path = directory.path().join("importance.dat");
    std::fs::write(&path, importance(&model)).unwrap();
    let schemes = searched_schemes();
    assert!(schemes.len() >= 20, "{schemes:?}");
    for scheme in schemes {
        let run = |search, imatrix: Option<&Path>, threads| {
            let mut options = options(&scheme, search, imatrix);
            options.run = options.run.with_threads(threads);
            encoded(&model, options).unwrap().0
        };
        let plain = run(false, None, 1);
        for imatrix in [None, Some(&*path)] {
            let found = run(true, imatrix, 1);
            let mut sums = [0.0; 2];
            for name in MATRICES {
                let both = [&plain, &found];
                let both = both.map(|output| error(&model, output, name, imatrix.is_some()));
                let [plain, found] = both;
                // A largest value that FP8 meets exactly may count for more than all others.
                assert!(found <= plain, "{scheme} {imatrix:?} {name}: {found} {plain}");
                for (sum, error) in sums.iter_mut().zip(both) {
                    *sum += error / plain;
                }
            }
            assert!(sums[1] < sums[0], "{scheme} {imatrix:?}: {sums:?}");
            assert_eq!(all_stored(&run(true, imatrix, 5)), all_stored(&found), "{scheme}");
        }
    }
}

/// llm-compressor and AutoRound try a hundred scales and more. The search loses no more than theirs of any
/// matrix, and hardly more of any group.
#[test]
fn libraries_lose_no_less() {
    let directory = crate::common::tempdir().unwrap();
    let [model, theirs] = ["weights", "errors"].map(|name| {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/searched");
        parse(format!("{data}/{name}.safetensors")).unwrap()
    });
    let path = directory.path().join("importance.dat");
    std::fs::write(&path, importance(&model)).unwrap();
    for theirs_of in theirs.tensors() {
        let key: Vec<_> = theirs_of.name().split('/').collect();
        let [scheme, group, rule, weighted, name] = <[&str; 5]>::try_from(key).unwrap();
        let (group, weighted) = (group.parse().unwrap(), weighted == "weighted");
        let scheme = scheme.parse().unwrap();
        let options = options_of_groups(&scheme, group, true, weighted.then_some(&*path));
        let output = encoded(&model, options).unwrap().0;
        let ours = errors(&model, &output, name, group, weighted);
        let theirs = values_of(&theirs, theirs_of.name())
            .into_iter()
            .map(f64::from);
        let theirs: Vec<f64> = theirs.collect();
        let [sum, sum_of_theirs] = [&ours, &theirs].map(|errors| errors.iter().sum::<f64>());
        let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs);
        let worst = ratios.fold(0.0, f64::max);
        // llm-compressor searches in real numbers, and chooses the scale of the tensor behind that, with
        // which all scales of NVFP4 are others.
        let (most, of_a_group) = match rule.starts_with("nvfp4") {
            true => (1.01, 1.7),
            false => (1.0005, 1.1),
        };
        let report = format!("{}: {} {worst}", theirs_of.name(), sum / sum_of_theirs);
        assert!(sum < most * sum_of_theirs && worst < of_a_group, "{report}");
    }
}

/// A stack of parameters, whose inputs are its rows, gets the codes of the transposed matrices, also by a
/// matrix of llama.cpp, which has entries of both projections.
#[test]
fn inputs_may_be_rows() {
    let (experts, inputs, outputs) = (3, 64, 48);
    let of_parameter = weights(&mut Random(7), experts * inputs * outputs);
    let at = |expert, output, input| of_parameter[(expert * inputs + input) * outputs + output];
    let of_module: Vec<f32> = (0..experts * outputs * inputs)
        .map(|i| at(i / inputs / outputs, i / inputs % outputs, i % inputs))
        .collect();
    let name = "model.layers.0.mlp.experts.gate_up_proj";
    let model = |name: &str, dims: [usize; 3], values: &[f32]| {
        parse_bytes(file(&[raw(name, "F32", &dims, f32s(values))], &[])).unwrap()
    };
    let parameter = model(name, [experts, inputs, outputs], &of_parameter);
    let module = model(&format!("{name}.weight"), [experts, outputs, inputs], &of_module);
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("importance.dat");
    let of_llama = model("blk.0.ffn_up_exps.weight", [experts, outputs, inputs], &of_module);
    std::fs::write(&path, importance(&of_llama)).unwrap();
    let plain = encoded(&parameter, options(&ForgetScheme::MXFP4_GPT_OSS, false, None)).unwrap();
    for imatrix in [None, Some(&*path)] {
        let run = |model| {
            let options = options(&ForgetScheme::MXFP4_GPT_OSS, true, imatrix);
            let (output, report) = encoded(model, options).unwrap();
            assert!(report.notes.iter().all(|note| !note.contains("importance")), "{report:?}");
            all_stored(&output)
        };
        let found = run(&parameter);
        assert_eq!(found, run(&module), "{imatrix:?}");
        assert_ne!(found, all_stored(&plain.0));
    }
}

#[test]
fn what_a_matrix_does_not_know_stays_as_the_library_has_it() {
    let (model, directory) = (model(2), crate::common::tempdir().unwrap());
    // A matrix of the first layer alone.
    let known = self::model(1);
    let path = directory.path().join("importance.dat");
    std::fs::write(&path, importance(&known)).unwrap();
    let plain = encoded(&model, options(&ForgetScheme::NF4, false, None))
        .unwrap()
        .0;
    let (found, report) = encoded(&model, options(&ForgetScheme::NF4, true, Some(&path))).unwrap();
    let notes = report.notes.join("\n");
    assert!(notes.contains("encoded tensors have no entry"), "{notes}");
    let [plain, found] = [plain, found].map(|output| all_stored(&output));
    for (name, stored) in &plain {
        let is_weight = name.contains("proj.weight") && !name.contains("quant_");
        let differs = is_weight && name.starts_with("model.layers.0.");
        assert_eq!(found[name] != *stored, differs, "{name}");
    }
}

/// Only a matrix tells what becomes of outputs, and a search makes that less.
#[test]
fn errors_of_outputs_are_reported() {
    let (model, directory) = (model(1), crate::common::tempdir().unwrap());
    let path = directory.path().join("importance.dat");
    std::fs::write(&path, importance(&model)).unwrap();
    let outputs = |scheme: &ForgetScheme, search, imatrix: Option<&Path>| {
        let output = directory
            .path()
            .join(format!("{scheme}-{search}-{}", imatrix.is_some()));
        let mut options = options(scheme, search, imatrix);
        (options.single_file, options.scope) = (true, ModelScope::Tensors);
        let report = model.forget(&output, options).unwrap();
        let distance = report.distance.unwrap();
        let of_tensors = distance
            .tensors
            .iter()
            .filter(|t| t.name.contains("_proj."));
        assert!(
            of_tensors
                .clone()
                .all(|t| t.errors.outputs.is_some() == imatrix.is_some())
        );
        distance.all.outputs
    };
    assert_eq!(outputs(&ForgetScheme::NF4, true, None), None);
    let q4_0: ForgetScheme = "gguf:q4_0".parse().unwrap();
    for (scheme, search) in [(ForgetScheme::NF4, true), (q4_0, false)] {
        let error = outputs(&scheme, search, Some(&*path)).unwrap();
        assert!((0.01..0.2).contains(&error), "{scheme} {error}");
    }
}

#[test]
fn schemes_without_a_search_refuse_it() {
    let model = model(1);
    for scheme in [ForgetScheme::FP8, ForgetScheme::MXFP8, ForgetScheme::Q4_K_M] {
        let error = encoded(&model, options(&scheme, true, None)).unwrap_err();
        assert!(error.to_string().contains("has no search of scales"), "{error}");
    }
    // Nor does a matrix do nothing without a word.
    let unused = options(&ForgetScheme::NF4, false, Some(Path::new("importance.dat")));
    let error = encoded(&model, unused).unwrap_err();
    assert!(error.to_string().contains("--search"), "{error}");
}
