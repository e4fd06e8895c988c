//! Deterministic fuzzing of every file in tests/data: cut short, bytes flipped, header fields edited, small
//! companions scrambled. Nothing may panic (overflow checks are on); what is recovered all the same must be
//! a file that the `safetensors` crate accepts.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::PathBuf;

use anamnesis::{ParsedModel, RememberOptions, TargetDtype};
use common::{Random, TARGETS, data};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

/// A model file in its parts.
struct Model {
    path: PathBuf,
    json: Vec<u8>,
    data: Vec<u8>,
}

impl Model {
    fn read(path: PathBuf) -> Self {
        let bytes = std::fs::read(&path).unwrap();
        let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        Self {
            path,
            json: bytes[8..end].to_vec(),
            data: bytes[end..].to_vec(),
        }
    }

    fn header(&self) -> Map<String, Value> {
        serde_json::from_slice(&self.json).unwrap()
    }
}

/// Every `model.safetensors` of the test data.
fn models() -> Vec<Model> {
    let below = |path: PathBuf| {
        std::fs::read_dir(path)
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.is_dir())
    };
    let cases = below(data())
        .flat_map(below)
        .map(|case| case.join("model.safetensors"));
    let mut paths: Vec<_> = cases.filter(|p| p.is_file()).collect();
    paths.sort();
    assert!(paths.len() > 100, "{}", paths.len());
    paths.into_iter().map(Model::read).collect()
}

fn assemble(json: &[u8], data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes()[..], json, data].concat()
}

/// What happened to a file; only counted, so that a test can tell that it reached the code it is for.
#[derive(Default)]
struct Outcome {
    parsed: usize,
    recovered: usize,
}

impl Outcome {
    /// Does everything that can be done with a file.
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

#[test]
fn truncations() {
    let mut random = Random(1);
    for model in models() {
        let whole = assemble(&model.json, &model.data);
        let header = 8 + model.json.len();
        let ends = [
            0,
            1,
            7,
            8,
            9,
            header - 1,
            header,
            header + 1,
            whole.len() - 1,
        ];
        for end in ends
            .into_iter()
            .chain((0..20).map(|_| pick(&mut random, whole.len())))
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

/// Any byte of the header, its length included, becomes another, up to three at once.
#[test]
fn header_bytes() {
    const LIKELY: &[u8] = b"0123456789[]{},:\"_.FIUB \\\x00\x80\xff";
    let (mut random, mut outcome) = (Random(2), Outcome::default());
    for model in models() {
        for _ in 0..60 {
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
        outcome.parsed > 500 && outcome.recovered > 50,
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

/// One field of one tensor's entry becomes something else; other entries do not follow.
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
        2 => entry["dtype"] = json!(common::DTYPES[pick(random, common::DTYPES.len())].0),
        3 => entry["shape"] = json!([]),
        _ => {
            entry["shape"].as_array_mut().unwrap().reverse();
        }
    }
}

#[test]
fn header_fields() {
    let (mut random, mut outcome) = (Random(3), Outcome::default());
    for model in models() {
        for _ in 0..60 {
            let mut header = model.header();
            (0..1 + pick(&mut random, 2)).for_each(|_| edit(&mut header, &mut random));
            outcome.try_bytes(
                assemble(&serde_json::to_vec(&header).unwrap(), &model.data),
                target(&mut random),
            );
        }
    }
    assert!(outcome.parsed > 200, "{}", outcome.parsed);
}

/// One tensor of a header that stays valid.
struct Entry {
    name: String,
    dtype: &'static str,
    bits: usize,
    shape: Vec<usize>,
}

impl Entry {
    /// Bytes, where the container allows the shape at all.
    fn bytes(&self) -> Option<usize> {
        let bits = self
            .shape
            .iter()
            .try_fold(1usize, |n, &d| n.checked_mul(d))?
            .checked_mul(self.bits)?;
        (bits.is_multiple_of(8) && bits < 1 << 20).then_some(bits / 8)
    }

    /// Makes this tensor another one.
    fn change(&mut self, random: &mut Random) {
        let number = NUMBERS[pick(random, NUMBERS.len())] as usize;
        match pick(random, 9) {
            0 => (self.dtype, self.bits) = common::DTYPES[pick(random, common::DTYPES.len())],
            1 | 2 => {
                let base = self
                    .name
                    .split(".weight")
                    .next()
                    .unwrap()
                    .rsplit_once('.')
                    .map_or("X", |(b, _)| b);
                let base = if self.name.contains(".weight") {
                    self.name.split(".weight").next().unwrap()
                } else {
                    base
                };
                self.name = format!("{base}.{}", NAMES[pick(random, NAMES.len())]);
            }
            3 if !self.shape.is_empty() => {
                let at = pick(random, self.shape.len());
                self.shape[at] = number;
            }
            4 => self.shape.insert(pick(random, self.shape.len() + 1), 1),
            5 => self.shape = vec![0, number],
            6 => self.shape = vec![number, 0],
            7 => self.shape = vec![self.shape.iter().fold(1, |n, &d| n.saturating_mul(d))],
            _ => {
                let at = pick(random, self.shape.len() + 1);
                self.shape
                    .get_mut(at)
                    .into_iter()
                    .for_each(|d| *d = d.saturating_add(1));
            }
        }
    }
}

/// Tensors become others in files that stay valid, so that the schemes see them: renamed, retyped, resized,
/// left out, emptied.
#[test]
fn valid_headers() {
    let (mut random, mut outcome) = (Random(4), Outcome::default());
    for model in models() {
        let header = model.header();
        for _ in 0..300 {
            let mut entries: Vec<Entry> = header
                .iter()
                .filter(|(name, _)| *name != "__metadata__")
                .map(read)
                .collect();
            for _ in 0..1 + pick(&mut random, 3) {
                match (pick(&mut random, 8), entries.len()) {
                    (0, 2..) => drop(entries.remove(pick(&mut random, entries.len()))),
                    (_, n) => entries[pick(&mut random, n)].change(&mut random),
                }
            }
            let (mut header, mut end) = (Map::new(), 0);
            for e in entries.iter().filter(|e| e.bytes().is_some()) {
                let start = end;
                end += if header.contains_key(&e.name) {
                    0
                } else {
                    e.bytes().unwrap()
                };
                let record =
                    json!({"dtype": e.dtype, "shape": e.shape, "data_offsets": [start, end]});
                header.entry(&e.name).or_insert(record);
            }
            let data = model
                .data
                .iter()
                .copied()
                .cycle()
                .take(end)
                .collect::<Vec<_>>();
            outcome.try_bytes(
                assemble(&serde_json::to_vec(&header).unwrap(), &data),
                target(&mut random),
            );
        }
    }
    assert!(
        outcome.parsed > 10_000 && outcome.recovered > 1000,
        "{} {}",
        outcome.parsed,
        outcome.recovered
    );
}

fn read((name, entry): (&String, &Value)) -> Entry {
    let (dtype, bits) = *common::DTYPES
        .iter()
        .find(|(d, _)| entry["dtype"] == *d)
        .unwrap();
    let shape = entry["shape"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d.as_u64().unwrap() as usize)
        .collect();
    Entry {
        name: name.clone(),
        dtype,
        bits,
        shape,
    }
}

/// A copy of the configs beside `model`, in a directory of its own.
fn place(model: &Model) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    for beside in configs(model) {
        std::fs::copy(&beside, place.path().join(beside.file_name().unwrap())).unwrap();
    }
    place
}

fn configs(model: &Model) -> Vec<PathBuf> {
    let mut all: Vec<_> = std::fs::read_dir(model.path.parent().unwrap())
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    all.retain(|path| path.extension().is_some_and(|e| e == "json"));
    all.sort();
    all
}

/// Data of the small tensors that say how others are decoded, with the configs beside the file.
#[test]
fn companions() {
    let (mut random, mut outcome) = (Random(5), Outcome::default());
    for model in models() {
        let header = model.header();
        let small = [
            "quant_state",
            "g_idx",
            "qzeros",
            "quant_map",
            "absmax",
            "weight_format",
            "scale",
        ];
        let chosen = header
            .iter()
            .filter(|(name, _)| small.iter().any(|part| name.contains(part)));
        let ranges: Vec<_> = chosen
            .map(|(_, t)| [0, 1].map(|i| t["data_offsets"][i].as_u64().unwrap() as usize))
            .collect();
        let place = place(&model);
        let file = place.path().join("model.safetensors");
        for _ in 0..12 {
            let mut data = model.data.clone();
            for &[start, end] in ranges.iter().filter(|[start, end]| start < end) {
                for _ in 0..pick(&mut random, 4) {
                    let at = start + pick(&mut random, end - start);
                    data[at] = *[0, 0xff, 0x80, b'0', b'9', b'-', b']', data[at] ^ 1]
                        .get(pick(&mut random, 8))
                        .unwrap();
                }
            }
            std::fs::write(&file, assemble(&model.json, &data)).unwrap();
            outcome.try_model(&anamnesis::parse(&file).unwrap(), target(&mut random));
        }
    }
    assert!(
        outcome.recovered > 200 && outcome.recovered < outcome.parsed,
        "{}",
        outcome.recovered
    );
}

/// Values in the configs become others, most of them senseless.
#[test]
fn config_values() {
    const VALUES: &str = "0;1;-1;3;8;16;64;4.0;1e400;9223372036854775807;18446744073709551615;-9223372036854775808;\
        null;true;false;\"gptq\";\"awq\";\"gptq_v2\";\"fp8\";\"\";[];[0,0];[1,18446744073709551615];{};{\"a\":1};x";
    let (mut random, mut outcome) = (Random(6), Outcome::default());
    for model in models() {
        let place = place(&model);
        std::fs::copy(&model.path, place.path().join("model.safetensors")).unwrap();
        for path in configs(&model) {
            let text = std::fs::read_to_string(&path).unwrap();
            let values: Vec<usize> = text.match_indices(": ").map(|(at, _)| at + 2).collect();
            for _ in 0..if values.is_empty() { 0 } else { 15 } {
                let from = values[pick(&mut random, values.len())];
                let to = from + text[from..].find([',', '\n', '}']).unwrap();
                let new = VALUES.split(';').nth(pick(&mut random, 26)).unwrap();
                let changed = [&text[..from], new, &text[to..]].concat();
                std::fs::write(place.path().join(path.file_name().unwrap()), changed).unwrap();
                if let Ok(model) = anamnesis::parse(place.path().join("model.safetensors")) {
                    outcome.try_model(&model, target(&mut random));
                }
            }
        }
    }
    assert!(
        outcome.recovered > 20 && outcome.recovered < outcome.parsed,
        "{} {}",
        outcome.recovered,
        outcome.parsed
    );
}
