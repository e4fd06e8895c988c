//! [`Selection`]: the tensors that a user's patterns choose.

use super::{Pattern, PatternList, nearest, what_was_meant};
use crate::{AnamnesisError, Result};

/// Patterns that a tensor's name must match, if there are any, and others that it must not.
#[derive(Debug)]
pub struct Selection {
    include: PatternList<String>,
    exclude: PatternList<String>,
}

impl Selection {
    /// Patterns with wildcards, or `re:` and an expression.
    ///
    /// # Errors
    /// `Usage` if an expression does not compile, or if there are too many.
    pub fn new(include: &[String], exclude: &[String]) -> Result<Self> {
        let about = |option| move |e: AnamnesisError| e.about(option);
        Ok(Self {
            include: compile(include).map_err(about("--include"))?,
            exclude: compile(exclude).map_err(about("--exclude"))?,
        })
    }

    /// The patterns of one list that is no option of its own.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of(patterns: &[String]) -> Result<Self> {
        Ok(Self { include: compile(patterns)?, exclude: PatternList::default() })
    }

    /// The end of a message that none of `names` is selected: what may have been meant.
    pub fn what_was_meant<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> String {
        let text = self.include.unmatched(names.clone()).next();
        what_was_meant(text.map_or("", String::as_str), names)
    }

    /// Whether `name` is selected, as far as [`check`](Self::check) does not fail afterwards.
    pub fn has(&self, name: &str) -> bool {
        // An exclusion outranks an inclusion, whatever their order on the command line.
        let is_included = self.include.is_empty() || self.include.find(name).is_some();
        is_included && self.exclude.find(name).is_none()
    }

    /// # Errors
    /// `LimitExceeded` if a match was given up: what [`has`](Self::has) said is wrong then.
    pub fn check(&self) -> Result<()> {
        self.include.check()?;
        self.exclude.check()
    }

    /// A note for each pattern that matches none of `names`: without it the selection would be the
    /// same, which is a typing mistake most of the time. `input` are the names of the stored tensors.
    pub(crate) fn notes<'n>(
        &self,
        names: &(impl Iterator<Item = &'n str> + Clone),
        input: &(impl Iterator<Item = &'n str> + Clone),
    ) -> Vec<String> {
        let all = names.clone().chain(input.clone());
        let of = |list: &PatternList<String>| {
            let unmatched: Vec<String> = list.unmatched(names.clone()).cloned().collect();
            let nowhere: Vec<&String> = list.unmatched(all.clone()).collect();
            let note = |text: &String| match nowhere.contains(&text) {
                true => format!(
                    "no tensor has a name like `{text}`; {}",
                    what_was_meant(text, all.clone())
                ),
                false => of_input(text, names.clone()),
            };
            unmatched.iter().map(note).collect::<Vec<_>>()
        };
        [of(&self.include), of(&self.exclude)].concat()
    }

    /// The error that none of `names` is selected: `Usage`. `input` are the names of the stored tensors.
    pub fn has_none<'n>(
        &self,
        names: impl Iterator<Item = &'n str> + Clone,
        input: impl Iterator<Item = &'n str> + Clone,
    ) -> AnamnesisError {
        let all = names.clone().chain(input);
        let nowhere = self.include.unmatched(all.clone()).next();
        let elsewhere = self.include.unmatched(names.clone()).next();
        AnamnesisError::usage(match (nowhere, elsewhere) {
            (Some(text), _) => {
                let meant = what_was_meant(text, all);
                format!("--include: no tensor is left: none has a name like `{text}`; {meant}")
            }
            (None, Some(text)) => {
                format!("--include: no tensor is left: {}", of_input(text, names))
            }
            (None, None) => {
                "--exclude: no tensor is left: all that are included are excluded, too".to_owned()
            }
        })
    }
}

/// What is wrong with the pattern `text`, which matches stored names, but none of `names`: tensors are
/// decoded or renamed.
fn of_input<'n>(text: &str, names: impl Iterator<Item = &'n str>) -> String {
    let example = nearest(text, names).into_iter().next();
    let example = example.map_or(String::new(), |name| format!(", such as `{name}`"));
    format!(
        "`{text}` matches names of the input alone, and patterns are compared with names of the output{example}"
    )
}

fn compile(patterns: &[String]) -> Result<PatternList<String>> {
    let mut list = PatternList::default();
    for text in patterns {
        if !list.push(Pattern::of_user(text)?, text.clone()) {
            let what = format!("the pattern `{text}`: there are too many patterns");
            return Err(AnamnesisError::usage(what));
        }
    }
    Ok(list)
}
