//! What threads that only copy need: the time of reading a file and writing as many bytes as a
//! decoder would, with nothing in between. It is the limit of a conversion on the machine.
//!
//! `cargo bench --bench limit -- INPUT OUTPUT BYTES [THREADS]` reads INPUT and writes BYTES bytes
//! to the new file OUTPUT, in the block sizes of [`copying::BLOCKS`]. It prints the least time of
//! [`ROUNDS`] rounds for each.
//!
//! With `synced` or `direct` behind THREADS it does so once in blocks of 256 KiB, and syncs the
//! file; with `direct` past the system's cache (Linux). For files on a disk, whose cache is emptied
//! before.
#![allow(missing_docs, clippy::unwrap_used)]

mod copying;

use std::fs::remove_file;
use std::path::Path;

use copying::{BLOCKS, Mode, copy};

/// How often each block size is measured.
const ROUNDS: usize = 5;

fn main() {
    // Cargo passes `--bench` to every program of its kind.
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let [input, output, bytes, rest @ ..] = args.as_slice() else {
        println!("limit: INPUT OUTPUT BYTES [THREADS [synced | direct]]");
        return;
    };
    let files = [Path::new(input), Path::new(output)];
    let bytes: u64 = bytes.parse().unwrap();
    let threads = rest.first().map_or(2, |threads| threads.parse().unwrap());
    let mode = match rest.get(1).map(String::as_str) {
        Some("synced") => Mode::Synced,
        Some("direct") => Mode::Direct,
        _ => Mode::Cached,
    };
    let (blocks, rounds): (&[u64], usize) = match mode {
        Mode::Cached => (&BLOCKS, ROUNDS),
        _ => (&[256 << 10], 1),
    };
    for &block in blocks {
        let times = (0..rounds).map(|_| copy(files, bytes, block, threads, mode));
        let least = times.min().unwrap_or_default();
        println!(
            "{:5} KiB: {:.4} s, {:.2} GB/s written",
            block >> 10,
            least.as_secs_f64(),
            bytes as f64 / least.as_secs_f64() / 1e9
        );
    }
    let _ = remove_file(files[1]);
}
