//! Lists of modules that stay unquantized, and patterns of names.

use std::collections::HashSet;

use crate::{AnamnesisError, Result};

/// The expression that `text` means: what follows `re:`, from the name's beginning; else a pattern with `*` and `?`.
pub(crate) fn pattern(text: &str) -> Result<regex_lite::Regex> {
    let expression = match text.strip_prefix("re:") {
        Some(expression) => format!("^(?:{expression})"),
        None => format!(
            "^{}$",
            regex_lite::escape(text)
                .replace(r"\*", ".*")
                .replace(r"\?", ".")
        ),
    };
    let wrong = |e: regex_lite::Error| {
        AnamnesisError::unsupported(format!("the pattern {text}"), e.to_string())
    };
    compile(&expression).map_err(wrong)
}

/// Bytes that a compiled expression may take: real ones have a few KiB, and configs may have thousands.
const MAX_EXPRESSION: usize = 64 << 10;

/// Expressions of a config that are compiled. What more there are counts for nothing, so that what they would skip is
/// an error.
const MAX_EXPRESSIONS: usize = 10_000;

/// An expression of bounded size.
pub(super) fn compile(text: &str) -> std::result::Result<regex_lite::Regex, regex_lite::Error> {
    regex_lite::RegexBuilder::new(text)
        .size_limit(MAX_EXPRESSION)
        .build()
}

/// The expression of an entry that is one: what follows `re:`, or a pattern with `*`. Anything else is a module's path.
pub(super) fn expression(text: &str) -> Option<String> {
    match text.strip_prefix("re:") {
        // Python's `re.match` anchors at the start only.
        Some(expression) => Some(format!("^(?:{expression})")),
        None if text.contains('*') => Some(format!(
            "^{}$",
            regex_lite::escape(text).replace(r"\*", ".*")
        )),
        None => None,
    }
}

/// The modules that skip lists mean.
#[derive(Debug, Clone, Default)]
pub(super) struct SkipLists {
    /// Any module whose path has one of these in it, between dots or the ends.
    paths: HashSet<String>,
    /// Length of the longest.
    longest: usize,
    /// Any module that one of these matches.
    expressions: Vec<regex_lite::Regex>,
}

impl SkipLists {
    /// Adds an entry. An expression of a dialect that is not understood skips nothing: whatever it meant is
    /// then an error rather than a wrong weight.
    pub(super) fn add(&mut self, text: &str) {
        let Some(expression) = expression(text) else {
            let path = text.trim_matches('.');
            self.longest = self.longest.max(path.len());
            self.paths.insert(path.to_owned());
            return;
        };
        if self.expressions.len() < MAX_EXPRESSIONS {
            self.expressions.extend(compile(&expression));
        }
    }

    pub(super) fn has(&self, module: &str) -> bool {
        // Names have few parts and lists may have thousands of entries: look up every run of parts.
        let dots = || module.match_indices('.').map(|(at, _)| at);
        let starts = std::iter::once(0).chain(dots().map(|at| at + 1));
        let ends = || dots().chain([module.len()]);
        let listed = |start: usize| {
            let mut ends = ends()
                .filter(|&end| end > start)
                .take(MAX_PARTS)
                .take_while(|end| end - start <= self.longest);
            ends.any(|end| self.paths.contains(&module[start..end]))
        };
        !self.paths.is_empty() && starts.take(MAX_PARTS).any(listed)
            || self
                .expressions
                .iter()
                .any(|expression| expression.is_match(module))
    }
}

/// Parts of a module's path that are looked at. Real ones have about ten.
const MAX_PARTS: usize = 64;
