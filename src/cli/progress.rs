//! The progress bar. It is drawn on stderr, and only if that is a terminal.

use std::io::IsTerminal;
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle, WeakProgressBar};

/// Time between two drawings while no progress is reported.
const TICK: Duration = Duration::from_millis(200);

/// Returns a bar that is not drawn yet.
pub(super) fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) =
        ProgressStyle::with_template("{msg} [{bar:20}] {percent}% {binary_bytes_per_sec} ETA {eta}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// Starts to draw `bar` for a conversion of `tensors` tensors and `bytes` bytes.
pub(super) fn start(bar: &ProgressBar, verb: &str, tensors: usize, bytes: u64) {
    bar.set_length(bytes);
    bar.reset();
    bar.set_message(format!("{verb} {tensors} tensors"));
    if std::io::stderr().is_terminal() {
        // `enable_steady_tick` panics if no thread can be started. Without this one the bar is drawn at each progress alone.
        let weak = bar.downgrade();
        let _ = thread::Builder::new().spawn(move || tick(&weak));
    }
}

/// Draws the bar again and again until it is finished or gone.
fn tick(bar: &WeakProgressBar) {
    while let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
        bar.tick();
        drop(bar);
        thread::sleep(TICK);
    }
}
