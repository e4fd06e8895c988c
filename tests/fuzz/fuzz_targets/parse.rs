//! Any container: bytes are parsed, summed up and decoded. Errors are fine, panics and overruns are not.

#![no_main]

use anamnesis::{ParseLimits, TargetDtype, parse_bytes_with_limits};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let limits = ParseLimits::default().with_max_total_bytes(64 << 20);
    if let Ok(model) = parse_bytes_with_limits(bytes.to_vec(), &limits) {
        let _ = model.inspect().to_string();
        let _ = model.remember_to_bytes(TargetDtype::F32);
    }
});
