//! What is wrong with a tensor counts only if the tensor is asked for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anamnesis::{
    ConvertOptions, ErrorKind, NameChanges, ParsedModel, RememberOptions, TargetDtype, parse,
    parse_bytes,
};
use safetensors::SafeTensors;

use crate::common::{Raw, case_directories, data, effort, f32s, file, find_dtype, raw};

fn options() -> ConvertOptions {
    let mut options = ConvertOptions::from(RememberOptions::new(TargetDtype::F32));
    options.single_file = true;
    options
}

fn with(include: &[&str], exclude: &[&str], drop: &[&str]) -> ConvertOptions {
    let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
    let mut options = options();
    options.include = texts(include);
    options.exclude = texts(exclude);
    let names = NameChanges::default();
    options.with_names(
        drop.iter()
            .fold(names, |names, text| names.with_drop(*text)),
    )
}

/// The bytes of all output tensors, by name.
fn outputs(
    model: &ParsedModel,
    options: ConvertOptions,
) -> anamnesis::Result<BTreeMap<String, Vec<u8>>> {
    let conversion = model.plan(options)?;
    let names = conversion.outputs().map(|t| t.name.to_owned());
    let names: Vec<String> = names.collect();
    let tensor = |name: String| Ok((name.clone(), conversion.tensor(&name)?));
    names.into_iter().map(tensor).collect()
}

/// The tensors of a small safetensors file; `None` if it is none of a known dtype.
fn tensors(path: &Path) -> Option<Vec<Raw>> {
    let bytes = std::fs::read(path).ok().filter(|b| b.len() < 200 << 10)?;
    let all = SafeTensors::deserialize(&bytes).ok()?;
    let one = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let dtype = serde_json::to_value(view.dtype()).ok()?;
        let (dtype, _) = find_dtype(dtype.as_str()?)?;
        Some(raw(&name, dtype, view.shape(), view.data().to_vec()))
    };
    all.tensors().into_iter().map(one).collect()
}

/// The model of the directory twice, below `a` and `b`, without its tensor `removed` below `b`.
fn doubled(case: &Path, tensors: &[Raw], removed: Option<&str>) -> (tempfile::TempDir, PathBuf) {
    let root = crate::common::tempdir().unwrap();
    let named = |prefix: &str, t: &Raw| Raw { name: format!("{prefix}.{}", t.name), ..t.clone() };
    let first = tensors.iter().map(|t| named("a", t));
    let second = tensors.iter().filter(|t| Some(&*t.name) != removed);
    let all: Vec<Raw> = first.chain(second.map(|t| named("b", t))).collect();
    std::fs::write(root.path().join("model.safetensors"), file(&all, &[])).unwrap();
    for entry in std::fs::read_dir(case).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "json") {
            std::fs::copy(&path, root.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let path = root.path().to_path_buf();
    (root, path)
}

/// Of each scheme: without one of its tensors a weight cannot be decoded, and all others can, if it
/// is not asked for.
#[test]
fn of_all_schemes() {
    let mut tried: BTreeMap<String, usize> = BTreeMap::new();
    for case in case_directories() {
        let family = case.strip_prefix(data()).unwrap().iter().next().unwrap();
        let family = family.to_str().unwrap().to_owned();
        if tried.get(&family).is_some_and(|n| *n >= effort([1, 6, 6])) {
            continue;
        }
        let Some(all) = tensors(&case.join("model.safetensors")) else {
            continue;
        };
        let (_root, path) = doubled(&case, &all, None);
        let Ok(intact) = parse(&path).and_then(|model| outputs(&model, options())) else {
            continue;
        };
        let of_a: BTreeMap<_, _> = intact
            .into_iter()
            .filter(|(n, _)| n.starts_with("a."))
            .collect();
        for removed in all.iter().take(6) {
            // One of each scheme is enough here.
            if effort([tried.contains_key(&family), false, false]) {
                break;
            }
            let (_root, path) = doubled(&case, &all, Some(&removed.name));
            let Ok(model) = parse(&path) else {
                continue;
            };
            let Err(error) = model.plan(options()).map(|_| ()) else {
                continue;
            };
            if !error.tensor().is_some_and(|name| name.starts_with("b.")) {
                continue;
            }
            let context = format!("{}, {}: {error}", case.display(), removed.name);
            *tried.entry(family.clone()).or_default() += 1;
            for asked in
                [with(&["a.*"], &[], &[]), with(&[], &["b.*"], &[]), with(&[], &[], &["b.*"])]
            {
                let found = outputs(&model, asked).unwrap_or_else(|e| panic!("{context}: {e}"));
                assert!(found == of_a, "{context}");
            }
            let skipping = options().with_skip_unsupported(true);
            let found = outputs(&model, skipping).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert!(
                of_a.iter()
                    .all(|(name, bytes)| found.get(name) == Some(bytes)),
                "{context}"
            );
            assert!(model.plan(with(&["b.*"], &[], &[])).is_err(), "{context}");
            assert!(model.plan(with(&[], &["a.*"], &[])).is_err(), "{context}");
            assert!(model.plan(with(&[], &[], &["a.*"])).is_err(), "{context}");
        }
    }
    assert!(tried.len() >= 20, "{tried:?}");
}

fn fp8(name: &str) -> Raw {
    raw(name, "F8_E4M3", &[2, 2], vec![0x38; 4])
}

fn scale(name: &str) -> Raw {
    raw(name, "F32", &[], f32s(&[0.5]))
}

fn bf16(name: &str) -> Raw {
    raw(name, "BF16", &[2, 2], [0x80, 0x3f].repeat(4))
}

/// Scales that are left over can be dropped. A scale that a weight needs cannot be dropped alone.
#[test]
fn scales_are_dropped() {
    let tensors = [
        bf16("a.weight"),
        scale("a.weight_scale_inv"),
        fp8("b.weight"),
        scale("b.weight_scale_inv"),
    ];
    let stale = parse_bytes(file(&tensors[..2], &[])).unwrap();
    assert!(stale.plan(options()).is_err());
    let found = outputs(&stale, with(&[], &[], &["*scale_inv"])).unwrap();
    assert_eq!(found["a.weight"], [0x80, 0x3f].repeat(4));
    assert_eq!(found.len(), 1);

    let whole = parse_bytes(file(&tensors[2..], &[])).unwrap();
    let error = whole
        .plan(with(&[], &[], &["*scale_inv"]))
        .map(|_| ())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("wrong without it"), "{error}");

    // Codes whose scale is missing are no plain weight, whatever is dropped beside them.
    let mut lacking = tensors.to_vec();
    lacking.push(fp8("c.weight"));
    let lacking = parse_bytes(file(&lacking[2..], &[])).unwrap();
    for drop in [&["b.weight"][..], &["*.nothing"]] {
        assert!(lacking.plan(with(&[], &[], drop)).is_err(), "{drop:?}");
    }
    let found = outputs(&lacking, with(&[], &[], &["c.weight"])).unwrap();
    assert_eq!(found["b.weight"], f32s(&[0.5; 4]));
}

/// What is left out is named.
#[test]
fn what_is_left_out_is_noted() {
    let model =
        parse_bytes(file(&[fp8("a.weight"), scale("a.weight_scale"), fp8("b.weight")], &[]))
            .unwrap();
    let conversion = model.plan(with(&["a.*"], &[], &[])).unwrap();
    let notes = conversion.report().notes.join("\n");
    assert!(notes.contains("cannot be decoded and are left out: b.weight"), "{notes}");
    // A pattern that may mean the tensor asks for it.
    assert!(model.plan(with(&["*.weight"], &[], &[])).is_err());
    assert!(model.plan(with(&["*"], &[], &[])).is_err());
    // New names are those that patterns are compared with.
    let renamed = |include: &str| {
        let mut options = with(&[include], &[], &[]);
        options.names = options.names.with_rename("b.*", "x.$1");
        options.names = options.names.with_rename("a.*", "y.$1");
        model.plan(options).map(|_| ())
    };
    assert!(renamed("x.weight").is_err());
}

/// Comparing asks for what is compared.
#[test]
fn of_two_models() {
    let model = || {
        let all = [fp8("a.weight"), scale("a.weight_scale"), fp8("b.weight")];
        parse_bytes(file(&all, &[])).unwrap()
    };
    let (a, b) = (model(), model());
    let mut options = anamnesis::DiffOptions::default();
    assert!(a.diff(&b, &options).is_err());
    options.include = vec!["a.*".to_owned()];
    let report = a.diff(&b, &options).unwrap();
    assert!(!report.is_different() && report.equal == 1);
    options.include = vec!["b.*".to_owned()];
    assert!(a.diff(&b, &options).is_err());
}
