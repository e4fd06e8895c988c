//! Deterministic fuzzing of every safetensors model in tests/data: truncated files, changed bytes,
//! edited header fields, changed companions. Nothing may panic (overflow checks are on). If a file
//! is still decoded, the `safetensors` crate must accept the output.

mod schemes;

use std::path::PathBuf;

use anamnesis::{ParsedModel, RememberOptions, TargetDtype};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

use crate::common::{Random, TARGETS, effort, some_case_directories};

/// A model file, split into header and data.
struct Model {
    path: PathBuf,
    json: Vec<u8>,
    data: Vec<u8>,
}

impl Model {
    fn read(path: PathBuf) -> Self {
        let bytes = std::fs::read(&path).unwrap();
        let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        Self { path, json: bytes[8..end].to_vec(), data: bytes[end..].to_vec() }
    }

    fn header(&self) -> Map<String, Value> {
        serde_json::from_slice(&self.json).unwrap()
    }
}

/// Every `model.safetensors` of the test data, or outside the gate some, other ones for another
/// `part`.
fn models(part: usize) -> Vec<Model> {
    let cases = some_case_directories(part).into_iter();
    let cases = cases.map(|case| case.join("model.safetensors"));
    let paths: Vec<_> = cases.filter(|path| path.is_file()).collect();
    assert!(paths.len() > effort([20, 100, 100]), "{}", paths.len());
    paths.into_iter().map(Model::read).collect()
}

/// Of so many models at least one is tried.
fn share() -> usize {
    effort([8, 1, 1])
}

fn assemble(json: &[u8], data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes()[..], json, data].concat()
}

/// Counts of files that were parsed and decoded, so that a test can assert that it reached the code
/// it is for.
#[derive(Default)]
struct Outcome {
    parsed: usize,
    recovered: usize,
}

impl Outcome {
    /// Parses, inspects and decodes a file.
    fn try_bytes(&mut self, bytes: Vec<u8>, target: TargetDtype) {
        let _ = anamnesis::parse_safetensors_header_from_reader(&bytes[..]);
        if let Ok(model) = anamnesis::parse_bytes(bytes) {
            self.try_model(&model, target);
        }
    }

    fn try_model(&mut self, model: &ParsedModel, target: TargetDtype) {
        self.parsed += 1;
        let info = model.inspect();
        let _ = info.to_string();
        let result = model.remember_to_bytes(RememberOptions::new(target).with_threads(1));
        assert!(
            info.problems.is_empty() || result.is_err(),
            "recovered in spite of {:?}",
            info.problems
        );
        if let Ok(output) = result {
            self.recovered += 1;
            SafeTensors::deserialize(&output).unwrap();
        }
    }
}

fn target(random: &mut Random) -> TargetDtype {
    TARGETS[pick(random, TARGETS.len())].0
}

fn pick(random: &mut Random, n: usize) -> usize {
    (random.next() >> 20) as usize % n
}

/// What the tests of this program rely on. The profile of tests sets it for the crate and its
/// dependencies.
#[test]
fn overflow_checks_are_on() {
    let most = std::hint::black_box(u8::MAX);
    assert!(std::panic::catch_unwind(|| std::hint::black_box(most + 1)).is_err());
}

#[test]
fn truncations() {
    let mut random = Random(1);
    for model in models(0) {
        let whole = assemble(&model.json, &model.data);
        let header = 8 + model.json.len();
        let ends = [0, 1, 7, 8, 9, header - 1, header, header + 1, whole.len() - 1];
        for end in ends
            .into_iter()
            .chain((0..effort([6, 20, 20])).map(|_| pick(&mut random, whole.len())))
        {
            let cut = &whole[..end.min(whole.len() - 1)];
            assert!(
                anamnesis::parse_bytes(cut.to_vec()).is_err(),
                "{} cut at {end}",
                model.path.display()
            );
            let _ = anamnesis::parse_safetensors_header_from_reader(cut);
        }
    }
}

/// Changes one to three bytes of the header or of its length.
#[test]
fn header_bytes() {
    const LIKELY: &[u8] = b"0123456789[]{},:\"_.FIUB \\\x00\x80\xff";
    let (mut random, mut outcome) = (Random(2), Outcome::default());
    let tries = effort([4, 24, 60]);
    for model in models(1) {
        for _ in 0..tries {
            let mut bytes = assemble(&model.json, &model.data);
            for _ in 0..1 + pick(&mut random, 3) {
                let at = pick(&mut random, 8 + model.json.len());
                bytes[at] = match pick(&mut random, 3) {
                    0 => bytes[at] ^ 1 << pick(&mut random, 8),
                    _ => LIKELY[pick(&mut random, LIKELY.len())],
                };
            }
            outcome.try_bytes(bytes, target(&mut random));
        }
    }
    assert!(
        outcome.parsed > 8 * tries / share() && outcome.recovered * 6 * share() > 5 * tries,
        "{} {}",
        outcome.parsed,
        outcome.recovered
    );
}

const NUMBERS: &[u64] = &[
    0,
    1,
    2,
    3,
    7,
    16,
    31,
    33,
    64,
    1 << 31,
    1 << 32,
    1 << 60,
    1 << 61,
    1 << 62,
    1 << 63,
    u64::MAX - 7,
    u64::MAX,
];

const NAMES: &[&str] = &[
    "weight",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_packed",
    "weight_global_scale",
    "scale",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "SCB",
    "weight_format",
    "weight.absmax",
    "weight.quant_map",
    "weight.nested_absmax",
    "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4",
    "weight.quant_state.bitsandbytes__fp4",
    "input_scale",
    "",
];

/// Changes one field of one tensor's entry, so that it contradicts the others.
fn edit(header: &mut Map<String, Value>, random: &mut Random) {
    let names: Vec<String> = header
        .keys()
        .filter(|k| *k != "__metadata__")
        .cloned()
        .collect();
    let name = &names[pick(random, names.len())];
    let number = json!(NUMBERS[pick(random, NUMBERS.len())]);
    let entry = &mut header[name];
    match pick(random, 5) {
        0 => {
            let rank = entry["shape"].as_array().unwrap().len();
            let at = pick(random, rank + 1);
            let shape = entry["shape"].as_array_mut().unwrap();
            shape.insert(at, number);
            shape.truncate(rank.max(1));
        }
        1 => entry["data_offsets"][pick(random, 2)] = number,
        2 => {
            entry["dtype"] =
                json!(crate::common::DTYPES[pick(random, crate::common::DTYPES.len())].0);
        }
        3 => entry["shape"] = json!([]),
        _ => {
            entry["shape"].as_array_mut().unwrap().reverse();
        }
    }
}

#[test]
fn header_fields() {
    let (mut random, mut outcome) = (Random(3), Outcome::default());
    let tries = effort([4, 24, 60]);
    for model in models(2) {
        for _ in 0..tries {
            let mut header = model.header();
            (0..1 + pick(&mut random, 2)).for_each(|_| edit(&mut header, &mut random));
            outcome.try_bytes(
                assemble(&serde_json::to_vec(&header).unwrap(), &model.data),
                target(&mut random),
            );
        }
    }
    assert!(outcome.parsed > 3 * tries / share(), "{}", outcome.parsed);
}
