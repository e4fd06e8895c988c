//! A model in memory that can be changed and written again.

use std::collections::BTreeMap;
use std::path::Path;

use anamnesis::TargetDtype;
use safetensors::SafeTensors;
use serde_json::Value;

use crate::common::{Raw, file, find_dtype};

/// Tensors of all shards of a model, its metadata and the configs beside it.
#[derive(Clone)]
pub struct Model {
    pub tensors: Vec<Raw>,
    pub metadata: Vec<(String, String)>,
    pub configs: BTreeMap<String, Value>,
}

/// A decoded tensor: dtype, shape and bytes.
pub type Decoded = BTreeMap<String, (String, Vec<usize>, Vec<u8>)>;

pub enum Outcome {
    Refused,
    Accepted(Decoded),
}

impl Outcome {
    pub fn accepted(self) -> Option<Decoded> {
        match self {
            Self::Refused => None,
            Self::Accepted(tensors) => Some(tensors),
        }
    }
}

/// Models that are larger take too long for thousands of edits.
const MOST_BYTES: u64 = 100_000;

impl Model {
    /// The model in a directory; shards become one file. `None` if the model is large or not in
    /// safetensors files.
    pub fn read(dir: &Path) -> Option<Self> {
        let mut model =
            Self { tensors: Vec::new(), metadata: Vec::new(), configs: BTreeMap::new() };
        let mut paths: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        paths.sort();
        let mut bytes = 0;
        for path in &paths {
            let name = path.file_name()?.to_str()?.to_owned();
            match path.extension().and_then(|e| e.to_str()) {
                Some("json") if name.ends_with(".index.json") || name == "unsupported.json" => {}
                Some("json") => {
                    let text = std::fs::read_to_string(path).unwrap();
                    model
                        .configs
                        .insert(name, serde_json::from_str(&text).ok()?);
                }
                Some("safetensors") if !name.starts_with("expected") => {
                    bytes += path.metadata().unwrap().len();
                    model.add(&std::fs::read(path).unwrap());
                }
                _ => {}
            }
        }
        ((1..=MOST_BYTES).contains(&bytes)).then_some(model)
    }

    fn add(&mut self, bytes: &[u8]) {
        let (_, header) = SafeTensors::read_metadata(bytes).unwrap();
        let shard = SafeTensors::deserialize(bytes).unwrap();
        for (name, view) in shard.iter() {
            let dtype = view.dtype().to_string();
            let (dtype, _) = find_dtype(&dtype).unwrap();
            self.tensors.push(Raw {
                name: name.to_owned(),
                dtype,
                shape: view.shape().to_vec(),
                bytes: view.data().to_vec(),
            });
        }
        self.tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let metadata = header.metadata().clone().unwrap_or_default();
        self.metadata.extend(metadata);
    }

    fn write(&self, place: &Path) {
        let metadata: Vec<_> = self
            .metadata
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        std::fs::write(place.join("model.safetensors"), file(&self.tensors, &metadata)).unwrap();
        for (name, config) in &self.configs {
            std::fs::write(place.join(name), config.to_string()).unwrap();
        }
    }

    /// Writes the model to `place` and decodes it to F32.
    pub fn decode(&self, place: &Path) -> Outcome {
        self.write(place);
        let options = anamnesis::RememberOptions::new(TargetDtype::F32).with_threads(1);
        let decoded = anamnesis::parse(place).and_then(|m| m.remember_to_bytes(options));
        let Ok(bytes) = decoded else {
            return Outcome::Refused;
        };
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let decoded = tensors.iter().map(|(name, view)| {
            let record = (view.dtype().to_string(), view.shape().to_vec(), view.data().to_vec());
            (name.to_owned(), record)
        });
        Outcome::Accepted(decoded.collect())
    }

    /// The role of each tensor, as this crate names it.
    pub fn roles(&self, place: &Path) -> BTreeMap<String, String> {
        self.write(place);
        let model = anamnesis::parse(place).unwrap();
        model
            .tensors()
            .map(|t| (t.name().to_owned(), t.role().to_string()))
            .collect()
    }
}
