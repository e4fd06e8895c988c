//! [`Selection`]: the tensors that a user's patterns choose.

use super::{Pattern, PatternList};
use crate::{AnamnesisError, Result};

/// Patterns that a tensor's name must match, if there are any, and others that it must not.
#[derive(Debug)]
pub(crate) struct Selection {
    include: PatternList<()>,
    exclude: PatternList<()>,
}

impl Selection {
    /// Patterns with wildcards, or `re:` and an expression.
    ///
    /// # Errors
    /// `Unsupported` if an expression does not compile, or if there are too many.
    pub(crate) fn new(include: &[String], exclude: &[String]) -> Result<Self> {
        Ok(Self {
            include: compile(include)?,
            exclude: compile(exclude)?,
        })
    }

    /// Whether `name` is selected, as far as [`check`](Self::check) does not fail afterwards.
    pub(crate) fn has(&self, name: &str) -> bool {
        // An exclusion outranks an inclusion, whatever their order on the command line.
        let is_included = self.include.is_empty() || self.include.find(name).is_some();
        is_included && self.exclude.find(name).is_none()
    }

    /// # Errors
    /// `LimitExceeded` if a match was given up: what [`has`](Self::has) said is wrong then.
    pub(crate) fn check(&self) -> Result<()> {
        self.include.check()?;
        self.exclude.check()
    }
}

fn compile(patterns: &[String]) -> Result<PatternList<()>> {
    let mut list = PatternList::default();
    for text in patterns {
        if !list.push(Pattern::of_user(text)?, ()) {
            let what = "there are too many patterns";
            return Err(AnamnesisError::unsupported(
                format!("the pattern {text}"),
                what,
            ));
        }
    }
    Ok(list)
}
