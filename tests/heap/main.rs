//! Heap during a conversion: at most 4 MiB a thread and the header, for a model ten times that bound.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

use anamnesis::{RememberOptions, TargetDtype, parse};
use common::{Random, Raw, f32s, file, raw};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const THREADS: usize = 2;
const BOUND: usize = THREADS * (4 << 20);

/// Some tensors of `scheme`, 12 Mi values each.
fn tensors(scheme: &str) -> Vec<Raw> {
    let mut random = Random(7);
    let (k, n) = (4096usize, 3072usize);
    (0..2)
        .flat_map(|i| {
            let name = |part: &str| format!("{i}.{part}");
            match scheme {
                "fp8" => vec![
                    raw(&name("weight"), "F8_E4M3", &[n, k], random.bytes(n * k)),
                    raw(
                        &name("weight_scale_inv"),
                        "F32",
                        &[n / 128, k / 128],
                        f32s(&random.floats(n * k / 16384)),
                    ),
                ],
                "gptq" => vec![
                    raw(
                        &name("qweight"),
                        "I32",
                        &[k / 8, n],
                        random.bytes(k * n / 2),
                    ),
                    raw(
                        &name("qzeros"),
                        "I32",
                        &[k / 32, n / 8],
                        random.bytes(k * n / 64),
                    ),
                    raw(
                        &name("scales"),
                        "F32",
                        &[k / 32, n],
                        f32s(&random.floats(k * n / 32)),
                    ),
                    raw(
                        &name("g_idx"),
                        "I32",
                        &[k],
                        (0..k)
                            .flat_map(|i| ((i * 7 % (k / 32)) as u32).to_le_bytes())
                            .collect(),
                    ),
                ],
                "awq" => vec![
                    raw(
                        &name("qweight"),
                        "I32",
                        &[k, n / 8],
                        random.bytes(k * n / 2),
                    ),
                    raw(
                        &name("qzeros"),
                        "I32",
                        &[k / 128, n / 8],
                        random.bytes(k * n / 256),
                    ),
                    raw(
                        &name("scales"),
                        "F32",
                        &[k / 128, n],
                        f32s(&random.floats(k * n / 128)),
                    ),
                ],
                "int8 words" => vec![
                    raw(&name("qweight"), "I8", &[k / 2, n], random.bytes(k * n / 2)),
                    raw(
                        &name("qzeros"),
                        "I8",
                        &[k / 32, n / 2],
                        random.bytes(k * n / 64),
                    ),
                    raw(
                        &name("scales"),
                        "F32",
                        &[k / 32, n],
                        f32s(&random.floats(k * n / 32)),
                    ),
                ],
                "awq of 5 bits" => vec![
                    raw(
                        &name("qweight"),
                        "I32",
                        &[k, n / 32 * 5],
                        random.bytes(k * n / 8 * 5),
                    ),
                    raw(
                        &name("qzeros"),
                        "I32",
                        &[k / 128, n / 32 * 5],
                        random.bytes(k * n / 1024 * 5),
                    ),
                    raw(
                        &name("scales"),
                        "F32",
                        &[k / 128, n],
                        f32s(&random.floats(k * n / 128)),
                    ),
                ],
                "gemv" => vec![
                    raw(
                        &name("qweight"),
                        "I32",
                        &[n, k / 8],
                        random.bytes(k * n / 2),
                    ),
                    raw(
                        &name("qzeros"),
                        "I32",
                        &[n, k / 256],
                        random.bytes(k * n / 64),
                    ),
                    raw(
                        &name("scales"),
                        "F32",
                        &[n, k / 32],
                        f32s(&random.floats(k * n / 32)),
                    ),
                ],
                "gemv_fast" => vec![
                    raw(
                        &name("qweight"),
                        "I16",
                        &[n / 4, k],
                        random.bytes(k * n / 2),
                    ),
                    raw(
                        &name("scaled_zeros"),
                        "F32",
                        &[k / 32, n],
                        f32s(&random.floats(k * n / 32)),
                    ),
                    raw(
                        &name("scales"),
                        "F32",
                        &[k / 32, n],
                        f32s(&random.floats(k * n / 32)),
                    ),
                ],
                "marlin" => vec![
                    raw(&name("B"), "I32", &[k / 16, n * 2], random.bytes(k * n / 2)),
                    raw(
                        &name("s"),
                        "F32",
                        &[k / 32, n],
                        f32s(&random.floats(k * n / 32)),
                    ),
                ],
                "nf4" => {
                    let state = format!(r#"{{"blocksize":64,"shape":[{n},{k}]}}"#).into_bytes();
                    vec![
                        raw(
                            &name("weight"),
                            "U8",
                            &[n * k / 2, 1],
                            random.bytes(n * k / 2),
                        ),
                        raw(
                            &name("weight.absmax"),
                            "F32",
                            &[n * k / 64],
                            f32s(&random.floats(n * k / 64)),
                        ),
                        raw(
                            &name("weight.quant_map"),
                            "F32",
                            &[16],
                            f32s(&random.floats(16)),
                        ),
                        raw(
                            &name("weight.quant_state.bitsandbytes__nf4"),
                            "U8",
                            &[state.len()],
                            state,
                        ),
                    ]
                }
                "svd" => vec![
                    raw(&name("weight"), "U8", &[n, k / 2], random.bytes(n * k / 2)),
                    raw(
                        &name("weight_scale"),
                        "F8_E4M3",
                        &[n, k / 32],
                        random.bytes(n * k / 32),
                    ),
                    raw(&name("weight_scale_2"), "F32", &[], f32s(&[0.5])),
                    raw(
                        &name("pre_quant_scale"),
                        "F32",
                        &[k],
                        f32s(&random.floats(k)),
                    ),
                    raw(
                        &name("svdquant_lora_a"),
                        "F32",
                        &[33, k],
                        f32s(&random.floats(33 * k)),
                    ),
                    raw(
                        &name("svdquant_lora_b"),
                        "F32",
                        &[n, 33],
                        f32s(&random.floats(33 * n)),
                    ),
                ],
                // A layout of ComfyUI's, in one row of tiles.
                "comfy" => vec![
                    raw(
                        &name("weight"),
                        "U8",
                        &[32, n * k / 64],
                        random.bytes(n * k / 2),
                    ),
                    raw(
                        &name("weight_scale"),
                        "F8_E4M3",
                        &[128, n * k / 512],
                        random.bytes(n * k / 4),
                    ),
                    raw(&name("weight_scale_2"), "F32", &[], f32s(&[0.5])),
                    raw(
                        &name("comfy_quant"),
                        "U8",
                        &[18],
                        br#"{"format":"nvfp4"}"#.to_vec(),
                    ),
                ],
                "quark" => vec![
                    raw(&name("weight"), "I32", &[k, n / 8], random.bytes(k * n / 2)),
                    raw(
                        &name("weight_zero_point"),
                        "I32",
                        &[k / 16, n / 8],
                        random.bytes(k * n / 32),
                    ),
                    raw(
                        &name("weight_scale"),
                        "F32",
                        &[k / 16, n],
                        f32s(&random.floats(k * n / 16)),
                    ),
                ],
                // One value a row: the worst that a grid can be for scales, and a plain tensor.
                _ => vec![
                    raw(&name("weight"), "F8_E5M2", &[n * k, 1], random.bytes(n * k)),
                    raw(
                        &name("weight_scale"),
                        "F32",
                        &[n * k, 1],
                        vec![0x3c; n * k * 4],
                    ),
                    raw(&name("embedding"), "F32", &[n, k], random.bytes(n * k * 4)),
                ],
            }
        })
        .collect()
}

/// The same in GGUF: one tensor of short rows, and one of a single row.
fn gguf() -> Vec<u8> {
    let (n, blocks) = (12u64 << 20, (12usize << 20) / 256);
    let bytes = Random(7).bytes(blocks * 144);
    let file = common::gguf::Gguf::default().tensor("rows", 12, &[256, n / 256], &bytes);
    file.tensor("row", 12, &[n], &bytes).file()
}

/// The heap that `run` takes at most, and its result.
fn peak<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let profiler = dhat::Profiler::builder().testing().build();
    let result = run();
    let peak = dhat::HeapStats::get().max_bytes;
    drop(profiler);
    (peak, result)
}

/// One test function, because dhat has one profiler a process.
#[test]
fn heap_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("in");
    let quark = r#"{"quantization_config":{"quant_method":"quark","global_quant_config":{"weight":
        {"dtype":"uint4","qscheme":"per_group","group_size":16}}}}"#;
    let packed = [
        "gptq",
        "int8 words",
        "awq",
        "awq of 5 bits",
        "gemv",
        "gemv_fast",
        "marlin",
    ];
    for scheme in packed
        .into_iter()
        .chain(["fp8", "nf4", "svd", "comfy", "odd", "gguf", "quark"])
    {
        if packed.contains(&scheme) && !cfg!(all(feature = "gptq", feature = "awq"))
            || scheme == "nf4" && !cfg!(feature = "bnb")
            || matches!(scheme, "svd" | "comfy") && !cfg!(feature = "nvfp4")
            || scheme == "gguf" && !cfg!(feature = "gguf")
        {
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
        for target in [TargetDtype::BF16, TargetDtype::F32] {
            let options = RememberOptions::new(target)
                .with_threads(THREADS)
                .with_force(true);
            let to_file = || {
                parse(&input)
                    .unwrap()
                    .remember(directory.path().join("out"), options.clone())
                    .unwrap()
            };
            let (peak, report) = peak(to_file);
            if target == TargetDtype::F32 {
                assert!(
                    report.output_bytes as usize >= 10 * BOUND,
                    "{scheme}: too small a model to prove anything"
                );
            }
            assert!(
                peak <= BOUND,
                "{scheme} {target}: {peak} bytes of heap, {BOUND} allowed"
            );
        }
        // Beside what threads work with, there is a piece of the output for each: a large one of what lies across rows.
        let is_tall = packed.contains(&scheme) || scheme == "comfy";
        let bound = if is_tall { 6 * BOUND } else { 2 * BOUND };
        let options = RememberOptions::new(TargetDtype::BF16).with_threads(THREADS);
        let (peak, _) = peak(|| {
            parse(&input)
                .unwrap()
                .remember_to_writer(std::io::sink(), options)
                .unwrap()
        });
        assert!(
            peak <= bound,
            "{scheme} to a writer: {peak} bytes of heap, {bound} allowed"
        );
    }
    #[cfg(all(
        feature = "lethe",
        feature = "gguf",
        feature = "bnb",
        feature = "gptq",
        feature = "awq",
        feature = "nvfp4"
    ))]
    forgetting(directory.path());
}

/// Schemes to encode to: those with one pass and with two, tall tiles and wide ones, and those with the largest buffers.
#[cfg(feature = "lethe")]
const FORGET: &[&str] = &[
    "gguf:q8_0",
    "gguf:q4_k_s",
    "gguf:f16",
    "nf4",
    "nf4-dq",
    "fp4",
    "int8",
    "fp8",
    "fp8-channel",
    "fp8-block",
    "w4a16",
    "w4a16-asym",
    "w8a8",
    "gptq",
    "awq",
    "mlx-4bit",
    "mxfp4",
    "nvfp4",
    "nvfp4-ct",
    "qnat",
    "qnat-dq",
];

/// The same of encoding: a plain model, and one that is decoded on the way.
#[cfg(feature = "lethe")]
fn forgetting(directory: &std::path::Path) {
    let input = directory.join("forget.safetensors");
    // The other test's config is of other models.
    let _ = std::fs::remove_file(directory.join("config.json"));
    let check = |scheme: &str, context: &str| {
        let mut options =
            anamnesis::ConvertOptions::from(scheme.parse::<anamnesis::ForgetScheme>().unwrap());
        options.run = options.run.with_threads(THREADS).with_force(true);
        options.single_file = true;
        let (peak, report) = peak(|| {
            parse(&input)
                .unwrap()
                .forget(directory.join("out"), options)
                .unwrap()
        });
        let values = report.distance.unwrap().all.values as usize;
        let least = if scheme == "gguf:q4_k_s" { 1 } else { 10 };
        assert!(
            values * 4 >= least * BOUND,
            "{scheme} {context}: too small a model to prove anything"
        );
        (peak > BOUND)
            .then(|| format!("{scheme}, {context}: {peak} bytes of heap, {BOUND} allowed\n"))
    };
    let (n, k) = (3072, 4096);
    let name = |i: usize| format!("model.layers.{i}.up_proj.weight");
    let plain = |i: usize, n: usize| {
        let values = Random(9).floats(n * k);
        raw(
            &name(i),
            "BF16",
            &[n, k],
            values
                .iter()
                .flat_map(|x| [x.to_bits() >> 16, x.to_bits() >> 24].map(|b| b as u8))
                .collect(),
        )
    };
    let mut failures = String::new();
    let small = file(&[plain(0, n / 4)], &[]);
    std::fs::write(&input, file(&[plain(0, n), plain(1, n)], &[])).unwrap();
    for scheme in FORGET.iter().filter(|scheme| **scheme != "gguf:q4_k_s") {
        failures.extend(check(scheme, "of BF16"));
    }
    std::fs::write(&input, small).unwrap();
    failures.extend(check("gguf:q4_k_s", "of BF16"));
    for from in ["gptq", "awq", "fp8", "nf4"] {
        let mut tensors = tensors(from);
        // Layers, and values that are finite.
        tensors.iter_mut().for_each(|t| {
            t.name = format!("model.layers.{}", t.name);
            t.bytes
                .iter_mut()
                .filter(|_| t.dtype == "F8_E4M3")
                .for_each(|b| *b &= 0xf7);
        });
        std::fs::write(&input, file(&tensors, &[])).unwrap();
        for scheme in ["gguf:q8_0", "w4a16", "nf4-dq", "fp8-block", "gptq"] {
            failures.extend(check(scheme, &format!("of {from}")));
        }
    }
    assert!(failures.is_empty(), "{failures}");
}
