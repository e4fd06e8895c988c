//! Edits `config.json` as text: members are removed, changed or added, and all other bytes stay as
//! they are. A parse and a new serialization would lose the order of keys, the spelling of floats,
//! and Python's `NaN`.

use std::ops::Range;

use serde_json::Value;

use super::PLACES;
use super::json_object::{JsonMember, JsonObject};
use crate::sort::sort_by_key;

/// The files that are edited: those that describe a model beside its quantization.
pub(crate) const EDITED_FILES: &[&str] = &["config.json", "params.json"];

/// DeepSeek-V4's key for how its experts are stored.
const EXPERT_DTYPE: &str = "expert_dtype";

/// Keys of texts that say how weights are stored, beside the quantization config. `quantize` is
/// what MindIE reads of ModelSlim's models.
const STORED_DTYPES: &[&str] = &[EXPERT_DTYPE, "quantize"];

/// A type of models whose layers are rotated, and that of the same models with plain layers.
const ROTATED_TYPE: [&str; 2] = ["\"prism_hadamard_qwen35\"", "\"qwen3_5\""];

/// Keys of the weights' dtype.
const DTYPE: &[&str] = &["torch_dtype", "dtype"];

/// Deepest level of nested objects that is edited. A multimodal model nests its language model's
/// config.
const MAX_DEPTH: usize = 4;

/// How the weights of an output are stored.
#[derive(Clone, Copy, Default)]
pub(crate) struct StoredDtypes<'a> {
    /// Dtype of the weights that are not quantized; `None` leaves the config's.
    pub dtype: Option<&'a str>,
    /// That of experts, for a config that states it; `None` removes it.
    pub experts: Option<&'a str>,
}

/// Removes from `json`, and from the configs nested in it, what says how weights are quantized, and
/// names a type of plain layers. With a dtype, also replaces the weights' dtype, or adds it as
/// `torch_dtype` where the outer object has none. `None` if `json` is no object.
pub(crate) fn dequantized(json: &str, stored: StoredDtypes<'_>) -> Option<String> {
    // Whatever stands before the first brace, such as a byte order mark, stays as it is.
    let object = JsonObject::parse(json, json.find('{')?)?;
    let mut edits = Vec::new();
    collect(json, &object, stored, 0, &mut edits);
    let named = object
        .members
        .iter()
        .any(|m| DTYPE.contains(&&json[m.key.clone()]));
    if let Some(dtype) = stored.dtype.filter(|_| !named) {
        // In front of the first key, or of the closing brace of an empty object.
        let before = object
            .members
            .first()
            .map_or(object.span.end - 1, |m| m.key.start - 1);
        // Removed members take their commas along, so one is needed only if a member stays.
        let comma = if object.members.iter().all(|m| is_removed(json, m, stored)) {
            ""
        } else {
            ", "
        };
        edits.insert(0, (before..before, format!("\"torch_dtype\": \"{dtype}\"{comma}")));
    }
    // Removals come before the edits of nested objects in the list, whatever their order in the
    // text.
    sort_by_key(&mut edits, |(range, _)| range.start);
    let (mut out, mut at) = (String::with_capacity(json.len()), 0);
    for (range, text) in edits {
        // `get` instead of an index: ranges that overlapped would end the edit with `None` rather
        // than a panic.
        out.push_str(json.get(at..range.start)?);
        out.push_str(&text);
        at = range.end;
    }
    out.push_str(&json[at..]);
    Some(out)
}

/// Edits `json` as [`dequantized`] does, and then appends `entries` to its members.
pub(crate) fn requantized(
    json: &str,
    stored: StoredDtypes<'_>,
    entries: &[(&str, &serde_json::Value)],
) -> Option<String> {
    appended(dequantized(json, stored)?, entries)
}

/// Appends `entries` to the members of `json`. `None` if it is no object.
fn appended(json: String, entries: &[(&str, &Value)]) -> Option<String> {
    let mut out = json;
    let object = JsonObject::parse(&out, out.find('{')?)?;
    let (at, mut comma) = match object.members.last() {
        Some(last) => (last.value.end, ","),
        None => (object.span.start + 1, ""),
    };
    let mut text = String::new();
    for (key, value) in entries {
        // Two blanks, as `json.dump(indent=2)` of transformers nests.
        let value = serde_json::to_string_pretty(value)
            .ok()?
            .replace('\n', "\n  ");
        text.push_str(&format!("{comma}\n  \"{key}\": {value}"));
        comma = ",";
    }
    if object.members.is_empty() {
        text.push('\n');
    }
    out.insert_str(at, &text);
    Some(out)
}

/// Gives the members `key` of `json`, and of the configs nested in it, the value `new`, where they
/// have the value `old` or that is `None`. If no object has one, the outer object gets it. `None`
/// if `json` is no object.
pub(crate) fn replaced(json: &str, key: &str, old: Option<&Value>, new: &Value) -> Option<String> {
    let outer = JsonObject::parse(json, json.find('{')?)?;
    let mut places = vec![];
    find_members(json, &outer, key, 0, &mut places);
    let has_any = !places.is_empty();
    let is_old = |place: &Range<usize>| {
        let value: Option<Value> = serde_json::from_str(json.get(place.clone())?).ok();
        Some(old.is_none_or(|old| value.as_ref() == Some(old)))
    };
    places.retain(|place| is_old(place) == Some(true));
    sort_by_key(&mut places, |place| place.start);
    let mut out = json.to_owned();
    for place in places.into_iter().rev() {
        out.replace_range(place, &new.to_string());
    }
    match has_any {
        true => Some(out),
        false => appended(out, &[(key, new)]),
    }
}

/// Appends the values of the members `key` of `object`, and of the objects nested in it, to
/// `places`.
fn find_members(
    json: &str,
    object: &JsonObject,
    key: &str,
    depth: usize,
    places: &mut Vec<Range<usize>>,
) {
    for m in &object.members {
        if json.get(m.key.clone()) == Some(key) {
            places.push(m.value.clone());
        } else if json
            .get(m.value.clone())
            .is_some_and(|v| v.starts_with('{'))
            && depth < MAX_DEPTH
            && let Some(inner) = JsonObject::parse(json, m.value.start)
        {
            find_members(json, &inner, key, depth + 1, places);
        }
    }
}

/// Whether a member describes the quantization and is removed.
fn is_removed(json: &str, m: &JsonMember, stored: StoredDtypes<'_>) -> bool {
    let (key, value) = (&json[m.key.clone()], &json[m.value.clone()]);
    if STORED_DTYPES.contains(&key) && value.starts_with('"') {
        return key != EXPERT_DTYPE || stored.experts.is_none();
    }
    let mut places = PLACES
        .iter()
        .filter(|(file, _)| EDITED_FILES.contains(file));
    let is_config = places.any(|(_, path)| path.last() == Some(&key));
    // PrismML's list of rotated layers.
    let is_pack = || key == "modules" && value.starts_with('[') && value.contains("\"block\"");
    // A model may have `"quantization": "…"` as an ordinary setting; producers write an object.
    is_config && !value.starts_with('"') || is_pack()
}

/// The keys of the object at `path` in `json`, in the order of the text. `None` if there is no
/// object.
pub(super) fn keys(json: &str, path: &[&str]) -> Option<Vec<String>> {
    let mut object = JsonObject::parse(json, json.find('{')?)?;
    for key in path {
        let member = object
            .members
            .iter()
            // Of duplicate keys the last counts, as in Python and `serde_json`.
            .rev()
            .find(|m| json.get(m.key.clone()) == Some(*key))?;
        object = JsonObject::parse(json, member.value.start)?;
    }
    // With its quotes the key is a JSON string, whose escapes `serde_json` resolves as it did for
    // the map.
    let unquoted =
        |m: &JsonMember| serde_json::from_str(json.get(m.key.start - 1..m.key.end + 1)?).ok();
    object.members.iter().map(unquoted).collect()
}

/// Appends the edits of `object` and of the objects nested in it to `edits`: ranges of `json` with
/// their replacements. Ranges do not overlap.
fn collect(
    json: &str,
    object: &JsonObject,
    stored: StoredDtypes<'_>,
    depth: usize,
    edits: &mut Vec<(Range<usize>, String)>,
) {
    let first_edit = edits.len();
    let kept: Vec<&JsonMember> = object
        .members
        .iter()
        .filter(|m| !is_removed(json, m, stored))
        .collect();
    for (i, m) in object
        .members
        .iter()
        .enumerate()
        .filter(|(_, m)| is_removed(json, m, stored))
    {
        // A removed member takes the comma and the whitespace up to the next member with it; the
        // last one takes the comma before it instead.
        let next = object.members.get(i + 1).map(|next| next.key.start - 1);
        let last_kept = kept.last().filter(|last| last.key.start < m.key.start);
        let range = match (next, last_kept) {
            (Some(next), _) => m.key.start - 1..next,
            (None, Some(last)) => last.value.end..m.value.end,
            (None, None) => m.key.start - 1..m.value.end,
        };
        // Ranges of adjacent removed members touch, and the last one may reach back over those
        // before it; they become one edit. Edits of other objects, before `first_edit`, are left
        // alone.
        match edits[first_edit..]
            .last_mut()
            .filter(|(other, _)| other.end >= range.start)
        {
            Some((other, _)) => *other = other.start.min(range.start)..range.end.max(other.end),
            None => edits.push((range, String::new())),
        }
    }
    for m in kept {
        let (key, value) = (&json[m.key.clone()], &json[m.value.clone()]);
        let is_text = value.starts_with('"');
        // A `dtype` that is an object or a list is about something else than the weights.
        let is_dtype = DTYPE.contains(&key) && (is_text || value == "null");
        if is_dtype || key == EXPERT_DTYPE && is_text {
            let dtype = if is_dtype {
                stored.dtype
            } else {
                stored.experts
            };
            edits.extend(dtype.map(|dtype| (m.value.clone(), format!("\"{dtype}\""))));
        } else if key == "model_type" && value == ROTATED_TYPE[0] {
            edits.push((m.value.clone(), ROTATED_TYPE[1].to_owned()));
        } else if value.starts_with('{')
            && depth < MAX_DEPTH
            && let Some(inner) = JsonObject::parse(json, m.value.start)
        {
            collect(json, &inner, stored, depth + 1, edits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{StoredDtypes, dequantized, keys, replaced, requantized};

    const UNCHANGED: StoredDtypes<'_> = StoredDtypes { dtype: None, experts: None };
    const BF16: StoredDtypes<'_> = StoredDtypes { dtype: Some("bfloat16"), experts: None };

    fn same(json: &str, expected: &str) {
        let edited = dequantized(json, BF16).unwrap();
        assert_eq!(edited, expected);
        let plain: serde_json::Value = serde_json::from_str(&edited.replace("NaN", "0")).unwrap();
        assert!(plain.is_object());
    }

    #[test]
    fn members_are_replaced() {
        let (old, new) = (128.into(), 132.into());
        for (json, expected) in [
            (r#"{"vocab_size": 128, "a": 128}"#, r#"{"vocab_size": 132, "a": 128}"#),
            (r#"{"vocab_size": 64}"#, r#"{"vocab_size": 64}"#),
            (
                r#"{"text_config": {"vocab_size": 128}, "vision": {"vocab_size": 5}}"#,
                r#"{"text_config": {"vocab_size": 132}, "vision": {"vocab_size": 5}}"#,
            ),
            ("{\"a\": 1e-05}", "{\"a\": 1e-05,\n  \"vocab_size\": 132}"),
        ] {
            let out = replaced(json, "vocab_size", Some(&old), &new).unwrap();
            assert_eq!(out, expected, "{json}");
        }
        let tied = replaced(r#"{"tie": true, "b": {"tie": null}}"#, "tie", None, &false.into());
        assert_eq!(tied.unwrap(), r#"{"tie": false, "b": {"tie": false}}"#);
        assert!(replaced("[]", "a", None, &new).is_none());
    }

    #[test]
    fn quantization_goes_and_the_rest_stays() {
        same(
            "{\n  \"a\": 1e-05,\n  \"quantization_config\": {\"b\": [1, {}]},\n  \"torch_dtype\": \"float16\"\n}\n",
            "{\n  \"a\": 1e-05,\n  \"torch_dtype\": \"bfloat16\"\n}\n",
        );
        same(
            "{\"dtype\": \"float16\", \"quantization\": {\"q\": 1}, \"quantization_config\": {}}",
            "{\"dtype\": \"bfloat16\"}",
        );
        same(
            "{\"dtype\":null, \"text_config\": {\"quantization_config\": {}, \"x\": NaN, \"dtype\": \"float32\"}}",
            "{\"dtype\":\"bfloat16\", \"text_config\": {\"x\": NaN, \"dtype\": \"bfloat16\"}}",
        );
        same("{\"quantization_config\": {}}", "{\"torch_dtype\": \"bfloat16\"}");
        same("{}", "{\"torch_dtype\": \"bfloat16\"}");
        same(
            "{\"a\": \"}\\\"\", \"b\": [ ]}",
            "{\"torch_dtype\": \"bfloat16\", \"a\": \"}\\\"\", \"b\": [ ]}",
        );
        same(
            "{\"dtype\": \"x\", \"text_config\": {\"quantization\": {}, \"x\": 1}, \"quantization_config\": {}}",
            "{\"dtype\": \"bfloat16\", \"text_config\": {\"x\": 1}}",
        );
        same(
            "{\"model_type\": \"prism_hadamard_qwen35\", \"modules\": [{\"path\": \"x\", \"block\": 0}], \"dtype\": \"x\"}",
            "{\"model_type\": \"qwen3_5\", \"dtype\": \"bfloat16\"}",
        );
        same(
            "{\"modules\": [\"x\"], \"dtype\": \"x\"}",
            "{\"modules\": [\"x\"], \"dtype\": \"bfloat16\"}",
        );
        assert_eq!(
            dequantized("{\"quantization\": {}, \"dtype\": \"x\"}", UNCHANGED).unwrap(),
            "{\"dtype\": \"x\"}"
        );
        assert_eq!(
            keys(r#"{"a": {"z\\.": [{}], "b": 1}}"#, &["a"]),
            Some(vec!["z\\.".to_owned(), "b".to_owned()])
        );
        assert_eq!(keys(r#"{"a": ["b"]}"#, &["a"]), None);
        let config = serde_json::json!({"bits": 4});
        let added = requantized(
            r#"{"a": 1, "quantization_config": {"bits": 8}}"#,
            UNCHANGED,
            &[("quantization_config", &config)],
        );
        assert_eq!(
            added.unwrap(),
            "{\"a\": 1,\n  \"quantization_config\": {\n    \"bits\": 4\n  }}"
        );
        assert_eq!(
            requantized("{}", UNCHANGED, &[("x", &1.into()), ("y", &2.into())]).unwrap(),
            "{\n  \"x\": 1,\n  \"y\": 2\n}"
        );
        assert!(dequantized("[]", BF16).is_none());
        assert!(dequantized("{\"a\": ", BF16).is_none());
    }

    #[test]
    fn nothing_says_how_weights_were_stored() {
        let stated = r#"{"expert_dtype": "fp4", "quantize": "w8a8", "text_config": {"expert_dtype": "fp4"}}"#;
        assert_eq!(dequantized(stated, UNCHANGED).unwrap(), r#"{"text_config": {}}"#);
        let fp8 = StoredDtypes { dtype: None, experts: Some("fp8") };
        assert_eq!(
            dequantized(stated, fp8).unwrap(),
            r#"{"expert_dtype": "fp8", "text_config": {"expert_dtype": "fp8"}}"#
        );
        // Nothing is added to a config that does not state it.
        assert_eq!(dequantized(r#"{"a": 1}"#, fp8).unwrap(), r#"{"a": 1}"#);
    }
}
