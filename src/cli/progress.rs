//! The progress bar. It is drawn on stderr, and only if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

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
    bar.enable_steady_tick(Duration::from_millis(200));
}
