//! Signals: those that ask the program to end cancel the conversion, and a limit on file sizes does
//! not kill it.

use crate::{AnamnesisError, CancelToken, Result};

/// Exit code of a command that was interrupted.
#[cfg_attr(not(any(unix, windows)), expect(dead_code, reason = "no signals"))]
const INTERRUPTED: i32 = 130;

/// Sets `cancel` when the process is asked to end (SIGINT, SIGTERM, SIGHUP; on Windows Ctrl-C and
/// the closing of the console), so that temporary files are removed. A second such signal ends the
/// process at once.
///
/// # Errors
/// `Io` if a handler cannot be set.
pub(super) fn cancel_at_termination(cancel: &CancelToken) -> Result<()> {
    set_handlers(cancel).map_err(AnamnesisError::Io)
}

// A handler that sets a flag needs no thread: a process that may start none can still be
// interrupted.
#[cfg(unix)]
fn set_handlers(cancel: &CancelToken) -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .try_for_each(|signal| {
            // In this order: the flag is not set yet when the first signal comes.
            signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, cancel.flag())?;
            signal_hook::flag::register(signal, cancel.flag()).map(drop)
        })
}

#[cfg(windows)]
fn set_handlers(cancel: &CancelToken) -> std::io::Result<()> {
    let cancel = cancel.clone();
    let handler = move || match cancel.is_cancelled() {
        true => std::process::exit(INTERRUPTED),
        false => cancel.cancel(),
    };
    ctrlc::set_handler(handler).map_err(std::io::Error::other)
}

#[cfg(not(any(unix, windows)))]
fn set_handlers(_cancel: &CancelToken) -> std::io::Result<()> {
    Ok(())
}

/// Keeps SIGXFSZ from killing the process: a write beyond the limit of file sizes (`ulimit -f`)
/// then fails like one to a full disk, and what was written is removed.
pub(super) fn survive_file_size_limit() {
    // Any handler will do, for the write fails with EFBIG once the signal does not kill. If none
    // can be set, the process has the fate that it would have had.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default());
}
