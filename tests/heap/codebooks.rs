//! The largest codebooks that are decoded: each worker has one tensor's, in F32, beside what other
//! schemes take. The same is true of the factors of products of low rank.

use anamnesis::{RememberOptions, TargetDtype, parse};

use crate::common::{Random, Raw, f32s, file, raw};
use crate::profiler::Profiler;
use crate::{BOUND, THREADS};

/// Codebooks and vectors of each, of eight values: four Mi values.
const BOOKS: usize = 8;
const ENTRIES: usize = 1 << 16;

/// Bytes of the codebooks in F32.
const TABLE: usize = BOOKS * ENTRIES * 8 * 4;

/// One more than there are workers, so that what holds the codebooks of all is above the bound.
const LAYERS: usize = THREADS + 1;

/// Columns and rows of a layer: few rows, for they take nothing beside the codebooks.
const SIZE: [usize; 2] = [4096, 16];

/// Tensors of AQLM, each with codebooks of its own.
fn aqlm() -> Vec<Raw> {
    let [k, n] = SIZE;
    let mut random = Random(3);
    (0..LAYERS)
        .flat_map(|i| {
            let codes = random.bytes(n * k / 8 * BOOKS * 2);
            let books = vec![[0, 0x3c]; BOOKS * ENTRIES * 8].concat();
            let scales = f32s(&random.floats(n));
            [
                raw(&format!("{i}.codes"), "I16", &[n, k / 8, BOOKS], codes),
                raw(&format!("{i}.codebooks"), "F16", &[BOOKS, ENTRIES, 1, 8], books),
                raw(&format!("{i}.scales"), "F32", &[n, 1, 1, 1], scales),
            ]
        })
        .collect()
}

/// Tensors of VPTQ, each with two codebooks for each of four groups of inputs.
fn vptq() -> Vec<Raw> {
    let ([k, n], groups) = (SIZE, BOOKS / 2);
    let mut random = Random(5);
    let order: Vec<u8> = (0..k).flat_map(|i| (i as u16).to_le_bytes()).collect();
    (0..LAYERS)
        .flat_map(|i| {
            let words = k / groups;
            let codes = random.bytes(groups * n / 8 * words * 4);
            let shape = [groups, ENTRIES * 8];
            let books = || vec![[0, 0x3c]; groups * ENTRIES * 8].concat();
            let order = order.clone();
            [
                raw(&format!("{i}.indices"), "I32", &[groups, n / 8, words], codes),
                raw(&format!("{i}.centroids.weight"), "F16", &shape, books()),
                raw(&format!("{i}.res_centroids.weight"), "F16", &shape, books()),
                raw(&format!("{i}.perm"), "I16", &[k], order),
            ]
        })
        .collect()
}

/// Rank of a product of low rank, whose right factor has two Mi numbers with the lengths of its
/// columns.
const RANK: usize = 511;

/// Tensors of SDNQ with such products.
fn sdnq() -> Vec<Raw> {
    let [k, n] = SIZE;
    let mut random = Random(7);
    (0..LAYERS)
        .flat_map(|i| {
            let codes = random.bytes(n * k);
            let scales = f32s(&random.floats(n));
            let (up, down) = (vec![1; n * RANK * 2], vec![1; RANK * k * 2]);
            [
                raw(&format!("{i}.weight"), "I8", &[n, k], codes),
                raw(&format!("{i}.scale"), "F32", &[n, 1], scales),
                raw(&format!("{i}.svd_up"), "BF16", &[n, RANK], up),
                raw(&format!("{i}.svd_down"), "BF16", &[RANK, k], down),
            ]
        })
        .collect()
}

/// Measures decoding of `layers`, for which each worker has a table of `table` bytes.
fn check(config: &str, layers: impl Fn() -> Vec<Raw>, table: usize) {
    let profiler = Profiler::new();
    let directory = crate::common::tempdir().unwrap();
    let input = directory.path().join("model.safetensors");
    let config = format!(r#"{{"quantization_config":{config}}}"#);
    std::fs::write(directory.path().join("config.json"), config).unwrap();
    std::fs::write(&input, file(&layers(), &[])).unwrap();
    let options = RememberOptions::new(TargetDtype::BF16).with_threads(THREADS);
    let out = directory.path().join("out.safetensors");
    let (peak, _) = profiler.peak(|| parse(&input).unwrap().remember(&out, options).unwrap());
    let allowed = BOUND + THREADS * table;
    assert!(peak <= allowed, "{peak} bytes of heap, {allowed} allowed");
}

#[test]
fn a_worker_has_the_codebooks_of_one_tensor() {
    let config = r#"{"quant_method":"aqlm","num_codebooks":8,"nbits_per_codebook":16,
        "out_group_size":1,"in_group_size":8}"#;
    check(config, aqlm, TABLE);
    let config = r#"{"quant_method":"vptq","vector_lens":[-1,8],"num_centroids":[-1,65536],
        "num_res_centroids":[-1,65536],"enable_perm":true,"group_num":4}"#;
    check(config, vptq, TABLE);
}

#[test]
fn a_worker_has_the_factor_of_one_tensor() {
    let config = r#"{"quant_method":"sdnq","sdnq_version":"0.2.8","weights_dtype":"int8",
        "use_hadamard":false,"use_svd":true,"svd_rank":511}"#;
    check(config, sdnq, (RANK + 1) * SIZE[0] * 4);
}
