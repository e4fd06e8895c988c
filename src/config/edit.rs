//! JSON, edited as text: members are taken out or changed, and all else stays as it was written.

use std::ops::Range;

/// Keys that say how a model is quantized.
const QUANTIZATION: &[&str] = &["quantization_config", "compression_config", "quantization"];

/// Keys that say of which type the weights are.
const DTYPE: &[&str] = &["torch_dtype", "dtype"];

/// Models within models that are looked at.
const MAX_DEPTH: usize = 4;

/// `json` of a model that is not quantized, with weights of type `dtype` if they are of a new one, in it and in the
/// models that it is made of. `None` if it is no JSON object.
pub(crate) fn dequantized(json: &str, dtype: Option<&str>) -> Option<String> {
    let object = JsonObject::parse(json, json.find('{')?)?;
    let mut edits = Vec::new();
    collect(json, &object, dtype, 0, &mut edits);
    let named = object
        .members
        .iter()
        .any(|m| DTYPE.contains(&&json[m.key.clone()]));
    if let Some(dtype) = dtype.filter(|_| !named) {
        let before = object
            .members
            .first()
            .map_or(object.span.end - 1, |m| m.key.start - 1);
        let comma = if object.members.iter().all(|m| is_gone(json, m)) {
            ""
        } else {
            ", "
        };
        edits.insert(
            0,
            (
                before..before,
                format!("\"torch_dtype\": \"{dtype}\"{comma}"),
            ),
        );
    }
    edits.sort_by_key(|(range, _)| range.start);
    let (mut out, mut at) = (String::with_capacity(json.len()), 0);
    for (range, text) in edits {
        out.push_str(json.get(at..range.start)?);
        out.push_str(&text);
        at = range.end;
    }
    out.push_str(&json[at..]);
    Some(out)
}

/// [`dequantized`], and with `entries` behind its other members.
pub(crate) fn requantized(
    json: &str,
    dtype: Option<&str>,
    entries: &[(&str, &serde_json::Value)],
) -> Option<String> {
    let mut out = dequantized(json, dtype)?;
    let object = JsonObject::parse(&out, out.find('{')?)?;
    let (at, mut comma) = match object.members.last() {
        Some(last) => (last.value.end, ","),
        None => (object.span.start + 1, ""),
    };
    let mut text = String::new();
    for (key, value) in entries {
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

fn is_gone(json: &str, m: &JsonMember) -> bool {
    QUANTIZATION.contains(&&json[m.key.clone()]) && !json[m.value.clone()].starts_with('"')
}

/// The keys of the object at `path` in `json`, in the order of the text.
pub(super) fn keys(json: &str, path: &[&str]) -> Option<Vec<String>> {
    let mut object = JsonObject::parse(json, json.find('{')?)?;
    for key in path {
        let member = object
            .members
            .iter()
            .rev()
            .find(|m| json.get(m.key.clone()) == Some(*key))?;
        object = JsonObject::parse(json, member.value.start)?;
    }
    let unquoted =
        |m: &JsonMember| serde_json::from_str(json.get(m.key.start - 1..m.key.end + 1)?).ok();
    object.members.iter().map(unquoted).collect()
}

/// The edits of one object, and of those below it.
fn collect(
    json: &str,
    object: &JsonObject,
    dtype: Option<&str>,
    depth: usize,
    edits: &mut Vec<(Range<usize>, String)>,
) {
    let others = edits.len();
    let kept: Vec<&JsonMember> = object
        .members
        .iter()
        .filter(|m| !is_gone(json, m))
        .collect();
    for (i, m) in object
        .members
        .iter()
        .enumerate()
        .filter(|(_, m)| is_gone(json, m))
    {
        // With the comma behind it, and what comes up to the next member; or with the one before, if it is the last.
        let next = object.members.get(i + 1).map(|next| next.key.start - 1);
        let last_kept = kept.last().filter(|last| last.key.start < m.key.start);
        let range = match (next, last_kept) {
            (Some(next), _) => m.key.start - 1..next,
            (None, Some(last)) => last.value.end..m.value.end,
            (None, None) => m.key.start - 1..m.value.end,
        };
        // Members that go one after another up to the end are one edit; those of other objects are not among them.
        match edits[others..]
            .last_mut()
            .filter(|(other, _)| other.end >= range.start)
        {
            Some((other, _)) => *other = other.start.min(range.start)..range.end.max(other.end),
            None => edits.push((range, String::new())),
        }
    }
    for m in kept {
        let (key, value) = (&json[m.key.clone()], &json[m.value.clone()]);
        if DTYPE.contains(&key) && (value.starts_with('"') || value == "null") {
            edits.extend(dtype.map(|dtype| (m.value.clone(), format!("\"{dtype}\""))));
        } else if value.starts_with('{')
            && depth < MAX_DEPTH
            && let Some(inner) = JsonObject::parse(json, m.value.start)
        {
            collect(json, &inner, dtype, depth + 1, edits);
        }
    }
}

/// Where the parts of an object lie.
struct JsonObject {
    members: Vec<JsonMember>,
    span: Range<usize>,
}

struct JsonMember {
    /// Without its quotes.
    key: Range<usize>,
    value: Range<usize>,
}

impl JsonObject {
    /// The object that begins at byte `start`.
    fn parse(json: &str, start: usize) -> Option<Self> {
        let bytes = json.as_bytes();
        let mut at = space(bytes, start + 1);
        let mut members = Vec::new();
        while bytes.get(at)? != &b'}' {
            let key_end = string(bytes, at)?;
            let colon = space(bytes, key_end);
            if bytes.get(colon)? != &b':' {
                return None;
            }
            let value = space(bytes, colon + 1);
            let end = skip(bytes, value)?;
            members.push(JsonMember {
                key: at + 1..key_end - 1,
                value: value..end,
            });
            at = space(bytes, end);
            match bytes.get(at)? {
                b',' => at = space(bytes, at + 1),
                b'}' => {}
                _ => return None,
            }
        }
        Some(Self {
            members,
            span: start..at + 1,
        })
    }
}

fn space(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// The end of the string that begins at `at`.
fn string(bytes: &[u8], at: usize) -> Option<usize> {
    let mut i = at + 1;
    if bytes.get(at)? != &b'"' {
        return None;
    }
    loop {
        match bytes.get(i)? {
            b'"' => return Some(i + 1),
            b'\\' => i += 2,
            _ => i += 1,
        }
    }
}

/// The end of the value that begins at `at`.
fn skip(bytes: &[u8], at: usize) -> Option<usize> {
    let (mut i, mut depth) = (at, 0usize);
    loop {
        match bytes.get(i)? {
            b'"' => i = string(bytes, i)?,
            b'{' | b'[' => {
                depth += 1;
                i += 1;
            }
            b'}' | b']' if depth > 0 => {
                depth -= 1;
                i += 1;
            }
            b',' | b'}' | b']' if depth == 0 => return Some(trim(bytes, at, i)),
            _ => i += 1,
        }
        if depth == 0 && matches!(bytes.get(i - 1), Some(b'}' | b']' | b'"')) {
            return Some(i);
        }
    }
}

/// `end` without the whitespace before it.
fn trim(bytes: &[u8], start: usize, mut end: usize) -> usize {
    while end > start && bytes[end - 1].is_ascii_whitespace() {
        end -= 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::{dequantized, keys, requantized};

    fn same(json: &str, expected: &str) {
        let edited = dequantized(json, Some("bfloat16")).unwrap();
        assert_eq!(edited, expected);
        let plain: serde_json::Value = serde_json::from_str(&edited.replace("NaN", "0")).unwrap();
        assert!(plain.is_object());
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
        same(
            "{\"quantization_config\": {}}",
            "{\"torch_dtype\": \"bfloat16\"}",
        );
        same("{}", "{\"torch_dtype\": \"bfloat16\"}");
        same(
            "{\"a\": \"}\\\"\", \"b\": [ ]}",
            "{\"torch_dtype\": \"bfloat16\", \"a\": \"}\\\"\", \"b\": [ ]}",
        );
        same(
            "{\"dtype\": \"x\", \"text_config\": {\"quantization\": {}, \"x\": 1}, \"quantization_config\": {}}",
            "{\"dtype\": \"bfloat16\", \"text_config\": {\"x\": 1}}",
        );
        assert_eq!(
            dequantized("{\"quantization\": {}, \"dtype\": \"x\"}", None).unwrap(),
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
            None,
            &[("quantization_config", &config)],
        );
        assert_eq!(
            added.unwrap(),
            "{\"a\": 1,\n  \"quantization_config\": {\n    \"bits\": 4\n  }}"
        );
        assert_eq!(
            requantized("{}", None, &[("x", &1.into()), ("y", &2.into())]).unwrap(),
            "{\n  \"x\": 1,\n  \"y\": 2\n}"
        );
        assert!(dequantized("[]", Some("x")).is_none());
        assert!(dequantized("{\"a\": ", Some("x")).is_none());
    }
}
