//! Stands in for `extended` without the feature `patterns`: texts with `*` and `?`, and no
//! expression that backtracks.

use std::convert::Infallible;
use std::ops::Range;

use super::{Attempt, MAX_COMPILED, compile};

/// An expression that is matched by trying, of which there are none.
#[derive(Debug, Clone)]
pub(in crate::config) struct Backtracking(Infallible);

impl Backtracking {
    /// # Errors
    /// Always: what `regex-lite` says of the expression.
    pub(super) fn new(expression: &str) -> Attempt<Self> {
        let reason = compile(expression, MAX_COMPILED).err().unwrap_or_default();
        Err(format!("{reason}, without the feature `patterns`"))
    }

    pub(super) fn compiled(&self) -> Attempt<&Infallible> {
        match self.0 {}
    }

    pub(super) fn groups(&self, _name: &str) -> Attempt<Option<Vec<Option<Range<usize>>>>> {
        match self.0 {}
    }

    pub(super) fn group_count(&self) -> usize {
        match self.0 {}
    }
}

/// The expression of a text with `*` and `?` that matches a whole name. Each `*` is a group.
///
/// # Errors
/// The text has brackets or braces: with the feature `patterns` they would select other tensors.
pub(super) fn glob_expression(text: &str) -> Attempt<String> {
    if text.contains(['[', ']', '{', '}']) {
        return Err("brackets and braces need the feature `patterns`, or `re:`".to_owned());
    }
    // Escaped first, so that a dot in a name is a dot, and only `*` and `?` regain a meaning.
    let expression = regex_lite::escape(text)
        .replace(r"\*", "(.*)")
        .replace(r"\?", ".");
    Ok(format!("^{expression}$"))
}
