//! Whole runs of every scheme: parsing a file, decoding its tensor of 8192 × 4096 and writing it, with two threads, as a share of
//! the time of a copy of the output. In the rows `merge-…` a LoRA adapter is merged into that tensor.
//!
//! `cargo bench --features benchmarks --bench whole -- DIRECTORY [FILTER]` works in DIRECTORY, which had better be in memory. The
//! figures are medians of [`ROUNDS`] rounds, in each of which both are done once.
#![allow(missing_docs, clippy::unwrap_used)]

mod schemes;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anamnesis::{Adapter, ConvertOptions, FloatCast, RememberOptions, TargetDtype, parse};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};

const ROWS: usize = 8192;
const COLS: usize = 4096;

/// Rank of the adapter.
const RANK: usize = 16;

/// How often each run is measured.
const ROUNDS: usize = 7;

/// Seconds that `work` takes.
fn time(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// The time of a run from `input` to `target`, with the adapter in the directory `adapter` merged if there is one, divided by that of
/// a copy of its output.
fn ratio(input: &Path, adapter: Option<&Path>, target: TargetDtype) -> f64 {
    let out = input.with_file_name("out.safetensors");
    let copy = input.with_file_name("copy.safetensors");
    // Without the cast, a weight in BF16 would stay one.
    let run = RememberOptions::new(target).with_threads(2);
    let options = ConvertOptions::from(run.with_cast(FloatCast::Checked));
    let write = || {
        let adapters = adapter.map(|dir| Adapter::open(dir).unwrap());
        let options = options
            .clone()
            .with_adapters(adapters.into_iter().collect());
        parse(input).unwrap().convert(&out, options).unwrap();
    };
    let rounds = (0..ROUNDS).map(|_| {
        let run = time(write);
        let copied = time(|| assert!(fs::copy(&out, &copy).is_ok()));
        fs::remove_file(&out).unwrap();
        fs::remove_file(&copy).unwrap();
        (run, copied)
    });
    let (runs, copies): (Vec<f64>, Vec<f64>) = rounds.unzip();
    median(runs) / median(copies)
}

/// A file of tensors of these names, dtypes, shapes and bytes.
fn file(tensors: &[(&str, Dtype, [usize; 2], &[u8])]) -> Vec<u8> {
    let views = tensors.iter().map(|&(name, dtype, shape, bytes)| {
        let view = TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
        (name, view)
    });
    serialize(views, None).unwrap()
}

/// Bases of an adapter, by name: the weight `w.weight` in BF16, and in FP8 with a scale for each row.
fn bases() -> [(&'static str, Vec<u8>); 2] {
    let shape = [ROWS, COLS];
    // In F8_E4M3 these are finite, and as the low bytes of BF16 behind 0x3f they make numbers from 0.5 to 1.
    let codes: Vec<u8> = (0..ROWS * COLS)
        .map(|i| ((i * 97) >> 3) as u8 & 0x57)
        .collect();
    let bf16: Vec<u8> = codes.iter().flat_map(|&low| [low, 0x3f]).collect();
    let scales = 0.03f32.to_le_bytes().repeat(ROWS);
    let fp8 = [
        ("w.weight", Dtype::F8_E4M3, shape, &codes[..]),
        ("w.weight_scale", Dtype::F32, [ROWS, 1], &scales),
    ];
    [
        (
            "merge-bf16",
            file(&[("w.weight", Dtype::BF16, shape, &bf16)]),
        ),
        ("merge-fp8", file(&fp8)),
    ]
}

/// Writes an adapter of `w` into a directory in `scratch`, whose path it returns.
fn write_adapter(scratch: &Path) -> PathBuf {
    let dir = scratch.join("adapter");
    let config = serde_json::json!({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["w"]});
    let factor = |n: usize| 0.01f32.to_le_bytes().repeat(n);
    let (a, b) = (factor(RANK * COLS), factor(ROWS * RANK));
    let [name_a, name_b] =
        ["A", "B"].map(|which| format!("base_model.model.w.lora_{which}.weight"));
    let weights = file(&[
        (&name_a, Dtype::F32, [RANK, COLS], &a),
        (&name_b, Dtype::F32, [ROWS, RANK], &b),
    ]);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
    fs::write(dir.join("adapter_model.safetensors"), weights).unwrap();
    dir
}

/// Measures the runs from `input` to every output type, and prints their figures.
fn measure(name: &str, input: &Path, adapter: Option<&Path>) {
    let targets = [TargetDtype::BF16, TargetDtype::F16, TargetDtype::F32];
    let [bf16, f16, f32] = targets.map(|target| ratio(input, adapter, target));
    println!("{name:24} {bf16:6.2} {f16:6.2} {f32:6.2}");
}

fn main() {
    // The runner puts options of its own behind the arguments.
    let mut arguments = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    let Some(scratch) = arguments.next().map(PathBuf::from) else {
        println!("a directory to work in is wanted");
        return;
    };
    let filter = arguments.next().unwrap_or_default();
    println!("{:24} {:>6} {:>6} {:>6}", "scheme", "BF16", "F16", "F32");
    for (name, file) in schemes::files().filter(|(name, _)| name.contains(&filter)) {
        let input = schemes::write(&scratch, name, &file);
        measure(name, &input, None);
        fs::remove_dir_all(scratch.join(name)).unwrap();
    }
    let adapter = write_adapter(&scratch);
    let bases = bases().into_iter();
    for (name, file) in bases.filter(|(name, _)| name.contains(&filter)) {
        let input = schemes::write(&scratch, name, &file);
        measure(name, &input, Some(&adapter));
        fs::remove_dir_all(scratch.join(name)).unwrap();
    }
    fs::remove_dir_all(adapter).unwrap();
}
