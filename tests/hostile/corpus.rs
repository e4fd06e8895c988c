//! The corpus of the fuzz targets (`tests/fuzz`), replayed: every input that reached code of its
//! own while fuzzing.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::fuzz::{TARGETS, run};

/// Far above what any input takes, and far below what a reader would call a hang.
const TIME: Duration = Duration::from_secs(10);

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz")
}

/// Bytes of the files in a directory.
fn size(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|e| e.unwrap().metadata().unwrap().len()).sum()
}

/// Runs every input of a target, and reports all that fail.
fn replay(target: &str) {
    let entries = std::fs::read_dir(fuzz().join("corpus").join(target)).unwrap();
    let mut inputs: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    inputs.sort();
    assert!(inputs.len() >= 20, "{target}: {} inputs", inputs.len());
    let mut failures = Vec::new();
    for input in inputs {
        let (bytes, start) = (std::fs::read(&input).unwrap(), Instant::now());
        let result = catch_unwind(AssertUnwindSafe(|| run(target, &bytes)));
        if result.is_err() || start.elapsed() > TIME {
            failures.push(format!("{} {:?}", input.display(), start.elapsed()));
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
            let sizes = listed.iter().map(|name| size(&fuzz().join("corpus").join(name)));
            assert!(sizes.sum::<u64>() < 5 << 20, "`cargo fuzz cmin` makes the corpus smaller");
            let manifest = std::fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
            for name in listed {
                assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
            }
        }
    };
}

replays! {
    safetensors safetensors_header gguf gguf_header npz npy pth pickle zip qnat directory decode encode round_trip
}
