//! A progress bar on stderr, where that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `bytes`; hidden where stderr is not a terminal.
pub(super) fn bar(tensors: usize, bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    let style = ProgressStyle::with_template("{msg} [{bar:20}] {percent}% {binary_bytes_per_sec} ETA {eta}");
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(format!("Recalling... {tensors} tensors"));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
