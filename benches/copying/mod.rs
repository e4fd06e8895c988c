//! Reading one file and writing another, with nothing in between: what a conversion of the same
//! bytes can at best take.

use std::fs::{File, OpenOptions, remove_file};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How many bytes may be written at once: which is fastest depends on the machine.
pub const BLOCKS: [u64; 5] = [64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20];

/// What offsets and lengths are multiples of past the cache.
const PAGE: u64 = 4096;

/// How a run reads and writes. Not every program has a use for each.
#[allow(dead_code)]
#[derive(Clone, Copy, PartialEq)]
pub enum Mode {
    Cached,
    Synced,
    Direct,
}

/// The part of `whole` that belongs to the first `done` of `all` bytes.
fn share(whole: u64, done: u64, all: u64) -> u64 {
    (u128::from(whole) * u128::from(done) / u128::from(all.max(1))) as u64
}

/// Reads all of `input` and writes `bytes` bytes to a new file, in blocks of `block` bytes that
/// `threads` threads take in turn.
pub fn copy(
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
    assert_eq!(std::os::windows::fs::FileExt::seek_read(file, bytes, at).unwrap(), bytes.len());
}

#[cfg(windows)]
fn write_at(file: &File, at: u64, bytes: &[u8]) {
    assert_eq!(std::os::windows::fs::FileExt::seek_write(file, bytes, at).unwrap(), bytes.len());
}
