//! Whole runs of every scheme: parsing a file, decoding its tensor and writing it, with two
//! threads, beside a copy of the output and beside two threads that only read the input and write
//! as many bytes. In the rows `merge-…` a LoRA adapter is merged into the tensor, and in the rows
//! `forget/…` a tensor in BF16 is encoded.
//!
//! `cargo bench --features benchmarks --bench whole -- DIRECTORY [FILTER [ROWSxCOLS]]` works in
//! DIRECTORY, which had better be in memory. FILTER is part of `SCHEME/TYPE`. Figures are medians
//! of [`ROUNDS`] rounds, in each of which all three are done once: the time of the run divided by
//! that of the copy and by that of the two threads, and the bytes that it read and wrote in a
//! second.
#![allow(missing_docs, clippy::unwrap_used)]

mod copying;
mod normal;
mod schemes;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

use anamnesis::{
    Adapter, Conversion, ConvertOptions, FloatCast, ForgetScheme, RememberOptions, TargetDtype,
    parse,
};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};

use copying::{BLOCKS, Mode};

/// Threads of a run.
const THREADS: usize = 2;

/// Rank of the adapter.
const RANK: usize = 16;

/// How often each run is measured.
const ROUNDS: usize = 7;

/// Outputs and inputs of the weight.
static SHAPE: OnceLock<[usize; 2]> = OnceLock::new();

fn rows() -> usize {
    SHAPE.get().unwrap()[0]
}

fn cols() -> usize {
    SHAPE.get().unwrap()[1]
}

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

/// Options of a run that decodes.
fn decoding(target: TargetDtype) -> ConvertOptions {
    // Without the cast, a weight in BF16 would stay one.
    let run = RememberOptions::new(target).with_cast(FloatCast::Checked);
    run.with_threads(THREADS).into()
}

/// Measures the run from `input`, whose tensors are in the file `data`, with the adapter in the
/// directory `adapter` merged if there is one, and prints its figures.
fn measure(
    name: &str,
    [input, data]: [&Path; 2],
    adapter: Option<&Path>,
    options: &ConvertOptions,
) {
    let [out, copy] = ["out", "copy"].map(|name| input.with_file_name(name));
    let write = || {
        let adapters = adapter.map(|dir| Adapter::open(dir).unwrap());
        let options = options
            .clone()
            .with_adapters(adapters.into_iter().collect());
        parse(input).unwrap().convert(&out, options).unwrap();
    };
    write();
    let len = |path: &Path| fs::metadata(path).unwrap().len();
    let (read, written) = (len(data), len(&out));
    let only_copy = |block| {
        let files = [data, &copy];
        copying::copy(files, written, block, THREADS, Mode::Cached).as_secs_f64()
    };
    let least = |block| (0..3).map(|_| only_copy(block)).fold(f64::MAX, f64::min);
    let times = BLOCKS.map(|block| (least(block), block));
    let fastest = times.into_iter().min_by(|(a, _), (b, _)| a.total_cmp(b));
    let (_, block) = fastest.unwrap();
    let (mut runs, mut copies, mut limits) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        fs::remove_file(&out).unwrap();
        runs.push(time(write));
        limits.push(only_copy(block));
        fs::remove_file(&copy).unwrap();
        copies.push(time(|| assert!(fs::copy(&out, &copy).is_ok())));
    }
    let [run, copy, limit] = [runs, copies, limits].map(median);
    let speed = |bytes: u64| bytes as f64 / run / 1e9;
    println!(
        "{name:28} {:6.2} {:6.2} {:8.2} {:8.2}",
        run / copy,
        run / limit,
        speed(read),
        speed(written)
    );
}

/// A file of tensors of these names, dtypes, shapes and bytes.
fn file(tensors: &[(&str, Dtype, [usize; 2], &[u8])]) -> Vec<u8> {
    let views = tensors.iter().map(|&(name, dtype, shape, bytes)| {
        let view = TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
        (name, view)
    });
    serialize(views, None).unwrap()
}

/// In F8_E4M3 these are finite, and as the low bytes of BF16 behind 0x3f they make numbers from 0.5
/// to 1.
fn base_codes() -> Vec<u8> {
    (0..rows() * cols())
        .map(|i| ((i * 97) >> 3) as u8 & 0x57)
        .collect()
}

/// A base of an adapter: the weight `w.weight` in BF16.
fn bf16_base() -> Vec<u8> {
    let bytes: Vec<u8> = (base_codes().into_iter())
        .flat_map(|low| [low, 0x3f])
        .collect();
    file(&[("w.weight", Dtype::BF16, [rows(), cols()], &bytes)])
}

/// A base of an adapter: the weight `w.weight` in FP8 with a scale for each row.
fn fp8_base() -> Vec<u8> {
    let scales = 0.03f32.to_le_bytes().repeat(rows());
    file(&[
        ("w.weight", Dtype::F8_E4M3, [rows(), cols()], &base_codes()),
        ("w.weight_scale", Dtype::F32, [rows(), 1], &scales),
    ])
}

/// Writes an adapter of `w` into a directory in `scratch`, whose path it returns.
fn write_adapter(scratch: &Path) -> PathBuf {
    let dir = scratch.join("adapter");
    let config = serde_json::json!({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["w"]});
    let factor = |n: usize| 0.01f32.to_le_bytes().repeat(n);
    let (a, b) = (factor(RANK * cols()), factor(rows() * RANK));
    let [name_a, name_b] =
        ["A", "B"].map(|which| format!("base_model.model.w.lora_{which}.weight"));
    let weights = file(&[
        (&name_a, Dtype::F32, [RANK, cols()], &a),
        (&name_b, Dtype::F32, [rows(), RANK], &b),
    ]);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
    fs::write(dir.join("adapter_model.safetensors"), weights).unwrap();
    dir
}

/// The scheme `name` to every type whose name has `filter` in it.
fn measure_all(
    scratch: &Path,
    (name, make): (&str, impl FnOnce() -> Vec<u8>),
    adapter: Option<&Path>,
    filter: &str,
) {
    let targets = [TargetDtype::BF16, TargetDtype::F16, TargetDtype::F32];
    let named = targets.map(|target| (format!("{name}/{target}"), target));
    let chosen: Vec<_> = (named.iter())
        .filter(|(name, _)| name.contains(filter))
        .collect();
    if chosen.is_empty() {
        return;
    }
    let [input, data] = schemes::write(scratch, name, &make());
    for (name, target) in chosen {
        measure(name, [&input, &data], adapter, &decoding(*target));
    }
    fs::remove_dir_all(scratch.join(name)).unwrap();
}

/// A weight in BF16 that is encoded.
fn normal_weight() -> Vec<u8> {
    let bytes = normal::bf16_bytes(rows() * cols());
    let name = "model.layers.0.mlp.up_proj.weight";
    file(&[(name, Dtype::BF16, [rows(), cols()], &bytes)])
}

/// Encoding to every scheme whose name has `filter` in it. Those that need an importance matrix are
/// left out.
fn measure_encoders(scratch: &Path, filter: &str) {
    let [input, data] = schemes::write(scratch, "forget", &normal_weight());
    let ggml = ForgetScheme::all_gguf().map(|name| format!("gguf:{}", name.to_lowercase()));
    let names = ForgetScheme::all()
        .map(|(name, _)| name.to_owned())
        .chain(ggml);
    for name in names {
        let row = format!("forget/{name}");
        let scheme: ForgetScheme = name.parse().unwrap();
        let mut options = ConvertOptions::from(scheme.pure());
        options.run = options.run.with_threads(THREADS);
        options.single_file = true;
        let takes = |conversion: Conversion<'_>| !conversion.report().encoded.is_empty();
        if row.contains(filter)
            && parse(&input)
                .unwrap()
                .plan(options.clone())
                .is_ok_and(takes)
        {
            measure(&row, [&input, &data], None, &options);
        }
    }
    fs::remove_dir_all(scratch.join("forget")).unwrap();
}

fn main() {
    // The runner puts options of its own behind the arguments.
    let mut arguments = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    let Some(scratch) = arguments.next().map(PathBuf::from) else {
        println!("a directory to work in is wanted");
        return;
    };
    let filter = arguments.next().unwrap_or_default();
    let shape = arguments.next().unwrap_or_else(|| "8192x4096".to_owned());
    let (rows, cols) = shape.split_once('x').unwrap();
    SHAPE.set([rows, cols].map(|n| n.parse().unwrap())).unwrap();
    println!("{:28} {:>6} {:>6} {:>8} {:>8}", "", "/ cp", "/ limit", "GB/s in", "GB/s out");
    for model in schemes::files() {
        measure_all(&scratch, model, None, &filter);
    }
    let adapter = write_adapter(&scratch);
    measure_all(&scratch, ("merge-bf16", bf16_base), Some(&adapter), &filter);
    measure_all(&scratch, ("merge-fp8", fp8_base), Some(&adapter), &filter);
    fs::remove_dir_all(adapter).unwrap();
    if "forget/".contains(&filter) || filter.starts_with("forget/") {
        measure_encoders(&scratch, &filter);
    }
}
