//! Tensors by their names: those that are wanted.

use regex_lite::Regex;

use crate::Result;

/// Patterns that a name must match, if there are any, and others that it must not.
pub(crate) struct Selection {
    include: Vec<Regex>,
    exclude: Vec<Regex>,
}

impl Selection {
    /// Patterns with `*` and `?`, or `re:` and an expression.
    pub(crate) fn new(include: &[String], exclude: &[String]) -> Result<Self> {
        let compile = |patterns: &[String]| {
            patterns
                .iter()
                .map(|p| super::pattern(p))
                .collect::<Result<_>>()
        };
        Ok(Self {
            include: compile(include)?,
            exclude: compile(exclude)?,
        })
    }

    /// Whether `name` is wanted.
    pub(crate) fn has(&self, name: &str) -> bool {
        // An exclusion outranks an inclusion, whatever their order on the command line.
        let any = |list: &[Regex]| list.iter().any(|e| e.is_match(name));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }
}
