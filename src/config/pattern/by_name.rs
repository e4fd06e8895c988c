//! [`ByName`]: what the user gives to tensors whose names match patterns.

use std::collections::{HashMap, HashSet};

use super::{Pattern, PatternList, what_was_meant};
use crate::{AnamnesisError, Result};

/// Patterns of names, each with a value. A tensor gets that of the first which matches.
#[derive(Debug)]
pub(crate) struct ByName<T> {
    /// The option that gives them, for errors.
    option: &'static str,
    /// Those that are names, which a list for a whole model has by the thousand. The number is the
    /// place in the order of all.
    names: HashMap<String, (usize, T)>,
    patterns: PatternList<(usize, String, T)>,
}

impl<T> ByName<T> {
    /// # Errors
    /// `Usage` if an expression does not compile, or if there are too many patterns.
    pub(crate) fn new(
        option: &'static str,
        given: impl IntoIterator<Item = (String, T)>,
    ) -> Result<Self> {
        let (mut names, mut patterns) = (HashMap::new(), PatternList::default());
        for (at, (text, value)) in given.into_iter().enumerate() {
            if !text.starts_with("re:") && !text.contains(['*', '?', '[', ']', '{', '}']) {
                names.entry(text).or_insert((at, value));
                continue;
            }
            let pattern = Pattern::of_user(&text).map_err(|e| e.about(option))?;
            if !patterns.push(pattern, (at, text.clone(), value)) {
                let what = format!("{option}: the pattern `{text}`: there are too many patterns");
                return Err(AnamnesisError::usage(what));
            }
        }
        Ok(Self { option, names, patterns })
    }

    /// What a tensor that has any of `names` gets, as far as
    /// [`require_matches`](Self::require_matches) does not fail afterwards.
    pub(crate) fn of(&self, names: [&str; 2]) -> Option<&T> {
        let found = names.iter().flat_map(|name| {
            let by_pattern = self.patterns.find(name).map(|(at, _, value)| (*at, value));
            let by_name = self.names.get(*name).map(|(at, value)| (*at, value));
            by_name.into_iter().chain(by_pattern)
        });
        found.min_by_key(|(at, _)| *at).map(|(_, value)| value)
    }

    /// Fails if a pattern matches none of `names`, or takes too many steps.
    ///
    /// # Errors
    /// `Usage` and `LimitExceeded`.
    pub(crate) fn require_matches<'n>(
        &self,
        names: impl Iterator<Item = &'n str> + Clone,
    ) -> Result<()> {
        self.patterns.check()?;
        let all: HashSet<&str> = names.clone().collect();
        let left = self.patterns.unmatched(names.clone());
        let left = left.map(|(at, text, _)| (*at, text));
        let unknown = self.names.iter().map(|(text, (at, _))| (*at, text));
        let unknown = unknown.filter(|(_, text)| !all.contains(&***text));
        let Some((_, text)) = left.chain(unknown).min() else {
            return Ok(());
        };
        let (option, meant) = (self.option, what_was_meant(text, names));
        let what = format!(
            "{option}: no tensor has a name like `{text}`, to which a type is given; {meant}"
        );
        Err(AnamnesisError::usage(what))
    }
}
