//! Whole runs of every scheme: parsing a file, decoding its tensor of 8192 × 4096 and writing it, with two threads, as a share of
//! the time of a copy of the output.
//!
//! `cargo bench --features benchmarks --bench whole -- DIRECTORY [FILTER]` works in DIRECTORY, which had better be in memory. The
//! figures are medians of [`ROUNDS`] rounds, in each of which both are done once.
#![allow(missing_docs, clippy::unwrap_used)]

mod schemes;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anamnesis::{RememberOptions, TargetDtype, parse};

const ROWS: usize = 8192;
const COLS: usize = 4096;

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

/// The time of a run from `input` to `target`, divided by that of a copy of its output.
fn ratio(input: &Path, target: TargetDtype) -> f64 {
    let out = input.with_file_name("out.safetensors");
    let copy = input.with_file_name("copy.safetensors");
    let options = RememberOptions::new(target).with_threads(2);
    let rounds = (0..ROUNDS).map(|_| {
        let run = time(|| drop(parse(input).unwrap().remember(&out, &options).unwrap()));
        let copied = time(|| assert!(fs::copy(&out, &copy).is_ok()));
        fs::remove_file(&out).unwrap();
        fs::remove_file(&copy).unwrap();
        (run, copied)
    });
    let (runs, copies): (Vec<f64>, Vec<f64>) = rounds.unzip();
    median(runs) / median(copies)
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
        let targets = [TargetDtype::BF16, TargetDtype::F16, TargetDtype::F32];
        let [bf16, f16, f32] = targets.map(|target| ratio(&input, target));
        println!("{name:24} {bf16:6.2} {f16:6.2} {f32:6.2}");
        fs::remove_dir_all(scratch.join(name)).unwrap();
    }
}
