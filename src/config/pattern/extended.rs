//! Patterns that `regex-lite` does not have: look-around and back-references with `fancy-regex`,
//! globs with `globset`.

use std::ops::Range;
use std::sync::OnceLock;

use fancy_regex::{Error, Expr, Regex, RegexBuilder, RuntimeError};
use globset::GlobBuilder;

use super::{Attempt, MAX_COMPILED, MAX_STEPS};

/// An expression that is matched by trying. It is compiled when it is first matched: a list that
/// has no room for it has no work with it, either.
#[derive(Debug, Clone)]
pub(in crate::config) struct Backtracking {
    expression: String,
    compiled: OnceLock<Attempt<Regex>>,
}

impl Backtracking {
    /// Reads an expression. Of one that takes too much memory, matches fail.
    pub(super) fn new(expression: &str) -> Attempt<Self> {
        if expression.len() > MAX_COMPILED {
            return Err("it is too long".to_owned());
        }
        Expr::parse_tree(expression).map_err(|e| e.to_string())?;
        Ok(Self { expression: with_ascii_classes(expression), compiled: OnceLock::new() })
    }

    /// The compiled expression.
    pub(super) fn compiled(&self) -> Attempt<&Regex> {
        let compiled = self.compiled.get_or_init(|| {
            // Lazy automata would take megabytes for each expression; names are short.
            let compiled = RegexBuilder::new(&self.expression)
                .backtrack_limit(MAX_STEPS)
                .delegate_size_limit(MAX_COMPILED)
                .delegate_dfa_size_limit(0)
                .build();
            compiled.map_err(|e| e.to_string())
        });
        compiled.as_ref().map_err(Clone::clone)
    }

    /// Ranges of the groups of the first match, that of the whole match first.
    pub(super) fn groups(&self, name: &str) -> Attempt<Option<Vec<Option<Range<usize>>>>> {
        match self.compiled()?.captures(name) {
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
        let compiled = self.compiled();
        compiled.map_or(0, |compiled| compiled.captures_len() - 1)
    }
}

/// `expression` with the classes `\w`, `\d`, `\s` and their complements of ASCII alone, as
/// `regex-lite` has them. Those of all of Unicode take hundreds of times the memory, and names are
/// ASCII.
fn with_ascii_classes(expression: &str) -> String {
    let mut out = String::with_capacity(expression.len());
    let mut rest = expression.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        // A class in brackets may stand within another one.
        match rest.next() {
            Some('w') => out.push_str("[0-9A-Za-z_]"),
            Some('W') => out.push_str("[^0-9A-Za-z_]"),
            Some('d') => out.push_str("[0-9]"),
            Some('D') => out.push_str("[^0-9]"),
            Some('s') => out.push_str(r"[\t\n\v\f\r ]"),
            Some('S') => out.push_str(r"[^\t\n\v\f\r ]"),
            other => {
                out.push(c);
                out.extend(other);
            }
        }
    }
    out
}

/// The expression of a text with `*`, `?`, `[a-c]`, `[!a-c]` and `{a,b}` that matches a whole name.
/// Each `*` is a group.
///
/// `globset` matches bytes, so that its `?` would be a part of a letter; its expression is written
/// for characters here.
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

/// `text` with a `*` for each run of them: two would be directories to `globset`, and `*` matches
/// everything here.
fn text_with_single_stars(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '*' || !out.ends_with('*') {
            out.push(c);
        }
    }
    out
}
