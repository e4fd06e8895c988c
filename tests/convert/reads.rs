//! How often the bytes of an input are read.

use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anamnesis::{ConvertOptions, ForgetScheme, RememberOptions, TargetDtype, parse_from_reader};

use super::tensors::costs::Counted;
use crate::common::{Random, Raw, f32s, file, raw};

/// Rows and columns of a weight that has several tiles when it is encoded.
const SIZE: [usize; 2] = [256, 1152];

/// Bytes that a conversion of `tensors` reads for each byte of the first, after it was planned.
fn reads(tensors: &[Raw], options: impl Into<ConvertOptions>) -> f64 {
    let bytes = Arc::new(AtomicU64::new(0));
    let reader = Counted { reader: Cursor::new(file(tensors, &[])), bytes: bytes.clone() };
    let model = parse_from_reader(reader).unwrap();
    let mut options: ConvertOptions = options.into();
    options.run = options.run.with_threads(2);
    let conversion = model.plan(options).unwrap();
    bytes.store(0, Ordering::Relaxed);
    conversion.to_bytes().unwrap();
    bytes.load(Ordering::Relaxed) as f64 / tensors[0].bytes.len() as f64
}

/// A weight of floats.
fn floats(dtype: &'static str) -> Vec<Raw> {
    let values = Random(7).floats(SIZE[0] * SIZE[1]);
    let halves =
        |bits: fn(f32) -> u16| values.iter().flat_map(|&v| bits(v).to_le_bytes()).collect();
    let bytes = match dtype {
        "F32" => f32s(&values),
        "F16" => halves(|v| half::f16::from_f32(v).to_bits()),
        _ => halves(|v| half::bf16::from_f32(v).to_bits()),
    };
    vec![raw("a.q_proj.weight", dtype, &SIZE, bytes)]
}

/// A decoded tile is loaded once, in as many slabs as it is decoded.
#[test]
fn decoding_reads_once() {
    let (rows, cols) = (1200, 2304);
    let fp8 = [
        raw("a.weight", "F8_E4M3", &[rows, cols], vec![0x38; rows * cols]),
        raw("a.weight_scale", "F32", &[], f32s(&[0.5])),
    ];
    let words = raw("g.qweight", "I32", &[128, 2304], vec![0x5a; 128 * 2304 * 4]);
    let gptq = [
        words,
        raw("g.qzeros", "I32", &[1, 288], vec![0x77; 288 * 4]),
        raw("g.scales", "F16", &[1, 2304], vec![0x2c; 2304 * 2]),
    ];
    for target in [TargetDtype::F32, TargetDtype::BF16] {
        for tensors in [&fp8[..], &gptq] {
            let found = reads(tensors, RememberOptions::new(target));
            assert!((1.0..1.02).contains(&found), "{}: {found}", tensors[0].name);
        }
    }
}

/// An encoder reads each value once, and once more if it has to see all values first.
#[test]
fn surveys_and_encoders_read_once_each() {
    for dtype in ["F32", "F16", "BF16"] {
        for (scheme, expected) in [
            (ForgetScheme::NVFP4, 2.0),
            (ForgetScheme::FP8_TENSOR, 2.0),
            (ForgetScheme::NF4_DQ, 2.0),
            (ForgetScheme::NF4, 1.0),
            (ForgetScheme::FP8_BLOCK, 1.0),
            (ForgetScheme::GPTQ, 1.0),
        ] {
            let found = reads(&floats(dtype), scheme.clone());
            assert_eq!(found, expected, "{dtype} to {scheme}");
        }
    }
}

/// Inference fuses these, so that they have one scale; what the survey of one has found serves the
/// others.
#[test]
fn tensors_that_share_a_scale_are_surveyed_once() {
    let weight = &floats("BF16")[0];
    let names = ["a.q_proj.weight", "a.k_proj.weight", "a.v_proj.weight"];
    let tensors = names.map(|name| raw(name, "BF16", &SIZE, weight.bytes.clone()));
    assert_eq!(reads(&tensors, ForgetScheme::NVFP4), 3.0 * 2.0);
}
