//! The heap while models are compared and checked.

use std::path::Path;

use anamnesis::{DiffOptions, RememberOptions, TargetDtype, TensorRole, parse};

use crate::profiler::Profiler;
use crate::{THREADS, bound};

/// Compares the model `input` with `decoded`, its decoded output, and with itself after bits of
/// codes have changed, so that both sides are decoded. Checks the values of `input` likewise.
pub fn comparing(profiler: &Profiler, scheme: &str, input: &Path, decoded: &Path) {
    let changed = input.with_file_name("changed");
    let mut bytes = std::fs::read(input).unwrap();
    let bound = bound(scheme);
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
    let options = || RememberOptions::new(TargetDtype::F32).with_threads(THREADS);
    for (other, what) in [(decoded, "its output"), (&changed, "its changed copy")] {
        let (peak, report) = profiler.peak(|| {
            let (a, b) = (parse(input).unwrap(), parse(other).unwrap());
            a.diff(&b, &DiffOptions::default().with_run(options()))
                .unwrap()
        });
        assert!(report.is_different(), "{scheme} and {what}");
        assert!(peak <= bound, "{scheme} and {what}: {peak} bytes of heap, {bound} allowed");
    }
    #[cfg(feature = "check")]
    {
        let check = anamnesis::CheckOptions::default()
            .with_run(options())
            .with_data(true);
        let (peak, report) = profiler.peak(|| parse(input).unwrap().check(&check).unwrap());
        assert!(report.tensors > 0);
        assert!(peak <= bound, "{scheme} checked: {peak} bytes of heap, {bound} allowed");
    }
    std::fs::remove_file(changed).unwrap();
}
