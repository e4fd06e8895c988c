//! Serialization of maps in the order of their keys, so that the same file always gives the same
//! JSON.

use std::collections::{BTreeMap, HashMap};

use serde::{Serialize, Serializer};

/// Serializes `map` sorted by key.
#[cfg(feature = "gguf")]
pub(super) fn sorted<V: Serialize, S: Serializer>(
    map: &HashMap<String, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(map.iter().collect::<BTreeMap<_, _>>())
}

/// Serializes the map, if there is one, sorted by key.
pub(super) fn sorted_if_any<V: Serialize, S: Serializer>(
    map: &Option<HashMap<String, V>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let map = map
        .as_ref()
        .map(|map| map.iter().collect::<BTreeMap<_, _>>());
    map.serialize(serializer)
}
