//! Text for people: of files, made safe for a terminal, and numbers of things.

use std::fmt::Write as _;

/// Longest message that [`printable`] leaves whole, in characters.
const MAX_MESSAGE: usize = 2048;

/// Makes `text` safe for a terminal: characters that move the cursor, reorder or hide text become
/// `\u{…}`. Text over 2048 characters is cut, and the number of missing characters is appended.
pub fn printable(text: &str) -> String {
    escaped(text, MAX_MESSAGE)
}

/// A number of things: `1 tensor`, `2 tensors`.
pub fn counted(n: usize, one: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        n => format!("{n} {one}s"),
    }
}

/// Makes a name safe for a terminal, and cuts it at 48 characters.
pub(super) fn short(text: &str) -> String {
    const MAX_NAME: usize = 48;
    if text.chars().count() <= MAX_NAME {
        return escaped(text, MAX_NAME);
    }
    let head: String = text.chars().take(MAX_NAME).collect();
    format!("{}…", escaped(&head, MAX_NAME))
}

/// The first `max` characters of `text`, deceptive ones escaped; then how many more there are.
fn escaped(text: &str, max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(max));
    for (i, c) in text.chars().enumerate() {
        if i == max {
            let _ = write!(out, "… ({} more characters)", text.chars().count() - max);
            break;
        }
        if is_deceptive(c) {
            let _ = write!(out, "\\u{{{:x}}}", c as u32);
        } else {
            out.push(c);
        }
    }
    out
}

/// Whether `c` is a control, bidirectional or zero-width character or a byte-order mark.
fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}
