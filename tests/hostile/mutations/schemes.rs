//! Files that stay valid, while their tensors and configs change: what the schemes see.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::{Model, NAMES, NUMBERS, Outcome, assemble, models, pick, share, target};
use crate::common::{Random, effort};

/// One tensor of a header that stays valid.
struct Entry {
    name: String,
    dtype: &'static str,
    bits: usize,
    shape: Vec<usize>,
}

impl Entry {
    /// The tensor's size in bytes, if the container allows the shape.
    fn bytes(&self) -> Option<usize> {
        let bits = self
            .shape
            .iter()
            .try_fold(1usize, |n, &d| n.checked_mul(d))?
            .checked_mul(self.bits)?;
        (bits.is_multiple_of(8) && bits < 1 << 20).then_some(bits / 8)
    }

    /// Changes the tensor's dtype, shape or name.
    fn change(&mut self, random: &mut Random) {
        let number = NUMBERS[pick(random, NUMBERS.len())] as usize;
        match pick(random, 9) {
            0 => {
                (self.dtype, self.bits) =
                    crate::common::DTYPES[pick(random, crate::common::DTYPES.len())];
            }
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

/// Tensors are renamed, retyped, resized, left out or emptied in files that stay valid, so that the
/// schemes see them.
#[test]
fn valid_headers() {
    let (mut random, mut outcome) = (Random(4), Outcome::default());
    let tries = effort([4, 48, 120]);
    for model in models(3) {
        let header = model.header();
        for _ in 0..tries {
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
            let mut data = model.data.repeat(end.div_ceil(model.data.len().max(1)));
            data.truncate(end);
            outcome.try_bytes(
                assemble(&serde_json::to_vec(&header).unwrap(), &data),
                target(&mut random),
            );
        }
    }
    assert!(
        outcome.parsed > 83 * tries / share() && outcome.recovered > 8 * tries / share(),
        "{} {}",
        outcome.parsed,
        outcome.recovered
    );
}

fn read((name, entry): (&String, &Value)) -> Entry {
    let (dtype, bits) = crate::common::find_dtype(entry["dtype"].as_str().unwrap()).unwrap();
    let shape = entry["shape"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d.as_u64().unwrap() as usize)
        .collect();
    Entry { name: name.clone(), dtype, bits, shape }
}

/// A new directory with copies of the configs beside `model`.
fn place(model: &Model) -> tempfile::TempDir {
    let place = crate::common::tempdir().unwrap();
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

/// Changes the data of small companions, with the configs beside the file.
#[test]
fn companions() {
    let (mut random, mut outcome) = (Random(5), Outcome::default());
    let tries = effort([1, 6, 12]);
    for model in models(4) {
        let header = model.header();
        let small =
            ["quant_state", "g_idx", "qzeros", "quant_map", "absmax", "weight_format", "scale"];
        let chosen = header
            .iter()
            .filter(|(name, _)| small.iter().any(|part| name.contains(part)));
        let ranges: Vec<_> = chosen
            .map(|(_, t)| [0, 1].map(|i| t["data_offsets"][i].as_u64().unwrap() as usize))
            .collect();
        let place = place(&model);
        let file = place.path().join("model.safetensors");
        for _ in 0..tries {
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
        outcome.recovered > 16 * tries / share() && outcome.recovered < outcome.parsed,
        "{}",
        outcome.recovered
    );
}

/// Changes values in the configs, mostly to invalid ones.
#[test]
fn config_values() {
    const VALUES: &str = "0;1;-1;3;8;16;64;4.0;1e400;9223372036854775807;18446744073709551615;-9223372036854775808;\
        null;true;false;\"gptq\";\"awq\";\"gptq_v2\";\"fp8\";\"\";[];[0,0];[1,18446744073709551615];{};{\"a\":1};x";
    let (mut random, mut outcome) = (Random(6), Outcome::default());
    let tries = effort([1, 6, 15]);
    for model in models(5) {
        let place = place(&model);
        std::fs::copy(&model.path, place.path().join("model.safetensors")).unwrap();
        for path in configs(&model) {
            let text = std::fs::read_to_string(&path).unwrap();
            let values: Vec<usize> = text.match_indices(": ").map(|(at, _)| at + 2).collect();
            for _ in 0..if values.is_empty() { 0 } else { tries } {
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
        outcome.recovered > tries / share() && outcome.recovered < outcome.parsed,
        "{} {}",
        outcome.recovered,
        outcome.parsed
    );
}
