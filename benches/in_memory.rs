//! Whole models in memory: `remember_to_bytes` of a model that was parsed from bytes, two threads.
//!
//! `cargo bench --bench in_memory`
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use anamnesis::{BnbWriteInput, TargetDtype, parse_bytes, write_bnb_nf4_safetensors_bytes};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};

/// Rows and columns of the one matrix.
const SIDE: usize = 4096;

/// A file of one matrix, and its scale if there is one.
fn file(dtype: Dtype, bytes: &[u8], scale: Option<(&str, &[u8])>) -> Vec<u8> {
    let weight = TensorView::new(dtype, vec![SIDE, SIDE], bytes).unwrap();
    let mut tensors = vec![("layer.weight", weight)];
    if let Some((name, scale)) = scale {
        let view = TensorView::new(Dtype::F32, vec![scale.len() / 4], scale).unwrap();
        tensors.push((name, view));
    }
    serialize(tensors, None).unwrap()
}

fn in_memory(criterion: &mut Criterion) {
    let n = SIDE * SIDE;
    // Numbers below 2 with any sign and mantissa, in BF16 and in F8_E4M3.
    let noise: Vec<u8> = (0..2 * n as u32)
        .map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8 & 0xbf)
        .collect();
    let scale = 0.03f32.to_le_bytes();
    let scales = scale.repeat(SIDE);
    let nf4 = BnbWriteInput { name: "layer.weight", shape: &[SIDE, SIDE], bf16_data: &noise };
    let files = [
        ("copy", file(Dtype::BF16, &noise, None)),
        ("fp8 tensor", file(Dtype::F8_E4M3, &noise[..n], Some(("layer.weight_scale", &scale)))),
        ("int8", file(Dtype::I8, &noise[..n], Some(("layer.SCB", &scales)))),
        ("nf4", write_bnb_nf4_safetensors_bytes(&[nf4]).unwrap()),
    ];
    let mut group = criterion.benchmark_group("remember_to_bytes");
    group
        .throughput(Throughput::Elements(n as u64))
        .sample_size(20);
    for (name, file) in files {
        let model = parse_bytes(file).unwrap();
        group.bench_function(name, |b| {
            b.iter(|| black_box(model.remember_to_bytes(TargetDtype::BF16).unwrap()));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(std::time::Duration::from_millis(300)).measurement_time(std::time::Duration::from_secs(1));
    targets = in_memory
}
criterion_main!(benches);
