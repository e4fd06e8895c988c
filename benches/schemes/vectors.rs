//! Models of vectors of codebooks, of SpQR and of EETQ, each with its config in the file's
//! metadata.

use super::{FileOf, Part, codes, cols, f16s, file_with, rows};

fn model(config: &str, parts: &[Part]) -> Vec<u8> {
    let metadata = serde_json::json!({ "quantization_config": config });
    let header = serde_json::Map::from_iter([("__metadata__".to_owned(), metadata)]);
    file_with(parts, header)
}

/// So many codebooks of vectors of `width` values, with codes of so many bits.
fn aqlm(books: usize, bits: usize, width: usize) -> Vec<u8> {
    let (dtype, bytes) = if bits > 8 { ("I16", 2) } else { ("I8", 1) };
    let shape = vec![rows(), cols() / width, books];
    let (n, values) = (shape.iter().product::<usize>(), (books << bits) * width);
    let parts = [
        Part("w.codes", dtype, shape, random(n * bytes)),
        Part("w.codebooks", "F16", vec![books, 1 << bits, 1, width], f16s(values)),
        Part("w.scales", "F16", vec![rows(), 1, 1, 1], f16s(rows())),
    ];
    model(r#"{"quant_method":"aqlm"}"#, &parts)
}

/// Vectors of `vector` values, with a second codebook if `residual` is not -1.
fn vptq(vector: usize, entries: usize, residual: i64) -> Vec<u8> {
    let second = usize::try_from(residual).unwrap_or(0);
    let bits = entries.ilog2() + second.checked_ilog2().unwrap_or(0);
    let words = cols() * bits as usize / 32;
    let blocks = rows() / vector;
    let order = (0..cols()).flat_map(|i| ((i * 31 % cols()) as u16).to_le_bytes());
    let mut parts = vec![
        Part("w.indices", "I32", vec![1, blocks, words], random(blocks * words * 4)),
        Part("w.centroids.weight", "F16", vec![1, entries * vector], f16s(entries * vector)),
        Part("w.perm", "I16", vec![cols()], order.collect()),
        Part("w.weight_scale", "F16", vec![cols()], f16s(cols())),
        Part("w.weight_bias", "F16", vec![cols()], f16s(cols())),
    ];
    if second > 0 {
        let values = second * vector;
        parts.push(Part("w.res_centroids.weight", "F16", vec![1, values], f16s(values)));
    }
    let config = format!(
        r#"{{"quant_method":"vptq","vector_lens":[-1,{vector}],"num_centroids":[-1,{entries}],"num_res_centroids":[-1,{residual}],"enable_perm":true,"enable_norm":true}}"#
    );
    model(&config, &parts)
}

/// Pairs of codes of so many bits, rotated in groups of 512.
fn higgs(bits: usize) -> Vec<u8> {
    let (words, entries) = (rows() * bits / 16, 1 << bits);
    let tuned = serde_json::json!({ "w": {
        "num_bits": bits, "group_size": 256, "N": rows(), "K": cols(), "dtype": "torch.float16", "template_id": 35,
    }});
    let config = serde_json::json!({
        "quant_method": "higgs", "bits": bits, "hadamard_size": 512, "group_size": 256, "tune_metadata": tuned,
    });
    let parts = [
        Part("w.weight", "I16", vec![words, cols()], random(words * cols() * 2)),
        Part("w.tables", "F16", vec![entries], f16s(entries)),
        Part("w.tables2", "F16", vec![entries, entries, 2], f16s(entries * entries * 2)),
        Part("w.scales", "F16", vec![rows(), cols() / 256], f16s(rows() * cols() / 256)),
    ];
    model(&config.to_string(), &parts)
}

/// Tiles with 40 single values in each row, a hundredth of them.
fn spqr() -> Vec<u8> {
    let words = random(rows() * cols() / 2);
    // Scales and zero points of the tiles are halves whose bytes are all 0x2d.
    let words = words.as_chunks::<8>().0.iter().flat_map(|&word| {
        let codes = u64::from_le_bytes(word) & ((1 << 54) - 1);
        (codes | 0x2d << 54).to_le_bytes()
    });
    let starts = (0..=rows()).flat_map(|row| (row as u32 * 40).to_le_bytes());
    let singles =
        (0..rows() * 40).flat_map(|i| ((i * 97 % cols()) as u32 | 0x3000_0000).to_le_bytes());
    let order = (0..cols()).flat_map(|i| ((i * 31 % cols()) as u16).to_le_bytes());
    let parts = [
        Part("w.dense_weights", "I64", vec![rows() * cols() / 16], words.collect()),
        Part("w.row_offsets", "I32", vec![rows() + 1], starts.collect()),
        Part("w.col_vals", "I32", vec![rows() * 40], singles.collect()),
        Part("w.in_perm", "I32", vec![cols() / 2], order.collect()),
    ];
    model(r#"{"quant_method":"spqr","bits":3}"#, &parts)
}

/// Bytes of all values, unlike those of `codes`: a code of some bits picks any vector.
fn random(n: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..n).map(|_| next()).collect()
}

fn eetq() -> Vec<u8> {
    let n = rows() * cols();
    let parts = [
        Part("w.weight", "I8", vec![cols(), rows()], codes(n)),
        Part("w.weight_scales", "F16", vec![rows()], f16s(rows())),
    ];
    model(r#"{"quant_method":"eetq"}"#, &parts)
}

pub const FILES: &[FileOf] = &[
    ("eetq", eetq),
    ("aqlm-1x16", || aqlm(1, 16, 8)),
    ("aqlm-2x8", || aqlm(2, 8, 8)),
    ("aqlm-1x16-g16", || aqlm(1, 16, 16)),
    ("higgs-2", || higgs(2)),
    ("higgs-3", || higgs(3)),
    ("higgs-4", || higgs(4)),
    ("vptq-8", || vptq(8, 1 << 16, -1)),
    ("vptq-8-256", || vptq(8, 1 << 16, 256)),
    ("vptq-16", || vptq(16, 1 << 16, -1)),
    ("spqr", spqr),
];
