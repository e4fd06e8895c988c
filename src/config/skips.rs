//! [`SkipLists`]: lists of modules that stay unquantized. Also compiles the patterns of names that configs and options
//! have.

use std::collections::HashSet;

use crate::{AnamnesisError, Result};

/// Compiles a user's pattern: an expression after `re:`, matched from the name's beginning, or else a pattern with `*`
/// and `?` for the whole name.
///
/// # Errors
/// `Unsupported` if the expression does not compile.
pub(crate) fn pattern(text: &str) -> Result<regex_lite::Regex> {
    let expression = match text.strip_prefix("re:") {
        Some(expression) => format!("^(?:{expression})"),
        // Escaped first, so that a dot in a name is a dot, and only `*` and `?` regain a meaning.
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

/// Most bytes of a compiled expression. Real ones take a few KiB; a config may have thousands.
const MAX_EXPRESSION: usize = 64 << 10;

/// Most expressions of a config that are compiled. The others skip nothing, so that a module that they would skip is
/// reported as an error rather than decoded wrongly.
const MAX_EXPRESSIONS: usize = 10_000;

/// Compiles an expression, if that takes at most [`MAX_EXPRESSION`] bytes. Matching is linear in the text
/// (`regex-lite` does not backtrack), so an untrusted expression cannot stall a reader.
pub(super) fn compile(text: &str) -> std::result::Result<regex_lite::Regex, regex_lite::Error> {
    regex_lite::RegexBuilder::new(text)
        .size_limit(MAX_EXPRESSION)
        .build()
}

/// The regular expression for an entry of a config: of what follows `re:`, or of a pattern with `*`. `None` if the entry
/// is a module's path.
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

/// The modules that a config's lists leave unquantized.
#[derive(Debug, Clone, Default)]
pub(super) struct SkipLists {
    /// Paths, or runs of their components: a module is skipped if its path has one of these between dots or ends.
    paths: HashSet<String>,
    /// Length of the longest of `paths`, in bytes.
    longest: usize,
    expressions: Vec<regex_lite::Regex>,
}

impl SkipLists {
    /// Adds an entry. An expression that does not compile (Python's dialect has look-around) skips nothing: a module
    /// that it would skip is then reported as an error rather than decoded wrongly.
    pub(super) fn add(&mut self, text: &str) {
        let Some(expression) = expression(text) else {
            // A dot at either end would keep the path from being found: runs are looked up without
            // dots around them.
            let path = text.trim_matches('.');
            self.longest = self.longest.max(path.len());
            self.paths.insert(path.to_owned());
            return;
        };
        if self.expressions.len() < MAX_EXPRESSIONS {
            // An expression that fails to compile yields nothing here.
            self.expressions.extend(compile(&expression));
        }
    }

    /// Whether a list covers `module`.
    pub(super) fn has(&self, module: &str) -> bool {
        // Paths have about ten components and lists may have thousands of entries. So every run of components is looked
        // up in the set, in place of comparing every entry.
        let dots = || module.match_indices('.').map(|(at, _)| at);
        // Runs begin at the name's start or behind a dot, and end at a dot or at the name's end, so
        // a listed `mlp` does not match `mlp2`.
        let starts = std::iter::once(0).chain(dots().map(|at| at + 1));
        let ends = || dots().chain([module.len()]);
        let listed = |start: usize| {
            // A run that begins here ends behind `start`, and none longer than the longest entry
            // can be listed.
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

/// Most components of a module's path that runs begin at, and most that one run has; it bounds a look-up's quadratic
/// cost.
const MAX_PARTS: usize = 64;
