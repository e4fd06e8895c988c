//! Ceilings on the heap. A conversion takes at most 4 MiB a thread and the header, or 8 MiB if the
//! codes are packed across the rows of a weight, for outputs of at least 24 MiB, most of it one
//! tensor. A hostile file takes at most 64 MiB and eight times its length: [`trials`] are those of
//! the test program `hostile`, and a new trial there is measured here as well.
#![allow(clippy::unwrap_used, clippy::panic)]

mod codebooks;
#[path = "../common/mod.rs"]
mod common;
mod diff;
#[cfg(all(feature = "npz", feature = "pth"))]
mod monitor;
mod profiler;
mod tables;
mod tensors;
#[cfg(all(feature = "npz", feature = "pth"))]
#[path = "../hostile/trials/mod.rs"]
mod trials;
#[cfg(all(feature = "models", feature = "lethe"))]
mod whole;

use anamnesis::{RememberOptions, TargetDtype, parse, parse_from_reader};

#[cfg(feature = "lethe")]
use crate::common::{Random, raw};
use crate::common::{effort, file};
use profiler::Profiler;
use tensors::{gguf, tensors};

const THREADS: usize = 2;

const BOUND: usize = THREADS * (4 << 20);

/// Bytes of an output, in F32, that prove something: whatever held a large part of it would be
/// above the bound.
const LEAST_OUTPUT: usize = 3 * BOUND;

/// The bound for a model of `scheme`: twice as much if codes are packed across the rows of a
/// weight.
fn bound(scheme: &str) -> usize {
    match scheme {
        "gptq" | "int8 words" | "awq" | "awq of 5 bits" | "marlin" | "exl2" | "exl3" | "quark" => {
            2 * BOUND
        }
        _ => BOUND,
    }
}

/// Bytes that the process has read from files, if the system tells.
fn bytes_read() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("rchar: "))?
        .parse()
        .ok()
}

/// Schemes to decode. The first list has codes that are packed across rows, codes along rows, and
/// scales in tiles of their own; the second is for the gate alone, and ends with the one that has a
/// config.
const REMEMBER: [&[&str]; 2] = [
    &["gptq", "fp8", "comfy"],
    &[
        "int8 words",
        "awq",
        "awq of 5 bits",
        "gemv",
        "gemv_fast",
        "marlin",
        "exl2",
        "exl3",
        "nf4",
        "svd",
        "odd",
        "gguf",
        "quark",
    ],
];

#[test]
fn heap_is_bounded() {
    let profiler = Profiler::new();
    let directory = crate::common::tempdir().unwrap();
    let input = directory.path().join("in");
    let quark = r#"{"quantization_config":{"quant_method":"quark","global_quant_config":{"weight":
        {"dtype":"uint4","qscheme":"per_group","group_size":16}}}}"#;
    for (at, scheme) in REMEMBER[..effort([1, 2, 2])]
        .concat()
        .into_iter()
        .enumerate()
    {
        let bound = bound(scheme);
        if scheme == "gguf" && !cfg!(feature = "gguf") {
            continue;
        }
        if scheme == "quark" {
            std::fs::write(directory.path().join("config.json"), quark).unwrap();
        }
        std::fs::write(
            &input,
            if scheme == "gguf" {
                gguf()
            } else {
                file(&tensors(scheme), &[])
            },
        )
        .unwrap();
        // In the gate each scheme has both types and all three comparisons, otherwise F32 and one of the
        // comparisons.
        let [targets, comparisons] = effort([[1..2, at..at + 1], [0..2, 0..3], [0..2, 0..3]]);
        for target in [TargetDtype::BF16, TargetDtype::F32][targets]
            .iter()
            .copied()
        {
            let options = RememberOptions::new(target)
                .with_threads(THREADS)
                .with_force(true);
            let to_file = || {
                parse(&input)
                    .unwrap()
                    .remember(directory.path().join("out"), options.clone())
                    .unwrap()
            };
            let before = bytes_read();
            let (peak, report) = profiler.peak(to_file);
            if let Some((before, after)) = before.zip(bytes_read()) {
                let (read, len) = (after - before, std::fs::metadata(&input).unwrap().len());
                // Scales in tiles of their own, and the factors of a product of low rank, are read
                // for several tiles.
                assert!(
                    matches!(scheme, "svd" | "comfy" | "odd" | "quark") || read <= len / 10 * 11,
                    "{scheme} {target}: {read} bytes read of {len}"
                );
            }
            if target == TargetDtype::F32 {
                assert!(
                    report.output_bytes as usize >= LEAST_OUTPUT,
                    "{scheme}: too small a model to prove anything"
                );
            }
            assert!(peak <= bound, "{scheme} {target}: {peak} bytes of heap, {bound} allowed");
        }
        // A model in a stream, which has no config beside it.
        if matches!(scheme, "fp8" | "gguf") {
            let options = RememberOptions::new(TargetDtype::F32)
                .with_threads(THREADS)
                .with_force(true);
            let (peak, _) = profiler.peak(|| {
                parse_from_reader(std::fs::File::open(&input).unwrap())
                    .unwrap()
                    .remember(directory.path().join("out"), options)
                    .unwrap()
            });
            assert!(peak <= bound, "{scheme} from a stream: {peak} bytes of heap, {bound} allowed");
        }
        for comparison in comparisons {
            let out = directory.path().join("out");
            diff::comparing(&profiler, scheme, [&input, &out], comparison);
        }
        // Streaming also holds a piece of the output per thread. The piece is large if the stored
        // layout is transposed.
        let is_tall = !["fp8", "nf4", "svd", "odd", "gguf"].contains(&scheme);
        let bound = if is_tall { 6 * BOUND } else { 2 * BOUND };
        let options = RememberOptions::new(TargetDtype::BF16).with_threads(THREADS);
        let (peak, _) = profiler.peak(|| {
            parse(&input)
                .unwrap()
                .remember_to_writer(std::io::sink(), options)
                .unwrap()
        });
        assert!(peak <= bound, "{scheme} to a writer: {peak} bytes of heap, {bound} allowed");
    }
    #[cfg(all(feature = "models", feature = "lethe"))]
    whole::whole_models(&profiler, directory.path());
    #[cfg(feature = "lethe")]
    forgetting(&profiler, directory.path());
}

/// Schemes to encode to: without and with a survey pass, with wide and with tall tiles. The second
/// list is for the gate alone.
#[cfg(feature = "lethe")]
const FORGET: [&[&str]; 2] = [
    &["gguf:q8_0", "gptq", "nvfp4"],
    &[
        "nf4-dq",
        "int8",
        "fp8-block",
        "w4a16-asym",
        "awq",
        "mlx-4bit",
        "qnat-dq",
        "gguf:f16",
        "nf4",
        "fp4",
        "fp8",
        "fp8-channel",
        "w4a16",
        "w8a8",
        "mxfp4",
        "nvfp4-ct",
        "hqq",
        "hqq-3bit",
        "sdnq-int8",
        "sdnq-uint5",
        "mxfp6",
        "qnat",
    ],
];

/// Checks the heap while a plain model is encoded, and while quantized ones are decoded and
/// encoded.
#[cfg(feature = "lethe")]
fn forgetting(profiler: &Profiler, directory: &std::path::Path) {
    let input = directory.join("forget.safetensors");
    // The config that `heap_is_bounded` wrote describes another model.
    let _ = std::fs::remove_file(directory.join("config.json"));
    let check = |scheme: &str, context: &str| {
        let mut options =
            anamnesis::ConvertOptions::from(scheme.parse::<anamnesis::ForgetScheme>().unwrap());
        options.run = options.run.with_threads(THREADS).with_force(true);
        options.single_file = true;
        let (peak, report) = profiler.peak(|| {
            parse(&input)
                .unwrap()
                .forget(directory.join("out"), options)
                .unwrap()
        });
        // What is stored as it would be encoded is copied, and has no distance.
        let values = report.distance.map(|distance| distance.all.values as usize);
        let least = match scheme {
            "gguf:q4_k_s" => BOUND,
            _ => LEAST_OUTPUT,
        };
        assert!(
            values.is_none_or(|values| values * 4 >= least),
            "{scheme} {context}: too small a model to prove anything"
        );
        // Codes that are stored across rows are collected until their runs are long, as decoders of
        // them read long ones.
        let bound = match scheme {
            "gptq" | "awq" => 2 * BOUND,
            _ => BOUND,
        };
        (peak > bound)
            .then(|| format!("{scheme}, {context}: {peak} bytes of heap, {bound} allowed\n"))
    };
    let (n, k) = (1536, 4096);
    let name = |i: usize| format!("model.layers.{i}.up_proj.weight");
    let rows = Random(9).floats(3 * k).into_iter();
    let rows: Vec<u8> = rows
        .flat_map(|x| half::bf16::from_f32(x).to_le_bytes())
        .collect();
    let plain = |i: usize, n: usize| raw(&name(i), "BF16", &[n, k], rows.repeat(n / 3));
    let mut failures = String::new();
    std::fs::write(&input, file(&[plain(0, n), plain(1, n / 10)], &[])).unwrap();
    for scheme in FORGET[..effort([1, 2, 2])].concat() {
        failures.extend(check(scheme, "of BF16"));
    }
    // Its encoder has the largest buffers, and takes long.
    if effort([false, true, true]) {
        std::fs::write(&input, file(&[plain(0, n / 8 * 3)], &[])).unwrap();
        failures.extend(check("gguf:q4_k_s", "of BF16"));
    }
    let quantized = ["fp8", "gptq", "awq", "nf4"];
    for from in quantized.into_iter().take(effort([1, 4, 4])) {
        let mut tensors = tensors(from);
        // Encoders take tensors of layers, with finite values.
        tensors.iter_mut().for_each(|t| {
            t.name = format!("model.layers.{}", t.name);
            t.bytes
                .iter_mut()
                .filter(|_| t.dtype == "F8_E4M3")
                .for_each(|b| *b &= 0xf7);
        });
        std::fs::write(&input, file(&tensors, &[])).unwrap();
        // AWQ has tiles like GPTQ's, and NF4 like those of FP8.
        let schemes: &[&str] = match from {
            "gptq" | "fp8" => &["nf4-dq", "gguf:q8_0", "w4a16", "fp8-block", "gptq"],
            _ => &["gguf:q8_0", "fp8-block"],
        };
        for scheme in schemes.iter().take(effort([1, 5, 5])) {
            failures.extend(check(scheme, &format!("of {from}")));
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// The functions for single tensors need memory for their output and their scales alone: what they
/// decode is borrowed from the model, and nothing is widened as a whole.
#[test]
fn single_tensors_are_decoded_from_where_they_are() {
    let profiler = Profiler::new();
    let (rows, cols) = (1024, 4096);
    let tensors = [
        ("layer.weight", "F8_E4M3", vec![rows, cols], vec![0x38; rows * cols]),
        ("layer.weight_scale", "F32", vec![rows, 1], 2f32.to_le_bytes().repeat(rows)),
    ];
    let tensors =
        tensors.map(|(name, dtype, shape, bytes)| common::raw(name, dtype, &shape, bytes));
    let model = anamnesis::parse_bytes(file(&tensors, &[])).unwrap();
    let (peak, values) = profiler.peak(|| {
        let bytes = |name| model.tensor(name).unwrap().bytes().unwrap();
        let (codes, scales) = (bytes("layer.weight"), bytes("layer.weight_scale"));
        let dtype = anamnesis::Dtype::F32;
        anamnesis::dequantize_per_channel_fp8_to_bf16(&codes, &scales, rows, cols, dtype).unwrap()
    });
    assert!(values == [0x00, 0x40].repeat(rows * cols));
    assert!(peak < values.len() + (256 << 10), "{peak} bytes of heap");
}
