//! Indexes of shards beside a file. A shard that is parsed by itself may lack a part of a weight
//! that lies in another shard; the index says so.

use std::path::Path;

use serde_json::Value;

use super::QuantConfig;
use super::json::read_json;
use crate::Result;
use crate::limits::Budget;

/// End of the name of an index.
const ENDING: &str = ".index.json";

/// The index of transformers. A directory is read only where a file is; whether this one appears
/// later is watched even if it is not there.
const USUAL: &str = "model.safetensors.index.json";

/// Most indexes that are read beside a file: one for each of the formats and precisions in which a
/// directory has the model.
const MAX_INDEXES: usize = 16;

/// Whether a file of this name is an index of shards.
pub(super) fn is_index(name: &str) -> bool {
    name.ends_with(ENDING)
}

/// Names of the indexes in `dir`, sorted, and the usual one whether it is there or not.
pub(super) fn list_indexes(dir: &Path) -> Vec<String> {
    let mut names = super::module::list_ending(dir, ENDING);
    names.truncate(MAX_INDEXES);
    if !names.iter().any(|name| name == USUAL) {
        names.push(USUAL.to_owned());
    }
    names
}

impl QuantConfig {
    /// The names of all tensors in the indexes beside the file that list it; in all indexes beside
    /// it if none does, for the file may have been renamed. Empty for a directory and without an
    /// index.
    ///
    /// # Errors
    /// Those of reading an index, at the first call.
    pub(crate) fn indexed(&self) -> Result<&[String]> {
        if let Some(indexed) = self.indexed.get() {
            return Ok(indexed);
        }
        let names = self.read_indexes()?;
        Ok(self.indexed.get_or_init(|| names))
    }

    fn read_indexes(&self) -> Result<Vec<String>> {
        let Some(file) = &self.file else {
            return Ok(Vec::new());
        };
        let (mut listing, mut others) = (Vec::new(), Vec::new());
        let budget = Budget::new(&self.limits);
        for known in &self.companions {
            let name = known.path.file_name().unwrap_or_default();
            if !is_index(&name.to_string_lossy()) {
                continue;
            }
            let Some((mut index, _)) = read_json(&known.path, &budget)? else {
                // Read only now: an index that was there, and is gone, is not one that lists
                // nothing.
                known.require_absent()?;
                continue;
            };
            if let Some(Value::Object(map)) = index.value.get_mut("weight_map").map(Value::take) {
                let is_listed = map.values().any(|shard| shard == file.as_str());
                let names = if is_listed { &mut listing } else { &mut others };
                names.extend(map.into_iter().map(|(name, _)| name));
            }
        }
        Ok(if listing.is_empty() { others } else { listing })
    }
}
