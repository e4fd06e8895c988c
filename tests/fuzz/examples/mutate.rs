//! Runs a target on mutated inputs without libFuzzer, which needs a nightly compiler: `cargo run
//! --release --example mutate -- TARGET SECONDS [SEED]`. Begins with the target's archive in
//! `corpus`, or with random bytes. An input that panics or takes more than two seconds is written to
//! `artifacts/TARGET`.
#![allow(clippy::unwrap_used)]

use std::io::{Cursor, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use anamnesis_fuzz::bodies::run;
use anamnesis_fuzz::common::Random;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (target, seconds) = (&arguments[0], arguments[1].parse().unwrap());
    let seed: u64 = arguments.get(2).map_or(1, |seed| seed.parse().unwrap());
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpus = corpus(&home.join("corpus").join(target).with_extension("zip"));
    let artifacts = home.join("artifacts").join(target);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (start, end) = (Instant::now(), Duration::from_secs(seconds));
    let (mut runs, mut failures) = (0u64, 0);
    while start.elapsed() < end {
        let input = mutated(&corpus, &mut random);
        let began = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| run(target, &input)));
        let time = began.elapsed();
        runs += 1;
        if result.is_err() || time > Duration::from_secs(2) {
            failures += 1;
            std::fs::create_dir_all(&artifacts).unwrap();
            let name = format!("{:08x}", crc32fast::hash(&input));
            std::fs::write(artifacts.join(&name), &input).unwrap();
            println!(
                "{target}: {name} {} {time:?}",
                if result.is_err() { "panics" } else { "is slow" }
            );
        }
    }
    println!("{target}: {runs} runs, {failures} failures");
}

/// The inputs in an archive, and one that is empty.
fn corpus(path: &Path) -> Vec<Vec<u8>> {
    let mut inputs = vec![vec![]];
    let Ok(bytes) = std::fs::read(path) else {
        return inputs;
    };
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
    for i in 0..archive.len() {
        let mut input = vec![];
        let member = archive.by_index_raw(i).unwrap();
        flate2::read::DeflateDecoder::new(member)
            .read_to_end(&mut input)
            .unwrap();
        inputs.push(input);
    }
    inputs
}

/// An input of the corpus with changes, or random bytes.
fn mutated(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut below = |n: usize| (random.next() >> 20) as usize % n.max(1);
    let mut input = corpus[below(corpus.len())].clone();
    if input.is_empty() {
        let len = 3 + below(40);
        return random.bytes(len);
    }
    for _ in 0..=below(4) {
        let at = below(input.len());
        match below(7) {
            0 => input.insert(at, below(256) as u8),
            1 if input.len() > 1 => drop(input.remove(at)),
            2 => input[at] = below(256) as u8,
            3 => input[at] = [0, 1, 0x7f, 0x80, 0xff][below(5)],
            4 => {
                let other = &corpus[below(corpus.len())];
                let from = below(other.len());
                let part: Vec<u8> = other
                    .iter()
                    .skip(from)
                    .take(1 + below(30))
                    .copied()
                    .collect();
                input.splice(at..at, part);
            }
            5 => {
                let n = (below(5) as u64).wrapping_sub(2).to_le_bytes();
                input
                    .iter_mut()
                    .skip(at)
                    .zip(n)
                    .for_each(|(byte, new)| *byte = new);
            }
            _ => input[at] ^= 1 << below(8),
        }
    }
    input
}
