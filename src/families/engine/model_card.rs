//! What the model card says: licence, tags and languages, in the YAML between the first two lines
//! `---` of `README.md`.
//!
//! Of YAML it reads scalars and lists of scalars at the top level, which is what cards have.
//! Whatever else it meets where it could change one of the fields makes it leave the card out: a
//! guess would be a wrong licence.
//!
//! Source: `Metadata.load_model_card` and `apply_metadata_heuristic` in `gguf-py/gguf/metadata.py`
//! of llama.cpp, PyYAML's `SafeLoader`.

use std::collections::{BTreeMap, HashSet};

use super::fields::KeyValue;
use crate::Result;
use crate::config::Texts;
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};

const FILE: &str = "README.md";
/// A longer card is left out. Cards have some kilobytes.
const MOST_BYTES: u64 = 1 << 20;

/// Fields of one text, with their keys.
const TEXTS: &[(&str, &str)] = &[
    ("license", "general.license"),
    ("license_name", "general.license.name"),
    ("license_link", "general.license.link"),
];

/// Fields of lists, or of one text, that are put together to one array, with its key.
const LISTS: &[([&str; 2], &str)] =
    &[(["tags", "pipeline_tag"], "general.tags"), (["languages", "language"], "general.languages")];

/// What a field is.
#[derive(Debug, PartialEq)]
enum CardValue {
    Text(String),
    List(Vec<String>),
}

/// The fields of a card that have keys, or why it is not read.
type CardFields = std::result::Result<BTreeMap<String, CardValue>, &'static str>;

/// The keys of the card in the directory, and a note if there is one that is not read.
///
/// # Errors
/// `Io`; `LimitExceeded` if the file is too large for the account.
pub(crate) fn keys(texts: &Texts) -> Result<(Vec<KeyValue>, Option<String>)> {
    let is_long = texts.size(FILE).is_some_and(|size| size > MOST_BYTES);
    let found = match is_long {
        true => Err("it is too long"),
        false => match texts.read(FILE)?.map(String::from_utf8) {
            None => return Ok((vec![], None)),
            Some(Ok(card)) => fields(&card).and_then(keys_of),
            Some(Err(_)) => Err("it is no UTF-8"),
        },
    };
    Ok(match found {
        Ok(keys) => (keys, None),
        Err(why) => {
            let what = "licence, tags and languages are left out";
            (vec![], Some(format!("{FILE}: {why}; {what}")))
        }
    })
}

fn keys_of(
    mut fields: BTreeMap<String, CardValue>,
) -> std::result::Result<Vec<KeyValue>, &'static str> {
    let mut keys = Vec::new();
    for (field, key) in TEXTS {
        let text = match fields.remove(*field) {
            None => continue,
            Some(CardValue::Text(text)) => text,
            Some(CardValue::List(all)) if *field == "license" => all.join(","),
            Some(CardValue::List(_)) => {
                return Err("the name or the link of its licence is a list");
            }
        };
        keys.push(((*key).to_owned(), GgufMetadataValue::String(text)));
    }
    for (names, key) in LISTS {
        let mut all = Vec::new();
        for name in names {
            match fields.remove(*name) {
                None => {}
                Some(CardValue::Text(text)) => all.push(text),
                Some(CardValue::List(list)) => all.extend(list),
            }
        }
        if !all.is_empty() {
            let all = GgufMetadataArray::String(all);
            keys.push(((*key).to_owned(), GgufMetadataValue::Array(Box::new(all))));
        }
    }
    Ok(keys)
}

/// The fields with keys of the card `card`; none if it has no front matter.
fn fields(card: &str) -> CardFields {
    let card = card.replace("\r\n", "\n").replace('\t', "  ");
    let mut lines = card.split('\n');
    if lines.next() != Some("---") {
        return Ok(BTreeMap::new());
    }
    let lines: Vec<_> = lines.collect();
    let end = lines.iter().position(|line| *line == "---");
    let lines = &lines[..end.ok_or("its front matter has no end")?];
    // Python and PyYAML break lines at some of them, and refuse the others.
    let is_unusual = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}');
    if lines.iter().any(|line| line.contains(is_unusual)) {
        return Err("its front matter has control characters");
    }
    let mut names = HashSet::new();
    let mut found = BTreeMap::new();
    let mut rest = lines;
    while let [line, behind @ ..] = rest {
        rest = behind;
        if is_blank(line) {
            continue;
        }
        let (name, value) = key_of(line).ok_or("its front matter has a line that is no field")?;
        if !names.insert(name) {
            return Err("its front matter has a field twice");
        }
        let below = |line: &&&str| line.starts_with([' ', '-']) || is_blank(line);
        let (block, behind) = rest.split_at(rest.iter().take_while(below).count());
        rest = behind;
        let is_read = TEXTS.iter().any(|(field, _)| *field == name)
            || LISTS.iter().any(|(fields, _)| fields.contains(&name));
        match is_read {
            true => {
                let value =
                    value_of(value, block).ok_or("a field of its front matter is unusual")?;
                found.extend(value.map(|value| (name.to_owned(), value)));
            }
            // What begins in a field that is not read must end there.
            false if value.starts_with(['|', '>']) => {}
            false if is_closed(value) && block.iter().all(|line| is_closed(item_of(line))) => {}
            false => return Err("its front matter has values of several lines"),
        }
    }
    Ok(found)
}

/// Whether the line says nothing.
fn is_blank(line: &str) -> bool {
    let text = line.trim_start();
    text.is_empty() || text.starts_with('#')
}

/// Name and value of a line at the top level.
fn key_of(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(':')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let is_key = !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain);
    let is_value = value.is_empty() || value.starts_with(' ');
    (is_key && is_value).then(|| (name, value.trim()))
}

/// What stands behind the dashes and the name of a line in a block.
fn item_of(line: &str) -> &str {
    let mut text = line.trim();
    while let Some(item) = text.strip_prefix("- ") {
        text = item.trim_start();
    }
    match text.split_once(": ") {
        Some((name, value)) if !name.starts_with(['"', '\'', '[', '{']) => value.trim(),
        _ => text,
    }
}

/// Whether a text in quotes or brackets, which could go on in the lines below, ends where it
/// begins.
fn is_closed(value: &str) -> bool {
    let count = |c: char| value.matches(c).count();
    let is_even = |quote: char| count(quote).is_multiple_of(2);
    match value.chars().next() {
        Some(quote @ ('"' | '\'')) => value.ends_with(quote) && is_even(quote),
        Some('[' | '{') => {
            let is_balanced = count('[') == count(']') && count('{') == count('}');
            value.ends_with([']', '}']) && is_balanced && is_even('"') && is_even('\'')
        }
        // An anchor, a type or the mark of a key stands before the value.
        Some('&' | '!' | '?') => false,
        _ => true,
    }
}

/// The value of a field with `value` behind its name and the lines `block` below; `None` if it is
/// no text and no list of texts, and `Some(None)` if it is null.
fn value_of(value: &str, block: &[&str]) -> Option<Option<CardValue>> {
    let mut items = block.iter().filter(|line| !is_blank(line)).peekable();
    if !value.is_empty() && !value.starts_with('#') {
        if items.peek().is_some() {
            return None;
        }
        if matches!(value, "~" | "null" | "Null" | "NULL") {
            return Some(None);
        }
        let list = value
            .strip_prefix('[')
            .and_then(|list| list.strip_suffix(']'));
        return Some(Some(match list {
            Some(list) => CardValue::List(flow_list(list)?),
            None => CardValue::Text(scalar(value)?),
        }));
    }
    let Some(first) = items.peek() else {
        return Some(None);
    };
    let indent = first.len() - first.trim_start().len();
    let item = |line: &&str| {
        let (spaces, text) = line.split_at_checked(indent)?;
        let text = text
            .strip_prefix("- ")
            .filter(|_| spaces.trim().is_empty())?;
        // As the converter, which takes Norwegian for no boolean, here alone.
        match text {
            "no" => Some("no".to_owned()),
            text => scalar(text.trim()),
        }
    };
    let all = items.map(item).collect::<Option<Vec<_>>>()?;
    Some(Some(CardValue::List(all)))
}

/// The texts between the brackets of a list of one line.
fn flow_list(list: &str) -> Option<Vec<String>> {
    if list.trim().is_empty() {
        return Some(vec![]);
    }
    let item = |item: &str| match item.contains(['[', ']', '{', '}', '#', ':']) {
        true => None,
        false => scalar(item.trim()),
    };
    list.split(',').map(item).collect()
}

/// The text of a scalar of one line; `None` if it is empty, or could be something else than a text.
fn scalar(value: &str) -> Option<String> {
    for quote in ['"', '\''] {
        if let Some(text) = value.strip_prefix(quote) {
            let text = text.strip_suffix(quote)?;
            let is_plain = !text.contains(['"', '\'', '\\']);
            return is_plain.then(|| text.to_owned());
        }
    }
    let text = value.split(" #").next()?.trim_end();
    const INDICATORS: &str = ",[]{}#&*!|>%@`?:-=<.~";
    const OTHERS: [&str; 7] = ["yes", "no", "on", "off", "true", "false", "null"];
    let is_other = OTHERS.iter().any(|other| text.eq_ignore_ascii_case(other));
    let is_mapping = text.contains(": ") || text.ends_with(':');
    // Integers, numbers of base 60, floats and times have no other characters.
    let is_digit = |c: char| c.is_ascii_digit() || "_.:+- eETtZz".contains(c);
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || c == '+')
        && (text.chars().all(is_digit) || text.starts_with("0x") || text.starts_with("0b"));
    // The converter puts quotes around a Norwegian at the end of any line.
    if text.ends_with("- no") {
        return None;
    }
    let is_text = !text.is_empty() && !text.starts_with(|c| INDICATORS.contains(c));
    (is_text && !is_other && !is_mapping && !is_number).then(|| text.to_owned())
}
