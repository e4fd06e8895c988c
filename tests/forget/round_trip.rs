//! Golden models, decoded and encoded again: the output has the same bytes, the same values, or
//! values as near as the scheme allows. The table in `trips` lists for every case which of them it
//! is.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use anamnesis::{
    AnamnesisError, ConvertOptions, Forget, ForgetScheme, ParsedModel, Report, TargetDtype, Tensor,
    parse,
};

use crate::common::data;
use crate::common::forget::{decoded, encoded, values, values_of};
use crate::trips::{
    Bytes, Columns, FOREIGN, Importance, Kept, MIXED, Near, NoEncoder, Nothing, Refused, Row,
    Share, Values, Verdict, Whole, table,
};

/// A golden model, decoded (`was`), encoded again (`out`), and decoded once more (`is`).
struct Trip {
    golden: ParsedModel,
    was: ParsedModel,
    out: ParsedModel,
    is: ParsedModel,
    report: Report,
}

fn trip(path: &Path, scheme: &str, group: usize) -> Result<Trip, AnamnesisError> {
    let golden = parse(path)?;
    let was = decoded(&golden)?;
    let mut scheme = scheme.parse::<ForgetScheme>()?.pure();
    if group > 0 {
        scheme = scheme.with_group_size(group);
    }
    let mut forget = Forget::from(scheme);
    forget.like = Some(path.to_path_buf());
    // The tensors of this name in `gguf` have infinite scales.
    forget.exclude = vec!["blk.0.hostile.weight".to_owned()];
    let mut options = ConvertOptions::from(forget);
    options.run.to = TargetDtype::F32;
    let (out, report) = encoded(&was, options)?;
    let is = decoded(&out)?;
    Ok(Trip { golden, was, out, is, report })
}

/// Whether two tensors have the same bytes, or the same values in different float types.
fn is_same(a: &Tensor<'_>, b: &Tensor<'_>) -> bool {
    *a.bytes().unwrap() == *b.bytes().unwrap()
        || values(a).is_some_and(|values_of_a| Some(values_of_a) == values(b))
}

impl Trip {
    /// The largest error of all encoded tensors, relative to the largest magnitude that shares the
    /// value's scale.
    fn worst(&self, share: Share) -> f64 {
        let mut worst = 0f64;
        for name in self.report.encoded.iter().map(|e| &e.name) {
            let (was, is) = (values_of(&self.was, name), values_of(&self.is, name));
            let n = match share {
                Columns(n) => n,
                Row => *self.was.tensor(name).unwrap().shape().last().unwrap(),
                Whole => was.len(),
            };
            for (was, is) in was.chunks(n).zip(is.chunks(n)) {
                let max = was.iter().fold(0f32, |max, x| max.max(x.abs()));
                let error = was
                    .iter()
                    .zip(is)
                    .fold(0f32, |error, (a, b)| error.max((a - b).abs()));
                assert!(max > 0.0 || error == 0.0, "{name}: zeros became {error}");
                worst = worst.max(f64::from(error) / f64::from(max.max(f32::MIN_POSITIVE)));
            }
        }
        worst
    }

    /// The first stored tensor that differs from the golden one. Tensors that hold JSON may differ.
    fn first_other(&self) -> Option<String> {
        let made = self.out.tensors().filter(|t| {
            let copied = self
                .was
                .tensor(t.name())
                .is_some_and(|was| was.dtype() == t.dtype() && is_same(&was, t));
            !copied && !t.name().contains(".quant_state.") && !t.name().ends_with(".comfy_quant")
        });
        let mut others = made.filter(|t| {
            !self
                .golden
                .tensor(t.name())
                .is_some_and(|golden| is_same(&golden, t))
        });
        others
            .next()
            .map(|t| format!("`{}` {} {:?}", t.name(), t.dtype(), t.shape()))
    }
}

/// Encodes a case again, and describes what differs from `verdict`.
fn check(
    path: &Path,
    scheme: &str,
    group: usize,
    share: Share,
    verdict: Verdict,
) -> Result<(), String> {
    let trip = match (verdict, trip(path, scheme, group)) {
        (Refused | Importance, Err(error)) => {
            let text = error.to_string();
            let word = if matches!(verdict, Refused) {
                " cannot be encoded to "
            } else {
                "(--imatrix)"
            };
            let right = text.contains("tensor `") && text.contains(word);
            return if right { Ok(()) } else { Err(text) };
        }
        (_, Err(error)) => return Err(error.to_string()),
        (_, Ok(trip)) => trip,
    };
    if matches!(verdict, Kept | Nothing) {
        let is_kept = trip.report.encoded.is_empty()
            && trip.report.kept.iter().all(|kept| !kept.reason.is_empty());
        return if is_kept {
            Ok(())
        } else {
            Err("something was encoded".to_owned())
        };
    }
    if trip.report.encoded.is_empty() {
        return Err(format!("nothing was encoded: {:?}", trip.report.kept));
    }
    let worst = trip.worst(share);
    let bound = match verdict {
        Near(bound) => bound,
        Bytes | Values => 0.0,
        _ => return Err("no error".to_owned()),
    };
    if worst > bound {
        return Err(format!("off by {worst}, and {bound} is the most"));
    }
    match (verdict, trip.first_other()) {
        (Bytes, Some(other)) => Err(format!("{other} is another")),
        _ => Ok(()),
    }
}

/// Whether `name` matches `pattern`, in which a `*` at either end stands for anything.
fn fits(pattern: &str, name: &str) -> bool {
    let (start, end) = (pattern.starts_with('*'), pattern.ends_with('*'));
    let middle = pattern.trim_matches('*');
    match (start, end) {
        (true, true) => name.contains(middle),
        (true, false) => name.ends_with(middle),
        (false, true) => name.starts_with(middle),
        (false, false) => name == middle,
    }
}

/// The path of a case's model.
fn model_of(case: &Path) -> Option<PathBuf> {
    ["model", "model.safetensors", "model.gguf"]
        .map(|name| case.join(name))
        .into_iter()
        .find(|path| path.exists())
}

fn cases(family: &str) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(data().join(family))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let name = |case: &Path| case.file_name().unwrap().to_string_lossy().into_owned();
    let mut cases: Vec<_> = entries
        .filter_map(|case| Some((name(&case), model_of(&case)?)))
        .collect();
    cases.sort();
    cases
}

fn check_family(family: &str, least: usize) {
    let (mut failures, mut checked) = (Vec::new(), 0);
    for (name, path) in cases(family) {
        let mut rows = 0;
        for &(_, patterns, scheme, group, share, verdict) in table().filter(|row| row.0 == family) {
            if !patterns.split(' ').any(|pattern| fits(pattern, &name)) {
                continue;
            }
            rows += 1;
            if matches!(verdict, NoEncoder) {
                continue;
            }
            checked += 1;
            let run =
                catch_unwind(AssertUnwindSafe(|| check(&path, scheme, group, share, verdict)));
            let text = |e: Box<dyn std::any::Any + Send>| {
                Err(e.downcast_ref::<String>().cloned().unwrap_or_default())
            };
            if let Err(what) = run.unwrap_or_else(text) {
                failures.push(format!("{family}/{name} as {scheme}: {verdict:?}: {what:.300}"));
            }
        }
        if rows == 0 && !MIXED.contains(&family) {
            failures.push(format!("{family}/{name} is not in the table"));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(checked >= least, "{family}: only {checked} checks");
}

#[test]
fn bnb() {
    check_family("bnb", 25);
}

#[test]
fn fp8() {
    check_family("fp8", 28);
    check_family("fp8_dirs", 16);
}

#[test]
fn grouped_floats() {
    check_family("nvfp4", 8);
    check_family("mxfp4", 4);
}

#[test]
fn compressed_tensors() {
    check_family("compressed_tensors", 50);
}

#[test]
fn mlx() {
    check_family("mlx", 48);
}

#[test]
fn hqq() {
    check_family("hqq", 15);
}

#[test]
fn sdnq() {
    check_family("sdnq", 20);
}

#[test]
fn gptq_and_awq() {
    check_family("gptq", 40);
    check_family("gptq_more", 1);
    check_family("awq", 14);
}

#[test]
fn modelopt_and_comfy() {
    check_family("modelopt", 6);
    check_family("comfy", 5);
}

#[test]
fn gguf() {
    check_family("gguf", 29);
}

/// Every directory of cases is in the table or among the layouts without an encoder.
#[test]
fn every_directory_of_cases_is_listed() {
    for entry in std::fs::read_dir(data())
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        let family = entry.file_name().unwrap().to_string_lossy().into_owned();
        // The models of the guides, those beside adapters and what is only encoded are no cases of a
        // scheme.
        let is_none = matches!(
            &*family,
            "guide" | "adapters" | "adapters_image" | "adapters_tied" | "mx_to_nvfp4"
        );
        if !entry.is_dir() || is_none || cases(&family).is_empty() {
            continue;
        }
        let is_known = FOREIGN.contains(&family.as_str()) || table().any(|row| row.0 == family);
        assert!(is_known, "{family}");
    }
}
