//! What threads that only copy need: the time of reading a file and writing as many bytes as a decoder would, with nothing in
//! between. It is the limit of a conversion on the machine.
//!
//! `cargo bench --bench limit -- INPUT OUTPUT BYTES [THREADS]` reads INPUT and writes BYTES bytes to the new file OUTPUT, in the
//! block sizes of [`BLOCKS`]. It prints the least time of [`ROUNDS`] rounds for each.
//!
//! With `synced` or `direct` behind THREADS it does so once in blocks of 256 KiB, and syncs the file; with `direct` past the system's
//! cache (Linux). For files on a disk, whose cache is emptied before.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs::{File, OpenOptions, remove_file};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are written at once.
const BLOCKS: [u64; 5] = [64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20];

/// How often each block size is measured.
const ROUNDS: usize = 5;

/// What offsets and lengths are multiples of past the cache.
const PAGE: u64 = 4096;

/// How a run reads and writes.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Cached,
    Synced,
    Direct,
}

/// The part of `whole` that belongs to the first `done` of `all` bytes.
fn share(whole: u64, done: u64, all: u64) -> u64 {
    (u128::from(whole) * u128::from(done) / u128::from(all.max(1))) as u64
}

/// Reads all of `input` and writes `bytes` bytes to a new file, in blocks of `block` bytes that `threads` threads take in turn.
fn copy(
    [input, output]: [&Path; 2],
    bytes: u64,
    block: u64,
    threads: usize,
    mode: Mode,
) -> Duration {
    let _ = remove_file(output);
    let input = open(File::options().read(true), input, mode);
    let out = open(File::options().write(true).create(true), output, mode);
    let (next, len) = (AtomicU64::new(0), input.metadata().unwrap().len());
    // Past the cache a file is read in whole pages, but for its end.
    let (bytes, len) = match mode {
        Mode::Direct => (bytes / PAGE * PAGE, len / PAGE * PAGE),
        _ => (bytes, len),
    };
    let page = if mode == Mode::Direct { PAGE } else { 1 };
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffer = vec![1u8; (block + PAGE) as usize];
                let first = buffer.as_ptr().align_offset(PAGE as usize);
                let buffer = &mut buffer[first..][..block as usize];
                loop {
                    let at = next.fetch_add(block, Ordering::Relaxed);
                    if at >= bytes {
                        return;
                    }
                    let end = (at + block).min(bytes);
                    let mut from = share(len, at, bytes) / page * page;
                    let until = share(len, end, bytes) / page * page;
                    while from < until {
                        let piece = (until - from).min(block);
                        read_at(&input, from, &mut buffer[..piece as usize]);
                        from += piece;
                    }
                    write_at(&out, at, &buffer[..(end - at) as usize]);
                }
            });
        }
    });
    if mode != Mode::Cached {
        out.sync_all().unwrap();
    }
    begin.elapsed()
}

#[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
fn open(options: &mut OpenOptions, path: &Path, mode: Mode) -> File {
    #[cfg(target_os = "linux")]
    if mode == Mode::Direct {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
    }
    options.open(path).unwrap()
}

#[cfg(unix)]
fn read_at(file: &File, at: u64, bytes: &mut [u8]) {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at).unwrap();
}

#[cfg(unix)]
fn write_at(file: &File, at: u64, bytes: &[u8]) {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at).unwrap();
}

#[cfg(windows)]
fn read_at(file: &File, at: u64, bytes: &mut [u8]) {
    assert_eq!(
        std::os::windows::fs::FileExt::seek_read(file, bytes, at).unwrap(),
        bytes.len()
    );
}

#[cfg(windows)]
fn write_at(file: &File, at: u64, bytes: &[u8]) {
    assert_eq!(
        std::os::windows::fs::FileExt::seek_write(file, bytes, at).unwrap(),
        bytes.len()
    );
}

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
