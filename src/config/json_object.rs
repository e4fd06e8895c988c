//! [`JsonObject`]: where the members of an object are in a JSON text, so that single ones can be changed
//! and all other bytes stay as they are.

use std::ops::Range;

/// Byte ranges of an object and of its members.
pub(super) struct JsonObject {
    pub members: Vec<JsonMember>,
    /// From the opening to behind the closing brace.
    pub span: Range<usize>,
}

pub(super) struct JsonMember {
    /// The key without its quotes.
    pub key: Range<usize>,
    pub value: Range<usize>,
}

impl JsonObject {
    /// Finds the members of the object whose brace is at byte `start`. Values are passed over
    /// unchecked. `None` if the text is no object.
    pub(super) fn parse(json: &str, start: usize) -> Option<Self> {
        let bytes = json.as_bytes();
        let mut at = skip_whitespace(bytes, start + 1);
        let mut members = Vec::new();
        while bytes.get(at)? != &b'}' {
            let key_end = string_end(bytes, at)?;
            let colon = skip_whitespace(bytes, key_end);
            if bytes.get(colon)? != &b':' {
                return None;
            }
            let value = skip_whitespace(bytes, colon + 1);
            let end = value_end(bytes, value)?;
            members.push(JsonMember { key: at + 1..key_end - 1, value: value..end });
            at = skip_whitespace(bytes, end);
            match bytes.get(at)? {
                b',' => at = skip_whitespace(bytes, at + 1),
                b'}' => {}
                _ => return None,
            }
        }
        Some(Self { members, span: start..at + 1 })
    }
}

fn skip_whitespace(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// The end of the string whose opening quote is at `at`.
fn string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let mut i = at + 1;
    // A key without a quote is no JSON.
    if bytes.get(at)? != &b'"' {
        return None;
    }
    loop {
        match bytes.get(i)? {
            b'"' => return Some(i + 1),
            // The escaped character is skipped whole if it has one byte. The hexadecimal digits of
            // `\u` need no care: none is a quote.
            b'\\' => i += 2,
            _ => i += 1,
        }
    }
}

/// The end of the value that begins at `at`. Braces and brackets are counted together, which is
/// exact for valid JSON; a loop rather than recursion, so that nesting costs no stack.
fn value_end(bytes: &[u8], at: usize) -> Option<usize> {
    let (mut i, mut depth) = (at, 0usize);
    loop {
        match bytes.get(i)? {
            b'"' => i = string_end(bytes, i)?,
            b'{' | b'[' => {
                depth += 1;
                i += 1;
            }
            // Only inside a nested value. At depth 0 the bracket belongs to the object around the
            // value and ends a number or a word, as the next arm finds.
            b'}' | b']' if depth > 0 => {
                depth -= 1;
                i += 1;
            }
            b',' | b'}' | b']' if depth == 0 => return Some(trim_end(bytes, at, i)),
            _ => i += 1,
        }
        // The value was a string, an object or an array, and has just been closed. Numbers and
        // words end only with what follows them.
        if depth == 0 && matches!(bytes.get(i - 1), Some(b'}' | b']' | b'"')) {
            return Some(i);
        }
    }
}

/// `end` moved to before the whitespace that precedes it, but not before `start`.
fn trim_end(bytes: &[u8], start: usize, mut end: usize) -> usize {
    while end > start && bytes[end - 1].is_ascii_whitespace() {
        end -= 1;
    }
    end
}
