//! [`SkipLists`]: lists of modules that stay unquantized.

use std::collections::HashSet;

use super::pattern::{Pattern, PatternList};
use crate::Result;

/// The modules that a config's lists leave unquantized.
#[derive(Debug, Clone, Default)]
pub(super) struct SkipLists {
    /// Paths, or runs of their components: a module is skipped if its path has one of these between
    /// dots or ends.
    paths: HashSet<String>,
    /// Length of the longest of `paths`, in bytes.
    longest: usize,
    patterns: PatternList<()>,
}

impl SkipLists {
    /// Adds an entry. An expression that does not compile skips nothing, and neither do those that
    /// the list has no room for: a module that they would skip is then reported as an error rather
    /// than decoded wrongly.
    pub(super) fn add(&mut self, text: &str) {
        if !Pattern::is_in_config(text) {
            // A dot at either end would keep the path from being found: runs are looked up without
            // dots around them.
            let path = text.trim_matches('.');
            self.longest = self.longest.max(path.len());
            self.paths.insert(path.to_owned());
        } else if !self.patterns.is_full()
            && let Ok(pattern) = Pattern::of_config(text)
        {
            self.patterns.push(pattern, ());
        }
    }

    /// Whether a list covers `module`.
    pub(super) fn has(&self, module: &str) -> bool {
        // Paths have about ten components and lists may have thousands of entries. So every run of
        // components is looked up in the set, in place of comparing every entry.
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
            || self.patterns.find(module).is_some()
    }

    /// # Errors
    /// `LimitExceeded` if a match was given up.
    pub(super) fn check(&self) -> Result<()> {
        self.patterns.check()
    }
}

/// Most components of a module's path that runs begin at, and most that one run has; it bounds a
/// look-up's quadratic cost.
const MAX_PARTS: usize = 64;
