//! Every scheme that is encoded to × CPU level: one BF16 tensor of 512 × 4096, read from memory, encoded on one thread,
//! compared with what it decodes to, written nowhere.
//!
//! `cargo bench --features benchmarks --bench encode`, or with a filter: `… -- nf4/`.
#![allow(missing_docs, clippy::unwrap_used)]

use anamnesis::benchable_apis::{decode, levels};
use anamnesis::{ConvertOptions, ForgetScheme};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const ROWS: usize = 512;
const COLS: usize = 4096;

/// A safetensors file with one weight: sums of four uniform numbers, nearly normal.
fn file() -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let values =
        (0..ROWS * COLS).map(|_| half::bf16::from_f32((next() + next() + next() + next()) * 0.05));
    let data: Vec<u8> = values.flat_map(half::bf16::to_le_bytes).collect();
    let record = serde_json::json!({"dtype": "BF16", "shape": [ROWS, COLS], "data_offsets": [0, data.len()]});
    let json = serde_json::json!({"model.layers.0.mlp.up_proj.weight": record}).to_string();
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &data].concat()
}

fn encoders(c: &mut Criterion) {
    let model = anamnesis::parse_bytes(file()).unwrap();
    // Those that take an importance matrix are left out.
    let blocks = [
        "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq3_xxs", "q2_k_s",
    ];
    let ggml = ForgetScheme::all_gguf()
        .map(str::to_lowercase)
        .filter(|name| !blocks.contains(&name.as_str()));
    let names = ForgetScheme::all()
        .map(|(name, _)| name.to_owned())
        .chain(ggml.map(|name| format!("gguf:{name}")));
    for name in names {
        let scheme: ForgetScheme = name.parse().unwrap();
        let mut options = ConvertOptions::from(scheme.pure());
        options.single_file = true;
        let recovery = model.recovery(options).unwrap();
        if recovery.report().encoded.is_empty() {
            continue;
        }
        let mut group = c.benchmark_group(&name);
        group
            .throughput(Throughput::Elements((ROWS * COLS) as u64))
            .sample_size(10);
        for level in levels() {
            group.bench_function(format!("{level:?}"), |b| {
                b.iter(|| decode(&recovery, level).unwrap());
            });
        }
    }
}

criterion_group!(benches, encoders);
criterion_main!(benches);
