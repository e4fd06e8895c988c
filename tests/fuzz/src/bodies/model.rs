//! What must hold for every model that is parsed, however strange its file is.

use anamnesis::{Conversion, ParseLimits, ParsedModel, RememberOptions, Result};
use safetensors::SafeTensors;

use crate::common::TARGETS;

/// Keeps runs small: whatever a file declares, at most 16 MiB are allocated for it.
pub fn limits() -> ParseLimits {
    ParseLimits::default().with_max_total_bytes(16 << 20)
}

/// Inspects and decodes a model. `salt` chooses the output type, and which of the costlier
/// comparisons are made.
///
/// What `inspect` calls a problem is an error of the conversion. A second conversion gives the same
/// result, and so do three threads, another CPU level, and single tensors. The `safetensors` crate
/// accepts the output, which has the planned tensors.
pub fn check(model: &ParsedModel, salt: u32) {
    let info = model.inspect();
    let _ = info.to_string();
    let (target, _) = TARGETS[salt as usize % TARGETS.len()];
    let options = |threads| RememberOptions::new(target).with_threads(threads);
    let Ok(mut conversion) = model.plan(options(1)) else {
        return;
    };
    let result = conversion.to_bytes();
    assert!(info.problems.is_empty() || result.is_err(), "decoded in spite of {:?}", info.problems);
    assert_eq!(text(&result), text(&conversion.to_bytes()), "a second run");
    if salt & 0x70 == 0 {
        let other = model.plan(options(3)).and_then(|r| r.to_bytes());
        assert_eq!(text(&result), text(&other), "three threads");
        check_level(&mut conversion, &result);
    }
    if let Ok(output) = result {
        check_output(&conversion, &output, salt);
    }
}

/// Bytes as a checksum, and an error as its text: equal results have equal descriptions.
pub fn text(result: &Result<Vec<u8>>) -> String {
    match result {
        Ok(bytes) => format!("{} bytes, {:08x}", bytes.len(), crc32fast::hash(bytes)),
        Err(error) => error.to_string(),
    }
}

/// The baseline must give what the best CPU level has given, where NaN equals NaN: which of two NaN
/// a product keeps is up to the instruction. Only the fuzz targets can choose a level.
#[cfg(feature = "benchmarks")]
pub fn check_level(conversion: &mut Conversion<'_>, result: &Result<Vec<u8>>) {
    let levels = anamnesis::benchable_apis::levels();
    anamnesis::benchable_apis::set_level(conversion, levels[0]);
    let baseline = conversion.to_bytes();
    anamnesis::benchable_apis::set_level(conversion, levels[levels.len() - 1]);
    match (result, &baseline) {
        (Ok(a), Ok(b)) if a != b => crate::common::assert_same(a, b, "baseline"),
        _ => assert_eq!(text(result), text(&baseline), "baseline"),
    }
}

#[cfg(not(feature = "benchmarks"))]
pub fn check_level(_: &mut Conversion<'_>, _: &Result<Vec<u8>>) {}

fn check_output(conversion: &Conversion<'_>, output: &[u8], salt: u32) {
    assert_eq!(conversion.report().output_bytes, output.len() as u64);
    let file = SafeTensors::deserialize(output).unwrap();
    assert_eq!(file.len(), conversion.outputs().len());
    for (i, planned) in conversion.outputs().enumerate() {
        let written = file.tensor(planned.name).unwrap();
        assert_eq!(written.shape(), planned.shape, "{}", planned.name);
        assert_eq!(
            format!("{:?}", written.dtype()),
            format!("{:?}", safetensors::Dtype::try_from(planned.dtype).unwrap())
        );
        // An empty tensor has nothing to copy, so a whole conversion does not read its storage to
        // compare the checksum.
        if planned.byte_len > 0 && (salt >> 8).wrapping_add(i as u32).is_multiple_of(4) {
            let alone = conversion.tensor(planned.name).unwrap();
            assert!(alone == written.data(), "`{}` by itself", planned.name);
        }
    }
}
