//! Trials of hostile files: a file is parsed, inspected and decoded, and the files that are left
//! behind are checked. Two test programs compile this module: `hostile`, whose `Monitor` limits
//! time, and `heap`, whose `Monitor` limits memory.

#[cfg(feature = "burnpack")]
mod burnpack;
mod configs;
#[cfg(feature = "coreml")]
mod coreml;
#[cfg(feature = "executorch")]
mod executorch;
#[cfg(any(feature = "executorch", feature = "tflite"))]
mod flatbuffer;
#[cfg(feature = "gguf")]
mod ggml;
#[cfg(feature = "hdf5")]
mod hdf5;
#[cfg(any(feature = "onnx", feature = "tensorflow"))]
mod message;
#[cfg(feature = "mindspore")]
mod mindspore;
#[cfg(feature = "mlc")]
mod mlc;
#[cfg(feature = "msgpack")]
mod msgpack;
mod npz;
#[cfg(feature = "onnx")]
mod onnx;
#[cfg(feature = "openvino")]
mod openvino;
#[cfg(feature = "paddle")]
mod paddle;
mod pickles;
mod pth;
#[cfg(feature = "tensorflow")]
mod tensorflow;
#[cfg(feature = "tflite")]
mod tflite;
#[cfg(feature = "zarr")]
mod zarr;
mod zip;

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use anamnesis::{
    AnamnesisError, ConvertOptions, ConvertTarget, ParsedModel, Result, parse, parse_bytes,
};
use safetensors::SafeTensors;

use crate::common::verdict::{Kind, Parse, Unsupported, verdict};
use crate::common::{Random, effort};
use crate::monitor::Monitor;

/// What is wrong, the file, the kind of the error, and words of its message.
pub type Row<'a> = (&'a str, Vec<u8>, Kind, &'a [&'a str]);

/// What is wrong, the file with a given number in it, the numbers, and the kind and a word of each
/// error.
pub type Numbers<'a> = (&'a str, &'a dyn Fn(u64) -> Vec<u8>, &'a [u64], Kind, &'a str);

/// Tries files, and collects what goes wrong.
pub struct Trial {
    monitor: Monitor,
    failures: String,
    files: usize,
    /// Files that were changed, and how many of them were still decoded.
    edits: (usize, usize),
}

impl Trial {
    /// Must be the first statement of a test: in `heap` it waits for the other tests, and their
    /// measurements must not count what this test allocates or frees.
    pub fn new() -> Self {
        Self { monitor: Monitor::new(), failures: String::new(), files: 0, edits: (0, 0) }
    }

    /// Prints the peak, and fails if any file failed.
    pub fn end(&self) {
        let (files, (edits, decoded)) = (self.files, self.edits);
        println!("{files} files, {edits} edits, {decoded} decoded; {}", self.monitor.summary());
        assert!(self.failures.is_empty(), "{}", self.failures);
    }

    pub fn fail(&mut self, what: &str, wrong: impl std::fmt::Display) {
        self.failures.push_str(&format!("\n{what:.60}: {wrong}"));
    }

    /// Each file must give the error of its row.
    pub fn refused(&mut self, rows: Vec<Row<'_>>) {
        for (what, bytes, kind, words) in rows {
            let Some(result) = self.try_file(what, &bytes) else {
                continue;
            };
            verdict(result, kind, words)
                .into_iter()
                .for_each(|wrong| self.fail(what, wrong));
        }
    }

    pub fn refused_numbers(&mut self, tables: &[Numbers<'_>]) {
        for &(what, make, numbers, kind, word) in tables {
            numbers.iter().for_each(|&n| {
                self.refused(vec![(&format!("{what}: {n}"), make(n), kind, &[word])]);
            });
        }
    }

    /// Each of `pickles`, which bars divide, must give a parse error that has `word` once `make`
    /// puts it into a file.
    pub fn refused_pickles(&mut self, word: &str, pickles: &[u8], make: &dyn Fn(&[u8]) -> Vec<u8>) {
        for pickle in pickles.split(|&b| b == b'|') {
            let what = pickle.escape_ascii().to_string();
            self.refused(vec![(&what, make(pickle), Parse, &[word])]);
        }
    }

    /// Each file must be read.
    pub fn fine(&mut self, rows: Vec<(&str, Vec<u8>)>) {
        for (what, bytes) in rows {
            let result = self.try_file(what, &bytes);
            result
                .and_then(Result::err)
                .into_iter()
                .for_each(|error| self.fail(what, error));
        }
    }

    /// Parses and decodes a file from a directory and, where time counts, from memory. Afterwards the
    /// directory must have the file, and the output of a success, and nothing else. Returns `None` if
    /// the trial has already failed.
    pub fn try_file(&mut self, what: &str, bytes: &[u8]) -> Option<Result<Vec<u8>>> {
        let place = crate::common::tempdir().unwrap();
        let [input, output] = ["in", "out"].map(|name| place.path().join(name).join("model"));
        [&input, &output]
            .iter()
            .for_each(|path| std::fs::create_dir(path.parent().unwrap()).unwrap());
        std::fs::write(&input, bytes).unwrap();
        let from_file = self.watch(what, bytes.len(), || {
            parse(&input).and_then(|m| recover_everything(&m, Some(&output)))
        });
        self.measure(what, bytes.len(), || anamnesis::pickle_globals(&input).is_ok())?;
        self.files += 1;
        let from_file = from_file?;
        let files = below(place.path());
        let expected: &[&str] = if from_file.is_ok() {
            &["in/model", "out/model"]
        } else {
            &["in/model"]
        };
        if files != expected {
            self.fail(what, format!("it leaves {files:?}"));
        }
        if !Monitor::LIMITS_TIME {
            return Some(from_file.map(|_| std::fs::read(&output).unwrap()));
        }
        let from_memory = self.time(what, || try_everything(bytes.to_vec()))?;
        if from_memory.is_ok() != from_file.is_ok() {
            self.fail(
                what,
                format!("from memory {:?}, from a file {:?}", from_memory.err(), from_file.err()),
            );
            return None;
        }
        Some(from_memory)
    }

    /// A file cut anywhere must give an error.
    pub fn truncations(&mut self, what: &str, whole: &[u8]) {
        let mut read = Vec::new();
        self.watch(what, 0, || {
            read.extend(
                (0..whole.len()).filter(|&end| try_everything(whole[..end].to_vec()).is_ok()),
            );
        });
        if !read.is_empty() {
            self.fail(what, format!("it is read when cut at {read:?}"));
        }
        for end in [0, 1, 21, whole.len() - 1] {
            // The beginning of a header may be text.
            let cut = &whole[..end];
            let is_text = cut.len() >= 8 && cut.iter().all(u8::is_ascii_graphic);
            let kind = if is_text { Unsupported } else { Parse };
            self.refused(vec![(what, cut.to_vec(), kind, &[])]);
        }
    }

    /// Changes files in hundreds of ways: some of them must still be decoded, and some not.
    pub fn mutations(&mut self, files: &[Vec<u8>], seed: u64) {
        let (mut random, mut good) = (Random(seed), 0);
        let count = edit_count([500, 2000, 5000]);
        for i in 0..count {
            let mut bytes = files[(random.next() >> 20) as usize % files.len()].clone();
            (0..1 + i % 3).for_each(|_| mutate(&mut bytes, &mut random));
            match self.measure("an edit", bytes.len(), || try_everything(bytes)) {
                Some(Ok(_)) => good += 1,
                Some(Err(error @ AnamnesisError::Io(_))) => self.fail("an edit", error),
                _ => {}
            }
        }
        self.count_edits(count, good, 50);
    }

    /// Counts changed files. Of each `part` some must still be decoded, and some not.
    pub fn count_edits(&mut self, count: usize, good: usize, part: usize) {
        assert!(good > count / part && good < count - count / part, "{good} of {count}");
        self.edits = (self.edits.0 + count, self.edits.1 + good);
    }

    /// Runs `f`, which must stay within what the program limits for a file of `len` bytes. Returns
    /// `None` if it panics.
    pub fn measure<T>(&mut self, what: &str, len: usize, f: impl FnOnce() -> T) -> Option<T> {
        match Monitor::LIMITS_TIME {
            true => self.time(what, f),
            false => self.watch(what, len, f),
        }
    }

    /// Runs `f`, which must end within the time that the program allows. Returns `None` if it panics.
    pub fn time<T>(&mut self, what: &str, f: impl FnOnce() -> T) -> Option<T> {
        let run = || catch_unwind(AssertUnwindSafe(f));
        let (caught, wrong) = self.monitor.time(what, run);
        self.finish(what, caught, wrong)
    }

    /// Runs `f`, which must stay within the memory that the program allows for a file of `len`
    /// bytes. Returns `None` if it panics.
    pub fn watch<T>(&mut self, what: &str, len: usize, f: impl FnOnce() -> T) -> Option<T> {
        let run = || catch_unwind(AssertUnwindSafe(f));
        let (caught, wrong) = self.monitor.heap(what, len, run);
        self.finish(what, caught, wrong)
    }

    fn finish<T>(
        &mut self,
        what: &str,
        caught: std::thread::Result<T>,
        wrong: Option<String>,
    ) -> Option<T> {
        wrong.into_iter().for_each(|wrong| self.fail(what, wrong));
        caught.map_err(|_| self.fail(what, "panic")).ok()
    }
}

/// Reads a file in memory with every function that takes one, and decodes it.
pub fn try_everything(bytes: Vec<u8>) -> Result<Vec<u8>> {
    let _ = anamnesis::inspect_npz_from_reader(Cursor::new(&bytes));
    let _ = anamnesis::parse_pth_front_matter_from_reader(Cursor::new(&bytes));
    recover_everything(&parse_bytes(bytes)?, None)
}

/// Decodes `model`, into the file `output` if there is one.
fn recover_everything(model: &ParsedModel, output: Option<&Path>) -> Result<Vec<u8>> {
    let info = model.inspect();
    let _ = info.to_string();
    let bad = model.tensors().find_map(|tensor| tensor.bytes().err());
    let mut options = ConvertOptions::new(ConvertTarget::Safetensors);
    options.run.threads = Some(1);
    let result = match output {
        Some(path) => model.convert(path, options).map(|_| vec![]),
        None => model
            .plan(options)
            .and_then(|conversion| conversion.to_bytes()),
    };
    if let Ok(bytes) = &result {
        assert!(
            bad.is_none() && info.problems.is_empty(),
            "recovered in spite of {bad:?} {:?}",
            info.problems
        );
        assert!(output.is_some() || SafeTensors::deserialize(bytes).is_ok(), "the output is none");
    }
    result
}

/// How many changed files are tried: `ANAMNESIS_EDITS`, or as many as [`effort`] says.
fn edit_count(counts: [usize; 3]) -> usize {
    let given = std::env::var("ANAMNESIS_EDITS").ok();
    given.map_or_else(|| effort(counts), |count| count.parse().unwrap())
}

/// Changes, inserts or removes a few bytes.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    const NUMBERS: [u64; 12] = [
        0,
        1,
        2,
        8,
        0xfffe,
        0xffff,
        1 << 16,
        1 << 31,
        (1 << 32) - 1,
        1 << 62,
        u64::MAX - 11,
        u64::MAX,
    ];
    let mut pick = |n: usize| (random.next() >> 20) as usize % n;
    let (at, number) = (pick(bytes.len() - 8), NUMBERS[pick(12)].to_le_bytes());
    match pick(8) {
        0 => bytes.insert(at, number[0]),
        1 => drop(bytes.remove(at)),
        2 => bytes[at] = pick(256) as u8,
        3 => bytes[at..at + 2].copy_from_slice(&number[..2]),
        4 => bytes[at..at + 4].copy_from_slice(&number[..4]),
        5 => bytes[at..at + 8].copy_from_slice(&number),
        _ => bytes[at] ^= 1 << pick(8),
    }
}

/// Every file below a directory.
fn below(directory: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let (path, name) = {
            let entry = entry.unwrap();
            (entry.path(), entry.file_name().to_string_lossy().into_owned())
        };
        match path.is_dir() {
            true => all.extend(
                below(&path)
                    .into_iter()
                    .map(|file| format!("{name}/{file}")),
            ),
            false => all.push(name),
        }
    }
    all.sort();
    all
}
