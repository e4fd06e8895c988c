//! Patterns that `regex-lite` does not have: look-around and back-references with `fancy-regex`, globs with `globset`.

use std::ops::Range;

use fancy_regex::{Error, Regex, RegexBuilder, RuntimeError};
use globset::GlobBuilder;

use super::{Attempt, MAX_COMPILED, MAX_STEPS};

/// Most bytes of a part of an expression that is compiled without backtracking. Classes such as `\w` have all letters of
/// Unicode, as Python's have, and take more than those of `regex-lite`.
const MAX_DELEGATED: usize = 1 << 20;

/// An expression that is matched by trying.
#[derive(Debug, Clone)]
pub(in crate::config) struct Backtracking(Regex);

impl Backtracking {
    pub(super) fn new(expression: &str) -> Attempt<Self> {
        if expression.len() > MAX_COMPILED {
            return Err("it is too long".to_owned());
        }
        // Lazy automata would take megabytes for each expression; names are short.
        let compiled = RegexBuilder::new(expression)
            .backtrack_limit(MAX_STEPS)
            .delegate_size_limit(MAX_DELEGATED)
            .delegate_dfa_size_limit(0)
            .build();
        compiled.map(Self).map_err(|e| e.to_string())
    }

    /// Ranges of the groups of the first match, that of the whole match first.
    pub(super) fn groups(&self, name: &str) -> Attempt<Option<Vec<Option<Range<usize>>>>> {
        match self.0.captures(name) {
            Ok(found) => Ok(found.map(|found| {
                let groups = found.iter();
                groups
                    .map(|group| group.map(|group| group.range()))
                    .collect()
            })),
            Err(Error::RuntimeError(RuntimeError::BacktrackLimitExceeded)) => {
                Err(format!("it takes more than {MAX_STEPS} steps"))
            }
            Err(e) => Err(e.to_string()),
        }
    }

    /// Number of groups, besides that of the whole match.
    pub(super) fn group_count(&self) -> usize {
        self.0.captures_len() - 1
    }
}

/// The expression of a text with `*`, `?`, `[a-c]`, `[!a-c]` and `{a,b}` that matches a whole name. Each `*` is a group.
///
/// `globset` matches bytes, so that its `?` would be a part of a letter; its expression is written for characters here.
pub(super) fn glob_expression(text: &str) -> Attempt<String> {
    let glob = GlobBuilder::new(text_with_single_stars(text).as_str())
        .literal_separator(false)
        .backslash_escape(false)
        .build();
    let expression = glob.map_err(|e| e.kind().to_string())?;
    let expression = expression.regex();
    let mut rest = expression.strip_prefix("(?-u)").unwrap_or(expression);
    let (mut out, mut bytes) = (String::with_capacity(rest.len()), Vec::new());
    let mut is_in_class = false;
    while let Some(c) = rest.chars().next() {
        let hex = rest.strip_prefix(r"\x").and_then(|hex| hex.get(..2));
        if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            // Letters that are not ASCII are written as their bytes.
            bytes.push(byte);
            if let Ok(letter) = std::str::from_utf8(&bytes) {
                out.push_str(letter);
                bytes.clear();
            }
            rest = &rest[4..];
            continue;
        }
        let len = match c {
            '\\' => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            '.' if !is_in_class && rest.starts_with(".*") => {
                out.push_str("(.*)");
                rest = &rest[2..];
                continue;
            }
            c => {
                is_in_class = match c {
                    '[' => true,
                    ']' => false,
                    _ => is_in_class,
                };
                c.len_utf8()
            }
        };
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    Ok(out)
}

/// `text` with a `*` for each run of them: two would be directories to `globset`, and `*` matches everything here.
fn text_with_single_stars(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '*' || !out.ends_with('*') {
            out.push(c);
        }
    }
    out
}
