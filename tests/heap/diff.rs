//! The heap while models are compared and checked.

use std::path::{Path, PathBuf};

use anamnesis::{DiffOptions, RememberOptions, TargetDtype, TensorRole, parse};

use crate::profiler::Profiler;
use crate::{THREADS, bound};

/// Compares the model `input` with `decoded`, its decoded output (0), or with itself after bits of
/// codes have changed, so that both sides are decoded (1), or checks the values of `input` (2).
pub fn comparing(
    profiler: &Profiler,
    scheme: &str,
    [input, decoded]: [&Path; 2],
    comparison: usize,
) {
    let bound = bound(scheme);
    let options = || RememberOptions::new(TargetDtype::F32).with_threads(THREADS);
    let compare = |other: &Path, what: &str| {
        let (peak, report) = profiler.peak(|| {
            let (a, b) = (parse(input).unwrap(), parse(other).unwrap());
            a.diff(&b, &DiffOptions::default().with_run(options()))
                .unwrap()
        });
        assert!(report.is_different(), "{scheme} and {what}");
        assert!(peak <= bound, "{scheme} and {what}: {peak} bytes of heap, {bound} allowed");
    };
    match comparison {
        0 => compare(decoded, "its output"),
        1 => {
            let changed = with_changed_codes(input);
            compare(&changed, "its changed copy");
            std::fs::remove_file(changed).unwrap();
        }
        _ => {
            #[cfg(feature = "check")]
            {
                let check = anamnesis::CheckOptions::default()
                    .with_run(options())
                    .with_data(true);
                let (peak, report) = profiler.peak(|| parse(input).unwrap().check(&check).unwrap());
                assert!(report.tensors > 0);
                assert!(peak <= bound, "{scheme} checked: {peak} bytes of heap, {bound} allowed");
            }
        }
    }
}

/// Writes `input` with some codes changed beside it.
fn with_changed_codes(input: &Path) -> PathBuf {
    let changed = input.with_file_name("changed");
    let mut bytes = std::fs::read(input).unwrap();
    let model = parse(input).unwrap();
    let mut tensors = model.tensors();
    let codes = tensors.find(|t| t.role() == TensorRole::Quantized).unwrap();
    let middle = codes.bytes().unwrap().len() / 8 * 4;
    let at = codes.offset().unwrap() as usize + middle;
    // The lowest bits of little-endian words.
    bytes[at..at + 64]
        .iter_mut()
        .step_by(4)
        .for_each(|byte| *byte ^= 1);
    std::fs::write(&changed, bytes).unwrap();
    changed
}
