//! [`Pattern`]: expressions over names of modules and tensors, in configs and in options;
//! [`PatternList`]: several of them; [`Selection`]: the tensors that patterns choose.
//!
//! Expressions are untrusted. `regex-lite` does not backtrack, so matching is linear in the name,
//! and an expression that would take too much memory does not compile. Configs are written for
//! Python's dialect, whose look-around and back-references it does not have; [`Backtracking`] has
//! them, and stops after a number of steps.

mod backtracking;
#[cfg(feature = "lethe")]
mod by_name;
mod glob;
mod nearest;
mod rename;
mod selection;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use regex_lite::{Regex, RegexBuilder};

use self::backtracking::Backtracking;
#[cfg(feature = "lethe")]
pub(crate) use self::by_name::ByName;
use self::glob::glob_expression;
pub(crate) use self::nearest::{nearest, what_was_meant};
pub(crate) use self::rename::RenameRule;
pub use self::selection::Selection;
use crate::{AnamnesisError, Result};

/// Most patterns of one list of a config that are kept. Each is tried for each module that is not
/// listed by its path.
pub(super) const MAX_PATTERNS: usize = 10_000;

/// Most bytes of a compiled expression. Real ones take a few KiB.
const MAX_COMPILED: usize = 64 << 10;

/// Most bytes of all compiled expressions of a list; a config may have thousands.
const MAX_LIST: usize = 16 << 20;

/// Most steps of one match of an expression that backtracks: some milliseconds. Real ones take some
/// hundreds; an attack takes 2 to the power of the name's length.
const MAX_STEPS: usize = 1_000_000;

/// Most expressions of a list that backtrack. Each may take [`MAX_STEPS`] for each name.
const MAX_BACKTRACKING: usize = 100;

/// Result of compiling or matching an expression; the error is the reason.
type Attempt<T> = std::result::Result<T, String>;

/// A compiled expression.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    /// In time that is linear in the name; with the most bytes that it takes.
    Linear(Regex, usize),
    Backtracking(Backtracking),
    /// A text with wildcards. A name that is the text itself matches, too, whatever characters it
    /// has.
    Glob(String, Regex),
}

impl Pattern {
    /// An expression that may match anywhere in a name, as Python's `re.search` does.
    pub(super) fn anywhere(expression: &str) -> Attempt<Self> {
        // Only what the linear engine refuses goes to the other one.
        linear(expression).or_else(|reason| match needs_backtracking(expression) {
            true => Backtracking::new(expression).map(Self::Backtracking),
            false => Err(reason),
        })
    }

    /// An expression that matches from a name's beginning, as Python's `re.match` does; the end may
    /// be anywhere.
    pub(super) fn from_start(expression: &str) -> Attempt<Self> {
        Self::anywhere(&format!("^(?:{expression})"))
    }

    /// Whether an entry of a config is a pattern: an expression after `re:`, or a text with `*`.
    /// Others are paths of modules, which may hold a `?` or brackets for all that libraries care.
    pub(super) fn is_in_config(text: &str) -> bool {
        text.starts_with("re:") || text.contains('*')
    }

    /// The pattern of an entry of a config that is one.
    pub(super) fn of_config(text: &str) -> Attempt<Self> {
        match text.strip_prefix("re:") {
            Some(expression) => Self::from_start(expression),
            None => {
                // Escaped first, so that only `*` regains a meaning.
                let expression = regex_lite::escape(text).replace(r"\*", ".*");
                Self::anywhere(&format!("^{expression}$"))
            }
        }
    }

    /// An option of the user: an expression after `re:`, else a text with wildcards, which may be a
    /// name as well.
    ///
    /// # Errors
    /// `Usage` if the expression does not compile: then it is unknown what the user wants.
    pub(super) fn of_user(text: &str) -> Result<Self> {
        let compiled = match text.strip_prefix("re:") {
            Some(expression) => Self::from_start(expression),
            None => glob_expression(text)
                .and_then(|expression| compile(&expression, MAX_COMPILED))
                .map(|expression| Self::Glob(text.to_owned(), expression)),
        };
        compiled.map_err(|e| AnamnesisError::usage(format!("the pattern `{text}`: {e}")))
    }

    /// Whether the pattern matches `name`.
    fn is_match(&self, name: &str) -> Attempt<bool> {
        self.first_match(name).map(|found| found.is_some())
    }

    /// Position of the first match in `name`.
    ///
    /// # Errors
    /// The match takes more steps than [`MAX_STEPS`].
    pub(super) fn first_match(&self, name: &str) -> Attempt<Option<usize>> {
        match self {
            Self::Linear(expression, _) => Ok(expression.find(name).map(|found| found.start())),
            Self::Backtracking(expression) => {
                let groups = expression.groups(name)?;
                Ok(groups.and_then(|groups| Some(groups.first()?.as_ref()?.start)))
            }
            Self::Glob(text, _) if text == name => Ok(Some(0)),
            Self::Glob(_, expression) => Ok(expression.find(name).map(|found| found.start())),
        }
    }

    /// The texts of the groups of a match that begins where `name` does, that of the whole match
    /// first; `None` if there is no such match. The group of a `*` in a text with wildcards is what
    /// it stands for.
    pub(super) fn groups<'n>(&self, name: &'n str) -> Attempt<Option<Vec<Option<&'n str>>>> {
        let text = |range: std::ops::Range<usize>| name.get(range);
        let groups: Option<Vec<Option<&str>>> = match self {
            Self::Backtracking(expression) => expression.groups(name)?.map(|groups| {
                let groups = groups.into_iter();
                groups.map(|group| group.and_then(text)).collect()
            }),
            Self::Linear(expression, _) | Self::Glob(_, expression) => {
                let found = expression.captures(name);
                let found = found.map(|found| {
                    let groups = found.iter().map(|group| group.map(|group| group.as_str()));
                    groups.collect()
                });
                let is_name = matches!(self, Self::Glob(text, _) if text == name);
                found.or_else(|| is_name.then(|| vec![Some(name)]))
            }
        };
        Ok(groups)
    }

    /// Number of groups, besides that of the whole match.
    pub(super) fn group_count(&self) -> usize {
        match self {
            Self::Linear(expression, _) | Self::Glob(_, expression) => {
                expression.captures_len() - 1
            }
            Self::Backtracking(expression) => expression.group_count(),
        }
    }
}

/// Whether an expression has look-around, a back-reference or an atomic group. One that is refused
/// for another reason, such as its size, would only be refused once more, after more work.
fn needs_backtracking(expression: &str) -> bool {
    let has_reference = || {
        let pairs = expression.as_bytes().windows(2);
        pairs
            .into_iter()
            .any(|pair| pair[0] == b'\\' && matches!(pair[1], b'1'..=b'9' | b'k'))
    };
    let marks = ["(?=", "(?!", "(?<=", "(?<!", "(?>", "(?P="];
    marks.iter().any(|mark| expression.contains(mark)) || has_reference()
}

/// Compiles an expression for matching in linear time.
fn linear(expression: &str) -> Attempt<Pattern> {
    // The library does not say how much an expression takes, only whether it takes more than a
    // limit.
    let mut result = Err(String::new());
    for limit in [MAX_COMPILED / 64, MAX_COMPILED / 16, MAX_COMPILED] {
        result = compile(expression, limit).map(|compiled| Pattern::Linear(compiled, limit));
        if result.is_ok() {
            break;
        }
    }
    result
}

fn compile(expression: &str, limit: usize) -> Attempt<Regex> {
    let compiled = RegexBuilder::new(expression).size_limit(limit).build();
    compiled.map_err(|e| e.to_string())
}

/// Patterns in their order, each with a value.
#[derive(Debug, Clone)]
pub(super) struct PatternList<T> {
    patterns: Vec<(Pattern, T)>,
    backtracking: usize,
    /// Most bytes that the compiled expressions take.
    bytes: usize,
    /// Whether a pattern had no room.
    is_full: bool,
    /// Why a match was given up.
    failure: OnceLock<String>,
}

impl<T> Default for PatternList<T> {
    fn default() -> Self {
        Self {
            patterns: vec![],
            backtracking: 0,
            bytes: 0,
            is_full: false,
            failure: OnceLock::new(),
        }
    }
}

impl<T> PatternList<T> {
    /// Appends a pattern. Returns whether there was room for it. A list that had no room for one
    /// takes none after it.
    pub(super) fn push(&mut self, pattern: Pattern, value: T) -> bool {
        let (backtracks, bytes) = match pattern {
            Pattern::Backtracking(_) => (1, 0),
            Pattern::Linear(_, bytes) => (0, bytes),
            Pattern::Glob(..) => (0, 0),
        };
        let has_room = !self.is_full
            && self.patterns.len() < MAX_PATTERNS
            && self.backtracking + backtracks <= MAX_BACKTRACKING
            && self.bytes + bytes <= MAX_LIST;
        self.is_full = !has_room;
        if has_room {
            self.backtracking += backtracks;
            self.bytes += bytes;
            self.patterns.push((pattern, value));
        }
        has_room
    }

    /// Whether the list takes no more patterns, so that compiling them would be in vain.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    pub(super) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The values of all patterns that match `name`, in their order.
    ///
    /// # Errors
    /// A match takes too many steps.
    pub(super) fn all(&self, name: &str) -> Attempt<Vec<&T>> {
        let mut found = Vec::new();
        for (pattern, value) in &self.patterns {
            if pattern.is_match(name)? {
                found.push(value);
            }
        }
        Ok(found)
    }

    /// The value of the first pattern that matches `name`. A match that is given up counts as none,
    /// and [`check`](Self::check) fails from then on. No pattern is tried after that, so that an
    /// attack takes time once.
    pub(super) fn find(&self, name: &str) -> Option<&T> {
        if self.failure.get().is_some() {
            return None;
        }
        for (pattern, value) in &self.patterns {
            match pattern.is_match(name) {
                Ok(true) => return Some(value),
                Ok(false) => {}
                Err(reason) => {
                    let reason = format!("a pattern that is matched with `{name}`: {reason}");
                    self.failure.get_or_init(|| reason);
                    return None;
                }
            }
        }
        None
    }

    /// The value of the pattern that matches `name` first in it, the first of several at one
    /// position.
    ///
    /// # Errors
    /// The match was given up.
    pub(super) fn leftmost(&self, name: &str) -> Attempt<Option<&T>> {
        let mut found: Option<(usize, &T)> = None;
        for (pattern, value) in &self.patterns {
            let start = pattern.first_match(name)?;
            if let Some(start) = start.filter(|start| found.is_none_or(|(first, _)| *start < first))
            {
                found = Some((start, value));
            }
        }
        Ok(found.map(|(_, value)| value))
    }

    /// The values of the patterns that match none of `names`.
    pub(super) fn unmatched<'n>(
        &self,
        names: impl Iterator<Item = &'n str> + Clone,
    ) -> impl Iterator<Item = &T> {
        let is_matched = move |pattern: &Pattern| {
            let mut names = names.clone();
            // A match that is given up is an error of `find`.
            names.any(|name| pattern.is_match(name).unwrap_or(true))
        };
        let all = self.patterns.iter();
        all.filter(move |(pattern, _)| !is_matched(pattern))
            .map(|(_, value)| value)
    }

    /// # Errors
    /// `LimitExceeded` if a match was given up: what matches is unknown then.
    pub(super) fn check(&self) -> Result<()> {
        match self.failure.get() {
            None => Ok(()),
            Some(reason) => Err(exceeded(reason.clone())),
        }
    }
}

/// The error that a match was given up.
pub(super) fn exceeded(reason: String) -> AnamnesisError {
    AnamnesisError::LimitExceeded { limit: "steps of a pattern", message: reason }
}
