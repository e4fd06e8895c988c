//! The corpus of the fuzz targets (`tests/fuzz`), replayed: every input that reached code of its
//! own while fuzzing.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flate2::read::DeflateDecoder;

use crate::common::{cpu_time, effort};
use crate::fuzz::{TARGETS, run};

/// CPU time far above what any input takes, and far below what one would call a hang. Without
/// optimisation, as by default, one of the inputs makes tables of ggml's grids in a second.
const TIME: Duration = Duration::from_secs(10);

/// Time by the clock, for what other threads do, on a machine that is busy with other work.
const CLOCK: Duration = Duration::from_secs(120);

pub fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz")
}

/// The inputs of a target, which are the members of its archive, with their names.
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    members(&fuzz().join("corpus").join(target).with_extension("zip"))
}

/// The deflated members of an archive, with their names.
pub fn members(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut archive = zip::ZipArchive::new(File::open(path).unwrap()).unwrap();
    let count = archive.len();
    let read = |i| {
        let (member, mut bytes) = (archive.by_index_raw(i).unwrap(), vec![]);
        let name = member.name().unwrap().into_owned();
        // The crate is built without methods of compression.
        DeflateDecoder::new(member).read_to_end(&mut bytes).unwrap();
        (name, bytes)
    };
    (0..count).map(read).collect()
}

/// Runs every input of a target, or a fourth of them, and reports all that fail.
fn replay(target: &str) {
    let inputs = inputs(target);
    assert!(inputs.len() >= 20, "{target}: {} inputs", inputs.len());
    let mut failures = Vec::new();
    for (name, bytes) in inputs.into_iter().step_by(effort([4, 1, 1])) {
        let (start, cpu_start) = (Instant::now(), cpu_time());
        let result = catch_unwind(AssertUnwindSafe(|| run(target, &bytes)));
        let (clock, time) = (start.elapsed(), cpu_time() - cpu_start);
        if result.is_err() || time > TIME || clock > CLOCK {
            failures.push(format!("{target}.zip, {name} {time:?} {clock:?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

macro_rules! replays {
    ($($target:ident)*) => {
        $(
            #[test]
            fn $target() {
                replay(stringify!($target));
            }
        )*

        /// Every target has a program, a corpus, and a test here.
        #[test]
        fn targets_are_complete() {
            let listed: BTreeSet<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(listed, BTreeSet::from([$(stringify!($target)),*]));
            let names = |directory: &str| -> BTreeSet<String> {
                let entries = std::fs::read_dir(fuzz().join(directory)).unwrap();
                let paths = entries.map(|e| e.unwrap().path());
                paths.map(|p| p.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
            };
            let listed: BTreeSet<String> = listed.into_iter().map(str::to_owned).collect();
            assert_eq!(names("fuzz_targets"), listed);
            assert_eq!(names("corpus"), listed);
            let sizes = listed.iter().flat_map(|name| inputs(name)).map(|(_, bytes)| bytes.len());
            assert!(sizes.sum::<usize>() < 5 << 20, "`cargo fuzz cmin` makes the corpus smaller");
            let manifest = std::fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
            for name in listed {
                assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
            }
        }
    };
}

replays! {
    safetensors safetensors_header gguf gguf_header npz npy pth pickle zip qnat onnx msgpack burnpack hdf5 tflite executorch ggml mindspore mlc paddle openvino tensorflow coreml zarr directory decode encode round_trip doors
}
