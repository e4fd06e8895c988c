//! What `--verbose` prints on stderr: the records of the library.

use log::{LevelFilter, Log, Metadata, Record};

use super::progress::print_above_bar;
use crate::error::printable;

/// Prints the records of this crate.
struct RecordPrinter;

impl Log for RecordPrinter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with(env!("CARGO_CRATE_NAME"))
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            // Records hold names from files.
            print_above_bar(&printable(&record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// Begins to print records. A program that embeds this crate may have a logger of its own, which
/// stays.
pub(super) fn print_records() {
    if log::set_logger(&RecordPrinter).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
}
