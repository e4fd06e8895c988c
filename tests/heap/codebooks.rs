//! The largest codebooks that are decoded: each worker has one tensor's, in F32, beside what other schemes take.

use anamnesis::{RememberOptions, TargetDtype, parse};

use crate::common::{Random, Raw, f32s, file, raw};
use crate::profiler::Profiler;
use crate::{BOUND, THREADS};

/// Codebooks and vectors of each, of eight values: four Mi values.
const BOOKS: usize = 8;
const ENTRIES: usize = 1 << 16;

/// Bytes of the codebooks in F32.
const TABLE: usize = BOOKS * ENTRIES * 8 * 4;

/// Tensors of AQLM, each with codebooks of its own.
fn layers() -> Vec<Raw> {
    let (k, n) = (4096, 2048);
    let mut random = Random(3);
    (0..4)
        .flat_map(|i| {
            let codes = random.bytes(n * k / 8 * BOOKS * 2);
            let books = vec![[0, 0x3c]; BOOKS * ENTRIES * 8].concat();
            let scales = f32s(&random.floats(n));
            [
                raw(&format!("{i}.codes"), "I16", &[n, k / 8, BOOKS], codes),
                raw(
                    &format!("{i}.codebooks"),
                    "F16",
                    &[BOOKS, ENTRIES, 1, 8],
                    books,
                ),
                raw(&format!("{i}.scales"), "F32", &[n, 1, 1, 1], scales),
            ]
        })
        .collect()
}

#[test]
fn a_worker_has_the_codebooks_of_one_tensor() {
    let profiler = Profiler::new();
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("model.safetensors");
    let config = r#"{"quantization_config":{"quant_method":"aqlm","num_codebooks":8,"nbits_per_codebook":16,
        "out_group_size":1,"in_group_size":8}}"#;
    std::fs::write(directory.path().join("config.json"), config).unwrap();
    std::fs::write(&input, file(&layers(), &[])).unwrap();
    let options = RememberOptions::new(TargetDtype::BF16).with_threads(THREADS);
    let out = directory.path().join("out.safetensors");
    let (peak, _) = profiler.peak(|| parse(&input).unwrap().remember(&out, options).unwrap());
    let allowed = BOUND + THREADS * TABLE;
    assert!(peak <= allowed, "{peak} bytes of heap, {allowed} allowed");
}
