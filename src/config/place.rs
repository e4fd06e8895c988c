//! [`ConfigPlace`]: one config as a file has it, and the types of values that producers write.

use serde_json::{Map, Value};

use super::edit;

/// Keys of objects whose entries have an order: patterns, of which the first that matches counts,
/// and groups, of which the last counts. `serde_json` sorts keys, so the order is read from the
/// text.
const ORDERED: &[&str] = &[
    "config_groups",
    "dynamic",
    "extra_config",
    "module_quant_configs",
    "modules_dtype_dict",
    "modules_quant_config",
];

/// One quantization config and where it was found.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ConfigPlace {
    /// File and path of keys, for messages.
    pub(super) name: String,
    pub(super) values: Map<String, Value>,
    /// The keys of each object in [`ORDERED`], in the order of the file.
    pub(super) order: Vec<(&'static str, Vec<String>)>,
}

impl ConfigPlace {
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The entries of the object under `key`; in the order of the file if `key` is one of
    /// [`ORDERED`].
    pub(super) fn entries(&self, key: &str) -> Vec<(&str, &Value)> {
        let Some(map) = self.get(key).and_then(Value::as_object) else {
            return vec![];
        };
        let entry = |(key, value)| (String::as_str(key), value);
        match self.order.iter().find(|(ordered, _)| *ordered == key) {
            // Keys from the text look up the values from the map. A key that occurs twice is
            // visited twice, with the same value.
            Some((_, keys)) => keys
                .iter()
                .filter_map(|key| map.get_key_value(key))
                .map(entry)
                .collect(),
            None => map.iter().map(entry).collect(),
        }
    }

    pub(super) fn int(&self, keys: &[&str]) -> Option<i64> {
        // The first key that exists decides, even if its value is no integer: an alias must not
        // hide a malformed number.
        integer(keys.iter().find_map(|key| self.get(key))?)
    }

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        flag(self.get(key)?)
    }

    pub(super) fn text(&self, keys: &[&str]) -> Option<&str> {
        keys.iter().find_map(|key| self.get(key)?.as_str())
    }
}

/// Takes away every place but MLX's. Its programs write the same settings under two keys, and read
/// no other place. What they have kept there is of the model that was converted: nested configs,
/// and files that mlx-vlm copies.
pub(super) fn leave_only_mlx(places: &mut Vec<ConfigPlace>) {
    const MLX: [&str; 2] = ["config.json: quantization", "config.json: quantization_config"];
    let of = |name| places.iter().find(|place| place.name == name);
    let is_mlx = |place: &&ConfigPlace| {
        let has = |key: &&str| place.int(&[*key]).is_some();
        ["bits", "group_size"].iter().all(has)
    };
    let [first, second] = MLX.map(|name| of(name).filter(is_mlx));
    if first.is_some_and(|first| second.is_some_and(|second| first.values == second.values)) {
        places.retain(|place| MLX.contains(&place.name.as_str()));
    }
}

/// An integer. Metadata of safetensors files has it as text.
pub(super) fn integer(value: &Value) -> Option<i64> {
    value
        .as_i64()
        .or_else(|| value.as_str()?.trim().parse().ok())
}

/// A boolean. Metadata of safetensors files has it as Python prints it.
pub(super) fn flag(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) if text == "True" => Some(true),
        Value::String(text) if text == "False" => Some(false),
        _ => None,
    }
}

/// For each object of [`ORDERED`] in `values`, its keys in the order of the file. `text` is the
/// file, and `path` leads to `values` in it.
pub(super) fn order(
    text: &[u8],
    path: &[&str],
    values: &Map<String, Value>,
) -> Vec<(&'static str, Vec<String>)> {
    // Without an order the entries come sorted, as `serde_json` keeps them. The map itself was
    // parsed, so this happens only for text that is no UTF-8.
    let Ok(text) = std::str::from_utf8(text) else {
        return vec![];
    };
    let in_order = |&key: &&'static str| {
        values.get(key).filter(|value| value.is_object())?;
        let path: Vec<&str> = path.iter().copied().chain([key]).collect();
        Some((key, edit::keys(text, &path)?))
    };
    ORDERED.iter().filter_map(in_order).collect()
}

/// `[rows, columns]` from an array of two positive integers.
pub(super) fn pair(value: &Value) -> Option<[usize; 2]> {
    // A zero would divide the shapes later on.
    let size = |v: &Value| usize::try_from(v.as_u64()?).ok().filter(|&n| n > 0);
    match value.as_array()?.as_slice() {
        [rows, cols] => Some([size(rows)?, size(cols)?]),
        _ => None,
    }
}
