//! Decodes a model with a progress line, and stops when a time is over. An interrupted conversion
//! leaves no output.
//!
//! cargo run --example progress -- [MODEL [SECONDS]]

use std::thread;
use std::time::Duration;

use anamnesis::{AnamnesisError, CancelToken, RememberOptions, TargetDtype};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args
        .next()
        .unwrap_or_else(|| "tests/data/demo/model-fp8.safetensors".to_owned());
    let seconds = args.next().map_or(Ok(60), |text| text.parse())?;

    let cancel = CancelToken::new();
    let timer = cancel.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_secs(seconds));
        timer.cancel();
    });
    let options = RememberOptions::new(TargetDtype::BF16)
        .with_threads(2)
        .with_cancel(cancel)
        // Called after every job, from any of the worker threads.
        .with_progress(|progress| {
            eprint!("\r{} of {} bytes", progress.done_bytes, progress.total_bytes);
        });

    let dir = tempfile::tempdir()?;
    let model = anamnesis::parse(&path)?;
    match model.remember(dir.path().join("model-bf16.safetensors"), options) {
        Ok(report) => eprintln!("\n{} tensors decoded", report.recovered()),
        Err(AnamnesisError::Cancelled) => eprintln!("\nnot done after {seconds} s"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
