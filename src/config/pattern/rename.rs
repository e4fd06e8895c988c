//! [`RenameRule`]: a pattern and the name that it gives.

use super::{Attempt, Pattern, exceeded};
use crate::{AnamnesisError, Result};

/// A pattern with the new name of what it matches.
pub(crate) struct RenameRule {
    /// The pattern as it was given, for messages.
    pub text: String,
    pattern: Pattern,
    new_name: Vec<NamePiece>,
    /// Whether what follows the match stays: of a regular expression, which need not match to the
    /// end of a name.
    keeps_rest: bool,
}

/// A piece of a new name.
enum NamePiece {
    Text(String),
    /// The text of a group of the pattern.
    Group(usize),
}

impl RenameRule {
    /// A pattern with wildcards, or `re:` and an expression; in the new name `$1` and `${1}` stand
    /// for the first group of the expression or the first `*`, and `$$` for a dollar sign.
    ///
    /// # Errors
    /// `Usage` if the expression does not compile, or has no such group.
    pub(crate) fn new(text: &str, new_name: &str) -> Result<Self> {
        let pattern = Pattern::of_user(text)?;
        let new_name = pieces(new_name, pattern.group_count()).map_err(|reason| {
            AnamnesisError::usage(format!("the new name `{new_name}` of `{text}`: {reason}"))
        })?;
        Ok(Self { text: text.to_owned(), keeps_rest: text.starts_with("re:"), pattern, new_name })
    }

    /// The new name of `name`; `None` if the pattern does not match.
    ///
    /// # Errors
    /// `LimitExceeded` if the match was given up.
    pub(crate) fn apply(&self, name: &str) -> Result<Option<String>> {
        let groups = self.pattern.groups(name);
        let groups = groups.map_err(|e| exceeded(format!("the pattern {}: {e}", self.text)))?;
        Ok(groups.map(|groups| {
            let text = |i: usize| groups.get(i).copied().flatten().unwrap_or_default();
            let mut out: String = self
                .new_name
                .iter()
                .map(|piece| match piece {
                    NamePiece::Text(text) => text.as_str(),
                    NamePiece::Group(i) => text(*i),
                })
                .collect();
            if self.keeps_rest {
                out.push_str(name.get(text(0).len()..).unwrap_or_default());
            }
            out
        }))
    }
}

/// The pieces of a new name, in which `groups` groups can stand.
fn pieces(text: &str, groups: usize) -> Attempt<Vec<NamePiece>> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push(NamePiece::Text(before.to_owned()));
        if let Some(after) = after.strip_prefix('$') {
            out.push(NamePiece::Text("$".to_owned()));
            rest = after;
            continue;
        }
        let is_no_digit = |c: char| !c.is_ascii_digit();
        let (number, after) = match after.strip_prefix('{') {
            Some(braced) => braced.split_once('}').unwrap_or(("", braced)),
            None => after.split_at(after.find(is_no_digit).unwrap_or(after.len())),
        };
        match number.parse::<usize>() {
            Ok(number) if number <= groups => out.push(NamePiece::Group(number)),
            Ok(number) => return Err(format!("there is no group {number}, only {groups}")),
            Err(_) => {
                return Err(
                    "`$` is followed by the number of a group, as in `$1`; `$$` is a dollar sign"
                        .to_owned(),
                );
            }
        }
        rest = after;
    }
    out.push(NamePiece::Text(rest.to_owned()));
    Ok(out)
}
