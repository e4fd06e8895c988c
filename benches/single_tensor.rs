//! The functions for single tensors: slices in, BF16 or codes out, at 4 Ki, 1 Mi and 16 Mi values.
//! The time includes the allocation of the result.
//!
//! `cargo bench --bench single_tensor`, or with a filter: `… -- nf4`.
#![allow(missing_docs, clippy::unwrap_used)]

use anamnesis::{
    Dtype, NF4_CODEBOOK, dequantize_awq_to_bf16, dequantize_bnb_int8_to_bf16,
    dequantize_bnb4_to_bf16, dequantize_fp8_to_bf16, dequantize_gguf_to_bf16,
    dequantize_gptq_to_bf16, dequantize_per_channel_fp8_to_bf16, dequantize_per_tensor_fp8_to_bf16,
    encode_bnb_int8, encode_bnb_int8_compute_scb, encode_bnb4, encode_bnb4_compute_absmax,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

/// `n` bytes without a pattern.
fn noise(n: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(n).collect()
}

/// `n` scales of dtype F32.
fn scales(n: usize) -> Vec<u8> {
    (0..n)
        .flat_map(|i| (0.01 + (i % 97) as f32 / 100.0).to_le_bytes())
        .collect()
}

fn single_tensor(criterion: &mut Criterion) {
    let map: Vec<u8> = NF4_CODEBOOK.iter().flat_map(|x| x.to_le_bytes()).collect();
    for (label, rows, cols) in [("4Ki", 32, 128), ("1Mi", 1024, 1024), ("16Mi", 4096, 4096)] {
        let n = rows * cols;
        let mut group = criterion.benchmark_group(label);
        group
            .throughput(Throughput::Elements(n as u64))
            .sample_size(20);
        let (bytes, halves) = (noise(n), noise(n / 2));
        let blocks = scales(rows.div_ceil(128) * cols.div_ceil(128));
        let (by_row, absmax) = (scales(rows), scales(n / 64));
        let group_size = rows.min(128);
        let of_groups: Vec<u8> = [0x00, 0x2c].repeat(rows / group_size * cols); // 0.0625 in F16
        let zeros = noise(rows / group_size * cols / 2);
        // In 0.5..1 or its negative, so that no value overflows F16.
        let bf16: Vec<u8> = noise(n)
            .iter()
            .flat_map(|&b| [b, 0x3f | b & 0x80])
            .collect();
        let f32 = Dtype::F32;
        macro_rules! bench {
            ($name:literal, $call:expr) => {
                group.bench_function($name, |b| b.iter(|| black_box($call.unwrap())));
            };
        }
        bench!("fp8 blocks", dequantize_fp8_to_bf16(&bytes, &blocks, rows, cols, f32));
        bench!("fp8 tensor", dequantize_per_tensor_fp8_to_bf16(&bytes, 0.03));
        bench!("fp8 rows", dequantize_per_channel_fp8_to_bf16(&bytes, &by_row, rows, cols, f32));
        bench!("int8", dequantize_bnb_int8_to_bf16(&bytes, &by_row, rows, cols));
        bench!("nf4", dequantize_bnb4_to_bf16(&halves, &absmax, &map, n, 64));
        let f16 = Dtype::F16;
        bench!(
            "gptq4",
            dequantize_gptq_to_bf16(
                &halves, &of_groups, &zeros, None, rows, cols, group_size, 4, f16
            )
        );
        bench!(
            "awq",
            dequantize_awq_to_bf16(&halves, &of_groups, &zeros, rows, cols, group_size, 4, f16)
        );
        let q8_0 = noise(n / 32 * 34);
        bench!("q8_0", dequantize_gguf_to_bf16(&q8_0, Dtype::Q8_0, n));
        bench!("encode nf4", encode_bnb4_compute_absmax(&bf16, &map, n, 64));
        bench!("encode nf4, given scales", encode_bnb4(&bf16, &absmax, &map, n, 64));
        bench!("encode int8", encode_bnb_int8_compute_scb(&bf16, rows, cols));
        bench!("encode int8, given scales", encode_bnb_int8(&bf16, &by_row, rows, cols));
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(std::time::Duration::from_millis(300)).measurement_time(std::time::Duration::from_secs(1));
    targets = single_tensor
}
criterion_main!(benches);
