//! Every scheme that is encoded to, also with searched scales, × CPU level: one BF16 tensor of 512 × 4096, read from memory,
//! encoded on one thread, compared with what it decodes to, written nowhere.
//!
//! `cargo bench --features benchmarks --bench encode`, or with a filter: `… -- nf4/`.
#![allow(missing_docs, clippy::unwrap_used)]

mod normal;

use anamnesis::benchable_apis::{decode, levels};
use anamnesis::{ConvertOptions, Forget, ForgetScheme};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const ROWS: usize = 512;
const COLS: usize = 4096;

/// A safetensors file with one weight.
fn file() -> Vec<u8> {
    let data = normal::bf16_bytes(ROWS * COLS);
    let record = serde_json::json!({"dtype": "BF16", "shape": [ROWS, COLS], "data_offsets": [0, data.len()]});
    let json = serde_json::json!({"model.layers.0.mlp.up_proj.weight": record}).to_string();
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &data].concat()
}

fn encoders(c: &mut Criterion) {
    let model = anamnesis::parse_bytes(file()).unwrap();
    // Those that take an importance matrix are left out.
    let blocks = ["iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq3_xxs", "q2_k_s"];
    let ggml = ForgetScheme::all_gguf()
        .map(str::to_lowercase)
        .filter(|name| !blocks.contains(&name.as_str()));
    let names = ForgetScheme::all()
        .map(|(name, _)| name.to_owned())
        .chain(ggml.map(|name| format!("gguf:{name}")));
    let searches = |name: String| {
        let scheme: ForgetScheme = name.parse().unwrap();
        let searched = scheme
            .has_search()
            .then(|| (format!("{name}, searched"), true));
        std::iter::once((name, false))
            .chain(searched)
            .map(move |(label, search)| (label, scheme.clone(), search))
    };
    for (name, scheme, search) in names.flat_map(searches) {
        let mut forget = Forget::from(scheme.pure());
        forget.search = search;
        let mut options = ConvertOptions::from(forget);
        options.single_file = true;
        let conversion = model.plan(options).unwrap();
        if conversion.report().encoded.is_empty() {
            continue;
        }
        let mut group = c.benchmark_group(&name);
        group
            .throughput(Throughput::Elements((ROWS * COLS) as u64))
            .sample_size(10);
        for level in levels() {
            group.bench_function(format!("{level:?}"), |b| {
                b.iter(|| decode(&conversion, level).unwrap());
            });
        }
    }
}

criterion_group!(benches, encoders);
criterion_main!(benches);
