//! [`Pattern`]: expressions over names of modules and tensors, in configs and in options; [`Selection`]: the tensors that
//! patterns choose.
//!
//! Expressions are untrusted. `regex-lite` does not backtrack, so matching is linear in the name, and an expression that would
//! take too much memory does not compile. Configs are written for Python's dialect, of which look-around and back-references
//! do not compile either; each caller says what that means for it.

use regex_lite::{Error, Regex, RegexBuilder, escape};

use crate::{AnamnesisError, Result};

/// Most patterns of one list of a config that are kept. Each is tried for each module that is not listed by its path.
pub(super) const MAX_PATTERNS: usize = 10_000;

/// Most bytes of a compiled expression. Real ones take a few KiB; a config may have thousands.
const MAX_COMPILED: usize = 64 << 10;

/// A compiled expression.
#[derive(Debug, Clone)]
pub(super) struct Pattern(Regex);

impl Pattern {
    /// An expression that may match anywhere in a name, as Python's `re.search` does.
    pub(super) fn anywhere(expression: &str) -> std::result::Result<Self, Error> {
        RegexBuilder::new(expression)
            .size_limit(MAX_COMPILED)
            .build()
            .map(Self)
    }

    /// An expression that matches from a name's beginning, as Python's `re.match` does; the end may be anywhere.
    pub(super) fn from_start(expression: &str) -> std::result::Result<Self, Error> {
        Self::anywhere(&format!("^(?:{expression})"))
    }

    /// A text with `*`, and `?` if `has_question_marks`, that matches a whole name.
    fn glob(text: &str, has_question_marks: bool) -> std::result::Result<Self, Error> {
        // Escaped first, so that a dot in a name is a dot, and only `*` and `?` regain a meaning.
        let mut expression = escape(text).replace(r"\*", ".*");
        if has_question_marks {
            expression = expression.replace(r"\?", ".");
        }
        Self::anywhere(&format!("^{expression}$"))
    }

    /// An entry of a config: an expression after `re:`, or a text with `*`. `None` if it is a module's path. Names of modules may
    /// hold a `?` for all that libraries care.
    pub(super) fn of_config(text: &str) -> Option<std::result::Result<Self, Error>> {
        match text.strip_prefix("re:") {
            Some(expression) => Some(Self::from_start(expression)),
            None => text.contains('*').then(|| Self::glob(text, false)),
        }
    }

    /// An option of the user: an expression after `re:`, else a text with `*` and `?`, which may be a name as well.
    ///
    /// # Errors
    /// `Unsupported` if the expression does not compile: then it is unknown what the user wants.
    fn of_user(text: &str) -> Result<Self> {
        let compiled = match text.strip_prefix("re:") {
            Some(expression) => Self::from_start(expression),
            None => Self::glob(text, true),
        };
        let wrong =
            |e: Error| AnamnesisError::unsupported(format!("the pattern {text}"), e.to_string());
        compiled.map_err(wrong)
    }

    pub(super) fn is_match(&self, name: &str) -> bool {
        self.0.is_match(name)
    }

    /// Position of the first match in `name`.
    pub(super) fn first_match(&self, name: &str) -> Option<usize> {
        self.0.find(name).map(|found| found.start())
    }
}

/// Patterns that a tensor's name must match, if there are any, and others that it must not.
pub(crate) struct Selection {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

impl Selection {
    /// Patterns with `*` and `?`, or `re:` and an expression.
    ///
    /// # Errors
    /// `Unsupported` if an expression does not compile.
    pub(crate) fn new(include: &[String], exclude: &[String]) -> Result<Self> {
        let compile = |patterns: &[String]| {
            patterns
                .iter()
                .map(|p| Pattern::of_user(p))
                .collect::<Result<_>>()
        };
        Ok(Self {
            include: compile(include)?,
            exclude: compile(exclude)?,
        })
    }

    /// Whether `name` is selected.
    pub(crate) fn has(&self, name: &str) -> bool {
        // An exclusion outranks an inclusion, whatever their order on the command line.
        let any = |list: &[Pattern]| list.iter().any(|pattern| pattern.is_match(name));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }
}
