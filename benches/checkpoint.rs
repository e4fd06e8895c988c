//! Listing a PyTorch checkpoint, and views of all its tensors, each from opening the file on.
//! `benches/checkpoint.py` makes the file and times `torch.load`.
//!
//! `CHECKPOINT=/dev/shm/checkpoint.pth cargo bench --bench checkpoint`
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use anamnesis::parse_pth;
use criterion::{Criterion, criterion_group, criterion_main};

fn checkpoint(criterion: &mut Criterion) {
    let path = std::env::var("CHECKPOINT");
    let path = path.unwrap_or_else(|_| "tests/data/demo/checkpoint.pth".to_owned());
    criterion.bench_function("list", |b| {
        b.iter(|| black_box(parse_pth(&path).unwrap().tensor_info()));
    });
    criterion.bench_function("views", |b| {
        b.iter(|| black_box(parse_pth(&path).unwrap().tensors().unwrap().len()));
    });
    let parsed = parse_pth(&path).unwrap();
    criterion.bench_function("views of a parsed checkpoint", |b| {
        b.iter(|| black_box(parsed.tensors().unwrap().len()));
    });
}

criterion_group!(benches, checkpoint);
criterion_main!(benches);
